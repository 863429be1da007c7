"""The source `rally`: simulated tennis rallies (rally_simulation.py).

Input: the params of a `rally` source. Output: see tandem/data/__init__.py. In frames without a detection of the ball,
its position is interpolated.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tandem.data.arrays import PreparedSequences, Sequences, interpolate, prepared, standardize
from tandem.data.rally_simulation import EVENTS, FEATURES, simulate
from tandem.data.splits import SPLITS
from tandem.params.schema import Rally

NOISE_FACTORS = (0.0, 0.5, 2.0, 4.0, 8.0)  # evaluate also tries these multiples of the training noise


def prepare(params: Rally, folder: Path, per_step: bool) -> PreparedSequences:
    """Simulate rallies and standardize them. The first sequences are train. `folder` is unused: there is no table."""
    sizes = [int(size) for size in params.split.sizes]
    indices = np.arange(sum(sizes))
    parts = dict(zip(SPLITS, np.split(indices, np.cumsum(sizes)[:-1]), strict=True))
    (sequences,) = simulated(params, sum(sizes), [params.noise])
    return prepared(sequences, indices, parts, table=None)


def with_noises(params: Rally, num_sequences: int, summary: dict[str, Any]) -> dict[float, Sequences]:
    """Return {noise: sequences}: new rallies, the same for each noise, standardized by the `summary` of preprocess."""
    noises = [factor * params.noise for factor in NOISE_FACTORS]
    found = dict(zip(noises, simulated(replace(params, seed=params.seed + 1), num_sequences, noises), strict=True))
    for sequences in found.values():
        standardize(sequences, summary["mean"], summary["std"])
    return found


def simulated(params: Rally, num_sequences: int, noises: Sequence[float]) -> list[Sequences]:
    values, labels = simulate(num_sequences, params.num_steps, params.seed, noises, params.missed, params.occlusion)
    return [interpolated(each, labels) for each in values]


def interpolated(values: np.ndarray, labels: np.ndarray) -> Sequences:
    """Convert the arrays of `simulate`, and interpolate frames without a detection. Changes `values`."""
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
    return Sequences(values, lengths, labels, ids, None, EVENTS, FEATURES, num_filled)
