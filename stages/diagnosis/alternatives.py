"""Alternative settings that could make a training faster, and a variant of a trainer with such settings.

`alternatives` returns name -> changed settings for a `Trainer`. `variant` returns a `Trainer` with these settings that
shares as much as possible with the given one.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from stages.training.graphs import Graphs
from stages.training.memory import OomPolicy
from stages.training.trainer import Trainer, computed_in

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("tf32", "bf16")}

Result = TypeVar("Result")
Changes = dict[str, Any]  # settings of params.yaml's `train`


def alternatives(trainer: Trainer) -> dict[str, Changes]:
    """Return settings that could make this training faster, by a name for the change."""
    params, device, precision = trainer.params, trainer.device, trainer.step.precision
    if params.step == "compile":  # another batch size or precision would need another compilation
        return {}
    sizes = (2 * params.batch_size, 8 * params.batch_size)
    found: list[Changes] = [{"batch_size": size} for size in sizes if size <= len(trainer.train_split)]
    if params.precision != "auto":  # `auto` has just chosen by measuring
        others = [name for name in PRECISIONS[device.type] if name != precision]
        found += [{"precision": name} for name in others if computed_in(name, device) == name]
    if trainer.step.accumulation > 1:
        found.append({"grad_accum_steps": 1})
    if device.type == "cpu" and (os.cpu_count() or 1) > 1:
        found.append({"threads": 1 if params.num_threads > 1 else 2})
    return {f"{key.removesuffix('_size')} {value}": change for change in found for key, value in change.items()}


def variant(trainer: Trainer, changes: Changes) -> Trainer:
    """Return `trainer` with other settings. It shares data, weights, optimizer and generator.

    If memory runs out, the variant raises and does not use a fallback, so a trial does not change the training.
    """
    other = copy.copy(trainer)
    other.params = replace(trainer.params, **changes)
    other.steps_per_epoch = -(-len(trainer.train_split) // other.params.batch_size)
    other.device_epoch = None
    step = other.step = copy.copy(trainer.step)
    step.accumulation = changes.get("grad_accum_steps", step.accumulation)
    if "precision" in changes:
        step.precision = changes["precision"]
        step.scaler = torch.amp.GradScaler(step.device.type, enabled=False)  # none of the alternatives is fp16
    step.graphs = Graphs(step.device) if step.graphs else None  # a captured graph includes its settings
    step.may_adapt = False
    step.oom = other.oom = NoFallbacks()
    return other


class NoFallbacks(OomPolicy):
    """Raises the out-of-memory error and uses no fallback."""

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        return work()
