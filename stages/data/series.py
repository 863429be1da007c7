"""The source `series`: a table with one long time series -> windows, split by time and standardized.

In: the workload's table, one row per time, in any order (CSV, CSV.gz or Parquet), and the params of a `series` source.
Out: see stages/data/__init__.py; there is one more array, `anchors`, and with a season `seasonal`. Time and memory are
linear in the table and in what is written; nothing loops over rows or windows. Nothing in a window comes from after the
time it stands for: see `to_grid`, `filled` and `statistics_of`. The summary counts what is odd in the table, and the
message names it.

R rows of the table, G grid points one interval apart, N windows, T input steps, H target steps (the horizon),
F features, the first of them the target's own past.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.splits import SPLITS, sizes_of
from stages.data.tables import Table, find_table, numbers, read_table, refuse
from stages.data.times import SECOND, Steps, iso, read_times, steps_for
from stages.params.intervals import Interval, parse_interval
from stages.params.schema import Series, SeriesColumns, Split

MAX_POINTS_PER_ROW = 100  # a grid much finer than the table is a slip in `interval`, and would fill the memory


@dataclass(frozen=True)
class Grid:
    """The series at equal steps, as far as it is known."""

    times: np.ndarray  # (G,) int64 nanoseconds since 1970-01-01 UTC
    levels: np.ndarray  # (G, F) float64; a whole row is NaN where any of it is missing
    counts: dict[str, int]  # what was odd in the table
    steps: Steps

    @property
    def known(self) -> np.ndarray:
        return ~np.isnan(self.levels[:, 0])


@dataclass(frozen=True)
class SeriesPart:
    """The windows of one split, in the order of time."""

    values: np.ndarray  # (N, T, F) float32, standardized
    targets: np.ndarray  # (N, H) float32, standardized as feature 0 is
    anchors: np.ndarray  # (N,) float64, the target's level at the last input step, in the table's unit
    ids: np.ndarray  # (N,) text, the time of the last input step, ISO 8601 in UTC
    seasonal: np.ndarray | None  # (N, H) float64, the target's level one season before each target step
    first_time: str  # of the targets
    last_time: str


@dataclass(frozen=True)
class Windows:
    """The windows of all splits (see stages/data/__init__.py: Prepared)."""

    parts: dict[str, SeriesPart]
    mean: np.ndarray  # (F,) float64, of the training time
    std: np.ndarray  # (F,) float64
    naive_error: float  # of the training time: see `naive_error_of`
    features: tuple[str, ...]
    counts: dict[str, int]
    params: Series
    table: Path

    def arrays(self, split: str) -> dict[str, np.ndarray]:
        part = self.parts[split]
        return {
            "values": part.values,
            "lengths": np.full(len(part.ids), part.values.shape[1], dtype=np.int32),
            "targets": part.targets,
            "ids": part.ids,
            "anchors": part.anchors,
            **({} if part.seasonal is None else {"seasonal": part.seasonal}),
        }

    @property
    def interval(self) -> str:
        return parse_interval(self.params.interval).words

    @property
    def summary(self) -> dict[str, Any]:
        params, parts = self.params, self.parts
        return {
            "num_sequences": sum(len(part.ids) for part in parts.values()),
            "num_per_split": {name: len(part.ids) for name, part in parts.items()},
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
            "first_time": {name: part.first_time for name, part in parts.items()},
            "last_time": {name: part.last_time for name, part in parts.items()},
            **self.counts,
        }

    @property
    def message(self) -> str:
        """What did not occur is left out."""
        params, counts = self.params, self.counts
        filled_in = ", filled with the last known row" if params.missing == "interpolate" else ""
        differing = f" ({counts['num_duplicates_differing']:,} differing)"
        remarks = (
            ("num_missing", "missing points", f" of {counts['num_grid_points']:,}{filled_in}"),
            ("num_windows_skipped", "windows left out because they touch one", ""),
            ("num_windows_across_boundaries", "windows left out because their targets cross a split's boundary", ""),
            ("num_out_of_order", "rows out of order", ""),
            ("num_duplicates", "rows replaced by a later one of the same time", differing),
            ("num_off_grid_snapped", f"times moved forward to the grid of {self.interval}", ""),
            ("num_off_grid_dropped", "times off the grid dropped because a later row stands there", ""),
            ("num_without_offset", "times without an offset, taken as UTC", ""),
        )
        sizes = ", ".join(f"{name} {len(part.ids):,}" for name, part in self.parts.items())
        num_windows = sum(len(part.ids) for part in self.parts.values())
        size = f"{num_windows:,} windows of {params.input_steps} steps of {self.interval}, {params.horizon} ahead"
        odd = [f"{words}: {counts[count]:,}{more}" for count, words, more in remarks if counts[count]]
        return "; ".join([f"{size}: {sizes}", *odd])


def prepare(params: Series, folder: Path, per_step: bool) -> Windows:
    """The table in `folder` as windows, split and standardized. `per_step` has no meaning for a series."""
    path, interval = find_table(folder, params.table), parse_interval(params.interval)
    columns = params.columns
    check(params.split, columns)
    table = read_table(path, texts=(columns.time,), features=(columns.target, *columns.features))
    grid = to_grid(table, params, interval)
    points, counts = choose_windows(grid.known, params)
    train_end = sizes_of(params.split, len(grid.times))["train"]
    if params.season and params.season >= train_end:
        raise ValueError(
            f"preprocess.season is {params.season} and the training time has {train_end:,} points, so no season comes "
            "again in it; leave the season out, or give a shorter one"
        )
    steps = transform(grid.levels, params.transform)
    mean, std = statistics_of(steps[:train_end])
    standard = standardized(steps, mean, std, grid.times)

    if not steps[points["train"] + 1, 0].any():
        raise ValueError(
            f"column {columns.target!r} never changes in the time of train, so there is nothing to learn; "
            "choose another target or split"
        )
    inputs = np.lib.stride_tricks.sliding_window_view(standard, params.input_steps, axis=0).transpose(0, 2, 1)
    targets = np.lib.stride_tricks.sliding_window_view(standard[:, 0], params.horizon)
    parts = {
        name: SeriesPart(
            values=np.ascontiguousarray(inputs[last - params.input_steps + 1]),
            targets=np.ascontiguousarray(targets[last + 1]),
            anchors=grid.levels[last, 0],
            ids=iso(grid.times[last]),
            seasonal=seasonal_levels(grid.levels[:, 0], last, params) if params.season else None,
            first_time=str(iso(grid.times[last[:1] + 1])[0]),
            last_time=str(iso(grid.times[last[-1:] + params.horizon])[0]),
        )
        for name, last in points.items()
    }
    changes = np.lib.stride_tricks.sliding_window_view(steps[:, 0], params.horizon)
    for name, last in points.items():
        if not changes[last + 1].any():  # persistence makes no error there
            raise ValueError(
                f"column {columns.target!r} never changes in the time of {name}, so no forecast can be scored; "
                "choose another target or split"
            )
    features = (columns.target, *columns.features)
    naive_error = naive_error_of(grid.levels[:train_end, 0], params.season or 1)
    return Windows(parts, mean, std, naive_error, features, {**grid.counts, **counts}, params, path)


def check(split: Split, columns: SeriesColumns) -> None:
    if all(isinstance(share, int) for share in (split.train, split.val, split.test)):
        raise ValueError(
            f"preprocess.split is {split.train}, {split.val}, {split.test}; a series is split by shares of its time, "
            "so give shares that add up to 1, e.g. 0.7, 0.15, 0.15"
        )
    if columns.target in columns.features:
        raise ValueError(
            f"preprocess.columns.features names the target {columns.target!r}; the target is always the first feature, "
            "so list further columns only"
        )


def read_values(table: Table, column: str, above_zero: bool) -> np.ndarray:
    """(R,) float64, NaN where the cell is empty or NaN. Refuses text and infinity, and with `above_zero` numbers up to
    0."""
    cells = table.columns[column]
    values = numbers(table, column, allow_missing=True).astype(np.float64)
    if above_zero:
        why = f"column {column!r} must be above 0 for `transform: log-return` (`difference` takes any number)"
        refuse(table, values <= 0, why, cells)
    return values


def to_grid(table: Table, params: Series, interval: Interval) -> Grid:
    """The series at multiples of `interval` since 1970 UTC, or at another constant distance from them that most rows
    share.

    Of rows with one stamp the last in the file counts. A row between two grid points is known too late for the one
    before, so it moves to the one after; where that has a row of its own, or a later row moves there too, it is
    dropped. params.missing says what happens at grid points without a row; an empty cell makes its whole row missing.
    Takes the columns out of `table`.
    """
    stamps, num_without_offset = read_times(table, params.columns.time, interval)
    above_zero = params.transform == "log-return"
    columns = (params.columns.target, *params.columns.features)
    values = np.stack([read_values(table, column, above_zero) for column in columns], axis=1)
    num_rows = len(stamps)
    num_out_of_order = int((stamps < np.maximum.accumulate(stamps)).sum())

    order = np.argsort(stamps, kind="stable")
    stamps, values = stamps[order], values[order]
    last_of_stamp = np.append(stamps[1:] != stamps[:-1], True)
    # Of each row, the row that counts for its stamp: the first mark from there on.
    winner = np.flatnonzero(last_of_stamp)[np.cumsum(last_of_stamp) - last_of_stamp]
    differs = (values != values[winner]) & ~(np.isnan(values) & np.isnan(values[winner]))
    stamps, values = stamps[last_of_stamp], values[last_of_stamp]

    steps = steps_for(stamps, interval)
    point, off_grid = steps.points(stamps)
    # Stamps differ and are in order, so of the rows that share a point only the last can be the point's own.
    kept = np.append(point[1:] != point[:-1], True)
    first, num_points = int(point[0]), int(point[-1] - point[0]) + 1
    if num_points > MAX_POINTS_PER_ROW * len(stamps):
        apart, often = np.unique(np.diff(stamps), return_counts=True)
        raise ValueError(
            f"preprocess.interval is {params.interval!r}, which makes {num_points:,} grid points of "
            f"{len(stamps):,} rows; give the table's own interval (its rows are most often "
            f"{apart[often.argmax()] / SECOND:g} s apart) or correct a stray time"
        )
    levels = np.full((num_points, len(columns)), np.nan)
    levels[point[kept] - first] = values[kept]
    levels[np.isnan(levels).any(axis=1)] = np.nan
    times = steps.times(first + np.arange(num_points))
    counts = {
        "num_rows": num_rows,
        "num_without_offset": num_without_offset,
        "num_out_of_order": num_out_of_order,
        "num_duplicates": num_rows - len(stamps),
        "num_duplicates_differing": int(differs.any(axis=1).sum()),
        "num_off_grid_snapped": int((off_grid & kept).sum()),
        "num_off_grid_dropped": int((~kept).sum()),
        "num_grid_points": num_points,
        "num_missing": int(np.isnan(levels[:, 0]).sum()),
    }
    grid = Grid(times, levels, counts, steps)
    if params.missing == "refuse" and not grid.known.all():
        raise ValueError(
            f"{table.name} lacks a complete row at {iso(times[~grid.known][:1])[0]} ({counts['num_missing']:,} missing "
            f"in all, at steps of {interval.words}); complete the table, or set preprocess.missing to skip or "
            "interpolate"
        )
    return Grid(times, filled(levels), counts, steps) if params.missing == "interpolate" else grid


def filled(levels: np.ndarray) -> np.ndarray:
    """(G, F) with every missing row replaced by the last known one; those before the first known row stay missing.

    A straight line between the neighbours is the usual interpolation, but it tells the model what comes after the gap.
    """
    known = ~np.isnan(levels[:, 0])
    last_known = np.maximum.accumulate(np.where(known, np.arange(len(levels)), -1))
    return np.where(last_known[:, None] >= 0, levels[last_known], np.nan)


def transform(levels: np.ndarray, kind: str) -> np.ndarray:
    """(G, F) log(x_t / x_(t-1)) or x_t - x_(t-1); NaN where one of the two is missing, so always at the first point."""
    steps = np.full_like(levels, np.nan)
    with np.errstate(over="ignore", divide="ignore"):  # `standardized` refuses what comes of it
        steps[1:] = np.log(levels[1:] / levels[:-1]) if kind == "log-return" else levels[1:] - levels[:-1]
    return steps


def seasonal_levels(levels: np.ndarray, last: np.ndarray, params: Series) -> np.ndarray:
    """(N, H) the last of `levels` (G,) that is known when a forecast is made, a whole number of seasons before each
    target step: the seasonal naive forecast (Hyndman and Athanasopoulos 2021, Forecasting: Principles and Practice,
    5.2). Where none is known, the level at the last input step `last` (N,).
    """
    assert params.season
    places = last[:, None] + 1 + np.arange(params.horizon) % params.season - params.season
    found = np.full(places.shape, np.nan)
    while (empty := np.isnan(found) & (places >= 0)).any():
        found[empty] = levels[places[empty]]
        places = places - params.season
    return np.where(np.isnan(found), levels[last][:, None], found)


def naive_error_of(levels: np.ndarray, season: int) -> float:
    """Mean absolute difference of the training time's `levels` (G,) from those `season` steps before, 0 where none is
    known: what scales errors in MASE (Hyndman and Koehler 2006, International Journal of Forecasting 22, 679-688).
    """
    apart = np.abs(levels[season:] - levels[:-season])
    known = apart[~np.isnan(apart)]
    return float(known.mean()) if len(known) else 0.0


def choose_windows(known: np.ndarray, params: Series) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The grid point of the last input step of each window, per split, and how many windows are left out and why.

    A window takes input_steps + 1 + horizon grid points, the first of them for its first difference alone; one starts
    at every stride-th point of the grid. It belongs to the split in which all its targets lie. Its inputs may reach
    back into the split before, as they do when a model is used.
    """
    before, after, num_points = params.input_steps, params.horizon, len(known)
    last = np.arange(before, num_points - after, params.stride)
    num_missing = np.concatenate([[0], np.cumsum(~known)])  # before each point
    touches = num_missing[last + after + 1] > num_missing[last - before]
    whole = last[~touches]

    sizes = sizes_of(params.split, num_points)
    ends = np.cumsum([sizes["train"], sizes["val"]])
    side = np.searchsorted(ends, whole + 1, side="right")
    inside = side == np.searchsorted(ends, whole + after, side="right")
    points = {name: whole[inside & (side == number)] for number, name in enumerate(SPLITS)}
    counts = {"num_windows_skipped": int(touches.sum()), "num_windows_across_boundaries": int((~inside).sum())}
    if any(len(rows) == 0 for rows in points.values()):
        raise ValueError(
            f"the series of {num_points:,} grid points makes "
            f"{', '.join(f'{len(rows):,} {name}' for name, rows in points.items())} windows of {before} input steps "
            f"and {after} target steps, {counts['num_windows_skipped']:,} left out because a point is missing and "
            f"{counts['num_windows_across_boundaries']:,} across a boundary; give the empty split a larger share, "
            f"lower input_steps, horizon or stride, or set missing to interpolate{what_fits(sizes, after)}"
        )
    return points, counts


def what_fits(sizes: dict[str, int], horizon: int) -> str:
    """The largest windows that splits of these `sizes` hold without a gap, as the end of a sentence."""
    horizon = min(horizon, sizes["val"], sizes["test"])
    input_steps = sizes["train"] - 1 - horizon
    if horizon < 1 or input_steps < 2:
        return "; there are too few points for any window"
    return f"; without gaps there is room for input_steps up to {input_steps} with a horizon of {horizon}"


def statistics_of(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) of the known `steps`, those of the training time; a feature that never changes
    gets 1."""
    real = steps[~np.isnan(steps[:, 0])]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = real.mean(axis=0), real.std(axis=0)
    return mean, np.where(std > 1e-12 * np.maximum(1.0, np.abs(mean)), std, 1.0)


def standardized(steps: np.ndarray, mean: np.ndarray, std: np.ndarray, times: np.ndarray) -> np.ndarray:
    """(G, F) float32; raises ValueError where a step does not fit into one."""
    with np.errstate(over="ignore", invalid="ignore"):
        standard: np.ndarray = ((steps - mean) / std).astype(np.float32)
    too_large = ~np.isnan(steps[:, 0]) & ~np.isfinite(standard).all(axis=1)
    if too_large.any():
        raise ValueError(
            f"the change to {iso(times[too_large][:1])[0]} is too large for a 32-bit float once it is divided by the "
            "training time's standard deviation; correct the table at that time"
        )
    return standard
