"""A training loop of a workload's own: `train.loop: loop.py:train` names `def train(run, model, train, val)`.

The function takes the steps. Tandem does the rest at both ends of each `with run.epoch()`: order and random draws of
the batches, time, validation, record, checkpoint, Ctrl+C. docs/components.md has the rules and examples.

A finished epoch is recorded and saved when the next one begins, or when the function returns. A checkpoint therefore
contains what the function does between two epochs, such as `scheduler.step(epoch.val_loss)`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tandem.files import own_line, relative
from tandem.machine.measure import measure
from tandem.models import kernels
from tandem.params.schema import Train
from tandem.parts import Component
from tandem.tasks import Task
from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.execution import autocast
from tandem.training.executor import OutOfMemory
from tandem.training.random_draws import RandomDraws, seed_python_and_numpy
from tandem.training.trainer import Epoch, Trainer

REASON = "the workload's own training loop takes the steps"
WITHOUT = (
    "so there is no probe, no CUDA graph and no fallback if its memory runs out; `auto` measures Tandem's own steps"
)


class Stateful(Protocol):
    """What a checkpoint can contain: an optimizer, a scheduler, a module."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> object: ...


class LoopStopped(BaseException):
    """Ends the function from within `run.epoch()`. It is a BaseException, so that `except Exception` lets it pass.

    Lightning would turn a KeyboardInterrupt into an exit with another status.
    """


class LoopTrainer(Trainer):
    """A Trainer whose steps a function takes: `train_epochs` calls it."""

    def __init__(
        self, model: nn.Module, train: Split, val: Split, settings: Train, task: Task, seed: int, loop: Component
    ) -> None:
        super().__init__(model, train, val, replace(settings, step="eager"), task, seed)
        if self.device.is_accelerator:
            self.executor.use(replace(self.execution, why_no_graph=REASON))
        self.why_no_steps = REASON
        self.sentences["loop"] = f"{loop.name} takes the steps, {WITHOUT}"
        first, *others = self.executor.advice
        self.executor.advice = [first, "lower train.batch_size", *others]
        self.loop, self.function = loop, loop.load()
        self.states: dict[str, Stateful] = {}  # what the function has registered
        self.restored: dict[str, Any] = {}  # the states of these objects in the checkpoint
        self.random_draws: RandomDraws | None = None  # of the current epoch
        self.num_taken = 0  # sequences of the epoch's batches

    def train_epochs(self, on_epoch: Callable[[Epoch], None], num_epochs: int | None = None) -> None:
        run, size = LoopRun(self, on_epoch, num_epochs or self.settings.epochs), self.settings.batch_size
        train = Batches(self.train_split, size, self.counted_batches)
        order = sequential_indices(self.val_split)
        val = Batches(self.val_split, size, lambda: self.executor.batches(self.val_split, order, size))
        # What the function draws before its first epoch is the same in a resumed training, which has other generators.
        torch.manual_seed(self.seed)
        seed_python_and_numpy(f"{self.seed}")
        try:
            with self.execution.active():
                self.function(run, self.model, train, val)
                run.close()
        except BaseException as error:
            if isinstance(error, ValueError) and not (run.is_stopped or isinstance(error, OutOfMemory)):
                # The last line of the loop's directory that led to it: a stage shows no traceback.
                place = own_line(error, self.loop.path.parent) or f"{relative(self.loop.path)}, {self.loop.attribute}"
                raise ValueError(f"{place}: {error}") from error
            if not run.is_stopped:
                raise
        if run.failure is not None:
            raise run.failure

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.random_draws, self.num_taken = self.start_draws(), 0

    @property
    def num_sequences(self) -> int:
        """A loop that reads `train.tensors` itself takes no batches; then each training sequence counts once."""
        return self.num_taken or super().num_sequences

    def counted_batches(self) -> Iterator[Batch]:
        if self.random_draws is None:
            raise ValueError("the batches of `train` were read outside `with run.epoch():`, which draws their order")
        for batch in self.drawn_batches(self.random_draws):
            self.num_taken += len(batch)
            yield batch

    def remark_on_sequences(self) -> None:
        """Say in the first epoch if samples/s does not count each training sequence once, or cannot tell."""
        num = len(self.train_split)
        if self.num_taken != num:
            taken = f"the loop's batches of an epoch have {self.num_taken:,} sequences, and train has {num:,}"
            counted = "these" if self.num_taken else "each training sequence once"
            self.sentences["sequences"] = f"{taken}; samples/s counts {counted}"
            print(f"warning: {self.sentences['sequences']}", flush=True)

    def state(self) -> dict[str, Any]:
        # Before the function registers its objects, their states are those of the checkpoint: a measurement of threads
        # saves and restores this state first.
        registered = {name: stateful.state_dict() for name, stateful in self.states.items()}
        return {**super().state(), "loop": self.restored | registered}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.restored = state["loop"]


class Batches:
    """The batches of a split on the training's device, like a DataLoader: `for batch in train`.

    `train` has the order, augmentation and teacher forcing of Tandem's own loop; `val` has the split's order.
    """

    def __init__(self, split: Split, batch_size: int, batches: Callable[[], Iterator[Batch]]) -> None:
        self.split, self.batch_size, self.batches = split, batch_size, batches

    @property
    def num_sequences(self) -> int:
        return len(self.split)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """values (N, T, F), mask (N, T), targets (N, ...), in the split's order: on the device, or in the file."""
        return self.split.tensors

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()


class LoopEpoch:
    """One epoch of a function: what it logs, and after the `with`, the result of the validation."""

    def __init__(self, number: int) -> None:
        self.number = number  # from 1
        self.logged: tuple[Tensor, float] | None = None
        self.val_loss, self.val_score = float("nan"), float("nan")

    def log(self, *, train_loss: Tensor | float, learning_rate: float) -> None:
        """Log the mean loss over the epoch's sequences (a scalar, read at the end) and the last step's rate."""
        self.logged = torch.as_tensor(train_loss), float(learning_rate)


class LoopRun:
    """What a function gets of its training."""

    def __init__(self, trainer: LoopTrainer, on_epoch: Callable[[Epoch], None], num_epochs: int) -> None:
        self.params = trainer.settings  # the block `train` of params.yaml
        self.device, self.seed, self.task = trainer.device.torch_device, trainer.seed, trainer.task
        self._trainer, self._on_epoch, self._num_epochs = trainer, on_epoch, num_epochs
        self._random = trainer.device.random_state()  # for the first epoch
        self._current: LoopEpoch | None = None
        self._finished: Epoch | None = None  # not recorded yet
        self.is_stopped = False
        self.failure: BaseException | None = None  # why it is stopped, if it failed

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The task's mean loss over the batch's sequences, with label smoothing: a scalar on the device."""
        return self._trainer.step.loss(outputs.float(), batch)

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass in `train.precision`."""
        return autocast(self._trainer.execution.precision, self.device)

    def remaining_epochs(self) -> range:
        """The numbers of the epochs to train, from 1; a resumed training begins with a later one."""
        return range(self._trainer.epochs_done + 1, self.params.epochs + 1)

    def state(self, **objects: Stateful) -> None:
        """Save these objects in every checkpoint, and restore them now if the training resumes.

        Tandem saves the model and torch's generators itself. Raises ValueError for an object that a checkpoint cannot
        contain.
        """
        trainer = self._trainer
        if self._current or self._finished:
            raise ValueError("run.state() was called after the first epoch had begun; call it before")
        for name, stateful in objects.items():
            if not (hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict")):
                raise ValueError(
                    f"run.state({name}=...) received {type(stateful).__name__}; accepted: objects with state_dict and "
                    "load_state_dict, such as an optimizer, a scheduler or a module"
                )
            if types := foreign_types(stateful.state_dict()):
                raise ValueError(
                    f"the state_dict of run.state({name}=...) has values of {', '.join(sorted(types))}; a checkpoint "
                    "accepts tensors, numbers, text, lists and dictionaries"
                )
            trainer.states[name] = stateful
            if name in trainer.restored:
                stateful.load_state_dict(trainer.restored.pop(name))

    @contextmanager
    def epoch(self) -> Iterator[LoopEpoch]:
        """One epoch. The body takes the steps and is measured; its end validates."""
        trainer = self._trainer
        if self._current is not None:
            raise ValueError(
                f"run.epoch() was called in epoch {self._current.number}, which has not ended; do not nest it, and do "
                "not catch its errors"
            )
        if trainer.epochs_done == trainer.settings.epochs:
            raise ValueError(
                f"run.epoch() was called for epoch {trainer.epochs_done + 1}, but train.epochs is "
                f"{trainer.settings.epochs}; use the epochs of run.remaining_epochs()"
            )
        self.is_stopped = self.is_stopped or trainer.epochs_done == self._num_epochs
        self._record()
        if self._random:
            trainer.device.set_random_state(self._random)
            self._random = {}
            self._check_states()
        trainer.begin_epoch()
        self._current = LoopEpoch(trainer.epochs_done + 1)
        with measure(trainer.device) as training, kernels.noted_in(trainer.step.kernels_used):
            yield self._current
        ended, self._current, trainer.random_draws = self._current, None, None
        if trainer.epochs_done == 0:
            trainer.remark_on_sequences()
        if ended.logged is None:
            raise ValueError(
                f"epoch {ended.number} ended without its loss; call epoch.log(train_loss=..., learning_rate=...) in it"
            )
        self._finished = trainer.end_epoch(training, *ended.logged, trainer.validate())
        ended.val_loss, ended.val_score = self._finished.val_loss, self._finished.val_score

    def close(self) -> None:
        """Record the last epoch after the function has returned. Raises ValueError if an epoch is missing."""
        trainer = self._trainer
        self._record()
        if trainer.epochs_done < self._num_epochs or self._current:
            raise ValueError(
                f"it returned after {trainer.epochs_done} of {trainer.settings.epochs} epochs (train.epochs); "
                "use all epochs of run.remaining_epochs()"
            )

    def _record(self) -> None:
        """Record and save the epoch that has ended, if there is one. Ends the function after an error in that."""
        finished, self._finished = self._finished, None
        try:
            if finished:
                self._on_epoch(finished)
        except BaseException as error:
            self.is_stopped, self.failure = True, error
        if self.is_stopped:
            raise LoopStopped

    def _check_states(self) -> None:
        trainer = self._trainer
        if trainer.restored:
            raise ValueError(
                f"the checkpoint has the state of {', '.join(trainer.restored)}, which was not passed to run.state() "
                "before the first epoch"
            )
        if not trainer.states:
            print(
                "warning: the loop registers no object with run.state(), so a resumed training would restore only the "
                "model and start with a new optimizer",
                flush=True,
            )


def foreign_types(value: Any) -> set[str]:
    """The types in a state that a checkpoint, which is loaded with `weights_only`, does not contain."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return {name for item in value for name in foreign_types(item)}
    is_plain = value is None or isinstance(value, Tensor) or type(value) in (bool, int, float, str)
    return set() if is_plain else {type(value).__name__}
