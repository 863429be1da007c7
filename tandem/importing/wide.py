"""One row per sequence, as in public archives: numbered columns are the steps, the others belong to the sequence.

`x_0 ... x_49, y_0 ... y_49` are 50 steps of two features; `0 ... 95`, or columns without a header, are one feature.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.importing import text_tables
from tandem.importing.columns import Choices, TableColumns, named, shortened
from tandem.importing.infer_sequences import LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES, find_ids, find_steps
from tandem.importing.infer_series import find_times
from tandem.importing.long_table import (
    BLOCK_CELLS,
    Block,
    Progress,
    SequenceSource,
    SplitFile,
    each_block,
    num_bytes,
    open_parquet,
    parts_notes,
    real_steps,
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
) -> SequenceSource:
    """`table`: the format of `path`, one of the files; None: Parquet. `columns`: of its first rows."""
    names = list(columns.frame.columns)
    if (label := options.get("label")) and label not in names:
        raise ValueError(f"{columns.shown} has no column {label!r}; --label names one")
    has_header = table is None or table.has_header
    label = label or (None if has_header else label_without_header(columns))
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

    def blocks(at: Progress) -> Iterator[Block]:
        for split, file, first, rows in each_block(files, read, at):
            values = np.empty((rows.num_rows, num_steps, len(runs)))
            for place, run in enumerate(runs.values()):
                for step, name in enumerate(run):
                    values[:, step, place] = to_numbers(rows[name], name, file)
            yield Block(*real_steps(values, first), rows.select(others), split)

    first_run = shortened(next(iter(runs.values())), 3)
    notes = [note, ("steps", f"{num_steps}", f"{first_run}; empty cells at the end of a row end it")]
    choices, used = known_label(columns, others, options), ["sequence"]
    if not has_header:  # a number names the column
        why = "as requested" if "label" in options else f"column {label} of {len(names)} (--label selects another"
        choices, used = {"label": ("label", why if "label" in options else f"{why} by its number)")}, [*used, "label"]
    ids = choose_ids(columns, others, files, options, "besides the steps")
    return SequenceSource(
        sources=[file for _, file in files],
        notes=[*notes, *parts_notes(files)],
        features=[stem.strip(" _.-[(") or "value" for stem in runs],
        per_sequence=others if has_header else ["label"],
        blocks=blocks,
        total=num_bytes(files),
        ids=ids,
        choices=choices,
        used=tuple(used),
    )


def known_label(columns: TableColumns, others: Sequence[str], options: Mapping[str, Any]) -> Choices:
    """The label by its name, if a column with one cell for each sequence has it: it comes before those of steps."""
    found = [] if "label" in options else named(LABEL_NAMES, columns.of_kind("text", "flag", "whole", "number"))
    found = [name for name in found if name in others]
    return {"label": (found[0], "by its name")} if found else {}


def label_without_header(columns: TableColumns) -> str:
    """The first or last column, whichever is text or has repeated whole numbers; else the last."""
    names, most = list(columns.frame.columns), max(2, len(columns.frame) // 2)
    ends = [name for name in (names[0], names[-1]) if name in columns.kinds]
    texts = [name for name in ends if columns.kinds[name] == "text"]
    whole = [name for name in ends if columns.kinds[name] == "whole" and columns.num_distinct(name) <= most]
    return next(iter([*texts, *whole]), names[-1])


def choose_ids(
    columns: TableColumns,
    names: Sequence[str],
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
    found = named(SEQUENCE_NAMES, names) if len(files) == 1 else []
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


def to_numbers(cells: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    """(N,) float64; an empty cell is NaN."""
    try:
        return np.asarray(cells.cast(pa.float64()).to_numpy())
    except pa.ArrowException:
        raise ValueError(f"{path}: column {name!r} must hold numbers, found {cells.type}; correct the table") from None
