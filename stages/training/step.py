"""One optimizer step on one batch: forward, backward, clip, update. The only place where the execution modes differ.

`eager` is torch as it comes. `graph` captures the whole step once as a CUDA graph and replays it: one launch instead of
hundreds, for batches of one size (the ragged last one is eager). `compile` gives the model to torch.compile. What
cannot be done as asked is done eagerly, and `Step.fallback_reason` says why. `OomPolicy` (stages/training/memory.py)
decides what to do when memory runs out.

CUDA graphs: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. Mixed precision: Micikevicius et al.
2018, arXiv:1710.03740.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stages.training.batches import Batch
from stages.training.memory import OomPolicy, free_cache, is_out_of_memory, shorten

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, the batch they are of) -> mean over its sequences
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
NUM_WARMUP_STEPS = 3  # eager ones on a side stream before a capture: libraries choose and allocate in them


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass; weights and sums stay fp32. tf32 is a switch of the device, not of the pass."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()


class Step:
    """`step(batch)` updates the weights and returns the loss, summed over the sequences, as a scalar on the device."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float,
        accumulation: int,
        precision: str,
        execution_mode: str,
        device: torch.device,
        oom: OomPolicy | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.parameters = list(model.parameters())
        self.clip_norm, self.accumulation, self.precision = clip_norm, accumulation, precision
        self.device = device
        # Without fp16 it passes everything through. Checkpoints keep its state.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.oom = oom or OomPolicy(model)
        self.may_adapt = True  # whether running out of memory may change how the training continues
        self.fallback_reason = ""  # why it runs in another mode than the one asked for
        self.forward: Callable[..., Tensor] = model
        if execution_mode == "compile":
            self.forward = torch.compile(model, dynamic=False)
        self.graph: Graph | None = None
        if execution_mode == "graph":
            self.fallback_reason = why_no_graph(device, precision, model)
            self.graph = None if self.fallback_reason else Graph()

    def __call__(self, batch: Batch) -> Tensor:
        if self.graph is None or not self.graph.is_supported(batch):
            return self.eager(batch)
        try:
            return self.graph(batch, self)
        except RuntimeError as error:
            ran_out = is_out_of_memory(error)
            if self.graph.is_captured or (ran_out and not self.may_adapt):
                raise
            # A capture that fails leaves the weights as they were: the batch can still be done eagerly. Ending the
            # capture raises an error of its own, after the one that made it fail.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            self.fallback_reason, self.graph = f"the capture failed: {shorten(cause)}", None
        self.clear()
        if ran_out:
            self.oom.say("the step is taken eagerly instead of captured as a CUDA graph")
            free_cache()
        torch.cuda.synchronize(self.device)
        return self.eager(batch)

    def eager(self, batch: Batch) -> Tensor:
        before = random_state(self.device)

        def work() -> Tensor:
            try:
                return self.once(batch)
            except Exception:
                self.clear()
                set_random_state(before, self.device)
                raise

        if not self.may_adapt:
            return work()
        smaller = partial(self.take_smaller_parts, len(batch))
        return self.oom.run_with_fallbacks(work, smaller, self.oom.recompute, self.drop_graph)

    def once(self, batch: Batch) -> Tensor:
        """The step itself. The weights change at its very end, when nothing is left that could need memory."""
        summed = self.backward(batch)
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return summed

    def clear(self) -> None:
        """Remove what a failed step left: gradients, incomplete optimizer states, the scaler's flag."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in [each for each, kept in self.optimizer.state.items() if "exp_avg_sq" not in kept]:
            del self.optimizer.state[parameter]
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        scaler.load_state_dict(self.scaler.state_dict())
        self.scaler = scaler

    def backward(self, batch: Batch) -> Tensor:
        """Compute the gradients of the batch's mean loss, in `accumulation` parts. Returns the summed loss."""
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

    def take_smaller_parts(self, batch_size: int) -> str:
        if self.accumulation >= batch_size:
            return ""
        self.accumulation = min(2 * self.accumulation, batch_size)
        return f"a batch of {batch_size} is trained on in {self.accumulation} parts"

    def drop_graph(self) -> str:
        if self.graph is None or not self.graph.is_captured:
            return ""
        self.graph, self.fallback_reason = None, "memory ran out"
        self.optimizer.zero_grad(set_to_none=True)  # the gradients lie in the graph's memory
        return "the CUDA graph of the step is let go"

    def state(self) -> dict[str, Any]:
        return {"accumulation": self.accumulation, "scaler": self.scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.accumulation = max(self.accumulation, state["accumulation"])  # memory that ran out once will again
        self.scaler.load_state_dict(state["scaler"])


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators. With it a repeated step, or a resumed training, draws the same dropout."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {"cuda": torch.cuda.get_rng_state(device)}


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def why_no_graph(device: torch.device, precision: str, model: nn.Module) -> str:
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if precision == "fp16":
        return "a step in fp16, which may be left out, is not captured"
    if getattr(model, "checkpoint_activations", False):
        return "activations that are computed again set the random state back, which cannot be captured"
    if any(isinstance(part, nn.RNNBase) and part.num_layers > 1 and part.dropout > 0 for part in model.modules()):
        return "cuDNN keeps the random state of dropout between an RNN's layers to itself"
    return ""


class Graph:
    """A step captured once and replayed for every batch of the same shapes.

    The first batches of training are the warm-up: they are real steps, taken on a side stream. The optimizer must be
    `capturable` and its learning rate a tensor, which the schedule changes in place between two replays.
    """

    def __init__(self) -> None:
        self.num_done = 0
        self.shapes: list[torch.Size] = []  # of the batches it is for
        self.captured: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.output = torch.empty(0)

    @property
    def is_captured(self) -> bool:
        return self.captured is not None

    def is_supported(self, batch: Batch) -> bool:
        """Batches of the first one's shapes: an epoch begins with a whole batch, the ragged one is its last."""
        shapes = [tensor.shape for tensor in tensors_of(batch)]
        self.shapes = self.shapes or shapes
        return shapes == self.shapes

    def __call__(self, batch: Batch, step: Step) -> Tensor:
        if self.captured is None:
            if self.num_done < NUM_WARMUP_STEPS:
                self.num_done += 1
                return on_side_stream(step.eager, batch)
            self.capture(batch, step)
        for static, tensor in zip(self.inputs, tensors_of(batch), strict=True):
            static.copy_(tensor, non_blocking=True)
        assert self.captured is not None
        self.captured.replay()
        return self.output.clone()

    def capture(self, batch: Batch, step: Step) -> None:
        """Record the step for batches shaped as this one; nothing is computed yet."""
        self.inputs = [tensor.clone() for tensor in tensors_of(batch)]
        values, mask, targets, rows, *teacher_targets = self.inputs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step.once(Batch(values, mask, targets, rows, *teacher_targets))
        self.captured, self.output = graph, output


def tensors_of(batch: Batch) -> list[Tensor]:
    tensors = [batch.values, batch.mask, batch.targets, batch.rows]
    return tensors if batch.teacher_targets is None else [*tensors, batch.teacher_targets]


def on_side_stream(eager: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        summed = eager(batch)
    current.wait_stream(side)
    return summed
