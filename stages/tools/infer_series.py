"""The columns of one long series, its interval, transform and windows, each with its reason. Reads no file."""

import numpy as np

from stages.data.series import TIME_FORMS, UNITS
from stages.tools.columns import Choice, Choose, Columns, find_features, named

# Columns whose name holds one of these words come first, in the order of the words.
TIME_NAMES = "time timestamp datetime date".split()
TARGET_NAMES = "close target value price y".split()
OF_SERIES = ("time", "target", "interval", "transform", "horizon", "input_steps")  # options of this kind of table alone


def infer_series(columns: Columns, choose: Choose) -> None:
    times, num_rows = find_times(columns), len(columns.frame)
    time = choose("time", lambda: (times[0] if times else None, "its times differ from row to row"))
    if time is None or columns.repeats(time) or columns.kinds[time] not in ("time", "whole"):
        found = f" ({time!r}: {columns.num_distinct(time):,} different in {num_rows:,} rows)" if time else ""
        raise ValueError(
            f"{columns.shown} has no column of times that differ from row to row{found}; name one with --time: "
            f"{TIME_FORMS}; of several series in one table keep the rows of one"
        )
    choose("task", lambda: ("forecast", f"{time!r} makes it one series"))
    target = choose("target", lambda: find_target(columns, columns.numeric(exclude=[time])))
    taken = (time, target)
    numeric = columns.of_kind("whole", "number", exclude=taken)
    features = choose("features", lambda: find_features(columns, numeric, taken))
    choose("interval", lambda: find_interval(columns, time))
    is_positive = all((columns.numbers(column).dropna() > 0).all() for column in (target, *features))
    transform = ("log-return", "all above 0") if is_positive else ("difference", "not all above 0")
    choose("transform", lambda: (transform[0], f"the columns are {transform[1]}"))
    input_steps = choose("input_steps", lambda: (max(8, min(48, num_rows // 50)), "a fiftieth of the rows, 8 to 48"))
    choose("horizon", lambda: (max(1, input_steps // 12), "a twelfth of the input steps"))
    choose("missing", lambda: ("skip", ""))  # without a reason: only a dry run shows how much is missing


def find_times(columns: Columns) -> list[str]:
    """Dates, then whole numbers with a telling name (seconds since 1970); those that repeat come last."""
    return sorted([*columns.of_kind("time"), *named(TIME_NAMES, columns.of_kind("whole"))], key=columns.repeats)


def find_target(columns: Columns, numeric: list[str]) -> Choice:
    if names := named(TARGET_NAMES, numeric):
        return max(names, key=numeric.index), "named so (--target chooses)"
    first = f"the first of {len(numeric)} numeric columns (--target chooses)"
    return numeric[0], first if numeric[1:] else "the only numeric column"


def find_interval(columns: Columns, time: str) -> Choice:
    """The most frequent difference of two neighbouring times."""
    seconds, counts = np.unique(np.diff(np.unique(columns.numbers(time).dropna())).round(6), return_counts=True)
    most = float(seconds[counts.argmax()])
    share = counts[seconds % most == 0].sum() / counts.sum()
    if most % 1 or share < 0.9:
        raise ValueError(
            f"{columns.name}: the times in {time!r} are most often {most:g} s apart, and {share:.0%} of all "
            "differences are multiples of that; choose the --interval to put them on, from 1s, e.g. 15min, 1h, 7d"
        )
    unit = next(unit for unit in reversed(UNITS) if most % UNITS[unit] == 0)
    return f"{most / UNITS[unit]:.0f}{unit}", f"{counts.max() / counts.sum():.1%} of the times are so far apart"
