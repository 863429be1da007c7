"""Sequences in any shape -> the long table that preprocess reads: a row per step, written in blocks.

N sequences of a block, T steps of the longest, C features, R rows of the table.
"""

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tandem.data.tables import SPLIT_COLUMN
from tandem.importing.columns import Choices
from tandem.importing.progress import progress
from tandem.importing.text_tables import Note
from tandem.params.parsing import one_line

Progress = Callable[[int], Any]
SplitFile = tuple[str, Path]  # a file and its split; empty if its name contains none
Rows = TypeVar("Rows", bound=Sized)
BLOCK_CELLS = 4_000_000  # per block and per row group of the written table


class Block(NamedTuple):
    """Some whole sequences."""

    lengths: np.ndarray  # (N,)
    cells: Sequence[Any]  # (R,) for each feature, one sequence after another
    per_sequence: pa.Table  # N rows: the columns with one cell for each sequence
    split: str = ""


@dataclass(frozen=True)
class SequenceSource:
    """Sequences found at a path; they are read later."""

    sources: list[Path]  # files, or one folder
    notes: list[Note]  # what was detected, and why
    features: Sequence[str]
    per_sequence: Sequence[str]  # the other columns
    blocks: Callable[[Progress], Iterator[Block]]
    total: int  # the progress at the end, in `unit`
    ids: tuple[str | None, str]  # the column of `per_sequence` with the ids, or None for numbers, and the reason
    unit: str = "B"
    # The feature that is the step, or None if it is counted, and the reason.
    step: tuple[str | None, str] = (None, "the position in the sequence, from 0")
    choices: Choices = field(default_factory=dict)  # of other columns: the label, the task or the groups
    used: tuple[str, ...] = ()  # options that name columns of the source, which have other names in the long table
    is_converted: ClassVar[bool] = True

    @property
    def names(self) -> list[str]:
        """The columns of the long table: sequence, step (if it is counted), per_sequence without the ids, features."""
        kept = [name for name in self.per_sequence if name != self.ids[0]]
        features: list[str] = []
        for name in self.features:  # distinct from the other columns' names
            features.append(unique(name, [*kept, *features]))
        keys = ("sequence",) if self.step[0] else ("sequence", "step")
        return [*(unique(key, [*kept, *features]) for key in keys), *kept, *features]

    @property
    def known(self) -> Choices:
        """The choices that follow from the shape."""
        sequence, counted, *_ = self.names
        step, why = self.step
        return {"sequence": (sequence, self.ids[1]), "step": (step or counted, why), **self.choices}


def write(source: SequenceSource, target: Path) -> None:
    """Write the long table as Parquet, one row group per block, so the largest block limits the memory.

    Sequences keep the order of the source. Raises ValueError if a block differs from the first one in its columns.
    """
    writer, shown, number = None, str(source.sources[0]), 0
    with progress(f"converting {shown}", source.total, source.unit) as at:
        try:
            for block in source.blocks(at):
                table = rows_of(block, source, number)
                number += len(block.lengths)
                writer = writer or pa.parquet.ParquetWriter(target, table.schema, compression="zstd")
                writer.write_table(cast_as(table, writer.schema, shown), row_group_size=table.num_rows)
        finally:
            if writer is not None:
                writer.close()
    if writer is None:
        raise ValueError(f"{shown} holds no sequence")


def rows_of(block: Block, source: SequenceSource, first: int) -> pa.Table:
    """The rows (R,) of a block. `first`: the number of its first sequence."""
    lengths, per_sequence = block.lengths, block.per_sequence
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ids = pa.array(np.arange(first, first + len(lengths)))
    if source.ids[0]:
        place = source.per_sequence.index(source.ids[0])
        ids, per_sequence = per_sequence.column(place), per_sequence.remove_column(place)
    columns = [ids.take(pa.array(owner))]
    if source.step[0] is None:
        columns.append(pa.array((np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)), pa.int32()))
    for own in per_sequence.columns:
        is_text = pa.types.is_string(own.type) or pa.types.is_large_string(own.type)
        columns.append((own.dictionary_encode() if is_text else own).take(pa.array(owner)))  # text is stored once
    rows = pa.table([*columns, *block.cells], names=source.names)
    if block.split and SPLIT_COLUMN not in rows.column_names:
        rows = rows.append_column(SPLIT_COLUMN, pa.repeat(block.split, len(owner)))
    return rows


def each_block(
    files: Sequence[SplitFile], read: Callable[[Path, Progress], Iterator[Rows]], at: Progress
) -> Iterator[tuple[str, Path, int, Rows]]:
    """For each block that `read` yields of each file: the split, the file, and the number of its first row in it. The
    progress is the number of bytes read.
    """
    done = 0
    for split, file in files:
        first = 0
        for rows in read(file, lambda place, done=done: at(done + place)):  # type: ignore[misc]
            if len(rows):
                yield split, file, first, rows
            first += len(rows)
        done += file.stat().st_size


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


def parts_notes(files: Sequence[SplitFile]) -> list[Note]:
    """What to say of the two files whose names differ in train and test."""
    names = " and ".join(path.name for _, path in files)
    return (
        [("files", names, "train and test, which define the split (--alone reads one file)")] if len(files) > 1 else []
    )
