"""Trains several seeds at the same time on one GPU: their steps are parallel branches of one CUDA graph.

A small network leaves most of a GPU idle. Here the trainings share the data, and each has its own weights, optimizer,
order, random draws and random state. The kernels and shapes of a branch are those of a single training, so each seed
gets the same bits as alone. tests/gpu/test_gpu_seeds.py requires this.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tandem.machine.measure import measure
from tandem.training.graph_steps import NUM_LAST_BATCH_WARMUPS, GraphSteps
from tandem.training.graphs import NUM_WARMUPS, Graphs
from tandem.training.trainer import Epoch, Trainer


class Member:
    """One training of a group. torch has one random state for each device, so a member stores its own."""

    def __init__(self, device: torch.device, make: Callable[[], Trainer]) -> None:
        """Make the trainer. If memory runs out later, it raises instead of taking a fallback alone."""
        self.default = torch.cuda.default_generators[device.index or 0]
        self.generator, self.cpu_state = self.default.clone_state(), torch.get_rng_state()
        self.stream = torch.cuda.Stream(device)
        self.steps: GraphSteps  # of the current epoch
        with self.random_state():
            self.trainer = make()
        self.trainer.step.may_fall_back = self.trainer.oom.enabled = False

    @contextmanager
    def random_state(self) -> Iterator[None]:
        """In this context, torch draws the random numbers of this training, also while a graph is captured."""
        before, cpu_before = self.default.graphsafe_get_state(), torch.get_rng_state()
        self.default.graphsafe_set_state(self.generator)
        torch.set_rng_state(self.cpu_state)
        try:
            yield
        finally:
            self.cpu_state = torch.get_rng_state()
            torch.set_rng_state(cpu_before)
            self.default.graphsafe_set_state(before)


class SeedGroup:
    """Takes the epochs of its members together. `members` may change between two epochs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.members: list[Member] = []
        self.captured_for: list[Member] = []
        self.graphs: Graphs

    def epoch(self) -> list[Epoch]:
        """Train and validate every member for one epoch. Raises torch.OutOfMemoryError if memory runs out."""
        if self.captured_for != self.members:
            self.captured_for = list(self.members)
            self.graphs = Graphs(self.device, [member.generator for member in self.members])
        for member in self.members:
            with member.random_state():
                member.steps = member.trainer.begin_graph_epoch()
        first = self.members[0].trainer
        num_full = len(first.train_split) // first.params.batch_size
        with measure(self.device) as training:
            for index in range(first.steps_per_epoch):
                self.run_step(is_full=index < num_full)
            losses = [member.trainer.total / len(first.train_split) for member in self.members]
        epochs = []
        for member, loss in zip(self.members, losses, strict=True):
            with member.random_state():
                epochs.append(member.trainer.end_epoch(training, loss, member.trainer.last_rate))
        return epochs

    def run_step(self, is_full: bool) -> None:
        """Take the next step of every member."""
        warm_up, work = partial(self.take_steps, is_full), partial(self.branch, is_full)
        self.graphs.run(("step", is_full), warm_up, work, NUM_WARMUPS if is_full else NUM_LAST_BATCH_WARMUPS)

    def take_steps(self, is_full: bool) -> None:
        """Take a step of one member after the other, not captured."""
        for member in self.members:
            with member.random_state():
                member.steps.take_step(member.trainer.step, is_full)

    def branch(self, is_full: bool) -> None:
        """The work that is captured: a branch for each member."""
        trunk = torch.cuda.current_stream(self.device)
        for member in self.members:
            member.stream.wait_stream(trunk)
            with torch.cuda.stream(member.stream), member.random_state():
                member.steps.take_step(member.trainer.step.update, is_full)
        for member in self.members:
            trunk.wait_stream(member.stream)
