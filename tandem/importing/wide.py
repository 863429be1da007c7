"""One row per sequence, as in public archives: numbered columns are the steps, the others belong to the sequence.

`x_0 ... x_49, y_0 ... y_49` are 50 steps of two features; `0 ... 95`, or columns without a header, are one feature.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.data.tables import SPLIT_COLUMN
from tandem.importing import text_tables
from tandem.importing.columns import TableColumns, named, shortened
from tandem.importing.infer_sequences import LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES, find_ids, find_steps
from tandem.importing.infer_series import find_times
from tandem.importing.long_table import (
    BLOCK_CELLS,
    LongTableSource,
    Progress,
    SplitFile,
    known_of,
    open_parquet,
    parts_notes,
    real_steps,
    rows_of,
    unique,
)
from tandem.importing.text_tables import Note, TextTable

FEWEST_STEPS = 4  # numbered columns of one name that make a table one row per sequence


def numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """Stem -> its numbered columns in the order of their numbers (x_0, x_1, ...), of the stems with the most columns,
    which are the features; empty if these are too few.
    """
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*?)[ _.\-\[(]*(\d{1,9})[\])]?", name):
            found.setdefault(match[1], {}).setdefault(int(match[2]), name)
    most = max(map(len, found.values()), default=0)
    runs = {stem: [columns[number] for number in sorted(columns)] for stem, columns in found.items()}
    return {stem: columns for stem, columns in runs.items() if len(columns) == most >= FEWEST_STEPS}


def is_wide(columns: TableColumns, has_header: bool) -> str:
    """Why the table looks like one row per sequence; empty if it does not."""
    numeric = {*columns.of_kind("whole", "number", "other")}
    if columns.frame.empty:
        return ""
    if not has_header:
        return "it has no header, and its rows are numbers" if len(numeric) >= FEWEST_STEPS else ""
    steps = numbered([name for name in columns.frame.columns if name in numeric])
    num_steps = sum(map(len, steps.values()))
    if num_steps * 2 < len(columns.frame.columns):
        return ""
    of_steps = {name for run in steps.values() for name in run}
    others = [name for name in columns.kinds if name not in of_steps]
    if is_long(TableColumns(columns.frame[[*others]], columns.name)):
        return ""
    [first, *_] = steps.values()
    return f"{shortened(first, 3)} are numbered, and no column shows which rows belong together"


def is_long(others: TableColumns, by_name: bool = True) -> bool:
    """Whether the columns besides the steps (or lists) show that each row is a step: one restarts in every sequence (or
    has such a name and `by_name` is set), or they are times that differ in each row and there is nothing to classify.
    """
    ids = [name for name in find_ids(others) if name not in named(LABEL_NAMES, [name]) or named(SEQUENCE_NAMES, [name])]
    for name in ids:
        for step, _ in find_steps(others, name):
            if (by_name and named(STEP_NAMES, [step])) or others.num_distinct(step) * 2 <= len(others.frame):
                return True
    times = find_times(others)
    texts = [name for name in others.of_kind("text", "flag") if 2 <= others.num_distinct(name) <= len(others.frame) / 2]
    is_labelled = bool(texts or named(LABEL_NAMES[:3], others.kinds))
    return bool(times) and not others.repeats(times[0]) and not is_labelled


def open_wide(
    path: Path,
    files: Sequence[SplitFile],
    table: TextTable | None,
    columns: TableColumns,
    options: Mapping[str, Any],
    note: Note,
) -> LongTableSource:
    """`table`: the format of `path`, one of the files; None: Parquet. `columns`: of its first rows."""
    names = list(columns.frame.columns)
    has_header = table is None or table.has_header
    label = find_label(columns, has_header, options)
    of_features = [name for name in names if name != label]
    runs = numbered(of_features) if has_header else {"value": of_features}
    if not runs:
        raise ValueError(
            f"{columns.shown} has no {FEWEST_STEPS} numbered columns (x_0, x_1, ...), the steps of a sequence"
        )
    of_steps = {name for run in runs.values() for name in run}
    others = [name for name in names if name not in of_steps]
    num_steps = len(next(iter(runs.values())))

    def read(file: Path, at: Progress) -> Iterator[pa.Table]:
        if table is None:
            return parquet_batches(names, path, file, at)
        form = text_tables.sniff(file, options) if file != path else table
        check_names(file, form.names, names, path)
        return text_tables.blocks(form, {name: pa.float64() for name in of_steps}, at)

    def cells_of(part: pa.Table, file: Path, row: int) -> tuple[np.ndarray, list[Any]]:
        values = np.empty((part.num_rows, num_steps, len(runs)))
        for place, run in enumerate(runs.values()):
            for step, name in enumerate(run):
                values[:, step, place] = to_numbers(part[name], name, file)
        return real_steps(values, row)

    first_run = shortened(next(iter(runs.values())), 3)
    notes = [note, ("steps", f"{num_steps}", f"{first_run}; empty cells at the end of a row end it")]
    ids = choose_ids(columns, others, label, files, options, "besides the steps")
    called = {name: "label" if name == label and not has_header else name for name in others}
    known, notes = (label, label_reason(label, table, options)), [*notes, *parts_notes(files)]
    used = ("sequence", *(() if has_header else ("label",)))
    return rows_source(files, ids, known, called, [*runs], read, cells_of, notes, used)


def rows_source(
    files: Sequence[SplitFile],
    ids: tuple[str | None, str],
    label: tuple[str | None, str],
    others: Mapping[str, str],
    stems: Sequence[str],
    read: Callable[[Path, Progress], Iterator[pa.Table]],
    cells_of: Callable[[pa.Table, Path, int], tuple[np.ndarray, list[Any]]],
    notes: list[Note],
    used: tuple[str, ...],
) -> LongTableSource:
    """Files with one row per sequence, with its steps in numbered columns or in lists.

    `ids` and `label`: the column, and the reason. `others`: the columns that belong to the sequence, with their new
    names. `stems`: the names of the features. `cells_of`: from some rows of a file and the number of the first one to
    the number of steps of each row, and the cells of each feature.
    """
    per_sequence = {name: called for name, called in others.items() if name != ids[0]}
    adds_split = bool(files[0][0]) and SPLIT_COLUMN not in per_sequence
    carried = [*per_sequence.values(), *([SPLIT_COLUMN] if adds_split else [])]
    features = list[str]()
    for stem in stems:  # distinct from the other columns' names
        features.append(unique(stem.strip(" _.-[(") or "value", [*carried, *features, SPLIT_COLUMN]))
    known = known_of(features, carried, ids[1])
    if label[0]:
        known["label"] = (others.get(label[0], label[0]), label[1])

    def blocks(at: Progress) -> Iterator[pa.Table]:
        number, done = 0, 0
        for split, file in files:
            first = number
            for part in read(file, partial(lambda done, place: at(done + place), done)):
                lengths, cells = cells_of(part, file, number - first)
                extra = part.select([*per_sequence]).rename_columns([*per_sequence.values()])
                if adds_split:
                    extra = extra.append_column(SPLIT_COLUMN, pa.array([split] * part.num_rows))
                own = part[ids[0]].combine_chunks() if ids[0] else np.arange(number, number + part.num_rows)
                yield rows_of(own, dict(zip(features, cells, strict=True)), lengths, extra)
                number += part.num_rows
            done += file.stat().st_size

    return LongTableSource.of_files(files, notes, known, blocks, used)


def choose_ids(
    columns: TableColumns,
    names: Sequence[str],
    label: str | None,
    files: Sequence[SplitFile],
    options: Mapping[str, Any],
    where: str,
) -> tuple[str | None, str]:
    """The column of ids: as requested, or by name with a different value in every row. None for several files, each of
    which may count from 1. Also the reason.
    """
    if ids := options.get("sequence"):
        if ids not in names:
            raise ValueError(f"--sequence is {ids!r}, which is no column {where}; accepted: {', '.join(names)}")
        return ids, "as requested"
    found = named(SEQUENCE_NAMES, [name for name in names if name != label]) if len(files) == 1 else []
    ids = next((name for name in found if columns.frame[name].is_unique), None)
    return ids, f"column {ids!r}" if ids else "the number of the row"


def check_names(path: Path, have: Sequence[str], names: Sequence[str], like: Path) -> None:
    if missing := [name for name in names if name not in have]:
        raise ValueError(f"{path} has no column {missing[0]!r}, which {like} has; make them alike")


def parquet_batches(names: Sequence[str], like: Path, path: Path, at: Progress) -> Iterator[pa.Table]:
    """The columns `names` of a file, in blocks of about BLOCK_CELLS cells or entries of lists."""
    with open_parquet(path) as file:
        check_names(path, file.schema_arrow.names, names, like)
        metadata, done = file.metadata, 0
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        num_cells = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
        num_rows = max(1, BLOCK_CELLS * metadata.num_rows // max(1, num_cells))
        for batch in file.iter_batches(num_rows, columns=names):
            yield pa.Table.from_batches([batch])
            done += batch.num_rows
            at(path.stat().st_size * done // metadata.num_rows)


def find_label(columns: TableColumns, has_header: bool, options: Mapping[str, Any]) -> str | None:
    """The label's column: by name, else text that repeats, else whole numbers; without a header the first or last."""
    names = list(columns.frame.columns)
    if label := options.get("label"):
        if label not in names:
            raise ValueError(f"{columns.shown} has no column {label!r}; --label names one")
        return str(label)
    if not has_header:
        most = max(2, len(columns.frame) // 2)
        ends = [name for name in (names[0], names[-1]) if name in columns.kinds]
        texts = [name for name in ends if columns.kinds[name] == "text"]
        whole = [name for name in ends if columns.kinds[name] == "whole" and columns.num_distinct(name) <= most]
        return next(iter([*texts, *whole]), names[-1])
    steps = [name for run in numbered(columns.of_kind("whole", "number", "other")).values() for name in run]
    others = columns.of_kind("text", "flag", "whole", "number", exclude=steps)
    if found := named(LABEL_NAMES, others):
        return found[0]
    repeats = [name for name in others if 2 <= columns.num_distinct(name) <= len(columns.frame) // 2]
    texts = [name for name in repeats if columns.kinds[name] in ("text", "flag")]
    others = [name for name in others if not named(SEQUENCE_NAMES, [name])]
    return next(iter([*texts[-1:], *repeats[-1:], *others[-1:]]), None)


def label_reason(label: str | None, table: TextTable | None, options: Mapping[str, Any]) -> str:
    if "label" in options:
        return "as requested"
    if table is not None and not table.has_header:
        return f"column {label} of {len(table.names)} (--label selects another by its number)"
    return "by its name" if label and named(LABEL_NAMES, [label]) else "not a step (--label selects another)"


def to_numbers(cells: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    """(N,) float64; an empty cell is NaN."""
    try:
        return np.asarray(cells.cast(pa.float64()).to_numpy())
    except pa.ArrowException:
        raise ValueError(f"{path}: column {name!r} must hold numbers, found {cells.type}; correct the table") from None
