"""The picture of a test result: what a task's `Evaluation.picture` holds in, a figure out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stages.figures.confusion import confusion
from stages.figures.events import events
from stages.figures.forecast import forecast


def draw_result(task: str, data: dict[str, Any], title: str) -> Figure:
    """`task` is the name of a module in stages/tasks/."""
    draw: dict[str, Callable[..., Figure]] = {"classify": confusion, "detect": draw_sequences, "forecast": forecast}
    return draw[task](**data, title=title)


def draw_sequences(
    ids: np.ndarray,
    values: np.ndarray,
    actual: np.ndarray,
    predicted: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
    features: Sequence[str],
    tolerance: int,
    title: str,
) -> Figure:
    """The two sequences (N, T, ...) with the most events, and the first two with a wrongly predicted number."""
    num_actual, num_predicted = (actual > 0).sum(axis=1), (predicted > 0).sum(axis=1)
    rows = np.concatenate([np.argsort(-num_actual, kind="stable")[:2], np.flatnonzero(num_actual != num_predicted)[:2]])
    titles = [f"{title}\nsequence {ids[row]}" if row == rows[0] else f"sequence {ids[row]}" for row in rows]
    shown = (values[rows], actual[rows], predicted[rows], probabilities[rows])
    return events(*shown, classes, titles, features, tolerance)
