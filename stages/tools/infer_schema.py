"""What a table is taken for: from its columns, and the options given, to the workload's task and section `preprocess`, and why.

Rules of thumb, each of which an option overrides; docs/own-data.md has them as a table. Nothing here reads or writes a file.

Shapes: R rows of the table.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stages.data.sequences import NO_EVENT
from stages.data.series import TIME_FORMS, UNITS
from stages.data.tables import SPLIT_COLUMN
from stages.params.parsing import nearest

# A column whose name holds one of these words is tried first, in this order.
SEQUENCE_NAMES = "sequence seq series trial recording session clip track episode case sample id".split()
STEP_NAMES = "step frame tick t time timestamp datetime date index".split()
LABEL_NAMES = "label class category event activity gesture target type kind outcome".split()
TIME_NAMES = "time timestamp datetime date".split()
TARGET_NAMES = "close target value price y".split()
# The options that only one kind of table has.
OF_SEQUENCES = ("sequence", "step", "label")
OF_SERIES = ("time", "target", "interval", "transform", "horizon", "input_steps")
SPLIT = {"train": 0.7, "val": 0.15, "test": 0.15}

Choice = tuple[Any, str]  # which, and why
Choose = Callable[[str, Callable[[], Choice]], Any]  # what, and how to guess it if it was not asked for; returns which


@dataclass(frozen=True)
class Guess:
    table: str
    choices: dict[str, Choice]  # by what was chosen

    @property
    def task(self) -> str:
        return str(self.choices["task"][0])

    def but(self, what: str, which: Any, why: str) -> "Guess":
        """The same with another choice."""
        return Guess(self.table, {**self.choices, what: (which, why)})

    @property
    def message(self) -> list[tuple[str, str, str]]:
        """What was chosen, which, and why."""
        message = {what: (str(which), why) for what, (which, why) in self.choices.items()}
        features, why = self.choices["features"]
        besides = " besides the target" if self.task == "forecast" else ""
        message["features"] = (shortened(features) or "none", f"{len(features)}{besides}, {why}")
        return [(what, *choice) for what, choice in message.items()]

    @property
    def preprocess(self) -> dict[str, Any]:
        """The section of params.yaml."""
        which = {what: choice for what, (choice, _) in self.choices.items()}
        if self.task == "forecast":
            columns = {what: which[what] for what in ("time", "target", "features")}
            rest = {what: which[what] for what in ("interval", "transform", "missing", "input_steps", "horizon")}
            return {"source": "series", "table": self.table, "columns": columns, **rest, "stride": 1, "split": SPLIT}
        columns = {what: which[what] for what in ("sequence", "step", "features", "label")}
        # Of few features, speeds tell much; of many, they double the width. `dx` may be there already.
        velocity = len(columns["features"]) <= 8 and not {f"d{x}" for x in columns["features"]} & {*columns["features"]}
        rest = {"split": SPLIT, "seed": 0, "velocity": velocity, "missing": which["missing"]}
        return {"source": "sequences", "table": self.table, "columns": columns, **rest}


class Columns:
    """A table's columns, and what each holds: whole numbers, numbers, times, text, or anything else (nothing, lists)."""

    def __init__(self, frame: pd.DataFrame, name: str):
        self.frame, self.name = frame, name
        self.kinds = {column: kind_of(frame[column]) for column in frame.columns if column != SPLIT_COLUMN}
        self.shown = f"{name} ({shortened(list(self.kinds))})"

    def of_kind(self, *kinds: str, but: Sequence[str] = ()) -> list[str]:
        return [column for column, kind in self.kinds.items() if kind in kinds and column not in but]

    def some_numbers(self, but: Sequence[str]) -> list[str]:
        if found := self.of_kind("whole", "number", but=but):
            return found
        raise ValueError(f"{self.shown} has no numeric column besides {', '.join(but)}; numbers must stand in digits")

    def numbers(self, column: str) -> pd.Series:
        """(R,) numbers, of times the seconds since 1970; NaN where a cell holds neither."""
        cells = self.frame[column]
        if self.kinds[column] in ("whole", "number"):
            return pd.to_numeric(cells, errors="coerce")
        times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
        return times.dt.as_unit("us").astype("int64").where(times.notna()) / 1e6

    def codes(self, column: str) -> np.ndarray:
        """(R,) the same number for the same cell."""
        return pd.factorize(self.frame[column])[0]

    def num_distinct(self, column: str) -> int:
        return int(self.frame[column].nunique())

    def repeats(self, column: str) -> bool:
        return self.num_distinct(column) < max(2, 0.95 * len(self.frame))


def kind_of(cells: pd.Series) -> str:
    there = cells.dropna()
    if there.empty or not pd.api.types.is_hashable(there.iloc[0]):
        return "other"
    if pd.api.types.is_bool_dtype(there):
        return "text"
    if not pd.api.types.is_numeric_dtype(there):
        # Mostly times or numbers, and some cells `NA` or `-`: meant as such; the preparation will name the cell.
        sample = there.iloc[:: max(1, len(there) // 1000)].astype(str)
        if sample.str.match(r"\d{4}-\d\d-\d\d").mean() > 0.5:
            return "time"
        if pd.to_numeric(sample, errors="coerce").notna().mean() <= 0.5:
            return "text"
    return "whole" if (pd.to_numeric(there, errors="coerce").dropna() % 1 == 0).all() else "number"


def named(names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The columns whose name holds one of the words `names`, in the order of these."""

    def rank(column: str) -> int:
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column)}
        return next((index for index, name in enumerate(names) if name in words), len(names))

    return sorted((column for column in columns if rank(column) < len(names)), key=rank)


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names in a line, the middle of a long list left out."""
    return ", ".join([*names[: most - 1], "...", names[-1]] if len(names) > most else names)


def guess(columns: Columns, asked: Mapping[str, Any]) -> Guess:
    """Many sequences, or one series. `asked`: the options that were given, by name.

    Raises ValueError, in one sentence that names the option to give, where the table is neither.
    """
    given = [asked[what] for what in (*OF_SEQUENCES, "time", "target") if what in asked]
    usable = columns.of_kind("whole", "number", "time", "text")  # what is empty or holds lists is as good as not there
    for column in (*given, *asked.get("features", ())):
        if column not in usable:
            raise ValueError(f"{columns.name} has no column {column!r}{nearest(column, usable)}")
    of_series = [what for what in asked if what in OF_SERIES or (what, asked[what]) == ("task", "forecast")]
    of_sequences = [what for what in asked if what in (*OF_SEQUENCES, "task") and what not in of_series]
    if of_sequences and of_series:
        raise ValueError(
            f"{', '.join(f'--{what}' for what in (*of_sequences, *of_series)).replace('_', '-')} do not go together: --sequence, --step "
            "and --label are for many sequences (classify, detect), --time and --target for one series (forecast)"
        )
    times = find_times(columns)
    is_series = times and not columns.repeats(times[0]) and not named(SEQUENCE_NAMES, find_ids(columns))
    choices: dict[str, Choice] = {}

    def choose(what: str, guessed: Callable[[], Choice]) -> Any:
        choices[what] = (asked[what], "asked for") if what in asked else guessed()
        return choices[what][0]

    (guess_series if of_series or (is_series and not of_sequences) else guess_sequences)(columns, choose)
    return Guess(columns.name, {"task": choices["task"], **choices})


def find_features(columns: Columns, found: list[str], taken: Sequence[str]) -> Choice:
    others = [f"{column} ({kind})" for column, kind in columns.kinds.items() if column not in (*found, *taken)]
    return found, "all other numeric columns" + (f"; left out: {shortened(others)}" if others else "")


# Many sequences.


def guess_sequences(columns: Columns, choose: Choose) -> None:
    sequence = choose("sequence", lambda: find_sequence(columns))
    step = choose("step", lambda: next(find_steps(columns, sequence), (None, "")))
    if step is None:
        raise ValueError(
            f"{columns.shown} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, or add one that "
            f"counts them: table['step'] = table.groupby({sequence!r}).cumcount(); if several columns tell sequences apart, join them"
        )
    label = choose("label", lambda: find_label(columns, sequence, step))
    if columns.frame[label].nunique(dropna=False) < 2:
        raise ValueError(f"{columns.name}: {label!r} holds one value only; a label needs two; --label names another")
    choose("task", lambda: find_task(columns, sequence, label))
    taken = (sequence, step, label)
    features = choose("features", lambda: find_features(columns, columns.some_numbers(but=taken), taken))
    num_empty = sum(int(columns.numbers(column).isna().sum()) for column in features)
    gaps = f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty"
    choose("missing", lambda: ("interpolate", gaps) if num_empty else ("refuse", "no cell is empty"))


def find_sequence(columns: Columns) -> Choice:
    ids = find_ids(columns)
    if not ids:
        raise ValueError(
            f"{columns.shown} has no column that tells sequences apart, nor one of times that differ; name them: --sequence and --step "
            "for many sequences, --time for one series"
        )
    column = next((column for column in ids if any(find_steps(columns, column))), ids[0])
    num, is_named = columns.num_distinct(column), named(SEQUENCE_NAMES, [column])
    rows_each = f"{num:,} values, {len(columns.frame) / num:.1f} rows each on average"
    return column, f"named so; {rows_each}" if is_named else rows_each


def find_ids(columns: Columns) -> list[str]:
    """Columns that repeat: those with a telling name first, then those whose equal cells stand together, then texts; more ids first."""
    candidates = columns.of_kind("text", "whole", "time")
    names, ranked = named(SEQUENCE_NAMES, candidates), []
    for column in candidates:
        codes, is_named = columns.codes(column), column in names
        num = int(codes.max()) + 1
        is_together = int((codes[1:] != codes[:-1]).sum()) + 1 == num
        if 2 <= num <= len(codes) / 2 and (is_named or is_together or columns.kinds[column] == "text"):
            # Of two with a name (trial, sample), the ids stand together, and the steps come round again and again.
            ranked.append((not is_named, not is_together, names.index(column) if is_named else -num, column))
    return [column for *_, column in sorted(ranked)]


def find_steps(columns: Columns, sequence: str) -> Iterator[Choice]:
    """Columns that rise in every sequence, or have a telling name and never repeat within one; the likeliest first."""
    codes = columns.codes(sequence)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    places = [*columns.of_kind("whole", "time", but=[sequence]), *columns.of_kind("number", but=[sequence])]
    names = named(STEP_NAMES, places)
    for column in dict.fromkeys((*names, *places)):
        values = columns.numbers(column).to_numpy()
        if (np.diff(values[order])[same] > 0).all() and not np.isnan(values).any():
            yield column, "it rises from row to row in every sequence"
        elif column in names and not columns.frame.duplicated([sequence, column]).any():
            yield column, "named so, and never twice the same in a sequence"


def find_label(columns: Columns, sequence: str, step: str) -> Choice:
    """By name; else text, or else few whole numbers, the same throughout a sequence; else text."""
    texts, whole = (columns.of_kind(kind, but=(sequence, step)) for kind in ("text", "whole"))
    if names := named(LABEL_NAMES, (*texts, *whole)):
        return names[0], "named so"
    groups = columns.frame.groupby(columns.codes(sequence))

    def is_steady(column: str) -> bool:
        is_few = 2 <= columns.num_distinct(column) <= groups.ngroups / 3
        return is_few and bool((groups[column].nunique() <= 1).all())

    found = [*filter(is_steady, texts)] or texts or [*filter(is_steady, whole)]
    if found:
        last = f"the last of {len(found)} columns that could be one (--label chooses)"
        return found[-1], last if found[1:] else "the only column that could be one"
    raise ValueError(
        f"{columns.shown} has sequences ({sequence!r}) and no column that could be their label, text or few whole numbers; name it with "
        f"--label, or for a forecast keep the rows of a single {sequence!r} and give --time"
    )


def find_task(columns: Columns, sequence: str, label: str) -> Choice:
    """classify where the label is the same throughout a sequence, detect where it is `none` in some rows or empty in most."""
    events = columns.frame[label].astype("string").fillna("").str.strip()
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if not changes.any():
        return "classify", f"{label!r} is the same throughout every sequence"
    most = events.mode()[0]
    if most == "" or (events == NO_EVENT).any():
        share = 1 - events.isin(("", NO_EVENT)).mean()
        return "detect", f"{label!r} names an event in {share:.1%} of the rows, the others are empty or {NO_EVENT!r}"
    if events[~changes].nunique() > 1:  # in the others it is a slip, whose row the preparation will name
        return "classify", f"{label!r} is the same throughout most sequences"
    background = columns.frame[label][events == most].iloc[:1].tolist()[0]
    raise ValueError(
        f"{columns.name}: {label!r} changes within a sequence, so it must be empty or {NO_EVENT!r} where nothing happens, and is "
        f"{most!r} in {(events == most).mean():.1%} of the rows; name another column with --label, or save the table again after "
        f"table[{label!r}] = table[{label!r}].replace({background!r}, {NO_EVENT!r})"
    )


# One series.


def guess_series(columns: Columns, choose: Choose) -> None:
    times, num_rows = find_times(columns), len(columns.frame)
    time = choose("time", lambda: (times[0] if times else None, "its times differ from row to row"))
    if time is None or columns.repeats(time) or columns.kinds[time] not in ("time", "whole"):
        found = f" ({time!r}: {columns.num_distinct(time):,} different in {num_rows:,} rows)" if time else ""
        raise ValueError(
            f"{columns.shown} has no column of times that differ from row to row{found}; name one with --time: {TIME_FORMS}; of several "
            "series in one table keep the rows of one"
        )
    choose("task", lambda: ("forecast", f"{time!r} makes it one series"))
    target = choose("target", lambda: find_target(columns, columns.some_numbers(but=[time])))
    taken = (time, target)
    numeric = columns.of_kind("whole", "number", but=taken)
    features = choose("features", lambda: find_features(columns, numeric, taken))
    choose("interval", lambda: find_interval(columns, time))
    if all((columns.numbers(column).dropna() > 0).all() for column in (target, *features)):
        choose("transform", lambda: ("log-return", "the columns are all above 0"))
    else:
        choose("transform", lambda: ("difference", "the columns are not all above 0"))
    input_steps = choose("input_steps", lambda: (max(8, min(48, num_rows // 50)), "a fiftieth of the rows, 8 to 48"))
    choose("horizon", lambda: (max(1, input_steps // 12), "a twelfth of the input steps"))
    choose("missing", lambda: ("skip", ""))  # how much is missing, the preparation finds out


def find_times(columns: Columns) -> list[str]:
    """Dates, then whole numbers with a telling name (seconds since 1970); those that repeat come last."""
    return sorted([*columns.of_kind("time"), *named(TIME_NAMES, columns.of_kind("whole"))], key=columns.repeats)


def find_target(columns: Columns, numeric: list[str]) -> Choice:
    if names := named(TARGET_NAMES, numeric):
        return max(names, key=numeric.index), "named so (--target chooses)"
    first = f"the first of {len(numeric)} numeric columns (--target chooses)"
    return numeric[0], first if numeric[1:] else "the only numeric column"


def find_interval(columns: Columns, time: str) -> Choice:
    """The most frequent difference of two times that follow each other."""
    apart, often = np.unique(np.diff(np.unique(columns.numbers(time).dropna())).round(6), return_counts=True)
    most = float(apart[often.argmax()])
    fitting = often[apart % most == 0].sum() / often.sum()
    if most % 1 or fitting < 0.9:
        raise ValueError(
            f"{columns.name}: the times in {time!r} are most often {most:g} s apart, and {fitting:.0%} of all differences are multiples "
            "of that; choose the --interval to put them on, from 1s, e.g. 15min, 1h, 7d"
        )
    unit = next(unit for unit in reversed(UNITS) if most % UNITS[unit] == 0)
    return f"{most / UNITS[unit]:.0f}{unit}", f"{often.max() / often.sum():.1%} of the times are so far apart"
