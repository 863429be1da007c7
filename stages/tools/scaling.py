"""Is a second worker faster? `python -m stages.tools.scaling WORKLOAD [options]`.

Reads the workload's prepared data and its block of params.yaml. Writes results/scaling/<workload>-<device>.csv and
.png, and prints from which batch size on several workers are faster than one, and which share of a step waits for the
all-reduce of the gradients. No stage depends on it; weights and results do not change.

All workers live at the same time, and the worker counts take turns of a fraction of a second, so a slowdown of the
machine affects all of them. On the CPU one worker uses its faster number of threads, one or all cores, and several
share the cores. The waiting time is the difference to the same step without all-reduce (`no_sync`).
"""

import os
import signal
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stages import files
from stages.machine.identity import identify, usable_cores

if TYPE_CHECKING:
    from stages.training.trainer import Trainer

HELP = """\
Takes training steps with 1, 2, 4, ... workers that share batches of several sizes, in turns.

  python -m stages.tools.scaling sign
  python -m stages.tools.scaling pen --workers 1 2 --batches 128 1024 --rounds 9"""
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


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            work(options)
            return 0
        if alone := one_gpu(options):
            print(alone)
            return 0
        points = measure(options)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    from stages.figures import drawing, sweeps

    path = files.results_dir() / "scaling" / f"{options.workload}-{points[0].device}"
    files.write_table(path.with_suffix(".csv"), [vars(point) for point in points])
    drawing.save(sweeps.scaling(options.workload, points), path.with_suffix(".png"))
    print(*table(points), *verdicts(points), sep="\n")
    print(f"{files.relative(path)}.csv, .png")
    return 0


def parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(
        "python -m stages.tools.scaling", description=HELP, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", help="a block of params.yaml")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the better one here")
    parser.add_argument(
        "--workers", nargs="+", type=int, metavar="N", help="default: 1, 2, 4, ... as there is room for"
    )
    parser.add_argument("--batches", nargs="+", type=int, metavar="B", help="default: params.yaml's, times 2, 4 and 8")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, metavar="R", help=f"turns of each ({NUM_ROUNDS})")
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help=f"of a turn ({TURN_SECONDS:g})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the workers write what they measured")
    return parser.parse_args(arguments)


def one_gpu(options: Namespace) -> str:
    """Why there is nothing to measure, in one sentence; empty if there is something."""
    identity = identify(options.device or "auto")
    if identity["kind"] == "cpu" or identity["count"] > 1 or options.workers:
        return ""
    more = "a second one cannot be measured here; --device cpu measures workers that share the cores"
    return f"this machine shows one GPU ({identity['name']}): {more}"


def measure(options: Namespace) -> list[ScalingPoint]:
    """Start the largest number of workers, which measure; return their results."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from stages.params.loading import load_workload
    from stages.training.launcher import LEFT_TO_TORCH, place
    from stages.training.workload import require_sequences

    device = options.device or identify("auto")["kind"]
    room = identify("cuda")["count"] if device == "cuda" else int(usable_cores())
    counts = sorted(set(options.workers or [2**power for power in range(13) if 2**power <= max(room, 2)]) | {1})
    if counts[0] < 1 or counts[-1] < 2:
        raise ValueError(f"--workers {' '.join(map(str, options.workers))} compares nothing; name a number from 2 on")
    identify(f"{counts[-1]}x{device}")  # raises if the machine has fewer
    settings = load_workload(options.workload).train
    batches = options.batches or [factor * settings.batch_size for factor in FACTORS]
    smallest = replace(settings, batch_size=min(batches), scaling="strong")
    require_sequences(options.workload, f"{counts[-1]}x{device}", smallest)
    with TemporaryDirectory() as folder:
        found = Path(folder) / "points.json"
        numbers = ["--workers", *map(str, counts), "--batches", *map(str, batches)]
        length = ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        command = ["-m", "stages.tools.scaling", options.workload, "--device", device, *numbers, *length]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            processes = ["--nproc-per-node", str(counts[-1]), "--signals-to-handle", LEFT_TO_TORCH]
            run.run(run.parse_args([*processes, *place(), *command, "--out", str(found)]))
        except ChildFailedError as error:
            raise ValueError(f"the workers ended early ({error.get_first_failure()[1].exitcode})") from None
        return [ScalingPoint(**point) for point in files.read_json(found)["points"]]


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
    from stages.machine.regions import synchronize
    from stages.training.workers import joined_group

    count = max(options.workers)
    with joined_group(f"{count}x{options.device}", count, options.device) as workers:
        for number in (signal.SIGINT, signal.SIGTERM):  # there is nothing to save
            signal.signal(number, signal.SIG_DFL)
        import torch
        import torch.distributed as dist

        def all_workers(value: float) -> float:
            """The mean over the workers of the entry whose turn it is; the other workers contribute 0."""
            return float(workers.sum(torch.tensor(value, dtype=torch.float64)))

        def turn(entry: Entry, step: Callable[[], None], num_steps: int) -> float:
            """Seconds per step, the mean over its workers."""
            seconds, takes_part = 0.0, workers.rank < entry.workers
            dist.barrier()
            if takes_part:
                torch.set_num_threads(entry.threads)
                synchronize(device)
                start = time.perf_counter()
                for _ in range(num_steps):
                    step()
                synchronize(device)
                seconds = (time.perf_counter() - start) / num_steps
            return all_workers(seconds) / entry.workers

        cores = int(usable_cores())
        plan = [
            (size, number, threads)
            for size in options.batches
            for number in options.workers
            for threads in threads_of(number, cores, options.device)
        ]
        device, entries = open_entries(options.workload, options.device, workers, plan)
        seconds: dict[int, list[tuple[float, float]]] = {index: [] for index in range(len(entries))}
        for entry in entries:
            turn(entry, entry.step, 3)  # warm-up: libraries choose their kernels
            entry.num_steps = max(1, round(options.seconds / turn(entry, entry.step, 2)))
        for _ in range(options.rounds):
            for index, entry in enumerate(entries):
                whole = turn(entry, entry.step, entry.num_steps)
                alone = turn(entry, entry.step_alone, entry.num_steps) if entry.workers > 1 else whole
                seconds[index].append((whole, alone))
        if workers.is_first:
            points = [vars(point) for point in points_of(options.device, entries, list(seconds.values()))]
            files.write_json(options.out, {"points": points}, is_durable=False)


def threads_of(num_workers: int, cores: int, device: str) -> list[int]:
    if device == "cuda":
        return [1]
    return sorted({1, cores}) if num_workers == 1 else [max(1, cores // num_workers)]


def open_entries(workload: str, kind: str, workers: Any, plan: list[tuple[int, int, int]]) -> tuple[Any, list[Entry]]:
    """The device, and the steps of each entry of `plan` (batch size, number of workers, threads)."""
    import torch.distributed as dist

    from stages.params.loading import load_workload
    from stages.training.device import open_device
    from stages.training.workers import Workers
    from stages.training.workload import make_trial, read_training

    asked = load_workload(workload).train
    precision = "fp32" if asked.precision == "auto" else asked.precision
    settings = replace(asked, threads=1, step="eager", precision=precision)
    device = open_device(identify(kind), 1, settings.deterministic, precision, workers.local_rank)
    data = read_training(workload)
    trainers: dict[int, Trainer] = {}
    for number in sorted({number for _, number, _ in plan}):
        trainer = make_trial(*data, settings, device)
        group = dist.new_group(list(range(number)))
        if 1 < number and workers.rank < number:
            trainer.step.workers = Workers(workers.rank, number, workers.local_rank, workers.local_count)
            trainer.step.forward = trainer.step.workers.wrap(trainer.model, device, group)
        trainers[number] = trainer
    return device, [
        Entry(number, threads, size, *steps_on(trainers[number], size, workers.rank, number))
        for size, number, threads in plan
    ]


def steps_on(trainer: "Trainer", size: int, rank: int, number: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Steps on this worker's share of one batch: with all-reduce, and without."""
    import torch

    from stages.params.schema import Seq2Seq
    from stages.training.batches import places_of, shares_of
    from stages.training.workers import not_last

    if rank >= number:
        return (lambda: None), (lambda: None)
    split, step = trainer.train_split, trainer.step
    shares = shares_of(size, step.accumulation, rank, number)
    rows = (torch.arange(size) % len(split))[places_of(shares)]
    batch = next(split.batches(rows, len(rows)))
    batch = replace(batch, shares=shares if number > 1 else ())
    if isinstance(trainer.params.model, Seq2Seq):
        batch = replace(batch, teacher_targets=batch.targets)

    def whole() -> None:
        step.update(batch)

    def alone() -> None:
        with not_last(step.forward, is_last=False):
            step.update(batch)

    return whole, alone


# The report.


def points_of(device: str, entries: list[Entry], seconds: list[list[tuple[float, float]]]) -> list[ScalingPoint]:
    """One point per entry; the baseline is one worker with its faster number of threads."""
    best: dict[int, list[float]] = {}
    for entry, found in zip(entries, seconds, strict=True):
        if entry.workers == 1:
            whole = [each for each, _ in found]
            best[entry.batch_size] = min(best.get(entry.batch_size, whole), whole, key=statistics.median)
    points = []
    for entry, found in zip(entries, seconds, strict=True):
        ratios = [one / whole for one, (whole, _) in zip(best[entry.batch_size], found, strict=True)]
        speed_up = statistics.median(ratios)
        points.append(
            ScalingPoint(
                device=device,
                workers=entry.workers,
                threads=entry.threads,
                batch_size=entry.batch_size,
                samples_per_second=statistics.median(entry.batch_size / whole for whole, _ in found),
                speed_up=speed_up,
                speed_up_lowest=min(ratios),
                speed_up_highest=max(ratios),
                efficiency=speed_up / entry.workers,
                waiting_share=statistics.median(max(0.0, 1 - alone / whole) for whole, alone in found),
            )
        )
    return points


def table(points: list[ScalingPoint]) -> list[str]:
    """The points as a Markdown table."""
    head = "| batch of all | workers | threads each | samples/s | times one worker | efficiency | of a step it waits |"
    return [head, "|---|---|---|---|---|---|---|", *map(row, points)]


def row(point: ScalingPoint) -> str:
    several = f"{point.efficiency:.0%} | {point.waiting_share:.0%}" if point.workers > 1 else " | "
    ratios = f"{point.speed_up:.2f} ({point.speed_up_lowest:.2f} to {point.speed_up_highest:.2f})"
    rate = f"{point.samples_per_second:,.0f}"
    return f"| {point.batch_size:,} | {point.workers} | {point.threads} | {rate} | {ratios} | {several} |"


def verdicts(points: list[ScalingPoint]) -> list[str]:
    """For each number of workers, whether and from which batch size on it is faster, and where the rounds disagree."""
    found = []
    for number in sorted({point.workers for point in points if point.workers > 1}):
        own = sorted((point for point in points if point.workers == number), key=lambda point: point.batch_size)
        enough = [point for point in own if point.speed_up >= PAYS]
        best = max(own, key=lambda point: point.speed_up)
        if enough and all(point.speed_up >= PAYS for point in own if point.batch_size >= enough[0].batch_size):
            say = f"{number} workers pay from a batch of {enough[0].batch_size:,} on: {enough[0].speed_up:.2f} times"
            also = "" if best is enough[0] else f", {best.speed_up:.2f} times with {best.batch_size:,}"
            found.append(f"{say} as fast as one there{also}")
        elif enough:
            sizes = ", ".join(f"{point.batch_size:,}" for point in enough)
            found.append(f"{number} workers pay with a batch of {sizes} alone: up to {best.speed_up:.2f} times one")
        else:
            tried = f"{own[0].batch_size:,} to {own[-1].batch_size:,}"
            found.append(
                f"{number} workers do not pay with any batch that was tried ({tried}): at best they are "
                f"{best.speed_up:.2f} times as fast as one (batch {best.batch_size:,}); one worker wins"
            )
        if open_ones := [point for point in own if point.speed_up_lowest < 1 < point.speed_up_highest]:
            sizes = ", ".join(f"{point.batch_size:,}" for point in open_ones)
            found[-1] += f"; not certain, for rounds disagree (batch {sizes}): more --rounds on a quiet machine tell"
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
