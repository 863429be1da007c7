"""Start the workers of one training, through torch's own launcher: `train` with a device such as `2xcpu` does.

Each worker is `python -m flows.stage train WORKLOAD DEVICE SEED` again, with torchrun's variables in its environment.
Where one is killed, all start again from the checkpoint; where one fails with a reason, that ends the training. Ctrl+C
(or SIGTERM) is for the first worker, which ends its epoch, saves, and tells the others.

On several machines torchrun's own variables are set (PET_NNODES, PET_RDZV_ENDPOINT, ..., `torchrun --help`) and the
same command is given on each; torch's launcher then starts them again by itself.
"""

import logging
import os
import signal
from contextlib import suppress
from types import FrameType

import psutil
from torch.distributed import DistError, run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from stages.machine.identity import identify, num_nodes
from stages.params.devices import split_device
from stages.params.loading import load_workload
from stages.params.parsing import one_line
from stages.stopping import StopSignals
from stages.training.workers import LEAST_PARTS, LOST, NEEDS_SMALLER_PARTS
from stages.training.workload import require_sequences

MAX_RESTARTS = 3
# Signals that torch's launcher would end its workers by. It is left those that nobody sends.
LEFT_TO_TORCH = "SIGUSR2"


class Forwarding(StopSignals):
    """While it is entered, the signals that stop a training go to the workers."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        workers = psutil.Process().children()
        if not workers:  # they have not started yet
            raise KeyboardInterrupt
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.send_signal(number)


def launch(workload: str, device: str, seed: str) -> int:
    """Train with all workers of `device` on this machine; returns the exit status, after a worker has said why."""
    num_workers, kind = split_device(device)
    settings = load_workload(workload).train
    require_sequences(workload, device, settings)
    identify(device)  # raises where GPUs that the stage `hardware` found are gone
    if num_workers % num_nodes():
        raise ValueError(
            f"device {device!r} has {num_workers} workers, which {num_nodes()} machines (PET_NNODES) do not share "
            f"evenly; write {num_nodes()}x{kind} or a multiple of it"
        )
    logging.disable(logging.CRITICAL)  # torch's launcher writes a page for what is one sentence here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker sets its own number of threads
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "15")  # seconds that the others have to notice an end
    command = [
        *("--nproc-per-node", str(num_workers // num_nodes()), "--signals-to-handle", LEFT_TO_TORCH),
        *place(), "-m", "flows.stage", "train", workload, device, seed,
    ]  # fmt: skip
    number, num_parts = 0, settings.grad_accum_steps
    while True:
        with Forwarding() as forwarding:
            try:
                run.run(run.parse_args(command))
                return 0
            except (RendezvousError, DistError) as error:
                where = os.environ.get("PET_RDZV_ENDPOINT") or os.environ.get("PET_MASTER_ADDR") or "this machine"
                raise ConnectionError(
                    f"the workers did not meet at {where} ({one_line(error)[:160]}); see that all machines run the "
                    "same command and reach it"
                ) from None
            except ChildFailedError as error:
                statuses = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if forwarding.stop_requested:
            return 130
        if NEEDS_SMALLER_PARTS in statuses.values() and num_nodes() == 1:
            num_parts *= 2
            os.environ[LEAST_PARTS] = str(num_parts)
            again = f"all {num_workers} workers go on from the last checkpoint, with batches in {num_parts} parts"
            print(f"out of memory: {again}", flush=True)
            continue
        if failed := [status for status in statuses.values() if status > 0 and status != LOST]:
            return failed[0]
        if num_nodes() > 1:  # torch's launcher has started them again before
            raise ChildProcessError(f"{describe(statuses)}; run the same command again on every machine")
        if number == MAX_RESTARTS:
            step = (
                "the system kills a process where memory runs out: lower train.batch_size or the number of workers, or "
                "look at the kernel's log (dmesg)"
            )
            if min(statuses.values()) > 0:
                step = "what they printed above says how they lost each other: mend that"
            raise ChildProcessError(
                f"{describe(statuses)}, after {MAX_RESTARTS} restarts; {step}, and run the same command again"
            )
        number += 1
        again = f"all {num_workers} go on from the last checkpoint (restart {number} of {MAX_RESTARTS})"
        print(f"{describe(statuses)}; {again}", flush=True)


def place() -> list[str]:
    """Where the workers meet: on this machine alone, or where torchrun's variables say."""
    if num_nodes() > 1:
        return ["--max-restarts", os.environ.get("PET_MAX_RESTARTS", str(MAX_RESTARTS))]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return ["--standalone", "--local-addr", "127.0.0.1"]


def describe(statuses: dict[int, int]) -> str:
    """Which worker was killed, by its exit status; the others ended with it."""
    killed = {rank: -status for rank, status in statuses.items() if status < 0}
    by_others = {rank: number for rank, number in killed.items() if number != signal.SIGTERM}
    for rank, number in (by_others or killed).items():
        return f"worker {rank} was killed ({signal.Signals(number).name})"
    return f"worker {min(statuses)} lost another one"
