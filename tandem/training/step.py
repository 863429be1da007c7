"""One optimizer step on one batch: forward, backward, clip, update.

train.step in params.yaml selects the execution mode. `eager` is plain PyTorch. `graph` captures the step as a CUDA
graph and replays it (graphs.py): one launch instead of hundreds. `compile` passes the model to torch.compile. `auto` is
`graph` if possible, otherwise `eager`. If the requested mode is not possible, steps are eager and
`Step.eager_reason` says why.

Mixed precision: Micikevicius et al. 2018, arXiv:1710.03740.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn

from tandem.machine.threads import num_threads
from tandem.models import kernels
from tandem.models.kernels import dropout
from tandem.tasks import Task
from tandem.training.batches import Batch
from tandem.training.graphs import CaptureFailed, Graphs
from tandem.training.loop import take_step
from tandem.training.oom import OomPolicy, free_cache, is_out_of_memory, shorten
from tandem.training.workers import ALONE, Workers, gradient_sync

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, their batch) -> mean over its sequences


class Step:
    """`step(batch)` updates the weights and returns the loss, summed over the sequences, as a scalar on the device.

    With `graphs`, `GraphSteps` (graph_steps.py) captures `take_step` (loop.py) and replays it; `step(batch)` takes the
    warm-ups. Without, or after the graphs are given up, `step(batch)` takes every step.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        grad_accum_steps: int,
        precision: str,
        execution_mode: str,
        eager_reason: str = "",
        device: torch.device,
        oom: OomPolicy | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.weights = list(model.parameters())
        self.max_grad_norm, self.grad_accum_steps, self.precision = max_grad_norm, grad_accum_steps, precision
        self.device = device
        # Disabled (a no-op) without fp16. Checkpoints contain its state.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.oom = oom or OomPolicy(model)
        step = proxy(self)  # avoids a reference cycle, which would hold GPU memory until a garbage collection
        self.oom.free_graphs = lambda: step.free_graphs()
        self.workers = ALONE
        self.eager_reason = eager_reason  # why no graph is captured, also on a CPU; empty if params.yaml asks for none
        self.gave_up_reason = ""  # why the training stopped using its graph; checkpoints contain it
        self.forward: Callable[..., Tensor] = model
        self.is_compiled = execution_mode == "compile"
        self.kernels_used_in: dict[str, set[str]] = {}  # precision -> the kernels that its forward passes chose
        if execution_mode == "compile":
            for function in (kernels.choose, kernels.note):  # called while the network is traced, not in every step
                torch.compiler.assume_constant_result(function)
            self.forward = torch.compile(model, dynamic=False)
        self.graphs = Graphs(device) if execution_mode == "graph" else None

    @property
    def execution_mode(self) -> str:
        """How steps are taken now: `graph`, `compile` or `eager`."""
        return "graph" if self.graphs else "compile" if self.is_compiled else "eager"

    @property
    def kernels_used(self) -> set[str]:
        """The kernels that training steps chose in the present precision: `auto` also tries others."""
        return self.kernels_used_in.setdefault(self.precision, set())

    @property
    def may_fall_back(self) -> bool:
        """Whether a lack of memory may change how steps are taken. If one of several workers lacks it, all end."""
        return self.oom.may_fall_back and self.workers.count == 1

    def use_workers(self, workers: Workers) -> None:
        """Sum the gradients of all workers in every later step."""
        self.workers = workers
        self.forward = workers.wrap(self.model, self.device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def __call__(self, batch: Batch) -> Tensor:
        """Take an eager or compiled step. If memory runs out, take a fallback and repeat the step."""
        before = random_state(self.device)

        def attempt() -> Tensor:
            try:
                return take_step(self, batch)
            except Exception:
                self.clear()
                set_random_state(before, self.device)
                raise

        if not self.may_fall_back:
            return attempt()
        smaller = partial(self.use_smaller_micro_batches, len(batch))
        return self.oom.run_with_fallbacks(attempt, smaller, self.oom.recompute_activations)

    def repeated(self, batch: Batch) -> Callable[[], None]:
        """Returns a function that takes a step on this batch in the training's execution mode, for measurements."""
        key = object()

        def step() -> None:
            if self.graphs is not None:
                try:
                    return self.graphs.run(key, partial(self, batch), partial(take_step, self, batch))
                except RuntimeError as error:
                    self.give_up_graphs_after(error)
            self(batch)

        return step

    def clear(self) -> None:
        """Remove what a failed step left behind: gradients, incomplete optimizer states, the scaler's flags."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in [each for each, state in self.optimizer.state.items() if "exp_avg_sq" not in state]:
            del self.optimizer.state[parameter]
        for name in ("grad_scale", "found_inf"):  # GradScaler.step does not remove them if the optimizer's step fails
            vars(self.optimizer).pop(name, None)
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        scaler.load_state_dict(self.scaler.state_dict())
        self.scaler = scaler

    @contextmanager
    def shared(self, part: Batch, is_last: bool) -> Iterator[None]:
        """In this context, a worker's sequences get the dropout that they would get in the micro-batch of all workers,
        and the backward pass sums the gradients of all workers after the last part of the batch.
        """
        sharing: AbstractContextManager[object] = nullcontext()
        if part.shares:
            (share,) = part.shares
            sharing = dropout.sharing(share.first, share.global_size)
        with gradient_sync(self.forward, is_last), sharing:
            yield

    def use_smaller_micro_batches(self, batch_size: int) -> str:
        if self.grad_accum_steps >= batch_size:
            return ""
        self.grad_accum_steps = min(2 * self.grad_accum_steps, batch_size)
        return f"a batch of {batch_size} is trained on in {self.grad_accum_steps} parts"

    def free_graphs(self) -> str:
        if self.graphs is None or not self.graphs.captured:
            return ""
        # Clear the graphs, because setting `self.graphs` to None is not enough: a method of `graphs` is still running.
        self.graphs.captured.clear()
        self.give_up_graphs("memory ran out")
        self.optimizer.zero_grad(set_to_none=True)  # the gradients are in the graph's memory
        return "the CUDA graph of the step is freed, and the next steps are eager"

    def take_eagerly(self, reason: str) -> None:
        self.graphs, self.eager_reason = None, reason

    def give_up_graphs(self, reason: str) -> None:
        """Take eager steps in the rest of the training, also after a resume."""
        self.take_eagerly(reason)
        self.gave_up_reason = reason

    def drop_graphs(self) -> None:
        """Drop the captured graphs, because their tensors have moved. Later steps capture new ones if possible."""
        if self.graphs is None:
            return
        if reason := graph_blocker(self.device, self.precision, self.model):
            self.take_eagerly(reason)
        else:
            self.graphs, self.eager_reason = Graphs(self.device), ""

    def give_up_graphs_after(self, error: RuntimeError) -> None:
        """Take eager steps after a failed capture, or if the graphs left too little memory. No step is lost.

        Raises `error` if it has another cause, or if memory ran out and `may_fall_back` is false.
        """
        is_memory = is_out_of_memory(error)
        if not isinstance(error, CaptureFailed) and not (is_memory and self.may_fall_back):
            raise error
        freed = self.free_graphs() if is_memory else ""
        if not freed:
            self.give_up_graphs(f"the capture failed: {shorten(error)}")
            self.clear()
        if is_memory:
            self.oom.add_fallback(freed or "the step is taken eagerly instead of captured as a CUDA graph")
            free_cache()
        elif self.may_fall_back:
            print(f"steps are taken eagerly instead of captured as a CUDA graph: {error}", flush=True)

    def state(self) -> dict[str, Any]:
        return {
            "grad_accum_steps": self.grad_accum_steps,
            "scaler": self.scaler.state_dict(),
            "gave_up_reason": self.gave_up_reason,
        }

    def restore(self, state: dict[str, Any]) -> None:
        # Larger micro-batches ran out of memory before.
        self.grad_accum_steps = max(self.grad_accum_steps, state["grad_accum_steps"])
        self.scaler.load_state_dict(state["scaler"])
        self.gave_up_reason = state["gave_up_reason"]
        if self.gave_up_reason and self.graphs is not None:
            self.give_up_graphs(self.gave_up_reason)


def loss_of(task: Task, label_smoothing: float) -> Loss:
    """Return the task's loss of a batch. It holds no trainer: a reference cycle would hold GPU memory until a garbage
    collection.
    """

    def loss(outputs: Tensor, batch: Batch) -> Tensor:
        with num_threads(1):  # a mean over all elements depends on the number of threads
            return task.loss(outputs, batch.targets, batch.mask, label_smoothing)

    return loss


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators. A repeated step or a resumed training needs it to draw the same dropout."""
    state = {"cpu": torch.get_rng_state()}
    return state if device.type == "cpu" else state | {"cuda": torch.cuda.get_rng_state(device)}


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def choose_execution_mode(requested: str, device: torch.device, precision: str, model: nn.Module) -> tuple[str, str]:
    """The execution mode for `requested` (train.step in params.yaml), and the reason if a graph is not possible."""
    if requested not in ("auto", "graph"):
        return requested, ""
    reason = graph_blocker(device, precision, model)
    return ("eager" if reason else "graph"), reason


def graph_blocker(device: torch.device, precision: str, model: nn.Module) -> str:
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if getattr(model, "checkpoint_activations", False):
        return "recomputing activations resets the random state, which cannot be captured"
    rnns = [each for each in model.modules() if isinstance(each, nn.RNNBase)]
    if any(rnn.num_layers > 1 and rnn.dropout > 0 and not hasattr(rnn, "uses_torch_dropout") for rnn in rnns):
        return "cuDNN does not expose the random state of dropout between the layers of an RNN"
    return ""
