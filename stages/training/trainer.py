"""One training as a state that moves epoch by epoch: all that must be saved to go on bit for bit lies in here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stages.machine.regions import Measurement, measure
from stages.models.seq2seq import teacher_share
from stages.params.schema import Seq2Seq, Train
from stages.tasks import Task
from stages.training import augment, loop
from stages.training.batches import Batch, Split, sequential_indices, shuffled
from stages.training.device import use_tf32
from stages.training.memory import OomPolicy, advice
from stages.training.step import Step, random_state, set_random_state


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to. The losses and the score are deterministic, the measurements are not."""

    number: int  # from 1
    learning_rate: float  # of the epoch's last step
    train_loss: float
    val_loss: float
    val_score: float
    training: Measurement
    validation: Measurement
    is_best: bool


class Trainer:
    """Model, optimizer, schedule and generator: `epoch()` moves them on, `state()` and `restore()` save and load them."""

    def __init__(
        self,
        model: nn.Module,
        train: Split,
        val: Split,
        params: Train,
        task: Task,
    ):
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
            # cuDNN's dropout between an RNN's layers begins anew wherever torch's generator is set, as resuming does: so every epoch does.
            set_random_state(random_state(self.device), self.device)
        batches = self.training_batches()
        with measure(self.device) as training:
            train_loss = loop.train_epoch(self.model, batches, self.step, self.schedule)
        if self.step.graph is not None and training.peak_allocated_mib is not None:
            # A replay allocates nothing: its activations lie in the graph's own memory, and show while it is captured.
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
        """The next epoch's batches. All that is random is drawn here, before the clock starts; what is done with it is timed."""
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
        """The first `size` sequences as a batch on the device, with a teacher where the decoder takes one.

        Where there are fewer it is all of them, or with `repeat` some of them again.
        """
        there = len(self.train_split)
        rows = torch.arange(size if repeat else min(size, there)) % there
        batch = next(self.train_split.batches(rows, size))
        return replace(batch, teacher_targets=batch.targets) if isinstance(self.params.model, Seq2Seq) else batch

    def verify_device(self, outputs: torch.Tensor) -> None:
        """torch moves nothing on its own: where parameters, data and outputs lie, there it computes. Once per epoch, outside the clock."""
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
            "oom": self.oom.state(),
            "generator": self.generator.get_state(),
            "torch_rng": random_state(self.device),
            "device": self.device.type,
            "epochs_done": self.epochs_done,
            "verified": list(self.verified),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put everything where `state` says, which may have been saved on another device."""
        self.model.load_state_dict(state["model"])
        self.best_weights, self.best_loss = state["best_weights"], state["best_loss"]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            # Of the saved rate the value alone: whether it is a tensor, and where, is this device's affair.
            is_tensor = isinstance(rate, torch.Tensor)
            group["lr"] = rate.fill_(float(group["lr"])) if is_tensor else float(group["lr"])
            group["capturable"] = is_tensor
        self.schedule.load_state_dict(as_numbers(state["schedule"]))
        self.set_precision(state["precision"])
        self.step.restore(state["step"])
        self.oom.restore(state["oom"])
        self.generator.set_state(state["generator"].cpu())
        set_random_state(state["torch_rng"], self.device)
        self.epochs_done, self.verified = state["epochs_done"], list(state["verified"])


def as_numbers(schedule: dict[str, Any]) -> dict[str, Any]:
    """A schedule's state without tensors: of a captured step's rate, which is one, it keeps copies."""
    plain = lambda value: float(value) if isinstance(value, torch.Tensor) else value  # noqa: E731
    return {
        name: list(map(plain, value)) if isinstance(value, list) else plain(value) for name, value in schedule.items()
    }


def on_cpu(state: Any) -> Any:
    """A copy of a fit's state, or of a part of it, on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    return type(state)(map(on_cpu, state)) if isinstance(state, list | tuple) else state


def make_schedule(
    optimizer: torch.optim.Optimizer, params: Train, num_steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Learning rate by step. cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; one-cycle: Smith and Topin 2019, arXiv:1708.07120."""
    if params.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
    # One step more than is taken: the scheduler is stepped after the last step too.
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=params.learning_rate, total_steps=num_steps + 1, cycle_momentum=False
    )


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in model.state_dict().items()}
