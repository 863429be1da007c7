"""What `tandem new` infers of a series: interval, season, window and horizon, on tables made here."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.importing.new_workload import WorkloadPlan, summary_lines
from tandem.importing.seasons import find_season
from tandem.params.intervals import parse_interval
from tandem.terminal.command import CommandError
from tests import own_tables
from tests.own_tables import chosen, reasons, remarks, saved, series
from tests.refusals import question, sentence


def planned(folder: Path, table: pd.DataFrame, *words: str) -> WorkloadPlan:
    return own_tables.planned(saved(table, folder / "t.csv"), *words)


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
        ([f"{date.year} Q{date.quarter}" for date in pd.period_range("1970Q1", periods=120, freq="Q")], "quarter"),
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


@pytest.mark.parametrize("is_newest_first", [False, True])
def test_a_second_time_is_neither_a_feature_nor_the_target(tmp_path: Path, is_newest_first: bool):
    """As the close_time of an exchange, and the seconds since 1970 beside a date."""
    hours = pd.date_range("2024-01-01", periods=120, freq="h").delete([30, 31, 60])
    seconds = hours.as_unit("s").astype("int64")
    table = pd.DataFrame({"unix": seconds, "date": hours, "sales": sales(120)[:117], "open": sales(120, seed=1)[:117]})
    table["close_time"], table["total"] = seconds * 1000 + 3599999, table["open"].cumsum()
    table = table.iloc[::-1] if is_newest_first else table
    with pytest.raises(CommandError, match=r"give --target sales or --target open or --target total$"):
        planned(tmp_path, table)
    plan = planned(tmp_path, table, "--target", "sales")
    assert plan.workload.preprocess.columns.features == ("open", "total")
    assert "unix (counts the rows, or is their time)" in reasons(plan)["features"]


def test_midnights_in_seconds_are_not_taken_for_days_with_gaps(tmp_path: Path):
    midnights = pd.date_range("2023-01-01", "2024-12-31", tz="Europe/Berlin").as_unit("s").astype("int64")
    with pytest.raises(ValueError, match=r"t.csv: the times in column 'time' .* 22:00 as well as 23:00, .* local date"):
        planned(tmp_path, pd.DataFrame({"time": midnights, "load": sales(731)}))


def test_months_get_the_season_window_and_horizon_of_a_year(tmp_path: Path):
    table = pd.DataFrame({"month": pd.period_range("1949-01", periods=120, freq="M").astype(str), "sales": sales(120)})
    plan = planned(tmp_path, table)
    params = plan.workload.preprocess
    assert (params.season, params.input_steps, params.horizon, params.transform) == (12, 41, 9, "log-return")
    assert plan.workload.train.model.name == "hybrid" and plan.workload.train.model.hidden_size == 0
    params = planned(tmp_path, table, "--season", "none", "--horizon", "3").workload.preprocess
    assert (params.season, params.horizon) == (None, 3)
    assert planned(tmp_path, table, "--season", "6").workload.preprocess.season == 6
    noise = np.random.default_rng(0).normal(size=120)
    params = planned(tmp_path, table.assign(sales=500 + noise.cumsum())).workload.preprocess
    assert (params.season, params.input_steps, params.horizon) == (12, 24, 9)  # the year is only a baseline
    table["sales"] -= 150  # zero and below
    assert planned(tmp_path, table).workload.preprocess.transform == "difference"


def test_days_without_a_season_are_forecast_a_week_ahead(tmp_path: Path):
    walk = np.random.default_rng(0).normal(size=800).cumsum()
    table = pd.DataFrame({"date": pd.date_range("2020-01-01", periods=800).astype(str), "value": walk})
    params = planned(tmp_path, table).workload.preprocess
    assert (params.interval, params.season, params.horizon) == ("1d", None, 7)


def test_half_hours_with_a_daily_cycle_are_forecast_a_day_ahead(tmp_path: Path):
    step, draw = np.arange(14 * 48), np.random.default_rng(0)
    sun = np.maximum(0, np.sin(2 * np.pi * step / 48 - 1.5)) * (1 + 0.3 * draw.normal(size=len(step)))
    times = pd.date_range("2021-05-01", periods=len(step), freq="30min", tz="UTC").astype(str)
    params = planned(tmp_path, pd.DataFrame({"time": times, "sun": sun})).workload.preprocess
    assert (params.interval, params.season, params.input_steps, params.horizon) == ("30min", 48, 192, 48)


def test_a_day_of_minutes_is_named_though_no_window_holds_it(tmp_path: Path):
    times = pd.date_range("2024-03-11", periods=3 * 720, freq="2min")
    value = 20 + 3 * np.sin(2 * np.pi * np.arange(len(times)) / 720) + np.random.default_rng(0).normal(size=len(times))
    plan = planned(tmp_path, pd.DataFrame({"time": times, "value": value}))
    assert chosen(plan)["season"] == "none"
    assert "and 720 (a day, too long for a window) explain" in reasons(plan)["season"]


@pytest.mark.parametrize("num", [8, 36])
def test_a_short_series_gets_windows_that_it_holds(tmp_path: Path, num: int):
    months = pd.period_range("1991-01", periods=num, freq="M").astype(str)
    plan = planned(tmp_path, pd.DataFrame({"month": months, "sales": sales(num)}))
    assert min(plan.summary["num_per_split"].values()) > 0
    with pytest.raises(ValueError, match="give the empty split a larger share, lower input_steps"):
        planned(tmp_path, pd.DataFrame({"month": months, "sales": sales(num)}), "--input-steps", "40")


def test_days_without_sundays_get_a_horizon_that_fits_between_them(tmp_path: Path):
    """No horizon of a week was possible, and the advice did not say which one is."""
    days = pd.date_range("2021-01-01", periods=700)
    table = pd.DataFrame({"date": days.astype(str), "sales": sales(700)})[days.day_of_week != 6]
    said = sentence(lambda: planned(tmp_path, table), "set horizon to at most 6, because")
    assert "larger share" not in said
    plan = planned(tmp_path, table, "--horizon", "6")
    assert plan.workload.preprocess.missing == "interpolate" and min(plan.summary["num_per_split"].values()) > 9
    plan = planned(tmp_path, table, "--interval", "business-day")
    assert "100 of 600 rows are not used" in remarks(plan) and "those of Saturdays and Sundays count" in remarks(plan)


def test_a_series_that_cannot_be_forecast_is_refused(tmp_path: Path):
    table = pd.DataFrame({"month": pd.period_range("1991-01", periods=36, freq="M").astype(str), "sales": 5})
    with pytest.raises(ValueError, match="'sales' holds one value only, so there is nothing to forecast"):
        planned(tmp_path, table)
    table["sales"] = [1e308, *sales(35)]
    with pytest.raises(ValueError, match="'sales' must hold numbers from .* found 1e"):
        planned(tmp_path, table)
    table["sales"] = sales(36)
    with pytest.raises(ValueError, match="season is 30 and the training time has 25 points, so no season comes again"):
        planned(tmp_path, table, "--season", "30")
    with pytest.raises(ValueError, match="nothing tells sequences apart .'month' has 36 times in 72 rows"):
        planned(tmp_path, pd.concat([table, table.assign(sales=sales(36)[::-1])]))
    plan = planned(tmp_path, pd.concat([table, table]))  # twice the same
    assert plan.workload.task == "forecast" and plan.summary["num_grid_points"] == 36


def test_the_windows_that_a_feature_without_its_first_values_costs_are_counted(tmp_path: Path):
    """A column that began late cost 40% of the windows without a word. It is left out, unless it is asked for."""
    later = np.where(np.arange(300) < 100, np.nan, np.arange(300) % 7)
    options = ("--target", "value", "--input-steps", "12")
    left_out = reasons(planned(tmp_path, series(later=later), *options))["features"]
    assert "later (empty in the first 33% of the rows); --features includes them" in left_out
    both = series(later=later, value=series()["value"].where(np.arange(300) > 90))
    assert planned(tmp_path, both, *options).workload.preprocess.columns.features == ("later",), "it costs no window"
    plan = planned(tmp_path, series(later=later), *options, "--features", "later")
    assert "; 100 windows are left out (train 100), because a target in them is missing, or" in reasons(plan)["missing"]
    assert reasons(plan)["missing"].endswith("give a shorter --horizon, or fill its short gaps in the table")
    reason = reasons(planned(tmp_path, series().drop(index=100), "--input-steps", "12"))["missing"]
    assert "windows are left out (train " in reason and "because a missing or incomplete point is in them" in reason


def test_a_column_that_counts_the_rows_is_neither_target_nor_feature(tmp_path: Path):
    table = pd.DataFrame({"month": pd.period_range("1991-01", periods=60, freq="M").astype(str), "record": range(60)})
    table = table.assign(sales=sales(60), stock=sales(60)[::-1])
    with pytest.raises(CommandError, match=r"2 columns that could be forecast; give --target sales or --target stock$"):
        planned(tmp_path, table)
    assert planned(tmp_path, table, "--target", "sales").workload.preprocess.columns.features == ("stock",)


def test_a_column_in_stretches_and_numbers_with_a_unit_are_in_the_question_what_to_forecast(tmp_path: Path):
    hours = pd.date_range("2024-01-01", periods=120, freq="h").astype(str)
    table = pd.DataFrame({"time": hours, "load": sales(120), "regime": np.repeat(["on", "off"] * 3, 20)})
    assert planned(tmp_path, table).workload.preprocess.columns.target == "load"
    people = table.drop(columns="regime").assign(people=np.repeat([0, 2, 1] * 2, 20), month=np.arange(120) // 15 % 4)
    people["open"] = np.repeat([0, 1] * 3, 20)
    with pytest.raises(CommandError, match=r"or --label open or --label people to learn that column from windows$"):
        planned(tmp_path, people)
    assert planned(tmp_path, people, "--label", "open").workload.task == "classify"
    people["people"] = np.repeat([0, 2, 1] * 4, 10)  # no window is as short as its stretches
    with pytest.raises(CommandError, match=r"or --label open to learn that column from windows$"):
        planned(tmp_path, people)
    table["heat"] = [f"{value:.1f} kW" for value in sales(120, 1)]
    question = r"give --target load or --target heat; or --label regime to learn that column from windows$"
    with pytest.raises(CommandError, match=question):
        planned(tmp_path, table)
    assert planned(tmp_path, table, "--label", "regime").workload.task == "classify"
    with pytest.raises(ValueError, match="'heat' holds numbers with a unit like .*; write them without it: "):
        planned(tmp_path, table, "--target", "heat")


def test_a_word_in_a_longer_name_makes_no_target_beside_other_numbers(tmp_path: Path):
    """As the price of the fuel beside a shop's sales; btc_ says nothing in a table of it."""
    table = series().rename(columns={"value": "fuel_price"}).assign(weekly_sales=sales(300))
    with pytest.raises(CommandError, match=r"give --target fuel_price or --target weekly_sales$"):
        planned(tmp_path, table)
    for renamed in ({"fuel_price": "price, USD"}, {"fuel_price": "btc_open", "weekly_sales": "btc_close"}):
        target = planned(tmp_path, table.rename(columns=renamed)).workload.preprocess.columns.target
        assert target == [*renamed.values()][-1]


def test_few_test_windows_are_remarked(tmp_path: Path):
    lines = "\n".join(summary_lines(planned(tmp_path, series(), "--horizon", "42")))
    assert "test has so few windows that a score says little; a shorter --horizon makes more" in lines
    assert "a score says little" not in "\n".join(summary_lines(planned(tmp_path, series(), "--horizon", "12")))


def test_chance_is_rarely_taken_for_a_season():
    """Random walks and noise of 40 to 700 points; at most a few of 200."""
    draw, count = np.random.default_rng(0), 0
    for number in range(200):
        changes = draw.normal(size=(40, 120, 300, 700)[number % 4])
        levels = changes.cumsum() if number % 2 else changes
        count += find_season(levels, parse_interval(("month", "1h", "1d", "business-day")[number % 4]))[0] is not None
    assert count < 20


def test_an_index_without_a_name_is_the_time(tmp_path: Path):
    """As pandas saves a series: `,0` is its header."""
    index = pd.date_range("2024-01-01", periods=120, freq="30min")
    pd.Series(sales(120), index=index).to_csv(tmp_path / "s.csv")
    plan = own_tables.planned(tmp_path / "s.csv")
    columns = plan.workload.preprocess.columns
    assert (chosen(plan)["interval"], columns.time, columns.target, columns.features) == ("30min", "time", "0", ())
    assert plan.summary["num_grid_points"] == 120 and plan.summary["num_missing"] == 0


@pytest.mark.parametrize(("form", "freq", "interval"), [("%Y%m", "MS", "month"), ("%Y%m%d", "D", "day")])
def test_dates_in_digits_are_dates(tmp_path: Path, form: str, freq: str, interval: str):
    times = pd.date_range("1949-01-01", periods=120, freq=freq)
    plan = planned(tmp_path, pd.DataFrame({"date": times.strftime(form), "sales": sales(120)}))
    assert chosen(plan)["interval"] == interval and plan.summary["num_grid_points"] == 120
    assert plan.summary["last_time"]["test"] == times[-1].strftime("%Y-%m-%dT00:00:00Z")


def test_a_series_of_numbered_sensors_is_one_series_unless_something_is_to_be_classified(tmp_path: Path):
    hours = pd.date_range("2024-01-01", periods=120, freq="h").astype(str)
    table = pd.DataFrame({"date": hours, **{f"sensor_{number}": sales(120, number) for number in range(5)}})
    plan = planned(tmp_path, table, "--target", "sensor_2")
    assert plan.workload.task == "forecast" and len(plan.workload.preprocess.columns.features) == 4
    kinds = table.assign(kind=["a", "b"] * 60)
    with pytest.raises(CommandError, match="'date' goes on, .*; --layout long reads it as a step, --layout wide as a"):
        planned(tmp_path, kinds)
    assert planned(tmp_path, kinds, "--layout", "wide").workload.task == "classify"


@pytest.mark.parametrize("seed", [11, 12])
def test_the_lag_beside_a_season_is_none(seed: int):
    """The noise of the changes from step to step suggests 25 or 23, as for 24 hours of the electricity of a house."""
    levels = np.sin(np.arange(500) * np.pi / 12) + np.random.default_rng(seed).normal(scale=0.3, size=500)
    season, _ = find_season(levels, parse_interval("1s"))
    assert season and season.steps == 24


@pytest.mark.parametrize("kind", ["line", "growth", "logistic"])
def test_a_curve_without_noise_has_no_season(kind: str):
    step = np.arange(700.0)
    levels = {"line": 3.7 * step + 50, "growth": np.exp(step / 90), "logistic": 1e6 / (1 + np.exp(-(step - 300) / 40))}
    for values in (levels[kind], np.log(levels[kind])):
        assert find_season(values, parse_interval("day"))[0] is None
    weekly = levels[kind] * (1 + 0.1 * np.sin(2 * np.pi * step / 7))
    season, _ = find_season(np.log(weekly), parse_interval("day"))
    assert season and season.steps == 7


def test_the_question_for_the_target_names_the_last_column_and_those_of_few_values_last(tmp_path: Path):
    """As the count of hired bikes, behind the month, the weekday and the weather."""
    draw = np.random.default_rng(0)
    kinds = {name: draw.integers(1, 5, size=300) for name in ("weather", "sky")}
    numbers = {f"n{number}": draw.normal(size=300).round(3) for number in range(9)}
    table = series(**kinds, **numbers, count=draw.integers(0, 999, size=300)).rename(columns={"value": "temp"})
    said = question(lambda: planned(tmp_path, table), "or another column")
    assert re.findall(r"--target (\w+)", said) == ["temp", *(f"n{number}" for number in range(6)), "count"]
    said = question(lambda: planned(tmp_path, table.assign(sky=10 * table["sky"])), "or another column")
    assert re.findall(r"--target (\w+)", said)[:3] == ["temp", "sky", "n0"]  # as watts of appliances, in tens
