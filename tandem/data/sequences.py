"""The source `sequences`: converts a table of many sequences to padded, split and standardized arrays.

Input: the workload's table (workloads/README.md) and the params of a `sequences` source; or what a source of the
workload's own returns, a DataFrame or Arrays. Output: see tandem/data/__init__.py. Time and memory are linear in the
size of the data.

N sequences, T steps of the longest one, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tandem.data import Arrays, windows
from tandem.data.arrays import (
    PreparedSequences,
    Sequences,
    joined_names,
    make_features,
    remarks_about_constants,
    remarks_about_unseen,
    standardize,
    statistics_of,
    target_statistics,
    without_rounding,
)
from tandem.data.own_arrays import from_arrays
from tandem.data.rows import MASK, REFUSE, SEEN, find_masked, to_sequences, with_categories
from tandem.data.splits import SPLITS, duplicate_groups, grouped, merged_groups, sizes_of, stratified
from tandem.data.tables import RawTable, open_table
from tandem.params.schema import NO_GROUPS, Columns, OwnSequences, SequenceTable, columns_of

# A larger share of copies among the sequences makes intervals too narrow. In simulations of random labels, a test made
# 3% false claims without copies, 13% with one copy of each sequence, and 48% with seven.
MAX_COPIES = 0.2
FEW_NEXT = 0.05  # share of the events, in the row after the same one, that may be two
OMIT = "omit"


def prepare(params: SequenceTable | OwnSequences, source: Any, target_kind: str) -> PreparedSequences:
    """Split and standardize the table in the folder `source`, or what a source of the workload's own returned."""
    columns, place = params.columns, params.component.place if params.component else ""
    if isinstance(source, Arrays):
        sequences = from_arrays(source, params, place, target_kind)
        return split_and_standardize(sequences, params, f"what {place} returns", None, "labels")
    if columns is None:
        raise ValueError(
            f"{place} returns a DataFrame, and preprocess has no `columns`; add "
            "`columns: {sequence: sequence, step: step, features: [x, y], label: label}`, with its own names"
        )
    texts, inferred = [columns.sequence], [columns.step]
    (inferred if target_kind == "number" else texts).append(columns.label)
    if params.groups != NO_GROUPS:
        texts.append(params.groups)
    if params.window:  # the column of the groups may also be that of the recordings
        texts = [*dict.fromkeys(column for column in texts if column != NO_GROUPS)]
    texts += [column for column in columns_of(params.categories) if column not in texts]
    table, path = open_table(params, source, texts, columns.features, inferred)
    sequences = read_sequences(table, columns, params, target_kind)
    return split_and_standardize(sequences, params, table.name, path, columns.label)


def read_sequences(
    table: RawTable,
    columns: Columns,
    params: SequenceTable | OwnSequences,
    target_kind: str = "class",
    trained: Mapping[str, Any] | None = None,
) -> Sequences:
    """As rows.to_sequences; the windows of recordings if `params` has a window. `trained`: of a prediction, whose table
    has no labels, what preprocess learned from the training data: its features and offsets.
    """
    columns = with_categories(table, columns, params.categories)
    if trained is None:
        masked, offsets, groups = find_masked(table, columns.features, params.missing), None, params.groups
    else:
        masked = masked_of(without_velocities(trained["features"], params.velocity), params.missing)
        offsets, groups = trained.get("offsets", {}), NO_GROUPS
    if not params.window:
        return to_sequences(table, columns, params, target_kind, groups, offsets, masked=masked)
    return windows.cut(table, columns, params, groups, offsets, masked, is_labelled=trained is None)


def split_and_standardize(
    sequences: Sequences, params: SequenceTable | OwnSequences, name: str, table: Path | None, label: str
) -> PreparedSequences:
    """Split `sequences`, and standardize them in place by the training split's statistics. `label`: the
    name of a numeric label.
    """
    rare = find_rare(sequences, params)
    if params.rare_classes == OMIT and rare:
        sequences, rare = without_classes(sequences, rare), []
    num_features = len(without_velocities(sequences.features, params.velocity))
    check_any_feature_changes(name, sequences, num_features)
    duplicates = duplicate_groups(sequences.values[:, :, :num_features], sequences.lengths)
    parts = split(sequences, duplicates, params, rare)
    remarks = [*sequences.remarks]
    if not (rare or sequences.has_label_per_step or sequences.has_number):
        remarks += unscored_labels(sequences, parts["test"])
    if sequences.has_label_per_step:
        remarks += remarks_about_long_events(sequences)
    if rare:
        names = joined_names([str(sequences.classes[code]) for code in rare])
        remarks.append(
            f"no score covers the classes with fewer than {len(SPLITS)} sequences, which are in train: {names}"
        )
    num_copies, num_all = len(duplicates) - len(np.unique(duplicates)), len(duplicates)
    if sequences.groups is None and num_copies > MAX_COPIES * num_all:
        remarks.append(
            f"{num_copies:,} of {num_all:,} sequences are copies; an interval of a score counts equal ones as one group"
        )
        sequences = replace(sequences, groups=duplicates, group_names=duplicates.astype(np.str_))
    mean, std = statistics_of(sequences, parts["train"])
    remarks += remarks_about_unseen(sequences.is_unseen[:, :num_features], sequences.features[:num_features])
    standardize(sequences.values, sequences.padding_mask, mean, std)
    remarks += remarks_about_constants(sequences.features, std)
    sequences = replace(sequences, remarks=tuple(remarks))
    label_statistics = None
    if sequences.has_number:
        label_statistics = target_statistics(label, sequences.labels[parts["train"]])
        check_numbers_of_test(label, sequences.labels[parts["test"]])
    return PreparedSequences(sequences, duplicates, parts, mean, std, table, label_statistics)


def remarks_about_long_events(sequences: Sequences) -> tuple[str, ...]:
    """An event is one row; of several rows, a detection of the event can find one."""
    is_event = (sequences.labels > 0) & ~sequences.padding_mask
    is_next = is_event[:, 1:] & (sequences.labels[:, 1:] == sequences.labels[:, :-1])
    num_events, num_next = int(is_event.sum()), int(is_next.sum())
    if num_next <= FEW_NEXT * num_events:
        return ()
    return (
        f"{num_next:,} of {num_events:,} rows with an event follow a row with the same one, and the score counts each "
        "row as an event to find; keep the first row of each event",
    )


def raw_to_inputs(
    values: np.ndarray, mask: np.ndarray, params: SequenceTable | OwnSequences, summary: Mapping[str, Any]
) -> tuple[np.ndarray, None]:
    """values (N, T, F) as in the raw data, mask (N, T) -> values (N, T, F') as the network gets them, and None.

    `summary` is preprocess's summary.json. Raises ValueError if the values do not fit.
    """
    features = [*without_velocities(summary["features"], params.velocity)]
    masked = masked_of(features, params.missing)
    num_features = len(features) - len(masked)
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
    if params.missing == REFUSE and np.isnan(values[mask]).any():
        raise ValueError("predict got values that are NaN; set preprocess.missing to interpolate, or fill them in")

    def read(index: int) -> np.ndarray:
        if index < num_features:
            return values[:, :, index][mask]
        return (~np.isnan(values[:, :, features.index(masked[index - num_features])][mask])).astype(np.float32)

    offsets = summary.get("offsets", {})
    inputs, _, _ = make_features(read, mask, features, params.velocity, params.missing != REFUSE, offsets)
    standardize(inputs, ~mask, summary["mean"], summary["std"])
    return inputs, None


def without_velocities(features: Sequence[str], velocity: bool) -> Sequence[str]:
    return features[: len(features) // 2] if velocity else features


def masked_of(features: Sequence[str], missing: str) -> tuple[str, ...]:
    """The argument `masked` of to_sequences that led to `features`, which have no velocities."""
    return tuple(name.removesuffix(SEEN) for name in features if missing == MASK and name.endswith(SEEN))


def check_numbers_of_test(label: str, numbers: np.ndarray) -> None:
    if not without_rounding(numbers.std(), abs(numbers.mean())):
        raise ValueError(
            f"column {label!r} is {numbers[0]:g} in every test sequence, so there is no score: R2 is the share of the "
            "variance that is predicted; move others to test, or change preprocess.split"
        )


def check_any_feature_changes(name: str, sequences: Sequences, num_features: int) -> None:
    values, first_values = sequences.values[:, :, :num_features], sequences.values[:1, :1, :num_features]
    if (values[0, : sequences.lengths[0]] != first_values[0]).any():
        return
    if ((values == first_values) | sequences.padding_mask[:, :, None]).all():
        raise ValueError(
            f"{name}: no feature ever changes ({', '.join(sequences.features[: min(num_features, 8)])}), so there is "
            "nothing to learn from; name other columns in preprocess.columns.features"
        )


def find_rare(sequences: Sequences, params: SequenceTable | OwnSequences) -> list[int]:
    """The classes with fewer sequences than splits, if each sequence has a class and goes to a split at random."""
    is_drawn = sequences.splits is None and sequences.groups is None
    if params.rare_classes is None or not is_drawn or sequences.has_label_per_step or sequences.has_number:
        return []
    return np.flatnonzero(np.bincount(sequences.labels, minlength=len(sequences.classes)) < len(SPLITS)).tolist()


def without_classes(sequences: Sequences, omitted: list[int]) -> Sequences:
    is_kept = ~np.isin(sequences.labels, omitted)
    lengths, num_omitted = sequences.lengths[is_kept], int((~is_kept).sum())
    kept_codes = [code for code in range(len(sequences.classes)) if code not in omitted]
    if len(kept_codes) < 2:
        return sequences  # the check of the sizes says what is missing
    remark = f"{num_omitted:,} sequence{'s' * (num_omitted > 1)} left out, of classes with fewer than {len(SPLITS)}: "
    return replace(
        sequences,
        values=sequences.values[is_kept, : lengths.max()],
        lengths=lengths,
        labels=np.searchsorted(kept_codes, sequences.labels[is_kept]),
        ids=sequences.ids[is_kept],
        classes=tuple(sequences.classes[code] for code in kept_codes),
        remarks=(*sequences.remarks, remark + joined_names([str(sequences.classes[code]) for code in omitted])),
    )


def split(
    sequences: Sequences, duplicates: np.ndarray, params: SequenceTable | OwnSequences, rare: Sequence[int] = ()
) -> dict[str, np.ndarray]:
    """Return the sorted sequence indices of train, val and test. duplicates (N,): equal for equal sequences. `rare`:
    the classes that are in train only.

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
        groups, stretches = sequences.groups, sequences.stretches
        # If the data's own split has only one person in train, or only people with classes of their own, val has some
        # of their sequences.
        is_shared = sequences.splits is not None and groups is not None and not can_spare(labels[rows], groups[rows])
        groups = stretches if is_shared else groups
        if groups is None:
            return stratified(rows, labels, duplicates, sizes, generator)
        if stretches is not None and (is_shared or params.groups == NO_GROUPS):
            return split_stretches(rows, labels, groups, duplicates, sizes, generator)
        try:
            return grouped(rows, labels, groups_with_duplicates(groups, duplicates), sizes, generator)
        except ValueError as error:
            raise ValueError(f"preprocess.groups is {params.groups!r}: {error}; name another column, or none") from None

    if sequences.splits is None:
        if has_class and sequences.groups is None:
            check_class_sizes(sequences, sum(size > 0 for size in sizes.values()), rare)
        is_rare = np.isin(labels, rare) & has_class
        parts = split_rows(np.flatnonzero(~is_rare), {**sizes, "train": sizes["train"] - int(is_rare.sum())})
        parts["train"] = np.sort(np.concatenate([parts["train"], np.flatnonzero(is_rare)]))
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
            num_train = len(parts["train"])
            num_val = max(1, round(num_train * sizes["val"] / (sizes["train"] + sizes["val"])))
            train_and_val = {"test": 0, "val": num_val, "train": num_train - num_val}
            parts = {**split_rows(parts["train"], train_and_val), "test": parts["test"]}
    if not sequences.has_number:
        check_all_classes_in_train(sequences, parts)
    return parts


def can_spare(labels: np.ndarray, groups: np.ndarray) -> bool:
    """Whether the others have all classes that a group has. labels, groups (N,)."""
    _, group = np.unique(groups, return_inverse=True)
    pairs = np.unique(np.stack([labels, group]), axis=1)
    has_own_class = np.bincount(pairs[0])[pairs[0]] == 1
    return len(np.unique(pairs[1, has_own_class])) <= int(group.max())


def split_stretches(
    rows: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    duplicates: np.ndarray,
    sizes: dict[str, int],
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Split the windows `rows`, with those of a stretch in one split: each label apart, so that every label with three
    stretches is in each split. With two it is in train and test, and with one only in train. labels, groups and
    duplicates (N,) are those of all windows.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
    for label in np.unique(labels[rows]):
        label_rows = rows[labels[rows] == label]
        stretches = groups_with_duplicates(groups[label_rows], duplicates[label_rows])
        names = [name for name in ("train", "test", "val") if sizes[name]][: len(np.unique(stretches))]
        label_sizes = {name: max(1, round(sizes[name] / len(rows) * len(label_rows))) for name in names}
        label_sizes = {name: label_sizes.get(name, 0) for name in SPLITS}
        label_parts = grouped(np.arange(len(label_rows)), labels[label_rows], stretches, label_sizes, generator)
        for name in SPLITS:
            parts[name].append(label_rows[label_parts[name]])
    if any(size and not any(map(len, parts[name])) for name, size in sizes.items()):
        raise ValueError(
            "windows of one stretch stay in one split, and no label has a stretch with windows for each of train, val "
            "and test; record a label in three stretches or more, or choose a shorter preprocess.window.length"
        )
    return {name: np.sort(np.concatenate(pieces)) for name, pieces in parts.items()}


def unscored_labels(sequences: Sequences, test: np.ndarray) -> list[str]:
    """A remark about the labels without a sequence in the test split, as those of a single group."""
    missing = np.setdiff1d(sequences.labels, sequences.labels[test])
    groups, unit = sequences.groups, sequences.unit or "group"
    if groups is None:
        groups, unit = np.arange(len(sequences.ids)), "sequence"
    units = "stretches" if unit == "stretch" else f"{unit}s"
    counts = [len(np.unique(groups[sequences.labels == label])) for label in missing]
    names = [
        f"{sequences.classes[label]} (in {num} {unit if num == 1 else units})"
        for label, num in zip(missing, counts, strict=True)
    ]
    return [f"no score covers the labels without a test sequence: {joined_names(names)}"] if names else []


def groups_with_duplicates(groups: np.ndarray, duplicates: np.ndarray) -> np.ndarray:
    """Return (N,) `groups` in which groups with equal sequences are merged.

    Returns `groups` unchanged if more than half of all sequences would then be in one group, e.g. because the
    recordings of all persons at rest are equal.
    """
    merged = merged_groups(groups, duplicates)
    return groups if np.unique(merged, return_counts=True)[1].max() > len(groups) / 2 else merged


def check_no_split_is_empty(
    sequences: Sequences, parts: dict[str, np.ndarray], sizes: dict[str, int], duplicates: np.ndarray
) -> None:
    for name, rows in parts.items():
        if not len(rows):
            num_all, num_different = len(sequences.ids), len(np.unique(duplicates))
            raise ValueError(
                f"no sequence is left for {name}: its share is {sizes[name]} and of {num_all:,} only {num_different:,} "
                "differ, and equal ones stay in one split; give more different ones, or it a larger share in "
                "preprocess.split"
            )


def check_class_sizes(sequences: Sequences, num_splits: int, rare: Sequence[int]) -> None:
    counts = np.bincount(sequences.labels, minlength=len(sequences.classes))
    counts[[*rare]] = num_splits
    if counts.min() < num_splits:
        smallest = int(counts.argmin())
        are_whole = all(isinstance(name, int) for name in sequences.classes)
        raise ValueError(
            f"class {sequences.classes[smallest]!r} has too few sequences ({counts[smallest]}): {num_splits} splits "
            "want at least one each; add sequences of it, or leave the class out (`rare_classes: omit` in preprocess)"
            f"{', or predict the number with task regress (--task regress)' * are_whole}"
        )


def check_all_classes_in_train(sequences: Sequences, parts: dict[str, np.ndarray]) -> None:
    train_labels = np.unique(sequences.labels[parts["train"]])
    for name in ("val", "test"):
        unseen = np.setdiff1d(sequences.labels[parts[name]], train_labels)
        if len(unseen):
            raise ValueError(
                f"label {sequences.classes[unseen[0]]!r} occurs in {name} but not in train, so no model can learn it; "
                "move some of its sequences to train"
            )
