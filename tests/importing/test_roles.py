"""Which columns are the step, the split and the features, and what a name says of a column."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.importing import new_workload
from tandem.terminal.command import CommandError
from tests.own_tables import (
    ENDINGS,
    LABELS,
    chosen,
    clips,
    planned,
    reasons,
    refusal,
    remarks,
    saved,
    series,
    table_with,
)


def test_a_series_of_numbers_in_another_notation_is_refused_with_their_conversion(tmp_path: Path):
    table = saved(series()[["time"]].assign(revenue="1.100,50"), tmp_path / "t.parquet")
    for options in ((), ("--target", "revenue")):
        assert "numbers like '1.100,50', which are read from text: table.to_csv(" in refusal(table, *options)


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
    renamed = table.rename(columns={"split": "Split"}).replace({"Split": {"val": "fold 3"}})
    assert "column 'Split' must be train, val or test, found fold 3" in refusal(saved(renamed, tmp_path / "t.csv"))


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


@pytest.mark.parametrize(
    ("column", "is_feature"), [("t", True), ("time", False), ("time_left", False), ("seconds_elapsed", False)]
)
def test_a_reading_that_is_called_like_a_step_is_a_feature(tmp_path: Path, column: str, is_feature: bool):
    table = table_with()
    cells = {"t": table["f0"] + table.index / 1e6, "time": table["frame"] * 0.5, "time_left": 9.5 - table["frame"]}
    jitter = np.random.default_rng(0).uniform(0, 0.1, len(table))  # as Sensor Logger's clock has
    cells["seconds_elapsed"] = table["frame"] * 0.5 + jitter
    plan = planned(saved(table.assign(**{column: cells[column]}), tmp_path / "t.csv"), "--step", "frame")
    assert (column in plan.workload.preprocess.columns.features) == is_feature
    if not is_feature:
        assert f"{column} (counts the rows, or is their time)" in str(new_workload.summary_lines(plan))


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


def test_indices_that_pandas_saved_are_named(tmp_path: Path):
    table = table_with()
    table.insert(0, "Unnamed: 0", range(len(table)))
    said = reasons(planned(saved(table.assign(**{"Unnamed: 7": None}), tmp_path / "t.csv")))["features"]
    assert "Unnamed: 0 (an index that pandas saved)" in said and "Unnamed: 7 (empty)" in said


def test_a_letter_at_the_end_of_a_name_is_no_time(tmp_path: Path):
    """As H.t, how long a key was held."""
    table = table_with().rename(columns={"frame": "rep", "f0": "H.t"})
    table["H.t"] += np.arange(len(table)) / 1e6  # no value repeats
    columns = planned(saved(table, tmp_path / "t.csv")).workload.preprocess.columns
    assert (columns.step, columns.features) == ("rep", ("H.t", "f1"))


def test_a_column_that_an_option_names_has_no_other_role(tmp_path: Path):
    """--label once named the sequence too, and the refusal said only that they must be different columns."""
    table = clips(["a", "b", "c"] * 8).assign(take=lambda table: table["clip"].str[1:].astype(int) % 4)
    path = saved(table, tmp_path / "t.csv")
    assert planned(path).workload.preprocess.columns.sequence == "clip"
    for name in ("clip", "frame"):
        assert "must be different" not in (message := refusal(path, "--label", name)) and f"({name!r})" not in message
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
    coefficients = table.set_axis(["mfcc1", "mfcc2", "mfcc3", "mfcc4", *table.columns[4:]], axis=1)
    assert "rows that have neither an order" in refusal(saved(coefficients.drop(columns=["file", "subject"]), path))


def test_an_id_that_changes_in_a_sequence_is_no_feature(tmp_path: Path):
    """An id of the transaction, with nine digits, once was a feature; a measured pid is none of these."""
    numbers = np.random.default_rng(0).integers(10**8, 10**9, len(clips(LABELS)))
    path = saved(table_with(transaction_id=numbers, productId=numbers[::-1], pid=numbers % 97), tmp_path / "t.csv")
    assert planned(path).workload.preprocess.columns.features == ("f0", "f1", "pid")
    assert "transaction_id (an id, by its name)" in reasons(planned(path))["features"]
    assert "productId" in planned(path, "--features", "f0,productId").workload.preprocess.columns.features


def test_a_clock_that_is_read_in_whole_units_is_no_feature(tmp_path: Path):
    """15.625 ms are 15, 31, 46 and 62. Two rows may have one tick, and the time of a sample is not quite even."""
    table = clips(LABELS)
    table.insert(2, "ms", np.floor(table["frame"] * 15.625 + 15).astype(int))
    table.insert(3, "tick", table["frame"] // 2 + 7)
    table.insert(4, "3", 0.03 * table["frame"] + np.random.default_rng(0).uniform(0, 0.003, len(table)))
    table.insert(5, "Timestamp", np.floor(table["frame"] ** 0.9).astype(int))
    plan = planned(saved(table, tmp_path / "t.csv"), "--step", "frame")
    assert plan.workload.preprocess.columns.features == ("f0", "f1")
