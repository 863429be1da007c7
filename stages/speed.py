"""Measure how many times as fast one device trains a workload as another: `python -m tandem.stage speed WORKLOAD`.

Reads results/hardware/devices/ for every device of params.yaml, data/packed/<workload>/<device>/ and params.yaml.
Writes results/speed/<workload>.json: the times of every process, the speed-up with its interval, and a sentence. If all
devices are of one kind, there is no pair to measure; the sentence says so and torch is not imported.

A pair consists of two processes, one per side, that run at the same time and alternate every fraction of a second. A
disturbance that lasts longer than a turn slows both. Each pair gives one ratio, and there is one pair per seed
(docs/comparing.md). The timed quantity is epoch_seconds of timings.csv, measured over fewer steps. The CPU uses the
number of threads with which it is fastest, whatever train.threads is.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any

from tandem import files
from tandem.comparing.speed_up import paired_speed_up, ratio_of_turns
from tandem.devices.names import is_accelerator, split_device
from tandem.files import hardware_file, read_json
from tandem.machine.interleaving import interleave
from tandem.params.reading import PARAMS, read_yaml
from tandem.stop_signals import end_with

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer


@dataclass(frozen=True)
class Length:
    """How long a pair is measured."""

    turn_seconds: float = 0.2  # approximate; at least one step
    num_turns: int = 25  # per side
    max_seconds: float = 30.0  # for all turns of a pair; long steps reduce the number of turns
    warmup_seconds: float = 3.0  # limit; the warm-up may end before train.warmup_epochs have passed


@dataclass(frozen=True)
class TimedSide:
    """One side of the comparison: a device of params.yaml, with changed training settings if wanted."""

    name: str
    device: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # to `train`, e.g. {"threads": 1}
    adapt: Callable[[Trainer], None] | None = None  # called with the trainer before its first step; pickled by name
    steps_multiple: int = 1  # the number of steps in a turn is a multiple of it


@dataclass(frozen=True)
class Pair:
    """Two alternating processes. The keys are the names of the sides."""

    seed: int
    ratio: float  # how many times as fast the second side is as the first
    epoch_seconds: dict[str, float]  # median over the turns, for readers; `ratio` is computed from the turns
    turns: dict[str, list[float]]  # seconds per epoch, for each turn
    about: dict[str, dict[str, Any]]  # the settings of each process (`TimedTraining.settings`)
    load: float  # of the machine, over the last minute


def main(workload: str) -> None:
    params = read_yaml(PARAMS)  # `hardware` has validated it
    sides = sides_of(params["devices"])
    if len(sides) < 2:
        kinds = sorted({read_json(hardware_file(device))["kind"] for device in params["devices"]})
        reason = f"only one kind of device ({kinds[0]})"
        if any(split_device(device)[0] > 1 for device in params["devices"]):
            reason = "several workers do not take turns (benchmarks/workers.py measures them)"
        result = {"workload": workload, "sentence": f"{workload}: {reason}, so no speed-up is measured."}
    elif loop := loop_of(workload):
        reason = f"{loop} takes the steps of {workload}, and a custom loop cannot alternate with another device"
        result = {"workload": workload, "sentence": f"{workload}: {reason}."}
    else:
        result = compare(workload, sides, params["seeds"])
    files.write_json(files.results_dir() / "speed" / f"{workload}.json", result)
    if len(sides) > 1:
        print(result["sentence"])


def loop_of(workload: str) -> str | None:
    from tandem.params.loading import load_workload  # imports the schema

    return load_workload(workload).train.loop


def sides_of(devices: Sequence[str]) -> list[TimedSide]:
    """Return one side for each kind of device, the CPU first. For two devices of a kind, the first of params.yaml
    counts.

    Several workers (2xcpu) are not a side: benchmarks/workers.py measures them.
    """
    hardware = {device: read_json(hardware_file(device)) for device in devices}
    single = [device for device in devices if "workers" not in hardware[device]]
    by_kind = {hardware[device]["kind"]: device for device in reversed(single)}
    changes: dict[str, dict[str, Any]] = {kind: {} if is_accelerator(kind) else {"threads": "auto"} for kind in by_kind}
    return [TimedSide(kind, by_kind[kind], changes[kind]) for kind in sorted(by_kind)]


def compare(
    workload: str, sides: Sequence[TimedSide], seeds: Sequence[int], length: Length | None = None
) -> dict[str, Any]:
    """Return the content of the result file: one pair per seed and the speed-up. Prints a line for each pair."""
    pairs, names = [], [side.name for side in sides]
    result: dict[str, Any] = {"workload": workload, "sides": names}
    try:
        for pair in measure_pairs(workload, sides, seeds, length or Length()):
            pairs.append(pair)
            seconds = ", ".join(f"{name} {value:.4g} s" for name, value in pair.epoch_seconds.items())
            print(f"{workload}, pair {len(pairs)} of {len(seeds)}: an epoch's steps take {seconds}", flush=True)
    except MemoryError as error:  # no fallback was left
        return result | {"sentence": f"{workload}: {error}."}
    result["pairs"] = [asdict(pair) for pair in pairs]
    if shared := [name for name in names if any(pair.about[name]["other_processes"] for pair in pairs)]:
        reason = f"other processes used the GPU of {' and '.join(shared)} at the end of the measurement"
        return result | {"sentence": f"{workload}: {reason}, so its times are not reliable."}
    speed_up = paired_speed_up([pair.ratio for pair in pairs])
    out_of_memory = {name: actions for name in names if (actions := pairs[-1].about[name]["out_of_memory"])}
    if out_of_memory:  # the out-of-memory fallbacks slow the steps down
        sentence = f"no speed-up is reported, because memory ran out on {' and '.join(out_of_memory)}"
    else:
        settings = [f"{name}: {settings_text(pairs[0].about[name])}" for name in names]
        sentence = "; ".join([speed_up.sentence(*names), *settings])
    return result | {
        "about": pairs[0].about,
        "speed_up": asdict(speed_up),  # of the second side relative to the first
        "out_of_memory": out_of_memory,
        "measured_at": files.now(),
        "sentence": f"{workload}: {sentence}.",
    }


def settings_text(settings: Mapping[str, Any]) -> str:
    threads = "1 thread" if settings["threads"] == 1 else f"{settings['threads']} threads"
    return f"{settings['device_name']}, {threads}, {settings['precision']}, {settings['step']}"


# Functions of the measuring process.


def measure_pairs(workload: str, sides: Sequence[TimedSide], seeds: Sequence[int], length: Length) -> Iterator[Pair]:
    """Measure one pair after the other. The sides swap their order from pair to pair, so neither is always
    the first.
    """
    chosen: dict[str, dict[str, Any]] = {}  # device -> the values that `auto` chose in the first process
    for number, seed in enumerate(seeds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        workers = [Worker(workload, side, seed, length) for side in order]
        try:
            for worker in workers:
                taken = chosen.setdefault(worker.side.device, {})
                opened = worker.ask("open", taken)
                taken |= {name: opened[name] for name, requested in opened["requested"].items() if requested == "auto"}
            turns_of = interleave(
                {worker.side.name: partial(worker.ask, "turn") for worker in workers},
                length.num_turns,
                longest_seconds=length.max_seconds,
            )
            settings_of = {worker.side.name: worker.ask("settings") for worker in workers}
        finally:
            for worker in workers:
                worker.process.shutdown(cancel_futures=True)
        turns = {side.name: turns_of[side.name] for side in sides}
        settings = {side.name: settings_of[side.name] for side in sides}
        seconds = {name: statistics.median(values) for name, values in turns.items()}
        yield Pair(seed, ratio_of_turns(*turns.values()), seconds, turns, settings, round(os.getloadavg()[0], 2))


class Worker:
    """A process that trains on request.

    The process is spawned, not forked: forked processes share their memory layout, so they would differ less than
    separate trainings do.
    """

    def __init__(self, workload: str, side: TimedSide, seed: int, length: Length) -> None:
        self.workload, self.side = workload, side
        self.process = ProcessPoolExecutor(1, get_context("spawn"), end_with_stage)
        self.process.submit(prepare, workload, side, seed, length)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of TimedTraining. Raises ValueError with the reason if it failed or the process
        died, MemoryError if it ran out of memory and has no fallback left.
        """
        try:
            return self.process.submit(call_training, name, *arguments).result()
        except MemoryError as error:
            raise MemoryError(f"memory ran out on {self.side.name}: {error}") from None
        except BrokenProcessPool:
            reason = "its process was killed, which the system does if memory runs out; run the same command again"
        except (ValueError, OSError) as error:
            reason = str(error)
        raise ValueError(f"the speed of {self.workload} on {self.side.name} was not measured: {reason}")


# Functions of the process that trains.


def end_with_stage() -> None:
    """End this process with the stage, even after `kill -9`. Ctrl+C ends the stage."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stage = parent_process()  # not os.getppid(): the stage may have ended while this process started
    assert stage is not None and stage.pid is not None
    end_with(stage.pid)


training: TimedTraining  # of this process


def prepare(*arguments: Any) -> None:
    """Import torch, while the other side's process does the same."""
    global training
    training = TimedTraining(*arguments)


def call_training(name: str, *arguments: Any) -> Any:
    try:
        return getattr(training, name)(*arguments)
    except MemoryError as error:
        raise MemoryError(str(error)) from None  # OutOfMemory cannot be pickled


class TimedTraining:
    """A workload's training that runs some steps per turn."""

    def __init__(self, workload: str, side: TimedSide, seed: int, length: Length) -> None:
        import tandem.training.opening  # noqa: F401

        self.workload, self.side, self.seed, self.length = workload, side, seed, length
        self.steps: Iterator[int] = iter(())

    def open(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Open the training as `train` does, and warm up. `chosen`: the values that `auto` chose in another process on
        this device.
        """
        from tandem.training import auto
        from tandem.training.context import RunContext
        from tandem.training.executor import translate_oom
        from tandem.training.opening import open_trainer

        self.context = RunContext.of(self.workload, self.side.device, self.seed)
        settings = replace(self.context.block.train, **self.side.changes)
        self.requested = {"precision": settings.precision}
        choices = {name: value for name, value in chosen.items() if self.requested[name] == "auto"}
        self.context = replace(self.context, block=replace(self.context.block, train=replace(settings, **choices)))
        self.trainer = open_trainer(self.context, None)
        with translate_oom(self.trainer.executor):
            auto.resolve(self.trainer, self.context.hardware)
        if self.side.adapt is not None:
            self.side.adapt(self.trainer)
        self.num_steps = self.warm_up()
        return self.settings()

    def settings(self) -> dict[str, Any]:
        trainer, driver = self.trainer, self.trainer.device.driver
        return {
            "kind": self.context.kind,
            "device_name": self.context.hardware["name"],
            "threads": trainer.thread_tuner.number,
            "precision": trainer.execution.precision,
            "step": trainer.execution.step,
            "requested": self.requested,
            "out_of_memory": trainer.executor.fallbacks,
            "other_processes": int(driver.conditions().get("other_processes", 0)) if driver else 0,
            "steps_per_turn": self.num_steps,
        }

    def warm_up(self) -> int:
        """Train for the warm-up epochs, at most `warmup_seconds`. Returns the number of steps in a turn."""
        from tandem.devices.graphs import NUM_WARMUPS

        trainer = self.trainer
        self.run_steps(1)  # loads CUDA's libraries, which may take longer than the limit
        start = time.perf_counter()
        # The smaller last batch is captured as a CUDA graph too, after as many warm-ups.
        num_epochs = max(trainer.settings.warmup_epochs, NUM_WARMUPS + 1 if trainer.step.graphs else 0)
        num_left = num_epochs * trainer.steps_per_epoch - 1
        while num_left > 0 and time.perf_counter() - start < self.length.warmup_seconds:
            self.run_steps(1)
            num_left -= 1
        num_steps, multiple = 1, self.side.steps_multiple
        while (seconds := self.run_steps(num_steps)[1]) < self.length.turn_seconds / 2:
            num_steps *= 2
        return max(1, round(num_steps * self.length.turn_seconds / seconds / multiple)) * multiple

    def turn(self) -> float:
        """Run one turn. Returns its seconds per epoch."""
        self.run_steps(1)  # refill the caches, wake the GPU, and use up the batch that it has copied meanwhile
        num_sequences, seconds = self.run_steps(self.num_steps)
        return seconds / num_sequences * len(self.trainer.train_split)

    def run_steps(self, num_steps: int) -> tuple[int, float]:
        """Run that many steps. Returns (sequences, seconds). The device is idle at both ends.

        The steps repeat the first epoch, so the work stays the same. The clock stops between two epochs, while the
        random numbers of the next one are drawn.
        """
        from tandem.machine.measure import Clock
        from tandem.training.executor import translate_oom

        trainer, num_sequences, clock = self.trainer, 0, Clock(self.trainer.device)
        with translate_oom(trainer.executor), trainer.execution.active():
            while num_steps:
                with clock:
                    sizes = list(islice(self.steps, num_steps))
                num_sequences += sum(sizes)
                num_steps -= len(sizes)
                if num_steps:
                    self.steps = trainer.training_steps()
        return num_sequences, clock.seconds
