"""Samples per second and memory against batch size."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from stages.figures.drawing import DEVICE_COLOURS, blank, plain


def sweep(workload: str, points: Sequence[Any]) -> Figure:
    """A line per device. `points` are those of stages/tools/sweep.py."""
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
