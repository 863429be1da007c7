"""Every picture of a run: plain data in, a matplotlib Figure out. No file is read, and only `save` writes one.

matplotlib is imported inside the functions, because stages that draw nothing must not wait for it. A device keeps its colour in every
picture. Names from the user's data are drawn as they are: long ones cut, a dollar sign is no formula.

Shapes: M windows, H steps ahead, K sequences, T steps, F features, C classes.
"""

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Lines = dict[str, tuple[np.ndarray, dict[str, Any]]]  # label -> (M,) levels, style
Events = list[tuple[int, int]]  # (step, class) in order of time
DPI = 110
DEVICE_COLOURS = {"cpu": "tab:blue", "cuda": "tab:green"}
# Without red and grey, which stand for errors and signals.
CLASS_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan")
CLASS_MARKERS = "oDs^vPX"
RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 14,
    "markerfacecolor": "none",
    "markeredgecolor": "tab:red",
    "markeredgewidth": 1.8,
}
NETWORK, LINE_STYLES = "tab:orange", ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MAX_NUMBERED_CLASSES = 30  # beyond, a confusion matrix gets no number per cell
MAX_MATRIX_INCHES = 9.0
MAX_POINTS = 4000  # of a line or band that is far wider than the picture's pixels
BAND_WINDOWS, MIN_BAND_WINDOWS = 500, 20
VRAM = {"peak_allocated_mib": "allocated", "peak_reserved_mib": "reserved", "process_mib": "whole process"}


def png_bytes(figure: "Figure") -> bytes:
    """`figure` as a PNG file. The same figure gives the same bytes every time: no date, no version of matplotlib in it."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts and draws boxes, with a warning per sign; the tables beside the picture hold the names
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Constrained layout comes to another place on every run, and its first is the best: later ones push labels over the edge.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def save(figure: "Figure", path: Path) -> bytes:
    """Write `figure` as a PNG file; return what was written, because drawing takes long."""
    content = png_bytes(figure)
    with files.replacing(path) as temporary:
        temporary.write_bytes(content)
    return content


def confusion(cells: Sequence[Sequence[int]], classes: Sequence[Any], title: str) -> "Figure":
    """`cells` (C, C) counts with true classes as rows. Colours show the share of the row, numbers the count.

    With more than 30 classes the labels are thinned and the most frequent confusions are listed in place of the numbers.
    """
    from matplotlib.colors import PowerNorm

    names = [plain(name, 32) for name in classes]
    is_numbered = len(names) <= MAX_NUMBERED_CLASSES
    size = min(max(2.4, 0.42 * len(names)), MAX_MATRIX_INCHES)
    height = size + max(2.5, 1.2 + 0.08 * max(len(name) for name in names))
    listed = [] if is_numbered else most_confused(cells, 30)
    list_height = 0.3 + 0.16 * -(-len(listed) // 2) if listed else 0
    figure = blank(height + 1, height + list_height)
    upper: Any = figure
    if listed:
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[height, list_height])[:, 0]
        draw_confused(lower, listed, names)
    axes = upper.subplots()
    shares = np.array([[cell / max(sum(row), 1) for cell in row] for row in cells])
    # Among many classes a confusion is a small share of its row: in plain proportion it would be white.
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(1 if is_numbered else 0.4, vmin=0, vmax=1))
    step = 1 if is_numbered else -(-len(names) * 16 // int(100 * size))  # a label needs 0.16 inches
    ticks = range(0, len(names), step)
    axes.set(xlabel="predicted", ylabel="actual", xticks=ticks, yticks=ticks)
    fontsize = None if is_numbered else 7
    axes.set_xticklabels(names[::step], rotation=60, ha="right", rotation_mode="anchor", fontsize=fontsize)
    axes.set_yticklabels(names[::step], fontsize=fontsize)
    if is_numbered:
        for row, column in np.argwhere(np.array(cells)).tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(cells[row][column]), ha="center", va="center", fontsize=8, color=colour)
    upper.colorbar(image, label="share of the actual class", shrink=0.8)
    figure.suptitle(textwrap.fill(plain(title, 200), int(9 * height)))
    return figure


def draw_confused(part: "SubFigure", listed: list[tuple[int, int, int]], names: list[str]) -> None:
    """The most frequent confusions as text, in two columns."""
    half = -(-len(listed) // 2)
    for x, rows in ((0.03, listed[:half]), (0.52, listed[half:])):
        said = "\n".join(
            f"{counted(count, 'time')} {names[row]} taken for {names[other]}" for row, other, count in rows
        )
        part.text(x, 1, said, fontsize=7.5, va="top", linespacing=1.4)


def most_confused(cells: Sequence[Sequence[int]], limit: int) -> list[tuple[int, int, int]]:
    """(actual, predicted, count) of the `limit` largest cells off the diagonal, the largest first."""
    found = [
        (row, column, count)
        for row, counts in enumerate(cells)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(found, key=lambda cell: -cell[2])[:limit]


def forecast(
    times: Sequence[str],
    anchors: np.ndarray,
    actual: np.ndarray,
    predicted: np.ndarray,
    baselines: Mapping[str, np.ndarray],
    errors: Mapping[str, Sequence[float]],
    title: str,
) -> "Figure":
    """The last step of every forecast over the test period and closely at its end, and the error by step ahead.

    `times` (M,) ISO text and `anchors` (M,) are the time and the level when a forecast was made (its last known step), in order of
    time; `actual`, `predicted` and every baseline are (M, H) levels; `errors` are (H,) mean absolute errors by name, the network's under
    a name that is no baseline's. A forecast stands at the time when it was made: what was known, what was said and what came are one
    above the other.
    """
    import pandas as pd

    when = pd.to_datetime(pd.Series(list(times)), format="ISO8601", utc=True).dt.tz_localize(None).to_numpy()
    num_steps = actual.shape[1]
    low, high = error_band(actual[:, -1] - predicted[:, -1], num_steps)
    inside = (actual[:, -1] >= predicted[:, -1] + low) & (actual[:, -1] <= predicted[:, -1] + high)
    known = np.isfinite(low)
    band_label = f"5% to 95% quantile of the network's last {BAND_WINDOWS} errors known at that time"
    if known.any():
        band_label += f" ({inside[known].mean():.0%} of the actual levels fell inside)"

    steps = f"{num_steps} step{'s' if num_steps > 1 else ''} ahead"
    always: Lines = {
        "actual": (actual[:, -1], {"color": "black", "linewidth": 1.2}),
        "network": (predicted[:, -1], {"color": NETWORK, "linewidth": 1.4}),
    }
    others: Lines = {"level when the forecast was made": (anchors, {"color": "tab:grey", "linewidth": 0.9})}
    for index, (name, levels) in enumerate(baselines.items()):
        if not np.allclose(levels[:, -1], anchors):  # persistence is the line above
            others[name] = (levels[:, -1], {**baseline_style(index), "linewidth": 1.0})

    figure = blank(11, 11)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.3, 1])[:, 0]
    whole, end = upper.subplots(2, 1, height_ratios=[1, 1.3])
    band = ((predicted[:, -1] + low, predicted[:, -1] + high), band_label)
    every = -(-len(when) // MAX_POINTS)
    draw_levels(whole, when, slice(None, None, every), always, *band)
    draw_levels(end, when, slice(-150, None), {**always, **others}, *band)
    thinned = f", one in {every} drawn" if every > 1 else ""
    whole.set(ylabel=f"level {steps}", title=f"the whole test period, {counted(len(when), 'forecast')}{thinned}")
    end.set(ylabel=f"level {steps}", title=f"the last {counted(min(150, len(when)), 'forecast')}")
    end.set_xlabel("time when the forecast was made")
    draw_errors_by_step(lower, errors, list(baselines))
    figure.suptitle(plain(title, 200))
    return figure


def draw_levels(
    axes: "Axes",
    when: np.ndarray,
    chosen: slice,
    lines: Lines,
    band: tuple[np.ndarray, np.ndarray],
    band_label: str,
) -> None:
    times, low, high, *levels = with_gaps(
        when[chosen], *(limit[chosen] for limit in band), *(line[chosen] for line, _ in lines.values())
    )
    if np.isfinite(low).any():
        axes.fill_between(times, low, high, color=NETWORK, alpha=0.25, linewidth=0, label=plain(band_label, 140))
    marker = "." if len(times) < 60 else ""  # a few forecasts, or one alone between gaps, would be no line
    for line, (name, (_, style)) in zip(levels, lines.items(), strict=True):
        axes.plot(times, line, label=plain(name), marker=marker, **style)
    dated(axes)
    axes.grid(alpha=0.3)
    axes.legend(handles=[*axes.lines, *axes.collections], fontsize=8)


def error_band(errors: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """5% and 95% quantile (M,) each of the last 500 errors that were known when a forecast was made; NaN while there are fewer than 20.

    Empirical prediction interval of Williams and Goodman 1971 (J. American Statistical Association 66). `errors` (M,) are actual minus
    predicted, `num_steps` after their forecast; windows are at least a step apart, so that many windows later they are known.
    """
    import pandas as pd

    before = pd.Series(errors).shift(num_steps).rolling(BAND_WINDOWS, min_periods=MIN_BAND_WINDOWS)
    return before.quantile(0.05).to_numpy(), before.quantile(0.95).to_numpy()


def with_gaps(times: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """`times` and `columns`, with a NaN wherever time jumps, so that no line is drawn across a gap."""
    steps = np.diff(times)
    after = np.flatnonzero(steps > 4 * np.median(steps)) + 1 if len(steps) else np.array([], dtype=np.int64)
    return [
        np.insert(times, after, times[after - 1]),
        *(np.insert(column.astype(float), after, np.nan) for column in columns),
    ]


def draw_errors_by_step(part: "SubFigure", errors: Mapping[str, Sequence[float]], baselines: list[str]) -> None:
    """Left the mean absolute error by step ahead; right the same relative to the first baseline, where small differences show."""
    left, right = part.subplots(1, 2)
    reference = next((name for name in baselines if name in errors), next(iter(errors)))
    base = np.asarray(errors[reference], dtype=float)
    for name, error in errors.items():
        style = (
            baseline_style(baselines.index(name))
            if name in baselines
            else {"color": NETWORK, "linewidth": 2, "zorder": 3}
        )
        values = np.asarray(error, dtype=float)
        ahead = np.arange(1, len(values) + 1)
        relative = np.divide(values - base, base, out=np.full(len(values), np.nan), where=base > 0)
        left.plot(ahead, values, label=plain(name), marker="o", markersize=3, **style)
        right.plot(ahead, 100 * relative, label=plain(name), marker="o", markersize=3, **style)
    left.set(ylabel="mean absolute error", ylim=(0, None))
    right.set(ylabel=f"error relative to {plain(reference)} (%)", title=f"below 0: better than {plain(reference)}")
    left.set_title("error by step ahead")
    left.legend(handles=left.lines, fontsize=8)
    for axes in (left, right):
        axes.set_xlabel("steps ahead")
        whole_numbers(axes)
        axes.grid(alpha=0.3)


def baseline_style(index: int) -> dict[str, Any]:
    colours = ("tab:grey", "tab:purple", "tab:brown", "tab:cyan")
    return {"color": colours[index % len(colours)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}


def events(
    values: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    predicted: Sequence[np.ndarray],
    probabilities: Sequence[np.ndarray],
    classes: Sequence[Any],
    titles: Sequence[str],
    features: Sequence[str] = (),
    tolerance: int = 2,
) -> "Figure":
    """K sequences on a timeline each: the signals in grey, the actual events, below them the predicted ones, and the probabilities.

    `values` are (T, F) each, NaN where there is nothing to see; labels (T,) of single steps, 0 for no event; probabilities (T, C);
    `classes[0]` is the name of no event. An event counts as found if one of its class is predicted at most `tolerance` steps away. Misses
    and false alarms are ringed in red. A title may have several lines.
    """
    shown = sorted({int(label) for labels in (*actual, *predicted) for label in np.unique(labels)} - {0})
    figure = blank(12, 0.9 + 2.9 * len(values))
    rows = figure.subplots(2 * len(values), 1, height_ratios=[1.5, 1] * len(values), squeeze=False)[:, 0]
    for index, title in enumerate(titles):
        signals, lanes = rows[2 * index], rows[2 * index + 1]
        lanes.sharex(signals)
        draw_signals(signals, values[index], features)
        truth, found = events_of(actual[index]), events_of(predicted[index])
        said = draw_lanes(lanes, truth, found, matched(truth, found, tolerance))
        for label in shown:
            curve = np.asarray(probabilities[index])[:, label]
            if curve.max() > 0.02:  # else it is not to be seen
                colour = class_style(label)["color"]
                lanes.fill_between(np.arange(len(curve)), curve * 0.85, color=colour, alpha=0.45, linewidth=0)
        lines = "\n".join(plain(line, 120) for line in f"{title}: {said}".splitlines())
        signals.set_title(lines, fontsize=10, loc="left")
        signals.tick_params(labelbottom=False)
        whole_numbers(lanes)
    rows[-1].set_xlabel("step")
    handles = event_legend(shown, classes)
    longest = max((len(str(handle.get_label())) for handle in handles[:-1]), default=0)
    num_columns = max(1, min(6, int(9 / (0.5 + 0.07 * longest))))  # as many as the width of the page holds
    figure.legend(handles=handles, loc="outside lower center", ncols=num_columns, fontsize=8)
    return figure


def draw_lanes(axes: "Axes", truth: Events, found: Events, pairs: list[tuple[int, int]]) -> str:
    """Actual events above predicted ones, pairs joined by a line, the rest ringed; returns the counts in words."""
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
    """Pairs (index in truth, index in found) of one class at most `tolerance` steps apart, as many as there can be.

    Within a class, taking both in order of time and always the earliest that fits is optimal for intervals of one length.
    """
    pairs = []
    for label in sorted({label for _, label in truth}):
        left = [(step, index) for index, (step, its) in enumerate(truth) if its == label]
        right = [(step, index) for index, (step, its) in enumerate(found) if its == label]
        while left and right:
            if abs(left[0][0] - right[0][0]) <= tolerance:
                pairs.append((left.pop(0)[1], right.pop(0)[1]))
            else:
                (left if left[0] < right[0] else right).pop(0)
    return pairs


def draw_signals(axes: "Axes", values: np.ndarray, features: Sequence[str]) -> None:
    num_features = values.shape[1]
    for index in range(num_features):
        # Darkest first, and a style of its own: greys alone are hard to tell apart.
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
    """Colour and marker of a class: with both, more classes can be told apart than there are colours."""
    turn, colour = divmod(label - 1, len(CLASS_COLOURS))
    return {"color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}


def event_legend(shown: list[int], classes: Sequence[Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    most = 22
    handles = [
        Line2D([], [], linestyle="", label=plain(classes[label], 24), **class_style(label)) for label in shown[:most]
    ]
    if len(shown) > most:
        handles.append(Line2D([], [], linestyle="", label=f"and {len(shown) - most} more"))
    return [*handles, Line2D([], [], linestyle="", label="miss (above) or false alarm (below)", **RING)]


def noise(levels: Sequence[float], f1: Mapping[str, Sequence[float]] | Sequence[float], title: str) -> "Figure":
    """Event F1 against the noise of the signals (px). `f1` is the macro mean, or curves by class, of which `macro` is drawn thick."""
    curves = dict(f1) if isinstance(f1, Mapping) else {"macro": f1}
    figure = blank(8, 4.8)
    axes = figure.subplots()
    others = [name for name in curves if name != "macro"]
    for name, values in curves.items():
        style = (
            {"color": "black", "linewidth": 2.5, "marker": "o", "zorder": 3}
            if name == "macro"
            else {"linewidth": 1.2, **class_style(others.index(name) + 1)}
        )
        axes.plot(levels, values, label=plain(name, 32), **style)
    if others and len(others) <= 16:
        axes.legend(handles=axes.lines, fontsize=8)
    axes.set(xlabel="noise (px)", ylabel="event F1" if others else "macro event F1", ylim=(0, 1.03))
    axes.set_title(plain(title, 200))
    axes.grid(alpha=0.3)
    return figure


def page(workload: str, runs: Sequence[Mapping[str, Any]]) -> "Figure":
    """One workload's trainings: losses and score of all devices together, then seconds per epoch and memory of each.

    A run is {label, device, history, score, timings, absent, metrics}: the rows of history.csv and timings.csv as numbers, None where a
    cell is empty, and the reasons of what is absent.
    """
    figure = blank(12, 3.9 + 3.1 * len(runs))
    grid = figure.subplots(1 + len(runs), 2, squeeze=False)
    losses, scores = grid[0]
    for index, run in enumerate(runs):
        width = (
            1.5 if index == len(runs) - 1 else 3.5
        )  # devices come to nearly the same curve: one shows below the other
        draw_curve(losses, run, "history", "train_loss", f"train, {run['label']}", linewidth=width)
        draw_curve(losses, run, "history", "val_loss", f"val, {run['label']}", linewidth=width, linestyle="--")
        draw_scores(scores, run, width)
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


def draw_curve(axes: "Axes", run: Mapping[str, Any], table: str, key: str, label: str, **style: Any) -> None:
    """A column of a table over the epochs; a few epochs get a marker each, because a single one would be no line."""
    epochs, values = epochs_of(run[table], key)
    marker = "." if len(epochs) <= 20 else ""
    axes.plot(epochs, values, color=DEVICE_COLOURS[run["device"]], marker=marker, label=plain(label, 64), **style)


def draw_scores(axes: "Axes", run: Mapping[str, Any], width: float) -> None:
    """The validation score over the epochs; a diamond for the test score, at the last one."""
    name = run["score"]
    draw_curve(axes, run, "history", f"val_{name}", f"val, {run['label']}", linewidth=width)
    if name in run["metrics"]:
        test, colour = run["metrics"][name], DEVICE_COLOURS[run["device"]]
        style: dict[str, Any] = {"color": colour, "markeredgecolor": "black", "zorder": 3}
        axes.plot(run["history"][-1]["epoch"], test, "D", label=plain(f"test {test:.4f}, {run['label']}", 64), **style)


def draw_seconds(axes: "Axes", run: Mapping[str, Any]) -> None:
    """A dot per epoch and a box of those that count. The axis fits these: a warm-up epoch beyond it is written at the edge."""
    elsewhere = [row for row in run["timings"] if row.get("is_elsewhere")]  # where memory ran out, and the CPU went on
    apart = [row for row in run["timings"] if row["is_warmup"] or row in elsewhere]
    warmup = epochs_of(apart, "epoch_seconds")
    epochs, seconds = epochs_of([row for row in run["timings"] if row not in apart], "epoch_seconds")
    median = float(np.median(seconds or warmup[1]))
    bottom, top = min(seconds or warmup[1]), max(seconds or warmup[1])
    room = max(0.3 * (top - bottom), 0.1 * median)
    bottom, top = max(0.0, bottom - room), top + room
    axes.scatter(epochs, seconds, s=14, color=DEVICE_COLOURS[run["device"]], zorder=2)
    said = "no epoch after the warm-up"
    if seconds:
        said = f"median {short_seconds(median)} per epoch ({counted(len(seconds), 'epoch')})"
        axes.axhline(median, color="black", linewidth=0.8, linestyle="--", zorder=1)
    if len(seconds) > 1:
        width = 0.05 * max(epochs)
        line = {"color": "black"}
        axes.boxplot(
            seconds,
            positions=[max(epochs) + 1.6 * width],
            widths=width,
            manage_ticks=False,
            showfliers=False,
            medianprops=line,
        )
    for epoch, value in zip(*warmup, strict=True):
        height = min(max(value, bottom + 0.05 * (top - bottom)), top - 0.05 * (top - bottom))
        is_beyond = height != value
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": "tab:grey", "marker": "^" if is_beyond else "o"}
        axes.scatter(epoch, height, s=30, **style)
        if is_beyond:
            axes.annotate(
                short_seconds(value), (epoch, height), (6, -3), textcoords="offset points", fontsize=8, color="0.35"
            )
    axes.set(ylabel="seconds per epoch", ylim=(bottom, top), xlabel="epoch")
    also = f", {len(warmup[0])} of warm-up{' or on the CPU' if elsewhere else ''} in grey" if warmup[0] else ""
    axes.set_title(f"{plain(run['label'], 60)}\n{said}{also}", fontsize=10)


def draw_memory(axes: "Axes", run: Mapping[str, Any]) -> None:
    """VRAM on a GPU, else the process's memory; what is absent stands there with its reason."""
    columns = VRAM if run["device"] == "cuda" else {"peak_rss_mib": "process (RAM)"}
    for (key, name), style in zip(columns.items(), ("-", "--", ":"), strict=False):
        _, values = epochs_of(run["timings"], key)
        if values:
            draw_curve(axes, run, "timings", key, f"{name}, peak {max(values):,.0f} MiB", linestyle=style)
    if axes.lines:
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
        axes.legend(handles=axes.lines, fontsize=8, loc="upper right")
    why: dict[str, list[str]] = {}  # reason -> what is absent for it
    for key in [name for name in VRAM if name in run["absent"]]:  # power and the like are no memory
        why.setdefault(run["absent"][key], []).append(VRAM[key])
    said = [
        f"{'VRAM' if len(names) == len(VRAM) else ' and '.join(names)} not measured, because {reason}"
        for reason, names in why.items()
    ]
    if said:
        note = "\n".join(textwrap.fill(plain(text, 200), 76) for text in said)
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none"}
        axes.text(0.03, 0.06, note, transform=axes.transAxes, fontsize=9, style="italic", va="bottom", bbox=box)
    axes.set(ylabel="MiB", xlabel="epoch")
    axes.set_title(f"{plain(run['label'], 60)}\nmemory, peak of each epoch", fontsize=10)


def epochs_of(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of the rows that have one."""
    present = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
    return [epoch for epoch, _ in present], [value for _, value in present]


def sweep(workload: str, points: Sequence[Any]) -> "Figure":
    """Samples per second and memory against batch size, a line per device; points have device, batch_size and both."""
    figure = blank(11, 4.2)
    rates, memory = figure.subplots(1, 2)
    for device in dict.fromkeys(point.device for point in points):
        own = [point for point in points if point.device == device]
        sizes = [point.batch_size for point in own]
        style: dict[str, Any] = {"color": DEVICE_COLOURS[device], "marker": "o", "label": device}
        rates.plot(sizes, [point.samples_per_second for point in own], **style)
        memory.plot(sizes, [point.peak_mib for point in own], **style)
    for axes, label in ((rates, "samples per second"), (memory, "memory of a step, MiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="batch size", ylabel=label)
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.suptitle(f"{plain(workload)}: batch size")
    return figure


def summary(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Score and epoch time of every run, a row of panels per workload: their scores and times are of different kinds."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
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
    axes: "Axes", group: Sequence[Mapping[str, Any]], found: Sequence[float | None], form: str, unit: float
) -> None:
    """A bar per run, with room for its number. The axis reaches `unit` (a perfect score is 1) and below zero only where a value does."""
    colours = [DEVICE_COLOURS[row["device"]] for row in group]
    values = [value or 0.0 for value in found]
    bars = axes.barh(range(len(group)), values, color=colours, height=0.7)
    labels = ["none" if value is None else form.format(value) for value in found]
    axes.bar_label(bars, labels=labels, padding=3, fontsize=9)
    low, high = min(0.0, *values), max(unit, *values)
    span = (high - low) or 1.0
    axes.set(
        xlim=(low - 0.16 * span if low < 0 else 0, high + 0.16 * span),
        yticks=range(len(group)),
        ylim=(len(group) - 0.4, -0.6),
    )
    axes.set_yticklabels([row["device"] for row in group])
    axes.axvline(0, color="black", linewidth=0.8)


def blank(width: float, height: float) -> "Figure":
    """An empty figure of inches that belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: Any, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters, which matplotlib will not read as a formula."""
    line = " ".join(str(text).split())
    return (line if len(line) <= limit else line[: limit - 1] + "…").replace("$", r"\$")


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"


def whole_numbers(axes: "Axes") -> None:
    """Ticks of the x axis at whole numbers: there is no epoch 2.5."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def dated(axes: "Axes") -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
