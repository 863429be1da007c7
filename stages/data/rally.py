"""The source `rally`: tennis rallies, simulated by tennis.py, in the amounts that params.yaml gives.

In: the params of a `rally` source. Out: see stages/data/__init__.py. Where the camera does not see the ball, its place
is interpolated.
"""

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
    return prepared(simulated(params, sum(sizes)), numbers, parts, table=None)


def with_noise(params: Rally, factor: float, num_sequences: int, summary: dict[str, Any]) -> Sequences:
    """Rallies that training has not seen, with `factor` times its noise, standardized as preprocess's `summary`
    says."""
    sequences = simulated(replace(params, noise=factor * params.noise, seed=params.seed + 1), num_sequences)
    standardize(sequences, summary["mean"], summary["std"])
    return sequences


def simulated(params: Rally, num_sequences: int) -> Sequences:
    values, labels = tennis.simulate(
        num_sequences, params.num_steps, params.seed, params.noise, params.missed, params.occlusion
    )
    lengths = np.full(num_sequences, params.num_steps, dtype=np.int32)
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
