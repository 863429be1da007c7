"""A dry run before anything is written: from the data at a path to choices that preprocess accepts.

The whole table is prepared, as in `dvc repro`.
"""

import csv
import gzip
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tandem.data import prepare_data
from tandem.data.series import loses_many_windows
from tandem.data.tables import as_numbers, csv_line, is_plain, open_csv, raw_table, read_table, split_column
from tandem.files import relative
from tandem.importing.columns import (
    Choices,
    TableColumns,
    advice_on_events,
    advice_on_repeats,
    are_codes,
    kind_of,
    may_be_codes,
)
from tandem.importing.infer_schema import infer_schema, preprocess_section
from tandem.importing.long_table import Source, open_parquet
from tandem.params import parsing, schema
from tandem.params.parsing import InvalidParams
from tandem.params.schema import NO_GROUPS
from tandem.terminal.command import WrongArgument
from tandem.terminal.progress import ProgressLine


def make_table(name: str, source: Source, scratch: Path) -> Path:
    """The table that preprocess will read, in `scratch`: a link to the file if it can read that, else a conversion."""
    path = scratch / (source.name or f"{name}.parquet")
    path.unlink(missing_ok=True)  # of a first try
    if source.read is None:
        path.symlink_to(source.sources[0].resolve())  # with an ending that preprocess understands
        return path
    with ProgressLine(f"converting {source.sources[0]}", 1, "tables"):
        table = source.read()
        if path.suffix == ".parquet":
            pa.parquet.write_table(table, path, compression="zstd")
        else:
            with gzip.GzipFile(path, "wb", compresslevel=4, mtime=0) as file:
                pa.csv.write_csv(table, file, pa.csv.WriteOptions(quoting_style="needed"))
    return path


def infer(name: str, path: Path, source: Source, options: Mapping[str, Any]) -> tuple[Choices, dict[str, Any], bool]:
    """The choices, the summary that preprocess would write, and whether the table at `path` has a column `split`.
    `options`: the given options.
    """
    shown, shape_choices = str(source.sources[0]), source.shape_choices
    other_options = {key: value for key, value in options.items() if key not in source.used_options}
    with (
        ProgressLine(f"inspecting {shown}", 3, "steps") as progress,
        np.errstate(all="ignore"),  # preprocess names a number that is too large
    ):
        choices: Choices = {}
        ways = dict[str, str]()
        try:
            columns = read_columns(path, source, tuple(options.get("na", ())))
            progress.at(1)
            choices = infer_schema(columns, other_options, shape_choices)
            progress.at(2)
            has_split = columns.has_split
            ways = ways_out(columns, choices, "label" in shape_choices)
            del columns
            choices, summary = dry_run(name, path, choices)
            if "window" in choices and len(summary["classes"]) < 2:
                raise ValueError(
                    f"{shown}: all windows have one label; shorten --window, or give --task detect for events"
                )
        except ValueError as error:
            # What Tandem chooses is valid, so an option's value is not.
            kind_of_error = WrongArgument if isinstance(error, WrongArgument | InvalidParams) else ValueError
            message = about_source(str(error), path, source)
            if source.sources[0].is_dir() and "no column that could be their label" in message:
                message += (
                    "; or --pattern, e.g. '{label}_*', takes it from the files' names, --labels TABLE from a table"
                )
            for sentence, way in ways.items():
                message = message.replace(sentence, way)
            for key in ("sequence", "label")[bool(shape_choices) :] if re.search(r"\b(label|class)\b", message) else ():
                if key in choices and key not in options and choices[key][0] != NO_GROUPS:
                    message += f"; the {key} is {choices[key][0]!r} ({choices[key][1]}), and --{key} names another"
            raise kind_of_error(message) from None
    return choices, summary, has_split


def ways_out(columns: TableColumns, choices: Choices, is_of_file: bool) -> dict[str, str]:
    """What preprocess says of sequences -> the same with an option or code. `is_of_file`: the rows lack the label."""
    sequence, step, label, groups = (choices.get(key, ("", ""))[0] for key in ("sequence", "step", "label", "groups"))
    record = "record a label in three stretches or more, or choose a shorter preprocess.window.length"
    stretch = "0" if is_of_file else f"(table[{label!r}] != table[{label!r}].shift()).cumsum()"
    parts = "rows.cumcount() / rows.transform('size'), [-1, 0.5, 0.75, 1], labels=['train', 'val', 'test']"
    cut = f"table['split'] = {stretch}; rows = table.groupby('split')['split']; table['split'] = pandas.cut({parts})"
    ways = {record: f"give a shorter --window, or split each stretch: {cut}"}
    if not sequence or sequence == NO_GROUPS:
        return ways
    single = "every sequence needs at least 2"
    leave_out = f"table = table[table.groupby({sequence!r})[{sequence!r}].transform('size') > 1]"
    events = "".join(advice_on_events(columns, time) for time in columns.of_kind("time")[:1])
    ways[single] = f"{single}; leave out such sequences: {leave_out}; the sequence is {sequence!r} "
    ways[single] += f"({choices['sequence'][1]}), and --sequence names another{events}"
    repeats, move = "name other columns for the sequence and the step", "move some of its sequences to train"
    omit = "leave the class out (`rare_classes: omit` in preprocess)"
    own_split = "a column `split` (train, val or test in every row) decides"
    changes = f"column {label!r} changes within a sequence"
    ways |= {repeats: f"{repeats}{advice_on_repeats(columns, sequence, step)}", omit: own_split}
    ways[changes] = f"{changes} (--window STEPS cuts windows of one label)"
    if not columns.has_split:
        hint = f"; --groups {NO_GROUPS} splits the sequences of each {groups!r}" if groups != NO_GROUPS else ""
        ways[move] = f"{move}{hint}; {own_split}"
    return ways


def about_source(message: str, path: Path, source: Source) -> str:
    """A message about the temporary table `path` as one about the user's data, of which it was made.

    Lines of a rewritten table become those of the user's file, which may have blank ones. A row of a converted table is
    named with its sequence: the file, or the number of the row.
    """
    if source_line := source.source_line:

        def with_source_lines(lines: re.Match[str]) -> str:
            return re.sub(r"\d+", lambda line: str(source_line(path, int(line[0]))), lines[0])

        message = re.sub(r"\blines? \d+(?: and \d+)?", with_source_lines, message)
    source_name = f"{source.sources[0]} as one long table" if source.shape_choices else str(source.sources[0])
    message = message.replace(relative(path), source_name)
    if source.shape_choices and (match := re.search(r", row (\d+)", message)):
        column = source.shape_choices["sequence"][0]
        name = pa.parquet.read_table(path, columns=[column])[column][int(match[1]) - 1]
        message = f"{message[: match.end()]} ({column} {name}){message[match.end() :]}"
    return message


def read_columns(path: Path, source: Source, na: tuple[str, ...]) -> TableColumns:
    """The whole table as preprocess reads it, without lists and similar columns, and without the columns in which
    pandas saves an index that has no name, unless these hold times.
    """
    is_parquet, unread, of_day = path.suffix == ".parquet", {}, list[str]()
    if is_parquet:
        with open_parquet(path) as parquet:
            header = [field.name for field in parquet.schema_arrow if is_plain(field.type)]
            unread = {field.name: str(field.type) for field in parquet.schema_arrow if not is_plain(field.type)}
    else:
        with open_csv(path) as file:
            header = next(csv.reader(file), [])
        as_is = pa.csv.ConvertOptions(null_values=[""])
        with suppress(pa.ArrowException), pa.csv.open_csv(path, convert_options=as_is) as start:
            of_day = [field.name for field in start.schema if pa.types.is_time(field.type)]  # no column may have them
    names = [column for column in header if column]
    split = split_column(names)
    if source.cells is None:
        table = read_table(path, of_day, (), [column for column in names if column not in (split, *of_day)])
    else:
        table = raw_table(source.cells.select(names), names, relative(path), partial(csv_line, path), ())
    whole = [column for column, cells in table.columns.items() if may_be_codes(cells)]
    if not is_parquet and whole:
        texts = read_table(path, whole, ()).columns
        table.columns.update({column: texts[column] for column in whole if are_codes(texts[column])})
    frame = pa.table({column: plain_cells(cells, na) for column, cells in table.columns.items()}).to_pandas()
    table.columns.clear()
    indexes = [column for column in frame.columns if re.match("Unnamed: |__index_level_", column)]
    indexes = [column for column in indexes if kind_of(frame[column]) not in ("time", "other")]
    frame, unread = frame.drop(columns=indexes), unread | dict.fromkeys(indexes, "an index that pandas saved")
    rows = distinct_rows(frame)  # preprocess leaves out the others
    frame = frame if len(rows) == len(frame) else frame.iloc[rows].reset_index(drop=True)

    def places(first: int, second: int) -> str:
        return table.places(int(rows[first]), int(rows[second]))

    return TableColumns(frame, str(source.sources[0]), unread, places, bool(source.shape_choices))


def distinct_rows(frame: pd.DataFrame) -> np.ndarray:
    """The places of the rows without those that are equal to an earlier one."""
    numbers = frame.columns[[dtype.kind == "f" for dtype in frame.dtypes]]
    likely = frame  # those whose first two numbers repeat
    if len(numbers):
        likely = frame[pd.util.hash_pandas_object(frame[numbers[:2]], index=False).duplicated(keep=False)]
    hashes = pd.util.hash_pandas_object(likely, index=False)
    return np.delete(np.arange(len(frame)), hashes.index[hashes.duplicated()])


def plain_cells(cells: pa.ChunkedArray, na: tuple[str, ...]) -> pa.ChunkedArray:
    """Text without white space around it, and numbers where `as_numbers` finds missing ones among them."""
    if pa.types.is_dictionary(cells.type) or pa.types.is_string(cells.type):
        distinct = pc.unique(cells).cast(pa.string())
        trimmed = pc.utf8_trim_whitespace(distinct)
        if pc.all(pc.equal(distinct, trimmed)).as_py() is False:
            cells = pc.utf8_trim_whitespace(cells.cast(pa.string()))
        if pa.types.is_dictionary(cells.type) or are_codes(trimmed) or as_numbers(trimmed, na)[0] is None:
            return cells
    is_flag = pa.types.is_boolean(cells.type)
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating)
    if not (is_flag or any(is_kind(cells.type) for is_kind in kinds)):
        return cells
    numbers, spellings = as_numbers(cells, na)
    return numbers if numbers is not None and (spellings or (is_flag and cells.null_count)) else cells


def dry_run(name: str, path: Path, choices: Choices) -> tuple[Choices, dict[str, Any]]:
    """The choices and the summary of preparation. Gaps in a series are skipped, or filled if too many training windows
    have one.
    """
    missing, why = choices["missing"]
    if why:
        return choices, summarize(name, path, choices)
    summary, remark = None, ""
    with suppress(ValueError):  # any error that is not about gaps is raised again by the next attempt
        summary = summarize(name, path, choices)
    if summary is None or loses_many_windows(summary):
        missing, remark = "interpolate", ", too many to skip; an input in a gap repeats the last value"
        summary = summarize(name, path, {**choices, "missing": (missing, remark)})
    gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete{remark}"
    if num_duplicates := summary["num_duplicates"]:
        gaps += f"; {num_duplicates:,} rows have the time of a later one, which counts"
    if num_lost := summary["num_windows_skipped"]:
        per_split = summary["num_windows_skipped_per_split"].items()
        by_split = ", ".join(f"{split} {num:,}" for split, num in per_split if num)
        lack = "a missing or incomplete point is in them"
        if remark:
            lack = "a target in them is missing, or a feature has no value yet"
        gaps += f"; {num_lost:,} windows are left out ({by_split}), because {lack}"
        if remark and loses_many_windows(summary):
            gaps += "; if it is the target, give a shorter --horizon, or fill its short gaps in the table"
    return {**choices, "missing": (missing, gaps)}, summary


def summarize(name: str, path: Path, choices: Choices) -> dict[str, Any]:
    """The summary that preprocess would write, without the hashes."""
    section = parsing.parse(schema.Preprocess, preprocess_section(path.name, choices), f"{name}.preprocess")
    return prepare_data(section, path.parent, schema.built_in_attributes(choices["task"][0]).target).summary
