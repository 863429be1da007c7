"""The training loop. `Trainer.train_epoch` takes the optimizer steps of an epoch, then validates.

Each of its steps is `take_step` (step.py): forward, loss, backward, clip, update. An `Execution` (execution.py) says
how: device, precision, eager or as a CUDA graph. Losses stay on the device until the epoch ends.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import nn

from tandem.machine.measure import ONE_GPU, Measurement, measure
from tandem.models.kernels import ordered
from tandem.params.schema import Train
from tandem.tasks import Task, score_of
from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.execution import Execution, requested_execution
from tandem.training.executor import Executor, advice_for
from tandem.training.graph_steps import GraphSteps
from tandem.training.inference import for_each_part, forward
from tandem.training.optimizer import learning_rates, make_optimizer
from tandem.training.random_draws import RandomDraws, draw_epoch, seed_python_and_numpy, sha256_of
from tandem.training.saved_network import PREDICTION_BATCH
from tandem.training.shares import own_rows, shares_of
from tandem.training.step import Step, loss_of
from tandem.training.threads import ThreadTuner
from tandem.training.workers import ALONE, Workers

SCORED = ("targets", "mask")  # a split's tensors that a score is computed from


class Validation(NamedTuple):
    loss: torch.Tensor  # mean over the validation split, a scalar on the device
    predictions: torch.Tensor  # (N, ...) on the device
    measurement: Measurement


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch. Losses and score are deterministic, and go to history.csv; measurements and scalars go
    to timings.csv.
    """

    number: int  # from 1
    learning_rate: float | None  # of the epoch's last step; None for a fitted model, which takes no steps
    train_loss: float
    val_loss: float
    val_score: float
    training: Measurement
    validation: Measurement
    digests: dict[str, str]  # sha256 of the weights after it, the batch order and the random draws
    scalars: dict[str, float] = field(default_factory=dict)  # each a line of QUANTITIES


class Trainer:
    """Trains `model`; `state()` and `restore()` save and load everything that an epoch changes."""

    is_fitted = False  # whether one epoch fits the model, without steps

    def __init__(self, model: nn.Module, train: Split, val: Split, settings: Train, task: Task, seed: int = 0):
        self.model, self.train_split, self.val_split, self.settings = model, train, val, settings
        self.task, self.device = task, train.device
        is_resident = any(split.data_location == "device" for split in (train, val))
        execution = requested_execution(settings, self.device, model)
        execution = replace(execution, data_location="device" if is_resident else "host")
        torch_device = self.device.torch_device
        self.executor = Executor(execution, model, (train, val), advice_for(self.device, settings.precision))
        self.optimizer = make_optimizer(model, settings, torch_device, execution.step == "graph")
        loss = loss_of(task, settings.label_smoothing)
        self.step = Step(model, loss, self.optimizer, self.executor, settings.max_grad_norm)
        if not self.device.is_accelerator and settings.kernels == "auto" and execution.step != "compile":
            ordered.use_in(model)
        self.rates = learning_rates(settings, self.steps_per_epoch * settings.epochs)
        self.loss_sum = torch.zeros((), device=torch_device)  # loss of the current epoch, summed over its sequences
        # The norm of each step's gradients before clipping; NaN if max_grad_norm is 0.
        self.norms = torch.full((self.steps_per_epoch,), math.nan, device=torch_device)
        self.graph_steps: GraphSteps | None = None
        # The generator is on the CPU, so CPU and GPU runs see the same batches and the same augmentation.
        self.seed, self.generator = seed, torch.Generator().manual_seed(seed)
        self.digests: dict[str, str] = {}  # of the current epoch's random draws
        self.epochs_done = 0
        self.best_loss = float("inf")
        self.best_weights = snapshot(model)
        self.peak_mib = 0.0  # highest memory peak so far of an epoch with CUDA graphs
        self.workers = ALONE
        self.why_no_steps = ""  # why Tandem takes no steps of its own, which auto.py and the probe could measure
        self.thread_tuner = ThreadTuner([1 if settings.threads == "auto" else settings.threads])  # auto.py sets another
        self.sentences: dict[str, str] = {}  # sentences for Record.summary_lines
        if execution.precision == "bf16" and "bf16" not in self.device.precisions():
            self.sentences["bf16"] = "this GPU has no bf16, and torch emulates it slowly; fp16 is its half precision"
        if settings.batch_size > len(train) and not self.is_fitted:
            sizes = f"train.batch_size {settings.batch_size:,} is more than the {len(train):,} training sequences"
            self.sentences["batch_size"] = f"{sizes}, so a batch holds all of them"
        # on_progress(number done, number of all, what they are) is called while a fit without steps runs.
        self.on_progress: Callable[[int, int, str], None] = lambda num_done, num_all, unit: None

    def train_epochs(self, on_epoch: Callable[[Epoch], None], num_epochs: int | None = None) -> None:
        """Train until `num_epochs` are done (default: all), and call `on_epoch` after each epoch."""
        while self.epochs_done < (num_epochs or self.settings.epochs):
            on_epoch(self.train_epoch())

    def train_epoch(self) -> Epoch:
        """Train and validate for one epoch. Both are measured, with the device synchronized at both ends of each."""
        with self.execution.active():
            self.begin_epoch()
            steps, num_sequences = self.training_steps(), 0
            with measure(self.device) as training:
                for size in steps:  # each iteration takes one optimizer step
                    num_sequences += size
                train_loss = self.workers.sum(self.loss_sum) / num_sequences
            self.add_memory_of_graphs(training)
            validation = self.validate()
            return self.end_epoch(training, train_loss, float(self.epoch_rates[-1]), validation)

    def begin_epoch(self) -> None:
        seed_python_and_numpy(f"{self.seed} {self.epochs_done}")  # a network of the workload's own may draw with them
        if self.device.is_accelerator:
            # Setting torch's generator restarts cuDNN's dropout between RNN layers. A resume must set it; so that an
            # uninterrupted training draws the same dropout, every epoch sets it, to its own state.
            self.device.set_random_state(self.device.random_state())
        if self.workers.count > 1:
            self.synchronize_workers()

    def training_steps(self) -> Iterator[int]:
        """Draw the random numbers of the next epoch, and return an iterator over its optimizer steps. Each iteration
        takes one step, on a CPU with the best number of threads (threads.py), and yields its number of sequences
        (of all workers).
        """
        return self.thread_tuner.timed(self.take_steps(self.start_draws()))

    def take_steps(self, random_draws: RandomDraws) -> Iterator[int]:
        """Take the steps of an epoch: as CUDA graphs as far as possible, and the others eagerly.

        The losses are added to `loss_sum`, a scalar on the device that is read once per epoch: `.item()` in every step
        would synchronize in every step.
        """
        step, rates, num_done = self.step, self.epoch_rates, 0
        self.loss_sum.zero_()
        self.norms.fill_(math.nan)
        if graph_steps := self.open_graph_steps():
            for num_sequences in graph_steps.steps(random_draws, rates):
                num_done += 1
                yield num_sequences
            if num_done == self.steps_per_epoch:
                return
            self.graph_steps = graph_steps = None  # given up: frees their memory
        for batch, rate in zip(self.drawn_batches(random_draws, num_done), rates[num_done:].tolist(), strict=True):
            step.set_rate(rate)
            self.loss_sum.add_(step(batch, self.norms[num_done : num_done + 1]))
            num_done += 1
            yield batch.global_size

    def start_draws(self) -> RandomDraws:
        """The next epoch's random draws, whose digests are recorded. Puts the model into training mode."""
        self.model.train()
        random_draws = draw_epoch(self.generator, self.train_split, self.settings, self.epochs_done)
        self.digests = random_draws.digests()
        return random_draws

    def drawn_batches(self, random_draws: RandomDraws, num_done: int = 0) -> Iterator[Batch]:
        """The epoch's batches after the first `num_done`."""
        size = self.settings.batch_size
        random_draws = self.executor.run_with_fallbacks(partial(random_draws.to, self.device.torch_device))
        order, change = random_draws.order[num_done * size :], random_draws.apply_to
        if self.workers.count == 1:
            return self.executor.batches(self.train_split, order, size, change)
        return self.own_shares(order, change)

    def own_shares(self, order: torch.Tensor, change: Callable[[Batch], Batch]) -> Iterator[Batch]:
        """This worker's share of every batch of `order`: first the full batches, then the smaller last one."""
        last_batch_size = len(order) % self.settings.batch_size
        full, last = order.split([len(order) - last_batch_size, last_batch_size])
        for rows, size in ((full, self.settings.batch_size), (last, last_batch_size)):
            if len(rows):
                shares = shares_of(size, self.execution.grad_accum_steps, self.workers.rank, self.workers.count)
                worker_rows = own_rows(rows, size, shares)
                num_processed = sum(share.num_processed for share in shares)
                for batch in self.executor.batches(self.train_split, worker_rows, num_processed, change):
                    yield replace(batch, shares=shares)

    def open_graph_steps(self) -> GraphSteps | None:
        """What takes the epoch's steps as CUDA graphs; None if they are eager."""
        if self.step.graphs is None:
            self.graph_steps = None  # frees their tensors
        elif self.graph_steps is None or self.graph_steps.graphs is not self.step.graphs:
            self.graph_steps = self.executor.run_with_fallbacks(self.new_graph_steps)
        return self.graph_steps

    def new_graph_steps(self) -> GraphSteps | None:
        if self.step.graphs is None:  # after a fallback
            return None
        return GraphSteps(self.step, self.train_split, self.settings.batch_size, self.loss_sum, self.norms)

    @property
    def epoch_rates(self) -> torch.Tensor:
        """The learning rates (steps_per_epoch,) of the epoch after `epochs_done`."""
        return self.rates[self.epochs_done * self.steps_per_epoch :][: self.steps_per_epoch]

    def end_epoch(
        self, training: Measurement, train_loss: torch.Tensor, learning_rate: float, validation: Validation
    ) -> Epoch:
        """Keep the best weights, and return the result of the epoch.

        train_loss: mean over the sequences, a scalar that is read from the device here.
        """
        self.epochs_done += 1
        if self.why_no_energy:
            training.energy_joules, training.missing_reasons["energy_joules"] = None, self.why_no_energy
        self.verify_device(validation.predictions)
        val_loss = validation.loss.item()
        weights = snapshot(self.model)
        if val_loss < self.best_loss:
            self.best_loss, self.best_weights = val_loss, weights
        scalars, why_none = self.gradient_norms()
        training.missing_reasons |= why_none
        return Epoch(
            self.epochs_done,
            learning_rate,
            train_loss.item(),
            val_loss,
            # The CPU computes the score for every device: this uses no GPU memory and gives the same number.
            score_of(self.task, validation.predictions.cpu(), *(self.val_split.tensors[name].cpu() for name in SCORED)),
            training,
            validation.measurement,
            {"weights_sha256": sha256_of(weights.values()), **self.digests},
            {"threads": self.thread_tuner.mean_of_epoch(), **scalars},
        )

    @property
    def why_no_energy(self) -> str:
        """Why the energy of the steps is unknown although the device can tell it; empty if it is known."""
        return ONE_GPU if self.workers.count > 1 and self.device.is_accelerator else ""

    @torch.no_grad()
    def validate(self) -> Validation:
        """Predict the validation split. The loss is the mean over its sequences, without label smoothing."""
        rows, num_val = self.workers.part_of(sequential_indices(self.val_split)), len(self.val_split)
        loss = loss_of(self.task, label_smoothing=0.0)

        def evaluate(part: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            outputs = forward(self.model, part, self.execution.precision)
            return loss(outputs, part) * len(part), self.task.predict(outputs, part.mask)

        self.workers.broadcast_buffers(self.model)
        with measure(self.device) as measurement:
            self.model.eval()
            losses, predicted = list[torch.Tensor](), list[torch.Tensor]()
            for batch in self.executor.batches(self.val_split, rows, PREDICTION_BATCH):
                for part_loss, part_predicted in for_each_part(batch, evaluate, self.executor):
                    losses.append(part_loss)
                    predicted.append(part_predicted)
            mean_loss = self.workers.mean(sum(losses[1:], losses[0]) / len(rows), num_val)
            predictions = self.workers.gather(self.executor.concatenate(predicted), num_val)
        return Validation(mean_loss, predictions, measurement)

    def gradient_norms(self) -> tuple[dict[str, float], dict[str, str]]:
        """Mean and maximum over the epoch's steps, without those that fp16 skipped, or why there are none."""
        norms = [norm for norm in self.norms.tolist() if math.isfinite(norm)]
        if norms:
            return {"gradient_norm": fmean(norms), "max_gradient_norm": max(norms)}, {}
        reason = "the gradients of all steps overflowed in fp16"
        if not self.settings.max_grad_norm:
            reason = "train.max_grad_norm is 0, so gradients are not clipped and their norm is not computed"
        return {}, dict.fromkeys(("gradient_norm", "max_gradient_norm"), self.why_no_steps or reason)

    def add_memory_of_graphs(self, training: Measurement) -> None:
        """The peak is at least that of the capture: a replay allocates nothing, it uses the memory of its graph."""
        if self.step.graphs is not None and training.peak_allocated_mib is not None:
            self.peak_mib = training.peak_allocated_mib = max(self.peak_mib, training.peak_allocated_mib)

    def verify_device(self, outputs: torch.Tensor) -> None:
        """Raises RuntimeError if a parameter, the data or an output is not on the training's device.

        torch computes on the device of its operands and never moves them. This check runs once per epoch, untimed.
        """
        batch = next(self.executor.batches(self.val_split, sequential_indices(self.val_split)[:1], 1))
        devices = {tensor.device.type for tensor in (*self.model.parameters(), batch.values, batch.targets, outputs)}
        if devices != {self.device.torch_device.type}:
            lie_on = ", ".join(sorted(devices))
            raise RuntimeError(f"this training runs on {self.device.name()}, but tensors lie on {lie_on}")

    def synchronize_workers(self) -> None:
        """Give all workers the first worker's state.

        The states can differ for two reasons: another processor rounds differently, and a library that draws dropout
        for each worker's sequences separately leaves torch's generators in different states.
        """
        self.device.set_random_state(self.workers.broadcast(self.device.random_state()))
        own_digest = self.weights_sha256()
        if self.workers.sum(torch.tensor(int(own_digest != self.workers.broadcast(own_digest)))):
            self.restore(self.workers.broadcast(self.state()))

    @property
    def execution(self) -> Execution:
        """How steps are executed now. `executor` replaces it."""
        return self.executor.execution

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train_split) // self.settings.batch_size)

    @property
    def num_sequences(self) -> int:
        """Number of sequences that the epoch's steps took."""
        return len(self.train_split)

    def use_workers(self, workers: Workers) -> None:
        """Train together with other workers, if any, from now on, in the first one's precision. They must have opened
        identical trainers.
        """
        if workers.count > 1:
            self.executor.use(replace(self.execution, precision=workers.broadcast(self.execution.precision)))
            self.workers = workers
            self.step.use_workers(workers)

    def use_threads(self, threads: ThreadTuner) -> None:
        self.thread_tuner = threads
        torch.set_num_threads(threads.number)

    def weights_sha256(self) -> str:
        return sha256_of(snapshot(self.model).values())

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "best_weights": self.best_weights,
            "best_loss": self.best_loss,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "executor": self.executor.state(),
            "threads": self.thread_tuner.kept_number,
            "generator": self.generator.get_state(),
            "torch_rng": self.device.random_state(),
            "epochs_done": self.epochs_done,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load what `state()` returned, possibly on another device, and take the fallbacks in it.

        It does not restore the threads: `open_trainer` (opening.py) takes a number on which the result depends from the
        checkpoint, and auto.py chooses others anew.
        """
        self.executor.restore(state["executor"])
        self.model.load_state_dict(state["model"])
        self.best_weights, self.best_loss = state["best_weights"], state["best_loss"]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            # Load only the value: this device decides whether the rate is a tensor and where the tensor is.
            is_tensor = isinstance(rate, torch.Tensor)
            group["lr"] = rate.fill_(float(group["lr"])) if is_tensor else float(group["lr"])
            group["capturable"] = is_tensor
        self.executor.drop_graphs()  # they use the optimizer's old tensors
        self.step.scaler.load_state_dict(state["scaler"])
        self.generator.set_state(state["generator"].cpu())
        self.device.set_random_state(state["torch_rng"])
        self.epochs_done = state["epochs_done"]


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in model.state_dict().items()}
