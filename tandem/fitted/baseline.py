"""The strongest baseline that needs no network: `model_selection`, fitted to the training split.

`stages/baseline.py` loads this module by name. One thread of the CPU fits it, whatever device trains the network, and
sizes limit its cost, not the clock: its predictions have the same bytes on a busy machine.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tandem.fitted.candidates import Selection
from tandem.fitted.closed_form import OnProgress, sampled
from tandem.fitted.model_selection import Network
from tandem.models import Shape
from tandem.training import inference
from tandem.training.batches import Split, sequential_indices
from tandem.training.executor import Executor

MAX_SEQUENCES = 2048  # to learn from, train and val together
MIN_SEQUENCES = 128
MAX_VALUES = 2**22  # of the sequences to learn from
MANY_VALUES = 2**20  # above, fewer kernels and trees: with all of them, the forest takes 20 s for as many values
MAX_TEST_VALUES = 2**23  # to predict: half a minute
BATCH = 128
NAMES = {
    "rocket": "random convolutions and a ridge",
    "raw": "a ridge on the raw values",
    "forest": "trees on quantiles over intervals",
}


@dataclass(frozen=True)
class FittedModel:
    outputs: Tensor  # (N, C) for the test split
    description: str
    selected: str  # the candidate of model_selection
    held_out: dict[str, float]  # the candidates' scores on sequences that they did not learn from


def refusal(shape: Shape, num_test: int) -> str:
    """Return why no model is fitted to such sequences; empty if one is."""
    num_values = shape.max_steps * shape.num_features
    if MIN_SEQUENCES * num_values > MAX_VALUES:
        return f"sequences of {num_values:,} values are too long for it (at most {MAX_VALUES // MIN_SEQUENCES:,})"
    if num_test * num_values > MAX_TEST_VALUES:
        return f"the test split has {num_test * num_values:,} values, too many for it (at most {MAX_TEST_VALUES:,})"
    return ""


def fit(train: Split, val: Split, test: Split, shape: Shape, task: Any, on_progress: OnProgress) -> FittedModel:
    """Fit to train, select by sequences left out of it and by val, and predict test. Large splits are sampled."""
    num_values, num_train = shape.max_steps * shape.num_features, len(train)
    train, val = sampled(train, val, min(MAX_SEQUENCES, MAX_VALUES // num_values))
    is_large = (len(train) + len(val)) * num_values > MANY_VALUES
    sizes = {"num_kernels": 5000, "num_groups": 16, "num_trees": 50} if is_large else {}
    if task.target == "number":  # MiniRocket alone is better than with HYDRA (docs/recipes.md)
        sizes["num_groups"] = 0
    torch.manual_seed(0)
    model = Network(shape, **sizes)
    selection = Selection(model, task, train, val, Executor(), BATCH)
    selection.on_progress = on_progress
    selection.fit(sequential_indices(train))
    outputs = inference.predict(model, test, batch_size=BATCH)
    of_all = "" if len(train) == num_train else f" of {num_train:,}"
    description = f"{NAMES[model.selected_name]}, fitted to {len(train):,}{of_all} training sequences"
    return FittedModel(outputs, description, **model.selection())
