"""Charts of one workload's trainings: a sentence with numbers, and a figure.

The functions take rows of the report: `Side.row` with a `label` and the first seed's `run`, or of a published run. If a
figure would show nothing (one value, one epoch), the chart has only its sentence, or there is none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from stages.figures.comparison import kind_of
from stages.figures.drawing import DEVICE_COLOURS, FEW_POINTS, Chart, chart, plain, whole_numbers
from stages.figures.text import counted, score_text, spread, words

Row = Mapping[str, Any]
MIN_EPOCHS = 3  # fewer do not make a curve
MAX_LABEL = 20  # characters


def scores(rows: Sequence[Row]) -> Chart | None:
    """Return the test score of every seed, for every device and the published runs; None for a single score."""
    if sum(len(row["runs"]) for row in rows) == 1:
        return None
    values = [[run["score"] for run in row["runs"]] for row in rows]
    said = (f"{row['label']} {spread(own, row['score'])}" for row, own in zip(rows, values, strict=True))
    # A forecast's skill is 0 if it is no better than persistence; R2 is 0 if it is no better than the targets' mean.
    floor = {"forecast": "persistence", "regress": "the mean of what is predicted"}.get(rows[0]["task"])
    is_below = floor is not None and min(map(min, values)) < 0
    labels = [plain(row["label"], MAX_LABEL) for row in rows]

    def draw(axes: Axes) -> None:
        for index, (row, own) in enumerate(zip(rows, values, strict=True)):
            colour = DEVICE_COLOURS[kind_of(row)]
            axes.plot(own, [index] * len(own), "o", color=colour, alpha=0.75, markeredgewidth=0)
            if len(own) > 1:
                axes.plot([row["score"]] * 2, [index - 0.3, index + 0.3], color=colour, linewidth=2)
        if is_below:
            axes.axvline(0, color="black", linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.3)

    sentence = f"{'; '.join(said)}.{f' The dashed line is {floor}.' if is_below else ''}"
    title, left = f"Test {words(rows[0]['score_name'])}, seed by seed", 0.15 + 0.08 * max(map(len, labels))
    return chart(title, sentence, draw, height=0.15 + 0.3 * len(rows), left=left, bottom=0.25)


def losses(rows: Sequence[Row]) -> Chart:
    sentences = []
    for row in rows:
        _, trained = epochs_of(row, "train_loss")
        epochs, validated = epochs_of(row, "val_loss")
        if trained:
            goes = f"training loss goes from {trained[0]:.3g} to {trained[-1]:.3g}"
            sentences.append(f"{device_prefix(rows, row)}{goes} in {counted(len(history_of(row)), 'epoch')}")
        if trained and validated:
            lowest = min(validated)
            sentences[-1] += (
                f"; on validation it is lowest, {lowest:.3g}, in epoch {epochs[validated.index(lowest)]:g}, and "
                f"{validated[-1]:.3g} at the end"
            )

    def draw(axes: Axes) -> None:
        for index, row in enumerate(rows):
            draw_curve(axes, rows, index, "train_loss", f"train, {row['label']}")
            draw_curve(axes, rows, index, "val_loss", f"val, {row['label']}", "--")

    return curves(f"Loss{first_seed(rows)}", sentences, rows, draw)


def validation(rows: Sequence[Row]) -> Chart:
    """Return the validation score over the epochs, and the test score at the end."""
    sentences = []
    for row in rows:
        name, test = row["score_name"], row["runs"][0]["score"]
        epochs, values = epochs_of(row, f"val_{name}")
        if values:
            best = max(values)
            sentences.append(
                f"{device_prefix(rows, row)}{words(name)} on validation is {score_text(values[-1])} at the end, at "
                f"best {score_text(best)} in epoch {epochs[values.index(best)]:g}; on the test split it is "
                f"{score_text(test)}"
            )

    def draw(axes: Axes) -> None:
        for index, row in enumerate(rows):
            draw_curve(axes, rows, index, f"val_{row['score_name']}", f"val, {row['label']}")
            test, last = row["runs"][0]["score"], history_of(row)[-1]["epoch"]
            style: dict[str, Any] = {"color": DEVICE_COLOURS[row["device"]], "markeredgecolor": "black", "zorder": 3}
            axes.plot(last, test, "D", label=plain(f"test {test:.4f}, {row['label']}", 64), **style)

    title = capitalized(f"{words(rows[0]['score_name'])} over the epochs{first_seed(rows)}")
    return curves(title, sentences, rows, draw)


def curves(title: str, sentences: Sequence[str], rows: Sequence[Row], draw: Callable[[Axes], None]) -> Chart:
    sentence = f"{'. '.join(map(capitalized, sentences))}." if sentences else "Nothing was recorded."
    if not sentences or max(len(history_of(row)) for row in rows) < MIN_EPOCHS:
        return Chart(title, sentence)

    def draw_all(axes: Axes) -> None:
        draw(axes)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        whole_numbers(axes)

    return chart(title, sentence, draw_all)


def draw_curve(axes: Axes, rows: Sequence[Row], index: int, key: str, label: str, linestyle: str = "-") -> None:
    """Draw a column of history.csv. The devices' curves nearly coincide; a wider line stays visible below the other."""
    epochs, values = epochs_of(rows[index], key)
    style: dict[str, Any] = {"color": DEVICE_COLOURS[rows[index]["device"]], "linestyle": linestyle}
    style |= {"linewidth": 1.5 if index == len(rows) - 1 else 3.5, "marker": "." if len(epochs) <= FEW_POINTS else ""}
    axes.plot(epochs, values, label=plain(label, 64), **style)


def history_of(row: Row) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = row["run"].epochs("history")
    return found


def epochs_of(row: Row, key: str) -> tuple[list[float], list[float]]:
    """Return epochs and finite values of a column of history.csv: a training that diverges has non-finite losses."""
    present = [(each["epoch"], each[key]) for each in history_of(row)
               if each.get(key) is not None and math.isfinite(each[key])]  # fmt: skip
    return [epoch for epoch, _ in present], [value for _, value in present]


def first_seed(rows: Sequence[Row]) -> str:
    """Return the seed of the curves as text if there are several: curves show the first seed."""
    return f", seed {rows[0]['seeds'][0]}" if len(rows[0]["seeds"]) > 1 else ""


def device_prefix(rows: Sequence[Row], row: Row) -> str:
    return f"{row['label']}, " if len(rows) > 1 else ""


def capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
