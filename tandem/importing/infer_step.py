"""The column that orders the rows of each sequence, and others that do so too: clocks and counters."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from tandem.importing.columns import FEW, Choice, TableColumns, is_id, named_like, shortened
from tandem.importing.names import COUNTING_NAMES, STEP_NAMES
from tandem.terminal.command import NO_ANSWER, CommandError

INCREASES = "it increases from row to row in every sequence"
USUAL_BLOCK = 3  # rows, at least, of blocks in which a number rises
LONG = 10  # units of a clock that is read in whole ones
UNEVEN = 0.01  # of the usual distance of two rows, by which a clock's may differ
MANY_ROWS = 100  # at one number of a clock, if it counts seconds
JITTER = 0.15  # the same, of a clock that is read when a sample arrives


def likeliest_step(columns: TableColumns, sequence: str, taken: Sequence[str] = ()) -> tuple[str | None, str]:
    """The likeliest step; None if there is none. Of two signals that increase, the user says which one is a clock."""
    candidates = columns.of_kind("whole", "time", "number", exclude=[sequence, *taken])
    steps = find_steps(columns, sequence, candidates)
    step, why = next(steps, (None, ""))
    if step is None or columns.kinds[step] == "time" or named_like(STEP_NAMES, [step]):
        return step, why
    others = [column for column, _ in steps]
    if others and not is_even(columns, sequence, step):
        options = " or ".join(f"--step {shlex.quote(column)}" for column in (step, *others))
        raise CommandError(
            f"{columns.name}: {shortened([step, *others])} increase in every sequence, none in equal steps, so "
            f"each may be the step; give {options}; the others are features then",
            NO_ANSWER,
        )
    return step, why


def find_steps(columns: TableColumns, sequence: str, candidates: Sequence[str] | None = None) -> Iterator[Choice]:
    """Columns (of those given) that increase in every sequence, or have a matching name and no duplicates within one;
    the likeliest first: by name, then times, then what increases in equal steps, as a clock and a counter do, and the
    same in every sequence, then other numbers.
    """
    order, same = rows_together(columns, sequence)
    candidates = columns.of_kind("whole", "time", "number", exclude=[sequence]) if candidates is None else [*candidates]
    names, unnamed = named_like(STEP_NAMES, candidates), []
    for column in dict.fromkeys((*names, *candidates)):
        values = columns.numbers(column).to_numpy()
        ordered = values[order]
        if (ordered[1:] > ordered[:-1])[same].all() and np.isfinite(values).all():
            if column in names:
                yield column, INCREASES
            elif not is_id(column):
                unnamed.append(column)
        elif column in names and not columns.frame.duplicated([sequence, column]).any():
            yield column, "by its name; no value repeats within a sequence"
    if len(unnamed) > 1:
        unnamed.sort(key=lambda column: likelihood_of_a_clock(columns, sequence, column))
    yield from ((column, INCREASES) for column in unnamed)


def find_blocks(columns: TableColumns) -> Iterator[tuple[str, np.ndarray]]:
    """Columns that rise from row to row and begin again in block after block, those called like steps first; and
    whether each row begins a block (R,).
    """
    numbers = columns.of_kind("time", "whole", "number")
    for name in dict.fromkeys([*named_like(STEP_NAMES, numbers), *numbers]):
        starts = np.r_[True, np.diff(columns.numbers(name).to_numpy()) <= 0]
        if 2 <= starts.sum() <= len(starts) / USUAL_BLOCK:
            yield name, starts


def advice_on_recordings(columns: TableColumns, sequence: str = "", flags: str = "") -> str:
    """How to number the recordings if a clock begins again with each; empty if none does, or if nearly each has its own
    value of `sequence`. A count that only wraps has blocks of equal length. `flags`: further options to give.
    """
    num_sequences = columns.num_distinct(sequence) if sequence else 0
    for step, starts in find_blocks(columns):
        is_clock = named_like(STEP_NAMES, [step]) or columns.frame[step][starts].nunique() == 1
        if is_clock and columns.kinds[step] != "time" and 2 * num_sequences <= starts.sum():
            lengths = np.diff(np.flatnonzero(starts))[1:]
            advice = (
                f"{columns.shown}: {step!r} begins again {starts.sum() - 1:,} times, and no column tells the "
                f"recordings apart; number them: table['recording'] = (pandas.to_numeric(table[{step!r}]).diff() <= 0)"
                f".cumsum(); then give --sequence recording --step {shlex.quote(step)}{flags}"
            )
            if len(lengths) > 1 and len({*lengths}) == 1:
                advice += (
                    "; or if it only wraps, as a count up to 255, count the rows: table['step'] = range(len(table))"
                )
            return advice
    return ""


def times_of_steps(columns: TableColumns, *exclude: str) -> list[str]:
    """Columns that may be the times of steps, by their names and kinds."""
    named_so = named_like(STEP_NAMES, columns.of_kind("whole", "number", "time", "odd", "text", exclude=exclude))
    return list(dict.fromkeys([*named_so, *columns.of_kind("time", exclude=exclude)]))


def likelihood_of_a_clock(columns: TableColumns, sequence: str, column: str) -> int:
    """A rank, the likeliest first, of a column that increases in every sequence."""
    if columns.kinds[column] == "time":
        return 0
    if not is_even(columns, sequence, column):
        return 4 if columns.kinds[column] == "number" else 3
    order, same = rows_together(columns, sequence)
    starts = columns.numbers(column).to_numpy()[order][np.r_[True, ~same]]
    return 1 if (starts == starts[0]).all() else 2


def rows_together(columns: TableColumns, sequence: str) -> tuple[np.ndarray, np.ndarray]:
    """The order (R,) that puts a sequence's rows together as they follow in the file, and whether each two neighbours
    in it are of one sequence (R - 1,).
    """
    order = columns.order(sequence)
    codes = columns.codes(sequence)[order]
    return order, codes[1:] == codes[:-1]


def is_clock(columns: TableColumns, sequence: str, step: str, column: str) -> bool:
    """Whether `column` rises or falls with the step in every sequence, and is called so or does it in about equal steps
    every few rows, as the rows up to a failure do, from numbers that are less than a step apart or mostly differ: a
    few, each of many sequences, may be a setting, as of a force. One that is called like a count may begin again, as
    after 255.
    """
    codes, order, numbers = columns.codes(sequence), columns.order(sequence, step), columns.numbers(column).to_numpy()
    is_named, is_count = (bool(named_like(names, [column])) for names in (STEP_NAMES, COUNTING_NAMES))
    first_distances = np.diff(numbers[order[:FEW]])[np.diff(codes[order[:FEW]]) == 0]
    if not is_count and (first_distances > 0).any() and (first_distances < 0).any():
        return False
    same, values = np.diff(codes[order]) == 0, numbers[order]
    if is_count and are_even(np.abs(np.diff(values)[same])):
        return True
    is_new = np.r_[True, ~same | (np.diff(values) != 0)]  # several rows may have one time
    values, is_first, rows_each = values[is_new], np.r_[True, ~same][is_new], np.diff(np.flatnonzero(is_new))
    distances, starts = np.diff(values)[~is_first[1:]], values[is_first]
    if not ((distances > 0).all() or (distances < 0).all()) or MANY_ROWS * len(distances) < len(codes):
        return False
    are_times = np.ptp(starts) < abs(np.median(distances)) or 3 * len(np.unique(starts)) > len(starts)
    are_even_times = are_even(np.abs(distances), JITTER) and are_even(rows_each[~is_first[1:]], JITTER)
    return bool(is_named or (are_times and are_even_times))


def is_even(columns: TableColumns, sequence: str, column: str) -> bool:
    """Whether the numbers increase by the same amount from row to row, in all sequences; jumps of a few are gaps."""
    order, same = rows_together(columns, sequence)
    return are_even(np.diff(columns.numbers(column).to_numpy()[order])[same])


def are_even(distances: np.ndarray, tolerance: float = UNEVEN) -> bool:
    """Whether there are some, and nearly all are equal, or differ by the rounding of a clock: 15 and 16 ms."""
    if not len(distances):
        return False
    usual = np.median(distances)
    rounding = 1 / usual if usual >= LONG and (distances % 1 == 0).all() else 0
    return bool((np.abs(distances / usual - 1) < max(tolerance, 1.01 * rounding)).mean() > 0.9)
