"""One workload's trainings: losses and score, seconds per epoch, memory."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.figures.drawing import (
    DEVICE_COLOURS,
    FEW_POINTS,
    MANY_POINTS,
    blank,
    counted,
    plain,
    short_seconds,
    whole_numbers,
)
from stages.records.run import Run

VRAM = {"peak_allocated_mib": "allocated", "peak_reserved_mib": "reserved", "process_mib": "whole process"}


def draw(workload: str, runs: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw one workload's trainings: losses and score of all devices together, then seconds per epoch and memory of
    each.

    A run is {label, device, history, score_name, timings, missing_reasons, metrics}. `history` and `timings` are the
    rows of history.csv and timings.csv as numbers (None for an empty cell). `missing_reasons` says why a value is
    absent.
    """
    figure = blank(12, 3.9 + 3.1 * len(runs))
    grid = figure.subplots(1 + len(runs), 2, squeeze=False)
    draw_losses(grid[0][0], runs)
    draw_scores(grid[0][1], runs)
    for axes in grid[0]:
        axes.legend(handles=axes.lines, fontsize=8)
    for run, (seconds, memory) in zip(runs, grid[1:], strict=True):
        draw_seconds(seconds, run)
        draw_memory(memory, run)
    figure.suptitle(f"{plain(workload)}: training", fontsize=14)
    return figure


def of_run(run: Run) -> dict[str, Any]:
    """Return an evaluated run as `draw` takes it."""
    assert run.score
    return {
        "label": f"{run.device}: {run.timing['hardware']['name']}",
        "device": run.device,
        "score_name": run.score["score_name"],
        "metrics": run.score["metrics"],
        "missing_reasons": run.timing["timing"]["missing_reasons"],
        "history": run.epochs("history"),
        "timings": run.epochs("timings"),
    }


def draw_losses(axes: Axes, runs: Sequence[Mapping[str, Any]]) -> None:
    for run, label, width in styled(runs):
        draw_curve(axes, run, "history", "train_loss", f"train, {label}", linewidth=width)
        draw_curve(axes, run, "history", "val_loss", f"val, {label}", linewidth=width, linestyle="--")
    over_epochs(axes, ylabel="loss", title="loss")


def draw_scores(axes: Axes, runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the validation score over the epochs, and the test score as a diamond at the last epoch."""
    for run, label, width in styled(runs):
        name = run["score_name"]
        draw_curve(axes, run, "history", f"val_{name}", f"val, {label}", linewidth=width)
        if name in run["metrics"]:
            test, colour = run["metrics"][name], DEVICE_COLOURS[run["device"]]
            style: dict[str, Any] = {"color": colour, "markeredgecolor": "black", "zorder": 3}
            axes.plot(run["history"][-1]["epoch"], test, "D", label=plain(f"test {test:.4f}, {label}", 64), **style)
    names = " and ".join(dict.fromkeys(plain(run["score_name"]).replace("_", " ") for run in runs))
    over_epochs(axes, ylabel=names, title=names)


def styled(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str, float]]:
    """Yield each run with its label and line width. The devices' curves nearly coincide; a wider line stays visible
    below the other.
    """
    for index, run in enumerate(runs):
        # The names of the hardware are above the lower axes; in a legend they would be cut.
        is_one = [each["device"] for each in runs].count(run["device"]) == 1
        yield run, run["device"] if is_one else run["label"], 1.5 if index == len(runs) - 1 else 3.5


def over_epochs(axes: Axes, **labels: Any) -> None:
    axes.set(xlabel="epoch", **labels)
    axes.grid(alpha=0.3)
    whole_numbers(axes)


def draw_curve(axes: Axes, run: Mapping[str, Any], table: str, key: str, label: str, **style: Any) -> None:
    """Draw a column of a table over the epochs. A few epochs get markers, because a single point draws no line."""
    epochs, values = epochs_of(run[table], key)
    marker = "." if len(epochs) <= FEW_POINTS else ""
    axes.plot(epochs, values, color=DEVICE_COLOURS[run["device"]], marker=marker, label=plain(label, 64), **style)


def draw_seconds(axes: Axes, run: Mapping[str, Any]) -> None:
    """Draw a dot per epoch and a box of the epochs that count. The axis fits these; the value of an epoch beyond it is
    written at the edge.
    """
    counting, others = counted_epochs(run["timings"])
    warmup = epochs_of(others, "epoch_seconds")
    epochs, seconds = epochs_of(counting, "epoch_seconds")
    fitted = seconds or warmup[1]
    median = float(np.median(fitted))
    room = max(0.3 * (max(fitted) - min(fitted)), 0.1 * median)
    bottom, top = max(0.0, min(fitted) - room), max(fitted) + room
    is_image = len(epochs) > MANY_POINTS
    axes.scatter(epochs, seconds, s=14, color=DEVICE_COLOURS[run["device"]], zorder=2, rasterized=is_image)
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
    over_epochs(axes, ylabel="seconds per epoch", ylim=(bottom, top))
    also = f", {len(warmup[0])} of warm-up in grey" if warmup[0] else ""
    axes.set_title(f"{plain(run['label'], 60)}\n{message}{also}", fontsize=10)


def draw_memory(axes: Axes, run: Mapping[str, Any]) -> None:
    """Draw the VRAM on a GPU, with a note on missing measurements; on a CPU the memory of the process."""
    columns = VRAM if run["device"] == "cuda" else {"peak_rss_mib": "process (RAM)"}
    for (key, name), style in zip(columns.items(), ("-", "--", ":"), strict=False):
        _, values = epochs_of(run["timings"], key)
        if values:
            draw_curve(axes, run, "timings", key, f"{name}, peak {max(values):,.0f} MiB", linestyle=style)
    if axes.lines:
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(handles=axes.lines, fontsize=8, loc="upper right")
    why: dict[str, list[str]] = {}  # reason -> the missing measurements
    for key in [name for name in columns if name in run["missing_reasons"]]:  # on a CPU there is no VRAM to measure
        why.setdefault(run["missing_reasons"][key], []).append(columns[key])
    if why:
        absent = {reason: "VRAM" if len(names) == len(VRAM) else " and ".join(names) for reason, names in why.items()}
        lines = [f"{names} not measured, because {reason}" for reason, names in absent.items()]
        note = "\n".join(textwrap.fill(plain(line, 200), 60) for line in lines)
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none"}
        axes.text(0.03, 0.06, note, transform=axes.transAxes, fontsize=9, style="italic", va="bottom", bbox=box)
    over_epochs(axes, ylabel="MiB")
    axes.set_title(f"{plain(run['label'], 60)}\nmemory, peak of each epoch", fontsize=10)


def counted_epochs(timings: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the epochs whose time counts, and those of the warm-up."""
    warmup = [row for row in timings if row["is_warmup"]]
    return [row for row in timings if not row["is_warmup"]], warmup


def epochs_of(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Return epochs and values of the rows with a finite value: a training that diverges has non-finite losses."""
    present = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]
    return [epoch for epoch, _ in present], [value for _, value in present]
