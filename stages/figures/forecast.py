"""Forecasts over time, and their error by step ahead.

Shapes: M windows, H steps ahead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from stages.figures.drawing import LINE_STYLES, blank, counted, plain, whole_numbers
from stages.figures.text import words

ROUNDING = 1e-6  # relative to the error of other steps, a smaller error is rounding of 32-bit floats
NETWORK = "tab:orange"
BASELINES = ("tab:grey", "tab:purple", "tab:brown", "tab:cyan")
Lines = dict[str, tuple[np.ndarray, dict[str, Any]]]  # label -> (M,) levels, style
NUM_LAST = 150  # forecasts in the close-up
MAX_POINTS = 4000  # of a line or band: far more than the figure's width in pixels
BAND_WINDOWS, MIN_BAND_WINDOWS = 500, 20


def draw(
    times: Sequence[str], anchors: np.ndarray, actual: np.ndarray, forecasts: Mapping[str, np.ndarray], title: str
) -> Figure:
    """Draw the last step of every forecast over the test period, with a close-up of its end, and the error by step
    ahead.

    `times` (M,) as ISO text and `anchors` (M,) are the time and the level when a forecast was made (its last known
    step), ordered by time. `actual` and each of `forecasts` are (M, H) levels: of the `network` and of its baselines. A
    forecast is drawn at the time when it was made, so the known, predicted and observed levels are above each other.
    """
    import pandas as pd  # imported here because the report draws without it

    when = pd.to_datetime(pd.Series(list(times)), format="ISO8601", utc=True).dt.tz_localize(None).to_numpy()
    num_steps = actual.shape[1]
    predicted = forecasts["network"]
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
    for name, levels in forecasts.items():
        if name != "network" and not np.allclose(levels[:, -1], anchors):  # persistence is the line above
            others[words(name)] = (levels[:, -1], {**line_style(name, forecasts), "linewidth": 1.0})

    figure = blank(11, 11)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.3, 1])[:, 0]
    whole, end = upper.subplots(2, 1, height_ratios=[1, 1.3])
    band = ((predicted[:, -1] + low, predicted[:, -1] + high), band_label)
    every = -(-len(when) // MAX_POINTS)
    draw_levels(whole, when, slice(None, None, every), always, *band)
    draw_levels(end, when, slice(-NUM_LAST, None), {**always, **others}, *band)
    thinned = f", one in {every} drawn" if every > 1 else ""
    title_of_whole = f"the whole test period, {counted(len(when), 'forecast')}{thinned}"
    whole.set(xlabel="", ylabel=f"level {steps}", title=title_of_whole)
    title_of_end = f"the last {counted(min(NUM_LAST, len(when)), 'forecast')}"
    end.set(ylabel=f"level {steps}", title=title_of_end)
    for axes in (whole, end):
        axes.legend(handles=[*axes.lines, *axes.collections], fontsize=8)
    left, right = lower.subplots(1, 2)
    draw_errors_by_step(left, errors, ylabel="mean absolute error", ylim=(0, None), title="error by step ahead")
    left.legend(handles=left.lines, fontsize=8)
    reference, relative = relative_errors(errors)
    name = plain(words(reference))
    title_of_right = f"below 0: better than {name}"
    draw_errors_by_step(right, relative, ylabel=f"error relative to {name} (%)", title=title_of_right)
    figure.suptitle(plain(title, 200))
    return figure


def draw_levels(
    axes: Axes, when: np.ndarray, chosen: slice, lines: Lines, band: Sequence[np.ndarray] = (), band_label: str = ""
) -> None:
    """Draw `lines`, and the area between the two arrays of `band`."""
    columns = [*(line for line, _ in lines.values()), *band]
    times, *levels = with_gaps(when[chosen], *(column[chosen] for column in columns))
    if band and np.isfinite(levels[-1]).any():
        low, high = levels[-2:]
        axes.fill_between(times, low, high, color=NETWORK, alpha=0.25, linewidth=0, label=plain(band_label, 140))
    marker = "." if len(times) < 60 else ""  # a few forecasts, or a single one between gaps, would draw no line
    for line, (name, (_, style)) in zip(levels, lines.items(), strict=False):
        axes.plot(times, line, label=plain(name), marker=marker, **style)
    locator = AutoDateLocator(minticks=3, maxticks=7)  # as many ticks as fit into a narrow figure
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("time when the forecast was made")
    axes.grid(alpha=0.3)


def error_band(errors: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 5% and 95% quantiles (M,) of the last 500 errors known when a forecast was made; NaN with fewer than
    20.

    Empirical prediction interval of Williams and Goodman 1971 (J. American Statistical Association 66). `errors` (M,)
    are actual minus predicted, `num_steps` after their forecast. Windows are at least one step apart, so the error of a
    forecast is known `num_steps` windows later.
    """
    import pandas as pd

    before = pd.Series(errors).shift(num_steps).rolling(BAND_WINDOWS, min_periods=MIN_BAND_WINDOWS)
    return before.quantile(0.05).to_numpy(), before.quantile(0.95).to_numpy()


def with_gaps(times: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Return `times` and `columns` with a NaN at each gap in time, so that no line crosses a gap."""
    steps = np.diff(times)
    after = np.flatnonzero(steps > 4 * np.median(steps)) + 1 if len(steps) else np.array([], dtype=np.int64)
    with_nan = [np.insert(column.astype(float), after, np.nan) for column in columns]
    return [np.insert(times, after, times[after - 1]), *with_nan]


def draw_errors_by_step(axes: Axes, errors: Mapping[str, np.ndarray], **labels: Any) -> None:
    """Draw a line for each of `errors` (H,)."""
    for name, error in errors.items():
        ahead = np.arange(1, len(error) + 1)
        axes.plot(ahead, error, label=plain(words(name)), marker="o", markersize=3, **line_style(name, errors))
    axes.set(xlabel="steps ahead", **labels)
    whole_numbers(axes)
    axes.grid(alpha=0.3)


def relative_errors(errors: Mapping[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    """Return a baseline and the errors relative to it in percent, so that small differences are visible. NaN if its
    error is 0.
    """
    reference = "seasonal_naive" if "seasonal_naive" in errors else next(name for name in errors if name != "network")
    base = errors[reference]
    compared = base > ROUNDING * base.max()
    return reference, {
        name: 100 * np.divide(error - base, base, out=np.full(len(base), np.nan), where=compared)
        for name, error in errors.items()
    }


def line_style(name: str, names: Iterable[str]) -> dict[str, Any]:
    if name == "network":
        return {"color": NETWORK, "linewidth": 2, "zorder": 3}
    index = [each for each in names if each != "network"].index(name)
    return {"color": BASELINES[index % len(BASELINES)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}
