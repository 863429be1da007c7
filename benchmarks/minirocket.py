"""MiniRocket and a ridge on prepared splits (folders as stages/preprocess.py writes them, named by seed).

Prints scores (accuracy, or R2 for numeric targets) and seconds as JSON. The folder's name is the seed for the kernels'
biases. benchmarks/accuracy.py and public_sets.py run it in an environment with aeon.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from aeon.classification.convolution_based import MiniRocketClassifier
from aeon.regression.convolution_based import MiniRocketRegressor


def main(folders: list[str]) -> None:
    scores, seconds = [], []
    for folder in map(Path, folders):
        data = {split: np.load(folder / split / "values.npy").transpose(0, 2, 1) for split in ("train", "val", "test")}
        labels = {split: np.load(folder / split / "targets.npy") for split in data}
        values = np.concatenate([data["train"], data["val"]])
        if values.shape[2] < 9:  # MiniRocket's kernels have length 9: shorter series are interpolated linearly
            values, data["test"] = stretch(values, 16), stretch(data["test"], 16)
        start = time.perf_counter()
        kind = MiniRocketRegressor if labels["test"].dtype.kind == "f" else MiniRocketClassifier
        model = kind(random_state=int(folder.name), n_jobs=1)
        model.fit(values, np.concatenate([labels["train"], labels["val"]]))
        seconds.append(time.perf_counter() - start)
        scores.append(float(model.score(data["test"], labels["test"])))
    print(json.dumps([scores, seconds]))


def stretch(values: np.ndarray, num_steps: int) -> np.ndarray:
    """(N, F, T) -> (N, F, num_steps)"""
    position = np.linspace(0, values.shape[2] - 1, num_steps)
    low = np.minimum(position.astype(int), values.shape[2] - 2)
    return values[..., low] + (values[..., low + 1] - values[..., low]) * (position - low)


if __name__ == "__main__":
    main(sys.argv[1:])
