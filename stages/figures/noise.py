"""A score against the noise of a simulation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from stages.figures.drawing import blank, plain
from stages.figures.events import class_style


def noise(levels: Sequence[float], f1: Mapping[str, Sequence[float]] | Sequence[float], title: str) -> "Figure":
    """Event F1 against the noise of the signals (px). `f1` is the macro mean, or curves by class, of which `macro` is drawn thick."""
    curves = dict(f1) if isinstance(f1, Mapping) else {"macro": f1}
    figure = blank(8, 4.8)
    axes = figure.subplots()
    others = [name for name in curves if name != "macro"]
    for name, values in curves.items():
        style = (
            {"color": "black", "linewidth": 2.5, "marker": "o", "zorder": 3}
            if name == "macro"
            else {"linewidth": 1.2, **class_style(others.index(name) + 1)}
        )
        axes.plot(levels, values, label=plain(name, 32), **style)
    if others and len(others) <= 16:
        axes.legend(handles=axes.lines, fontsize=8)
    axes.set(xlabel="noise (px)", ylabel="event F1" if others else "macro event F1", ylim=(0, 1.03))
    axes.set_title(plain(title, 200))
    axes.grid(alpha=0.3)
    return figure
