"""Arrays of sequences: npy and npz, (N, T, C), (N, T), or (N, C, T), with labels (N,).

N sequences, T steps, C channels. Read in blocks, without pickle.
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from stages.data.splits import SPLITS
from stages.data.tables import SPLIT_COLUMN
from stages.params.parsing import one_line
from stages.tools.long_table import BLOCK_CELLS, LongTableSource, known_of, lengths_of, long_block, unique
from stages.tools.text_tables import DAMAGED, Note

VALUES = "x data values samples signals sequences series features".split()
LABELS = "y label labels target targets class classes".split()
SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test"}


@dataclass(frozen=True)
class Array:
    """One array of a file; it is read later."""

    path: Path
    member: str  # the array's name in an npz; else empty
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def name(self) -> str:
        return f"{self.path.name}: {self.member.removesuffix('.npy')}" if self.member else self.path.name

    def blocks(self, num_rows: int) -> Iterator[np.ndarray]:
        """Rows in blocks of `num_rows`; an array in Fortran order is read whole."""
        try:
            with opened(self.path, self.member) as file:
                shape, is_fortran, dtype = header_of(file, self.name)
                if is_fortran:
                    whole = np.frombuffer(file.read(), dtype=dtype).reshape(shape, order="F")
                    yield from (whole[low : low + num_rows] for low in range(0, shape[0], num_rows))
                    return
                row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
                for low in range(0, shape[0], num_rows):
                    count = min(num_rows, shape[0] - low)
                    data = file.read(count * row_bytes)
                    if len(data) < count * row_bytes:
                        raise ValueError(f"{self.name} ends after {low:,} of {shape[0]:,} rows; save it again")
                    yield np.frombuffer(data, dtype=dtype).reshape(count, *shape[1:])
        except DAMAGED as error:
            raise ValueError(f"{self.name} cannot be read: {one_line(error)}; save it again") from None

    def whole(self) -> np.ndarray:
        return np.concatenate(list(self.blocks(max(1, self.shape[0]))))


@contextmanager
def opened(path: Path, member: str) -> Iterator[BinaryIO]:
    if not member:
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            yield file  # type: ignore[misc]


def header_of(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{name} is no array of numpy: {error}") from None
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds Python objects, which only pickle could read; save words with .astype(str), and sequences "
            "of different lengths as an array (N, T, C) with NaN after their ends"
        )
    return shape, is_fortran, dtype


def arrays_of(path: Path) -> list[Array]:
    """The arrays of `path`. Raises ValueError if the file is neither npy nor npz."""
    try:
        members = [""]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = [name for name in archive.namelist() if name.endswith(".npy")]
        found = []
        for member in members:
            with opened(path, member) as file:
                shape, _, dtype = header_of(file, f"{path.name}: {member}" if member else path.name)
                found.append(Array(path, member, shape, dtype))
        return found
    except (*DAMAGED, RuntimeError) as error:  # an encrypted npz raises RuntimeError
        raise ValueError(f"{path.name} cannot be read as arrays: {error}") from None


def word_and_split(name: str) -> tuple[str, str]:
    """`X_train` -> ("x", "train")."""
    words = [word for word in re.split(r"[_\-. ]+|(?<=[Xxy])(?=[Tt]r|[Tt]e|[Vv]al)", name.lower()) if word]
    split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
    return "_".join(word for word in words if word not in SPLIT_WORDS), split


def open_arrays(path: Path, options: Mapping[str, Any], is_alone: bool) -> LongTableSource:
    """The arrays of `path`; for an npy, also those of the files next to it with matching names (X_train, y_train)."""
    files = [path]
    if path.suffix.lower() == ".npy" and not is_alone:
        word, _ = word_and_split(path.stem)
        beside = [other for other in sorted(path.parent.glob("*.npy")) if other != path]
        wanted = (word, *LABELS)
        files += [other for other in beside if word_and_split(other.stem)[0] in wanted] if word in VALUES else []
    found = [array for file in files for array in arrays_of(file)]
    if options.get("labels") and Path(options["labels"]).suffix.lower() in (".npy", ".npz"):
        found = [array for array in found if word_and_split(stem_of(array))[0] not in LABELS]
        found += arrays_of(Path(options["labels"]))
    named = {array: word_and_split(stem_of(array)) for array in found}
    many = [array for array in found if len(array.shape) >= 2 and array.dtype.kind in "fiub"]
    values = [array for array in many if named[array][0] in VALUES]
    values = values or [array for array in many if named[array][0] not in LABELS][:1]
    if not values:
        shown = ", ".join(f"{array.name} {array.shape}" for array in found) or "nothing"
        raise ValueError(f"{path.name} holds {shown}; sequences are an array of numbers (N, T, C) or (N, T)")
    if len({len(array.shape) for array in values}) > 1 or len(values[0].shape) > 3:
        raise ValueError(f"{values[0].name} has the shape {values[0].shape}; accepted: (N, T, C), (N, T) and (N, C, T)")
    parts = {named[array][1]: array for array in values}
    if len(parts) < len(values):
        raise ValueError(
            f"{path.name} holds several arrays of sequences ({', '.join(a.name for a in values)}); keep one"
        )
    if len(parts) == 1:
        parts = {"": values[0]}
        for array in found if "labels" in options else ():  # in a file of any name
            if array.path == Path(options["labels"]):
                word = named[array][0]
                named[array] = (word if word in LABELS else "label", named[values[0]][1])
    check_alike(list(parts.values()), list(parts), path)
    per_sequence, names_of = dict[str, pa.Table](), dict[str, str]()
    for split, array in reversed(parts.items()):  # the messages name the arrays of the first split
        per_sequence[split], names_of = columns_of(array, split, named)
    others = per_sequence[next(iter(parts))].column_names
    for split, table in per_sequence.items():
        if odd := sorted({*table.column_names} ^ {*others}):
            have, lack = (split, next(iter(parts))) if odd[0] in table.column_names else (next(iter(parts)), split)
            raise ValueError(
                f"{path.name} has {odd[0]} for {parts[have].name} and none for {parts[lack].name}; give it for both, "
                "or one of the two alone"
            )
    label = next((name for name in LABELS if name in others), None)
    label = label or next((name for name in others if len(name) == 1), None)
    if label is None and "label" not in options:
        raise ValueError(
            f"{path.name} has no labels: put an array y (N,) into the npz, or y.npy beside it, or give --labels FILE"
        )
    axes, why = axes_of(values[0].shape, options.get("axes"))
    channels = 1 if len(axes) == 2 else values[0].shape[axes.index("C")]
    if odd_one := next((a for a in values if len(axes) == 3 and a.shape[axes.index("C")] != channels), None):
        raise ValueError(
            f"{odd_one.name} has the shape {odd_one.shape} and {values[0].name} {values[0].shape}; as {axes} these are "
            "other channels; give both the same, or turn them with --axes"
        )
    features = [unique("value" if channels == 1 else f"c{number}", others) for number in range(channels)]
    shapes = ", ".join(f"{array.name} {array.shape}" for array in parts.values())
    notes: list[Note] = [("arrays", shapes, f"{axes}, {why}")]
    known = known_of(features, others, "its number in the array", label)
    if label:
        known["label"] = (label, names_of[label])
    cells = int(np.prod(values[0].shape[1:], dtype=np.int64))

    def blocks(at: Callable[[int], Any]) -> Iterator[pa.Table]:
        done = 0
        for split, array in parts.items():
            low = 0
            for block in array.blocks(max(1, BLOCK_CELLS // max(1, cells))):
                block = block[:, :, None] if block.ndim == 2 else block
                block = block.swapaxes(1, 2) if axes == "NCT" else block
                block = default_values(block)
                ids = np.arange(done, done + len(block))
                yield long_block(ids, block, lengths_of(block), features, per_sequence[split].slice(low, len(block)))
                low, done = low + len(block), done + len(block)
                at(done)

    sources = list(dict.fromkeys(array.path for array in found))
    return LongTableSource(sources, notes, known, blocks, sum(array.shape[0] for array in values), "sequences")


def check_alike(values: list[Array], splits: list[str], path: Path) -> None:
    """Raises ValueError if an array is empty, or if only some of the arrays belong to a split."""
    if without := next((array for array in values if 0 in array.shape), None):
        raise ValueError(f"{without.name} has the shape {without.shape}, so it holds no number; give one that does")
    if len(splits) > 1 and "" in splits:
        shown = ", ".join(array.name for array in values)
        raise ValueError(
            f"{path.name} comes with {shown}, of which one has no split in its name, and may hold the others; give it "
            "alone (--alone), or only those called train and test"
        )


def default_values(values: np.ndarray) -> np.ndarray:
    """`values` in native byte order and in a type that a table supports."""
    kept = (np.dtype(kind) for kind in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64))
    return values if values.dtype in (*kept,) else values.astype(np.float64)


def stem_of(array: Array) -> str:
    return array.member.removesuffix(".npy") or array.path.stem


def axes_of(shape: tuple[int, ...], asked: str | None) -> tuple[str, str]:
    """The meaning of each axis: the longer of the last two is time."""
    if len(shape) == 2:
        return "NT", "one channel"
    if asked:
        return asked, "asked for"
    axes = "NCT" if shape[1] < shape[2] else "NTC"
    other = "NTC" if axes == "NCT" else "NCT"
    return axes, f"the longer of the last two is time (--axes {other} turns them)"


def columns_of(array: Array, split: str, named: Mapping[Array, tuple[str, str]]) -> tuple[pa.Table, dict[str, str]]:
    """A row per sequence of `array`: the cells of the other arrays of its split with one entry per sequence. Also
    returns the name of each column's array.
    """
    count, columns, names = array.shape[0], dict[str, pa.Array](), dict[str, str]()
    for other, (word, its_split) in named.items():
        if word in LABELS and len(other.shape) == 2 and other.shape[1] > 1:
            raise ValueError(
                "the labels have several columns; give one number each, e.g. y.argmax(axis=1) of one-hot labels"
            )
        if its_split != named[array][1]:
            continue
        if word in LABELS and other.shape[:1] != (count,):
            raise ValueError(
                f"{other.name} has the shape {other.shape} and {array.name} {array.shape}; give a label for each"
            )
        if other.shape in ((count,), (count, 1)) and other.dtype.kind in "fiubSUM":
            cells = other.whole().reshape(-1)
            cells = cells.astype(str) if cells.dtype.kind in "SU" else cells.astype(cells.dtype.newbyteorder("="))
            columns[word or "label"], names[word or "label"] = pa.array(cells), other.name
    if split:
        columns[SPLIT_COLUMN] = pa.array([split] * count)
        assert split in SPLITS
    return pa.table(columns), names
