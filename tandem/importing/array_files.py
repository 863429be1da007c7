"""Arrays of sequences: npy and npz, (N, T, C), (N, T), or (N, C, T), with labels (N,).

Both orders of three axes are usual: (N, T, C) in Keras and with MediaPipe, (N, C, T) in aeon and for convolutions.

N sequences, T steps, C channels. No pickle.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.data.tables import SPLIT_WORDS
from tandem.importing.long_table import Part, Source, as_long_table, real_steps
from tandem.importing.text_format import DAMAGED
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument
from tandem.terminal.messages import one_line

VALUES = "x data values samples signals sequences series features".split()
LABELS = "y label labels target targets class classes".split()
ENDS = "lengths length mask".split()  # the real steps of each sequence
FEW_CHANNELS, MANY_STEPS = 10, 4  # fewer than 10, and at least 4 times as many steps: nobody records the reverse


@dataclass(frozen=True)
class Array:
    """One array of a file."""

    path: Path
    name: str  # for messages
    word: str  # `x` of X_train
    split: str  # `train` of X_train; empty if the name contains none
    values: np.ndarray

    def __str__(self) -> str:
        return f"{self.name} {self.values.shape}"


def arrays_of(path: Path) -> list[Array]:
    """The arrays of `path`. Raises ValueError if the file is neither npy nor npz, or is damaged."""
    place = str(path)
    try:
        if not zipfile.is_zipfile(path):
            return [Array(path, path.name, *word_and_split(path.stem), np.lib.format.open_memmap(path, mode="r"))]
        arrays = []
        with np.load(path) as archive:
            for member in archive.files:
                place = f"{path}: {member}"
                if isinstance(values := archive[member], np.ndarray):
                    arrays.append(Array(path, f"{path.name}: {member}", *word_and_split(member), values))
        return arrays
    except (*DAMAGED, ValueError) as error:
        if re.search("python objects|object arrays", str(error), re.IGNORECASE):
            raise ValueError(
                f"{place} holds Python objects, which only pickle could read; save words with .astype(str), and "
                "sequences of different lengths as an array (N, T, C) with NaN after their ends"
            ) from None
        raise ValueError(f"{place} cannot be read as an array: {one_line(error)}; save it again") from None


def word_and_split(name: str) -> tuple[str, str]:
    """`X_train` -> ("x", "train")."""
    words = [word for word in re.split(r"[_\-. ]+|(?<=[Xxy])(?=[Tt]r|[Tt]e|[Vv]al)", name.lower()) if word]
    split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
    return "_".join(word for word in words if word not in SPLIT_WORDS), split


def open_arrays(path: Path, options: Mapping[str, Any], is_alone: bool) -> Source:
    """The arrays of `path`; for an npy, also those of the files next to it with matching names (X_train, y_train)."""
    arrays = arrays_with(path, options.get("labels"), is_alone)
    sequences = sequences_of(path, arrays)
    if len(sequences) == 1 and "labels" in options:  # they may be in a file of any name
        arrays = [
            replace(array, word=array.word if array.word in LABELS else "label", split=sequences[0].split)
            if array.path == Path(options["labels"])
            else array
            for array in arrays
        ]
    per_sequence = [columns_of(array, arrays) for array in sequences]
    names = [*per_sequence[0]]
    label = next((name for name in (*LABELS, *(name for name in names if len(name) == 1)) if name in names), None)
    if label is None and not {"label", "num_channels"} & {*options}:
        raise ValueError(
            f"{path} has no labels: put an array y (N,) into the npz, or y.npy beside it, or give --labels FILE; a "
            "series to forecast is a table with a column of times"
        )
    shape = sequences[0].values.shape
    shapes = [array.values.shape[1:] for array in sequences]
    axes, why = ("NT", "one channel") if len(shape) == 2 else axes_of(str(sequences[0]), shapes, "NTC NCT", options)
    num_channels = 1 if axes == "NT" else shape[axes.index("C")]
    for array in sequences:
        if axes != "NT" and array.values.shape[axes.index("C")] != num_channels:
            raise ValueError(
                f"{array} and {sequences[0]} have other channels as {axes}; give both the same, or turn them with "
                "--axes"
            )
    masks = [mask_of(array, arrays, array.values.shape[axes.index("T")]) for array in sequences]
    used = [*sequences, *(column for columns in per_sequence for column in columns.values())]
    unused = [array for array in arrays if array.word not in ENDS and not any(array is other for other in used)]
    notes = [("arrays", ", ".join(map(str, sequences)), f"{axes}, {why}")]
    if unused:
        notes.append(("not used", ", ".join(map(str, unused)), "neither one number per sequence nor its steps"))

    def read() -> Iterator[Part]:
        for array, columns, mask in zip(sequences, per_sequence, masks, strict=True):
            table = pa.table({name: label_cells(column.values) for name, column in columns.items()})
            values = as_plain_type(array.values)
            values = values[:, :, None] if values.ndim == 2 else values
            values = values.swapaxes(1, 2) if axes == "NCT" else values
            if mask is not None:
                values = np.where(mask[:, :, None], values, np.nan)
            lengths, cells = real_steps(values, array.name)
            yield Part(lengths, cells, table, array.split if len(sequences) > 1 else "")

    return as_long_table(
        list(dict.fromkeys(array.path for array in arrays)),
        notes,
        read,
        channel_names(num_channels),
        names,
        ids=(None, "the number of the sequence in the array"),
        choices={"label": (label, per_sequence[0][label].name)} if label else {},
    )


def channel_names(num_channels: int) -> list[str]:
    return ["value"] if num_channels == 1 else [f"c{number}" for number in range(num_channels)]


def arrays_with(path: Path, labels: Path | None, is_alone: bool) -> list[Array]:
    """The arrays of `path`, of the files next to it that belong to them, and of the file `labels`."""
    files, word = [path], word_and_split(path.stem)[0]
    if path.suffix.lower() == ".npy" and word in VALUES and not is_alone:
        neighbours = [file for file in sorted(path.parent.glob("*.npy")) if file != path]
        files += [file for file in neighbours if word_and_split(file.stem)[0] in (word, *LABELS, *ENDS)]
    arrays = [array for file in files for array in arrays_of(file)]
    if labels and labels.suffix.lower() in (".npy", ".npz"):
        arrays = [*(array for array in arrays if array.word not in LABELS), *arrays_of(labels)]
    return arrays


def sequences_of(path: Path, arrays: list[Array]) -> list[Array]:
    """The array of sequences, or one for each split. Raises ValueError if there is none, or if the splits do not tell
    the arrays apart.
    """
    numeric = [array for array in arrays if array.values.ndim >= 2 and array.values.dtype.kind in "fiub"]
    candidates = [array for array in numeric if array.word not in ENDS]
    sequences = [array for array in candidates if array.word in VALUES]
    sequences = sequences or [array for array in candidates if array.word not in LABELS][:1]
    shown = ", ".join(map(str, sequences or arrays)) or "nothing"
    if {array.values.ndim for array in sequences} not in ({2}, {3}):
        raise ValueError(
            f"{path} holds {shown}; accepted: numbers (N, T, C), (N, T) and (N, C, T), e.g. X.reshape(*X.shape[:2], -1)"
        )
    splits = {array.split for array in sequences}
    if len(splits) < len(sequences) or (len(splits) > 1 and "" in splits):
        raise ValueError(
            f"{path} comes with several arrays of sequences ({shown}), which may hold the same ones; keep one, or "
            "those called train and test (--alone reads one file)"
        )
    if empty := next((array for array in sequences if 0 in array.values.shape), None):
        raise ValueError(f"{empty} holds no number; give one that does")
    return sequences


def as_plain_type(values: np.ndarray) -> np.ndarray:
    """`values` in native byte order and in a type that a table supports."""
    plain_types = (np.dtype(kind) for kind in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64))
    return values if values.dtype in (*plain_types,) else values.astype(np.float64)


def axes_of(
    shown: str, shapes: Sequence[tuple[int, ...]], orders: str, options: Mapping[str, Any], usual: str = ""
) -> tuple[str, str]:
    """The order of two axes and the reason. `shapes`: of arrays in the same order; `orders`: the one with time first,
    and the other; `usual`: the order that is taken if it makes time the longer axis.

    Raises CommandError if both orders are possible.
    """
    (first, second), (time_first, channels_first) = shapes[0], orders.split()
    if requested := options.get("axes"):
        if requested not in orders.split():
            raise WrongArgument(f"--axes is {requested!r}; accepted for {shown}: {time_first}, {channels_first}")
        return requested, "as requested"
    num_channels = options.get("num_channels")
    if (first == num_channels) != (second == num_channels):
        return time_first if second == num_channels else channels_first, "by the number of the model's features"
    firsts, seconds = map(set, zip(*shapes, strict=True))
    if (len(firsts) > 1) != (len(seconds) > 1):
        return time_first if len(firsts) > 1 else channels_first, "the axis whose length varies is time"
    axes, swapped = (time_first, channels_first) if first > second else (channels_first, time_first)
    if axes == usual:
        return axes, "a row per step"
    if not usual and min(first, second) < FEW_CHANNELS and max(first, second) >= MANY_STEPS * min(first, second):
        return axes, f"the far longer of the two is time (--axes {swapped} swaps them)"
    raise CommandError(
        f"{shown} can be {first:,} steps of {second:,} channels or the reverse; give --axes {time_first} for {first:,} "
        f"steps or --axes {channels_first} for {second:,} steps",
        NO_ANSWER,
    )


def columns_of(array: Array, arrays: list[Array]) -> dict[str, Array]:
    """The arrays of its split with one entry per sequence of `array`, by the name of their column."""
    columns, count = dict[str, Array](), len(array.values)
    labels = [candidate for candidate in arrays if candidate.word in LABELS and candidate.split == array.split]
    if labels and not any(candidate.values.shape[:1] == (count,) for candidate in labels):  # others may be their names
        raise ValueError(f"{labels[0]} does not go with {array}; give a label for each")
    for candidate in arrays:
        if candidate.word in LABELS and candidate.values.ndim == 2 and candidate.values.shape[1] > 1:
            is_one_hot = np.isin(candidate.values, (0, 1)).all() and (candidate.values.sum(axis=1) == 1).all()
            example = "y.argmax(axis=1)" if is_one_hot else "y[:, 0]"
            raise ValueError(f"{candidate}: the labels have several columns; give one number each, e.g. {example}")
        if candidate.split != array.split or candidate.word in ENDS:
            continue
        if candidate.values.shape in ((count,), (count, 1)) and candidate.values.dtype.kind in "fiubSUM":
            columns[candidate.word or "label"] = candidate
    return columns


def mask_of(array: Array, arrays: list[Array], num_steps: int) -> np.ndarray | None:
    """(N, T) True at the real steps of `array`, by `lengths` (N,) or a mask (N, T) of its split; None without one."""
    count = len(array.values)
    for ends in (ends for ends in arrays if ends.word in ENDS and ends.split == array.split):
        values = ends.values
        if ends.word == "mask":
            if values.shape == (count, num_steps) and np.isin(values, (0, 1)).all() and values[:, 0].all():
                return values.astype(bool)
            accepted = f"({count}, {num_steps}) with 1 at the real steps, which come first, and 0 after the last one"
        else:
            if values.size == count and np.isin(values, np.arange(1, num_steps + 1)).all():
                return np.arange(num_steps) < values.reshape(-1, 1)
            accepted = f"({count},) with the number of real steps, from 1 to {num_steps}, of each sequence"
        raise ValueError(f"{ends} does not go with {array}; accepted: {accepted}; give it another name otherwise")
    return None


def label_cells(values: np.ndarray) -> pa.Array:
    """values (N,) or (N, 1) as cells of a table."""
    cells = np.asarray(values).reshape(-1)
    return pa.array(cells.astype(str) if cells.dtype.kind in "SU" else cells.astype(cells.dtype.newbyteorder("=")))
