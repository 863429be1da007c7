"""A table's columns and the options given -> the workload's task and section `preprocess`, each choice with its reason.

The rules are rules of thumb (a table in docs/own-data.md), and an option overrides each. Reads and writes no file.

Shapes: R rows of the table.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from stages.data.sequences import NO_EVENT
from stages.data.series import TIME_FORMS, UNITS
from stages.data.tables import SPLIT_COLUMN
from stages.params import schema
from stages.params.parsing import nearest, usual_values

# Columns whose name holds one of these words come first, in the order of the words.
SEQUENCE_NAMES = "sequence seq series trial recording session clip track episode case sample id".split()
STEP_NAMES = "step frame tick t time timestamp datetime date index".split()
LABEL_NAMES = "label class category event activity gesture target type kind outcome".split()
TIME_NAMES = "time timestamp datetime date".split()
TARGET_NAMES = "close target value price y".split()
# Options that only one kind of table has.
OF_SEQUENCES = ("sequence", "step", "label")
OF_SERIES = ("time", "target", "interval", "transform", "horizon", "input_steps")
SPLIT = {"train": 0.7, "val": 0.15, "test": 0.15}

Choice = tuple[Any, str]  # the value, and why
Choose = Callable[[str, Callable[[], Choice]], Any]  # (key, how to infer it without an option) -> the value
Choices = dict[str, Choice]  # by key: the task and what the columns, gaps and steps of `preprocess` are


def preprocess_section(table: str, choices: Choices) -> dict[str, Any]:
    """The section of params.yaml for the file `table`."""
    values = {key: value for key, (value, _) in choices.items()}
    kind: Any = schema.Series if values["task"] == "forecast" else schema.SequenceTable
    features = values["features"]
    section = {
        **usual_values(kind),
        **values,
        "source": "series" if kind is schema.Series else "sequences",
        "table": table,
        "columns": {key: values[key] for key in (*OF_SEQUENCES, "time", "target", "features") if key in values},
        "split": SPLIT,
        # Speeds add much to few features, and double the width of many. The table may have them already, as `dx`.
        "velocity": len(features) <= 8 and not {f"d{feature}" for feature in features} & {*features},
    }
    return {field.name: section[field.name] for field in fields(kind)}


def choice_rows(choices: Choices) -> list[tuple[str, str, str]]:
    """Key, value and reason of each choice, as text."""
    features, why = choices["features"]
    besides = " besides the target" if choices["task"][0] == "forecast" else ""
    shown = {**choices, "features": (shortened(features) or "none", f"{len(features)}{besides}, {why}")}
    return [(key, str(value), why) for key, (value, why) in shown.items()]


class Columns:
    """A table's columns with the kind of each: whole (numbers), number, time, text, or other (empty, lists)."""

    def __init__(self, frame: pd.DataFrame, name: str):
        self.frame, self.name = frame, name
        self.kinds = {column: kind_of(frame[column]) for column in frame.columns if column != SPLIT_COLUMN}
        self.shown = f"{name} ({shortened(list(self.kinds))})"

    def of_kind(self, *kinds: str, exclude: Sequence[str] = ()) -> list[str]:
        return [column for column, kind in self.kinds.items() if kind in kinds and column not in exclude]

    def numeric(self, exclude: Sequence[str]) -> list[str]:
        """At least one column. Raises ValueError."""
        if found := self.of_kind("whole", "number", exclude=exclude):
            return found
        taken = ", ".join(exclude)
        raise ValueError(f"{self.shown} has no numeric column besides {taken}; numbers must stand in digits")

    def numbers(self, column: str) -> pd.Series:
        """(R,) numbers, of times the seconds since 1970; NaN where a cell holds neither."""
        cells = self.frame[column]
        if self.kinds[column] in ("whole", "number"):
            return pd.to_numeric(cells, errors="coerce")
        times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
        return times.dt.as_unit("us").astype("int64").where(times.notna()) / 1e6

    def codes(self, column: str) -> np.ndarray:
        """(R,) integers, equal where the cells are."""
        return pd.factorize(self.frame[column])[0]

    def num_distinct(self, column: str) -> int:
        return int(self.frame[column].nunique())

    def repeats(self, column: str) -> bool:
        return self.num_distinct(column) < max(2, 0.95 * len(self.frame))


def kind_of(cells: pd.Series) -> str:
    cells = cells.dropna()
    if cells.empty or not pd.api.types.is_hashable(cells.iloc[0]):
        return "other"
    if pd.api.types.is_bool_dtype(cells):
        return "text"
    if not pd.api.types.is_numeric_dtype(cells):
        # A column mostly of times or numbers is meant as such; preprocess names the cells that hold `NA` or `-`.
        sample = cells.iloc[:: max(1, len(cells) // 1000)].astype(str)
        if sample.str.match(r"\d{4}-\d\d-\d\d").mean() > 0.5:
            return "time"
        if pd.to_numeric(sample, errors="coerce").notna().mean() <= 0.5:
            return "text"
    return "whole" if (pd.to_numeric(cells, errors="coerce").dropna() % 1 == 0).all() else "number"


def named(names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The columns whose name holds one of the words `names`, in the order of these."""
    words = {column: re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column) for column in columns}
    found = [column for name in names for column in words if name in map(str.lower, words[column])]
    return list(dict.fromkeys(found))


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names in a line, without the middle of a long list."""
    return ", ".join([*names[: most - 1], "...", names[-1]] if len(names) > most else names)


def infer_schema(columns: Columns, options: Mapping[str, Any]) -> Choices:
    """The table as many sequences or as one series. `options`: those that were given, by name.

    Raises ValueError, in one sentence that names the option to give, where the table is neither.
    """
    given = [options[key] for key in (*OF_SEQUENCES, "time", "target") if key in options]
    usable = columns.of_kind("whole", "number", "time", "text")
    for column in (*given, *options.get("features", ())):
        if column not in usable:
            raise ValueError(f"{columns.name} has no column {column!r}{nearest(column, usable)}")
    of_series = [key for key in options if key in OF_SERIES or (key, options[key]) == ("task", "forecast")]
    of_sequences = [key for key in options if key in (*OF_SEQUENCES, "task") and key not in of_series]
    if of_sequences and of_series:
        flags = ", ".join(f"--{key}" for key in (*of_sequences, *of_series)).replace("_", "-")
        raise ValueError(
            f"{flags} do not go together: --sequence, --step and --label are for many sequences (classify, detect), "
            "--time and --target for one series (forecast)"
        )
    times = find_times(columns)
    is_series = times and not columns.repeats(times[0]) and not named(SEQUENCE_NAMES, find_ids(columns))
    choices: Choices = {}

    def choose(key: str, infer: Callable[[], Choice]) -> Any:
        choices[key] = (options[key], "asked for") if key in options else infer()
        return choices[key][0]

    (infer_series if of_series or (is_series and not of_sequences) else infer_sequences)(columns, choose)
    return {"task": choices["task"], **choices}


def find_features(columns: Columns, found: list[str], taken: Sequence[str]) -> Choice:
    others = [f"{column} ({kind})" for column, kind in columns.kinds.items() if column not in (*found, *taken)]
    return found, "all other numeric columns" + (f"; left out: {shortened(others)}" if others else "")


def infer_sequences(columns: Columns, choose: Choose) -> None:
    sequence = choose("sequence", lambda: find_sequence(columns))
    step = choose("step", lambda: next(find_steps(columns, sequence), (None, "")))
    if step is None:
        raise ValueError(
            f"{columns.shown} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, "
            f"or add one that counts them: table['step'] = table.groupby({sequence!r}).cumcount(); "
            "if several columns tell sequences apart, join them"
        )
    label = choose("label", lambda: find_label(columns, sequence, step))
    if columns.frame[label].nunique(dropna=False) < 2:
        raise ValueError(f"{columns.name}: {label!r} holds one value only; a label needs two; --label names another")
    choose("task", lambda: find_task(columns, sequence, label))
    taken = (sequence, step, label)
    features = choose("features", lambda: find_features(columns, columns.numeric(exclude=taken), taken))
    num_empty = sum(int(columns.numbers(column).isna().sum()) for column in features)
    gaps = f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty"
    choose("missing", lambda: ("interpolate", gaps) if num_empty else ("refuse", "no cell is empty"))


def find_sequence(columns: Columns) -> Choice:
    ids = find_ids(columns)
    if not ids:
        raise ValueError(
            f"{columns.shown} has no column that tells sequences apart, nor one of times that differ; name them: "
            "--sequence and --step for many sequences, --time for one series"
        )
    column = next((column for column in ids if any(find_steps(columns, column))), ids[0])
    num, is_named = columns.num_distinct(column), named(SEQUENCE_NAMES, [column])
    rows_each = f"{num:,} values, {len(columns.frame) / num:.1f} rows each on average"
    return column, f"named so; {rows_each}" if is_named else rows_each


def find_ids(columns: Columns) -> list[str]:
    """Columns that repeat: first with a telling name, then with equal cells side by side, then text; more ids first."""
    candidates = columns.of_kind("text", "whole", "time")
    names, ranked = named(SEQUENCE_NAMES, candidates), []
    for column in candidates:
        codes, num, is_named = columns.codes(column), columns.num_distinct(column), column in names
        is_together = int((codes[1:] != codes[:-1]).sum()) + 1 == num
        if 2 <= num <= len(codes) / 2 and (is_named or is_together or columns.kinds[column] == "text"):
            # Of two telling names (trial, sample), that of the sequences has its equal cells side by side.
            ranked.append((not is_named, not is_together, names.index(column) if is_named else -num, column))
    return [column for *_, column in sorted(ranked)]


def find_steps(columns: Columns, sequence: str) -> Iterator[Choice]:
    """Columns that rise in every sequence, or have a telling name and never repeat in one; the likeliest first."""
    codes = columns.codes(sequence)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    candidates = [*columns.of_kind("whole", "time", exclude=[sequence]), *columns.of_kind("number", exclude=[sequence])]
    names = named(STEP_NAMES, candidates)
    for column in dict.fromkeys((*names, *candidates)):
        values = columns.numbers(column).to_numpy()
        if (np.diff(values[order])[same] > 0).all() and not np.isnan(values).any():
            yield column, "it rises from row to row in every sequence"
        elif column in names and not columns.frame.duplicated([sequence, column]).any():
            yield column, "named so, and never twice the same in a sequence"


def find_label(columns: Columns, sequence: str, step: str) -> Choice:
    """By name; else text, or else few whole numbers, the same throughout a sequence; else text."""
    texts, whole = (columns.of_kind(kind, exclude=(sequence, step)) for kind in ("text", "whole"))
    if names := named(LABEL_NAMES, (*texts, *whole)):
        return names[0], "named so"
    groups = columns.frame.groupby(columns.codes(sequence))

    def is_constant(column: str) -> bool:
        is_few = 2 <= columns.num_distinct(column) <= groups.ngroups / 3
        return is_few and bool((groups[column].nunique() <= 1).all())

    found = [*filter(is_constant, texts)] or texts or [*filter(is_constant, whole)]
    if found:
        many = f"the last of {len(found)} columns that could be one (--label chooses)"
        return found[-1], many if len(found) > 1 else "the only column that could be one"
    raise ValueError(
        f"{columns.shown} has sequences ({sequence!r}) and no column that could be their label, text or few whole "
        f"numbers; name it with --label, or for a forecast keep the rows of a single {sequence!r} and give --time"
    )


def find_task(columns: Columns, sequence: str, label: str) -> Choice:
    """classify where the label is constant in each sequence, detect where some rows hold `none` or most are empty."""
    events = columns.frame[label].astype("string").fillna("").str.strip()
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if not changes.any():
        return "classify", f"{label!r} is the same throughout every sequence"
    most = events.mode()[0]
    if most == "" or (events == NO_EVENT).any():
        share = 1 - events.isin(("", NO_EVENT)).mean()
        return "detect", f"{label!r} names an event in {share:.1%} of the rows, the others are empty or {NO_EVENT!r}"
    if events[~changes].nunique() > 1:  # where it changes it is a mistake, and preprocess names the row
        return "classify", f"{label!r} is the same throughout most sequences"
    background = columns.frame[label][events == most].iloc[:1].tolist()[0]
    raise ValueError(
        f"{columns.name}: {label!r} changes within a sequence, so it must be empty or {NO_EVENT!r} where nothing "
        f"happens, and is {most!r} in {(events == most).mean():.1%} of the rows; name another column with --label, "
        f"or save the table again after table[{label!r}] = table[{label!r}].replace({background!r}, {NO_EVENT!r})"
    )


def infer_series(columns: Columns, choose: Choose) -> None:
    times, num_rows = find_times(columns), len(columns.frame)
    time = choose("time", lambda: (times[0] if times else None, "its times differ from row to row"))
    if time is None or columns.repeats(time) or columns.kinds[time] not in ("time", "whole"):
        found = f" ({time!r}: {columns.num_distinct(time):,} different in {num_rows:,} rows)" if time else ""
        raise ValueError(
            f"{columns.shown} has no column of times that differ from row to row{found}; name one with --time: "
            f"{TIME_FORMS}; of several series in one table keep the rows of one"
        )
    choose("task", lambda: ("forecast", f"{time!r} makes it one series"))
    target = choose("target", lambda: find_target(columns, columns.numeric(exclude=[time])))
    taken = (time, target)
    numeric = columns.of_kind("whole", "number", exclude=taken)
    features = choose("features", lambda: find_features(columns, numeric, taken))
    choose("interval", lambda: find_interval(columns, time))
    is_positive = all((columns.numbers(column).dropna() > 0).all() for column in (target, *features))
    transform = ("log-return", "all above 0") if is_positive else ("difference", "not all above 0")
    choose("transform", lambda: (transform[0], f"the columns are {transform[1]}"))
    input_steps = choose("input_steps", lambda: (max(8, min(48, num_rows // 50)), "a fiftieth of the rows, 8 to 48"))
    choose("horizon", lambda: (max(1, input_steps // 12), "a twelfth of the input steps"))
    choose("missing", lambda: ("skip", ""))  # without a reason: only a dry run shows how much is missing


def find_times(columns: Columns) -> list[str]:
    """Dates, then whole numbers with a telling name (seconds since 1970); those that repeat come last."""
    return sorted([*columns.of_kind("time"), *named(TIME_NAMES, columns.of_kind("whole"))], key=columns.repeats)


def find_target(columns: Columns, numeric: list[str]) -> Choice:
    if names := named(TARGET_NAMES, numeric):
        return max(names, key=numeric.index), "named so (--target chooses)"
    first = f"the first of {len(numeric)} numeric columns (--target chooses)"
    return numeric[0], first if numeric[1:] else "the only numeric column"


def find_interval(columns: Columns, time: str) -> Choice:
    """The most frequent difference of two neighbouring times."""
    seconds, counts = np.unique(np.diff(np.unique(columns.numbers(time).dropna())).round(6), return_counts=True)
    most = float(seconds[counts.argmax()])
    share = counts[seconds % most == 0].sum() / counts.sum()
    if most % 1 or share < 0.9:
        raise ValueError(
            f"{columns.name}: the times in {time!r} are most often {most:g} s apart, and {share:.0%} of all "
            "differences are multiples of that; choose the --interval to put them on, from 1s, e.g. 15min, 1h, 7d"
        )
    unit = next(unit for unit in reversed(UNITS) if most % UNITS[unit] == 0)
    return f"{most / UNITS[unit]:.0f}{unit}", f"{counts.max() / counts.sum():.1%} of the times are so far apart"
