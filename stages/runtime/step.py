"""One optimizer step on one batch: forward, backward, clip, update. The one place where the ways to compute it differ.

`eager` is torch as it comes. `graph` captures the whole step once as a CUDA graph and replays it: one launch instead of hundreds, for
batches of one size (the ragged last one goes the eager way). `compile` hands the model to torch.compile. What could not be done as asked is
done eagerly, and `Step.instead` says why.

Memory that runs out is answered step by step (`Relief`): nothing is lost, because weights only change once a batch has gone through.

CUDA graphs: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. Mixed precision: Micikevicius et al. 2018, arXiv:1710.03740.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stages.runtime.batches import Batch

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, the batch they are of) -> mean over its sequences
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
NUM_WARMUP_STEPS = 3  # eager ones on a side stream before a capture: libraries choose and allocate in them


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """What a forward pass runs in; weights and sums stay fp32. tf32 is a switch of the device, not of the pass."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()


class Step:
    """`step(batch)` moves the weights by one batch and returns its loss, summed over the sequences, as a scalar on the device."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float,
        accumulation: int,
        precision: str,
        way: str,
        device: torch.device,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.parameters = list(model.parameters())
        self.clip_norm, self.accumulation, self.precision = clip_norm, accumulation, precision
        self.device = device
        # Without fp16 it hands everything through. It keeps its state across checkpoints.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.relief = Relief(model)
        self.may_adapt = True  # whether memory that runs out may change `accumulation`
        self.instead = ""  # why another way than the one asked for is gone
        self.forward: Callable[..., Tensor] = model
        if way == "compile":
            self.forward = torch.compile(model, dynamic=False)
        self.graph: Graph | None = None
        if way == "graph":
            self.instead = why_no_graph(device, precision)
            self.graph = None if self.instead else Graph()

    def __call__(self, batch: Batch) -> Tensor:
        if self.graph is None:
            return self.eager(batch)
        try:
            return self.graph(batch, self.eager)
        except RuntimeError as error:
            if is_out_of_memory(error) or self.graph.is_captured:
                raise
            # A capture that fails leaves weights and gradients as they were: the batch can still go the eager way.
            self.instead, self.graph = f"the capture failed: {' '.join(str(error).split())[:200]}", None
            torch.cuda.synchronize(self.device)
            return self.eager(batch)

    def eager(self, batch: Batch) -> Tensor:
        while True:
            try:
                summed = self.backward(batch)
                break
            except (RuntimeError, MemoryError) as error:
                if not (is_out_of_memory(error) and self.may_adapt):
                    raise
                failed = str(error)
            # Outside the `except`: the error holds the tensors of the pass that failed.
            self.accumulation = self.relief.after(failed, self.accumulation, len(batch))
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return summed

    def backward(self, batch: Batch) -> Tensor:
        """Gradients of the batch's mean loss, gone through in `accumulation` parts."""
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        for part in batch.parts(self.accumulation):
            with autocast(self.precision, self.device):
                outputs = self.forward(*part.inputs())
            loss = self.loss(outputs.float(), part)
            scaled: Tensor = self.scaler.scale(loss if len(part) == len(batch) else loss * (len(part) / len(batch)))
            scaled.backward()  # type: ignore[no-untyped-call]
            summed = loss.detach() * len(part)
            total = summed if total is None else total + summed
        assert total is not None
        return total

    def state(self) -> dict[str, Any]:
        return {
            "accumulation": self.accumulation,
            "scaler": self.scaler.state_dict(),
            "relief": list(self.relief.taken),
            "checkpointing": self.relief.checkpointing,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.accumulation = state["accumulation"]
        self.scaler.load_state_dict(state["scaler"])
        self.relief.taken = list(state["relief"])
        if state["checkpointing"]:
            self.relief.checkpoint_activations()


def why_no_graph(device: torch.device, precision: str) -> str:
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if precision == "fp16":
        return "the loss scaling of fp16 decides on the host whether to step"
    return ""


class Graph:
    """A step captured once and replayed for every batch of the same shapes.

    The first batches of training are the warm-up: they are real steps, taken on a side stream. The optimizer must be `capturable` and its
    learning rate a tensor, which the schedule changes in place between two replays.
    """

    def __init__(self) -> None:
        self.num_done = 0
        self.captured: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.output = torch.empty(0)

    @property
    def is_captured(self) -> bool:
        return self.captured is not None

    def __call__(self, batch: Batch, eager: Callable[[Batch], Tensor]) -> Tensor:
        tensors = tensors_of(batch)
        if self.captured is None:
            if self.num_done < NUM_WARMUP_STEPS:
                self.num_done += 1
                return on_side_stream(eager, batch)
            self.capture(batch, eager)
        if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in self.inputs]:
            return eager(batch)
        for static, tensor in zip(self.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        assert self.captured is not None
        self.captured.replay()
        return self.output.clone()

    def capture(self, batch: Batch, eager: Callable[[Batch], Tensor]) -> None:
        """Record the step for batches shaped as this one; nothing is computed yet."""
        self.inputs = [tensor.clone() for tensor in tensors_of(batch)]
        values, mask, targets, rows, *teacher = self.inputs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = eager(Batch(values, mask, targets, rows, *teacher))
        self.captured, self.output = graph, output


def tensors_of(batch: Batch) -> list[Tensor]:
    tensors = [batch.values, batch.mask, batch.targets, batch.rows]
    return tensors if batch.teacher is None else [*tensors, batch.teacher]


def on_side_stream(eager: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        summed = eager(batch)
    current.wait_stream(side)
    return summed


class Relief:
    """What is done when memory runs out, gentlest first: free the cache, smaller parts of the batch, recomputed activations; then stop.

    The batch that a step is taken on stays the same, so the result is that of the large batch within rounding.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.taken: list[str] = []
        self.has_freed = self.checkpointing = False

    def after(self, error: str, accumulation: int, batch_size: int) -> int:
        """The parts to try next. Raises ValueError, with what the user can do, once there is nothing left to try."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self.has_freed:
            self.has_freed = True
            return self.say("freed the allocator's cache", accumulation)
        if accumulation < batch_size:
            parts = min(2 * accumulation, batch_size)
            return self.say(f"the batch of {batch_size} goes through in {parts} parts", parts)
        if not self.checkpointing and self.checkpoint_activations():
            return self.say("activations are computed again instead of kept", accumulation)
        raise ValueError(
            f"out of memory with single sequences ({' '.join(error.split())[:160]}); what was tried: {'; '.join(self.taken)}. "
            "Close what else uses the memory (`make doctor` names it), then lower train.model.hidden_size or the sequence length, "
            "set train.precision to bf16, or preload.residency to host"
        )

    def checkpoint_activations(self) -> bool:
        """Chen et al. 2016, arXiv:1604.06174. False where the model has no blocks to do it with."""
        self.checkpointing = hasattr(self.model, "checkpoint_activations")
        if self.checkpointing:
            setattr(self.model, "checkpoint_activations", True)  # noqa: B010  (a Module's attributes are Tensors to mypy)
        return self.checkpointing

    def say(self, what: str, accumulation: int) -> int:
        self.taken.append(what)
        print(f"out of memory: {what}", flush=True)
        return accumulation


def is_out_of_memory(error: Exception) -> bool:
    """CUDA's error has a class of its own; those of the CPU's allocator and of oneDNN are told by their words."""
    words = ("DefaultCPUAllocator: can't allocate memory", "std::bad_alloc", "could not create a primitive")
    is_by_class = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_by_class or any(word in str(error) for word in words)
