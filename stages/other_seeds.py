"""Train with the seeds after the first one, in the process of `python -m tandem.stage train WORKLOAD DEVICE SEED...`.

The stage `replicate` starts this process: on a CPU one for each core, on a GPU one for all seeds.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from stages.train import Training, first_seed, opened
from tandem.command import sentence_of
from tandem.machine.measure import free_bytes
from tandem.stop_signals import GracefulStop
from tandem.training.batches import Split
from tandem.training.context import SHARE_OF_FREE_MEMORY, RunContext
from tandem.training.graphs import CaptureFailed
from tandem.training.oom import OomPolicy, OutOfMemory, advice, free_cache, translate_oom
from tandem.training.seed_group import Member, SeedGroup
from tandem.training.trainer import Epoch
from tandem.training.workers import process_group


def train_replicates(contexts: Sequence[RunContext]) -> list[str]:
    """Train with several seeds. Returns the errors.

    On a GPU, as many trainings as fit into its memory take their steps as branches of one CUDA graph. If memory runs
    out nevertheless, half as many resume from their checkpoints. All other trainings run one after the other.
    """
    errors: list[str] = []
    first, waiting, size = contexts[0], list(contexts), num_branches(contexts[0])
    with process_group(first.device, first.num_workers, first.kind) as workers, GracefulStop() as interruption:
        while waiting:
            now = waiting[:size]
            try:
                if len(now) > 1:
                    errors += train_together(now, interruption)
                else:
                    with opened(now[0], interruption, workers) as training:
                        training.train(workers)
            except (OutOfMemory, CaptureFailed) as error:
                if len(now) == 1:
                    errors.append(f"seed {now[0].seed}: {error}")
                else:
                    size = len(now) // 2 if isinstance(error, OutOfMemory) else 1
                    print(f"{error}; continuing with {size} instead of {len(now)} seeds at a time", flush=True)
                    free_cache()
                    continue
            except (ValueError, OSError) as error:
                errors.append(f"seed {now[0].seed}: {sentence_of(error)}")
            waiting = waiting[len(now) :]
    return errors


def num_branches(context: RunContext) -> int:
    """How many trainings fit on the GPU at a time, by the memory that the first seed needed without the data. 1 if its
    steps were not captured or its data was not on the device.
    """
    first = first_seed(context)
    peak_mib = first.timing["timing"]["peak_reserved_mib"]
    if (
        first.train["realized"].get("step") != "graph"
        or first.timing["placement"]["data_location"] != "device"
        or peak_mib is None
    ):
        return 1
    device = context.open_device(1)
    data_bytes = sum(context.plan["bytes"].values())
    own_bytes = max(peak_mib * 2**20 - data_bytes, 2**20)
    return max(1, int((SHARE_OF_FREE_MEMORY * free_bytes(device) - data_bytes) / own_bytes))


class Branch:
    """A training in a group of seeds. It fails and ends without the others."""

    def __init__(self, context: RunContext, stack: ExitStack) -> None:
        self.context, self.error, self.is_running = context, "", True
        self.resources = stack.enter_context(ExitStack())  # the checkpoint's lock, and the run's record
        self.training: Training
        self.member: Member

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In this context, an error ends only this training. An OutOfMemory concerns all, and is raised."""
        try:
            yield
        except OutOfMemory:
            raise
        except (ValueError, OSError) as error:
            self.error, self.is_running = f"seed {self.context.seed}: {sentence_of(error)}", False
            self.resources.__exit__(type(error), error, error.__traceback__)

    def open(self, device: torch.device, interruption: GracefulStop, splits: tuple[Split, Split] | None) -> None:
        """Open the training. `splits`: train and val of another training of the group."""
        self.training = self.resources.enter_context(opened(self.context, interruption))
        self.member = Member(device, partial(self.training.open, splits=splits))
        with self.member.random_state():
            self.training.begin()
        if self.training.record.is_finished:
            self.end()

    def record_epoch(self, epoch: Epoch) -> None:
        with self.member.random_state():
            self.training.record_epoch(epoch)
        if epoch.number == self.context.train_params.epochs:
            self.end()

    def end(self) -> None:
        with self.member.random_state():
            self.training.end()
        self.is_running = False
        self.resources.close()


def train_together(contexts: Sequence[RunContext], interruption: GracefulStop) -> list[str]:
    """Train with several seeds at the same time on one GPU. Returns the errors of single seeds."""
    group = SeedGroup(contexts[0].open_device(1, contexts[0].train_params.precision))
    with ExitStack() as stack:
        branches, splits = [Branch(context, stack) for context in contexts], None
        for branch in branches:
            with branch.alone():
                branch.open(group.device, interruption, splits)
                splits = branch.member.trainer.train_split, branch.member.trainer.val_split
        running = [branch for branch in branches if branch.is_running]
        for branch in running:
            branch.training.record.num_together = len(running)
        if running:
            print(f"{len(running)} seeds at a time, as branches of one CUDA graph", flush=True)
        while running:
            group.members = [branch.member for branch in running]
            with translate_oom(OomPolicy(advice=advice(group.device))):
                epochs = group.epoch()
            is_interrupted = False
            for branch, epoch in zip(running, epochs, strict=True):
                try:
                    with branch.alone():
                        branch.record_epoch(epoch)
                except KeyboardInterrupt:  # raised again when the others have saved their checkpoints
                    is_interrupted = True
            if is_interrupted:
                raise KeyboardInterrupt
            running = [branch for branch in running if branch.is_running]
    return [branch.error for branch in branches if branch.error]
