"""The models by name. Every model is one module of this package, named as `train.model.name` in params.yaml, with

    build(config, shape) -> nn.Module

whose `forward(values (B, T, F) float, mask (B, T) bool, True: a real step)` gives `(B, num_outputs)`, or
`(B, T, num_outputs)` where `shape.per_step` asks for one output per step.

Its hyperparameters are a dataclass in stages/params/schema.py, which also says which tasks it fits.
Importing this package does not import torch.

Legend of shapes, here and in the models: B sequences, T steps, F features, D or H model width, C outputs.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from stages.params.schema import Positive


@dataclass(frozen=True)
class Shape:
    """What data and task decide about a network's size."""

    num_features: Positive
    num_outputs: Positive
    max_steps: Positive
    per_step: bool

    @classmethod
    def of(cls, summary: dict[str, Any], task: Any) -> "Shape":
        """`summary` is preprocess's, `task` a Task of stages/tasks."""
        return cls(len(summary["features"]), task.num_outputs, summary["max_steps"], task.per_step)


def build(config: Any, shape: Shape) -> Any:
    """The network that `config` (a model's dataclass in stages/params/schema.py) describes, on the CPU, untrained."""
    return importlib.import_module(f"{__name__}.{config.name}").build(config, shape)
