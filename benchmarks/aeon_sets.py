"""Public sets as aeon ships or loads them, into files: `python aeon_sets.py FOLDER NAME...`.

Run by benchmarks/public_sets.py in an environment that has aeon. Each set becomes FOLDER/NAME.npz: values (N, T, F),
NaN after a sequence's end, labels (N,), numbers where the set is one for regression, and is_test (N,).

Some are made here from such a set, or from nothing (MADE), to see one thing alone: what unequal lengths and features
that say nothing do.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from aeon.datasets import load_classification, load_regression
from aeon.datasets.tser_datasets import tser_soton

Arrays = tuple[Any, Any, Any]  # values, labels, is_test


def main(folder: str, names: list[str]) -> None:
    for name in names:
        values, labels, is_test = MADE[name]() if name in MADE else loaded(name)
        np.savez(Path(folder) / f"{name}.npz", values=values, labels=labels, is_test=is_test)


def loaded(name: str) -> Arrays:
    load = load_regression if name in tser_soton else load_classification
    parts = [load(name, split=split) for split in ("train", "test")]
    series = [np.asarray(each, dtype=np.float64) for values, _ in parts for each in values]
    values = np.full((len(series), max(each.shape[1] for each in series), len(series[0])), np.nan)
    for place, each in enumerate(series):
        values[place, : each.shape[1]] = each.T
    labels = np.concatenate([labels for _, labels in parts])
    labels = labels.astype(float) if load is load_regression else labels.astype(str)
    return values, labels, np.arange(len(series)) >= len(parts[0][1])


def italy_noise() -> Arrays:
    """ItalyPowerDemand beside three random walks."""
    values, labels, is_test = loaded("ItalyPowerDemand")
    walks = np.random.default_rng(0).normal(size=(*values.shape[:2], 3)).cumsum(axis=1)
    return np.concatenate([values, walks], axis=2), labels, is_test


def arrow_stretch() -> Arrays:
    """ArrowHead, each sequence resampled to 80 to 251 steps."""
    values, labels, is_test = loaded("ArrowHead")
    stretched, random = np.full_like(values, np.nan), np.random.default_rng(0)
    for place, num in enumerate(random.integers(80, values.shape[1] + 1, size=len(values))):
        steps = np.linspace(0, values.shape[1] - 1, num)
        stretched[place, :num, 0] = np.interp(steps, np.arange(values.shape[1]), values[place, :, 0])
    return stretched, labels, is_test


def length_number() -> Arrays:
    """Noise of 20 to 79 steps, whose number is that of its steps."""
    random = np.random.default_rng(0)
    lengths = random.integers(20, 80, size=150)
    values = np.where(np.arange(80) < lengths[:, None], random.normal(size=(150, 80)), np.nan)
    return values[..., None], lengths.astype(float), np.arange(150) >= 60


def length() -> Arrays:
    """The same, whose class is short, middling or long."""
    values, lengths, is_test = length_number()
    return values, np.array(["short", "middling", "long"])[np.digitize(lengths, [40, 60])], is_test


def informative(num: int, num_steps: int, num_features: int, num_informative: int, share: float = 0.5) -> Arrays:
    """Autoregressive noise; the class raises the level of some features. `share`: of the second of two classes.

    Beside `num` sequences for train and val, 200 are for test.
    """
    random = np.random.default_rng(0)
    values = random.normal(size=(num + 200, num_steps, num_features))
    for step in range(1, num_steps):
        values[:, step] = 0.6 * values[:, step - 1] + 0.8 * values[:, step]
    labels = random.random(num + 200) < share
    values[labels, :, :num_informative] += random.choice([-0.6, 0.6], size=num_informative)
    return values, np.where(labels, "high", "low"), np.arange(num + 200) >= num


def noise_number() -> Arrays:
    """Noise, and a number that has nothing to do with it."""
    values, _, is_test = informative(100, 40, 10, 0)
    return values, np.random.default_rng(1).normal(size=len(values)), is_test


MADE = {
    "ItalyNoise": italy_noise,
    "ArrowStretch": arrow_stretch,
    "LengthNumber": length_number,
    "Length": length,
    "Level10": lambda: informative(100, 50, 10, 2),
    "Level100": lambda: informative(100, 30, 100, 4),
    "Level300": lambda: informative(200, 16, 300, 12),
    "Level1000": lambda: informative(150, 16, 1000, 12),
    "LevelShort": lambda: informative(80, 6, 5, 2),
    "LevelLong": lambda: informative(40, 1000, 1, 1),
    "LevelRare": lambda: informative(200, 50, 10, 3, share=0.08),
    "Noise": lambda: informative(100, 40, 10, 0),
    "NoiseNumber": noise_number,
}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
