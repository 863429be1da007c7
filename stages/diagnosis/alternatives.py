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

from stages.diagnosis.counts import num_bytes
from stages.training.batches import Split
from stages.training.graphs import Graphs
from stages.training.memory import OomPolicy
from stages.training.step import Step, graph_blocker
from stages.training.trainer import Trainer, computed_in

ROOM = 0.5  # share of the free device memory that streamed data may use
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("tf32", "bf16")}

Result = TypeVar("Result")
Changes = dict[str, Any]  # settings of params.yaml: those of `train`, and `data_location`


def alternatives(trainer: Trainer) -> dict[str, Changes]:
    """Return settings that could make this training faster, by a name for the change."""
    params, device, precision = trainer.params, trainer.device, trainer.step.precision
    if params.step == "compile":  # another batch size or precision would need another compilation
        return {"step eager": {"step": "eager"}}
    sizes = (2 * params.batch_size, 8 * params.batch_size)
    found: list[Changes] = [{"batch_size": size} for size in sizes if size <= len(trainer.train_split)]
    if params.precision != "auto":  # `auto` has just chosen by measuring
        others = [name for name in PRECISIONS[device.type] if name != precision]
        found += [{"precision": name} for name in others if computed_in(name, device) == name]
    if trainer.step.accumulation > 1:
        found.append({"grad_accum_steps": 1})
    is_eager = params.step == "eager" and not trainer.step.fallback_reason  # several workers cannot use graphs
    if device.type == "cuda" and is_eager and not graph_blocker(device, precision, trainer.model):
        found.append({"step": "graph"})
    if trainer.train_split.is_streamed:  # from the host to a GPU
        needed = sum(num_bytes(split.tensors.values()) for split in (trainer.train_split, trainer.val_split))
        found += [{"data_location": "device"}] if needed < ROOM * torch.cuda.mem_get_info(device)[0] else []
    if device.type == "cpu" and (os.cpu_count() or 1) > 1:
        found.append({"threads": 1 if params.num_threads > 1 else 2})
    return {f"{key.removesuffix('_size')} {value}": change for change in found for key, value in change.items()}


def variant(trainer: Trainer, changes: Changes) -> Trainer:
    """Return `trainer` with other settings. It shares data, weights, optimizer and generator where possible, to save
    memory.

    If memory runs out, the variant raises and does not use a fallback, so a trial does not change the training.
    """
    params = replace(trainer.params, **{name: value for name, value in changes.items() if name != "data_location"})
    if changes.get("step") == "graph":  # needs another kind of optimizer, and therefore its own weights
        other = Trainer(copied(trainer.model), trainer.train_split, trainer.val_split, params, trainer.task)
    else:
        other = copy.copy(trainer)
        other.params, other.step = params, copy.copy(trainer.step)
        other.steps_per_epoch = -(-len(trainer.train_split) // params.batch_size)
        other.device_epoch = None
    other.step.precision, other.step.accumulation = trainer.step.precision, trainer.step.accumulation
    change_step(other.step, changes)
    other.step.may_adapt = False
    other.step.oom = other.oom = NoFallbacks()
    if "data_location" in changes:
        other.train_split = resident(trainer.train_split, 8 * params.batch_size)
    return other


def change_step(step: Step, changes: Changes) -> None:
    step.accumulation = changes.get("grad_accum_steps", step.accumulation)
    if "precision" in changes:
        step.precision = changes["precision"]
        step.scaler = torch.amp.GradScaler(step.device.type, enabled=False)  # none of the alternatives is fp16
    step.graphs = Graphs(step.device) if step.graphs else None  # a captured graph includes its settings
    if changes.get("step") == "eager":
        step.forward = step.model


class NoFallbacks(OomPolicy):
    """Raises the out-of-memory error and uses no fallback."""

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        return work()


def copied(model: torch.nn.Module) -> torch.nn.Module:
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):
            part.flatten_parameters()  # the copied weights are not contiguous: cuDNN would gather them in every step
    return model


def resident(split: Split, count: int) -> Split:
    """Return the split's first `count` sequences on the device: enough to measure training from there."""
    return replace(split, tensors={name: tensor[:count].to(split.device) for name, tensor in split.tensors.items()})
