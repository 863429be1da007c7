"""What belongs to each file of a folder: labels, people and splits, by the names of files and folders, by a pattern for
them, or by a table with a row for each file.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tandem.data.tables import SPLIT_COLUMN, SPLIT_WORDS, split_column
from tandem.importing import text_format, text_tables
from tandem.importing.columns import Choice, named_like, shortened
from tandem.importing.headers import Note
from tandem.importing.infer_groups import are_too_few, what_groups_do
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES
from tandem.importing.recordings import (
    kind_of_file,
    kinds_of,
    read_file,
    without_ending,
)
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument
from tandem.terminal.messages import nearest

NUMBERED = r"\D*\d+"  # s01
WORD = re.compile(r"[^\W\d_][^_\-. ]*")
NUMBERED_FOLDER = re.compile(r"(.*/)?([^/]+)/\2[\W\d_]+", re.IGNORECASE)  # the name of a file's folder, as squat_01

PEOPLE = (*GROUP_NAMES, "sub", "subj", "p")  # as people's folders are called: subject01, P3


def groups_of(of_files: Mapping[str, Any], num_files: int) -> Choice | None:
    """The folders besides the label's. Most are people or sessions, and a split that mixes these inflates scores."""
    name = next((name for name in of_files if name.startswith("folder")), None)
    if name is None or named_like(GROUP_NAMES, of_files):
        return None
    num_groups, split = len(set(of_files[name])), split_column(of_files)
    is_few = are_too_few(of_files[name], None if split is None else [*map(str, of_files[split])])
    why = f"the names of folders; {what_groups_do(num_groups, split is not None)}"
    return None if is_few or num_groups == num_files else (name, why)


def columns_of_files(
    folder: Path,
    ids: list[str],
    options: Mapping[str, Any],
    labels: Path | None,
    notes: list[Note],
    row_label: str | None,
    names: Sequence[str],
) -> tuple[dict[str, Any], str | None, str]:
    """The values of each file from its folders, name and table of labels; the label's column; the reason. `row_label`:
    a column of the files, which have the columns `names`, that changes within them and is called like a label.

    Raises CommandError if `row_label` and the names of folders that are not just numbered could both be the label.
    """
    pattern, requested = options.get("pattern"), options.get("label")
    of_table = columns_of_table(ids, labels, options, notes) if labels else {}
    of_names = columns_of_names(ids, pattern) if pattern else {}
    if labels and of_table:
        reason = "as requested" if "labels" in options else "by its name (--labels selects another)"
        notes.append(("labels", labels.name, f"{reason}; a row for each file"))
    elif labels:
        notes.append(("excluded", labels.name, "by its name a table of labels, but without a row for each file"))
    # If the label comes from elsewhere, folders are people or sessions.
    label_of_table = requested if requested in of_table else next(iter(named_like(LABEL_NAMES, of_table)), None)
    is_given = label_of_table or "label" in of_names or requested not in (None, "label") or requested in names
    columns = columns_of_folders(folder, ids, not is_given, pattern, row_label) | of_names | of_table
    if row_label and not is_given and "label" in columns:
        if all(re.fullmatch(NUMBERED, name) for name in columns["label"]):
            columns = columns_of_folders(folder, ids, False, pattern) | of_names | of_table
        elif row_label != "label":
            why = f"{folder}: the column {row_label!r} changes within the files; give --label {shlex.quote(row_label)}"
            names = f"if it is the label, or --label label if the folders' names, such as {columns['label'][0]!r}, are"
            raise CommandError(f"{why} {names}", NO_ANSWER)
    if levels := [name for name in columns if name.startswith("folder")]:
        notes.append(("columns", ", ".join(levels), "the names of the other folders"))
    if split := split_column(columns):
        words = ", ".join(sorted({str(word) for word in columns[split]}))
        notes.append(("split", words, "by the names of the folders or columns"))
    if labels and label_of_table:
        return columns, label_of_table, f"of {labels.name}"
    if requested in columns:
        return columns, requested, "as requested"
    if "label" in columns:
        why = "the folder's name (--pattern, --labels or --label select another source)"
        return columns, "label", f"{{label}} of --pattern {pattern}" if "label" in of_names else why
    if labels and len(of_table) == 1 and not requested:
        return columns, next(iter(of_table)), f"of {labels.name}"
    if labels and of_table and not requested and "num_channels" not in options:
        raise ValueError(f"{labels} has no column of labels{nearest('', of_table)}; name it with --label")
    return columns, None, ""


def columns_of_folders(
    folder: Path, ids: list[str], is_label: bool, pattern: str | None = None, row_label: str | None = None
) -> dict[str, list[str]]:
    """The names of the folders between `folder` and each file: train and test are the split, one level is the label. A
    level that `pattern` names is left out.
    """
    parts = [name.split("/")[:-1] for name in ids]
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"{folder} has files in folders of different depths ({ids[0]}); put all at one depth")
    columns, levels, places = dict[str, list[str]](), list[list[str]](), list[int]()
    pieces = dict(enumerate((pattern or "").split("/")[:-1]))
    for place, level in enumerate(map(list, zip(*parts, strict=True))):
        if "{" in pieces.get(place, "") or len(set(level)) == 1:
            continue
        if all(name.lower() in SPLIT_WORDS for name in level):
            columns.setdefault(SPLIT_COLUMN, [SPLIT_WORDS[name.lower()] for name in level])
        else:
            levels.append(level)
            places.append(place)
    # The last level is the label, unless only its names are numbered (s01); people are none, nor clip1 with one file.
    by_word = [number for number, level in enumerate(levels) if not all(re.fullmatch(NUMBERED, name) for name in level)]
    likely = by_word or [number for number, level in enumerate(levels) if not are_people(level)]
    named = [levels[number] for number in by_word[-1:]] or levels
    label = likely[-1] if likely and is_label and len({*zip(*named, strict=True)}) < len(ids) else None
    # Patterns whose label is a word, not a number with a unit.
    of_names = [form for form in patterns_of(ids) if not re.search(r"{label}[A-Za-z]", form)]
    if label is not None and not (pattern or row_label) and of_names:
        first_words = dict[str, set[str]]()
        for name, of_folder in zip(ids, levels[label], strict=True):
            first_words.setdefault(of_folder, set()).add(re.split(r"[\d\W_]", name.rsplit("/", 1)[-1])[0])
        first, *others = first_words.values()
        above, below = "*/" * places[label], "*/" * (len(parts[0]) - places[label] - 1)
        if first != {""} and all(words == first for words in others):
            raise CommandError(
                f"the files of each folder in {folder} are called alike ({shortened(sorted(first))}), so "
                f"the folders or these words may be the labels; give --pattern '{above}{{label}}/{below}*' or "
                f"--pattern '{above}{{person}}/{below}{of_names[0].replace('{person}', '{part}')}'",
                NO_ANSWER,
            )
    for number, level in enumerate(levels):
        columns["label" if number == label else f"folder{number + 1}"] = level
    return columns


def are_people(names: Sequence[str]) -> bool:
    """Whether they are a word for people or devices with a number, such as subject01 or P3."""
    return all(re.fullmatch(NUMBERED, name) and named_like(PEOPLE, [name]) for name in names)


def patterns_of(ids: Sequence[str]) -> list[str]:
    """Patterns for the names of files, one for each part that may be the label: numbers with a unit or words that
    several files share, between the same signs in all names, or else letters before a number. P01 and s1 are people.
    """
    names = [name.rsplit("/", 1)[-1] for name in ids]
    for sign in "_- .":
        if patterns := patterns_between(sign, parts_of(names, sign)):
            return patterns
    matches = [re.match(r"([^\W\d_]+)\d", name) for name in names]
    words = {match[1] for match in matches if match}
    return ["{label}{number}*"] if all(matches) and 1 < len(words) < len(ids) else []


def patterns_between(sign: str, parts: Sequence[Sequence[str]]) -> list[str]:
    """`parts`: those of each name."""
    columns = [{*column} for column in zip(*parts, strict=True)]
    fields = [next(iter(words)) if len(words) == 1 else f"{{part{place}}}" for place, words in enumerate(columns, 1)]
    shared, numbered = shared_places(columns, len(parts))
    for place in places_of_people(columns, numbered)[:1]:
        fields[place] = "{person}"
    patterns = list[str]()
    firsts, is_joined = {word.replace(sign, "") for word in columns[0]}, any(sign in word for word in columns[0])
    of_words = [n for n in shared if n not in numbered and all(map(WORD.fullmatch, columns[n] if n else firsts))]
    for label in shared:
        units = {re.sub(r"^\d+(\.\d+)?", "", word) for word in columns[label]}
        is_number = len(units) == 1 and all(re.fullmatch(r"\d[\d.]*[A-Za-z]+", word) for word in columns[label])
        is_word = label in of_words
        if is_number or is_word:
            form = [*fields[:label], "{label}" + "".join(units) * is_number, *fields[label + 1 :]]
            while not (form[-1].startswith(("{label", "{person")) or len(form) - 1 in of_words):  # words may be people
                form.pop()
            if is_joined and len(form) < len(columns) and all(map(str.isdecimal, columns[len(form)])):
                form.append("{number}")  # or change-mind-1 would be a change
            patterns.append(sign.join([*form, *["*"] * (len(form) < len(columns))]))
    return patterns[::-1][:3]  # of a setting and what was done in it, the last is rather the label


def shared_places(columns: Sequence[set[str]], num_names: int) -> tuple[list[int], list[int]]:
    """The parts of names that several share; and those of them that are letters before a number, such as P01."""
    shared = [place for place, words in enumerate(columns) if 1 < len(words) <= num_names / 2]
    number = re.compile(r"[A-Za-z]+[_\-. ]?\d+")
    return shared, [place for place in shared if all(map(number.fullmatch, columns[place]))]


def places_of_people(columns: Sequence[set[str]], numbered: Sequence[int]) -> list[int]:
    """Those that may be people: not run01."""
    return [place for place in numbered if not named_like((*SEQUENCE_NAMES, "take", "rep"), columns[place])]


def remark_on_people(ids: Sequence[str]) -> list[Note]:
    """The pattern that makes groups of a part of the files' names, such as S2 of stress/S2_EDA and baseline/S2_EDA, or
    a word that comes again in other folders, such as anna of squat/squat_01_anna and lunge/lunge_01_anna. A name of one
    part is rather a count, unless it is called like people.
    """
    names = [name.rsplit("/", 1)[-1] for name in ids]
    folders = [name.rpartition("/")[0] for name in ids]
    for sign in "_- .":
        parts = parts_of(names, sign)
        if len(parts[0]) == 1 and not named_like((*PEOPLE, "s"), names):
            continue
        columns = [{*column} for column in zip(*parts, strict=True)]
        shared, numbered = shared_places(columns, len(parts))
        pairs = [{*map("/".join, zip(folders, column, strict=True))} for column in zip(*parts, strict=True)]
        numbered = [place for place in numbered if not any(map(NUMBERED_FOLDER.fullmatch, pairs[place]))]
        words = [place for place in shared if len(columns[place]) > 2 and all(map(WORD.fullmatch, columns[place]))]
        words = [place for place in words if len(pairs[place]) >= 2 * len(columns[place])]
        for place in [*places_of_people(columns, numbered), *words][:1]:
            fields = [*["*"] * place, "{person}", *["*"] * (len(parts[0]) - place - 1)]
            counts = Counter(folder.rpartition("_")[0] for folder in {*folders} if re.fullmatch(r"[^\W_]+_\d+", folder))
            are_counted = counts.total() == len({*folders}) > len(counts)
            pattern = shlex.quote("{label}_*/" * are_counted + sign.join(fields))
            why = f"several files share it; if it is a person, --pattern {pattern} makes groups of it"
            why += ", and drops the numbers of the folders" * are_counted
            return [("names", parts[0][place], why)]
    return []


def parts_of(names: Sequence[str], sign: str) -> list[list[str]]:
    """The parts between equal signs, as many in each name: the first part may have more of these signs."""
    fewest = min(name.count(sign) for name in names)
    return [name.rsplit(sign, fewest) if fewest else [name] for name in names]


def columns_of_names(ids: list[str], pattern: str) -> dict[str, list[str]]:
    """The parts of the file names that match the {braces} of `pattern`, {number} only digits; `*` matches anything."""
    pieces = re.split(r"(\{\w+\}|\*)", pattern)
    names = [piece[1:-1] for piece in pieces if piece.startswith("{")]
    if not names or len(set(names)) < len(names):
        raise WrongArgument(
            f"--pattern is {pattern!r}; it names parts in braces, each once, e.g. '{{label}}_{{person}}_*'"
        )
    form = "".join(
        rf"(?P<{piece[1:-1]}>{'[0-9]+' if piece == '{number}' else '[^/]+?'})"
        if piece.startswith("{")
        else "[^/]*"
        if piece == "*"
        else re.escape(piece)
        for piece in pieces
    )
    file_names = [name if "/" in pattern else name.rsplit("/", 1)[-1] for name in ids]
    matches = [re.fullmatch(form, name) for name in file_names]
    wrong = [name for name, match in zip(file_names, matches, strict=True) if not match]
    if wrong:
        raise WrongArgument(
            f"--pattern {pattern!r} does not fit {len(wrong):,} of {len(file_names):,} names, e.g. {wrong[0]!r}"
        )
    return {name: [match[name] for match in matches if match] for name in names}


def columns_of_table(
    ids: list[str], path: Path, options: Mapping[str, Any], notes: list[Note]
) -> dict[str, pa.ChunkedArray]:
    """The cells of a table with a row per file, in the order of the files. No cells if the table was not requested and
    names no file. Adds to `notes` how its numbers and dates are read.
    """
    column, names, keys = "", ids, list[str]()
    short_ids = [name.rsplit("/", 1)[-1] for name in ids]
    table, table_notes = read_small(path, [*ids, *short_ids], options)
    for candidate in table.column_names:  # the column with the most names of files
        texts = [without_ending(str(cell.as_py()).strip().removeprefix("./")) for cell in table[candidate]]
        for file_names in (ids, short_ids) if len({*short_ids}) == len(short_ids) else (ids,):
            if len({*file_names} & {*texts}) > len({*names} & {*keys}):
                column, names, keys = candidate, file_names, texts
    rows = {key: row for row, key in enumerate(keys)}
    lacking = [name for name in names if name not in rows]
    if len(lacking) == len(ids) and "labels" not in options:
        return {}
    if repeated := [key for key, count in Counter(keys).items() if count > 1 and key in names]:
        raise ValueError(f"{path} has two rows for {repeated[0]}; it needs one for each file")
    if lacking:
        raise ValueError(
            f"{path} has a row for {len(ids) - len(lacking):,} of {len(ids):,} files"
            f"{column and f' (by {column!r})'}, none for {lacking[0]}; it needs a header and a column with the name of "
            "each file, once"
        )
    notes += [("labels", f"{kind}: {value}", why) for kind, value, why in table_notes if kind in ("numbers", "dates")]
    order = pa.array([rows[name] for name in names])
    return {name: table[name].take(order) for name in table.column_names if name != column}


def read_small(path: Path, ids: Sequence[str], options: Mapping[str, Any]) -> tuple[pa.Table, list[Note]]:
    """A table of labels, with numbers as text: `007` is a label too; and how it was read."""
    if not path.is_file():
        raise WrongArgument(f"{path} is not there; --labels takes the path of a table")
    if kind_of_file(path) == "parquet":
        return read_file(path, None), []
    table = text_format.find_format(path, options)
    if table.has_header and {*map(without_ending, table.names)} & {*ids}:  # the first row is no header
        names = tuple(str(number) for number in range(1, len(table.names) + 1))
        table = replace(table, names=names, has_header=False, num_skipped=table.num_skipped - 1)
    table = text_tables.with_notation(table, options)
    kinds = kinds_of([text_tables.read(table)])
    numbers = {name: kinds[name] for name in named_like(("target", "y"), kinds)}
    return text_tables.read(table, dict.fromkeys(table.names, pa.string()) | numbers), table.notes
