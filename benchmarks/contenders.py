"""The contenders of benchmarks/throughput.py: Tandem, its floor, and the loops that people write.

A case is a workload's task, its settings and its training data. For each contender, a process trains until it is told
to stop, and reports the number of steps after each turn. throughput.py describes the contenders.
"""

import importlib.util
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.folklore import Data, random_tensors
from benchmarks.networks import Usual
from tandem.data.packed import read_prepared
from tandem.devices.device import Device
from tandem.devices.graphs import NUM_WARMUPS
from tandem.devices.hardware import detect_hardware
from tandem.devices.memory import keep_freed_memory
from tandem.devices.names import is_accelerator, kind_of
from tandem.files import prepared_dir, read_json
from tandem.models import Shape
from tandem.params.loading import load_workload
from tandem.params.schema import Train
from tandem.tasks import Task, open_task
from tandem.training import auto
from tandem.training.batches import TENSORS, Split
from tandem.training.context import num_velocities
from tandem.training.execution import CPU, autocast, open_device
from tandem.training.opening import make_trial
from tandem.training.trainer import Trainer
from tandem.training.trials import one_batch, repeated_step

WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class Case:
    """What is trained: a workload's task with these settings, on random `data`, or on its own data (None)."""

    workload: str
    settings: Train
    data: Data | None

    @property
    def name(self) -> str:
        return f"{self.workload}, batch {self.settings.batch_size}"

    def summary(self) -> str:
        model = ", ".join(f"{key} {value}" for key, value in asdict(self.settings.model).items() if key != "name")
        data = "the workload's own data"
        if self.data:
            size = self.data.shape
            data = f"random data, {self.data.num_sequences:,} sequences of {size.max_steps} steps x {size.num_features}"
            data += f", {size.num_outputs} outputs"
        return f"{self.settings.model.name} ({model}); {data}"


@dataclass(frozen=True)
class Contender:
    loop: Callable[..., None]  # (fit, tick, contender): trains until `tick`, called after every step, raises Over
    precision: str = "fp32"
    step: str = "eager"
    is_tandem: bool = False  # with Tandem's settings and kernels; the others use torch's defaults
    is_tuned: bool = False  # Lightning
    is_streamed: bool = False  # Tandem: the data stays in the host's memory


def contenders(case: Case, device: str) -> tuple[dict[str, Contender], str]:
    """The contenders for this device, and a description of what `precision: auto` chooses there."""
    contender = Contender(tandem, step=case.settings.step, is_tandem=True)
    best, message = choose_precision(open_trainer(case, contender, device), device)
    entered = {"plain": Contender(plain), "plain tuned": Contender(plain_tuned)}
    if importlib.util.find_spec("lightning"):
        entered |= {"lightning default": Contender(lightning), "lightning tuned": Contender(lightning, is_tuned=True)}
    if best != "fp32":
        entered[f"plain tuned, {best}"] = Contender(plain_tuned, best)
    for chosen in dict.fromkeys(("fp32", best)):
        name, suffix = ("tandem", "") if chosen == "fp32" else ("tandem auto", f", {chosen}")
        entered[name] = Contender(tandem, chosen, is_tandem=True)
        entered[f"floor{suffix}"] = Contender(floor, chosen, is_tandem=True)
        if is_accelerator(device):
            entered[f"{name} graph"] = Contender(tandem, chosen, "graph", is_tandem=True)
            entered[f"graph floor{suffix}"] = Contender(graph_floor, chosen, "graph", is_tandem=True)
    return entered, message


def on_request(device: str) -> dict[str, Contender]:
    """Further contenders of a GPU: each holds a CUDA context, so they take part only by name."""
    precisions = kind_of(device)().precisions() if is_accelerator(device) else ()
    entered = {f"tandem graph, {name}": Contender(tandem, name, "graph", is_tandem=True) for name in precisions}
    if entered:
        entered["tandem, streamed"] = Contender(tandem, is_tandem=True, is_streamed=True)
    return entered


def choose_precision(trainer: Trainer, device: str) -> tuple[str, str]:
    """The choice of `precision: auto` without a cached choice."""
    names, hardware = auto.precisions(trainer.device), detect_hardware(device)
    if len(names) == 1:
        return names[0], f"precision {names[0]}, the only one that `precision: auto` tries here"
    return auto.explained(auto.time_choices("precision", trainer, hardware, names), "chosen by measuring")


def open_trainer(case: Case, contender: Contender, device: str) -> Trainer:
    """The training of `case`, without the ragged last batch, which would only add noise to the rate."""
    settings = replace(case.settings, precision=contender.precision, step=contender.step)
    if contender.is_tandem:
        opened = open_device(detect_hardware(device), settings.threads, settings.deterministic, settings.precision)
    else:
        opened = as_torch_comes(contender, settings.threads, device)
    split, shape, task = random_training(case.data) if case.data else read_training(case.workload)
    whole = len(split) // settings.batch_size * settings.batch_size
    split.tensors = {name: tensor[:whole] for name, tensor in split.tensors.items()}
    trainer = make_trial(split, shape, task, settings, opened)
    if contender.is_streamed:
        trainer.train_split.tensors, trainer.train_split.data_location = split.tensors, "host"
    if not contender.is_tandem:
        trainer.model = Usual(trainer.model)
    return trainer


def as_torch_comes(contender: Contender, threads: int, device: str) -> Device:
    """Undo what `open_device` sets, except for TF32, which is the same for all contenders."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if contender.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = contender.precision in ("tf32", "bf16")
    return kind_of(device)()


def read_training(workload: str) -> tuple[Split, Shape, Task]:
    """The training split that preprocess wrote, on the CPU, the shape of a network for it, and the task."""
    block, summary = load_workload(workload), read_json(prepared_dir(workload) / "summary.json")
    task = open_task(block.task, summary, workload)
    arrays = read_prepared(prepared_dir(workload), "train", summary)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Split(tensors, CPU, num_velocities=num_velocities(block, summary)), Shape.of(summary, task), task


def random_training(data: Data) -> tuple[Split, Shape, Any]:
    torch.manual_seed(0)
    names = [str(number) for number in range(data.shape.num_outputs)]
    summary = {
        "classes": names, "num_per_class": {"train": dict.fromkeys(names, 1)}, "features": [],
        "num_outputs": len(names),
        "mean": [0.0], "std": [1.0], "target": {"name": "random", "transform": "difference"},
    }  # fmt: skip
    return Split(random_tensors(data, CPU), CPU), data.shape, open_task(data.task, summary)


class Over(BaseException):
    """There are no more rounds. A BaseException, so that the handlers of training frameworks let it through."""


class StepTimer:
    """Called after every step. Between two rounds it waits for the next one; it counts the steps and seconds of each
    round. It waits for the device every WAIT_SECONDS: steps on a GPU return before they are done, so the host's clock
    alone would queue hundreds of them, and a round would take minutes.
    """

    def __init__(self, pipe: Connection, device: Device) -> None:
        self.pipe, self.device = pipe, device
        self.count, self.next_wait, self.start, self.end = 0, 1, time.perf_counter(), 0.0

    def __call__(self) -> None:
        self.count += 1
        if self.count < self.next_wait:
            return
        self.device.synchronize()
        now = time.perf_counter()
        if now < self.end:
            seconds = min(WAIT_SECONDS, self.end - now)
            self.next_wait += max(1, int(self.count * seconds / (now - self.start)))
            return
        try:
            self.pipe.send((self.count, time.perf_counter() - self.start))
            seconds, threads = self.pipe.recv()
        except (EOFError, OSError):
            raise Over from None
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self.count, self.next_wait, self.start = 0, 1, time.perf_counter()
        self.end = self.start + seconds


def compete(pipe: Connection, case: Case, contender: Contender, device: str, folder: Path) -> None:
    """The main function of a contender's process. Its output goes to its own file in `folder`."""
    folder.mkdir()
    with (folder / "output.txt").open("w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    try:
        trainer = open_trainer(case, contender, device)
        contender.loop(trainer, StepTimer(pipe, trainer.device), contender)
    except Over:
        pass
    except Exception as error:
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def tandem(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    """The number of threads is the round's, which the training's own `ThreadTuner` would replace."""
    while True:
        for _ in trainer.take_steps(trainer.start_draws()):
            if contender.step == "graph":  # a contender that falls back to eager is no captured step
                refuse_another_way(trainer)
            tick()
        trainer.loss_sum.item()


def refuse_another_way(trainer: Trainer) -> None:
    if trainer.execution.why_no_graph:
        raise RuntimeError(f"step: graph was not possible: {trainer.execution.why_no_graph}")


def floor(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    batch = one_batch(trainer, trainer.settings.batch_size)
    while True:
        trainer.step(batch)
        tick()


def graph_floor(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    """The captured step alone, on one batch, without making batches."""
    step = repeated_step(trainer.step, one_batch(trainer, trainer.settings.batch_size))
    for _ in range(NUM_WARMUPS + 1):
        step()
    refuse_another_way(trainer)
    assert trainer.step.graphs is not None
    (captured,) = trainer.step.graphs.captured.values()
    while True:
        captured.replay()
        tick()


def loader(trainer: Trainer) -> Any:
    data = TensorDataset(*(trainer.train_split.tensors[name].cpu() for name in TENSORS))
    return DataLoader(data, trainer.settings.batch_size, shuffle=True, pin_memory=trainer.device.is_accelerator)


def loss_of(trainer: Trainer, model: nn.Module, tensors: list[torch.Tensor]) -> torch.Tensor:
    values, mask, targets = tensors
    teacher_targets = [targets] if hasattr(trainer.settings.model, "teacher_forcing") else []
    return trainer.task.loss(model(values, mask, *teacher_targets), targets, mask, trainer.settings.label_smoothing)


def usual_step(
    trainer: Trainer, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor], contender: Contender
) -> torch.Tensor:
    """A training step as people write it. Returns the loss, still on the device."""
    optimizer.zero_grad()
    with autocast(contender.precision, trainer.device.torch_device):
        loss = loss_of(trainer, trainer.model, batch)
    loss.backward()
    if trainer.settings.max_grad_norm:
        nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.settings.max_grad_norm)
    optimizer.step()
    return loss.detach()


def plain(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    device = trainer.device.torch_device
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=trainer.settings.learning_rate)
    batches = loader(trainer)
    while True:
        total = 0.0
        for tensors in batches:
            tensors = [tensor.to(device, non_blocking=True) for tensor in tensors]
            total += usual_step(trainer, optimizer, tensors, contender).item()
            tick()


def plain_tuned(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    keep_freed_memory()
    device, size = trainer.device.torch_device, trainer.settings.batch_size
    tensors = [trainer.train_split.tensors[name] for name in TENSORS]  # on the device
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=trainer.settings.learning_rate, fused=True)
    while True:
        total = torch.zeros((), device=device)
        for rows in torch.randperm(len(tensors[0]), device=device).split(size):
            batch = [tensor.index_select(0, rows) for tensor in tensors]
            total += usual_step(trainer, optimizer, batch, contender)
            tick()
        total.item()


class Resident:
    """Batches for Lightning made as in Tandem: slices of tensors on the device."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        return len(self.trainer.train_split) // self.trainer.settings.batch_size

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        split = self.trainer.train_split
        order = torch.randperm(len(split), generator=self.trainer.generator)
        for batch in split.batches(order, self.trainer.settings.batch_size):
            yield [batch.values, batch.mask, batch.targets]


def lightning(trainer: Trainer, tick: StepTimer, contender: Contender) -> None:
    import lightning as L

    tuned = contender.is_tuned

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = trainer.model

        def training_step(self, tensors: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = loss_of(trainer, self.network, tensors)
            if not tuned:
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(
                self.parameters(), lr=trainer.settings.learning_rate, **({"fused": True} if tuned else {})
            )

        def on_train_batch_end(self, *_: Any) -> None:
            tick()

    class Tuned(Module):
        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            return batch

    warnings.simplefilter("ignore")
    lightning_trainer = L.Trainer(
        accelerator="gpu" if trainer.device.is_accelerator else "cpu",
        devices=1,
        max_epochs=-1,
        gradient_clip_val=trainer.settings.max_grad_norm or None,
        barebones=tuned,
    )
    lightning_trainer.fit(Tuned() if tuned else Module(), Resident(trainer) if tuned else loader(trainer))
