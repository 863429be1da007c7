"""One row per sequence: the steps are numbered columns, as in public archives, or lists in the cells of Parquet, as in
Hugging Face data sets. The other columns belong to the sequence.

`x_0 ... x_49, y_0 ... y_49` are 50 steps of two features; `0 ... 95`, or columns without a header, are one feature. A
column of lists has an entry for each step: numbers are a feature, words may be events. Several Parquet files
(train-00000-of-00002.parquet, ...) are read in order.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.tables import is_plain
from tandem.importing import text_tables
from tandem.importing.array_files import word_and_split
from tandem.importing.columns import TableColumns, named, shortened
from tandem.importing.infer_sequences import LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES, find_ids, find_steps
from tandem.importing.infer_series import find_times
from tandem.importing.long_table import (
    BLOCK_CELLS,
    Block,
    Progress,
    SequenceSource,
    SplitFile,
    each_block,
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
    If the first sequence is longer than the rows that are known, only names show it.
    """
    ids = [name for name in named(SEQUENCE_NAMES, others.kinds) if by_name and others.num_distinct(name) == 1]
    ids += [
        name for name in find_ids(others) if name not in named(LABEL_NAMES, [name]) or named(SEQUENCE_NAMES, [name])
    ]
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
    """Numbered columns. `table`: the format of `path`, one of the files; None: Parquet. `columns`: the first rows."""
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
    [first_run, *_] = runs.values()
    of_steps = {name for run in runs.values() for name in run}
    others = [name for name in names if name not in of_steps]

    def read(file: Path, at: Progress) -> Iterator[pa.Table]:
        if table is None:
            return parquet_batches(names, path, file, at)
        form = text_tables.sniff(file, options) if file != path else table
        check_names(file, form.names, names, path)
        return text_tables.read_blocks(form, {name: pa.float64() for name in of_steps}, at)

    def cells_of(rows: pa.Table, file: Path, first: int) -> tuple[np.ndarray, list[Any]]:
        values = np.empty((rows.num_rows, len(first_run), len(runs)))
        for place, run in enumerate(runs.values()):
            for step, name in enumerate(run):
                values[:, step, place] = to_numbers(rows[name], name, file)
        return real_steps(values, first)

    steps = ("steps", f"{len(first_run)}", f"{shortened(first_run, 3)}; empty cells at the end of a row end it")
    features, where = [stem.strip(" _.-[(") or "value" for stem in runs], "besides the steps"
    found = row_per_sequence(
        files, columns, others, options, features, read, cells_of, [note, steps, *parts_notes(files)], where
    )
    if has_header:
        return found
    why = f"column {label} of {len(names)} (--label selects another by its number)"
    known = {"label": ("label", "as requested" if "label" in options else why)}
    return replace(found, per_sequence=["label"], choices=known, used=("sequence", "label"))


def open_lists(
    path: Path, files: Sequence[SplitFile], columns: TableColumns, options: Mapping[str, Any], note: Note
) -> SequenceSource:
    """Lists in the cells of Parquet. `columns`: the first rows of `path`, one of the files, without its lists."""
    lists, plain = list_columns(path), list(columns.frame.columns)
    asked = {*options.get("features", ()), options.get("label"), options.get("step")}
    if "features" in options and asked & {*lists}:
        lists = [name for name in lists if name in asked]
    notes = [note, ("lists", shortened(lists), "one entry per step")]
    if left := [each.name for each in schema_of(path) if not is_plain(each.type) and each.name not in lists]:
        notes.append(
            ("excluded", shortened(left, 4), "lists that --features does not name, lists of lists, or other types")
        )
    if len(files) > 1:
        what = "their names define the split" if files[0][0] else "read one after another"
        notes.append(("files", shortened([path.name for _, path in files], 4), f"{len(files)}, {what}"))
    read, cells_of = partial(parquet_batches, [*lists, *plain], path), partial(flattened, lists)
    return row_per_sequence(files, columns, plain, options, lists, read, cells_of, notes, "without lists")


def row_per_sequence(
    files: Sequence[SplitFile],
    columns: TableColumns,
    others: Sequence[str],
    options: Mapping[str, Any],
    features: Sequence[str],
    read: Callable[[Path, Progress], Iterator[pa.Table]],
    cells_of: Callable[[pa.Table, Path, int], tuple[np.ndarray, list[Any]]],
    notes: list[Note],
    where: str,
) -> SequenceSource:
    """`others`: the columns that belong to the sequence. `cells_of`: from some rows of a file and the number of the
    first one to the number of steps of each row, and the cells of each feature.
    """

    def blocks(at: Progress) -> Iterator[Block]:
        for split, file, first, rows in each_block(files, read, at):
            yield Block(*cells_of(rows, file, first), rows.select(others), split)

    # The label by its name, if a column with one cell for each sequence has it: it comes before those of steps.
    labels = named(LABEL_NAMES, columns.of_kind("text", "flag", "whole", "number"))
    label = next((name for name in labels if name in others), None) if "label" not in options else None
    return SequenceSource(
        sources=[file for _, file in files],
        notes=notes,
        features=features,
        per_sequence=others,
        blocks=blocks,
        total=sum(file.stat().st_size for _, file in files),
        ids=choose_ids(columns, others, files, options, where),
        choices={"label": (label, "by its name")} if label else {},
        used=("sequence",),
    )


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


def list_columns(path: Path) -> list[str]:
    """The columns whose cells are lists of numbers, words or times. Raises ValueError if the file is no Parquet."""
    return [each.name for each in schema_of(path) if is_list(each.type) and is_plain(each.type.value_type)]


def check_not_nested(path: Path) -> None:
    """Raises ValueError if only lists of lists could hold a sequence."""
    for each in schema_of(path):
        if is_list(each.type) and is_list(each.type.value_type):
            raise ValueError(
                f"{path}: the cells of {each.name!r} are lists of lists; write a column of lists for each "
                "feature, or an array (N, T, C) with numpy.savez(path, X=X, y=y)"
            )


def schema_of(path: Path) -> pa.Schema:
    with open_parquet(path) as file:
        return file.schema_arrow


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def splits_by_name(paths: Sequence[Path]) -> list[SplitFile]:
    """Each path with its split, if the names of all files or folders contain one and some are for test."""
    splits = [word_and_split(path.stem)[1] or word_and_split(path.parent.name)[1] for path in paths]
    are_all = all(splits) and {"train", "test"} <= {*splits}
    return list(zip(splits if are_all else [""] * len(paths), paths, strict=True))


def flattened(lists: Sequence[str], part: pa.Table, path: Path, row: int) -> tuple[np.ndarray, list[pa.Array]]:
    """(N,) the number of steps of each row, and the entries of each list column, concatenated row after row.

    Raises ValueError if two columns have different numbers of entries in a row, or if a row has none.
    """
    lengths, cells = np.zeros(0, dtype=np.int64), list[pa.Array]()
    for name in lists:
        column = part[name].combine_chunks()
        own = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        lengths = lengths if cells else own
        for place in np.flatnonzero(own != lengths)[:1]:
            raise ValueError(
                f"{path}, row {row + place + 1}: {lists[0]!r} has {lengths[place]:,} entries and {name!r} "
                f"{own[place]:,}; correct the table, or name those that go together with --features"
            )
        flat = pc.list_flatten(column)
        cells.append(flat.cast(pa.float32()) if pa.types.is_float16(flat.type) else flat)
    for place in np.flatnonzero(lengths == 0)[:1]:
        raise ValueError(f"{path}, row {row + place + 1}: its lists are empty; leave the row out, or fill them")
    return lengths, cells
