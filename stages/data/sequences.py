"""The source `sequences`: a table of many sequences as arrays, padded, with velocity, split and standardized.

In: the workload's table (data/raw/README.md) and the params of a `sequences` source. Out: see stages/data/__init__.py.
Time and memory are linear in the table. Nothing loops over sequences, except over repeated ones while they are split.

R rows of the table, N sequences, T steps of the longest one, F features.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.arrays import PreparedSequences, Sequences, interpolate, prepared
from stages.data.splits import SPLITS, duplicate_groups, grouped, joined, sizes_of, stratified
from stages.data.tables import SPLIT_COLUMN, Table, coded, find_table, numbers, read_table, refuse
from stages.params.schema import NO_GROUPS, Columns, SequenceTable

NO_EVENT = "none"  # the label of a step at which nothing happens; an empty cell means the same


def prepare(params: SequenceTable, folder: Path, per_step: bool, is_number: bool = False) -> PreparedSequences:
    """The table in `folder` as arrays, split and standardized.

    `per_step`: every step has a label of its own. `is_number`: a sequence's label is a number, not a class.
    """
    path, columns = find_table(folder, params.table), params.columns
    of_groups = () if params.groups == NO_GROUPS else (params.groups,)
    texts, others = ((), (columns.label,)) if is_number else ((columns.label,), ())
    table = read_table(path, (columns.sequence, *texts, *of_groups), columns.features, (columns.step, *others))
    allow_missing = params.missing == "interpolate"
    sequences = to_sequences(
        table, columns, params.velocity, allow_missing, per_step, params.groups, is_number=is_number
    )
    check_something_changes(table.name, sequences, columns)
    groups = duplicate_groups(sequences.values[:, :, : len(columns.features)], sequences.lengths)
    return prepared(sequences, groups, split(sequences, groups, params), path, columns.label)


def to_sequences(
    table: Table,
    columns: Columns,
    velocity: bool,
    allow_missing: bool,
    per_step: bool,
    groups: str = NO_GROUPS,
    offsets: Mapping[str, float] | None = None,
    is_number: bool = False,
) -> Sequences:
    """Check the long table and pack it: sequences in the order of their ids, steps in order.

    `velocity` appends each feature's difference from the step before (`d<name>`, 0 at the first step). `allow_missing`:
    empty cells of features are interpolated. `per_step`: labels belong to steps, not to sequences. `groups`: the column
    that says which sequences stay in one split. `offsets`: what to take off each feature before it becomes a 32-bit
    float (see offset_of); None finds it. `is_number`: a sequence's label is a number. Takes the columns out of `table`.
    Raises ValueError that names the row's place in the file.
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

    # (N, T) True where there is a cell; None: there is one everywhere.
    real = None if int(lengths.min()) == num_steps else np.arange(num_steps)[None, :] < lengths[:, None]

    def pack(cells: np.ndarray) -> np.ndarray:
        """(R,) -> (N, T), zero after a sequence's end."""
        cells = cells if order is None else cells[order]
        if real is None:
            return cells.reshape(num_sequences, num_steps)
        padded = np.zeros((num_sequences, num_steps), dtype=cells.dtype)
        padded[real] = cells
        return padded

    if per_step:
        labels, classes = event_labels(table, columns.label)
        labels = pack(labels)
    else:
        labels, classes = label_numbers(table, columns.label) if is_number else coded(table, columns.label)
        if not is_number:
            check_single_labels(table.name, columns.label, classes.astype(np.str_).tolist())
        refuse(table, labels != labels[first][codes], f"column {columns.label!r} changes within a sequence")
        labels = labels[first]
    splits = split_words(table, first, codes) if SPLIT_COLUMN in table.columns else None
    whole = None
    if groups != NO_GROUPS:
        of_rows, _ = coded(table, groups)
        refuse(table, of_rows != of_rows[first][codes], f"column {groups!r} changes within a sequence")
        whole = of_rows[first]
        del of_rows
    del codes

    num_features = len(columns.features)
    values = np.zeros((num_sequences, num_steps, num_features * (2 if velocity else 1)), dtype=np.float32)
    num_filled, taken_off = 0, {}
    for index, column in enumerate(columns.features):
        numbered = numbers(table, column, allow_missing)
        if offset := offset_of(numbered) if offsets is None else offsets.get(column, 0.0):
            taken_off[column] = offset
            numbered = numbered - offset
        padded = pack(numbered.astype(np.float32, copy=False))
        if allow_missing:
            padded = np.require(padded, requirements="W")  # Parquet's own float32 cells are read-only
            filled, without_any = interpolate(padded, lengths)
            if len(without_any):
                raise ValueError(
                    f"{table.name}: sequence {str(ids[without_any[0]])!r} has no value of {column!r} at all; "
                    "leave the sequence out, or give it one"
                )
            num_filled += filled
        values[:, :, index] = padded
        if velocity:
            difference = padded[:, 1:] - padded[:, :-1]
            # The step from the last value to the padding is no velocity.
            values[:, 1:, num_features + index] = difference if real is None else np.where(real[:, 1:], difference, 0.0)
    names = columns.features + (tuple(f"d{name}" for name in columns.features) if velocity else ())
    labels, ids = labels.astype(np.float64 if is_number else np.int64), ids.astype(np.str_)
    of_all = tuple(classes.tolist())
    return Sequences(values, lengths, labels, ids, splits, of_all, names, num_filled, whole, taken_off)


def offset_of(numbers: np.ndarray) -> float:
    """What to take off a feature's numbers (R,) before they become 32-bit floats: 0, or the lowest of them.

    Where their standard deviation is below 1/4096 of their mean, as of a Unix time, half of a 32-bit float's 24 bits
    would go into what all have in common. The lowest is the same for every order of the rows.
    """
    low, high = (float(limit) for limit in (np.fmin.reduce(numbers), np.fmax.reduce(numbers)))
    if numbers.dtype.itemsize < 8 or not (low > 0 or high < 0) or low == high:
        return 0.0
    return low if np.nanstd(numbers, dtype=np.float64) < abs(low + high) / 2 / 4096 else 0.0


def check_single_labels(name: str, column: str, classes: list[str]) -> None:
    """Raises ValueError where a label looks like two (`a|b`) and one of them is a label too."""
    apart = {label: [part.strip() for part in re.split(r"[|;,]", label)] for label in classes}
    together = {label: parts for label, parts in apart.items() if len(parts) > 1 and all(parts)}
    for label, parts in together.items():
        others = {*classes, *(part for other in together if other != label for part in apart[other])}
        if known := [part for part in parts if part in others]:
            raise ValueError(
                f"{name}: column {column!r} holds {label!r}, which looks like {len(parts)} labels ({known[0]!r} is one "
                "elsewhere), and a sequence has one; make a column of yes and no for each and a workload of each "
                "column, or write it without the sign between them if it is a class of its own"
            )


def check_something_changes(name: str, sequences: Sequences, columns: Columns) -> None:
    values, first = sequences.values[:, :, : len(columns.features)], sequences.values[:1, :1, : len(columns.features)]
    if (values[0, : sequences.lengths[0]] != first[0]).any():
        return
    if ((values == first) | sequences.padding_mask[:, :, None]).all():
        raise ValueError(
            f"{name}: no feature ever changes ({', '.join(columns.features[:8])}), so there is nothing to learn from; "
            "name other columns in preprocess.columns.features"
        )


def label_numbers(table: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(R,) float64, and no classes."""
    return numbers(table, column).astype(np.float64), np.array([], dtype=np.str_)


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
    order = np.argsort(names != NO_EVENT, kind="stable")
    return np.argsort(order)[codes], names[order]  # the inverse of a permutation is what sorts it


def split_words(table: Table, first: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(N,) train, val or test, as the table's own column says; it must say so in every row."""
    words = table.take(SPLIT_COLUMN)
    known = pc.index_in(words.cast(pa.string()), pa.array(SPLITS))
    if known.null_count:
        refuse(table, pc.is_null(known).to_numpy(), "column 'split' must be train, val or test", words)
    known = known.to_numpy()
    refuse(table, known != known[first][codes], "column 'split' changes within a sequence", words)
    return np.array(SPLITS)[known[first]]


def split(sequences: Sequences, duplicates: np.ndarray, params: SequenceTable) -> dict[str, np.ndarray]:
    """Sorted sequence numbers of train, val and test. duplicates (N,): equal for equal sequences.

    The table's own split column wins; a val split that it lacks is taken from its train rows. Without that column the
    split is drawn: see splits.stratified, and splits.grouped where a column says what stays together.
    """
    sizes = sizes_of(params.split, len(sequences.ids))
    draw = np.random.default_rng(params.seed)
    # A class per sequence; sequences with a label per step, or a number, are all of one class here.
    has_class = not (sequences.has_label_per_step or sequences.has_number)
    labels = sequences.labels if has_class else np.zeros(len(sequences.ids), dtype=np.int64)

    def share_out(rows: np.ndarray, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        if sequences.groups is None:
            return stratified(rows, labels, duplicates, sizes, draw)
        try:
            return grouped(rows, labels, joined_if_small(sequences.groups, duplicates), sizes, draw)
        except ValueError as error:
            raise ValueError(f"preprocess.groups is {params.groups!r}: {error}; name another column, or none") from None

    if sequences.splits is None:
        if has_class and sequences.groups is None:
            check_class_sizes(sequences, sum(size > 0 for size in sizes.values()))
        parts = share_out(np.arange(len(sequences.ids)), sizes)
        check_no_split_is_empty(sequences, parts, sizes, duplicates)
    else:
        parts = {name: np.flatnonzero(sequences.splits == name) for name in SPLITS}
        for name in ("train", "test"):
            if len(parts[name]) == 0:
                raise ValueError(
                    f"the table's split column has no {name} rows; train and test are needed "
                    "(val is taken from train where it lacks)"
                )
        if len(parts["val"]) == 0:
            num = len(parts["train"])
            num_val = max(1, round(num * sizes["val"] / (sizes["train"] + sizes["val"])))
            inner = {"test": 0, "val": num_val, "train": num - num_val}
            parts = {**share_out(parts["train"], inner), "test": parts["test"]}
    if not sequences.has_number:
        check_no_class_is_new(sequences, parts)
    return parts


def joined_if_small(groups: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
    """(N,) groups joined where they hold equal sequences, unless most would become one group: a person's rest may look
    like everybody's.
    """
    whole = joined(groups, duplicates)
    return groups if np.unique(whole, return_counts=True)[1].max() > len(groups) / 2 else whole


def check_no_split_is_empty(
    sequences: Sequences, parts: dict[str, np.ndarray], sizes: dict[str, int], duplicates: np.ndarray
) -> None:
    for name, rows in parts.items():
        if not len(rows):
            num, num_different = len(sequences.ids), len(np.unique(duplicates))
            why = (
                f"its share of {num:,} is {sizes[name]}; give more sequences, or it a larger share in preprocess.split"
            )
            if num_different < num:
                why = (
                    f"of {num:,} only {num_different:,} differ, and equal ones stay in one split; give more different "
                    "ones, or a larger share to it"
                )
            raise ValueError(f"no sequence is left for {name}: {why}")


def check_class_sizes(sequences: Sequences, num_splits: int) -> None:
    counts = np.bincount(sequences.labels, minlength=len(sequences.classes))
    if counts.min() < num_splits:
        smallest = int(counts.argmin())
        raise ValueError(
            f"class {sequences.classes[smallest]!r} has {counts[smallest]} sequences and {num_splits} splits want at "
            "least one each; add sequences of it, or leave the class out"
        )


def check_no_class_is_new(sequences: Sequences, parts: dict[str, np.ndarray]) -> None:
    known = np.unique(sequences.labels[parts["train"]])
    for name in ("val", "test"):
        unseen = np.setdiff1d(sequences.labels[parts[name]], known)
        if len(unseen):
            raise ValueError(
                f"label {sequences.classes[unseen[0]]!r} occurs in {name} but not in train, so no model can learn it; "
                "move some of its sequences to train"
            )
