"""Sequences in any shape -> the long table that preprocess reads: a row per step, written in blocks.

N sequences of a block, T steps of the longest, C features, R rows of the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from stages.params.parsing import one_line
from stages.tools.columns import Choices
from stages.tools.progress import progress
from stages.tools.text_tables import Note

Blocks = Callable[[Callable[[int], Any]], Iterator[pa.Table]]
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
    writer, name = None, shape.sources[0].name
    with progress(f"converting {name}", shape.total, shape.unit) as at:
        try:
            for block in shape.blocks(at):
                if block.num_rows:
                    writer = writer or pa.parquet.ParquetWriter(target, block.schema, compression="zstd")
                    writer.write_table(block.cast(writer.schema), row_group_size=block.num_rows)
        except pa.ArrowException as error:  # a number of a second array that the first one's type does not hold
            why = one_line(error)
            raise ValueError(f"the parts of {name} hold other kinds of cells than the first one: {why}") from None
        finally:
            if writer is not None:
                writer.close()
    if writer is None:
        raise ValueError(f"{name} holds no sequence")


def unique(name: str, taken: Sequence[str]) -> str:
    """`name`, with a character appended each time that it is taken."""
    while name in taken:
        name += "_"
    return name


def lengths_of(values: np.ndarray) -> np.ndarray:
    """(N,) for values (N, T, C), the number of steps before only NaN follows."""
    if values.dtype.kind != "f":
        return np.full(len(values), values.shape[1])
    real = ~np.isnan(values).all(axis=2)
    return np.where(real.any(axis=1), values.shape[1] - real[:, ::-1].argmax(axis=1), 0)


def long_block(
    ids: Any, values: np.ndarray, lengths: np.ndarray, features: Sequence[str], per_sequence: pa.Table
) -> pa.Table:
    """values (N, T, C), of which lengths (N,) steps are real; each row gets its sequence's cells of `per_sequence`
    (N rows).

    Raises ValueError if a sequence has no step: it would disappear.
    """
    without = np.flatnonzero(lengths == 0)
    if len(without):
        raise ValueError(
            f"sequence {ids[int(without[0])]} has no value at all ({len(without):,} of these {len(lengths):,} have "
            "none); leave it out, or give it values"
        )
    real = np.arange(values.shape[1])[None, :] < lengths[:, None]
    steps = values[real]
    cells = {name: np.ascontiguousarray(steps[:, place]) for place, name in enumerate(features)}
    return rows_of(ids, cells, lengths, per_sequence)


def rows_of(ids: Any, cells: Mapping[str, Any], lengths: np.ndarray, per_sequence: pa.Table) -> pa.Table:
    """`cells`: the values (R,) of each feature, one sequence after another."""
    sequence, step = keys_of([*cells], per_sequence.column_names)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = {sequence: pa.array(ids).take(pa.array(owner)), step: pa.array(steps.astype(np.int32)), **cells}
    columns |= {name: per_sequence[name].take(pa.array(owner)) for name in per_sequence.column_names}
    return pa.table(columns)


def parts_notes(files: Sequence[SplitFile]) -> list[Note]:
    """What to say of the two files whose names differ in train and test."""
    names = " and ".join(path.name for _, path in files)
    return [("files", names, "its parts, so the split (--alone reads one)")] if len(files) > 1 else []


def keys_of(features: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """The names of the columns for the sequence of a row and for its position in it."""
    taken = [*features, *others]
    return unique("sequence", taken), unique("step", taken)


def known_of(features: Sequence[str], others: Sequence[str], why: str, label: str | None = None) -> Choices:
    sequence, step = keys_of(features, others)
    known: Choices = {"sequence": (sequence, why), "step": (step, "the place in the sequence, from 0")}
    return known | ({"label": (label, "")} if label else {})
