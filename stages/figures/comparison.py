"""The table over all runs: compare.json's rows in, its cells out, once for compare.md and report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.figures.text import number, seconds, words

MAX_METRICS = 4  # beside the score; report.html lists all of them further down
# Title, CSS class in HTML, and what joins a cell's lines in Markdown.
COLUMNS = (
    ("workload", "whole", ": "),
    ("device", "wide", ": "),
    ("test score", "whole", " "),
    ("other metrics", "whole", ", "),
    ("epoch (s), median [quartiles]", "number", " "),
    ("samples/s", "number", " "),
    ("training (s)", "number", " "),
    ("VRAM peak (MiB)", "wide", " "),
    ("measured", "whole", " "),
)


@dataclass(frozen=True)
class Cell:
    text: str
    details: tuple[str, ...] = ()  # the lines below it
    style: str = ""  # of `text`, a CSS class


def cells(row: Mapping[str, Any]) -> list[Cell]:
    """One run, a cell for each of COLUMNS."""
    metrics = [f"{words(name)} {number(value)}" for name, value in row["metrics"].items() if name != row["score_name"]]
    metrics.sort(key=len)  # the basic metrics have the short names: mae comes before linear_mae
    if len(metrics) > MAX_METRICS:
        metrics[MAX_METRICS:] = [f"and {len(metrics) - MAX_METRICS} more"]
    first, *others = metrics or [""]

    epoch, rate, vram = row["epoch_seconds"], row["samples_per_second"], row["peak_allocated_mib"]
    low, high = row["epoch_seconds_quartile_low"], row["epoch_seconds_quartile_high"]
    quartiles: tuple[str, ...] = () if low is None else (f"[{seconds(low)}, {seconds(high)}]",)
    score_details: tuple[str, ...] = (words(row["score_name"]),)
    if (num_seeds := len(row["seeds"])) > 1:
        spread = f"{number(row['score_lowest'])} to {number(row['score_highest'])}"
        score_details += (f"mean of {num_seeds} seeds, {spread}",)
        if epoch is not None:
            fastest, slowest = seconds(row["epoch_seconds_lowest"]), seconds(row["epoch_seconds_highest"])
            quartiles = (f"of {num_seeds} processes, {fastest} to {slowest}",)
    why = row["missing_reasons"].get("peak_allocated_mib", "no reason is recorded")
    return [
        Cell(row["workload"], (f"{row['task']}, {row['model']}",), "strong"),
        Cell(row["device"], (computer(row),), row["device"]),
        Cell(number(row["score"]), score_details, "strong"),
        Cell(first, tuple(others)),
        Cell("none") if epoch is None else Cell(seconds(epoch), quartiles, "strong"),
        Cell("none" if rate is None else f"{rate:,.0f}"),
        Cell(f"{row['train_seconds']:,.1f}"),
        Cell(why, style="soft") if vram is None else Cell(f"{vram:,.0f}"),
        Cell(row["measured_at"][:10], (f"{row['measured_at'][11:16]} on {row['measured_on']}",)),
    ]


def computer(row: Mapping[str, Any]) -> str:
    """What computed, and with how many threads where the time depends on them."""
    threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
    return f"{row['device_name']}, {threads}" if row["device"] == "cpu" else str(row["device_name"])


def markdown(rows: Sequence[Mapping[str, Any]], verdicts: Sequence[str]) -> str:
    """The table without the other metrics, then a line per run and per verdict."""
    shown = [index for index, (title, *_) in enumerate(COLUMNS) if title != "other metrics"]
    lines = [[COLUMNS[index][0] for index in shown], ["---"] * len(shown)]
    for line in map(cells, rows):
        texts = [COLUMNS[index][2].join((line[index].text, *line[index].details)) for index in shown]
        lines.append([text.replace("|", r"\|") for text in texts])
    # The result, what bounds the training, what its memory is for, whether its device was used.
    remarks = [
        f"{row['workload']} on {row['device']}: {'; '.join([row['sentence'], *row['summary_lines'].values()])}."
        for row in rows
    ]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*table, "", *(f"- {sentence}" for sentence in (*remarks, *verdicts))]) + "\n"
