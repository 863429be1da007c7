"""Sequences in any shape -> the long table that preprocess reads: a row per step.

N sequences, T steps of the longest, C features, R rows of the table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tandem.data.tables import SPLIT_COLUMN, columns_to_read, is_plain
from tandem.importing.columns import Choices
from tandem.importing.headers import Note
from tandem.terminal.messages import one_line

SplitFile = tuple[str, Path]  # a file and its split; empty if its name contains none


@dataclass(frozen=True)
class Source:
    """The data at a path, as a table with a row per step or per time."""

    sources: list[Path]  # files, or one folder
    notes: list[Note]  # what was detected, and why
    read: Callable[[], pa.Table] | None = None  # the table; None: the file is used as it is
    name: str = ""  # of the table, with the ending that states its format; empty: that of the workload, as Parquet
    shape_choices: Choices = field(default_factory=dict)  # that follow from the shape; none for a long table
    source_line: Callable[[Path, int], int] | None = None  # (written table, its line) -> the line in the source
    used_options: tuple[str, ...] = ()  # they name columns of the source, which have other names in the long table
    cells: pa.Table | None = None  # of a text table that is used as it is, if preprocess reads the same


class Part(NamedTuple):
    """The sequences of one file, array or folder."""

    lengths: np.ndarray  # (N,)
    cells: Sequence[Any]  # (R,) for each feature, one sequence after another
    per_sequence: pa.Table  # N rows: the columns with one cell for each sequence
    split: str = ""


def as_long_table(
    sources: list[Path],
    notes: list[Note],
    read: Callable[[], Iterable[Part]],
    features: Sequence[str],
    per_sequence: Sequence[str],
    ids: tuple[str | None, str],
    step: tuple[str | None, str] = (None, "the position in the sequence, from 0"),
    choices: Choices | None = None,
    used_options: tuple[str, ...] = (),
) -> Source:
    """The long table of the parts that `read` gives: the columns sequence, step (if it is counted), `per_sequence`
    without the ids, and `features`.

    `ids`: the column of `per_sequence` with the ids, or None for numbers, and the reason. `step`: the feature that is
    the step, or None if it is counted, and the reason. `choices`: of other columns: the label, the task or the groups.
    """
    taken = [name for name in per_sequence if name != ids[0]]
    for name in features:  # distinct from the other columns' names
        taken.append(unused_name(name, taken))
    names = taken[len(taken) - len(features) :]
    sequence, counted = (unused_name(key, taken) for key in ("sequence", "step"))
    all_choices = {"sequence": (sequence, ids[1]), "step": (step[0] or counted, step[1]), **(choices or {})}

    def rows_of(part: Part, first_number: int) -> pa.Table:
        lengths = part.lengths
        owner = np.repeat(np.arange(len(lengths)), lengths)
        columns: dict[str, Any] = {sequence: first_number + owner}
        if step[0] is None:
            starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
            columns[counted] = pa.array(np.arange(len(owner)) - starts, pa.int32())
        for name, column in zip(per_sequence, part.per_sequence.columns, strict=True):
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            is_repeated = is_text and name != ids[0]
            cells = (column.dictionary_encode() if is_repeated else column).take(pa.array(owner))  # text is stored once
            columns[sequence if name == ids[0] else name] = cells
        columns |= zip(names, part.cells, strict=True)
        if part.split:
            columns.setdefault(SPLIT_COLUMN, pa.repeat(part.split, len(owner)))
        return pa.table(columns)

    def long_table() -> pa.Table:
        tables, number = list[pa.Table](), 0
        for part in read():
            if len(part.lengths):
                table = rows_of(part, number)
                tables.append(cast_as(table, tables[0].schema, str(sources[0])) if tables else table)
            number += len(part.lengths)
        if not tables:
            raise ValueError(f"{sources[0]} holds no sequence")
        return pa.concat_tables(tables).unify_dictionaries()

    return Source(sources, notes, long_table, shape_choices=all_choices, used_options=used_options)


@contextmanager
def open_parquet(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Raises ValueError if the file is no Parquet, is damaged, or has a column twice. It has the file's own columns:
    pyarrow's read_table would add columns for folders named `a=b`.
    """
    try:
        with pa.parquet.ParquetFile(path) as file:
            columns_to_read(str(path), file.schema_arrow.names, file.schema_arrow.names)
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {one_line(error)}") from None


def read_parquet(path: Path) -> pa.Table:
    """All columns without lists and the like."""
    with open_parquet(path) as file:
        return file.read([field.name for field in file.schema_arrow if is_plain(field.type)])


def cast_as(part: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Cast numbers of another width, as of a second array, to the first's. Raises ValueError if they do not fit."""
    try:
        return part.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"the parts of {name} hold other columns or kinds of cells: {one_line(error)}") from None


def unused_name(name: str, taken: Sequence[str]) -> str:
    """`name`, with a character appended each time that it is taken."""
    while name in taken:
        name += "_"
    return name


def real_steps(values: np.ndarray, shown: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """values (N, T, C) -> the number of steps of each sequence without padding, steps of only NaN at its start or end,
    and the values (R,) of each feature, one sequence after another.

    Raises ValueError if a sequence has no step: it would disappear. `shown`: where the sequences are.
    """
    starts, ends = np.zeros(len(values), dtype=np.int64), np.full(len(values), values.shape[1])
    if values.dtype.kind == "f":
        is_real = ~np.isnan(values).all(axis=2)
        starts = is_real.argmax(axis=1)
        ends = np.where(is_real.any(axis=1), values.shape[1] - is_real[:, ::-1].argmax(axis=1), 0)
    for empty in np.flatnonzero(ends == 0)[:1]:
        raise ValueError(f"{shown}: sequence {empty} has no value at all; leave it out, or give it values")
    places = np.arange(values.shape[1])[None, :]
    lengths, steps = ends - starts, values[(starts[:, None] <= places) & (places < ends[:, None])]
    return lengths, [np.ascontiguousarray(steps[:, place]) for place in range(values.shape[2])]


def parts_notes(files: Sequence[SplitFile]) -> list[Note]:
    """What to say of the two files whose names differ in train and test."""
    names = " and ".join(path.name for _, path in files)
    return (
        [("files", names, "train and test, which define the split (--alone reads one file)")] if len(files) > 1 else []
    )
