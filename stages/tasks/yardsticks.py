"""What a network's score must beat, and takes no training: made by `evaluate` from the arrays that preprocess wrote.

Shapes: values (N, T, F) float32, zero after a sequence's end; lengths (N,).
"""

from collections.abc import Mapping

import numpy as np

MAX_PRODUCTS = 2e10  # of the nearest neighbour: a second or two
MAX_CELLS = 2**24  # of distances that are held at a time
MAX_FITTED = 2000  # sequences that the linear model is fitted to


def against(own: float, others: Mapping[str, float], show: str = "{:.4g}") -> str:
    """`the most frequent class reaches 0.12, 1-NN 0.71: the network does not beat 1-NN`. Larger is better."""
    (first, value), *rest = others.items()
    words = [f"{first} reaches {show.format(value)}", *(f"{name} {show.format(value)}" for name, value in rest)]
    unbeaten = [name for name, value in others.items() if own <= value]
    all_of_them = {1: "it", 2: "both"}.get(len(others), "all of them")
    message = f"does not beat {' or '.join(unbeaten)}" if unbeaten else f"beats {all_of_them}"
    return f"{', '.join(words)}: the network {message}"


def sample(num: int, largest: int) -> np.ndarray:
    """Sorted numbers of `largest` of `num` sequences (all, where there are no more), drawn with a fixed seed."""
    if num <= largest:
        return np.arange(num)
    return np.sort(np.random.default_rng(0).choice(num, largest, replace=False))


def nearest_neighbours(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """known (N, T, F), asked (M, T, F) -> (M,) the number of the nearest known sequence, by Euclidean distance.

    Padding counts as zero, the mean of the training split.
    """
    known = known.reshape(len(known), -1)
    halves = np.square(known).sum(axis=1) / 2
    size = max(1, MAX_CELLS // len(known))
    parts = [asked[start : start + size] for start in range(0, len(asked), size)]
    return np.concatenate([(halves - part.reshape(len(part), -1) @ known.T).argmin(axis=1) for part in parts])


def num_comparable(known: np.ndarray, asked: np.ndarray) -> int:
    """How many known sequences the nearest neighbour may be sought among."""
    return min(len(known), max(100, int(MAX_PRODUCTS / max(1, asked.size))))


def summaries(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(N, 7 F) float64: mean, deviation, smallest, largest, first and last value and slope of each feature."""
    steps = np.arange(values.shape[1])[None, :, None]
    is_real = steps < lengths[:, None, None]
    num = lengths[:, None].astype(np.float64)
    mean = values.sum(axis=1, dtype=np.float64) / num
    deviation = np.where(is_real, values - mean[:, None], 0.0)
    time = np.where(is_real, steps - (num[:, None] - 1) / 2, 0.0)
    slope = (time * deviation).sum(axis=1) / np.maximum(np.square(time).sum(axis=1), 1e-12)
    smallest = np.where(is_real, values, np.inf).min(axis=1)
    largest = np.where(is_real, values, -np.inf).max(axis=1)
    last = values[np.arange(len(values)), lengths - 1]
    spread = np.sqrt(np.square(deviation).sum(axis=1) / num)
    return np.concatenate([mean, spread, smallest, largest, values[:, 0], last, slope], axis=1, dtype=np.float64)
