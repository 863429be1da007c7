"""A folder with one file per sequence: CSV, text, Parquet or npy, a row per step; or a folder per sequence with one npy
per step, as tutorials of MediaPipe write it.

The label is the folder's name, a part of the file's name (`--pattern '{label}_{person}_*'`), a column of a second table
(`--labels`), or a column of the files.
"""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.command import NO_ANSWER, CommandError, WrongArgument
from tandem.data.tables import SPLIT_COLUMN, SPLIT_WORDS, split_column
from tandem.importing import text_tables
from tandem.importing.array_files import axes_of
from tandem.importing.columns import Choice, named_like, shortened
from tandem.importing.headers import Note
from tandem.importing.infer_groups import are_too_few, what_groups_do
from tandem.importing.long_table import BLOCK_CELLS, Block, Source, as_long_table, unused_name
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES, STEP_NAMES
from tandem.importing.recordings import (
    KINDS,
    Reader,
    ending_of,
    kind_of_file,
    kinds_of,
    read_file,
    sample_of,
    values_of,
    without_ending,
)
from tandem.messages import nearest

MOST_COORDINATES = 4
TAIL_BYTES = 1000
NUMBERED = r"\D*\d+"  # s01
PEOPLE = (*GROUP_NAMES, "sub", "subj", "p")  # as people's folders are called: subject01, P3
TABLES_OF_LABELS = ("labels", "label", "metadata", "meta", "annotations", "classes", "index")


def files_below(folder: Path) -> list[Path]:
    """Raises ValueError about a link that leads out of the folder, or to a folder: neither is followed."""
    paths, inside = list[Path](), folder.resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        paths += [Path(place) / name for name in names if not name.startswith(".")]
        for path in (Path(place) / name for name in folders if (Path(place) / name).is_symlink()):
            raise ValueError(f"{path} is a link to a folder, which is not followed; move the folder there")
    for path in paths:
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise ValueError(f"{path} is a link that leads out of {folder}, which is not followed; copy the file there")
    return sorted(paths)


def table_of_labels(folder: Path, paths: list[Path]) -> Path | None:
    """A table of labels next to the sequences, by name (`labels` before `classes`, which may list class names), or
    because it has the names of the others, which have letters.
    """
    tables = [path for path in paths if path.parent == folder and kind_of_file(path) in ("text", "parquet")]
    names = {without_ending(path.name).lower(): path for path in tables if len(paths) > 1}
    if by_name := next((names[name] for name in TABLES_OF_LABELS if name in names), None):
        return by_name
    file_names = {without_ending(path.name) for path in paths if re.search("[A-Za-z]", path.stem)}
    texts = [path for path in names.values() if kind_of_file(path) == "text"]
    return next((path for path in texts if file_names & (first_cells(path) - {path.stem})), None)


def first_cells(path: Path) -> set[str]:
    """The cells of the first two lines of a text file, without the endings of files' names."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return {without_ending(cell) for line in islice(file, 2) for cell in re.split(r'[,;|\s"]', line)}


def without_prose(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files, and those that have no table and are at most half of them, such as README.txt."""
    kinds = [is_prose(path) for path in paths]
    prose = [path for path, kind in zip(paths, kinds, strict=True) if kind]
    rest = [path for path, kind in zip(paths, kinds, strict=True) if not kind]
    return (rest, prose) if len(prose) <= len(rest) else (paths, [])


def is_prose(path: Path) -> bool:
    """Whether the end of a text file has more letters than other signs, and no two cells or more in each line."""
    if kind_of_file(path) != "text":
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    text = text if len(text) < TAIL_BYTES else text.partition("\n")[2]
    is_text = 2 * sum(map(str.isalpha, text)) > len(text)
    widths = {*map(len, text_tables.find_delimiter(text)[1])}
    return is_text and (widths == {1} or len(widths) > 1)


def open_folder(folder: Path, candidates: list[Path], prose: list[Path], options: Mapping[str, Any]) -> Source:
    """`candidates`: the files below `folder`, without `prose`."""
    labels = options.get("labels") or table_of_labels(folder, candidates)
    if labels is not None:
        candidates = [path for path in candidates if path.resolve() != labels.resolve()]
    check_not_a_file_per_channel(folder, candidates)
    check_not_a_file_per_sensor(folder, candidates, options)
    endings = Counter(ending_of(path) for path in candidates if kind_of_file(path))
    if not endings:
        shown = ", ".join(sorted({path.suffix or path.name for path in candidates})[:8]) or "no file"
        raise ValueError(
            f"{folder} is a folder of {len(candidates):,} files ({shown}), none a sequence; accepted are files "
            f"({', '.join(KINDS)}), one per sequence, or the path of one table or array"
        )
    [(ending, num_files)] = endings.most_common(1)
    paths = [path for path in candidates if ending_of(path) == ending]
    ids = [without_ending(path.relative_to(folder).as_posix()) for path in paths]
    excluded = [path.name for path in candidates if ending_of(path) != ending]
    axes, why = "TC", "a row per step"
    if ending == ".npy":
        axes, why = axes_of_files(folder, paths, ids, options, bool(labels))
    meaning = "step" if axes == "C" else "sequence"
    notes: list[Note] = [("shape", f"a folder of {num_files:,} {ending} files", f"each is a {meaning}, {why}")]
    members = {name: [path] for name, path in zip(ids, paths, strict=True)}
    if axes == "C":
        members = dict[str, list[Path]]()
        for path in sorted(paths, key=number_in_name):
            members.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path)
        members = dict(sorted(members.items()))
        ids = [*members]
    if excluded:
        notes.append(("excluded", shortened(excluded, 4), f"{len(excluded):,} files that are not {ending}"))
    if prose:
        notes.append(("excluded", shortened([path.name for path in prose], 4), "text without a table"))
    reader = Reader(folder, paths, options, axes)
    row_label = next(iter(reader.labels), None) if not {"label", "num_channels"} & {*options} else None
    of_files, label, why = columns_of_files(folder, ids, options, labels, notes, row_label)
    if repeats := [name for name in reader.names if name in of_files or name == "sequence"]:
        raise ValueError(f"{paths[0]} has a column {repeats[0]!r}, which the folder or its labels give too; rename it")
    notes += reader.form.notes if reader.form else []
    others = {name: cells for name, cells in of_files.items() if name != label}
    choices = {"groups": groups} if (groups := groups_of(others, len(ids))) else {}
    if label:
        choices["label"] = (label, why)
    elif not row_label and not {"label", "num_channels"} & {*options} and not reader.has_text:
        ways = ["put them into a folder for each label"]
        if patterns := patterns_of(ids):
            ways.append(f"give --pattern {' or '.join(map(shlex.quote, patterns))} for their names")
        ways.append("give --labels TABLE with a row for each")
        if flags := [f"--label {shlex.quote(name)}" for name in reader.names_of_codes()[:3]]:
            ways.append(f"give {' or '.join(flags)}, if that column has the labels")
        if "folder1" in of_files:
            ways.append("give --label folder1 if it is who or what was recorded")
        raise ValueError(f"nothing says which label the {len(ids):,} sequences of {folder} have: {', or '.join(ways)}")

    key = unused_name("file", [*of_files])
    per_sequence = pa.table({key: ids, **of_files})

    def blocks() -> Iterator[Block]:
        parts, start, num_cells = list[pa.Table](), 0, 0
        for end, files in enumerate(members.values(), start=1):
            parts.append(pa.concat_tables(map(reader.read, files)))
            num_cells += parts[-1].num_rows * (parts[-1].num_columns + per_sequence.num_columns)
            if num_cells > BLOCK_CELLS or end == len(members):
                lengths = np.array([part.num_rows for part in parts])
                yield Block(lengths, pa.concat_tables(parts).columns, per_sequence.slice(start, len(parts)), end)
                parts, start, num_cells = [], end, 0

    source = as_long_table(
        [folder],
        notes,
        blocks(),
        reader.names,
        per_sequence.column_names,
        ids=(key, "the folder's name" if axes == "C" else "the file's name"),
        total=len(members),
        unit="sequences" if axes == "C" else "files",
        step=(reader.step, reader.why_step),
        choices=choices,
    )
    if ending == ".npy":
        return source
    left_out = [path for path in (labels, *prose) if path and path.suffix == paths[0].suffix]
    return replace(source, code=pandas_code(folder, paths[0], options, source.shape_choices["sequence"][0], left_out))


def pandas_code(
    folder: Path, path: Path, options: Mapping[str, Any], sequence: str, left_out: Sequence[Path]
) -> tuple[str, str]:
    """The pandas code that reads the files like `path` as one table, and the code that writes them again into `new`.
    `left_out`: those that are none of them.
    """
    read, write = text_tables.pandas_code(path, options)
    read = read.removeprefix("table = ").replace(repr(str(path)), "path")
    end = path.name.removeprefix(without_ending(path.name))
    condition = f" if path.name not in {[file.name for file in left_out]}" if left_out else ""
    named_as = f"path.relative_to(root).as_posix().removesuffix({end!r})"
    read = (
        f"from pathlib import Path; root = Path({str(folder)!r}); table = pandas.concat([{read}.assign({sequence}="
        f"{named_as}) for path in sorted(root.rglob('*{end}')){condition}])"
    )
    write = write.replace("table.", f"part.drop(columns={sequence!r}).").replace("'new.csv'", "out(name)")
    write = (
        "out = lambda name: Path('new', name + '.csv'); [(out(name).parent.mkdir(parents=True, exist_ok=True), "
        f"{write}) for name, part in table.groupby({sequence!r})]"
    )
    return read, f"{write}; give the folder new"


def check_not_a_file_per_channel(folder: Path, paths: Sequence[Path]) -> None:
    """Raises ValueError if the files of a folder have a row for each sequence, its steps in columns, and those beside
    the folder a cell for each sequence, as in UCI HAR: y_train.txt, subject_train.txt and Inertial Signals/*.txt.
    """
    arrays = list[str]()
    for labels in paths:
        match = re.fullmatch(r"(?:y|labels?)(_train|_test)?\.txt", labels.name, re.IGNORECASE)
        channels = [path for path in paths if path.parent.parent == labels.parent and path.suffix == labels.suffix]
        if match and len(channels) > 1 and len({num_lines(path) for path in (labels, *channels)}) == 1:
            split, siblings = match[1] or "", [path for path in paths if path.parent == labels.parent]
            people = [path for path in siblings if path.stem.removesuffix(split).lower() in GROUP_NAMES]
            arrays.append(f"X{split}=stack({json.dumps(str(channels[0].parent))})")
            arrays += [f"y{split}=read({json.dumps(str(labels))})"]
            arrays += [f"{path.stem}=read({json.dumps(str(path))})" for path in people]
    if arrays:
        code = (
            "import numpy as np; from pathlib import Path; read = np.loadtxt; stack = lambda at: "
            f'np.stack([*map(read, sorted(Path(at).glob("*.txt")))], 1); np.savez("new.npz", {", ".join(arrays)})'
        )
        raise ValueError(
            f"{folder} has a file for each channel, with a row for each sequence; python -c {shlex.quote(code)} writes "
            "them as new.npz; give that with --axes NCT"
        )


def check_not_a_file_per_sensor(folder: Path, paths: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Raises ValueError if each recording is a folder with a file for each sensor, as the app Sensor Logger writes it:
    Accelerometer.csv, Gyroscope.csv and so on, with a common clock.
    """
    counts, folders = Counter(path.name for path in paths if path.suffix == ".csv"), {path.parent for path in paths}
    sensors = [name for name in counts if counts[name] == len(folders) > 2]
    if len(sensors) > 1 and any(re.search("accel|gyro", name, re.IGNORECASE) for name in sensors):
        columns = {name: text_tables.find_format(paths[0].with_name(name), options).names for name in sensors}
        [time, *_] = [*named_like(STEP_NAMES, columns[sensors[0]]), columns[sensors[0]][0]]
        sensors = [name for name in sensors if time in columns[name]]
        clock, root = json.dumps(time), json.dumps(str(folder))
        code = (
            "import functools, pandas; from pathlib import Path; "
            f"read = lambda at, name: pandas.read_csv(at / name).sort_values({clock}).set_index({clock})"
            '.drop(columns="seconds_elapsed", errors="ignore").add_prefix(name[:-4] + " ").reset_index(); '
            f'join = lambda a, b: pandas.merge_asof(a, b, on={clock}, direction="nearest"); Path("new").mkdir(); '
            f"root = Path({root}); [functools.reduce(join, [read(path.parent, name) for name in {json.dumps(sensors)}])"
            '.to_csv("new/" + "-".join(path.parent.relative_to(root).parts) + ".csv", index=False) '
            f"for path in root.rglob({json.dumps(sensors[0])})]"
        )
        raise ValueError(
            f"{folder} has a folder for each recording with a file for each sensor; python -c {shlex.quote(code)} "
            "writes a file for each recording, with the sensors joined at the nearest times; give the folder new, with "
            "--pattern '{label}-*' if the folders' names begin with the label"
        )


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def axes_of_files(
    folder: Path, paths: Sequence[Path], ids: list[str], options: Mapping[str, Any], is_labelled: bool
) -> tuple[str, str]:
    """The axes of each npy and the reason: TC, CT or T for a sequence, C for a step.

    Raises CommandError if the files can be sequences or steps, or if either axis can be time.
    """
    shapes = [values_of(path).shape for path in sample_of(paths)]
    shape, requested, num_channels = shapes[0], options.get("axes"), options.get("num_channels")
    order, size = "TC" if len(shape) > 1 else "T", int(np.prod(shape))
    if requested == "C" or (num_channels == size and (len(shape) == 1 or size not in shape)):
        return "C", "as requested" if requested else "by the number of the model's features"
    num_levels = sum(name.startswith("folder") for name in columns_of_folders(folder, ids, is_label=False))
    # A few numbers in a row may be a landmark: x, y, z, and its visibility.
    may_be_steps = len({*shapes}) == 1 and (len(shape) == 1 or shape[-1] <= MOST_COORDINATES) and are_numbered(paths)
    if may_be_steps and len(shape) < 3 and num_levels > (not is_labelled) and not requested and not num_channels:
        raise CommandError(
            f"{folder} holds {len(paths):,} npy files of the shape {shape}, numbered in each of "
            f"{len({path.parent for path in paths}):,} folders; give --axes C if each is one step of {size:,} channels "
            f"or --axes {order} if each is a sequence of {shape[0]:,} steps",
            NO_ANSWER,
        )
    shown = f"{paths[0]} {shape}"
    if len(shape) == 2:
        return axes_of(shown, shapes, "TC CT", options, usual="TC")
    if requested not in (None, order):
        raise WrongArgument(f"--axes is {requested!r}; accepted for {shown}: {order}, C")
    return order, "a row per step" if len(shape) > 1 else "one channel"


def are_numbered(paths: Sequence[Path]) -> bool:
    """Whether the names in each folder count its files, as frame_0.npy, frame_1.npy, ... do."""
    places = {(path.parent, number_in_name(path)) for path in paths}
    is_each = all(re.search(r"\d", path.stem) for path in paths)
    return is_each and len(places) == len(paths) > len({path.parent for path in paths})


def number_in_name(path: Path) -> int:
    """The last number in the name of a file; 0 if there is none."""
    return int(re.findall(r"\d+", f"0 {path.stem}")[-1])


def groups_of(of_files: Mapping[str, Any], num_files: int) -> Choice | None:
    """The folders besides the label's. Most are people or sessions, and a split that mixes these inflates scores."""
    name = next((name for name in of_files if name.startswith("folder")), None)
    if name is None or named_like(GROUP_NAMES, of_files):
        return None
    num_groups, split = len(set(of_files[name])), split_column(of_files)
    is_few = are_too_few(of_files[name], None if split is None else [*map(str, of_files[split])])
    why = f"the names of folders; {what_groups_do(num_groups, split is not None)}"
    return None if is_few or num_groups == num_files else (name, why)


# Values that apply to a whole file. `ids`: the files' paths below the folder without their ending.


def columns_of_files(
    folder: Path,
    ids: list[str],
    options: Mapping[str, Any],
    labels: Path | None,
    notes: list[Note],
    row_label: str | None,
) -> tuple[dict[str, Any], str | None, str]:
    """The values of each file from its folders, name and table of labels; the label's column; the reason. `row_label`:
    a column of the files that changes within them and is called like a label.

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
    is_given = label_of_table or "label" in of_names or requested not in (None, "label")
    columns = columns_of_folders(folder, ids, not is_given, pattern) | of_names | of_table
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
        classes = sorted({*columns["label"]})
        counted = [pair for pair in pairwise(classes) if len({re.sub(r"\d+$", "", name) for name in pair}) == 1]
        if counted and len(counted) < len(classes) - 1:
            why += f"; {' and '.join(counted[0])} are two classes (--pattern '{{label}}_*/*' drops what follows _)"
        return columns, "label", f"{{label}} of --pattern {pattern}" if "label" in of_names else why
    if labels and len(of_table) == 1 and not requested:
        return columns, next(iter(of_table)), f"of {labels.name}"
    if labels and of_table and not requested and "num_channels" not in options:
        raise ValueError(f"{labels} has no column of labels{nearest('', of_table)}; name it with --label")
    return columns, None, ""


def columns_of_folders(
    folder: Path, ids: list[str], is_label: bool, pattern: str | None = None
) -> dict[str, list[str]]:
    """The names of the folders between `folder` and each file: train and test are the split, one level is the label. A
    level that `pattern` names is left out.
    """
    parts = [name.split("/")[:-1] for name in ids]
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"{folder} has files in folders of different depths ({ids[0]}); put all at one depth")
    columns, levels = dict[str, list[str]](), list[list[str]]()
    pieces = dict(enumerate((pattern or "").split("/")[:-1]))
    unnamed = [part for place, part in enumerate(zip(*parts, strict=True)) if "{" not in pieces.get(place, "")]
    for level in ([*level] for level in unnamed if len(set(level)) > 1):
        if all(name.lower() in SPLIT_WORDS for name in level):
            columns.setdefault(SPLIT_COLUMN, [SPLIT_WORDS[name.lower()] for name in level])
        else:
            levels.append(level)
    # Of two levels of folders the last is the label, unless only its names are numbered (s01, s02); people are none.
    by_word = [number for number, level in enumerate(levels) if not all(re.fullmatch(NUMBERED, name) for name in level)]
    likely = by_word or [number for number, level in enumerate(levels) if not are_people(level)]
    label = likely[-1] if likely and is_label else None
    if label is not None and pattern is None and (of_names := patterns_of(ids)):
        first_words = dict[str, set[str]]()
        for name, of_folder in zip(ids, levels[label], strict=True):
            first_words.setdefault(of_folder, set()).add(re.split(r"[\d\W_]", name.rsplit("/", 1)[-1])[0])
        first, *others = first_words.values()
        if all(words == first for words in others):
            raise CommandError(
                f"the files of each folder in {folder} are called alike ({shortened(sorted(first))}), so "
                f"the folders or these words may be the labels; give --pattern '{{label}}/*' or --pattern "
                f"'{{person}}/{of_names[0].replace('{person}', '{part}')}'",
                NO_ANSWER,
            )
    for number, level in enumerate(levels):
        columns["label" if number == label else f"folder{number + 1}"] = level
    return columns


def are_people(names: Sequence[str]) -> bool:
    """Whether they are a word for people or devices with a number, such as subject01 or P3."""
    return all(re.fullmatch(NUMBERED, name) and named_like(PEOPLE, [name]) for name in names)


def patterns_of(ids: Sequence[str]) -> list[str]:
    """Patterns for the names of files, one for each part that may be the label: words that several files share, between
    the same signs in all names, or else letters before a number. P01 and s1 are people.
    """
    names = [name.rsplit("/", 1)[-1] for name in ids]
    for sign in "_- .":
        parts = [name.split(sign) for name in names]
        if len({*map(len, parts)}) == 1 and (patterns := patterns_between(sign, parts)):
            return patterns
    matches = [re.match(r"([^\W\d_]+)\d", name) for name in names]
    words = {match[1] for match in matches if match}
    return ["{label}{number}*"] if all(matches) and 1 < len(words) < len(ids) else []


def patterns_between(sign: str, parts: Sequence[Sequence[str]]) -> list[str]:
    """`parts`: those of each name."""
    columns = [{*column} for column in zip(*parts, strict=True)]
    fields = [next(iter(words)) if len(words) == 1 else f"{{part{place}}}" for place, words in enumerate(columns, 1)]
    shared = [place for place, words in enumerate(columns) if 1 < len(words) <= len(parts) / 2]
    numbered = [place for place in shared if all(re.fullmatch(r"[A-Za-z]+\d+", word) for word in columns[place])]
    for place in numbered[:1]:
        fields[place] = "{person}"
    patterns = []
    for label in shared:
        if label not in numbered and all(re.fullmatch(r"[^\W\d_][^\W_]*", word) for word in columns[label]):
            form = [*fields[:label], "{label}", *fields[label + 1 :]]
            while not form[-1].startswith(("{label", "{person")):
                form.pop()
            patterns.append(sign.join([*form, *["*"] * (len(form) < len(columns))]))
    return patterns[:3]


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
    table = text_tables.find_format(path, options)
    if table.has_header and {*map(without_ending, table.names)} & {*ids}:  # the first row is no header
        names = tuple(str(number) for number in range(1, len(table.names) + 1))
        table = replace(table, names=names, has_header=False, num_skipped=table.num_skipped - 1)
    table = text_tables.with_notation(table, options)
    kinds = kinds_of([text_tables.read_whole(table)])
    numbers = {name: kinds[name] for name in named_like(("target", "y"), kinds)}
    return pa.concat_tables(rows for _, rows in text_tables.read_blocks(table, numbers)), table.notes
