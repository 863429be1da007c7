"""`threads: auto` against fixed numbers of threads, beside processes that keep cores busy.

    python -m benchmarks.threads                           # about 12 minutes
    python -m benchmarks.threads --workloads sign --busy 0 2

For each workload and number of busy processes, the variants train in processes of their own and take turns of a second.
A cell has the mean seconds per epoch over all turns, so `auto` pays for the steps in which it tries other numbers, and
in the last columns the ratio of `auto` to the best fixed number and to torch's own kernels on two threads. Packed data
is required: run `dvc repro preload` first.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.markdown import header, row
from stages.speed import Length, TimedSide, Worker
from tandem.machine.interleaving import interleave
from tandem.params.loading import load_params

VARIANTS = {
    "auto": {"threads": "auto"},
    "1": {"threads": 1},
    "2": {"threads": 2},
    "torch's kernels, 2": {"threads": 2, "kernels": "torch"},
}
LENGTH = Length(turn_seconds=1.0, num_turns=8, max_seconds=120.0, warmup_seconds=3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=load_params().workloads, metavar="NAME")
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2, 4], metavar="N", help="processes (0 1 2 4)")
    parser.add_argument("--turns", type=int, default=LENGTH.num_turns, help="of a second, for each variant (8)")
    options = parser.parse_args()
    print(header("workload", "busy", *VARIANTS, "auto / best", "auto / torch"))
    for workload in options.workloads:
        for num_busy in options.busy:
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
            try:
                print(line(workload, num_busy, seconds_per_epoch(workload, options.turns)), flush=True)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()


def seconds_per_epoch(workload: str, num_turns: int) -> dict[str, float]:
    """Variant -> the mean over its turns."""
    device = load_params().devices[0]
    workers = [Worker(workload, TimedSide(name, device, changes), 0, LENGTH) for name, changes in VARIANTS.items()]
    try:
        for worker in workers:
            worker.ask("open", {})
        turns = {worker.side.name: partial(worker.ask, "turn") for worker in workers}
        times = interleave(turns, num_turns, longest_seconds=LENGTH.max_seconds)
    finally:
        for worker in workers:
            worker.process.shutdown(cancel_futures=True)
    return {name: statistics.fmean(seconds) for name, seconds in times.items()}


def line(workload: str, num_busy: int, seconds: dict[str, float]) -> str:
    auto, *fixed = seconds.values()
    ratios: Sequence[float] = (auto / min(fixed[:2]), auto / fixed[2])
    return row(workload, num_busy, *(f"{cell:.3g}" for cell in seconds.values()), *(f"{cell:.2f}" for cell in ratios))


if __name__ == "__main__":
    main()
