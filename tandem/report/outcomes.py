"""Charts of a trained model's test results, drawn from the tables of an evaluated run."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.lines import Line2D

from tandem.report.drawing import LINE_STYLES, MANY_POINTS, WIDTH, Chart, chart, plain, whole_numbers
from tandem.report.text import counted, words
from tandem.runs.run import Run

MIN_POINTS = 3  # fewer do not make a figure
MAX_NUMBERED_CLASSES = 20  # with more classes the cells of a matrix are too small for numbers
NUM_FORECASTS = 150
ROUNDING = 1e-6  # relative to the error of other steps, a smaller error is rounding of 32-bit floats
NETWORK, BASELINES = "tab:orange", ("tab:grey", "tab:purple", "tab:brown", "tab:cyan")
# Of events. Red and grey are reserved for errors and lines.
CLASS_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan")
CLASS_MARKERS = "oDs^vPX"
RING: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "fillstyle": "none",
    "color": "tab:red",
    "markeredgewidth": 1.8,
}
LANES = {"actual": 2.2, "predicted": 1.4}  # heights


def outcomes(run: Run, title_end: str = "") -> list[Chart]:
    """Return the charts of an evaluated run that its task names. `title_end`: device and seed."""
    charts = [CHARTS[name](run) for name in run.task_attributes["charts"] if name in CHARTS]
    return [Chart(f"{outcome.title}{title_end}", outcome.sentence, outcome.figure) for outcome in charts if outcome]


def confusion(run: Run) -> Chart | None:
    pairs = Counter((row["actual"], row["predicted"]) for row in run.table("confusion"))
    if not pairs:
        return None
    classes = classes_of(run, {name for pair in pairs for name in pair})
    cells = np.array([[pairs[actual, predicted] for predicted in classes] for actual in classes])
    wrong = cells * (1 - np.eye(len(classes), dtype=int))
    worst = np.unravel_index(np.argsort(-wrong, axis=None, kind="stable")[:3], wrong.shape)
    mistakes = [
        f"{classes[actual]} predicted as {classes[predicted]}, {'once' if count == 1 else f'{count:,} times'}"
        for actual, predicted, count in zip(*worst, wrong[worst], strict=True)
        if count
    ]
    sentence = f"Rows are actual, columns predicted classes: {cells.trace():,} of {cells.sum():,} are on the diagonal"
    if mistakes:
        sentence += f". Most frequent errors: {'; '.join(mistakes)}"
    names = [plain(name, 20) for name in classes]
    is_numbered = len(names) <= MAX_NUMBERED_CLASSES
    labels = 0.2 + 0.06 * max(map(len, names))
    size = min(0.35 * len(names), 0.94 * WIDTH - labels)

    def draw(axes: Axes) -> None:
        shares = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
        # With many classes, a confusion is a small share of its row and would be white on a linear scale.
        norm = PowerNorm(1 if is_numbered else 0.4, vmin=0, vmax=1)
        axes.imshow(shares, cmap="Blues", norm=norm, interpolation="none")
        step = 1 if is_numbered else -(-len(names) * 16 // int(100 * size))  # a label needs 0.16 inches
        points = 72 * size / len(names)  # of a cell
        ticks, fontsize = range(0, len(names), step), min(7.5, 0.9 * points) if is_numbered else 7
        axes.set_xticks(ticks, names[::step], rotation=60, ha="right", rotation_mode="anchor", fontsize=fontsize)
        axes.set_yticks(ticks, names[::step], fontsize=fontsize)
        axes.set_anchor("NW")
        place: dict[str, Any] = {"ha": "center", "va": "center"}
        place["fontsize"] = min(8, 0.75 * points, 1.5 * points / len(str(cells.max())))
        for row, column in np.argwhere(cells).tolist() if is_numbered else ():
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(cells[row, column]), color=colour, **place)

    return chart("Actual and predicted classes", f"{sentence}.", draw, height=size, left=labels, bottom=labels)


def classes_of(run: Run, more_classes: set[str]) -> list[str]:
    """Return the classes in the order of the scores, then `more_classes`."""
    scored = [row["class"] for row in run.table("scores") if "class" in row]
    return list(dict.fromkeys([*scored, *sorted(more_classes)]))


def errors_ahead(run: Run) -> Chart | None:
    """Return the error by step ahead relative to persistence or the seasonal naive forecast."""
    rows = run.table("scores")
    names = [key.removesuffix("_mae") for key in rows[0] if key.endswith("_mae")] if len(rows) > 1 else []
    if not {"network", "persistence"} <= set(names):
        return None
    reference = "seasonal_naive" if "seasonal_naive" in names else "persistence"
    errors = {name: np.array([float(row[f"{name}_mae"]) for row in rows]) for name in names}
    base = errors.pop(reference)
    base[base <= ROUNDING * base.max()] = np.nan
    if np.isnan(base).all():
        return None
    percent = {name: 100 * (error / base - 1) for name, error in errors.items()}
    labels = {**{name: words(name) for name in percent}, "network": run.subject.removeprefix("the ")}
    ranges = "; ".join(
        f"{labels[name]} {np.nanmin(values):+.2f}% to {np.nanmax(values):+.2f}%" for name, values in percent.items()
    )
    simple = "the last season repeats" if reference == "seasonal_naive" else "nothing changes"

    def draw(axes: Axes) -> None:
        ahead = np.arange(1, len(base) + 1)
        axes.axhline(0, color=BASELINES[0], linestyle=LINE_STYLES[0], label=words(reference))
        for index, (name, values) in enumerate(percent.items()):
            style: dict[str, Any] = {"color": BASELINES[index], "linestyle": LINE_STYLES[index]}
            style = {"color": NETWORK, "linewidth": 2, "zorder": 3} if name == "network" else style
            axes.plot(ahead, values, label=labels[name], marker="o", markersize=3, **style)
        axes.set_xlabel("steps ahead")
        axes.grid(alpha=0.3)
        whole_numbers(axes)

    title = f"Error by step ahead, in % relative to {words(reference)}"
    return chart(title, f"Below 0 is better than {words(reference)} ({simple}): {ranges}.", draw)


def last_forecasts(run: Run) -> Chart | None:
    """Return the longest forecasts at the end of the test split, each at the time when it was made."""
    rows = run.predictions
    steps = max((int(row["step_ahead"]) for row in rows), default=0)
    last = [row for row in rows if int(row["step_ahead"]) == steps][-NUM_FORECASTS:]
    if len(last) < MIN_POINTS:
        return None
    simple, column = ("seasonal naive", "seasonal_naive") if "seasonal_naive" in last[0] else ("persistence", "last")
    model = run.subject.removeprefix("the ")
    columns = {"actual": "actual", model: "predicted", simple: column}
    levels = {label: np.array([float(row[name]) for row in last]) for label, name in columns.items()}
    errors = [np.abs(levels[name] - levels["actual"]).mean() for name in (model, simple)]
    # matplotlib needs UTC times without a time zone.
    dates = [datetime.fromisoformat(row["time"]).astimezone(UTC).replace(tzinfo=None) for row in last]
    times = np.array(dates, dtype="datetime64[us]")
    day = "%Y-%m-%d" if np.median(np.diff(times)) >= np.timedelta64(1, "D") else "%Y-%m-%d %H:%M"
    sentence = (
        f"Mean absolute error of {words(run.train['block']['preprocess']['columns']['target'])} "
        f"{counted(steps, 'step')} ahead in the last {len(last)} forecasts, {dates[0]:{day}} to {dates[-1]:{day}}: "
        f"{model} {errors[0]:,.4g}, {simple} {errors[1]:,.4g}."
    )
    styles: list[dict[str, Any]] = [
        {"color": "black", "linewidth": 1.2},
        {"color": NETWORK, "linewidth": 1.4},
        {"color": "tab:grey", "linewidth": 0.9, "linestyle": LINE_STYLES[0]},
    ]

    def draw(axes: Axes) -> None:
        with_gap, *lines = with_gaps(times, *levels.values())
        marker = "." if len(times) < 60 else ""  # a single forecast between gaps would draw no line
        for label, line, style in zip(levels, lines, styles, strict=True):
            axes.plot(with_gap, line, label=label, marker=marker, **style)
        locator = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(alpha=0.3)

    return chart("The last forecasts, when they were made", sentence, draw, left=0.6)


def with_gaps(times: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Return `times` and `columns` with a NaN at each gap in time, so that no line crosses a gap."""
    steps = np.diff(times)
    gaps = np.flatnonzero(steps > 4 * np.median(steps)) + 1
    return [np.insert(times, gaps, times[gaps - 1]), *(np.insert(column, gaps, np.nan) for column in columns)]


def predicted_numbers(run: Run) -> Chart | None:
    assert run.score
    actual, predicted = (np.array([float(row[side]) for row in run.predictions]) for side in LANES)
    if len(actual) < MIN_POINTS:
        return None
    columns = run.train["block"]["preprocess"].get("columns")  # a source of the workload's own may have none
    target = words(columns["label"]) if columns else "the target"
    model = run.subject.removeprefix("the ")
    names = {"mean_mae": "training mean", "fitted_mae": "fitted model"}
    errors = {word: value for name, word in names.items() if (value := run.score["metrics"].get(name)) is not None}
    errors_text = "".join(f", {word} {value:.4g}" for word, value in errors.items())
    sentence = (
        f"Mean absolute error of {target} over {counted(len(actual), 'test sequence')}: {model} "
        f"{np.abs(predicted - actual).mean():.4g}{errors_text}."
    )

    def draw(axes: Axes) -> None:
        ends = [min(actual.min(), predicted.min()), max(actual.max(), predicted.max())]
        axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
        axes.axhline(actual.mean(), color="black", linewidth=0.8, linestyle=":", label="their mean")
        size = max(3.0, 9.0 - 2 * np.log10(len(actual)))
        style: dict[str, Any] = {"color": NETWORK, "markersize": size, "alpha": 0.6, "markeredgewidth": 0}
        axes.plot(actual, predicted, "o", **style, label=model, rasterized=len(actual) > MANY_POINTS)
        axes.set_xlabel(f"actual {plain(target, 40)}")
        axes.grid(alpha=0.3)

    return chart("Predicted and actual numbers", sentence, draw, height=2.2)


def events(run: Run) -> Chart | None:
    """Return actual and predicted events of a few sequences: the two with the most, and the first two with
    a mistake.
    """
    by_sequence: dict[str, list[Mapping[str, str]]] = {}
    for row in run.predictions:
        by_sequence.setdefault(row["sequence"], []).append(row)
    if not by_sequence:
        return None
    most_eventful = sorted(by_sequence, key=lambda name: -sum(bool(row["actual"]) for row in by_sequence[name]))[:2]
    mistaken = [name for name, rows in by_sequence.items() if any(is_wrong(row) for row in rows)]
    chosen = list(dict.fromkeys([*most_eventful, *mistaken[:2]]))
    classes = classes_of(run, {row["event"] for row in run.predictions})
    sentence = (
        f"{len(mistaken):,} of {len(by_sequence):,} test sequences with events have a mistake. Shown are the two with "
        f"the most events{' and the first with a mistake' if mistaken else ''}; a line joins an event with its "
        "prediction."
    )

    def draw(*every: Axes) -> list[Line2D]:
        for axes, name in zip(every, chosen, strict=True):
            draw_events(axes, by_sequence[name], classes)
            missed, false = (sum(not row[side] for row in by_sequence[name]) for side in ("predicted", "actual"))
            num_events = counted(len(by_sequence[name]) - false, "event")
            message = f"{num_events}, {counted(missed, 'miss', 'misses')}, {counted(false, 'false alarm')}"
            axes.text(-0.2, 1.1, plain(f"sequence {name}: {message}", 54), transform=axes.transAxes, fontsize=8)
        whole_numbers(axes)
        axes.set_xlabel("step")
        indices = sorted({classes.index(row["event"]) for name in chosen for row in by_sequence[name]})
        handles = [Line2D([], [], label=plain(classes[index], 24), **class_style(index)) for index in indices]
        return [*handles, Line2D([], [], label="miss or false alarm", markersize=8, **RING)]

    height = 0.75 * len(chosen)
    return chart("Events, actual and predicted", sentence, draw, num=len(chosen), height=height, left=0.7, top=0.25)


def draw_events(axes: Axes, rows: list[Mapping[str, str]], classes: list[str]) -> None:
    """Draw actual events above predicted events, with a line for each pair and rings around the others."""
    for row in rows:
        places = [(int(row[side]), height) for side, height in LANES.items() if row[side]]
        if is_wrong(row):
            axes.plot(*places[0], markersize=14, zorder=3, **RING)
        else:
            axes.plot(*zip(*places, strict=True), color="tab:grey", linewidth=0.8, zorder=1)
        for place in places:
            axes.plot(*place, zorder=2, **class_style(classes.index(row["event"])))
    axes.set(ylim=(1, 2.6), yticks=list(LANES.values()), yticklabels=list(LANES))


def class_style(index: int) -> dict[str, Any]:
    """Return colour and marker of a class: together they distinguish more classes than there are colours."""
    turn, colour = divmod(index, len(CLASS_COLOURS))
    return {"linestyle": "", "color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}


def is_wrong(event: Mapping[str, str]) -> bool:
    return not (event["actual"] and event["predicted"])


# By the name that a task gives in `charts`.
CHARTS: dict[str, Callable[[Run], Chart | None]] = {
    function.__name__: function for function in (confusion, events, errors_ahead, last_forecasts, predicted_numbers)
}
