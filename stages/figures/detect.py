"""Timelines of events: actual events, predicted events and their probabilities.

Shapes: K sequences, T steps, F features, C classes.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.figures.drawing import LINE_STYLES, blank, counted, plain, whole_numbers
from stages.tasks.scores import match_steps

Events = list[tuple[int, int]]  # (step, class), ordered by time
# Red and grey are reserved for errors and signals.
CLASS_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan")
CLASS_MARKERS = "oDs^vPX"
MAX_CLASSES = 22  # in the legend
RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 14,
    "fillstyle": "none",
    "color": "tab:red",
    "markeredgewidth": 1.8,
}


def draw(
    ids: np.ndarray,
    values: np.ndarray,
    actual: np.ndarray,
    predicted: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
    features: Sequence[str],
    tolerance: int,
    title: str,
) -> Figure:
    """Draw timelines of the two sequences with the most events and the first two with a wrong number of predicted
    events.

    `values` (N, T, F) are the signals, NaN if missing; `actual` and `predicted` (N, T) are the classes per step, 0 for
    no event; `probabilities` (N, T, C); `classes[0]` is the name of no event. An event is found if one of its class is
    predicted at most `tolerance` steps away. A red ring marks a miss or a false alarm.
    """
    num_actual, num_predicted = (actual > 0).sum(axis=1), (predicted > 0).sum(axis=1)
    most, wrong = np.argsort(-num_actual, kind="stable")[:2], np.flatnonzero(num_actual != num_predicted)[:2]
    rows = list(dict.fromkeys([*most.tolist(), *wrong.tolist()]))
    shown = np.union1d(actual[rows], predicted[rows]).astype(int)
    shown = shown[shown > 0].tolist()
    figure = blank(12, 0.9 + 2.9 * len(rows))
    grid = figure.subplots(len(rows) * 2, 1, height_ratios=[1.5, 1] * len(rows), squeeze=False)[:, 0]
    for row, signals, lanes in zip(rows, grid[::2], grid[1::2], strict=True):
        lanes.sharex(signals)
        draw_signals(signals, values[row], features)
        truth, found = events_of(actual[row]), events_of(predicted[row])
        message = draw_lanes(lanes, truth, found, matched(truth, found, tolerance))
        for label in shown:
            curve = probabilities[row][:, label]
            if curve.max() > 0.02:  # smaller ones are not visible
                colour = class_style(label)["color"]
                lanes.fill_between(np.arange(len(curve)), curve * 0.85, color=colour, alpha=0.45, linewidth=0)
        signals.set_title(plain(f"sequence {ids[row]}: {message}", 120), fontsize=10, loc="left")
        signals.tick_params(labelbottom=False)
        whole_numbers(lanes)
    grid[-1].set_xlabel("step")
    handles = legend_of(shown, classes)
    longest = max((len(str(handle.get_label())) for handle in handles[:-1]), default=0)
    num_columns = max(1, min(6, int(9 / (0.5 + 0.07 * longest))))  # as many as fit into the width
    figure.legend(handles=handles, loc="outside lower center", ncols=num_columns, fontsize=8)
    figure.suptitle(plain(title, 120), fontsize=10)
    return figure


def legend_of(labels: Collection[int], classes: Sequence[Any]) -> list[Line2D]:
    shown = sorted(labels)
    handles = [Line2D([], [], linestyle="", label=plain(classes[label], 24), **class_style(label)) for label in shown]
    if len(shown) > MAX_CLASSES:
        handles[MAX_CLASSES:] = [Line2D([], [], linestyle="", label=f"and {len(shown) - MAX_CLASSES} more")]
    ring = {**RING, "markersize": 8}
    return [*handles, Line2D([], [], linestyle="", label="miss or false alarm", **ring)]


def draw_lanes(axes: Axes, truth: Events, found: Events, pairs: list[tuple[int, int]]) -> str:
    """Draw actual events above predicted events, with a line for each pair and rings around the others. Returns the
    counts as text.
    """
    lanes, alone = {"actual": (2.2, truth), "predicted": (1.4, found)}, []
    for number, other in pairs:
        axes.plot([truth[number][0], found[other][0]], [2.2, 1.4], color="tab:grey", linewidth=0.8, zorder=1)
    for side, (height, lane) in enumerate(lanes.values()):
        paired = {pair[side] for pair in pairs}
        alone.append([step for number, (step, _) in enumerate(lane) if number not in paired])
        axes.plot(alone[side], [height] * len(alone[side]), linestyle="", zorder=3, **RING)
        for label in {label for _, label in lane}:
            steps = [step for step, its in lane if its == label]
            axes.plot(steps, [height] * len(steps), linestyle="", zorder=2, **class_style(label))
    axes.set(ylim=(0, 2.7), yticks=[2.2, 1.4, 0.42], yticklabels=[*lanes, "probability"])
    axes.axhline(0.95, color="tab:grey", linewidth=0.5)
    missed, false = (len(steps) for steps in alone)
    return f"{counted(len(truth), 'event')}, {counted(missed, 'miss', 'misses')}, {counted(false, 'false alarm')}"


def events_of(labels: np.ndarray) -> Events:
    return [(step, int(labels[step])) for step in np.flatnonzero(labels).tolist()]


def matched(truth: Events, found: Events, tolerance: int) -> list[tuple[int, int]]:
    """Return a maximum matching (index in truth, index in found) of events of one class at most `tolerance` steps
    apart.
    """
    pairs = []
    for label in sorted({label for _, label in truth}):
        left, right = ([index for index, (_, its) in enumerate(lane) if its == label] for lane in (truth, found))
        steps = [truth[index][0] for index in left], [found[index][0] for index in right]
        pairs += [(left[i], right[j]) for i, j in match_steps(*steps, tolerance)]
    return pairs


def draw_signals(axes: Axes, values: np.ndarray, features: Sequence[str]) -> None:
    num_features = values.shape[1]
    for index in range(num_features):
        # Darkest first, each with its own line style: greys alone are hard to distinguish.
        grey = str(0.25 + 0.5 * index / max(num_features, 2))
        style = ("-", *LINE_STYLES)[index % 5]
        axes.plot(values[:, index], color=grey, linestyle=style, linewidth=1, marker="." if len(values) < 40 else None)
    if features and num_features <= 8:
        axes.legend(axes.lines, [plain(name, 24) for name in features], fontsize=7, loc="upper right", ncols=4)
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.25 * (top - bottom))  # room for the legend
    axes.set_ylabel("signals")
    axes.grid(alpha=0.3)


def class_style(label: int) -> dict[str, Any]:
    """Return colour and marker of a class: together they distinguish more classes than there are colours."""
    turn, colour = divmod(label - 1, len(CLASS_COLOURS))
    return {"color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}
