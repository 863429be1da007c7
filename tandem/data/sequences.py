"""The source `sequences`: converts a table of many sequences to padded, split and standardized arrays.

Input: the workload's table (workloads/README.md) and the params of a `sequences` source; or what a source of the
workload's own returns, a DataFrame or Arrays (`prepare_own`). Output: see tandem/data/__init__.py. Time and memory are
linear in the size of the data. No Python loop runs over sequences, except over duplicates when they are split.

R rows of the table, N sequences, T steps of the longest one, F features.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data import Arrays
from tandem.data.arrays import PreparedSequences, Sequences, make_features, prepared, standardize_values, with_velocity
from tandem.data.splits import SPLITS, duplicate_groups, grouped, joined, sizes_of, stratified
from tandem.data.tables import (
    LARGEST,
    SPLIT_COLUMN,
    SPLIT_WORDS,
    RawTable,
    check_wanted,
    factorize,
    find_table,
    from_frame,
    raise_if_any,
    read_numbers,
    read_table,
    sorted_with_rank,
)
from tandem.params.schema import NO_GROUPS, Columns, OwnSequences, SequenceTable

NO_EVENT = "none"  # the label of a step without an event; an empty cell means the same


def prepare(params: SequenceTable, folder: Path, per_step: bool, is_number: bool = False) -> PreparedSequences:
    """Read the table in `folder`, split it and standardize it.

    `per_step`: every step has its own label. `is_number`: a sequence's label is a number instead of a class.
    """
    path, columns = find_table(folder, params.table), params.columns
    texts = [columns.sequence] if is_number else [columns.sequence, columns.label]
    others = [columns.step, columns.label] if is_number else [columns.step]
    if params.groups != NO_GROUPS:
        texts.append(params.groups)
    table = read_table(path, texts, columns.features, others, params.na)
    sequences = from_table(table, columns, params, per_step, is_number)
    return split_and_standardize(sequences, params, table.name, len(columns.features), path, columns.label)


def prepare_own(
    params: OwnSequences, found: Any, place: str, per_step: bool, is_number: bool = False
) -> PreparedSequences:
    """Split and standardize what a source of the workload's own returned. `place`: its file and name, for messages."""
    if isinstance(found, Arrays):
        sequences, label = from_arrays(found, params, place, per_step, is_number), "labels"
    else:
        if params.columns is None:
            raise ValueError(
                f"{place} returns a DataFrame, and preprocess has no `columns`; add "
                "`columns: {sequence: sequence, step: step, features: [x, y], label: label}`, with its own names"
            )
        columns = params.columns
        wanted = [columns.sequence, columns.label, columns.step, *columns.features]
        if params.groups != NO_GROUPS:
            wanted.append(params.groups)
        table = from_frame(found, check_wanted(wanted), f"what {place} returns")
        if not len(found):
            raise ValueError(f"{place} returns a DataFrame with 0 rows; every split needs some")
        sequences, label = from_table(table, columns, params, per_step, is_number), columns.label
    num_features = len(sequences.features) // (2 if params.velocity else 1)
    return split_and_standardize(sequences, params, f"what {place} returns", num_features, None, label)


def raw_to_inputs(
    values: np.ndarray, mask: np.ndarray, params: SequenceTable | OwnSequences, summary: Mapping[str, Any]
) -> tuple[np.ndarray, None]:
    """values (N, T, F) as in the raw data, mask (N, T) -> values (N, T, F') as the network gets them, and None.

    `summary` is preprocess's summary.json. Raises ValueError if the values do not fit.
    """
    num_inputs = len(summary["features"])
    num_features = num_inputs // (2 if params.velocity else 1)
    if values.ndim != 3 or values.shape[2] != num_features or mask.shape != values.shape[:2]:
        raise ValueError(
            f"predict got values of shape {values.shape} and a mask of shape {mask.shape}; accepted: (N, T, "
            f"{num_features}) and (N, T)"
        )
    if values.shape[1] > summary["max_steps"]:
        raise ValueError(
            f"predict got sequences of {values.shape[1]} steps; the network was trained with up to "
            f"{summary['max_steps']}"
        )
    if params.missing != "interpolate" and np.isnan(values[mask]).any():
        raise ValueError("predict got values that are NaN; set preprocess.missing to interpolate, or fill them in")
    features, offsets = summary["features"], summary.get("offsets", {})
    found, _, _ = make_features(
        lambda index: values[:, :, index][mask],
        mask,
        num_features,
        params.velocity,
        params.missing == "interpolate",
        lambda index, cells: offsets.get(features[index], 0.0),
        lambda index, row: never_known("predict got values", str(row), features[index]),
    )
    standardize_values(found, ~mask, summary["mean"], summary["std"])
    return found, None


def from_table(
    table: RawTable, columns: Columns, params: SequenceTable | OwnSequences, per_step: bool, is_number: bool
) -> Sequences:
    allow_missing = params.missing == "interpolate"
    return to_sequences(table, columns, params.velocity, allow_missing, per_step, params.groups, is_number=is_number)


def split_and_standardize(
    sequences: Sequences,
    params: SequenceTable | OwnSequences,
    name: str,
    num_features: int,
    table: Path | None,
    label: str,
) -> PreparedSequences:
    """`num_features`: those of the data, which come before their velocities."""
    check_any_feature_changes(name, sequences, num_features)
    groups = duplicate_groups(sequences.values[:, :, :num_features], sequences.lengths)
    return prepared(sequences, groups, split(sequences, groups, params), table, label)


def to_sequences(
    table: RawTable,
    columns: Columns,
    velocity: bool,
    allow_missing: bool,
    per_step: bool,
    groups: str = NO_GROUPS,
    offsets: Mapping[str, float] | None = None,
    is_number: bool = False,
) -> Sequences:
    """Check the table and convert it to padded arrays. Sequences are ordered by id, and their rows by step.

    `velocity` appends each feature's difference to the previous step (`d<name>`, 0 at the first step). `allow_missing`:
    empty cells of features are interpolated. `per_step`: labels belong to steps, not to sequences. `groups`: the column
    whose values tell which sequences must stay in one split. `offsets`: the value to subtract from each feature before
    the cast to float32; None: `offset_of` chooses it. `is_number`: a sequence's label is a number. Removes the columns
    from `table`. Raises ValueError with the row's place in the file.
    """
    codes, ids = factorize(table, columns.sequence)
    step = read_numbers(table, columns.step)
    num_sequences = len(ids)
    lengths = np.bincount(codes, minlength=num_sequences).astype(np.int32)
    num_steps = int(lengths.max())
    if lengths.min() < 2:
        short = int(lengths.argmin())
        raise ValueError(
            f"{table.name}: sequence {str(ids[short])!r} has {lengths[short]} step; every sequence needs at least 2"
        )
    # Most tables are sorted. Then the rows need no index.
    same_sequence = codes[1:] == codes[:-1]
    is_sorted = bool(((codes[1:] > codes[:-1]) | (same_sequence & (step[1:] > step[:-1]))).all())
    order = None if is_sorted else np.lexsort((step, codes))
    if order is not None:
        step, sorted_codes = step[order], codes[order]
        same_sequence = sorted_codes[1:] == sorted_codes[:-1]
        repeats = np.flatnonzero(same_sequence & (step[1:] == step[:-1]))
        if len(repeats):
            row = repeats[order[repeats + 1].argmin()]
            places = table.places(order[row], order[row + 1])
            sequence = f"{columns.sequence} {ids[sorted_codes[row]]}"
            raise ValueError(f"{table.name}: {repeated_step(columns.step, sequence, places, len(repeats))}")
    del step, same_sequence
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])
    first_rows = starts if order is None else order[starts]

    is_real = np.arange(num_steps)[None, :] < lengths[:, None]  # (N, T)

    def pad(cells: np.ndarray) -> np.ndarray:
        """(R,) -> (N, T), zero after a sequence's end."""
        padded = np.zeros((num_sequences, num_steps), dtype=cells.dtype)
        padded[is_real] = cells if order is None else cells[order]
        return padded

    if per_step:
        row_labels, classes = event_labels(table, columns.label)
        labels = pad(row_labels)
    else:
        if is_number:
            row_labels, classes = read_numbers(table, columns.label).astype(np.float64), np.array([])
        else:
            row_labels, classes = factorize(table, columns.label)
            check_single_labels(table.name, columns.label, classes.astype(np.str_).tolist())
        labels = first_of_sequence(table, columns.label, row_labels, first_rows, codes)
    if alike := alike_labels(classes.tolist()):
        pairs = "; ".join(" and ".join(map(repr, labels)) for labels in alike)
        table.remarks.append(f"labels that differ only in case or white space: {pairs}")
    splits = read_splits(table, first_rows, codes) if SPLIT_COLUMN in table.columns else None
    group_ids = None
    if groups != NO_GROUPS:
        group_ids = first_of_sequence(table, groups, factorize(table, groups)[0], first_rows, codes)
    del codes, row_labels

    def read(index: int) -> np.ndarray:
        cells = read_numbers(table, columns.features[index], allow_missing)
        return cells if order is None else cells[order]

    def offset(index: int, cells: np.ndarray) -> float:
        return offset_of(cells) if offsets is None else offsets.get(columns.features[index], 0.0)

    values, num_filled, used = make_features(
        read,
        is_real,
        len(columns.features),
        velocity,
        allow_missing,
        offset,
        lambda index, row: never_known(table.name, str(ids[row]), columns.features[index]),
    )
    names = with_velocity(columns.features, velocity)
    used_offsets = {columns.features[index]: value for index, value in used.items()}
    labels, ids = labels.astype(np.float64 if is_number else np.int64), ids.astype(np.str_)
    named = tuple(classes.tolist())
    return Sequences(
        values, lengths, labels, ids, splits, named, names, num_filled, group_ids, used_offsets, table.report
    )


def repeated_step(step: str, sequence: str, places: str, num_repeats: int) -> str:
    more = f" ({num_repeats:,} repeated rows in all)" if num_repeats > 1 else ""
    return (
        f"{step!r} repeats in {sequence}, {places}{more}; remove or renumber the rows that should not be there, or "
        "name other columns for the sequence and the step"
    )


def from_arrays(arrays: Arrays, params: OwnSequences, place: str, per_step: bool, is_number: bool) -> Sequences:
    """Check the arrays of a source of the workload's own, and convert them. A ValueError begins with `place`."""
    if params.columns or params.groups != NO_GROUPS:
        key = "columns" if params.columns else "groups"
        more = "; return the groups in Arrays.groups" if key == "groups" else ""
        raise ValueError(f"preprocess has `{key}`, and {place} returns Arrays, which have no columns; remove it{more}")
    values = as_array(arrays.values, place, "values", "fiu", ("N", "T", "F"), {})
    num_sequences, num_steps, num_features = values.shape
    if 0 in values.shape or num_steps < 2:
        raise ValueError(f"{place} returns values of shape {values.shape}; it needs sequences of at least 2 steps")
    sizes = {"N": num_sequences, "T": num_steps}

    def rows(name: str, kinds: str = "iufbUSO", axes: tuple[str, ...] = ("N",)) -> np.ndarray:
        return as_array(getattr(arrays, name), place, name, kinds, axes, sizes)

    lengths = np.full(num_sequences, num_steps) if arrays.lengths is None else rows("lengths", "iu")
    if lengths.min() < 2 or lengths.max() > num_steps:
        wrong = lengths[(lengths < 2) | (lengths > num_steps)][0]
        raise ValueError(f"{place} returns the length {wrong}; accepted: 2 to {num_steps}, the number of steps")
    is_real = np.arange(num_steps)[None, :] < lengths[:, None]
    ids = np.arange(num_sequences).astype(np.str_) if arrays.ids is None else rows("ids").astype(np.str_)
    if len(np.unique(ids)) < num_sequences:
        raise ValueError(f"{place} returns an id twice in `ids`; every sequence needs its own")
    features = tuple(map(str, arrays.features)) or tuple(f"x{index}" for index in range(num_features))
    if len(features) != num_features or len(set(features)) < num_features:
        raise ValueError(
            f"{place} returns {len(set(features))} different names in `features` for {num_features} features"
        )
    allow_missing = params.missing == "interpolate"
    is_wrong = np.isinf(values) | (np.abs(values) > LARGEST) if allow_missing else ~(np.abs(values) <= LARGEST)
    if (is_wrong := is_wrong & is_real[:, :, None]).any():
        row, step, index = np.argwhere(is_wrong)[0]
        found, hint = values[row, step, index], ", or set preprocess.missing to interpolate"
        raise ValueError(
            f"{place} returns {found} for feature {features[index]!r} of sequence {str(ids[row])!r}, step {step}; "
            f"values must be finite{hint if np.isnan(found) else ''}"
        )
    labels, classes = labels_of(arrays, is_real, place, per_step, is_number, rows)
    splits = None if arrays.splits is None else rows("splits", "USO").astype(np.str_)
    if splits is not None and (unknown := set(splits.tolist()) - set(SPLITS)):
        raise ValueError(f"{place} returns {min(unknown)!r} in `splits`; accepted: train, val, test")
    filled, num_filled, used = make_features(
        lambda index: values[:, :, index][is_real],
        is_real,
        num_features,
        params.velocity,
        allow_missing,
        lambda index, cells: offset_of(cells),
        lambda index, row: never_known(f"what {place} returns", str(ids[row]), features[index]),
    )
    return Sequences(
        filled,
        lengths.astype(np.int32),
        labels,
        ids,
        splits,
        classes,
        with_velocity(features, params.velocity),
        num_filled,
        None if arrays.groups is None else np.unique(rows("groups"), return_inverse=True)[1],
        {features[index]: value for index, value in used.items()},
    )


def labels_of(
    arrays: Arrays,
    is_real: np.ndarray,
    place: str,
    per_step: bool,
    is_number: bool,
    rows: Callable[..., np.ndarray],
) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The labels (N,) or (N, T) of Arrays as class numbers (or numbers to predict), and the classes."""
    if is_number:
        numbers = rows("labels", "iuf").astype(np.float64)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{place} returns {numbers[~np.isfinite(numbers)][0]} in `labels`; they must be finite")
        return numbers, ()
    axes = ("N", "T") if per_step else ("N",)
    if classes := tuple(map(str, arrays.classes)):
        numbers = rows("labels", "iu", axes).astype(np.int64)
        used = numbers[is_real] if per_step else numbers
        if used.min() < 0 or used.max() >= len(classes):
            wrong = used[(used < 0) | (used >= len(classes))][0]
            raise ValueError(
                f"{place} returns the label {wrong}; accepted: 0 to {len(classes) - 1}, indices of `classes`"
            )
        return np.where(is_real, numbers, 0) if per_step else numbers, classes
    texts = rows("labels", "iubUSO", axes).astype(np.str_)
    if per_step:
        texts = np.where(is_real & (texts != ""), texts, NO_EVENT)
        is_event = (texts != NO_EVENT)[is_real]
        if is_event.all() or not is_event.any():
            raise ValueError(
                f"{place} returns {'an event in every step' if is_event.all() else 'no event at all'} in `labels`; "
                f"detect needs steps with an event and steps without one, whose label is '' or {NO_EVENT!r}"
            )
    distinct, codes = np.unique(texts, return_inverse=True)
    names, rank = sorted_with_rank(distinct)
    labels = rank[codes].reshape(texts.shape).astype(np.int64)
    if per_step:
        labels, names = without_event_first(labels, names)
    return labels, tuple(names.tolist())


def as_array(value: Any, place: str, name: str, kinds: str, axes: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    """Check the kind of the numbers and the shape of an array of Arrays."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # a list of lists of different lengths
        raise ValueError(f"{place} returns {name} that are no array: {error}") from None
    sizes_here = [sizes.get(axis) for axis in axes]
    if array.ndim != len(axes) or any(want not in (None, n) for want, n in zip(sizes_here, array.shape, strict=True)):
        shape = ", ".join(f"{axis} = {sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise ValueError(f"{place} returns {name} of shape {array.shape}; accepted: ({shape})")
    if array.dtype.kind not in kinds:
        accepted = {"iu": "whole numbers", "iuf": "numbers", "fiu": "numbers"}.get(kinds, "text or whole numbers")
        raise ValueError(f"{place} returns {name} of type {array.dtype}; accepted: {accepted}")
    return array


def never_known(name: str, sequence: str, feature: str) -> ValueError:
    return ValueError(
        f"{name}: sequence {sequence!r} has no value of {feature!r} at all; leave the sequence out, or give it one"
    )


def first_of_sequence(
    table: RawTable, column: str, cells: np.ndarray, first_rows: np.ndarray, codes: np.ndarray
) -> np.ndarray:
    """cells (R,), first_rows (N,), codes (R,) -> (N,). Raises ValueError if `cells` change within a sequence."""
    raise_if_any(table, cells != cells[first_rows][codes], f"column {column!r} changes within a sequence")
    return cells[first_rows]


def offset_of(numbers: np.ndarray) -> float:
    """Return what to subtract from a feature's numbers (R,) before the cast to float32: 0 or their minimum.

    It is the minimum if the standard deviation is below 1/4096 of the mean, e.g. for Unix times. Without the
    subtraction, half of the 24 bits of a float32 would store the part that all numbers have in common. The minimum does
    not depend on the order of the rows.
    """
    low, high = (float(limit) for limit in (np.fmin.reduce(numbers), np.fmax.reduce(numbers)))
    if numbers.dtype.itemsize < 8 or not (low > 0 or high < 0) or low == high:
        return 0.0
    return low if np.nanstd(numbers, dtype=np.float64) < abs(low + high) / 2 / 4096 else 0.0


def check_single_labels(name: str, column: str, classes: list[str]) -> None:
    """Raises ValueError if a label looks like several labels (`a|b`) and one of these is also a label elsewhere."""
    parts_of = {label: [part.strip() for part in re.split(r"[|;,]", label)] for label in classes}
    composed = {label: parts for label, parts in parts_of.items() if len(parts) > 1 and all(parts)}
    for label, parts in composed.items():
        others = {*classes, *(part for other in composed if other != label for part in composed[other])}
        if known := [part for part in parts if part in others]:
            raise ValueError(
                f"{name}: column {column!r} holds {label!r}, which looks like {len(parts)} labels ({known[0]!r} is one "
                "elsewhere), and a sequence has one; make a column of yes and no for each and a workload of each "
                "column, or write it without the sign between them if it is a class of its own"
            )


def alike_labels(labels: Sequence[Any]) -> list[list[str]]:
    """Those that differ only in case or white space."""
    groups: dict[str, list[str]] = {}
    for label in map(str, labels):
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def hint_of_alike(label: str, classes: Sequence[Any]) -> str:
    others = [each for group in alike_labels(classes) if label in group for each in group if each != label]
    return f" (it differs from {others[0]!r} only in case or white space)" if others else ""


def check_any_feature_changes(name: str, sequences: Sequences, num_features: int) -> None:
    values, first = sequences.values[:, :, :num_features], sequences.values[:1, :1, :num_features]
    if (values[0, : sequences.lengths[0]] != first[0]).any():
        return
    if ((values == first) | sequences.padding_mask[:, :, None]).all():
        raise ValueError(
            f"{name}: no feature ever changes ({', '.join(sequences.features[: min(num_features, 8)])}), so there is "
            "nothing to learn from; name other columns in preprocess.columns.features"
        )


def event_labels(table: RawTable, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (R,) and the classes (C,). NO_EVENT is the first class; an empty or MISSING cell means NO_EVENT."""
    codes, classes = factorize(table, column, empty=NO_EVENT)
    names = classes.astype(np.str_)
    if NO_EVENT not in names:
        raise ValueError(
            f"{table.name}: column {column!r} names an event in every row; detect needs steps without one, "
            f"whose cell is empty or {NO_EVENT!r}; for one label per sequence use task classify"
        )
    if len(names) < 2:
        raise ValueError(
            f"{table.name}: column {column!r} names no event at all; write its name into the rows where it happens"
        )
    return without_event_first(codes, names)


def without_event_first(codes: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(names != NO_EVENT, kind="stable")
    return np.argsort(order)[codes], names[order]  # argsort inverts a permutation


def read_splits(table: RawTable, first_rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return (N,) train, val or test from the table's split column. All rows of a sequence must have the same split."""
    cells, name = table.take(SPLIT_COLUMN), f"column {table.split!r}"
    texts = cells.cast(pa.string())
    words = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), pa.array([*SPLIT_WORDS]))
    if words.null_count:
        raise_if_any(table, pc.is_null(words).to_numpy(), f"{name} must be train, val or test", cells)
    indices = np.array([SPLITS.index(split) for split in SPLIT_WORDS.values()])[words.to_numpy()]
    written = sorted(pc.unique(texts).to_pylist())
    if table.split != SPLIT_COLUMN or not {*written} <= {*SPLITS}:
        table.remarks.append(f"{name} decides the split ({', '.join(map(repr, written))})")
    raise_if_any(table, indices != indices[first_rows][codes], f"{name} changes within a sequence", cells)
    return np.array(SPLITS)[indices[first_rows]]


def split(sequences: Sequences, duplicates: np.ndarray, params: SequenceTable | OwnSequences) -> dict[str, np.ndarray]:
    """Return the sorted sequence indices of train, val and test. duplicates (N,): equal for equal sequences.

    The data's own split takes precedence. If it has no val rows, val is drawn from its train rows. Without it, the
    split is random: see splits.stratified, and splits.grouped for `preprocess.groups`.
    """
    sizes = {}
    if params.split:
        sizes = sizes_of(params.split, len(sequences.ids))
    elif sequences.splits is None or "val" not in sequences.splits:
        missing = "split" if sequences.splits is None else "val rows in its split"
        raise ValueError(
            f"the data has no {missing}, and preprocess has no `split`; add "
            "`split: {train: 0.7, val: 0.15, test: 0.15}`"
        )
    generator = np.random.default_rng(params.seed)
    # Stratification needs a class per sequence. Sequences with a label per step or a number all get class 0.
    has_class = not (sequences.has_label_per_step or sequences.has_number)
    labels = sequences.labels if has_class else np.zeros(len(sequences.ids), dtype=np.int64)

    def split_rows(rows: np.ndarray, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        if sequences.groups is None:
            return stratified(rows, labels, duplicates, sizes, generator)
        try:
            return grouped(rows, labels, groups_with_duplicates(sequences.groups, duplicates), sizes, generator)
        except ValueError as error:
            raise ValueError(f"preprocess.groups is {params.groups!r}: {error}; name another column, or none") from None

    if sequences.splits is None:
        if has_class and sequences.groups is None:
            check_class_sizes(sequences, sum(size > 0 for size in sizes.values()))
        parts = split_rows(np.arange(len(sequences.ids)), sizes)
        check_no_split_is_empty(sequences, parts, sizes, duplicates)
    else:
        parts = {name: np.flatnonzero(sequences.splits == name) for name in SPLITS}
        for name in ("train", "test"):
            if len(parts[name]) == 0:
                raise ValueError(
                    f"the {'table' if params.table else 'data'}'s split column has no {name} rows; train and test are "
                    "needed (val is taken from train where it lacks)"
                )
        if len(parts["val"]) == 0:
            num = len(parts["train"])
            num_val = max(1, round(num * sizes["val"] / (sizes["train"] + sizes["val"])))
            train_and_val = {"test": 0, "val": num_val, "train": num - num_val}
            parts = {**split_rows(parts["train"], train_and_val), "test": parts["test"]}
    if not sequences.has_number:
        check_all_classes_in_train(sequences, parts)
    return parts


def groups_with_duplicates(groups: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
    """Return (N,) `groups` in which groups with equal sequences are merged.

    Returns `groups` unchanged if more than half of all sequences would then be in one group, e.g. because the
    recordings of all persons at rest are equal.
    """
    merged = joined(groups, duplicates)
    return groups if np.unique(merged, return_counts=True)[1].max() > len(groups) / 2 else merged


def check_no_split_is_empty(
    sequences: Sequences, parts: dict[str, np.ndarray], sizes: dict[str, int], duplicates: np.ndarray
) -> None:
    for name, rows in parts.items():
        if not len(rows):
            num, num_different = len(sequences.ids), len(np.unique(duplicates))
            raise ValueError(
                f"no sequence is left for {name}: its share is {sizes[name]} and of {num:,} only {num_different:,} "
                "differ, and equal ones stay in one split; give more different ones, or it a larger share in "
                "preprocess.split"
            )


def check_class_sizes(sequences: Sequences, num_splits: int) -> None:
    counts = np.bincount(sequences.labels, minlength=len(sequences.classes))
    if counts.min() < num_splits:
        smallest = int(counts.argmin())
        raise ValueError(
            f"class {sequences.classes[smallest]!r} has {counts[smallest]} sequences and {num_splits} splits want at "
            "least one each; add sequences of it, or leave the class out"
            f"{hint_of_alike(str(sequences.classes[smallest]), sequences.classes)}"
        )


def check_all_classes_in_train(sequences: Sequences, parts: dict[str, np.ndarray]) -> None:
    known = np.unique(sequences.labels[parts["train"]])
    for name in ("val", "test"):
        unseen = np.setdiff1d(sequences.labels[parts[name]], known)
        if len(unseen):
            raise ValueError(
                f"label {sequences.classes[unseen[0]]!r} occurs in {name} but not in train, so no model can learn it; "
                "move some of its sequences to train"
                f"{hint_of_alike(str(sequences.classes[unseen[0]]), sequences.classes)}"
            )
