"""Compare MiniRocket's features with aeon's, for aeon's dilations, biases and channels: equal except for rounding.

    python -m benchmarks.features --aeon-python .venv-aeon/bin/python

aeon (in its own environment) fits its transform to random sequences and writes its random draws and the resulting
features; tandem/models/minirocket.py computes the features from the same draws. If rounding moves a response across a
bias, the feature changes by one step's share of the sequence.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SHAPES = ((20, 1, 30), (20, 1, 500), (20, 5, 100), (10, 300, 60))  # sequences, features, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aeon-python", required=True, help="a Python with aeon installed")
    options = parser.parse_args()
    from benchmarks.markdown import header, row  # aeon's environment lacks what it imports

    print(header("sequences, features, steps", "features", "equal to 1e-6", "largest difference, in steps"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.aeon_python, __file__, folder], check=True)
        for shape in SHAPES:
            with np.load(Path(folder) / f"{shape}.npz") as theirs:
                own, expected = own_features(theirs), theirs["features"]
            off = np.abs(own - expected)
            cells = (f"{expected.shape[1]:,}", f"{(off < 1e-6).mean():.4%}", f"{off.max() * shape[2]:.2f}")
            print(row(", ".join(map(str, shape)), *cells))


def own_features(theirs: np.lib.npyio.NpzFile) -> np.ndarray:
    import torch

    from tandem.models.minirocket import MiniRocket

    x = torch.from_numpy(theirs["x"])
    module = MiniRocket(x.shape[1], x.shape[2], theirs["features"].shape[1])
    assert (module.dilations, module.counts) == (theirs["dilations"].tolist(), theirs["counts"].tolist())
    module.biases.copy_(torch.from_numpy(theirs["biases"]))
    if module.channels is not None:
        flat = torch.full_like(module.channels.flatten(0, 1), x.shape[1])
        parts = np.split(theirs["channels"], np.cumsum(theirs["num_channels"])[:-1])
        for row, part in enumerate(parts):
            flat[row, : len(part)] = torch.from_numpy(part)
        module.channels = flat.view_as(module.channels)
    with torch.no_grad():
        return module(x, torch.full((len(x),), x.shape[2])).numpy()


def write_theirs(folder: str) -> None:
    """Runs in the environment with aeon."""
    from aeon.transformations.collection.convolution_based import MiniRocket

    for shape in SHAPES:
        x = np.random.default_rng(0).normal(size=shape).cumsum(axis=2).astype(np.float32)
        transform = MiniRocket(random_state=0)
        features = transform.fit_transform(x)
        num_channels, channels, dilations, counts, biases = transform.parameters
        np.savez(
            Path(folder) / f"{shape}.npz", x=x, features=features, num_channels=num_channels, channels=channels,
            dilations=dilations, counts=counts, biases=biases,
        )  # fmt: skip


if __name__ == "__main__":
    main() if len(sys.argv) != 2 else write_theirs(sys.argv[1])
