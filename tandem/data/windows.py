"""Cut recordings with a label in each row into windows: a table in which each window is a sequence of its own.

A recording is the rows of one value of `columns.sequence`, or the whole table (NO_GROUPS). A stretch is a part of it in
which the label stays the same and no row is missing for long. A window lies within one stretch. Rows without a label,
in stretches shorter than a window, and after the last window of a stretch are in no window; they are counted.

R rows of the table, S stretches, N windows of L rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.arrays import Sequences, joined_names
from tandem.data.rows import NO_EVENT, REFUSE, is_given, order_by_step, remarks_about_wraps, to_sequences
from tandem.data.tables import SPLIT_COLUMN, RawTable, factorize, read_numbers
from tandem.params.schema import NO_GROUPS, Columns, SequenceTable, Window

ZEROS = r"(?:\.0+|(\.\d+?)0+)$"  # at the end of a number or a time
IN_NO_WINDOW = "are in no window"  # of rows
LONG_GAP = 10  # times the usual distance of two rows; a longer one ends a stretch
WINDOW, STRETCH = "the window", "the stretch"  # columns of the new table; no column of the user has these names


@dataclass(frozen=True)
class SortedRows:
    """The rows of a table, sorted by recording and step."""

    order: np.ndarray  # (R,) their indices in the table, without repeated rows
    recording: np.ndarray  # (R,) indices into `names`
    names: np.ndarray  # of the recordings
    is_new: np.ndarray  # (R - 1,) whether the next row is of another recording
    is_gap: np.ndarray  # (R - 1,) whether the next row is of the same recording, but much later
    usual_step: float  # the median distance of two rows
    remarks: list[str]


@dataclass(frozen=True)
class Stretches:
    first: np.ndarray  # (S,) the first row of each, in sorted order
    length: np.ndarray  # (S,) number of rows
    num_windows: np.ndarray  # (S,)
    has_label: np.ndarray  # (S,)
    lost_labels: list[str]  # those of no window


def cut(
    table: RawTable,
    columns: Columns,
    params: SequenceTable,
    groups: str,
    offsets: Mapping[str, float] | None,
    masked: Sequence[str],
    is_labelled: bool,
) -> Sequences:
    """Cut the rows of `table` into windows, each a sequence of rows.to_sequences. `groups`: the column of people, or
    NO_GROUPS to group by stretch.

    If gaps are filled, windows without a value of any feature are left out. `is_labelled`: false for a table to predict
    from, in which only gaps end a stretch. The order of the rows has no effect. Raises ValueError if no window is left.
    """
    window, allow_missing = params.window, params.missing != REFUSE
    assert window
    cells = dict(table.columns)  # the functions that check a column remove it from the table
    rows = sort_rows(table, columns)
    stretches = find_stretches(table, columns, rows, window, groups, is_labelled)
    stretch = np.repeat(np.arange(len(stretches.first)), stretches.num_windows)  # (N,)
    first_window = np.cumsum(stretches.num_windows) - stretches.num_windows  # (S,)
    first_rows = stretches.first[stretch] + window.stride * (np.arange(len(stretch)) - first_window[stretch])
    has_values = np.full(len(first_rows), not allow_missing)
    for feature in columns.features if allow_missing else ():
        num_known = np.concatenate([[0], np.cumsum(is_given(table, feature)[rows.order])])
        has_values |= num_known[first_rows + window.length] > num_known[first_rows]
    stretch, first_rows = stretch[has_values], first_rows[has_values]
    if not len(first_rows):
        longest = stretches.length[stretches.has_label].max(initial=0)
        raise ValueError(
            f"{table.name}: no window of {window.length:,} rows with one label and a value is left "
            f"(the longest stretch has {longest:,} rows); choose a shorter one (preprocess.window.length, or --window)"
        )

    used_rows = rows.order[(first_rows[:, None] + np.arange(window.length)).ravel()]
    new_columns = {name: pa.array(np.repeat(numbers, window.length))
                   for name, numbers in ((WINDOW, np.arange(len(first_rows))), (STRETCH, stretch))}  # fmt: skip
    for name in (columns.step, columns.label, *columns.features, groups, SPLIT_COLUMN):
        if name in cells:
            new_columns[name] = take(cells[name], used_rows)
    unit = {columns.sequence: "recording", NO_GROUPS: "stretch"}.get(groups, groups)
    seconds = rows.usual_step / 1e9 if pa.types.is_timestamp(cells[columns.step].type) else 0.0
    remarks = [
        f"{len(rows.names):,} recording{'s' * (len(rows.names) != 1)}, {len(np.unique(stretch)):,} stretches of one "
        f"label, {words_of(window, seconds)}{'' if table.split else f'; those of one {unit} are in one split'}",
        *remarks_about_lost_rows(rows, stretches, window),
        *rows.remarks,
    ]
    if num_empty := np.count_nonzero(~has_values):
        remarks.append(f"{num_empty:,} windows are left out: no feature has a value in them")

    def names_at(places: np.ndarray) -> np.ndarray:
        """The recording and the step of some of the sorted rows."""
        texts = take(cells[columns.step], rows.order[places]).cast(pa.string())
        steps = pc.replace_substring_regex(texts, ZEROS, r"\1").to_numpy(zero_copy_only=False).astype(np.str_)
        if columns.sequence == NO_GROUPS:
            return steps
        return np.char.add(np.char.add(rows.names.astype(np.str_)[rows.recording[places]], " "), steps)

    of_windows = RawTable(  # a row is repeated if windows overlap
        table.name,
        {name: pa.chunked_array([column]) for name, column in new_columns.items()},
        lambda row: table.place(int(used_rows[row])),
        table.na,
        table.split,
        remarks=remarks,
    )
    sequences = to_sequences(
        of_windows,
        Columns(WINDOW, columns.step, columns.features, columns.label),
        params,
        groups=STRETCH if groups == NO_GROUPS else groups,
        offsets=offsets,
        ids=names_at(first_rows),
        masked=masked,
    )
    return replace(sequences, stretches=names_at(stretches.first[stretch]), unit=unit)


def sort_rows(table: RawTable, columns: Columns) -> SortedRows:
    """Sort the rows by recording and step. Raises ValueError if a step repeats in a recording."""
    recording, names = np.zeros(len(table.columns[columns.step]), dtype=np.int32), np.array([""])
    if columns.sequence != NO_GROUPS:
        recording, names = factorize(table, columns.sequence)
    step = read_numbers(table, columns.step, keep_whole=True)
    order, remarks = order_by_step(table, columns, recording, names, step)
    remarks += remarks_about_wraps(recording, step, columns.step)
    order = np.arange(len(step))[order]
    step, recording = step[order], recording[order]
    is_new, distance = recording[1:] != recording[:-1], np.diff(step)
    usual = 0.0 if is_new.all() else float(np.median(distance[~is_new]))
    return SortedRows(order, recording, names, is_new, ~is_new & (distance > LONG_GAP * usual), usual, remarks)


def find_stretches(
    table: RawTable, columns: Columns, rows: SortedRows, window: Window, groups: str, is_labelled: bool
) -> Stretches:
    """A stretch ends with its recording, at a gap, and where the label, the group or the split changes."""
    keys = [factorize(table, key)[0] for key in (groups, SPLIT_COLUMN) if key in table.columns]
    labels, names = np.zeros(rows.order.max() + 1, dtype=np.int64), np.array([""])
    if is_labelled:
        labels, classes = factorize(table, columns.label, empty=NO_EVENT)
        names = classes.astype(np.str_)
        keys.append(labels)
    is_cut = rows.is_new | rows.is_gap
    for key in keys:
        is_cut |= key[rows.order][1:] != key[rows.order][:-1]
    first = np.concatenate([[0], np.flatnonzero(is_cut) + 1])
    length = np.diff([*first, len(rows.order)])
    label = labels[rows.order[first]]
    is_used = names[label] != NO_EVENT
    num_windows = np.where(is_used & (length >= window.length), (length - window.length) // window.stride + 1, 0)
    lost_labels = names[np.setdiff1d(label[is_used], label[num_windows > 0])].tolist()
    return Stretches(first, length, num_windows, is_used, lost_labels)


def words_of(window: Window, seconds: float) -> str:
    """`seconds`: the usual step; 0 if the steps are no times."""
    times = f" ({window.length * seconds:.3g} s every {window.stride * seconds:.3g} s)" if seconds else ""
    return f"windows of {window.length:,} steps every {window.stride:,}{times}"


def remarks_about_lost_rows(rows: SortedRows, stretches: Stretches, window: Window) -> Iterator[str]:
    length, num_windows, has_label = stretches.length, stretches.num_windows, stretches.has_label
    is_short = has_label & (num_windows == 0)
    covered = (num_windows - 1) * min(window.stride, window.length) + window.length
    lost = {
        "without a label": length[~has_label].sum(),
        f"in {is_short.sum():,} stretches shorter than a window": length[is_short].sum(),
        "after the last window of a stretch": (length - covered)[num_windows > 0].sum(),
    }
    if any(lost.values()):
        reasons = ", ".join(f"{num_rows:,} {reason}" for reason, num_rows in lost.items() if num_rows)
        yield f"{sum(lost.values()):,} of {len(rows.order):,} rows {IN_NO_WINDOW}: {reasons}"
    if stretches.lost_labels:
        yield f"no window has the labels {joined_names(stretches.lost_labels)}: all of their stretches are shorter"
    if rows.is_gap.any():
        yield f"{rows.is_gap.sum():,} gaps, more than {LONG_GAP} times as long as the usual step, end a stretch"


def take(cells: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The cells of `rows`; a dictionary without the values that these do not have, which would be classes."""
    column = cells.unify_dictionaries().combine_chunks().take(pa.array(rows))
    if not pa.types.is_dictionary(column.type):
        return column
    used, codes = np.unique(column.indices.to_numpy(), return_inverse=True)
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), column.dictionary.take(pa.array(used)))
