"""Which files of a folder are sequences: not a table of labels beside them, nor prose. Refuses folders with a file for
each channel or sensor.
"""

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tandem.importing import text_format
from tandem.importing.columns import named_like
from tandem.importing.names import GROUP_NAMES, STEP_NAMES
from tandem.importing.recordings import (
    kind_of_file,
    without_ending,
)

TAIL_BYTES = 1000


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
    widths = {*map(len, text_format.find_delimiter(text)[1])}
    return is_text and (widths == {1} or len(widths) > 1)


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
        columns = {name: text_format.find_format(paths[0].with_name(name), options).names for name in sensors}
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
