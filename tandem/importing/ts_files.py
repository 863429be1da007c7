"""`.ts`, the format of the archive timeseriesclassification.com: a line per sequence, `1,2,3:4,5,6:label`.

Format: https://www.aeon-toolkit.org/en/stable/api_reference/file_specifications/ts.html.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tandem.importing.array_files import channel_names
from tandem.importing.columns import Choices
from tandem.importing.long_table import Part, Source, SplitFile, as_long_table, parts_notes
from tandem.importing.text_format import find_encoding

Line = tuple[int, list[str]]  # its number, and what is between its colons


def read_ts(path: Path) -> tuple[str, list[Line]]:
    """What is after the last channel: label (a class), target (a number), or "" (nothing); and the lines of data."""
    keys, lines, is_data = dict[str, str](), list[Line](), False
    with path.open(encoding=find_encoding(path, "")[0]) as file:  # older files use another than UTF-8
        for number, line in enumerate(map(str.strip, file), start=1):
            if is_data and line and not line.startswith("#"):
                lines.append((number, line.split(":")))
            elif line.startswith("@"):
                key, _, value = line[1:].partition(" ")
                keys[key.lower()] = next(iter(value.lower().split()), "")
                is_data = key.lower() == "data"
    if keys.get("timestamps") == "true":
        raise ValueError(f"{path} has time stamps (@timestamps true), which are not read; save it without them")
    labels = {"classlabel": "label", "targetlabel": "target"}
    label = next((name for key, name in labels.items() if keys.get(key) == "true"), "")
    if not lines or len(lines[0][1]) == bool(label):
        raise ValueError(f"{path} has no sequence after a line @data; it needs lines such as 1.5,2,0.3:label")
    return label, lines


def open_ts(path: Path, files: Sequence[SplitFile]) -> Source:
    lines_of = {file: read_ts(file) for _, file in files}
    label, lines = lines_of[path]
    num_parts = len(lines[0][1])
    for file, (other_label, other_lines) in lines_of.items():
        if (other_label, len(other_lines[0][1])) != (label, num_parts):
            raise ValueError(f"{file} has other channels or labels than {path}; --alone reads {path} alone")
    choices: Choices = {}
    if label:
        word = "class" if label == "label" else "target"
        choices["label"] = (label, f"behind the last colon, as @{word}Label says")
    if label == "target":
        choices["task"] = ("regress", "a number behind the last colon, as @targetLabel says")

    def read() -> Iterator[Part]:
        for split, file in files:
            sequences = [
                parse(parts, num_parts, label, f"{file}, line {number}") for number, parts in lines_of[file][1]
            ]
            values, labels = zip(*sequences, strict=True)
            cells = [*map(np.ascontiguousarray, np.concatenate(values).T)]
            table = pa.table({label: pa.array(labels)} if label else {})
            yield Part(np.array([*map(len, values)]), cells, table, split)

    num_channels = num_parts - bool(label)
    shape = ("shape", ".ts", f"a line per sequence, {num_channels} channel{'s' * (num_channels > 1)}")
    return as_long_table(
        [file for _, file in files],
        [shape, *parts_notes(files)],
        read,
        channel_names(num_channels),
        [label] if label else [],
        ids=(None, "a number, a line each"),
        choices=choices,
    )


def parse(parts: list[str], num_parts: int, label: str, place: str) -> tuple[np.ndarray, str | float]:
    """A line's steps (T, C), with NaN for `?`, and its label."""
    if len(parts) != num_parts:
        raise ValueError(
            f"{place}: {len(parts)} parts between colons, and the first line has {num_parts}; correct the file"
        )
    channels, last = (parts[:-1], parts[-1].strip()) if label else (parts, "")
    try:
        values = [np.array(channel.replace("?", "nan").split(","), dtype=np.float64) for channel in channels]
        return np.stack(values, axis=1), float(last) if label == "target" else last
    except ValueError as error:
        raise ValueError(
            f"{place}: must hold numbers and commas, as many in each channel: {error}; correct the file"
        ) from None
