"""One optimizer step on one batch: forward, backward, clip, update. Only this module distinguishes execution modes.

`eager` is plain PyTorch. `graph` captures the step as a CUDA graph and replays it (graphs.py): one launch instead of
hundreds. `compile` passes the model to torch.compile. `auto` is `graph` if possible, otherwise `eager`. If the
requested mode is not possible, steps are eager and `Step.fallback_reason` says why. `OomPolicy` (memory.py) decides
what happens when memory runs out.

Mixed precision: Micikevicius et al. 2018, arXiv:1710.03740.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn

from stages.models.kernels import dropout
from stages.training.batches import Batch
from stages.training.graphs import CaptureFailed, Graphs
from stages.training.memory import OomPolicy, free_cache
from stages.training.workers import ALONE, Workers, not_last

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, their batch) -> mean over its sequences
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass. Weights and sums stay fp32. tf32 needs no context: `use_tf32` switches it."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext()


class Step:
    """`step(batch)` updates the weights and returns the loss, summed over the sequences, as a scalar on the device.

    If `graphs` is set, the training replays captured steps (epoch.py) and uses `step(batch)` for all other steps.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        accumulation: int,
        precision: str,
        execution_mode: str,
        fallback_reason: str = "",
        device: torch.device,
        oom: OomPolicy | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.parameters = list(model.parameters())
        self.max_grad_norm, self.accumulation, self.precision = max_grad_norm, accumulation, precision
        self.device = device
        # Disabled (a no-op) without fp16. Checkpoints contain its state.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.oom = oom or OomPolicy(model)
        step = proxy(self)  # avoids a reference cycle, which would hold GPU memory until a garbage collection
        self.oom.drop_graph = lambda: step.drop_graph()
        self.workers = ALONE
        self.may_adapt = True  # whether an OOM error may change how the training continues
        self.fallback_reason = fallback_reason  # why steps are eager, although a graph was requested or preferred
        self.graph_lost_reason = ""  # why the training stopped using its graph; checkpoints contain it
        self.forward: Callable[..., Tensor] = model
        self.is_compiled = execution_mode == "compile"
        if execution_mode == "compile":
            self.forward = torch.compile(model, dynamic=False)
        self.graphs = Graphs(device) if execution_mode == "graph" else None

    @property
    def execution_mode(self) -> str:
        """How steps are taken now: `graph`, `compile` or `eager`."""
        return "graph" if self.graphs else "compile" if self.is_compiled else "eager"

    def join(self, workers: Workers) -> None:
        """Sum the gradients of all workers in every later step. If one worker runs out of memory, all end."""
        self.workers, self.may_adapt = workers, False
        self.forward = workers.wrap(self.model, self.device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def __call__(self, batch: Batch) -> Tensor:
        """Take an eager or compiled step. If memory runs out, repeat it after each fallback."""
        before = random_state(self.device)

        def work() -> Tensor:
            try:
                return self.update(batch)
            except Exception:
                self.clear()
                set_random_state(before, self.device)
                raise

        if not self.may_adapt:
            return work()
        smaller = partial(self.take_smaller_parts, len(batch))
        return self.oom.run_with_fallbacks(work, smaller, self.oom.recompute)

    def repeated(self, batch: Batch) -> Callable[[], None]:
        """Returns a function that takes a step on this batch in the training's execution mode, for measurements."""
        key = object()

        def step() -> None:
            if self.graphs is not None:
                try:
                    return self.graphs.run(key, partial(self, batch), partial(self.update, batch))
                except CaptureFailed as failed:
                    self.leave_graphs(failed)
            self(batch)

        return step

    def update(self, batch: Batch) -> Tensor:
        """Take the step once. The weights change last, when nothing can run out of memory any more."""
        summed = self.backward(batch)
        if self.max_grad_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return summed

    def clear(self) -> None:
        """Remove what a failed step left behind: gradients, incomplete optimizer states, the scaler's flags."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in [each for each, kept in self.optimizer.state.items() if "exp_avg_sq" not in kept]:
            del self.optimizer.state[parameter]
        for name in ("grad_scale", "found_inf"):  # GradScaler.step does not remove them if the optimizer's step fails
            vars(self.optimizer).pop(name, None)
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        scaler.load_state_dict(self.scaler.state_dict())
        self.scaler = scaler

    def backward(self, batch: Batch) -> Tensor:
        """Accumulate the gradients of the batch's mean loss over `accumulation` parts. Returns the summed loss.

        With several workers, the gradients are of the mean over all workers' batch; the returned sum covers only this
        worker's sequences.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        parts = batch.parts(self.accumulation)
        for number, part in enumerate(parts, 1):
            with not_last(self.forward, number == len(parts)), drawn_as_one(part):
                with autocast(self.precision, self.device):
                    outputs = self.forward(*part.inputs())
                loss = self.loss(outputs.float(), part)
                # DistributedDataParallel divides by the number of workers; this factor cancels that.
                weight = part.num_counted / batch.num_whole * self.workers.count
                scaled: Tensor = self.scaler.scale(loss if weight == 1 else loss * weight)
                scaled.backward()  # type: ignore[no-untyped-call]
            summed = loss.detach() * part.num_counted
            total = summed if total is None else total + summed
        assert total is not None
        return total

    def take_smaller_parts(self, batch_size: int) -> str:
        if self.accumulation >= batch_size:
            return ""
        self.accumulation = min(2 * self.accumulation, batch_size)
        return f"a batch of {batch_size} is trained on in {self.accumulation} parts"

    def drop_graph(self) -> str:
        if self.graphs is None or not self.graphs.captured:
            return ""
        self.graphs.captured.clear()  # a caller that replays a graph now holds a reference to `graphs` until it is done
        self.lose_graphs("memory ran out")
        self.optimizer.zero_grad(set_to_none=True)  # the gradients are in the graph's memory
        return "the CUDA graph of the step is let go"

    def lose_graphs(self, reason: str) -> None:
        """Take eager steps from now on, also after a resume."""
        self.graphs, self.fallback_reason, self.graph_lost_reason = None, reason, reason

    def leave_graphs(self, failed: CaptureFailed) -> None:
        """Take eager steps after a failed capture. The capture computed nothing, so no step is lost.

        Raises torch.OutOfMemoryError if memory ran out and `may_adapt` is false.
        """
        self.lose_graphs(f"the capture failed: {failed}")
        self.clear()
        if failed.is_out_of_memory:
            if not self.may_adapt:
                raise torch.OutOfMemoryError(str(failed))
            self.oom.say("the step is taken eagerly instead of captured as a CUDA graph")
            free_cache()
        elif self.may_adapt:
            print(f"steps are taken eagerly instead of captured as a CUDA graph: {failed}", flush=True)

    def state(self) -> dict[str, Any]:
        return {
            "accumulation": self.accumulation,
            "scaler": self.scaler.state_dict(),
            "graph_lost_reason": self.graph_lost_reason,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.accumulation = max(self.accumulation, state["accumulation"])  # larger parts ran out of memory before
        self.scaler.load_state_dict(state["scaler"])
        self.graph_lost_reason = state["graph_lost_reason"]
        if self.graph_lost_reason and self.graphs is not None:
            self.lose_graphs(self.graph_lost_reason)


def drawn_as_one(part: Batch) -> AbstractContextManager[object]:
    """The context in which a worker's part gets the dropout mask that its sequences have in the whole part."""
    if not part.shares:
        return nullcontext()
    (share,) = part.shares
    return dropout.sharing(share.first, share.num_whole)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators. A repeated step or a resumed training needs it to draw the same dropout."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {"cuda": torch.cuda.get_rng_state(device)}


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def choose_mode(asked: str, device: torch.device, precision: str, model: nn.Module) -> tuple[str, str]:
    """The execution mode for `asked` (train.step in params.yaml), and the reason if a graph is not possible."""
    if asked not in ("auto", "graph"):
        return asked, ""
    reason = graph_blocker(device, precision, model)
    return ("eager" if reason else "graph"), reason


def graph_blocker(device: torch.device, precision: str, model: nn.Module) -> str:
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if precision == "fp16":
        return "a step in fp16, which may be left out, is not captured"
    if getattr(model, "checkpoint_activations", False):
        return "activations that are computed again set the random state back, which cannot be captured"
    rnns = [
        part for part in model.modules() if isinstance(part, nn.RNNBase) and not hasattr(part, "uses_torch_dropout")
    ]
    if any(part.num_layers > 1 and part.dropout > 0 for part in rnns):
        return "cuDNN keeps the random state of dropout between an RNN's layers to itself"
    return ""
