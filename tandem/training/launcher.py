"""Start the workers of one training with torch's launcher. `train` uses it for a device such as `2xcpu`.

Each worker runs `python -m tandem.stage train WORKLOAD DEVICE SEED` with torchrun's variables in its environment. If a
worker is killed, all workers restart from the checkpoint. If a worker fails with an error, the training ends. On Ctrl+C
or SIGTERM, the first worker finishes its epoch, saves, and tells the others to stop.

For several machines, set torchrun's variables (PET_NNODES, PET_RDZV_ENDPOINT, ..., see `torchrun --help`) and run the
same command on each machine; torch's launcher then restarts the workers itself.
"""

import logging
import os
import signal
from typing import Literal

from torch.distributed import DistError, run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from tandem.devices.hardware import detect_hardware, num_nodes
from tandem.devices.names import split_device
from tandem.params.loading import load_workload
from tandem.stop_signals import Forwarding
from tandem.terminal.messages import one_line
from tandem.training.workers import (
    LOST_WORKER_STATUS,
    MIN_GRAD_ACCUM_STEPS,
    OUT_OF_MEMORY_STATUS,
    require_usable_workers,
)

MAX_RESTARTS = 3
# torch's launcher ends its workers on the signals that it handles, so it gets one that nobody sends.
LEFT_TO_TORCH = "SIGUSR2"


def launch(workload: str, device: str, seed: str) -> int:
    """Train with all workers of `device` on this machine. Returns the exit status; a worker has printed the reason."""
    num_workers, kind = split_device(device)
    settings = load_workload(workload).train
    require_usable_workers(workload, device, settings)
    detect_hardware(device)  # raises if GPUs that the stage `hardware` found are gone
    if num_workers % num_nodes():
        raise ValueError(
            f"device {device!r} has {num_workers} workers, which do not divide evenly among {num_nodes()} machines "
            f"(PET_NNODES); write {num_nodes()}x{kind} or a multiple of it"
        )
    logging.disable(logging.CRITICAL)  # torch's launcher prints a page; the messages below are one sentence
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker sets its own number of threads
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "15")  # seconds for the other workers to notice an end
    command = [
        *("--nproc-per-node", str(num_workers // num_nodes()), "--signals-to-handle", LEFT_TO_TORCH),
        *rendezvous_options(), "-m", "tandem.stage", "train", workload, device, seed,
    ]  # fmt: skip
    num_restarts, num_parts = 0, settings.grad_accum_steps
    while True:
        with Forwarding() as forwarding:
            statuses = run_workers(command)
        if statuses is None:
            return 0
        if forwarding.stop_requested:
            return 130
        step = next_step(statuses, num_nodes(), num_restarts)
        if isinstance(step, int):
            return step
        if step == "split batches":
            num_parts *= 2
            os.environ[MIN_GRAD_ACCUM_STEPS] = str(num_parts)
            again = f"all {num_workers} workers resume from the last checkpoint, with batches in {num_parts} parts"
            print(f"out of memory: {again}", flush=True)
        else:
            num_restarts += 1
            again = f"all {num_workers} resume from the last checkpoint (restart {num_restarts} of {MAX_RESTARTS})"
            print(f"{killed_worker(statuses)}; {again}", flush=True)


def run_workers(command: list[str]) -> dict[int, int] | None:
    """Run all workers of this machine. Returns the exit status of each worker that failed; None if none did."""
    try:
        run.run(run.parse_args(command))
        return None
    except (RendezvousError, DistError) as error:
        where = os.environ.get("PET_RDZV_ENDPOINT") or os.environ.get("PET_MASTER_ADDR") or "this machine"
        raise ConnectionError(
            f"the workers did not connect at {where} ({one_line(error)[:160]}); check that all machines run "
            "the same command and reach this address"
        ) from None
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}


def next_step(
    statuses: dict[int, int], num_machines: int, num_restarts: int
) -> int | Literal["split batches", "restart"]:
    """What follows from the exit statuses of failed workers (rank -> status; -9 is SIGKILL): the exit status of the
    training, or with what all workers start again. Raises ChildProcessError if a worker was killed and none of these
    helps.
    """
    if OUT_OF_MEMORY_STATUS in statuses.values() and num_machines == 1:
        return "split batches"
    if failed := [status for status in statuses.values() if status > 0 and status != LOST_WORKER_STATUS]:
        return failed[0]
    if {-status for status in statuses.values() if status < 0} - {signal.SIGTERM} == {signal.SIGABRT}:
        raise ChildProcessError(
            f"{killed_worker(statuses)} by a library, which printed the cause above; if nccl waited for another "
            "GPU, try NCCL_P2P_DISABLE=1; run the same command again"
        )
    if num_machines > 1:  # torch's launcher has already restarted them
        raise ChildProcessError(f"{killed_worker(statuses)}; run the same command again on every machine")
    if num_restarts == MAX_RESTARTS:
        step = (
            "the system kills processes when memory runs out: lower train.batch_size or the number of workers, or "
            "look at the kernel's log (dmesg)"
        )
        if min(statuses.values()) > 0:
            step = "fix the cause that they printed above"
        raise ChildProcessError(
            f"{killed_worker(statuses)}, after {MAX_RESTARTS} restarts; {step}, and run the same command again"
        )
    return "restart"


def rendezvous_options() -> list[str]:
    """torchrun's options for the rendezvous: only this machine, or the address in torchrun's variables. Sets the
    variables of the workers' collectives.
    """
    os.environ.setdefault("TORCH_DIST_USE_NCCL2", "0")  # torch 2.15's new nccl backend says errors in other words
    if num_nodes() > 1:
        return ["--max-restarts", os.environ.get("PET_MAX_RESTARTS", str(MAX_RESTARTS))]
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    return ["--standalone", "--local-addr", "127.0.0.1"]


def killed_worker(statuses: dict[int, int]) -> str:
    """A phrase that names the killed worker, judged by the exit statuses. The other workers ended because of it."""
    killed = {rank: -status for rank, status in statuses.items() if status < 0}
    by_others = {rank: number for rank, number in killed.items() if number != signal.SIGTERM}
    for rank, number in (by_others or killed).items():
        return f"worker {rank} was killed ({signal.Signals(number).name})"
    return f"worker {min(statuses)} lost the connection to another worker"
