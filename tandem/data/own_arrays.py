"""What a source of the workload's own returns as Arrays -> the rows of a table, which tandem/data/rows.py checks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.data import Arrays
from tandem.data.arrays import Sequences
from tandem.data.rows import find_masked, to_sequences
from tandem.data.tables import SPLIT_COLUMN, RawTable
from tandem.params.schema import NO_GROUPS, Columns, OwnSequences, SequenceTable

GROUPS = "Arrays.groups"


def from_arrays(arrays: Arrays, params: SequenceTable | OwnSequences, place: str, target_kind: str) -> Sequences:
    """Check the arrays of a source of the workload's own, and convert them. A ValueError begins with `place`."""
    table_keys = {"columns": params.columns, "na": params.na, "categories": params.categories, "rate": params.rate}
    if key := next((name for name, value in table_keys.items() if value), "groups" * (params.groups != NO_GROUPS)):
        hint = "; return the groups in Arrays.groups" if key == "groups" else ""
        raise ValueError(f"preprocess has `{key}`, and {place} returns Arrays, which have no columns; remove it{hint}")
    values = checked_array(arrays.values, place, "values", "iuf", {"N": None, "T": None, "F": None})
    num_sequences, num_steps, num_features = values.shape
    if 0 in values.shape or num_steps < 2:
        raise ValueError(f"{place} returns values of shape {values.shape}; it needs sequences of at least 2 steps")
    per_sequence = {"N": num_sequences}

    def read(name: str, kinds: str = "iufbUSO", sizes: dict[str, int | None] = per_sequence) -> np.ndarray:
        return checked_array(getattr(arrays, name), place, name, kinds, sizes)

    lengths = np.full(num_sequences, num_steps) if arrays.lengths is None else read("lengths", "iu")
    if lengths.min() < 2 or lengths.max() > num_steps:
        wrong = lengths[(lengths < 2) | (lengths > num_steps)][0]
        raise ValueError(f"{place} returns the length {wrong}; accepted: 2 to {num_steps}, the number of steps")
    ids = np.arange(num_sequences) if arrays.ids is None else read("ids")
    if (without_id := is_missing(ids)).any():
        raise ValueError(f"{place} returns no id for sequence {without_id.argmax()} (from 0) in `ids`; give it one")
    ids = ids.astype(np.str_)
    if len(np.unique(ids)) < num_sequences:
        raise ValueError(f"{place} returns an id twice in `ids`; every sequence needs its own")
    features = names(arrays, "features", place) or tuple(f"x{index}" for index in range(num_features))
    if len(features) != num_features or len(set(features)) < num_features:
        raise ValueError(
            f"{place} returns {len(set(features))} different names in `features` for {num_features} features"
        )
    if SPLIT_COLUMN in features:
        raise ValueError(f"{place} returns the feature {SPLIT_COLUMN!r}, a name for train, val or test; rename it")
    sequence, step = np.nonzero(np.arange(num_steps)[None, :] < lengths[:, None])  # (R,)
    classes = names(arrays, "classes", place) if target_kind != "number" else ()
    sizes = per_sequence | ({"T": num_steps} if target_kind == "class per step" else {})
    labels = read("labels", "iuf" if target_kind == "number" else "iu" if classes else "iubUSO", sizes)
    labels = labels[sequence, step] if target_kind == "class per step" else labels[sequence]
    if classes and (labels.min() < 0 or labels.max() >= len(classes)):
        wrong = labels[(labels < 0) | (labels >= len(classes))][0]
        raise ValueError(f"{place} returns the label {wrong}; accepted: 0 to {len(classes) - 1}, indices of `classes`")
    columns = Columns("Arrays.ids", "step in Arrays", features, "Arrays.labels")  # no feature has these names
    cells = {columns.sequence: pa.array(sequence), columns.step: pa.array(step), columns.label: as_cells(labels)}
    if arrays.splits is not None:
        cells[SPLIT_COLUMN] = as_cells(read("splits", "USO")[sequence])
    if arrays.groups is not None:
        cells[GROUPS] = as_cells(read("groups")[sequence])
    cells |= {name: as_cells(values[sequence, step, index]) for index, name in enumerate(features)}
    table = RawTable(
        f"what {place} returns",
        {name: pa.chunked_array([column]) for name, column in cells.items()},
        lambda row: f"sequence {str(ids[sequence[row]])!r}, step {step[row]}",
        split=SPLIT_COLUMN,
    )
    del cells
    groups = NO_GROUPS if arrays.groups is None else GROUPS
    masked = find_masked(table, features, params.missing)
    return to_sequences(table, columns, params, target_kind, groups, ids=ids, classes=classes, masked=masked)


def names(arrays: Arrays, field: str, place: str) -> tuple[str, ...]:
    """The names in a field of Arrays. Raises ValueError for one text, whose letters would each be a name."""
    value = getattr(arrays, field)
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{place} returns {value!r} as {field}; accepted: a list of names")
    return tuple(map(str, value))


def checked_array(value: Any, place: str, name: str, kinds: str, sizes: dict[str, int | None]) -> np.ndarray:
    """An array of Arrays. Raises ValueError unless its kind is one of `kinds` and its axes have the given sizes (None:
    any).
    """
    try:
        array = np.asarray(value)
    except ValueError as error:  # a list of lists of different lengths
        raise ValueError(f"{place} returns {name} that are no array: {error}") from None
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray):
        array = np.asarray(value, dtype=object)  # NumPy made the text "nan" of a NaN among the texts of a list
    is_wrong = (required not in (None, size) for required, size in zip(sizes.values(), array.shape, strict=False))
    if array.ndim != len(sizes) or any(is_wrong):
        shape = ", ".join(f"{axis} = {size}" if size else axis for axis, size in sizes.items())
        raise ValueError(f"{place} returns {name} of shape {array.shape}; accepted: ({shape})")
    if array.dtype.kind not in kinds:
        accepted = {"iu": "whole numbers", "iuf": "numbers"}.get(kinds, "text or whole numbers")
        raise ValueError(f"{place} returns {name} of type {array.dtype}; accepted: {accepted}")
    return array


def as_cells(array: np.ndarray) -> pa.Array:
    """Numbers as numbers in the machine's byte order, everything else as text; a missing value is an empty cell, as in
    a table. Arrow's float16 has no functions.
    """
    if array.dtype.kind not in "iuf":
        return pa.array(array.astype(np.str_), mask=is_missing(array)).dictionary_encode()
    kind = np.dtype(np.float32) if array.dtype == np.float16 else array.dtype.newbyteorder("=")
    return pa.array(array.astype(kind, copy=False))


def is_missing(array: np.ndarray) -> np.ndarray:
    """Whether a value is NaN, or None or another mark of a missing value."""
    if array.dtype.kind != "O":
        return array != array
    import pandas  # takes 0.3 s, and numbers do not need it

    return pandas.isna(array)
