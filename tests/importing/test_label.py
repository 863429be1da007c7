"""Which column is the label: by its name, else the only one that could be; several are a question."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.terminal.command import CommandError
from tests import refusals
from tests.own_tables import (
    ENDINGS,
    LABELS,
    chosen,
    clips,
    planned,
    recording,
    refusal,
    remarks,
    rewritten,
    saved,
    series,
    table_with,
)


def test_a_wrong_label_in_one_row_does_not_make_another_column_the_label(tmp_path: Path):
    table = table_with(boxer=lambda number: np.array(["ann", "bob", "cem"])[number % 3]).rename(
        columns={"label": "punch"}
    )
    table.loc[20, "punch"] = "z"
    table["punch"] = table.pop("punch")  # the last column
    path = saved(table, tmp_path / "t.csv")
    with pytest.raises(CommandError, match=r"give --label boxer \(classify: .* or --label punch \(classify: "):
        planned(path)
    assert "'punch' changes within a sequence" in refusal(path, "--label", "punch")


def test_events_beside_a_text_that_is_constant_in_each_sequence_are_a_question(tmp_path: Path):
    """As the failures of machines of several models."""
    table = table_with(model=lambda number: np.array(["m0", "m1", "m2"])[number % 3]).rename(
        columns={"label": "failure"}
    )
    table["failure"] = np.where(table["frame"] == 5, "leak", "none")
    path = saved(table, tmp_path / "t.csv")
    with pytest.raises(CommandError, match=r"--label model \(classify: .* or --label failure \(detect: events"):
        planned(path)
    assert planned(path, "--label", "failure").workload.task == "detect"


def test_a_column_that_is_rather_no_label_is_a_question(tmp_path: Path):
    """As the store of a row of sales, and the continent of a country."""
    table = table_with(label=lambda number: number % 3 * 10).rename(columns={"label": "oven [°C]"})  # beside a target
    with pytest.raises(CommandError, match="has a unit and few values, as a setting has .*; give --label 'oven"):
        planned(saved(table, tmp_path / "t.csv"))
    table = table.rename(columns={"oven [°C]": "hot (0/1)"})  # what its values mean is no unit
    assert chosen(planned(saved(table, tmp_path / "t.csv")))["label"] == "hot (0/1)"
    table = clips(LABELS, lengths=(8, 9)).rename(columns={"label": "store_id"})
    with pytest.raises(CommandError, match=r"'store_id' is .* but it is called an id; give --label store_id if it is"):
        planned(saved(table, tmp_path / "t.csv"))
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(table["frame"], "D")
    table = table.assign(frame=days).rename(columns={"store_id": "continent", "frame": "date"})
    path = saved(table, tmp_path / "t.csv")
    same_times = r"'continent' is .* each 'clip' has the same times, as several series do; for a forecast keep the rows"
    with pytest.raises(CommandError, match=same_times):
        planned(path)
    assert planned(path, "--label", "continent").workload.task == "classify"


def test_a_text_of_numbered_names_beside_another_label_is_offered_as_the_groups(tmp_path: Path):
    table = table_with(athlete=lambda number: np.char.add("A0", (number % 8).astype(str)), height=lambda n: 30.5 + n)
    path = saved(table.drop(columns="label"), tmp_path / "t.csv")
    said = "'athlete' tells who or what was recorded, give --groups athlete and another --label"
    refusals.question(lambda: planned(path), said, "--label athlete", "or --label height")
    assert chosen(planned(path, "--groups", "athlete"))["label"] == "height"


PEOPLE = [f"p{number % 8}" for number in range(24)]


PER_CLIP = np.random.default_rng(3).uniform(1, 9, 24).round(3)


def unlabelled(**per_clip: Any) -> pd.DataFrame:
    """Clips without a column called label; each argument has a value for each of the 24 clips."""
    table = table_with(**{name: np.asarray(cells).__getitem__ for name, cells in per_clip.items()})
    return table.drop(columns="label")


@pytest.mark.parametrize(
    ("per_clip", "readings"),
    [
        ({"person": PEOPLE, "speed": PER_CLIP}, {"speed": "regress", "person": "classify"}),
        ({"person": np.arange(24) % 8, "speed": PER_CLIP}, {"speed": "regress", "person": "classify"}),
        ({"person": PEOPLE, "age": 20.5 + np.arange(24) % 8}, {"age": "regress", "person": "classify"}),
        ({"person": PEOPLE, "grade": np.arange(24) % 5}, {"grade": "classify", "person": "classify"}),
        (
            {"person": PEOPLE, "grade": np.arange(24) % 5, "take": np.arange(24) // 8},
            {"grade": "classify", "take": "classify", "person": "classify"},
        ),
        ({"person": PEOPLE, "sex": ["f", "m"] * 12, "speed": PER_CLIP}, {"sex": "classify", "speed": "regress"}),
        ({"driver": PEOPLE, "speed": PER_CLIP}, {"driver": "classify", "speed": "regress"}),
        (
            {"grade": np.arange(24) % 5, "pays_next_month": np.arange(24) // 3 % 2, "month": np.arange(24) % 4},
            {"grade": "classify", "pays_next_month": "classify"},
        ),
    ],
)
def test_two_columns_that_could_be_the_label_are_a_question(
    tmp_path: Path, per_clip: dict[str, Any], readings: dict[str, str]
):
    path = saved(unlabelled(**per_clip), tmp_path / "t.csv")
    said = refusals.question(lambda: planned(path))
    assert re.findall(r"--label (\w+) \((\w+):", said) == [*readings.items()]
    are_numbers = all(isinstance(cells[0], np.number) for cells in per_clip.values())
    assert ("or --label with a number of each row: f0, f1" in said) == are_numbers
    for label, task in readings.items():  # each option answers the question
        params = planned(path, "--label", label).workload
        assert (params.task, params.preprocess.columns.label) == (task, label)


@pytest.mark.parametrize("options", ["--task regress", "--groups person"])
def test_other_options_answer_which_column_is_the_label(tmp_path: Path, options: str):
    path = saved(unlabelled(person=PEOPLE, speed=PER_CLIP), tmp_path / "t.csv")
    plan = planned(path, *options.split())
    assert (plan.workload.task, plan.workload.preprocess.columns.label) == ("regress", "speed")
    assert plan.workload.preprocess.groups == "person"
    refusals.question(lambda: planned(path, "--task", "classify"), "--label person if it is the label")


def test_a_label_that_varies_within_people_comes_before_their_properties(tmp_path: Path):
    signs, ages = ["a", "b", "c"] * 8, 20.5 + np.arange(24) % 8
    table = unlabelled(person=PEOPLE, sign=signs, sex=["f", "m"] * 12, age=ages)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert (plan.workload.preprocess.columns.label, plan.workload.preprocess.groups) == ("sign", "person")


def test_the_label_in_the_names_of_sequences_is_a_line_of_code(tmp_path: Path):
    """As in a column of files' names, which were joined; a folder of them has --pattern."""
    table = clips(LABELS).rename(columns={"clip": "file"})
    table["file"] = table.pop("label") + "_" + table["file"]
    plan = planned(rewritten(refusal(saved(table, tmp_path / "t.csv")), tmp_path)[0], "--label", "label")
    assert plan.summary["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize("cells", [PEOPLE, np.arange(24) % 8, np.arange(24) % 20])
def test_people_are_no_label_without_a_question(tmp_path: Path, cells: Any):
    """The labels are often in another table."""
    path = saved(unlabelled(subject=cells), tmp_path / "t.csv")
    words = "named like people", "table.merge(pandas.read_csv('labels.csv', dtype=str), on='clip')", "--label subject"
    refusals.question(lambda: planned(path), *words)


@pytest.mark.parametrize("label", ["value", "storm"])
def test_a_label_of_each_row_of_a_series_gets_the_code_that_cuts_windows(tmp_path: Path, label: str):
    """As days with ozone, in the table that a forecast would need: no option named led on."""
    table = series(kind="a").assign(storm=np.random.default_rng(0).integers(0, 2, 300))
    message = refusal(saved(table, tmp_path / "t.csv"), "--label", label)
    path, options = rewritten(message, tmp_path)
    plan = planned(path, *options)
    assert plan.workload.task == ("regress" if label == "value" else "classify")
    assert plan.summary["num_sequences"] == 10 and plan.workload.preprocess.columns.label == label


@ENDINGS
def test_white_space_around_a_label_makes_no_class(tmp_path: Path, ending: str):
    """Also if only some rows of a sequence have it."""
    table = clips(LABELS)
    table.loc[table["clip"] == "c003", "label"] = "a "
    table.loc[8:9, "label"] += "\t"
    plan = planned(saved(table, tmp_path / f"t.{ending}"))
    assert plan.summary["classes"] == ["a", "b", "c"]
    assert f"white space is stripped from {(table.label.str.len() > 1).sum()} cells of column 'label'" in remarks(plan)


def test_labels_that_differ_only_in_case_or_white_space_are_named(tmp_path: Path):
    names = np.array(["walk", "Walk", "stand up", "standup"])
    plan = planned(saved(table_with(label=lambda number: names[number % 4]), tmp_path / "t.csv"))
    assert "differ only in case or white space: 'Walk' and 'walk'; 'stand up' and 'standup'" in remarks(plan)


@pytest.mark.parametrize("label", ["is_fall", "sport", "event"])
@pytest.mark.parametrize("ids", ["event_id", "activityID", "GestureId"])
def test_a_name_that_ends_in_id_is_no_label_beside_another(tmp_path: Path, ids: str, label: str):
    """Once each sequence was a class of its own, and the error did not name the column."""
    cells = [True, False] if label == "is_fall" else ["run", "ride"]
    table = table_with(mark=lambda number: np.array(cells)[number % 2]).drop(columns="label")
    table["clip"] = pd.factorize(table["clip"])[0] + 900
    table["frame"] += 100 * table["clip"]  # goes on, as the time of one recording does
    plan = planned(saved(table.rename(columns={"clip": ids, "mark": label}), tmp_path / "t.csv"))
    columns = plan.workload.preprocess.columns
    assert (columns.sequence, columns.label, plan.summary["num_sequences"]) == (ids, label, 24)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("cells", [(False, True), (0, 1)])
def test_a_mark_in_some_rows_is_an_event_after_the_advised_code(tmp_path: Path, ending: str, cells: Any):
    table = table_with().drop(columns="label")
    table["mark"] = np.array(cells)[(np.arange(len(table)) % 5 == 3).astype(int)]
    path = saved(table, tmp_path / f"t.{ending}")
    message = refusal(path)
    if cells[1] == 1 and cells[0] is not False:
        assert "if 'mark' is 0 where nothing happens, give --label mark, after" in message
    code, _, commands = message.partition("table['mark'] = ")[2].partition(" (before it: import pandas; ")
    read, write = commands.removesuffix(")").split("; after it: ")
    exec(f"import pandas; {read}; table['mark'] = {code}; {write.replace('new.csv', str(tmp_path / 'new.csv'))}")  # noqa: S102
    plan = planned(tmp_path / "new.csv", "--label", "mark")
    assert plan.workload.task == "detect" and plan.summary["classes"] == ["none", str(cells[1])]


def test_numbers_are_named_in_a_question_about_labels(tmp_path: Path):
    ratings = {name: lambda number, shift=shift: PER_CLIP[number] + shift for shift, name in enumerate(("joy", "fear"))}
    table = table_with(stimulus=lambda number: np.array(list("abcdefghijkl"))[number % 12], **ratings)
    table["participant"] = [PEOPLE[number] for number in pd.factorize(table["clip"])[0]]
    path = saved(table.drop(columns="label"), tmp_path / "t.csv")
    refusals.question(lambda: planned(path), "--label stimulus", "--label joy", "--label fear")


def test_codes_of_classes_called_id_are_the_label_or_asked_about(tmp_path: Path):
    table = table_with(activity_id=lambda number: number % 3).drop(columns="label")
    assert chosen(planned(saved(table, tmp_path / "t.csv")))["label"] == "activity_id"
    table = table.assign(side=table["clip"].map(lambda clip: "lr"[int(clip[1:]) % 2]))
    message = refusals.question(lambda: planned(saved(table, tmp_path / "t.csv")))
    assert "--label activity_id (classify" in message and "--label side (classify" in message


def test_an_error_about_classes_names_the_column_that_was_inferred(tmp_path: Path):
    table = clips([*"a" * 20, "b", "b"])
    message = refusal(saved(table, tmp_path / "t.csv"))
    assert "the label is 'label' (by its name), and --label names another" in message
    assert "and --label names another" not in refusal(tmp_path / "t.csv", "--label", "label")


def test_a_column_with_another_value_in_each_row_is_no_label(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8).drop(columns="label")
    table["row_id"] = table["clip"] + "_" + table["frame"].astype(str)
    message = refusals.sentence(lambda: planned(saved(table, tmp_path / "t.csv")))
    assert "table = table.merge(pandas.read_csv('labels.csv', dtype=str), on='clip')" in message


@pytest.mark.parametrize("options", [["--label", "left"], ["--label", "left", "--task", "regress"]])
@pytest.mark.parametrize("kind", ["engines", "shuffled", "short", "recording"])
def test_a_number_that_changes_in_every_row_is_refused_with_the_code_that_cuts_windows(
    tmp_path: Path, options: list[str], kind: str
):
    """It once was to be empty or 'none', or was a mistake in each row."""
    table = clips([0] * 40, lengths=(4, 9)) if kind == "short" else clips([0] * 8, lengths=(70, 95))
    table = table.drop(columns="label")
    table["left"] = table.groupby("clip")["f0"].transform("size") - table["frame"]
    if kind == "short":
        table["left"] += 0.3 * pd.factorize(table["clip"])[0]
    if kind == "engines":  # with numbered columns, which a row per sequence has too
        table = table.assign(**{f"f{number}": table["f0"] * number for number in range(2, 9)})
    if kind == "shuffled":
        table = table.sample(frac=1, random_state=0)
    if kind == "recording":
        table = table.drop(columns="clip").assign(frame=range(len(table)))
    options = [*options, "--window", "20"] if kind == "recording" and "--task" not in options else options
    message = refusal(saved(table, tmp_path / "t.csv"), *options)
    path, flags = rewritten(message, tmp_path)
    assert "--layout" not in message
    plan, windows = planned(path, *flags), pd.read_csv(path).groupby("window")
    num_rows = plan.summary["max_steps"]
    assert num_rows == (4 if kind == "short" else 30) and plan.workload.task == "regress"
    assert plan.workload.preprocess.groups == ("clip" if "clip" in table else "none")
    assert (windows.size() == num_rows).all() and (
        windows["frame"].max() - windows["frame"].min() == num_rows - 1
    ).all()
    keys = ["clip", "frame"] if "clip" in table else ["frame"]
    last = windows.tail(1).set_index(keys)["left"]
    assert (last == table.set_index(keys)["left"][last.index]).all()


@pytest.mark.parametrize(("stage", "label"), [("sleep_stage", "sleep_stage"), (None, "activity")])
def test_text_that_changes_is_rather_the_label_than_a_number_called_activity(
    tmp_path: Path, stage: str | None, label: str
):
    """The counts of an actigraph once were to be predicted, and the stages of sleep not mentioned."""
    table = clips(LABELS, lengths=(60, 70)).drop(columns="label")
    table["activity"] = np.random.default_rng(0).integers(0, 200, len(table))
    if stage:
        table[stage] = np.array(["W", "N1", "N2", "REM"])[table["frame"] // 12 % 4]
    message = refusal(saved(table, tmp_path / "t.csv"))
    assert f"--label {label} " in message and ("--window" in message) == bool(stage)
    if stage:
        assert planned(tmp_path / "t.csv", *shlex.split(message.partition("; ")[2].partition(" cuts")[0]))


def test_a_constant_column_is_no_label_and_the_others_are_named(tmp_path: Path):
    path = saved(
        table_with(TransceiverClass="A", vessel=lambda number: number % 3).drop(columns="label"), tmp_path / "t.csv"
    )
    assert planned(path).workload.preprocess.columns.label == "vessel"
    assert refusal(path, "--label", "TransceiverClass").endswith("--label names another; vessel can be one")


@pytest.mark.parametrize("kind", ["sequences", "recordings", "a row per sequence"])
def test_several_columns_called_alike_are_a_question(tmp_path: Path, kind: str):
    """As the 51 labels of ExtraSensory, of which the first was taken. A code of the label is no other one."""
    flags, codes = np.arange(24)[:, None] // [1, 4] % 2, np.arange(24) % 4
    table = unlabelled(**{"label:sits": flags[:, 0], "label:walks": flags[:, 1], "label_source": np.full(24, 2)})
    codes_only = unlabelled(label_code=codes, label_name=np.array([*"abcd"])[codes])
    if kind == "recordings":
        table = pd.concat([recording([0, 1, 2, 3] * 4, seed=seed, subject=f"p{seed}") for seed in range(4)])
        codes = table.pop("activity").astype(int)
        codes_only = table.assign(label_code=codes, label_name=codes.map("abcd".__getitem__))
        table = table.assign(**{"label:sits": codes // 2, "label:walks": codes % 2, "label_source": 2})
    elif kind == "a row per sequence":
        steps = pd.DataFrame(np.random.default_rng(0).normal(size=(24, 6)).cumsum(axis=1)).add_prefix("x_")
        table = steps.assign(**{"label:sits": flags[:, 0], "label:walks": flags[:, 1]})
        codes_only = steps.assign(label_code=codes, label_name=np.array([*"abcd"])[codes])
    path = saved(table, tmp_path / "t.csv")
    named = re.findall(r"--label ([\w:]+)", refusals.question(lambda: planned(path)))
    assert named == ["label:sits", "label:walks"]
    for label in named:
        assert chosen(planned(path, "--label", label))["label"] == label
    saved(table.rename(columns={"label:sits": "label"}), path)
    assert chosen(planned(path))["label"] == "label"
    assert chosen(planned(saved(codes_only, path)))["label"] == "label_code"


def test_a_coarse_and_a_fine_label_are_a_question_and_a_countdown_is_no_feature(tmp_path: Path):
    """As RUL, label1 and label2 of engines: label1 is 1 where RUL, the number of rows that are left, is small."""
    table = pd.concat([recording(["0", "1", "2"], seed=seed, engine=seed) for seed in range(4)], ignore_index=True)
    fine = table.pop("activity").astype(int)
    left = table.groupby("engine").cumcount(ascending=False)
    path = saved(table.assign(RUL=left, label1=1 * (fine > 0), label2=fine), tmp_path / "t.csv")
    refusals.question(lambda: planned(path), "give --label label1 or --label label2")
    assert planned(path, "--label", "label1").workload.preprocess.columns.features == ("x", "y")


@pytest.mark.parametrize("options", [[], ["--task", "classify"]])
def test_a_word_that_changes_from_row_to_row_is_that_of_the_last_row_of_a_window(tmp_path: Path, options: list[str]):
    """As whether it rains tomorrow, in a table of days and places. The last rows of each place are in a window."""
    days = pd.date_range("2024-01-01", periods=105)
    draw = np.random.default_rng(0)
    table = pd.concat([pd.DataFrame({"date": days, "place": name, "sun": draw.normal(size=105)}) for name in "abcd"])
    table["rain"] = np.where(table["sun"] > 0.3, "No", "Yes")
    said = refusal(saved(table, tmp_path / "t.csv"), "--label", "rain", *options)
    path, flags = rewritten(said, tmp_path)
    written = pd.read_csv(path)
    assert flags == "--sequence window --step date --label rain --groups place".split() and len(written) == 4 * 90
    assert (written.groupby("place")["date"].max() == "2024-04-14").all()
    lasts = written.groupby("window").tail(1)
    assert (np.where(lasts["sun"] > 0.3, "No", "Yes") == lasts["rain"]).all()
    assert planned(path, *flags).summary["classes"] == ["No", "Yes"]
