"""`.ts`, the format of the archive timeseriesclassification.com: a line per sequence, `1,2,3:4,5,6:label`.

Format: https://www.aeon-toolkit.org/en/stable/api_reference/file_specifications/ts.html.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.importing.columns import Choices
from tandem.importing.long_table import (
    Block,
    Progress,
    SequenceSource,
    SplitFile,
    each_block,
    parts_notes,
)

BLOCK_BYTES = 16 << 20  # of lines that are read at once


@dataclass(frozen=True)
class Header:
    keys: dict[str, str]  # lowercase
    num_channels: int
    first_line: int  # of the data

    @property
    def label(self) -> str | None:
        """The value after the last channel: a class, a number, or none."""
        for key, name in (("classlabel", "label"), ("targetlabel", "target")):
            if self.keys.get(key, "false").split()[:1] == ["true"]:
                return name
        return None


def read_header(path: Path) -> Header:
    keys: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if line.lower().startswith("@data"):
                header = Header(keys, 0, number + 1)
                break
            if line.startswith("@"):
                key, _, value = line[1:].partition(" ")
                keys[key.lower()] = value.strip().lower() if key.lower() != "classlabel" else value.strip()
        else:
            raise ValueError(f"{path} has no line @data, after which a .ts file has its sequences; save it again")
        first = next((line for line in file if line.strip() and not line.startswith("#")), "")
    if keys.get("timestamps") == "true":
        raise ValueError(f"{path} has time stamps (@timestamps true), which are not read; save it without them")
    num_channels = first.count(":") + 1 - (header.label is not None)
    if not first or num_channels < 1:
        raise ValueError(f"{path} has no sequence after @data; it needs lines such as 1.5,2,0.3:label")
    return Header(keys, num_channels, header.first_line)


def open_ts(path: Path, files: Sequence[SplitFile]) -> SequenceSource:
    headers = {file: read_header(file) for _, file in files}
    num_channels, label = headers[path].num_channels, headers[path].label
    choices: Choices = {}
    if label:
        word = "class" if label == "label" else "target"
        choices["label"] = (label, f"behind the last colon, as @{word}Label says")
    if label == "target":
        choices["task"] = ("regress", "a number behind the last colon, as @targetLabel says")
    notes = [("shape", ".ts", f"a line per sequence, {num_channels} channel{'s' * (num_channels > 1)}")]

    def read(file: Path, at: Progress) -> Iterator[list[tuple[np.ndarray, Any]]]:
        header, number = headers[file], 1
        if (header.num_channels, header.label) != (num_channels, label):
            raise ValueError(f"{file} has other channels or labels than {path}; --alone reads {path} alone")
        with file.open("rb") as data:
            while lines := data.readlines(BLOCK_BYTES):
                yield [
                    parse(decoded(line), header, f"{file}, line {place}")
                    for place, line in enumerate(lines, number)
                    if place >= header.first_line and line.strip() and not line.startswith(b"#")
                ]
                number += len(lines)
                at(data.tell())

    def blocks(at: Progress) -> Iterator[Block]:
        for split, _, _, sequences in each_block(files, read, at):
            values, labels = zip(*sequences, strict=True)
            steps = np.concatenate(values)
            cells = [np.ascontiguousarray(steps[:, place]) for place in range(num_channels)]
            per_sequence = pa.table({label: pa.array(labels)} if label else {})
            yield Block(np.array([len(each) for each in values]), cells, per_sequence, split)

    return SequenceSource(
        sources=[file for _, file in files],
        notes=[*notes, *parts_notes(files)],
        features=["value"] if num_channels == 1 else [f"c{number}" for number in range(num_channels)],
        per_sequence=[label] if label else [],
        blocks=blocks,
        total=sum(file.stat().st_size for _, file in files),
        ids=(None, "a number, a line each"),
        choices=choices,
    )


def decoded(raw: bytes) -> str:
    """Older files use Latin-1; replacement characters could merge two labels."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse(line: str, header: Header, place: str) -> tuple[np.ndarray, str | float]:
    """A line's steps (T, C), with NaN for `?`, and its label."""
    parts = line.strip().split(":")
    num_parts = header.num_channels + (header.label is not None)
    if len(parts) != num_parts:
        raise ValueError(
            f"{place}: {len(parts)} parts between colons, and the first line has {num_parts}; correct the file"
        )
    label: str | float = parts.pop().strip() if header.label else ""
    try:
        label = float(label) if header.label == "target" else label
        channels = [np.array(part.replace("?", "nan").split(","), dtype=np.float64) for part in parts]
    except ValueError as error:
        raise ValueError(f"{place}: must hold numbers and commas: {error}; correct the file") from None
    if len({len(channel) for channel in channels}) > 1:
        raise ValueError(
            f"{place}: its channels have {', '.join(str(len(c)) for c in channels)} steps; they must be alike"
        )
    return np.stack(channels, axis=1), label
