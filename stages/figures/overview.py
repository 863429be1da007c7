"""Score and epoch time of every run side by side: one row of panels per workload, each with its own axes."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.figures.comparison import kind_of
from stages.figures.drawing import DEVICE_COLOURS, blank, plain

MAX_LABEL = 20  # characters


@dataclass(frozen=True)
class Bar:
    """Values of one kind, such as one per seed, and their middle. None: nothing was measured."""

    label: str
    device: str  # sets the colour
    values: Sequence[float]
    middle: float | None


def summary(rows: Sequence[Mapping[str, Any]]) -> Figure:
    workloads = dict.fromkeys(row["workload"] for row in rows)
    groups = [[row for row in rows if row["workload"] == workload] for workload in workloads]
    figure = blank(11, 0.6 + sum(0.95 + 0.42 * len(group) for group in groups))
    grid = figure.subplots(len(groups), 2, squeeze=False, height_ratios=[1 + len(group) for group in groups])
    for group, (left, right) in zip(groups, grid, strict=True):
        draw_bars(left, [bar(row, "score") for row in group], "{:.4f}".format, unit=1.0)
        draw_bars(right, [bar(row, "epoch_seconds") for row in group], "{:.3g} s".format)
        names = " and ".join(dict.fromkeys(plain(row["score_name"]).replace("_", " ") for row in group))
        has_range = any(len(row["seeds"]) > 1 for row in group)
        of_seeds, medians = (", mean and range", "of processes, and range") if has_range else ("", "after warm-up")
        left.set_title(f"{plain(group[0]['workload'], 40)}: test {names}{of_seeds}", loc="left", fontsize=10)
        right.set_title(f"seconds per epoch (median {medians})", loc="left", fontsize=10)
        right.set_yticklabels([])
    devices = "; ".join(dict.fromkeys(str(row["device_name"]) for row in rows))
    figure.suptitle(textwrap.fill(plain(devices, 300), 100))
    return figure


def bar(row: Mapping[str, Any], name: str) -> Bar:
    found = [run[name] for run in row["runs"] if run[name] is not None]
    return Bar(row.get("label", row["device"]), kind_of(row), found, row[name])


def draw_bars(
    axes: Axes, bars: Sequence[Bar], text: Callable[[float], str], unit: float = 0.0, room: float = 0.16
) -> None:
    """Draw a bar from zero with its number for each entry; for several values, also a line from the lowest to the
    highest.

    The axis reaches `unit` (a perfect score is 1), and goes below zero only if a value does. `room` is the share of the
    axis that is reserved for the numbers.
    """
    middles = [each.middle or 0.0 for each in bars]
    errors = [
        (middle - min(each.values), max(each.values) - middle) if len(each.values) > 1 else (0.0, 0.0)
        for each, middle in zip(bars, middles, strict=True)
    ]
    drawn = axes.barh(
        range(len(bars)),
        middles,
        color=[DEVICE_COLOURS[each.device] for each in bars],
        height=0.7,
        xerr=list(zip(*errors, strict=True)) if any(map(any, errors)) else None,
        error_kw={"elinewidth": 1.2, "capsize": 3},
    )
    labels = ["none" if each.middle is None else text(each.middle) for each in bars]
    axes.bar_label(drawn, labels, padding=3, fontsize=9)
    low = min(0.0, *(middle - below for middle, (below, _) in zip(middles, errors, strict=True)))
    high = max(unit, *(middle + above for middle, (_, above) in zip(middles, errors, strict=True)))
    span = (high - low) or 1.0
    label_rows(axes, bars)
    axes.set(xlim=(low - room * span if low < 0 else 0, high + room * span))
    axes.axvline(0, color="black", linewidth=0.8)


def draw_values(axes: Axes, bars: Sequence[Bar]) -> None:
    """Draw a dot for each value and a line at their middle, on an axis that fits them, so that small differences are
    visible.
    """
    for index, each in enumerate(bars):
        colour = DEVICE_COLOURS[each.device]
        axes.plot(each.values, [index] * len(each.values), "o", color=colour, alpha=0.75, markeredgewidth=0)
        if len(each.values) > 1 and each.middle is not None:
            axes.plot([each.middle] * 2, [index - 0.3, index + 0.3], color=colour, linewidth=2)
    label_rows(axes, bars)
    axes.grid(axis="x", alpha=0.3)


def label_rows(axes: Axes, bars: Sequence[Bar]) -> None:
    axes.set_yticks(range(len(bars)), [plain(each.label, MAX_LABEL) for each in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
