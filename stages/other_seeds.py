"""Train with the seeds after the first one, in the process of `python -m tandem.stage train WORKLOAD DEVICE SEED...`.

The stage `replicate` starts this process: on a CPU one for each core, on a GPU one for all seeds.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from stages.train import Training, first_seed, opened
from tandem.command import sentence_of
from tandem.machine.measure import free_bytes
from tandem.stop_signals import GracefulStop
from tandem.training.context import SHARE_OF_FREE_MEMORY, RunContext
from tandem.training.graphs import CaptureFailed
from tandem.training.oom import OomPolicy, OutOfMemory, advice, free_cache, translate_oom
from tandem.training.seed_group import Member, SeedGroup
from tandem.training.workers import process_group


def train_replicates(contexts: Sequence[RunContext]) -> list[str]:
    """Train with several seeds. Returns the errors.

    On a GPU, as many trainings as fit into its memory take their steps as branches of one CUDA graph. If memory runs
    out nevertheless, half as many go on from their checkpoints. All other trainings take turns.
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
                    print(f"{error}: {size} instead of {len(now)} seeds at a time go on", flush=True)
                    free_cache()
                    continue
            except (ValueError, OSError) as error:
                errors.append(f"seed {now[0].seed}: {sentence_of(error)}")
            waiting = waiting[len(now) :]
    return errors


def num_branches(context: RunContext) -> int:
    """How many trainings fit on the GPU at a time, by the memory that the first seed needed beside the data. 1 if its
    steps were not captured or its data was not on the device.
    """
    first = first_seed(context)
    peak_mib = first.timing["timing"]["peak_reserved_mib"]
    if (
        first.train["realized"]["step"] != "graph"
        or first.timing["placement"]["data_location"] != "device"
        or peak_mib is None
    ):
        return 1
    device = context.open_device(1)
    data_bytes = sum(context.plan["bytes"].values())
    own_bytes = max(peak_mib * 2**20 - data_bytes, 2**20)
    return max(1, int((SHARE_OF_FREE_MEMORY * free_bytes(device) - data_bytes) / own_bytes))


def train_together(contexts: Sequence[RunContext], interruption: GracefulStop) -> list[str]:
    """Train with several seeds at the same time on one GPU. Returns the errors of single seeds."""
    group, errors = SeedGroup(contexts[0].open_device(1, contexts[0].train_params.precision)), list[str]()
    running: list[tuple[Member, Training, ExitStack]] = []

    def close(own: ExitStack, error: Exception | None = None) -> None:
        """Close the records of a training that has ended, or has failed with `error`."""
        own.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    with ExitStack() as stack:
        splits = None
        for context in contexts:
            own = stack.enter_context(ExitStack())
            try:
                training = own.enter_context(opened(context, interruption))
                member = Member(group.device, partial(training.open, splits=splits))
                splits = member.trainer.train_split, member.trainer.val_split
                with member.random_state():
                    training.begin()
                    if training.record.at_end:
                        training.end()
                        own.close()
                        continue
            except OutOfMemory:
                raise
            except (ValueError, OSError) as error:
                errors.append(f"seed {context.seed}: {sentence_of(error)}")
                close(own, error)
                continue
            running.append((member, training, own))
        for _, training, _ in running:
            training.record.num_together = len(running)
        if running:
            print(f"{len(running)} seeds at a time, as branches of one CUDA graph", flush=True)
        while running:
            group.members = [member for member, _, _ in running]
            with translate_oom(OomPolicy(advice=advice(group.device))):
                epochs = group.epoch()
            is_interrupted = False
            for (member, training, own), epoch in zip(list(running), epochs, strict=True):
                failed = None
                try:
                    with member.random_state():
                        training.add(epoch)
                        if epoch.number < training.context.train_params.epochs:
                            continue
                        training.end()
                except (ValueError, OSError) as error:
                    failed = error
                    errors.append(f"seed {training.context.seed}: {sentence_of(error)}")
                except KeyboardInterrupt:  # raised again when the others have saved their checkpoints
                    is_interrupted = True
                    continue
                running.remove((member, training, own))
                close(own, failed)
            if is_interrupted:
                raise KeyboardInterrupt
    return errors
