"""Charts of one workload's trainings: a sentence with numbers, and a figure.

The functions take labelled sides; curves are of their first seed. If a figure would show nothing (one value, two
epochs), the chart has only its sentence, or there is none.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from tandem.comparing.comparison import Side
from tandem.comparing.differences import mean_and_range
from tandem.report.drawing import DEVICE_COLOURS, FEW_POINTS, Chart, chart, plain, whole_numbers
from tandem.report.text import counted, score_text, words
from tandem.runs.quantities import QUANTITIES

MIN_EPOCHS = 3  # fewer do not make a curve
MAX_LABEL = 20  # characters


def scores(sides: Sequence[Side]) -> Chart | None:
    """Return the test score of every seed, for every device and the published runs; None for a single score."""
    values = [[run.test_score for run in side.runs] for side in sides]
    if sum(map(len, values)) == 1:
        return None
    phrases = (f"{side.label} {mean_and_range(seed_scores)}" for side, seed_scores in zip(sides, values, strict=True))
    # A forecast's skill is 0 if it is no better than persistence; R2 is 0 if it is no better than the targets' mean.
    floor = sides[0].first.task_attributes["zero"].partition(":")[0]
    is_below = bool(floor) and min(map(min, values)) < 0
    labels = [plain(side.label, MAX_LABEL) for side in sides]

    def draw(axes: Axes) -> None:
        for index, (side, seed_scores) in enumerate(zip(sides, values, strict=True)):
            colour = DEVICE_COLOURS[side.colour]
            axes.plot(seed_scores, [index] * len(seed_scores), "o", color=colour, alpha=0.75, markeredgewidth=0)
            if len(seed_scores) > 1:
                axes.plot([side.score] * 2, [index - 0.3, index + 0.3], color=colour, linewidth=2)
        if is_below:
            axes.axvline(0, color="black", linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(sides)), labels)
        axes.set_ylim(len(sides) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.3)

    sentence = f"{'; '.join(phrases)}.{f' The dashed line is {floor}.' if is_below else ''}"
    title, left = f"Test {words(sides[0].score_name)} of each seed", 0.15 + 0.08 * max(map(len, labels))
    return chart(title, sentence, draw, height=0.15 + 0.3 * len(sides), left=left, bottom=0.25)


def losses(sides: Sequence[Side]) -> Chart | None:
    def sentence_of(side: Side) -> str:
        epochs, validated = epochs_of(side, "val_loss")
        _, trained = epochs_of(side, "train_loss")
        if not trained or not validated:
            return "no finite loss is recorded"
        lowest = min(validated)
        return (
            f"training loss goes from {trained[0]:.3g} to {trained[-1]:.3g} in "
            f"{counted(len(side.first.epochs('history')), 'epoch')}; validation loss is lowest in epoch "
            f"{epochs[validated.index(lowest)]:g} ({lowest:.3g}) and {validated[-1]:.3g} at the end"
        )

    def draw(axes: Axes, side: Side, style: dict[str, Any]) -> None:
        axes.plot(*epochs_of(side, "train_loss"), label=f"train, {plain(side.label, 48)}", **style)
        axes.plot(*epochs_of(side, "val_loss"), "--", label=f"val, {plain(side.label, 48)}", **style)

    return curves("Loss", sides, sentence_of, draw)


def validation(sides: Sequence[Side]) -> Chart | None:
    """Return the validation score over the epochs, and the test score at the end."""
    name = sides[0].score_name

    def sentence_of(side: Side) -> str:
        epochs, values = epochs_of(side, f"val_{name}")
        if not values:
            return "no validation score is recorded"
        best = max(values)
        return (
            f"validation {words(name)} is highest in epoch {epochs[values.index(best)]:g} ({score_text(best)}) and "
            f"{score_text(values[-1])} at the end; test {words(name)} is {score_text(side.first.test_score)}"
        )

    def draw(axes: Axes, side: Side, style: dict[str, Any]) -> None:
        label, test = plain(side.label, 48), side.first.test_score
        axes.plot(*epochs_of(side, f"val_{name}"), label=f"val, {label}", **style)
        diamond: dict[str, Any] = {"color": style["color"], "markeredgecolor": "black", "zorder": 3}
        axes.plot(history_of(side)[-1]["epoch"], test, "D", label=f"test {score_text(test)}, {label}", **diamond)

    return curves(capitalized(f"{words(name)} over the epochs"), sides, sentence_of, draw)


# Columns of timings.csv that the figure over time shows, with their titles; only those that were measured.
OVER_TIME = {quantity.name: quantity.chart for quantity in QUANTITIES if quantity.chart}


def over_time(side: Side) -> Chart | None:
    """Return what a training measured in every epoch (`Quantity.chart`), below each other. An epoch
    without a value leaves a gap in the line.
    """
    rows = side.first.epochs("timings")
    epochs: list[Any] = [row["epoch"] for row in rows]
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in OVER_TIME}
    measured = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    if len(rows) < MIN_EPOCHS or "epoch_seconds" not in measured:
        return None

    def draw(*every: Axes) -> None:
        for axes, (name, values) in zip(every, measured.items(), strict=True):
            marker = "." if len(epochs) <= FEW_POINTS else ""
            axes.plot(epochs, values, color=DEVICE_COLOURS[side.name], linewidth=1.2, marker=marker)
            axes.set_ylim(bottom=0)
            axes.set_title(OVER_TIME[name], fontsize=8, loc="left", pad=3)
            axes.grid(alpha=0.3)
        every[-1].set_xlabel("epoch")
        whole_numbers(every[-1])

    numbers = {name: [value for value in values if value is not None] for name, values in measured.items()}
    ends = [f"{OVER_TIME[name]} {min(values):,.4g} to {max(values):,.4g}" for name, values in numbers.items()]
    title = f"Over time{first_seed([side])}, {side.label}"
    sentence = f"In {counted(len(rows), 'epoch')}: {'; '.join(ends)}."
    return chart(title, sentence, draw, num=len(measured), height=0.75 * len(measured), top=0.25)


def curves(
    title: str,
    sides: Sequence[Side],
    sentence_of: Callable[[Side], str],
    draw: Callable[[Axes, Side, dict[str, Any]], None],
) -> Chart | None:
    """Return a chart with the curves of every device; None if all trainings have one epoch. The curves nearly
    coincide; a wider line stays visible below the other.
    """
    num_epochs = max(len(history_of(side)) for side in sides)
    if num_epochs <= 1:
        return None
    phrases = (f"{side.label}, {sentence_of(side)}" if len(sides) > 1 else sentence_of(side) for side in sides)
    title, sentence = f"{title}{first_seed(sides)}", f"{'. '.join(map(capitalized, phrases))}."
    if num_epochs < MIN_EPOCHS:
        return Chart(title, sentence)

    def draw_all(axes: Axes) -> None:
        for index, side in enumerate(sides):
            style = {"color": DEVICE_COLOURS[side.name], "linewidth": 1.5 if index == len(sides) - 1 else 3.5}
            draw(axes, side, style | {"marker": "." if num_epochs <= FEW_POINTS else ""})
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        whole_numbers(axes)

    return chart(title, sentence, draw_all)


def history_of(side: Side) -> list[Any]:
    return list(side.first.epochs("history"))


def epochs_of(side: Side, key: str) -> tuple[list[float], list[float]]:
    """Return epochs and finite values of a column of history.csv: a training that diverges has non-finite losses."""
    rows = history_of(side)
    points = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]
    return [epoch for epoch, _ in points], [value for _, value in points]


def first_seed(sides: Sequence[Side]) -> str:
    """Return the seed of the curves as text if there are several: curves show the first seed."""
    return f", seed {sides[0].first.seed}" if len(sides[0].runs) > 1 else ""


def capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
