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
        draw_bars(left, group, "score", "{:.4f}", unit=1.0)
        draw_bars(right, group, "epoch_seconds", "{:.3g} s", unit=0.0)
        names = " and ".join(dict.fromkeys(plain(row["score_name"]).replace("_", " ") for row in group))
        has_range = any(len(row["seeds"]) > 1 for row in group)
        of_seeds, medians = (", mean and range", "of processes, and range") if has_range else ("", "after warm-up")
        left.set_title(f"{plain(group[0]['workload'], 40)}: test {names}{of_seeds}", loc="left", fontsize=10)
        right.set_title(f"seconds per epoch (median {medians})", loc="left", fontsize=10)
        right.set_yticklabels([])
    devices = "; ".join(dict.fromkeys(str(row["device_name"]) for row in rows))
    figure.suptitle(textwrap.fill(plain(devices, 300), 100))
    return figure


def draw_bars(axes: Axes, group: Sequence[Mapping[str, Any]], name: str, form: str, unit: float) -> None:
    """A bar per run, with room for its number; where it has several seeds, a line from the lowest to the highest.

    The axis reaches `unit` (a perfect score is 1), and goes below zero only where a value does.
    """
    colours = [DEVICE_COLOURS[row["device"]] for row in group]
    values, labels, errors = [], [], []
    for row in group:
        value = row[name]
        has_range = value is not None and len(row["seeds"]) > 1
        lowest, highest = (row[f"{name}_lowest"], row[f"{name}_highest"]) if has_range else (value, value)
        values.append(value or 0.0)
        errors.append((values[-1] - lowest, highest - values[-1]) if has_range else (0.0, 0.0))
        labels.append("none" if value is None else form.format(value))
    bars = axes.barh(
        range(len(group)),
        values,
        color=colours,
        height=0.7,
        xerr=list(zip(*errors, strict=True)) if any(map(any, errors)) else None,
        error_kw={"elinewidth": 1.2, "capsize": 3},
    )
    axes.bar_label(bars, labels, padding=3, fontsize=9)
    low = min(0.0, *(value - below for value, (below, _) in zip(values, errors, strict=True)))
    high = max(unit, *(value + above for value, (_, above) in zip(values, errors, strict=True)))
    span = (high - low) or 1.0
    axes.set_yticks(range(len(group)), [row["device"] for row in group])
    axes.set(xlim=(low - 0.16 * span if low < 0 else 0, high + 0.16 * span), ylim=(len(group) - 0.4, -0.6))
    axes.axvline(0, color="black", linewidth=0.8)
