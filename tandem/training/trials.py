"""Steps that measure a training and leave no trace in it: for `auto`, the probe, `tandem check` and the benchmarks."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tandem.machine.threads import using_threads
from tandem.training.batches import Batch
from tandem.training.execution import Execution
from tandem.training.executor import Executor
from tandem.training.random_draws import uses_teacher_forcing
from tandem.training.step import Step, take_step_in_capture
from tandem.training.threads import ThreadTuner
from tandem.training.trainer import Trainer


def alternative(trainer: Trainer, batch_size: int | None = None, **changes: Any) -> Trainer:
    """The same training with another batch size or other fields of its execution. Data, weights, optimizer and
    generator are shared. If memory runs out, its steps raise instead of taking a fallback.
    """
    other = copy.copy(trainer)
    other.settings = replace(trainer.settings, batch_size=batch_size or trainer.settings.batch_size)
    other.step = step_of(trainer, replace(trainer.execution, **changes))
    other.executor, other.graph_steps = other.step.executor, None
    other.norms = trainer.norms.new_full((other.steps_per_epoch,), math.nan)
    other.thread_tuner = ThreadTuner([trainer.thread_tuner.number])
    return other


def step_of(trainer: Trainer, execution: Execution) -> Step:
    """A step with the training's weights and optimizer that executes like this. If memory runs out, it raises."""
    other = copy.copy(trainer.step)
    other.executor = Executor(execution, may_fall_back=False)
    other.scaler = other.new_scaler()
    return other


def repeated_step(step: Step, batch: Batch) -> Callable[[], None]:
    """Returns a function that takes a step on this batch as the training does, with a graph if it has one."""
    key = object()

    def take() -> None:
        if step.graphs is not None:
            try:
                return step.graphs.run(key, partial(step, batch), partial(take_step_in_capture, step, batch))
            except RuntimeError as error:
                step.give_up_graph(error)
        step(batch)

    return take


def one_batch(trainer: Trainer, size: int) -> Batch:
    """The first `size` training sequences, or all if there are fewer, as a batch on the device, with teacher forcing
    if the network has it.
    """
    rows = torch.arange(min(size, len(trainer.train_split)))
    batch = next(trainer.train_split.batches(rows, size))
    return replace(batch, teacher_targets=batch.targets) if uses_teacher_forcing(trainer.settings.model) else batch


@contextmanager
def without_trace(trainer: Trainer) -> Iterator[None]:
    """Steps taken in this context leave no trace in the training, its number of threads or its memory."""
    before = copy.deepcopy(trainer.state())
    try:
        with using_threads(torch.get_num_threads()), trainer.execution.active():
            yield
    finally:
        trainer.restore(before)  # also drops the graphs; later steps capture again
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.device.free_cache()  # otherwise the trials' memory would count as reserved by the training
