"""Tandem's loop against the loops people write: samples per second of training, same model, data, batch and steps.

    python -m benchmarks.throughput                                  # the four workloads of params.yaml, 5 to 9 minutes
    python -m benchmarks.throughput --size guides --json guides.json # at the sizes of the guides that Tandem replaces
    python -m benchmarks.throughput --size large --workloads pen     # where arithmetic is what counts
    python -m benchmarks.throughput --contenders tandem "lightning default" --rounds 9 --seconds 3
    python -m benchmarks.throughput --device cuda                    # also CUDA graphs

Sizes (--size): params trains on the prepared data (`dvc repro` first); guides, large and huge on random numbers from a
fixed seed, because no contender looks at what the numbers are. huge is for a GPU: it takes minutes a round on a CPU.

Contenders (--contenders; the plain loop always takes part). All get the same data, batch size and clipping, and each
the number of threads that suits it best: tried in turns before the rounds, 1, 2, 4, ... up to the usable cores, and
printed; how long a thread spins before it sleeps is for all what Tandem sets (stages/__init__.py). Those that are not
Tandem's (benchmarks/contenders.py) run as their users have them otherwise: networks of torch's modules
(benchmarks/networks.py; same parameters, same outputs), torch's switches and the allocator as they come, AdamW with its
defaults.

- plain: the tutorials' loop: DataLoader with shuffling, 0 workers, `.item()` after each step; the reference
- plain tuned: the loop that a good engineer writes: batches are an `index_select` of tensors that lie on the device,
  AdamW is fused, the C library keeps freed memory, and nothing is read from the device in a step
- plain, 2 workers: its loader with 2 processes that live on between epochs; plain, pageable (GPU): its loader without
  pinned memory
- plain, Tandem's network (CPU): the same loop with the network that Tandem trains, which tells the networks' share from
  the loop's
- accelerate, lightning default, lightning tuned: only where installed (an environment of their own: see
  benchmarks/README.md). Default: `Trainer()` as it comes, with progress bar, logger, a checkpoint every epoch, and
  `self.log` in the step. Tuned: all that costs time and does not change the result is off (`barebones`: progress bar,
  logger, checkpoints, summary, checks; no `self.log`), batches are cut from tensors that lie on the device and are not
  moved again, and AdamW is fused
- tandem: `Trainer.training_steps`, eager, at fp32; tandem auto: at what `precision: auto` chooses, measured anew here.
  Where that is not fp32, the plain loops and lightning tuned run at that precision too
- tandem graph (GPU): captured, as `step: auto` runs there; tandem auto graph: both
- floor: Tandem's step on one batch that never changes, so what the loop costs is the difference; graph floor (GPU): the
  captured step, replayed

Each contender lives in a process of its own, so that nothing one of them sets (threads, TF32, allocator) reaches
another. They take turns in rounds of the same length, in the opposite order every other round; the first is warm-up.
The device is idle as a round begins and ends.

Columns: samples/s and ratio to the plain loop of the same round, as median [quartiles] over the rounds; milliseconds a
step; share of the floor of the same precision (the graph floor, where there is one); share of peak: FLOP/s over the
rate of a large matrix product in the same precision, measured in every round too.

Learning rate schedule, augmentation, validation and the ragged last batch of an epoch are left out for all of them:
they are not compared.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import (
    PEERS,
    Case,
    Contender,
    compete,
    contenders,
    floor,
    graph_floor,
    open_trainer,
    tandem,
)  # fmt: skip
from benchmarks.folklore import Data, spread
from stages.diagnosis.counts import count_flop
from stages.machine.identity import identify, usable_cores
from stages.machine.rates import matrix_rate
from stages.machine.turns import interleave
from stages.models import Shape
from stages.params.loading import load_workload
from stages.params.schema import Augment
from stages.training.device import use_tf32
from stages.training.memory import free_cache, is_out_of_memory, shorten
from stages.training.step import AUTOCAST

WORKLOADS = ("sign", "pen", "price", "rally")
NO_AUGMENT = Augment(coupled_features=1, mix=0.0, shift=0.0, warp=0.0)
STEPS_PER_EPOCH = 64  # on random data
NUM_TRIES = 3  # rounds in which every number of threads is tried, the first of them warm-up
HEADER = (
    "| contender | threads | samples/s | ms a step | times the plain loop | of the floor | of peak |\n"
    "|---|---|---|---|---|---|---|"
)


def random_case(
    workload: str, batch_size: int, num_steps: int, num_features: int, num_outputs: int, **model: Any
) -> Case:
    """`model` are changes to the model of params.yaml."""
    block = load_workload(workload)
    settings = replace(
        block.train, batch_size=batch_size, model=replace(block.train.model, **model), augment=NO_AUGMENT, threads=1
    )
    shape = Shape(num_features, num_outputs, num_steps, per_step=block.task == "detect")
    return Case(workload, settings, Data(STEPS_PER_EPOCH * batch_size, block.task, shape))


ONE_WAY: dict[str, Any] = {"num_layers": 1, "bidirectional": False}
SIZES: dict[str, Callable[[], list[Case]]] = {
    "params": lambda: [
        Case(name, replace(load_workload(name).train, augment=NO_AUGMENT, threads=1), None) for name in WORKLOADS
    ],
    "guides": lambda: [
        random_case("sign", 16, 20, 64, 15, hidden_size=128, **ONE_WAY),
        random_case("sign", 32, 20, 64, 15, hidden_size=128, **ONE_WAY),
        random_case("pen", 16, 30, 4, 10, hidden_size=256, num_layers=3, feedforward_size=1024),
        random_case("price", 32, 30, 3, 10, hidden_size=128),
        random_case("rally", 8, 64, 3, 5, hidden_size=128),
    ],
    "large": lambda: [
        random_case("sign", 256, 20, 64, 15, hidden_size=256, **ONE_WAY),
        random_case("pen", 128, 30, 4, 10, hidden_size=256, num_layers=3, feedforward_size=1024),
        random_case("price", 256, 30, 3, 10, hidden_size=256),
        random_case("rally", 128, 64, 3, 5, hidden_size=128),
    ],
    "huge": lambda: [
        random_case("sign", 2048, 20, 64, 15, hidden_size=1024, **ONE_WAY),
        random_case("pen", 1024, 128, 4, 10, hidden_size=768, num_heads=12, num_layers=6, feedforward_size=3072),
        random_case("price", 2048, 30, 3, 10, hidden_size=1024),
        random_case("rally", 1024, 64, 3, 5, hidden_size=512),
    ],
}


@dataclass
class Rounds:
    """Samples/s of every contender, and FLOP/s of a large matrix product, by precision and threads: one a round."""

    rates: dict[Any, list[float]]
    peaks: dict[tuple[str, int], list[float]]
    threads: dict[Any, int]  # contender -> how many it had
    missing_reasons: dict[Any, str]  # contender -> why there is nothing

    def ratios(self, one: Any, base: Any) -> list[float]:
        """Within the rounds, because a machine's speed drifts."""
        return [rate / other for rate, other in zip(self.rates[one], self.rates[base], strict=True)]

    def of_peak(self, one: Any, flop_per_sample: float, of_precision: str) -> float:
        pairs = zip(self.rates[one], self.peaks[of_precision, self.threads[one]], strict=True)
        return statistics.median(rate * flop_per_sample / peak for rate, peak in pairs)


def main() -> None:
    options = parse()
    print(f"{describe_machine(options.device)}\n\n`{command()}`", flush=True)
    results = []
    for case in SIZES[options.size]():
        if case.workload not in options.workloads:
            continue
        case = replace(case, settings=replace(case.settings, threads=1))  # until its best is found
        try:
            results.append(measure_case(case, options))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            print(f"\n## {case.name}\n\n- not measured: {shorten(error)}", flush=True)
        free_cache()  # outside the `except`: the error holds the tensors of the case
        save(options, {"cases": results})


def measure_case(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    try:
        entered, message = contenders(case, options.device)
    except OSError as error:
        raise SystemExit(f"error: {error}") from None  # the prepared data are missing
    if options.contenders:
        entered = {name: one for name, one in entered.items() if name in ("plain", *options.contenders)}
    flop = flop_per_sample(case, options.device)
    rounds = measure_rounds({name: (case, one) for name, one in entered.items()}, options)
    print(f"\n## {case.name}\n\n{case.describe()}; {message}\n\n{HEADER}", flush=True)
    for name in entered:
        print(row(name, case, entered, rounds, flop), flush=True)
    return record(case, entered, rounds, flop, message)


def row(name: str, case: Case, entered: dict[str, Contender], rounds: Rounds, flop: float) -> str:
    rates = rounds.rates[name]
    if not rates:
        return f"| {name} | | not measured: {rounds.missing_reasons[name]} | | | | |"
    ratios = spread(rounds.ratios(name, "plain"), ".2f") if rounds.rates["plain"] else ""
    base = floor_for(name, entered, rounds)
    of_floor = f"{statistics.median(rounds.ratios(name, base)):.2f}" if base else ""
    step = 1000 * case.settings.batch_size / statistics.median(rates)
    of_peak = rounds.of_peak(name, flop, entered[name].precision)
    cells = (name, rounds.threads[name], spread(rates, ",.0f"), f"{step:.3g}", ratios, of_floor, f"{of_peak:.3f}")
    return f"| {' | '.join(map(str, cells))} |"


def floor_for(name: str, entered: dict[str, Contender], rounds: Rounds) -> str:
    """The floor of the same precision: that of the graph, where there is one."""
    for loop_of in (graph_floor, floor):
        for base, one in entered.items():
            if one.loop is loop_of and one.precision == entered[name].precision and rounds.rates[base]:
                return base
    return ""


def record(case: Case, entered: dict[str, Contender], rounds: Rounds, flop: float, message: str) -> dict[str, Any]:
    """For JSON: all rounds, so that no table needs a second run."""
    kept = {"name": case.name, "settings": asdict(case.settings), "data": case.data and asdict(case.data)}
    peaks = {f"{name}, {threads} threads": found for (name, threads), found in rounds.peaks.items()}
    kept |= {"precision_auto": message, "flop_per_sample": flop, "peak_flop_per_second": peaks, "contenders": {}}
    for name, one in entered.items():
        found = (
            {"samples_per_second": rounds.rates[name]}
            if rounds.rates[name]
            else {"missing_reasons": rounds.missing_reasons[name]}
        )
        about = {"precision": one.precision, "step": one.step, "threads": rounds.threads[name]}
        kept["contenders"][name] = {**about, **found}
    return kept


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="params", help="what is trained (params)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="beside the plain loop (all that apply)")
    return measuring(parser, rounds=5, seconds=2.0, threads="best")


def measuring(parser: argparse.ArgumentParser, rounds: int, seconds: float, threads: str) -> argparse.Namespace:
    """The options that say how to measure, added and read. `thread_counts` are those to choose from."""
    parser.add_argument("--threads", default=threads, metavar="best|N", help=f"of every contender ({threads})")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"2 or more, after one of warm-up ({rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of each contender in a round ({seconds:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every round there")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; a spread needs at least 2")
    if options.threads != "best" and not (options.threads.isdecimal() and int(options.threads)):
        parser.error(f"--threads is {options.threads!r}; accepted: best, or a number from 1")
    try:
        identify(options.device)
    except ValueError as error:
        parser.error(f"{str(error).partition('; ')[0]}; fix that, or use --device cpu")
    options.thread_counts = thread_counts(options.device) if options.threads == "best" else [int(options.threads)]
    return options


def thread_counts(device: str) -> list[int]:
    """1, 2, 4, ... and the usable cores; 1 on a GPU, whose steps the CPU only launches."""
    cores = max(int(usable_cores()), 1) if device == "cpu" else 1
    return sorted({2**power for power in range(cores.bit_length())} | {cores})


def command() -> str:
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def describe_machine(device: str) -> str:
    """Hardware and versions, and how busy the machine was just before."""
    identity = identify(device)
    gpu = f"{identity['name']}, driver {identity['driver']}; " if device == "cuda" else ""
    versions = [f"{name} {version(name)}" for name in ("torch", *PEERS) if importlib.util.find_spec(name)]
    return (
        f"{gpu}{identity['cpu']['name']}, {identity['cpu']['cores']:g} cores; {platform.system()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}; "
        f"{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f}"
    )


def save(options: argparse.Namespace, results: dict[str, Any]) -> None:
    if options.json:
        about = {"machine": describe_machine(options.device), "command": command()}
        options.json.write_text(json.dumps({**about, **results}, indent=1))


def flop_per_sample(case: Case, device: str) -> float:
    if case.data:  # what is counted is one batch: no need for more
        case = replace(case, data=replace(case.data, num_sequences=case.settings.batch_size))
    trainer = open_trainer(case, Contender(tandem, is_tandem=True), device)
    return count_flop(trainer, trainer.one_batch(case.settings.batch_size)) / case.settings.batch_size


def peak_of(of_precision: str, threads: int, device: torch.device) -> float:
    """FLOP/s of a large matrix product."""
    use_tf32(of_precision == "tf32")
    torch.set_num_threads(threads)
    return matrix_rate(device, AUTOCAST.get(of_precision, torch.float32))


# The measuring side.


def measure_rounds(entered: dict[Any, tuple[Case, Contender]], options: argparse.Namespace) -> Rounds:
    """Everyone in a process, in turns, `options.rounds` rounds after one of warm-up; before that, everyone alone finds
    the best of `options.thread_counts` for itself.
    """
    # A server that has imported torch forks them: no second waits for imports, and nothing of this process is
    # inherited. Lightning and Accelerate are imported by those who need them: an import that asked for the GPU there
    # would take it from all who are forked later.
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(
        [
            "torch._dynamo",
            "benchmarks.contenders",
            "stages.training.trainer",
            "stages.diagnosis.probe",
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        workers: dict[Any, Worker] = {}
        try:
            for number, (name, (case, contender)) in enumerate(entered.items()):
                workers[name] = Worker(start, case, contender, options.device, Path(folder) / str(number))
            for worker in workers.values():
                worker.choose_threads(options.thread_counts, options.seconds / 4)
            turns: dict[Any, Callable[[], float]] = {
                name: partial(worker.turn, options.seconds) for name, worker in workers.items()
            }
            threads = {name: worker.threads for name, worker in workers.items()}
            kinds = dict.fromkeys((contender.precision, threads[name]) for name, (_, contender) in entered.items())
            peaks = {("peak", *kind): partial(peak_of, *kind, torch.device(options.device)) for kind in kinds}
            found = interleave(turns | peaks, options.rounds + 1)
        finally:
            for worker in workers.values():
                worker.close()
    failed = {name: worker.failed for name, worker in workers.items() if worker.failed}
    rates = {name: [] if name in failed else found[name][1:] for name in workers}
    return Rounds(rates, {kind: found["peak", *kind][1:] for kind in kinds}, threads, failed)


class Worker:
    """A contender's process, as seen from outside."""

    def __init__(self, start: Any, case: Case, contender: Contender, device: str, folder: Path) -> None:
        self.batch_size, self.threads, self.failed = case.settings.batch_size, case.settings.threads, ""
        self.pipe, other = start.Pipe()
        self.process = start.Process(target=compete, args=(other, case, contender, device, folder))
        self.process.start()
        other.close()
        self.answer()  # it has taken its first step, or failed, which the first turn tells

    def choose_threads(self, counts: list[int], seconds: float) -> None:
        """The number with which it is fastest, tried in turns of so many seconds; kept from then on."""
        if len(counts) == 1:
            self.threads = counts[0]
            return
        rates = interleave({count: partial(self.turn, seconds, count) for count in counts}, NUM_TRIES)
        self.threads = max(counts, key=lambda count: statistics.median(rates[count][1:]))

    def turn(self, seconds: float, threads: int = 0) -> float:
        """Samples/s; 0 where it cannot take part, or no longer: `failed` says why."""
        if self.failed:
            return 0.0
        self.pipe.send((seconds, threads or self.threads))
        count, spent = self.answer()
        return 0.0 if self.failed else count * self.batch_size / spent

    def answer(self) -> tuple[int, float]:
        """(steps, seconds)"""
        try:
            message = self.pipe.recv()
        except EOFError:
            self.process.join()
            message = f"its process ended with exit code {self.process.exitcode}"
        if isinstance(message, str):
            self.failed = message
            return 0, 0.0
        return message

    def close(self) -> None:
        self.pipe.close()  # which is what ends it
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()


if __name__ == "__main__":
    main()
