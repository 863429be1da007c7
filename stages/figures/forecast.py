"""Forecasts over time, and their error by step ahead.

Shapes: M windows, H steps ahead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure, SubFigure

from stages.figures.drawing import LINE_STYLES, blank, counted, plain, whole_numbers
from stages.figures.text import words
from stages.tasks.forecast import ROUNDING

NETWORK = "tab:orange"
BASELINES = ("tab:grey", "tab:purple", "tab:brown", "tab:cyan")
Lines = dict[str, tuple[np.ndarray, dict[str, Any]]]  # label -> (M,) levels, style
MAX_POINTS = 4000  # of a line or band that is far wider than the picture's pixels
BAND_WINDOWS, MIN_BAND_WINDOWS = 500, 20


def draw(
    times: Sequence[str], anchors: np.ndarray, actual: np.ndarray, forecasts: Mapping[str, np.ndarray], title: str
) -> Figure:
    """The last step of every forecast over the test period and close up at its end, and the error by step ahead.

    `times` (M,) ISO text and `anchors` (M,) are the time and the level when a forecast was made (its last known step),
    in order of time; `actual` and each of `forecasts` are (M, H) levels: of the `network`, and of its baselines.
    A forecast is drawn at the time when it was made: what was known, predicted and observed stand above each other.
    """
    when = pd.to_datetime(pd.Series(list(times)), format="ISO8601", utc=True).dt.tz_localize(None).to_numpy()
    num_steps = actual.shape[1]
    predicted = forecasts["network"]
    baselines = {name: levels for name, levels in forecasts.items() if name != "network"}
    errors = {name: np.abs(levels - actual).mean(axis=0) for name, levels in forecasts.items()}
    low, high = error_band(actual[:, -1] - predicted[:, -1], num_steps)
    inside = (actual[:, -1] >= predicted[:, -1] + low) & (actual[:, -1] <= predicted[:, -1] + high)
    known = np.isfinite(low)
    band_label = f"5% to 95% quantile of the network's last {BAND_WINDOWS} errors known at that time"
    if known.any():
        band_label += f" ({inside[known].mean():.0%} of the actual levels fell inside)"

    steps = f"{counted(num_steps, 'step')} ahead"
    always: Lines = {
        "actual": (actual[:, -1], {"color": "black", "linewidth": 1.2}),
        "network": (predicted[:, -1], {"color": NETWORK, "linewidth": 1.4}),
    }
    others: Lines = {"level when the forecast was made": (anchors, {"color": "tab:grey", "linewidth": 0.9})}
    for index, (name, levels) in enumerate(baselines.items()):
        if not np.allclose(levels[:, -1], anchors):  # persistence is the line above
            others[words(name)] = (levels[:, -1], {**baseline_style(index), "linewidth": 1.0})

    figure = blank(11, 11)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.3, 1])[:, 0]
    whole, end = upper.subplots(2, 1, height_ratios=[1, 1.3])
    band = ((predicted[:, -1] + low, predicted[:, -1] + high), band_label)
    every = -(-len(when) // MAX_POINTS)
    draw_levels(whole, when, slice(None, None, every), always, *band)
    draw_levels(end, when, slice(-150, None), {**always, **others}, *band)
    thinned = f", one in {every} drawn" if every > 1 else ""
    whole.set(ylabel=f"level {steps}", title=f"the whole test period, {counted(len(when), 'forecast')}{thinned}")
    title_of_end = f"the last {counted(min(150, len(when)), 'forecast')}"
    end.set(ylabel=f"level {steps}", title=title_of_end, xlabel="time when the forecast was made")
    draw_errors_by_step(lower, errors, list(baselines))
    figure.suptitle(plain(title, 200))
    return figure


def draw_levels(
    axes: Axes, when: np.ndarray, chosen: slice, lines: Lines, band: Sequence[np.ndarray], band_label: str
) -> None:
    columns = [*band, *(line for line, _ in lines.values())]
    times, low, high, *levels = with_gaps(when[chosen], *(column[chosen] for column in columns))
    if np.isfinite(low).any():
        axes.fill_between(times, low, high, color=NETWORK, alpha=0.25, linewidth=0, label=plain(band_label, 140))
    marker = "." if len(times) < 60 else ""  # a few forecasts, or one alone between gaps, would be no line
    for line, (name, (_, style)) in zip(levels, lines.items(), strict=True):
        axes.plot(times, line, label=plain(name), marker=marker, **style)
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.grid(alpha=0.3)
    axes.legend(handles=[*axes.lines, *axes.collections], fontsize=8)


def error_band(errors: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """5% and 95% quantile (M,) of the last 500 errors known when a forecast was made; NaN with fewer than 20.

    Empirical prediction interval of Williams and Goodman 1971 (J. American Statistical Association 66). `errors` (M,)
    are actual minus predicted, `num_steps` after their forecast. Windows are at least one step apart, so the error of a
    forecast is known `num_steps` windows later.
    """
    before = pd.Series(errors).shift(num_steps).rolling(BAND_WINDOWS, min_periods=MIN_BAND_WINDOWS)
    return before.quantile(0.05).to_numpy(), before.quantile(0.95).to_numpy()


def with_gaps(times: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """`times` and `columns`, with a NaN wherever time jumps, so that no line is drawn across a gap."""
    steps = np.diff(times)
    after = np.flatnonzero(steps > 4 * np.median(steps)) + 1 if len(steps) else np.array([], dtype=np.int64)
    with_nan = [np.insert(column.astype(float), after, np.nan) for column in columns]
    return [np.insert(times, after, times[after - 1]), *with_nan]


def draw_errors_by_step(part: SubFigure, errors: Mapping[str, np.ndarray], baselines: list[str]) -> None:
    """Left the mean absolute error (H,) by step ahead; right the same relative to a baseline, where small differences
    show."""
    left, right = part.subplots(1, 2)
    reference = "seasonal_naive" if "seasonal_naive" in baselines else baselines[0]
    base = errors[reference]
    for name, error in errors.items():
        is_network = name not in baselines
        style = {"color": NETWORK, "linewidth": 2, "zorder": 3} if is_network else baseline_style(baselines.index(name))
        ahead = np.arange(1, len(error) + 1)
        # A baseline without an error at some step has nothing to be compared with there.
        relative = np.divide(error - base, base, out=np.full(len(base), np.nan), where=base > ROUNDING * base.max())
        left.plot(ahead, error, label=plain(words(name)), marker="o", markersize=3, **style)
        right.plot(ahead, 100 * relative, label=plain(words(name)), marker="o", markersize=3, **style)
    left.set(ylabel="mean absolute error", ylim=(0, None), title="error by step ahead")
    right.set(
        ylabel=f"error relative to {plain(words(reference))} (%)",
        title=f"below 0: better than {plain(words(reference))}",
    )
    left.legend(handles=left.lines, fontsize=8)
    for axes in (left, right):
        axes.set_xlabel("steps ahead")
        whole_numbers(axes)
        axes.grid(alpha=0.3)


def baseline_style(index: int) -> dict[str, Any]:
    return {"color": BASELINES[index % len(BASELINES)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}
