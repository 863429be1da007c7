"""Training throughput of Tandem's loop and of common loops, with the same model, data, batch and steps.

    python -m benchmarks.throughput                                  # the four workloads of params.yaml, 5 to 9 minutes
    python -m benchmarks.throughput --size guides                    # at the sizes of the guides that Tandem replaces
    python -m benchmarks.throughput --contenders tandem "lightning default" --rounds 9 --seconds 3
    python -m benchmarks.throughput --device cuda                    # also CUDA graphs

Sizes (--size): params trains on the prepared data (`dvc repro` first), guides on random numbers from a fixed seed,
because speed does not depend on the numbers.

Contenders (--contenders; the plain loop always takes part). All get the same data, batch size and clipping; what is
fair about it is in benchmarks/README.md.

- plain: the tutorials' loop: DataLoader with shuffling, 0 workers, `.item()` after each step; the baseline
- plain tuned: the loop that a good engineer writes without a framework
- lightning default, lightning tuned: only if it is installed, in its own environment
- tandem: `Trainer.training_steps`, eager, at fp32; tandem auto: at the choice of `precision: auto`, measured anew.
  If that is not fp32, the tuned loop also runs at that precision
- tandem graph (GPU): captured, as with `step: auto`; tandem auto graph: both. Only by name: tandem graph, bf16 (or
  another precision of the GPU); tandem, streamed: eager, from the host's memory
- floor: Tandem's step on one constant batch; the difference is the cost of the loop; graph floor (GPU): the captured
  step, replayed

The contenders take turns in rounds of equal length, in reverse order every other round; the first round is warm-up. The
device is synchronized at both ends of a round.

Columns: samples/s and ratio to the plain loop in the same round, as median [quartiles] over the rounds; milliseconds
per step; share of the floor of the same precision (of the graph floor if there is one).

All contenders omit learning rate schedule, augmentation, validation and the ragged last batch of an epoch.
"""

import argparse
import multiprocessing
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contenders import (
    Case,
    Contender,
    compete,
    contenders,
    floor,
    graph_floor,
    on_request,
)  # fmt: skip
from benchmarks.folklore import Data
from benchmarks.markdown import header, machine_sentence, quartiles, row
from tandem.devices.device import Device
from tandem.devices.hardware import detect_hardware, usable_cores
from tandem.devices.memory import free_cache, is_out_of_memory, shorten
from tandem.devices.names import KINDS, is_accelerator, kind_of
from tandem.machine.interleaving import interleave
from tandem.models import Shape
from tandem.params.loading import load_workload
from tandem.params.schema import Augment

PACKAGES = ("torch", "lightning")
WORKLOADS = ("sign", "pen", "price", "rally")
NO_AUGMENT = Augment(coupled_features=1, mix=0.0, shift=0.0, warp=0.0)
STEPS_PER_EPOCH = 64  # on random data
FREE_MIB = 1024  # of a GPU, for the steps of all contenders
NUM_TRIES = 3  # rounds per number of threads, including one warm-up
HEADER = header("contender", "threads", "samples/s", "ms a step", "times the plain loop", "of the floor")


def random_case(
    workload: str, batch_size: int, num_steps: int, num_features: int, num_outputs: int, **model: Any
) -> Case:
    """`model`: changes to the model of params.yaml."""
    block = load_workload(workload)
    settings = replace(
        block.train, batch_size=batch_size, model=replace(block.train.model, **model), augment=NO_AUGMENT, threads=1
    )
    shape = Shape(num_features, num_outputs, num_steps, per_step=block.task_attributes.target == "class per step")
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
}


@dataclass
class Rounds:
    """Samples/s of every contender, one per round."""

    rates: dict[Any, list[float]]
    threads: dict[Any, int]  # contender -> its number of threads
    missing_reasons: dict[Any, str]  # contender -> why it has no result

    def ratios(self, one: Any, base: Any) -> list[float]:
        """Ratios within the rounds, because a machine's speed drifts."""
        return [rate / other for rate, other in zip(self.rates[one], self.rates[base], strict=True)]


def main() -> None:
    options = parse()
    print(f"{machine_sentence(options.device, PACKAGES)}\n\n`{command()}`", flush=True)
    for case in SIZES[options.size]():
        if case.workload not in options.workloads:
            continue
        case = replace(case, settings=replace(case.settings, threads=1))  # until the fastest number is found
        try:
            measure_case(case, options)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            print(f"\n## {case.name}\n\n- not measured: {shorten(error)}", flush=True)
        free_cache(kind_of(options.device)())  # outside the `except`, because the error references the case's tensors


def measure_case(case: Case, options: argparse.Namespace) -> None:
    try:
        entered, message = contenders(case, options.device)
    except OSError as error:
        raise SystemExit(f"error: {error}") from None  # the prepared data is missing
    if options.contenders:
        available = entered | on_request(options.device)
        entered = {name: contender for name, contender in available.items() if name in ("plain", *options.contenders)}
    rounds = measure_rounds({name: (case, contender) for name, contender in entered.items()}, options)
    print(f"\n## {case.name}\n\n{case.summary()}; {message}\n\n{HEADER}", flush=True)
    for name in entered:
        print(row_of(name, case, entered, rounds), flush=True)
    if absent := [name for name in options.contenders or () if name not in entered]:
        print(row(", ".join(absent), "", "not measured: this device or installation has none", *[""] * 3), flush=True)
    print(f"\n{tf32_line(entered, kind_of(options.device)().precisions())}", flush=True)


def row_of(name: str, case: Case, entered: dict[str, Contender], rounds: Rounds) -> str:
    rates = rounds.rates[name]
    if not rates:
        return row(name, "", f"not measured: {rounds.missing_reasons[name]}", *[""] * 3)
    ratios = quartiles(rounds.ratios(name, "plain"), ".2f") if rounds.rates["plain"] else ""
    base = floor_for(name, entered, rounds)
    of_floor = f"{statistics.median(rounds.ratios(name, base)):.2f}" if base else ""
    step = 1000 * case.settings.batch_size / statistics.median(rates)
    return row(name, rounds.threads[name], quartiles(rates, ",.0f"), f"{step:.3g}", ratios, of_floor)


def tf32_line(entered: dict[str, Contender], precisions: Sequence[str]) -> str:
    """Which rows may compute products of fp32 in TF32, on a device with these precisions."""
    switches = {"tf32": "all products", "bf16": "cuDNN alone"} if "tf32" in precisions else {}
    where = {name: switches[one.precision] for name, one in entered.items() if one.precision in switches}
    return f"- TF32 is allowed in {', '.join(f'`{name}` ({what})' for name, what in where.items()) or 'no row'}"


def floor_for(name: str, entered: dict[str, Contender], rounds: Rounds) -> str:
    """The floor of the same precision; the graph's if there is one."""
    for loop_of in (graph_floor, floor):
        for base, contender in entered.items():
            if contender.loop is loop_of and contender.precision == entered[name].precision and rounds.rates[base]:
                return base
    return ""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="params", help="what is trained (params)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="beside the plain loop (all that apply)")
    return measuring(parser, rounds=5, seconds=2.0, threads="best")


def measuring(parser: argparse.ArgumentParser, rounds: int, seconds: float, threads: str) -> argparse.Namespace:
    """Add the measurement options and parse them. `thread_counts` are the numbers of threads to try."""
    parser.add_argument("--threads", default=threads, metavar="best|N", help=f"of every contender ({threads})")
    parser.add_argument("--device", choices=KINDS, default="cpu")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"2 or more, after one of warm-up ({rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of each contender in a round ({seconds:g})")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; a spread needs at least 2")
    if options.threads != "best" and not (options.threads.isdecimal() and int(options.threads)):
        parser.error(f"--threads is {options.threads!r}; accepted: best, or a number from 1")
    try:
        detect_hardware(options.device)
    except ValueError as error:
        parser.error(f"{str(error).partition('; ')[0]}; fix that, or use --device cpu")
    options.thread_counts = thread_counts(options.device) if options.threads == "best" else [int(options.threads)]
    return options


def thread_counts(device: str) -> list[int]:
    """1, 2, 4, ... and the usable cores; 1 on a GPU, where the CPU only launches the steps."""
    cores = max(int(usable_cores()), 1) if not is_accelerator(device) else 1
    return sorted({2**power for power in range(cores.bit_length())} | {cores})


def command() -> str:
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


# Measurement.


def measure_rounds(entered: dict[Any, tuple[Case, Contender]], options: argparse.Namespace) -> Rounds:
    """Run `options.rounds` rounds after one of warm-up, with all contenders in turns, each in its process. Before that,
    each contender alone finds the fastest of `options.thread_counts`.
    """
    with tempfile.TemporaryDirectory() as folder:
        workers: dict[Any, Worker] = {}
        start = fork_server()
        try:
            for number, (name, (case, contender)) in enumerate(entered.items()):
                workers[name] = Worker(start, case, contender, options.device, Path(folder) / str(number))
                if number and not has_room(kind_of(options.device)()):
                    workers[name].leave_out(f"with its process, less than {FREE_MIB} MiB of the GPU would be free")
            for worker in workers.values():
                worker.choose_threads(options.thread_counts, options.seconds / 4)
            turns: dict[Any, Callable[[], float]] = {
                name: partial(worker.turn, options.seconds) for name, worker in workers.items()
            }
            threads = {name: worker.threads for name, worker in workers.items()}
            measured = interleave(turns, options.rounds + 1)
        finally:
            for worker in workers.values():
                worker.close()
    failed = {name: worker.failed for name, worker in workers.items() if worker.failed}
    rates = {name: [] if name in failed else measured[name][1:] for name in workers}
    return Rounds(rates, threads, failed)


def has_room(device: Device) -> bool:
    """Whether the started processes have memory for their steps: each holds a CUDA context of hundreds of MiB."""
    return not device.is_accelerator or device.memory_bytes()[0] >= FREE_MIB * 2**20


def fork_server() -> Any:
    """A fork server that has imported torch: contenders do not wait for that, and inherit nothing from this process."""
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(
        ["torch._dynamo", "benchmarks.contenders", "tandem.training.trainer", "tandem.diagnosis.probe"]
    )
    return start


class Worker:
    """A contender's process, seen from the main process."""

    def __init__(self, start: Any, case: Case, contender: Contender, device: str, folder: Path) -> None:
        self.batch_size, self.threads, self.failed = case.settings.batch_size, case.settings.threads, ""
        self.pipe, other = start.Pipe()
        self.process = start.Process(target=compete, args=(other, case, contender, device, folder))
        self.process.start()
        other.close()
        self.answer()  # its first step is done, or has failed, which the first turn reports

    def choose_threads(self, counts: list[int], seconds: float) -> None:
        """Choose the fastest number, tried in turns of `seconds`, for all later turns."""
        if len(counts) == 1:
            self.threads = counts[0]
            return
        rates = interleave({count: partial(self.turn, seconds, count) for count in counts}, NUM_TRIES)
        self.threads = max(counts, key=lambda count: statistics.median(rates[count][1:]))

    def turn(self, seconds: float, threads: int = 0) -> float:
        """Samples/s; 0 if it cannot take part or no longer does: `failed` says why."""
        if self.failed:
            return 0.0
        self.pipe.send((seconds, threads or self.threads))
        count, elapsed = self.answer()
        return 0.0 if self.failed else count * self.batch_size / elapsed

    def leave_out(self, reason: str) -> None:
        self.close()
        self.failed = reason

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
        self.pipe.close()  # this ends the process
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()


if __name__ == "__main__":
    main()
