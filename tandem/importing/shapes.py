"""Detects the shape of the data at a path: a long table is used directly, other shapes are converted to one.

  a long table                     CSV, CSV.gz, Parquet; a text table with another encoding, compression or separator
                                   is rewritten (tandem/importing/text_tables.py)
  one row per sequence             tandem/importing/wide.py, with numbered columns
  a folder, a file per sequence    tandem/importing/folders.py
  npy, npz                         tandem/importing/array_files.py
  .ts                              tandem/importing/ts_files.py

If the path is one of two files (_TRAIN and _TEST), both are read and define the split; long tables are an exception.
"""

import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tandem.data.tables import is_plain
from tandem.data.times import MONTH_NAMES
from tandem.importing import (
    array_files,
    date_signs,
    files_in_folder,
    folders,
    joins,
    recordings,
    text_format,
    text_tables,
    ts_files,
    wide,
)
from tandem.importing.columns import TIME_OF_DAY, TableColumns, named_like
from tandem.importing.headers import Note
from tandem.importing.infer_step import times_of_steps
from tandem.importing.long_table import Source, SplitFile, open_parquet, read_parquet
from tandem.importing.names import LABEL_NAMES
from tandem.importing.number_signs import SIGNS
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument
from tandem.terminal.progress import ProgressLine

ARRAYS = (".npy", ".npz")
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
AXES_HELP = "of an array, or of each npy of a folder: N sequences, T time, C channels; C: each npy is one step"
LETTERS = "ABCDEFGHIJKLMNOPQRSUVWZ"  # T, X and Y would mean something
ENDING = r"(\.(csv|tsv|psv|txt|dat|gz|bz2|xz|zip|parquet)){1,2}$"


def add_arguments(group: Any) -> None:
    """The options for the shape that `tandem predict` has too."""
    group.add_argument("--layout", choices=("long", "wide"), help="a row per step, or a row per sequence")
    group.add_argument("--axes", choices=("NTC", "NCT", "TC", "CT", "T", "C"), help=AXES_HELP)
    group.add_argument("--encoding", help="encoding of a text table, e.g. windows-1252")
    group.add_argument("--decimal", choices=SIGNS, help="the decimal sign of a text table")
    group.add_argument("--dayfirst", choices=("yes", "no"), help="whether 01/02/2024 is the first of February")
    group.add_argument("--thousands", choices=SIGNS, help="the sign between thousands in a text table")


def open_path(path: Path, options: Mapping[str, Any]) -> Source:
    """Open the data at `path`. Raises ValueError, in one sentence, for any other content.

    `options`: the given options. For a prediction, `num_channels` is the number of the model's features, which shows
    the axes of arrays, `needed` are the columns of a table with a row per step, and `times` those that may have times;
    labels are then not needed.
    """
    if not (path.is_dir() or path.is_file()):
        raise WrongArgument(f"{path} is not there; give the path of a table, an array, or a folder of sequences")
    kind = kind_of(path)
    check_uses(path, kind, options)
    if kind == "a folder":
        return open_dir(path, options)
    is_alone = bool(options.get("alone"))
    files = [("", path)] if is_alone else train_and_test_files(path) or [("", path)]
    if kind == ".ts":
        return ts_files.open_ts(path, files)
    if kind == "arrays":
        return array_files.open_arrays(path, options, is_alone)
    stem = re.sub(ENDING, "", path.name, flags=re.IGNORECASE)
    with ProgressLine(f"reading {path}", 1, "tables"):
        if path.suffix.lower() == ".parquet" or starts_with(path, b"PAR1"):
            frame, text, notes, name = read_parquet(path).to_pandas(), None, list[Note](), f"{stem}.parquet"
        else:
            other_forms = [text_format.find_format(file, options) for _, file in files if file != path]
            text, cells = text_tables.read_with_notation(text_format.find_format(path, options), options, other_forms)
            for column in {*options.get("times", ())} & {*text.unclear}:
                raise CommandError(date_signs.question(str(path), column, text.unclear[column]), NO_ANSWER)
            name = f"{stem}.csv" if text.is_ready and not text.compression else f"{stem}.csv.gz"
            frame, notes = cells.to_pandas(), text.notes
            frame = frame[[name for name in frame.columns if name]]
            frame = frame.mask(frame == "")
    columns = TableColumns(frame, str(path))
    if text is not None and not (text.has_header and (times_of_steps(columns) or columns.of_kind("text"))):
        text_format.check_no_blocks(text)
    check_no_lists_in_text(columns)
    needed = options.get("needed")
    are_steps = bool({"window_length", "stride"} & {*options}) or options.get("step") in frame.columns
    if text is not None and not text.has_header:  # of a series, whose columns have no names to give
        are_steps = are_steps or options.get("task") == "forecast"
    layout = options.get("layout") or ("long" if are_steps or (needed and needed <= {*frame.columns}) else None)
    if not layout and "target" not in options:
        check_not_a_column_per_time(columns)
    for_header = ""
    if text is not None and not text.has_header:
        names = [*LETTERS, *(f"A{number}" for number in range(len(LETTERS), len(text.names)))][: len(text.names)]
        rows = f"tail -n +{text.num_skipped + 1}" if text.num_skipped else "cat"
        for_header = (
            f"write the columns' names there: (echo '{text.delimiter.join(names)}'; {rows} {shlex.quote(str(path))}) > "
            "new.csv, with your names for A, B and so on"
        )
    why = "as requested" if layout else wide.is_wide(columns, for_header, options.get("label"))
    if text is None and not why:
        check_no_lists_in_parquet(path)
    if why and not layout and (text is None or text.has_header) and "num_channels" not in options:
        wide.check_may_be_steps(columns)
    if layout == "wide" or (why and not layout):
        hint = "" if layout else " (--layout long: a row per step)"
        note = ("shape", "one row per sequence", f"{why}{hint}")
        return wide.open_wide(path, files, text, columns, options, [*notes, note])
    if text is not None and not text.has_header:
        shown = ", ".join(map(str, frame.iloc[:1, :4].to_numpy().ravel())) or "empty"
        raise ValueError(f"{path} has no header (its first row is {shown}); {for_header}")
    if text is not None and not text.is_ready:
        notes = [*notes, ("table", "UTF-8, commas", "how it is written again, without another change")]
        return Source(
            [path],
            notes,
            partial(text_tables.rewritten, text),
            name,
            source_line=partial(text_tables.source_line, text),
        )
    return Source([path], notes, name=name, cells=cells if text and text_tables.are_plain(cells) else None)


def check_no_lists_in_text(columns: TableColumns) -> None:
    """Raises ValueError if cells of text are lists of numbers or points, such as [[8.6,41.1],[8.6,41.2]], and not
    short, as a box is.
    """
    for name in columns.of_kind("text"):
        cells = columns.frame[name].drop_duplicates().dropna().astype(str)
        if cells.str.fullmatch(r"\[[][\d\s,.eE+-]*\]").all() and cells.str.count(",").max() >= wide.FEWEST_STEPS:
            raise ValueError(
                f"{columns.name}: the cells of {name!r} are lists; if each row is a sequence, write a row for each "
                "entry (json.loads and pandas.DataFrame.explode), and number these rows"
            )


def check_no_lists_in_parquet(path: Path) -> None:
    """Raises ValueError, with the code that writes a row for each entry, if cells are lists of numbers or words."""
    with open_parquet(path) as file:
        fields = [field for field in file.schema_arrow if isinstance(field.type, LISTS)]
    if names := [field.name for field in fields if is_plain(field.type.value_type)]:
        raise ValueError(
            f"{path}: the cells of {names[0]!r} are lists; if each row is a sequence, write a row for each entry: "
            f"table = table.rename_axis('row').reset_index().explode({names}); table['step'] = "
            "table.groupby('row').cumcount(); then give --sequence row --step step; or --layout long leaves them out"
        )


def check_not_a_column_per_time(columns: TableColumns) -> None:
    """Raises ValueError if a row is a series with a column for each date, a day with one for each time of day, or a
    year with one for each month.
    """
    names = [*map(str, columns.frame.columns)]
    dates = [name for name in names if date_signs.is_date(name) or re.fullmatch(r"\d\d?([/.])\d\d?\1\d\d", name)]
    clocks = [name for name in names if re.fullmatch(TIME_OF_DAY, name)]
    months = [name for name in names if name[:3].lower() in MONTH_NAMES and re.fullmatch("[A-Za-z]{3,9}", name)]
    days = [name for name in columns.of_kind("time", "odd") if not columns.repeats(name)]
    years = [name for name in named_like(["year"], columns.of_kind("whole")) if not columns.repeats(name)]
    are_dates = len(names) > len(dates) > len(names) / 2
    for times, is_so in ((dates, are_dates), (clocks, days), (months, years and len(months) == 12)):
        if is_so and len(times) >= wide.FEWEST_STEPS:
            others = [name for name in names if name not in times]
            dropped = [name for name in others if columns.kinds.get(name) in wide.NUMERIC and name not in years]
            kept = [name for name in others if name not in dropped]  # the sum of a year is no feature of its months
            rows = f"drop(columns={dropped!r})." * bool(dropped) + f"melt({kept!r}, var_name='time')"
            if times is dates:
                code = f"of the first series: table = table.iloc[[0]].{rows}"
            else:
                day = (days if times is clocks else years)[0]
                joined = f"pandas.to_datetime(table.pop({day!r}).astype(str) + ' ' + table['time'])"
                hint = ", with dayfirst=True if 01/02/2024 is the first of February" * (columns.kinds[day] == "odd")
                code = f"with its time in one column: table = table.{rows}; table['time'] = {joined}{hint}"
            raise ValueError(
                f"{columns.name} has a column for each time ({times[0]}, {times[1]}, ...); write a row for each, "
                f"{code}; or --layout wide reads each row as a sequence"
            )


def open_dir(path: Path, options: Mapping[str, Any]) -> Source:
    """A folder with a file per sequence, one table, or two tables that belong together."""
    all_files = files_in_folder.files_below(path)
    usable = [file for file in all_files if file.suffix.lower() == ".ts" or recordings.kind_of_file(file)]
    archive = [file for file in usable if file.suffix.lower() == ".ts"] or usable
    if len(archive) == 1 or (len(archive) == 2 and train_and_test_files(archive[0])):
        return open_path(archive[-1], options)
    kinds = {recordings.kind_of_file(file) for file in usable}
    if len(usable) == 2 and kinds == {"parquet", "text"} and (advice := joins.advice_on_two_tables(usable)):
        raise ValueError(advice)
    if usable and recordings.kind_of_file(usable[0]) == "parquet" and not {"pattern", "labels"} & {*options}:
        numbers = TableColumns(read_parquet(usable[0]).to_pandas(), "").of_kind("number")
        are_labels = len(named_like(LABEL_NAMES, numbers)) == len(numbers)  # others belong to the steps of a file
        if are_labels or array_files.word_and_split(usable[0].stem)[1]:
            check_no_lists_in_parquet(usable[0])
    return folders.open_folder(path, all_files, options)


def kind_of(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    if (ending := path.suffix.lower()) == ".ts":
        return ending
    return "arrays" if ending in ARRAYS or starts_with(path, b"\x93NUMPY") else "a table"


def starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


# Options that only some shapes have; an option that has no effect is an error.
USES: dict[str, tuple[str, ...]] = {"layout": ("a table",), "pattern": ("a folder",)}
USES |= dict.fromkeys(("labels", "axes"), ("arrays", "a folder"))
USES |= dict.fromkeys(("encoding", "decimal", "thousands", "dayfirst"), ("a table", "a folder"))


def check_uses(path: Path, kind: str, options: Mapping[str, Any]) -> None:
    for key, kinds in USES.items():
        if key in options and kind not in kinds:
            raise WrongArgument(f"--{key} is for {' and '.join(kinds)}, and {path} is {kind}; leave it out")


def train_and_test_files(path: Path) -> list[SplitFile]:
    """The files of train and test, if `path` is one of two whose names differ only in that word; else none."""
    match = re.search(r"(?<![A-Za-z])(train|test)(?![A-Za-z])", path.name, flags=re.IGNORECASE)
    if not match or path.suffix.lower() in ARRAYS:
        return []
    files = []
    for split in ("train", "test"):
        word = split.upper() if match[0].isupper() else split.capitalize() if match[0][0].isupper() else split
        files.append((split, path.with_name(path.name[: match.start()] + word + path.name[match.end() :])))
    return files if all(file.is_file() for _, file in files) else []
