"""Which columns are the ids of sequences and their groups: ids that restart, people, days."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import refusals
from tests.own_tables import (
    LABELS,
    chosen,
    clips,
    planned,
    reasons,
    refusal,
    rewritten,
    saved,
    table_with,
)


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
    message = refusals.question(lambda: planned(path), *words)
    assert planned(path, "--sequence", "trial").summary["num_sequences"] == 12
    [(joined, code)] = re.findall(r"table\['(\w+)'\] = (table.*) \(before it", message)
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
    holidays = hours.dt.day.where(hours.dt.day.isin([5, 9, 10]), 0)  # each has an id, and 0 comes back
    table = table[["stamp", "count"]].assign(Holiday_ID=holidays, holiday=(holidays > 0).astype(int))
    refusals.question(lambda: planned(saved(table, path)), "is one series with", "--target count")
    assert "the sequence is 'Holiday_ID' (by its name;" in refusal(path, "--label", "holiday")


def test_a_column_that_changes_within_sequences_is_no_question(tmp_path: Path):
    half = {"player": lambda number: pd.Series(number).groupby(number).cumcount() % 2}  # take turns
    mistake = {"person": lambda number: np.where(np.arange(len(number)) == 1, 9, number // 3)}  # a mistake
    days = {"day": lambda number: pd.Series(number).groupby(number).cumcount() // 3}
    phases = {"phase_id": days["day"]}
    for columns in (half, mistake, days, phases):
        table = table_with(**columns)
        table = table.sample(frac=1, random_state=0) if columns is phases else table
        plan = planned(saved(table, tmp_path / "t.csv"))
        assert plan.summary["num_sequences"] == 24 and chosen(plan)["groups"] == "none"


@pytest.mark.parametrize(
    "ids",
    [
        lambda number: [str(10**19 + value) for value in number.tolist()],
        lambda number: [f"{'0' * (value % 2)}{value // 2 + 1}" for value in number.tolist()],  # 1, 01, 2, 02
    ],
)
def test_ids_are_text(tmp_path: Path, ids: Any):
    path = saved(table_with(clip=ids), tmp_path / "t.csv")
    plan = planned(path)
    assert chosen(plan)["sequence"] == "clip" and plan.summary["num_sequences"] == 24
    for number in range(24):
        folder = tmp_path / "files" / f"{LABELS[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        table = clips(["a"], seed=number).assign(person=ids(np.array([number // 2]))[0])
        table[["f0", "f1", "person"]].to_csv(folder / f"{number}.csv", index=False)
    plan = planned(tmp_path / "files")
    assert plan.workload.preprocess.groups == "person" and sum(plan.summary["num_groups"].values()) == 12


def test_a_shared_column_that_the_label_follows_is_the_group_whatever_its_name(tmp_path: Path):
    """Other sequences of the same value tell the label: split at random, the score would be one for known values."""
    labels = ["ab"[number // 6 % 2] for number in range(60)]
    table = clips(labels, num_features=2)
    number = table["clip"].str[1:].astype(int)
    days = pd.Timestamp("2024-03-04") + pd.to_timedelta(number // 6, unit="D")
    for column, values, groups, words in (
        ("day", days.dt.date, "day", "by its name; each of its 10 values stays in one split"),
        ("date", days.dt.strftime("%d.%m.%Y 10:30"), "date", "'label' follows it; each of its 10 values stays in one"),
        ("recorded", days + pd.to_timedelta(number, unit="s"), "none", "no column is named"),  # each another time
        ("pid", number // 6, "pid", "'label' follows it; each of its 10 values stays in one split"),
        ("code", number // 6 % 2, "none", "no column is named"),  # a second name of the label
        ("subtype", number // 6 % 4, "none", "no column is named"),  # kinds of it, too few for three splits
        ("weight_kg", 61.5 + number // 6, "none", "a value of 'weight_kg', and 'label' follows it: if it tells who"),
        ("tariff", number % 2, "none", "(--groups selects one)"),  # too few for three splits
        ("batch", number % 5, "none", "several sequences share a value of 'batch'"),  # the label varies within it
        ("PatientAge", 40 + number % 9, "none", "several sequences share a value of 'PatientAge'"),
        ("sensor_mac", number % 9, "none", "several sequences share a value of 'sensor_mac'"),
        ("subject_num", number % 9, "subject_num", "by its name"),
        ("participant_idx", number % 9, "participant_idx", "by its name"),
        ("PatientIDs", number % 9, "PatientIDs", "by its name"),
        ("patient code", 40 + number % 9, "patient code", "by its name"),
    ):
        (path := tmp_path / f"{column}.csv").write_text(table.assign(**{column: values}).to_csv(index=False))
        plan = planned(path, "--label", "label")
        assert chosen(plan)["groups"] == groups, column
        assert words in next(reason for key, _, reason in plan.choices if key == "groups"), column


def test_the_reason_for_a_label_names_within_what_it_varies(tmp_path: Path):
    number = (table := clips(["a"] * 48).drop(columns="label"))["clip"].str[1:].astype(int)
    table = table.assign(person=number // 4, device=[f"d{value // 4 % 2}" for value in number])
    table["mood"] = ["calm" if value // 8 % 2 else "tense" for value in number]  # of a person
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert chosen(plan)["label"] == "mood" and reasons(plan)["label"] == "it varies within 'device'"


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


def test_a_counter_that_wraps_may_number_recordings_or_not(tmp_path: Path):
    table = clips(LABELS, lengths=(8, 9)).drop(columns=["clip", "label"])
    message = refusal(saved(table, tmp_path / "t.csv"))
    assert "number them: table['recording'] = " in message and "if it only wraps" in message
    message = refusal(saved(table.drop(index=[20]), tmp_path / "t.csv"))
    assert "number them: table['recording'] = " in message and "if it only wraps" not in message


def test_the_minutes_of_days_are_no_several_series(tmp_path: Path):
    table = clips(LABELS, lengths=(8, 9)).rename(columns={"clip": "date", "frame": "minute"})
    table["date"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(pd.factorize(table["date"])[0], unit="D")
    columns = planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label) == ("date", "minute", "label")


def test_people_are_the_sequence_and_not_their_ages(tmp_path: Path):
    table = table_with(age=lambda number: 40 + number).rename(columns={"clip": "subject#"})
    table = table[["age", *table.columns.drop("age")]]
    assert planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns.sequence == "subject#"


@pytest.mark.parametrize("step", ["time", "angle"])
def test_columns_that_together_tell_sequences_apart_are_joined_by_the_code_of_the_refusal(tmp_path: Path, step: str):
    """As the joints of the legs in the repetitions of a person."""
    table = clips(["a", "b"] * 12, lengths=(6, 7)).rename(columns={"frame": step, "label": "state"})
    number = pd.factorize(table.pop("clip"))[0]
    table = table.assign(subject=number // 12, turn=number // 4 % 3, joint=np.array(["hip", "knee"])[number // 2 % 2])
    table["leg"] = number % 2
    path, options = rewritten(refusal(saved(table, tmp_path / "t.csv")), tmp_path)
    assert options[:2] == ["--sequence", "sequence"]
    plan = planned(path, *options, "--label", "state")
    assert plan.summary["num_sequences"] == 24 and plan.workload.preprocess.columns.step == step


@pytest.mark.parametrize("name", ["record", "tape"])
def test_an_age_that_differs_in_each_record_is_not_the_record(tmp_path: Path, name: str):
    table = clips(["a", "b", "c"] * 8).rename(columns={"clip": name})
    table.insert(0, "age", table[name].map({record: 20 + number for number, record in enumerate(table[name].unique())}))
    assert chosen(planned(saved(table, tmp_path / "t.csv")))["sequence"] == name


def test_steps_that_begin_again_for_each_of_two_ids_are_a_question(tmp_path: Path):
    """As the frames of each play of a game, whose result is the label: they were cut as recordings of games."""
    table = clips(LABELS, lengths=(20, 30))
    number = pd.factorize(table["clip"])[0]
    table = table.assign(clip=number // 5 + 1, play=number % 5 * 50 + 100, time=range(len(table)))
    path = saved(table.rename(columns={"clip": "gameId", "play": "playId"}), tmp_path / "t.csv")
    said = refusals.question(lambda: planned(path), "or give --sequence gameId to cut windows of each 'gameId'")
    joined, flags = rewritten(said, tmp_path)
    plan = planned(joined, *flags)
    assert plan.summary["num_sequences"] == 24 and not plan.source.notes  # 1 150 would be a number
    assert "windows" in str(planned(path, "--sequence", "gameId").block)


def test_minutes_and_seconds_are_no_ids(tmp_path: Path):
    """As `34:22.9`, which a spreadsheet cut off the hours of, five rows each."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(600, 2)).round(3), columns=["x", "y"])
    clocks = [f"{34 + row // 300}:{row // 5 % 60:02}.{row % 5 // 5}" for row in range(600)]
    table = table.assign(timestamp=clocks, activity=np.repeat([0, 1, 0, 1], 150))
    said = refusal(saved(table, tmp_path / "t.csv"))
    assert "no column that tells sequences apart" in said and "table['step'] = range(len(table))" in said
    table = table.assign(session=[f"{row // 20}:00" for row in range(600)], step=[row % 20 for row in range(600)])
    plan = planned(saved(table.assign(label=np.arange(600) // 20 % 3).drop(columns="timestamp"), tmp_path / "t.csv"))
    assert plan.workload.preprocess.columns.sequence == "session"
