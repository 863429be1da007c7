"""The times of a series: parse cells as instants or dates, and place them on a grid of equal steps.

R rows of the table, G grid points. Times are int64 nanoseconds since 1970-01-01 UTC. For calendar intervals (a day, a
month), they are those of the written date without its offset: midnight in Berlin on 1 March belongs to March, and
daylight saving time has no effect.
"""

import re
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.tables import RawTable, cast_or_none, raise_if_any
from tandem.params.intervals import DAYS, Interval

SECOND = 10**9  # nanoseconds
DAY = 86400 * SECOND
MONDAY = np.datetime64("1970-01-05")  # business day 0
COMPACT_DATE = r"^((19|20)\d\d|2100)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"  # from 1900 to 2100
OFFSET = r"(:\d\d.*?)\s*(Z|[+-]\d\d(:?\d\d)?)$"
TIME_FORMS = (
    "ISO 8601 times, e.g. 2021-09-27 14:45:00+01:00, months, quarters or years, e.g. 1949-01, 1970 Q1, 1970, "
    "or whole seconds since 1970-01-01 UTC"
)
MONTH_NAMES = "jan feb mar apr may jun jul aug sep oct nov dec".split()
PERIOD_FORMS = (
    r"(?P<year>\d{4})[-/ ](?P<month>0?[1-9]|1[0-2])",
    r"(?P<month>0?[1-9]|1[0-2])[-/ ](?P<year>\d{4})",
    r"(?P<year>1[6-9]\d\d|2[0-2]\d\d)\.(?P<month>0[1-9]|1[0-2])",  # 1013.2 is a number
    r"(?P<month>0?[1-9]|1[0-2])\.(?P<year>1[6-9]\d\d|2[0-2]\d\d)",
    r"(?P<year>\d{4})[-/ ]?[Qq](?P<quarter>[1-4])",
    r"[Qq](?P<quarter>[1-4])[-/ ]?(?P<year>\d{4})",
    r"(?P<year>\d{4})[-/ ]?W(?P<week>0[1-9]|[1-4]\d|5[0-3])",
    r"(?P<year>\d{4})[-/. ](?P<name>[A-Za-z]{3,9})\.?",
    r"(?P<name>[A-Za-z]{3,9})\.?[-/. ](?P<year>\d{4})",
)
# Forms with only digits. For other than calendar intervals, they are seconds.
YEAR_FORM = r"(?P<year>1[6-9]\d\d|2[0-2]\d\d)"
DIGIT_FORMS = (
    YEAR_FORM,
    r"(?P<year>(?:19|20)\d\d)(?P<month>0[1-9]|1[0-2])",
    r"(?P<year>(?:19|20)\d\d)(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12]\d|3[01])",
)


def first_day(text: str, forms: tuple[str, ...] = (*PERIOD_FORMS, *DIGIT_FORMS)) -> str | None:
    """The first date, in ISO 8601, of the week, month, quarter or year in `text`; None if there is none."""
    for form in forms:
        if match := re.fullmatch(form, text):
            parts = {name: value for name, value in match.groupdict().items() if value}
            year, month = int(parts["year"]), int(parts.get("month", 1))
            if "quarter" in parts:
                month = 3 * int(parts["quarter"]) - 2
            if "name" in parts:
                if parts["name"][:3].lower() not in MONTH_NAMES:
                    continue
                month = MONTH_NAMES.index(parts["name"][:3].lower()) + 1
            try:
                if "week" in parts:
                    return date.fromisocalendar(year, int(parts["week"]), 1).isoformat()
                return date(year, month, int(parts.get("day", 1))).isoformat()
            except ValueError:
                return None
    return None


def read_times(table: RawTable, column: str, interval: Interval) -> tuple[np.ndarray, int]:
    """Returns the times (R,) and the number of rows without an offset, which count as UTC.

    All rows must have the same kind, from 1678 to 2261: ISO 8601 text (a date means its midnight), Parquet's timestamps
    and dates, or whole seconds since 1970. Milliseconds are refused, because only their size distinguishes them from
    seconds. A column in which every number is also a date, e.g. 20210927, is refused too. With a calendar interval,
    such numbers are dates, and weeks, months, quarters and years are accepted as well.
    """
    cells = table.take(column)
    why = f"column {column!r} must hold {TIME_FORMS}"
    raise_if_any(table, pc.is_null(cells).to_numpy(), why, cells)
    if pa.types.is_timestamp(cells.type) and cells.type.tz:
        in_zone = pc.local_timestamp(cells) if interval.is_calendar else None
        cells = in_zone if in_zone is not None else cells.cast(pa.timestamp(cells.type.unit, "UTC"))
    text = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    text = periods_to_dates(text, interval, table.name, column)
    if pc.all(pc.match_substring_regex(text, r"^-?(\d{1,9}|[1-8]\d{9})$")).as_py():
        if pc.all(pc.match_substring_regex(text, COMPACT_DATE)).as_py():
            number = text[0].as_py()
            raise ValueError(
                f"{table.name}: column {column!r} holds numbers like {number}, which are dates as well as seconds "
                f"since 1970-01-01 UTC; write the date as {number[:4]}-{number[4:6]}-{number[6:]}, or the second as "
                f"{iso(np.array([int(number) * SECOND]))[0]}"
            )
        return text.cast(pa.int64()).to_numpy() * SECOND, 0
    if interval.is_calendar:
        text = pc.replace_substring_regex(text, OFFSET, r"\1")
    has_offset = pc.match_substring_regex(text, r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
    ending = pc.if_else(pc.equal(pc.utf8_length(text), len("2021-09-27")), " 00:00Z", pc.if_else(has_offset, "", "Z"))
    complete = pc.binary_join_element_wise(text, ending, "")
    in_utc = pa.timestamp("ns", "UTC")
    if (stamps := cast_or_none(complete, in_utc)) is None:
        raise_if_any(table, np.array([cast_or_none(cell, in_utc) is None for cell in complete]), why, cells)
        raise ValueError(f"{table.name}: {why}; correct the table and run again")
    num_without = 0 if interval.is_calendar else len(cells) - pc.sum(has_offset).as_py()
    return stamps.cast(pa.int64()).to_numpy(), num_without


def periods_to_dates(text: pa.ChunkedArray, interval: Interval, table: str, column: str) -> pa.ChunkedArray:
    """Replace every week, month, quarter and year in `text` by its first date; other cells stay.

    Raises ValueError if `text` contains such cells and `interval` is not a calendar interval.
    """
    if pc.any(pc.match_substring_regex(text[:1], r"^\d{4}-\d\d-\d\d")).as_py():
        return text
    if not interval.is_calendar:
        if len(text) and first_day(text[0].as_py(), PERIOD_FORMS):
            raise ValueError(
                f"{table}: column {column!r} holds {text[0].as_py()}, which is no time to the {interval.unit}; "
                "set preprocess.interval to week, month, quarter or year"
            )
        return text
    encoded = text.combine_chunks().dictionary_encode()
    distinct = [cell.as_py() for cell in encoded.dictionary]
    days = pa.array([first_day(cell) or cell for cell in distinct], pa.string())
    return pa.chunked_array([pa.DictionaryArray.from_arrays(encoded.indices, days).cast(pa.string())])


@dataclass(frozen=True)
class Steps:
    """The grid of an interval. Point 0 is at `origin`, in nanoseconds, months or business days (see `count_units`)."""

    interval: Interval
    origin: int

    @property
    def size(self) -> int:
        return self.interval.months or (1 if self.interval.unit == "business-day" else self.interval.seconds * SECOND)

    def points(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The grid point of each time (R,), and whether it is moved there (R,): a time between two points to the next
        one, and a weekend to Monday. With a calendar interval, each time belongs to the period with its date.
        """
        counted, is_weekend = count_units(stamps, self.interval)
        past = counted - self.origin
        if self.interval.months:
            return counted // self.size, is_weekend
        if self.interval.unit in DAYS:
            return (counted - counted % DAY - (self.origin - self.origin % DAY)) // self.size, is_weekend
        if self.interval.is_calendar:
            return past, is_weekend
        return -(-past // self.size), past % self.size != 0

    def times(self, points: np.ndarray) -> np.ndarray:
        """The start times of `points`."""
        counted = points * self.size + self.origin
        if self.interval.months:
            return counted.astype("datetime64[M]").astype("datetime64[ns]").astype(np.int64)
        if self.interval.unit == "business-day":
            return np.busday_offset(MONDAY, counted).astype("datetime64[ns]").astype(np.int64)
        return counted


def steps_for(stamps: np.ndarray, interval: Interval) -> Steps:
    """A grid at multiples of `interval` since 1970, shifted by a constant if most of `stamps` share this shift."""
    steps = Steps(interval, 0)
    counted, _ = count_units(stamps, interval)
    remainders, times_seen = np.unique(counted % steps.size, return_counts=True)
    is_shared = times_seen.max() * 2 > len(stamps)
    return Steps(interval, int(remainders[times_seen.argmax()])) if is_shared else steps


def clock_change(stamps: np.ndarray, interval: Interval) -> tuple[str, ...]:
    """The two times of day, e.g. 22:00 and 23:00, if `stamps` have two that are an hour apart, as midnights of a place
    with summer time have in UTC; else nothing. Only for intervals of whole days.
    """
    times_of_day = np.unique(stamps % DAY)
    is_hour = len(times_of_day) == 2 and (times_of_day[1] - times_of_day[0]) * 24 in (DAY, 23 * DAY)
    is_whole_days = interval.is_calendar or interval.seconds % 86400 == 0
    return tuple(time[11:16] for time in iso(times_of_day)) if is_hour and is_whole_days else ()


def count_units(stamps: np.ndarray, interval: Interval) -> tuple[np.ndarray, np.ndarray]:
    """For each stamp: the nanoseconds, months or business days since 1970, and whether it is on a weekend.

    A weekend counts as the next Monday. Only business days report weekends.
    """
    is_weekend = np.zeros(len(stamps), dtype=bool)
    if interval.months:
        return stamps.astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64), is_weekend
    if interval.unit == "business-day":
        days = stamps.astype("datetime64[ns]").astype("datetime64[D]")
        weekdays = np.busday_offset(days, 0, roll="forward")
        return np.busday_count(MONDAY, weekdays), weekdays != days
    return stamps, is_weekend


def iso(times: np.ndarray) -> np.ndarray:
    """(N,) times as text in UTC, without fractions if all are whole seconds."""
    unit = "ns" if (times % SECOND).any() else "s"
    return np.char.add(np.datetime_as_string(times.astype("datetime64[ns]").astype(f"datetime64[{unit}]")), "Z")
