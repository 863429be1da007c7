"""Split sequences into train, val and test: stratified by class, with all sequences of a group in the same split.

N sequences, T steps, F features, C classes, S = 3 splits.
"""

from collections.abc import Iterator

import numpy as np

from tandem.params.schema import Split

SPLITS = ("train", "val", "test")
# The order in which splits get sequences: train gets what the other two leave.
PLACING = ("test", "val", "train")
TRAIN = PLACING.index("train")
CHUNK_CELLS = 1 << 20  # cells per chunk, because a temporary of the whole array would need too much memory


def sizes_of(shares: Split, num_sequences: int) -> dict[str, int]:
    """Sizes from shares (rounded; the rest goes to train) or from counts, which must sum to `num_sequences`."""
    if shares.are_counts:
        if sum(shares.sizes) != num_sequences:
            raise ValueError(
                f"preprocess.split asks for {shares.train} + {shares.val} + {shares.test} = {sum(shares.sizes):g} "
                f"sequences and the data has {num_sequences}; make them equal, or give shares that add up to 1"
            )
        return {name: int(size) for name, size in zip(SPLITS, shares.sizes, strict=True)}
    test = round(shares.test * num_sequences)
    val = round((shares.val + shares.test) * num_sequences) - test
    return {"train": num_sequences - val - test, "val": val, "test": test}


def chunks(num: int, values: np.ndarray) -> Iterator[slice]:
    """Slices over `num` sequences with about CHUNK_CELLS cells of `values` (N, T, F) each."""
    size = max(1, CHUNK_CELLS // (values.shape[1] * values.shape[2]))
    return (slice(low, low + size) for low in range(0, num, size))


def duplicate_groups(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(N,) group numbers: equal for sequences of the same length with bitwise equal values (N, T, F).

    They compare by a 64-bit hash. Two different sequences collide once in 37 million tables of a million sequences; the
    only effect is that they stay in one split.
    """
    num_cells = values.shape[1] * values.shape[2]
    odd_factors = np.random.default_rng(0).integers(1, 2**63, size=num_cells, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    hashes = np.empty(len(values), dtype=np.uint64)
    for chunk in chunks(len(values), values):
        bits = np.ascontiguousarray(values[chunk]).reshape(-1, num_cells).view(np.uint32)
        hashes[chunk] = bits @ odd_factors
    hashes += (values.shape[1] - lengths).astype(np.uint64) * odd_factors[0]
    return np.unique(hashes, return_inverse=True)[1]


def stratified(
    indices: np.ndarray, labels: np.ndarray, groups: np.ndarray, sizes: dict[str, int], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Split the sequences `indices` into the given sizes, stratified by class. Groups of equal sequences stay whole.

    labels and groups (N,) are those of all sequences. Returns sorted indices by split.
    """
    classes, codes = np.unique(labels[indices], return_inverse=True)
    sizes_left = sizes_per_class(np.bincount(codes, minlength=len(classes)), sizes, generator)
    chosen = np.full(len(indices), -1)
    place_groups(chosen, sizes_left, codes, repeated_groups(groups[indices]), generator)
    place_singles(chosen, sizes_left, codes, generator)
    return {name: np.sort(indices[chosen == PLACING.index(name)]) for name in SPLITS}


def sizes_per_class(counts: np.ndarray, sizes: dict[str, int], generator: np.random.Generator) -> np.ndarray:
    """(S, C) sizes of the splits by class, in the order of PLACING, from the totals `counts` (C,)."""
    class_sizes, num_left = [], int(counts.sum())
    for name in ("test", "val"):
        class_sizes.append(proportional(counts, sizes[name], num_left, generator))
        counts, num_left = counts - class_sizes[-1], num_left - sizes[name]
    return np.stack([*class_sizes, counts])


def proportional(counts: np.ndarray, size: int, total: int, generator: np.random.Generator) -> np.ndarray:
    """Distribute `size` sequences over the classes (C,) in proportion to `counts`.

    Rounds down, then gives the rest to the largest remainders, in random order if they are equal.
    """
    quota = counts * (size / max(total, 1))
    class_sizes = np.floor(quota).astype(np.int64)
    by_remainder = np.lexsort((generator.random(len(counts)), -(quota - class_sizes).round(9)))
    class_sizes[by_remainder[: size - class_sizes.sum()]] += 1
    return class_sizes


def repeated_groups(groups: np.ndarray) -> list[np.ndarray]:
    """The members of every group with more than one member."""
    _, group, group_sizes = np.unique(groups, return_inverse=True, return_counts=True)
    members = np.flatnonzero(group_sizes[group] > 1)
    members_by_group = members[np.argsort(group[members], kind="stable")]
    return np.split(members_by_group, np.cumsum(group_sizes[group_sizes > 1])[:-1]) if len(members) else []


def merged_groups(*groupings: np.ndarray) -> np.ndarray:
    """(N,) group numbers: the smallest groups that contain all groups of all groupings (each (N,))."""
    group = np.arange(len(groupings[0]))
    while True:  # a group's smallest number spreads through it; one or two passes are enough for nested groups
        before = group
        for grouping in groupings:
            _, index = np.unique(grouping, return_inverse=True)
            least = np.full(index.max() + 1, len(group))
            np.minimum.at(least, index, group)
            group = least[index]
        if (group == before).all():
            return group


def grouped(
    indices: np.ndarray, labels: np.ndarray, groups: np.ndarray, sizes: dict[str, int], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Split the sequences `indices` into about the given sizes, keep each group of `groups` (N,) whole, and stratify as
    far as possible.

    The algorithm is greedy like scikit-learn's StratifiedGroupKFold: the groups with the most uneven classes come
    first, and each goes to the split that still needs most of its classes. No split stays empty. A class that occurs in
    only one group goes to train. Raises ValueError if there are fewer groups than splits. Returns sorted indices by
    split.
    """
    splits = [name for name in SPLITS if sizes[name]]
    _, group = np.unique(groups[indices], return_inverse=True)
    classes, class_of = np.unique(labels[indices], return_inverse=True)
    class_counts = np.zeros((group.max() + 1, len(classes)))  # (groups, C)
    np.add.at(class_counts, (group, class_of), 1)
    if len(class_counts) < len(splits):
        raise ValueError(f"its {len(class_counts)} groups are fewer than the {len(splits)} splits")
    shares = np.array([sizes[name] for name in splits]) / len(indices)
    num_missing = shares[:, None] * class_counts.sum(axis=0)  # (S, C)
    shuffled = generator.permutation(len(class_counts))
    unevenness = class_counts.std(axis=1) + class_counts.sum(axis=1) / len(indices)
    order = shuffled[np.argsort(-unevenness[shuffled], kind="stable")]
    is_alone = ((class_counts > 0) & ((class_counts > 0).sum(axis=0) == 1)).any(axis=1) & (len(classes) > 1)
    chosen, empty = np.zeros(len(class_counts), dtype=np.int64), set(range(len(splits)))
    totals = np.maximum(class_counts.sum(axis=0), 1)
    for num_left, index in zip(range(len(order), 0, -1), order, strict=True):
        class_shares = class_counts[index] / totals
        # Without the division, train would get every group.
        score = (num_missing / shares[:, None] ** 0.5) @ class_shares
        if num_left <= len(empty):
            score[[number for number in range(len(splits)) if number not in empty]] = -np.inf
        best = splits.index("train") if is_alone[index] and num_left > len(empty) else int(score.argmax())
        chosen[index] = best
        num_missing[best] -= class_counts[index]
        empty.discard(best)
    parts = {name: np.sort(indices[chosen[group] == splits.index(name)]) for name in splits}
    return {name: parts.get(name, np.zeros(0, dtype=np.int64)) for name in SPLITS}


def place_groups(
    chosen: np.ndarray,
    sizes_left: np.ndarray,
    codes: np.ndarray,
    groups: list[np.ndarray],
    generator: np.random.Generator,
) -> None:
    """Draw a split for each group, in proportion to what the splits still lack of it; train if no split has enough.

    Works in place: writes split numbers to `chosen` and subtracts the groups from `sizes_left` (S, C).
    `codes`: class of each sequence.
    """
    for index in generator.permutation(len(groups)):
        need = np.bincount(codes[groups[index]], minlength=sizes_left.shape[1])
        num_free = np.where((sizes_left >= need).all(axis=1), sizes_left[:, need > 0].sum(axis=1), 0)
        split = generator.choice(len(PLACING), p=num_free / num_free.sum()) if num_free.any() else TRAIN
        chosen[groups[index]] = split
        sizes_left[split] -= need


def place_singles(
    chosen: np.ndarray, sizes_left: np.ndarray, codes: np.ndarray, generator: np.random.Generator
) -> None:
    """Fill `sizes_left` with the sequences of each class that have no split yet, in random order. In place."""
    for label in range(sizes_left.shape[1]):
        singles = generator.permutation(np.flatnonzero((codes == label) & (chosen < 0)))
        # place_groups puts a group that fits nowhere into train. Then `sizes_left` and the sequences without a split
        # differ in number: train gets those that are too many.
        splits = np.repeat(np.arange(len(PLACING)), np.maximum(sizes_left[:, label], 0))[: len(singles)]
        chosen[singles] = TRAIN
        chosen[singles[: len(splits)]] = splits
