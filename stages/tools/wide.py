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
import pyarrow.parquet

from stages.data.tables import SPLIT_COLUMN
from stages.params.parsing import one_line
from stages.tools import text_tables
from stages.tools.columns import TableColumns, named, shortened
from stages.tools.infer_sequences import LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES, find_ids, find_steps
from stages.tools.infer_series import find_times
from stages.tools.long_table import (
    BLOCK_CELLS,
    LongTableSource,
    SplitFile,
    known_of,
    lengths_of,
    long_block,
    parts_notes,
    unique,
)
from stages.tools.text_tables import Note, TextTable

FEWEST_STEPS = 4  # numbered columns of one name that make a table one row per sequence


def all_numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """Stem -> its numbered columns in the order of their numbers (x_0, x_1, ...)."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*?)[ _.\-\[(]*(\d{1,9})[\])]?", name):
            found.setdefault(match[1], {}).setdefault(int(match[2]), name)
    return {stem: [columns[number] for number in sorted(columns)] for stem, columns in found.items()}


def numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """The stems with the most columns, which are the features; empty if these are too few."""
    runs = all_numbered(names)
    most = max(map(len, runs.values()), default=0)
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
    texts = [name for name in others.of_kind("text") if 2 <= others.num_distinct(name) <= len(others.frame) / 2]
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
    ids, why = choose_ids(columns, others, label, files, options, "besides the steps")
    per_sequence = {name: name for name in others if name != ids}
    if label and not has_header:
        per_sequence[label] = "label"
    adds_split = bool(files[0][0]) and SPLIT_COLUMN not in per_sequence
    carried = [*per_sequence.values(), *([SPLIT_COLUMN] if adds_split else [])]
    features, num_steps = list[str](), len(next(iter(runs.values())))
    for stem in runs:  # distinct from the other columns' names
        features.append(unique(stem.strip(" _.-[(") or "value", [*carried, *features, SPLIT_COLUMN]))
    known = known_of(features, carried, why)
    if label:
        known["label"] = (per_sequence.get(label, label), label_reason(label, table, options))

    def read(file: Path, at: Callable[[int], Any]) -> Iterator[pa.Table]:
        if table is None:
            return parquet_batches(names, path, file, at)
        form = text_tables.sniff(file, options.get("encoding")) if file != path else table
        return text_tables.blocks(form, {name: pa.float64() for name in of_steps}, at)

    def blocks(at: Callable[[int], Any]) -> Iterator[pa.Table]:
        seen = set[Any]()
        for part, split, number, _ in batches_of(files, names, path, read, at):
            values = np.empty((part.num_rows, num_steps, len(features)))
            for place, run in enumerate(runs.values()):
                for step, name in enumerate(run):
                    values[:, step, place] = to_numbers(part[name], name, path)
            extra = part.select([*per_sequence]).rename_columns([*per_sequence.values()])
            if adds_split:
                extra = extra.append_column(SPLIT_COLUMN, pa.array([split] * part.num_rows))
            own = ids_of(part, ids, number, seen, path)
            yield long_block(own, values, lengths_of(values), features, extra)

    first_run = shortened(next(iter(runs.values())), 3)
    notes = [note, ("steps", f"{num_steps}", f"{first_run}; empty cells at the end of a row end it")]
    if fewer := [run for run in all_numbered(of_features).values() if FEWEST_STEPS <= len(run) < num_steps]:
        shown = "; ".join(shortened(run, 3) for run in fewer[:4])
        notes.append(("other", shown, f"numbered, but not {num_steps}, so they belong to the sequence, not to steps"))
    used = ("sequence", *(() if has_header else ("label",)))
    return LongTableSource.of_files(files, [*notes, *parts_notes(files)], known, blocks, used)


def choose_ids(
    columns: TableColumns,
    names: Sequence[str],
    label: str | None,
    files: Sequence[SplitFile],
    options: Mapping[str, Any],
    where: str,
) -> tuple[str | None, str]:
    """The column of ids: as asked for, or by name with a different value in every row. None for several files, each of
    which may count from 1. Also the reason.
    """
    found = named(SEQUENCE_NAMES, [name for name in names if name != label]) if len(files) == 1 else []
    ids = options.get("sequence") or next((name for name in found if columns.frame[name].is_unique), None)
    if ids is not None and ids not in names:
        raise ValueError(f"--sequence is {ids!r}, which is no column {where}; accepted: {', '.join(names)}")
    return ids, "as requested" if "sequence" in options else f"column {ids!r}" if ids else "the number of the row"


def ids_of(part: pa.Table, ids: str | None, number: int, seen: set[Any], path: Path) -> pa.Array:
    """The id of each row, by the column `ids` or from `number` on. Adds those of a column to `seen`.

    Raises ValueError if one is already there: two sequences would be merged.
    """
    if ids is None:
        return pa.array(np.arange(number, number + part.num_rows))
    for name in part[ids].to_pylist():
        if name in seen:
            raise ValueError(
                f"{path.name}: column {ids!r} holds {name!r} twice, and every row is a sequence of its own; name "
                "another column with --sequence, or leave this one out"
            )
        seen.add(name)
    return part[ids].combine_chunks()


def batches_of(
    files: Sequence[SplitFile],
    names: Sequence[str],
    like: Path,
    read: Callable[[Path, Callable[[int], Any]], Iterator[pa.Table]],
    at: Callable[[int], Any],
) -> Iterator[tuple[pa.Table, str, int, tuple[Path, int]]]:
    """Some rows of a file, its split, the number of the first of them among all rows, and the file with that number
    within it. Raises ValueError if a file lacks a column of `like`.
    """
    number, before = 0, 0
    for split, path in files:
        row = 0
        for part in read(path, partial(lambda before, place: at(before + place), before)):
            check_names(path, part.column_names, names, like)
            yield part, split, number + row, (path, row)
            row += part.num_rows
        number, before = number + row, before + path.stat().st_size


def check_names(path: Path, have: Sequence[str], names: Sequence[str], like: Path) -> None:
    if missing := [name for name in names if name not in have]:
        raise ValueError(f"{path.name} has no column {missing[0]!r}, which {like.name} has; make them alike")


def parquet_batches(names: Sequence[str], like: Path, path: Path, at: Callable[[int], Any]) -> Iterator[pa.Table]:
    """The columns `names` of a file, in blocks of about BLOCK_CELLS cells or entries of lists."""
    try:
        with pa.parquet.ParquetFile(path) as file:
            check_names(path, file.schema_arrow.names, names, like)
            metadata, done = file.metadata, 0
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            num_cells = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
            num_rows = max(1, BLOCK_CELLS * metadata.num_rows // max(1, num_cells))
            for batch in file.iter_batches(num_rows, columns=names):
                yield pa.Table.from_batches([batch])
                done += batch.num_rows
                at(path.stat().st_size * done // metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} cannot be read as Parquet: {one_line(error)}") from None


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
    others = columns.of_kind("text", "whole", "number", exclude=steps)
    if found := named(LABEL_NAMES, others):
        return found[0]
    repeats = [name for name in others if 2 <= columns.num_distinct(name) <= len(columns.frame) // 2]
    texts = [name for name in repeats if columns.kinds[name] == "text"]
    others = [name for name in others if not named(SEQUENCE_NAMES, [name])]
    return next(iter([*texts[-1:], *repeats[-1:], *others[-1:]]), None)


def label_reason(label: str, table: TextTable | None, options: Mapping[str, Any]) -> str:
    if "label" in options:
        return "as requested"
    if table is not None and not table.has_header:
        return f"column {label} of {len(table.names)} (--label selects another by its number)"
    return "by its name" if named(LABEL_NAMES, [label]) else "not a step (--label selects another)"


def to_numbers(cells: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    """(N,) float64; an empty cell is NaN."""
    try:
        return np.asarray(cells.cast(pa.float64()).to_numpy())
    except pa.ArrowException:
        raise ValueError(
            f"{path.name}: column {name!r} must hold numbers, found {cells.type}; correct the table"
        ) from None
