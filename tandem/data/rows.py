"""The rows of a table of many sequences -> padded arrays. Every error names the row.

R rows of the table, N sequences, T steps of the longest one, F features. Time and memory are linear in R. No Python
loop runs over rows or sequences.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.arrays import Sequences, joined_names, make_features
from tandem.data.resampling import resampling
from tandem.data.splits import SPLITS
from tandem.data.tables import SPLIT_COLUMN, SPLIT_WORDS, RawTable, factorize, raise_if_any, read_numbers, value_type
from tandem.data.times import COMPACT_DATE
from tandem.params.schema import NO_GROUPS, Columns, SequenceKeys, columns_of

NO_EVENT = "none"  # the label of a step without an event; an empty cell means the same
REFUSE, MASK = "refuse", "mask"  # values of preprocess.missing
SEEN = " seen"  # at the end of the name of a feature that says where another one has a value
UNKNOWN = "words that are no categories"  # in a remark that `tandem predict` shows too
GOES_BACK = "goes back"  # in a remark that `tandem predict` shows too
SHORTEST_IN_ORDER = 3  # rows of a sequence that may be in any order by chance
HOUR = r"([01]\d|2[0-3])"
HOUR_MINUTE = rf"{HOUR}[0-5]\d"
# The number of digits of a time that is written as a number -> pandas' form, and what it looks like.
TIMES_IN_DIGITS = {
    8: ("%Y%m%d", COMPACT_DATE),
    10: ("%Y%m%d%H", f"{COMPACT_DATE[:-1]}{HOUR}$"),
    12: ("%Y%m%d%H%M", f"{COMPACT_DATE[:-1]}{HOUR_MINUTE}$"),
    14: ("%Y%m%d%H%M%S", f"{COMPACT_DATE[:-1]}{HOUR_MINUTE}[0-5]\\d$"),
}
OTHER_RATE = 1.5  # times as long from row to row: recorded at another rate


def to_sequences(
    table: RawTable,
    columns: Columns,
    params: SequenceKeys,
    target_kind: str = "class",
    groups: str = NO_GROUPS,
    offsets: Mapping[str, float] | None = None,
    ids: np.ndarray | None = None,
    classes: Sequence[str] = (),
    masked: Sequence[str] = (),
) -> Sequences:
    """Check the table and convert it to padded arrays. Sequences are ordered by id, and their rows by step.

    `target_kind`: `Task.target`. `groups`: the column whose values tell which sequences must stay in one split.
    `offsets`: see `make_features`. `ids` (N,): if given, the column of the sequence has indices into it. `classes`: if
    given, the column of the label has indices into it. `masked`: features for each of which another one says where it
    has a value. Removes the columns from `table`. Raises ValueError with the row's place.
    """
    velocity, rate, allow_missing = params.velocity, params.rate, params.missing != REFUSE
    codes, distinct = factorize(table, columns.sequence)
    ids = distinct if ids is None else ids
    has_times = pa.types.is_temporal(table.columns[columns.step].type)
    step = read_numbers(table, columns.step, keep_whole=True)
    if not has_times and (mistake := digits_of_times(step, columns.step)):
        raise ValueError(f"{table.name}: {mistake}")
    num_sequences = len(ids)
    order, repeats = order_by_step(table, columns, codes, ids, step)
    lengths = np.bincount(codes[order], minlength=num_sequences).astype(np.int32)
    check_lengths(lengths, ids, table.name)
    wraps = remarks_about_wraps(codes, step, columns.step)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])
    first_rows = np.arange(len(codes))[order][starts]
    step = step[order]
    unit, per_unit = ("s", 1e9) if has_times else (columns.step, 1)
    distances = (step[starts + lengths - 1] - step[starts]) / (lengths - 1) / per_unit  # (N,)
    since_first = step - np.repeat(step[starts], lengths) if allow_missing or rate else None  # (R,)
    del step
    table.remarks.extend(repeats)
    resampled = None
    if rate and since_first is not None:
        low, high = 1 / distances.max(), 1 / distances.min()
        table.remarks.append(f"rows at {rate:g} per {unit}, made of {low:.3g} to {high:.3g} per {unit}")
        resampled = resampling(since_first, lengths, per_unit / rate)
        lengths, since_first, distances = resampled.lengths, resampled.times, np.array([1 / rate])
        check_lengths(lengths, ids, f"{table.name}, at {rate:g} rows per {unit}")
    else:
        can_resample = ids is distinct and target_kind != "class per step"
        table.remarks.extend(wraps or remarks_about_rates(distances, unit, can_resample))
    is_real = np.arange(lengths.max())[None, :] < lengths[:, None]  # (N, T)
    times = None
    if allow_missing:
        times = np.zeros(is_real.shape)
        times[is_real] = since_first

    def first_of_sequence(column: str, cells: np.ndarray) -> np.ndarray:
        """cells (R,) -> (N,). Raises ValueError if they change within a sequence."""
        raise_if_any(table, cells != cells[first_rows][codes], f"column {column!r} changes within a sequence")
        return cells[first_rows]

    row_labels, names = read_labels(table, columns.label, target_kind, classes)
    if target_kind == "class per step":
        if resampled:
            raise ValueError(f"preprocess.rate is {rate:g}; accepted for one label per sequence, and detect has others")
        labels = np.zeros(is_real.shape, dtype=row_labels.dtype)
        labels[is_real] = row_labels[order]
    else:
        labels = first_of_sequence(columns.label, row_labels)
    if alike := alike_labels(names.tolist()):
        pairs = "; ".join(" and ".join(map(repr, labels)) for labels in alike)
        table.remarks.append(f"labels that differ only in case or white space: {pairs}")
    splits = None
    if SPLIT_COLUMN in table.columns:
        splits = np.array(SPLITS)[first_of_sequence(table.split or SPLIT_COLUMN, read_splits(table))]
    group_ids = group_names = None
    if groups != NO_GROUPS:
        group_codes, group_values = factorize(table, groups)
        group_ids = first_of_sequence(groups, group_codes)
        group_names = group_values.astype(np.str_)[group_ids]
    del row_labels

    is_seen = {name: is_given(table, name) for name in masked}
    filled_before = list[int]()  # in each column, before it was resampled

    def read(index: int) -> np.ndarray:
        hint = "" if allow_missing else " (`missing: interpolate` fills empty cells)"
        if index < len(columns.features):
            cells = read_numbers(table, columns.features[index], allow_missing, hint, keep_whole=True)
        else:
            cells = is_seen[masked[index - len(columns.features)]].astype(np.float32)
        cells = cells[order]
        if resampled is None:
            return cells
        if index >= len(columns.features):
            return resampled.has_value_near(cells == 1).astype(np.float32)
        cells, num_empty = resampled.apply(cells)
        filled_before.append(num_empty)
        return cells

    features = columns.features + tuple(f"{name}{SEEN}" for name in masked)
    values, num_filled, used_offsets = make_features(read, is_real, features, velocity, allow_missing, offsets, times)
    for sequence in np.flatnonzero(np.isnan(values[:, 0, : len(columns.features)]).all(axis=1))[:1]:
        raise ValueError(
            f"{table.name}: sequence {str(ids[sequence])!r} has no value of any feature; leave it out, or give it some"
        )
    return Sequences(
        values,
        lengths,
        labels.astype(np.float64 if target_kind == "number" else np.int64),
        ids.astype(np.str_),
        splits,
        tuple(names.tolist()),
        features + (tuple(f"d{name}" for name in features) if velocity else ()),
        num_filled + sum(filled_before),
        group_ids,
        used_offsets,
        table.report,
        group_names=group_names,
        usual_step=float(np.median(distances)),
    )


def check_lengths(lengths: np.ndarray, ids: np.ndarray, name: str) -> None:
    if lengths.min() < 2:
        short = int(lengths.argmin())
        raise ValueError(
            f"{name}: sequence {str(ids[short])!r} has {lengths[short]} step; every sequence needs at least 2"
        )


def with_categories(table: RawTable, columns: Columns, categories: Sequence[str]) -> Columns:
    """`columns` with the features `categories`, such as `mode=low`, which are made of the table's columns of text. An
    empty cell, or a word that is not among them, is none of them; a remark names such words.
    """
    for column in columns_of(categories):
        cells = pc.fill_null(pc.utf8_trim_whitespace(table.take(column).cast(pa.string())), "")
        words = [name.partition("=")[2] for name in categories if columns_of([name]) == [column]]
        for word in words:
            table.columns[f"{column}={word}"] = pc.equal(cells, word).cast(pa.int8())
        if unknown := sorted({*pc.unique(cells).to_pylist()} - {*words, ""}):
            table.remarks.append(f"{column!r} holds {UNKNOWN}: {joined_names(unknown)}")
    return replace(columns, features=columns.features + tuple(categories))


def find_masked(table: RawTable, features: Sequence[str], missing: str) -> tuple[str, ...]:
    """The first of each group of features that are missing in the same rows, as the points of a hand are, if `missing`
    of preprocess is MASK.
    """
    names_by_pattern: dict[bytes, str] = {}
    for name in features if missing == MASK else ():
        if not (has_value := is_given(table, name)).all():
            names_by_pattern.setdefault(hashlib.sha256(np.packbits(has_value).tobytes()).digest(), name)
    return tuple(names_by_pattern.values())


def is_given(table: RawTable, feature: str) -> np.ndarray:
    """(R,) whether the feature has a value. Leaves the column in the table."""
    one_column = replace(table, columns={feature: table.columns[feature]}, missing=Counter())
    return ~np.isnan(read_numbers(one_column, feature, allow_missing=True, keep_whole=True))


def digits_of_times(step: np.ndarray, name: str) -> str:
    """A sentence if every number of the column `name` is a time written in digits, such as 20240131 or 20240131095955;
    else empty. As numbers, two seconds or days would be far apart where a minute or a month ends.
    """
    example = f"{step[0]:.0f}" if len(step) else ""
    form, pattern = TIMES_IN_DIGITS.get(len(example), ("", ""))
    if not pattern or not re.match(pattern, example) or (step % 1 != 0).any():
        return ""
    if not pc.all(pc.match_substring_regex(pa.array(step).cast(pa.int64()).cast(pa.string()), pattern)).as_py():
        return ""
    return (
        f"column {name!r} holds numbers like {example}, which are times as well as numbers; write times: "
        f"table[{name!r}] = pandas.to_datetime(table[{name!r}], format='{form}'); or number the rows of each sequence"
    )


def remarks_about_wraps(codes: np.ndarray, step: np.ndarray, name: str) -> list[str]:
    """A remark if the rows of each sequence are in order but for one step back: sorted, its end comes before its
    beginning. codes (R,): the sequence of each row; step (R,), both in the order of the table.
    """
    is_same = codes[1:] == codes[:-1]
    num_back = np.bincount(codes[1:][is_same & (step[1:] < step[:-1])], minlength=int(codes.max()) + 1)
    is_together = np.count_nonzero(~is_same) == len(num_back) - 1
    if not is_together or num_back.max() != 1 or np.bincount(codes)[num_back == 1].min() <= SHORTEST_IN_ORDER:
        return []
    num = int(num_back.sum())
    return [
        f"{name!r} {GOES_BACK} once in {num:,} of {len(num_back):,} sequences, and rows are sorted by it: if it is a "
        "counter that began again, or a local time when the clock was set back, number the rows instead"
    ]


def remarks_about_rates(distances: np.ndarray, unit: str, can_resample: bool) -> list[str]:
    """distances (N,): from row to row of a sequence, on average. `can_resample`: whether `rate` is accepted."""
    low, high = np.quantile(distances, [0.1, 0.9])
    if high < OTHER_RATE * low:
        return []
    return [
        f"the rows of a sequence are {low:.3g} to {high:.3g} {unit} apart, {1 / high:.3g} to {1 / low:.3g} in one; a "
        "network gets rows without their times, so resample recordings of different rates to one rate"
        + f" (--rate {1 / np.median(distances):.3g}, or rate in preprocess)"
        * can_resample
    ]


def order_by_step(
    table: RawTable, columns: Columns, codes: np.ndarray, names: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray | slice, list[str]]:
    """The indices that sort the rows by sequence and step, without those that repeat another one in all columns of the
    table, and a remark about these. If the rows are sorted, as in most tables, a slice, which copies nothing.

    `codes` (R,) are indices into the sequences' `names`. Raises ValueError if a step repeats in a sequence in rows that
    differ.
    """
    is_same = codes[1:] == codes[:-1]
    if ((codes[1:] > codes[:-1]) | (is_same & (step[1:] > step[:-1]))).all():
        return slice(None), []
    order = np.lexsort((step, codes))
    step, codes = step[order], codes[order]
    repeats = np.flatnonzero((codes[1:] == codes[:-1]) & (step[1:] == step[:-1]))
    if not len(repeats):
        return order, []
    are_equal = np.ones(len(repeats), dtype=bool)
    for cells in table.columns.values():
        are_equal &= equal_cells(cells, order[repeats], order[repeats + 1])
    wrong = repeats if are_equal.all() else repeats[~are_equal]
    row = wrong[order[wrong + 1].argmin()]
    places = table.places(order[row], order[row + 1])
    if not are_equal.all():
        sequence = "the recording" if columns.sequence == NO_GROUPS else f"{columns.sequence} {names[codes[row]]}"
        raise ValueError(f"{table.name}: {repeated_step(columns.step, sequence, places, len(wrong))}")
    subject = "1 row that repeats another one is" if len(wrong) == 1 else f"{len(wrong):,} rows that repeat others are"
    return np.delete(order, repeats + 1), [f"{subject} left out: {places} are equal"]


def equal_cells(cells: pa.ChunkedArray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether the cells of two lists of rows are equal; two empty cells are."""
    values = cells.unify_dictionaries()
    left, right = (values.take(pa.array(rows)).cast(value_type(cells.type)) for rows in (first, second))
    are_empty = pc.and_(*(pc.is_null(column, nan_is_null=True) for column in (left, right)))
    return np.asarray(pc.fill_null(pc.or_kleene(pc.equal(left, right), are_empty), False))


def repeated_step(step: str, sequence: str, places: str, num_repeats: int) -> str:
    total = f" ({num_repeats:,} repeated rows in all)" if num_repeats > 1 else ""
    return (
        f"{step!r} repeats in {sequence}, {places}{total}; remove or renumber the rows that should not be there, or "
        "name other columns for the sequence and the step"
    )


def read_labels(
    table: RawTable, column: str, target_kind: str, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels (R,), numbers or codes, and the classes (C,)."""
    if target_kind == "number":
        return read_numbers(table, column).astype(np.float64), np.array([])
    if classes:
        return table.take(column).to_numpy(), np.array(classes)
    if target_kind == "class per step":
        return read_events(table, column)
    codes, names = factorize(table, column)
    check_single_labels(table.name, column, names.astype(np.str_).tolist())
    return codes, names


def read_events(table: RawTable, column: str) -> tuple[np.ndarray, np.ndarray]:
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
    order = np.argsort(names != NO_EVENT, kind="stable")
    return np.argsort(order)[codes], names[order]  # argsort inverts a permutation


def check_single_labels(name: str, column: str, classes: list[str]) -> None:
    """Raises ValueError if a label looks like several labels (`a|b`) and one of these is also a label elsewhere."""
    parts_of = {label: [part.strip() for part in re.split(r"[|;,]", label)] for label in classes}
    composed = {label: parts for label, parts in parts_of.items() if len(parts) > 1 and all(parts)}
    for label, parts in composed.items():
        elsewhere = {*classes, *(part for other in composed if other != label for part in composed[other])}
        if twins := [part for part in parts if part in elsewhere]:
            raise ValueError(
                f"{name}: column {column!r} holds {label!r}, which looks like {len(parts)} labels ({twins[0]!r} is one "
                "elsewhere), and a sequence has one; make a column of yes and no for each and a workload of each "
                "column, or write it without the sign between them if it is a class of its own"
            )


def alike_labels(labels: Sequence[Any]) -> list[list[str]]:
    """Those that differ only in case or white space."""
    groups: dict[str, list[str]] = {}
    for label in map(str, labels):
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def read_splits(table: RawTable) -> np.ndarray:
    """Return the indices (R,) into SPLITS from the table's column of the split."""
    cells, name = table.take(SPLIT_COLUMN), f"column {table.split!r}"
    texts = cells.cast(pa.string())
    codes = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), pa.array([*SPLIT_WORDS]))
    if codes.null_count:
        raise_if_any(table, pc.is_null(codes).to_numpy(), f"{name} must be train, val or test", cells)
    written = sorted(pc.unique(texts).to_pylist())
    if table.split != SPLIT_COLUMN or not {*written} <= {*SPLITS}:
        table.remarks.append(f"{name} decides the split ({', '.join(map(repr, written))})")
    return np.array([SPLITS.index(split) for split in SPLIT_WORDS.values()])[codes.to_numpy()]
