"""Score functions that tasks, comparisons and figures share, without torch: F1 from counts, the matching of events."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def precision_recall_f1(num_right: int, num_true: int, num_predicted: int) -> dict[str, Any]:
    """Return the scores of one class; 0 if a ratio is 0/0, as in scikit-learn."""
    return {
        "precision": num_right / num_predicted if num_predicted else 0.0,
        "recall": num_right / num_true if num_true else 0.0,
        "f1": 2 * num_right / (num_true + num_predicted) if num_true + num_predicted else 0.0,
        "num_true": num_true,
        "num_predicted": num_predicted,
    }


def macro_mean(per_class: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean of precision, recall or f1 over the classes that occur as label or prediction, as in
    scikit-learn; 0 if none does.
    """
    present = [row[name] for row in per_class if row["num_true"] or row["num_predicted"]]
    return sum(present) / len(present) if present else 0.0


def macro_f1_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return `macro_f1` from sums (..., C, 3): the numbers of correct, true and predicted cases of each class."""
    right, true, predicted = np.moveaxis(sums, -1, 0)
    is_present = true + predicted > 0
    f1 = 2 * right / np.where(is_present, true + predicted, 1)
    return np.asarray(f1.sum(axis=-1) / np.maximum(1, is_present.sum(axis=-1)))


def baseline_scores(
    baselines: Mapping[str, str], score_name: str, metrics: Mapping[str, float | None]
) -> list[tuple[str, float]]:
    """Return (name, score) of the task's `baselines` (prefix of their metrics -> name) that have one, best first."""
    scores = [(name, metrics.get(f"{prefix}_{score_name}")) for prefix, name in baselines.items()]
    return sorted(((name, score) for name, score in scores if score is not None), key=lambda pair: -pair[1])


def match_steps(actual: Sequence[int], predicted: Sequence[int], tolerance: int) -> list[tuple[int, int]]:
    """Return the index pairs of a maximum one-to-one matching of ascending steps that are within `tolerance` of each
    other.

    A greedy pass that always takes the earliest match is optimal for intervals of equal length.
    """
    matched, actual_index, predicted_index = [], 0, 0
    while actual_index < len(actual) and predicted_index < len(predicted):
        if abs(actual[actual_index] - predicted[predicted_index]) <= tolerance:
            matched.append((actual_index, predicted_index))
            actual_index, predicted_index = actual_index + 1, predicted_index + 1
        elif actual[actual_index] < predicted[predicted_index]:
            actual_index += 1
        else:
            predicted_index += 1
    return matched
