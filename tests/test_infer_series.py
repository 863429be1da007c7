"""What `stages.tools.new_workload` infers of a series: interval, season, window and horizon, on tables made here."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.params.intervals import parse_interval
from stages.tools import new_workload
from stages.tools.infer_series import find_transform
from stages.tools.seasons import find_season


def planned(folder: Path, table: pd.DataFrame, *words: str) -> Any:
    table.to_csv(folder / "t.csv", index=False)
    return planned_of(folder / "t.csv", *words)


def planned_of(path: Path, *words: str) -> Any:
    words = ("mine", str(path), *words)
    with TemporaryDirectory(dir=path.parent) as scratch:
        return new_workload.make_plan(new_workload.make_parser().parse_args(words), Path(scratch), words)


def chosen(plan: Any) -> dict[str, str]:
    return {key: value for key, value, _ in plan.choices}


def sales(num: int, seed: int = 0) -> np.ndarray:
    """A year of twelve steps, growth, noise."""
    step, noise = np.arange(num), 0.05 * np.random.default_rng(seed).normal(size=num)
    return 100 * np.exp(0.01 * step + 0.2 * np.sin(2 * np.pi * step / 12) + noise)


@pytest.mark.parametrize(
    ("times", "interval"),
    [
        (pd.period_range("1949-01", periods=120, freq="M").astype(str), "month"),
        (pd.date_range("1949-01-31", periods=120, freq="ME").strftime("%Y-%m-%d"), "month"),
        (pd.date_range("1949-01-01", periods=120, freq="MS", tz="Europe/Berlin").astype(str), "month"),
        ([f"{each.year} Q{each.quarter}" for each in pd.period_range("1970Q1", periods=120, freq="Q")], "quarter"),
        (list(range(1821, 1941)), "year"),
        (pd.bdate_range("2020-01-01", periods=120).strftime("%Y-%m-%d"), "business-day"),
        (pd.date_range("2024-01-01", periods=120, freq="D", tz="Europe/Berlin").astype(str), "day"),
        (pd.date_range("2024-01-01", periods=120, freq="D").strftime("%Y-%m-%d"), "1d"),
        (pd.date_range("2024-01-01", periods=120, freq="30min").astype(str), "30min"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_the_interval_is_that_of_the_times(tmp_path: Path, times: Any, interval: str):
    plan = planned(tmp_path, pd.DataFrame({"year" if interval == "year" else "when": times, "sales": sales(120)}))
    assert chosen(plan)["interval"] == interval and plan.workload.task == "forecast"
    assert plan.summary["num_missing"] == plan.summary["num_off_grid_snapped"] == 0


def test_season_window_and_horizon_of_months(tmp_path: Path):
    table = pd.DataFrame({"month": pd.period_range("1949-01", periods=120, freq="M").astype(str), "sales": sales(120)})
    plan = planned(tmp_path, table)
    params = plan.workload.preprocess
    assert (params.season, params.input_steps, params.horizon, params.transform) == (12, 24, 9, "log-return")
    assert plan.workload.train.model.name == "hybrid" and plan.workload.train.model.hidden_size == 0
    season = next(line for line in new_workload.summary_lines(plan) if line.startswith("  season"))
    assert "12: a year; the same step of the other seasons explains" in season and "--season changes it" in season

    params = planned(tmp_path, table, "--season", "none", "--horizon", "3").workload.preprocess
    assert (params.season, params.horizon) == (None, 3)
    assert planned(tmp_path, table, "--season", "6").workload.preprocess.season == 6
    noise = np.random.default_rng(0).normal(size=120)
    params = planned(tmp_path, table.assign(sales=500 + noise.cumsum())).workload.preprocess
    assert (params.season, params.input_steps, params.horizon) == (12, 8, 9)  # the year is a yardstick alone
    table["sales"] -= 150  # zero and below
    assert planned(tmp_path, table).workload.preprocess.transform == "difference"


def test_half_hours_with_a_daily_cycle_are_forecast_a_day_ahead(tmp_path: Path):
    step, draw = np.arange(14 * 48), np.random.default_rng(0)
    sun = np.maximum(0, np.sin(2 * np.pi * step / 48 - 1.5)) * (1 + 0.3 * draw.normal(size=len(step)))
    times = pd.date_range("2021-05-01", periods=len(step), freq="30min", tz="UTC").astype(str)
    params = planned(tmp_path, pd.DataFrame({"time": times, "sun": sun})).workload.preprocess
    assert (params.interval, params.season, params.input_steps, params.horizon) == ("30min", 48, 96, 48)


@pytest.mark.parametrize("num", [8, 12, 20, 36])
def test_a_short_series_gets_windows_that_it_holds(tmp_path: Path, num: int):
    months = pd.period_range("1991-01", periods=num, freq="M").astype(str)
    plan = planned(tmp_path, pd.DataFrame({"month": months, "sales": sales(num)}))
    assert min(plan.summary["num_per_split"].values()) > 0
    with pytest.raises(ValueError, match="without gaps there is room for input_steps up to") as caught:
        planned(tmp_path, pd.DataFrame({"month": months, "sales": sales(num)}), "--input-steps", "40")
    assert "\n" not in str(caught.value)


def test_a_series_that_never_changes_or_an_interval_that_is_none_gets_one_sentence(tmp_path: Path):
    table = pd.DataFrame({"month": pd.period_range("1991-01", periods=36, freq="M").astype(str), "sales": 5})
    with pytest.raises(ValueError, match="'sales' holds one value only, so there is nothing to forecast"):
        planned(tmp_path, table)
    table["sales"] = sales(36)
    with pytest.raises(ValueError, match="interval is '-5min'; accepted: a whole number"):
        planned(tmp_path, table, "--interval=-5min")
    with pytest.raises(ValueError, match="season is 30 and the training time has 25 points, so no season comes again"):
        planned(tmp_path, table, "--season", "30")
    with pytest.raises(ValueError, match="the times in 'month' repeat .36 in 72 rows. and nothing tells"):
        planned(tmp_path, pd.concat([table, table]))


def test_chance_is_rarely_taken_for_a_season():
    """Random walks and noise of 40 to 700 points; at most a few of 200."""
    draw, found = np.random.default_rng(0), 0
    for number in range(200):
        changes = draw.normal(size=(40, 120, 300, 700)[number % 4])
        levels = changes.cumsum() if number % 2 else changes
        found += find_season(levels, parse_interval(("month", "1h", "1d", "business-day")[number % 4]))[0] is not None
    assert found < 20


def test_a_transform_is_chosen_by_how_the_spread_grows():
    draw = np.random.default_rng(0).normal(size=240)
    assert find_transform(np.exp(0.02 * np.arange(240) + 0.1 * draw), True)[0] == "log-return"
    assert find_transform(20.0 + np.arange(240) + draw, True)[0] == "difference"
    assert find_transform(np.arange(-5.0, 235.0), False)[0] == "difference"


@pytest.mark.parametrize(
    ("index", "interval"),
    [
        (pd.Index(range(1821, 1941)), "year"),
        (pd.period_range("1949-01", periods=120, freq="M").astype(str), "month"),
        (pd.date_range("2024-01-01", periods=120, freq="30min"), "30min"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_index_without_a_name_is_the_time(tmp_path: Path, index: pd.Index, interval: str):
    """As pandas saves a series: `,0` is its header."""
    pd.Series(sales(120), index=index).to_csv(tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text().startswith(",0\n")
    plan = planned_of(tmp_path / "s.csv")
    columns = plan.workload.preprocess.columns
    assert (chosen(plan)["interval"], columns.time, columns.target, columns.features) == (interval, "time", "0", ())
    assert "the first column, which has no name and holds times" in "\n".join(new_workload.summary_lines(plan))
    assert plan.summary["num_grid_points"] == 120 and plan.summary["num_missing"] == 0


def test_an_index_of_times_in_parquet_is_the_time(tmp_path: Path):
    index = pd.date_range("2024-01-01", periods=120, freq="30min")
    pd.DataFrame({"sales": sales(120)}, index=index).reset_index(names="__index_level_0__").to_parquet(
        tmp_path / "s.parquet"
    )
    assert planned_of(tmp_path / "s.parquet").workload.preprocess.columns.time == "__index_level_0__"


@pytest.mark.parametrize(("form", "freq", "interval"), [("%Y%m", "MS", "month"), ("%Y%m%d", "D", "day")])
def test_dates_in_digits_are_dates(tmp_path: Path, form: str, freq: str, interval: str):
    times = pd.date_range("1949-01-01", periods=120, freq=freq)
    plan = planned(tmp_path, pd.DataFrame({"date": times.strftime(form), "sales": sales(120)}))
    assert chosen(plan)["interval"] == interval and plan.summary["num_grid_points"] == 120
    assert plan.summary["last_time"]["test"] == times[-1].strftime("%Y-%m-%dT00:00:00Z")


def test_a_series_of_numbered_sensors_is_one_series_unless_something_is_to_be_classified(tmp_path: Path):
    hours = pd.date_range("2024-01-01", periods=120, freq="h").astype(str)
    table = pd.DataFrame({"date": hours, **{f"sensor_{number}": sales(120, number) for number in range(5)}})
    plan = planned(tmp_path, table)
    assert plan.workload.task == "forecast" and len(plan.workload.preprocess.columns.features) == 4
    assert planned(tmp_path, table.assign(kind=["a", "b"] * 60)).workload.task == "classify"  # a row per recording
