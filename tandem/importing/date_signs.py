"""Dates in text that are not ISO 8601, such as 09/06/2024, Jun 9, 2024 or 01/Mar/2024:10:00:00 +0100.

pandas guesses the format. The cells of a column decide whether the day or the month comes first: of 13/06/2024 it is
the day. If none decides, the column stays text, unless its dates are the firsts of months in several years or have
points (day first), or the user says it (`--dayfirst`).
"""

import re
import warnings
from dataclasses import dataclass, field

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.tseries.api import guess_datetime_format

from tandem.data.tables import MISSING, cast_or_none, is_number

# What pandas does not guess: a fraction after a comma or a colon, a colon between a date and its time.
ODD_SIGNS = {r"((?:\b|T)\d\d?:\d\d:\d\d)[,:](\d{1,9})\b": r"\1.\2", r"(\d{4}):(\d\d:\d\d)": r"\1 \2"}
END_OF_DAY = r"(?<![:\d])24:00"
OFFSET = r"^(.*:\d\d.*?)\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$"


@dataclass
class DateCells:
    """What the cells of a column show, added chunk by chunk."""

    formats: list[str] | None = None  # of which each reads all cells; None before the first cell
    example: str = ""
    decisive: str = ""  # a cell that rules out that the day, or the month, comes first
    not_monthly: set[str] = field(default_factory=set)  # formats that read some cells as no first of a month
    years: set[int] = field(default_factory=set)

    def add(self, cells: pa.Array) -> None:
        if self.formats == []:
            return
        texts = pc.utf8_trim_whitespace(cells)
        texts = texts.filter(pc.invert(pc.is_in(texts, pa.array(MISSING)))).drop_null()
        if not len(texts):
            return
        dates = without_offset(texts).to_pandas()
        if self.formats is None:
            self.example = texts[0].as_py()
            is_iso = any(cast_or_none(texts[0], pa.timestamp("ns", zone)) is not None for zone in (None, "UTC"))
            self.formats = [] if is_iso else formats_of(self.example)
            self.decisive = self.example if len(self.formats) == 1 and re.search("%m.*%Y", self.formats[0]) else ""
        for form in [*self.formats]:
            times = to_times(dates, form)
            self.years |= {*times.dt.year.unique()}
            self.not_monthly |= {form} if (times.dt.day != 1).any() else set()
            is_wrong = times.isna()
            if is_wrong.any():
                self.formats.remove(form)
                self.decisive = self.decisive or ("%m" in form and texts[int(is_wrong.argmax())].as_py()) or ""

    @property
    def is_open(self) -> bool:
        """Whether the day or the month may come first."""
        return len(formats := self.formats or []) == 2 and "%m" in formats[0]

    @property
    def monthly(self) -> list[str]:
        """The formats in which all dates are firsts of months, of several years; the other makes days of January."""
        return [form for form in self.formats or [] if form not in self.not_monthly and len(self.years) > 1]

    def form(self, day_first: str | None) -> str:
        """The only format, or the one that `--dayfirst` selects; empty if there is none."""
        formats = self.formats or []
        if self.is_open and not day_first:
            return next(iter(self.monthly), formats[0] if "." in self.example.split()[0] else "")
        return next(iter(formats[self.is_open and day_first == "no" :]), "")

    def iso(self, form: str) -> str:
        """The example."""
        return str(as_iso(pa.chunked_array([[self.example]]), form)[0])

    def reason(self, day_first: str | None) -> str:
        if self.is_open and day_first:
            return "as requested"
        if self.decisive or not self.is_open:
            return f"as {self.decisive!r} shows" if self.decisive else ""
        other = "no" if self.formats and self.form(None) == self.formats[0] else "yes"
        return f"{'as all are firsts of months; ' * bool(self.monthly)}--dayfirst {other} reads it otherwise"


def is_date(text: str) -> bool:
    return bool(re.match(r"\d{4}-\d\d-\d\d", text) or formats_of(text))


def without_offset(cells: pa.Array) -> pa.Array:
    """The cells with signs that pandas knows, and without an offset from UTC."""
    for form, replacement in ODD_SIGNS.items():
        cells = pc.replace_substring_regex(cells, form, replacement)
    return pc.replace_substring_regex(cells, OFFSET, r"\1")


def to_times(dates: pd.Series, form: str) -> pd.Series:
    """The dates of one format; NaT for others. 24:00 is the end of the day, as meters write it."""
    if "%H" not in form or not (ends := dates.str.contains(END_OF_DAY, na=False)).any():
        return pd.to_datetime(dates, format=form, errors="coerce")
    starts = pd.to_datetime(dates.str.replace(END_OF_DAY, "00:00", regex=True), format=form, errors="coerce")
    return starts + pd.to_timedelta(ends.astype(int), "D")


def formats_of(cell: str) -> list[str]:
    """The formats that read a date with a year of four digits and a day. If it is numbers and the year is not the first
    of them, the day comes first in one, and the month in the other, unless one of them is above 12.
    """
    if is_number(cell) or not re.search(r"\d{4}", cell):  # fast
        return []
    date = re.sub(END_OF_DAY, "00:00", without_offset(pa.array([cell]))[0].as_py())
    # pandas guesses only times in the morning, with large letters.
    date = re.sub(r"\b\d{1,2}(:[\d:.]+ ?)[AP]M\b", r"01\1AM", date, flags=re.IGNORECASE)
    with warnings.catch_warnings(action="ignore"):
        guesses = [guess_datetime_format(date, dayfirst=day_first) for day_first in (True, False)]
    formats = [form for form in guesses if form and "%Y" in form and "%d" in form]
    formats = [form for form in formats if not re.search("%Y.?%d|%Y%m%dT", form)]  # 20240301T101500 is often an id
    if formats and "%B" in formats[0]:  # May is the name and the short name of a month
        formats += [formats[0].replace("%B", "%b")]
    return list(dict.fromkeys(formats))


def as_iso(cells: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """The dates of a column as ISO 8601, with their offset from UTC; other cells stay."""
    texts = pc.utf8_trim_whitespace(cells)
    stamps = to_times(without_offset(texts).to_pandas(), form)
    times = pa.chunked_array([pa.array(stamps.to_numpy("datetime64[us]"), from_pandas=True)], pa.timestamp("us"))
    kind = pa.timestamp("us" if "%f" in form else "s") if "%H" in form or "%I" in form else pa.date32()
    has_offset = pc.match_substring_regex(texts, OFFSET)
    offset = pc.if_else(has_offset, pc.replace_substring_regex(texts, OFFSET, r"\2"), "")
    offset = pc.replace_substring_regex(offset, "UTC|GMT", "Z")
    return pc.coalesce(pc.binary_join_element_wise(times.cast(kind).cast(pa.string()), offset, ""), cells)


def question(path: str, column: str, example: str) -> str:
    day, month = (
        pd.to_datetime(without_offset(pa.array([example]))[0].as_py(), format=form).date()
        for form in formats_of(example)
    )
    return f"{path}: column {column!r} holds {example!r}; --dayfirst yes reads it as {day}, --dayfirst no as {month}"
