"""Arrays of sequences: interpolation, differences, standardization, summary.

N sequences, T steps of the longest one, F features. values (N, T, F) are float32 and zero after a sequence's end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tandem.data.splits import SPLITS, chunks


@dataclass(frozen=True)
class Sequences:
    """The sequences of a table, or of a source of the workload's own."""

    values: np.ndarray  # (N, T, F) float32
    lengths: np.ndarray  # (N,) int32
    # (N,) int64, indices into `classes`; (N, T) if every step has a label; (N,) float64 if the labels are numbers
    labels: np.ndarray
    ids: np.ndarray  # (N,) text
    splits: np.ndarray | None  # (N,) text: the split that the data itself gives, if it does
    classes: tuple[Any, ...]
    features: tuple[str, ...]
    num_filled: int  # number of empty cells that were interpolated
    groups: np.ndarray | None = None  # (N,) equal for sequences that must stay in one split; None: no groups
    offsets: Mapping[str, float] = field(default_factory=dict)  # feature -> value subtracted before the cast to float32
    remarks: tuple[str, ...] = ()  # what was read in another way than the table has it
    stretches: np.ndarray | None = None  # (N,) text: if the sequences are windows, the stretch of each (windows.py)
    group_names: np.ndarray | None = None  # (N,) text: the values of the column of `groups`
    unit: str = ""  # what stays in one split, for messages: "stretch", "recording", or a column's name
    usual_step: float = 1.0  # the distance of two rows in the step column; seconds if that has times

    @property
    def has_label_per_step(self) -> bool:
        return self.labels.ndim == 2

    @property
    def has_number(self) -> bool:
        """Whether a sequence's label is a number instead of a class."""
        return self.labels.dtype.kind == "f"

    @property
    def padding_mask(self) -> np.ndarray:
        """(N, T) bool: True after a sequence's end."""
        return np.arange(self.values.shape[1])[None, :] >= self.lengths[:, None]

    @property
    def is_unseen(self) -> np.ndarray:
        """(N, F) bool: True for a feature that a sequence never has. Until `standardize` it is NaN in all its steps."""
        return np.isnan(self.values[:, 0])


@dataclass(frozen=True)
class PreparedSequences:
    """Standardized sequences and their splits (see tandem/data/__init__.py: Prepared)."""

    sequences: Sequences
    duplicates: np.ndarray  # (N,) equal for equal sequences
    parts: dict[str, np.ndarray]  # split -> sorted sequence indices
    mean: np.ndarray  # (F,) of the training split
    std: np.ndarray  # (F,)
    table: Path | None
    label_statistics: dict[str, Any] | None = None  # of numeric labels: name, and mean and std of the training split

    def arrays(self, split: str) -> dict[str, np.ndarray]:
        sequences, rows = self.sequences, self.parts[split]
        targets = sequences.labels[rows]
        if statistics := self.label_statistics:  # in float64: large numbers with small differences stay distinct
            targets = ((targets - statistics["mean"]) / statistics["std"]).astype(np.float32)
        optional = {
            "stretches": sequences.stretches,
            "groups": sequences.groups,
            "group_names": sequences.group_names,
        }
        return {
            "values": sequences.values[rows],
            "lengths": sequences.lengths[rows],
            "targets": targets,
            "ids": sequences.ids[rows],
            **{name: array[rows] for name, array in optional.items() if array is not None},
        }

    def num_per_class(self) -> dict[str, dict[str, int]]:
        """Split -> number of sequences per class, or of steps per class if every step has a label."""
        sequences, labels = self.sequences, self.sequences.labels
        classes = [str(name) for name in sequences.classes]
        is_real = ~sequences.padding_mask if sequences.has_label_per_step else np.ones(len(labels), dtype=bool)
        counts_per_split = {}
        for name, rows in self.parts.items():
            counts = np.bincount(labels[rows][is_real[rows]], minlength=len(classes))
            counts_per_split[name] = dict(zip(classes, counts.tolist(), strict=True))
        return counts_per_split

    @property
    def summary(self) -> dict[str, Any]:
        sequences, parts, labels = self.sequences, self.parts, self.sequences.labels
        num_sequences = len(labels)
        _, first, group = np.unique(self.duplicates, return_index=True, return_inverse=True)
        split = np.zeros(num_sequences, dtype=np.int8)
        for number, name in enumerate(SPLITS):
            split[parts[name]] = number
        group_fields = {}
        if (group_ids := sequences.groups) is not None:
            groups_per_split = {name: np.unique(group_ids[rows]) for name, rows in parts.items()}
            num_per_split = {name: len(groups) for name, groups in groups_per_split.items()}
            num_across = int((np.unique(np.concatenate([*groups_per_split.values()]), return_counts=True)[1] > 1).sum())
            group_fields = {"num_groups": num_per_split, "num_groups_across_splits": num_across}
        has_other_label = (labels != labels[first][group]).reshape(num_sequences, -1).any(axis=1)
        return {
            "num_sequences": num_sequences,
            "num_per_split": {name: len(rows) for name, rows in parts.items()},
            **({} if self.label_statistics else {"num_per_class": self.num_per_class()}),
            "num_duplicates": num_sequences - len(first),
            "num_duplicates_with_other_label": int(has_other_label.sum()),
            "num_filled": sequences.num_filled,
            "num_duplicates_across_splits": int((split != split[first][group]).sum()),
            **({"target": self.label_statistics} if self.label_statistics else {"classes": list(sequences.classes)}),
            "features": list(sequences.features),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "min_steps": int(sequences.lengths.min()),
            "max_steps": int(sequences.lengths.max()),
            **group_fields,
            **({"window_groups": sequences.unit} if sequences.unit else {}),
            **({"usual_step": sequences.usual_step} if sequences.usual_step != 1 else {}),
            **({"offsets": dict(sequences.offsets)} if sequences.offsets else {}),
            **({"remarks": list(sequences.remarks)} if sequences.remarks else {}),
        }

    @property
    def message(self) -> str:
        sequences, summary = self.sequences, self.summary
        counts = ", ".join(f"{name} {count:,}" for name, count in summary["num_per_split"].items())
        labels = f"{len(sequences.classes)} classes"
        if self.label_statistics:
            name, mean, std = (self.label_statistics[key] for key in ("name", "mean", "std"))
            labels = f"{name} {mean:,.6g} on average in train, deviation {std:,.4g}"
        message = f"{len(sequences.ids):,} sequences of up to {summary['max_steps']} steps, {labels}; {counts}"
        if summary["num_filled"]:
            message += f"; {summary['num_filled']:,} empty cells interpolated"
        for feature, offset in sequences.offsets.items():
            message += f"; {offset:.15g} taken off {feature}, whose changes a 32-bit float would lose"
        message += "".join(f"; {remark}" for remark in sequences.remarks)
        own_split = "the table's own split column" if self.table else "the data's own split"
        why = f"{own_split} leaves no other way" if sequences.splits is not None else "its groups say so"
        if "num_groups" in summary:
            message += f"; groups {', '.join(f'{name} {num:,}' for name, num in summary['num_groups'].items())}"
            if crossing := summary["num_groups_across_splits"]:
                message += f"\nwarning: {crossing} groups stand in more than one split, because {why}"
        if crossing := summary["num_duplicates_across_splits"]:
            message += f"\nwarning: {crossing} sequences of val and test also stand in another split, because {why}"
        return message


def target_statistics(name: str, numbers: np.ndarray) -> dict[str, Any]:
    """Name, mean and std of a numeric label. Raises ValueError if all `numbers` are equal (nothing to learn)."""
    mean, std = float(numbers.mean()), float(numbers.std())
    if not without_rounding(std, abs(mean)):
        raise ValueError(f"column {name!r} is {mean:g} in every training sequence; regress needs numbers that differ")
    return {"name": name, "mean": mean, "std": std}


def statistics_of(sequences: Sequences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) over the real steps of the sequences `rows`, without NaN; 0 for a constant."""
    num_features = len(sequences.features)
    num_steps, (mean, variance) = np.zeros(num_features, dtype=np.int64), np.zeros((2, num_features))
    after_end, is_unseen = sequences.padding_mask, sequences.is_unseen
    for index in range(num_features):
        num_steps[index] = max(1, sequences.lengths[rows[~is_unseen[rows, index]]].sum())
    for chunk in chunks(len(rows), sequences.values):  # padding is zero, so it does not change a sum
        mean += without_nan(sequences.values[rows[chunk]]).sum(axis=(0, 1), dtype=np.float64) / num_steps
    for chunk in chunks(len(rows), sequences.values):
        deviation = without_nan(sequences.values[rows[chunk]] - mean.astype(np.float32))
        deviation[after_end[rows[chunk]]] = 0.0
        variance += np.square(deviation).sum(axis=(0, 1), dtype=np.float64) / num_steps
    return mean, without_rounding(np.sqrt(variance), np.abs(mean))


def without_nan(array: np.ndarray) -> np.ndarray:
    """`array`, in which NaN is replaced by 0."""
    array[np.isnan(array)] = 0.0
    return array


def without_rounding(std: ArrayLike, size: ArrayLike) -> np.ndarray:
    """The deviation (F,), or 0 if it is only the rounding of numbers of this `size`: such a feature is constant."""
    return np.where(np.asarray(std) > 1e-12 * np.asarray(size), std, 0.0)


def divisors(std: ArrayLike) -> np.ndarray:
    """What standardization divides by (F,): the deviation; infinity if it is 0, so that a feature which is constant in
    train is 0 everywhere.
    """
    return np.where(np.asarray(std) == 0, np.inf, std)


def remarks_about_unseen(is_unseen: np.ndarray, features: tuple[str, ...]) -> tuple[str, ...]:
    """is_unseen (N, F)."""
    names = [features[index] for index in np.flatnonzero(is_unseen.any(axis=0))]
    num_unseen = int(is_unseen.any(axis=1).sum())
    remark = f"{num_unseen:,} of {len(is_unseen):,} sequences never have a value of {joined_names(names)}"
    return (f"{remark}; it is the mean of train there (0)",) if names else ()


def joined_names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if names[8:] else "")


def remarks_about_constants(features: Sequence[str], std: np.ndarray) -> tuple[str, ...]:
    names = [name for name, deviation in zip(features, std, strict=True) if deviation == 0]
    return (f"constant in train, so 0 in every split: {joined_names(names)}",) if names else ()


def standardize(values: np.ndarray, padding_mask: np.ndarray, mean: ArrayLike, std: ArrayLike) -> None:
    """Standardize values (N, T, F) in place. NaN becomes 0, the mean; the padding, where padding_mask (N, T) is true,
    stays 0.
    """
    mean, divisor = np.asarray(mean, dtype=np.float32), divisors(std).astype(np.float32)
    for chunk in chunks(len(values), values):
        part = values[chunk]
        part -= mean
        part /= divisor
        without_nan(part)
        part[padding_mask[chunk]] = 0.0


def make_features(
    read: Callable[[int], np.ndarray],
    is_real: np.ndarray,
    features: Sequence[str],
    velocity: bool,
    allow_missing: bool,
    offsets: Mapping[str, float] | None,
    times: np.ndarray | None = None,
) -> tuple[np.ndarray, int, dict[str, float]]:
    """Return values (N, T, F) float32, zero after a sequence's end, the number of filled cells, and the offsets.

    read(index) returns the cells (R,) of a feature at the R real steps, in the order of `is_real` (N, T). `velocity`
    appends each feature's difference to the previous step, 0 at the first step. `allow_missing`: NaN is interpolated,
    over `times` (N, T), the step column since a sequence's first row, if they are given; else over the rows. A feature
    that a sequence never has stays NaN in all its steps. `offsets`: the value to subtract from each feature before the
    cast to float32; None: `offset_of` chooses it.
    """
    num_features = len(features)
    values = np.zeros((*is_real.shape, num_features * (2 if velocity else 1)), dtype=np.float32)
    num_filled, used_offsets = 0, {}
    for index, feature in enumerate(features):
        cells = read(index)
        if offset := offset_of(cells, velocity) if offsets is None else offsets.get(feature, 0.0):
            used_offsets[feature] = offset
            cells = cells - (np.int64(offset) if cells.dtype == np.int64 else offset)  # int64: exact
        padded = np.zeros(is_real.shape, dtype=np.float32)
        padded[is_real] = cells.astype(np.float32, copy=False)
        without_any = np.zeros(0, dtype=np.int64)
        if allow_missing:
            filled, without_any = interpolate(padded, is_real, times)
            num_filled += filled
        values[:, :, index] = padded
        if velocity:
            # The difference between the padding and the last value is not a velocity.
            values[:, 1:, num_features + index] = np.where(is_real[:, 1:], padded[:, 1:] - padded[:, :-1], 0.0)
            values[without_any, 0, num_features + index] = np.nan
    return values, num_filled, used_offsets


def offset_of(numbers: np.ndarray, velocity: bool = False) -> float:
    """Return what to subtract from a feature's numbers (R,) before the cast to float32: 0 or their minimum.

    It is the minimum if the standard deviation is below 1/4096 of the mean, e.g. for Unix times; with `velocity`, also
    if the usual change from row to row is, e.g. for degrees on a map. Without the subtraction, half of the 24 bits of a
    float32 would store the part that all numbers have in common. The minimum does not depend on the order of the rows.
    """
    low, high = (float(limit) for limit in (np.fmin.reduce(numbers), np.fmax.reduce(numbers)))
    if numbers.dtype.itemsize < 8 or not (low > 0 or high < 0) or low == high:
        return 0.0
    least = abs(low + high) / 2 / 4096
    is_lost = bool(np.nanstd(numbers, dtype=np.float64) < least)
    if velocity and not is_lost:
        changes = np.abs(np.diff(numbers))
        changes = changes[changes > 0]
        is_lost = len(changes) > 0 and bool(np.median(changes) < least)
    return low if is_lost else 0.0


def interpolate(column: np.ndarray, is_real: np.ndarray, times: np.ndarray | None = None) -> tuple[int, np.ndarray]:
    """Interpolate NaN at the real steps of one feature's values (N, T) in place: linearly over `times` (N, T), or over
    the rows if they are None; at the ends with the nearest value.

    Returns the number of filled cells and the indices of sequences without any value.
    """
    num_steps = column.shape[1]
    steps = np.arange(num_steps)
    is_empty = np.isnan(column) & is_real
    rows = np.flatnonzero(is_empty.any(axis=1))
    is_known = ~is_empty[rows] & is_real[rows]
    has_any = is_known.any(axis=1)
    without_any, rows, is_known = rows[~has_any], rows[has_any], is_known[has_any]
    before = np.maximum.accumulate(np.where(is_known, steps, -1), axis=1)
    after = np.minimum.accumulate(np.where(is_known, steps, num_steps)[:, ::-1], axis=1)[:, ::-1]
    before, after = np.where(before < 0, after, before), np.where(after == num_steps, before, after)
    part, row = column[rows], np.arange(len(rows))[:, None]
    positions = np.broadcast_to(steps, column.shape)[rows] if times is None else times[rows]
    span = positions[row, after] - positions[row, before]
    weight = (positions - positions[row, before]) / np.where(span > 0, span, 1)
    filled = part[row, before] * (1 - weight) + part[row, after] * weight
    column[rows] = np.where(is_empty[rows], filled, part)
    return int(is_empty[rows].sum()), without_any
