"""`.ts`, the format of the archive timeseriesclassification.com: a line per sequence, `1,2,3:4,5,6:label`.

Format: https://www.aeon-toolkit.org/en/stable/api_reference/file_specifications/ts.html.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stages.data.tables import SPLIT_COLUMN
from stages.tools.long_table import BLOCK_CELLS, LongTableSource, known_of, rows_of
from stages.tools.text_tables import Note


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
            raise ValueError(f"{path.name} has no line @data, after which a .ts file has its sequences; save it again")
        first = next((line for line in file if line.strip() and not line.startswith("#")), "")
    if keys.get("timestamps") == "true":
        raise ValueError(f"{path.name} has time stamps (@timestamps true), which are not read; save it without them")
    num_channels = first.count(":") + 1 - (header.label is not None)
    if not first or num_channels < 1:
        raise ValueError(f"{path.name} has no sequence after @data; it needs lines such as 1.5,2,0.3:label")
    return Header(keys, num_channels, header.first_line)


def open_ts(path: Path, options: Mapping[str, Any], splits: dict[str, Path]) -> LongTableSource:
    files = list(splits.items()) or [("", path)]
    headers = [read_header(file) for _, file in files]
    header = headers[0]
    features = ["value"] if header.num_channels == 1 else [f"c{number}" for number in range(header.num_channels)]
    others = [*([header.label] if header.label else []), *([SPLIT_COLUMN] if splits else [])]
    known = known_of(features, others, "a number, a line each", header.label)
    if header.label:
        known["label"] = (
            header.label,
            f"behind the last colon, as @{'class' if header.label == 'label' else 'target'}Label says",
        )
        if header.label == "target":
            known["task"] = ("regress", "a number behind the last colon, as @targetLabel says")
    notes: list[Note] = [
        ("shape", ".ts", f"a line per sequence, {header.num_channels} channel{'s' * (header.num_channels > 1)}")
    ]
    if splits:
        notes.append(
            ("files", " and ".join(file.name for _, file in files), "its parts, so the split (--alone reads one)")
        )

    def blocks(at: Callable[[int], Any]) -> Iterator[pa.Table]:
        number, before = 0, 0
        for (split, file), header in zip(files, headers, strict=True):
            if (header.num_channels, header.label) != (headers[0].num_channels, headers[0].label):
                raise ValueError(
                    f"{file.name} has other channels or labels than {path.name}; --alone reads {path.name} alone"
                )
            with file.open("rb") as data:
                values, lengths, labels, num_steps = list[np.ndarray](), list[int](), list[str](), 0
                for line_number, raw in enumerate(data, start=1):
                    if line_number < header.first_line or not raw.strip() or raw.startswith(b"#"):
                        continue
                    steps, label = parse(decoded(raw), header, f"{file.name}, line {line_number}")
                    values.append(steps)
                    lengths.append(len(steps))
                    labels.append(label)
                    num_steps += len(steps)
                    if num_steps * header.num_channels >= BLOCK_CELLS:
                        yield block_of(number, values, lengths, labels, split)
                        number, values, lengths, labels, num_steps = number + len(lengths), [], [], [], 0
                        at(before + data.tell())
                if lengths:
                    yield block_of(number, values, lengths, labels, split)
                    number += len(lengths)
            before += file.stat().st_size
            at(before)

    def block_of(number: int, values: list[np.ndarray], lengths: list[int], labels: list[str], split: str) -> pa.Table:
        columns = {header.label: as_labels(labels, header, path)} if header.label else {}
        columns |= {SPLIT_COLUMN: pa.array([split] * len(lengths))} if split else {}
        ids = np.arange(number, number + len(lengths))
        return rows_of(ids, np.concatenate(values), np.array(lengths), features, pa.table(columns))

    return LongTableSource(
        [file for _, file in files], notes, known, blocks, sum(file.stat().st_size for _, file in files)
    )


def decoded(raw: bytes) -> str:
    """Older files use Latin-1; replacement characters could merge two labels."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse(line: str, header: Header, place: str) -> tuple[np.ndarray, str]:
    """A line's steps (T, C), with NaN for `?`, and its label."""
    parts = line.strip().split(":")
    num_parts = header.num_channels + (header.label is not None)
    if len(parts) != num_parts:
        raise ValueError(
            f"{place}: {len(parts)} parts between colons, and the first line has {num_parts}; correct the file"
        )
    label = parts.pop().strip() if header.label else ""
    try:
        channels = [np.array(part.replace("?", "nan").split(","), dtype=np.float64) for part in parts]
    except ValueError as error:
        raise ValueError(f"{place}: must hold numbers and commas: {error}; correct the file") from None
    if len({len(channel) for channel in channels}) > 1:
        raise ValueError(
            f"{place}: its channels have {', '.join(str(len(c)) for c in channels)} steps; they must be alike"
        )
    return np.stack(channels, axis=1), label


def as_labels(labels: list[str], header: Header, path: Path) -> pa.Array:
    if header.label == "label":
        return pa.array(labels)
    try:
        return pa.array(labels).cast(pa.float64())
    except pa.ArrowException:
        raise ValueError(
            f"{path.name}: @targetLabel wants a number behind the last colon; found {labels[0]!r}"
        ) from None
