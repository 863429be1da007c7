"""A folder with one file per sequence: CSV, text, Parquet or npy, a row per step; or a folder per sequence with one npy
per step, as tutorials of MediaPipe write it.

The label is the folder's name, a part of the file's name (`--pattern '{label}_{person}_*'`), a column of a second table
(`--labels`), or a column of the files.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.importing.array_files import axes_of
from tandem.importing.columns import named_like, shortened
from tandem.importing.file_columns import columns_of_files, columns_of_folders, groups_of, patterns_of, remark_on_people
from tandem.importing.files_in_folder import check_not_a_file_per_sensor, table_of_labels
from tandem.importing.headers import Note
from tandem.importing.infer_groups import NAMES_PEOPLE
from tandem.importing.long_table import Part, Source, as_long_table, unused_name
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES
from tandem.importing.recordings import (
    KINDS,
    Reader,
    ending_of,
    kind_of_file,
    sample_of,
    values_of,
    without_ending,
)
from tandem.importing.text_format import check_no_blocks, first_bytes
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument

MOST_COORDINATES = 4
MOST_SHOWN, LONGEST = 12, 1000  # files in a command, and letters


def open_folder(folder: Path, candidates: list[Path], options: Mapping[str, Any]) -> Source:
    """`candidates`: the files below `folder` that may be sequences or a table of their labels."""
    labels = options.get("labels") or table_of_labels(folder, candidates)
    if labels is not None:
        candidates = [path for path in candidates if path.resolve() != labels.resolve()]
    check_not_a_file_per_sensor(folder, candidates)
    endings = Counter(ending_of(path) for path in candidates if kind_of_file(path))
    if not endings:
        for path in candidates[:1]:
            first_bytes(path)
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
    reader = Reader(paths, options, axes)
    row_label = next(iter(reader.labels), None) if not {"label", "num_channels"} & {*options} else None
    of_files, label, why = columns_of_files(folder, ids, options, labels, notes, row_label, reader.names)
    for name, cells in [*of_files.items()] if "label" in reader.names else ():
        pairs = zip(paths, cells, strict=True)
        if all({*map(str, reader.read(path)["label"].to_pylist())} == {str(cell)} for path, cell in pairs):
            del of_files[name]  # the files say the same
    if repeats := [
        name for name in reader.names if name in of_files or (name == "sequence" and "needed" not in options)
    ]:
        name, word = repeats[0], " and another word in --pattern" * ("pattern" in options)
        way = f"give --label {name}{word}, or rename it" if name == label else "rename it"
        raise ValueError(f"{paths[0]} has a column {name!r}, which the folder or its labels give too; {way}")
    notes += reader.form.notes if reader.form else []
    others = {name: cells for name, cells in of_files.items() if name != label}
    choices = {"groups": groups} if (groups := groups_of(others, len(ids))) else {}
    if label:
        choices["label"] = (label, why)
        is_open = not {"label", "pattern", "labels", "num_channels"} & {*options}
        if is_open and reader.form and not reader.form.has_header and are_counted(of_files[label]):
            for name in reader.names_of_codes(that_change=True, must_stay=True)[:1]:
                raise CommandError(
                    f"{folder}: column {name}, of few numbers, stays the same for many rows and changes within "
                    f"the files; give --label {name} if it is the label, or --label label if the folders' names are",
                    NO_ANSWER,
                )
        if reader.form and not reader.form.has_header:
            check_no_blocks(reader.form, folder, are_labelled=True)
    elif not row_label and not {"label", "num_channels"} & {*options} and not reader.has_text:
        if reader.form and not reader.step:
            check_no_blocks(reader.form, folder)
        ways = [
            "put them into a folder for each label, three files or more in each (cut a single long one into three or "
            "more, and give --window STEPS)"
        ]
        parents = [name.rpartition("/")[0] for name in ids]
        of_parents = [f"{'*/' * parents[0].count('/')}{pattern}/*" for pattern in patterns_of(parents)]
        if patterns := patterns_of(ids) or of_parents:
            ways.append(f"give --pattern {' or '.join(map(shlex.quote, patterns))} for their names")
        ways.append("give --labels TABLE with a row for each")
        command = ""
        if reader.form and not reader.form.compression:
            in_order = sorted(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
            shown = shlex.join(str(path) if "/" in str(path) else f"./{path}" for path in in_order)
            form, *other_forms = {f"{path.parent}/*{path.suffix}" for path in paths}
            are_plain = all(re.fullmatch(r"[\w/.-]*\w/[\w.-]+", str(path)) for path in paths)
            if len(paths) > MOST_SHOWN and not other_forms and are_plain:
                shown = f"$(ls -v {form})"  # in the order of their numbers
            if len(shown) < LONGEST:
                command = f"awk 'NR == FNR || FNR > {reader.form.num_skipped}' {shown}"
        codes = reader.names_of_codes(that_change=bool(patterns))
        codes = list(dict.fromkeys([*named_like(LABEL_NAMES, codes), *codes]))
        if flags := [f"--label {shlex.quote(name)}" for name in codes[:3]]:
            ways.append(f"give {' or '.join(flags)}, if that column has the labels")
        if command and any(map(reader.differs_by_file, codes)):
            ways.append(f"if each row is a sequence, write all rows below each other: {command} > new.csv")
        names = [name for name in of_files if name.startswith("folder") and len({*of_files[name]}) < len(ids)]
        ways += [f"give --label {name} if it is who or what was recorded" for name in names]
        if command and are_counted(ids) and not flags:
            ways.append(f"if they are parts of one series, write them below each other: {command} > new.csv")
        raise ValueError(f"nothing says which label the {len(ids):,} sequences of {folder} have: {', or '.join(ways)}")

    is_grouped = groups or any(map(NAMES_PEOPLE.search, named_like(GROUP_NAMES, [*others, *reader.names])))
    if not is_grouped and not {"pattern", "groups", "num_channels"} & {*options}:
        notes += remark_on_people(ids)
    of_names = (None, "the place of its file by the number in the name")
    key = unused_name("file", [*of_files])
    per_sequence = pa.table({key: ids, **of_files})

    def read() -> Iterator[Part]:
        tables = [pa.concat_tables(map(reader.read, files)) for files in members.values()]
        lengths = np.array([table.num_rows for table in tables])
        yield Part(lengths, pa.concat_tables(tables).columns, per_sequence)

    return as_long_table(
        [folder],
        notes,
        read,
        reader.names,
        per_sequence.column_names,
        ids=(key, "the folder's name" if axes == "C" else "the file's name"),
        step=of_names if axes == "C" else (reader.step, reader.why_step),
        choices=choices,
    )


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


def are_counted(names: Sequence[str]) -> bool:
    """Whether names differ only in a number, as S1_Dataset and S2_Dataset do."""
    return len({re.sub(r"\d+", "0", name) for name in names}) == 1


def are_numbered(paths: Sequence[Path]) -> bool:
    """Whether the names in each folder count its files, as frame_0.npy, frame_1.npy, ... do."""
    places = {(path.parent, number_in_name(path)) for path in paths}
    is_each = all(re.search(r"\d", path.stem) for path in paths)
    return is_each and len(places) == len(paths) > len({path.parent for path in paths})


def number_in_name(path: Path) -> int:
    """The last number in the name of a file; 0 if there is none."""
    return int(re.findall(r"\d+", f"0 {path.stem}")[-1])
