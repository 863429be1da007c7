"""Text tables: reads them, with the notation of their numbers and dates (text_format.py detects the rest).

preprocess reads CSV in UTF-8 with commas and a header, plain or gzip; `rewritten` is the text of others in that form.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from tandem.data import tables
from tandem.data.tables import MISSING, as_numbers, cast_or_none, is_number, split_column
from tandem.importing import number_signs
from tandem.importing.date_signs import DateCells, as_iso
from tandem.importing.number_signs import DECIMAL, THOUSANDS, ColumnCells
from tandem.importing.text_format import DAMAGED, TextTable, find_format, open_bytes
from tandem.terminal.command import WrongArgument
from tandem.terminal.messages import one_line

BLOCK_BYTES = 2 << 20  # of pyarrow: the longest line


def pandas_code(path: Path, options: Mapping[str, Any]) -> tuple[str, str]:
    """The pandas code that reads the table, with the dates that pandas knows, and the code that writes it."""
    if path.suffix.lower() == ".parquet":
        return f"table = pandas.read_parquet({str(path)!r})", "table.to_csv('new.csv', index=False)"
    table = with_notation(find_format(path, options), options)
    sep = "" if table.delimiter in ", " else f", sep={table.delimiter!r}"
    spaces = r", sep=r'\s+'" * (table.delimiter == " ")
    code = f"{str(path)!r}{sep}{spaces}, dtype=str, keep_default_na=False, na_values=['']"
    code += "" if table.encoding.startswith("utf-8") else f", encoding={table.encoding!r}"
    with open_bytes(path, table.compression) as file:
        is_remark = table.delimiter != "," and file.read(1) == b"#"  # find_format has left out the sign
    if table.num_skipped != 1 or not table.has_header or is_remark:
        names = [name.strip() and name or f"column {place}" for place, name in enumerate(table.names, 1)]
        code += f", skiprows={table.num_skipped}, names={names}"
    code = f"table = pandas.read_csv({code}).dropna(how='all')"
    for name, form in table.dates.items():
        texts = read_text(table)[name].to_pandas()
        if pd.to_datetime(texts, format=form, errors="coerce").notna().eq(texts.str.strip() != "").all():
            code += f"; table[{name!r}] = pandas.to_datetime(table[{name!r}], format={form!r})"
    return code, f"table.to_csv('new.csv'{sep}, index=False)"


def with_notation(
    table: TextTable, options: Mapping[str, Any], other_tables: Iterable[TextTable] = (), cells: pa.Table | None = None
) -> TextTable:
    """`table` with the notation of its numbers and dates. It follows from all cells of this file and of `other_tables`,
    which have the same columns. `options`: of these, `decimal`, `thousands` and `dayfirst` count. `cells`: the table as
    `read` returns it, if commas are between its cells: then only its text can have another notation.

    Raises CommandError with a question, and ValueError, if `find_notation` does.
    """
    signs = {key: options[key] for key in (DECIMAL, THOUSANDS) if key in options}
    if len(signs) == 2 and len({*signs.values()}) == 1:
        message = f"--decimal and --thousands are both {signs[DECIMAL]!r}"
        raise WrongArgument(f"{message}, and a sign has one meaning; give one")
    columns, dates = {name: ColumnCells() for name in table.names}, {name: DateCells() for name in table.names}
    for part in (table, *other_tables):
        # A row with too many cells, and columns that `table` does not have: the reader of the file reports them.
        with suppress(ValueError):
            rows = read_text(part) if cells is None else cells
            for name, column in zip(part.names, rows.columns, strict=True):
                for chunk in column.chunks if name in columns and pa.types.is_string(column.type) else ():
                    columns[name].add(chunk, str(part.path), name, table.na)
                    dates[name].add(chunk)
    if cells is not None and any(2 * shown.num_numbers > shown.num for shown in columns.values()):
        return with_notation(table, options)  # what a sign means depends on the columns of numbers too
    convert, notations = number_signs.find_notation(columns, table.delimiter, signs)
    notes = [("numbers", " and ".join(notations), "; ".join(dict.fromkeys(notations.values())))] if notations else []
    forms = dict[str, str]()
    for name, shown in dates.items():
        if form := shown.form(day_first := options.get("dayfirst")):
            forms[name], convert[name] = form, partial(as_iso, form=form)
            notes.append(("dates", f"{name}: {shown.example} is {shown.iso(form)}", shown.reason(day_first)))
    unclear = {name: shown.example for name, shown in dates.items() if shown.is_open and name not in convert}
    return replace(table, convert=convert, notes=[*table.notes, *notes], dates=forms, unclear=unclear)


def read_with_notation(
    table: TextTable, options: Mapping[str, Any], other_tables: Sequence[TextTable]
) -> tuple[TextTable, pa.Table]:
    """`with_notation`, and all rows. The usual table, of numbers with points between commas, is parsed once."""
    cells = None
    if table.delimiter == "," and not other_tables and not {DECIMAL, THOUSANDS} & {*options}:
        with suppress(ValueError):  # raised again below, after what the notation says
            cells = read(table)
    table = with_notation(table, options, other_tables, cells)
    return table, read(table) if cells is None or table.convert else cells


def are_plain(cells: pa.Table) -> bool:
    """Whether preprocess reads the same from the file: it knows another set of empty cells, and no times of day."""
    has_times_of_day = any(map(pa.types.is_time, cells.schema.types))
    has_empty_cells = any(column.null_count for column in cells.columns)
    return not (has_times_of_day or has_empty_cells or split_column(cells.column_names))


def read_text(table: TextTable) -> pa.Table:
    """All cells as their literal text. Raises ValueError, in one sentence, for invalid content."""
    return read_csv(table, True, column_types=dict.fromkeys(table.names, pa.string()), null_values=())


def read(table: TextTable, types: Mapping[str, pa.DataType] | None = None, own_names: bool = False) -> pa.Table:
    """All rows; columns have the given `types`, and others the kind that their text suggests. `own_names`: those of the
    file's header, if it is the first line. Raises ValueError, in one sentence, for invalid content.
    """
    as_text = dict.fromkeys(table.convert, pa.string())
    own_names = own_names and table.has_header and table.num_skipped == 1
    return with_numbers(table, read_csv(table, False, own_names, column_types={**(types or {}), **as_text}), types)


def rewritten(table: TextTable) -> pa.Table:
    """All cells as text, which changes only in the converted columns."""
    return with_numbers(table, read_text(table), dict.fromkeys(table.names, pa.string()))


def read_csv(table: TextTable, newlines_in_values: bool, own_names: bool = False, **convert: Any) -> pa.Table:
    is_spaced = table.delimiter == " "
    options = pa.csv.ReadOptions(
        block_size=BLOCK_BYTES,
        encoding="utf8" if table.encoding == "utf-8-sig" or is_spaced else table.encoding,
        column_names=[] if own_names else table.names,
        skip_rows_after_names=0 if own_names else table.num_skipped,
    )
    parse = pa.csv.ParseOptions(delimiter="\t" if is_spaced else table.delimiter, newlines_in_values=newlines_in_values)
    missing = [form.format(cell) for cell in (*MISSING, *table.na) for form in ("{}", " {}", "{} ", " {} ")]
    conversion = pa.csv.ConvertOptions(**{"null_values": missing, **convert})
    try:
        with open_bytes(table.path, table.compression) as file:
            data = tabbed(codecs.getreader(table.encoding)(file)) if is_spaced else file.read()
        # pyarrow reads a Python file object under its lock: four times slower
        with suppress(pa.ArrowException):
            with pa.csv.open_csv(pa.BufferReader(data), options, parse, conversion) as start:
                types = {field.name: field.type for field in start.schema}
            typed = pa.csv.ConvertOptions(**{"null_values": missing, **convert, "column_types": types})
            return pa.csv.read_csv(pa.BufferReader(data), options, parse, typed)
        options.use_threads = False  # an error then names the line
        return pa.csv.read_csv(pa.BufferReader(data), options, parse, conversion)
    except (pa.ArrowException, *DAMAGED, UnicodeDecodeError) as error:
        raise ValueError(f"{table.path} cannot be read: {why_unreadable(error, table)}") from None


def tabbed(lines: Iterable[str]) -> bytes:
    """Cells between runs of spaces, which pyarrow does not read, as UTF-8 with a tab between two cells."""
    rows = (next(csv.reader([line.strip()], delimiter=" ")) if '"' in line else line.split() for line in lines)
    return b"".join("\t".join(filter(None, row)).encode() + b"\n" for row in rows)


def with_numbers(table: TextTable, cells: pa.Table, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """The cells with the converted columns, which are text, in the given `types`; those without become numbers if all
    their cells are.

    Raises ValueError if a cell of a column of numbers is none.
    """
    kinds = types or {}
    for place, name in enumerate(cells.column_names):
        if name in table.convert:
            column = table.convert[name](cells[place])
            if kinds.get(name) != pa.string():
                column = as_inferred(column, table.na) if name not in kinds else as_floats(column, name, table)
            cells = cells.set_column(place, name, column)
    return cells


def as_inferred(cells: pa.ChunkedArray, na: Sequence[str]) -> pa.ChunkedArray:
    """Text as whole numbers, else as numbers or times, else as it is."""
    numbers, _ = as_numbers(cells, na)
    if numbers is None:
        return cast_or_none(cells, pa.timestamp("ns")) or cells
    return cast_or_none(numbers, pa.int64()) or numbers


def as_floats(cells: pa.ChunkedArray, name: str, table: TextTable) -> pa.ChunkedArray:
    numbers, _ = as_numbers(cells, table.na)
    if numbers is None:
        wrong = next(cell for cell in cells.to_pylist() if not is_number(cell, table.na, allow_missing=True))
        raise ValueError(f"{table.path}: column {name!r} must hold numbers, found {wrong}; correct the table")
    return numbers


def why_unreadable(error: Exception, table: TextTable) -> str:
    """pyarrow's message, shortened."""
    text = one_line(error)
    if match := re.search(r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to double: invalid value (.*)", text):
        place, row = table.names[int(match[1])], match[2] and f" in line {match[2]}"
        return f"column {place!r} must hold numbers, found {match[3]}{row or ''}; correct the table and run again"
    if match := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", text):
        line = f"line {match[1]}" if match[1] else "a line"
        return f"{line} has {match[3]} cells and the first one {match[2]}; correct the table and run again"
    is_encoding = "UTF8" in text or isinstance(error, UnicodeDecodeError)
    return f"it is not {table.encoding} further down; name its encoding with --encoding" if is_encoding else text


def source_line(table: TextTable, written: Path, line: int) -> int:
    """The line of the file of `table` that became `line` of the rewritten table; blank lines make a difference."""
    row = next(number for number, (end, _) in enumerate(tables.csv_rows(written)) if end == line)  # 0: the header
    with open_bytes(table.path, table.compression) as file:
        text = io.TextIOWrapper(file, table.encoding, newline="")
        reader = csv.reader(text, delimiter=table.delimiter)
        numbered = ((number, reader.line_num, cells) for number, cells in enumerate(reader))
        lines = (
            line
            for number, line, cells in numbered
            if number >= table.num_skipped - (row == 0) and (any(cells) if table.delimiter == " " else cells)
        )
        return next(islice(lines, max(row - 1, 0), None))
