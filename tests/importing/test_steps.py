"""Which rows follow each other: repeated steps and rows, logs, and gaps in a series."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.data import source_module
from tests.own_tables import (
    LABELS,
    chosen,
    clips,
    people,
    planned,
    reasons,
    refusal,
    remarks,
    rewritten,
    saved,
    series,
    with_cells,
)

ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])


@pytest.mark.parametrize("background", [None, "idle", "none"])
def test_a_repeated_step_is_named_with_its_lines(tmp_path: Path, background: str | None):
    """With a label for each sequence, or events; no advice would replace labels."""
    table = clips(LABELS).rename(columns={"label": "kind"})
    if background:
        table["kind"] = np.where(table["frame"] == 2, "hit", background)
    table.loc[6, "frame"] = table.loc[5, "frame"]
    for options in ([], ["--sequence", "clip", "--step", "frame"]):
        message = refusal(saved(table, tmp_path / "t.csv"), *options)
        assert f"'frame' repeats in clip {table['clip'][6]}, lines 7 and 8;" in message and "replace(" not in message


@ENDINGS
def test_equal_repeated_rows_are_left_out_and_named(tmp_path: Path, ending: str):
    """As a logger that was copied twice; also with an empty cell, and in recordings."""
    for table in (clips(LABELS), with_cells("f0", ""), people(6, ["sit", "walk", "run"]).drop(columns="time")):
        plan = planned(saved(table, tmp_path / f"t.{ending}"))
        repeated = pd.concat([table, table.iloc[[5, 6, 40]]])
        second_plan = planned(saved(repeated, tmp_path / f"t.{ending}"))
        assert (second_plan.workload, second_plan.summary["sha256"]) == (plan.workload, plan.summary["sha256"])
        places = f"lines 7 and {len(table) + 2}" if ending == "csv" else f"rows 6 and {len(table) + 1}"
        assert f"3 rows that repeat others are left out: {places} are equal" in remarks(second_plan)
    repeated = pd.concat([table := clips(LABELS), table.iloc[[5]].assign(f1=0)])
    assert f"'frame' repeats in clip {table['clip'][5]}" in refusal(saved(repeated, tmp_path / f"t.{ending}"))


def test_an_id_that_two_sequences_have_is_named_as_a_repeated_step(tmp_path: Path):
    table = clips(LABELS)
    table["label"] = np.where(pd.factorize(table["clip"])[0] < 12, "a", "b")
    table["clip"] = pd.factorize(table["clip"])[0] % 12
    first, second = table.index[(table["clip"] == 0) & (table["frame"] == 0)]
    for options in ([], ["--sequence", "clip", "--step", "frame"]):
        message = refusal(saved(table, tmp_path / "t.csv"), *options)
        assert f"'frame' repeats in clip 0, lines {first + 2} and {second + 2} (" in message
        assert "replace(" not in message and "cumcount" not in message


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
@pytest.mark.parametrize("options", [["--step", "time"], []])
def test_times_that_repeat_are_refused_with_the_code_that_numbers_the_rows(
    tmp_path: Path, options: list[str], form: str
):
    """Two purchases on one day are usual, and not to be removed."""
    table = clips(LABELS).sample(frac=1, random_state=0)
    days = pd.Timestamp("2024-03-27") + pd.to_timedelta(table["frame"].where(table["frame"] != 3, 2), unit="D")
    table = table.drop(columns="frame").assign(time=days.dt.strftime(form))
    path, flags = rewritten(refusal(saved(table, tmp_path / "t.csv"), *options), tmp_path)
    assert planned(path, *flags).workload.preprocess.columns.step == "row" and flags == ["--step", "row"]
    written = pd.read_csv(path)
    assert written["time"].is_monotonic_increasing and not written.duplicated(["clip", "row"]).any()


def test_several_series_at_uneven_times_and_numbers_in_any_order_have_code(tmp_path: Path):
    """As a log of the temperature in and out, of which each minute was a sequence; and as the time points of subjects,
    with a row for each event and region, which were numbered in the order of the file.
    """
    times = pd.Timestamp("2024-03-01") + pd.to_timedelta(np.random.default_rng(0).integers(1, 300, 600), unit="min")
    table = pd.DataFrame({"noted": times, "side": ["In", "Out", "Out"] * 200, "temp": np.arange(600) % 7 / 2})
    path, flags = rewritten(refusal(saved(table.sort_values("noted"), tmp_path / "t.csv")), tmp_path)
    plan = planned(path, *flags, "--interval", "10min")
    assert (plan.workload.task, plan.workload.preprocess.columns.target) == ("forecast", "temp")
    grid = pd.MultiIndex.from_product([[f"s{number}" for number in range(9)], range(9), ["cue", "stim"], ["l", "r"]])
    table = grid.to_frame(name=["subject", "point", "event", "region"]).sample(frac=1, random_state=0)
    path, flags = rewritten(refusal(saved(table.assign(signal=grid.codes[1] / 7), tmp_path / "t.csv")), tmp_path)
    plan = planned(path, *flags, "--label", "event")
    assert plan.summary["num_sequences"] == 36 and plan.workload.preprocess.groups == "subject"


def test_windows_are_cut_in_the_order_of_dates_that_begin_with_the_day(tmp_path: Path):
    """The code sorted them as text: 01.02.2024 before 02.01.2024."""
    draw, days = np.random.default_rng(0), pd.date_range("2024-01-01", periods=200)
    table = pd.DataFrame({"date": days.strftime("%d.%m.%Y"), "x": draw.normal(size=200), "y": draw.normal(size=200)})
    table = pd.concat([table.sample(frac=1, random_state=seed).assign(machine=seed) for seed in range(4)])
    said = refusal(saved(table, tmp_path / "t.csv"), "--sequence", "machine", "--label", "y")
    path, flags = rewritten(said, tmp_path)
    dates = pd.to_datetime(pd.read_csv(path)["date"]).groupby(pd.read_csv(path)["window"])
    assert ((dates.max() - dates.min()).dt.days == dates.size() - 1).all()
    assert planned(path, *flags).workload.task == "regress"


def log_of_records(unit: str, num: int = 30) -> pd.DataFrame:
    """A log of gestures, one after another, in which no time repeats."""
    table = clips(["push", "swipe", "twist"] * (num // 3), lengths=(20, 40))
    record = pd.factorize(table["clip"])[0]
    milliseconds = 1_700_000_000_000 + 20 * np.arange(len(table)) + 5000 * record
    times: Any = milliseconds * {"ms": 1, "us": 1000, "ns": 1_000_000}.get(unit, 1)
    if unit == "iso":
        times = pd.to_datetime(milliseconds, unit="ms").strftime("%Y-%m-%d %H:%M:%S.%f")
    elif unit == "s":
        times = milliseconds / 1000
    return pd.DataFrame(
        {"record": record, "timestamp_ms": times, "x": table["f0"], "y": table["f1"], "gesture": table["label"]}
    )


@pytest.mark.parametrize("unit", ["ms", "us", "ns", "s", "iso"])
def test_a_log_of_records_is_sequences_whatever_its_columns_are_called(tmp_path: Path, unit: str):
    expected = {
        "task": "classify",
        "sequence": "record",
        "step": "timestamp_ms",
        "label": "gesture",
        "features": "x, y",
    }
    table = log_of_records(unit)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert expected.items() <= chosen(plan).items() and plan.summary["num_sequences"] == 30
    shuffled = planned(saved(table.sample(frac=1, random_state=0), tmp_path / "t.csv"))
    assert shuffled.summary["sha256"] == plan.summary["sha256"]
    named = table.rename(columns={"record": "n", "timestamp_ms": "clock", "gesture": "what"})
    choices = chosen(planned(saved(named, tmp_path / "t.csv")))
    assert (choices["task"], choices["sequence"], choices["label"]) == ("classify", "n", "what")


def test_words_that_come_again_make_no_sequences_of_a_series(tmp_path: Path):
    """A day of the week has one word of a second column too, and so have a month and a stretch of days."""
    times = pd.date_range("2024-01-01", periods=400, freq="D")
    table = pd.DataFrame({"when": times.strftime("%Y-%m-%d"), "value": np.random.default_rng(0).normal(size=400)})
    table["name"], table["month"] = times.day_name(), times.month_name()
    table["kind"] = np.where(times.day_of_week < 5, "work", "rest")
    table["season"] = np.where(times.month < 7, "spring", "autumn")
    assert planned(saved(table, tmp_path / "t.csv")).workload.task == "forecast"


def test_a_label_in_a_series_is_no_feature(tmp_path: Path):
    plan = planned(path := saved(series(label=[int(hour == 99) for hour in range(300)]), tmp_path / "t.csv"))
    assert plan.workload.preprocess.columns.features == ()
    features = next(reason for key, _, reason in plan.choices if key == "features")
    assert "label (a label, by its name); --features includes them" in features
    assert planned(path, "--features", "label").workload.preprocess.columns.features == ("label",)


def test_few_gaps_do_not_cost_the_training_windows(tmp_path: Path):
    """A row with the time of the row before it, and with it a gap, which many windows touch."""
    table = series()
    table.loc[100, "time"] = table.loc[99, "time"]
    path = saved(table, tmp_path / "t.csv")
    windows = ["--input-steps", "48", "--horizon", "22"]
    plan = planned(path, *windows)
    total = sum(plan.summary[name]["train"] for name in ("num_per_split", "num_windows_skipped_per_split"))
    assert plan.workload.preprocess.missing == "interpolate"
    reason = next(reason for key, _, reason in plan.choices if key == "missing")
    assert "1 of 300 points" in reason and "1 rows have the time of a later one" in reason
    often = pd.concat([table, table[::5]]).sort_values("time")  # as of several weathers in an hour
    assert (
        "61 rows have the time of a later one" in reasons(planned(saved(often, path), "--task", "forecast"))["missing"]
    )
    saved(table, path)
    skipping = planned(path, *windows, "--missing", "skip")
    params = skipping.workload.preprocess
    data = source_module("series").prepare(params, tmp_path, "window")
    skipped = data.summary["num_windows_skipped_per_split"]
    num_lost = skipped["train"]
    assert skipped == {"train": num_lost, "val": 0, "test": 0} and num_lost > total / 4
    assert data.summary["num_per_split"]["train"] == total - num_lost
    assert f"they touch one: {num_lost} (train {num_lost}, val 0, test 0)" in data.message
    assert (
        f"\nwarning: train loses {num_lost} of {total} windows to missing points; `missing: interpolate` keeps"
        in data.message
    )
