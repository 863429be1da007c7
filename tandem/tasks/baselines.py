"""Baselines for a network's score, and the sentences that compare it with them.

Those that need no training are computed by `evaluate`, from the arrays that preprocess wrote. The fitted model comes
from the stage `baseline`.

Shapes: values (N, T, F) float32, zero after a sequence's end.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tandem.tasks.groups import MIN_CASES, Groups

MAX_PRODUCTS = 2e10  # for the nearest neighbour: a second or two
MAX_CELLS = 2**24  # distances in memory at a time


class Baseline(NamedTuple):
    name: str
    score: float
    gain: tuple[float, float] | None  # 95% interval of the network's lead over it; None if there is no interval


def compare_with_baselines(
    score: float,
    baselines: Sequence[Baseline],
    num_test: int,
    groups: Groups | None = None,
    subject: str = "the network",
) -> str:
    """Return a sentence that compares the score of `subject` on `num_test` test sequences with the baselines; larger is
    better. If the sequences have groups, the sentence says how many its intervals are over.

    `the most frequent class reaches 0.12, 1-NN 0.64: the network beats the most frequent class, is not clearly better
    than 1-NN (only 45 test sequences: 95% interval of the gain -0.02 to +0.11)`.
    """
    cases = str(groups) if groups else f"{num_test:,} test sequences"
    first, *rest = baselines
    words = [f"{first.name} reaches {first.score:.4g}", *(f"{rival.name} {rival.score:.4g}" for rival in rest)]
    if groups and groups.shortage:
        return f"{', '.join(words)}, {subject} {score:.4g}: the data cannot tell which is better ({groups.shortage})"
    beaten = [rival.name for rival in baselines if score > rival.score and rival.gain and rival.gain[0] > 0]
    verdicts = [
        f"{relation(score, rival)} {rival.name} ({rejection_reason(score, rival, cases, groups)})"
        for rival in baselines
        if rival.name not in beaten
    ]
    if not verdicts:
        beaten = [{1: "it", 2: "both"}.get(len(baselines), "all of them")]
    of_groups = f" (by a 95% interval over {groups})" if groups else ""
    verdicts = [f"beats {' and '.join(beaten)}{of_groups}", *verdicts] if beaten else verdicts
    return f"{', '.join(words)}: {subject} {', '.join(verdicts)}"


def relation(score: float, baseline: Baseline) -> str:
    if baseline.gain == (0, 0) and score == baseline.score:
        return "is exactly as good as"
    return "is not clearly better than" if score > baseline.score else "does not beat"


def compare_with_fitted(
    score: float,
    fitted: Baseline,
    description: str,
    num_test: int,
    groups: Groups | None = None,
    subject: str = "the network",
) -> str:
    """Return one of three sentences: `subject` is better than the fitted model, worse, or no difference is detected.

    Both learned from the training split; `description` says what the fitted model is.
    """
    cases = str(groups) if groups else f"{num_test:,} test sequences"
    scores = f"{fitted.score:.4g}; {description}"
    if groups and groups.shortage:
        return f"the data cannot tell whether {subject} or the fitted model ({scores}) is better ({groups.shortage})"
    if not fitted.gain:
        shortage = f"{cases} are too few for an interval, which needs {MIN_CASES}"
        return f"no difference from the fitted model ({scores}) is detected: {shortage}"
    low, high = fitted.gain
    if low == high == score - fitted.score == 0:
        return f"{subject} is exactly as good as the fitted model ({scores})"
    interval = f"95% interval of the gain {low:+.2g} to {high:+.2g}{f' over {groups}' if groups else ''}"
    if low > 0 and score > fitted.score:
        return f"{subject} beats the fitted model ({scores}; {interval})"
    if high < 0 and score < fitted.score:
        return f"the fitted model ({scores}) beats {subject} as it was trained ({interval}); it needs no GPU"
    return f"no difference between {subject} and the fitted model ({scores}) is detected with {cases} ({interval})"


def rejection_reason(score: float, baseline: Baseline, cases: str, groups: Groups | None) -> str:
    """Return why a baseline counts as not beaten."""
    if not baseline.gain:
        return f"{cases} are too few for an interval, which needs {MIN_CASES}"
    low, high = baseline.gain
    if low == high == score - baseline.score == 0:
        return "both are equally good in every group" if groups else "both are right for the same sequences"
    interval = f"95% interval of the gain {low:+.2g} to {high:+.2g}"
    if high < 0:
        return f"it is worse: {interval}{f' over {groups}' if groups else ''}"
    if score > baseline.score:
        return f"only {cases}: {interval}"
    return f"the difference is not clear with {cases}: {interval}"


def sample_rows(num: int, largest: int) -> np.ndarray:
    """Return sorted indices of `largest` of `num` sequences, drawn with a fixed seed; all if there are no more."""
    if num <= largest:
        return np.arange(num)
    return np.sort(np.random.default_rng(0).choice(num, largest, replace=False))


def nearest_neighbours(train: np.ndarray, test: np.ndarray, are_same: bool = False) -> np.ndarray:
    """train (N, T, F), test (M, T, F) -> (M,) the index of the nearest training sequence, by Euclidean distance.

    Padding counts as zero, the mean of the training split. `are_same`: both are one, and a sequence is not its own
    neighbour.
    """
    train = train.reshape(len(train), -1)
    # The nearest x minimizes |x - y|^2 / 2 = |x|^2 / 2 - x y + |y|^2 / 2; the last term is the same for all x.
    half_squares = np.square(train).sum(axis=1) / 2
    size = max(1, MAX_CELLS // len(train))
    nearest = []
    for start in range(0, len(test), size):
        part = test[start : start + size]
        distances = half_squares - part.reshape(len(part), -1) @ train.T
        if are_same:
            distances[np.arange(len(part)), start + np.arange(len(part))] = np.inf
        nearest.append(distances.argmin(axis=1))
    return np.concatenate(nearest)


def num_useful_features(train: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> int:
    """Return how many of the features of train (N, T, F) its nearest neighbours need: all F, or those before the
    velocities (`dx` of `x`), which are mostly noise in noisy data. Leave-one-out decides; labels (N,).
    """
    half = len(names) // 2
    if list(names) != [*names[:half], *(f"d{name}" for name in names[:half])]:
        return len(names)
    rows = sample_rows(len(train), max(100, int((MAX_PRODUCTS / train[0].size) ** 0.5)))
    train, labels = train[rows], labels[rows]
    num_right = {
        num_features: (labels[nearest_neighbours(values, values, are_same=True)] == labels).sum()
        for num_features, values in ((len(names), train), (half, train[:, :, :half]))
    }
    return max(num_right, key=lambda num_features: num_right[num_features])  # of equal ones the first, with velocities


def num_comparable(train: np.ndarray, test: np.ndarray) -> int:
    """Return how many training sequences the nearest-neighbour search may use."""
    return min(len(train), max(100, int(MAX_PRODUCTS / max(1, test.size))))
