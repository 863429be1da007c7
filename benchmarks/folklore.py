"""Measure the claims of popular GPU training guides on this machine (docs/folklore.md has the results).

    python -m benchmarks.folklore [claim ...] [--device auto|cpu|cuda] [--seconds 1.5]

Claims: cell, synchronize, workers, pin, memory, bigger, deterministic; default: all. Prints Markdown.

The networks and the training loop are the project's own (tandem/models, tandem/training/trainer.py) at the sizes in
params.yaml. The data are random numbers in the shapes of the shipped workloads, because no claim is about accuracy. The
variants of a claim take turns, in reverse order every other round, so that a busy machine slows all of them equally. A
ratio is the median of the ratios within the rounds; square brackets hold quartiles. Each variant runs for `--seconds`,
without its warm-up.
"""

import argparse
import gc
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.markdown import header, machine_sentence, quartiles, row
from tandem import models
from tandem.devices.device import Device
from tandem.devices.hardware import detect_hardware, usable_cores
from tandem.devices.names import SINGLE
from tandem.diagnosis.counts import num_bytes, saved_for_backward
from tandem.machine.interleaving import interleave
from tandem.machine.measure import Clock
from tandem.models import Shape
from tandem.params.loading import load_params
from tandem.params.schema import Model, built_in_attributes
from tandem.parts import built_in
from tandem.terminal.messages import nearest
from tandem.training.batches import TENSORS, Batch, Split, sequential_indices
from tandem.training.execution import Execution, open_device
from tandem.training.executor import Executor
from tandem.training.step import Step

Work = Callable[[], int]  # does some work and returns the number of sequences; the device may still be busy

Seq2Seq, Transformer = (built_in("model")[name].schema for name in ("seq2seq", "transformer"))
MEASUREMENT_SECONDS = 0.1  # a measurement repeats its work for about this long
MIN_ROUNDS = 5
MIB = 2**20
SMALL_CARD_MIB = 6 * 1024  # the smallest GPU for which the guides have settings
HEADER = header("case", "variant", "samples/s", "ratio to the first", "rounds")


@dataclass(frozen=True)
class Data:
    """The number and shape of the training sequences, and the task."""

    num_sequences: int
    task: str  # classify: a class per sequence; detect: a class per step; forecast: numbers
    shape: Shape


DATA = {
    "sign": Data(162, "classify", Shape(num_features=4, num_outputs=15, max_steps=45, per_step=False)),
    "pen": Data(7119, "classify", Shape(num_features=4, num_outputs=10, max_steps=8, per_step=False)),
    "price": Data(5764, "forecast", Shape(num_features=3, num_outputs=4, max_steps=48, per_step=False)),
    "rally": Data(7775, "detect", Shape(num_features=3, num_outputs=5, max_steps=96, per_step=True)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", metavar="claim")
    parser.add_argument("--device", choices=SINGLE, default="auto")
    parser.add_argument("--seconds", type=float, default=1.5, help="spent on each variant")
    options = parser.parse_args()
    for name in options.claims:
        if name not in CLAIMS:
            parser.error(f"claim {name!r} is not known{nearest(name, CLAIMS)}")
    device, _ = device_of(parser, options.device)
    threads = f"{torch.get_num_threads()} thread unless a row says otherwise"
    print(f"{machine_sentence(options.device)}, {threads}", flush=True)
    for name in options.claims or CLAIMS:
        torch.manual_seed(0)
        print(f"\n## {name}\n", flush=True)
        for line in CLAIMS[name](device, options.seconds):
            print(line, flush=True)


def device_of(parser: argparse.ArgumentParser, name: str) -> tuple[Device, dict[str, Any]]:
    """The device with one thread, and its identity. Ends the command with one sentence if there is none."""
    try:
        identity = detect_hardware(name)
        return open_device(identity, threads=1, deterministic=True), identity
    except ValueError as error:
        parser.error(f"{str(error).partition('; ')[0]}; fix that, or use --device cpu")


class Training:
    """A network with everything for its training, on random data on the device."""

    def __init__(self, config: Model, data: Data, batch_size: int, device: Device) -> None:
        self.split, self.batch_size = Split(random_tensors(data, device), device), batch_size
        self.model: nn.Module = models.build(config, data.shape).to(device.torch_device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        executor = Executor(Execution(device), self.model)
        self.step = Step(self.model, self.keep_loss, self.optimizer, executor, max_grad_norm=1.0)
        self.last_loss = torch.empty(0)
        self.total = torch.zeros((), device=device.torch_device)
        self.order = torch.Generator().manual_seed(0)

    def batches(self) -> Iterator[Batch]:
        """The next epoch's batches as in the project: slices of tensors on the device."""
        return self.split.batches(torch.randperm(len(self.split), generator=self.order), self.batch_size)

    def first_batch(self) -> Batch:
        return next(self.split.batches(sequential_indices(self.split), self.batch_size))

    def keep_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        loss = loss_of(outputs, batch)
        self.last_loss = loss.detach()
        return loss

    def on(self, batches: Iterable[Batch]) -> int:
        """Train on `batches` with the project's steps, as its loop does; return their number of sequences."""
        self.model.train()
        num_sequences = 0
        for batch in batches:
            self.step.set_rate(1e-3)
            self.total.add_(self.step(batch))
            num_sequences += batch.global_size
        return num_sequences

    def epoch(self) -> int:
        return self.on(self.batches())


def training(workload: str, device: Device, **changed: int) -> Training:
    """The training of a workload of params.yaml, with another `batch_size` or `num_sequences` if given."""
    settings, data = load_params().blocks[workload].train, DATA[workload]
    num_sequences = changed.get("num_sequences", data.num_sequences)
    batch_size = changed.get("batch_size", settings.batch_size)
    return Training(settings.model, replace(data, num_sequences=num_sequences), batch_size, device)


def random_tensors(data: Data, device: Device) -> dict[str, torch.Tensor]:
    num, shape = data.num_sequences, data.shape
    values = torch.randn(num, shape.max_steps, shape.num_features)
    if built_in_attributes(data.task).target == "window":
        targets = torch.randn(num, shape.num_outputs)
    else:
        targets = torch.randint(shape.num_outputs, (num, shape.max_steps) if shape.per_step else (num,))
    mask = torch.ones(num, shape.max_steps, dtype=torch.bool)
    return {
        name: part.to(device.torch_device) for name, part in (("values", values), ("mask", mask), ("targets", targets))
    }


def loss_of(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Squared error for numeric targets, cross-entropy for classes of sequences or steps."""
    if batch.targets.is_floating_point():
        return F.mse_loss(outputs, batch.targets)
    return F.cross_entropy(outputs.flatten(0, -2), batch.targets.flatten())


def rates_of(variants: dict[str, Work], device: Device, seconds: float) -> dict[str, list[float]]:
    """Samples/s of every variant, one value per round."""
    for work in variants.values():  # warm-up: the first step imports, allocates and starts workers
        timed(work, 1, device)
    repeats = {name: math.ceil(MEASUREMENT_SECONDS / timed(work, 1, device)[0]) for name, work in variants.items()}

    def rate(name: str) -> float:
        elapsed, count = timed(variants[name], repeats[name], device)
        return count / elapsed

    return interleave({name: partial(rate, name) for name in variants}, MIN_ROUNDS, seconds * len(variants))


def timed(work: Work, repeats: int, device: Device) -> tuple[float, int]:
    """Seconds and sequences of `repeats` times `work`."""
    with Clock(device) as clock:
        count = sum(work() for _ in range(repeats))
    return clock.seconds, count


def rows(case: str, rates: dict[str, list[float]]) -> Iterator[str]:
    """Rows under HEADER; ratios are to the first variant."""
    first = next(iter(rates.values()))
    for name, values in rates.items():
        ratios = [rate / base for rate, base in zip(values, first, strict=True)]
        ratio = "1" if values is first else quartiles(ratios, ".2f" if statistics.median(ratios) >= 0.1 else ".2g")
        yield row(case, name, quartiles(values, ",.0f"), ratio, len(values))


# The claims. Each function yields lines of Markdown.


def cell(device: Device, seconds: float) -> Iterator[str]:
    """nn.LSTM falls back to the CPU; write the cell by hand."""
    settings = load_params().blocks["price"].train
    assert isinstance(settings.model, Seq2Seq)
    config, data = replace(settings.model, dropout=0.0), DATA["price"]  # without dropout both cells must agree
    larger = Shape(num_features=3, num_outputs=10, max_steps=30, per_step=False)
    cases = {
        "price": (config, replace(data, num_sequences=2 * settings.batch_size), settings.batch_size),
        "larger": (replace(config, hidden_size=128), Data(64, "forecast", larger), 32),
    }
    sentences = []
    yield HEADER
    for case, (model, sizes, batch_size) in cases.items():
        native = Training(replace(model, cell="native"), sizes, batch_size, device)
        manual = Training(replace(model, cell="manual"), sizes, batch_size, device)
        manual.model.load_state_dict(native.model.state_dict())
        devices = " and ".join(sorted(places(native) | places(manual)))
        sentences.append(f"{case}, both with the same weights: {agreement(native, manual)}.")
        sentences.append(f"{case}, both: parameters, inputs, outputs and gradients are on {devices}.")
        steps = f"{sizes.shape.max_steps} + {sizes.shape.num_outputs} steps"
        rates = rates_of({"nn.LSTM": native.epoch, "by hand": manual.epoch}, device, seconds)
        yield from rows(f"{case}: hidden {model.hidden_size}, {steps}, batch {batch_size}", rates)
    yield from ("", *(f"- {sentence}" for sentence in (*sentences, mixed_devices(device))))


def agreement(one: Training, other: Training) -> str:
    """The differences of outputs and gradients of two networks with equal weights on the same batch."""
    batch = one.first_batch()
    outputs, gradients = [], []
    for network in (one.model, other.model):
        network.zero_grad()
        outputs.append(network(*batch.inputs()))
        loss_of(outputs[-1], batch).backward()
        gradients.append(torch.cat([gradient_of(parameter).flatten() for parameter in network.parameters()]))
    sentences = []
    for name, (left, right) in {"outputs": outputs, "gradients": gradients}.items():
        sentences.append(
            f"{name} differ by at most {(left - right).abs().max().item():.1e} (largest {left.abs().max().item():.2g})"
        )
    return ", ".join(sentences)


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def places(case: Training) -> set[str]:
    """Every device that holds a parameter, an input, an output or a gradient in a training step."""
    batch = case.first_batch()
    outputs = case.model(*batch.inputs())
    loss_of(outputs, batch).backward()
    parameters = list(case.model.parameters())
    tensors = [*parameters, *map(gradient_of, parameters), *batch.inputs(), outputs]
    return {str(tensor.device) for tensor in tensors}


def mixed_devices(device: Device) -> str:
    """nn.LSTM's behaviour for an input on another device than its weights. `meta` is torch's device without data."""
    input_device = "cpu" if device.is_accelerator else "meta"
    try:
        nn.LSTM(3, 4).to(device.torch_device)(torch.zeros(2, 5, 3, device=input_device))
    except RuntimeError as error:
        return f"Weights on {device.torch_device}, input on {input_device}: RuntimeError: {error}."
    return f"Weights on {device.torch_device}, input on {input_device}: computed."


def synchronizing(device: Device, seconds: float) -> Iterator[str]:
    """Synchronize (or read the loss) after every step."""
    yield HEADER
    for workload in ("sign", "pen"):
        case = training(workload, device)
        after_step: dict[str, Callable[[torch.Tensor], object]] = {
            "loss read once per epoch": lambda loss: None,
            "`.item()` after every step": lambda loss: loss.item(),
        }
        if device.is_accelerator:
            after_step["synchronize after every step"] = lambda loss: device.synchronize()
        variants = {name: reading(case, action) for name, action in after_step.items()}
        yield from rows(f"{workload}, batch {case.batch_size}", rates_of(variants, device, seconds))
    if not device.is_accelerator:
        yield "\nsynchronize: nothing to measure, the CPU has done its work when a call returns."


def reading(case: Training, action: Callable[[torch.Tensor], object]) -> Work:
    """An epoch with `action(loss)` after every step, and the loss read at its end."""

    def batches() -> Iterator[Batch]:
        for batch in case.batches():
            yield batch  # the loop returns here after the step
            action(case.last_loss)

    def work() -> int:
        count = case.on(batches())
        case.last_loss.item()
        return count

    return work


class Parsed(Dataset[tuple[torch.Tensor, ...]]):
    """Sequences stored as text and parsed on access: expensive items."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.texts = ["\n".join(",".join(map(str, row)) for row in sequence) for sequence in tensors["values"].tolist()]
        self.others = [tensors[name] for name in TENSORS[1:]]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        rows = [[float(cell) for cell in line.split(",")] for line in self.texts[index].splitlines()]
        return torch.tensor(rows), *(tensor[index] for tensor in self.others)


def workers(device: Device, seconds: float) -> Iterator[str]:
    """num_workers always helps."""
    yield HEADER
    for workload, batch_size in {"sign": 32, "pen": 128}.items():
        case = training(workload, device, batch_size=batch_size)
        name = f"{workload}, batch {batch_size}"
        on_host = {key: tensor.cpu() for key, tensor in case.split.tensors.items()}
        ways = loaders(TensorDataset(*(on_host[key] for key in TENSORS)), case)
        yield from rows(f"{name}: training", rates_of(trained_on(ways, case), device, seconds))
        if workload == "pen":
            ways = loaders(Parsed(on_host), case)
            yield from rows(f"{name}, text: training", rates_of(trained_on(ways, case), device, seconds))


def trained_on(ways: dict[str, Callable[[], Iterable[Batch]]], case: Training) -> dict[str, Work]:
    return {name: lambda batches=batches: case.on(batches()) for name, batches in ways.items()}  # type: ignore[misc]


def loaders(dataset: Dataset[Any], case: Training) -> dict[str, Callable[[], Iterable[Batch]]]:
    """Ways to make the batches of an epoch. By default DataLoader restarts its workers every epoch."""
    ways: dict[str, Callable[[], Iterable[Batch]]] = {"resident slices": case.batches}
    for name, num_workers, is_kept in (
        ("no worker", 0, False),
        ("1 persistent worker", 1, True),
        ("2 persistent workers", 2, True),
        ("2 workers, restarted every epoch", 2, False),
    ):
        loader = DataLoader(dataset, case.batch_size, shuffle=True, num_workers=num_workers, persistent_workers=is_kept)
        ways[f"DataLoader, {name}"] = partial(loaded, loader, case.split.device)
    return ways


def loaded(loader: DataLoader[Any], device: Device, non_blocking: bool = False) -> Iterator[Batch]:
    for tensors in loader:
        values, mask, targets = (tensor.to(device.torch_device, non_blocking=non_blocking) for tensor in tensors)
        yield Batch(values, mask, targets, torch.arange(len(targets)))


def pin(device: Device, seconds: float) -> Iterator[str]:
    """pin_memory always helps."""
    if not device.is_accelerator:
        yield "Not measured: pinned memory is for copies to a GPU, and the device is the CPU."
        return
    yield HEADER
    case = training("pen", device)
    dataset = TensorDataset(*(case.split.tensors[key].cpu() for key in TENSORS))
    plain, pinned = (DataLoader(dataset, case.batch_size, shuffle=True, pin_memory=pin) for pin in (False, True))
    variants: dict[str, Work] = {
        "DataLoader": lambda: case.on(loaded(plain, device)),
        "DataLoader, pin_memory, non_blocking": lambda: case.on(loaded(pinned, device, non_blocking=True)),
        "resident slices": case.epoch,
    }
    yield from rows(f"pen, batch {case.batch_size}: training", rates_of(variants, device, seconds))
    for size, num_floats in {"one batch of pen": case.batch_size * 8 * 4, "64 MiB": 16 * MIB}.items():
        host = torch.randn(num_floats)
        copies: dict[str, Callable[[], object]] = {
            "pageable": partial(host.to, device.torch_device),
            "pinned for each copy": lambda host=host: host.pin_memory().to(device.torch_device, non_blocking=True),
            "pinned once": partial(host.pin_memory().to, device.torch_device, non_blocking=True),
        }
        rates = rates_of({name: counted(copy) for name, copy in copies.items()}, device, seconds)
        yield from rows(f"{size}: copies/s", rates)


def counted(action: Callable[[], object]) -> Work:
    def work() -> int:
        action()
        return 1

    return work


def memory(device: Device, seconds: float) -> Iterator[str]:
    """Low use of VRAM means that the GPU is not used."""
    parts_of_memory = ("weights", "gradients", "optimizer", "activations", "batch")
    yield header("MiB", *parts_of_memory, "sum", "of 6 GiB", "training data", "torch's peak")
    for workload in DATA:
        gc.collect()  # the previous network is part of a reference cycle
        case = training(workload, device)
        case.on([case.first_batch()])  # the optimizer creates its state in the first step
        if device.is_accelerator:
            device.reset_peaks()
        batch = case.first_batch()
        case.on([batch])
        peak = f"{device.memory_mib()['peak_allocated_mib']:.2f}" if device.is_accelerator else "no GPU"
        state = [value for entries in case.optimizer.state.values() for value in entries.values()]
        parts = [
            num_bytes(case.model.parameters()),
            num_bytes(map(gradient_of, case.model.parameters())),
            num_bytes(state),
            activation_bytes(case, batch),
            num_bytes((batch.values, batch.mask, batch.targets, batch.rows)),
        ]
        total, data = sum(parts) / MIB, num_bytes(case.split.tensors.values()) / MIB
        sizes = (f"{part / MIB:.2f}" for part in parts)
        share = f"{total / SMALL_CARD_MIB:.2%}"
        yield row(f"{workload}, batch {case.batch_size}", *sizes, f"{total:.2f}", share, f"{data:.2f}", peak)
        del case, batch, state


def activation_bytes(case: Training, batch: Batch) -> int:
    """Bytes that the forward pass saves for the backward pass, without weights and inputs."""
    case.model.train()
    with saved_for_backward([*case.model.parameters(), *batch.inputs()]) as saved:
        loss = loss_of(case.model(*batch.inputs()), batch)
    loss.backward()
    return sum(saved.values())


def bigger(device: Device, seconds: float) -> Iterator[str]:
    """A bigger card, with more cores, is always faster."""
    yield HEADER
    if not device.is_accelerator:
        config = load_params().blocks["pen"].train.model
        assert isinstance(config, Transformer)
        large = replace(config, hidden_size=256, num_layers=4, feedforward_size=1024)
        long = Shape(num_features=4, num_outputs=10, max_steps=64, per_step=False)
        cases = {
            "sign GRU": training("sign", device, num_sequences=56),
            "pen Transformer": training("pen", device, num_sequences=512),
            "large Transformer (4 layers of 256, 64 steps)": Training(large, Data(16, "classify", long), 16, device),
        }
        for name, case in cases.items():
            counts = sorted({1, 2, int(usable_cores())})
            variants = {f"{number} thread{'s' * (number > 1)}": with_threads(number, case.epoch) for number in counts}
            yield from rows(f"{name}, batch {case.batch_size}", rates_of(variants, device, seconds))
        torch.set_num_threads(1)
    for workload in ("sign", "pen"):
        sizes = {
            size: training(workload, device, batch_size=size, num_sequences=max(size, 128))
            for size in (16, 64, 256, 1024)
        }
        variants = {f"batch {size}": case.epoch for size, case in sizes.items()}
        yield from rows(workload, rates_of(variants, device, seconds))
    if device.is_accelerator:
        yield "\nThe number of cores: nothing to vary on one GPU."


def with_threads(number: int, work: Work) -> Work:
    def threaded() -> int:
        torch.set_num_threads(number)
        return work()

    return threaded


def deterministic(device: Device, seconds: float) -> Iterator[str]:
    """Deterministic algorithms are slow; cudnn.benchmark makes training faster."""
    yield HEADER
    for workload in DATA:
        case = training(workload, device)
        case = training(workload, device, num_sequences=2 * case.batch_size)
        variants = {
            "deterministic": with_determinism(True, True, case.epoch),
            "deterministic, new memory not filled": with_determinism(True, False, case.epoch),
            "cudnn.benchmark": with_determinism(False, True, case.epoch),
        }
        yield from rows(f"{workload}, batch {case.batch_size}", rates_of(variants, device, seconds))
    with_determinism(True, False, int)()  # as `open_device` has set it, for the next claim


def with_determinism(wanted: bool, filled: bool, work: Work) -> Work:
    """`filled`: torch's deterministic mode also fills uninitialized memory, so that mistakes show."""

    def switched() -> int:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.set_deterministic_debug_mode("error" if wanted else "default")
        torch.backends.cudnn.benchmark = not wanted
        return work()

    return switched


CLAIMS: dict[str, Callable[[Device, float], Iterator[str]]] = {
    "cell": cell,
    "synchronize": synchronizing,
    "workers": workers,
    "pin": pin,
    "memory": memory,
    "bigger": bigger,
    "deterministic": deterministic,
}


if __name__ == "__main__":
    main()
