"""An epoch of captured steps. All inputs are on the device, so the host only replays the CUDA graph.

    order (N,), random draws               copied once per epoch into static tensors (their memory never moves)
    rates (num_steps,)                     the learning rate schedule as a table (optimizer.py)
    number, step_number, total             scalars on the device
    once(): take the next batch of the order, apply its random draws, set the rate, update, total += loss, number += 1

`once` is captured for full batches and, in the same memory pool, for the smaller last batch. If the data does not fit
on the device, the host gathers a few batches at a time (`Chunks`) into static tensors.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import torch
from torch import Tensor

from stages.params.schema import Train
from stages.training.batches import TENSORS, Batch, Split, copy_stream
from stages.training.graphs import NUM_WARMUPS, CaptureFailed
from stages.training.memory import is_out_of_memory, shorten
from stages.training.random_draws import RandomDraws
from stages.training.step import Step

CHUNK_BYTES = 64 * 2**20  # upper limit for a chunk of streamed sequences, unless one batch is larger
NUM_CHUNKS = 8  # lower limit per epoch: two chunks are on the device, which may lack memory for the whole data
NUM_RAGGED_WARMUPS = 1  # the warm-ups of the full batches have already initialized the libraries


class DeviceEpoch:
    """Takes the steps of an epoch as CUDA graphs.

    Requires `step.graphs` and an optimizer whose learning rate is a tensor. The results are bitwise identical to those
    of trainer.take_steps: tests check this on the CPU, where `once` runs uncaptured.
    """

    def __init__(self, step: Step, split: Split, params: Train, rates: Tensor) -> None:
        device, size = step.device, params.batch_size
        self.step, self.split, self.params = step, split, params
        self.num_whole, self.num_ragged = divmod(len(split), size)
        self.rates = rates.to(device)
        self.number, self.step_number = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.total = torch.zeros((), device=device)  # summed loss of the sequences so far
        self.order = torch.zeros(len(split), dtype=torch.int64, device=device)
        whole, self.ragged_rows = self.order.split([self.num_whole * size, self.num_ragged])
        self.whole_rows = whole.view(self.num_whole, size)
        # Indices of a batch's sequences in the source tensors (the split's or a chunk's).
        self.whole_places, self.ragged_places = self.whole_rows, self.ragged_rows
        self.random_draws: RandomDraws | None = None
        self.chunks: Chunks | None = None
        if split.is_streamed:
            self.chunks = Chunks(split, size, self.num_whole)
            numbers = torch.arange(self.num_whole, device=device).unsqueeze(1) % self.chunks.num_batches
            self.whole_places = numbers * size + torch.arange(size, device=device)
            self.ragged_places = torch.arange(self.num_ragged, device=device)

    def steps(self, random_draws: RandomDraws, first_step: int) -> Iterator[int]:
        """Take the steps of an epoch; yield the number of sequences of each. The epoch starts at `first_step` of all.

        If a capture fails or memory runs out, the iterator ends early and the plain loop can take the remaining steps.
        """
        num_actions = len(self.step.oom.actions)
        self.step.oom.run_with_fallbacks(lambda: self.begin(random_draws, first_step))
        if len(self.step.oom.actions) > num_actions:
            return
        chunks = self.chunks.through(random_draws.order) if self.chunks else None
        for number in range(self.num_whole + bool(self.num_ragged)):
            is_whole = number < self.num_whole
            try:
                if self.chunks and chunks and (not is_whole or number % self.chunks.num_batches == 0):
                    next(chunks)
                self.take(is_whole)
            except CaptureFailed as failed:
                self.step.leave_graphs(failed)
                return
            except RuntimeError as error:  # making the batch raised it, before the weights changed
                if not is_out_of_memory(error) or not self.step.may_adapt:
                    raise
                if done := self.step.drop_graph():
                    self.step.oom.say(done)
                else:
                    self.step.leave_graphs(CaptureFailed(shorten(error), is_out_of_memory=True))
                return
            yield self.params.batch_size if is_whole else self.num_ragged
            if len(self.step.oom.actions) > num_actions:
                return

    def take(self, is_whole: bool) -> None:
        assert self.step.graphs is not None
        warm_up, work = partial(self.once, self.step, is_whole), partial(self.once, self.step.update, is_whole)
        self.step.graphs.run(("step", is_whole), warm_up, work, NUM_WARMUPS if is_whole else NUM_RAGGED_WARMUPS)

    def begin(self, random_draws: RandomDraws, first_step: int) -> None:
        self.order.copy_(random_draws.order)
        if self.random_draws is None:
            self.random_draws = random_draws.to(self.step.device)
        for static, drawn in (
            (self.random_draws.augment, random_draws.augment),
            (self.random_draws.teacher_forcing_mask, random_draws.teacher_forcing_mask),
        ):
            if static is not None and drawn is not None:
                static.copy_(drawn)
        self.number.zero_()
        self.step_number.fill_(first_step)
        self.total.zero_()

    def once(self, update: Callable[[Batch], Tensor], is_whole: bool) -> None:
        """Take the next step, using only tensors on the device."""
        assert self.random_draws is not None
        rows, places = self.ragged_rows, self.ragged_places
        if is_whole:
            rows, places = (
                table.index_select(0, self.number).squeeze(0) for table in (self.whole_rows, self.whole_places)
            )
        source = self.chunks.present if self.chunks else self.split.tensors
        values, mask, targets = (source[name].index_select(0, places) for name in TENSORS)
        batch = Batch(values, mask, targets, rows)
        batch = self.random_draws.apply_to(batch, self.params)
        for group in self.step.optimizer.param_groups:
            group["lr"].copy_(self.rates.index_select(0, self.step_number).squeeze(0))
        self.total += update(batch)
        self.number += 1
        self.step_number += 1


class Chunks:
    """Copies a few batches at a time to the device, into static tensors (`present`).

    While the device works on one chunk, a thread gathers the next one on the host and sends it.
    """

    def __init__(self, split: Split, batch_size: int, num_whole: int) -> None:
        batch_bytes = batch_size * sum(tensor[:1].nbytes for tensor in split.tensors.values())
        self.num_batches = max(1, min(CHUNK_BYTES // batch_bytes, num_whole // NUM_CHUNKS))
        self.num_whole, self.batch_size = num_whole, batch_size
        self.split, self.device = split, split.device
        num_rows = self.num_batches * batch_size
        self.host = split.buffers(num_rows)
        self.present = {name: torch.empty_like(host, device=self.device) for name, host in self.host.items()}
        self.ahead = self.host
        if self.device.type == "cuda":
            self.ahead = {name: torch.empty_like(tensor) for name, tensor in self.present.items()}
            self.side = copy_stream(self.device)
            for tensor in self.ahead.values():  # an epoch that ends early may free a tensor during a copy into it
                tensor.record_stream(self.side)
            self.sent, self.taken = torch.cuda.Event(), torch.cuda.Event()
        self.thread = ThreadPoolExecutor(1)
        self.pending: Future[None] | None = None  # the last chunk that was sent

    def through(self, order: Tensor) -> Iterator[None]:
        """Each `next` fills `present` with the next num_batches full batches, and finally with the smaller last batch.

        order: (N,) int64 on the CPU.
        """
        whole, ragged = order.split([self.num_whole * self.batch_size, len(order) - self.num_whole * self.batch_size])
        chunks = [rows for rows in (*whole.split(self.num_batches * self.batch_size), ragged) if len(rows)]
        if self.pending:  # left by an epoch that ended early; its errors do not matter any more
            wait([self.pending])
        sending = self.thread.submit(self.send, chunks[0])
        for rows, following in zip(chunks, [*chunks[1:], None], strict=True):
            sending.result()
            self.receive(len(rows))
            if following is not None:
                self.pending = sending = self.thread.submit(self.send, following)
            yield

    def send(self, rows: Tensor) -> None:
        """Gather the rows and start the copy to the device (runs in the thread)."""
        if self.device.type != "cuda":
            self.split.tensors_at(rows, self.host)
            return
        with torch.cuda.device(self.device):  # a new thread uses GPU 0 and would create a context there
            self.sent.synchronize()  # the previous copy no longer reads the host buffer
            self.split.tensors_at(rows, self.host)
            with torch.cuda.stream(self.side):
                self.side.wait_event(self.taken)
                for name, host in self.host.items():
                    self.ahead[name][: len(rows)].copy_(host[: len(rows)], non_blocking=True)
                self.sent.record(self.side)

    def receive(self, count: int) -> None:
        current = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        if current:
            current.wait_event(self.sent)
        for name, tensor in self.present.items():
            tensor[:count].copy_(self.ahead[name][:count])
        if current:
            self.taken.record(current)
