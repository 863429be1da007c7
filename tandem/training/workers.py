"""The workers that train one model together: torch's process group and its collective operations.

Every worker has all data, the same weights and the same random draws. It processes its share of each batch, and
DistributedDataParallel (Li et al. 2020, arXiv:2006.15704) sums the gradients. The first worker (`rank` 0) prints, saves
and tracks like a single worker; the others only train. With one worker, the collectives return their argument.

torch's launcher (launcher.py, or torchrun itself) starts the processes and sets their ranks in the environment. gloo
combines tensors of CPUs, nccl those of GPUs.
"""

import io
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tandem.devices.hardware import usable_cores
from tandem.devices.names import is_accelerator, kind_of, split_device
from tandem.params import schema
from tandem.params.schema import NumThreads, Train
from tandem.terminal.messages import one_line

# Exit statuses of a worker, for the launcher. 75 (sysexits.h: try again): another worker ended. 76: memory ran out, and
# the training may fit with smaller micro-batches.
LOST_WORKER_STATUS, OUT_OF_MEMORY_STATUS = 75, 76
# For a restart after 76, the launcher sets this variable to a minimum for grad_accum_steps.
MIN_GRAD_ACCUM_STEPS = "TANDEM_MIN_GRAD_ACCUM_STEPS"
# Messages of gloo, nccl and the store if another worker is gone.
LOST_MESSAGES = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|gloo::|gloo/|NCCL|Timed out|store->|recvValue|"
    r"sendBytes|recvBytes|Socket closed",
    re.IGNORECASE,
)
COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # torch waits 30 for GPUs that do not reach each other
MUST_AGREE = ("seed", "parameters", "data", "code")  # torch's version too; the hardware may differ


class Workers:
    """This process is worker `rank` of `count`, and `local_rank` of `local_count` on this machine."""

    def __init__(self, rank: int = 0, count: int = 1, local_rank: int = 0, local_count: int = 1) -> None:
        self.rank, self.count, self.local_rank, self.local_count = rank, count, local_rank, local_count

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module, device: torch.device, group: Any = None) -> nn.Module:
        """Wrap the model in DistributedDataParallel, which averages each gradient over the workers of `group`."""
        # torch warns about gradients with another memory layout than their parameter. It copies all gradients anyway.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        ids = None if device.index is None else [device.index]
        return nn.parallel.DistributedDataParallel(
            model, device_ids=ids, process_group=group, gradient_as_bucket_view=True
        )

    def sum(self, value: Tensor) -> Tensor:
        """The sum of `value` over the workers."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def part_of(self, rows: Tensor) -> Tensor:
        """The contiguous part of `rows` that this worker evaluates; all rows if there are fewer rows than workers."""
        return rows if self.count == 1 or len(rows) < self.count else rows.tensor_split(self.count)[self.rank]

    def gather(self, part: Tensor, num_rows: int) -> Tensor:
        """Gather the results of all workers for their `part_of` the rows: (num_rows, ...)."""
        if self.count == 1 or num_rows < self.count:
            return part
        size = -(-num_rows // self.count)
        padded = part.new_zeros((size, *part.shape[1:]))
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded)
        lengths = [len(part) for part in torch.arange(num_rows).tensor_split(self.count)]
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def mean(self, mean: Tensor, num_rows: int) -> Tensor:
        """The mean over all `num_rows` rows, given the mean over this worker's `part_of` them."""
        if self.count == 1 or num_rows < self.count:
            return mean
        num_own = len(torch.arange(num_rows).tensor_split(self.count)[self.rank])
        return self.sum(mean * num_own) / num_rows

    def broadcast(self, value: Any = None) -> Any:
        """The first worker's `value`: plain values and tensors. `weights_only` refuses pickles that could run code."""
        if self.count == 1:
            return value
        buffer = io.BytesIO()
        if self.is_first:
            torch.save(value, buffer)
        length = torch.tensor([buffer.getbuffer().nbytes])
        dist.broadcast(length, 0)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            content = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).clone()
        dist.broadcast(content, 0)
        if self.is_first:
            return value
        return torch.load(io.BytesIO(content.numpy().tobytes()), map_location="cpu", weights_only=True)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give all workers the first worker's buffers, such as the statistics of a BatchNorm."""
        for buffer in model.buffers() if self.count > 1 else ():
            dist.broadcast(buffer, 0)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on at least one worker."""
        return bool(self.sum(torch.tensor(int(flag))))

    def cpu_seconds_of_others(self) -> float:
        """CPU seconds so far of the other workers on the first one's machine. All workers must call this together."""
        if self.count == 1:
            return 0.0
        seconds = time.process_time() if 0 < self.rank < self.local_count else 0.0  # ranks go machine by machine
        return float(self.sum(torch.tensor(seconds, dtype=torch.float64)))

    def require_same(self, inputs: Mapping[str, Any]) -> None:
        """Raises ValueError if the workers differ in seed, data, code, parameters or torch."""
        if self.count == 1:
            return
        compared = {name: inputs[name] for name in MUST_AGREE} | {"torch": inputs["hardware"]["torch"]}
        own_inputs = {name: json.dumps(value, sort_keys=True) for name, value in compared.items()}
        differing = [name for name, theirs in self.broadcast(own_inputs).items() if own_inputs[name] != theirs]
        if int(self.sum(torch.tensor(len(differing)))):
            which = f"worker {self.rank} has other {' and '.join(differing)}" if differing else "one has other inputs"
            raise ValueError(
                f"the workers have different inputs: {which} than worker 0; use the same commit, params.yaml, "
                "prepared data and torch on all machines"
            )

    def close(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


ALONE = Workers()


@contextmanager
def process_group(device: str, count: int, kind: str) -> Iterator[Workers]:
    """Join the process group of `device` (e.g. 2xcpu); without torch's launcher, this process works alone.

    Exits with LOST_WORKER_STATUS if another worker ends meanwhile. Raises ValueError if the launcher started another
    number of workers.
    """
    if count == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    started, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    if started != count:
        raise ValueError(
            f"device {device!r} has {count} workers, but {started} were started; start {count} or use {started}x{kind}"
        )
    local_device = kind_of(kind)(local_rank)
    local_device.join_workers()
    with lost_workers_noticed():
        dist.init_process_group(local_device.backend, timeout=COLLECTIVE_TIMEOUT)
        # A stop signal must not kill a worker, because all stop after the same epoch. `GracefulStop` and
        # `StopSignals` handle the signals during the training; these settings apply before and after it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if dist.get_rank():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        workers = Workers(dist.get_rank(), count, local_rank, int(os.environ["LOCAL_WORLD_SIZE"]))
        yield workers
        workers.close()


@contextmanager
def lost_workers_noticed() -> Iterator[None]:
    """Exit if another worker has ended. The launcher restarts all workers or prints why not.

    Raises ValueError if nccl itself has failed: a restart would fail again.
    """
    try:
        yield
    except RuntimeError as error:
        if cause := nccl_failure(str(error)):
            raise ValueError(f"nccl, which sums the gradients of the GPUs, has failed: {cause}") from None
        if not isinstance(error, dist.DistError) and not LOST_MESSAGES.search(str(error)):
            raise
        print(f"another worker has ended ({one_line(error)[:120]})", file=sys.stderr, flush=True)
        raise SystemExit(LOST_WORKER_STATUS) from None


def nccl_failure(message: str) -> str:
    """Return nccl's own error with the next step; empty if the message is another one, or says that a worker ended."""
    if not re.search("nccl(System|UnhandledCuda|Internal|Invalid)", message):  # ncclRemoteError: a worker ended
        return ""
    error, _, cause = message.partition("Last error:")
    has_no_room = "/dev/shm" in cause or "shared memory" in cause
    step = "make /dev/shm larger (docker run --shm-size=1g)" if has_no_room else "NCCL_DEBUG=INFO shows more"
    return f"{one_line(cause or error)}; {step}"


def gradient_sync(model: Any, enabled: bool) -> AbstractContextManager[object]:
    """In this context, a backward pass sums the gradients of all workers only if `enabled`: in the last micro-batch."""
    return nullcontext() if enabled or not isinstance(model, nn.parallel.DistributedDataParallel) else model.no_sync()


def workers_sentence(workers: Workers, kind: str, settings: Train, of_one_worker: Train) -> str:
    """A sentence about workers, batch and learning rate. `settings`: scaled to the workers; `of_one_worker`: not."""
    machines = "" if workers.local_count == workers.count else f", {workers.local_count} on this machine"
    threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    resources = f"a GPU each{shown}" if is_accelerator(kind) else f"{threads} each"
    batch = f"a batch of {settings.batch_size} is shared"
    if settings.batch_size != of_one_worker.batch_size:
        batch = (
            f"a batch of {settings.batch_size} ({workers.count} x {of_one_worker.batch_size}), learning rate "
            f"{settings.learning_rate:g} ({of_one_worker.scaling} of {of_one_worker.learning_rate:g})"
        )
    return f"{workers.count} workers{machines}, {resources}: {batch}, {kind_of(kind).collectives} sums their gradients"


def scaled(settings: Train, num_workers: int) -> Train:
    """`settings` with batch size and learning rate scaled to the number of workers, as train.scaling says."""
    if settings.scaling == "strong" or num_workers == 1:
        return settings
    factor = num_workers if settings.scaling == "weak-linear" else num_workers**0.5
    return replace(
        settings, batch_size=num_workers * settings.batch_size, learning_rate=factor * settings.learning_rate
    )


def require_usable_workers(workload: str, requested: str, settings: Train) -> None:
    """Raises ValueError if the training cannot use several workers, or if a worker would have no sequence of a
    micro-batch.
    """
    schema.check_workers(requested, workload, settings)
    num_workers, kind = split_device(requested)
    if num_workers > 1 and schema.takes_no_steps(settings.model):
        raise ValueError(
            f"device {requested!r} has several workers, but one process fits {workload}'s model {settings.model.name} "
            f"in closed form; accepted: {kind}"
        )
    num_parts = settings.grad_accum_steps
    most = scaled(settings, num_workers).batch_size // num_parts
    if num_workers > max(most, 1):
        parts = f" in {num_parts} parts (train.grad_accum_steps)" if num_parts > 1 else ""
        accepted = f"at most {most}x{kind}" if most > 1 else kind
        raise ValueError(
            f"device {requested!r} has too many workers for {workload}'s batch of {settings.batch_size} sequences "
            f"(train.batch_size){parts}; accepted: {accepted}, or a larger batch"
        )


def threads_of_each(threads: NumThreads, kind: str, workers: Workers) -> int:
    """Threads per worker. `auto` divides this machine's cores among its CPU workers; a GPU worker gets one thread."""
    if threads != "auto":
        return threads
    return max(1, int(usable_cores()) // workers.local_count) if not is_accelerator(kind) else 1
