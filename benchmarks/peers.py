"""Other methods on prepared splits: `python peers.py NAMES FOLDER...`, the names separated by commas.

The folders are as stages/preprocess.py writes them. A folder's name is the seed of the methods that draw random
numbers. Each method learns from train and val together. Prints JSON: method -> [scores (accuracy, or R2 for numeric
targets), seconds of the fits]. benchmarks/accuracy.py and public_sets.py run it in an environment with aeon.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from aeon.classification.convolution_based import MiniRocketClassifier
from aeon.classification.interval_based import QUANTClassifier
from aeon.regression.convolution_based import MiniRocketRegressor
from aeon.regression.interval_based import QUANTRegressor
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler


def main(names: str, folders: list[str]) -> None:
    found: dict[str, Any] = {name: [[], []] for name in names.split(",")}
    for folder in map(Path, folders):
        data = {split: np.load(folder / split / "values.npy").transpose(0, 2, 1) for split in ("train", "val", "test")}
        labels = {split: np.load(folder / split / "targets.npy") for split in data}
        values, known = (np.concatenate([each["train"], each["val"]]) for each in (data, labels))
        for name, (scores, seconds) in found.items():
            model = made(name, labels["test"].dtype.kind == "f", int(folder.name))
            own, test = values, data["test"]
            if name == "MiniRocket" and values.shape[2] < 9:  # its kernels have length 9: interpolate linearly
                own, test = stretch(values, 16), stretch(test, 16)
            start = time.perf_counter()
            model.fit(own, known)
            seconds.append(time.perf_counter() - start)
            scores.append(float(model.score(test, labels["test"])))
    print(json.dumps(found))


def made(name: str, is_number: bool, seed: int) -> Any:
    if name == "MiniRocket":
        return (MiniRocketRegressor if is_number else MiniRocketClassifier)(random_state=seed, n_jobs=1)
    if name == "QUANT":
        return (QUANTRegressor if is_number else QUANTClassifier)(random_state=seed)
    flat = FunctionTransformer(flattened)
    if name == "1-NN":
        return make_pipeline(flat, (KNeighborsRegressor if is_number else KNeighborsClassifier)(1))
    assert name == "ridge", name
    ridge = (RidgeCV if is_number else RidgeClassifierCV)(np.logspace(-3, 5, 17))
    return make_pipeline(flat, StandardScaler(), ridge)


def flattened(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def stretch(values: np.ndarray, num_steps: int) -> np.ndarray:
    """(N, F, T) -> (N, F, num_steps)"""
    position = np.linspace(0, values.shape[2] - 1, num_steps)
    low = np.minimum(position.astype(int), values.shape[2] - 2)
    return values[..., low] + (values[..., low + 1] - values[..., low]) * (position - low)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
