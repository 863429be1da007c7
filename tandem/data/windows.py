"""Cut recordings with a label in each row into windows: a table in which each window is a sequence of its own.

A recording is the rows of one value of `columns.sequence`, or the whole table (NO_GROUPS). A stretch is a part of it in
which the label stays the same and no row is missing for long. A window lies within one stretch. Rows without a label,
in stretches shorter than a window, and after the last window of a stretch are in no window; they are counted.

R rows of the table, N windows of L rows.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.rows import NO_EVENT, repeated_step
from tandem.data.tables import SPLIT_COLUMN, RawTable, factorize, read_numbers
from tandem.params.schema import NO_GROUPS, Columns, Window

ZEROS = r"(?:\.0+|(\.\d+?)0+)$"  # at the end of a number or a time
LONG_GAP = 10  # times the usual distance of two rows; a longer one ends a stretch
WINDOW, STRETCH = "the window", "the stretch"  # columns of the new table; no column of the user has these names


@dataclass(frozen=True)
class Windows:
    table: RawTable  # the rows of each window; a row is repeated if windows overlap
    columns: Columns
    groups: str  # the column of what stays in one split
    ids: np.ndarray  # (N,) text: the recording, and the step at which the window begins
    stretches: np.ndarray  # (N,) text: the recording, and the step at which the stretch begins
    unit: str  # what stays in one split, in words


def cut(
    table: RawTable,
    columns: Columns,
    window: Window,
    groups: str = NO_GROUPS,
    allow_missing: bool = False,
    is_labelled: bool = True,
) -> Windows:
    """Cut the rows of `table` into windows. `groups`: the column of people, or NO_GROUPS to group by stretch.

    `allow_missing`: leave out windows without any value of a feature. `is_labelled`: false for a table to predict from,
    in which only gaps end a stretch. The order of the rows has no effect. Raises ValueError if no window is left.
    """
    cells = dict(table.columns)  # the functions that check a column remove it from the table
    num_rows = len(cells[columns.step])
    has_recordings = columns.sequence != NO_GROUPS
    recording, names = np.zeros(num_rows, dtype=np.int32), np.array([""])
    if has_recordings:
        recording, names = factorize(table, columns.sequence)
    keys = [factorize(table, key)[0] for key in (groups, SPLIT_COLUMN) if key in table.columns]
    has_label = np.ones(num_rows, dtype=bool)
    if is_labelled:
        labels, classes = factorize(table, columns.label, empty=NO_EVENT)
        has_label = classes.astype(np.str_)[labels] != NO_EVENT
        keys.append(labels)

    step = read_numbers(table, columns.step)
    order = np.lexsort((step, recording))
    is_same = recording[order][1:] == recording[order][:-1]
    apart = np.diff(step[order])
    if len(repeats := np.flatnonzero(is_same & (apart == 0))):
        row = repeats[order[repeats + 1].argmin()]
        places = table.places(order[row], order[row + 1])
        where = f"{columns.sequence} {names[recording[order[row]]]}" if has_recordings else "the recording"
        raise ValueError(f"{table.name}: {repeated_step(columns.step, where, places, len(repeats))}")
    usual = float(np.median(apart[is_same])) if is_same.any() else 0.0
    is_gap = is_same & (apart > LONG_GAP * usual)
    is_cut = ~is_same | is_gap
    for key in keys:
        is_cut |= key[order][1:] != key[order][:-1]
    starts = np.concatenate([[0], np.flatnonzero(is_cut) + 1])  # of all stretches, in `order`
    lengths = np.diff([*starts, num_rows])
    is_used = has_label[order[starts]]
    counts = np.where(is_used & (lengths >= window.length), (lengths - window.length) // window.stride + 1, 0)
    stretch = np.repeat(np.arange(len(starts)), counts)  # (N,)
    first = starts[stretch] + window.stride * (np.arange(len(stretch)) - np.repeat(np.cumsum(counts) - counts, counts))
    has_values = np.ones(len(first), dtype=bool)
    for feature in columns.features if allow_missing else ():
        is_known = ~np.isnan(read_numbers(table, feature, allow_missing)[order])
        num_known = np.concatenate([[0], np.cumsum(is_known)])
        has_values &= num_known[first + window.length] > num_known[first]
    stretch, first = stretch[has_values], first[has_values]
    if not len(first):
        longest = lengths[is_used].max() if is_used.any() else 0
        raise ValueError(
            f"{table.name}: no window of {window.length:,} rows with one label and a value of every feature is left "
            f"(the longest stretch has {longest:,} rows); choose a shorter one (preprocess.window.length, or --window)"
        )

    def names_at(places: np.ndarray) -> np.ndarray:
        """The recording and the step of the rows at `places` in `order`."""
        rows = order[places]
        steps = pc.replace_substring_regex(take(cells[columns.step], rows).cast(pa.string()), ZEROS, r"\1")
        steps = steps.to_numpy(zero_copy_only=False).astype(np.str_)
        return np.char.add(np.char.add(names.astype(np.str_)[recording[rows]], " "), steps) if has_recordings else steps

    rows = order[(first[:, None] + np.arange(window.length)).ravel()]
    kept = [columns.step, columns.label, *columns.features, groups, SPLIT_COLUMN]
    numbers = {WINDOW: np.arange(len(first)), STRETCH: stretch}
    new = {name: np.repeat(number, window.length) for name, number in numbers.items()}
    for name in kept:
        if name in cells:
            new[name] = take(cells[name], rows)
    is_short = is_used & (counts == 0)
    covered = (counts - 1) * min(window.stride, window.length) + window.length
    lost = {
        "without a label": lengths[~is_used].sum(),
        f"in {is_short.sum():,} stretches shorter than a window": lengths[is_short].sum(),
        "after the last window of a stretch": (lengths - covered)[counts > 0].sum(),
    }
    unit = {columns.sequence: "recording", NO_GROUPS: "stretch"}.get(groups, groups)
    seconds = usual / 1e9 if pa.types.is_timestamp(cells[columns.step].type) else 0.0
    times = f" ({window.length * seconds:.3g} s every {window.stride * seconds:.3g} s)" if seconds else ""
    reasons = ", ".join(f"{num:,} {reason}" for reason, num in lost.items() if num)
    remarks = [
        f"{len(names):,} recording{'s' * (len(names) != 1)}, {len(np.unique(stretch)):,} stretches of one label, "
        f"windows of {window.length:,} steps every {window.stride:,}{times}; those of one {unit} are in one split",
        reasons and f"{sum(lost.values()):,} of {num_rows:,} rows are in no window: {reasons}",
        is_gap.any() and f"{is_gap.sum():,} gaps, more than {LONG_GAP} times as long as the usual step, end a stretch",
        not has_values.all() and f"{(~has_values).sum():,} windows are left out: a feature has no value in them",
    ]
    return Windows(
        RawTable(
            table.name,
            {name: pa.chunked_array([column]) for name, column in new.items()},
            lambda row: table.place(int(rows[row])),
            table.na,
            table.split,
            remarks=[remark for remark in remarks if remark],
        ),
        Columns(WINDOW, columns.step, columns.features, columns.label),
        STRETCH if groups == NO_GROUPS else groups,
        names_at(first),
        names_at(starts[stretch]),
        unit,
    )


def take(cells: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The cells of `rows`; a dictionary without the values that these do not have, which would be classes."""
    found = cells.unify_dictionaries().combine_chunks().take(pa.array(rows))
    if not pa.types.is_dictionary(found.type):
        return found
    used, codes = np.unique(found.indices.to_numpy(), return_inverse=True)
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), found.dictionary.take(pa.array(used)))
