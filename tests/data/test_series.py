"""Properties of the source `series`: on small tables written out here and on the committed price table."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tandem.data import series, write_arrays
from tandem.data.series import Grid, Windows, to_grid
from tandem.data.tables import read_table
from tandem.data.times import iso
from tandem.params.intervals import parse_interval
from tandem.params.schema import Series, SeriesColumns, Split
from tandem.tasks import open_task
from tandem.tasks.forecast import levels, linear_forecast
from tests.data import test_sequences
from tests.data.test_sequences import prepare

ROOT = Path(__file__).resolve().parents[2]
PARAMS = Series(
    source="series",
    table="table.csv",
    columns=SeriesColumns(time="time", target="x", features=()),
    interval="15min",
    transform="difference",
    missing="skip",
    input_steps=2,
    horizon=2,
    stride=1,
    split=Split(train=0.5, val=0.25, test=0.25),
)
TWO = SeriesColumns(time="time", target="x", features=("y",))
LEVELS = [1.0, 2, 4, 7, 11, 16, 22, 29, 37, 46, 56, 67]  # differences 1 to 11
QUARTERS = [f"2024-01-01T{quarter // 4:02d}:{quarter % 4 * 15:02d}:00Z" for quarter in range(12)]


def table(times: list[str], *columns: list) -> str:
    """Rows as CSV; the columns after the time are x, y, ..."""
    rows = [",".join(map(str, row)) for row in zip(times, *columns, strict=True)]
    return "\n".join([",".join(["time", *"xyz"[: len(columns)]]), *rows]) + "\n"


def prepared(tmp_path: Path, text: str, params: Series = PARAMS) -> Windows:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return prepare(path, params)


def grid_of(tmp_path: Path, text: str, params: Series = PARAMS) -> Grid:
    path = tmp_path / "table.csv"
    path.write_text(text)
    columns = params.columns
    cells = read_table(path, texts=(columns.time,), features=(columns.target, *columns.features))
    return to_grid(cells, params, parse_interval(params.interval))


def odd(grid: Grid) -> dict[str, int]:
    """What was counted, without the zeros."""
    return {name: num for name, num in grid.counts.items() if num and name not in ("num_rows", "num_grid_points")}


refused = partial(test_sequences.refused, params=PARAMS)


def walk(num_points: int = 400, seed: int = 0) -> pd.DataFrame:
    """Two positive random walks with everything that is odd: gaps, an empty cell, repeated stamps, rows off the grid
    and out of order.
    """
    draw = np.random.default_rng(seed)
    seconds = 900 * np.arange(num_points) + 7 * (draw.random(num_points) < 0.02)
    time = np.datetime64("2024-01-01T00:00:00") + seconds.astype("timedelta64[s]")
    x, y = 100 * np.exp(0.01 * draw.normal(size=(2, num_points)).cumsum(axis=1))
    rows = pd.DataFrame({"time": time, "x": x, "y": y})
    rows.loc[num_points // 3, "y"] = np.nan
    rows = rows.drop(index=draw.choice(np.arange(1, num_points), num_points // 50, replace=False))
    repeated = rows.sample(5, random_state=seed).assign(x=50.0)
    return pd.concat([rows, repeated]).sample(frac=1, random_state=seed)


# Windows --------------------------------------------------------------------------------------------------------------


def test_windows_equal_those_computed_by_hand(tmp_path: Path):
    """Train has the points 0 to 5, val 6 to 8, test 9 to 11; the windows whose targets cross 5|6 and 8|9 are left
    out.
    """
    windows = prepared(tmp_path, table(QUARTERS, LEVELS))
    mean, std = 3.0, np.sqrt(2.0)  # of the differences up to point 5: 1, 2, 3, 4, 5
    np.testing.assert_array_equal(windows.mean, [mean])
    np.testing.assert_allclose(windows.std, [std], rtol=1e-15)
    expected = {  # split: last input points, inputs, targets, anchors
        "train": ([2, 3], [[1, 2], [2, 3]], [[3, 4], [4, 5]], [4.0, 7.0]),
        "val": ([5, 6], [[4, 5], [5, 6]], [[6, 7], [7, 8]], [16.0, 22.0]),
        "test": ([8, 9], [[7, 8], [8, 9]], [[9, 10], [10, 11]], [37.0, 46.0]),
    }
    for name, (last, inputs, targets, anchors) in expected.items():
        part = windows.parts[name]
        assert part["values"].dtype == part["targets"].dtype == np.float32 and part["anchors"].dtype == np.float64
        np.testing.assert_array_equal(part["values"][:, :, 0], ((np.array(inputs) - mean) / std).astype(np.float32))
        np.testing.assert_array_equal(part["targets"], ((np.array(targets) - mean) / std).astype(np.float32))
        assert part["anchors"].tolist() == anchors
        assert part["ids"].tolist() == [QUARTERS[point] for point in last]
        assert windows.first_time[name] == QUARTERS[last[0] + 1] and windows.last_time[name] == QUARTERS[last[-1] + 2]
    assert windows.counts["num_windows_across_boundaries"] == 2 and windows.counts["num_windows_skipped"] == 0


def test_stride_n_starts_a_window_at_every_nth_point(tmp_path: Path):
    dense = prepared(tmp_path, table(QUARTERS, LEVELS))
    sparse = prepared(tmp_path, table(QUARTERS, LEVELS), replace(PARAMS, stride=3))
    assert [part["ids"].tolist() for part in sparse.parts.values()] == [[QUARTERS[2]], [QUARTERS[5]], [QUARTERS[8]]]
    for name in series.SPLITS:
        np.testing.assert_array_equal(sparse.parts[name]["values"], dense.parts[name]["values"][:1])


@pytest.mark.parametrize("kind", ["difference", "log-return"])
def test_levels_undo_the_transform(tmp_path: Path, kind: str):
    """Of the targets, and of the inputs of two features."""
    others = [2.0**power for power in (0, 1, 0, 2, 1, 3, 2, 4, 3, 5, 4, 6)]
    params = replace(PARAMS, transform=kind, missing="refuse", columns=TWO)
    windows = prepared(tmp_path, table(QUARTERS, LEVELS, others), params)
    assert windows.features == ("x", "y")
    for part in windows.parts.values():
        last = np.array([QUARTERS.index(name) for name in part["ids"]])
        path = levels(part["targets"] * windows.std[0] + windows.mean[0], part["anchors"], kind)
        np.testing.assert_allclose(path, np.array(LEVELS)[last[:, None] + [1, 2]], rtol=1e-6)
        for number, column in enumerate(np.array([LEVELS, others])):
            inputs = part["values"][:, :, number] * windows.std[number] + windows.mean[number]
            path = levels(inputs, column[last - 2], kind)
            np.testing.assert_allclose(path, column[last[:, None] + [-1, 0]], rtol=1e-5)


# No look-ahead --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["skip", "interpolate"])
@pytest.mark.parametrize("transform", ["difference", "log-return"])
@pytest.mark.parametrize("share", [0.6, 0.9])
@pytest.mark.parametrize("garbage", ["huge", "noise", "empty"])
def test_nothing_comes_from_the_future(tmp_path: Path, missing: str, transform: str, share: float, garbage: str):
    """Whatever follows `now`, at the end of training or later, no window that ends by then changes by one bit."""
    params = replace(PARAMS, columns=TWO, missing=missing, transform=transform, input_steps=6, horizon=3)
    params = replace(params, split=Split(train=0.6, val=0.2, test=0.2))
    rows = walk()
    now = np.datetime64("2024-01-01T00:00:00") + np.timedelta64(900 * (int(share * 400) - 1), "s")
    later = (rows["time"] > now).to_numpy()
    draw = np.random.default_rng(1)
    changed = rows.copy()
    if garbage == "huge":
        changed.loc[later, ["x", "y"]] = np.outer(1 + np.arange(later.sum()) % 2, [1e18, 1e18])
    elif garbage == "noise":
        changed.loc[later, ["x", "y"]] = draw.uniform(1e-9, 1e9, size=(later.sum(), 2))
    else:
        changed.loc[later & (draw.random(len(rows)) < 0.05), "x"] = np.nan
    before, after = (prepared(tmp_path, version.to_csv(index=False), params) for version in (rows, changed))
    assert before.mean.tobytes() == after.mean.tobytes() and before.std.tobytes() == after.std.tobytes()

    def until_now(windows: Windows) -> dict[str, list[bytes]]:
        contents = {}
        for part in windows.parts.values():
            last = np.array([name.removesuffix("Z") for name in part["ids"]], dtype="datetime64[s]")
            ends = last + np.timedelta64(3 * 900, "s")
            for index in np.flatnonzero(ends <= now):
                arrays = (part["values"][index], part["targets"][index], part["anchors"][index])
                contents[str(part["ids"][index])] = [array.tobytes() for array in arrays]
        return contents

    assert len(until_now(before)) > 80
    assert until_now(before) == until_now(after)
    targets = (windows.parts["test"]["targets"] for windows in (before, after))
    assert not np.array_equal(*targets)  # the change itself is seen


# The grid -------------------------------------------------------------------------------------------------------------


NAN = float("nan")


@pytest.mark.parametrize(
    ("interval", "times", "expected", "counts"),
    [
        pytest.param(
            "15min", ["00:00Z", "00:15Z", "00:15Z", "00:15Z", "00:30Z", "00:30Z"], {"00:00": 0, "00:15": 3, "00:30": 5},
            {"num_duplicates": 3, "num_duplicates_differing": 3}, id="the last row of a repeated time is used",
        ),
        pytest.param(
            "15min", ["01:00:00+01:00", "00:00:00Z", "00:15"], {"00:00": 1, "00:15": 2},
            {"num_duplicates": 1, "num_duplicates_differing": 1, "num_without_offset": 1},
            id="equal instants with different offsets are one time",
        ),
        # 00:14 yields to the row at 00:15, 00:16 becomes 00:30, of the two before 00:45 the later one counts.
        pytest.param(
            "15min", ["00:00Z", "00:14Z", "00:15Z", "00:16Z", "00:40Z", "00:44:59Z", "01:00Z", "01:15Z"],
            {"00:00": 0, "00:15": 2, "00:30": 3, "00:45": 5, "01:00": 6, "01:15": 7},
            {"num_off_grid_snapped": 2, "num_off_grid_dropped": 2}, id="a row off the grid moves to the next point",
        ),
        pytest.param(
            "1h", ["00:30Z", "01:30Z", "02:30Z", "03:31Z", "05:30Z"],
            {"00:30": 0, "01:30": 1, "02:30": 2, "03:30": NAN, "04:30": 3, "05:30": 4},
            {"num_off_grid_snapped": 1, "num_missing": 1}, id="the grid has the phase of most rows",
        ),
        pytest.param(
            "15min", ["00:00:03Z", "00:15:07Z", "00:29:59Z"], {"00:15": 0, "00:30": 2},
            {"num_off_grid_snapped": 2, "num_off_grid_dropped": 1}, id="irregular times use multiples of the interval",
        ),
    ],
)  # fmt: skip
def test_each_row_stands_for_a_point_of_the_grid(
    tmp_path: Path, interval: str, times: list[str], expected: dict[str, float], counts: dict[str, int]
):
    """`expected`: a point's time, and the number of its row."""
    text = table([f"2024-01-01T{time}" for time in times], list(range(len(times))))
    grid = grid_of(tmp_path, text, replace(PARAMS, interval=interval))
    assert [time[11:16] for time in iso(grid.times)] == list(expected)
    np.testing.assert_array_equal(grid.levels[:, 0], list(expected.values()))
    assert odd(grid) == counts


@pytest.mark.parametrize("text", ["15", "min", "0min", "1.5h", "15m", "MS", "-5min", "2business-day", "", "999999999d"])
def test_an_unknown_interval_is_refused_with_an_example(text: str):
    with pytest.raises(ValueError, match=f"interval is {text!r}; accepted: .* 15min, or the calendar's"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("interval", "cells", "expected"),
    [
        ("month", ["1949-01", "1949-03"], ["1949-01-01", "", "1949-03-01"]),
        ("month", ["1991 Dec", "1992 Jan"], ["1991-12-01", "1992-01-01"]),
        ("month", ["2020-01-31", "2020-02-29", "2020-04-30"], ["2020-01-01", "2020-02-01", "", "2020-04-01"]),
        ("quarter", ["1970 Q4", "1971 Q1"], ["1970-10-01", "1971-01-01"]),
        ("quarter", ["2020-03-31", "2020-06-30", "2020-09-30"], ["2020-03-01", "2020-06-01", "2020-09-01"]),
        ("year", ["1821", "1822", "1824"], ["1821-01-01", "1822-01-01", "", "1824-01-01"]),
        ("week", ["2024-W52", "2025-W01"], ["2024-12-23", "2024-12-30"]),
        ("business-day", ["2024-03-28", "2024-04-01"], ["2024-03-28", "", "2024-04-01"]),  # a Friday is missing
        ("business-day", ["2024-03-29", "2024-03-30"], ["2024-03-29", "2024-04-01"]),  # Saturday counts as Monday
        (
            "day",
            ["2024-03-01 06:00", "2024-03-02 23:59", "2024-03-04 00:01"],
            ["2024-03-01", "2024-03-02", "", "2024-03-04"],
        ),
        (
            "quarter",
            ["2020-02-10", "2020-05-20", "2020-07-01", "2020-11-30"],
            ["2020-02-01", "2020-05-01", "2020-08-01", "2020-11-01"],
        ),
        ("year", ["2018-07-02", "2019-11-03", "2020-01-15"], ["2018-01-01", "2019-01-01", "2020-01-01"]),
        ("day", ["2024-03-31 00:00:00+01:00", "2024-04-01 00:00:00+02:00"], ["2024-03-31", "2024-04-01"]),  # 23 hours
    ],
)
def test_a_calendar_grid_has_a_point_for_each_of_its_steps(
    tmp_path: Path, interval: str, cells: list[str], expected: list[str]
):
    """Empty: a point that no row stands for."""
    grid = grid_of(tmp_path, table(cells, list(range(len(cells)))), replace(PARAMS, interval=interval))
    times = [day[:10] if is_present else "" for day, is_present in zip(iso(grid.times), grid.is_complete, strict=True)]
    assert times == expected


# The season -----------------------------------------------------------------------------------------------------------


def test_the_seasonal_naive_forecast_and_the_scale_of_mase(tmp_path: Path):
    """Point 10 + 3 h of a series with a season of 3, of which point 9 is missing: the season before stands for it."""
    levels = np.array([5.0, 7, 6] * 10) + np.arange(30)
    hours = pd.date_range("2024-01-01", periods=30, freq="h").strftime("%Y-%m-%dT%H:%MZ").tolist()
    known_points = [point for point in range(30) if point != 9]
    text = table([hours[point] for point in known_points], [levels[point] for point in known_points])
    params = replace(PARAMS, interval="1h", horizon=4, season=3)
    known_levels, last = grid_of(tmp_path, text, params).levels[:, 0], np.array([11])
    seasonal = series.seasonal_levels(known_levels, last, known_levels[last], params)
    np.testing.assert_array_equal(seasonal, levels[[[6, 10, 11, 6]]])  # of 12, 13, 14 and 15
    windows = prepared(tmp_path, text, params)
    assert windows.summary["season"] == 3 and windows.summary["naive_error"] == 3.0
    assert windows.arrays("test")["seasonal"].shape == windows.arrays("test")["targets"].shape
    assert "seasonal" not in prepared(tmp_path, text, replace(params, season=None)).arrays("test")


# Missing points -------------------------------------------------------------------------------------------------------


def test_skip_leaves_out_every_window_that_touches_a_missing_point(tmp_path: Path):
    """Points 0 to 23 without 4: a window takes the points from last - 2 (for its first difference) to last + 2."""
    times = [f"2024-01-01T{hour:02d}:00Z" for hour in range(24) if hour != 4]
    windows = prepared(tmp_path, table(times, list(range(23))), replace(PARAMS, interval="1h"))
    hours = [int(name[11:13]) for part in windows.parts.values() for name in part["ids"]]
    assert hours == [7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21]  # 2 to 6 touch it; 10 and 16 cross a boundary
    assert windows.counts["num_missing"] == 1 and windows.counts["num_windows_skipped"] == 5
    np.testing.assert_array_equal(windows.mean, [1])  # not 2, the jump over the gap


def test_interpolate_takes_each_columns_last_known_value_and_no_later_one(tmp_path: Path):
    text = table([QUARTERS[point] for point in (0, 1, 3, 4, 5)], [1, 2, 3, 8, 9], [5, 6, "", 7, 8])
    grid = grid_of(tmp_path, text, replace(PARAMS, missing="interpolate", columns=TWO))
    assert grid.levels.tolist() == [[1, 5], [2, 6], [2, 6], [3, 6], [8, 7], [9, 8]] and odd(grid) == {"num_missing": 2}
    assert grid.is_measured.tolist() == [True, True, False, True, True, True]
    is_complete = grid_of(tmp_path, text, replace(PARAMS, columns=TWO)).is_complete
    assert is_complete.tolist() == [True, True, False, False, True, True]


@pytest.mark.parametrize("missing", ["skip", "interpolate"])
def test_an_empty_cell_of_another_column_changes_no_target_and_leaves_out_no_known_one(tmp_path: Path, missing: str):
    """Hour 10 lacks the feature. Only `skip` leaves out windows, those whose inputs (last - 2 to last) have hour 10."""
    hours = pd.date_range("2024-01-01", periods=40, freq="h").strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    other = [str(5 * hour) for hour in range(40)]
    params = replace(PARAMS, interval="1h", columns=TWO, missing=missing)
    whole = prepared(tmp_path, table(hours, [*range(40)], other), params)
    other[10] = ""
    windows = prepared(tmp_path, table(hours, [*range(40)], other), params)
    skipped = {"2024-01-01T10:00:00Z", "2024-01-01T11:00:00Z", "2024-01-01T12:00:00Z"} if missing == "skip" else set()
    for name, part in windows.parts.items():
        stays = ~np.isin(whole.parts[name]["ids"], [*skipped])
        assert part["ids"].tolist() == whole.parts[name]["ids"][stays].tolist()
        for key in ("targets", "anchors"):
            np.testing.assert_array_equal(part[key], whole.parts[name][key][stays])
        np.testing.assert_array_equal(part["values"][..., 0], whole.parts[name]["values"][stays][..., 0])
    assert windows.counts["num_windows_skipped"] == len(skipped) and windows.summary["naive_error"] == 1


def test_rows_that_the_interval_does_not_use_are_said(tmp_path: Path):
    """Four of five rows, as with several quantities in one table or a denser one. `tandem new` prints the remarks."""
    times = pd.date_range("2024-01-01", periods=300, freq="12min").strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    text = table(times, [*range(300)])
    (remark,) = prepared(tmp_path, text, replace(PARAMS, interval="1h")).summary["remarks"]
    assert remark.startswith("239 of 300 rows are not used, because only the last row in each 1h is")
    assert "remarks" not in prepared(tmp_path, text, replace(PARAMS, interval="12min")).summary


def test_only_measured_rows_are_targets_and_seasons_before_them(tmp_path: Path):
    """Inputs are filled in gaps, so windows that end in one remain; their targets and baselines are rows of the table.

    Sixty hours without five; the level says the hour.
    """
    missing, known_hours = [4, 20, 21, 40, 52], []
    level = {hour: 100.0 + 10 * hour + hour % 3 for hour in range(60) if hour not in missing}
    hours = pd.date_range("2024-01-01", periods=60, freq="h").strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    text = table([hours[hour] for hour in level], [*level.values()])
    params = replace(PARAMS, interval="1h", missing="interpolate", season=3)
    windows = prepared(tmp_path, text, params)
    hour_of = {value: hour for hour, value in level.items()}
    for name, first, end in (("train", 0, 30), ("val", 30, 45), ("test", 45, 60)):
        part = windows.parts[name]
        last = [hours.index(time) for time in part["ids"]]
        is_whole = [hour for hour in range(2, 58) if first <= hour + 1 and hour + 2 < end]
        assert last == [hour for hour in is_whole if not {hour + 1, hour + 2} & {*missing}]
        known_hours += last
        path = levels(part["targets"] * windows.std[0] + windows.mean[0], part["anchors"], "difference")
        np.testing.assert_allclose(path, [[level[hour + 1], level[hour + 2]] for hour in last], rtol=1e-6)
        seasonal = [[hour_of.get(value, -1) for value in row] for row in part["seasonal"]]
        before = np.array(last)[:, None] + [1, 2] - seasonal
        assert (before[np.array(last) > 6] % 3 == 0).all()
    assert {4, 21, 40} & {*known_hours} == {4, 21, 40}  # the last input is filled
    assert windows.summary["naive_error"] == 30  # not less, as between equal levels of a gap
    assert windows.counts["num_windows_skipped_per_split"] == {"train": 5, "val": 2, "test": 2}
    assert "windows left out because their targets touch one: 9 (train 5, val 2, test 2)" in windows.message


def test_a_feature_that_is_constant_in_train_is_zero_in_every_split_and_named(tmp_path: Path):
    """The target's constant changes are kept: they are what is forecast."""
    params = replace(PARAMS, columns=TWO)
    target = [*range(6), 8, 7, 12, 11, 15, 9]
    windows = prepared(tmp_path, table(QUARTERS, target, [3] * 6 + [900, -7, 0, 3, 5, 1]), params)
    assert windows.summary["std"] == [1, 0] and "; constant in train, so 0 in every split: y" in windows.message
    assert not any(part["values"][:, :, 1].any() for part in windows.parts.values())
    test = windows.parts["test"]
    path = levels(test["targets"] * windows.std[0] + windows.mean[0], test["anchors"], "difference")
    np.testing.assert_allclose(path, [[11, 15], [15, 9]], rtol=1e-6)
    raw = np.array([[[7, 5], [12, 900], [11, -3]]])
    assert series.raw_to_inputs(raw, np.ones((1, 3)), params, windows.summary)[0].tolist() == [[[4, 0], [-2, 0]]]


def test_small_changes_in_a_large_unit_are_kept_and_rounding_is_not(tmp_path: Path):
    """As farads: some picofarads. The changes of 1000, 1000.1, 1000.2, ... differ by rounding alone."""
    params, other = replace(PARAMS, columns=TWO), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    expected = prepared(tmp_path, table(QUARTERS, LEVELS, other), params)
    small = [[f"{level}e-13" for level in column] for column in (LEVELS, other)]
    windows = prepared(tmp_path, table(QUARTERS, *small), params)
    for split, part in expected.parts.items():
        np.testing.assert_allclose(windows.parts[split]["values"], part["values"], atol=1e-5)
    windows = prepared(tmp_path, table(QUARTERS, LEVELS, [f"{1000 + step / 1000:.3f}" for step in range(12)]), params)
    assert windows.summary["std"][1] == 0 and windows.std[0] == expected.std[0]


# Formats and files ----------------------------------------------------------------------------------------------------


def test_formats_and_the_order_of_rows_come_to_the_same_bytes(tmp_path: Path):
    text = table(QUARTERS, LEVELS)
    expected = write_arrays(tmp_path / "expected", prepared(tmp_path, text))
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(text.encode()))
    stamps = pd.to_datetime(QUARTERS)
    moved = pd.DataFrame({"time": stamps.tz_convert("America/New_York"), "x": LEVELS})
    moved.to_parquet(tmp_path / "zone.parquet")
    moved.assign(time=stamps.tz_localize(None)).to_parquet(tmp_path / "naive.parquet")
    moved.assign(time=stamps.tz_localize(None).astype("datetime64[s]").astype("int64")).to_csv(
        tmp_path / "unix.csv", index=False
    )
    moved.sample(frac=1, random_state=0).to_csv(tmp_path / "shuffled.csv", index=False)
    for name in ("table.csv.gz", "zone.parquet", "naive.parquet", "unix.csv", "shuffled.csv"):
        windows = prepare(tmp_path / name, PARAMS)
        assert write_arrays(tmp_path / "found", windows) == expected, name
        assert windows.counts["num_without_offset"] == (12 if name == "naive.parquet" else 0)


# The linear baseline --------------------------------------------------------------------------------------------------


def test_the_baseline_finds_an_autoregression_of_order_two():
    """x_t = 0.6 x_(t-1) - 0.3 x_(t-2) + 1, continued for three steps; another feature and an older lag say nothing."""
    values = np.random.default_rng(0).normal(size=(60, 3, 2))
    before, last = values[:, 1, 0], values[:, 2, 0]
    first = 0.6 * last - 0.3 * before + 1
    second = 0.6 * first - 0.3 * last + 1
    targets = np.column_stack([first, second, 0.6 * second - 0.3 * first + 1])
    forecast = linear_forecast(values[:40], targets[:40], values[40:])
    assert forecast.shape == (20, 3)
    np.testing.assert_allclose(forecast, targets[40:], rtol=1e-10)


# Scores of prepared windows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transform", "season"), [("difference", None), ("log-return", 2)])
def test_no_skill_is_given_where_persistence_makes_no_error(tmp_path: Path, transform: str, season: int | None):
    """Two steps ahead the series is where it was: persistence makes no error there, apart from rounding."""
    times = pd.date_range("2024-01-01", periods=80, freq="15min").strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    windows = prepared(
        tmp_path, table(times, [1.3, 2.1] * 40), replace(PARAMS, transform=transform, horizon=3, season=season)
    )
    test = windows.parts["test"]
    task = open_task("forecast", windows.summary)
    result = task.evaluate(torch.zeros(test["targets"].shape), lambda split, name: windows.parts[split][name])
    assert ("seasonal_naive_mae" in result.metrics) == ("seasonal_naive" in result.predictions[0]) == bool(season)
    if season:
        assert result.metrics["seasonal_naive_mae"] < 1e-6 and "mase" not in result.metrics  # nor has it a scale
    else:
        assert result.metrics["mase"] == pytest.approx(result.metrics["mae"] / 0.8)
    json.dumps([result.metrics, result.scores], allow_nan=False)
    assert [row["skill"] is None for row in result.scores] == [False, True, False]


def test_directional_accuracy_of_always_up_is_the_share_of_rises(tmp_path: Path):
    """Three rises of 1, then a fall of 2 and a step of nothing, over and over: one step ahead, 3 of 4 moves are up."""
    cycle = np.array([1.0, 1.0, 1.0, -2.0, 0.0])
    times = pd.date_range("2024-01-01", periods=201, freq="15min").strftime("%Y-%m-%dT%H:%M:%SZ").tolist()
    levels = [10.0, *(10 + np.tile(cycle, 40).cumsum())]
    windows = prepared(tmp_path, table(times, levels), replace(PARAMS, horizon=1))
    test = windows.parts["test"]
    task = open_task("forecast", windows.summary)
    risen = torch.full(test["targets"].shape, 9.0)  # standardized: up, every time
    metrics = task.evaluate(risen, lambda split, name: windows.parts[split][name]).metrics
    moved = np.diff(levels)[-len(test["targets"]) :]
    assert metrics["always_up_directional_accuracy"] == (moved > 0).sum() / (moved != 0).sum()
    assert metrics["always_up_directional_accuracy"] + metrics["always_down_directional_accuracy"] == pytest.approx(1)
    assert metrics["directional_accuracy"] == metrics["always_up_directional_accuracy"]


# Errors ---------------------------------------------------------------------------------------------------------------


def with_levels(first: int, *levels: float | str) -> str:
    """The table with other levels from row `first` on."""
    return table(QUARTERS, [*LEVELS[:first], *levels, *LEVELS[first + len(levels) :]])


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        (table(QUARTERS[:2] + QUARTERS[4:], LEVELS[:10]), {"missing": "refuse"}, ["2024-01-01T00:30:00Z", "2 missing"]),
        (with_levels(2, "", ""), {"missing": "refuse"}, ["2024-01-01T00:30:00Z", "2 missing", "skip or interpolate"]),
        (with_levels(5, 7, 7, 7, 7), {}, ["'x' never changes in the time of val, so no forecast can be"]),
        (with_levels(8, 7, 7, 7, 7), {}, ["'x' never changes in the time of test, so no forecast can be"]),
        (with_levels(6, 0), {"transform": "log-return"}, ["line 8", "'x' must be above 0", "found 0", "difference"]),
        (with_levels(6, -1.5), {"transform": "log-return"}, ["line 8", "'x' must be above 0", "found -1.5"]),
        (with_levels(0), {"interval": "1s"}, ["'1s'", "9,901 grid points of 12 rows", "900 s apart"]),
        *(
            (table([*QUARTERS[:3], stamp], [1, 2, 3, 4]), {}, ["line 5", f"found {stamp or '(empty)'};", "ISO 8601"])
            for stamp in ("yesterday", "1704067200", "1.5", "1500-01-01", "")
        ),
        *(
            (with_levels(2, f'"{cell}"'), {}, ["line 4", f"found {cell}", "'x' must hold finite numbers"])
            for cell in ("n/a n/a", "1,5", "inf")
        ),
        (with_levels(0), {"horizon": 4}, ["12 grid points", "0 val", "larger share, lower input_steps"]),
        (with_levels(0), {"input_steps": 50}, ["0 train, 0 val, 0 test"]),
        (
            table([*QUARTERS[:9], QUARTERS[11]], LEVELS[:10]),
            {"missing": "interpolate"},
            ["2 train, 2 val, 0 test", "3 left out because a point is missing", "or complete the table"],
        ),
    ],
)
@pytest.mark.case(2, 3)
def test_a_series_that_is_refused_is_named_with_its_place(
    tmp_path: Path, text: str, changed: dict[str, Any], words: list[str], saw: Callable[[str], None]
):
    saw(refused(tmp_path, text, *words, params=replace(PARAMS, **changed)))


SUMMER = ("2024-03-29", "2024-04-02")


@pytest.mark.parametrize(
    ("times", "interval", "words"),
    [
        (pd.date_range(*SUMMER, tz="Europe/Berlin").as_unit("s").astype("int64"), "day", "22:00 as well as 23:00"),
        (pd.date_range(*SUMMER, tz="Europe/London").as_unit("s").astype("int64"), "day", "00:00 as well as 23:00"),
        (pd.date_range(*SUMMER, tz="Europe/Berlin"), "1d", "22:00 as well as 23:00"),
        (pd.date_range(*SUMMER, tz="Europe/Berlin").tz_convert("UTC").astype(str), "day", "22:00 as well as 23:00"),
        (
            pd.date_range("2024-02-05", periods=12, freq="7D", tz="America/New_York").as_unit("s").astype("int64"),
            "week", "04:00 as well as 05:00",
        ),
        (
            pd.date_range("2023-01", periods=12, freq="MS", tz="Europe/London").as_unit("s").astype("int64"),
            "month", "00:00 as well as 23:00",
        ),
    ],
)  # fmt: skip
def test_midnights_of_a_place_with_summer_time_are_not_taken_for_gaps(
    tmp_path: Path, times: Any, interval: str, words: str
):
    """Seconds and times in UTC do not say which day it is there; dates do."""
    numbers, params = list(range(len(times))), replace(PARAMS, interval=interval)
    refused(tmp_path, table(times, numbers), words, "set preprocess.interval to day", params=params)
    if interval == "day":
        dates = grid_of(tmp_path, table(pd.date_range(*SUMMER).astype(str), numbers), params)
        assert dates.is_complete.all() and len(dates.times) == 5 and odd(dates) == {}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dates_without_separators_are_refused_not_read_as_seconds(tmp_path: Path, ending: str):
    """20210927 is 1970-08-22 in seconds; the user means one or the other and must write it so."""
    days = pd.date_range("2021-09-27", periods=12).strftime("%Y%m%d").astype("int64")
    getattr(pd.DataFrame({"time": days, "x": LEVELS}), f"to_{ending}")(tmp_path / f"table.{ending}", index=False)
    with pytest.raises(ValueError, match=r"'time' holds numbers like 20210927.*2021-09-27.*1970-08-22T22:08:47Z"):
        prepare(tmp_path / f"table.{ending}", replace(PARAMS, interval="1d"))


# The committed table --------------------------------------------------------------------------------------------------


def test_the_price_table_has_the_counts_in_its_readme():
    path = ROOT / "workloads/price/data/table.csv.gz"
    assert hashlib.sha256(path.read_bytes()).hexdigest() in (path.parents[1] / "README.md").read_text(encoding="utf-8")
    params = replace(
        PARAMS, columns=SeriesColumns(time="Datetime", target="Close", features=()), transform="log-return"
    )
    params = replace(params, input_steps=96, horizon=4, split=Split(train=0.7, val=0.15, test=0.15))
    windows = prepare(path, params)
    assert windows.counts == {
        "num_rows": 8721,
        "num_without_offset": 0,
        "num_out_of_order": 32,
        "num_duplicates": 32,
        "num_duplicates_differing": 1,
        "num_off_grid_snapped": 2,
        "num_off_grid_dropped": 1,
        "num_grid_points": 8930,
        "num_missing": 242,
        "num_windows_skipped": 899,
        "num_windows_skipped_per_split": {"train": 582, "val": 231, "test": 86},
        "num_windows_across_boundaries": 0,
    }
    assert [len(part["values"]) for part in windows.parts.values()] == [5572, 1108, 1251]
