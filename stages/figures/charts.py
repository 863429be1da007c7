"""The report's charts of one workload: a sentence with numbers, and a figure as narrow as a phone's screen.

The functions take rows of compare.json with the additions of `stages.compare.facts`, whose tables contain text as in a
CSV, and rows of the published runs. The figures use the functions that draw the PNG files. If a figure would show
nothing (one bar, one epoch), the chart has only its sentence.
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stages.figures import classify, detect, forecast, overview, regress, sweeps, training
from stages.figures.drawing import LINE_STYLES, counted, plain, whole_numbers
from stages.figures.overview import Bar, bar
from stages.figures.text import score_text, seconds, spread, words
from stages.figures.training import epochs_of

Row = Mapping[str, Any]
WIDTH = 3.6  # inches
MIN_EPOCHS = 3  # fewer do not make a curve
MAX_NUMBERED_CLASSES = 20  # with more classes the cells are too small for numbers


@dataclass(frozen=True)
class Chart:
    title: str
    sentence: str  # the content in numbers
    figure: Figure | None = None  # None: there is too little to draw


def chart(
    title: str,
    sentence: str,
    draw: Callable[..., Sequence[Artist] | None],
    *,
    height: float = 1.7,
    left: float = 0.5,
    bottom: float = 0.45,
    top: float = 0.08,
    num: int = 1,
) -> Chart:
    """Return a chart of `num` axes below each other. `draw` gets the axes and may return the legend's handles.

    `height` is for all axes; `left`, `bottom` and `top` are the space for labels, in inches. The report's text names
    the quantity of the y axis.
    """
    figure = Figure()
    axes: list[Axes] = figure.subplots(num, 1, squeeze=False, sharex=True)[:, 0].tolist()
    handles = draw(*axes) or axes[0].get_legend_handles_labels()[0]
    if len(handles) > 1:
        num_columns = 2 if max(len(str(each.get_label())) for each in handles) <= 22 else 1
        top += 0.18 * -(-len(handles) // num_columns)
        figure.legend(handles=handles, loc="upper left", ncols=num_columns, frameon=False, borderaxespad=0, fontsize=8)
    figure.set_size_inches(WIDTH, height + bottom + top)
    total = height + bottom + top
    figure.subplots_adjust(left / WIDTH, bottom / total, 0.94, 1 - top / total, hspace=0.6)
    for each in axes:
        each.set(title="", ylabel="")
        for axis in (each.xaxis, each.yaxis):
            if isinstance(locator := axis.get_major_locator(), MaxNLocator):
                locator.set_params(nbins=5)
    return Chart(title, sentence, figure)


def scores(rows: Sequence[Row]) -> Chart | None:
    """Return the test score of every seed, for every device and the published runs; None for a single score."""
    bars = [bar(row, "score") for row in rows]
    if sum(len(each.values) for each in bars) == 1:
        return None
    # A forecast's skill is 0 if it is no better than persistence; R2 is 0 if it is no better than the targets' mean.
    floor = {"forecast": "persistence", "regress": "the mean of what is predicted"}.get(rows[0]["task"])
    is_below = floor is not None and min(min(each.values) for each in bars) < 0
    beside = f" The dashed line is {floor}." if is_below else ""

    def draw(axes: Axes) -> None:
        overview.draw_values(axes, bars)
        if is_below:
            axes.axvline(0, color="black", linewidth=0.8, linestyle="--")

    title = f"Test {words(rows[0]['score_name'])}, seed by seed"
    return bar_chart(title, f"{values_in_words(bars, score_text, 'seed')}.{beside}", bars, draw)


def speeds(rows: Sequence[Row]) -> Chart | None:
    """Return the seconds per epoch of every device and of the published runs; None for a single one."""
    timed = [row for row in rows if row["epoch_seconds"] is not None]
    bars = [bar(row, "epoch_seconds") for row in timed]
    if len(bars) < 2:
        return None
    untimed = " Times of the published runs are not recorded." if len(timed) < len(rows) else ""
    has_published = any(each.device == "published" for each in bars)
    apart = " Published times took no turns with these: their ratio holds two machines' state too."

    def draw(axes: Axes) -> None:
        overview.draw_bars(axes, bars, lambda value: f"{seconds(value)} s", room=0.45)

    sentence = f"{values_in_words(bars, seconds, 'process')}.{apart if has_published else ''}{untimed}"
    return bar_chart("Seconds per epoch, less is faster", sentence, bars, draw)


def values_in_words(bars: Sequence[Bar], show: Callable[[float], str], one: str) -> str:
    return "; ".join(
        f"{each.label} {spread(each.values, each.middle, show, one)}" for each in bars if each.middle is not None
    )


def bar_chart(title: str, sentence: str, bars: Sequence[Bar], draw: Callable[[Axes], None]) -> Chart:
    longest = max(len(plain(each.label, overview.MAX_LABEL)) for each in bars)
    return chart(title, sentence, draw, height=0.15 + 0.3 * len(bars), left=0.15 + 0.08 * longest, bottom=0.25)


def losses(rows: Sequence[Row]) -> Chart:
    found, sentences = [], []
    for row in rows:
        epochs, trained = epochs_of(row["history"], "train_loss")
        if not trained:
            continue
        found.append(row)
        sentence = (
            f"{device_prefix(rows, row)}training loss goes from {trained[0]:.3g} to {trained[-1]:.3g} in "
            f"{counted(len(row['history']), 'epoch')}"
        )
        epochs, validated = epochs_of(row["history"], "val_loss")
        if validated:
            lowest = min(validated)
            sentence += (
                f"; on validation it is lowest, {lowest:.3g}, in epoch {epochs[validated.index(lowest)]:g}, and "
                f"{validated[-1]:.3g} at the end"
            )
        sentences.append(sentence)
    return curves(f"Loss{first_seed(rows)}", sentences, found, training.draw_losses)


def validation(rows: Sequence[Row]) -> Chart:
    """Return the validation score over the epochs, and the test score at the end."""
    found, sentences = [], []
    for row in rows:
        name, test = row["score_name"], row["runs"][0]["score"]
        epochs, values = epochs_of(row["history"], f"val_{name}")
        if not values:
            continue
        found.append({**row, "metrics": {name: test}})
        best = max(values)
        sentences.append(
            f"{device_prefix(rows, row)}{words(name)} on validation is {score_text(values[-1])} at the end, at best "
            f"{score_text(best)} in epoch {epochs[values.index(best)]:g}; on the test split it is {score_text(test)}"
        )
    title = capitalized(f"{words(rows[0]['score_name'])} over the epochs{first_seed(rows)}")
    return curves(title, sentences, found, training.draw_scores)


def curves(
    title: str, sentences: Sequence[str], rows: Sequence[Row], draw: Callable[[Axes, Sequence[Row]], None]
) -> Chart:
    said = ". ".join(map(capitalized, sentences))
    sentence = f"{said}." if said else "Nothing was recorded."
    if max((len(row["history"]) for row in rows), default=0) < MIN_EPOCHS:
        return Chart(title, sentence)
    return chart(title, sentence, lambda axes: draw(axes, rows))


def epoch_times(row: Row, rows: Sequence[Row]) -> Chart:
    """Return each epoch's seconds. The axis fits the epochs that count; values beyond it are drawn at its edge."""
    counting, others = training.counted_epochs(row["timings"])
    device = f", {row['label']}" if len(rows) > 1 else ""
    title = f"Every epoch's seconds{device}{first_seed([row])}"
    values = epochs_of(counting, "epoch_seconds")[1]
    sentence = f"An epoch takes {seconds(statistics.median(values))} s in the median of {len(values)}"
    if len(values) >= 4:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        sentence += f", half of them {seconds(low)} to {seconds(high)} s, the slowest {seconds(max(values))} s"
    if others:
        do = "does" if len(others) == 1 else "do"
        sentence += f"; {counted(len(others), 'epoch')} of warm-up {do} not count (in grey, a triangle beyond the axis)"
    if len(values) < MIN_EPOCHS:
        return Chart(title, f"{sentence}.")
    return chart(title, f"{sentence}.", lambda axes: training.draw_seconds(axes, row))


def first_seed(rows: Sequence[Row]) -> str:
    """Return the seed of the curves as text if there are several: curves show the first seed."""
    return f", seed {rows[0]['seeds'][0]}" if len(rows[0]["seeds"]) > 1 else ""


def device_prefix(rows: Sequence[Row], row: Row) -> str:
    return f"{row['label']}, " if len(rows) > 1 else ""


def capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def outcomes(row: Row, where: str = "") -> list[Chart]:
    """Return the charts of a trained model's test results. `where`: the device and seed as text."""
    match row["task"]:
        case "detect":
            found = [events(row), noise(row), confusion(row, where)]
        case "forecast":
            found = [errors_ahead(row), last_forecasts(row)]
        case "regress":
            found = [predicted_numbers(row)]
        case _:
            found = [confusion(row, where)]
    return [each for each in found if each]


def confusion(row: Row, where: str) -> Chart | None:
    pairs = Counter((each["actual"], each["predicted"]) for each in row["confusion"])
    if not pairs:
        return None
    classes = classes_of(row, (name for pair in pairs for name in pair))
    cells = [[pairs[actual, predicted] for predicted in classes] for actual in classes]
    mistakes = [
        f"{classes[actual]} taken for {classes[predicted]}, {'once' if count == 1 else f'{count:,} times'}"
        for actual, predicted, count in classify.most_confused(cells, 3)
    ]
    num, num_right = pairs.total(), sum(cells[index][index] for index in range(len(classes)))
    sentence = f"Actual classes down, predicted ones across: {num_right:,} of {num:,} lie on the diagonal"
    if mistakes:
        sentence += f". Most often wrong: {'; '.join(mistakes)}"
    names = [plain(name, 20) for name in classes]
    is_numbered = len(names) <= MAX_NUMBERED_CLASSES
    labels = 0.2 + 0.06 * max(map(len, names))
    size = min(0.35 * len(names), 0.94 * WIDTH - labels)

    def draw(axes: Axes) -> None:
        cell, digits = 72 * size / len(names), max(len(str(count)) for line in cells for count in line)
        fontsize = min(8, 0.75 * cell, 1.5 * cell / digits)
        classify.draw_matrix(axes, cells, names, size, is_numbered, fontsize, label_size=min(7.5, 0.9 * cell))
        axes.set(xlabel="", anchor="NW")

    title = f"Actual and predicted classes{where}"
    return chart(title, f"{sentence}.", draw, height=size, left=labels, bottom=labels)


def classes_of(row: Row, others: Iterable[str]) -> list[str]:
    """Return the classes in the order of the scores, then `others`."""
    known = [str(each["class"]) for each in row["scores"] if "class" in each]
    return list(dict.fromkeys([*known, *sorted(set(others))]))


def noise(row: Row) -> Chart | None:
    """Return the score of a simulation by noise, which `evaluate` measures on newly simulated sequences."""
    name = row["score_name"]
    pattern = re.compile(rf"{re.escape(name)}_at_noise_([\d.]+)px")
    known = {key: value for key, value in row["metrics"].items() if value is not None}
    found = {float(match[1]): value for key, value in known.items() if (match := pattern.fullmatch(key))}
    trained = row["parameters"].get("preprocess.noise")
    if trained is not None:
        found[float(trained)] = row["metrics"][name]
    if len(found) < 3:
        return None
    levels = sorted(found)
    said = ", ".join(f"{score_text(found[level])} at {level:g}" for level in levels)
    sentence = f"Test {words(name)} by the noise of the signals in pixels: {said}."
    if trained is not None:
        sentence += f" The network was trained at {trained:g}."
    values = [found[level] for level in levels]
    return chart("How much noise it bears", sentence, lambda axes: sweeps.draw_noise(axes, levels, values))


def errors_ahead(row: Row) -> Chart | None:
    """Return the error by step ahead relative to persistence or the seasonal naive forecast."""
    names = [key.removesuffix("_mae") for key in (row["scores"] or [{}])[0] if key.endswith("_mae")]
    if len(row["scores"]) < 2 or not {"network", "persistence"} <= set(names):
        return None
    errors = {name: np.array([float(each[f"{name}_mae"]) for each in row["scores"]]) for name in names}
    reference, relative = forecast.relative_errors(errors)
    if any(np.isnan(values).all() for values in relative.values()):
        return None
    said = "; ".join(
        f"the error of the {words(name)} is {np.nanmin(values):+.2f}% to {np.nanmax(values):+.2f}% away from it"
        for name, values in relative.items()
        if name != reference
    )
    simple = "that the last season comes again" if reference == "seasonal_naive" else "that nothing changes"
    title = f"Error by step ahead, % against {words(reference)}"
    sentence = f"Below 0 is better than saying {simple}: {said}."
    return chart(title, sentence, lambda axes: forecast.draw_errors_by_step(axes, relative))


def last_forecasts(row: Row) -> Chart | None:
    """Return the longest forecasts at the end of the test split, each at the time when it was made."""
    if not row["predictions"] or "step_ahead" not in row["predictions"][0]:
        return None
    steps = max(int(each["step_ahead"]) for each in row["predictions"])
    own = [each for each in row["predictions"] if int(each["step_ahead"]) == steps][-forecast.NUM_LAST :]
    if len(own) < MIN_EPOCHS:
        return None
    simple, column = ("seasonal naive", "seasonal_naive") if "seasonal_naive" in own[0] else ("persistence", "last")
    styles = {
        "actual": ("actual", {"color": "black", "linewidth": 1.2}),
        "network": ("predicted", {"color": forecast.NETWORK, "linewidth": 1.4}),
        simple: (column, {"color": "tab:grey", "linewidth": 0.9, "linestyle": LINE_STYLES[0]}),
    }
    lines = {label: (np.array([float(each[name]) for each in own]), style) for label, (name, style) in styles.items()}
    errors = [np.abs(lines[name][0] - lines["actual"][0]).mean() for name in ("network", simple)]
    # matplotlib needs UTC times without a time zone.
    when = [datetime.fromisoformat(each["time"]).astimezone(UTC).replace(tzinfo=None) for each in own]
    times = np.array(when, dtype="datetime64[us]")
    day = "%Y-%m-%d" if np.median(np.diff(times)) >= np.timedelta64(1, "D") else "%Y-%m-%d %H:%M"
    target = words(row["parameters"].get("preprocess.columns.target", "level"))
    sentence = (
        f"{target} {counted(steps, 'step')} ahead in the last {len(own)} forecasts, {when[0]:{day}} to "
        f"{when[-1]:{day}}: off by {errors[0]:,.4g} on average, {simple} by {errors[1]:,.4g}."
    )

    def draw(axes: Axes) -> None:
        forecast.draw_levels(axes, times, slice(None), lines)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel("")

    return chart("The last forecasts, when they were made", sentence, draw, left=0.6)


def predicted_numbers(row: Row) -> Chart | None:
    rows = row["predictions"]
    if len(rows) < MIN_EPOCHS:
        return None
    actual, predicted = (np.array([float(each[side]) for each in rows]) for side in ("actual", "predicted"))
    target = words(row["parameters"].get("preprocess.columns.label", "number"))
    own, mean, linear = (row["metrics"][name] for name in ("mae", "mean_mae", "linear_mae"))
    sentence = (
        f"Predicted {target} over the actual one, {counted(len(rows), 'test sequence')}: off by {own:.4g} on average, "
        f"always the training mean by {mean:.4g}, a linear model by {linear:.4g}."
    )

    def draw(axes: Axes) -> None:
        regress.draw_predicted(axes, actual, predicted, plain(target, 40))

    return chart("Predicted and actual numbers", sentence, draw, height=2.2)


def events(row: Row) -> Chart | None:
    """Return actual and predicted events of a few sequences: the two with the most, and the first two with
    a mistake.
    """
    if not row["predictions"] or "event" not in row["predictions"][0]:
        return None
    by_sequence: dict[str, list[Mapping[str, str]]] = {}
    for each in row["predictions"]:
        by_sequence.setdefault(each["sequence"], []).append(each)
    most = sorted(by_sequence, key=lambda name: -sum(bool(each["actual"]) for each in by_sequence[name]))[:2]
    mistaken = [name for name, own in by_sequence.items() if any(is_wrong(each) for each in own)]
    chosen = list(dict.fromkeys([*most, *mistaken[:2]]))
    classes = ["none", *classes_of(row, (each["event"] for each in row["predictions"]))]
    sentence = (
        f"{len(mistaken):,} of {len(by_sequence):,} test sequences with events have a mistake. Shown are the two with "
        f"the most events{' and the first with a mistake' if mistaken else ''}; a line joins an event with its "
        "prediction."
    )

    def draw(*every: Axes) -> list[Line2D]:
        for axes, name in zip(every, chosen, strict=True):
            truth, found, pairs = lanes_of(by_sequence[name], classes)
            message = detect.draw_lanes(axes, truth, found, pairs)
            axes.text(-0.2, 1.1, plain(f"sequence {name}: {message}", 54), transform=axes.transAxes, fontsize=8)
            axes.set(ylim=(1, 2.6), yticks=[2.2, 1.4], yticklabels=["actual", "predicted"])
        whole_numbers(axes)
        if "max_steps" in row["data"]:
            axes.set_xlim(0, row["data"]["max_steps"] - 1)
        axes.set_xlabel("step")
        shown = {each["event"] for name in chosen for each in by_sequence[name]}
        return detect.legend_of(list(map(classes.index, shown)), classes)

    height = 0.75 * len(chosen)
    return chart("Events, actual and predicted", sentence, draw, num=len(chosen), height=height, left=0.7, top=0.25)


def lanes_of(
    rows: Sequence[Mapping[str, str]], classes: Sequence[str]
) -> tuple[detect.Events, detect.Events, list[tuple[int, int]]]:
    """Return the actual events, the predicted events, and the index pairs of those that match."""
    actual, predicted = ([each for each in rows if each[side]] for side in ("actual", "predicted"))
    truth = [(int(each["actual"]), classes.index(each["event"])) for each in actual]
    found = [(int(each["predicted"]), classes.index(each["event"])) for each in predicted]
    return truth, found, [(actual.index(each), predicted.index(each)) for each in rows if not is_wrong(each)]


def is_wrong(event: Mapping[str, str]) -> bool:
    return not (event["actual"] and event["predicted"])
