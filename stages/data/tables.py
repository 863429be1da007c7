"""Raw tables (CSV, CSV.gz, Parquet): finds, reads and checks them. Every refusal names the row's place in the file.

pyarrow reads them: it keeps text and numbers apart without a copy (pandas took twice the memory). R: rows of the table.
"""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from stages.files import relative
from stages.params.parsing import nearest
from stages.params.schema import leaves_folder

if TYPE_CHECKING:
    import pandas

SPLIT_COLUMN = "split"
LARGEST = 4e18  # the square of a difference of two such differences is a finite 32-bit float
# What a column of a Parquet file may hold.
KINDS = (
    pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_decimal, pa.types.is_null,
)  # fmt: skip
ENDINGS = (".csv", ".csv.gz", ".parquet")
DAMAGED = (OSError, EOFError, zlib.error)  # what reading a gzip file may raise that is cut off or changed


@dataclass(frozen=True)
class Table:
    """The columns asked for, not yet checked. `take` hands a column over, so that no two copies of a table exist."""

    name: str
    columns: dict[str, pa.ChunkedArray]
    place: Callable[[int], str]  # where a row (from 0) stands in the file, as its reader counts

    def take(self, column: str) -> pa.ChunkedArray:
        return self.columns.pop(column)


def find_table(folder: Path, name: str) -> Path:
    if leaves_folder(name):
        raise ValueError(
            f"preprocess.table is {name!r}, which leaves {relative(folder)}; "
            "put the table there and give its name alone"
        )
    if not name.lower().endswith(ENDINGS):
        raise ValueError(f"preprocess.table is {name!r}; accepted endings: {', '.join(ENDINGS)}")
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{relative(path)} is not there; put the workload's table at that place "
            "(data/raw/README.md says what it must hold)"
        )
    return path


def read_table(path: Path, texts: Sequence[str], features: Sequence[str], others: Sequence[str] = ()) -> Table:
    """The columns asked for, and `split` where there is one.

    Reads `texts` as text, `features` as numbers, `others` as what they look like. Raises ValueError where a column is
    missing or the file is no table.
    """
    wanted = [*texts, *others, *features]
    times = Counter(wanted)
    for column in wanted:
        if times[column] > 1 or column == SPLIT_COLUMN:
            raise ValueError(
                f"preprocess.columns names {column!r} "
                f"{'twice' if column != SPLIT_COLUMN else 'for something else than the split'}; they must be different "
                "columns, and the name `split` is kept for train, val or test"
            )
    is_parquet = path.suffix.lower() == ".parquet"
    try:
        cells = read_parquet(path, wanted) if is_parquet else read_csv(path, texts, features, wanted)
    except (pa.ArrowException, csv.Error, *DAMAGED, UnicodeDecodeError) as error:
        why = None if is_parquet else not_utf8(path) or ragged_line(path)
        raise ValueError(
            f"{relative(path)} cannot be read as {'Parquet' if is_parquet else 'CSV'}: "
            f"{why or ' '.join(str(error).split())}"
        ) from None
    if cells.num_rows == 0:
        raise ValueError(f"{relative(path)} has a header but 0 rows; every split needs some")
    columns = {column: plain(relative(path), column, cells.column(column)) for column in cells.column_names}
    return Table(relative(path), columns, row_number if is_parquet else partial(csv_line, path))


def from_frame(frame: "pandas.DataFrame", wanted: list[str], name: str) -> Table:
    """A DataFrame as a Table. Raises ValueError where a column is missing or holds several kinds of values."""
    try:
        cells = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise ValueError(f"{name} mixes kinds of values in one column: {' '.join(str(error).split())}") from None
    wanted = present(name, cells.column_names, wanted)
    return Table(name, {column: plain(name, column, cells.column(column)) for column in wanted}, row_number)


def plain(name: str, column: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """`cells` as text, numbers, dates, times or words by number. Raises ValueError for what is none of these."""
    kind = kind_of_cells(cells.type)
    if not is_plain(kind):
        accepted = "text, numbers, dates or times with a date"
        raise ValueError(f"{name}: column {column!r} holds {kind}, but must hold {accepted}; convert it and run again")
    if is_long_text(kind):
        return cells.cast(pa.string())
    if pa.types.is_float16(kind):
        return cells.cast(pa.float32())
    is_word = not pa.types.is_dictionary(cells.type) or pa.types.is_string(kind)
    return cells if is_word else cells.cast(kind)


def kind_of_cells(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_plain(kind: pa.DataType) -> bool:
    """Whether a column of this kind can be read: no lists, structs or bytes."""
    kind = kind_of_cells(kind)
    return is_long_text(kind) or any(is_kind(kind) for is_kind in KINDS)


def is_long_text(kind: pa.DataType) -> bool:
    return pa.types.is_large_string(kind) or kind == pa.string_view()


def row_number(row: int) -> str:
    return f"row {row + 1}"


def read_parquet(path: Path, wanted: list[str]) -> pa.Table:
    with pa.parquet.ParquetFile(path) as file:
        return file.read(columns=present(relative(path), file.schema_arrow.names, wanted))


def read_csv(path: Path, texts: Sequence[str], features: Sequence[str], wanted: list[str]) -> pa.Table:
    """Reads ids and labels as text, so that `007` and a label `NA` stay what they are; the rest as it looks."""
    with open_csv(path) as file:
        header = next(csv.reader(file), None)
    if not header:
        raise ValueError(f"{relative(path)} is empty (0 bytes of table); it must hold a header and at least one row")
    wanted = present(relative(path), header, wanted)
    as_text = dict.fromkeys((*texts, SPLIT_COLUMN), pa.dictionary(pa.int32(), pa.string()))
    looks_like = pa.csv.ConvertOptions(include_columns=wanted, column_types=as_text, null_values=[""])
    with pa.csv.open_csv(path, convert_options=looks_like) as start:
        types = {field.name: field.type for field in start.schema}
    types.update({name: pa.float64() for name in features if types[name] == pa.int64()})
    typed = pa.csv.ConvertOptions(include_columns=wanted, column_types=types, null_values=[""])
    try:
        # With the types known from the first megabyte: a third of the time and of the memory.
        return pa.csv.read_csv(path, convert_options=typed)
    except pa.ArrowInvalid:
        return pa.csv.read_csv(path, convert_options=looks_like)


def present(name: str, header: list[str], wanted: list[str]) -> list[str]:
    """The columns to read, with `split` where there is one. Raises ValueError where one is missing or there twice."""
    times = Counter(header)
    for column in wanted:
        if column not in times:
            raise ValueError(f"{name} has no column {column!r}{nearest(column, header)}")
    found = [*wanted, *([SPLIT_COLUMN] if SPLIT_COLUMN in header else [])]
    for column in found:
        if times[column] > 1:
            raise ValueError(f"{name} has {times[column]} columns {column!r}; rename all but one")
    return found


def open_csv(path: Path) -> Any:
    return (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="")


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that hold anything, with their line in the file; the header comes first."""
    with open_csv(path) as file:
        reader = csv.reader(file)
        for cells in reader:
            if cells:
                yield reader.line_num, cells


def csv_line(path: Path, row: int) -> str:
    """The line of a row. Blank lines make them differ, so this reads the file again once something is wrong."""
    line, _ = next(islice(csv_rows(path), row + 1, None))
    return f"line {line}"


def not_utf8(path: Path) -> str | None:
    """What is wrong where the file is no UTF-8, which is all that is read here, and what mends it."""
    try:
        with open_csv(path) as file:
            while file.read(1 << 20):
                pass
    except UnicodeDecodeError as error:
        byte, place = error.object[error.start], "of UTF-16" if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        return (
            f"it is not UTF-8 (byte 0x{byte:02x}{place and f', the first {place}'}); "
            "python -m stages.tools.new_workload finds the encoding and writes it as UTF-8"
        )
    except DAMAGED:
        return None  # what is wrong is said already
    return None


def ragged_line(path: Path) -> str | None:
    """What is wrong with the first line that has more or fewer cells than the header."""
    try:
        rows = csv_rows(path)
        width = len(next(rows)[1])
        odd = next(((line, cells) for line, cells in rows if len(cells) != width), None)
    except (csv.Error, *DAMAGED, UnicodeDecodeError, StopIteration):
        return None
    return odd and f"line {odd[0]} has {len(odd[1])} cells and the header {width}; correct the table and run again"


def coded(table: Table, column: str, empty: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(R,) int32 codes, and the distinct values they stand for, in order.

    `empty`: what an empty cell means; None refuses it.
    """
    cells = table.take(column)
    if empty is not None:
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        texts = cells.cast(pa.string()).fill_null("")
        cells = pc.if_else(pc.equal(pc.utf8_trim_whitespace(texts), ""), empty, texts)
    if cells.null_count:
        refuse(table, pc.is_null(cells).to_numpy(), f"column {column!r} is empty")
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    filled = [chunk for chunk in cells.unify_dictionaries().chunks if len(chunk)]
    codes, found = np.concatenate([chunk.indices.to_numpy() for chunk in filled]), filled[0].dictionary
    if pa.types.is_integer(found.type):
        values, rank = sorted_with_rank(found.to_numpy())
    else:
        texts = found.cast(pa.string()).to_numpy(zero_copy_only=False).astype(np.str_)
        blank = np.flatnonzero(np.char.strip(texts) == "")
        if len(blank):
            refuse(table, np.isin(codes, blank), f"column {column!r} is empty")
        values, rank = sorted_with_rank(texts)
    return rank.astype(np.int32)[codes], values


def sorted_with_rank(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`values` sorted, and the rank of each: by number where all are numbers, else by text.

    Whole numbers as they are usually written (`10`, not `010`) become int64, so that a CSV and a Parquet file give the
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
    return values[order], np.argsort(order)  # the inverse of a permutation is what sorts it


def numbers(table: Table, column: str, allow_missing: bool = False) -> np.ndarray:
    """(R,) numbers in the type that the file has, all finite; else ValueError with the row and what stands there.

    Times become nanoseconds. `allow_missing` lets empty cells and NaN through, as NaN.
    """
    cells = table.take(column)
    is_time = pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type)
    if is_time:
        cells = cells.cast(pa.timestamp("ns")).cast(pa.int64())
    if pa.types.is_decimal(cells.type):
        cells = cells.cast(pa.float64())
    why = f"column {column!r} must hold finite numbers"
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        wrong = (not is_number(cell, allow_missing) for chunk in cells.chunks for cell in chunk.to_pylist())
        refuse(table, np.fromiter(wrong, dtype=bool, count=len(cells)), why, cells)
        texts = pc.utf8_trim_whitespace(cells.cast(pa.string()))  # numbers kept as text, which a Parquet file can hold
        cells = pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.float64())
    if cells.null_count and not allow_missing:
        refuse(table, pc.is_null(cells).to_numpy(), why, cells)
    array = cells.to_numpy()
    if array.dtype.kind == "f":
        refuse(table, np.isinf(array) if allow_missing else ~np.isfinite(array), why, cells)
    if not is_time:
        why = f"column {column!r} must hold numbers from {-LARGEST:g} to {LARGEST:g}"
        refuse(table, (array > LARGEST) | (array < -LARGEST), why, cells)
    return array


def is_number(value: Any, allow_missing: bool) -> bool:
    if value is None or value == "":
        return allow_missing
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        return False  # Python reads 1_0 and digits of other scripts, Arrow does not
    try:
        return not isinstance(value, bool) and bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def refuse(table: Table, wrong: np.ndarray, why: str, found: pa.ChunkedArray | None = None) -> None:
    """Raise ValueError for the first row where `wrong` is true."""
    if wrong.any():
        row = int(wrong.argmax())
        value = None if found is None else found[row].as_py()
        shown = "" if found is None else f", found {'(empty)' if value is None or value == '' else value}"
        more = f" ({int(wrong.sum()):,} rows in all)" if wrong.sum() > 1 else ""
        raise ValueError(f"{table.name}, {table.place(row)}: {why}{shown}{more}; correct the table and run again")
