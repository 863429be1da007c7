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
    notes, what = found.notes, "; ".join(f"{key} {value}" for key, value, _ in found.notes)
    if isinstance(found, LongTableSource):
        path, sources = scratch / f"{name}.parquet", found.sources
        index = long_table.write(found, path)
        came = " and ".join(str(source) for source in sources[:2])
        came += f" and {len(sources) - 2:,} files more" if len(sources) > 2 else ""
        done = f"converted {came} ({what}) to one long table."
        has_split = SPLIT_COLUMN in pa.parquet.read_schema(path).names
        return Table(path, sources, notes, done, True, has_split, scratch, found.known, found.used, index)
    path, source, text = scratch / found.name, found.path, found.text
    has_split = SPLIT_COLUMN in (text.names if text else pa.parquet.read_schema(source).names)
    if text is None or text.is_ready:
        if found.name == source.name:
            path = source
        else:  # with an ending that preprocess understands
            path.symlink_to(source.resolve())
        return Table(path, [source], notes, "copied the table unchanged.", False, has_split, scratch)
    with progress(f"writing {found.name}", source.stat().st_size, "B") as at:
        text_tables.rewrite(text, path, at)
    done = f"wrote {source} ({what}) again in UTF-8, with commas, without another change."
    notes = [*notes, ("table", found.name, "rewritten in UTF-8, with commas")]
    return Table(path, [source], notes, done, True, has_split, scratch)


def infer(
    name: str, table: Table, options: Mapping[str, Any], at: Callable[[int], Any] = lambda step: None
) -> tuple[Choices, dict[str, Any]]:
    """The choices, and the summary that preprocess would write. `options`: the given options."""
    sampled = table.index if table.index is not None and num_cells(table.path) > LARGE_CELLS else None
    path, shown = table.path, table.sources[0].name
    with TemporaryDirectory(prefix="trial.", dir=table.scratch) as folder:
        if sampled:
            path = Path(folder) / path.name
            write_sample(table.path, sampled.sequences, path)
        try:
            frame = read_frame(path, shown)
            at(1)
            columns = TableColumns(frame, shown, table.has_split)
            at(2)
            left = {key: value for key, value in options.items() if key not in table.used}
            choices = infer_schema(columns, left, table.known)
            if sampled:
                choices = with_missing(sampled, choices, shown)
            at(3)
            del columns, frame
            choices, summary = dry_run(name, path, choices, Path(folder) / "out")
            at(4)
        except ValueError as error:  # the message must not name the temporary path
            called = path.name if table.is_converted else shown
            if table.index is not None:
                called = f"{shown} as one long table" + (", of some of its sequences" if sampled else "")
            raise ValueError(str(error).replace(relative(path), called)) from None
    if sampled:
        split = preprocess_section(path.name, choices)["split"]
        summary = of_whole(sampled.sequences, summary, split, table.has_split)
    return choices, summary


def with_missing(index: Index, choices: Choices, shown: str) -> Choices:
    """The choices, with the missing values of the whole large table. Raises ValueError for what a sample may miss."""
    if (shortest := index.sequences["length"].min()) < 2:
        raise ValueError(f"a sequence of {shown} has {shortest} step; every sequence needs at least 2")
    num = sum(index.num_missing.get(column, 0) for column in choices["features"][0])
    if num and choices["missing"] == ("refuse", "no cell is empty"):
        return {**choices, "missing": ("interpolate", f"{num:,} cells are empty")}
    return choices


def num_cells(path: Path) -> int:
    metadata = pa.parquet.read_metadata(path)
    return int(metadata.num_rows * metadata.num_columns)


def write_sample(whole: Path, sequences: pd.DataFrame, path: Path) -> None:
    """Write all rows of some sequences of each class and split, from all over the table."""
    # If hardly any label repeats, labels are numbers, not classes: a few of each would be the whole table.
    labels = sequences["label"].unique()
    are_numbers = len(labels) > len(sequences) / 3 or has_fractions(labels)
    kinds = sequences.groupby(["split"] if are_numbers else ["label", "split"]).ngroup()
    num_sampled = SAMPLED_CELLS * len(sequences) // max(1, num_cells(whole))
    per_kind = max(FEWEST_PER_CLASS, num_sampled // kinds.nunique())
    order = np.random.default_rng(0).permutation(len(sequences))
    is_chosen = sequences.index.isin(kinds.iloc[order].groupby(kinds).head(per_kind).index)
    chosen = sequences.assign(is_chosen=is_chosen).groupby("block").filter(lambda block: block["is_chosen"].any())
    with pa.parquet.ParquetFile(whole) as file, pa.parquet.ParquetWriter(path, file.schema_arrow) as writer:
        for number, block in chosen.groupby("block"):
            rows = np.repeat(block["is_chosen"].to_numpy(), block["length"])
            writer.write_table(file.read_row_group(number).filter(pa.array(rows)))


def has_fractions(labels: Iterable[str]) -> bool:
    """Whether the labels are numbers, and not all of them whole."""
    try:
        return any(float(label) % 1 for label in labels)
    except ValueError:
        return False


def of_whole(
    sequences: pd.DataFrame, summary: dict[str, Any], split: Mapping[str, float], has_split: bool
) -> dict[str, Any]:
    """The summary with the sizes of the whole table instead of the sample's."""
    changed: dict[str, Any] = {
        "num_tried": summary["num_sequences"],
        "num_sequences": len(sequences),
        "num_per_split": own_sizes(sequences["split"], split)
        if has_split
        else sizes_of(schema.Split(**split), len(sequences)),
        "min_steps": int(sequences["length"].min()),
        "max_steps": int(sequences["length"].max()),
    }
    if "classes" in summary and sequences["label"].any():
        changed["num_per_class"] = {"all": sequences.groupby("label", sort=False).size().to_dict()}
    return {**{key: value for key, value in summary.items() if key != "num_groups"}, **changed}


def own_sizes(splits: pd.Series, split: Mapping[str, float]) -> dict[str, int]:
    """The sizes by the table's own column; a missing val is taken from train, as in preprocess."""
    sizes = {name: int((splits == name).sum()) for name in SPLITS}
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
        missing, more = "interpolate", ", too many to skip; a gap repeats the last value"
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
