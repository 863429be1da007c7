"""Parquet with one row per sequence whose cells are lists, as in Hugging Face data sets.

A column of lists has an entry for each step: numbers are a feature, words may be events. Every other column belongs to
the sequence. Several files (train-00000-of-00002.parquet, ...) are read in order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from stages.data.tables import SPLIT_COLUMN, is_plain
from stages.params.parsing import one_line
from stages.tools.array_files import word_and_split
from stages.tools.columns import TableColumns, named, shortened
from stages.tools.infer_sequences import LABEL_NAMES
from stages.tools.long_table import BLOCK_CELLS, LongTableSource, keys_of, known_of
from stages.tools.text_tables import Note
from stages.tools.wide import check_new, find_label, find_unique_ids, label_reason


def list_columns(path: Path) -> list[str]:
    """The columns whose cells are lists of numbers, words or times. Raises ValueError if the file is no Parquet."""
    return [each.name for each in schema_of(path) if is_list(each.type) and is_plain(each.type.value_type)]


def check_not_nested(path: Path) -> None:
    """Raises ValueError if only lists of lists could hold a sequence."""
    for each in schema_of(path):
        if is_list(each.type) and is_list(each.type.value_type):
            raise ValueError(
                f"{path.name}: the cells of {each.name!r} are lists of lists; write a column of lists for each "
                "feature, or an array (N, T, C) with numpy.savez(path, X=X, y=y)"
            )


def schema_of(path: Path) -> pa.Schema:
    try:
        return pa.parquet.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} cannot be read as Parquet: {one_line(error)}") from None


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def splits_by_name(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each path with its split, if the names of all files or folders contain one and some are for test."""
    splits = [word_and_split(path.stem)[1] or word_and_split(path.parent.name)[1] for path in paths]
    are_all = all(splits) and {"train", "test"} <= {*splits}
    return list(zip(splits if are_all else [""] * len(paths), paths, strict=True))


def open_lists(
    files: Sequence[tuple[str, Path]], columns: TableColumns, options: Mapping[str, Any], note: Note
) -> LongTableSource:
    """`files`: (split, path) pairs; a split is empty if the names contain none. `columns`: the first rows of the first
    file, without its lists.
    """
    lists, plain = list_columns(files[0][1]), list(columns.frame.columns)
    if asked := {*options.get("features", ()), options.get("label"), options.get("step")} & {*lists}:
        lists = [name for name in lists if name in asked] if "features" in options else lists
    label = None
    if options.get("label") not in lists and (named(LABEL_NAMES, plain) or not named(LABEL_NAMES, lists)):
        label = find_label(columns, True, options)
    ids = options.get("sequence") or find_unique_ids(columns, [name for name in plain if name != label], len(files) > 1)
    if ids is not None and ids not in plain:
        raise ValueError(f"--sequence is {ids!r}, which is no column without lists; accepted: {', '.join(plain)}")
    per_sequence = [name for name in plain if name != ids]
    adds_split = bool(files[0][0]) and SPLIT_COLUMN not in plain
    carried = [*per_sequence, *([SPLIT_COLUMN] if adds_split else [])]
    why = "asked for" if "sequence" in options else f"its column {ids!r}" if ids else "a number, a row each"
    known = known_of(lists, carried, why)
    if label:
        known["label"] = (label, label_reason(label, None, options))
    sequence, step = keys_of(lists, carried)
    needed, seen = [*lists, *plain], set[Any]()

    def blocks(at: Callable[[int], Any]) -> Iterator[pa.Table]:
        number, before = 0, 0
        for split, path in files:
            row, size = 0, path.stat().st_size
            try:
                with pa.parquet.ParquetFile(path) as file:
                    have = {*file.schema_arrow.names}
                    if missing := [name for name in needed if name not in have]:
                        raise ValueError(
                            f"{path.name} has no column {missing[0]!r}, which {files[0][1].name} has; make them alike"
                        )
                    num_rows = file.metadata.num_rows
                    for batch in file.iter_batches(rows_of_block(file.metadata), columns=needed):
                        yield long_part(batch, split, number, path, row)
                        number, row = number + batch.num_rows, row + batch.num_rows
                        at(before + size * row // num_rows)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{path.name} cannot be read as Parquet: {one_line(error)}") from None
            before += size

    def long_part(batch: pa.RecordBatch, split: str, number: int, path: Path, row: int) -> pa.Table:
        """`number`: of the first sequence. `row`: its index in the file, from 0, for messages."""
        lengths, cells = flattened(batch, lists, path, row)
        owner = pa.array(np.repeat(np.arange(batch.num_rows), lengths))
        own = pa.array(np.arange(number, number + batch.num_rows)) if ids is None else batch.column(ids)
        if ids is not None:
            check_new(own.to_pylist(), seen, f"{path.name}: column {ids!r}")
        steps = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        table = {sequence: own.take(owner), step: pa.array(steps.astype(np.int32)), **cells}
        for name in per_sequence:
            column = batch.column(name)  # long text is stored once per sequence, not per step
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            table[name] = (column.dictionary_encode() if is_text else column).take(owner)
        if adds_split:
            table[SPLIT_COLUMN] = pa.repeat(split, len(owner))
        return pa.table(table)

    notes = [note, ("lists", shortened(lists), "an entry for each step")]
    schema = schema_of(files[0][1])
    if left := [each.name for each in schema if not is_plain(each.type) and each.name not in lists]:
        notes.append(
            ("left out", shortened(left, 4), "lists that --features does not name, lists of lists, or no cells")
        )
    if len(files) > 1:
        what = "their names say the split" if files[0][0] else "one after the other"
        notes.append(("files", shortened([path.name for _, path in files], 4), f"{len(files)}, {what}"))
    paths = [path for _, path in files]
    return LongTableSource(paths, notes, known, blocks, sum(path.stat().st_size for path in paths), used=("sequence",))


def rows_of_block(metadata: pa.parquet.FileMetaData) -> int:
    """The number of rows of a file with about BLOCK_CELLS entries."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_cells = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
    return max(1, BLOCK_CELLS * metadata.num_rows // max(1, num_cells))


def flattened(
    batch: pa.RecordBatch, lists: Sequence[str], path: Path, row: int
) -> tuple[np.ndarray, dict[str, pa.Array]]:
    """(N,) the number of steps of each row, and the entries of each list column, concatenated row after row.

    Raises ValueError if two columns have different numbers of entries in a row, or if a row has none.
    """
    lengths, cells = np.zeros(0, dtype=np.int64), dict[str, pa.Array]()
    for name in lists:
        column = batch.column(name)
        own = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        lengths = lengths if cells else own
        for place in np.flatnonzero(own != lengths)[:1]:
            raise ValueError(
                f"{path.name}, row {row + place + 1}: {lists[0]!r} has {lengths[place]:,} entries and {name!r} "
                f"{own[place]:,}; correct the table, or name those that go together with --features"
            )
        flat = pc.list_flatten(column)
        cells[name] = flat.cast(pa.float32()) if pa.types.is_float16(flat.type) else flat
    for place in np.flatnonzero(lengths == 0)[:1]:
        raise ValueError(f"{path.name}, row {row + place + 1}: its lists are empty; leave the row out, or fill them")
    return lengths, cells
