"""The cost of sampling: steps with a running sampler and `measure`, compared with steps without both, in turns.

    python -m benchmarks.sampling [--workloads sign pen price rally] [--device cpu] [--rounds 20] [--seconds 0.5]

On a GPU one thread queries NVML every 50 ms from a training's first epoch to its last (tandem/machine/sampler.py), and
`measure` (tandem/machine/measure.py) marks every epoch. On the CPU there is no such thread, only readings of clocks and
counters before and after. A pair is the same steps of `Trainer.training_steps`, about --seconds long, once with and
once without; every other pair runs in reverse order. Both are timed from outside `measure`, and from inside the
sampler, which a training starts once.

The ratio of the times is with / without: the median over the pairs, with quartiles. The table also has an empty epoch
and an empty training, and on a GPU each NVML query by itself.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.markdown import header, machine_sentence, quartiles, row
from tandem.diagnosis.probe import epochs
from tandem.machine.measure import gpu_uuid, measure, sampled, synchronize
from tandem.machine.nvml import QUANTITIES, cached_gpu
from tandem.machine.sampler import SAMPLE_SECONDS
from tandem.training.context import open_prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen", "price", "rally"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="pairs, after one of warm-up (20)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each of a pair, about (0.5)")
    options = parser.parse_args()
    thread = f"a thread that samples every {1000 * SAMPLE_SECONDS:.0f} ms" if options.device == "cuda" else "no thread"
    print(f"{machine_sentence(options.device)}; device {options.device} ({thread})\n")
    print(header("workload", "with / without, median [quartiles]", "empty epoch, ms", "empty training, ms"))
    for workload in options.workloads:
        trainer = open_prepared(workload, options.device)
        spread = quartiles(ratios(trainer, options.rounds, options.seconds), ".4f")
        with sampled(trainer.device):
            epoch = median_ms(options.rounds, inside, measure, trainer.device)
        whole = median_ms(options.rounds, inside, sampled, trainer.device)
        print(row(workload, spread, f"{epoch:.3f}", f"{whole:.3f}"), flush=True)
    if options.device == "cuda":
        gpu = cached_gpu(gpu_uuid(trainer.device))
        print(f"\n{header('question to NVML', 'ms', 'answer')}")
        for name in QUANTITIES:
            print(row(name, f"{median_ms(options.rounds, gpu.ask, name):.3f}", gpu.ask(name)))


def ratios(trainer: Any, rounds: int, seconds: float) -> list[float]:
    steps, count = epochs(trainer.training_steps), 1
    while timed(trainer, steps, count, is_sampled=True) < seconds / 2:  # also warms up
        count *= 2
    found = []
    for number in range(rounds):
        times = {choice: timed(trainer, steps, count, choice) for choice in (bool(number % 2), not number % 2)}
        found.append(times[True] / times[False])
    return found


def timed(trainer: Any, steps: Any, count: int, is_sampled: bool) -> float:
    """Seconds of `count` steps, timed from outside."""
    with sampled(trainer.device) if is_sampled else nullcontext():
        synchronize(trainer.device)
        start = time.perf_counter()
        with measure(trainer.device) if is_sampled else nullcontext():
            for _ in range(count):
                next(steps)
        synchronize(trainer.device)
        return time.perf_counter() - start


def inside(around: Callable[[torch.device], Any], device: torch.device) -> None:
    with around(device):
        pass


def median_ms(rounds: int, work: Callable[..., Any], *arguments: Any) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work(*arguments)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    main()
