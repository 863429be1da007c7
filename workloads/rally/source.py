"""Simulated tennis rallies (simulation.py): the data of this workload. There is no table."""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from tandem.data import Arrays
from tandem.parts import Positive, Real, Share

from .simulation import EVENTS, FEATURES, simulate


def read(
    folder: Path,
    num_train: Positive,
    num_val: Positive,
    num_test: Positive,
    num_steps: Annotated[int, Field(ge=16)],  # frames per sequence
    noise: Real,  # standard deviation of a detected position, pixels
    missed: Annotated[float, Field(ge=0, le=0.9)],  # share of the frames in which the ball is not found
    occlusion: Share,  # share of the sequences in which the ball is hidden for a while
    seed: int,
) -> Arrays:
    """Return the position of the ball and the event in each frame. The first sequences are train, then val, then test.

    In frames without a detection the position is NaN, so preprocess needs `missing: interpolate`.
    """
    sizes = num_train, num_val, num_test
    (values,), labels = simulate(sum(sizes), num_steps, seed, [noise], missed, occlusion)
    values[values[:, :, FEATURES.index("visible")] == 0, :2] = np.nan
    return Arrays(values, labels, features=FEATURES, classes=EVENTS, splits=np.repeat(["train", "val", "test"], sizes))
