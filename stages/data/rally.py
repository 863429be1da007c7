"""The source `rally`: tennis rallies, simulated by tennis.py, in the amounts that params.yaml gives.

In: the params of a `rally` source. Out: see stages/data/__init__.py. Where the camera does not see the ball, its place
is interpolated.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stages.data import tennis
from stages.data.arrays import PreparedSequences, Sequences, interpolate, prepared, standardize
from stages.data.splits import SPLITS
from stages.params.schema import Rally

NOISE_FACTORS = (0.0, 0.5, 2.0, 4.0, 8.0)  # of the noise in training: what evaluate tries besides


def prepare(params: Rally, folder: Path, per_step: bool) -> PreparedSequences:
    """Newly simulated rallies, standardized, with the first of them in train. No table: `folder` is not read."""
    sizes = [int(params.split.train), int(params.split.val), int(params.split.test)]
    numbers = np.arange(sum(sizes))
    parts = dict(zip(SPLITS, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True))
    (sequences,) = simulated(params, sum(sizes), [params.noise])
    return prepared(sequences, numbers, parts, table=None)


def with_noises(params: Rally, num_sequences: int, summary: dict[str, Any]) -> dict[float, Sequences]:
    """Noise -> the same rallies with it, which training has not seen, standardized as preprocess's `summary` says."""
    noises = [factor * params.noise for factor in NOISE_FACTORS]
    found = dict(zip(noises, simulated(replace(params, seed=params.seed + 1), num_sequences, noises), strict=True))
    for sequences in found.values():
        standardize(sequences, summary["mean"], summary["std"])
    return found


def simulated(params: Rally, num_sequences: int, noises: Sequence[float]) -> list[Sequences]:
    values, labels = tennis.simulate_noises(
        num_sequences, params.num_steps, params.seed, noises, params.missed, params.occlusion
    )
    return [interpolated(each, labels) for each in values]


def interpolated(values: np.ndarray, labels: np.ndarray) -> Sequences:
    """What `tennis.simulate` gives, with the frames filled in that have no detection. Changes `values`."""
    num_sequences, num_steps = labels.shape
    lengths = np.full(num_sequences, num_steps, dtype=np.int32)
    u, v, visible = np.moveaxis(values, 2, 0)
    num_filled = 0
    for column in (u, v):
        column[visible == 0] = np.nan
        filled, never_seen = interpolate(column, lengths)
        if len(never_seen):
            raise ValueError(f"rally {never_seen[0]} is never seen; lower preprocess.missed")
        num_filled += filled
    ids = np.arange(num_sequences).astype(np.str_)
    return Sequences(values, lengths, labels, ids, None, tennis.EVENTS, tennis.FEATURES, num_filled)
