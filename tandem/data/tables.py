"""Find, read and check raw tables (CSV, CSV.gz, Parquet). Every error about a row names its place in the file.

This module uses pyarrow, because pandas needed twice the memory. R: rows of the table.
"""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tandem.files import relative
from tandem.terminal.messages import similar

if TYPE_CHECKING:
    import pandas

SPLIT_COLUMN = "split"
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
# Cells of a numeric column without a number.
MISSING = ("", "-", ".", "?", "NA", "na", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "none")
LARGEST_WHOLE = 2**53 - 1  # a 64-bit float loses the last digits of a larger whole number
LARGEST = 4e18  # largest number: a squared difference of two velocities is still a finite 32-bit float
# Accepted types of a Parquet file's columns.
KINDS = (
    pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_decimal, pa.types.is_null,
)  # fmt: skip
ENDINGS = (".csv", ".csv.gz", ".parquet")
DAMAGED = (OSError, EOFError, zlib.error)  # errors of reading a truncated or damaged gzip file


@dataclass(frozen=True)
class RawTable:
    """The requested columns, unchecked. `take` removes a column, so it can be freed once it is converted."""

    name: str
    columns: dict[str, pa.ChunkedArray]  # that of the split, if there is one, is called SPLIT_COLUMN
    place: Callable[[int], str]  # row index (from 0) -> its place in the file for messages, e.g. "line 7"
    na: tuple[str, ...] = ()  # cells without a number, besides MISSING
    split: str | None = None  # the name of the split's column in the file
    missing: Counter[str] = field(default_factory=Counter)  # cell without a number -> how often it was read
    remarks: list[str] = field(default_factory=list)  # what was read in another way than it is written

    def take(self, column: str) -> pa.ChunkedArray:
        return self.columns.pop(column)

    def places(self, first: int, second: int) -> str:
        """The places of two rows, e.g. "lines 7 and 8"."""
        (noun, number), (_, other_number) = self.place(first).split(), self.place(second).split()
        return f"{noun}s {number} and {other_number}"

    @property
    def report(self) -> tuple[str, ...]:
        """The remarks after all columns have been read."""
        words = ", ".join(f"{word} ({num:,})" for word, num in sorted(self.missing.items()))
        return (*self.remarks, *([f"cells that count as missing: {words}"] if words else []))


def open_table(
    params: Any, source: Any, texts: Sequence[str], features: Sequence[str], inferred: Sequence[str] = ()
) -> tuple[RawTable, Path | None]:
    """Read the table of `params` from the folder `source`; or convert `source`, the DataFrame that the workload's own
    source returned. Returns it and the file.
    """
    if not isinstance(source, Path):
        columns = [*texts, *inferred, *features]
        return from_frame(source, columns, f"what {params.component.place} returns", params.na), None
    path = find_table(source, params.table)
    return read_table(path, texts, features, inferred, params.na), path


def find_table(folder: Path, name: str) -> Path:
    if not name.lower().endswith(ENDINGS):
        raise ValueError(f"preprocess.table is {name!r}; accepted endings: {', '.join(ENDINGS)}")
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{relative(path)} is not there; put the workload's table at that place "
            "(workloads/README.md says what it must hold)"
        )
    return path


def read_table(
    path: Path,
    texts: Sequence[str],
    features: Sequence[str],
    inferred: Sequence[str] = (),
    na: tuple[str, ...] = (),
) -> RawTable:
    """Read the given columns, and the column of the split if the file has one.

    Reads `texts` as text and `features` as numbers, and infers the types of `inferred`. Raises ValueError if a column
    is missing or the file is not a table.
    """
    columns = [*texts, *inferred, *features]
    is_parquet = path.suffix.lower() == ".parquet"
    try:
        cells = read_parquet(path, columns) if is_parquet else read_csv(path, texts, features, columns)
    except (pa.ArrowException, csv.Error, *DAMAGED, UnicodeDecodeError) as error:
        why = " ".join(str(error).split()) if is_parquet else why_no_csv(path, error)
        raise ValueError(f"{relative(path)} cannot be read as {'Parquet' if is_parquet else 'CSV'}: {why}") from None
    return raw_table(cells, columns, relative(path), row_number if is_parquet else partial(csv_line, path), na)


def from_frame(frame: "pandas.DataFrame", columns: list[str], name: str, na: tuple[str, ...] = ()) -> RawTable:
    """Convert a DataFrame. Raises ValueError if a column is missing or contains values of several types."""
    try:
        cells = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise ValueError(f"{name} mixes kinds of values in one column: {' '.join(str(error).split())}") from None
    return raw_table(cells.select(columns_to_read(name, cells.column_names, columns)), columns, name, row_number, na)


def raw_table(
    cells: pa.Table, columns: Sequence[str], name: str, place: Callable[[int], str], na: tuple[str, ...]
) -> RawTable:
    """The given columns and, if there is one more, that of the split.

    Raises ValueError if a column has two roles, or if there are no rows.
    """
    for column, count in Counter(columns).items():
        if count > 1 or column == SPLIT_COLUMN:
            raise ValueError(
                f"preprocess.columns names {column!r} "
                f"{'twice' if column != SPLIT_COLUMN else 'for something else than the split'}; they must be different "
                "columns, and the name `split` is kept for train, val or test"
            )
    if cells.num_rows == 0:
        raise ValueError(f"{name} has a header but 0 rows; every split needs some")
    cells_by_column = {column: simplified(name, column, cells.column(column)) for column in cells.column_names}
    if split := next((column for column in cells_by_column if column not in columns), None):
        cells_by_column[SPLIT_COLUMN] = cells_by_column.pop(split)
    return RawTable(name, cells_by_column, place, na, split)


def simplified(name: str, column: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert `cells` to text, numbers, dates, times or dictionary-encoded text. Raises ValueError for other types."""
    kind = value_type(cells.type)
    if not is_plain(kind):
        accepted = "text, numbers, dates or times with a date"
        raise ValueError(f"{name}: column {column!r} holds {kind}, but must hold {accepted}; convert it and run again")
    if is_long_text(kind):
        return cells.cast(pa.string())
    if pa.types.is_float16(kind):
        return cells.cast(pa.float32())
    if pa.types.is_dictionary(cells.type) and not pa.types.is_string(kind):
        return cells.cast(kind)
    return cells


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, for a dictionary-encoded column too."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_plain(kind: pa.DataType) -> bool:
    """Whether columns of this type are accepted; lists, structs and bytes are not."""
    kind = value_type(kind)
    return is_long_text(kind) or any(is_kind(kind) for is_kind in KINDS)


def is_long_text(kind: pa.DataType) -> bool:
    return pa.types.is_large_string(kind) or kind == pa.string_view()


def row_number(row: int) -> str:
    return f"row {row + 1}"


def read_parquet(path: Path, columns: list[str]) -> pa.Table:
    with pa.parquet.ParquetFile(path) as file:
        return file.read(columns=columns_to_read(relative(path), file.schema_arrow.names, columns))


def read_csv(path: Path, texts: Sequence[str], features: Sequence[str], columns: list[str]) -> pa.Table:
    """Read `texts` as text, so `007` and a label `NA` do not change. pyarrow infers the types of other columns."""
    with open_csv(path) as file:
        header = next(csv.reader(file), None)
    if not header:
        raise ValueError(f"{relative(path)} is empty (0 bytes of table); it must hold a header and at least one row")
    as_text = dict.fromkeys((*texts, split_column(header, columns) or ""), pa.dictionary(pa.int32(), pa.string()))
    columns = columns_to_read(relative(path), header, columns)
    inferred = pa.csv.ConvertOptions(include_columns=columns, column_types=as_text, null_values=[""])
    with pa.csv.open_csv(path, convert_options=inferred) as start:
        types = {field.name: field.type for field in start.schema}
    floats = {name: pa.float64() for name in features if types[name] == pa.int64()}
    # With types inferred from the first megabyte only, reading takes a third of the time and of the memory.
    for column_types in (types, types | floats) if floats else (types,):
        with suppress(pa.ArrowInvalid):
            typed = pa.csv.ConvertOptions(include_columns=columns, column_types=column_types, null_values=[""])
            return pa.csv.read_csv(path, convert_options=typed)
    return pa.csv.read_csv(path, convert_options=inferred)


def split_column(names: Iterable[str], taken: Sequence[str] = ()) -> str | None:
    """The column of the split: `split`, else the only one of that name in other letters, such as `Split`."""
    candidates = [name for name in names if name.strip().lower() == SPLIT_COLUMN and name not in taken]
    return SPLIT_COLUMN if SPLIT_COLUMN in candidates else candidates[0] if len(candidates) == 1 else None


def columns_to_read(name: str, header: list[str], columns: list[str]) -> list[str]:
    """Return the columns to read: `columns`, and that of the split if the header has one.

    Raises ValueError if the header lacks one of them or has it twice.
    """
    counts = Counter(header)
    for column in columns:
        if column not in counts:
            hint = similar(column, header) or ";"
            raise ValueError(f"{name} has no column {column!r}{hint} it has {', '.join(header)}")
    split = split_column(header, columns)
    with_split = [*columns, *([split] if split else [])]
    for column in with_split:
        if counts[column] > 1:
            raise ValueError(f"{name} has {counts[column]} columns {column!r}; rename all but one")
    return with_split


def open_csv(path: Path) -> Any:
    return (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="")


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row that is not blank; the header comes first."""
    with open_csv(path) as file:
        reader = csv.reader(file)
        for cells in reader:
            if cells:
                yield reader.line_num, cells


def csv_line(path: Path, row: int) -> str:
    """The line of a row. Blank lines are not rows, so this reads the file again."""
    line, _ = next(islice(csv_rows(path), row + 1, None))
    return f"line {line}"


def why_no_csv(path: Path, error: Exception) -> str:
    """Why pyarrow cannot read a CSV file: it is not UTF-8, or a line has more or fewer cells than the header; else its
    own message.
    """
    odd_line = ""
    try:
        rows = csv_rows(path)
        _, header = next(rows)
        for line, cells in rows:
            if len(cells) != len(header) and not odd_line:
                odd_line = f"line {line} has {len(cells)} cells and the header {len(header)}"
    except UnicodeDecodeError as decode_error:
        byte = decode_error.object[decode_error.start]
        place = ", the first of UTF-16" if decode_error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        return f"it is not UTF-8 (byte 0x{byte:02x}{place}); tandem new finds the encoding and writes it as UTF-8"
    except (csv.Error, *DAMAGED, StopIteration):
        pass
    return f"{odd_line}; correct the table and run again" if odd_line else " ".join(str(error).split())


def factorize(table: RawTable, column: str, empty: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (R,) int32 and the sorted distinct values, like pandas.factorize with `sort=True`.

    White space around text is stripped. `empty`: the value of empty and MISSING cells. If it is None, an empty cell
    raises ValueError.
    """
    cells = table.take(column)
    if empty is not None:
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        texts = cells.cast(pa.string()).fill_null("")
        is_empty = pc.is_in(pc.utf8_trim_whitespace(texts), pa.array([*MISSING, *table.na]))
        cells = pc.if_else(is_empty, empty, texts)
    raise_if_any(table, pc.is_null(cells, nan_is_null=True).to_numpy(), f"column {column!r} is empty")
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    chunks = [chunk for chunk in cells.unify_dictionaries().chunks if len(chunk)]
    codes, distinct = np.concatenate([chunk.indices.to_numpy() for chunk in chunks]), chunks[0].dictionary
    if pa.types.is_integer(distinct.type) and pc.max(distinct).as_py() < 2**63:  # those beyond are text, as in CSV
        values, rank = sorted_with_rank(distinct.to_numpy())
    else:
        texts = distinct.cast(pa.string()).to_numpy(zero_copy_only=False).astype(np.str_)
        stripped = np.char.strip(texts)
        blank = np.flatnonzero(stripped == "")
        if len(blank):
            raise_if_any(table, np.isin(codes, blank), f"column {column!r} is empty")
        if len(changed := np.flatnonzero(stripped != texts)):
            num_changed = int(np.isin(codes, changed).sum())
            table.remarks.append(f"white space is stripped from {num_changed:,} cells of column {column!r}")
            texts, index = np.unique(stripped, return_inverse=True)
            codes = index[codes]
        values, rank = sorted_with_rank(texts)
    return rank.astype(np.int32)[codes], values


def sorted_with_rank(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted values and the rank of each. Values sort as numbers if all are numbers, else as text.

    Text in the usual notation of integers (`10`, not `010`) becomes int64, so a CSV file and a Parquet file give the
    same classes.
    """
    keys: np.ndarray
    try:
        keys = values.astype(np.int64)
        if values.dtype.kind == "U" and (keys.astype(np.str_) != values).any():
            keys = values.astype(np.float64)
        else:
            values = keys
    except (ValueError, OverflowError):
        try:
            keys = values.astype(np.float64)
        except ValueError:
            keys = np.zeros(len(values))
    order = np.lexsort((values, keys))
    return values[order], np.argsort(order)  # argsort inverts a permutation


def read_numbers(
    table: RawTable, column: str, allow_missing: bool = False, hint: str = "", keep_whole: bool = False
) -> np.ndarray:
    """Return the numbers (R,) in the file's own type. Times become nanoseconds.

    Raises ValueError with the row and its value if a number is not finite, or if it is whole and a 64-bit float cannot
    hold it, unless the result is int64 and the caller keeps it so (`keep_whole`). With `allow_missing`, empty cells and
    NaN are accepted and become NaN. `hint` is a part of the message.
    """
    cells = table.take(column)
    is_time = pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type)
    if is_time:
        cells = cells.cast(pa.timestamp("ns")).cast(pa.int64())
    is_whole = pa.types.is_integer(cells.type)
    why = f"column {column!r} must hold finite numbers{hint}"
    numbers, spellings = as_numbers(cells, () if is_time else table.na)
    if numbers is None:
        wrong = (not is_number(cell, table.na, allow_missing) for chunk in cells.chunks for cell in chunk.to_pylist())
        raise_if_any(table, np.fromiter(wrong, dtype=bool, count=len(cells)), why, cells)
        raise ValueError(f"{table.name}: {why}; correct the table and run again")
    if numbers.null_count and not allow_missing:
        raise_if_any(table, pc.is_null(numbers).to_numpy(), why, cells)
    table.missing.update(spellings)
    array = numbers.to_numpy()
    if array.dtype.kind == "f":
        raise_if_any(table, np.isinf(array) if allow_missing else ~np.isfinite(array), why, cells)
    if not is_time:
        is_kept = keep_whole and array.dtype == np.int64
        largest = LARGEST_WHOLE if is_whole and not is_kept else LARGEST
        why = f"column {column!r} must hold {'whole ' * is_whole}numbers from {-largest:.16g} to {largest:.16g}"
        raise_if_any(table, (array > largest) | (array < -largest), why, cells)
    return array


def as_numbers(cells: pa.ChunkedArray, na: Sequence[str]) -> tuple[pa.ChunkedArray | None, Counter[str]]:
    """Return the cells as numbers, null where MISSING or `na` says so, and how often each of these occurs.

    False and true become 0 and 1. Returns None if a cell is something else.
    """
    spellings = Counter[str]()
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    elif pa.types.is_decimal(cells.type):
        cells = cells.cast(pa.float64())
    elif not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        texts = pc.utf8_trim_whitespace(cells.cast(pa.string()))
        is_missing = pc.is_in(texts, pa.array([*MISSING, *na]))
        for entry in texts.filter(is_missing).value_counts():
            spellings[entry["values"].as_py()] += entry["counts"].as_py()
        del spellings[""]
        texts = pc.replace_substring_regex(pc.if_else(is_missing, None, texts), r"^\+([\d.])", r"\1")
        parsed = cast_or_none(texts, pa.float64()) or cast_or_none(texts, pa.bool_())
        if parsed is None:
            return None, spellings
        cells = parsed.cast(pa.float64())
    if markers := [float(word) for word in na if is_number(word)]:
        numbers = cells.cast(pa.float64(), safe=False)  # nanoseconds since 1970 are rounded here, but not kept so
        for marker in markers:
            is_marker = pc.equal(numbers, marker)
            if num_marked := pc.sum(is_marker).as_py():
                spellings[f"{marker:g}"] += num_marked
                cells = numbers = pc.if_else(is_marker, None, numbers)
    return cells, spellings


def cast_or_none(cells: Any, kind: pa.DataType) -> Any:
    """Arrow's `cells`, an array or a scalar, cast to `kind`; None if one cannot be cast."""
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        return None


def is_number(value: Any, na: Sequence[str] = (), allow_missing: bool = False) -> bool:
    if value is None or str(value).strip() in (*MISSING, *na):
        return allow_missing
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        return False  # float() accepts 1_0 and digits of other scripts, but Arrow does not
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def raise_if_any(table: RawTable, wrong: np.ndarray, why: str, cells: pa.ChunkedArray | None = None) -> None:
    """Raises ValueError about the first row where `wrong` (R,) is true; with its cell of `cells`, if given."""
    if wrong.any():
        row = int(wrong.argmax())
        value = None if cells is None else cells[row].as_py()
        shown = "" if cells is None else f", found {'(empty)' if value is None or value == '' else value}"
        total = f" ({int(wrong.sum()):,} rows in all)" if wrong.sum() > 1 else ""
        raise ValueError(f"{table.name}, {table.place(row)}: {why}{shown}{total}; correct the table and run again")
