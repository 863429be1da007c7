"""Dates in text that are not ISO 8601, such as 09/06/2024, Jun 9, 2024 or 9.6.2024 14:30.

The cells of a column decide whether the day or the month comes first: of 13/06/2024 it is the day. If none decides, the
column stays text, unless its dates have points (day first) or the user says it (`--dayfirst`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.tables import MISSING

# Regular expressions, and how to read the dates and the times of day that match.
DATES = {
    **{rf"\d{{1,2}}[{sign}]\d{{1,2}}[{sign}]\d{{4}}": (f"%d{sign}%m{sign}%Y", f"%m{sign}%d{sign}%Y") for sign in "/.-"},
    **{rf"\d{{4}}[{sign}]\d{{1,2}}[{sign}]\d{{1,2}}": (f"%Y{sign}%m{sign}%d",) for sign in "/."},
    **{rf"\d{{1,2}}{sign}[A-Za-z]{{3}}{sign}\d{{4}}": (f"%d{sign}%b{sign}%Y",) for sign in " -"},
    r"[A-Za-z]{3} \d{1,2}, \d{4}": ("%b %d, %Y",),
    r"[A-Za-z]{3,9} \d{1,2}, \d{4}": ("%B %d, %Y",),
}
TIMES = {
    "": "",
    r" \d{1,2}:\d\d": " %H:%M",
    r" \d{1,2}:\d\d:\d\d": " %H:%M:%S",
    r" \d{1,2}:\d\d:\d\d\.\d{1,6}": " %H:%M:%S.%f",
    r" \d{1,2}:\d\d [AaPp][Mm]": " %I:%M %p",
    r" \d{1,2}:\d\d:\d\d [AaPp][Mm]": " %I:%M:%S %p",
}


@dataclass
class DateCells:
    """What the cells of a column show, added block by block."""

    formats: list[str] | None = None  # of which each reads all cells; None before the first cell
    example: str = ""
    telling: str = ""  # a cell that rules out that the day, or the month, comes first

    def add(self, cells: pa.Array) -> None:
        if self.formats == []:
            return
        texts = dates_of(cells)
        if not len(texts):
            return
        if self.formats is None:
            self.example = texts.iloc[0]
            self.formats = [*formats_of(self.example)]
        for form in [*self.formats]:
            is_read = pd.to_datetime(texts, format=form, errors="coerce").notna()
            if not is_read.all():
                self.formats.remove(form)
                self.telling = self.telling or ("%m" in form and texts[~is_read].iloc[0]) or ""

    @property
    def is_open(self) -> bool:
        """Whether the day or the month may come first."""
        return len(found := self.formats or []) == 2 and "%m" in found[0]

    def form(self, day_first: str | None) -> str:
        """The only format, or the one that `--dayfirst` selects; empty if there is none."""
        found = self.formats or []
        if self.is_open and (day_first or "." in self.example.split()[0]):
            found = found[1:] if day_first == "no" else found[:1]
        return found[0] if len(found) == 1 else ""

    def iso(self, form: str) -> str:
        """The example."""
        return str(as_iso(pa.chunked_array([[self.example]]), form)[0])

    def reason(self, day_first: str | None) -> str:
        if self.is_open and day_first:
            return "as requested"
        return f"as {self.telling!r} shows" if self.telling else "--dayfirst no reads it otherwise" * self.is_open


def dates_of(cells: pa.Array) -> pd.Series:
    """The cells that are not empty."""
    texts = pc.utf8_trim_whitespace(cells)
    return texts.filter(pc.invert(pc.is_in(texts, pa.array(MISSING)))).drop_null().to_pandas()


def formats_of(cell: str) -> Iterator[str]:
    for date, formats in DATES.items():
        for time, of_time in TIMES.items():
            if re.fullmatch(date + time, cell):
                yield from (form + of_time for form in formats)


def as_iso(cells: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """The dates of a column as ISO 8601; other cells stay."""
    texts = pc.utf8_trim_whitespace(cells)
    stamps = pd.to_datetime(texts.to_pandas(), format=form, errors="coerce")
    times = pa.chunked_array([pa.array(stamps.to_numpy("datetime64[us]"), from_pandas=True)], pa.timestamp("us"))
    kind = pa.timestamp("us" if "%f" in form else "s") if "%H" in form or "%I" in form else pa.date32()
    return pc.coalesce(times.cast(kind).cast(pa.string()), cells)


def question(path: str, column: str, example: str) -> str:
    day, month = (pd.to_datetime(example, format=form).date() for form in [*formats_of(example)][:2])
    return f"{path}: column {column!r} holds {example!r}; --dayfirst yes reads it as {day}, --dayfirst no as {month}"
