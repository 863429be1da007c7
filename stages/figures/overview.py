"""Score and epoch time of every run side by side: a row of panels per workload, with axes of its own."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.figures.drawing import DEVICE_COLOURS, blank, plain


def summary(rows: Sequence[Mapping[str, Any]]) -> Figure:
    workloads = dict.fromkeys(row["workload"] for row in rows)
    groups = [[row for row in rows if row["workload"] == workload] for workload in workloads]
    figure = blank(11, 0.6 + sum(0.95 + 0.42 * len(group) for group in groups))
    grid = figure.subplots(len(groups), 2, squeeze=False, height_ratios=[1 + len(group) for group in groups])
    for group, (left, right) in zip(groups, grid, strict=True):
        draw_bars(left, group, [row["score"] for row in group], "{:.4f}", unit=1.0)
        draw_bars(right, group, [row["epoch_seconds"] for row in group], "{:.3g} s", unit=0.0)
        names = " and ".join(dict.fromkeys(plain(row["score_name"]).replace("_", " ") for row in group))
        left.set_title(f"{plain(group[0]['workload'], 40)}: test {names}", loc="left", fontsize=10)
        right.set_title("seconds per epoch (median after warm-up)", loc="left", fontsize=10)
        right.set_yticklabels([])
    devices = "; ".join(dict.fromkeys(str(row["device_name"]) for row in rows))
    figure.suptitle(textwrap.fill(plain(devices, 300), 100))
    return figure


def draw_bars(
    axes: Axes, group: Sequence[Mapping[str, Any]], found: Sequence[float | None], form: str, unit: float
) -> None:
    """A bar per run, with room for its number.

    The axis reaches `unit` (a perfect score is 1), and goes below zero only where a value does.
    """
    colours = [DEVICE_COLOURS[row["device"]] for row in group]
    values = [value or 0.0 for value in found]
    labels = ["none" if value is None else form.format(value) for value in found]
    axes.bar_label(axes.barh(range(len(group)), values, color=colours, height=0.7), labels, padding=3, fontsize=9)
    low, high = min(0.0, *values), max(unit, *values)
    span = (high - low) or 1.0
    axes.set_yticks(range(len(group)), [row["device"] for row in group])
    axes.set(xlim=(low - 0.16 * span if low < 0 else 0, high + 0.16 * span), ylim=(len(group) - 0.4, -0.6))
    axes.axvline(0, color="black", linewidth=0.8)
