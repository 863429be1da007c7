"""Public sets as aeon ships or loads them, into files: `python aeon_sets.py FOLDER NAME...`.

Run by benchmarks/public_sets.py in an environment that has aeon. Each set becomes FOLDER/NAME.npz: values (N, T, F),
NaN after a sequence's end, labels (N,), numbers where the set is one for regression, and is_test (N,).
"""

import sys
from pathlib import Path

import numpy as np
from aeon.datasets import load_classification, load_regression
from aeon.datasets.tser_datasets import tser_soton


def main(folder: str, names: list[str]) -> None:
    for name in names:
        load = load_regression if name in tser_soton else load_classification
        parts = [load(name, split=split) for split in ("train", "test")]
        series = [np.asarray(each, dtype=np.float64) for values, _ in parts for each in values]
        values = np.full((len(series), max(each.shape[1] for each in series), len(series[0])), np.nan)
        for place, each in enumerate(series):
            values[place, : each.shape[1]] = each.T
        labels = np.concatenate([labels for _, labels in parts])
        labels = labels.astype(float) if load is load_regression else labels.astype(str)
        is_test = np.arange(len(series)) >= len(parts[0][1])
        np.savez(Path(folder) / f"{name}.npz", values=values, labels=labels, is_test=is_test)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
