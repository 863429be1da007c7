"""Curves over a setting: score over noise, throughput and memory over batch size."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from stages.figures.drawing import DEVICE_COLOURS, blank, plain


def noise(levels: Sequence[float], scores: Sequence[float], title: str) -> Figure:
    """Draw the macro event F1 over the noise of a simulation's signals."""
    figure = blank(8, 4.8)
    axes = figure.subplots()
    draw_noise(axes, levels, scores)
    axes.set_title(plain(title, 200))
    return figure


def draw_noise(axes: Axes, levels: Sequence[float], scores: Sequence[float]) -> None:
    axes.plot(levels, scores, color="black", linewidth=2.5, marker="o", zorder=3)
    axes.set(xlabel="noise (px)", ylabel="macro event F1", ylim=(0, 1.03))
    axes.grid(alpha=0.3)


def sweep(workload: str, points: Sequence[Any]) -> Figure:
    """Draw samples per second and memory over batch size, one line per device. `points`: from stages/tools/sweep.py."""
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


def scaling(workload: str, points: Sequence[Any]) -> Figure:
    """Draw throughput and waiting time over batch size, one line for each number of workers and threads.

    `points`: from stages/tools/scaling.py.
    """
    figure = blank(11, 4.2)
    rates, waits = figure.subplots(1, 2)
    for colour, (number, threads) in enumerate(dict.fromkeys((point.workers, point.threads) for point in points)):
        own = [point for point in points if (point.workers, point.threads) == (number, threads)]
        sizes = [point.batch_size for point in own]
        style: dict[str, Any] = {"marker": "o", "color": f"C{colour}", "label": line_label(own[0])}
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


def line_label(point: Any) -> str:
    workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
    if point.device == "cuda":
        return f"{workers}, a GPU each" if point.workers > 1 else workers
    threads = "1 thread" if point.threads == 1 else f"{point.threads} threads"
    return f"{workers}, {threads}{' each' if point.workers > 1 else ''}"
