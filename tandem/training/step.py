"""One optimizer step: `take_step` computes the gradients of a batch and updates the weights; `Step` has what it needs.

train.step in params.yaml selects how it is executed. `eager` is plain PyTorch. `graph` captures the step as a CUDA
graph and replays it (graph_steps.py): one launch instead of hundreds. `compile` passes the model to torch.compile.
`auto` is `graph` if possible, otherwise `eager`. If a graph is asked for and not possible, `Execution.why_no_graph`
says why.

Mixed precision: Micikevicius et al. 2018, arXiv:1710.03740.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tandem.devices.graphs import Graphs
from tandem.machine.threads import using_threads
from tandem.models import kernels
from tandem.models.kernels import dropout
from tandem.tasks import Task
from tandem.training.batches import Batch
from tandem.training.execution import Execution, autocast
from tandem.training.executor import Executor
from tandem.training.workers import ALONE, Workers, gradient_sync

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, their batch) -> mean over its sequences


def take_step(step: "Step", batch: Batch, norm: Tensor | None = None) -> Tensor:
    """Compute the gradients of the batch's mean loss, in `grad_accum_steps` parts, and update the weights. Return the
    loss summed over the sequences, a scalar on the device. `norm` (1,), if given, gets the norm of the gradients before
    they are clipped.

    The outputs are (B, C), or (B, T, C) with one for each time step, in float32 on the device; the loss is a scalar.
    With several workers, the gradients are those of the mean over the sequences of all workers; the returned sum is
    over this worker's. Only the last lines change weights, so a step that fails before can be repeated. The forward
    pass may change buffers: `Step` sets them back.
    """
    step.optimizer.zero_grad(set_to_none=True)
    total: Any = None
    execution = step.execution
    parts = batch.micro_batches(execution.grad_accum_steps)
    for part in parts:
        with step.for_share(part, is_last=part is parts[-1]):
            with autocast(execution.precision, execution.device.torch_device), kernels.noted_in(step.kernels_used):
                outputs = step.forward(*part.inputs()).float()
            loss = step.loss(outputs, part)
            # DistributedDataParallel averages over the workers; this factor makes it a sum.
            weight = part.num_counted / batch.global_size * step.workers.count
            step.scaler.scale(loss if weight == 1 else loss * weight).backward()
        summed = loss.detach() * part.num_counted
        total = summed if total is None else total + summed
    if step.max_grad_norm:
        step.scaler.unscale_(step.optimizer)
        norm_before = nn.utils.clip_grad_norm_(step.weights, step.max_grad_norm)
        if norm is not None:
            norm.copy_(norm_before)
    step.scaler.step(step.optimizer)
    step.scaler.update()
    return total


def take_step_in_capture(step: "Step", batch: Batch, norm: Tensor | None = None) -> Tensor:
    """`take_step` in a capture. Raises RuntimeError if the network replaces a buffer: every replay would read the old
    one, whose memory is free. After an error it has its old buffers, because a failed capture has computed nothing.
    """
    before = [(module._buffers, dict(module._buffers)) for module in step.model.modules()]
    try:
        total = take_step(step, batch, norm)
        for buffers, buffers_before in before:
            for name, buffer in buffers_before.items():
                if buffers[name] is not buffer:
                    raise RuntimeError(f"forward replaces the buffer {name}; use self.{name}.copy_(...)")
        return total
    except Exception:
        for buffers, buffers_before in before:
            buffers.update(buffers_before)
        raise


class Step:
    """`step(batch)` updates the weights and returns the loss, summed over the sequences, as a scalar on the device.

    It executes as `executor.execution` says. With CUDA graphs, `GraphSteps` (graph_steps.py) replays captured steps and
    calls `step(batch)` only for warm-ups.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, executor: Executor, max_grad_norm: float
    ) -> None:
        self.model, self.loss, self.optimizer, self.executor = model, loss, optimizer, executor
        self.weights = list(model.parameters())
        self.max_grad_norm = max_grad_norm
        self.scaler = self.new_scaler()  # checkpoints contain its state
        self.workers = ALONE
        self.forward: Callable[..., Tensor] = model
        self.kernels_used_in: dict[str, set[str]] = {}  # precision -> the kernels that its forward passes chose
        if self.execution.step == "compile":
            for function in (kernels.choose, kernels.note):  # called while the network is traced, not in every step
                torch.compiler.assume_constant_result(function)
            # torch.set_deterministic_debug_mode does not set it; it ends padding by measured times, for example.
            import torch._inductor.config as inductor

            inductor.deterministic = self.execution.deterministic
            self.forward = torch.compile(model, dynamic=False)

    @property
    def execution(self) -> Execution:
        return self.executor.execution

    @property
    def graphs(self) -> Graphs | None:
        """What captures steps; None if they are eager or compiled."""
        return self.executor.graphs

    @property
    def kernels_used(self) -> set[str]:
        """The kernels that training steps chose in the present precision: `auto` also tries others."""
        return self.kernels_used_in.setdefault(self.execution.precision, set())

    def use_workers(self, workers: Workers) -> None:
        """Sum the gradients of all workers in every later step."""
        self.workers = workers
        self.forward = workers.wrap(self.model, self.execution.device.torch_device)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def __call__(self, batch: Batch, norm: Tensor | None = None) -> Tensor:
        """Take an eager or compiled step. If memory runs out, take a fallback and repeat the step."""
        before = self.execution.device.random_state()
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # a BatchNorm changes its statistics

        def attempt() -> Tensor:
            try:
                return take_step(self, batch, norm)
            except Exception:
                self.clear()
                self.execution.device.set_random_state(before)
                for buffer, content in buffers:
                    buffer.copy_(content)
                raise

        if self.workers.count > 1:  # the others would wait for a step that this one repeats: all end
            return attempt()
        return self.executor.run_with_fallbacks(attempt, "step", len(batch))

    def new_scaler(self) -> torch.amp.GradScaler:
        """A loss scaler, which does nothing without fp16."""
        return torch.amp.GradScaler(self.execution.device.torch_device.type, enabled=self.execution.precision == "fp16")

    def clear(self) -> None:
        """Remove what a failed step left behind: gradients, incomplete optimizer states, the scaler's flags."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in [parameter for parameter, state in self.optimizer.state.items() if "exp_avg_sq" not in state]:
            del self.optimizer.state[parameter]
        for name in ("grad_scale", "found_inf"):  # GradScaler.step does not remove them if the optimizer's step fails
            vars(self.optimizer).pop(name, None)
        if self.scaler.is_enabled():  # it stays the same object: graphs read its tensors
            self.scaler._per_optimizer_states.clear()

    @contextmanager
    def for_share(self, part: Batch, is_last: bool) -> Iterator[None]:
        """In this context, a worker's sequences get the dropout that they would get in the micro-batch of all workers,
        and the backward pass sums the gradients of all workers after the last part of the batch.
        """
        sharing: AbstractContextManager[object] = nullcontext()
        if part.shares:
            (share,) = part.shares
            sharing = dropout.sharing(share.first, share.global_size)
        with gradient_sync(self.forward, is_last), sharing:
            yield

    def give_up_graph(self, error: RuntimeError) -> None:
        """Take eager steps from now on, or raise `error` if a graph has no part in it. No step is lost."""
        self.executor.give_up_graph(error)
        self.clear()


def loss_of(task: Task, label_smoothing: float) -> Loss:
    """Return the task's loss of a batch. It holds no trainer: a reference cycle would hold GPU memory until a garbage
    collection.
    """

    def loss(outputs: Tensor, batch: Batch) -> Tensor:
        with using_threads(1):  # a mean over all elements depends on the number of threads
            return task.loss(outputs, batch.targets, batch.mask, label_smoothing)

    return loss
