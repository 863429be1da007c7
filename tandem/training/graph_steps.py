"""The steps of an epoch as CUDA graphs. All inputs are on the device, so the host only replays a graph per step.

    order (N,), random draws, learning rates    copied once per epoch into static tensors (their memory never moves)
    batch_index                                 (1,) on the device: the batches of the epoch so far

`take_next` reads the next batch of the order, applies its random draws, sets the learning rate, updates the weights,
adds the loss to `loss_sum` and 1 to `batch_index`, and keeps the norm of the gradients. It is captured once for full
batches and, in the same memory pool, once for the smaller last batch. The steps before a capture are taken eagerly and
warm the libraries up.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tandem.devices.graphs import NUM_WARMUPS
from tandem.training.batches import TENSORS, Batch, Split
from tandem.training.random_draws import RandomDraws
from tandem.training.step import Step, take_step_in_capture

NUM_LAST_BATCH_WARMUPS = 1  # the warm-ups of the full batches have already initialized the libraries


class GraphSteps:
    """Takes the steps of every epoch as CUDA graphs, adds their losses to `loss_sum`, a scalar on the device, and keeps
    their gradients' norms in `norms` (num_batches,).

    Requires `step.graphs`, data on the device and an optimizer whose learning rate is a tensor. The results are bitwise
    identical to those of eager steps: tests check this on the CPU, where `take_next` runs uncaptured.
    """

    def __init__(self, step: Step, split: Split, batch_size: int, loss_sum: Tensor, norms: Tensor) -> None:
        device = step.execution.device.torch_device
        assert step.graphs is not None
        self.step, self.split, self.batch_size, self.loss_sum = step, split, batch_size, loss_sum
        self.graphs = step.graphs  # the step has others as soon as it is executed in another way
        self.num_full_batches, self.last_batch_size = divmod(len(split), batch_size)
        self.num_batches = self.num_full_batches + bool(self.last_batch_size)
        self.batch_index = torch.zeros(1, dtype=torch.int64, device=device)
        self.norms, self.norm = norms, torch.full((1,), torch.nan, device=device)
        self.indices = torch.arange(self.num_batches, device=device)
        self.rates = torch.zeros(self.num_batches, device=device)
        self.order = torch.zeros(len(split), dtype=torch.int64, device=device)
        full, self.last_rows = self.order.split([self.num_full_batches * batch_size, self.last_batch_size])
        self.full_rows = full.view(self.num_full_batches, batch_size)
        self.random_draws: RandomDraws | None = None

    def steps(self, random_draws: RandomDraws, rates: Tensor) -> Iterator[int]:
        """Take the steps of an epoch with the learning rates (num_batches,); yield the number of sequences of each.

        If a capture fails or a fallback is taken, the iterator ends early: the caller takes the other steps eagerly.
        """
        self.step.executor.run_with_fallbacks(lambda: self.start_epoch(random_draws, rates))
        for index in range(self.num_batches):
            if self.graphs is not self.step.graphs:
                return
            is_full = index < self.num_full_batches
            try:
                self.run_step(is_full)
            except RuntimeError as error:
                self.step.give_up_graph(error)
                return
            yield self.batch_size if is_full else self.last_batch_size

    def run_step(self, is_full: bool) -> None:
        update = partial(take_step_in_capture, self.step)
        warm_up, work = partial(self.take_next, self.step, is_full), partial(self.take_next, update, is_full)
        self.graphs.run(("step", is_full), warm_up, work, NUM_WARMUPS if is_full else NUM_LAST_BATCH_WARMUPS)

    def start_epoch(self, random_draws: RandomDraws, rates: Tensor) -> None:
        self.order.copy_(random_draws.order)
        self.rates.copy_(rates)
        self.batch_index.zero_()
        if self.random_draws is None:
            self.random_draws = random_draws.to(self.step.execution.device.torch_device)
        for static, drawn in (
            (self.random_draws.augment, random_draws.augment),
            (self.random_draws.teacher_forcing_mask, random_draws.teacher_forcing_mask),
        ):
            if static is not None and drawn is not None:
                static.copy_(drawn)

    def take_next(self, update: Callable[[Batch, Tensor], Tensor], is_full: bool) -> None:
        """Take the next step. This code is captured, so it uses only tensors on the device.

        `update`: the Step in a warm-up, which falls back if memory runs out; in the capture `take_step_in_capture`.
        """
        assert self.random_draws is not None
        rows = self.full_rows.index_select(0, self.batch_index).squeeze(0) if is_full else self.last_rows
        values, mask, targets = (self.split.tensors[name].index_select(0, rows) for name in TENSORS)
        batch = self.random_draws.apply_to(Batch(values, mask, targets, rows))
        for group in self.step.optimizer.param_groups:
            group["lr"].copy_(self.rates.index_select(0, self.batch_index).squeeze(0))
        is_this_step = self.indices == self.batch_index
        # Nothing may fail after the update, or it would be repeated.
        self.loss_sum.add_(update(batch, self.norm))
        torch.where(is_this_step, self.norm, self.norms, out=self.norms)
        self.batch_index += 1
