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


MADE = {"ItalyNoise": italy_noise, "ArrowStretch": arrow_stretch, "LengthNumber": length_number, "Length": length}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
