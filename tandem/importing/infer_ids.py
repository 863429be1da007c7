"""The column that tells sequences apart: ids by their names, by rows that are together, and by the labels that follow
them. Reads no file.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.data.rows import digits_of_times
from tandem.importing.columns import (
    DAY_SECONDS,
    MOST_REPEATS,
    Choice,
    NotFound,
    TableColumns,
    in_stretches,
    named_like,
    words_of,
)
from tandem.importing.infer_label import MISTAKEN_SHARE, WEAK_NAMES
from tandem.importing.infer_step import advice_on_recordings, find_steps, rows_together, times_of_steps
from tandem.importing.names import CALENDAR_NAMES, GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES
from tandem.terminal.command import NO_ANSWER, CommandError

FEW_KINDS = 10  # words that rather say of what kind a row is, if rows of all kinds are mixed and nothing orders them
NO_ORDER = "rows that have neither an order nor a time, such as a row of features for each item, are no steps"


def joined(keys: Sequence[str]) -> str:
    """The code that makes the column `sequence` of several."""
    return "table['sequence'] = " + " + '_' + ".join(f"table[{key!r}].astype(str)" for key in keys)


def find_sequence(columns: TableColumns, taken: Sequence[str] = ()) -> Choice:
    ids = [name for name in find_ids(columns) if name not in taken]
    if not ids:
        if times := columns.of_kind("time"):
            raise NotFound(
                f"{columns.shown}: nothing tells sequences apart ({times[0]!r} has {columns.num_distinct(times[0]):,} "
                f"times in {len(columns.frame):,} rows); name columns with --sequence and --step, or that to forecast "
                "with --target; of several series in one table keep the rows of one"
            )
        for name in columns.of_kind("whole"):
            if mistake := digits_of_times(columns.numbers(name).to_numpy(), name):
                raise ValueError(f"{columns.name}: {mistake}")
        count = (
            "if the table is a recording in the order of its rows, with a column of labels, count the rows: "
            "table['step'] = range(len(table)); then give --step step and that column with --label; or "
        ) * (len(taken) == 0)
        raise NotFound(
            advice_on_recordings(columns)
            or f"{columns.shown} has no column that tells sequences apart, nor one of times that differ; name them: "
            f"--sequence and --step for many sequences, --time for one series; {count}"
            "for a forecast table['time'] = pandas.to_datetime(table.index, unit='s'), a second for each row; "
            f"{NO_ORDER}"
        )
    column, step = next(((name, step) for name in ids for step, _ in find_steps(columns, name)), (ids[0], None))
    unordered = named_like(SEQUENCE_NAMES, ids[: ids.index(column)])  # as trials of people whose clocks go on
    for name, step_of_name in (*((name, None) for name in unordered), (column, step)):
        for group in (group for group in restarting_in(columns, name, step_of_name) if group not in taken):
            raise CommandError(
                f"{columns.name}: {name!r} may count the sequences of each {group!r}, whose rows are together within a "
                f"value of {name!r}; give --sequence {shlex.quote(name)} if that is one sequence, or join the columns: "
                f"{joined([group, name])}",
                NO_ANSWER,
            )
    num_values = columns.num_distinct(column)
    rows_each = f"{num_values:,} values, {len(columns.frame) / num_values:.1f} rows each on average"
    return column, f"by its name; {rows_each}" if named_like(SEQUENCE_NAMES, [column]) else rows_each


def restarting_in(columns: TableColumns, sequence: str, step: str | None) -> Iterator[str]:
    """The columns, such as people or days, for each of whose values the ids may count from 1 again: in the order of the
    steps, the rows of each value are together in a sequence, and in more sequences than by mistake there are several.
    If no name says it, the file has the rows of each value together, and so those of each sequence of it.
    """
    codes, num_sequences = columns.codes(sequence), columns.num_distinct(sequence)
    order = columns.order(sequence, step)
    likely = columns.of_kind("text", "whole", "time", exclude=[name for name in (sequence, step) if name])
    candidates = named = named_like(GROUP_NAMES[:-1], likely)  # without days, which follow each other
    if step and not columns.is_together(sequence):  # without a step, the error names the first one that repeats
        together = [name for name in likely if columns.is_together(name) and columns.frame[name].notna().all()]
        candidates = [*named, *together]
    for column in dict.fromkeys(candidates):
        num_values = columns.num_distinct(column) + 1  # with that of an empty cell
        pairs = codes * num_values + columns.codes(column)
        orders = [order] if column in named else [order, np.arange(len(codes))]
        distinct, num_runs = np.unique(pairs), {1 + np.count_nonzero(np.diff(pairs[rows])) for rows in orders}
        num_shared = np.count_nonzero(np.unique(distinct // num_values, return_counts=True)[1] > 1)
        if num_runs == {len(distinct)} and 2 * len(distinct) <= len(pairs):
            if num_shared > MISTAKEN_SHARE * num_sequences:
                yield column


def follows_days(columns: TableColumns, name: str) -> bool:
    """Whether a column changes only at midnight, in times that go on there as elsewhere, as the day of a month does."""
    for time in columns.of_kind("time"):
        seconds = columns.numbers(time).to_numpy()
        order = np.argsort(seconds, kind="stable")
        distances, days = np.diff(seconds[order]), seconds[order] // DAY_SECONDS
        starts = np.diff(columns.codes(name)[order]) != 0
        if starts.sum() > 1 and (np.diff(days)[starts] == 1).all():
            return bool((distances[starts] <= 2 * np.median(distances)).all())
    return False


def find_ids(columns: TableColumns) -> list[str]:
    """Repeating columns: first by name, then with equal cells in adjacent rows, then more distinct ids, then text: an
    age may be another one in each sequence. Of ids of the same name, those of people or devices, which have several
    sequences, come last.
    """
    candidates = [name for name in columns.of_kind("text", "whole", "time") if not holds_clocks(columns, name)]
    names, people, labelled = (
        named_like(SEQUENCE_NAMES, candidates),
        named_like(GROUP_NAMES, candidates),
        labelled_ids(columns),
    )
    likely, ranked = list[tuple[str, bool]](), list[tuple[Any, ...]]()
    are_times = bool(times_of_steps(columns))
    classes = named_like([name for name in LABEL_NAMES if name not in WEAK_NAMES], candidates)
    sure = {*names, *people, *labelled, *classes}
    for column in candidates:
        is_together = columns.is_together(column)
        is_likely = column in (*names, *labelled) or is_together or columns.kinds[column] == "text"
        empty = ("", None, np.nan)  # most are, from the first on: marks of a few rows
        if is_likely and columns.frame[column].iloc[:1].isin(empty).all():
            is_likely = columns.frame[column].isin(empty).mean() <= MOST_REPEATS
        may_be_kind = column not in sure and not are_times and columns.num_distinct(column) <= FEW_KINDS
        if may_be_kind and in_stretches(columns.frame[column]) == (False, False):
            is_likely = False
        if 2 <= columns.num_distinct(column) <= len(columns.frame) / 2 and is_likely:
            likely.append((column, is_together))
    around = [column for column, is_together in likely if is_together]
    for place, (column, is_together) in enumerate(likely):
        num, is_named = columns.num_distinct(column), column in names
        is_named = is_named and (is_together or not counts_within(columns, column, around))
        # Of two matching names (trial, sample), the sequence id has its equal cells in adjacent rows.
        word = min(number for number, name in enumerate(SEQUENCE_NAMES) if name in words_of(column)) if is_named else 0
        is_of_people, is_text = column in people, columns.kinds[column] == "text"
        order = (-num, not is_of_people, not is_text, names.index(column) if is_named else place)
        ranked.append((not is_named, not is_together, word, is_named and is_of_people, *order, column))
    return [column for *_, column in sorted(ranked)]


def holds_clocks(columns: TableColumns, name: str) -> bool:
    """Whether all cells of a column, which is not called like a sequence, are times without a date, as 34:22.9."""
    if columns.kinds[name] != "text" or named_like(SEQUENCE_NAMES, [name]):
        return False
    cells = columns.frame[name].drop_duplicates().dropna().astype(str)
    return any(":" in cell for cell in cells[:1]) and bool(
        cells.str.fullmatch(r"\d+:[0-6]\d([:.]\d+)*").all()
    )  # 34:60.0 is rounded


def counts_within(columns: TableColumns, column: str, ids: Sequence[str]) -> bool:
    """Whether `column` increases from row to row for each value of one of `ids`, as a trial does that has one row for
    each person, and no text follows it, as a label follows its sequence.
    """
    if columns.kinds[column] != "whole":
        return False
    values, num_values = columns.numbers(column).to_numpy(), columns.num_distinct(column)
    for text in (columns.frame[name] for name in columns.of_kind("text", exclude=[column])):
        pairs = pd.DataFrame({"id": values, "text": text}).drop_duplicates()
        if len(pairs) == num_values > 1 < pairs["text"].nunique() and not (text.isna() | (text == "")).any():
            return False
    for name in (name for name in ids if columns.kinds[name] != "time" and not named_like(STEP_NAMES, [name])):
        order, same = rows_together(columns, name)
        if not (np.diff(values[order])[same] <= 0).any():  # an empty cell may be a row of totals
            return True
    return False


def labelled_ids(columns: TableColumns) -> list[str]:
    """The ids of labelled sequences, whatever their names: the rows of each value are together, in the file or in the
    order of their times, and another text column, or one called label, has one word there. No days, months and so on.
    """
    steps = [
        name for name in named_like(STEP_NAMES, columns.of_kind("time", "whole", "number")) if not columns.repeats(name)
    ]
    orders = [None, *(np.argsort(columns.numbers(step), kind="stable") for step in steps)]
    candidates = columns.of_kind("text", "whole")
    of_calendar = {*named_like(CALENDAR_NAMES, candidates)}
    candidates = [name for name in candidates if name not in of_calendar and not follows_days(columns, name)]
    candidates = [name for name in candidates if any(columns.is_together(name, order) for order in orders)]
    labels = {*columns.of_kind("text"), *named_like(LABEL_NAMES[:3], columns.of_kind("whole", "flag"))}
    num_distinct = {name: columns.num_distinct(name) for name in {*candidates, *labels}}
    codes = {name: columns.codes(name) for name in num_distinct}
    ids = []
    for name in candidates:
        for label in labels:
            if name != label and 2 <= num_distinct[label] <= num_distinct[name] / 2 <= len(columns.frame) / 8:
                if len(pd.unique(codes[name] * len(columns.frame) + codes[label])) == num_distinct[name]:
                    ids.append(name)
                    break
    return ids
