"""What measuring an epoch costs: epochs with `measure` around them and without, in turns.

    python -m benchmarks.sampling [--workloads sign pen price rally] [--device cpu] [--rounds 20] [--seconds 0.5]

`measure` (stages/machine/regions.py) stands around every epoch of a training. On a GPU a thread asks NVML beside it,
every 50 ms, what the epoch takes of the GPU; on the CPU there is no such thread, and what is left is reading clocks and
counters before and after. A pair is the same steps of `Trainer.training_batches` and `Trainer.step`, about --seconds
long, once with and once without, each first in every other pair; both are timed from outside, so that starting and
ending the measurement counts too.

The ratio is that of the times, with / without: median over the pairs, with its quartiles. "Alone" is `measure` around
nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from benchmarks.preprocess import describe_machine
from stages.diagnosis.probe import training
from stages.machine.nvml import SAMPLE_SECONDS
from stages.machine.regions import measure, synchronize
from stages.training.workload import open_prepared

Around = Callable[[torch.device], AbstractContextManager[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen", "price", "rally"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="pairs, after one of warm-up (20)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of a pair, about (0.5)")
    options = parser.parse_args()
    thread = f"a thread that samples every {1000 * SAMPLE_SECONDS:.0f} ms" if options.device == "cuda" else "no thread"
    print(f"{describe_machine()}; device {options.device} ({thread}), torch {torch.__version__}\n")
    print("| workload | with / without, median [quartiles] | alone, ms |\n|---|---|---|")
    for workload in options.workloads:
        trainer = open_prepared(workload, options.device)
        low, middle, high = statistics.quantiles(ratios(trainer, options.rounds, options.seconds), n=4)
        alone = statistics.median(timed(trainer, iter(()), 0, measure) for _ in range(options.rounds))
        print(f"| {workload} | {middle:.4f} [{low:.4f}, {high:.4f}] | {1000 * alone:.3f} |", flush=True)


def ratios(trainer: Any, rounds: int, seconds: float) -> list[float]:
    steps, count = training(trainer), 1
    while timed(trainer, steps, count, measure) < seconds / 2:  # also the warm-up
        count *= 2
    found = []
    for number in range(rounds):
        order: list[Around] = [measure, nullcontext] if number % 2 else [nullcontext, measure]
        times = {around: timed(trainer, steps, count, around) for around in order}
        found.append(times[measure] / times[nullcontext])
    return found


def timed(trainer: Any, steps: Any, count: int, around: Around) -> float:
    """Seconds that so many steps take, from outside."""
    synchronize(trainer.device)
    start = time.perf_counter()
    with around(trainer.device):
        for _ in range(count):
            next(steps)
    synchronize(trainer.device)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
