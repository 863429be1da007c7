"""Tandem's loop against the loops people write: samples per second of training, same model, data, batch and number of steps.

    python -m benchmarks.throughput [--workloads sign pen price rally] [--device cpu] [--rounds 5] [--seconds 2]

Every contender trains the workload's model of params.yaml for rounds of the same length, in turns; the first round of each is warm-up.
Medians with quartiles, and ratios to the plain loop. Contenders:

- plain: nn.GRU where the model has GRUs, DataLoader with shuffling, 0 workers, `.item()` after each step, AdamW, clipping
- plain, own GRU: the same loop with Tandem's GRU (stages/models/kernels/gru.py), which the other peers do without too
- workers 2: the same with 2 worker processes, which live on between epochs
- lightning, accelerate: only where installed (an environment of their own: see benchmarks/README.md)
- tandem: `Fit.epoch`'s loop at the precision of params.yaml, and tandem auto: at `precision: auto`
- floor: Tandem's step on one batch that never changes: what the loop costs is the difference

Learning rate schedule, augmentation and validation are left out for all of them: they are not what is compared.
"""

import argparse
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.preprocess import describe_machine
from stages.models.kernels import gru as gru_kernel
from stages.params import Augment, load_workload
from stages.runtime import precision
from stages.runtime.device import synchronize
from stages.runtime.probe import one_batch
from stages.sweep import make_fit

NO_AUGMENT = Augment(group=1, mix=0.0, shift=0.0, warp=0.0)
Steps = Iterator[None]  # one training step at each `next`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen", "price", "rally"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="after one of warm-up (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round (2)")
    options = parser.parse_args()
    print(f"{describe_machine()}; device {options.device}, torch {torch.__version__}\n")
    print("| workload | contender | samples/s, median [quartiles] | times the plain loop |\n|---|---|---|---|")
    for workload in options.workloads:
        rates = measure(contenders(workload, options.device), batch_of(workload), options)
        plain = statistics.median(rates["plain"])
        for name, found in rates.items():
            low, middle, high = statistics.quantiles(found, n=4)
            print(
                f"| {workload} | {name} | {middle:,.0f} [{low:,.0f}, {high:,.0f}] | {middle / plain:.2f} |", flush=True
            )


def batch_of(workload: str) -> int:
    return load_workload(workload).train.batch_size


def measure(steps_of: dict[str, Steps], batch_size: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Contender -> samples per second of every round but the first, in turns."""
    device = torch.device(options.device)
    rates: dict[str, list[float]] = {name: [] for name in steps_of}
    for number in range(options.rounds + 1):
        for name, steps in steps_of.items():
            synchronize(device)
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < options.seconds:
                next(steps)
                count += 1
            synchronize(device)
            if number:
                rates[name].append(count * batch_size / (time.perf_counter() - start))
    return rates


def contenders(workload: str, device: str) -> dict[str, Steps]:
    found = {
        "plain": plain(workload, device, 0),
        "plain, own GRU": plain(workload, device, 0, nullcontext),
        "workers 2": plain(workload, device, 2),
        "tandem": tandem(workload, device, "fp32"),
        "tandem auto": tandem(workload, device, "auto"),
        "floor": floor(workload, device),
    }
    for name, loop in {"lightning": lightning, "accelerate": accelerate}.items():
        if importlib.util.find_spec(name):
            found[name] = loop(workload, device)
    return found


def fresh(workload: str, device: str) -> Any:
    """A fit of the workload without augmentation, and without the ragged last batch, which only blurs a rate."""
    fit = make_fit(workload, device)
    fit.params = replace(fit.params, augment=NO_AUGMENT)
    whole = len(fit.train_split) // fit.params.batch_size * fit.params.batch_size
    fit.train_split = replace(
        fit.train_split, tensors={name: tensor[:whole] for name, tensor in fit.train_split.tensors.items()}
    )
    return fit


def tandem(workload: str, device: str, wanted: str) -> Steps:
    from stages.hardware import identify

    fit = fresh(workload, device)
    if wanted == "auto":
        chosen, said = precision.choose(fit, identify(device))
        print(f"<!-- {workload}: {said} -->")
        fit.set_precision(chosen)
    while True:
        for batch in fit.training_batches():
            fit.step(batch)
            yield


def floor(workload: str, device: str) -> Steps:
    fit = fresh(workload, device)
    batch = one_batch(fit, fit.params.batch_size)
    while True:
        fit.step(batch)
        yield


def loader(fit: Any, num_workers: int) -> Any:
    tensors = [fit.train_split.tensors[name].cpu() for name in ("values", "mask", "targets")]
    more = {"persistent_workers": True} if num_workers else {}
    return DataLoader(
        TensorDataset(*tensors), fit.params.batch_size, shuffle=True, num_workers=num_workers, drop_last=True,
        pin_memory=fit.device.type == "cuda", **more,
    )  # fmt: skip


def loss_of(fit: Any, model: nn.Module, tensors: list[torch.Tensor]) -> torch.Tensor:
    values, mask, targets = tensors
    teacher = [targets] if hasattr(fit.params.model, "teacher_forcing") else []
    outputs: torch.Tensor = model(values, mask, *teacher)
    found: torch.Tensor = fit.task.loss(outputs, targets, mask, fit.params.label_smoothing)
    return found


@contextmanager
def stock_gru() -> Iterator[None]:
    """nn.GRU as torch has it, for the model's forward pass."""
    own, gru_kernel.takes = gru_kernel.takes, lambda x: False
    try:
        yield
    finally:
        gru_kernel.takes = own


def plain(
    workload: str, device: str, num_workers: int, gru: Callable[[], AbstractContextManager[None]] = stock_gru
) -> Steps:
    """The loop of the tutorials. Its loader's workers start with its first step, not while another contender is timed."""
    fit = fresh(workload, device)
    optimizer = torch.optim.AdamW(fit.model.parameters(), lr=fit.params.learning_rate)
    batches, losses = loader(fit, num_workers), []
    while True:
        for tensors in batches:
            tensors = [tensor.to(fit.device, non_blocking=True) for tensor in tensors]
            optimizer.zero_grad()
            with gru():
                loss = loss_of(fit, fit.model, tensors)
            loss.backward()
            nn.utils.clip_grad_norm_(fit.model.parameters(), fit.params.clip_norm or float("inf"))
            optimizer.step()
            losses.append(loss.item())
            yield


def accelerate(workload: str, device: str) -> Steps:
    from accelerate import Accelerator

    fit = fresh(workload, device)
    helper = Accelerator(cpu=device == "cpu")
    model, optimizer, batches = helper.prepare(
        fit.model, torch.optim.AdamW(fit.model.parameters(), lr=fit.params.learning_rate), loader(fit, 0)
    )
    while True:
        for tensors in batches:
            optimizer.zero_grad()
            with stock_gru():
                loss = loss_of(fit, model, tensors)
            helper.backward(loss)
            helper.clip_grad_norm_(model.parameters(), fit.params.clip_norm or float("inf"))
            optimizer.step()
            yield


def lightning(workload: str, device: str) -> Steps:
    """Lightning owns its loop, so it runs in a thread of its own and is let go on a step at a time."""
    import threading

    import lightning as L

    fit = fresh(workload, device)
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = fit.model

        def training_step(self, tensors: list[torch.Tensor], index: int) -> torch.Tensor:
            with stock_gru():
                return loss_of(fit, self.network, tensors)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=fit.params.learning_rate)

        def on_train_batch_start(self, *_: Any) -> None:
            go.acquire()

        def on_train_batch_end(self, *_: Any) -> None:
            done.release()

    threads = torch.get_num_threads()

    def train() -> None:
        torch.set_num_threads(threads)  # OpenMP counts by thread
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = L.Trainer(
                accelerator="gpu" if device == "cuda" else "cpu", devices=1, max_epochs=-1, gradient_clip_val=fit.params.clip_norm,
                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, logger=False,
            )  # fmt: skip
            trainer.fit(Module(), loader(fit, 0))

    threading.Thread(target=train, daemon=True).start()
    while True:
        go.release()
        done.acquire()
        yield


if __name__ == "__main__":
    main()
