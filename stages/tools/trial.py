"""A dry run before anything is written: from the data at a path to choices that preprocess and preload accept.

A table of up to LARGE_CELLS cells is prepared whole, as in `dvc repro`. For a larger converted table, a sample of the
sequences of each class is prepared: the conversion has counted the whole, and preprocess checks the rest.
"""

import csv
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
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
from stages.data.splits import SPLITS, sizes_of
from stages.data.tables import SPLIT_COLUMN, is_plain, open_csv, present, read_table
from stages.files import relative
from stages.params import parsing, schema
from stages.params.parsing import one_line
from stages.tools import long_table, text_tables
from stages.tools.columns import Choices, TableColumns, kind_of
from stages.tools.infer_schema import infer_schema, preprocess_section
from stages.tools.long_table import Index, LongTableSource
from stages.tools.progress import progress
from stages.tools.shapes import LongTable
from stages.tools.text_tables import Note

LARGE_CELLS = 5_000_000
SAMPLED_CELLS = 2_000_000  # of a larger table
FEWEST_PER_CLASS = 8


@dataclass(frozen=True)
class Table:
    """The table that preprocess will read, and its place until it is written."""

    path: Path
    name: str
    sources: list[Path]
    notes: list[Note]
    done: str  # the conversion, for the README
    is_converted: bool
    has_split: bool
    scratch: Path  # for temporary files
    known: Choices = field(default_factory=dict)
    used: tuple[str, ...] = ()  # options that are already part of `known`
    index: Index | None = None  # of a converted table


def open_table(name: str, found: LongTable | LongTableSource, scratch: Path) -> Table:
    """The table itself if preprocess can read it, else its conversion in `scratch`."""
    if isinstance(found, LongTableSource):
        path = scratch / f"{name}.parquet"
        index = long_table.write(found, path)
        names = pa.parquet.read_schema(path).names
        what = "; ".join(f"{key} {value}" for key, value, _ in found.notes)
        came = " and ".join(str(source) for source in found.sources[:2])
        came += f" and {num:,} files more" if (num := len(found.sources) - 2) > 0 else ""
        done = f"converted {came} ({what}) to one long table."
        return Table(
            path,
            path.name,
            found.sources,
            found.notes,
            done,
            True,
            SPLIT_COLUMN in names,
            scratch,
            found.known,
            found.used,
            index,
        )
    text, source = found.text, found.path
    if text is None or text.is_ready:
        header = list(text.names) if text else pa.parquet.read_schema(source).names
        path = source
        if found.name != source.name:  # with an ending that preprocess understands
            path = scratch / found.name
            path.symlink_to(source.resolve())
        has_split = SPLIT_COLUMN in header
        return Table(path, found.name, [source], found.notes, "copied the table as it was.", False, has_split, scratch)
    path = scratch / found.name
    with progress(f"writing {found.name}", source.stat().st_size, "B") as at:
        text_tables.rewrite(text, path, at)
    notes = [*found.notes, ("table", found.name, "written anew in UTF-8, with commas")]
    what = "; ".join(f"{key} {value}" for key, value, _ in found.notes)
    done = f"wrote {source} ({what}) anew in UTF-8, with commas, without another change."
    return Table(path, found.name, [source], notes, done, True, SPLIT_COLUMN in text.names, scratch)


def infer(
    name: str, table: Table, options: Mapping[str, Any], at: Callable[[int], Any] = lambda step: None
) -> tuple[Choices, dict[str, Any]]:
    """The choices, and the summary that preprocess would write. `options`: the given options."""
    with TemporaryDirectory(prefix="trial.", dir=table.scratch) as folder:
        path, is_part = table.path, False
        if table.index is not None and num_cells(table.path) > LARGE_CELLS:
            path, is_part = Path(folder) / table.name, True
            write_sample(table, path)
        shown = table.sources[0].name
        try:
            frame = read_frame(path, shown)
            at(1)
            columns = TableColumns(frame, shown, table.has_split)
            at(2)
            left = {key: value for key, value in options.items() if key not in table.used}
            choices = infer_schema(columns, left, table.known)
            if is_part:
                choices = with_missing(table, choices)
            at(3)
            del columns, frame
            choices, summary = dry_run(name, path, choices, Path(folder) / "out")
            at(4)
        except ValueError as error:  # the message must not name the temporary path
            called = table.name if table.is_converted else shown
            if table.index is not None:
                called = f"{shown} as one long table" + (", of some of its sequences" if is_part else "")
            raise ValueError(str(error).replace(relative(path), called)) from None
        if is_part:
            assert table.index is not None
            summary = of_whole(table.index, summary, preprocess_section(table.name, choices)["split"], table.has_split)
        return choices, summary


def with_missing(table: Table, choices: Choices) -> Choices:
    """The choices, with the missing values of the whole large table. Raises ValueError for what a sample may miss."""
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
    """Write all rows of some sequences of each class and split, from all over the table."""
    assert table.index is not None
    lengths, codes = np.concatenate(table.index.lengths), kinds_of_sequences(table.index)
    num_sampled = SAMPLED_CELLS * len(lengths) // max(1, num_cells(table.path))
    per_kind = max(FEWEST_PER_CLASS, num_sampled // (int(codes.max()) + 1))
    order = np.random.default_rng(0).permutation(len(codes))
    rank = pd.Series(codes[order]).groupby(codes[order]).cumcount().to_numpy()
    chosen = np.zeros(len(codes), dtype=bool)
    chosen[order[rank < per_kind]] = True
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


def kinds_of_sequences(index: Index) -> np.ndarray:
    """(N,) equal for sequences of one class and split. If hardly any label repeats, labels are numbers, not classes:
    sampling a few of each would select the whole table.
    """
    codes, splits = np.concatenate(index.codes), np.concatenate(index.splits)
    if len(index.labels) > len(codes) / 3 or has_fractions(index.labels):
        codes = np.zeros_like(codes)
    return np.unique(codes * (len(SPLITS) + 1) + splits, return_inverse=True)[1]


def has_fractions(labels: Iterable[str]) -> bool:
    """Whether the labels are numbers, and not all of them whole."""
    try:
        return any(float(label) % 1 for label in labels)
    except ValueError:
        return False


def of_whole(index: Index, summary: dict[str, Any], split: Mapping[str, float], has_split: bool) -> dict[str, Any]:
    """The summary with the sizes of the whole table instead of the sample's."""
    lengths, codes = np.concatenate(index.lengths), np.concatenate(index.codes)
    sizes = own_sizes(index, split) if has_split else sizes_of(schema.Split(**split), len(lengths))
    changed: dict[str, Any] = {
        "num_tried": summary["num_sequences"],
        "num_sequences": len(lengths),
        "num_per_split": sizes,
    }
    changed |= {"min_steps": int(lengths.min()), "max_steps": int(lengths.max())}
    if index.labels and "classes" in summary:
        counts = np.bincount(codes, minlength=len(index.labels)).tolist()
        changed["num_per_class"] = {"all": {label: counts[code] for label, code in index.labels.items()}}
    return {**{key: value for key, value in summary.items() if key != "num_groups"}, **changed}


def own_sizes(index: Index, split: Mapping[str, float]) -> dict[str, int]:
    """The sizes by the table's own column; a missing val is taken from train, as in preprocess."""
    splits = np.concatenate(index.splits)
    sizes = {name: int((splits == place).sum()) for place, name in enumerate(SPLITS)}
    if not sizes["val"]:
        sizes["val"] = max(1, round(sizes["train"] * split["val"] / (split["train"] + split["val"])))
        sizes["train"] -= sizes["val"]
    return sizes


def read_frame(path: Path, shown: str) -> pd.DataFrame:
    """The whole table as preprocess reads it, without lists and similar columns, and without the columns in which
    pandas saves an index that has no name, unless these hold times.
    """
    try:
        if path.suffix == ".parquet":
            header = [field.name for field in pa.parquet.read_schema(path) if is_plain(field.type)]
        else:
            with open_csv(path) as file:
                header = next(csv.reader(file), [])
    except (pa.ArrowException, csv.Error, *text_tables.DAMAGED, UnicodeDecodeError) as error:
        raise ValueError(f"{shown} cannot be read as a table: {one_line(error)}") from None
    names = [column for column in header if column]
    present(shown, header, names)  # raises if a name occurs twice
    table = read_table(path, (), (), [column for column in names if column != SPLIT_COLUMN])
    frame = pa.table(table.columns).to_pandas()
    saved = [column for column in frame.columns if re.match("Unnamed: |__index_level_", column)]
    return frame.drop(columns=[column for column in saved if kind_of(frame[column]) != "time"])


def dry_run(name: str, path: Path, choices: Choices, folder: Path) -> tuple[Choices, dict[str, Any]]:
    """The choices and the summary of preparation. Gaps in a series are skipped, or filled if most windows have one."""
    missing, why = choices["missing"]
    if why:
        return choices, summarize(name, path, choices, folder)
    summary, more = None, ""
    with suppress(ValueError):  # any error that is not about gaps is raised again by the next attempt
        summary = summarize(name, path, choices, folder)
    if summary is None or summary["num_windows_skipped"] > summary["num_sequences"]:
        missing, more = "interpolate", ", too many to skip; the last value stays until the next one"
        summary = summarize(name, path, {**choices, "missing": (missing, more)}, folder)
    gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete{more}"
    return {**choices, "missing": (missing, gaps)}, summary


def summarize(name: str, path: Path, choices: Choices, folder: Path) -> dict[str, Any]:
    """summary.json, after all steps of preprocess and preload."""
    section = parsing.parse(schema.Preprocess, preprocess_section(path.name, choices), f"{name}.preprocess")
    summary = write_prepared(folder / "prepared", prepare(choices["task"][0], section, path.parent))
    pack_splits(folder / "prepared", folder / "packed", summary)
    shutil.rmtree(folder)
    return summary
