"""Which columns are the label, the ids, the step, the groups and the split; two possible readings are a question."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.command import CommandError
from tandem.importing import new_workload
from tests import refusals
from tests.own_tables import (
    LABELS,
    chosen,
    clips,
    planned,
    reasons,
    refusal,
    remarks,
    rewritten,
    saved,
    series,
    table_with,
)

ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])


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
        ({"speed": PER_CLIP, "device": PEOPLE}, {"speed": "regress", "device": "classify"}),
        ({"person": np.arange(24) % 8, "speed": PER_CLIP}, {"speed": "regress", "person": "classify"}),
        ({"person": PEOPLE, "age": 20.5 + np.arange(24) % 8}, {"age": "regress", "person": "classify"}),
        ({"person": PEOPLE, "grade": np.arange(24) % 5}, {"grade": "classify", "person": "classify"}),
        (
            {"person": PEOPLE, "grade": np.arange(24) % 5, "take": np.arange(24) // 8},
            {"grade": "classify", "take": "classify", "person": "classify"},
        ),
        ({"person": PEOPLE, "sex": ["f", "m"] * 12, "speed": PER_CLIP}, {"sex": "classify", "speed": "regress"}),
        ({"driver": PEOPLE, "speed": PER_CLIP}, {"driver": "classify", "speed": "regress"}),
    ],
)
def test_two_columns_that_could_be_the_label_are_a_question(
    tmp_path: Path, per_clip: dict[str, Any], readings: dict[str, str]
):
    path = saved(unlabelled(**per_clip), tmp_path / "t.csv")
    assert re.findall(r"--label (\w+) \((\w+):", refusals.question(lambda: planned(path))) == [*readings.items()]
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


@pytest.mark.parametrize("cells", [PEOPLE, np.arange(24) % 8, np.arange(24) % 20])
def test_people_are_no_label_without_a_question(tmp_path: Path, cells: Any):
    """The labels are often in another table."""
    path = saved(unlabelled(subject=cells), tmp_path / "t.csv")
    words = "named like people", "table.merge(pandas.read_csv('labels.csv', dtype=str), on='clip')", "--label subject"
    refusals.question(lambda: planned(path), *words)


def test_a_label_of_a_series_is_refused_with_what_to_name(tmp_path: Path):
    table = saved(series(kind="a"), tmp_path / "t.csv")
    assert "every time in 'time' occurs once" in refusal(table, "--label", "value")


def test_a_series_of_numbers_in_another_notation_is_refused_with_their_conversion(tmp_path: Path):
    table = saved(series()[["time"]].assign(revenue="1.100,50"), tmp_path / "t.parquet")
    for options in ((), ("--target", "revenue")):
        assert "numbers like '1.100,50', which are read from text: table.to_csv(" in refusal(table, *options)


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
    rare = table_with(label=lambda number: np.where(number == 3, "A", np.array(LABELS)[number]))
    assert "class 'A' has 1 sequences" in (said := refusal(saved(rare, tmp_path / "t.csv")))
    assert "(it differs from 'a' only in case or white space)" in said


@ENDINGS
@pytest.mark.parametrize("name", ["split", "Split", "SPLIT", " split"])
def test_a_split_column_counts_however_it_is_spelled(tmp_path: Path, name: str, ending: str):
    words = np.array(["Train", "train ", "TEST", "validation"])
    table = table_with(**{name: lambda number: words[number // 3 % 4]})
    plan = planned(saved(table, tmp_path / f"t.{ending}"))
    assert plan.summary["num_per_split"] == {"train": 12, "val": 6, "test": 6}
    assert f"column {name!r} decides the split ('TEST', 'Train', 'train ', 'validation')" in remarks(plan)
    assert name not in chosen(plan)["features"] and "own column" in plan.block


def test_a_split_column_in_the_usual_spelling_needs_no_remark(tmp_path: Path):
    table = table_with(split=lambda number: np.array(["train", "val", "test"])[number // 3 % 3])
    assert remarks(planned(saved(table, tmp_path / "t.csv"))) == ""
    wrong = table.rename(columns={"split": "Split"}).replace({"Split": {"val": "fold 3"}})
    assert "column 'Split' must be train, val or test, found fold 3" in refusal(saved(wrong, tmp_path / "t.csv"))


APART = lambda number: np.array(["train", "val", "test"])[number % 8 // 3]  # noqa: E731 of eight people


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        ({"person": lambda number: number % 8, "split": APART}, "person"),
        (
            {"person": lambda number: number % 8, "split": lambda number: np.array(["train", "test"])[number % 2]},
            "person",
        ),
        (
            {"person": lambda number: number % 2, "split": lambda number: np.array(["train", "test"])[number % 2]},
            "person",
        ),
        ({"person": lambda number: number % 2, "split": APART}, "none"),  # both are in each split
        ({"group": lambda number: number // 8 % 2, "person": lambda number: number % 8, "split": APART}, "person"),
        ({"group": lambda number: number // 8 % 2, "person": lambda number: number % 8}, "person"),
    ],
)
def test_a_split_column_hides_no_groups(tmp_path: Path, columns: dict[str, Any], groups: str):
    table = table_with(**columns, label=lambda number: np.array(LABELS)[number // 8])
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert chosen(plan)["groups"] == groups and ("num_groups" in plan.summary) == (groups != "none")
    crossing = re.findall(
        r"by the table's own column, with (\d+) of the groups in", str(new_workload.summary_lines(plan))
    )
    assert crossing == [str(num) for num in [plan.summary.get("num_groups_across_splits", 0)] if num]


@pytest.mark.parametrize("name", ["set", "Partition"])
def test_a_column_of_train_and_test_with_another_name_is_pointed_out(tmp_path: Path, name: str):
    words = np.array(["Train", "valid", "test"])
    table = table_with(**{name: lambda number: words[number // 3 % 3]}).drop(columns="label")
    table["kind"] = table["clip"].map(dict(zip(sorted(set(table["clip"])), LABELS, strict=True)))
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert plan.workload.preprocess.columns.label == "kind"
    assert f"{name} (train and test by its words; call it `split`" in str(new_workload.summary_lines(plan))


def trials(order: str = "person", owner: str = "person") -> pd.DataFrame:
    """Four people with twelve trials each, numbered from 1, with one clock."""
    table = clips(["a", "b", "c"] * 16).assign(time=lambda table: table.index * 0.5)
    number = table.pop("clip").str[1:].astype(int)
    table = table.assign(trial=number % 12 + 1, person="p" + (number // 12).astype(str)).drop(columns="frame")
    table = table.sample(frac=1, random_state=0) if order == "none" else table.sort_values(order, kind="stable")
    return table.rename(columns={"person": owner})


@pytest.mark.parametrize(
    ("order", "owner"),
    [("person", "person"), ("trial", "person"), ("none", "person"), ("none", "device"), ("person", "file")],
)
def test_ids_that_restart_are_a_question(tmp_path: Path, order: str, owner: str):
    table = trials(order, owner)
    path = saved(table, tmp_path / "t.csv")
    words = f"'trial' may count the sequences of each '{owner}'", "(before it: import pandas; table = pandas.read_csv("
    said = refusals.question(lambda: planned(path), *words)
    assert planned(path, "--sequence", "trial").summary["num_sequences"] == 12
    [(joined, code)] = re.findall(r"table\['(\w+)'\] = (table.*) \(before it", said)
    table[joined] = eval(code, {"table": table})  # noqa: S307
    assert planned(saved(table, path)).summary["num_sequences"] == 48


@pytest.mark.parametrize("owner", ["day", "date", "block", "volunteer"])
def test_clips_that_are_counted_anew_are_a_question_whatever_counts_them(tmp_path: Path, owner: str):
    """Clip k of each day always was the same gesture, so ten clips became one sequence without a word."""
    table, number = clips(["a", "b", "c"] * 20), np.repeat(np.arange(60), 1)
    number = pd.factorize(table["clip"])[0]
    times = pd.Timestamp("2024-03-01") + pd.to_timedelta(number // 12, "D") + pd.to_timedelta(range(len(table)), "s")
    owners = {"date": times.strftime("%Y-%m-%d"), "volunteer": 40 - number // 12}.get(owner, number // 12 + 1)
    table = table.assign(clip=number % 12 + 1, time=times, **{owner: owners}).drop(columns="frame")
    words = f"'clip' may count the sequences of each '{owner}'", "give --sequence clip if that is one sequence"
    refusals.question(lambda: planned(saved(table, tmp_path / "t.csv")), *words)


def test_a_number_of_the_calendar_is_no_sequence(tmp_path: Path):
    """Counts of each hour were to be learned as the days of the week."""
    hours = pd.Series(pd.date_range("2024-03-01", periods=600, freq="h"))
    table = pd.DataFrame(
        {"stamp": hours, "Mdate": hours.dt.day, "Day": hours.dt.day_name(), "count": hours.dt.hour % 7}
    )
    path = saved(table, tmp_path / "t.csv")
    refusals.question(lambda: planned(path), "is one series with", "--target count")


def test_a_column_that_changes_within_sequences_is_no_question(tmp_path: Path):
    half = {"player": lambda number: pd.Series(number).groupby(number).cumcount() % 2}  # take turns
    one = {"person": lambda number: np.where(np.arange(len(number)) == 1, 9, number // 3)}  # a mistake
    days = {"day": lambda number: pd.Series(number).groupby(number).cumcount() // 3}
    phases = {"phase_id": days["day"]}
    for columns in (half, one, days, phases):
        table = table_with(**columns)
        table = table.sample(frac=1, random_state=0) if columns is phases else table
        plan = planned(saved(table, tmp_path / "t.csv"))
        assert plan.summary["num_sequences"] == 24 and chosen(plan)["groups"] == "none"


@pytest.mark.parametrize(("column", "is_feature"), [("t", True), ("time", False), ("time_left", False)])
def test_a_reading_that_is_called_like_a_step_is_a_feature(tmp_path: Path, column: str, is_feature: bool):
    table = table_with()
    cells = {"t": table["f0"] + table.index / 1e6, "time": table["frame"] * 0.5, "time_left": 9.5 - table["frame"]}
    plan = planned(saved(table.assign(**{column: cells[column]}), tmp_path / "t.csv"), "--step", "frame")
    assert (column in plan.workload.preprocess.columns.features) == is_feature
    if not is_feature:
        assert f"{column} (orders the rows too)" in str(new_workload.summary_lines(plan))


@pytest.mark.parametrize("clock", ["elapsed", "Zeit_s", "sample"])
@pytest.mark.parametrize("starts_at", [0.0, 100.0])
def test_a_signal_that_rises_is_a_feature_beside_a_clock(tmp_path: Path, clock: str, starts_at: float):
    """A force, a distance or a dose rises too; only a clock rises in equal steps, usually from the same number."""
    table = table_with().drop(columns="frame")
    position = table.groupby("clip").cumcount()
    number = pd.factorize(table["clip"])[0]
    table.insert(1, "force", 10 + position + 2 * (number % 2))  # in equal steps too, but from two numbers
    table.insert(2, "depth", position + 0.3 * np.sin(7.0 * np.arange(len(table))))
    table.insert(3, clock, starts_at + 0.05 * position)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert chosen(plan)["step"] == clock and {"force", "depth"} <= {*plan.workload.preprocess.columns.features}
    without = saved(table.drop(columns=[clock, "force"]).assign(dose=table["depth"] ** 2), tmp_path / "u.csv")
    with pytest.raises(CommandError, match="'?depth, dose increase in every sequence.* --step depth or --step dose"):
        planned(without)


def test_times_written_in_digits_are_no_steps(tmp_path: Path):
    """As numbers, two seconds lie 41 apart where a minute ends."""
    seconds = pd.Timestamp("2024-01-31 23:59:50") + pd.to_timedelta(np.arange(24 * 20), unit="s")
    for form, freq in (("%Y%m%d%H%M%S", 1), ("%Y%m%d%H%M", 60), ("%Y%m%d", 86400)):
        times = seconds[0] + (seconds - seconds[0]) * freq
        table = table_with().assign(frame=times[: len(table_with())].strftime(form).astype(int))
        with pytest.raises(ValueError, match=f"which are times as well as numbers; write times: .*{form}"):
            planned(saved(table, tmp_path / "t.csv"))
        plan = planned(saved(table.assign(frame=table["frame"] + 99), tmp_path / "t.csv"), "--missing", "refuse")
        assert chosen(plan)["step"] == "frame"  # 20240199 is no day


@pytest.mark.parametrize(
    "ids",
    [
        lambda number: [str(10**19 + each) for each in number.tolist()],
        lambda number: [f"{'0' * (each % 2)}{each // 2 + 1}" for each in number.tolist()],  # 1, 01, 2, 02
    ],
)
def test_ids_are_text(tmp_path: Path, ids: Any):
    path = saved(table_with(clip=ids), tmp_path / "t.csv")
    plan = planned(path)
    assert chosen(plan)["sequence"] == "clip" and plan.summary["num_sequences"] == 24
    for number in range(24):
        folder = tmp_path / "files" / f"{LABELS[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        one = clips(["a"], seed=number).assign(person=ids(np.array([number // 2]))[0])
        one[["f0", "f1", "person"]].to_csv(folder / f"{number}.csv", index=False)
    plan = planned(tmp_path / "files")
    assert plan.workload.preprocess.groups == "person" and sum(plan.summary["num_groups"].values()) == 12


def test_a_shared_column_that_the_label_follows_is_the_group_whatever_its_name(tmp_path: Path):
    """Other sequences of the same value tell the label: split at random, the score would be one for known values."""
    labels = ["ab"[number // 6 % 2] for number in range(60)]
    table = clips(labels, num_features=2)
    number = table["clip"].str[1:].astype(int)
    for column, values, groups, words in (
        ("pid", number // 6, "pid", "'label' follows it; each of its 10 values stays in one split"),
        ("code", number // 6 % 2, "none", "no column is named"),  # a second name of the label
        ("subtype", number // 6 % 4, "none", "no column is named"),  # kinds of it, too few for three splits
        ("batch", number % 5, "none", "several sequences share a value of 'batch'"),  # the label varies within it
    ):
        (path := tmp_path / f"{column}.csv").write_text(table.assign(**{column: values}).to_csv(index=False))
        plan = planned(path, "--label", "label")
        assert chosen(plan)["groups"] == groups, column
        assert words in next(reason for key, _, reason in plan.choices if key == "groups"), column


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


def test_of_several_ids_the_finest_is_the_sequence_and_people_are_the_groups(tmp_path: Path):
    """As in MIMIC, whose patients have several stays."""
    table = table_with(stay_id=lambda number: 900 + number, subject_id=lambda number: number // 3)
    table = table.drop(columns="clip")[["subject_id", "stay_id", "frame", "f0", "f1", "label"]]
    plan = planned(saved(table.assign(admission_id=table["stay_id"] // 2), tmp_path / "t.csv"))
    columns = plan.workload.preprocess.columns
    assert (columns.sequence, columns.features) == ("stay_id", ("f0", "f1"))
    assert plan.workload.preprocess.groups == "subject_id"


@pytest.mark.parametrize(("person", "step"), [("vp", "sample"), ("Subject", "Trial.Time"), ("subject", "trial")])
def test_a_column_that_counts_the_rows_of_an_id_is_the_step_and_no_id(tmp_path: Path, person: str, step: str):
    """Each trial is then a row of each person, as the samples of a record are, whatever its name says."""
    table = table_with().rename(columns={"clip": person, "frame": step})
    table[person] = pd.factorize(table[person])[0] + 100
    columns = planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label) == (person, step, "label")
    by_frame = table.sort_values([step, person]).rename(columns={person: "session", step: "nr"})
    columns = planned(saved(by_frame, tmp_path / "t.csv")).workload.preprocess.columns  # all sessions at the same time
    assert (columns.sequence, columns.step) == ("session", "nr")


def test_people_are_the_sequence_and_not_their_ages(tmp_path: Path):
    table = table_with(age=lambda number: 40 + number).rename(columns={"clip": "subject#"})
    table = table[["age", *table.columns.drop("age")]]
    assert planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns.sequence == "subject#"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("cells", [(False, True), (0, 1)])
def test_a_mark_in_some_rows_is_an_event_after_the_advised_code(tmp_path: Path, ending: str, cells: Any):
    table = table_with().drop(columns="label")
    table["mark"] = np.array(cells)[(np.arange(len(table)) % 5 == 3).astype(int)]
    path = saved(table, tmp_path / f"t.{ending}")
    said = refusal(path)
    if cells[1] == 1 and cells[0] is not False:
        assert "if 'mark' is 0 where nothing happens, give --label mark, after" in said
    code, _, rest = said.partition("table['mark'] = ")[2].partition(" (before it: import pandas; ")
    read, write = rest.removesuffix(")").split("; after it: ")
    exec(f"import pandas; {read}; table['mark'] = {code}; {write.replace('new.csv', str(tmp_path / 'new.csv'))}")  # noqa: S102
    plan = planned(tmp_path / "new.csv", "--label", "mark")
    assert plan.workload.task == "detect" and plan.summary["classes"] == ["none", str(cells[1])]


def test_numbers_are_named_in_a_question_about_labels(tmp_path: Path):
    ratings = {name: lambda number, shift=shift: PER_CLIP[number] + shift for shift, name in enumerate(("joy", "fear"))}
    table = table_with(stimulus=lambda number: np.array(list("abcdefghijkl"))[number % 12], **ratings)
    table["participant"] = [PEOPLE[number] for number in pd.factorize(table["clip"])[0]]
    path = saved(table.drop(columns="label"), tmp_path / "t.csv")
    refusals.question(lambda: planned(path), "--label stimulus", "--label joy", "--label fear")


def test_indices_that_pandas_saved_are_named(tmp_path: Path):
    table = table_with()
    table.insert(0, "Unnamed: 0", range(len(table)))
    assert "Unnamed: 0 (an index that pandas saved)" in reasons(planned(saved(table, tmp_path / "t.csv")))["features"]


def test_a_letter_at_the_end_of_a_name_is_no_time(tmp_path: Path):
    """As H.t, how long a key was held."""
    table = table_with().rename(columns={"frame": "rep", "f0": "H.t"})
    table["H.t"] += np.arange(len(table)) / 1e6  # no value repeats
    columns = planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns
    assert (columns.step, columns.features) == ("rep", ("H.t", "f1"))


def test_codes_of_classes_called_id_are_the_label_or_asked_about(tmp_path: Path):
    table = table_with(activity_id=lambda number: number % 3).drop(columns="label")
    assert chosen(planned(saved(table, tmp_path / "t.csv")))["label"] == "activity_id"
    table = table.assign(side=table["clip"].map(lambda clip: "lr"[int(clip[1:]) % 2]))
    said = refusals.question(lambda: planned(saved(table, tmp_path / "t.csv")))
    assert "--label activity_id (classify" in said and "--label side (classify" in said


def test_an_error_about_classes_names_the_column_that_was_inferred(tmp_path: Path):
    table = clips([*"a" * 20, "b", "b"])
    said = refusal(saved(table, tmp_path / "t.csv"))
    assert "the label is 'label' (by its name), and --label names another" in said
    assert "and --label names another" not in refusal(tmp_path / "t.csv", "--label", "label")


def test_a_column_that_counts_the_rows_of_each_sequence_is_no_feature(tmp_path: Path):
    """As the frames of DeepLabCut, in a column of another name."""
    table = clips(["a", "b", "c"] * 8)
    table.insert(2, "scorer", table["frame"] + 7)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert plan.workload.preprocess.columns.features == ("f0", "f1")
    assert "scorer (counts the rows of each sequence, or is their time)" in reasons(plan)["features"]


def test_a_column_with_another_value_in_each_row_is_no_label(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8).drop(columns="label")
    table["row_id"] = table["clip"] + "_" + table["frame"].astype(str)
    said = refusals.sentence(lambda: planned(saved(table, tmp_path / "t.csv")))
    assert "table = table.merge(pandas.read_csv('labels.csv', dtype=str), on='clip')" in said


@pytest.mark.parametrize("options", [["--label", "left"], ["--label", "left", "--task", "regress"]])
@pytest.mark.parametrize("kind", ["engines", "shuffled", "short", "recording", "rows", "rising rows"])
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
    if kind == "rising rows":
        table["left"] = range(len(table))
    if kind in ("recording", "rows", "rising rows"):
        table = table.drop(columns="clip").assign(frame=range(len(table)))
    options = [*options, "--window", "20"] if kind == "recording" and "--task" not in options else options
    without = "frame" if "rows" in kind else []
    said = refusal(saved(table.drop(columns=without), tmp_path / "t.csv"), *options)
    path, flags = rewritten(said, tmp_path)
    assert "--layout" not in said
    plan, windows = planned(path, *flags), pd.read_csv(path).rename(columns={"step": "frame"}).groupby("window")
    num_rows = plan.summary["max_steps"]
    assert num_rows == (4 if kind == "short" else 30) and plan.workload.task == "regress"
    assert plan.workload.preprocess.groups == ("clip" if "clip" in table else "none")
    assert (windows.size() == num_rows).all() and (
        windows["frame"].max() - windows["frame"].min() == num_rows - 1
    ).all()
    keys = ["clip", "frame"] if "clip" in table else ["frame"]
    last = windows.tail(1).set_index(keys)["left"]
    assert (last == table.set_index(keys)["left"][last.index]).all()


def test_a_column_that_an_option_names_has_no_other_role(tmp_path: Path):
    """--label once named the sequence too, and the refusal said only that they must be different columns."""
    table = clips(["a", "b", "c"] * 8).assign(take=lambda table: table["clip"].str[1:].astype(int) % 4)
    path = saved(table, tmp_path / "t.csv")
    assert planned(path).workload.preprocess.columns.sequence == "clip"
    for name in ("clip", "frame"):
        assert "must be different" not in (said := refusal(path, "--label", name)) and f"({name!r})" not in said
    features = table["frame"] + 0.1
    plan = planned(saved(table.assign(time=features), tmp_path / "t.csv"), "--features", "frame,f0")
    assert plan.workload.preprocess.columns.step == "time"


def test_rows_without_an_order_are_said_to_be_no_steps(tmp_path: Path):
    """Every column increases in a sequence of one row, and tBodyAcc once was a time by its first letter."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(90, 4)).round(3)
    table = pd.DataFrame(values, columns=["tBodyAcc-X", "tBodyAcc-Y", "fBodyAcc-X", "fBodyAcc-Y"])
    table = table.assign(subject=np.arange(90) // 9, Activity=["walk", "sit", "lie"] * 30)
    table["file"] = [f"{number}.wav" for number in range(90)]
    path = saved(table, tmp_path / "t.csv")
    for options in ((), ("--label", "Activity"), ("--sequence", "file"), ("--label", "subject")):
        assert "rows that have neither an order nor a time" in refusal(path, *options), options


def test_a_constant_column_is_no_label_and_the_others_are_named(tmp_path: Path):
    path = saved(
        table_with(TransceiverClass="A", vessel=lambda number: number % 3).drop(columns="label"), tmp_path / "t.csv"
    )
    assert planned(path).workload.preprocess.columns.label == "vessel"
    assert refusal(path, "--label", "TransceiverClass").endswith("--label names another; vessel can be one")


def test_an_id_that_changes_in_a_sequence_is_no_feature(tmp_path: Path):
    """An id of the transaction, with nine digits, once was a feature; a measured pid is none of these."""
    numbers = np.random.default_rng(0).integers(10**8, 10**9, len(clips(LABELS)))
    path = saved(table_with(transaction_id=numbers, productId=numbers[::-1], pid=numbers % 97), tmp_path / "t.csv")
    assert planned(path).workload.preprocess.columns.features == ("f0", "f1", "pid")
    assert "transaction_id (an id, by its name)" in reasons(planned(path))["features"]
    assert "productId" in planned(path, "--features", "f0,productId").workload.preprocess.columns.features
