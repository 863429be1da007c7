"""The models. Each model is a module of this package, with the name `train.model.name` of params.yaml and a function

    build(config, shape) -> nn.Module

Its `forward(values (B, T, F) float, mask (B, T) bool, True: a real step)` returns `(B, num_outputs)`, or
`(B, T, num_outputs)` if `shape.per_step` requires one output per step.

A dataclass in tandem/params/schema.py defines the model's hyperparameters and the tasks that it supports.
Importing this package does not import torch.

Legend of shapes, here and in the models: B sequences, T steps, F features, D or H model width, C outputs.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from tandem.params.schema import Positive


@dataclass(frozen=True)
class Shape:
    """The sizes of a network that follow from the data and the task."""

    num_features: Positive
    num_outputs: Positive
    max_steps: Positive
    per_step: bool

    @classmethod
    def of(cls, summary: dict[str, Any], task: Any) -> "Shape":
        """`summary` is the summary.json of preprocess, `task` a Task of tandem/tasks."""
        return cls(len(summary["features"]), task.num_outputs, summary["max_steps"], task.per_step)


def build(config: Any, shape: Shape) -> Any:
    """Build an untrained network on the CPU from `config` (a model's dataclass in tandem/params/schema.py)."""
    return importlib.import_module(f"{__name__}.{config.name}").build(config, shape)
