"""One workload's trainings: losses and score, seconds per epoch, memory."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.figures.drawing import DEVICE_COLOURS, blank, counted, plain, short_seconds, whole_numbers

VRAM = {"peak_allocated_mib": "allocated", "peak_reserved_mib": "reserved", "process_mib": "whole process"}


def page(workload: str, runs: Sequence[Mapping[str, Any]]) -> Figure:
    """One workload's trainings: losses and score of all devices together, then seconds per epoch and memory of each.

    A run is {label, device, history, score, timings, missing_reasons, metrics}: `history` and `timings` are the rows of
    history.csv and timings.csv as numbers (None where a cell is empty), `missing_reasons` says why a value is absent.
    """
    figure = blank(12, 3.9 + 3.1 * len(runs))
    grid = figure.subplots(1 + len(runs), 2, squeeze=False)
    losses, scores = grid[0]
    for index, run in enumerate(runs):
        width = 1.5 if index == len(runs) - 1 else 3.5  # the devices' curves nearly coincide: one shows below the other
        # The names of the hardware stand above the lower axes; a legend of them would be cut.
        label = run["device"] if [each["device"] for each in runs].count(run["device"]) == 1 else run["label"]
        draw_curve(losses, run, "history", "train_loss", f"train, {label}", linewidth=width)
        draw_curve(losses, run, "history", "val_loss", f"val, {label}", linewidth=width, linestyle="--")
        draw_scores(scores, run, label, width)
        draw_seconds(grid[1 + index][0], run)
        draw_memory(grid[1 + index][1], run)
    losses.set(ylabel="loss", title="loss", xlabel="epoch")
    names = " and ".join(dict.fromkeys(plain(run["score"]).replace("_", " ") for run in runs))
    scores.set(ylabel=names, title=names, xlabel="epoch")
    for axes in (losses, scores):
        axes.legend(handles=axes.lines, fontsize=8)
    for axes in grid.flat:
        axes.grid(alpha=0.3)
        whole_numbers(axes)
    figure.suptitle(f"{plain(workload)}: training", fontsize=14)
    return figure


def draw_curve(axes: Axes, run: Mapping[str, Any], table: str, key: str, label: str, **style: Any) -> None:
    """A column of a table over the epochs; a few epochs get a marker each, because a single one would be no line."""
    epochs, values = epochs_of(run[table], key)
    marker = "." if len(epochs) <= 20 else ""
    axes.plot(epochs, values, color=DEVICE_COLOURS[run["device"]], marker=marker, label=plain(label, 64), **style)


def draw_scores(axes: Axes, run: Mapping[str, Any], label: str, width: float) -> None:
    """The validation score over the epochs; a diamond for the test score, at the last one."""
    name = run["score"]
    draw_curve(axes, run, "history", f"val_{name}", f"val, {label}", linewidth=width)
    if name in run["metrics"]:
        test, colour = run["metrics"][name], DEVICE_COLOURS[run["device"]]
        style: dict[str, Any] = {"color": colour, "markeredgecolor": "black", "zorder": 3}
        axes.plot(run["history"][-1]["epoch"], test, "D", label=plain(f"test {test:.4f}, {label}", 64), **style)


def draw_seconds(axes: Axes, run: Mapping[str, Any]) -> None:
    """A dot per epoch and a box of those that count. The axis fits these; an epoch beyond it is written at its edge."""
    elsewhere = [row for row in run["timings"] if row.get("is_elsewhere")]  # the CPU went on after memory ran out
    apart = [row for row in run["timings"] if row["is_warmup"] or row in elsewhere]
    warmup = epochs_of(apart, "epoch_seconds")
    epochs, seconds = epochs_of([row for row in run["timings"] if row not in apart], "epoch_seconds")
    fitted = seconds or warmup[1]
    median = float(np.median(fitted))
    room = max(0.3 * (max(fitted) - min(fitted)), 0.1 * median)
    bottom, top = max(0.0, min(fitted) - room), max(fitted) + room
    axes.scatter(epochs, seconds, s=14, color=DEVICE_COLOURS[run["device"]], zorder=2)
    message = "no epoch after the warm-up"
    if seconds:
        message = f"median {short_seconds(median)} per epoch ({counted(len(seconds), 'epoch')})"
        axes.axhline(median, color="black", linewidth=0.8, linestyle="--", zorder=1)
    if len(seconds) > 1:
        width = 0.05 * max(epochs)
        place: dict[str, Any] = {"positions": [max(epochs) + 1.6 * width], "widths": width, "manage_ticks": False}
        axes.boxplot(seconds, **place, showfliers=False, medianprops={"color": "black"})
    for epoch, value in zip(*warmup, strict=True):
        height = min(max(value, bottom + 0.05 * (top - bottom)), top - 0.05 * (top - bottom))
        is_beyond = height != value
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": "tab:grey", "marker": "^" if is_beyond else "o"}
        axes.scatter(epoch, height, s=30, **style)
        if is_beyond:
            style = {"textcoords": "offset points", "fontsize": 8, "color": "0.35"}
            axes.annotate(short_seconds(value), (epoch, height), (6, -3), **style)
    axes.set(ylabel="seconds per epoch", ylim=(bottom, top), xlabel="epoch")
    also = f", {len(warmup[0])} of warm-up{' or on the CPU' if elsewhere else ''} in grey" if warmup[0] else ""
    axes.set_title(f"{plain(run['label'], 60)}\n{message}{also}", fontsize=10)


def draw_memory(axes: Axes, run: Mapping[str, Any]) -> None:
    """VRAM on a GPU, with a note of what was not measured and why; else the process's memory."""
    columns = VRAM if run["device"] == "cuda" else {"peak_rss_mib": "process (RAM)"}
    for (key, name), style in zip(columns.items(), ("-", "--", ":"), strict=False):
        _, values = epochs_of(run["timings"], key)
        if values:
            draw_curve(axes, run, "timings", key, f"{name}, peak {max(values):,.0f} MiB", linestyle=style)
    if axes.lines:
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(handles=axes.lines, fontsize=8, loc="upper right")
    why: dict[str, list[str]] = {}  # reason -> what is absent for it
    for key in [name for name in columns if name in run["missing_reasons"]]:  # a CPU has no VRAM to measure
        why.setdefault(run["missing_reasons"][key], []).append(columns[key])
    if why:
        absent = {reason: "VRAM" if len(names) == len(VRAM) else " and ".join(names) for reason, names in why.items()}
        lines = [f"{names} not measured, because {reason}" for reason, names in absent.items()]
        note = "\n".join(textwrap.fill(plain(line, 200), 60) for line in lines)
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none"}
        axes.text(0.03, 0.06, note, transform=axes.transAxes, fontsize=9, style="italic", va="bottom", bbox=box)
    axes.set(ylabel="MiB", xlabel="epoch")
    axes.set_title(f"{plain(run['label'], 60)}\nmemory, peak of each epoch", fontsize=10)


def epochs_of(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of the rows that have one."""
    present = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
    return [epoch for epoch, _ in present], [value for _, value in present]
