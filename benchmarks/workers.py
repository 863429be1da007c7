"""Measure whether several workers are faster than one, by batch size.

Takes training steps with 1, 2, 4, ... workers that share batches of several sizes. Reads the workload's prepared data
and its block of params.yaml. Prints from which batch size on several workers are faster, and which share of a step
waits for the all-reduce of the gradients.

All workers live at the same time, and the worker counts alternate every fraction of a second, so a slowdown of the
machine affects all of them. On the CPU one worker uses its faster number of threads, one or all cores, and several
share the cores. On a GPU the steps of one worker are captured, like those of its training. The waiting time is the
difference to the same step without all-reduce (`no_sync`).

    python -m benchmarks.workers sign
    python -m benchmarks.workers pen --workers 1 2 --batches 128 1024 --rounds 9
"""

import os
import signal
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem import files
from tandem.devices.hardware import detect_hardware, usable_cores
from tandem.devices.names import KINDS, is_accelerator, started_by_launcher
from tandem.terminal.command import count

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer

PAYS = 1.05  # speed-up over one worker that makes a second worker worthwhile
NUM_ROUNDS, TURN_SECONDS = 5, 0.3
FACTORS = (1, 2, 4, 8)  # of params.yaml's batch size


@dataclass(frozen=True)
class ScalingPoint:
    """The measurement of one number of workers on one batch size."""

    device: str
    workers: int
    threads: int  # per worker
    batch_size: int  # global, over all workers
    samples_per_second: float  # median over the rounds
    speed_up: float  # over one worker with its faster number of threads; median of the rounds' ratios
    speed_up_lowest: float  # the slowest round
    speed_up_highest: float
    efficiency: float  # speed-up divided by the number of workers
    waiting_share: float  # of a step, for the all-reduce of the gradients


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
        points = measure(options)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    return print("\n".join([*table(points), *verdicts(points)]))


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="a block of params.yaml")
    parser.add_argument("--device", choices=KINDS, help="default: cuda if there is a GPU")
    parser.add_argument(
        "--workers", nargs="+", type=count, metavar="N", help="default: 1, 2, 4, ... up to all cores or GPUs"
    )
    parser.add_argument("--batches", nargs="+", type=count, metavar="B", help="default: params.yaml's times 1, 2, 4, 8")
    parser.add_argument("--rounds", type=count, default=NUM_ROUNDS, metavar="R", help=f"turns of each N ({NUM_ROUNDS})")
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help=f"per turn ({TURN_SECONDS:g})")
    parser.add_argument("--out", type=Path, help=SUPPRESS)  # where the workers write what they measured
    return parser.parse_args()


def measure(options: Namespace) -> list[ScalingPoint]:
    """Start the largest number of workers, which measure; return their results."""
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
    with TemporaryDirectory() as folder:
        path = Path(folder) / "points.json"
        numbers = ["--workers", *map(str, counts), "--batches", *map(str, batches)]
        length = ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        command = ["-m", "benchmarks.workers", options.workload, "--device", device, *numbers, *length]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            processes = ["--nproc-per-node", str(counts[-1]), "--signals-to-handle", LEFT_TO_TORCH]
            run.run(run.parse_args([*processes, *rendezvous_options(), *command, "--out", str(path)]))
        except ChildFailedError as error:
            raise ValueError(f"the workers ended early ({error.get_first_failure()[1].exitcode})") from None
        return [ScalingPoint(**point) for point in files.read_json(path)["points"]]


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
    """Measure together with the other workers; the first one writes the points."""
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
            entry.num_steps = max(1, round(options.seconds / turn(entry, entry.step, 2)))
        for of_round in seconds:
            for pair, entry in zip(of_round, entries, strict=True):
                pair[:] = turn(entry, entry.step, entry.num_steps)
                if entry.workers > 1:
                    pair[1] = turn(entry, entry.step_alone, entry.num_steps)
        if workers.is_first:
            points = [vars(point) for point in points_of(options.device, entries, seconds)]
            files.write_json(options.out, {"points": points}, is_durable=False)


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

    from tandem.training.batches import places_of, shares_of
    from tandem.training.random_draws import uses_teacher_forcing
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


# The report.


def points_of(device: str, entries: list[Entry], seconds: np.ndarray) -> list[ScalingPoint]:
    """One point per entry, from `seconds` (rounds, entries, 2). The baseline is one worker with its faster number of
    threads.
    """
    points = []
    for entry, (whole, alone) in zip(entries, seconds.transpose(1, 2, 0), strict=True):
        of_one = [
            seconds[:, index, 0]
            for index, candidate in enumerate(entries)
            if (candidate.workers, candidate.batch_size) == (1, entry.batch_size)
        ]
        ratios = min(of_one, key=np.median) / whole
        speed_up = float(np.median(ratios))
        points.append(
            ScalingPoint(
                device=device,
                workers=entry.workers,
                threads=entry.threads,
                batch_size=entry.batch_size,
                samples_per_second=float(np.median(entry.batch_size / whole)),
                speed_up=speed_up,
                speed_up_lowest=float(ratios.min()),
                speed_up_highest=float(ratios.max()),
                efficiency=speed_up / entry.workers,
                waiting_share=float(np.median(np.maximum(0.0, 1 - alone / whole))),
            )
        )
    return points


def table(points: list[ScalingPoint]) -> list[str]:
    """The points as a Markdown table."""
    head = "| global batch | workers | threads each | samples/s | speed-up | efficiency | waiting |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for point in points:
        shares = f"{point.efficiency:.0%} | {point.waiting_share:.0%}" if point.workers > 1 else " | "
        ratios = f"{point.speed_up:.2f} ({point.speed_up_lowest:.2f} to {point.speed_up_highest:.2f})"
        size, rate = f"{point.batch_size:,} | {point.workers} | {point.threads}", f"{point.samples_per_second:,.0f}"
        rows.append(f"| {size} | {rate} | {ratios} | {shares} |")
    return rows


def verdicts(points: list[ScalingPoint]) -> list[str]:
    """For each number of workers, the batches with which it is faster, and those on which the rounds disagree."""

    def sizes_of(own: list[ScalingPoint]) -> str:
        return ", ".join(f"{point.batch_size:,}" for point in own)

    sentences = []
    for number in sorted({point.workers for point in points if point.workers > 1}):
        group = sorted((point for point in points if point.workers == number), key=lambda point: point.batch_size)
        faster = [point for point in group if point.speed_up >= PAYS]
        best = max(group, key=lambda point: point.speed_up)
        pays = f"are faster with batches of {sizes_of(faster)}" if faster else f"are not faster ({sizes_of(group)})"
        times = f"at best {best.speed_up:.2f} times as fast as one (batch {best.batch_size:,})"
        sentences.append(f"{number} workers {pays}: {times}")
        if uncertain := [point for point in group if point.speed_up_lowest < 1 < point.speed_up_highest]:
            sizes = sizes_of(uncertain)
            sentences[-1] += f"; the rounds disagree (batch {sizes}): repeat with more --rounds on an idle machine"
    return sentences


if __name__ == "__main__":
    main()
