"""Dates and times as people write them: each is read, asked about, or refused with the line that converts it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from tandem.importing import shapes
from tandem.importing.columns import kind_of
from tandem.importing.date_signs import as_iso, formats_of
from tests import refusals
from tests.own_tables import planned, refusal, rewritten, saved, series, text_table


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y %H:%M", "%d.%m.%Y", "%Y/%m/%d"])
def test_the_advice_for_dates_converts_them(tmp_path: Path, form: str):
    days = pd.date_range("2024-01-01", periods=300, freq="D")
    table = pd.DataFrame({"time": days.strftime(form), "value": np.arange(300) ** 0.5})
    message = refusal(saved(table, tmp_path / "t.parquet"))
    is_day_first = form.startswith("%d")  # of which the days above 12 tell
    assert ("table['time'] = pandas.to_datetime(table['time'])" in message) != is_day_first
    assert ("table['time'] = pandas.to_datetime(table['time'], dayfirst=True)" in message) == is_day_first
    assert "without dayfirst" not in message
    assert (pd.to_datetime(table["time"], dayfirst=form.startswith("%d")) == days).all()


@pytest.mark.parametrize("form", ["%H:%M:%S", "%-H:%-M:%-S:%f"])
def test_dates_and_times_of_day_are_joined(tmp_path: Path, form: str):
    """Also with parts of one digit and a colon before the fraction, as an app for runners writes them."""
    times = pd.to_datetime(series()["time"])
    table = pd.DataFrame({"day": times.dt.strftime("%Y-%m-%d"), "clock": times.dt.strftime(form), "x": range(300)})
    table["x"] = table["x"] ** 0.5
    path, _ = rewritten(refusal(saved(table, tmp_path / "t.csv")), tmp_path)
    assert planned(path).workload.preprocess.interval == "1h"


def prices(form: str, freq: str = "B", num: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prices as a web page shows them, the newest first; and what they mean."""
    draw, days = np.random.default_rng(0), pd.date_range("2022-01-03", periods=num, freq=freq)
    true = pd.DataFrame({"Date": days, "Price": (15000 * np.exp(0.01 * draw.normal(size=num).cumsum())).round(2)})
    true["Vol."] = draw.integers(20, 300, num) * 10.0 ** draw.integers(4, 6, num)
    true["Change %"] = draw.normal(size=num).round(2)
    shown = pd.DataFrame({"Date": days.strftime(form), "Price": [f"{price:,.2f}" for price in true["Price"]]})
    shown["Vol."] = [f"{volume / 1e3:.2f}K" if volume < 1e6 else f"{volume / 1e6:.2f}M" for volume in true["Vol."]]
    shown["Change %"] = [f"{change:.2f}%" for change in true["Change %"]]
    return shown[::-1], true


DATES = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%b %d, %Y",
    "%B %d, %Y",
    "%m/%d/%Y 09:30",
)


@pytest.mark.parametrize("form", [*DATES, "%d.%m.%Y 14:05:06", "%d.%m.%Y 14:05:06:007", "%m/%d/%Y 02:05 PM"])
def test_prices_as_a_web_page_shows_them_are_read(tmp_path: Path, form: str):
    shown, true = prices(form)
    shown.loc[7, "Vol."] = "-"
    plan = planned(saved(shown, tmp_path / "t.csv"), "--missing", "interpolate")
    columns = plan.workload.preprocess.columns
    assert (columns.target, columns.features) == ("Price", ("Vol.", "Change %"))
    assert plan.workload.preprocess.interval == "business-day" and plan.summary["num_grid_points"] == 300
    notes = {kind: value for kind, value, _ in plan.source.notes}
    assert notes["numbers"] == "commas between thousands and K as 1e3 and M as 1e6 and without %"
    assert "Date: " in notes["dates"]
    pa.csv.write_csv(plan.source.read(), tmp_path / "again.csv")
    reread = pd.read_csv(tmp_path / "again.csv", na_values="-")[::-1].reset_index(drop=True)
    assert np.isnan(reread.loc[7, "Vol."])
    reread.loc[7, "Vol."] = true.loc[7, "Vol."]
    assert (pd.to_datetime(reread["Date"]).dt.normalize() == true["Date"]).all()
    np.testing.assert_allclose(reread.drop(columns="Date"), true.drop(columns="Date"), rtol=1e-12)


@pytest.mark.parametrize("day", ["%m/%d/%Y", "%d.%m.%Y"])
def test_hour_24_is_the_end_of_the_day(tmp_path: Path, day: str):
    """As grid operators write the hour that ends; it was refused with code that pandas refuses too."""
    hours = pd.date_range("2024-01-01", periods=24 * 40, freq="h")
    ends = [f"{hour.strftime(day)} {hour.hour + 1:02}:00" for hour in hours]
    load = 1000 + 100 * np.sin(np.arange(len(hours)) * np.pi / 12)
    plan = planned(saved(pd.DataFrame({"Hour Ending": ends, "load": load.round(3)}), tmp_path / "t.csv"))
    assert plan.workload.preprocess.interval == "1h" and plan.summary["num_grid_points"] == len(hours)
    assert plan.summary["num_missing"] == 0
    iso = as_iso(pa.chunked_array([ends]), f"{day} %H:%M")
    assert list(pd.to_datetime(iso.to_pandas())) == list(hours + pd.Timedelta("1h"))


def test_whether_day_or_month_comes_first_is_asked_for_if_no_cell_shows_it(tmp_path: Path):
    """No day is above 12 in the first Mondays of months. Each answer reads them so, also for a prediction."""
    path = saved(prices("%d/%m/%Y", "WOM-1MON", 59)[0], tmp_path / "t.csv")
    assert "dates like '02/11/2026'; of a text table, --dayfirst yes or --dayfirst no says what comes" in refusal(path)
    assert planned(path, "--dayfirst", "yes").workload.preprocess.interval == "month"
    options = {"needed": {"Price"}, "times": {"Date"}}  # as of tandem predict
    message = refusals.question(lambda: shapes.open_path(path, options))
    assert "'02/11/2026'; --dayfirst yes reads it as 2026-11-02, --dayfirst no as 2026-02-11" in message
    assert shapes.open_path(path, {**options, "dayfirst": "no"}).notes[-2][1] == "Date: 02/11/2026 is 2026-02-11"
    assert "Date" not in shapes.open_path(path, {"needed": {"Price"}}).notes[-2][1]


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_of_the_firsts_of_months_the_day_is_what_never_changes(tmp_path: Path, form: str):
    path = saved(prices(form, "MS", 59)[0], tmp_path / "t.csv")
    plan, other = planned(path), "no" if form.startswith("%d") else "yes"
    assert plan.workload.preprocess.interval == "month"
    words = f"as all are firsts of months; --dayfirst {other} reads it otherwise"
    assert words in {reason for _, _, reason in plan.source.notes}
    message = refusal(saved(prices(form, "MS", 11)[0], path))  # of one year
    assert "--dayfirst yes or --dayfirst no" in message


FORMS = {
    "%d/%b/%Y %H:%M": "",
    "%d/%b/%Y:%H:%M:%S": " +0200",  # a web server's log
    "%Y-%m-%d %H:%M:%S": " +0200",  # a phone's health data
    "%Y-%m-%dT%H:%M:%S,500": "",
    "%Y-%m-%d %H:%M:%S,500": "+02:00",
    "%a, %d %b %Y %H:%M:%S": " GMT",
    "%d.%m.%Y, %H:%M": "",
    "%m/%d/%Y %I:%M %p": "",
    "%Y%m%d %H%M%S": "",
}


@pytest.mark.parametrize("form", FORMS)
def test_times_in_another_form_are_read_with_their_offset(tmp_path: Path, form: str):
    table, offset = series(), FORMS[form]
    times = pd.date_range("2024-01-13", periods=300, freq="12min") + pd.Timedelta("0.5s") * int(form.endswith(",500"))
    table["time"] = times.astype(str) + {" GMT": "Z", " +0200": "+02:00"}.get(offset, offset)
    expected = planned(saved(table, tmp_path / "plain.csv"), "--interval", "12min")
    table["time"] = times.strftime(form) + offset
    plan = planned(text_table(tmp_path / "t.csv", ";", **table), "--interval", "12min")
    assert plan.summary["sha256"] == expected.summary["sha256"] and plan.workload.task == "forecast"


def test_the_end_of_a_day_is_that_of_its_hours_and_not_of_its_minutes():
    cells = pa.chunked_array([["29.02.2024 07:24:00", "29.02.2024 24:00:00"]])
    assert as_iso(cells, "%d.%m.%Y %H:%M:%S").to_pylist() == ["2024-02-29 07:24:00", "2024-03-01 00:00:00"]


@pytest.mark.parametrize("cell", ["2024-01", "20240101", "1.1.24", "rec_2024_01", "1234-5", "20240301T101500"])
def test_what_has_no_day_or_no_year_of_four_digits_or_is_often_an_id_is_no_date(cell: str):
    assert not formats_of(cell)


def test_an_ip_address_is_no_date():
    assert kind_of(pd.Series(["10.6.69.67", "10.1.8.93"])) == "text"


def test_a_row_of_totals_is_named(tmp_path: Path):
    table = series(time=pd.date_range("2024-01-13", periods=300, freq="h").strftime("%d.%m.%Y %H:%M"))
    total = pd.DataFrame({"time": ["Summe"], "value": [table["value"].sum()]})
    message = refusal(saved(pd.concat([table, total]), tmp_path / "t.csv"))
    assert (
        "dates like '13.01.2024 00:00', and 'Summe' in 1 row, which is none; correct such cells, or leave the rows out"
        in message
    )


@pytest.mark.parametrize("form", ["%d.%m.%y", "%m/%d/%y", "%d-%m-%y %H:%M"])
def test_years_of_two_digits_are_said_to_be_unread(tmp_path: Path, form: str):
    days = pd.Series(pd.date_range("2024-01-14", periods=300))
    marks = {"host": ["yes", "", ""], "stopped": ["", "", "yes"], "end": ["", "", "yes"]}  # as of HOBO's loggers
    marks = {name: [""] * 297 + cells for name, cells in marks.items()}
    path = text_table(tmp_path / "t.csv", ";", date=days.dt.strftime(form), value=range(300), **marks)
    for options in ((), ("--dayfirst", "yes")):
        message = refusal(path, *options)
        assert "a year of two digits, is not read; write them as 2024-03-01" in message and "--dayfirst" not in message


@pytest.mark.parametrize("unit", ["h", "s"])
def test_a_row_without_a_time_is_shown_and_left_out_by_the_code(tmp_path: Path, unit: str):
    """As the last one of a table of a house's meters, which is a backslash."""
    times = pd.Series(pd.to_datetime(series()["time"]).astype(str) if unit == "h" else np.arange(300) + 1_700_000_000)
    path = saved(series().assign(time=times.astype(object).where(times.index < 299, "\\")), tmp_path / "t.csv")
    message = refusal(path)
    assert r"'time' has no time in 1 of 300 rows, first '\\' in row 300" in message
    path, _ = rewritten(message, tmp_path)
    assert planned(path).workload.preprocess.interval == f"1{unit}"


def test_dates_in_two_forms_are_counted_and_the_code_reads_both(tmp_path: Path):
    """As of the prices of Brent oil."""
    days = pd.Series(pd.date_range("2024-01-14", periods=300))
    dates = days.dt.strftime("%d-%b-%y").where(days.index < 280, days.dt.strftime("%b %d, %Y"))
    table = series(time=days.dt.strftime("%Y-%m-%d"))
    message = refusal(saved(table.assign(time=dates), tmp_path / "t.csv"))
    assert "holds dates like '14-Jan-24', and 'Oct 20, 2024' in 20 rows; write them alike: " in message
    plans = map(planned, (rewritten(message, tmp_path)[0], saved(table, tmp_path / "plain.csv")))
    assert len({str(plan.summary["sha256"]) for plan in plans}) == 1
