"""Recordings with a label in each row: what is taken for one, and what is not."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tandem.importing import infer_label
from tandem.terminal.command import CommandError
from tests.data.test_windows import DAY
from tests.own_tables import chosen, clips, people, planned, reasons, recording, refusal, rewritten, saved, series
from tests.refusals import question, sentence


def folder(at: Path, table: pd.DataFrame) -> Path:
    (at / "d").mkdir()
    for name, part in table.groupby("subject"):
        saved(part.drop(columns="subject"), at / "d" / f"{name}.csv")
    return at / "d"


@pytest.mark.parametrize("form", ["people", "folder", "one", "seconds", "counted", "numbers"])
def test_a_recording_becomes_windows(tmp_path: Path, form: str):
    table = (people(4, DAY) if form in ("people", "folder") else recording(DAY)).drop(columns="row")
    if form == "seconds":
        table["time"] = np.arange(len(table)) / 20
    if form == "counted":
        table = table.rename(columns={"time": "at"}).assign(at=range(len(table)))
    if form == "numbers":
        table["activity"] = table["activity"].map({"sit": "1", "walk": "2", "run": "3"})
    plan = planned(folder(tmp_path, table) if form == "folder" else saved(table, tmp_path / "t.csv"))
    params = plan.workload.preprocess
    assert plan.workload.task == "classify" and len(plan.summary["classes"]) == 3
    assert params.window and 35 <= params.window.length <= 60 and params.window.stride == params.window.length // 2
    assert params.columns.label == "activity" and set(params.columns.features) == {"x", "y"}
    has_people = form in ("people", "folder")
    assert params.columns.sequence == params.groups == {"people": "subject", "folder": "sequence"}.get(form, "none")
    assert f"{4 if has_people else 1} recording" in plan.summary["remarks"][0]
    assert f"window: {{length: {params.window.length}, stride: {params.window.stride}}}" in plan.block


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("num", [2, 8])
def test_a_split_column_leaves_the_recordings_as_groups(tmp_path: Path, num: int, is_apart: bool):
    table = people(num, DAY)
    is_test = table["subject"] >= f"p{num // 2}" if is_apart else table["row"] > table["row"].median()
    table["split"] = np.where(is_test, "test", "train")
    plan = planned(saved(table.drop(columns="row"), tmp_path / "t.csv"))
    assert plan.workload.preprocess.groups == ("subject" if num > 2 or is_apart else "none")
    assert "are in one split" not in plan.summary["remarks"][0]
    if plan.workload.preprocess.groups == "subject":
        assert plan.summary["num_groups"]["test"] == (num // 2 if is_apart else num)


def trials_in_gaps() -> pd.DataFrame:
    """Each activity three times, a minute between two trials."""
    table = recording(["sit", "walk"] * 6, lengths=(90, 91)).drop(columns="row")
    times = pd.to_datetime(table["time"]) + pd.to_timedelta(table.index // 30, "min")
    return table.assign(time=times.dt.strftime("%Y-%m-%d %H:%M:%S.%f"))


def rare_faults() -> pd.DataFrame:
    """Faults of 9 to 23 rows: the window once was longer than most of them."""
    lengths = [rows for fault in range(9, 24) for rows in (100, fault)]
    table = recording(["ok"], lengths=(sum(lengths), sum(lengths) + 1)).drop(columns="row")
    return table.assign(activity=np.repeat(["ok", "fault"] * 15, lengths))


@pytest.mark.parametrize(("table", "length"), [(trials_in_gaps(), 30), (rare_faults(), 11)])
def test_nine_of_ten_stretches_and_half_of_those_of_every_label_hold_a_window(
    tmp_path: Path, table: pd.DataFrame, length: int
):
    plan = planned(saved(table, tmp_path / "t.csv"), "--label", "activity")
    assert plan.workload.preprocess.window.length == length


def test_options_override_what_is_inferred(tmp_path: Path):
    path = saved(people(4, DAY).rename(columns={"activity": "doing"}), tmp_path / "t.csv")
    options = ("--label", "doing", "--window", "20", "--stride", "5", "--groups", "none", "--features", "x")
    plan = planned(path, *options)
    params = plan.workload.preprocess
    assert (params.window.length, params.window.stride, params.groups) == (20, 5, "none")
    assert chosen(plan)["window"] == "20 steps every 5" and params.columns.features == ("x",)
    single_path = saved(recording(DAY), tmp_path / "one.csv")
    assert planned(single_path, "--time", "row", "--target", "x").workload.task == "forecast"


def clips_of_people() -> pd.DataFrame:
    """Clips of four people with one clock."""
    table = clips(["a", "b", "c"] * 8, lengths=(30, 60))
    return table.assign(time=table.index / 20, person=table["clip"].str[1:].astype(int) // 6)


def test_trials_of_people_whose_clock_goes_on_are_a_question_and_no_feature(tmp_path: Path):
    table = clips_of_people().drop(columns="frame")
    number = table.pop("clip").str[1:].astype(int)
    table = table.assign(trial=number % 6 + 1, label=[f"l{value}" for value in (number + number // 6) % 3])
    table["time"] = 4.1 + table.groupby("person").cumcount() / 20
    path = saved(table, tmp_path / "t.csv")
    question(lambda: planned(path), "'trial' may count the sequences of each 'person'")
    plan = planned(path, "--sequence", "person", "--window", "20")
    assert plan.workload.preprocess.columns.features == ("f0", "f1")
    assert "trial (constant within every stretch, as a trial)" in reasons(plan)["features"]


def blocks() -> pd.DataFrame:
    """Sequences with one event of 20 rows each."""
    table = clips([None] * 12, lengths=(60, 80))
    table["label"] = np.where(table["frame"].between(20, 39), np.where(table["clip"] < "c006", "a", "b"), None)
    return table


@pytest.mark.parametrize(
    ("table", "task"),
    [
        (clips(["a", "b", "c"] * 8, lengths=(30, 60)), "classify"),
        (clips_of_people(), "classify"),
        (blocks(), "detect"),
        (series(label=[int(hour >= 99) for hour in range(300)]), "forecast"),
        (series(activity=np.repeat(["night", "day", "evening"], 100)), "forecast"),
        (series(label=[hour % 24 // 8 for hour in range(300)]), "forecast"),
    ],
)
def test_other_tables_are_no_recordings(tmp_path: Path, table: pd.DataFrame, task: str):
    options = ("--task", "detect") if task == "detect" else ()  # an event of several rows is a question
    plan = planned(saved(table, tmp_path / "t.csv"), *options)
    assert plan.workload.task == task and getattr(plan.workload.preprocess, "window", None) is None


@pytest.mark.parametrize(
    "options, words",
    [
        (["--window", "10"], "(the longest stretch has 8 rows)"),
        (["--sequence", "none"], "is no recording with a label in each row"),
    ],
)
def test_options_of_recordings_are_refused_for_other_tables(tmp_path: Path, options: list[str], words: str):
    path = saved(clips(["a", "b", "c"] * 8), tmp_path / "t.csv")
    sentence(lambda: planned(path, *options), words)


@pytest.mark.parametrize("ids, label", [("subject", "trial type"), ("clip", "phase")])
def test_a_label_that_stays_the_same_for_some_rows_is_never_called_an_event(tmp_path: Path, ids: str, label: str):
    """Replacing a label by `none`, as the error once advised, made a wrong task of it."""
    table = people(5, ["go", "stop"] * 8, lengths=(10, 13)).drop(columns="row")
    table = table.rename(columns={"subject": ids, "activity": label})
    path = saved(table, tmp_path / "t.csv")
    message = refusal(path, "--label", label, "--sequence", ids)
    assert "stays the same for 11 rows" in message and "none" not in message
    options = shlex.split(re.search(r"--sequence .* --window \d+", message)[0])
    plan = planned(path, *options)
    assert plan.workload.task == "classify" and plan.summary["num_sequences"] >= 80
    single = table.assign(**{label: np.where(np.arange(len(table)) % 9 == 4, "hit", "rest")})
    message = refusal(saved(single, path), "--label", label, "--sequence", ids)
    assert f"table['{label}'].replace('rest', 'none')" in message and "--window" not in message
    saved(single.assign(**{label: single[label].replace("rest", "none")}), path)
    assert planned(path, "--label", label, "--sequence", ids).workload.task == "detect"


@pytest.mark.parametrize("word", ["None", "none", ""])
def test_a_word_for_no_event_counts_as_one_in_any_case(tmp_path: Path, word: str):
    """Events in a table that writes None once were to be cut into windows of 1 row, which are refused."""
    table = people(8, ["a"], lengths=(40, 60)).drop(columns=["row", "activity"])
    table["event"] = np.where(np.arange(len(table)) % 40 == 7, "snap", word)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert (plan.workload.task, plan.summary["classes"]) == ("detect", ["none", "snap"])


@pytest.mark.parametrize("words, rows", [(["go", "stop"], 12), (["go", "stop"], 3), (["NA", "hit"], 3)])
def test_the_window_that_a_refusal_advises_is_accepted(tmp_path: Path, words: list[str], rows: int):
    """None is advised of stretches that are too short for a window."""
    table = people(6, ["a"], lengths=(40, 60)).drop(columns=["row", "activity"])
    table["phase"] = np.take(words, np.arange(len(table)) // rows % 2)
    table.loc[np.arange(len(table)) % 60 == 0, "phase"] = words[0]
    message = refusal(path := saved(table, tmp_path / "t.csv"), "--label", "phase", "--sequence", "subject")
    options = re.findall(r"--sequence .* --window \d+", message)
    assert len(options) == (rows == 12)
    for option in options:
        assert planned(path, *shlex.split(option)).workload.task == "classify"


def test_two_columns_of_text_that_stay_the_same_for_many_rows_are_a_question(tmp_path: Path):
    """As the phone and the activity of a person, of which no name says that it is the label."""
    table = people(4, DAY).drop(columns="row").rename(columns={"activity": "gt"})
    table["model"] = np.where(table.groupby("subject").cumcount() % 400 < 200, "a", "b")
    path = saved(table, tmp_path / "t.csv")
    labels = "(--label gt or --label model|--label model or --label gt)$"
    with pytest.raises(CommandError, match=f"2 columns that could be the label; give {labels}"):
        planned(path)
    assert planned(path, "--label", "gt").workload.preprocess.columns.label == "gt"


def test_a_code_of_the_label_is_no_feature_of_recordings(tmp_path: Path):
    """A network that learns it is right in every window of a table of noise."""
    table = people(4, DAY).drop(columns="row")
    table["target"] = table["activity"].map({"sit": 11, "walk": 5, "run": 7})
    table["gear"] = table["target"].where(table.index % 3 > 0, 5)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert set(plan.workload.preprocess.columns.features) == {"x", "y", "gear"}
    assert "target (its values tell the label, as a code of the label does)" in reasons(plan)["features"]


@pytest.mark.parametrize("is_background", [True, False])
def test_a_code_of_the_label_with_a_background_is_no_feature(tmp_path: Path, is_background: bool):
    """0 between the strokes of a swim, in the swims of each style; a gear is 0 and 1 in each."""
    table = clips(["back", "free", "fly"] * 8, lengths=(20, 30))
    codes = table["label"].map({"back": 1, "free": 2, "fly": 3}) if is_background else 1
    table["stroke"] = codes * (table["frame"] % 20 > 5)
    features = planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns.features
    assert ("stroke" in features) == (not is_background)


def test_of_two_labels_as_numbers_the_other_is_no_feature(tmp_path: Path):
    table = people(8, [101, 102, 103] * 2).drop(columns="row").rename(columns={"activity": "8"})
    table["9"] = table.groupby("subject").cumcount() // 40 % 3 + 1
    table["changes"] = (table["8"].diff() != 0) * 1.0
    plan = planned(saved(table, tmp_path / "t.csv"), "--label", "8", "--sequence", "subject")
    assert set(plan.workload.preprocess.columns.features) == {"x", "y"}
    assert "9 (it may be another label), changes (it may be another label)" in reasons(plan)["features"]
    events = table.assign(changes=table["changes"].map({1: "change", 0: "none"}))
    plan = planned(saved(events, tmp_path / "t.csv"), "--label", "changes", "--sequence", "subject", "--step", "time")
    assert "8 (it may be another label)" in reasons(plan)["features"]


def test_a_number_like_the_label_is_no_feature(tmp_path: Path):
    """As the total score, of which the motor score is a part."""
    table = clips(list(range(100, 148)))
    score = table.pop("label").astype(int)
    table = table.assign(motor_score=score, total_score=score * 1.3 + table["frame"] / 9)
    assert "total_score" not in planned(saved(table, tmp_path / "t.csv"), "--label", "motor_score").block


def test_times_that_are_not_used_may_be_empty(tmp_path: Path):
    table = recording(["sit", "walk"] * 6)
    table.loc[[5, 90], "time"] = None
    assert chosen(planned(saved(table, tmp_path / "t.csv")))["step"] == "row"


def test_recordings_of_one_label_each_are_cut_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = clips(["sit", "walk", "run"] * 4, lengths=(90, 130))
    plan = planned(path := saved(table, tmp_path / "t.csv"), "--window", "32")
    assert plan.workload.preprocess.window.length == 32 and plan.workload.preprocess.groups == "none"
    for name, rows in table.groupby("clip"):
        (folder := tmp_path / "f" / rows["label"].iloc[0]).mkdir(parents=True, exist_ok=True)
        rows.drop(columns=["clip", "label"]).to_csv(folder / f"{name}.csv", index=False)
    of_folder = planned(tmp_path / "f", "--window", "32")
    assert of_folder.summary["num_sequences"] == plan.summary["num_sequences"] > 24
    monkeypatch.setattr(infer_label, "LONG", 100)
    plan = planned(path)
    assert plan.summary["num_sequences"] == 12 and "; --window 256 cuts windows" in reasons(plan)["task"]
    late = table.assign(frame=table["frame"] + 9000 * (table["frame"] > 60))  # a stretch is half of a recording then
    assert planned(saved(late, path), "--window", "32").workload.preprocess.groups == "clip"


def test_three_long_files_of_each_label_are_in_each_split(tmp_path: Path):
    """A fan that is recorded once in each state. The test split once had a single state."""
    table = clips(["off", "normal", "blocked", "unbalanced"], lengths=(900, 901))
    for number, rows in table.groupby(table["frame"] // 300):
        for label, part in rows.groupby("label"):
            (folder := tmp_path / "f" / label).mkdir(parents=True, exist_ok=True)
            part[["frame", "f0", "f1"]].to_csv(folder / f"{number}.csv", index=False)
    summary = planned(tmp_path / "f", "--window", "64").summary
    assert all(all(part.values()) for part in summary["num_per_class"].values())
    assert {*summary["num_groups"].values()} == {4}


def one_after_another(num: int = 6) -> pd.DataFrame:
    """A recording of each of several people, an hour after the other."""
    table = people(num, ["sit", "walk"] * 3)
    hours = pd.to_timedelta(table["subject"].str[1:].astype(int), unit="h")
    return table.assign(time=(pd.to_datetime(table["time"]) + hours).dt.strftime("%Y-%m-%d %H:%M:%S.%f")).drop(
        columns="row"
    )


@pytest.mark.parametrize("order", ["activity", "none"])
@pytest.mark.parametrize("is_number", [True, False])
def test_recordings_are_those_of_the_people_in_any_order_of_the_rows(tmp_path: Path, order: str, is_number: bool):
    """Sorted by activity, the table once was one recording, and the number of the person a feature."""
    table = one_after_another()
    if is_number:
        table["subject"] = table["subject"].str[1:].astype(int)
    plain = planned(saved(table, tmp_path / "plain.csv"))
    by_order = table.sort_values(order, kind="stable") if order != "none" else table.sample(frac=1, random_state=0)
    plan = planned(saved(by_order, tmp_path / "t.csv"))
    assert plan.workload.preprocess == replace(plain.workload.preprocess, table="t.csv")
    assert plan.workload.preprocess.groups == "subject" and plan.summary["sha256"] == plain.summary["sha256"]


def test_a_column_that_may_say_who_was_recorded_is_a_question(tmp_path: Path):
    path = saved(one_after_another().rename(columns={"subject": "volunteer"}), tmp_path / "t.csv")
    with pytest.raises(
        CommandError, match="'volunteer' may say who or what was recorded; give --sequence volunteer if"
    ):
        planned(path)
    assert chosen(planned(path, "--sequence", "volunteer"))["groups"] == "volunteer"
    assert chosen(planned(path, "--sequence", "none"))["sequence"] == "none"


def test_text_in_long_stretches_is_the_label_of_a_recording_whatever_its_name(tmp_path: Path):
    table = recording(["spin", "rinse", "heat"] * 6).rename(columns={"activity": "phase", "row": "millis"})
    plan = planned(saved(table.drop(columns="time"), tmp_path / "t.csv"))
    assert (plan.workload.preprocess.columns.label, plan.workload.preprocess.columns.step) == ("phase", "millis")


def test_the_weekday_of_a_series_is_no_recording(tmp_path: Path):
    """A year of energy once was seven recordings, one for each day of the week."""
    times = pd.Series(pd.date_range("2024-01-01 00:15", periods=96 * 21, freq="15min"))
    load = np.where(times.dt.hour < 8, "light", np.where(times.dt.hour < 18, "high", "medium"))
    table = pd.DataFrame({"date": times, "kwh": np.arange(len(times)) % 7 + 0.5, "Day_of_week": times.dt.day_name()})
    assert planned(saved(table.assign(Load_Type=load), tmp_path / "t.csv")).workload.task == "forecast"


@pytest.mark.parametrize("name", ["phase", "behavior"])
def test_a_column_called_label_beside_text_in_stretches_is_a_question(tmp_path: Path, name: str):
    """As the phases of a gesture, which is constant in its recording, whatever they are called."""
    table = people(8, ["move", "rest"] * 2).rename(columns={"activity": name})
    table["gesture"] = table["subject"].map(lambda name: "ab"[int(name[1:]) % 2])
    path = saved(table, tmp_path / "t.csv")
    with pytest.raises(
        CommandError, match=f"2 columns that could be the label; give --label {name} or --label gesture"
    ):
        planned(path)
    assert planned(path, "--label", "gesture").summary["num_sequences"] == 8
    assert chosen(planned(path, "--label", name))["label"] == name


def test_two_devices_of_a_person_at_the_same_times_are_a_question(tmp_path: Path):
    """As the phones of HHAR, whose windows once had the rows of both in turn."""
    table = people(3, DAY)
    table["time"] = table.pop("row") / 20
    table = pd.concat([table.assign(phone="s3"), table.assign(phone="n4", time=table["time"] + 0.007)])
    path = saved(table.sort_values(["subject", "phone"], kind="stable"), tmp_path / "t.csv")
    question(lambda: planned(path), "'time' orders the rows of each 'subject' and 'phone'")


def test_windows_of_a_single_label_are_refused(tmp_path: Path):
    """As of a series in which nearly all is usual: any model would be right."""
    path = saved(recording(["sit", "sit", "fall", "sit", "sit"] * 3), tmp_path / "t.csv")
    said = refusal(path, "--label", "activity", "--window", "70")
    assert said.endswith("all windows have one label; shorten --window, or give --task detect for events")


def test_two_stretches_of_each_label_are_split_by_the_code_of_the_refusal(tmp_path: Path):
    table = recording(["sit", "walk"] * 2, lengths=(600, 620)).drop(columns=["time", "row"])
    table["step"] = range(len(table))
    said = refusal(saved(table, tmp_path / "t.csv"))
    assert "shorter --window, or split each stretch" in said
    path, _ = rewritten(said, tmp_path)
    assert min(planned(path).summary["num_per_split"].values()) > 3
    (folder := tmp_path / "d").mkdir()
    for label, rows in table.groupby("activity"):  # a file of each label, which a table of labels gives
        rows.drop(columns="activity").to_csv(folder / f"{label}.csv", index=False)
    (tmp_path / "l.csv").write_text("file,activity\nsit,sit\nwalk,walk\n")
    options = ["--labels", str(tmp_path / "l.csv"), "--window", "128", "--groups", "none"]
    code = refusal(folder, *options).partition("split each stretch: ")[2].partition("; the label is")[0]
    for path in folder.glob("*.csv"):
        exec(f"import pandas; {code}", namespace := {"table": pd.read_csv(path)})  # noqa: S102
        namespace["table"].to_csv(path, index=False)
    assert min(planned(folder, *options).summary["num_per_split"].values()) > 3
