"""Sequences in whatever shape -> the long table that preprocess reads: a row per step, written block by block.

N sequences of a block, T steps of the longest, C features, R rows of the table.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from tqdm import tqdm

from stages.data.tables import LARGEST
from stages.tools.columns import Choices
from stages.tools.text_tables import Note

BLOCK_CELLS = 4_000_000  # of one block, and of one row group of the table that is written


@dataclass(frozen=True)
class Shape:
    """Sequences found at a path, not yet read."""

    sources: list[Path]  # files, or one folder
    notes: list[Note]  # what was found out, and why
    known: Choices  # the columns that follow from the shape: sequence, step, perhaps label
    blocks: Callable[[Callable[[int], Any]], Iterator[pa.Table]]  # whole sequences each; the argument hears of progress
    total: int  # what that comes to, in `unit`
    unit: str = "B"


@dataclass
class Index:
    """Of a table that was written: where each sequence lies, so that some can be read without the others."""

    lengths: list[np.ndarray] = field(default_factory=list)  # (N,) of each block
    codes: list[np.ndarray] = field(default_factory=list)  # (N,) of each block, the numbers of `labels`; 0 without any
    labels: dict[Any, int] = field(default_factory=dict)
    num_missing: dict[str, int] = field(default_factory=dict)  # cells without a number, by column

    def add(self, lengths: np.ndarray, labels: list[Any]) -> None:
        self.lengths.append(lengths.astype(np.int32))
        found = [self.labels.setdefault(label, len(self.labels)) for label in labels]
        self.codes.append(np.array(found or np.zeros(len(lengths)), dtype=np.int32))


def write(shape: Shape, target: Path) -> Index:
    """The long table as Parquet, a row group a block: memory is bounded by the largest block.

    Sorted by nothing: sequences come as the shape has them. Raises ValueError where a block is not as the first.
    """
    index, writer = Index(), None
    label = shape.known["label"][0] if "label" in shape.known else None
    sequence = shape.known["sequence"][0]
    with progress(f"converting {shape.sources[0].name}", shape.total, shape.unit) as at:
        try:
            for block in shape.blocks(at):
                if not block.num_rows:
                    continue
                if writer is None:
                    writer = pa.parquet.ParquetWriter(target, block.schema, compression="zstd")
                count_numbers(block, index)
                writer.write_table(block, row_group_size=block.num_rows)
                _, first, counts = np.unique(as_codes(block[sequence]), return_index=True, return_counts=True)
                order = np.argsort(first)
                at_first = pa.array(first[order])
                index.add(counts[order], [] if label is None else block[label].take(at_first).to_pylist())
        finally:
            if writer is not None:
                writer.close()
    if writer is None:
        raise ValueError(f"{shape.sources[0].name} holds no sequence")
    return index


def count_numbers(block: pa.Table, index: Index) -> None:
    """What a sample of a large table may not show. Raises ValueError where a number is too large to be a feature."""
    for name in block.column_names:
        if not pa.types.is_floating(block[name].type):
            continue
        missing = pc.sum(pc.is_null(block[name], nan_is_null=True)).as_py()
        index.num_missing[name] = index.num_missing.get(name, 0) + (missing or 0)
        limits = pc.min_max(block[name]).as_py()
        for number in limits.values():
            if number is not None and abs(number) > LARGEST:
                raise ValueError(
                    f"column {name!r} must hold numbers from {-LARGEST:g} to {LARGEST:g}, found {number}; correct the "
                    "data and run again"
                )


def as_codes(cells: pa.ChunkedArray) -> np.ndarray:
    combined = cells.combine_chunks()
    combined = combined if isinstance(combined, pa.DictionaryArray) else combined.dictionary_encode()
    return combined.indices.to_numpy()


class progress:
    """A line with rate and time left on stderr where it lasts more than a second; `at(n)` says how far it is."""

    def __init__(self, title: str, total: int, unit: str):
        often = 0.5 if sys.stderr.isatty() else 5.0
        kind = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit == "B" else {"unit": f" {unit}"}
        self.bar = tqdm(total=total, desc=title, delay=1.0, mininterval=often, leave=False, file=sys.stderr, **kind)

    def __enter__(self) -> Callable[[int], Any]:
        return lambda place: self.bar.update(max(0, place - self.bar.n))

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def unique(name: str, taken: Sequence[str]) -> str:
    """`name`, with a sign more for each time that it is taken."""
    while name in taken:
        name += "_"
    return name


def lengths_of(values: np.ndarray) -> np.ndarray:
    """(N,) how many steps of values (N, T, C) come before nothing but NaN follows."""
    if values.dtype.kind != "f":
        return np.full(len(values), values.shape[1])
    real = ~np.isnan(values).all(axis=2)
    return np.where(real.any(axis=1), values.shape[1] - real[:, ::-1].argmax(axis=1), 0)


def long_block(
    ids: Any, values: np.ndarray, lengths: np.ndarray, features: Sequence[str], per_sequence: pa.Table
) -> pa.Table:
    """values (N, T, C), of which lengths (N,) are real; a row gets its sequence's cells of `per_sequence` (N rows)."""
    real = np.arange(values.shape[1])[None, :] < lengths[:, None]
    return rows_of(ids, values[real], lengths, features, per_sequence)


def rows_of(
    ids: Any, values: np.ndarray, lengths: np.ndarray, features: Sequence[str], per_sequence: pa.Table
) -> pa.Table:
    """values (R, C): the steps of one sequence after those of the other."""
    sequence, step = keys_of(features, per_sequence.column_names)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = {sequence: pa.array(ids).take(pa.array(owner)), step: pa.array(steps.astype(np.int32))}
    columns |= {name: pa.array(np.ascontiguousarray(values[:, place])) for place, name in enumerate(features)}
    columns |= {name: per_sequence[name].take(pa.array(owner)) for name in per_sequence.column_names}
    return pa.table(columns)


def keys_of(features: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """The names of the columns that say which sequence a row belongs to, and its place in it."""
    taken = [*features, *others]
    return unique("sequence", taken), unique("step", taken)


def known_of(features: Sequence[str], others: Sequence[str], why: str, label: str | None = None) -> Choices:
    sequence, step = keys_of(features, others)
    known: Choices = {"sequence": (sequence, why), "step": (step, "the place in the sequence, from 0")}
    return known | ({"label": (label, "")} if label else {})
