"""Files of one sequence each, all with the same columns: finds the files and reads their rows.

Text, Parquet or npy; a sample of the files determines the kind of each column.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.importing import text_tables
from tandem.importing.array_files import arrays_of, as_plain_type, channel_names
from tandem.importing.columns import are_codes, may_be_codes, named
from tandem.importing.infer_sequences import LABEL_NAMES, STEP_NAMES
from tandem.importing.long_table import open_parquet

KINDS = {".csv": "text", ".tsv": "text", ".txt": "text", ".dat": "text", ".parquet": "parquet", ".npy": "npy"}
ENDING = re.compile(r"(\.[^.]*)?(?:\.(?:gz|bz2|xz))?$", re.IGNORECASE)
NUM_SAMPLED = 10  # files sampled to determine the kinds of the columns


def ending_of(path: Path) -> str:
    """`.csv` for `a.CSV.gz`."""
    found = ENDING.search(path.name)
    return (found and found[1] or "").lower()


def kind_of_file(path: Path) -> str | None:
    return KINDS.get(ending_of(path))


def without_ending(name: str) -> str:
    return ENDING.sub("", name, count=1) if kind_of_file(Path(name)) else name


def whole_parquet(path: Path) -> pa.Table:
    with open_parquet(path) as file:
        return file.read()


class Reader:
    """Reads one file after another with the same columns and kinds, which a sample of the files determines."""

    def __init__(self, paths: Sequence[Path], options: Mapping[str, Any], taken: Sequence[str]):
        sampled = paths[:: max(1, len(paths) // NUM_SAMPLED)][:NUM_SAMPLED]
        self.kind, self.form, self.codes = kind_of_file(paths[0]), None, list[str]()
        if self.kind == "text":
            self.form = text_tables.sniff(sampled[0], options)
        first = self.raw(sampled[0])
        self.names = first.column_names
        if again := [name for name in self.names if name in taken or name == "sequence"]:
            raise ValueError(
                f"{sampled[0]} has a column {again[0]!r}, which the folder or its labels give too; rename it"
            )
        samples = [first, *(self.checked(self.raw(path), path) for path in sampled[1:])]
        if self.kind == "text":
            whole = [name for name in self.names if all(may_be_codes(part[name]) for part in samples)]
            literal = [self.raw(path, texts=whole) for path in sampled] if whole else []
            self.codes = [name for name in whole if any(are_codes(part[name]) for part in literal)]
        self.types = kinds_of(samples) | dict.fromkeys(self.codes, pa.string())
        self.step, self.why_step = None, "the row's number in its file (--step selects a column)"
        samples = [self.read(path) for path in sampled]
        for name in named(STEP_NAMES, self.names) if "step" not in options else {options["step"]} & {*self.names}:
            if self.step is None and all(rises(part[name]) for part in samples):
                self.step, self.why_step = name, "it increases from row to row in the files"

    def raw(self, path: Path, texts: Sequence[str] = ()) -> pa.Table:
        """The file with the kinds that it alone suggests, and `texts` as text."""
        if self.form is not None:
            return text_tables.read_whole(replace(self.form, path=path), texts)
        return whole_parquet(path) if self.kind == "parquet" else self.of_array(path)

    def of_array(self, path: Path) -> pa.Table:
        [array] = arrays_of(path)
        kind = array.values.dtype
        if len(array.values.shape) not in (1, 2) or kind.kind not in "fiub":
            more = "; of an array of many sequences give the path itself" if len(array.values.shape) == 3 else ""
            raise ValueError(
                f"{path} has the shape {array.values.shape} of {kind}; a sequence is (T, C) or (T,) numbers{more}"
            )
        cells = as_plain_type(array.values).reshape(array.values.shape[0], -1)
        return pa.table([*map(np.ascontiguousarray, cells.T)], names=channel_names(cells.shape[1]))

    def checked(self, table: pa.Table, path: Path) -> pa.Table:
        if odd := sorted(set(table.column_names) ^ set(self.names))[:4]:
            raise ValueError(f"{path} has other columns than the files before it ({', '.join(odd)}); make them alike")
        if not table.num_rows:
            raise ValueError(f"{path} has no rows, and every file is a sequence; leave it out, or give it some")
        return table.select(self.names)

    def read(self, path: Path) -> pa.Table:
        table = self.checked(self.raw(path, self.codes), path)
        try:
            return pa.table({name: table[name].cast(kind) for name, kind in self.types.items()})
        except pa.ArrowException as error:
            raise ValueError(
                f"{path} holds other kinds of cells than most files: {text_tables.one_line(error)}"
            ) from None


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
