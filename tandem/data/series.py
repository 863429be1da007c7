"""The source `series`: converts a table with one long time series to windows, split by time and standardized.

Input: the workload's table (CSV, CSV.gz or Parquet) with one row per time in any order, and the params of a `series`
source. Output: see tandem/data/__init__.py, plus the array `anchors` and, with a season, `seasonal`. Time and memory
are linear in the sizes of the table and of the windows. No Python loop runs over rows or windows. The inputs of a
window never use values from later times (`to_grid`, `forward_filled`, `statistics_of`). The summary and the message
count irregularities in the table, such as missing points.

R rows of the table, G grid points at a distance of one interval, N windows, T input steps, H target steps (the
horizon), F features. Feature 0 is the past of the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from tandem.data import Arrays
from tandem.data.arrays import divisors, remarks_about_constants, without_rounding
from tandem.data.splits import SPLITS, sizes_of
from tandem.data.tables import RawTable, open_table, raise_if_any, read_numbers
from tandem.data.times import SECOND, Steps, clock_change, iso, read_times, steps_for
from tandem.params.intervals import DAYS, Interval, parse_interval
from tandem.params.schema import OwnSeries, Series

MANY_SKIPPED = 0.25  # of the training windows, or of the rows
MAX_POINTS_PER_ROW = 100  # a much finer grid is a mistake in `interval` and would fill the memory


@dataclass(frozen=True)
class Grid:
    """The series at equal time steps."""

    times: np.ndarray  # (G,) int64 nanoseconds since 1970-01-01 UTC
    levels: np.ndarray  # (G, F) float64; NaN where the table has no value, unless it is filled
    is_measured: np.ndarray  # (G,) bool: the table has the target
    counts: dict[str, int]  # irregularities in the table
    steps: Steps
    remarks: tuple[str, ...]  # what was read in another way than the table has it

    @property
    def is_complete(self) -> np.ndarray:
        """(G,) bool: every column has a level."""
        is_complete: np.ndarray = ~np.isnan(self.levels).any(axis=1)
        return is_complete

    def until(self, end: int) -> "Grid":
        """The first `end` steps."""
        times, levels, is_measured = (array[:end] for array in (self.times, self.levels, self.is_measured))
        return replace(self, times=times, levels=levels, is_measured=is_measured)


@dataclass(frozen=True)
class Windows:
    """The windows of all splits (see tandem/data/__init__.py: Prepared)."""

    parts: dict[str, dict[str, np.ndarray]]  # split -> the arrays of its windows, ordered by time
    first_time: dict[str, str]  # split -> the first time of a target
    last_time: dict[str, str]
    mean: np.ndarray  # (F,) float64, of the training period
    std: np.ndarray  # (F,) float64, of the training period
    naive_error: float  # of the training period: see `naive_error_of`
    features: tuple[str, ...]
    counts: dict[str, Any]
    remarks: tuple[str, ...]
    params: Series | OwnSeries
    table: Path | None

    def arrays(self, split: str) -> dict[str, np.ndarray]:
        return self.parts[split]

    @property
    def num_per_split(self) -> dict[str, int]:
        return {name: len(part["ids"]) for name, part in self.parts.items()}

    @property
    def interval(self) -> str:
        return parse_interval(self.params.interval).words

    @property
    def summary(self) -> dict[str, Any]:
        params = self.params
        return {
            "num_sequences": sum(self.num_per_split.values()),
            "num_per_split": self.num_per_split,
            "features": list(self.features),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "min_steps": params.input_steps,
            "max_steps": params.input_steps,
            "horizon": params.horizon,
            "num_outputs": params.horizon,
            "target": {"name": params.columns.target, "transform": params.transform},
            "interval": self.interval,
            "season": params.season,
            "naive_error": self.naive_error,
            "missing": params.missing,
            "first_time": self.first_time,
            "last_time": self.last_time,
            **self.counts,
            **({"remarks": list(self.remarks)} if self.remarks else {}),
        }

    @property
    def message(self) -> str:
        """The numbers of windows, and the irregularities that occurred."""
        params, counts = self.params, self.counts
        filled_in = ", filled with the column's last value" if params.missing == "interpolate" else ""
        touch = "their targets touch" if filled_in else "they touch"
        differing = f" ({counts['num_duplicates_differing']:,} differing)"
        by_split = ", ".join(f"{name} {num:,}" for name, num in counts["num_windows_skipped_per_split"].items())
        remarks = (
            ("num_missing", "missing or incomplete points", f" of {counts['num_grid_points']:,}{filled_in}"),
            ("num_windows_skipped", f"windows left out because {touch} one", f" ({by_split})"),
            ("num_windows_across_boundaries", "windows left out because their targets cross a split's boundary", ""),
            ("num_out_of_order", "rows out of order", ""),
            ("num_duplicates", "rows replaced by a later one of the same time", differing),
            ("num_off_grid_snapped", f"times moved forward to the grid of {self.interval}", ""),
            ("num_off_grid_dropped", "times off the grid dropped because a later row stands there", ""),
            ("num_without_offset", "times without an offset, taken as UTC", ""),
        )
        sizes = ", ".join(f"{name} {num:,}" for name, num in self.num_per_split.items())
        num_windows = sum(self.num_per_split.values())
        size = f"{num_windows:,} windows of {params.input_steps} steps of {self.interval}, {params.horizon} ahead"
        irregularities = [f"{words}: {counts[key]:,}{details}" for key, words, details in remarks if counts[key]]
        message = "; ".join([f"{size}: {sizes}", *irregularities, *self.remarks])
        if params.missing == "skip" and loses_many_windows(self.summary):
            lost, kept = counts["num_windows_skipped_per_split"]["train"], self.num_per_split["train"]
            message += (
                f"\nwarning: train loses {lost:,} of {lost + kept:,} windows to missing points; `missing: interpolate` "
                "keeps those whose targets are measured"
            )
        return message


def loses_many_windows(summary: dict[str, Any]) -> bool:
    """Whether missing points cost more than a quarter of the training windows."""
    lost, kept = summary["num_windows_skipped_per_split"]["train"], summary["num_per_split"]["train"]
    return bool(lost > MANY_SKIPPED * (lost + kept))


def prepare(params: Series | OwnSeries, source: Any, target_kind: str) -> Windows:
    """Split the table in the folder `source`, or the DataFrame that a source of the workload's own returned, by time,
    standardize it and cut windows. `target_kind` is unused.
    """
    if isinstance(source, Arrays):
        assert params.component
        place = params.component.place
        raise ValueError(f"{place} returns Arrays; a source for forecast returns a DataFrame with one long series")
    columns = params.columns
    table, path = open_table(params, source, [columns.time], [columns.target, *columns.features])
    grid = to_grid(table, params, parse_interval(params.interval))
    points, counts = choose_windows(grid, params)
    train_end = sizes_of(params.split, len(grid.times))["train"]
    if params.season and params.season >= train_end:
        raise ValueError(
            f"preprocess.season is {params.season} and the training time has {train_end:,} points, so no season comes "
            "again in it; leave the season out, or give a shorter one"
        )
    measured = np.where(grid.is_measured, grid.levels[:, 0], np.nan)
    steps = transform(grid.levels, params.transform)
    # A difference is rounded like the levels, a logarithm like their ratio, which is about 1.
    size = 1.0 if params.transform == "log-return" else np.nanmax(np.abs(grid.levels[:train_end]), axis=0)
    mean, std = statistics_of(steps[:train_end], size)
    standardized_steps = standardized(steps, mean, std, grid.times)

    changes = sliding_window_view(steps[:, 0], params.horizon)
    for name, last in points.items():
        if not changes[last + 1].any():  # the persistence forecast has no error
            raise ValueError(
                f"column {columns.target!r} never changes in the time of {name}, so no forecast can be learned or "
                "scored; choose another target or split"
            )
    inputs = sliding_window_view(standardized_steps, params.input_steps, axis=0).transpose(0, 2, 1)
    targets = sliding_window_view(standardized_steps[:, 0], params.horizon)
    parts = {
        name: {
            "values": np.ascontiguousarray(inputs[last - params.input_steps + 1]),  # (N, T, F) float32
            "lengths": np.full(len(last), params.input_steps, dtype=np.int32),
            "targets": np.ascontiguousarray(targets[last + 1]),  # (N, H) float32, standardized like feature 0
            "ids": iso(grid.times[last]),  # the time of the last input step, ISO 8601 in UTC
            "anchors": grid.levels[last, 0],  # (N,) float64, the target's level at that step, in the table's unit
        }
        for name, last in points.items()
    }
    if params.season:
        for name, last in points.items():
            parts[name]["seasonal"] = seasonal_levels(measured, last, grid.levels[last, 0], params)
    first_time = {name: str(iso(grid.times[last[:1] + 1])[0]) for name, last in points.items()}
    last_time = {name: str(iso(grid.times[last[-1:] + params.horizon])[0]) for name, last in points.items()}
    features = (columns.target, *columns.features)
    naive_error = naive_error_of(measured[:train_end], params.season or 1)
    remarks = (*grid.remarks, *remarks_about_constants(features, std))
    counts = {**grid.counts, **counts}
    return Windows(parts, first_time, last_time, mean, std, naive_error, features, counts, remarks, params, path)


def raw_to_inputs(
    values: np.ndarray, mask: np.ndarray, params: Series | OwnSeries, summary: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """values (N, T + 1, F), levels of the target and the features, one step more than the network gets, because it gets
    their changes -> values (N, T, F) as the network gets them, and the target's last levels (N,).

    `summary` is preprocess's summary.json. Raises ValueError if the values do not fit.
    """
    shape = params.input_steps + 1, len(summary["features"])
    if values.ndim != 3 or values.shape[1:] != shape:
        raise ValueError(f"predict got values of shape {values.shape}; accepted: (N, {shape[0]}, {shape[1]})")
    levels = values.astype(np.float64).transpose(1, 0, 2)  # (T + 1, N, F)
    changes = transform(levels, params.transform)[1:]
    inputs = ((changes - np.array(summary["mean"])) / divisors(summary["std"])).astype(np.float32)
    if not np.isfinite(inputs).all():
        raise ValueError("predict got levels whose changes are not finite; check for NaN, and for 0 with log-return")
    return np.ascontiguousarray(inputs.transpose(1, 0, 2)), levels[-1, :, 0]


def read_values(table: RawTable, column: str, above_zero: bool) -> np.ndarray:
    """Return the column (R,) float64; empty cells become NaN."""
    cells = table.columns[column]
    values = read_numbers(table, column, allow_missing=True).astype(np.float64)
    if above_zero:
        why = f"column {column!r} must be above 0 for `transform: log-return` (`difference` takes any number)"
        raise_if_any(table, values <= 0, why, cells)
    return values


def to_grid(table: RawTable, params: Series | OwnSeries, interval: Interval) -> Grid:
    """Place the rows on a grid at multiples of `interval` since 1970 UTC, shifted by a constant that most rows share.

    If several rows have the same time, the last one in the file is used. A row between two grid points moves to the
    next point, because at the previous point its values are not known yet. The row is dropped if the next point has its
    own row or if a later row also moves there. `params.missing` selects what happens at grid points without a row and
    in empty cells. Removes the columns from `table`.
    """
    stamps, num_without_offset = read_times(table, params.columns.time, interval)
    above_zero = params.transform == "log-return"
    columns = (params.columns.target, *params.columns.features)
    values = np.stack([read_values(table, column, above_zero) for column in columns], axis=1)
    num_rows = len(stamps)
    num_out_of_order = int((stamps < np.maximum.accumulate(stamps)).sum())

    order = np.argsort(stamps, kind="stable")
    stamps, values = stamps[order], values[order]
    is_last = np.append(stamps[1:] != stamps[:-1], True)  # the last row with its time
    used = values[np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]]  # for each row, the used row with its time
    differs = (values != used) & ~(np.isnan(values) & np.isnan(used))
    stamps, values = stamps[is_last], values[is_last]

    steps = steps_for(stamps, interval)
    point, off_grid = steps.points(stamps)
    # The times are ascending, so if several rows have the same point, only the last one can be exactly at the point.
    is_kept = np.append(point[1:] != point[:-1], True)
    may_shift = interval.unit in DAYS or off_grid.any() or not is_kept.all()
    if may_shift and (hours := clock_change(stamps, interval)):
        raise ValueError(
            f"{table.name}: the times in column {params.columns.time!r} are whole days apart, except that their time "
            f"of day is {hours[0]} as well as {hours[1]}, as at clock changes; write each as a local date, e.g. "
            "2024-03-31, and set preprocess.interval to day or another of the calendar's"
        )
    first_point, num_points = int(point[0]), int(point[-1] - point[0]) + 1
    if num_points > MAX_POINTS_PER_ROW * len(stamps):
        distances, frequencies = np.unique(np.diff(stamps), return_counts=True)
        raise ValueError(
            f"preprocess.interval is {params.interval!r}, which makes {num_points:,} grid points of "
            f"{len(stamps):,} rows; give the table's own interval (its rows are most often "
            f"{distances[frequencies.argmax()] / SECOND:g} s apart) or correct a stray time"
        )
    levels = np.full((num_points, len(columns)), np.nan)
    levels[point[is_kept] - first_point] = values[is_kept]
    times = steps.times(first_point + np.arange(num_points))
    counts = {
        "num_rows": num_rows,
        "num_without_offset": num_without_offset,
        "num_out_of_order": num_out_of_order,
        "num_duplicates": num_rows - len(stamps),
        "num_duplicates_differing": int(differs.any(axis=1).sum()),
        "num_off_grid_snapped": int((off_grid & is_kept).sum()),
        "num_off_grid_dropped": int((~is_kept).sum()),
        "num_grid_points": num_points,
        "num_missing": int(np.isnan(levels).any(axis=1).sum()),
    }
    remarks = table.report
    has_weekends = interval.unit == "business-day"
    weekends = "those of Saturdays and Sundays count as Monday's; " if has_weekends else ""
    if (num_unused := num_rows - int(is_kept.sum())) > (0 if has_weekends else MANY_SKIPPED * num_rows):
        remarks += (
            f"{num_unused:,} of {num_rows:,} rows are not used, because only the last row in each {interval.words} is; "
            f"{weekends}if the table has several series or quantities, keep the rows of one",
        )
    grid = Grid(times, levels, ~np.isnan(levels[:, 0]), counts, steps, remarks)
    if params.missing == "refuse" and not grid.is_complete.all():
        raise ValueError(
            f"{table.name} lacks a complete row at {iso(times[~grid.is_complete][:1])[0]} ({counts['num_missing']:,} "
            f"missing in all, at steps of {interval.words}); complete the table, or set preprocess.missing to skip or "
            "interpolate"
        )
    return replace(grid, levels=forward_filled(levels)) if params.missing == "interpolate" else grid


def forward_filled(levels: np.ndarray) -> np.ndarray:
    """levels (G, F) -> (G, F): forward fill, like DataFrame.ffill. Cells above a column's first value stay NaN.

    Linear interpolation would reveal the value after the gap to the model.
    """
    last_known = np.maximum.accumulate(np.where(np.isnan(levels), -1, np.arange(len(levels))[:, None]))
    return np.where(last_known >= 0, np.take_along_axis(levels, last_known, axis=0), np.nan)


def transform(levels: np.ndarray, kind: str) -> np.ndarray:
    """Return (G, F) log(x_t / x_(t-1)) or x_t - x_(t-1); NaN if one of the two is missing, and at the first point."""
    steps = np.full_like(levels, np.nan)
    with np.errstate(over="ignore", divide="ignore"):  # `standardized` raises on infinite results
        steps[1:] = np.log(levels[1:] / levels[:-1]) if kind == "log-return" else levels[1:] - levels[:-1]
    return steps


def seasonal_levels(
    levels: np.ndarray, last: np.ndarray, anchors: np.ndarray, params: Series | OwnSeries
) -> np.ndarray:
    """Return the seasonal naive forecast (N, H) from `levels` (G,) for windows with the last input steps `last` (N,).

    It is the latest known level that is a whole number of seasons before the target step (Hyndman and Athanasopoulos
    2021, Forecasting: Principles and Practice, 5.2). If there is none, it is `anchors` (N,).
    """
    assert params.season
    points = last[:, None] + 1 + np.arange(params.horizon) % params.season - params.season
    forecast = np.full(points.shape, np.nan)
    while (empty := np.isnan(forecast) & (points >= 0)).any():
        forecast[empty] = levels[points[empty]]
        points = points - params.season
    return np.where(np.isnan(forecast), anchors[:, None], forecast)


def naive_error_of(levels: np.ndarray, season: int) -> float:
    """Return the mean absolute difference between `levels` (G,) and the levels `season` steps before.

    MASE divides by this value of the training period (Hyndman and Koehler 2006, International Journal of Forecasting
    22, 679-688). It is 0 if no difference is known.
    """
    differences = np.abs(levels[season:] - levels[:-season])
    known_differences = differences[~np.isnan(differences)]
    return float(known_differences.mean()) if len(known_differences) else 0.0


def choose_windows(grid: Grid, params: Series | OwnSeries) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the grid point of each window's last input step, by split, and the numbers of omitted windows by reason.

    A window covers input_steps + 1 + horizon grid points; the first point is only needed for the first difference. A
    window starts at every stride-th grid point. Its targets are measured; its inputs may be filled. It belongs to the
    split that contains all its targets. Its inputs may extend into the previous split, because a deployed model also
    sees the most recent past.
    """
    before, after, num_points = params.input_steps, params.horizon, len(grid.times)
    last = np.arange(before, num_points - after, params.stride)
    num_incomplete, num_unmeasured = (
        np.concatenate([[0], np.cumsum(~is_present)]) for is_present in (grid.is_complete, grid.is_measured)
    )
    has_missing = num_incomplete[last + 1] > num_incomplete[last - before]
    has_missing |= num_unmeasured[last + after + 1] > num_unmeasured[last + 1]

    sizes = sizes_of(params.split, num_points)
    ends = np.cumsum([sizes["train"], sizes["val"]])
    split_of_first = np.searchsorted(ends, last + 1, side="right")  # the split of the first target step
    is_inside = split_of_first == np.searchsorted(ends, last + after, side="right")
    is_used = is_inside & ~has_missing
    points = {name: last[is_used & (split_of_first == number)] for number, name in enumerate(SPLITS)}
    skipped = np.bincount(split_of_first[has_missing], minlength=len(SPLITS)).tolist()
    counts = {
        "num_windows_skipped": int(has_missing.sum()),
        "num_windows_skipped_per_split": dict(zip(SPLITS, skipped, strict=True)),
        "num_windows_across_boundaries": int((~is_inside & ~has_missing).sum()),
    }
    if any(len(rows) == 0 for rows in points.values()):
        is_filled = params.missing == "interpolate"
        fix = "complete the table" if is_filled else "set missing to interpolate"
        fix = f"give the empty split a larger share, lower input_steps, horizon or stride, or {fix}"
        in_a_row = min(longest_run(part) for part in np.split(grid.is_measured, ends))
        if 0 < in_a_row < min(after, *sizes.values()):
            fix = (
                f"set horizon to at most {in_a_row}{' and missing to interpolate' * (not is_filled)}, because a split "
                "has no more points in a row with the target, or complete the table, e.g. with 0 on closed days"
            )
        raise ValueError(
            f"the series of {num_points:,} grid points makes "
            f"{', '.join(f'{len(rows):,} {name}' for name, rows in points.items())} windows of {before} input steps "
            f"and {after} target steps, {counts['num_windows_skipped']:,} left out because a point is missing and "
            f"{counts['num_windows_across_boundaries']:,} across a boundary; {fix}"
        )
    return points, counts


def longest_run(is_present: np.ndarray) -> int:
    """The largest number of neighbouring points that are all present."""
    gaps = np.flatnonzero(~np.concatenate([[False], is_present, [False]]))
    return int(np.diff(gaps).max()) - 1


def statistics_of(steps: np.ndarray, size: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation (F,) of the known `steps` of the training period; std is 0 for a constant
    feature, but 1 for the target, whose unit it is. `size`: see `without_rounding`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = np.nanmean(steps, axis=0), without_rounding(np.nanstd(steps, axis=0), size)
    std[0] = std[0] or 1.0
    return mean, std


def standardized(steps: np.ndarray, mean: np.ndarray, std: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the standardized steps (G, F) as float32. Raises ValueError if a value is too large for a float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: np.ndarray = ((steps - mean) / divisors(std)).astype(np.float32)
    too_large = (~np.isnan(steps) & ~np.isfinite(result)).any(axis=1)
    if too_large.any():
        raise ValueError(
            f"the change to {iso(times[too_large][:1])[0]} is too large for a 32-bit float once it is divided by the "
            "training time's standard deviation; correct the table at that time"
        )
    return result
