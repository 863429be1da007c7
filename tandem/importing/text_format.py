"""The format of a text table: compression, encoding, delimiter, header."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tandem.data import tables
from tandem.data.times import PERIOD_FORMS, YEAR_FORM, first_day
from tandem.importing.headers import NUMBER, Note, find_header, is_header, is_header_of, read_header
from tandem.importing.number_signs import Converter
from tandem.terminal.command import WrongArgument
from tandem.terminal.messages import one_line

# With the compressions that are read only here. RuntimeError: encrypted, or another method of compression.
DAMAGED = (*tables.DAMAGED, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
OPENERS: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
NO_TEXT = {
    b"\x89HDF": "HDF5; save the table as CSV or Parquet, e.g. pandas.read_hdf(path).to_parquet(new_path)",
    b"\xd0\xcf\x11\xe0": "an Excel file; save the sheet as CSV",
    b"\x80": "a Python pickle, which is never opened; save the table as CSV or Parquet, or arrays as npz",
    b"MATLAB": "a MATLAB file; save its arrays as npz, e.g. numpy.savez(path, X=X, y=y)",
    b".{8}\\.FIT": (
        "a FIT file of a sports watch; save its records as CSV with the package fitparse: pandas.DataFrame("
        "record.get_values() for record in fitparse.FitFile(path).get_messages('record')).to_csv(new_path, index=False)"
    ),
    b"ARROW1": "a Feather (Arrow) file; save it as Parquet: pandas.read_feather(path).to_parquet(new_path)",
}
# The same for text, by its beginning.
NO_TABLE = {
    r"<(!doctype|html|head|body|table|\?xml)\b": (
        "HTML or XML; save the table as CSV, e.g. pandas.read_html(path)[0].to_csv(new_path, index=False)"
    ),
    r"(%.*\n|\s)*@relation\b": (
        "ARFF; save it as CSV, e.g. pandas.DataFrame(scipy.io.arff.loadarff(path)[0]).map(lambda cell: cell.decode() "
        "if isinstance(cell, bytes) else cell).to_csv(new_path, index=False)"
    ),
    r"\{(?=[^{}]*\"(labels?|y|targets?)\"\s*:)[^{}]*\"(?!\1\")(\w+)\"\s*:\s*\[\s*\[": (
        r"JSON with arrays; save them as npz: data = json.loads(pathlib.Path(path).read_text()); "
        r"numpy.savez('new.npz', X=data['\2'], y=data['\1'])"
    ),
    r"(\{\s*[\"}]|\[\s*[{\[])": (
        "JSON; save the table as CSV, e.g. pandas.read_json(path).to_csv(new_path, index=False), with lines=True if "
        "each line is an object"
    ),
}
BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
SAMPLE_LETTERS, SAMPLE_ROWS = 1 << 18, 50
FEWEST_BLOCKS = 3  # of several rows, between blank lines, that are no mistake


@dataclass(frozen=True)
class TextTable:
    path: Path
    compression: str  # a key of OPENERS, or zip, or empty
    encoding: str
    delimiter: str
    names: tuple[str, ...]  # of the header, or 1, 2, 3 and so on
    has_header: bool
    notes: list[Note] = field(default_factory=list)
    names_index: bool = False  # the header omits the first column's name; `names` includes one
    na: tuple[str, ...] = ()  # cells without a number, besides MISSING
    convert: Mapping[str, Converter] = field(default_factory=dict)  # of the columns with numbers or dates to rewrite
    num_skipped: int = 1  # rows before those of the data, with blank ones: usually the header
    dates: Mapping[str, str] = field(default_factory=dict)  # columns of dates to rewrite, with their formats
    unclear: Mapping[str, str] = field(default_factory=dict)  # columns of dates of which the day or the month is first

    @property
    def is_ready(self) -> bool:
        """Whether preprocess reads it directly, once the name's ending states the compression."""
        is_plain = self.compression in ("", "gzip") and self.encoding in ("utf-8", "utf-8-sig")
        is_named = self.has_header and not self.names_index and self.num_skipped == 1
        return is_plain and self.delimiter == "," and is_named and not self.convert


def first_bytes(path: Path) -> bytes:
    """The first 16 bytes. Raises ValueError, with the way to a form that is read, if these are of a known other one."""
    with path.open("rb") as file:
        start = file.read(16)
    for magic, kind in NO_TEXT.items():
        if re.match(magic, start, re.DOTALL):
            raise ValueError(f"{path} is {kind}")
    return start


def find_format(path: Path, options: Mapping[str, Any]) -> TextTable:
    """The format of the text of `path`, from its first rows (the encoding: from the whole file), without the notation
    of numbers. `options`: the given options, of which `encoding` and `na` count.

    Raises ValueError if it is no text.
    """
    start = first_bytes(path)
    compression = next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), "")
    encoding, notes = options.get("encoding"), []
    try:
        encoding, why = (encoding, "as requested") if encoding else find_encoding(path, compression)
        if why:
            notes.append(("encoding", encoding, why))
        with open_bytes(path, compression) as file:
            text = codecs.getreader(encoding)(file).read(SAMPLE_LETTERS)
    except LookupError:
        problem = "which Python does not know; e.g. windows-1252, utf-16"
        raise WrongArgument(f"--encoding is {encoding!r}, {problem}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not {encoding}: {error.reason}; name another with --encoding") from None
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be read as {compression or 'text'}: {one_line(error)}") from None
    if "\0" in text:
        raise ValueError(
            f"{path} is no text (it holds zero bytes); give a table as CSV or Parquet, or arrays as npz; "
            "UTF-16 without a byte order mark needs --encoding utf-16-le"
        )
    text = text.removeprefix("\ufeff")
    for beginning, kind in NO_TABLE.items():
        if match := re.match(rf"\s*{beginning}", text, re.IGNORECASE):
            raise ValueError(f"{path} is {match.expand(kind)}")
    if not compression and re.match(r"\d\d?:\d\d:\d\d\.\d+ -> ", text):
        command = f"sed 's/ -> /,/' {shlex.quote(str(path))}"
        raise ValueError(
            f"{path} has a time and `->` in each line, as of Arduino's serial monitor; {command} > new.csv writes them "
            "with a comma"
        )
    (delimiter, rows), num_remarks = find_delimiter(text), 0
    # numpy writes the header itself like a remark. A first line of one number may be that of the rows.
    if remarks := re.match(r"(#.*\n|[^\S\n]*\n|\A[^\S\n]*\d+[^\S\n]*\n)+", text):
        of_rest, rest = find_delimiter(text[remarks.end() :])
        lines = [[line] for line in remarks[0].splitlines() if line.strip()]
        nearest = lines[-1][0] if lines else ""
        if of_rest != ",":  # preprocess reads a table with commas itself, so the name keeps the sign
            nearest = re.sub(r"#+ *(?=[^\s#;|])", "", nearest, count=1)
        cells = next(csv.reader([nearest], delimiter=of_rest), [])
        cells = [cell for cell in cells if cell or of_rest != " "]
        is_repeated = len(lines) > 1 and len({*cells}) < len(cells)  # units below the names
        if not is_repeated and is_header_of(cells, rest):
            delimiter, rows = of_rest, [*lines[:-1], cells, *rest]
        elif rest and is_header(rest):
            delimiter, rows = of_rest, [*lines, *rest]
        elif len({*map(len, rest)}) == 1 and len(rows[0]) != len(rest[0]):
            delimiter, rows, num_remarks = of_rest, rest, len(lines)
    if not rows:
        raise ValueError(f"{path} is empty; it must hold a header and at least one row")
    if delimiter != ";" and sum(row[-1].rstrip().endswith(";") for row in rows) > 0.9 * len(rows):
        command = f"sed 's/;[[:space:]]*$//' {shlex.quote(str(path))}"
        raise ValueError(f"the lines of {path} end with a semicolon; {command} > new.csv writes them without it")
    width = len(rows[-1])
    num_above = max((number for number, row in enumerate(rows, 1) if len(row) != width), default=0)
    header, below = rows[num_above - 1], rows[num_above:]
    line = num_raw_rows(text, delimiter, num_remarks + num_above) if 0 < num_above < len(rows) - 1 else 0
    is_short = len(header) == width - 1 and is_header([header, *below]) and not find_header(rows)[0]
    is_long = delimiter in "\t;|" and num_above > 1 and len(header) > width
    if line and (is_short or (is_long and is_header([header[:width], *below]) and not is_header(below))):
        raise ValueError(
            f"{path} has its header in line {line}, with {len(header)} cells, and the rows below have {width}; make "
            "them alike: the first or last column may have no name there, such as the row names of R"
        )
    are_numbers = width == 1 and all(re.fullmatch(NUMBER, row[0].strip()) for row in below)
    if line and are_numbers and not compression:  # as Apple's watches write
        command = f"(echo value; tail -n +{line + 1} {shlex.quote(str(path))}) > new.csv"
        raise ValueError(f"{path} has {line} lines about the recording above its numbers; {command} leaves them out")
    if delimiter != ",":
        notes.append(("cells", f"between {DELIMITERS[delimiter]}", "detected in the first rows"))
    has_header, names, num_rows, of_header = read_header(rows)
    names = tuple(name.strip() if delimiter != "," else name for name in names)
    notes += of_header
    times = Counter(names)
    if repeated := next((name for name in names if name and times[name] > 1), None):
        raise ValueError(f"{path} has {times[repeated]} columns {repeated!r}; rename all but one")
    if names_index := has_header and not names[0].strip() and are_times(rows[num_rows:]):
        name = "time" if "time" not in names else "saved index"
        names = (name, *names[1:])
        notes.append(("index", name, "the first column, which has no name and contains times: a pandas index"))
    na = tuple(options.get("na", ()))
    num_above = num_rows if has_header else num_remarks
    num_skipped = num_raw_rows(text, delimiter, num_above) if num_above else 0
    return TextTable(
        path, compression, encoding, delimiter, names, has_header, notes, names_index, na, num_skipped=num_skipped
    )


def check_no_blocks(table: TextTable, folder: Path | None = None, are_labelled: bool = False) -> None:
    """Raises ValueError, with the code that numbers them, if blank lines separate blocks of rows. `folder`: that of the
    table and others, whose names are the labels; if they `are_labelled`, only blank lines with dashes below do.
    """
    with open_bytes(table.path, table.compression) as file:
        text = codecs.getreader(table.encoding)(file).read(SAMPLE_LETTERS)
    blocks = re.split(r"\n\s*\n-[^\w\n]*\n" if are_labelled else r"\n\s*\n", text.strip())
    if len(blocks) < FEWEST_BLOCKS or not all("\n" in block for block in blocks[:-1]):
        return
    if are_labelled:
        raise ValueError(
            f"{table.path} has lines of dashes between blocks of rows, which may be sequences; write a file for each: "
            "import pathlib, re; [new.mkdir(parents=True, exist_ok=True) or (new / f'{path.stem}_{number}{path.suffix}'"
            f").write_text(block) for path in pathlib.Path({str(folder)!r}).rglob('*{table.path.suffix}') for new in "
            f"[pathlib.Path('new', path.parent.relative_to({str(folder)!r}))] for number, block in enumerate(filter("
            r"str.strip, re.split(r'(?m)^[^\w\n]*\n', path.read_text())))]; then give the folder new"
        )
    sep = r"\s+" if table.delimiter == " " else table.delimiter
    read = f"pandas.read_csv(path, sep={sep!r}, skip_blank_lines=False"
    read += ")" if table.has_header else ", header=None).add_prefix('c')"
    number = "lambda rows: path.stem + ' ' + rows.isna().all(axis=1).cumsum().astype(str)"
    paths = f"sorted(pathlib.Path({str(folder)!r}).rglob('*{table.path.suffix}'))"
    labels, paths = (".assign(label=path.stem)", paths) if folder else ("", f"[pathlib.Path({str(table.path)!r})]")
    raise ValueError(
        f"{table.path} has blank lines between blocks of rows, which may be sequences; number them: import pandas, "
        f"pathlib; rows = pandas.concat([{read}.assign(sequence={number}).dropna(thresh=2){labels} for path in {paths}]"
        "); rows['step'] = rows.groupby('sequence').cumcount(); rows.to_csv('new.csv', index=False); then give new.csv "
        "--sequence sequence --step step; or leave out the blank lines"
    )


def are_times(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first cells are dates, months or the like, or the years of a table of numbers."""
    first_cells = [row[0].strip() for row in rows]
    if all(re.match(r"\d{4}-\d\d-\d\d", cell) or first_day(cell, PERIOD_FORMS) for cell in first_cells):
        return bool(first_cells)
    numeric = all(re.fullmatch(NUMBER, cell.strip()) for row in rows for cell in row[1:])
    return numeric and all(re.fullmatch(YEAR_FORM, cell) for cell in first_cells)


@contextmanager
def open_bytes(path: Path, compression: str) -> Iterator[Any]:
    """The file's decompressed bytes."""
    with path.open("rb") as raw:
        if compression == "zip":
            with zipfile.ZipFile(raw) as archive:
                members = [member for member in archive.namelist() if not member.endswith("/")]
                if len(members) != 1:
                    hint = "an Excel file; save the sheet as CSV" if "xl/workbook.xml" in members else "unpack it first"
                    raise ValueError(f"{path} is an archive of {len(members)} files; {hint}")
                yield archive.open(members[0])
        else:
            yield OPENERS[compression](raw) if compression else raw


def find_encoding(path: Path, compression: str) -> tuple[str, str]:
    """The encoding and the reason if it is not UTF-8; reads the whole file.

    By hand: charset-normalizer takes short Western labels for cp1250 or mac_iceland
    (`k\u00f8b`, `K\u00e4se`), which changes their letters.
    """
    with open_bytes(path, compression) as file:
        data = file.read()
    if bom := next((name for bom, name in BOMS.items() if data.startswith(bom)), None):
        return bom, "" if bom == "utf-8-sig" else "by its byte order mark"
    try:
        if not data.isascii():  # ten times faster, and the usual table is
            data.decode()
        return "utf-8", ""
    except UnicodeDecodeError as error:
        return "windows-1252", f"byte 0x{data[error.start]:02x} is no UTF-8 (--encoding sets another)"


def find_delimiter(text: str) -> tuple[str, list[list[str]]]:
    """The delimiter and the first rows, split: the one that gives the most columns, the same number in every row."""
    is_cut, best = len(text) >= SAMPLE_LETTERS, (",", list[list[str]]())
    best_score = 1.0
    for delimiter in DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter == " ")
        try:
            rows = [row for row, _ in zip(reader, range(SAMPLE_ROWS + 1), strict=False) if any(map(str.strip, row))]
        except csv.Error:
            continue
        if delimiter == " ":
            rows = [[cell for cell in row if cell] for row in rows]
        rows = rows[:-1] if is_cut and len(rows) > 1 and len(rows) <= SAMPLE_ROWS else rows
        if delimiter == ",":
            best = (",", rows)
        widths = [len(row) for row in rows]
        width = max(set(widths), key=widths.count, default=0)
        may_be_above = delimiter in "\t;|" or (delimiter == "," and not re.match(r"[^\n]*[\t;|]", text))
        above = widths.index(width) if may_be_above and rows else 0  # lines about the data, in which it is not
        even = widths.count(width) / max(1, len(widths) - above)
        if rows and len(rows[above]) > 1 and even * width > best_score and (even > 0.9 or delimiter == ","):
            best, best_score = (delimiter, rows), even * width * (2 if delimiter == "," else 1)
    return best


def num_raw_rows(text: str, delimiter: str, num: int) -> int:
    """The number of rows up to the first `num` that are not blank, with the blank ones."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter == " ")
    filled = (number for number, row in enumerate(reader, 1) if any(map(str.strip, row)))
    return next(islice(filled, num - 1, None))
