"""The models by name. Every model is one module of this package, named as `train.model.name` in params.yaml, with

`build(config, num_features, num_outputs, max_steps)`, which returns a module whose
`forward(values (B, T, F) float, mask (B, T) bool, True = a real step)` gives logits `(B, num_outputs)`.

Its hyperparameters are a dataclass in stages/params.py. Importing this package does not import torch.

Legend of shapes, here and in the models: B sequences, T steps, F features, D model width, C outputs.
"""

import importlib
from typing import Any


def build(config: Any, num_features: int, num_outputs: int, max_steps: int) -> Any:
    """The network that `config` (a model's dataclass of stages/params.py) describes, with fresh weights on the CPU."""
    return importlib.import_module(f"{__name__}.{config.name}").build(config, num_features, num_outputs, max_steps)
