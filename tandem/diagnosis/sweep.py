"""Measure throughput and memory by batch size on every device.

Takes training steps with batches of 1, 2, 4, ... sequences, each size for a fraction of a second, until the memory is
full or --largest is reached. Reads the workload's prepared data and its block of params.yaml. Prints the largest batch
that fits, the size above which throughput hardly grows, and the size from which the GPU is faster than the CPU. Writes
results/sweep/<workload>.csv. No stage depends on it; weights and results do not change.

    tandem sweep sign
    tandem sweep pen --devices cpu --largest 1024 --seconds 1

Exit status: 0 done, 1 failed.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any

from tandem import files
from tandem.command import Result, count
from tandem.params.loading import load_workload

ENOUGH = 0.9  # share of the best throughput above which a larger batch hardly helps


@dataclass(frozen=True)
class SweepPoint:
    device: str
    batch_size: int
    samples_per_second: float
    peak_mib: float  # CUDA: torch's peak allocated memory; CPU: the sum of the tensors of a step and the data


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workload", help="a block of params.yaml")
    parser.add_argument("--devices", nargs="+", choices=("cpu", "cuda"), help="default: all available")
    parser.add_argument("--largest", type=count, default=4096, metavar="N", help="largest batch size (4096)")
    parser.add_argument("--seconds", type=float, default=0.5, help="per batch size (0.5)")


def main(options: Namespace) -> Result:
    points, stops = sweep(options.workload, options.devices, options.largest, options.seconds)
    path, rows = files.results_dir() / "sweep" / f"{options.workload}.csv", [vars(point) for point in points]
    files.write_table(path, rows)
    sentences = [*verdicts(points), *stops]
    if loop := load_workload(options.workload).train.loop:
        sentences.append(f"measured with Tandem's training steps, not with {loop}")
    text = "\n".join([*sentences, files.relative(path)])
    return Result(text, {"points": rows, "sentences": sentences, "file": files.relative(path)})


def sweep(workload: str, devices: list[str] | None, largest: int, seconds: float) -> tuple[list[SweepPoint], list[str]]:
    """The points, and the reason why each device's curve ends. `devices`: None for all available."""
    from tandem.machine.hardware import detect_hardware
    from tandem.training.context import open_prepared
    from tandem.training.oom import OomPolicy, translate_oom

    points: list[SweepPoint] = []
    stops = []
    for device in devices or dict.fromkeys(("cpu", detect_hardware("auto")["kind"])):
        with translate_oom(OomPolicy()):
            trainer = open_prepared(workload, device)
        size = 1
        while size <= largest:
            found = measure_size(trainer, size, seconds)
            if found is None:
                fits = f"; a batch of {size // 2} fits" if size > 1 else ""
                stops.append(f"{device}: a batch of {size} does not fit{fits}")
                break
            points.append(found)
            rate, peak = f"{found.samples_per_second:,.0f} samples/s", f"{found.peak_mib:,.1f} MiB"
            print(f"{device}, batch {size}: {rate}, {peak}", flush=True)
            size *= 2
        else:
            stops.append(f"{device}: every size up to {size // 2} fits")
    return points, stops


def measure_size(trainer: Any, size: int, seconds: float) -> SweepPoint | None:
    """The measurement of one batch size; None if it does not fit."""
    import torch

    from tandem.diagnosis.counts import memory_needs
    from tandem.machine.measure import seconds_of
    from tandem.training.graphs import NUM_WARMUPS, Graphs
    from tandem.training.oom import is_out_of_memory

    is_cuda = trainer.device.type == "cuda"
    try:
        batch = trainer.one_batch(size, repeat=True)
        if is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(trainer.device)
        step = trainer.step.repeated(batch)
        if trainer.step.graphs is not None:
            trainer.step.graphs = Graphs(trainer.device)  # the graphs of other sizes would keep their memory
            for _ in range(NUM_WARMUPS + 1):
                step()
        step_seconds = seconds_of(step, trainer.device, seconds)
        peak = (
            torch.cuda.max_memory_allocated(trainer.device) / 2**20
            if is_cuda
            else sum(memory_needs(trainer, batch).values())
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return SweepPoint(trainer.device.type, size, size / step_seconds, peak)


def verdicts(points: list[SweepPoint]) -> list[str]:
    """The sufficient batch size of each device, and the size at which the curves cross."""
    rates: dict[str, dict[int, float]] = {}
    for point in points:
        rates.setdefault(point.device, {})[point.batch_size] = point.samples_per_second
    sentences = []
    for device, own in rates.items():
        best = max(own.values())
        enough = min(size for size, rate in own.items() if rate >= ENOUGH * best)
        sentences.append(
            f"{device}: batch {enough} reaches {own[enough] / best:.0%} of the best throughput, {best:,.0f} samples/s"
        )
    if {"cpu", "cuda"} <= {*rates}:
        gains = {size: rate / rates["cpu"][size] for size, rate in rates["cuda"].items() if size in rates["cpu"]}
        ahead = sorted(size for size, gain in gains.items() if gain > 1)
        sentences.append(
            f"the GPU is faster from batch {ahead[0]} on ({gains[ahead[0]]:.1f} times there, "
            f"{gains[ahead[-1]]:.1f} times at {ahead[-1]})"
            if ahead
            else "the CPU is faster at every batch size measured on both"
        )
    return sentences
