"""How the steps of a training are executed, as one immutable value, and the functions that make another of it.

`requested_execution` makes the one that params.yaml asks for on a device. auto.py replaces the precision, `cheaper`
is the answer to a lack of memory, and `merged` that to a resume. None of them changes anything: `Executor.use`
(executor.py) puts an `Execution` into force. The number of threads is not part of it, because it changes during a
training and changes no bit (where it does, it is kept: auto.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from tandem.devices.device import Device
from tandem.devices.memory import keep_freed_memory
from tandem.devices.names import kind_of
from tandem.models import kernels
from tandem.params.schema import NumThreads, Train

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
EAGERLY = "steps are taken eagerly instead of captured as a CUDA graph"
STREAMING = "a captured step cannot read streamed data"
RECOMPUTING = "recomputing activations resets the random state, which cannot be captured"


class Switches(NamedTuple):
    """What torch and Tandem's kernels keep for the whole process. Nothing else in tandem/ sets it."""

    matmul_precision: str
    cudnn_tf32: bool
    deterministic: int  # 2: an operation that is not deterministic is an error
    cudnn_benchmark: bool
    own_kernels: bool

    @classmethod
    def now(cls) -> Switches:
        return cls(
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.get_deterministic_debug_mode(),
            torch.backends.cudnn.benchmark,
            kernels.are_allowed(),
        )

    def set(self) -> None:
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.set_deterministic_debug_mode(self.deterministic)
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        kernels.allow(self.own_kernels)


@dataclass(frozen=True)
class Execution:
    device: Device
    precision: str = "fp32"  # in which forward and backward pass compute: fp32, tf32, bf16 or fp16
    step: str = "eager"  # or graph (captured as a CUDA graph and replayed), or compile (by torch.compile)
    # Why steps are eager although params.yaml, or `auto` on this device, asks for a graph.
    why_no_graph: str = ""
    gave_up_graph: bool = False  # a capture failed or memory ran out: eager also after a resume
    grad_accum_steps: int = 1  # number of micro-batches of a batch
    data_location: str = "host"  # of all splits: device, or host (usually their files)
    recomputes: bool = False  # whether activations are recomputed in the backward pass instead of stored
    num_eval_parts: int = 1  # number of parts in which a batch is evaluated, without gradients
    kernels: str = "auto"  # or torch: none of Tandem's own
    deterministic: bool = True

    @property
    def switches(self) -> Switches:
        """TF32 has a 10-bit mantissa: with tf32 it is allowed for all fp32 products, with bf16 for cuDNN's recurrent
        layers, which do not compute in bf16 (tandem/models/layers.py).
        """
        may_use_tf32 = "tf32" in self.device.precisions()
        return Switches(
            matmul_precision="high" if may_use_tf32 and self.precision == "tf32" else "highest",
            cudnn_tf32=may_use_tf32 and self.precision in ("tf32", "bf16"),
            deterministic=2 if self.deterministic else 0,
            cudnn_benchmark=not self.deterministic,
            own_kernels=self.kernels == "auto",
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the body, the switches of this process are those of this execution."""
        with alone_to_switch():
            before = Switches.now()
            self.switches.set()
        try:
            yield
        finally:
            with alone_to_switch():
                before.set()


@contextmanager
def alone_to_switch() -> Iterator[None]:
    """torch has two sets of switches for TF32, and refuses both if someone else uses the other one, of torch 2.9."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(
            "the network, its loop or a package sets one of torch's `fp32_precision` switches; remove that line, since "
            "train.precision decides how products are computed"
        ) from error


CPU = kind_of("cpu")()
ON_CPU = Execution(CPU)


def open_device(
    hardware: dict[str, Any],
    threads: NumThreads,
    deterministic: bool,
    precision: str = "fp32",
    index: int = 0,
    kernels: str = "auto",
) -> Device:
    """The device of `hardware` (tandem/devices/hardware.py). Sets threads and switches of this process.

    `index` selects one of several GPUs. With `precision` fp32, TF32 is off for matrix products and for cuDNN (whose
    RNNs use it by default), so that CPU and GPU compute the same. `precision` tf32 turns it on if the device has it.
    A training's own `Execution` is in force while it trains; these switches hold outside. `threads` auto is one thread
    until auto.py chooses. Raises ValueError if torch cannot use the device, or the device cannot compute in fp16.
    """
    if deterministic:  # cuBLAS reads this variable when CUDA starts; without it, cuDNN's RNNs are not deterministic
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # another value of the shell is refused, or gives other bits
    torch.set_num_threads(1 if threads == "auto" else threads)
    # torch would fill every new tensor with NaN to expose reads of uninitialized memory: 3 to 9% of a step here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()
    device = kind_of(hardware["kind"])(index)
    device.require_usable(hardware)
    if precision == "fp16" and precision not in device.precisions():
        raise ValueError(
            "train.precision is 'fp16', which needs a GPU; on the CPU accepted: fp32, bf16, tf32 (computed as fp32)"
        )
    Execution(device, precision, deterministic=deterministic, kernels=kernels).switches.set()
    return device


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass. Weights and sums stay fp32. tf32 needs none: it is a switch."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()


def realized_precision(precision: str, device: Device) -> str:
    """The realized precision: fp32 for tf32 on a device without TF32 (a CPU, or a GPU older than Ampere)."""
    return "fp32" if precision == "tf32" and precision not in device.precisions() else precision


def requested_execution(settings: Train, device: Device, model: nn.Module) -> Execution:
    """What params.yaml asks for, as far as it is possible on the device. `auto` is fp32 until auto.py has chosen."""
    step, reason = choose_step(settings.step, device, model)
    return Execution(
        device,
        realized_precision("fp32" if settings.precision == "auto" else settings.precision, device),
        step,
        reason,
        grad_accum_steps=settings.grad_accum_steps,
        recomputes=getattr(model, "checkpoint_activations", False),
        kernels=settings.kernels,
        deterministic=settings.deterministic,
    )


def choose_step(requested: str, device: Device, model: nn.Module) -> tuple[str, str]:
    """How steps are taken for `requested` (train.step in params.yaml), and the reason if a graph is not possible."""
    if requested not in ("auto", "graph"):
        return requested, ""
    if requested == "auto" and not device.is_accelerator:
        return "eager", ""
    reason = graph_blocker(device, model)
    return ("eager" if reason else "graph"), reason


def graph_blocker(device: Device, model: nn.Module) -> str:
    if device.why_no_graph:
        return device.why_no_graph
    if getattr(model, "checkpoint_activations", False):
        return RECOMPUTING
    rnns = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    if any(rnn.num_layers > 1 and rnn.dropout > 0 and not hasattr(rnn, "uses_torch_dropout") for rnn in rnns):
        return "cuDNN does not expose the random state of dropout between the layers of an RNN"
    return ""


def without_graph(now: Execution, failed_capture: str = "") -> tuple[Execution, str]:
    """Eager steps for the rest of the training, because memory ran out or a capture failed, and a sentence about it."""
    reason, sentence = "memory ran out", "the CUDA graph of the step is freed, and the next steps are eager"
    if failed_capture:
        reason = f"the capture failed: {failed_capture}"
        sentence = EAGERLY
    return replace(now, step="eager", why_no_graph=reason, gave_up_graph=True), sentence


def eager(now: Execution, reason: str) -> Execution:
    """`now`, with eager steps if it would capture them."""
    return replace(now, step="eager", why_no_graph=reason) if now.step == "graph" else now


def streamed(now: Execution) -> Execution:
    """`now`, with the data in its files."""
    return replace(eager(now, STREAMING), data_location="host")


def cheaper(
    now: Execution, work: str, batch_size: int, *, has_graph: bool, data_bytes: int, can_recompute: bool
) -> tuple[Execution, str] | None:
    """An execution that needs less memory, and a sentence about the change; None if there is none.

    `work`: what memory ran out in: data (a batch of the training), step, or evaluation; `batch_size`: of the step or
    evaluation. `has_graph`: whether a graph is captured; `data_bytes`: of the data that is also in files.
    """
    if now.step == "graph" and has_graph:
        return without_graph(now)
    if now.data_location == "device" and data_bytes:
        sentence = "is read from its file batch by batch instead of held in memory"
        return streamed(now), f"the data ({data_bytes / 2**20:,.1f} MiB) {sentence}"
    if work == "evaluation" and now.num_eval_parts < batch_size:
        num_parts = min(2 * now.num_eval_parts, batch_size)
        sentence = f"a batch of {batch_size} is evaluated in {num_parts} parts"
        return replace(now, num_eval_parts=num_parts), sentence
    if work == "step" and now.grad_accum_steps < batch_size:
        num_parts = min(2 * now.grad_accum_steps, batch_size)
        sentence = f"a batch of {batch_size} is trained on in {num_parts} parts"
        return replace(now, grad_accum_steps=num_parts), sentence
    if work == "step" and can_recompute and not now.recomputes:
        return replace(eager(now, RECOMPUTING), recomputes=True), "activations are recomputed instead of stored"
    return None


def merged(stored: Execution, requested: Execution) -> Execution:
    """The execution of a training that resumes from a checkpoint with `stored`, where a new one would have `requested`.

    It keeps what memory has run out with, and the precision, which changes results. Device, workers and kernels are
    those of the new process.
    """
    execution = replace(
        requested,
        precision=realized_precision(stored.precision, requested.device),
        grad_accum_steps=max(stored.grad_accum_steps, requested.grad_accum_steps),
        data_location="host" if "host" in (stored.data_location, requested.data_location) else "device",
        recomputes=stored.recomputes or requested.recomputes,
        num_eval_parts=max(stored.num_eval_parts, requested.num_eval_parts),
    )
    if execution.step == "graph" and stored.gave_up_graph:
        return replace(eager(execution, stored.why_no_graph), gave_up_graph=True)
    return eager(execution, RECOMPUTING) if execution.recomputes else execution
