"""One row per sequence: the steps are numbered columns, as in public archives. The other columns belong to a sequence.

`x_0 ... x_49, y_0 ... y_49` are 50 steps of two features; `0 ... 95`, or columns without a header, are one feature.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tandem.importing import text_format, text_tables
from tandem.importing.array_files import LABELS, word_and_split
from tandem.importing.columns import MOST_CLASSES, Choices, TableColumns, in_stretches, named_like, shortened, words_of
from tandem.importing.headers import FEWEST_RISING, Note
from tandem.importing.infer_ids import NO_ORDER, find_ids
from tandem.importing.infer_label import alike_names
from tandem.importing.infer_series import find_times
from tandem.importing.infer_step import are_even, find_steps
from tandem.importing.long_table import (
    Part,
    Source,
    SplitFile,
    as_long_table,
    parts_notes,
    read_parquet,
    real_steps,
)
from tandem.importing.names import CALENDAR_NAMES, GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES
from tandem.importing.text_format import TextTable
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument

YEAR, OF_DAY = r"(?:19|20)\d\d", r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?"
SORTABLE = rf"{YEAR}-\d\d-\d\d(?:[T ]{OF_DAY})?|{YEAR}[-_](?:0[1-9]|1[0-2])|{OF_DAY}"  # 2022-03-01, 2022-03, 00:15
DATE = rf"{SORTABLE}|{YEAR}[-_ ]?[QW]\d\d?|\d{{1,2}}[./-]\d{{1,2}}[./-]\d\d(?:\d\d)?"  # 2022Q1, 2022-W9, 1/3/22
# Names of numbered columns: stem and number, as x_0, or number and stem, as t0_x, t_0_x and 2022-03-01_x.
WHOLE, DECIMAL, DATED = (
    rf"(?P<stem>.*?)[ _.\-\[(]*(?P<number>{number})[\])]?" for number in (r"\d{1,9}", r"\d{1,9}\.\d{1,9}", DATE)
)
LAGGED = (
    r"(?:(?P<stem>.+?)[ _(])?t(?P<number>(?:[ ]?[+-][ ]?\d{1,9})?)\)?"  # x(t-2), x(t-1), x(t): t-2 is two steps before
)
SURE_LAG = r"\(t|t ?\+|(^|[ _])t$"
COEFFICIENTS = {"mfcc", "mfccs", "chroma"}  # their numbers are no steps
WITH_UNIT = r"(?P<number>\d{1,9}(?:\.\d{1,9})?) ?(?P<stem>[^\W\d_]+)"  # 1100nm, a wavelength
BARE = rf"(?={DATE}|\d{{8}}|.*\D$)"  # 2022-03-01_B1 is B1 at a date, and 2_x_0 the step 0 of 2_x
NUMBER_FIRST = rf"(?:(?i:{'|'.join(STEP_NAMES)})[ _]?|{BARE})(?P<number>{DATE}|\d{{1,9}})[ _.\-]+(?P<stem>\D.*)"
FEWEST_OF_UNIT = 30  # columns of a spectrum with units in their names: 1Hz ... 20Hz may be features
FEWEST_STEPS = 4  # numbered columns of one name that make a table one row per sequence
NO_TIMES, TIMES = (*SEQUENCE_NAMES, *LABEL_NAMES), [name for name in STEP_NAMES if name != "index"]
SMALL_CHANGES = 0.1  # beside the variance: of a random walk of a hundred steps 0.06, of independent rows 2
FEW_FEATURES, SAMPLED_ROWS = 8, 10_000  # whose columns may alternate; rows that show it
FAR_MORE, MORE = 4.0, 1.2  # times as alike
NUMERIC = ("whole", "number", "other")
FEW_COLUMNS, MUST_CORRELATE = 9, 0.5  # of so few numbered columns, neighbours, on average, if they are steps
ALIKE_SCALES = 8.0  # the standard deviation of one of so few columns, relative to its neighbour's, if they are steps
UNRELATED = 0.05  # the same, of more columns that are rather components or features than steps
MOST_RISING = 0.9  # the share of rows above which a time goes on: it may start again in each recording


def numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """Stem -> its numbered columns in the order of their numbers (x_0, x_1, ...) or dates, of the stems with the most
    columns, which are the features; empty if these are too few. In x-11, x-10, ..., x-0, the sign is a minus.

    x0.0, x0.1, ..., x1.1 is x with decimal numbers; s1.0 ... s1.9, s2.0 ... s2.9 are two features, s1 and s2.
    """
    forms = (DATED, NUMBER_FIRST, LAGGED, WHOLE, DECIMAL)
    dated, number_first, lagged, whole, decimal = (runs_of(names, form) for form in forms)
    # Without x(t), x_t or x_t+1 among them, x_t-1 and x_t-2 may be numbered steps.
    lagged = {stem: run for stem, run in lagged.items() if any(re.search(SURE_LAG, name) for name in run)}
    of_units = [*runs_of(names, WITH_UNIT).values()]
    likely = [dated, number_first, lagged, *((decimal, whole) if "" in decimal else (whole, decimal))]
    likely += [{"": run} for run in of_units if len(of_units) == 1 and len(run) >= FEWEST_OF_UNIT]
    return max(likely, key=lambda runs: sum(map(len, runs.values())))


def runs_of(names: Sequence[str], form: str) -> dict[str, list[str]]:
    """As `numbered`, for names of one form, such as WHOLE. Dates that do not sort as text keep the file's order."""
    by_stem: dict[str, dict[Decimal, str]] = {}
    for name in names:
        if match := re.fullmatch(form, name):
            columns, number = by_stem.setdefault(match["stem"] or "", {}), match["number"]
            if re.fullmatch(SORTABLE, number):
                number = re.sub(r"\D", "", re.sub(r"(?<!\d)(\d):", r"0\1:", number))
            elif re.fullmatch(DATE, number):
                number = len(columns)
            columns.setdefault(Decimal(str(number).replace(" ", "") or 0), name)
    longest = max(map(len, by_stem.values()), default=0)
    runs = {stem: list(columns.values()) for stem, columns in by_stem.items()}
    for stem, columns in by_stem.items():
        are_lags = bool(re.search(r"(?i)(^|[ _.-])lag$", stem))  # lag1 is the last step
        are_negative = all(re.search(rf"-({number}|\d+:\d\d)$", name) for number, name in columns.items())
        if are_lags or not are_negative or list(columns) != sorted(columns, reverse=True):
            runs[stem] = [columns[number] for number in sorted(columns, reverse=are_lags)]
    return {stem: columns for stem, columns in runs.items() if len(columns) == longest >= FEWEST_STEPS}


def alternating(columns: TableColumns, run: list[str]) -> dict[str, list[str]]:
    """The steps of one feature, or of several whose columns alternate, as x1, y1, x2, y2, ...: columns so many places
    apart are far more alike than nearer ones, and more than those twice as far, unlike those of a period.
    """
    if {*run} - {*columns.of_kind("whole", "number")}:
        return {"value": run}
    rows = columns.frame[run].iloc[:: max(1, len(columns.frame) // SAMPLED_ROWS)].to_numpy(np.float64)

    def difference(places: int) -> float:
        squares = np.square(rows[:, places:] - rows[:, :-places])
        return float(squares[np.isfinite(squares)].mean()) if np.isfinite(squares).any() else np.inf

    for num in range(2, min(FEW_FEATURES, len(run) // FEWEST_STEPS) + 1):
        if len(run) % num == 0 and FAR_MORE * (own := difference(num)) < min(map(difference, range(1, num))):
            if difference(2 * num) > MORE * own:
                return {f"c{place}": run[place::num] for place in range(num)}
    return {"value": run}


def gap_in(run: Sequence[str]) -> str:
    """What to say of numbers that are not evenly spaced; empty if they are."""
    if any(re.fullmatch(form, name) for form in (DATED, NUMBER_FIRST, LAGGED) for name in run):
        return ""
    matches = [re.fullmatch(DECIMAL, name) or re.fullmatch(WHOLE, name) for name in run]
    numbers = [Decimal(match["number"]) for match in matches if match]
    distances = [abs(after - before) for before, after in pairwise(numbers)]
    gaps = [place for place, distance in enumerate(distances) if distance > min(distances)]
    return f"; {run[gaps[0]]} is followed by {run[gaps[0] + 1]}, read as the next step" if gaps else ""


def is_wide(columns: TableColumns, for_header: str, label: str | None) -> str:
    """Why the table looks like one row per sequence; empty if it does not. `for_header`: how to write a header if it
    has none; `label`: as requested.

    If a time goes on from row to row and a label stays the same for many rows and returns, they are steps of a
    recording. Raises CommandError if only one of the two shows it.
    """
    numeric = {*columns.of_kind(*NUMERIC)}
    if columns.frame.empty:
        return ""
    if for_header:
        if len(numeric) < FEWEST_STEPS:
            return ""
        texts = [name for name in columns.of_kind("text") if in_stretches(columns.frame[name]) == (False, True)]
        signs = [f"column {name} increases from row to row" for name in [*columns.kinds][:3] if goes_on(columns, name)]
        signs += [f"column {name} stays the same for many rows and returns" for name in texts]
        if not signs and are_alike(columns):
            signs = ["neighbouring rows are nearly equal"]
        if signs:
            raise CommandError(
                f"{columns.shown}: {signs[0]}, so a row may be a step of a recording, which needs a header: "
                f"{for_header}; or --layout wide reads each row as a sequence",
                NO_ANSWER,
            )
        return "it has no header, and its rows are numbers"
    steps = numbered([name for name in columns.frame.columns if name in numeric])
    num_steps = sum(map(len, steps.values()))
    are_coefficients = all(words_of(stem) & COEFFICIENTS and not re.search(r"\d", stem) for stem in steps)
    if num_steps * 2 < len(columns.frame.columns) or are_coefficients:
        return ""
    of_steps = {name for run in steps.values() for name in run}
    others = TableColumns(columns.frame[[name for name in columns.kinds if name not in of_steps]], columns.name)
    if is_long(others):
        return ""
    time = next((name for name in times_of_rows(others) if name != label and goes_on(others, name)), None)
    candidates = others.of_kind("text", "flag", "whole")
    ids = named_like((*GROUP_NAMES, *SEQUENCE_NAMES, *CALENDAR_NAMES), candidates)
    labels = [name for name in candidates if name == label] or named_like(LABEL_NAMES, candidates)
    labels = labels or [name for name in candidates if name not in ids]
    returning = next((name for name in labels if in_stretches(others.frame[name]) == (False, True)), None)
    if bool(time) != bool(returning):
        why = f"{returning!r} stays the same for many rows and returns" if returning else f"{time!r} goes on"
        why += ", so a row may be a step of a recording; --layout long reads it as a step, --layout wide as a sequence"
        raise CommandError(f"{columns.shown}: {why}", NO_ANSWER)
    if time:
        return ""
    [first_run, *_] = steps.values()
    return f"{shortened(first_run, 3)} are numbered, and no column shows which rows belong together"


def check_may_be_steps(columns: TableColumns) -> None:
    """Raises CommandError if the numbered columns are a few that vary independently, as x1, ..., x5 of other tables, or
    many that do not correlate at all beside a label by its name and a number, as V1, ..., V28 beside Class and Amount.
    """
    [(stem, run), *others] = numbered([*columns.frame.columns]).items()
    labels, least = named_like(LABEL_NAMES, columns.kinds), MUST_CORRELATE if len(run) <= FEW_COLUMNS else UNRELATED
    if least == UNRELATED and not (labels and columns.of_kind("number", exclude=[*run, *labels])):
        return
    if others or named_like((*STEP_NAMES, *CALENDAR_NAMES), [stem]):
        return
    if any(columns.kinds.get(name) not in NUMERIC for name in run):
        return
    values = [columns.numbers(name) for name in run]
    scales = [scale for column in values if (scale := column.std()) > 0]
    ratios = [max(one / other, other / one) for one, other in pairwise(scales)]
    why = "hardly correlate" * bool(pd.Series([one.corr(other) for one, other in pairwise(values)]).mean() < least)
    if len(run) <= FEW_COLUMNS and max(ratios, default=1) > ALIKE_SCALES:
        why = why or "vary on different scales"
    if why:
        raise CommandError(
            f"{columns.shown}: {shortened(run, 3)} {why}, so they may be other quantities, not the steps of "
            f"one; give --layout wide if a row is a sequence of {len(run)} steps, --layout long if it is one step; "
            f"{NO_ORDER}",
            NO_ANSWER,
        )


def are_alike(columns: TableColumns) -> bool:
    """Whether in nearly all columns the changes from row to row are small beside the variation, as in a series."""
    numbers = columns.frame[columns.of_kind("number")].astype(float)
    changes, variation = numbers.diff().pow(2).mean(), numbers.var()
    return bool((changes < SMALL_CHANGES * variation).mean() > MOST_RISING)


def times_of_rows(columns: TableColumns) -> Iterator[str]:
    """The columns besides the steps that may be times: by name, or numbers that are no count, as ids are."""
    candidates = columns.of_kind("time", "whole", "number")
    for name in [name for name in candidates if columns.kinds[name] == "time" or not named_like(NO_TIMES, [name])]:
        distances = columns.numbers(name).diff().dropna()
        if (
            named_like(TIMES, [name])
            or columns.kinds[name] != "whole"
            or (distances.nunique() == 1 != distances.iloc[0])
        ):
            yield name


def goes_on(columns: TableColumns, name: str) -> bool:
    """Whether nearly all cells are above the one before, in the whole table or for each value of its first column."""
    if columns.kinds[name] not in ("time", "whole", "number"):
        return False
    rises, [first_column, *_] = np.diff(columns.numbers(name)) > 0, columns.kinds
    codes = columns.codes(first_column)
    within = rises[codes[1:] == codes[:-1]] if columns.is_together(first_column) else rises
    return any(len(part) >= FEWEST_RISING and part.mean() > MOST_RISING for part in (rises, within))


def is_long(columns: TableColumns) -> bool:
    """Whether the columns besides the steps show that each row is a step: one restarts in every sequence or has such a
    name, or they are times that differ in each row and there is nothing to classify. Of a single sequence, only names
    show it.
    """
    ids = [name for name in named_like(SEQUENCE_NAMES, columns.kinds) if columns.num_distinct(name) == 1]
    ids += [
        name
        for name in find_ids(columns)
        if name not in named_like(LABEL_NAMES, [name]) or named_like(SEQUENCE_NAMES, [name])
    ]
    for name in ids:
        for step, _ in find_steps(columns, name):
            if named_like(STEP_NAMES, [step]) or columns.num_distinct(step) * 2 <= len(columns.frame):
                return True
    times = [*find_times(columns), *filter(partial(is_elapsed, columns), columns.of_kind("odd", "text"))]
    texts = [
        name for name in columns.of_kind("text", "flag") if 2 <= columns.num_distinct(name) <= len(columns.frame) / 2
    ]
    is_labelled = bool(texts or named_like(LABEL_NAMES[:3], columns.kinds))
    return bool(times) and not columns.repeats(times[0]) and not is_labelled


def is_elapsed(columns: TableColumns, name: str) -> bool:
    """Whether text such as 0:15:00 or 48:30 is a time that rises in equal steps."""
    clocks = columns.frame[name].astype(str).str.replace(r"^(\d+:\d\d)$", r"\1:00", regex=True)
    distances = np.diff(pd.to_timedelta(clocks, errors="coerce").dt.total_seconds())
    return bool(len(distances) and np.median(distances) > 0) and are_even(distances)


def open_wide(
    path: Path,
    files: Sequence[SplitFile],
    text: TextTable | None,
    columns: TableColumns,
    options: Mapping[str, Any],
    notes: list[Note],
) -> Source:
    """Numbered columns. `text`: the format of `path`, one of the files; None: Parquet. `columns`: of it."""
    names = list(columns.frame.columns)
    if (label := options.get("label")) and label not in names:
        raise WrongArgument(f"{columns.shown} has no column {label!r}; --label names one")
    has_header = text is None or text.has_header
    if not has_header and "num_channels" in options:
        raise ValueError(
            f"{path} has no header, so nothing says whether a column is the label; write the columns' names there, the "
            f"steps as {'0, 1, 2, ...' if options['num_channels'] == 1 else 'c0_0, c1_0, ..., c0_1, c1_1, ...'}"
        )
    choices: Choices = {}
    if text is None or text.has_header:
        runs = numbered([name for name in names if name != label])
    else:
        label = label or label_without_header(columns, text)
        why = f"column {label} of {len(names)} (--label selects another by its number)"
        choices["label"] = "label", "as requested" if "label" in options else why
        run = max(names[: names.index(label)], names[names.index(label) + 1 :], key=len)
        if run and columns.kinds[run[0]] == "whole" and (np.diff(columns.numbers(run[0])) == 1).all():
            run = run[1:]
        runs = alternating(columns, run)
        if excluded := [name for name in names if run and name not in (label, *run)]:
            notes = [*notes, ("excluded", shortened(excluded), "beside the label, or the number of the row")]
            columns = TableColumns(columns.frame.drop(columns=excluded), columns.name)
    if not any(runs.values()):
        raise ValueError(
            f"{columns.shown} has no {FEWEST_STEPS} numbered columns (x_0, x_1, ... or t0_x, t1_x, ...), the steps "
            "of a sequence"
        )
    [run, *_] = runs.values()
    gap = gap_in(run) if has_header else ""
    if (num := len(runs)) > 1 and not has_header:
        gap = f"; columns {num} apart are most alike, so these are {num} features; a header 0, 1, 2, ... makes one"
    steps = ("steps", f"{len(run)}", f"{shortened(run, 3)}{gap}; empty cells at the end of a row end it")
    features = [(stem.strip(" _.-[(") or "value", run) for stem, run in runs.items()]
    of_steps = {name: pa.float64() for _, run in features for name in run}
    others = [name for name in columns.frame.columns if name not in of_steps]

    def read() -> Iterator[Part]:
        for split, file in files:
            if text is None:
                rows = read_parquet(file)
            else:
                form = text if file == path else replace(text_format.find_format(file, options), convert=text.convert)
                rows = text_tables.read(form, dict.fromkeys(form.names, pa.string()) | of_steps)
            if missing := [name for name in (*of_steps, *others) if name not in rows.column_names]:
                raise ValueError(f"{file} has no column {missing[0]!r}, which {path} has; make them alike")
            cells = pa.table({name: plain_whole(rows[name]) for name in others})
            yield Part(*steps_of(rows, features, file), cells, split)

    # The label by its name, if a column with one cell for each sequence has it: it comes before those of steps.
    labels = named_like(LABEL_NAMES, columns.of_kind("text", "flag", "whole", "number"))
    labels = [name for name in labels if name in others and has_header and "label" not in options]
    if labels and not alike_names(columns, labels, LABEL_NAMES):
        choices["label"] = labels[0], "by its name"
    # The ids by name, if every row has another. Each of several files may count from 1.
    own_ids = [name for name in named_like(SEQUENCE_NAMES, others) if len(files) == 1 and columns.frame[name].is_unique]
    ids = (own_ids[0], f"column {own_ids[0]!r}") if own_ids else (None, "the number of the row")
    if column := options.get("sequence"):
        ids = (column, "as requested")
        if column not in others:
            accepted = ", ".join(others)
            raise WrongArgument(f"--sequence is {column!r}, which is no column besides the steps; accepted: {accepted}")
    return as_long_table(
        [file for _, file in files],
        [*notes, steps, *parts_notes(files)],
        read,
        [name for name, _ in features],
        others if has_header else ["label"],
        ids,
        choices=choices,
        used_options=("sequence",) if has_header else ("sequence", "label"),
    )


def plain_whole(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text such as 1.000e+00, as numpy writes all numbers, as 1 if all of it is so."""
    if not pa.types.is_string(cells.type) or not cells.null_count < len(cells):
        return cells
    if not pc.all(pc.match_substring_regex(cells, r"^\d\.\d+e[+-]\d\d$")).as_py():
        return cells
    numbers = cells.cast(pa.float64())
    is_whole = pc.all(pc.equal(numbers, pc.round(numbers))).as_py()
    return numbers.cast(pa.int64()).cast(pa.string()) if is_whole else cells


def label_without_header(columns: TableColumns, text: TextTable) -> str:
    """The first or last column, whichever is text, has few whole numbers, or else repeated ones.

    Raises CommandError if both have few, or none is such a column.
    """
    names = list(columns.frame.columns)
    cells = {name: columns.frame[name] for name in (names[0], names[-1]) if name in columns.kinds}
    counts = {name: column.nunique() for name, column in cells.items()}
    ends = [name for name in cells if counts[name] > 1]
    texts = [name for name in ends if columns.kinds[name] == "text"]
    repeated = [name for name in ends if columns.kinds[name] == "whole" and 2 * counts[name] <= len(cells[name])]
    few = [name for name in repeated if counts[name] <= MOST_CLASSES]
    if len(few) > 1 and not texts:
        flags = " or ".join(f"--label {names.index(name) + 1}" for name in few)
        raise CommandError(
            f"{columns.name} has no header, and its first and last column hold few whole numbers; give {flags}",
            NO_ANSWER,
        )
    likely = [*texts, *few, *repeated]
    if not likely and len(names) > FEWEST_STEPS:
        raise CommandError(
            f"{columns.name} has no header, and neither its first nor its last column is text or few whole numbers; "
            f"give --label 1 or --label {len(names)} if one is the number to learn, or --layout long if a row is a step"
            f"{advice_on_labels(columns, text)}",
            NO_ANSWER,
        )
    return next(iter(likely), names[-1])


def advice_on_labels(columns: TableColumns, text: TextTable) -> str:
    """The command that adds the labels, if a file beside the table is named like them and has as many lines."""
    path, (_, split) = text.path, word_and_split(text.path.stem)
    for other in sorted(path.parent.glob(f"*{path.suffix}")) if path.suffix and not text.compression else ():
        word, other_split = word_and_split(other.stem)
        content = other.read_bytes() if word in LABELS and other_split == split and other.is_file() else b""
        if content.count(b"\n") == len(columns.frame) and b"\r" not in content:
            rows, labels = shlex.quote(str(path)), shlex.quote(str(other))
            sep = r"'\t'" if text.delimiter == "\t" else shlex.quote(text.delimiter)
            command = f"paste -d {sep} {rows} {labels}"
            if text.delimiter == " ":  # several may be between two cells
                command = f"sed 's/^ *//' {rows} | tr -s ' ' , | paste -d , - {labels}"
            return f"; or add the labels: {command} > {f'new_{split.upper()}.csv' if split else 'new.csv'}"
    return "; or add a column with the labels"


def steps_of(rows: pa.Table, features: Sequence[tuple[str, list[str]]], path: Path) -> tuple[np.ndarray, list[Any]]:
    """The number of steps of each row (N,), and the cells (R,) of each feature, row after row."""
    [(_, run), *_] = features
    values = np.empty((rows.num_rows, len(run), len(features)))
    for place, (_, run) in enumerate(features):
        for step, name in enumerate(run):
            values[:, step, place] = to_numbers(rows[name], name, path)
    return real_steps(values, str(path))


def to_numbers(cells: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    """(N,) float64; an empty cell is NaN."""
    try:
        return np.asarray(cells.cast(pa.float64()).to_numpy())
    except pa.ArrowException:
        raise ValueError(f"{path}: column {name!r} must hold numbers, found {cells.type}; correct the table") from None
