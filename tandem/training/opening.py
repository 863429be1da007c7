"""Opens a training: the splits, the network with the seed's weights, a checkpoint's state.

`open_trainer` is for the stages, `make_trial` for `tandem check` and the benchmarks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from tandem import models
from tandem.devices.device import Device
from tandem.models import Shape
from tandem.params import schema
from tandem.params.schema import Train
from tandem.parts import Component, Part, find
from tandem.tasks import Task, check_loss
from tandem.training.batches import Split
from tandem.training.context import RunContext
from tandem.training.custom_loop import LoopTrainer
from tandem.training.execution import Execution, streamed
from tandem.training.executor import Executor, OutOfMemory, advice_for, translate_oom
from tandem.training.network_checks import check_outputs, small_batch_refusal
from tandem.training.random_draws import seed_python_and_numpy
from tandem.training.trainer import Trainer
from tandem.training.trials import alternative
from tandem.training.workers import ALONE, MIN_GRAD_ACCUM_STEPS, OUT_OF_MEMORY_STATUS, Workers, threads_of_each


def open_trainer(context: RunContext, state: dict[str, Any] | None, workers: Workers = ALONE) -> Trainer:
    """Open the training of `context`. `state`: that of its Trainer in a checkpoint; None for a new training.

    A resumed training keeps a number of threads on which its result depends. With several workers, the caller must
    still call `Trainer.use_workers`.
    """
    settings = context.settings
    num_parts = int(os.environ.get(MIN_GRAD_ACCUM_STEPS, "1"))  # more than 1: a worker has run out of memory
    if state and state["threads"]:
        settings = replace(settings, threads=state["threads"])
    if workers.count > 1:
        settings = replace(settings, threads=threads_of_each(settings.threads, context.kind, workers), step="eager")
    device = context.open_device(settings.threads, settings.precision, workers.local_rank)
    with translate_oom(Executor(Execution(device), advice=advice_for(device, settings.precision))):
        kept_location = state["executor"]["execution"]["data_location"] if state else None
        is_streamed = kept_location == "host" or num_parts > 1
        data_location = "host" if is_streamed else context.data_location(device)
        train, val = (context.open_split(name, device) for name in ("train", "val"))
        loop = find("loop", settings.loop, context.workload) if settings.loop else None
        trainer = make_trainer(train, val, settings, context.shape, context.task, context.seed, loop)
        if settings.model.name not in schema.BUILT_IN:
            check_outputs(trainer.model, train, context.shape, settings.model.name)
            if not (loop or trainer.is_fitted or workers.count > 1):
                if refusal := small_batch_refusal(trainer.model, train, len(train), settings):
                    raise ValueError(refusal)
        if state:
            trainer.restore(state)
        if data_location == "device":
            trainer.executor.make_resident()  # copies both splits to the device
        else:
            trainer.executor.use(streamed(trainer.execution))
    if workers.count > 1:
        execute_with_workers(trainer, num_parts, context.settings.step)
    return trainer


def execute_with_workers(trainer: Trainer, num_parts: int, requested_step: str) -> None:
    """Eager steps, in `num_parts` micro-batches if memory ran out before. `requested_step`: train.step."""
    if trainer.execution.grad_accum_steps < num_parts:
        parts = f"in {num_parts} parts by all workers, with streamed data"
        sentence = f"a batch of {trainer.settings.batch_size} is trained on {parts}"
        trainer.executor.fall_back(replace(trainer.execution, grad_accum_steps=num_parts), sentence)
    if requested_step != "eager" and trainer.device.is_accelerator:
        reason = "several workers take their steps eagerly (capturing nccl is untested)"
        trainer.executor.use(replace(trainer.execution, why_no_graph=reason))


def make_trainer(
    train: Split,
    val: Split,
    settings: Train,
    shape: Shape,
    task: Task,
    seed: int = 0,
    loop: Component | None = None,
) -> Trainer:
    """A new training on the splits' device. The seed determines weights, batch order and random draws.

    `loop`: takes the steps instead of Tandem. Raises ValueError if the task's loss is no scalar.
    """
    targets, mask = (train.tensors[name][:2].to("cpu", copy=True) for name in ("targets", "mask"))
    check_loss(task, torch.zeros(shape.outputs(*mask.shape)), targets, mask, settings.label_smoothing)
    torch.manual_seed(seed)
    seed_python_and_numpy(f"{seed}")
    model = models.build(settings.model, shape)
    if fit_initial := getattr(model, "fit_initial", None):  # initializes weights from the data
        fit_initial([train.tensors, val.tensors], **task.fit_initial_arguments)
    model = model.to(train.device.torch_device)
    if loop:
        return LoopTrainer(model, train, val, settings, task, seed, loop)
    return trainer_class(settings.model)(model, train, val, settings, task, seed)


def trainer_class(model: Part) -> type[Trainer]:
    """What trains a network: `FittedTrainer`, imported by name, if it is fitted without steps."""
    if not schema.takes_no_steps(model):
        return Trainer
    fitted_trainer: type[Trainer] = import_module(schema.FITTED_TRAINER).FittedTrainer
    return fitted_trainer


@contextmanager
def stop_on_out_of_memory(trainer: Trainer) -> Iterator[None]:
    """If the body runs out of memory, raise OutOfMemory; one of several workers exits, and the launcher restarts all of
    them with smaller micro-batches.

    The steps of all workers wait for each other, so one worker cannot use a fallback alone.
    """
    try:
        with translate_oom(trainer.executor):
            yield
    except OutOfMemory as error:
        num_parts, workers = 2 * trainer.execution.grad_accum_steps, trainer.workers
        if workers.count == 1 or num_parts * workers.count > trainer.settings.batch_size:
            raise
        print(f"worker {workers.rank}: out of memory ({error.failed})", file=sys.stderr, flush=True)
        raise SystemExit(OUT_OF_MEMORY_STATUS) from None


def make_trial(split: Split, shape: Shape, task: Task, settings: Train, device: Device) -> Trainer:
    """A training on `split` for measurements. A step raises if memory runs out, instead of taking a fallback."""
    tensors = {name: tensor.to(device.torch_device) for name, tensor in split.tensors.items()}
    split = replace(split, tensors=tensors, device=device)
    trainer = alternative(make_trainer(split, split, settings, shape, task))
    trainer.model.train()
    return trainer
