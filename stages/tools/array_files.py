"""Arrays of sequences: npy and npz, (N, T, C), (N, T), or (N, C, T), with labels (N,).

N sequences, T steps, C channels. An npy is mapped into memory and read in blocks; an npz is read whole. No pickle.
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stages.data.tables import SPLIT_COLUMN
from stages.params.parsing import one_line
from stages.tools.long_table import BLOCK_CELLS, LongTableSource, known_of, lengths_of, long_block, unique
from stages.tools.text_tables import DAMAGED, Note

VALUES = "x data values samples signals sequences series features".split()
LABELS = "y label labels target targets class classes".split()
SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test"}


@dataclass(frozen=True)
class Array:
    """One array of a file."""

    path: Path
    name: str  # for messages
    word: str  # `x` of X_train
    split: str  # `train` of X_train; empty if the name contains none
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def is_label(self) -> bool:
        return self.word in LABELS


def arrays_of(path: Path) -> list[Array]:
    """The arrays of `path`. Raises ValueError if the file is neither npy nor npz, or is damaged."""
    name = path.name
    try:
        if not zipfile.is_zipfile(path):
            return [Array(path, name, *word_and_split(path.stem), np.lib.format.open_memmap(path, mode="r"))]
        found = []
        with np.load(path) as archive:
            for member in archive.files:
                name = f"{path.name}: {member}"
                if isinstance(values := archive[member], np.ndarray):
                    found.append(Array(path, name, *word_and_split(member), values))
        return found
    except (*DAMAGED, RuntimeError, ValueError) as error:  # an encrypted npz raises RuntimeError
        if re.search("python objects|object arrays", str(error), re.IGNORECASE):
            raise ValueError(
                f"{name} holds Python objects, which only pickle could read; save words with .astype(str), and "
                "sequences of different lengths as an array (N, T, C) with NaN after their ends"
            ) from None
        raise ValueError(f"{name} cannot be read as an array: {one_line(error)}; save it again") from None


def word_and_split(name: str) -> tuple[str, str]:
    """`X_train` -> ("x", "train")."""
    words = [word for word in re.split(r"[_\-. ]+|(?<=[Xxy])(?=[Tt]r|[Tt]e|[Vv]al)", name.lower()) if word]
    split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
    return "_".join(word for word in words if word not in SPLIT_WORDS), split


def open_arrays(path: Path, options: Mapping[str, Any], is_alone: bool) -> LongTableSource:
    """The arrays of `path`; for an npy, also those of the files next to it with matching names (X_train, y_train)."""
    found = arrays_with(path, options.get("labels"), is_alone)
    many = [array for array in found if len(array.shape) >= 2 and array.values.dtype.kind in "fiub"]
    sequences = [array for array in many if array.word in VALUES]
    sequences = sequences or [array for array in many if not array.is_label][:1]
    if not sequences:
        shown = ", ".join(f"{array.name} {array.shape}" for array in found) or "nothing"
        raise ValueError(f"{path.name} holds {shown}; sequences are an array of numbers (N, T, C) or (N, T)")
    check_sequences(path, sequences)
    if len(sequences) == 1 and "labels" in options:  # they may be in a file of any name
        found = [
            replace(array, word=array.word if array.is_label else "label", split=sequences[0].split)
            if array.path == Path(options["labels"])
            else array
            for array in found
        ]
    per_sequence, names_of = list[pa.Table](), dict[str, str]()
    for array in reversed(sequences):  # the messages name the arrays of the first split
        table, names_of = columns_of(array, found, with_split=len(sequences) > 1)
        per_sequence.insert(0, table)
    others = per_sequence[0].column_names
    for array, table in zip(sequences, per_sequence, strict=True):
        if odd := sorted({*table.column_names} ^ {*others}):
            have, lack = (array, sequences[0]) if odd[0] in table.column_names else (sequences[0], array)
            raise ValueError(
                f"{path.name} has {odd[0]} for {have.name} and none for {lack.name}; give it for both, "
                "or one of the two alone"
            )
    label = next((name for name in LABELS if name in others), None)
    label = label or next((name for name in others if len(name) == 1), None)
    if label is None and "label" not in options:
        raise ValueError(
            f"{path.name} has no labels: put an array y (N,) into the npz, or y.npy beside it, or give --labels FILE"
        )
    shape = sequences[0].shape
    axes, why = axes_of(shape, options.get("axes"))
    channels = 1 if len(axes) == 2 else shape[axes.index("C")]
    if odd_one := next((a for a in sequences if len(axes) == 3 and a.shape[axes.index("C")] != channels), None):
        raise ValueError(
            f"{odd_one.name} has the shape {odd_one.shape} and {sequences[0].name} {shape}; as {axes} these are "
            "other channels; give both the same, or turn them with --axes"
        )
    features = [unique("value" if channels == 1 else f"c{number}", others) for number in range(channels)]
    shapes = ", ".join(f"{array.name} {array.shape}" for array in sequences)
    notes: list[Note] = [("arrays", shapes, f"{axes}, {why}")]
    known = known_of(features, others, "the number of the sequence in the array", label)
    if label:
        known["label"] = (label, names_of[label])
    num_rows = max(1, BLOCK_CELLS // max(1, int(np.prod(shape[1:], dtype=np.int64))))

    def blocks(at: Callable[[int], Any]) -> Iterator[pa.Table]:
        done = 0
        for array, table in zip(sequences, per_sequence, strict=True):
            for low in range(0, array.shape[0], num_rows):
                block = as_plain_type(array.values[low : low + num_rows])
                block = block[:, :, None] if block.ndim == 2 else block
                block = block.swapaxes(1, 2) if axes == "NCT" else block
                ids = np.arange(done, done + len(block))
                yield long_block(ids, block, lengths_of(block), features, table.slice(low, len(block)))
                done += len(block)
                at(done)

    sources = list(dict.fromkeys(array.path for array in found))
    return LongTableSource(sources, notes, known, blocks, sum(array.shape[0] for array in sequences), "sequences")


def arrays_with(path: Path, labels: Path | None, is_alone: bool) -> list[Array]:
    """The arrays of `path`, of the files next to it that belong to them, and of the file `labels`."""
    files, word = [path], word_and_split(path.stem)[0]
    if path.suffix.lower() == ".npy" and word in VALUES and not is_alone:
        beside = [other for other in sorted(path.parent.glob("*.npy")) if other != path]
        files += [other for other in beside if word_and_split(other.stem)[0] in (word, *LABELS)]
    found = [array for file in files for array in arrays_of(file)]
    if labels and labels.suffix.lower() in (".npy", ".npz"):
        found = [*(array for array in found if not array.is_label), *arrays_of(labels)]
    return found


def check_sequences(path: Path, sequences: list[Array]) -> None:
    """Raises ValueError if an array has too many axes or no number, or if the splits do not tell the arrays apart."""
    first, splits = sequences[0], {array.split for array in sequences}
    if len({len(array.shape) for array in sequences}) > 1 or len(first.shape) > 3:
        raise ValueError(f"{first.name} has the shape {first.shape}; accepted: (N, T, C), (N, T) and (N, C, T)")
    shown = ", ".join(array.name for array in sequences)
    if len(splits) < len(sequences):
        raise ValueError(f"{path.name} holds several arrays of sequences ({shown}); keep one")
    if empty := next((array for array in sequences if 0 in array.shape), None):
        raise ValueError(f"{empty.name} has the shape {empty.shape}, so it holds no number; give one that does")
    if len(splits) > 1 and "" in splits:
        raise ValueError(
            f"{path.name} comes with {shown}, of which one has no split in its name, and may hold the others; give it "
            "alone (--alone), or only those called train and test"
        )


def as_plain_type(values: np.ndarray) -> np.ndarray:
    """`values` in native byte order and in a type that a table supports."""
    kept = (np.dtype(kind) for kind in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64))
    return values if values.dtype in (*kept,) else values.astype(np.float64)


def axes_of(shape: tuple[int, ...], asked: str | None) -> tuple[str, str]:
    """The meaning of each axis: the longer of the last two is time."""
    if len(shape) == 2:
        return "NT", "one channel"
    if asked:
        return asked, "as requested"
    axes = "NCT" if shape[1] < shape[2] else "NTC"
    other = "NTC" if axes == "NCT" else "NCT"
    return axes, f"the longer of the last two is time (--axes {other} swaps them)"


def columns_of(array: Array, found: list[Array], with_split: bool) -> tuple[pa.Table, dict[str, str]]:
    """A row per sequence of `array`: the cells of the other arrays of its split with one entry per sequence. Also
    returns the name of each column's array.
    """
    count, columns, names = array.shape[0], dict[str, pa.Array](), dict[str, str]()
    for other in found:
        if other.is_label and len(other.shape) == 2 and other.shape[1] > 1:
            raise ValueError(
                "the labels have several columns; give one number each, e.g. y.argmax(axis=1) of one-hot labels"
            )
        if other.split != array.split:
            continue
        if other.is_label and other.shape[:1] != (count,):
            raise ValueError(
                f"{other.name} has the shape {other.shape} and {array.name} {array.shape}; give a label for each"
            )
        cells = np.asarray(other.values)
        if other.shape in ((count,), (count, 1)) and cells.dtype.kind in "fiubSUM":
            cells = cells.reshape(-1)
            cells = cells.astype(str) if cells.dtype.kind in "SU" else cells.astype(cells.dtype.newbyteorder("="))
            columns[other.word or "label"], names[other.word or "label"] = pa.array(cells), other.name
    if with_split:
        columns[SPLIT_COLUMN] = pa.array([array.split] * count)
    return pa.table(columns), names
