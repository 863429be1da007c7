"""`.ts`, the format of the archive timeseriesclassification.com: a line per sequence, `1,2,3:4,5,6:label`.

Format: https://www.aeon-toolkit.org/en/stable/api_reference/file_specifications/ts.html.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tandem.importing.array_files import channel_names
from tandem.importing.columns import Choices
from tandem.importing.long_table import Part, Source, SplitFile, as_long_table, parts_notes
from tandem.importing.text_format import find_encoding


class Header(NamedTuple):
    label: str  # what is after the last channel: label (a class), target (a number), or "" (nothing)
    num_channels: int
    first_line: int  # of the data


def read_header(path: Path) -> Header:
    keys: dict[str, str] = {}
    with path.open(encoding=find_encoding(path, "")[0]) as file:  # older files use another than UTF-8
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if line.lower().startswith("@data"):
                first_line = number + 1
                break
            if line.startswith("@"):
                key, _, value = line[1:].partition(" ")
                keys[key.lower()] = next(iter(value.lower().split()), "")
        else:
            raise ValueError(f"{path} has no line @data, after which a .ts file has its sequences; save it again")
        first_sequence = next((line for line in file if line.strip() and not line.startswith("#")), "")
    if keys.get("timestamps") == "true":
        raise ValueError(f"{path} has time stamps (@timestamps true), which are not read; save it without them")
    labels = {"classlabel": "label", "targetlabel": "target"}
    label = next((name for key, name in labels.items() if keys.get(key) == "true"), "")
    num_channels = first_sequence.count(":") + 1 - bool(label)
    if not first_sequence or num_channels < 1:
        raise ValueError(f"{path} has no sequence after @data; it needs lines such as 1.5,2,0.3:label")
    return Header(label, num_channels, first_line)


def open_ts(path: Path, files: Sequence[SplitFile]) -> Source:
    headers = {file: read_header(file) for _, file in files}
    label, num_channels, _ = headers[path]
    for file, header in headers.items():
        if header[:2] != (label, num_channels):
            raise ValueError(f"{file} has other channels or labels than {path}; --alone reads {path} alone")
    choices: Choices = {}
    if label:
        word = "class" if label == "label" else "target"
        choices["label"] = (label, f"behind the last colon, as @{word}Label says")
    if label == "target":
        choices["task"] = ("regress", "a number behind the last colon, as @targetLabel says")

    def read() -> Iterator[Part]:
        for split, file in files:
            with file.open(encoding=find_encoding(file, "")[0]) as data:
                sequences = [
                    parse(line, headers[file], f"{file}, line {place}")
                    for place, line in enumerate(data, 1)
                    if place >= headers[file].first_line and line.strip() and not line.startswith("#")
                ]
            values, labels = zip(*sequences, strict=True)
            cells = [*map(np.ascontiguousarray, np.concatenate(values).T)]
            table = pa.table({label: pa.array(labels)} if label else {})
            yield Part(np.array([*map(len, values)]), cells, table, split)

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


def parse(line: str, header: Header, place: str) -> tuple[np.ndarray, str | float]:
    """A line's steps (T, C), with NaN for `?`, and its label."""
    parts = line.strip().split(":")
    num_parts = header.num_channels + bool(header.label)
    if len(parts) != num_parts:
        raise ValueError(
            f"{place}: {len(parts)} parts between colons, and the first line has {num_parts}; correct the file"
        )
    label: str | float = parts.pop().strip() if header.label else ""
    try:
        label = float(label) if header.label == "target" else label
        channels = [np.array(part.replace("?", "nan").split(","), dtype=np.float64) for part in parts]
        return np.stack(channels, axis=1), label
    except ValueError as error:
        raise ValueError(
            f"{place}: must hold numbers and commas, as many in each channel: {error}; correct the file"
        ) from None
