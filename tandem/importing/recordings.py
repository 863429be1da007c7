"""Files of one sequence each, all with the same columns: finds the files and reads their rows.

Text, Parquet or npy; a sample of the files determines the kind of each column.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.importing import infer_step, text_format, text_tables
from tandem.importing.array_files import arrays_of, as_plain_type, channel_names
from tandem.importing.columns import (
    MOST_CLASSES,
    TableColumns,
    are_codes,
    in_stretches,
    kind_of,
    may_be_codes,
    named_like,
)
from tandem.importing.joins import advice_on_two_tables
from tandem.importing.long_table import open_parquet
from tandem.importing.names import LABEL_NAMES, RECORDED_NAMES, STEP_NAMES
from tandem.importing.text_format import TextTable
from tandem.terminal.messages import one_line

KINDS = {
    ".csv": "text",
    ".tsv": "text",
    ".psv": "text",
    ".txt": "text",
    ".dat": "text",
    ".parquet": "parquet",
    ".npy": "npy",
}
ENDING = re.compile(r"(\.[^.]*)?(?:\.(?:gz|bz2|xz))?$", re.IGNORECASE)
ONE_DIRECTION = 0.7  # share of the rows of a clock that are later than the one before, or earlier
NUM_SAMPLED = 10  # files sampled to determine the kinds of the columns


def ending_of(path: Path) -> str:
    """`.csv` for `a.CSV.gz`."""
    match = ENDING.search(path.name)
    return (match and match[1] or "").lower()


def kind_of_file(path: Path) -> str | None:
    return KINDS.get(ending_of(path))


def without_ending(name: str) -> str:
    return ENDING.sub("", name, count=1) if kind_of_file(Path(name)) else name


def read_file(path: Path, form: TextTable | None, texts: Sequence[str] = (), axes: str = "TC") -> pa.Table:
    """The rows of a file with the kinds of cells that it alone suggests, and `texts` as text. `form`: that of the text
    of all files; None: Parquet or npy. `axes`: of an npy.
    """
    if form is not None:
        return text_tables.read(form_of_file(form, path), dict.fromkeys(texts, pa.string()), own_names=True)
    if kind_of_file(path) == "parquet":
        with open_parquet(path) as file:
            return file.read()
    values = values_of(path)
    if axes == "C":
        values = values.reshape(1, -1)
    elif values.ndim > 2:
        raise ValueError(
            f"{path} has the shape {values.shape}; a sequence is (T, C) or (T,) numbers; of an array of many sequences "
            "give the path itself, and --axes C if each file is one step"
        )
    cells = values.T if axes == "CT" else values.reshape(len(values), -1)
    return pa.table([*map(np.ascontiguousarray, cells.T)], names=channel_names(cells.shape[1]))


def values_of(path: Path) -> np.ndarray:
    """The numbers of an npy of at least one axis."""
    [array] = arrays_of(path)
    if not array.values.ndim or array.values.dtype.kind not in "fiub":
        raise ValueError(
            f"{path} has the shape {array.values.shape} of {array.values.dtype}; a sequence is (T, C) or (T,) numbers"
        )
    return as_plain_type(array.values)


def sample_of(paths: Sequence[Path]) -> Sequence[Path]:
    places = np.linspace(0, len(paths) - 1, min(len(paths), NUM_SAMPLED)).round().astype(int)
    return [paths[place] for place in places]  # rarely equal distances: every second file may be of another kind


class Reader:
    """Reads one file after another with the same columns and kinds, which a sample of the files determines."""

    def __init__(self, paths: Sequence[Path], options: Mapping[str, Any], axes: str):
        sampled, self.axes, self.form = [*sample_of(paths)], axes, None
        self.num_files = len(paths)
        if kind_of_file(paths[0]) == "text":
            forms = [text_format.find_format(path, options) for path in sampled]
            [(usual, _)] = Counter(frozenset(form.names) for form in forms).most_common(1)
            forms.sort(key=lambda form: usual != {*form.names})
            check_is_a_row_per_step(forms)
            first, sampled = forms[0], [form.path for form in forms]
            others = (form_of_file(first, path) for path in paths if path != first.path)
            self.form = text_tables.with_notation(first, options, others)
        first_table = read_file(sampled[0], self.form, axes=axes)
        if self.form and not self.form.has_header and begins_with_a_clock(first_table):
            raise ValueError(
                f"{sampled[0]} begins with the time of its start and the rate, as Empatica's wristbands write it; "
                "leave these two lines out of each file"
            )
        if all(map(holds_words, first_table.columns)):
            raise ValueError(f"{sampled[0]} holds words and no numbers, and Tandem learns from numbers")
        self.sampled, self.names = sampled, first_table.column_names
        samples = [
            first_table,
            *(self.with_same_columns(read_file(path, self.form, axes=axes), path) for path in sampled[1:]),
        ]
        whole = [name for name in self.names if self.form and all(may_be_codes(part[name]) for part in samples)]
        literal = [read_file(path, self.form, texts=whole) for path in sampled] if whole else []
        self.codes = [name for name in whole if any(are_codes(part[name]) for part in literal)]
        self.types = kinds_of(samples) | dict.fromkeys(self.codes, pa.string())
        texts = [name for name in self.names if any(is_text(part[name]) for part in samples)]
        words = {name: {word or "" for part in samples for word in pc.unique(part[name]).to_pylist()} for name in texts}
        self.has_text = any(len(words[name]) > 1 or named_like(LABEL_NAMES, [name]) for name in texts)
        self.step, self.why_step = find_step(self.types, samples, options.get("step"))

        # Columns called like a label that stay the same for many rows, and change within most files.
        label_names = [
            name for name in named_like(RECORDED_NAMES, self.names) if not pa.types.is_floating(samples[0][name].type)
        ]
        self.labels = [name for name in label_names if is_in_stretches([part[name] for part in samples])]

    def names_of_codes(self, that_change: bool, must_stay: bool = False) -> list[str]:
        """The columns with few whole numbers, or few others in stretches: they may be labels. `that_change`: only those
        that do within files. `must_stay`: only those in stretches.
        """
        parts = [self.read(path) for path in self.sampled]
        samples = pa.concat_tables(parts)
        numbers = [
            name for name in self.names if pa.types.is_floating(kind := self.types[name]) or pa.types.is_integer(kind)
        ]
        if that_change:
            numbers = [name for name in numbers if any(len(pc.unique(part[name])) > 1 for part in parts)]
        values = {name: pc.unique(samples[name].drop_null()).to_pylist() for name in numbers}
        return [
            name
            for name, codes in values.items()
            if 1 < len(codes) <= MOST_CLASSES
            and (not must_stay and all(n % 1 == 0 for n in codes) or is_in_stretches([part[name] for part in parts]))
        ]

    def differs_by_file(self, name: str) -> bool:
        """Whether a column has one value in each of some files, and another in each."""
        values = [str(pc.unique(self.read(path)[name]).to_pylist()) for path in self.sampled]
        return len({*values}) == len(values) > 1 and not any("," in cells for cells in values)

    def with_same_columns(self, table: pa.Table, path: Path) -> pa.Table:
        if odd := sorted(set(table.column_names) ^ set(self.names))[:4]:
            if self.num_files == 2 and (advice := advice_on_two_tables((path, self.sampled[0]))):
                raise ValueError(advice)
            raise ValueError(
                f"{path} has other columns than {self.sampled[0]} ({', '.join(odd)}); make them alike, or leave out "
                "the files of one kind"
            )
        if not table.num_rows:
            raise ValueError(f"{path} has no rows, and every file is a sequence; leave it out, or give it some")
        return table.select(self.names)

    def read(self, path: Path) -> pa.Table:
        try:
            rows = read_file(path, self.form, self.codes, self.axes)
        except ValueError:
            if self.form:
                check_is_a_row_per_step([self.form, text_format.find_format(path, {})])
            raise
        table = self.with_same_columns(rows, path)
        try:
            return pa.table({name: table[name].cast(kind) for name, kind in self.types.items()})
        except pa.ArrowException as error:
            raise ValueError(f"{path} holds other kinds of cells than most files: {one_line(error)}") from None


def check_is_a_row_per_step(forms: Sequence[TextTable]) -> None:
    """Raises ValueError if each file has one line, which may be a sequence, or if they have no header and different
    numbers of cells in a line, as the channels and labels of UCI HAR. `forms`: those of some files, the first one as
    most have it.
    """
    first, path = forms[0], forms[0].path
    if len(first.names) > 1 and all(has_one_line(form) for form in forms):
        raise ValueError(
            f"{path} and the other files have one line each; if it is a sequence, write a line for each step"
        )
    odd = next((form for form in forms if len(form.names) != len(first.names)), first)
    if odd is not first and not first.has_header:
        cells = f"{len(odd.names):,} cell{'s' * (len(odd.names) > 1)}"
        raise ValueError(
            f"{odd.path} has {cells} in a line, and {path} {len(first.names):,}; make them alike, or "
            "leave out the files of one kind; or if each is a channel or a label with a line for each sequence, "
            "resample the channels to equal lengths if they differ, and write one file: numpy.savez('new.npz', "
            "X=numpy.stack(channels, 1), y=labels), with subject=... and split=... if files have people, or are train "
            "and test; give that with --axes NCT"
        )


def has_one_line(form: TextTable) -> bool:
    with text_format.open_bytes(form.path, form.compression) as file:
        return b"\n" not in file.read().strip()


def holds_words(cells: pa.ChunkedArray) -> bool:
    return pa.types.is_string(cells.type) and not pc.any(pc.match_substring_regex(cells, r"\d")).as_py()


def is_text(cells: pa.ChunkedArray) -> bool:  # and no names of frames
    is_repeated = pa.types.is_string(cells.type) and len(pc.unique(cells)) < len(cells)
    return is_repeated and kind_of(pc.utf8_trim_whitespace(cells).to_pandas()) == "text"


def begins_with_a_clock(table: pa.Table) -> bool:
    """Whether the first row has one number that is a Unix time, and the second one small number, in every column."""
    if table.num_rows < 2:
        return False
    starts, rates = ({table[name][row].as_py() for name in table.column_names} for row in (0, 1))
    [start, *others], [rate, *other_rates] = starts, rates
    return not (others or other_rates) and None not in (start, rate) and 1e9 < float(start) < 2e9 and float(rate) < 1000


def form_of_file(form: TextTable, path: Path) -> TextTable:
    """The format `form` for another file, which may have more or fewer lines above the rows, or be compressed."""
    if form.num_skipped == int(form.has_header) and path.suffix == form.path.suffix:  # fast
        return replace(form, path=path)
    actual = text_format.find_format(path, {"encoding": form.encoding, "na": form.na})
    return replace(form, path=path, compression=actual.compression, names=actual.names, num_skipped=actual.num_skipped)


def kinds_of(tables: Sequence[pa.Table]) -> dict[str, pa.DataType]:
    """For each column the kind that fits all `tables`: whole numbers, numbers, times or text."""
    kinds: dict[str, pa.DataType] = {}
    for name in tables[0].column_names:
        types = {table[name].type for table in tables if not pa.types.is_null(table[name].type)}
        if types and all(map(pa.types.is_integer, types)) and named_like((*LABEL_NAMES, *STEP_NAMES), [name]):
            kinds[name] = pa.int64()  # a label 1 must not become 1.0
        elif all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in types):
            kinds[name] = pa.float64()
        elif len(types) == 1 and not (types & {pa.large_string()} or any(map(pa.types.is_time, types))):
            [kinds[name]] = types
        else:
            kinds[name] = pa.string()
    return kinds


def find_step(
    types: Mapping[str, pa.DataType], samples: Sequence[pa.Table], requested: str | None
) -> tuple[str | None, str]:
    """The column that is `requested`, or else called like a step and orders the rows of the `samples`; the reason."""
    candidates = [name for name, kind in types.items() if not pa.types.is_string(kind)]
    if requested is not None:
        chosen = [name for name in candidates if name.strip() == requested.strip()]
        return (chosen[0], "as requested") if chosen else (None, "the row's number in its file")
    named = [name for name in named_like(STEP_NAMES, candidates) if goes_one_way([part[name] for part in samples])]
    tables = [part.select(named).append_column("/", pa.repeat(n, part.num_rows)) for n, part in enumerate(samples)]
    table = pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata()
    columns = TableColumns(table.to_pandas(), "")
    counted = (None, "the row's number in its file (--step selects a column)")
    return next(infer_step.find_steps(columns, "/", named), counted)


def is_in_stretches(parts: Sequence[pa.ChunkedArray]) -> bool:
    """Whether a column stays the same for many rows and changes within most files."""
    return 2 * sum(in_stretches(cells.to_pandas())[1] for cells in parts) > len(parts)


def goes_one_way(parts: Sequence[pa.ChunkedArray]) -> bool:
    """Whether nearly all numbers with fractions rise, or fall: those of a reading that is called `t` do not."""
    if not pa.types.is_floating(parts[0].type):
        return True
    rises = np.concatenate([np.diff(cells.to_numpy()) > 0 for cells in parts])
    return abs(rises.mean() - 0.5) > ONE_DIRECTION - 0.5
