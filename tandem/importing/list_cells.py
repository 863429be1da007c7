"""Parquet with one row per sequence whose cells are lists, as in Hugging Face data sets.

A column of lists has an entry for each step: numbers are a feature, words may be events. Every other column belongs to
the sequence. Several files (train-00000-of-00002.parquet, ...) are read in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.tables import is_plain
from tandem.importing.array_files import word_and_split
from tandem.importing.columns import TableColumns, shortened
from tandem.importing.long_table import (
    Block,
    Progress,
    SequenceSource,
    SplitFile,
    each_block,
    num_bytes,
    open_parquet,
)
from tandem.importing.text_tables import Note
from tandem.importing.wide import choose_ids, known_label, parquet_batches


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


def open_lists(
    path: Path, files: Sequence[SplitFile], columns: TableColumns, options: Mapping[str, Any], note: Note
) -> SequenceSource:
    """`columns`: the first rows of `path`, one of the files, without its lists."""
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

    def blocks(at: Progress) -> Iterator[Block]:
        for split, file, first, rows in each_block(files, partial(parquet_batches, [*lists, *plain], path), at):
            yield Block(*flattened(lists, rows, file, first), rows.select(plain), split)

    return SequenceSource(
        sources=[file for _, file in files],
        notes=notes,
        features=lists,
        per_sequence=plain,
        blocks=blocks,
        total=num_bytes(files),
        ids=choose_ids(columns, plain, files, options, "without lists"),
        choices=known_label(columns, plain, options),
        used=("sequence",),
    )


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
