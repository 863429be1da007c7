"""Sequences in any shape -> the long table that preprocess reads: a row per step, written in blocks.

N sequences of a block, T steps of the longest, C features, R rows of the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tandem.importing.columns import Choices
from tandem.importing.progress import progress
from tandem.importing.text_tables import Note
from tandem.params.parsing import one_line

Progress = Callable[[int], Any]
Blocks = Callable[[Progress], Iterator[pa.Table]]
SplitFile = tuple[str, Path]  # a file and its split; empty if its name contains none
BLOCK_CELLS = 4_000_000  # per block and per row group of the written table


@dataclass(frozen=True)
class LongTableSource:
    """Sequences found at a path; they are read later."""

    sources: list[Path]  # files, or one folder
    notes: list[Note]  # what was detected, and why
    known: Choices  # columns given by the shape: sequence, step, possibly label, task or groups
    blocks: Blocks  # whole sequences; argument: progress callback
    total: int  # the progress at the end, in `unit`
    unit: str = "B"
    used: tuple[str, ...] = ()  # options that name columns of the source, which have other names in the long table

    @classmethod
    def of_files(
        cls, files: Sequence[SplitFile], notes: list[Note], known: Choices, blocks: Blocks, used: tuple[str, ...] = ()
    ) -> "LongTableSource":
        """The progress is the number of bytes read."""
        paths = [path for _, path in files]
        return cls(paths, notes, known, blocks, sum(path.stat().st_size for path in paths), used=used)


def write(shape: LongTableSource, target: Path) -> None:
    """Write the long table as Parquet, one row group per block, so the largest block limits the memory.

    Sequences keep the order of the source. Raises ValueError if a block differs from the first one in its columns.
    """
    writer, name = None, str(shape.sources[0])
    with progress(f"converting {name}", shape.total, shape.unit) as at:
        try:
            for block in shape.blocks(at):
                if block.num_rows:
                    writer = writer or pa.parquet.ParquetWriter(target, block.schema, compression="zstd")
                    writer.write_table(cast_as(block, writer.schema, name), row_group_size=block.num_rows)
        finally:
            if writer is not None:
                writer.close()
    if writer is None:
        raise ValueError(f"{name} holds no sequence")


@contextmanager
def open_parquet(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Raises ValueError if the file is no Parquet or is damaged. It has the file's own columns: pyarrow's read_table
    would add columns for folders named `a=b`.
    """
    try:
        with pa.parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {one_line(error)}") from None


def cast_as(block: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Cast numbers of another width, as of a second array, to the first's. Raises ValueError if they do not fit."""
    try:
        return block.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"the parts of {name} hold other columns or kinds of cells: {one_line(error)}") from None


def unique(name: str, taken: Sequence[str]) -> str:
    """`name`, with a character appended each time that it is taken."""
    while name in taken:
        name += "_"
    return name


def real_steps(values: np.ndarray, first: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """values (N, T, C) -> the number of steps of each sequence before only NaN follows, and the values (R,) of each
    feature, one sequence after another. `first`: the number of the first sequence.

    Raises ValueError if a sequence has no step: it would disappear.
    """
    lengths = np.full(len(values), values.shape[1])
    if values.dtype.kind == "f":
        real = ~np.isnan(values).all(axis=2)
        lengths = np.where(real.any(axis=1), values.shape[1] - real[:, ::-1].argmax(axis=1), 0)
    for without in np.flatnonzero(lengths == 0)[:1]:
        raise ValueError(f"sequence {first + without} has no value at all; leave it out, or give it values")
    steps = values[np.arange(values.shape[1])[None, :] < lengths[:, None]]
    return lengths, [np.ascontiguousarray(steps[:, place]) for place in range(values.shape[2])]


def rows_of(ids: Any, cells: Mapping[str, Any], lengths: np.ndarray, per_sequence: pa.Table) -> pa.Table:
    """`cells`: the values (R,) of each feature, one sequence after another."""
    sequence, step = keys_of([*cells], per_sequence.column_names)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = {sequence: pa.array(ids).take(pa.array(owner)), step: pa.array(steps.astype(np.int32)), **cells}
    for name, kind in zip(per_sequence.column_names, per_sequence.schema.types, strict=True):
        own = per_sequence[name]
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):  # stored once per sequence, not per step
            own = own.dictionary_encode()
        columns[name] = own.take(pa.array(owner))
    return pa.table(columns)


def parts_notes(files: Sequence[SplitFile]) -> list[Note]:
    """What to say of the two files whose names differ in train and test."""
    names = " and ".join(path.name for _, path in files)
    return (
        [("files", names, "train and test, which define the split (--alone reads one file)")] if len(files) > 1 else []
    )


def keys_of(features: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """The names of the columns for the sequence of a row and for its position in it."""
    taken = [*features, *others]
    return unique("sequence", taken), unique("step", taken)


def known_of(features: Sequence[str], others: Sequence[str], why: str) -> Choices:
    sequence, step = keys_of(features, others)
    return {"sequence": (sequence, why), "step": (step, "the position in the sequence, from 0")}
