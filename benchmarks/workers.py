"""Measure whether several workers are faster than one, by batch size.

Takes training steps with 1, 2, 4, ... workers that share batches of several sizes. Reads the workload's prepared data
and its block of params.yaml. Prints the speed-up over one worker with its faster number of threads, as the median over
the rounds (lowest to highest), and which share of a step waits for the all-reduce of the gradients.

All workers live at the same time, and the worker counts alternate every fraction of a second, so a slowdown of the
machine affects all of them. On the CPU one worker uses its faster number of threads, one or all cores, and several
share the cores. On a GPU the steps of one worker are captured, like those of its training. The waiting time is the
difference to the same step without all-reduce (`no_sync`).

    python -m benchmarks.workers sign
    python -m benchmarks.workers pen --workers 1 2 --batches 128 1024 --rounds 9
"""

import os
import signal
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.markdown import header, row
from tandem.devices.hardware import detect_hardware, usable_cores
from tandem.devices.names import KINDS, is_accelerator, started_by_launcher
from tandem.terminal.command import count

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer

NUM_ROUNDS, TURN_SECONDS = 5, 0.3
FACTORS = (1, 2, 4, 8)  # of params.yaml's batch size


def main() -> None:
    options = parse()
    if started_by_launcher():
        return work(options)
    identity = detect_hardware(options.device or "auto")
    if is_accelerator(identity["kind"]) and identity["count"] == 1 and not options.workers:
        reason = "workers cannot be compared on it; --device cpu measures workers that share the CPU's cores"
        print(f"this machine has one GPU ({identity['name']}): {reason}")
        return None
    try:
        return start_workers(options)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="a block of params.yaml")
    parser.add_argument("--device", choices=KINDS, help="default: cuda if there is a GPU")
    parser.add_argument(
        "--workers", nargs="+", type=count, metavar="N", help="default: 1, 2, 4, ... up to all cores or GPUs"
    )
    parser.add_argument("--batches", nargs="+", type=count, metavar="B", help="default: params.yaml's times 1, 2, 4, 8")
    parser.add_argument("--rounds", type=count, default=NUM_ROUNDS, metavar="R", help=f"turns of each N ({NUM_ROUNDS})")
    return parser.parse_args()


def start_workers(options: Namespace) -> None:
    """Start the largest number of workers, which measure and print."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from tandem.params.loading import load_workload
    from tandem.training.launcher import LEFT_TO_TORCH, rendezvous_options
    from tandem.training.workers import require_usable_workers

    device = options.device or detect_hardware("auto")["kind"]
    room = detect_hardware("cuda")["count"] if is_accelerator(device) else int(usable_cores())
    counts = sorted(set(options.workers or [2**power for power in range(13) if 2**power <= max(room, 2)]) | {1})
    if counts[-1] < 2:
        raise ValueError(f"--workers {' '.join(map(str, options.workers))} compares nothing; add a number above 1")
    detect_hardware(f"{counts[-1]}x{device}")  # raises if the machine has fewer
    settings = load_workload(options.workload).train
    batches = options.batches or [factor * settings.batch_size for factor in FACTORS]
    smallest = replace(settings, batch_size=min(batches), scaling="strong")
    require_usable_workers(options.workload, f"{counts[-1]}x{device}", smallest)
    numbers = ["--workers", *map(str, counts), "--batches", *map(str, batches), "--rounds", str(options.rounds)]
    command = ["-m", "benchmarks.workers", options.workload, "--device", device, *numbers]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        processes = ["--nproc-per-node", str(counts[-1]), "--signals-to-handle", LEFT_TO_TORCH]
        run.run(run.parse_args([*processes, *rendezvous_options(), *command]))
    except ChildFailedError as error:
        raise ValueError(f"the workers ended early ({error.get_first_failure()[1].exitcode})") from None


# The workers' part.


@dataclass
class Entry:
    """One number of workers on one batch size, as seen by one of these workers."""

    workers: int
    threads: int
    batch_size: int
    step: Callable[[], None]
    step_alone: Callable[[], None]  # without all-reduce
    num_steps: int = 1  # per turn


def work(options: Namespace) -> None:
    """Measure together with the other workers; the first one prints the table."""
    import torch
    import torch.distributed as dist

    from tandem.devices.graphs import NUM_WARMUPS
    from tandem.machine.measure import Clock
    from tandem.training.workers import process_group

    count = max(options.workers)
    with process_group(f"{count}x{options.device}", count, options.device) as workers:
        for number in (signal.SIGINT, signal.SIGTERM):  # there is nothing to save
            signal.signal(number, signal.SIG_DFL)

        def turn(entry: Entry, step: Callable[[], None], num_steps: int) -> float:
            """Seconds per step, the mean over the entry's workers; the other workers contribute 0."""
            seconds = 0.0
            dist.barrier()
            if workers.rank < entry.workers:
                torch.set_num_threads(entry.threads)
                with Clock(device) as clock:
                    for _ in range(num_steps):
                        step()
                seconds = clock.seconds / num_steps
            return float(workers.sum(torch.tensor(seconds, dtype=torch.float64))) / entry.workers

        device, entries = open_entries(options, workers)
        seconds = np.zeros((options.rounds, len(entries), 2))  # of a step, and of one without all-reduce
        for entry in entries:
            turn(entry, entry.step, NUM_WARMUPS + 1)  # libraries choose their kernels, and the step is captured
            entry.num_steps = max(1, round(TURN_SECONDS / turn(entry, entry.step, 2)))
        for of_round in seconds:
            for pair, entry in zip(of_round, entries, strict=True):
                pair[:] = turn(entry, entry.step, entry.num_steps)
                if entry.workers > 1:
                    pair[1] = turn(entry, entry.step_alone, entry.num_steps)
        if workers.is_first:
            print("\n".join(table(entries, seconds)))


def open_entries(options: Namespace, workers: Any) -> tuple[Any, list[Entry]]:
    """The device, and the steps of each batch size and number of workers."""
    import torch.distributed as dist

    from benchmarks.contenders import read_training
    from tandem.params.loading import load_workload
    from tandem.training.execution import open_device
    from tandem.training.opening import make_trial
    from tandem.training.workers import Workers

    requested, cores = load_workload(options.workload).train, int(usable_cores())
    precision = "fp32" if requested.precision == "auto" else requested.precision
    settings = replace(requested, threads=1, precision=precision)
    device = open_device(detect_hardware(options.device), 1, settings.deterministic, precision, workers.local_rank)
    data = read_training(options.workload)
    trainers: dict[int, Trainer] = {}
    for number in options.workers:
        trainer = make_trial(*data, settings if number == 1 else replace(settings, step="eager"), device)
        group = dist.new_group(list(range(number)))
        if 1 < number and workers.rank < number:
            trainer.step.workers = Workers(workers.rank, number, workers.local_rank, workers.local_count)
            trainer.step.forward = trainer.step.workers.wrap(trainer.model, device.torch_device, group)
        trainers[number] = trainer
    entries = []
    for size in options.batches:
        for number in options.workers:
            threads = {1, cores} if number == 1 else {max(1, cores // number)}
            for num_threads in {1} if is_accelerator(options.device) else sorted(threads):
                steps = steps_on(trainers[number], size, workers.rank, number)
                entries.append(Entry(number, num_threads, size, *steps))
    return device, entries


def steps_on(trainer: "Trainer", size: int, rank: int, number: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Steps on this worker's share of one batch: with all-reduce, and without."""
    import torch

    from tandem.training.random_draws import uses_teacher_forcing
    from tandem.training.shares import places_of, shares_of
    from tandem.training.trials import repeated_step
    from tandem.training.workers import gradient_sync

    if rank >= number:
        return (lambda: None), (lambda: None)
    split, step = trainer.train_split, trainer.step
    shares = shares_of(size, step.execution.grad_accum_steps, rank, number)
    rows = (torch.arange(size) % len(split))[places_of(shares)]
    batch = next(split.batches(rows, len(rows)))
    batch = replace(batch, shares=shares if number > 1 else ())
    if uses_teacher_forcing(trainer.settings.model):
        batch = replace(batch, teacher_targets=batch.targets)

    def alone() -> None:
        with gradient_sync(step.forward, enabled=False):
            step(batch)

    return repeated_step(step, batch), alone


def table(entries: list[Entry], seconds: np.ndarray) -> list[str]:
    """A row per entry, from `seconds` (rounds, entries, 2)."""
    rows = [header("global batch", "workers", "threads each", "samples/s", "speed-up", "efficiency", "waiting")]
    for entry, (whole, alone) in zip(entries, seconds.transpose(1, 2, 0), strict=True):
        of_one = [
            seconds[:, index, 0]
            for index, candidate in enumerate(entries)
            if (candidate.workers, candidate.batch_size) == (1, entry.batch_size)
        ]
        ratios = min(of_one, key=np.median) / whole
        speed_up, rate = np.median(ratios), np.median(entry.batch_size / whole)
        shares = (speed_up / entry.workers, np.median(np.maximum(0.0, 1 - alone / whole)))
        cells = (f"{entry.batch_size:,}", entry.workers, entry.threads, f"{rate:,.0f}")
        spread = f"{speed_up:.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        rows.append(row(*cells, spread, *(f"{share:.0%}" if entry.workers > 1 else "" for share in shares)))
    return rows


if __name__ == "__main__":
    main()
