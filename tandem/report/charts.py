"""Charts of one workload's trainings: a sentence with numbers, and a figure.

The functions take rows of the report: `Side.row` with a `label` and the first seed's `run`, or of a published run. If a
figure would show nothing (one value, two epochs), the chart has only its sentence, or there is none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from tandem.comparing.differences import mean_and_range
from tandem.report.drawing import DEVICE_COLOURS, FEW_POINTS, Chart, chart, plain, whole_numbers
from tandem.report.text import counted, score_text, words

Row = Mapping[str, Any]
MIN_EPOCHS = 3  # fewer do not make a curve
MAX_LABEL = 20  # characters


def scores(rows: Sequence[Row]) -> Chart | None:
    """Return the test score of every seed, for every device and the published runs; None for a single score."""
    if sum(len(row["runs"]) for row in rows) == 1:
        return None
    values = [[run["score"] for run in row["runs"]] for row in rows]
    said = (f"{row['label']} {mean_and_range(own)}" for row, own in zip(rows, values, strict=True))
    # A forecast's skill is 0 if it is no better than persistence; R2 is 0 if it is no better than the targets' mean.
    floor = rows[0]["zero"].partition(":")[0]
    is_below = bool(floor) and min(map(min, values)) < 0
    labels = [plain(row["label"], MAX_LABEL) for row in rows]

    def draw(axes: Axes) -> None:
        for index, (row, own) in enumerate(zip(rows, values, strict=True)):
            colour = DEVICE_COLOURS[row["colour"]]
            axes.plot(own, [index] * len(own), "o", color=colour, alpha=0.75, markeredgewidth=0)
            if len(own) > 1:
                axes.plot([row["score"]] * 2, [index - 0.3, index + 0.3], color=colour, linewidth=2)
        if is_below:
            axes.axvline(0, color="black", linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.3)

    sentence = f"{'; '.join(said)}.{f' The dashed line is {floor}.' if is_below else ''}"
    title, left = f"Test {words(rows[0]['score_name'])} of each seed", 0.15 + 0.08 * max(map(len, labels))
    return chart(title, sentence, draw, height=0.15 + 0.3 * len(rows), left=left, bottom=0.25)


def losses(rows: Sequence[Row]) -> Chart | None:
    def sentence_of(row: Row) -> str:
        epochs, validated = epochs_of(row, "val_loss")
        _, trained = epochs_of(row, "train_loss")
        if not trained or not validated:
            return "no finite loss is recorded"
        lowest = min(validated)
        return (
            f"training loss goes from {trained[0]:.3g} to {trained[-1]:.3g} in "
            f"{counted(len(history_of(row)), 'epoch')}; validation loss is lowest in epoch "
            f"{epochs[validated.index(lowest)]:g} ({lowest:.3g}) and {validated[-1]:.3g} at the end"
        )

    def draw(axes: Axes, row: Row, style: dict[str, Any]) -> None:
        axes.plot(*epochs_of(row, "train_loss"), label=f"train, {plain(row['label'], 48)}", **style)
        axes.plot(*epochs_of(row, "val_loss"), "--", label=f"val, {plain(row['label'], 48)}", **style)

    return curves("Loss", rows, sentence_of, draw)


def validation(rows: Sequence[Row]) -> Chart | None:
    """Return the validation score over the epochs, and the test score at the end."""
    name = rows[0]["score_name"]

    def sentence_of(row: Row) -> str:
        epochs, values = epochs_of(row, f"val_{name}")
        if not values:
            return "no validation score is recorded"
        best = max(values)
        return (
            f"validation {words(name)} is highest in epoch {epochs[values.index(best)]:g} ({score_text(best)}) and "
            f"{score_text(values[-1])} at the end; test {words(name)} is {score_text(row['runs'][0]['score'])}"
        )

    def draw(axes: Axes, row: Row, style: dict[str, Any]) -> None:
        label, test = plain(row["label"], 48), row["runs"][0]["score"]
        axes.plot(*epochs_of(row, f"val_{name}"), label=f"val, {label}", **style)
        diamond: dict[str, Any] = {"color": style["color"], "markeredgecolor": "black", "zorder": 3}
        axes.plot(history_of(row)[-1]["epoch"], test, "D", label=f"test {score_text(test)}, {label}", **diamond)

    return curves(capitalized(f"{words(name)} over the epochs"), rows, sentence_of, draw)


# Columns of timings.csv that the figure over time shows, with their titles; only those that were measured.
OVER_TIME = {
    "epoch_seconds": "seconds per epoch",
    "cpu_share": "CPU cores in use",
    "gpu_busy_share": "share of the time in which the GPU was busy",
    "peak_allocated_mib": "peak of VRAM, MiB",
    "peak_rss_mib": "peak of RAM, MiB",
}


def over_time(row: Row) -> Chart | None:
    """Return a training's seconds, use of its processor and GPU, and memory in every epoch, below each other."""
    rows = row["run"].epochs("timings")
    epochs = [each["epoch"] for each in rows]
    columns = {name: [each.get(name) for each in rows] for name in OVER_TIME}
    shown = {name: values for name, values in columns.items() if values and None not in values}
    if len(rows) < MIN_EPOCHS or "epoch_seconds" not in shown:
        return None

    def draw(*every: Axes) -> None:
        for axes, (name, values) in zip(every, shown.items(), strict=True):
            marker = "." if len(epochs) <= FEW_POINTS else ""
            axes.plot(epochs, values, color=DEVICE_COLOURS[row["device"]], linewidth=1.2, marker=marker)
            axes.set_ylim(bottom=0)
            axes.set_title(OVER_TIME[name], fontsize=8, loc="left", pad=3)
            axes.grid(alpha=0.3)
        every[-1].set_xlabel("epoch")
        whole_numbers(every[-1])

    ends = [f"{OVER_TIME[name]} {min(values):,.4g} to {max(values):,.4g}" for name, values in shown.items()]
    title = f"Over time{first_seed([row])}, {row['label']}"
    sentence = f"In {counted(len(rows), 'epoch')}: {'; '.join(ends)}."
    return chart(title, sentence, draw, num=len(shown), height=0.75 * len(shown), top=0.25)


def curves(
    title: str,
    rows: Sequence[Row],
    sentence_of: Callable[[Row], str],
    draw: Callable[[Axes, Row, dict[str, Any]], None],
) -> Chart | None:
    """Return a chart with the curves of every device; None if all trainings have one epoch. The curves nearly
    coincide; a wider line stays visible below the other.
    """
    num_epochs = max(len(history_of(row)) for row in rows)
    if num_epochs <= 1:
        return None
    said = (f"{row['label']}, {sentence_of(row)}" if len(rows) > 1 else sentence_of(row) for row in rows)
    title, sentence = f"{title}{first_seed(rows)}", f"{'. '.join(map(capitalized, said))}."
    if num_epochs < MIN_EPOCHS:
        return Chart(title, sentence)

    def draw_all(axes: Axes) -> None:
        for index, row in enumerate(rows):
            style = {"color": DEVICE_COLOURS[row["device"]], "linewidth": 1.5 if index == len(rows) - 1 else 3.5}
            draw(axes, row, style | {"marker": "." if num_epochs <= FEW_POINTS else ""})
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        whole_numbers(axes)

    return chart(title, sentence, draw_all)


def history_of(row: Row) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = row["run"].epochs("history")
    return found


def epochs_of(row: Row, key: str) -> tuple[list[float], list[float]]:
    """Return epochs and finite values of a column of history.csv: a training that diverges has non-finite losses."""
    present = [
        (each["epoch"], each[key]) for each in history_of(row) if each.get(key) is not None and math.isfinite(each[key])
    ]
    return [epoch for epoch, _ in present], [value for _, value in present]


def first_seed(rows: Sequence[Row]) -> str:
    """Return the seed of the curves as text if there are several: curves show the first seed."""
    return f", seed {rows[0]['seeds'][0]}" if len(rows[0]["seeds"]) > 1 else ""


def capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
