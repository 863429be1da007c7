"""One training as a state that advances epoch by epoch. It holds all that must be saved to resume bit for bit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stages.machine.regions import Measurement, measure
from stages.params.schema import Seq2Seq, Train
from stages.tasks import Task
from stages.training import augment, loop
from stages.training.batches import Batch, Split, sequential_indices, shuffled
from stages.training.device import use_tf32
from stages.training.memory import OomPolicy, advice
from stages.training.schedule import as_numbers, make_schedule, teacher_share
from stages.training.step import Step, random_state, set_random_state


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch. The losses and the score are deterministic, the measurements are not."""

    number: int  # from 1
    learning_rate: float  # of the epoch's last step
    train_loss: float
    val_loss: float
    val_score: float
    training: Measurement
    validation: Measurement
    is_best: bool


class Trainer:
    """Model, optimizer, schedule and generator: `epoch()` advances, `state()` and `restore()` save and load them."""

    def __init__(self, model: nn.Module, train: Split, val: Split, params: Train, task: Task):
        self.model, self.train_split, self.val_split, self.params = model, train, val, params
        self.task, self.device = task, train.device
        in_graph = params.step == "graph" and self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            # A captured step reads the rate from where it lies: a number would be frozen into the graph.
            lr=torch.tensor(params.learning_rate, device=self.device) if in_graph else params.learning_rate,
            weight_decay=params.weight_decay,
            fused=True,
            capturable=in_graph,
        )
        self.oom = OomPolicy(model, (train, val), advice(self.device, params.precision))
        self.step = Step(
            model,
            lambda outputs, batch: self.task.loss(outputs, batch.targets, batch.mask, params.label_smoothing),
            self.optimizer,
            clip_norm=params.clip_norm,
            accumulation=params.accumulation,
            precision="fp32" if params.precision == "auto" else params.precision,
            execution_mode=params.step,
            device=self.device,
            oom=self.oom,
        )
        steps_per_epoch = -(-len(train) // params.batch_size)
        self.schedule = make_schedule(self.optimizer, params, steps_per_epoch * params.epochs)
        # On the CPU, so that a GPU run sees the same batches and the same augmentation.
        self.generator = torch.Generator().manual_seed(params.seed)
        self.epochs_done = 0
        self.best_loss = float("inf")
        self.best_weights = snapshot(model)
        self.verified: list[int] = []  # the epochs after which everything was found to lie on the device
        self.peak_mib = 0.0  # of an epoch so far
        self.missing_reasons: dict[str, str] = {}  # what could not be measured in the last epoch, and why

    def epoch(self) -> Epoch:
        params = self.params
        if self.device.type == "cuda":
            # cuDNN's dropout between an RNN's layers starts anew wherever torch's generator is set. Resuming sets it,
            # so every epoch does.
            set_random_state(random_state(self.device), self.device)
        batches = self.training_batches()
        with measure(self.device) as training:
            train_loss = loop.train_epoch(self.model, batches, self.step, self.schedule)
        if self.step.graph is not None and training.peak_allocated_mib is not None:
            # A replay allocates nothing: its activations lie in the graph's own memory, which the capture allocates.
            self.peak_mib = training.peak_allocated_mib = max(self.peak_mib, training.peak_allocated_mib)
        with measure(self.device) as validation:
            loss, predictions = loop.validate(
                self.model,
                self.oom.batches(self.val_split, sequential_indices(self.val_split), params.batch_size),
                lambda outputs, batch: self.task.loss(outputs, batch.targets, batch.mask, 0.0),
                self.task.predict,
                self.step.precision,
                self.oom,
            )
        self.missing_reasons = {
            **training.missing_reasons,
            **({f"step: {params.step}": self.step.fallback_reason} if self.step.fallback_reason else {}),
        }
        self.epochs_done += 1
        self.verify_device(predictions)
        val_loss = loss.item()
        is_best = val_loss < self.best_loss
        if is_best:
            self.best_loss, self.best_weights = val_loss, snapshot(self.model)
        return Epoch(
            self.epochs_done,
            float(self.schedule.get_last_lr()[0]),
            train_loss.item(),
            val_loss,
            self.task.score(predictions, *(self.on_device(self.val_split, name) for name in ("targets", "mask"))),
            training,
            validation,
            is_best,
        )

    def on_device(self, split: Split, name: str) -> torch.Tensor:
        return self.oom.run_with_fallbacks(lambda: split.tensors[name].to(self.device))

    def training_batches(self) -> Iterator[Batch]:
        """The next epoch's batches. Draws all random numbers here, before the clock starts; applying them is timed."""
        order, config = shuffled(self.train_split, self.generator), self.params.augment
        changes: list[Callable[[Batch], Batch]] = []
        if config.mix or config.shift or config.warp:
            draws = augment.draw(self.generator, len(self.train_split), config).to(self.device)
            changes.append(
                lambda batch: replace(
                    batch, values=augment.apply(batch.values, batch.mask, draws.index_select(0, batch.rows), config)
                )
            )
        if isinstance(self.params.model, Seq2Seq):
            share = teacher_share(self.params.model.teacher_forcing, self.epochs_done, self.params.epochs)
            num_steps = self.train_split.tensors["targets"].shape[1]
            coins = torch.rand(len(self.train_split), num_steps, generator=self.generator) < share
            coins = coins.to(self.device)
            changes.append(
                lambda batch: replace(
                    batch, teacher_targets=torch.where(coins.index_select(0, batch.rows), batch.targets, torch.nan)
                )
            )
        return self.oom.batches(self.train_split, order, self.params.batch_size, *changes)

    def one_batch(self, size: int, repeat: bool = False) -> Batch:
        """The first `size` sequences as a batch on the device, with teacher forcing where the decoder takes it.

        Where the split has fewer, the batch holds all of them, or with `repeat` some of them again.
        """
        available = len(self.train_split)
        rows = torch.arange(size if repeat else min(size, available)) % available
        batch = next(self.train_split.batches(rows, size))
        return replace(batch, teacher_targets=batch.targets) if isinstance(self.params.model, Seq2Seq) else batch

    def verify_device(self, outputs: torch.Tensor) -> None:
        """Raises RuntimeError where a parameter, the data or an output is not on the training's device.

        torch computes where its operands lie and never moves them. Called once per epoch, outside the clock.
        """
        batch = next(self.val_split.batches(sequential_indices(self.val_split)[:1], 1))
        places = {tensor.device.type for tensor in (*self.model.parameters(), batch.values, batch.targets, outputs)}
        if places != {self.device.type}:
            raise RuntimeError(
                f"this training runs on {self.device.type}, but tensors lie on {', '.join(sorted(places))}"
            )
        self.verified.append(self.epochs_done)

    def set_precision(self, name: str) -> None:
        """Go on in another precision (fp16 is for the whole training: its loss scale grows over many steps)."""
        self.step.precision = name
        use_tf32(name == "tf32")

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "best_weights": self.best_weights,
            "best_loss": self.best_loss,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "precision": self.step.precision,
            "step": self.step.state(),
            "generator": self.generator.get_state(),
            "torch_rng": random_state(self.device),
            "device": self.device.type,
            "epochs_done": self.epochs_done,
            "verified": list(self.verified),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load what `state()` returned, possibly on another device."""
        self.model.load_state_dict(state["model"])
        self.best_weights, self.best_loss = state["best_weights"], state["best_loss"]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            # Only the saved value: whether the rate is a tensor, and where it lies, depends on this device.
            is_tensor = isinstance(rate, torch.Tensor)
            group["lr"] = rate.fill_(float(group["lr"])) if is_tensor else float(group["lr"])
            group["capturable"] = is_tensor
        self.schedule.load_state_dict(as_numbers(state["schedule"]))
        self.set_precision(state["precision"])
        self.step.restore(state["step"])
        self.generator.set_state(state["generator"].cpu())
        set_random_state(state["torch_rng"], self.device)
        self.epochs_done, self.verified = state["epochs_done"], list(state["verified"])


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in model.state_dict().items()}
