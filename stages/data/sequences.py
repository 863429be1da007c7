"""A table of sequences as arrays: packed, split, with velocity, padded and standardized.

Time and memory are linear in the table. Nothing loops over sequences, except over repeated ones while they are split.

Shapes: R rows of the table, N sequences, T steps of the longest one, F features. values (N, T, F) float32, zero after a sequence's end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stages.data.splits import SPLITS, chunks, duplicate_groups, split, split_words
from stages.data.tables import SPLIT_COLUMN, Table, coded, numbers, read_table, refuse
from stages.files import replacing, sha256_file
from stages.params.schema import Columns, Rally, SequenceTable

NO_EVENT = "none"  # the label of a step at which nothing happens; an empty cell means the same


@dataclass(frozen=True)
class Sequences:
    """A whole table as arrays; sequences are in the order of their ids."""

    values: np.ndarray  # (N, T, F) float32
    lengths: np.ndarray  # (N,) int32
    labels: np.ndarray  # (N,) int64, indices into classes; (N, T) where every step has one
    ids: np.ndarray  # (N,) text
    splits: np.ndarray | None  # (N,) text, where the table says itself
    classes: tuple[Any, ...]
    features: tuple[str, ...]
    num_filled: int  # cells that were empty and are interpolated

    @property
    def has_label_per_step(self) -> bool:
        return self.labels.ndim == 2


@dataclass(frozen=True)
class Prepared:
    """What one table and one block of params come to: everything that is written, before it is written."""

    sequences: Sequences  # standardized, with velocity where asked for
    groups: np.ndarray  # (N,) equal for equal sequences
    parts: dict[str, np.ndarray]  # split -> sorted sequence numbers
    mean: np.ndarray  # (F,) of the training split
    std: np.ndarray  # (F,)


def prepare(path: Path, params: SequenceTable, per_step: bool) -> Prepared:
    """The table at `path` as arrays, split and standardized; nothing is written. `per_step`: every step has a label of its own."""
    columns = params.columns
    table = read_table(path, (columns.sequence, columns.label), columns.features, (columns.step,))
    sequences = to_sequences(table, columns, params.velocity, params.missing == "interpolate", per_step)
    groups = duplicate_groups(sequences.values[:, :, : len(columns.features)], sequences.lengths)
    return standardized(sequences, groups, split(sequences, groups, params.split, params.seed))


def simulate(params: Rally) -> Prepared:
    """Simulated rallies, split and standardized."""
    counts = [int(params.split.train), int(params.split.val), int(params.split.test)]
    sequences = from_rallies(params, sum(counts))
    numbers = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    return standardized(sequences, np.arange(sum(counts)), dict(zip(SPLITS, numbers, strict=True)))


def from_rallies(params: Rally, num_sequences: int) -> Sequences:
    """Simulated rallies as if read from a table in which the ball's place is empty, to be interpolated, where it was not seen."""
    from stages.data import rally

    values, labels = rally.simulate(
        num_sequences, params.num_steps, params.seed, params.noise, params.missed, params.occlusion
    )
    hidden = values[:, :, rally.FEATURES.index("visible")] == 0
    values[hidden, :2] = np.nan
    num_filled = interpolate(
        values[:, :, :2], complaint=lambda row: f"rally {row} is never seen; lower preprocess.missed"
    )
    return Sequences(
        values,
        np.full(num_sequences, params.num_steps, dtype=np.int32),
        labels,
        np.arange(num_sequences).astype(np.str_),
        None,
        rally.EVENTS,
        rally.FEATURES,
        num_filled,
    )


def standardized(sequences: Sequences, groups: np.ndarray, parts: dict[str, np.ndarray]) -> Prepared:
    mean, std = statistics_of(sequences, parts["train"])
    standardize(sequences, mean, std)
    return Prepared(sequences, groups, parts, mean, std)


def to_sequences(table: Table, columns: Columns, velocity: bool, allow_missing: bool, per_step: bool) -> Sequences:
    """Check the long table and pack it, with each feature's difference from the step before (`d<name>`, 0 at the first step) if asked for.

    `may_lack`: empty cells of features are interpolated. `per_step`: labels belong to steps, not to sequences.
    Every complaint names the place of the row in the file. Takes the columns out of `table`.
    """
    codes, ids = coded(table, columns.sequence)
    step = numbers(table, columns.step)
    num_sequences = len(ids)
    lengths = np.bincount(codes, minlength=num_sequences).astype(np.int32)
    num_steps = int(lengths.max())
    if lengths.min() < 2:
        short = int(lengths.argmin())
        raise ValueError(
            f"{table.name}: sequence {str(ids[short])!r} has {lengths[short]} step; every sequence needs at least 2"
        )
    # Rows that come in order, as they usually do, need no index into them.
    follows = codes[1:] == codes[:-1]
    in_place = bool(((codes[1:] > codes[:-1]) | (follows & (step[1:] > step[:-1]))).all())
    order = None if in_place else np.lexsort((step, codes))
    if order is not None:
        step, ordered = step[order], codes[order]
        follows = ordered[1:] == ordered[:-1]
        twice = np.zeros(len(codes), dtype=bool)
        twice[order[1:]] = follows & (step[1:] == step[:-1])
        refuse(table, twice, f"the same {columns.sequence} and {columns.step} stand in an earlier row")
    del step, follows
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])
    first = starts if order is None else order[starts]

    real = None if int(lengths.min()) == num_steps else np.arange(num_steps)[None, :] < lengths[:, None]

    def pack(cells: np.ndarray) -> np.ndarray:
        return packed(cells if order is None else cells[order], num_sequences, num_steps, real)

    if per_step:
        labels, classes = event_labels(table, columns.label)
        labels = pack(labels)
    else:
        labels, classes = coded(table, columns.label)
        refuse(table, labels != labels[first][codes], f"column {columns.label!r} changes within a sequence")
        labels = labels[first]
    splits = None
    if SPLIT_COLUMN in table.columns:
        splits = split_words(table, first, codes)
    del codes

    num_features = len(columns.features)
    values = np.zeros((num_sequences, num_steps, num_features * (2 if velocity else 1)), dtype=np.float32)
    num_filled = 0
    for index, column in enumerate(columns.features):
        padded = pack(numbers(table, column, allow_missing).astype(np.float32, copy=False))
        if allow_missing:
            num_filled += interpolate(padded[:, :, None], lengths, partial(nothing_there, table.name, ids, column))
        values[:, :, index] = padded
        if velocity:
            difference = padded[:, 1:] - padded[:, :-1]
            # The step from the last value to the padding is no velocity.
            values[:, 1:, num_features + index] = difference if real is None else np.where(real[:, 1:], difference, 0.0)
    names = columns.features + (tuple(f"d{name}" for name in columns.features) if velocity else ())
    return Sequences(
        values,
        lengths,
        labels.astype(np.int64),
        ids.astype(np.str_),
        splits,
        tuple(classes.tolist()),
        names,
        num_filled,
    )


def nothing_there(table: str, ids: np.ndarray, column: str, row: int) -> str:
    return (
        f"{table}: sequence {str(ids[row])!r} has no value of {column!r} at all; leave the sequence out, or give it one"
    )


def packed(cells: np.ndarray, num_sequences: int, num_steps: int, real: np.ndarray | None) -> np.ndarray:
    """Ordered cells (R,) -> (N, T), zero after a sequence's end. `real` (N, T): where there are cells; None: everywhere."""
    if real is None:
        return cells.reshape(num_sequences, num_steps)
    padded = np.zeros((num_sequences, num_steps), dtype=cells.dtype)
    padded[real] = cells
    return padded


def event_labels(table: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(R,) codes and the classes, NO_EVENT first; an empty cell means it."""
    codes, found = coded(table, column, empty=NO_EVENT)
    names = found.astype(np.str_)
    if NO_EVENT not in names:
        raise ValueError(
            f"{table.name}: column {column!r} names an event in every row; detect needs steps without one, "
            f"whose cell is empty or {NO_EVENT!r}; for one label per sequence use task classify"
        )
    if len(names) < 2:
        raise ValueError(
            f"{table.name}: column {column!r} names no event at all; write its name into the rows where it happens"
        )
    number = int(np.flatnonzero(names == NO_EVENT)[0])
    order = np.concatenate([[number], np.delete(np.arange(len(names)), number)])
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank[codes], names[order]


def interpolate(values: np.ndarray, lengths: np.ndarray | None = None, complaint: Callable[[int], str] = str) -> int:
    """Fill NaN in values (N, T, F) in place, linearly between the neighbours in the sequence, at its ends with the nearest.

    Returns how many were filled.

    Raises ValueError with `complaint(row)` for a sequence that has no value of a feature.
    """
    num_steps = values.shape[1]
    steps = np.arange(num_steps)
    real = steps[None, :] < (np.full(len(values), num_steps) if lengths is None else lengths)[:, None]
    num_filled = 0
    for index in range(values.shape[2]):
        column = values[:, :, index]
        empty = np.isnan(column) & real
        rows = np.flatnonzero(empty.any(axis=1))
        if not len(rows):
            continue
        there = ~empty[rows] & real[rows]
        if not there.any(axis=1).all():
            raise ValueError(complaint(int(rows[(~there.any(axis=1)).argmax()])))
        before = np.maximum.accumulate(np.where(there, steps, -1), axis=1)
        after = np.minimum.accumulate(np.where(there, steps, num_steps)[:, ::-1], axis=1)[:, ::-1]
        before, after = np.where(before < 0, after, before), np.where(after == num_steps, before, after)
        part, each = column[rows], np.arange(len(rows))[:, None]
        weight = (steps - before) / np.maximum(after - before, 1)
        filled = part[each, before] * (1 - weight) + part[each, after] * weight
        column[rows] = np.where(empty[rows], filled, part)
        num_filled += int(empty.sum())
    return num_filled


def padding(sequences: Sequences) -> np.ndarray:
    """(N, T) bool: True after a sequence's end."""
    return np.arange(sequences.values.shape[1])[None, :] >= sequences.lengths[:, None]


def statistics_of(sequences: Sequences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) over the real steps of `rows` (the training split); a feature that never changes gets 1."""
    num_steps = int(sequences.lengths[rows].sum())
    mean = np.zeros(len(sequences.features))
    variance = np.zeros(len(sequences.features))
    after = padding(sequences)
    for chunk in chunks(len(rows), sequences.values):  # padding is zero: it adds nothing to a sum
        mean += sequences.values[rows[chunk]].sum(axis=(0, 1), dtype=np.float64) / num_steps
    for chunk in chunks(len(rows), sequences.values):
        deviation = sequences.values[rows[chunk]] - mean.astype(np.float32)
        deviation[after[rows[chunk]]] = 0.0
        variance += np.square(deviation).sum(axis=(0, 1), dtype=np.float64) / num_steps
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-12 * np.maximum(1.0, np.abs(mean)), std, 1.0)


def standardize(sequences: Sequences, mean: ArrayLike, std: ArrayLike) -> None:
    """In place; the padding stays zero."""
    after, mean, std = padding(sequences), np.asarray(mean), np.asarray(std)
    for chunk in chunks(len(sequences.values), sequences.values):
        values = sequences.values[chunk]
        values -= mean.astype(np.float32)
        values /= std.astype(np.float32)
        values[after[chunk]] = 0.0


def write_arrays(folder: Path, prepared: Prepared) -> dict[str, str]:
    """Write the arrays of every split; return their sha256 by path relative to `folder`."""
    sequences = prepared.sequences
    digests: dict[str, str] = {}
    for name, rows in prepared.parts.items():
        arrays = {
            "values": sequences.values[rows],
            "lengths": sequences.lengths[rows],
            "targets": sequences.labels[rows],
            "ids": sequences.ids[rows],
        }
        digests |= write_split(folder, name, arrays)
    return digests


def write_split(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Write the arrays of one split; return their sha256 by path relative to `folder`."""
    digests = {}
    for array_name, array in arrays.items():
        path = folder / name / f"{array_name}.npy"
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        digests[f"{name}/{array_name}.npy"] = sha256_file(path)
    return digests


def summarize(prepared: Prepared) -> dict[str, Any]:
    sequences, groups, parts = prepared.sequences, prepared.groups, prepared.parts
    after = padding(sequences)
    counts = {}
    for name, rows in parts.items():
        labels = sequences.labels[rows][~after[rows]] if sequences.has_label_per_step else sequences.labels[rows]
        counts[name] = np.bincount(labels, minlength=len(sequences.classes))
    _, first, group, group_sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    side = np.zeros(len(groups), dtype=np.int8)
    for number, name in enumerate(SPLITS):
        side[parts[name]] = number
    other = sequences.labels != sequences.labels[first][group]
    return {
        "num_sequences": len(sequences.ids),
        "num_per_split": {name: len(rows) for name, rows in parts.items()},
        "num_per_class": {
            name: {str(label): int(count) for label, count in zip(sequences.classes, counts[name], strict=True)}
            for name in parts
        },
        "num_duplicates": int(len(groups) - len(group_sizes)),
        "num_duplicates_with_other_label": int((other.any(axis=1) if sequences.has_label_per_step else other).sum()),
        "num_filled": sequences.num_filled,
        "num_duplicates_across_splits": int((side != side[first][group]).sum()),
        "classes": list(sequences.classes),
        "features": list(sequences.features),
        "mean": prepared.mean.tolist(),
        "std": prepared.std.tolist(),
        "min_steps": int(sequences.lengths.min()),
        "max_steps": int(sequences.lengths.max()),
    }


def describe(summary: dict[str, Any]) -> str:
    counts = ", ".join(f"{name} {count:,}" for name, count in summary["num_per_split"].items())
    message = f"{summary['num_sequences']:,} sequences of up to {summary['max_steps']} steps, {len(summary['classes'])} classes; {counts}"
    if summary["num_filled"]:
        message += f"; {summary['num_filled']:,} empty cells interpolated"
    if crossing := summary["num_duplicates_across_splits"]:
        message += (
            f"\nwarning: {crossing} sequences of val and test also stand in another split, "
            "because the table's own split column says so"
        )
    return message
