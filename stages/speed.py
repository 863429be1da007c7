"""How many times as fast one device trains a workload as another: `python -m flows.stage speed WORKLOAD`.

In: results/hardware/<device>.json of every device of params.yaml, data/packed/<workload>/<device>/, params.yaml.
Out: results/speed/<workload>.json: what every process took, the speed-up with its interval, and a sentence. Where all
devices are of one kind there is nothing to pair; the sentence says so, and torch is not imported.

A machine varies by 1.3 times between processes and hours, and the epochs of one process resemble each other: an
interval over them is none. So a pair is two processes here, one a side, that live at the same time and take turns of a
fraction of a second: what slows the machine for longer than a turn slows both. A pair gives one figure, and there is
one for every seed. What is timed is what timings.csv calls epoch_seconds, an epoch's training steps, for fewer of them.

The CPU has the number of threads with which it is fastest, whatever train.threads is: a GPU is compared with its best.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from stages import files
from stages.comparing.statistics import SpeedUp, paired_speed_up, ratio_of_turns
from stages.files import hardware_file, read_json
from stages.machine.turns import interleave
from stages.params.loading import load_params

if TYPE_CHECKING:
    from stages.training.trainer import Trainer
    from stages.training.workload import RunContext


@dataclass(frozen=True)
class Length:
    """Of what is measured of a pair."""

    turn_seconds: float = 0.2  # about; a step where one is longer
    num_turns: int = 25  # of each side
    longest_seconds: float = 30.0  # of all turns of a pair: fewer turns where steps are long
    warmup_seconds: float = 3.0  # at most: then the warm-up ends before train.warmup_epochs have passed


@dataclass(frozen=True)
class TimedSide:
    """What is compared: a device of params.yaml, with other settings than the workload's where that is wanted."""

    name: str
    device: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # of `train`: {"threads": 1}
    adapt: Callable[[Trainer], None] | None = None  # called with the training before its first step; pickled by name
    steps_multiple: int = 1  # a turn's number of steps is a multiple of it


@dataclass(frozen=True)
class Pair:
    """Two processes that took turns. The keys are the names of the sides."""

    seed: int
    ratio: float  # how many times as fast the second side is as the first
    epoch_seconds: dict[str, float]  # median over the turns, for whoever reads it; a ratio is of turns
    turns: dict[str, list[float]]  # seconds an epoch, turn by turn
    about: dict[str, dict[str, Any]]  # what the process computed with (`Training.about`)
    load: float  # of the machine, the minute before


def main(workload: str) -> None:
    sides = sides_of(load_params().devices)
    if len(sides) == 1:
        (side,) = sides
        result = {"workload": workload, "sentence": f"{workload}: one kind of device ({side.name}), nothing to pair."}
    else:
        result = compare(workload, sides, load_params().seeds)
    files.write_json(files.results_dir() / "speed" / f"{workload}.json", result)
    print(result["sentence"])


def sides_of(devices: Sequence[str]) -> list[TimedSide]:
    """One for each kind of device, the CPU first. Of two devices of a kind it is the first of params.yaml.

    Several workers (2xcpu) are no side: stages/tools/scaling.py measures what they bring.
    """
    found = {device: read_json(hardware_file(device)) for device in devices}
    single = [device for device in devices if "workers" not in found[device]] or devices
    by_kind = {found[device]["kind"]: device for device in reversed(single)}
    return [TimedSide(kind, by_kind[kind], {"threads": "auto"} if kind == "cpu" else {}) for kind in sorted(by_kind)]


def context_of(workload: str, side: TimedSide, seed: int) -> RunContext:
    from stages.training.workload import RunContext

    context = RunContext.of(workload, side.device, seed)
    return replace(context, params=replace(context.params, train=replace(context.params.train, **side.changes)))


def compare(
    workload: str, sides: Sequence[TimedSide], seeds: Sequence[int], length: Length | None = None
) -> dict[str, Any]:
    """The file's content: a pair for every seed, and what follows from all of them. Prints a line for each."""
    pairs, names = [], [side.name for side in sides]
    try:
        for pair in measure_pairs(workload, sides, seeds, length or Length()):
            pairs.append(pair)
            seconds = ", ".join(f"{name} {value:.4g} s" for name, value in pair.epoch_seconds.items())
            print(f"{workload}, pair {len(pairs)} of {len(seeds)}: an epoch's steps take {seconds}", flush=True)
    except MemoryError as error:  # a training that has come so far has gone on on the CPU
        return {
            "workload": workload,
            "sides": names,
            "sentence": f"{workload}: no speed-up is stated, because {error}.",
        }
    if shared := [name for name in names if any(pair.about[name]["other_processes"] for pair in pairs)]:
        why = f"other processes were on the GPU of {' and '.join(shared)} when its turns were over"
        return {
            "workload": workload,
            "sides": names,
            "pairs": [asdict(pair) for pair in pairs],
            "sentence": f"{workload}: {why}, so its times say nothing about it.",
        }
    found = paired_speed_up([pair.ratio for pair in pairs])
    out_of_memory = {name: actions for name in names if (actions := pairs[-1].about[name]["out_of_memory"])}
    return {
        "workload": workload,
        "sides": names,
        "about": pairs[0].about,
        "pairs": [asdict(pair) for pair in pairs],
        "speed_up": asdict(found),  # of the second side against the first
        "out_of_memory": out_of_memory,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "sentence": f"{workload}: {sentence(found, sides, pairs, list(out_of_memory))}.",
    }


def sentence(found: SpeedUp, sides: Sequence[TimedSide], pairs: Sequence[Pair], out_of_memory: Sequence[str]) -> str:
    if out_of_memory:  # what is done about it makes the steps slower
        return f"no speed-up is stated, because memory ran out on {' and '.join(out_of_memory)}"
    slow, fast = sides
    if found.ratio < 1:
        found, slow, fast = found.reversed(), fast, slow
    who = "; ".join(f"{side.name}: {describe(pairs[0].about[side.name])}" for side in (fast, slow))
    times = f"{fast.name} is {found.ratio:.2f} times as fast as {slow.name}"
    if found.missing_reason:
        return f"{times} ({found.missing_reason}); {who}"
    interval = f"95% interval {found.low:.2f} to {found.high:.2f}, {found.num_pairs} processes a side in turns"
    if not found.is_clear:
        return f"no difference in speed can be told: {times}, {interval}; {who}"
    return f"{times} ({interval}); {who}"


def describe(about: Mapping[str, Any]) -> str:
    threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
    return f"{about['device_name']}, {threads}, {about['precision']}, {about['step']}"


# The measuring side.


def measure_pairs(workload: str, sides: Sequence[TimedSide], seeds: Sequence[int], length: Length) -> Iterator[Pair]:
    """One pair after the other. The sides change places from pair to pair: neither is always the first."""
    chosen: dict[str, dict[str, Any]] = {}  # device -> what `auto` took there, in the first process that asked
    for number, seed in enumerate(seeds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        workers = [Worker(workload, side, seed, length) for side in order]
        try:
            for worker in workers:
                taken = chosen.setdefault(worker.side.device, {})
                opened = worker.ask("open", taken)
                taken |= {name: opened[name] for name, asked in opened["asked"].items() if asked == "auto"}
            found = interleave(
                {worker.side.name: partial(worker.ask, "turn") for worker in workers},
                length.num_turns,
                longest_seconds=length.longest_seconds,
            )
            about_of = {worker.side.name: worker.ask("about") for worker in workers}
        finally:
            for worker in workers:
                worker.end()
        turns = {side.name: found[side.name] for side in sides}
        about = {side.name: about_of[side.name] for side in sides}
        seconds = {name: statistics.median(values) for name, values in turns.items()}
        yield Pair(seed, ratio_of_turns(*turns.values()), seconds, turns, about, round(os.getloadavg()[0], 2))


class Worker:
    """A process that trains when it is asked to, as seen from outside.

    It is a new Python, not a fork: processes that share their memory's layout would differ less than trainings do.
    """

    def __init__(self, workload: str, side: TimedSide, seed: int, length: Length) -> None:
        self.workload, self.side = workload, side
        start = get_context("spawn")
        self.pipe, other = start.Pipe()
        self.process = start.Process(target=serve, args=(other, workload, side, seed, length))
        self.process.start()
        other.close()

    def ask(self, *request: Any) -> Any:
        """What the process answers. Raises ValueError with its reason where it failed or died, MemoryError where its
        memory ran out for good.
        """
        with suppress(OSError):  # where it failed before it was asked, its reason waits to be read
            self.pipe.send(request)
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            answer = Failed(f"its process {how_it_ended(self.process.exitcode)}")
        if isinstance(answer, Failed) and answer.is_out_of_memory:
            raise MemoryError(f"memory ran out on {self.side.name}: {answer.reason}")
        if isinstance(answer, Failed):
            raise ValueError(f"the speed of {self.workload} on {self.side.name} was not measured: {answer.reason}")
        return answer

    def end(self) -> None:
        self.process.kill()  # it has nothing to save
        self.process.join()
        self.pipe.close()


def how_it_ended(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = ", which the system does where memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}; run the same command again"


# The side of the process that trains.


@dataclass(frozen=True)
class Failed:
    reason: str
    is_out_of_memory: bool = False


def serve(pipe: Connection, workload: str, side: TimedSide, seed: int, length: Length) -> None:
    """Answers requests until nobody is there to ask. Sends `Failed` where it cannot."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C ends the stage, and that ends this process
    threading.Thread(target=end_with_stage, daemon=True).start()
    try:
        training = TimedTraining(workload, side, seed, length)
        while True:
            name, *arguments = pipe.recv()
            pipe.send(getattr(training, name)(*arguments))
    except EOFError:
        return
    except (ValueError, OSError) as error:
        pipe.send(Failed(str(error), isinstance(error, MemoryError)))  # memory.OutOfMemory is both
    except Exception as error:  # a mistake in the code, whose traceback is needed
        traceback.print_exc()
        pipe.send(Failed(f"{type(error).__name__}: {' '.join(str(error).split())}"))


def end_with_stage() -> None:
    """No worker outlives the stage, however that ends: `kill -9` of it closes a pipe that this thread waits for."""
    stage = parent_process()
    assert stage is not None
    stage.join()
    os._exit(1)


class TimedTraining:
    """A workload's training, of which a turn takes some steps."""

    def __init__(self, workload: str, side: TimedSide, seed: int, length: Length) -> None:
        # Imports torch, while the other side's process does.
        self.context, self.side, self.length = context_of(workload, side, seed), side, length

    def open(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """As train does, and warmed up. `chosen`: what another process took for `auto` on the same device."""
        from stages.training import auto
        from stages.training.memory import translate_oom
        from stages.training.workload import open_trainer

        settings = self.context.params.train
        self.asked = {name: getattr(settings, name) for name in ("threads", "precision")}
        known = {name: value for name, value in chosen.items() if self.asked[name] == "auto"}
        self.context = replace(self.context, params=replace(self.context.params, train=replace(settings, **known)))
        self.trainer = open_trainer(self.context, {"trainer": None})
        with translate_oom(self.trainer.oom):
            auto.realize(self.trainer, self.context.identity)
        if self.side.adapt is not None:
            self.side.adapt(self.trainer)
        self.steps: Iterator[int] = iter(())
        self.num_steps = self.warm_up()
        return self.about()

    def about(self) -> dict[str, Any]:
        from stages.machine.conditions import other_gpu_processes
        from stages.machine.regions import gpu_uuid

        trainer = self.trainer
        return {
            "kind": self.context.kind,
            "device_name": self.context.identity["name"],
            "threads": trainer.params.num_threads,
            "precision": trainer.step.precision,
            "step": trainer.step.execution_mode,
            "asked": self.asked,
            "out_of_memory": trainer.oom.actions,
            "other_processes": other_gpu_processes(gpu_uuid(trainer.device)),
            "steps_per_turn": self.num_steps,
        }

    def warm_up(self) -> int:
        """Train for the warm-up's epochs, or as long as that may take; then the number of steps in a turn."""
        from stages.training.graphs import NUM_WARMUPS

        trainer, start = self.trainer, time.perf_counter()
        # The ragged batch is captured too, once it has come as often.
        num_epochs = max(trainer.params.warmup_epochs, NUM_WARMUPS + 1 if trainer.step.graphs else 0)
        left = num_epochs * trainer.steps_per_epoch
        while left > 0 and time.perf_counter() - start < self.length.warmup_seconds:
            self.take(1)
            left -= 1
        count, multiple = 1, self.side.steps_multiple
        while (seconds := self.take(count)[1]) < self.length.turn_seconds / 2:
            count *= 2
        return max(1, round(count * self.length.turn_seconds / seconds / multiple)) * multiple

    def turn(self) -> float:
        """Seconds an epoch."""
        if self.num_steps > 1:
            self.take(1)  # back into the caches, and out of a GPU's sleep
        count, seconds = self.take(self.num_steps)
        return seconds / count * len(self.trainer.train_split)

    def take(self, num_steps: int) -> tuple[int, float]:
        """(sequences, seconds) of so many steps; the device is idle at both ends.

        It is the first epoch over and over, so that the work stays the same. The clock stands still between two epochs,
        while the next one's random numbers are drawn.
        """
        from stages.machine.regions import synchronize
        from stages.training.memory import translate_oom

        trainer, count, seconds = self.trainer, 0, 0.0
        with translate_oom(trainer.oom):
            while num_steps:
                synchronize(trainer.device)
                start = time.perf_counter()
                taken = list(islice(self.steps, num_steps))
                synchronize(trainer.device)
                seconds += time.perf_counter() - start
                count += sum(taken)
                num_steps -= len(taken)
                if num_steps:
                    self.steps = trainer.training_steps()
        return count, seconds
