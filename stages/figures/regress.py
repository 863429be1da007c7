"""Predicted over actual numbers, and the errors.

Shapes: N test sequences.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.figures.drawing import MANY_POINTS, blank, plain

NETWORK, LINEAR = "tab:orange", "tab:grey"
NUM_BINS = 30


def draw(actual: np.ndarray, predicted: np.ndarray, linear: np.ndarray, target: str, title: str) -> Figure:
    """Draw each sequence's prediction over its actual number on the left, the errors on the right. All (N,), in the
    target's own unit.
    """
    figure = blank(11, 5)
    left, right = figure.subplots(1, 2)
    name = plain(target, 40)
    draw_predicted(left, actual, predicted, name)
    left.legend(fontsize=8)
    errors = {"network": predicted - actual, "linear model": linear - actual}
    edges = np.histogram_bin_edges(np.concatenate(list(errors.values())), NUM_BINS)
    for (label, error), style in zip(
        errors.items(), ({"color": NETWORK, "alpha": 0.6}, {"color": LINEAR, "histtype": "step", "linewidth": 1.6}),
        strict=True,
    ):  # fmt: skip
        right.hist(error, edges, label=f"{label}, MAE {np.abs(error).mean():.4g}", **style)
    right.axvline(0, color="black", linewidth=0.8)
    right.set(xlabel=f"predicted minus actual {name}", ylabel="test sequences", title="errors")
    right.legend(fontsize=8)
    right.grid(alpha=0.3)
    figure.suptitle(plain(title, 200))
    return figure


def draw_predicted(axes: Axes, actual: np.ndarray, predicted: np.ndarray, name: str) -> None:
    ends = [min(actual.min(), predicted.min()), max(actual.max(), predicted.max())]
    axes.plot(ends, ends, color="black", linewidth=0.8, label="equal")
    axes.axhline(actual.mean(), color="black", linewidth=0.8, linestyle=":", label="their mean")
    size = max(3.0, 9.0 - 2 * np.log10(len(actual)))
    style = {"color": NETWORK, "markersize": size, "alpha": 0.6, "markeredgewidth": 0}
    axes.plot(actual, predicted, "o", **style, label="network", rasterized=len(actual) > MANY_POINTS)
    axes.set(xlabel=f"actual {name}", ylabel=f"predicted {name}", title="network")
    axes.grid(alpha=0.3)
