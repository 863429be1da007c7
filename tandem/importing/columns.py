"""The columns of a workload's table: the kind of each column, and matches by name. Reads no file.

Shapes: R rows of the table.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.rows import repeated_step
from tandem.data.tables import SPLIT_WORDS, split_column
from tandem.data.times import MONTH_NAMES, PERIOD_FORMS, first_day
from tandem.importing import number_signs
from tandem.importing.date_signs import formats_of
from tandem.params.schema import NO_GROUPS

Choice = tuple[Any, str]  # (value, reason)
Choose = Callable[[str, Callable[[], Choice]], Any]  # (key, function that infers it if no option is given) -> value
Choices = dict[str, Choice]  # by key: the task, and the columns, gaps and steps of `preprocess`

DAY_SECONDS = 86400
FAR_FEWER = 4  # times fewer stretches of equal labels than by chance
CODE = r"\d{3,}[A-Z]{1,2}"  # such as 85123A, beside others without a letter
MOST_KEPT = 20  # arrays of a number for each row
FEW = 1000  # rows that are looked at before all are
MANY_COUNTS = 20  # the highest of whole numbers that are rather counts than codes
MOST_CLASSES = 20  # of whole numbers that stand for the classes of a label
MOST_REPEATS = 0.5  # the share of rows up to which a repeated step is a mistake, such as an id that occurs twice


# Text that means a time but is not read -> the pandas code that reads it, and a condition.
MONTH = f"(?i:{'|'.join(MONTH_NAMES)})"
DAY_FIRST = r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}(?!\.?\d).*"  # 10.6.69.67 is an IP address
ELAPSED = r"(-?\d+ days? )?\d+:[0-5]\d:[0-5]\d(\.\d+)?"  # the hours may be above 24
ODD_TIMES = {
    rf"{DAY_FIRST} - {DAY_FIRST}": ("to_datetime({}.str.split(' - ').str[0], dayfirst=True)", ""),
    DAY_FIRST: ("to_datetime({}, dayfirst=True)", ", without dayfirst if the month comes first"),
    rf"\d{{4}}[./]\d{{1,2}}[./]\d{{1,2}}.*|\d{{1,2}}[ /-]{MONTH}[ /-]\d{{2,4}}\b.*": ("to_datetime({})", ""),
    rf"{MONTH}-\d\d": ("to_datetime({}, format='%b-%y')", ""),
    ELAPSED: ("to_timedelta({}).dt.total_seconds().convert_dtypes()", ""),
}
TIME_OF_DAY = r"([01]?\d|2[0-3])([.:][0-5]\d([.:][0-5]\d([.]\d+)?)?|:[0-5]?\d:[0-5]?\d([.:]\d+)?)( ?[aApP][mM]?)?"
ODD_TIME, ODD_DATE = "|".join((TIME_OF_DAY, *ODD_TIMES)), "|".join(ODD_TIMES.keys() - {ELAPSED})
# Numbers that mean times are from ... to -> what they count, and how pandas reads them.
CLOCKS = {
    (3e4, 6e4): ("days since 1900, as in Excel", "unit='D', origin='1899-12-30').dt.round('s'"),
    (1e8, 1e10): ("seconds since 1970", "unit='s'"),
    (1e11, 1e13): ("milliseconds since 1970", "unit='ms'"),
    (1e14, 1e16): ("microseconds since 1970", "unit='us'"),
    (1e17, 1e19): ("nanoseconds since 1970", "unit='ns'"),
}
FEWEST_MARKERS = 3  # cells with a number far from all others before it is taken for a mark of missing ones


class NotFound(ValueError):
    """No column identifies the sequences, or none orders their rows."""


class TableColumns:
    """A table's columns with the kind of each: whole (whole numbers), number, flag (false and true), time, text, odd
    (text that means times or numbers, see ODD_TIMES), or other (empty, lists).

    `unread_kinds`: of the columns that are not in the frame. `places`: the places of two rows in the file.
    `is_converted`: the table was made of files or arrays.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        name: str,
        unread_kinds: Mapping[str, str] | None = None,
        places: Callable[[int, int], str] = lambda first, second: f"rows {first + 1} and {second + 1}",
        is_converted: bool = False,
    ):
        self.frame, self.name, self.places, self.is_converted = frame, name, places, is_converted
        self.counts: dict[str, int] = {}  # of distinct cells, by column
        self.kept: dict[tuple[str | None, ...], np.ndarray] = {}  # the latest codes and orders: each takes a second
        split = split_column(frame.columns)
        self.splits = None if split is None else frame[split]
        self.kinds = {column: kind_of(frame[column]) for column in frame.columns if column != split}
        if split is None:
            likely = [column for column in self.of_kind("text") if are_splits(frame[column])]
            self.kinds |= dict.fromkeys(likely, "train and test by its words; call it `split` and it decides the split")
        self.kinds |= unread_kinds or {}
        self.shown = f"{name} ({shortened(list(self.kinds))})"

    def without_constants(self) -> "TableColumns":
        """The same, without the columns that have the same value in every row."""
        varying = copy(self)
        constant = {name for name in self.kinds if name in self.frame and self.frame[name].notna().all()}
        constant = {name for name in constant if self.never_changes(name)}
        varying.kinds = {name: kind for name, kind in self.kinds.items() if name not in constant}
        return varying

    @property
    def has_split(self) -> bool:
        return self.splits is not None

    def as_one_recording(self) -> "TableColumns":
        """The same, with a column NO_GROUPS of a single value, which stands for the only recording."""
        recording = copy(self)
        recording.counts, recording.kept = {}, {}  # the table may have another column of this name
        recording.frame = self.frame.assign(**{NO_GROUPS: 0})
        return recording

    def of_kind(self, *kinds: str, exclude: Sequence[str] = ()) -> list[str]:
        return [column for column, kind in self.kinds.items() if kind in kinds and column not in exclude]

    def numeric(self, exclude: Sequence[str]) -> list[str]:
        """The numeric columns. Raises ValueError if there is none."""
        if columns := self.of_kind("whole", "number", "flag", exclude=exclude):
            return columns
        excluded = ", ".join(exclude)
        raise ValueError(f"{self.shown} has no numeric column besides {excluded}; numbers must stand in digits")

    def numbers(self, column: str) -> pd.Series:
        """(R,) numbers; times become seconds since 1970, and cells that are neither become NaN."""
        cells = self.frame[column]
        if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iufb":
            return cells.astype(np.int8) if cells.dtype.kind == "b" else cells
        if self.kinds[column] in ("whole", "number"):
            return pd.to_numeric(cells, errors="coerce")
        times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
        return times.dt.as_unit("us").astype("int64").where(times.notna()) / 1e6

    def likely_markers(self, names: Sequence[str]) -> list[str]:
        """A sentence about each number that may mean missing, with the columns that hold it."""
        held: dict[str, list[str]] = {}
        for name in names:
            marker, num = self.likely_marker(name)
            if num:
                held.setdefault(marker, []).append(f"{name!r} ({num:,} cells)")
        return [
            f"{marker} in {shortened(places)} may mean missing: --na={marker} then says so"
            for marker, places in held.items()
        ]

    def likely_marker(self, column: str) -> tuple[str, int]:
        """A number that repeats far from all others, of nines or whole and negative, such as 999.9 or -200, or -1 among
        counts; and the number of its cells. Empty and 0 if there is none.
        """
        numbers = self.numbers(column).dropna().to_numpy(np.float64)
        for end in (numbers.min(), numbers.max()) if len(numbers) else ():
            marker, others = f"{end:.10g}", numbers[numbers != end]
            num_markers = len(numbers) - len(others)
            if not re.fullmatch(r"-?99+(\.9+)?|-\d{3,}|-1", marker) or num_markers < FEWEST_MARKERS or len(others) == 0:
                continue
            low, high = others.min(), others.max()
            if marker == "-1":
                is_likely = low >= 0 and (others % 1 == 0).all() and high >= MANY_COUNTS
            else:  # the only negative number, or far from the others
                is_likely = end < 0 <= low or low < high and min(abs(low - end), abs(high - end)) > high - low
            if is_likely:
                return marker, num_markers
        return "", 0

    def codes(self, column: str) -> np.ndarray:
        """(R,) integers from 0, by first row, that are equal if the cells are equal; two empty cells are."""
        return self.keep((column,), lambda: pd.factorize(self.frame[column], use_na_sentinel=False)[0])

    def order(self, sequence: str, step: str | None = None) -> np.ndarray:
        """(R,) the rows that put each sequence's together, in the order of the steps or of the file."""
        steps = [] if step is None else [self.numbers(step).to_numpy()]
        return self.keep((sequence, step), lambda: np.lexsort([*steps, self.codes(sequence)]))

    def firsts(self, column: str) -> np.ndarray:
        """(R,) for each row, the first row with an equal cell."""
        codes = self.codes(column)
        return np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))[codes]

    def changes(self, column: str, first_rows: np.ndarray) -> np.ndarray:
        """(R,) whether a row's cell differs from that of another one; two empty cells are equal. `first_rows` (R,): the
        other row, such as the first of its sequence.
        """
        cells = self.frame[column].to_numpy()
        return np.asarray((cells != cells[first_rows]) & ~(pd.isna(cells) & pd.isna(cells[first_rows])))

    def advice(self, column: str) -> str:
        """How to write the dates or numbers of an odd column, with one of its cells."""
        cells, place = self.frame[column].dropna().astype(str), f"table[{column!r}]"
        odd = {name: self.frame[name].dropna().astype(str) for name in self.of_kind("odd")}
        of_day = [name for name, texts in odd.items() if texts[texts != ""].str.fullmatch(TIME_OF_DAY).all()]
        dates = [name for name in self.of_kind("time", "odd") if name not in of_day]
        dates = [name for name in dates if name not in odd or odd[name].str.fullmatch(ODD_DATE).mean() > 0.9]
        if of_day and (column in of_day or column in dates):
            shown = f"{'dates beside ' * (column in dates)}times of day like {self.frame[of_day[0]].dropna().iloc[0]!r}"
            num_colons = odd[of_day[0]].str.count(":").max()
            with_colons = "" if num_colons else ".str.replace('.', ':')"  # 09.30 is half past nine
            with_colons += r".str.replace(r'(:\d+:\d+):', r'\1.', regex=True)" * bool(num_colons > 2)  # of a fraction
            time = f"table[{of_day[0]!r}]{with_colons}"
            if dates:
                joined = f"table[{dates[0]!r}].astype(str) + ' ' + {time}"
                is_first = day_comes_first(odd[dates[0]]) if dates[0] in odd else False
                code = f"table['time'] = pandas.to_datetime({joined}{', dayfirst=True' if is_first else ''})"
                hint = ", with dayfirst=True if 01/02/2024 is the first of February" if is_first is None else ""
                return f"{shown}; join them with the dates: {code}{hint}"
            return (
                f"{shown} without a date; write the first row's for 2024-01-01, and a day more after each midnight: "
                f"table['time'] = pandas.to_datetime('2024-01-01 ' + {time}); table['time'] += "
                "pandas.to_timedelta((table['time'].diff() < '0s').cumsum(), 'D')"
            )
        for form, (code, condition) in ODD_TIMES.items():
            is_time = cells.str.fullmatch(form)
            if is_time.mean() > 0.9 and not (form == ELAPSED and dates):
                if not is_time.all():
                    others, is_named = cells[~is_time], form != DAY_FIRST  # the month, or the year comes first
                    found = f"dates like {cells[is_time].iloc[0]!r}, and {others.iloc[0]!r} in {len(others):,} row"
                    found += "s" * (len(others) > 1)
                    if is_named and pd.to_datetime(others, format="mixed", errors="coerce").notna().all():
                        return f"{found}; write them alike: {place} = pandas.to_datetime({place}, format='mixed')"
                    return f"{found}, which is none; correct such cells, or leave the rows out"
                if form == DAY_FIRST and (is_first := day_comes_first(cells)) is not None:
                    condition, code = "", code if is_first else code.replace(", dayfirst=True", "")
                is_asked = form == DAY_FIRST and any(formats_of(cells.iloc[0]))
                hint = "of a text table, --dayfirst yes or --dayfirst no says what comes first; else " * is_asked
                hint = hint or "this form, as with a year of two digits, is not read; " * (form == DAY_FIRST)
                kind, form = ("dates", "2024-03-01") if "datetime" in code else ("times", "seconds")
                convert = f"{place} = pandas.{code.format(place)}{condition}"
                return f"{kind} like {cells.iloc[0]!r}; {hint}write them as {form}: {convert}"
        units = cells.str.extract(f"^{number_signs.WITH_UNIT}$")[1].dropna()
        if len(units) and not cells.str.fullmatch(number_signs.MARKED).all():
            code = f"{place} = {place}.str.removesuffix({units.iloc[0]!r})"
            return f"numbers with a unit like {cells.iloc[0]!r}; write them without it: {code}"
        return f"numbers like {cells.iloc[0]!r}, which are read from text: table.to_csv('new.csv', index=False)"

    def advice_on_clock(self, column: str) -> str:
        """How to write numbers that mean times; empty if they do not, or are whole seconds, which are read. Whole
        numbers are days only by the name: they may be seconds.
        """
        numbers, kind = self.numbers(column).dropna(), self.kinds[column]
        for (low, high), (meaning, unit) in CLOCKS.items():
            is_read = kind == "whole" and high <= 1e10 and not (high < 1e8 and named_like(["date"], [column]))
            if kind != "time" and not is_read and len(numbers) and low <= numbers.min() <= numbers.max() < high:
                code = f"table[{column!r}] = pandas.to_datetime(pandas.to_numeric(table[{column!r}]), {unit})"
                return f"{column!r} holds numbers like {numbers.iloc[0]:.15g}, {meaning}; write them as times: {code}"
        return ""

    def num_distinct(self, column: str) -> int:
        if column not in self.counts:
            self.counts[column] = int(self.frame[column].nunique())
        return self.counts[column]

    def keep(self, key: tuple[str | None, ...], compute: Callable[[], np.ndarray]) -> np.ndarray:
        if key not in self.kept:
            if len(self.kept) == MOST_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = compute()
        return self.kept[key]

    def never_changes(self, column: str) -> bool:
        """Whether all cells that are not empty are equal. Faster than to count them."""
        cells = self.frame[column].dropna()
        return not len(cells) or bool((cells == cells.iloc[0]).all())

    def repeats(self, column: str) -> bool:
        return self.num_distinct(column) < max(2, 0.95 * len(self.frame))

    def is_together(self, column: str, order: np.ndarray | None = None) -> bool:
        """Whether equal cells are in adjacent rows, in the order of the file or in `order` (R,)."""
        codes = self.codes(column) if order is None else self.codes(column)[order]
        return int((codes[1:] != codes[:-1]).sum()) + 1 == self.num_distinct(column)


def day_comes_first(dates: pd.Series) -> bool | None:
    """Whether the day comes before the month, as in 13.01.24; None if no number is above 12."""
    first, second = dates.str.extract(r"(\d+)\D+(\d+)").astype(float).max()
    return None if max(first, second) <= 12 else bool(12 < first <= 31)


def kind_of(cells: pd.Series) -> str:
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iuf":  # fast: a table may have thousands
        numbers = cells.to_numpy()
        numbers = numbers if cells.dtype.kind in "iu" else numbers[~np.isinf(numbers)]
        if cells.dtype.kind in "iu" and len(numbers):
            return "whole"
        if (numbers[:FEW] % 1 > 0).any():
            return "number"
        numbers = numbers[~np.isnan(numbers)]
        return "other" if not len(numbers) else "whole" if (numbers % 1 == 0).all() else "number"
    cells = cells.dropna()
    if cells.empty or not pd.api.types.is_hashable(cells.iloc[0]):
        return "other"
    if pd.api.types.is_bool_dtype(cells):
        return "flag"
    if not pd.api.types.is_numeric_dtype(cells):
        if (cells := cells[cells != ""]).empty:
            return "other"
        # A column of mostly times or numbers counts as such; preprocess names the other cells.
        counts = Counter(cells.iloc[:: max(1, len(cells) // 1000)].astype(str))
        if share(counts, re.compile(r"\d{4}-\d\d-\d\d").match) > 0.5:
            return "time"
        if share(counts, lambda cell: first_day(cell.strip(), PERIOD_FORMS) is not None) > 0.5:
            return "time"  # months, quarters, weeks
        numbers = pd.to_numeric(np.array([*counts], dtype=object), errors="coerce")
        words = [cell for cell, number in zip(counts, numbers, strict=True) if np.isnan(number)]
        if 2 * len([word for word in words if re.fullmatch(CODE, word)]) > len(words) > 1:
            return "text"
        if (~np.isnan(numbers)) @ [*counts.values()] <= 0.5 * counts.total():
            return "odd" if is_odd(counts, str(cells.name)) else "text"
    return "whole" if (pd.to_numeric(cells, errors="coerce").dropna() % 1 == 0).all() else "number"


def are_splits(cells: pd.Series) -> bool:
    words = {str(cell).strip().lower() for cell in cells.dropna().unique()[: len(SPLIT_WORDS) + 1]}
    return {"train", "test"} <= {SPLIT_WORDS.get(word, "") for word in words} <= {*SPLIT_WORDS.values()}


def share(counts: Counter[str], test: Callable[[str], object]) -> float:
    """Of cells, by the number of each, those that pass a test."""
    return sum(number for cell, number in counts.items() if test(cell)) / counts.total()


def is_odd(counts: Counter[str], name: str) -> bool:
    """Whether text holds unusual dates or numbers, or numbers with one unit, which `name` has if they are only two."""
    if any(share(counts, re.compile(form).fullmatch) > 0.9 for form in (ODD_TIME, number_signs.NUMBER)):
        return True
    with_unit = {cell: match[2] for cell in counts if (match := re.fullmatch(number_signs.WITH_UNIT, cell))}
    [unit, *others] = {*with_unit.values()} or [""]
    return not others and (len(counts) > 2 or f"[{unit.strip()}]" in name) and share(counts, with_unit.get) > 0.9


def words_of(column: str) -> set[str]:
    """`sensor` and `id` of sensorId."""
    return set(map(str.lower, re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column)))


def named_like(names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The columns whose name contains one of the words `names`, in the order of these words. The word t counts only at
    the beginning and not before a capital: `t_ms` is a time, `H.t` and `tAir` are not.
    """
    words = {column: words_of(column) for column in columns}
    for column, column_words in words.items():
        if not re.match("[^A-Za-z]*[tT](?![A-Z])", column):
            column_words.discard("t")
    return list(dict.fromkeys(column for name in names for column in words if name in words[column]))


def is_id(column: str) -> bool:
    """Whether its name ends in id, as activity_id and eventID do, which may be a label or count."""
    return bool(re.search(r"(?<![a-z])id$|(?<=[a-z])(Id|ID)$", column))


def may_be_codes(cells: pa.ChunkedArray) -> bool:
    """Whether the numbers of a text table may have been codes such as 01, or had more digits than a number holds."""
    if pa.types.is_floating(cells.type):
        return bool(pc.any(pc.greater(pc.abs(cells), 2.0**53)).as_py())
    return bool(pa.types.is_integer(cells.type))


def are_codes(cells: pa.ChunkedArray) -> bool:
    """Whether numbers would change text, because a cell is like 01 or has more than 18 digits."""
    texts = pc.unique(cells).cast(pa.string())
    return bool(pc.any(pc.match_substring_regex(texts, r"^\s*(0\d+|\d{19,})\s*$")).as_py())


def shortened(names: Sequence[str], max_names: int = 8) -> str:
    """Names in one line; a long list is shortened in the middle."""
    return ", ".join([*names[: max_names - 1], "...", names[-1]] if len(names) > max_names else names)


def find_features(
    columns: TableColumns,
    candidates: list[str],
    taken: Sequence[str],
    why_not: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Choice:
    """The `candidates` whose values change. `why_not`: further columns to exclude, with the reason. `hints`: what to
    say of columns without numbers instead of their kind.
    """
    dropped = {column: "never changes" for column in candidates if columns.never_changes(column)} | dict(why_not or {})
    features, covered = [column for column in candidates if column not in dropped], {*candidates, *taken}
    odd = columns.of_kind("odd", exclude=[*covered])
    ways = [columns.advice(column) for column in odd]
    if "time" in {columns.kinds.get(column) for column in taken}:
        ways = [way.partition("; join them with the dates")[0] for way in ways]  # they are joined
    excluded = [f"{column} ({way})" for column, way in zip(odd, ways, strict=True)]
    others = [name for name in columns.of_kind("other") if name in columns.frame]
    empty = [name for name in others if columns.frame[name].isin(("", None, np.nan)).all()]
    kinds = columns.kinds | dict.fromkeys(empty, "empty") | dict(hints or {})
    excluded += [f"{column} ({kind})" for column, kind in kinds.items() if column not in {*covered, *odd}]
    excluded += [f"{column} ({dropped[column]})" for column in candidates if column in dropped]
    advice = "; --features includes them" if dropped else ""
    return features, "all other numeric columns" + (f"; excluded: {shortened(excluded)}{advice}" if excluded else "")


def in_stretches(cells: pd.Series) -> tuple[bool, bool]:
    """Whether each value is in one stretch of rows, and whether there are far fewer stretches than by chance."""
    codes = pd.factorize(cells, use_na_sentinel=False)[0]
    num_stretches, counts = 1 + np.count_nonzero(np.diff(codes)), np.bincount(codes)
    by_chance = 1 + len(codes) - (counts**2).sum() / len(codes)
    return bool(num_stretches == len(counts)), bool(num_stretches <= by_chance / FAR_FEWER)


def repeats_of(columns: TableColumns, sequence: str, step: str, largest_share: float = 1.0) -> str:
    """A sentence about the first step that repeats in its sequence; empty if no step or a larger share repeats."""
    keys = columns.frame[[sequence, step]]
    repeats = (keys.duplicated() & keys.notna().all(axis=1)).to_numpy()
    if not 0 < (num_repeats := int(repeats.sum())) <= largest_share * len(repeats):
        return ""
    row = int(repeats.argmax())
    first_row = int((keys == keys.iloc[row]).all(axis=1).to_numpy().argmax())
    place = columns.places(first_row, row)
    sentence = repeated_step(step, f"{sequence} {keys[sequence].iloc[row]}", place, num_repeats)
    return f"{columns.name}: {sentence}{advice_on_repeats(columns, sequence, step)}"


def advice_on_repeats(columns: TableColumns, sequence: str, step: str) -> str:
    """How to number the rows if several may have one time, as events of one day do; empty for steps of numbers, which
    repeat if two sequences have one id.
    """
    is_clock = columns.kinds[step] == "whole" and columns.numbers(step).min() > 1e8  # seconds since 1970
    if not (columns.kinds[step] == "time" or is_clock) or sequence == NO_GROUPS:
        return ""
    key = "pandas.to_numeric" if is_clock else "pandas.to_datetime"
    sort = f"table.sort_values({step!r}, kind='stable', key={key})"
    return (
        f"; or if several rows may have one {step!r}, number them in its order: table = {sort}; "
        f"table['row'] = table.groupby({sequence!r}).cumcount(); then give --step row"
    ) + ("" if is_clock else advice_on_events(columns, step))


def advice_on_events(columns: TableColumns, time: str) -> str:
    """How to forecast the number of events, such as trips or earthquakes, or a sum of them, such as sales; `time` has
    their times, in text.
    """
    numbers = [name for name in columns.of_kind("whole", "number") if not is_id(name)]
    first = pd.to_datetime(columns.frame[time].iloc[:FEW].astype(str), format="ISO8601", errors="coerce", utc=True)
    per, unit = ("day", "D") if (first.dropna() == first.dropna().dt.normalize()).all() else ("hour", "1h")
    times = f"pandas.to_datetime(table[{time!r}])"
    code = f"table = table.set_index({times}).resample('{unit}').size().rename('count').reset_index()"
    advice = f"; or if each row is an event, count them, e.g. by the {per}: {code}"
    for name in numbers[-1:]:
        cells = f"{{{time!r}: {times}, {name!r}: pandas.to_numeric(table[{name!r}])}}"
        advice += f", or add up a number of each: table = table.assign(**{cells})"
        advice += f".resample('{unit}', on={time!r})[{name!r}].sum().reset_index()"
    return advice
