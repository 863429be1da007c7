"""Throughput and waiting against batch size, by number of workers."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from stages.figures.drawing import blank, plain


def scaling(workload: str, points: Sequence[Any]) -> Figure:
    """A line for each number of workers and threads. `points` are those of stages/tools/scaling.py."""
    figure = blank(11, 4.2)
    rates, waits = figure.subplots(1, 2)
    for colour, (number, threads) in enumerate(dict.fromkeys((point.workers, point.threads) for point in points)):
        own = [point for point in points if (point.workers, point.threads) == (number, threads)]
        sizes = [point.batch_size for point in own]
        style: dict[str, Any] = {"marker": "o", "color": f"C{colour}", "label": who(own[0])}
        rates.plot(sizes, [point.samples_per_second for point in own], **style)
        if number > 1:
            waits.plot(sizes, [100 * point.waiting_share for point in own], **style)
    rates.set(ylabel="samples per second")
    waits.set(ylabel="of a step, waiting for the sum of the gradients, %", ylim=(0, 100))
    for axes in (rates, waits):
        axes.set_ylim(bottom=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({point.batch_size for point in points}))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set(xlabel="sequences in the batch that all workers share")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{plain(workload)}: does a second worker pay?")
    return figure


def who(point: Any) -> str:
    workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
    if point.device == "cuda":
        return f"{workers}, a GPU each" if point.workers > 1 else workers
    threads = "1 thread" if point.threads == 1 else f"{point.threads} threads"
    return f"{workers}, {threads}{' each' if point.workers > 1 else ''}"
