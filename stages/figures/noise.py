"""Macro event F1 against the noise of a simulation's signals, in pixels."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from stages.figures.drawing import blank, plain


def noise(levels: Sequence[float], scores: Sequence[float], title: str) -> Figure:
    figure = blank(8, 4.8)
    axes = figure.subplots()
    axes.plot(levels, scores, color="black", linewidth=2.5, marker="o", zorder=3)
    axes.set(xlabel="noise (px)", ylabel="macro event F1", ylim=(0, 1.03))
    axes.set_title(plain(title, 200))
    axes.grid(alpha=0.3)
    return figure
