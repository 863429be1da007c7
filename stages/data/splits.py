"""Which sequence belongs to which split: by class, seeded, equal sequences on one side; or as the table says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.data.tables import SPLIT_COLUMN, Table, refuse
from stages.params.schema import Split

if TYPE_CHECKING:
    from stages.data.sequences import Sequences

SPLITS = ("train", "val", "test")
CHUNK_CELLS = 1 << 20  # cells worked on at once where a whole-array temporary would cost memory


def split_words(table: Table, first: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(N,) train, val or test, as the table's own column says; it must say so in every row."""
    words = table.take(SPLIT_COLUMN)
    known = pc.index_in(words.cast(pa.string()), pa.array(SPLITS))
    if known.null_count:
        refuse(table, pc.is_null(known).to_numpy(), "column 'split' must be train, val or test", words)
    known = known.to_numpy()
    refuse(table, known != known[first][codes], "column 'split' changes within a sequence", words)
    return np.array(SPLITS)[known[first]]


def chunks(num: int, values: np.ndarray) -> Iterator[slice]:
    """Slices over `num` sequences, each of about CHUNK_CELLS cells of `values`."""
    size = max(1, CHUNK_CELLS // (values.shape[1] * values.shape[2]))
    return (slice(low, low + size) for low in range(0, num, size))


def duplicate_groups(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(N,) group numbers: equal for sequences of one length whose values (N, T, F) are equal bit for bit.

    A 64-bit hash decides. Two different sequences that collide (expected once in 37 million tables of a million sequences) would only be
    kept in one split.
    """
    num_cells = values.shape[1] * values.shape[2]
    odd = np.random.default_rng(0).integers(1, 2**63, size=num_cells, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.empty(len(values), dtype=np.uint64)
    for chunk in chunks(len(values), values):
        bits = np.ascontiguousarray(values[chunk]).reshape(-1, num_cells).view(np.uint32)
        hashes[chunk] = bits @ odd
    hashes += (values.shape[1] - lengths).astype(np.uint64) * odd[0]
    return np.unique(hashes, return_inverse=True)[1]


def split(sequences: Sequences, groups: np.ndarray, shares: Split, seed: int) -> dict[str, np.ndarray]:
    """Sorted row numbers of train, val and test.

    The table's own split column wins (a val split that it lacks is taken from its train rows). Else: stratified by class, seeded, of the
    sizes asked for, with equal sequences kept on one side.
    """
    sizes = sizes_of(shares, len(sequences.ids))
    draw = np.random.default_rng(seed)
    # Sequences with a label per step are all of one kind here.
    kinds = np.zeros(len(sequences.ids), dtype=np.int64) if sequences.has_label_per_step else sequences.labels
    if sequences.splits is None:
        if not sequences.has_label_per_step:
            check_class_sizes(sequences, sum(size > 0 for size in sizes.values()))
        parts = stratified(np.arange(len(sequences.ids)), kinds, groups, sizes, draw)
        check_no_class_is_new(sequences, parts)
        return parts
    parts = {name: np.flatnonzero(sequences.splits == name) for name in SPLITS}
    for name in ("train", "test"):
        if len(parts[name]) == 0:
            raise ValueError(
                f"the table's split column has no {name} rows; train and test are needed "
                "(val is taken from train where it lacks)"
            )
    if len(parts["val"]) == 0 and sizes["val"]:
        wanted = max(1, round(len(parts["train"]) * sizes["val"] / (sizes["train"] + sizes["val"])))
        inner = {"test": 0, "val": wanted, "train": len(parts["train"]) - wanted}
        parts = {**stratified(parts["train"], kinds, groups, inner, draw), "test": parts["test"]}
    check_no_class_is_new(sequences, parts)
    return parts


def check_no_class_is_new(sequences: Sequences, parts: dict[str, np.ndarray]) -> None:
    known = np.unique(sequences.labels[parts["train"]])
    for name in ("val", "test"):
        unseen = np.setdiff1d(sequences.labels[parts[name]], known)
        if len(unseen):
            raise ValueError(
                f"label {sequences.classes[unseen[0]]!r} occurs in {name} but not in train, so no model can learn it; "
                "move some of its sequences to train"
            )


def sizes_of(shares: Split, num_sequences: int) -> dict[str, int]:
    """Whole sizes from shares (rounded, the rest to train) or from counts (which must not exceed what is there)."""
    wanted = {"train": shares.train, "val": shares.val, "test": shares.test}
    if all(isinstance(size, int) for size in wanted.values()):
        if sum(wanted.values()) != num_sequences:
            raise ValueError(
                f"preprocess.split asks for {shares.train} + {shares.val} + {shares.test} = {sum(wanted.values()):g} sequences "
                f"and the table holds {num_sequences}; make them equal, or give shares that add up to 1"
            )
        return {name: int(size) for name, size in wanted.items()}
    test = round(shares.test * num_sequences)
    val = round((shares.val + shares.test) * num_sequences) - test
    return {"train": num_sequences - val - test, "val": val, "test": test}


def check_class_sizes(sequences: Sequences, num_splits: int) -> None:
    counts = np.bincount(sequences.labels, minlength=len(sequences.classes))
    if counts.min() < num_splits:
        smallest = int(counts.argmin())
        raise ValueError(
            f"class {sequences.classes[smallest]!r} has {counts[smallest]} sequences and {num_splits} splits want at least one each; "
            "add sequences of it, or leave the class out"
        )


def stratified(
    rows: np.ndarray, labels: np.ndarray, groups: np.ndarray, sizes: dict[str, int], draw: np.random.Generator
) -> dict[str, np.ndarray]:
    """Share `rows` out to splits of the given sizes, class by class in proportion, groups of equal sequences whole."""
    classes, own = np.unique(labels[rows], return_inverse=True)
    left = np.bincount(own, minlength=len(classes))
    open_places = {}  # split -> (C,) how many of each class it still takes
    num_left = len(rows)
    for name in ("test", "val"):
        open_places[name] = proportional(left, sizes[name], num_left, draw)
        left, num_left = left - open_places[name], num_left - sizes[name]
    open_places["train"] = left
    names = list(open_places)

    chosen = np.full(len(rows), -1)
    _, group, group_sizes = np.unique(groups[rows], return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(group_sizes[group] > 1)
    members = np.split(
        repeated[np.argsort(group[repeated], kind="stable")], np.cumsum(group_sizes[group_sizes > 1])[:-1]
    )
    for index in draw.permutation(len(members)) if len(repeated) else ():
        need = np.bincount(own[members[index]], minlength=len(classes))
        room = np.array(
            [np.where(need, open_places[name], 0).sum() if np.all(open_places[name] >= need) else 0 for name in names]
        )
        where = draw.choice(len(names), p=room / room.sum()) if room.any() else names.index("train")
        chosen[members[index]] = where
        open_places[names[where]] = open_places[names[where]] - need
    for label in range(len(classes)):
        single = draw.permutation(np.flatnonzero((own == label) & (chosen < 0)))
        places = np.repeat(np.arange(len(names)), [max(0, open_places[name][label]) for name in names])
        chosen[single] = np.concatenate([places, np.full(max(0, len(single) - len(places)), names.index("train"))])[
            : len(single)
        ]
    return {name: np.sort(rows[chosen == names.index(name)]) for name in SPLITS}


def proportional(counts: np.ndarray, size: int, total: int, draw: np.random.Generator) -> np.ndarray:
    """`size` places shared out over classes in proportion to `counts`: floors first, then the largest remainders, ties by lot."""
    quota = counts * (size / max(total, 1))
    places = np.floor(quota).astype(np.int64)
    by_remainder = np.lexsort((draw.random(len(counts)), -(quota - places).round(9)))
    places[by_remainder[: size - places.sum()]] += 1
    return places
