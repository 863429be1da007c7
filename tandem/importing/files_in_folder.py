"""Which files of a folder are sequences: not a table of labels beside them, nor a README. Folders with a file for each
sensor are refused.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tandem.importing.recordings import kind_of_file, without_ending

PROSE = re.compile(
    r"(README|LICEN[CS]E|NOTICE|CITATION|DESCRIPTION|DOCUMENTATION)([^a-z.][^.]*)?(\.(txt|md|rst|pdf|html?|cff))?|.*\.md",
    re.IGNORECASE,
)
TABLES_OF_LABELS = ("labels", "label", "metadata", "meta", "annotations", "classes", "index")


def files_below(folder: Path) -> list[Path]:
    """All files but a README or licence. Raises ValueError about a link that leads out of the folder, or to a folder:
    neither is followed.
    """
    paths, inside = list[Path](), folder.resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        paths += [Path(place) / name for name in names if not name.startswith(".") and not PROSE.fullmatch(name)]
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


def check_not_a_file_per_sensor(folder: Path, paths: Sequence[Path]) -> None:
    """Raises ValueError if each recording is a folder with a file for each sensor, as the app Sensor Logger writes it:
    Accelerometer.csv, Gyroscope.csv and so on.
    """
    counts, folders = Counter(path.name for path in paths if path.suffix == ".csv"), {path.parent for path in paths}
    names = [name for name in counts if counts[name] == len(folders) > 2]
    sensors = [name for name in names if re.search("accel|gyro", name, re.IGNORECASE)]
    if len(names) > 1 and sensors:
        raise ValueError(
            f"{folder} has a folder for each recording with a file for each sensor, such as {sensors[0]}; write one "
            "file for each recording, with the sensors joined at the nearest times (pandas.merge_asof)"
        )
