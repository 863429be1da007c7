"""Files of one sequence each, all with the same columns: finds the files and reads their rows.

Text, Parquet or npy; a sample of the files determines the kind of each column.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from stages.tools import text_tables
from stages.tools.array_files import arrays_of, as_plain_type
from stages.tools.columns import named
from stages.tools.infer_sequences import LABEL_NAMES, STEP_NAMES
from stages.tools.long_table import keys_of
from stages.tools.text_tables import Note

KINDS = {".csv": "text", ".tsv": "text", ".txt": "text", ".dat": "text", ".parquet": "parquet", ".npy": "npy"}
COMPRESSED = (".gz", ".bz2", ".xz")
NUM_SAMPLED = 10  # files sampled to determine the kinds of the columns


@dataclass(frozen=True)
class Files:
    """The sequence files of a folder, in the order of their names."""

    folder: Path
    paths: list[Path]
    kind: str

    @property
    def ids(self) -> list[str]:
        return [without_ending(path.relative_to(self.folder).as_posix()) for path in self.paths]


def without_ending(name: str) -> str:
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return re.sub(r"\.(csv|tsv|txt|dat|parquet|npy)$", "", name, flags=re.IGNORECASE)


def whole_parquet(path: Path) -> pa.Table:
    """The file's own columns: pyarrow's read_table would add columns for folders named `a=b`."""
    with pa.parquet.ParquetFile(path) as file:
        return file.read()


def ending_of(path: Path) -> str:
    """`.csv` for `a.CSV.gz`."""
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[1]


def kind_of_file(path: Path) -> str | None:
    return KINDS.get(ending_of(path))


class Reader:
    """Reads one file after another with the same columns and kinds, which a sample of the files determines."""

    def __init__(self, files: Files, options: Mapping[str, Any], taken: Sequence[str]):
        sampled = files.paths[:: max(1, len(files.paths) // NUM_SAMPLED)][:NUM_SAMPLED]
        self.kind, self.notes, self.form, self.counts = files.kind, list[Note](), None, False
        if files.kind == "text":
            self.form = text_tables.sniff(sampled[0], options.get("encoding"))
            self.notes = self.form.notes
        first = self.raw(sampled[0])
        self.names = first.column_names
        if again := [name for name in self.names if name in taken or name == "sequence"]:
            raise ValueError(
                f"{sampled[0].name} has a column {again[0]!r}, which the folder or its labels give too; rename it"
            )
        self.types = kinds_of([first, *(self.checked(self.raw(path), path) for path in sampled[1:])])
        samples = [self.read(path) for path in sampled]
        candidates = [options["step"]] if options.get("step") else named(STEP_NAMES, self.names)
        rising = [name for name in candidates if all(rises(part[name]) for part in samples)]
        self.counts = not rising
        self.step = (
            (rising[0], "it rises from row to row in the files")
            if rising
            else (keys_of(self.names, taken)[1], "the row's number in its file (--step names a column)")
        )

    def raw(self, path: Path) -> pa.Table:
        """The file with the kinds that it alone suggests."""
        try:
            if self.kind == "parquet":
                return whole_parquet(path)
            if self.kind == "npy":
                return self.of_array(path)
            assert self.form is not None
            return text_tables.whole(replace(self.form, path=path))
        except (pa.ArrowException, *text_tables.DAMAGED) as error:
            why = text_tables.one_line(error)
            raise ValueError(f"{path.name} cannot be read as {self.kind}: {why}") from None

    def of_array(self, path: Path) -> pa.Table:
        [array] = arrays_of(path)
        kind = array.values.dtype
        if len(array.values.shape) not in (1, 2) or kind.kind not in "fiub":
            more = "; of an array of many sequences give the path itself" if len(array.values.shape) == 3 else ""
            raise ValueError(
                f"{path.name} has the shape {array.values.shape} of {kind}; a sequence is (T, C) or (T,) numbers{more}"
            )
        cells = as_plain_type(array.values).reshape(array.values.shape[0], -1)
        names = ["value"] if cells.shape[1] == 1 else [f"c{number}" for number in range(cells.shape[1])]
        return pa.table({name: np.ascontiguousarray(cells[:, place]) for place, name in enumerate(names)})

    def checked(self, table: pa.Table, path: Path) -> pa.Table:
        if odd := sorted(set(table.column_names) ^ set(self.names))[:4]:
            raise ValueError(
                f"{path.name} has other columns than the files before it ({', '.join(odd)}); make them alike"
            )
        if not table.num_rows:
            raise ValueError(f"{path.name} has no rows, and every file is a sequence; leave it out, or give it some")
        return table.select(self.names)

    def read(self, path: Path) -> pa.Table:
        table = self.checked(self.raw(path), path)
        try:
            table = pa.table({name: table[name].cast(kind) for name, kind in self.types.items()})
        except pa.ArrowException as error:
            raise ValueError(
                f"{path.name} holds other kinds of cells than most files: {text_tables.one_line(error)}"
            ) from None
        if self.counts:
            table = table.append_column(self.step[0], pa.array(np.arange(table.num_rows, dtype=np.int32)))
        return table


def kinds_of(tables: Sequence[pa.Table]) -> dict[str, pa.DataType]:
    """For each column the kind that fits all `tables`: whole numbers, numbers, times or text."""
    kinds: dict[str, pa.DataType] = {}
    for name in tables[0].column_names:
        found = {table[name].type for table in tables if not pa.types.is_null(table[name].type)}
        if found and all(map(pa.types.is_integer, found)) and named((*LABEL_NAMES, *STEP_NAMES), [name]):
            kinds[name] = pa.int64()  # a label 1 must not become 1.0
        elif all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in found):
            kinds[name] = pa.float64()
        elif len(found) == 1 and not found & {pa.large_string()}:
            [kinds[name]] = found
        else:
            kinds[name] = pa.string()
    return kinds


def rises(cells: pa.ChunkedArray) -> bool:
    if pa.types.is_string(cells.type) or cells.null_count:
        return False
    array = cells.to_numpy()
    return bool((array[1:] > array[:-1]).all())
