"""The columns of one long series, its interval, transform, season and windows, each with its reason. Reads no file.

Choices that depend on values use only the training time, so the test data does not influence the settings.
"""

import re
import shlex
from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
import pandas as pd

from tandem.data.series import MAX_POINTS_PER_ROW, forward_filled
from tandem.data.times import DAY, DIGIT_FORMS, SECOND, TIME_FORMS, first_day, steps_for
from tandem.importing.columns import (
    DAY_SECONDS,
    MOST_CLASSES,
    Choice,
    Choose,
    NotFound,
    TableColumns,
    advice_on_events,
    find_features,
    named_like,
    words_of,
)
from tandem.importing.infer_label import are_recorded, stretches_of
from tandem.importing.infer_step import are_even
from tandem.importing.names import CALENDAR_NAMES, GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES
from tandem.importing.recipe import SPLIT
from tandem.importing.seasons import Season, calendar_seasons, find_season
from tandem.params.intervals import FIXED, Interval, parse_interval
from tandem.params.schema import NO_GROUPS
from tandem.terminal.command import NO_ANSWER, CommandError

# Columns whose name contains one of these words come first, in the order of the words.
TIME_NAMES = "time timestamp datetime date period month quarter year week day".split()
TARGET_NAMES = "close target value price y".split()
ABOUT_A_VALUE = {*"time date count code id level quality number volume".split()}  # close_time, value_quality
# Options that only this kind of table has.
OF_SERIES = ("time", "target", "interval", "transform", "season", "horizon", "input_steps")
NO_SEASON = "none"
WELL = r"[A-P]\d\d?"  # of a plate, which may have a sequence in each
MOST_NAMED = 8  # columns in a question
# Days between neighbouring times of a calendar interval; daylight saving time adds or removes an hour.
APART = {"month": (28, 31), "quarter": (90, 92), "6month": (181, 184), "year": (365, 366)}
LATE = 0.1  # the share of the rows before a feature's first value: a window needs one
EVENTS_VARY = 2.0  # the upper quartile of the distances of events, relative to the lower one: 4.8 by chance
HOUR = DAY // 24
PARTS_OF_TIMES = dict(year=(1900, 2100), month=(1, 12), day=(1, 31), hour=(0, 23), minute=(0, 59), second=(0, 59))
USUAL_HORIZONS = {"year": 4, "quarter": 4, "month": 12, "week": 4, "business-day": 5, "day": 7}
PARTS_OF_DAYS = (24, 48, 96, 144, 288, 1440)  # of so many numbers, each stands for an equal part of a day
MAX_HORIZON = 60
MAX_PAST = 0.6  # of the training time, in a window and its horizon: the rest makes windows
USUAL_PAST = 24  # steps of a window without a season
MAX_SEASONS, MANY_STEPS = 8, 200  # of a window: so many seasons, as long as they have at most so many steps
FEWEST_TIMES = 8  # of each of several series in one table
EVEN = 10.0  # largest level / smallest level, up to which additive and multiplicative forms are compared


def infer_series(columns: TableColumns, choose: Choose) -> None:
    times = find_times(columns)
    time = choose("time", lambda: (times[0] if times else None, "its times mostly differ from row to row"))
    if time and (advice := columns.advice_on_clock(time)):
        raise NotFound(advice)
    repeats = bool(time and columns.repeats(time))
    if repeats and 2 * columns.num_distinct(time) > len(columns.frame) and not advice_on_several_series(columns):
        repeats = False  # a few times have more than one row, of which the last one counts
    if time is None or repeats or columns.kinds[time] not in ("time", "whole"):
        detail = f" ({time!r}: {columns.num_distinct(time):,} different in {len(columns.frame):,} rows)" if time else ""
        raise ValueError(
            f"{columns.shown} has no column of times that differ from row to row{detail}; name one with --time: "
            f"{TIME_FORMS}; of several series in one table keep the rows of one"
            + (advice_on_events(columns, time) if time and columns.kinds[time] == "time" else "")
        )
    choose("task", lambda: ("forecast", f"the times in {time!r} (nearly) never repeat, so the table is one series"))
    stamps = stamps_of(columns, time)
    check_not_several_clocks(columns, time, stamps)
    target = choose("target", lambda: find_target(columns, columns.numeric(exclude=[time]), time, stamps))
    if columns.kinds[target] == "odd":
        raise ValueError(f"{columns.name}: {target!r} holds {columns.advice(target)}")
    if columns.never_changes(target):
        raise ValueError(
            f"{columns.name}: {target!r} holds one value only, so there is nothing to forecast; --target names another"
        )
    taken = (time, target)
    numeric = columns.of_kind("whole", "number", "flag", exclude=taken)
    labels = named_like(LABEL_NAMES[:3], columns.of_kind("whole", "flag", exclude=taken))
    why_not = dict.fromkeys(labels, "a label, by its name")
    why_not |= {name: "counts the rows, or is their time" for name in numeric if rises_with_time(columns, name, stamps)}
    order = np.argsort(stamps, kind="stable")
    start = empty_until(columns, target, order)
    late = {name: empty_until(columns, name, order) - start for name in numeric}
    why_not |= {
        name: f"empty in the first {start + share:.0%} of the rows" for name, share in late.items() if share > LATE
    }
    features = choose("features", lambda: find_features(columns, numeric, taken, why_not))
    interval = parse_interval(choose("interval", lambda: find_interval(columns, time, stamps)))
    levels = training_levels(stamps, columns.numbers(target).to_numpy(dtype=np.float64), interval)
    lowest = min(columns.numbers(column).min() for column in (target, *features))
    transform = choose("transform", lambda: find_transform(levels, lowest > 0))
    values = np.log(levels) if transform == "log-return" and (levels > 0).all() else levels
    baseline_seasons: list[int] = []  # seasons used only for the baseline, not to lengthen the window

    def infer_season() -> Choice:
        best, candidates = find_season(values, interval)
        if best is None and interval.unit in ("month", "quarter") and candidates:
            baseline_seasons.append(candidates[0].steps)
            return candidates[0].steps, (
                f"a year, as is usual for {interval.unit}s; it explains {max(0.0, candidates[0].strength):.0%} of the "
                "detrended variance in the training data, so window and horizon ignore it (--season sets another)"
            )
        return season_choice(best, candidates)

    season = choose("season", infer_season)
    steps = 0 if season == NO_SEASON or baseline_seasons else int(season)
    num_scored = max(1, int(len(levels) / SPLIT["train"] * min(SPLIT["val"], SPLIT["test"])))
    horizon = choose("horizon", lambda: find_horizon(steps, interval, num_scored, len(levels)))
    choose("input_steps", lambda: find_input_steps(steps, horizon, len(levels)))
    choose("missing", lambda: ("skip", ""))  # without a reason: only a dry run shows how much is missing


def find_times(columns: TableColumns) -> list[str]:
    """Dates, then whole numbers with a matching name (seconds since 1970, years); columns with duplicates come last."""
    return sorted([*columns.of_kind("time"), *named_like(TIME_NAMES, columns.of_kind("whole"))], key=columns.repeats)


def advice_on_times(columns: TableColumns) -> str:
    """How to write times that are not read; empty if there are none."""
    parts = {name.lower(): name for name in columns.of_kind("whole")}
    if {"year", "quarter"} <= {*parts} and "month" not in parts:
        code = f"table['time'] = table[{parts['year']!r}].str[:4] + '-Q' + table[{parts['quarter']!r}].str[:1]"
        drop = f"table = table.drop(columns={[parts['year'], parts['quarter']]})"
        return f"'year' and 'quarter' are parts of a time; join them: {code}; {drop}"
    are_named = {"year", "month"} <= {*parts}
    names = [parts[name] for name in PARTS_OF_TIMES if name in parts] if are_named else parts_by_range(columns)
    if names:
        first_day = "" if "day" in parts else ".assign(day=1)"
        renamed = first_day if are_named else f".set_axis({[*PARTS_OF_TIMES][: len(names)]}, axis=1)"
        code = f"table['time'] = pandas.to_datetime(table[{names}]{renamed}); table = table.drop(columns={names})"
        return f"{', '.join(names)} are parts of a time; join them: {code}"
    are_joined = any(not columns.repeats(name) for name in columns.of_kind("time"))
    ways = [f"{name!r} holds {columns.advice(name)}" for name in columns.of_kind("odd")]
    if ways := [way for way in ways if not (are_joined and "join them with the dates" in way)]:
        return ways[0]
    days = [name for name in columns.of_kind("time") if (columns.numbers(name).dropna() % DAY_SECONDS == 0).all()]
    hours = named_like(["hour", "hr", "hours"], columns.of_kind("whole"))
    for part in columns.of_kind("whole") if days else ():
        numbers, num = columns.numbers(part), columns.num_distinct(part)
        low, is_hour = int(numbers.min()), part in hours and numbers.between(0, 24).all()
        if is_hour or (num in PARTS_OF_DAYS and numbers.max() - low == num - 1 and low in (0, 1)):
            minutes = 60 if is_hour else 24 * 60 // num
            count = f"pandas.to_numeric(table[{part!r}])"
            count = count if is_hour or low == 0 else f"({count} - 1)"
            offset = f"pandas.to_timedelta({count} * {minutes}, unit='min')"
            code = f"table['time'] = pandas.to_datetime(table[{days[0]!r}]) + {offset}"
            drop = f"table = table.drop(columns=[{days[0]!r}, {part!r}])"
            return f"{days[0]!r} and {part!r} are parts of a time; join them: {code}; {drop}"
    first = [name for name in [*columns.kinds][:1] if columns.kinds[name] == "number"]  # in any language
    clocks = [*named_like(TIME_NAMES, columns.of_kind("whole", "number")), *first]
    return next(filter(None, (columns.advice_on_clock(name) for name in clocks if not columns.repeats(name))), "")


def parts_by_range(columns: TableColumns) -> list[str]:
    """Columns side by side of which each has the numbers of a part of a time, from the year to the first one with which
    no time repeats; empty if there are none.
    """
    names = [*columns.kinds]
    for place in range(len(names) - 2):
        run = names[place : place + len(PARTS_OF_TIMES)]
        for num, (name, ends) in enumerate(zip(run, PARTS_OF_TIMES.values(), strict=False), 1):
            if columns.kinds[name] != "whole" or not columns.numbers(name).between(*ends).all():
                break
            if num >= 3 and not columns.frame[run[:num]].duplicated().any():
                return run[:num]
    return []


def advice_on_several_series(columns: TableColumns, of_text: bool = False, most_repeated: float = 0.01) -> str:
    """How to make one series of a table in which each value of a column, or of two, has about the same times; else
    empty. `of_text`: a single column must be text, because a number may count the rows of a day. `most_repeated`: the
    share of rows up to which a series may have the time of another row.
    """
    num_rows, names = len(columns.frame), columns.of_kind("text", "whole")
    for time in filter(columns.repeats, columns.of_kind("time")):
        counts = {name: columns.num_distinct(name) for name in [time, *names]}
        for keys in map(list, chain(combinations(names, 1), combinations(names, 2))):
            if not any(columns.kinds[key] == "text" for key in keys) and (of_text or keys[1:]):
                continue
            grid = np.prod([counts[name] for name in [time, *keys]], dtype=float)
            if min(counts[key] for key in keys) < 2 or not (1 - most_repeated) * num_rows <= grid <= 2 * num_rows:
                continue
            if (repeated := columns.frame.duplicated([*keys, time]).sum()) > most_repeated * num_rows:
                continue
            row = columns.frame.groupby(keys, sort=False)[time].transform("size").argmax()  # of the longest series
            first_cells = [(key, str(columns.frame[key].iloc[row])) for key in keys]
            rows = " & ".join(f"(table[{key!r}].astype(str) == {cell!r})" for key, cell in first_cells)
            instruction = f"one of several series: table = table[{rows if keys[1:] else rows[1:-1]}]"
            numbers = columns.of_kind("whole", "number", exclude=keys)
            if len(numbers) == len(keys) == 1 and not repeated:
                pivot = f"index={time!r}, columns={keys[0]!r}, values={numbers[0]!r}"
                code = f"table.pivot({pivot}).add_prefix({keys[0] + ' '!r}).reset_index()"  # a number is no name
                instruction = f"several series in a column each: table = {code}"
            return f"for a forecast write {instruction}"
    return ""


def check_not_several_clocks(columns: TableColumns, time: str, stamps: np.ndarray) -> None:
    """Raises ValueError, with the code that keeps one series, if each of a few texts or ids has times of its own, about
    equally far apart and over nearly the whole range, and most rows have another one than the row before in time.
    """
    order = np.argsort(stamps, kind="stable")
    times, seconds = pd.to_datetime(stamps[order]), pd.Series(stamps[order] / SECOND)
    of_calendar = (times.day_of_week, times.hour, times.month)  # a weekday has regular times too
    ids = named_like((*GROUP_NAMES, *SEQUENCE_NAMES), columns.of_kind("whole"))
    for name in (*columns.of_kind("text"), *ids):
        codes = pd.Series(columns.codes(name)[order])
        by_code = seconds.groupby(codes)
        if not 2 <= len(by_code) <= len(codes) / FEWEST_TIMES or (codes.diff() != 0).mean() < 0.5:
            continue
        distances = by_code.diff()
        ratios = distances / distances.groupby(codes).transform("median")
        is_even = (ratios.dropna().between(0.75, 1.25).groupby(codes).mean() > 0.8).all()
        is_long = (by_code.max() - by_code.min() > 0.8 * (seconds.max() - seconds.min())).all()
        if is_even and is_long and not any((codes.groupby(part).nunique() == 1).all() for part in of_calendar):
            row = f"table[{name!r}].astype(str) == {str(columns.frame[name].iloc[0])!r}"
            raise ValueError(
                f"{columns.name}: each {name!r} has regular times of its own, as several series do; for a "
                f"forecast write one of several series: table = table[{row}]; or leave the column {name!r} out"
            )


def find_target(columns: TableColumns, numeric: list[str], time: str, stamps: np.ndarray) -> Choice:
    numeric = [name for name in numeric if not rises_with_time(columns, name, stamps)] or numeric
    units, changing = (
        [name for name in names if not columns.never_changes(name)]
        for names in (named_like(["unit", "units"], columns.of_kind("text")), numeric)
    )
    if units and len(changing) == 1:
        raise ValueError(
            f"{columns.name}: {changing[0]!r} has several units (in {units[0]!r}), so it is more than one series; keep "
            "the rows of one, or name it with --target"
        )
    if names := named_like(TARGET_NAMES, numeric):
        names = [name for name in names if not words_of(name) & ABOUT_A_VALUE] or names
        # Of fuel_price and sales, the price is rather a feature; of btc_open and btc_close, btc tells nothing.
        shared = {*TARGET_NAMES}.union(set.intersection(*map(words_of, numeric)))
        sure = [name for name in names if re.match(rf"(?i)[^a-z]*({'|'.join(TARGET_NAMES)})(?![a-z])", name)]
        names = sure or [name for name in names if words_of(name) <= shared]
    if names:
        return max(names, key=numeric.index), "by its name (--target selects another)"
    numeric = [name for name in numeric if not columns.never_changes(name)] or numeric
    flags = [name for name in numeric if columns.kinds[name] == "flag" or columns.num_distinct(name) == 2]
    numeric = [name for name in numeric if name not in flags] or numeric
    with_units = [name for name in columns.of_kind("odd") if columns.advice(name).startswith("numbers")]
    if len(numeric := [*numeric, *with_units]) > 1:
        codes = [name for name in columns.of_kind("whole") if columns.num_distinct(name) <= MOST_CLASSES]
        kinds = [name for name in codes if columns.num_distinct(name) > np.ptp(columns.numbers(name).dropna())]
        likely = [name for name in numeric if name not in kinds] or numeric
        first = dict.fromkeys([*likely[: MOST_NAMED - 1], likely[-1], *numeric])  # a month or a kind of day comes last
        targets = [f"--target {shlex.quote(name)}" for name in [*first][:MOST_NAMED]]
        targets += ["another column"] * (len(numeric) > MOST_NAMED)
        codes = [name for name in codes if name not in (*flags, *named_like(CALENDAR_NAMES, codes))]
        labels = [*columns.of_kind("text"), *flags, *codes]
        single = columns.as_one_recording()
        named = [name for name in named_like(LABEL_NAMES[:3], labels) if columns.num_distinct(name) <= MOST_CLASSES]
        labels = [
            name
            for name in labels
            if name in named
            or are_recorded(stretches_of(single, NO_GROUPS, time, name)[0], is_series=True, is_requested=False)
        ]
        flags_of = " or ".join(f"--label {shlex.quote(name)}" for name in labels[:MOST_NAMED])
        windows = f"; or {flags_of} to learn that column from windows" * bool(labels)
        wells = [name for name in numeric if re.fullmatch(WELL, name)]
        if 2 * len(wells) > len(numeric):
            others = [name for name in columns.frame.columns if name not in wells]
            windows += f"; or if each is a sequence, write them below each other: table = table.melt({others!r}, "
            windows += "var_name='well'); then give --sequence well"
        raise CommandError(
            f"{columns.name} is one series with {len(numeric)} columns that could be forecast; give "
            f"{' or '.join(targets)}{windows}",
            NO_ANSWER,
        )
    return numeric[0], "the only numeric column"


def rises_with_time(columns: TableColumns, column: str, stamps: np.ndarray) -> bool:
    """Whether a column counts the rows, or changes with the time at a constant rate; jumps of a few are gaps."""
    numbers = columns.numbers(column)
    if columns.kinds[column] == "whole" and (np.abs(np.diff(numbers)) == 1).all():
        return True
    times, first_rows = np.unique(stamps, return_index=True)
    first_rows = first_rows[times != np.iinfo(np.int64).min]
    rates = np.diff(numbers.to_numpy(np.float64)[first_rows]) / np.diff(stamps[first_rows])
    return bool(are_even(rates) and ((rates > 0).all() or (rates < 0).all()))


def are_dates_without_time(columns: TableColumns, time: str) -> bool:
    """Whether the times are weeks, months, quarters, years or dates in digits (194901, 19490131), not seconds or
    ISO 8601.
    """
    texts = columns.frame[time].dropna().astype(str).str.strip()
    if columns.kinds[time] == "whole":
        return any(texts.str.fullmatch(form).all() for form in DIGIT_FORMS)
    return columns.kinds[time] == "time" and first_day(texts.iloc[0]) is not None


def stamps_of(columns: TableColumns, time: str) -> np.ndarray:
    """(R,) int64 nanoseconds since 1970; cells without a time become the smallest int64."""
    cells = columns.frame[time]
    if are_dates_without_time(columns, time):
        cells = cells.map(lambda cell: first_day(str(cell).strip()), na_action="ignore")
    elif columns.kinds[time] == "whole":
        cells = pd.to_datetime(pd.to_numeric(cells, errors="coerce"), unit="s", errors="coerce", utc=True)
    times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True).dt.tz_convert(None)
    return times.to_numpy().astype("datetime64[ns]").astype(np.int64)


def find_interval(columns: TableColumns, time: str, stamps: np.ndarray) -> Choice:
    """The calendar's interval if the times follow it, else the most frequent difference of neighbours."""
    times = np.unique(stamps[stamps != np.iinfo(np.int64).min])
    if len(times) < 2:
        shown = f"{time!r} holds {len(times)} different times in cells like {columns.frame[time].iloc[0]}"
        raise ValueError(f"{columns.name}: {shown}; a series needs more, written as {TIME_FORMS}")
    lower_quartile, upper_quartile = np.quantile(np.diff(times), [0.25, 0.75])
    is_irregular = upper_quartile > EVENTS_VARY * lower_quartile
    distances, counts = np.unique(np.diff(times), return_counts=True)
    for name, (low, high) in APART.items():
        share = counts[(distances >= low * DAY - HOUR) & (distances <= high * DAY + HOUR)].sum() / counts.sum()
        if share > 0.5:
            return name, f"{share:.1%} of neighbouring times are {low} to {high} days apart"
    usual = int(distances[counts.argmax()])
    days = np.round(distances / DAY)
    if ((np.abs(distances - days * DAY) <= HOUR) & (days > 0)).all():
        is_weekday = (times // DAY + 3) % 7 < 5  # 1970-01-01 was a Thursday
        if usual == DAY and is_weekday.all() and counts[days >= 3].sum() >= 2:
            return "business-day", "the times are days, and none of them a Saturday or Sunday"
        name = {1: "day", 7: "week"}.get(round(usual / DAY), "")
        if name and (distances != days * DAY).any():
            return name, "the times are whole days apart, except at clock changes"
        if name and are_dates_without_time(columns, time):
            return name, f"{counts.max() / counts.sum():.1%} of the times are so far apart"
    share = counts[distances % usual == 0].sum() / counts.sum()
    if usual % SECOND or share < 0.9:
        raise ValueError(
            f"{columns.name}: the times in {time!r} are most often {usual / SECOND:g} s apart, and {share:.0%} of all "
            f"differences are multiples of that; choose the --interval to put them on, e.g. {examples_from(usual)}"
            + (advice_on_events(columns, time) if is_irregular and columns.kinds[time] == "time" else "")
        )
    return as_interval(usual // SECOND), f"{counts.max() / counts.sum():.1%} of neighbouring times are this far apart"


def empty_until(columns: TableColumns, name: str, order: np.ndarray) -> float:
    """The share of the rows, in this order, before the first number of a column."""
    is_empty = columns.numbers(name).isna().to_numpy()[order]
    return float(is_empty.argmin() / len(is_empty))


def examples_from(usual: int) -> str:
    """Intervals from `usual` on, in nanoseconds."""
    seconds = max(1, round(usual / SECOND))
    own = [as_interval(seconds)] if 86400 % seconds == 0 else []
    longer = [name for name in ("1min", "15min", "1h", "1d", "7d") if parse_interval(name).seconds > seconds]
    return ", ".join([*own, *longer[:3], "month"][:3])


def as_interval(seconds: int) -> str:
    unit = next(unit for unit in reversed(FIXED) if seconds % FIXED[unit] == 0)
    return f"{seconds // FIXED[unit]}{unit}"


def training_levels(stamps: np.ndarray, values: np.ndarray, interval: Interval) -> np.ndarray:
    """(G,) `values` (R,) on the grid of the training time; gaps repeat the previous level."""
    is_known = (stamps != np.iinfo(np.int64).min) & np.isfinite(values)
    stamps, values = stamps[is_known], values[is_known]
    points, _ = steps_for(stamps, interval).points(stamps)
    points -= points.min()
    if points.max() > MAX_POINTS_PER_ROW * len(points):  # the dry run reports the error
        return values
    levels = np.full((int(points.max()) + 1, 1), np.nan)
    levels[points, 0] = values
    return forward_filled(levels)[: max(2, int(SPLIT["train"] * len(levels))), 0]


def find_transform(levels: np.ndarray, is_positive: bool) -> Choice:
    """By the level if it varies, else by the sign (Guerrero 1993, Journal of Forecasting 12, 37-48).

    Splits the series into twelve parts. If the spread grows with the level, a logarithm is needed. With a logarithm,
    hybrid also compares forms that are linear in the levels (tandem/models/linear_forecast.py), unless values near 0
    make the logarithm's changes too large.
    """
    if not is_positive:
        return "difference", "the columns are not all above 0"
    stretches = [part for part in np.array_split(levels, 12) if len(part) > 1]
    if len(stretches) < 4 or levels.max() < EVEN * levels.min():
        return "log-return", "the columns are all above 0"
    mean, spread = (np.array([measure(part) for part in stretches]) for measure in (np.mean, np.std))
    of_log, of_level = (np.std(ratio) / max(np.mean(ratio), 1e-300) for ratio in (spread / mean, spread))
    if of_log <= of_level:
        return "log-return", "the columns are all above 0, and the spread grows with the level"
    return "difference", "the spread does not grow with the level"


def season_choice(season: Season | None, candidates: Sequence[Season]) -> Choice:
    if season:
        return season.steps, (
            f"{season.words}; the same step of the other seasons explains {season.strength:.0%} of the "
            "detrended variance in the training data (--season sets another)"
        )
    why = "no number of steps after which it resembles itself"
    if candidates:
        tried = " and ".join(f"{candidate.steps} ({candidate.words})" for candidate in candidates)
        best = max(0.0, *(candidate.strength for candidate in candidates))
        why = f"{tried} explain{'s' * (len(candidates) == 1)} {best:.0%} of the detrended variance in the training data"
    return NO_SEASON, f"{why} (--season sets another)"


def find_horizon(season: int, interval: Interval, num_scored: int, num_train: int) -> Choice:
    """`num_scored`: the number of steps of validation or test."""
    if season > MAX_HORIZON:
        shorter = [(steps, name) for name, steps in calendar_seasons(interval).items() if steps <= MAX_HORIZON]
        horizon, unit = max(shorter, default=(24, ""))
        why = f"{unit and f'one {unit}; '}a season would be too far"
    elif season:
        horizon, why = season, "one season"
    elif (unit := "day" if interval.words == "1d" else interval.unit) in USUAL_HORIZONS:
        horizon, why = USUAL_HORIZONS[unit], f"usual for a {unit.replace('-', ' ')}"
    else:
        horizon, why = max(1, past_without_season(num_train) // 12), "a twelfth of the input steps"
    longest = max(1, num_scored // 2)
    return (horizon, why) if horizon <= longest else (longest, f"half of the {num_scored} steps of val and test")


def past_without_season(num_train: int) -> int:
    return max(USUAL_PAST, min(2 * USUAL_PAST, round(num_train / SPLIT["train"]) // 50))


def find_input_steps(season: int, horizon: int, num_train: int) -> Choice:
    """Long windows, because the forms of hybrid that are not fitted cost no windows."""
    num_steps, why = past_without_season(num_train), "a fiftieth of the points, 24 to 48"
    if season:
        num_seasons = max(1, min(MAX_SEASONS, MANY_STEPS // season))
        num_steps, why = num_seasons * season, f"{num_seasons} season{'s' * (num_seasons > 1)}"
    longest = max(2, int(MAX_PAST * num_train) - horizon)
    shortened = f"with the horizon {MAX_PAST:.0%} of the {num_train} points to train on"
    return (num_steps, why) if num_steps <= longest else (longest, shortened)
