"""The confusion matrix of a classification."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage

from stages.figures.drawing import blank, counted, plain

MAX_NUMBERED_CLASSES = 30  # with more classes the cells are too small for numbers
MAX_MATRIX_INCHES = 9.0


def draw(cells: Sequence[Sequence[int]], classes: Sequence[Any], title: str) -> Figure:
    """Draw `cells` (C, C), counts with true classes as rows. Colours show the share of the row, numbers the count.

    With more than 30 classes, some labels are left out and a list of the most frequent confusions replaces the numbers.
    """
    names = [plain(name, 32) for name in classes]
    is_numbered = len(names) <= MAX_NUMBERED_CLASSES
    size = min(max(2.4, 0.42 * len(names)), MAX_MATRIX_INCHES)
    height = size + max(2.5, 1.2 + 0.08 * max(len(name) for name in names))
    listed = [] if is_numbered else most_confused(cells, 30)
    list_height = 0.3 + 0.16 * -(-len(listed) // 2) if listed else 0
    figure = blank(height + 1, height + list_height)
    upper: Any = figure
    if listed:
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[height, list_height])[:, 0]
        draw_confused(lower, listed, names)
    image = draw_matrix(upper.subplots(), cells, names, size, is_numbered)
    upper.colorbar(image, label="share of the actual class", shrink=0.8)
    figure.suptitle(textwrap.fill(plain(title, 200), int(9 * height)))
    return figure


def draw_matrix(
    axes: Axes,
    cells: Sequence[Sequence[int]],
    names: Sequence[str],
    size: float,
    is_numbered: bool,
    fontsize: float = 8,
    label_size: float | None = None,
) -> AxesImage:
    """Draw the matrix, `size` inches wide. `fontsize` is for its numbers, `label_size` for the class names."""
    counts = np.array(cells)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # With many classes, a confusion is a small share of its row and would be white on a linear scale.
    norm = PowerNorm(1 if is_numbered else 0.4, vmin=0, vmax=1)
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="none")
    step = 1 if is_numbered else -(-len(names) * 16 // int(100 * size))  # a label needs 0.16 inches
    ticks = range(0, len(names), step)
    label_size = label_size if is_numbered else 7
    axes.set(xlabel="predicted", ylabel="actual")
    axes.set_xticks(ticks, names[::step], rotation=60, ha="right", rotation_mode="anchor", fontsize=label_size)
    axes.set_yticks(ticks, names[::step], fontsize=label_size)
    if is_numbered:
        for row, column in np.argwhere(counts).tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(cells[row][column]), ha="center", va="center", fontsize=fontsize, color=colour)
    return image


def draw_confused(part: SubFigure, listed: list[tuple[int, int, int]], names: list[str]) -> None:
    """Draw the most frequent confusions as text, in two columns."""
    half = -(-len(listed) // 2)
    for x, rows in ((0.03, listed[:half]), (0.52, listed[half:])):
        lines = [f"{counted(count, 'time')} {names[row]} taken for {names[other]}" for row, other, count in rows]
        part.text(x, 1, "\n".join(lines), fontsize=7.5, va="top", linespacing=1.4)


def most_confused(cells: Sequence[Sequence[int]], limit: int) -> list[tuple[int, int, int]]:
    """Return (actual, predicted, count) of the `limit` largest cells off the diagonal, largest first."""
    counts = np.array(cells)
    np.fill_diagonal(counts, 0)
    found = [(row, column, int(counts[row, column])) for row, column in np.argwhere(counts).tolist()]
    return sorted(found, key=lambda cell: -cell[2])[:limit]
