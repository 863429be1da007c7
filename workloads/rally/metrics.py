"""How precise must the camera be? The score on newly simulated rallies with less and with more noise."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.tasks.detect import match_events
from tandem.tasks.scores import macro_mean, precision_recall_f1

NOISE_FACTORS = (0.0, 0.5, 2.0, 4.0, 8.0)  # multiples of the noise of the training
NUM_SEQUENCES = 500


def by_noise(
    predictions: np.ndarray, targets: np.ndarray, mask: np.ndarray, predict: Callable[..., np.ndarray], source: Any
) -> dict[str, float]:
    """Return the event F1 for each noise, on the same new rallies: those of the next seed."""
    found = {}
    for factor in NOISE_FACTORS:
        noise = factor * source.parameters["noise"]
        seed = source.parameters["seed"] + 1
        new = source(num_train=NUM_SEQUENCES, num_val=0, num_test=0, noise=noise, seed=seed)
        predicted = predict(new.values, np.ones(new.labels.shape, dtype=bool))
        found[f"event_f1_at_noise_{noise:g}px"] = event_f1(predicted, new.labels, len(new.classes))
    return found


def event_f1(predictions: np.ndarray, targets: np.ndarray, num_classes: int) -> float:
    """The score of the task detect: the mean F1 of all events, within the same tolerance."""
    per_class = []
    for number in range(1, num_classes):
        actual, found = np.argwhere(targets == number), np.argwhere(predictions == number)
        num_matched = len(match_events(actual, found, targets.shape[1]))
        per_class.append(precision_recall_f1(num_matched, len(actual), len(found)))
    return macro_mean(per_class, "f1")
