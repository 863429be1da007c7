"""Tries data out before anything is written: from what a path holds to choices that preprocess and preload accept.

A table of up to LARGE_CELLS cells is prepared whole, as `dvc repro` will do. Of a larger one that was converted, some
sequences of each class are: what the whole holds is known from the conversion, and preprocess checks the rest.
"""

import csv
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from stages.data import prepare, write_prepared
from stages.data.packed import pack_splits
from stages.data.splits import sizes_of
from stages.data.tables import SPLIT_COLUMN, is_plain, open_csv, present, read_table
from stages.files import relative
from stages.params import parsing, schema
from stages.params.parsing import one_line
from stages.tools import long_table, text_tables
from stages.tools.columns import Choices, Columns
from stages.tools.infer_schema import infer_schema, preprocess_section
from stages.tools.long_table import Index, Shape
from stages.tools.shapes import LongTable
from stages.tools.text_tables import Note

LARGE_CELLS = 5_000_000
SAMPLED_CELLS = 2_000_000  # of a larger table
FEWEST_PER_CLASS = 8


@dataclass(frozen=True)
class Table:
    """What preprocess will read, and where it lies until it is written."""

    path: Path
    name: str
    sources: list[Path]
    notes: list[Note]
    done: str  # what was done, for its README
    is_converted: bool
    has_split: bool
    scratch: Path  # a folder for what is tried out
    known: Choices = field(default_factory=dict)
    index: Index | None = None  # of a converted table


def open_table(name: str, found: LongTable | Shape, scratch: Path) -> Table:
    """The table itself where preprocess reads it, else what is converted of it in `scratch`."""
    if isinstance(found, Shape):
        path = scratch / f"{name}.parquet"
        index = long_table.write(found, path)
        names = pa.parquet.read_schema(path).names
        what = "; ".join(f"{key} {value}" for key, value, _ in found.notes)
        came = " and ".join(str(source) for source in found.sources)
        done = f"converted {came} ({what}) to one long table."
        return Table(
            path, path.name, found.sources, found.notes, done, True, SPLIT_COLUMN in names, scratch, found.known, index
        )
    text, source = found.text, found.path
    if text is None or text.is_ready:
        header = list(text.names) if text else pa.parquet.read_schema(source).names
        path = source
        if found.name != source.name:  # with an ending that preprocess goes by
            path = scratch / found.name
            path.symlink_to(source.resolve())
        has_split = SPLIT_COLUMN in header
        return Table(path, found.name, [source], found.notes, "copied the table as it was.", False, has_split, scratch)
    path = scratch / found.name
    with long_table.progress(f"writing {found.name}", source.stat().st_size, "B") as at:
        text_tables.rewrite(text, path, at)
    notes = [*found.notes, ("table", found.name, "written anew in UTF-8, with commas")]
    what = "; ".join(f"{key} {value}" for key, value, _ in found.notes)
    done = f"wrote {source} ({what}) anew in UTF-8, with commas, without another change."
    return Table(path, found.name, [source], notes, done, True, SPLIT_COLUMN in text.names, scratch)


def infer(
    name: str, table: Table, options: Mapping[str, Any], at: Callable[[int], Any] = lambda step: None
) -> tuple[Choices, dict[str, Any]]:
    """The choices, and the summary that preprocess would make of them. `options`: those that were given."""
    with TemporaryDirectory(prefix="trial.", dir=table.scratch) as folder:
        path, is_part = table.path, False
        if table.index is not None and num_cells(table.path) > LARGE_CELLS:
            path, is_part = Path(folder) / table.name, True
            write_sample(table, path)
        shown = table.sources[0].name
        try:
            frame = read_frame(path, shown)
            at(2)
            columns = Columns(frame, shown, table.has_split)
            at(3)
            choices = infer_schema(columns, options, table.known)
            if is_part:
                choices = with_missing(table, choices)
            at(4)
            del columns, frame
            choices, summary = dry_run(name, path, choices, Path(folder) / "out")
            at(5)
        except ValueError as error:  # the place where it is tried is nobody's concern
            raise ValueError(str(error).replace(relative(path), table.name if table.is_converted else shown)) from None
        if is_part:
            assert table.index is not None
            summary = of_whole(table.index, summary, preprocess_section(table.name, choices)["split"], table.has_split)
        return choices, summary


def with_missing(table: Table, choices: Choices) -> Choices:
    """The choices with what the whole of a large table holds. Raises ValueError for what no sample may show."""
    assert table.index is not None
    if (shortest := int(min(lengths.min() for lengths in table.index.lengths))) < 2:
        raise ValueError(f"a sequence of {table.sources[0].name} has {shortest} step; every sequence needs at least 2")
    num = sum(table.index.num_missing.get(column, 0) for column in choices["features"][0])
    if num and choices["missing"] == ("refuse", "no cell is empty"):
        return {**choices, "missing": ("interpolate", f"{num:,} cells are empty")}
    return choices


def num_cells(path: Path) -> int:
    metadata = pa.parquet.read_metadata(path)
    return int(metadata.num_rows * metadata.num_columns)


def write_sample(table: Table, path: Path) -> None:
    """Some sequences of each class and split, from all over the table, with all their rows."""
    assert table.index is not None
    lengths, codes = np.concatenate(table.index.lengths), np.concatenate(table.index.codes)
    num_sampled = SAMPLED_CELLS * len(lengths) // max(1, num_cells(table.path))
    per_class = max(FEWEST_PER_CLASS, num_sampled // (int(codes.max()) + 1))
    order = np.random.default_rng(0).permutation(len(codes))
    rank = pd.Series(codes[order]).groupby(codes[order]).cumcount().to_numpy()
    chosen = np.zeros(len(codes), dtype=bool)
    chosen[order[rank < per_class]] = True
    ends = np.cumsum([len(block) for block in table.index.lengths])
    writer = None
    with pa.parquet.ParquetFile(table.path) as file:
        for number, end in enumerate(ends):
            own = slice(end - len(table.index.lengths[number]), end)
            if not chosen[own].any():
                continue
            group = file.read_row_group(number)
            rows = np.repeat(chosen[own], lengths[own])
            writer = writer or pa.parquet.ParquetWriter(path, group.schema)
            writer.write_table(group.filter(pa.array(rows)))
    if writer is not None:
        writer.close()


def of_whole(index: Index, summary: dict[str, Any], split: Mapping[str, float], has_split: bool) -> dict[str, Any]:
    """The summary with the sizes of the whole table in the place of the sample's."""
    lengths, codes = np.concatenate(index.lengths), np.concatenate(index.codes)
    sizes = sizes_of(schema.Split(**split), len(lengths))
    if has_split:
        shares = np.array(list(summary["num_per_split"].values())) / summary["num_sequences"]
        sizes = {name: round(share * len(lengths)) for name, share in zip(sizes, shares, strict=True)}
    changed: dict[str, Any] = {
        "num_tried": summary["num_sequences"],
        "num_sequences": len(lengths),
        "num_per_split": sizes,
    }
    changed |= {"min_steps": int(lengths.min()), "max_steps": int(lengths.max())}
    if index.labels and "classes" in summary:
        counts = np.bincount(codes, minlength=len(index.labels)).tolist()
        changed["num_per_class"] = {"all": {str(label): counts[code] for label, code in index.labels.items()}}
    return {**{key: value for key, value in summary.items() if key != "num_groups"}, **changed}


def read_frame(path: Path, shown: str) -> pd.DataFrame:
    """The whole table as preprocess reads it, without lists and the like, and without the columns in which pandas saves
    an index that has no name.
    """
    try:
        if path.suffix == ".parquet":
            header = [field.name for field in pa.parquet.read_schema(path) if is_plain(field.type)]
        else:
            with open_csv(path) as file:
                header = next(csv.reader(file), [])
    except (pa.ArrowException, csv.Error, OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{shown} cannot be read as a table: {one_line(error)}") from None
    names = [column for column in header if not re.match(r"$|Unnamed: |__index_level_", column)]
    present(shown, header, names)  # raises where one is there twice
    table = read_table(path, (), (), [column for column in names if column != SPLIT_COLUMN])
    return pa.table(table.columns).to_pandas()


def dry_run(name: str, path: Path, choices: Choices, folder: Path) -> tuple[Choices, dict[str, Any]]:
    """The choices and the summary of preparation. Gaps in a series are skipped, or filled if most windows have one."""
    missing, why = choices["missing"]
    if why:
        return choices, summarize(name, path, choices, folder)
    summary, more = None, ""
    with suppress(ValueError):  # an error that is not about gaps comes again in the next attempt
        summary = summarize(name, path, choices, folder)
    if summary is None or summary["num_windows_skipped"] > summary["num_sequences"]:
        missing, more = "interpolate", ", too many to skip; the last value stays until the next one"
        summary = summarize(name, path, {**choices, "missing": (missing, more)}, folder)
    gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete{more}"
    return {**choices, "missing": (missing, gaps)}, summary


def summarize(name: str, path: Path, choices: Choices, folder: Path) -> dict[str, Any]:
    """summary.json, after all that preprocess and preload do with the table."""
    section = parsing.parse(schema.Preprocess, preprocess_section(path.name, choices), f"{name}.preprocess")
    summary = write_prepared(folder / "prepared", prepare(choices["task"][0], section, path.parent))
    pack_splits(folder / "prepared", folder / "packed", summary)
    shutil.rmtree(folder)
    return summary
