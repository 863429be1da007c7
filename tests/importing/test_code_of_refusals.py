"""Tables that are refused with code: followed literally, it makes a table that is read."""

import re
import shlex
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.importing.new_workload import WorkloadPlan
from tandem.terminal.command import CommandError
from tests import refusals
from tests.own_tables import clips, planned, reasons, rewritten, saved, series
from tests.shapes import LABELS

DAYS = pd.date_range("2024-01-01", periods=300)
HOURS = pd.Series(pd.date_range("2024-01-01", periods=300, freq="h"))
NAMES_OF_MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
MONTHS = pd.Series(pd.date_range("2000-01-01", periods=300, freq="MS"))
SINCE_1970 = HOURS.astype("datetime64[s]").astype("int64")


def timed(name: str = "time", **cells: Any) -> pd.DataFrame:
    """The series of 300 hours with other columns for the time."""
    return series().drop(columns="time").assign(**cells)[[*cells, "value"]]


def stores() -> pd.DataFrame:
    """A series for each of three stores, of which the first is `series()`."""
    table = series(open=np.arange(300) % 7)
    parts = [table.assign(store=store, value=table["value"] + store) for store in range(3)]
    return pd.concat(parts, ignore_index=True)


def own_clocks() -> pd.DataFrame:
    """`series()`, and below it another sensor's, each at times of its own."""
    later = HOURS + pd.to_timedelta(1800 + np.arange(300) % 7, unit="s")
    other = series(sensor="b").assign(time=later.dt.strftime("%Y-%m-%d %H:%M:%SZ"))
    return pd.concat([series(sensor="a"), other], ignore_index=True)


def store_families() -> pd.DataFrame:
    """A series for each family of goods of each store."""
    parts = [stores().assign(family=family, value=stores()["value"] + 9 * place) for place, family in enumerate("xy")]
    return pd.concat(parts, ignore_index=True).sort_values(["time", "store"], ignore_index=True)


def trials(are_joined: bool = False) -> pd.DataFrame:
    """Clips that are counted from 1 for each subject, in the column `vp`."""
    table = clips(LETTERS)
    number = pd.factorize(table["clip"])[0]
    table["clip"], table["vp"] = number % 6 + 1, number // 6 + 1
    return table.assign(clip=table["clip"].astype(str) + "_" + table["vp"].astype(str)) if are_joined else table


def with_dates_as_columns(names: list[Any]) -> pd.DataFrame:
    """A row for each of some series, the first of which is `series()`."""
    values = series()["value"].to_numpy()
    table = pd.DataFrame([values + number for number in range(len(names))], columns=DAYS.strftime("%Y-%m-%d"))
    table.insert(0, "page", names)
    return table


LETTERS = ["a", "b", "c"] * 8
POINTS = [f"{axis} {part} {number}" for axis in "xy" for part in ("hand", "pose") for number in range(2)]


def with_units() -> pd.DataFrame:
    """The series, and another quantity at some times between its own."""
    table = series(unit="bpm", version=10.3)
    times = (HOURS[:200] + pd.Timedelta("10min")).dt.strftime("%Y-%m-%d %H:%M:%SZ")
    counts = pd.DataFrame({"time": times, "value": range(0, 400, 2), "unit": "count", "version": 10.3})
    return pd.concat([table, counts]).sort_values("time", ignore_index=True)


def by_row(columns: str, rows: str, times: pd.Series, name: str) -> pd.DataFrame:
    """The series with a row for each day or year, and a column for each time in it."""
    cells = pd.DataFrame({name: times.dt.strftime(rows), "at": times.dt.strftime(columns)})
    cells["value"] = series()["value"]
    return cells.pivot(index=name, columns="at", values="value")[cells["at"].unique()].reset_index()


def with_codes() -> pd.DataFrame:
    """A row for each item, a code with a unit, at a time."""
    table = clips(LETTERS).melt(["clip", "frame", "label"], var_name="item")
    table["item"] = table["item"].map({"f0": 220045, "f1": 220179})
    table.insert(5, "unit", table["item"].map({220045: "bpm", 220179: "mmHg"}))
    return table.sort_values(["clip", "frame"], ignore_index=True)


def landmarks() -> pd.DataFrame:
    """A row for each landmark of a frame, which a word and a number name."""
    table = clips(LETTERS, num_features=8)
    parts = []
    for place, (part, number) in enumerate((part, number) for part in ("hand", "pose") for number in range(2)):
        landmark = table[["clip", "frame", "label"]].assign(type=part, landmark_index=number)
        landmark["row_id"] = landmark["frame"].astype(str) + f"-{part}-{number}"
        parts.append(landmark.assign(x=table[f"f{place}"], y=table[f"f{place + 4}"]))
    return pd.concat(parts).sort_values(["clip", "frame"], kind="stable", ignore_index=True)


NUMBERED, BY_LABEL = (
    clips(labels).assign(clip=lambda table: pd.factorize(table["clip"])[0]) for labels in (LETTERS, sorted(LETTERS))
)
TWO_DIGITS = HOURS.dt.strftime("%d/%m/%y")
OF_DAY = [f"{time.hour % 12 or 12}:{time:%M}{'ap'[time.hour > 11]}" for time in HOURS]  # 12:00a
QUARTERS = pd.period_range("1940Q1", periods=300, freq="Q")
PARTS = {name: getattr(HOURS.dt, name) for name in ("year", "month", "day", "hour")}


# Each table that is refused, and one that is read, of the same numbers.
PAIRS = [
    (timed(time=TWO_DIGITS.add(HOURS.dt.strftime(" %H:%M"))), series()),
    (timed(time=HOURS.dt.strftime("%d-%b-%y %H:%M:%S")), series()),
    (timed(time=SINCE_1970 / 86400 + 25569), series()),  # Excel
    (timed(Date=range(45000, 45300)), timed(time=pd.date_range("2023-03-15", periods=300))),
    (timed(time=SINCE_1970 * 1000), series()),
    (timed(time=SINCE_1970 + 0.25), timed(time=HOURS + pd.Timedelta("0.25s"))),
    (timed(time=HOURS.dt.strftime("%H:%M:%S")), series()),
    (timed(date=HOURS.dt.strftime("%Y-%m-%d"), time=HOURS.dt.strftime("%H:%M:%S")), series()),
    (timed(date=TWO_DIGITS, time=OF_DAY), series()),
    (timed(Date=HOURS.dt.strftime("%d/%m/%Y"), Time=HOURS.dt.strftime("%H.%M.%S")), series()),
    (pd.concat([pd.DataFrame({"value": [90.0, 70.0], "patient": ["Jane", "Doe"]}), series()[["value", "time"]]]),
     series()),
    (timed(**PARTS), series()),
    (timed(**dict(zip(("YY", "MM", "DD", "hh"), PARTS.values(), strict=True)), mm=50), timed(time=HOURS, mm=50)),
    (timed(**PARTS).assign(wind=["N", "E", "S"] * 100), series()),
    (timed(more=range(300, 0, -1)), timed(time=pd.to_datetime(range(300), unit="s"), more=range(300, 0, -1))),
    (stores(), series(open=np.arange(300) % 7)),
    (store_families(), series(open=np.arange(300) % 7)),
    (own_clocks(), series()),
    (own_clocks().sort_values("time"), series()),
    (stores().drop(columns="open"), timed(time=HOURS).assign(a=series()["value"] + 1, b=series()["value"] + 2)),
    (timed(time=pd.date_range("2010-01-01", periods=300, freq="MS").strftime("%b-%y")),
     timed(time=pd.date_range("2010-01-01", periods=300, freq="MS"))),
    (clips(LETTERS).assign(frame=lambda table: pd.to_timedelta(table["frame"] * 40, unit="ms").astype(str)),
     clips(LETTERS)),
    (trials(), trials(are_joined=True)),
    (clips(LETTERS).assign(label=lambda table: table["label"].where(table["frame"] == 0)), clips(LETTERS)),
    (clips(LETTERS).assign(label=lambda table: table["label"].where(table["clip"] != table["clip"].shift(-1))),
     clips(LETTERS)),
    (timed(range=HOURS.dt.strftime("%d.%m.%Y %H:%M - ") + HOURS.shift(-1, fill_value=HOURS.max()).dt.strftime(
        "%d.%m.%Y %H:%M")), series()),
    (timed(station=HOURS.dt.strftime("%Y%m%d%H")), series()),
    (clips(LETTERS).melt(["clip", "frame", "label"]), clips(LETTERS)),
    (timed(date=HOURS.dt.strftime("%Y-%m-%d"), hr=HOURS.dt.hour).assign(wind=["N", "E", "S"] * 100),
     series(wind=["N", "E", "S"] * 100)),
    (timed(Date=HOURS.dt.strftime("%d/%m/%Y"), Hour=HOURS.dt.hour).assign(season=["wet", "dry", "hot"] * 100),
     series(season=["wet", "dry", "hot"] * 100)),
    (timed(year=MONTHS.dt.year, month=MONTHS.dt.month), timed(time=MONTHS)),
    (timed(Datum=SINCE_1970 / 86400 + 25569.25), timed(Datum=HOURS + pd.Timedelta("6h"))),
    (timed(Datum=HOURS.dt.strftime("%d.%m.%y"), Zeit=HOURS.dt.strftime("%H:%M")), series()),
    (with_codes(), clips(LETTERS).rename(columns={"f0": "value 220045", "f1": "value 220179"})),
    (with_codes().assign(step=lambda table: range(len(table))),
     clips(LETTERS).rename(columns={"f0": "value 220045", "f1": "value 220179"})),
    (NUMBERED.drop(columns="clip"), NUMBERED),
    (BY_LABEL.drop(columns="clip"), BY_LABEL),
    (with_dates_as_columns(["a", "b", "c", "d"]), timed(time=DAYS)),
    (with_dates_as_columns([7, 8, 9, 10]).assign(kind="x"), timed(time=DAYS)),
    (by_row("%H:%M", "%d.%m.%Y", HOURS[:288], "Date"), series()[:288]),
    (by_row("%H:%M", "%Y-%m-%d", HOURS[:288], "Date"), series()[:288]),
    (by_row("%b", "%Y", MONTHS, "Year"), timed(time=MONTHS)),
    (stores().assign(time=[*HOURS.dt.strftime("%d/%b/%Y:%H:%M:%S +0000")] * 3), series(open=np.arange(300) % 7)),
    (stores().assign(time=[*HOURS.dt.strftime("%d.%m.%Y %H:%M:%S,000")] * 3), series(open=np.arange(300) % 7)),
    (stores().assign(time=[*HOURS.dt.strftime("%d.%m.%Y ") + (HOURS.dt.hour + 1).map("{:02}:00".format)] * 3),
     series(open=np.arange(300) % 7).assign(time=HOURS + pd.Timedelta("1h"))),
    (landmarks(), clips(LETTERS, num_features=8).rename(columns={f"f{n}": POINTS[n] for n in range(8)})),
    (timed(year=QUARTERS.year, quarter=QUARTERS.quarter.astype(float)), timed(time=QUARTERS.strftime("%Y-Q%q"))),
]  # fmt: skip
NAMES = (
    "two-digits month-name excel excel-days ms s of-day date-and-time 12:00a points no-time parts "
    "parts-by-range parts-and-words none several several-by-two own-clocks own-clocks-in-turn narrow month-year "
    "timedelta trials label-first label-last ranges hours-in-digits long-form hours days-first year-and-month "
    "excel-in-any-language days-of-two-digits-first codes codes-beside-a-counter restarts "
    "restarts-in-order-of-labels dates-as-columns of-numbers hours-as-columns of-iso-days months-as-columns "
    "with-an-offset comma-fractions hour-24 landmarks quarters"
)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            clips(LETTERS).mask(
                lambda table: table[["frame"]].gt(0).to_numpy() & table.columns.isin(["clip", "label"])
            ),
            "'clip' is empty in most rows; if an empty cell means what stands above it",
        ),
        (
            by_row("%b", "%Y", MONTHS, "Year").assign(mean=0.5),
            r"a column for each time \(Jan, Feb, ...\); write a row",
        ),
        (
            with_dates_as_columns(["a", "b", "a", "b"]).rename(
                columns=lambda name: name if name == "page" else f"{int(name[5:7])}/{int(name[8:])}/{name[2:4]}"
            ),
            r"write a row for each, of the first series: table = table.iloc\[\[0\]\].melt",
        ),
        (with_units(), r"'value' has several units \(in 'unit'\), so it is more than one series; keep the rows of one"),
    ],
)
def test_a_table_of_several_series_or_with_empty_ids_is_refused(tmp_path: Path, table: pd.DataFrame, words: str):
    assert re.search(words, refusals.sentence(lambda: planned(saved(table, tmp_path / "t.csv"))))


@pytest.mark.parametrize(
    ("table", "expected", "sep"),
    [(*pair, sep) for pair, sep in zip(PAIRS, cycle(",;"), strict=False)],
    ids=NAMES.split(),
)
@pytest.mark.filterwarnings("ignore:Could not infer format")
def test_the_code_of_a_refusal_makes_a_table_that_is_read(
    tmp_path: Path, table: pd.DataFrame, expected: pd.DataFrame, sep: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "it is mine.csv"
    path.write_text("# of a station\n" * (sep == ";") + table.to_csv(index=False, sep=sep))
    message = refusals.sentence(lambda: planned(path))
    before, _, commands = message.partition(" (before it: import pandas; ")
    read, write = commands.removesuffix(")").split("; after it: ")
    end = r"(?:, with | if |, without |, a second|; (?!table)|$)"
    code = re.findall(rf"(?<!; )(table(?:\[.*?\])? = .*?){end}", before)[-1]
    if "with dayfirst=True if" in before and "/" in str(table.iloc[0, 0]):
        code = f"{code.removesuffix(')')}, dayfirst=True)"
    exec(f"import pandas; {read}; {code}; {write}")  # noqa: S102
    paths = (tmp_path / "new.csv", saved(expected, tmp_path / "plain.csv"))
    plan, plain = map(answered, paths)
    assert plan.workload.task == plain.workload.task and "join them" not in reasons(plan)["features"]
    assert plan.summary["sha256"] == plain.summary["sha256"]


@pytest.mark.parametrize("sign", ["", "# "])
def test_the_code_of_a_refusal_reads_cells_between_several_spaces(
    tmp_path: Path, sign: str, monkeypatch: pytest.MonkeyPatch
):
    """As of UCI's SML2010, whose header begins with a sign: each column moved to the next name."""
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "t.txt").write_text(sign + timed(**PARTS).round(3).to_string(index=False).lstrip())
    message = refusals.sentence(lambda: planned(path))
    plan, plain = map(planned, (rewritten(message, tmp_path)[0], saved(series().round(3), tmp_path / "plain.csv")))
    assert plan.summary["sha256"] == plain.summary["sha256"]


def test_a_date_and_a_time_of_day_that_are_joined_are_not_to_be_joined_again(tmp_path: Path):
    seconds = np.random.default_rng(0).integers(200, 400, 300).cumsum()
    times = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s"))
    table = series().assign(time=times, at=times.dt.strftime("%H:%M:%S"))
    assert "join them" not in refusals.sentence(lambda: planned(saved(table, tmp_path / "t.csv")), "choose the --int")


def test_events_are_counted(tmp_path: Path):
    """As of trips: of several bases, with times that repeat, and as one list of irregular times."""
    draw = np.random.default_rng(0)
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(draw.integers(0, 300 * 3600, 2000)), unit="s")
    counts = pd.Series(1, times).resample("1h").sum().rename("count").rename_axis("time").reset_index()
    table = pd.DataFrame({"time": times, "lat": draw.normal(size=2000).round(4)})
    of_bases = pd.concat([table[::2].assign(base="a"), table[1::2].assign(base="b"), table[:20].assign(base="b")])
    for name, rows in {"t": table, "bases": of_bases}.items():
        path = saved(rows, tmp_path / f"{name}.csv")
        message = refusals.sentence(partial(planned, path))
        code = re.findall(
            r"; or if each row is an event, count them, e.g. by the hour: (table = .*?reset_index\(\))", message
        )[0]
        found = dict[str, Any](table=pd.read_csv(path), pandas=pd)
        exec(code, found)  # noqa: S102
        if name == "t":
            assert found["table"]["count"].tolist() == counts["count"].tolist()
        plan = planned(saved(found["table"], tmp_path / f"{name}.new.csv"))
        assert (plan.workload.task, plan.workload.preprocess.columns.target) == ("forecast", "count")


def answered(path: Path) -> WorkloadPlan:
    """The plan, with the first option of the question that `tandem new` asks, if it does."""
    try:
        return planned(path)
    except CommandError as question:
        options = str(question).partition("; give ")[2].partition(" or --")[0]
        return planned(path, *shlex.split(options))


def test_a_row_for_each_patient_is_not_told_again_to_count_the_rows(tmp_path: Path):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.integers(20, 90, size=(60, 3)), columns=["age", "pressure", "rate"])
    table["target"] = draw.integers(2, size=60)
    path, end = saved(table, tmp_path / "t.csv"), "such as a row of features for each item, are no steps"
    refusals.sentence(lambda: planned(path), "with a column of labels, count the rows: table['step'] = range(len", end)
    saved(table.assign(step=range(60)), path)
    said = refusals.sentence(lambda: planned(path, "--step", "step", "--label", "target"), end)
    assert "count the rows" not in said


def orders() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each item of an order, in no order, of some products a single one; and the sum of each day."""
    draw = np.random.default_rng(0)
    days = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 300, 900), unit="D"))
    products = [f"P-{number:03}" for number in draw.integers(0, 250, 900)]
    table = pd.DataFrame({"Order Date": days, "Product ID": products, "Sales": draw.gamma(2, 50, 900).round(2)})
    table = table.drop_duplicates(["Order Date", "Product ID"])
    table.insert(2, "Category", table["Product ID"].str[-1].map(lambda digit: ["Chairs", "Paper"][int(digit) % 2]))
    return table, table.resample("D", on="Order Date")["Sales"].sum().reset_index()


@pytest.mark.parametrize("options", [(), ("--target", "Sales"), ("--task", "forecast")])
def test_orders_are_added_up_by_the_day(tmp_path: Path, options: tuple[str, ...]):
    """The product was taken as the sequence, and nothing led on."""
    table, sums = orders()
    message = refusals.sentence(partial(planned, saved(table, tmp_path / "t.csv"), *options))
    [code] = re.findall(r", or add up a number of each: (table = .*?reset_index\(\))", message)
    found = dict[str, Any](table=pd.read_csv(tmp_path / "t.csv", dtype=str), pandas=pd)
    exec(code, found)  # noqa: S102
    plans = planned(saved(found["table"], tmp_path / "new.csv")), planned(saved(sums, tmp_path / "sums.csv"))
    assert plans[0].workload.task == "forecast" and plans[0].summary["sha256"] == plans[1].summary["sha256"]
    if not options:
        words = "table.groupby('Product ID')['Product ID'].transform('size') > 1", "the sequence is 'Product ID'"
        assert all(word in message for word in words)


def test_a_shop_is_no_quantity(tmp_path: Path):
    """As of sales with a row only where a shop sold the item: a column for each shop would be nearly empty."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"date": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 400, 3000), unit="D")})
    table = table.assign(shop_id=draw.choice([5, 25, 31, 54, 59], 3000), item_id=draw.integers(2550, 2554, 3000))
    table = table.assign(item_price=399.5, item_cnt_day=draw.integers(1, 5, 3000)).drop_duplicates(
        ["date", "shop_id", "item_id"]
    )
    message = refusals.sentence(partial(planned, saved(table, tmp_path / "t.csv")))
    assert "a row for each quantity" not in message and "or add up a number of each" in message


def test_words_that_say_of_what_kind_mixed_rows_are_tell_no_sequences_apart(tmp_path: Path):
    """As the quality L, M or H of a machine's pieces, of which each row is one."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"UDI": range(1, 1201), "Type": draw.choice(["L", "M", "H"], 1200, p=[0.6, 0.3, 0.1])})
    table = table.assign(torque=draw.normal(40, 9, 1200).round(1), wear=np.arange(1200) % 30, failure=0)
    table.loc[draw.random(1200) < 0.05, "failure"] = 1
    message = refusals.sentence(partial(planned, saved(table, tmp_path / "t.csv")))
    assert "'wear' begins again 39 times, and no column tells the recordings apart" in message
    message = refusals.sentence(partial(planned, saved(table.drop(columns="wear"), tmp_path / "t.csv")))
    assert "no column that tells sequences apart" in message and "are no steps" in message
    timed = clips(LABELS).rename(columns={"clip": "what"}).sort_values("frame")  # with times, the word tells them apart
    assert planned(saved(timed, tmp_path / "t.csv")).workload.preprocess.columns.sequence == "what"


@pytest.mark.parametrize("first", [0, 1])
def test_a_count_of_the_parts_of_each_day_is_joined_with_the_date(tmp_path: Path, first: int):
    """As the settlement periods of a grid: each day was a sequence, and whether it is a holiday the label."""
    times = pd.Series(pd.date_range("2024-01-01", periods=960, freq="30min"))
    load = np.random.default_rng(0).normal(size=960).cumsum().round(3)
    table = pd.DataFrame({"day": times.dt.strftime("%Y-%m-%d"), "period": np.arange(960) % 48 + first, "load": load})
    message = refusals.sentence(partial(planned, saved(table.assign(free=times.dt.day % 7 == 0), tmp_path / "t.csv")))
    assert "are parts of a time" in message and "or give --sequence day if each is a sequence" in message
    path, _ = rewritten(message, tmp_path)
    expected = saved(pd.DataFrame({"time": times, "load": load}), tmp_path / "plain.csv")
    plans = planned(path, "--target", "load"), planned(expected)
    assert plans[0].workload.preprocess.interval == plans[1].workload.preprocess.interval == "30min"


@pytest.mark.filterwarnings("ignore:Could not infer format")
def test_sums_of_a_year_are_no_features_of_its_months(tmp_path: Path):
    """As of India's rain: the sum of the year told the months that are forecast."""
    rain = pd.DataFrame(np.random.default_rng(0).gamma(2, 50, (40, 12)).round(1), columns=NAMES_OF_MONTHS)
    rain.insert(0, "YEAR", range(1901, 1941))
    rain["ANNUAL"], rain["Jun-Sep"] = rain[NAMES_OF_MONTHS].sum(axis=1), rain[["JUN", "JUL", "AUG", "SEP"]].sum(axis=1)
    message = refusals.sentence(partial(planned, saved(rain, tmp_path / "t.csv")), "has a column for each time")
    plan = planned(rewritten(message, tmp_path)[0])
    assert (plan.workload.task, plan.workload.preprocess.columns.features) == ("forecast", ())


def test_text_alone_is_said_to_be_unread_at_once(tmp_path: Path):
    table = pd.DataFrame({"review": ["a fine film"] * 30 + ["a dull one"] * 30, "sentiment": ["+", "-"] * 30})
    refusals.sentence(partial(planned, saved(table, tmp_path / "t.csv")), "'a fine film'", "a source of your own")


def test_an_option_that_was_given_is_not_offered_again(tmp_path: Path):
    table = clips(LABELS).astype({"f0": str})
    table.loc[3, "f0"] = "none at all"
    path = saved(table, tmp_path / "t.csv")
    assert "--na=" in refusals.sentence(partial(planned, path))
    codes = clips(LABELS).assign(
        code=[f"{85000 + row % 40}{'AB'[row % 2] * (row % 5 == 0)}" for row in range(len(table))]
    )
    assert planned(saved(codes, path)).workload.preprocess.columns.features == ("f0", "f1")  # 85010A is no number


def test_a_row_for_each_drive_and_day_may_be_sequences_of_drives(tmp_path: Path):
    """As of Backblaze: a day was offered as a sequence, and a drive was not."""
    days = pd.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d")
    rows = [(day, f"Z30{drive}", drive + step / 9) for step, day in enumerate(days) for drive in range(30)]
    table = pd.DataFrame(rows, columns=["date", "serial_number", "smart_1"])
    message = refusals.sentence(partial(planned, saved(table, tmp_path / "t.csv")))
    assert "or give --sequence serial_number or --sequence date if each is a sequence" in message
