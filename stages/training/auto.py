"""`threads: auto` and `precision: auto`: what trains this model fastest on this device, found by a few steps with each.

Two threads make a large Transformer 1.5 times as fast and a small LSTM slower; bf16 makes an LSTM faster on a processor
with AVX512-BF16 or AMX, and a small GRU on the same processor slower: only measuring tells. The choice is kept
(choices.py), so that the same training on the same machine stays the same, to the bit.

A step up must be MIN_GAIN times as fast. Below that the noise of a measurement would decide, and a thread more is a
core less for everybody else: where another process takes it after all, every part of a step waits.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from stages.files import ROOT, sha256_file
from stages.machine.identity import usable_cores
from stages.machine.rates import has_cores
from stages.machine.regions import seconds_of
from stages.machine.threads import threads_kept, waited_seconds
from stages.machine.turns import interleave
from stages.params.parsing import flatten
from stages.training import choices
from stages.training.choices import Choice
from stages.training.graphs import NUM_WARMUPS, Graphs
from stages.training.memory import free_cache, is_out_of_memory
from stages.training.trainer import Trainer, computed_in

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16")}
MIN_GAIN = 1.15
BUDGET_SECONDS = 0.5  # for all values of a setting together; as long as a step with each of them where that is longer
PATIENCE_SECONDS = 5.0  # for cores that are taken: the follower, which starts with the training, imports mlflow as long
MAX_WAITED = 0.1  # of the time of measuring, that threads waited for a core: 0.003 alone, 0.3 to 0.6 beside an import
# The choice stands all the same: other threads would round otherwise, and it may be a moment.
BUSY = "; but now not even a product of matrices gains from them, and `threads: 1` may be many times as fast"
NUM_ROUNDS = 3  # in turns, because a machine's speed drifts
# Of results/hardware/<device>.json: how the device was asked for is no hardware.
NO_HARDWARE = ("requested", "why_not_cuda")


def realize(trainer: Trainer, identity: dict[str, Any]) -> dict[str, str]:
    """Replace `auto` in a training that has not begun: setting -> how its value was chosen, in a sentence.

    `identity` is the hardware (stages/machine/identity.py). All else about the trainer stays as it was, bit for bit.
    """
    sentences = {}
    if trainer.params.threads == "auto":
        threads, sentences["threads"] = choose_threads(trainer, identity)
        trainer.params = replace(trainer.params, threads=threads)
        torch.set_num_threads(threads)
    if trainer.params.precision == "auto" and not trainer.closed_form:
        precision, sentences["precision"] = choose_precision(trainer, identity)
        trainer.set_precision(precision)
    return sentences


def choose_threads(trainer: Trainer, identity: dict[str, Any]) -> tuple[Any, str]:
    """The number of threads, and the sentence."""
    if trainer.device.type != "cpu":
        return 1, "threads 1: the GPU computes, and one thread launches its work"
    if trainer.params.step == "compile":
        return 1, "threads 1: torch.compile would compile again for each number of threads"
    numbers = [1]
    while 2 * numbers[-1] <= usable_cores():
        numbers.append(2 * numbers[-1])
    if len(numbers) == 1:
        return 1, "threads 1: there is one core to use"
    key = key_of("threads", trainer, identity, {"precision": trainer.step.precision})
    if known := choices.cached_choices().get(key):
        value, sentence = describe_choice(known, "as chosen before")
        is_busy = value > 1 and not has_cores(value)
        return value, sentence + (BUSY if is_busy else "")
    free = with_cores(numbers)
    if len(free) == 1:
        return 1, "threads 1: other work has the cores, not even a product of matrices gains from a second; not kept"
    uses = {number: partial(torch.set_num_threads, number) for number in free}
    choice, is_alone = measure_alone(partial(measure, "threads", trainer, identity, uses))
    if free != numbers or not is_alone:
        return describe_choice(choice, "chosen by measuring; not kept, because other work has some of the cores")
    return store_choice(key, choice)


def with_cores(numbers: list[int]) -> list[int]:
    """Those that have their cores now, or soon: what started with this training, the follower, ends its imports."""
    end = time.perf_counter() + PATIENCE_SECONDS
    while True:
        free = [number for number in numbers if number == 1 or has_cores(number)]
        if free == numbers or time.perf_counter() > end:
            return free
        time.sleep(0.1)


def choose_precision(trainer: Trainer, identity: dict[str, Any]) -> tuple[Any, str]:
    """The precision, and the sentence."""
    key = key_of("precision", trainer, identity, {"threads": trainer.params.threads})
    if known := choices.cached_choices().get(key):
        return describe_choice(known, "as chosen before")
    measured = None
    try:
        measured = measure_alone(partial(measure_precision, trainer, identity))
    except (RuntimeError, MemoryError) as error:
        if trainer.device.type == "cpu" or not is_out_of_memory(error):
            raise
    if measured is None:
        free_cache()  # outside the `except`: the error holds the tensors of the trial
        first = PRECISIONS[trainer.device.type][0]
        return first, f"precision {first}: memory ran out while precisions were tried; not kept"
    choice, is_alone = measured
    if trainer.device.type == "cpu" and not is_alone:
        return describe_choice(choice, "chosen by measuring; not kept, because other work has the cores")
    return store_choice(key, choice)


def measure_precision(trainer: Trainer, identity: dict[str, Any]) -> Choice:
    names = [name for name in PRECISIONS[trainer.device.type] if computed_in(name, trainer.device) == name]
    return measure("precision", trainer, identity, {name: partial(trainer.set_precision, name) for name in names})


def measure_alone(measure: Callable[[], Choice]) -> tuple[Choice, bool]:
    """The choice, measured again while other work takes cores, for PATIENCE_SECONDS; and whether at last none did.

    `has_cores` looks at a moment. The follower's imports wait for files in between, and then fall into the measurement:
    two threads seemed five times as slow as one where they were 1.5 times as fast.
    """
    begin = time.perf_counter()
    while True:
        waited, start = waited_seconds(), time.perf_counter()
        choice = measure()
        end = time.perf_counter()
        is_alone = waited_seconds() - waited <= MAX_WAITED * (end - start)
        if is_alone or end - begin > PATIENCE_SECONDS:
            return choice, is_alone


def store_choice(key: str, choice: Choice) -> tuple[Any, str]:
    try:
        return describe_choice(choices.store(key, choice), "chosen by measuring")
    except OSError as error:
        return describe_choice(choice, f"chosen by measuring; not kept: {error}")


def describe_choice(choice: Choice, how: str) -> tuple[Any, str]:
    return choice.value, f"{choice.setting} {choice.value}, {how} ({choice.sentence()})"


def measure(
    setting: str, trainer: Trainer, identity: dict[str, Any], uses: Mapping[Any, Callable[[], object]]
) -> Choice:
    """The fastest of several values; `uses`: value -> what makes the steps that follow use it."""
    seconds = seconds_with(uses, trainer)
    first, *_ = seconds.values()
    batch = " x ".join(map(str, shapes(trainer)[0]))
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    return Choice(
        setting,
        fastest(seconds),
        gains=[[value, first / each] for value, each in seconds.items()],
        about=f"{trainer.params.model.name} with {num_parameters:,} parameters, batches of {batch}, {identity['name']}",
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def shapes(trainer: Trainer) -> list[list[int]]:
    """Of a whole batch: its values and its targets."""
    split = trainer.train_split
    size = min(trainer.params.batch_size, len(split))
    return [[size, *split.tensors[name].shape[1:]] for name in ("values", "targets")]


def fastest(seconds: Mapping[Any, float]) -> Any:
    """The first value, unless a later one is MIN_GAIN times as fast as the best before it."""
    best, *others = seconds
    for value in others:
        if seconds[best] >= MIN_GAIN * seconds[value]:
            best = value
    return best


def seconds_with(uses: Mapping[Any, Callable[[], object]], trainer: Trainer) -> dict[Any, float]:
    """Value -> seconds of a training step with it, the fastest of some turns. Leaves the trainer as it was."""
    before, mode = copy.deepcopy(trainer.state()), trainer.step.execution_mode
    may_adapt = trainer.step.may_adapt
    batch = trainer.one_batch(trainer.params.batch_size)
    turn_seconds = BUDGET_SECONDS / NUM_ROUNDS / len(uses)

    def turn(use: Callable[[], object], step: Callable[[], None]) -> float:
        use()
        return seconds_of(step, trainer.device, turn_seconds)

    trainer.model.train()
    try:
        if trainer.device.type == "cuda":  # a trial that lacks memory must not let the training's own graph go
            trainer.step.may_adapt = False
        with threads_kept():
            steps = {value: trainer.step.repeated(batch) for value in uses}
            if trainer.device.type == "cuda":
                warm_up(uses, steps)
            turns = {value: partial(turn, use, steps[value]) for value, use in uses.items()}
            found = interleave(turns, NUM_ROUNDS, longest_seconds=BUDGET_SECONDS)
    finally:
        trainer.step.may_adapt = may_adapt
        if mode == "graph" and trainer.step.graphs is None:
            trainer.step.graphs, trainer.step.fallback_reason = Graphs(trainer.device), ""
        trainer.restore(before)
        trainer.optimizer.zero_grad(set_to_none=True)
        if trainer.device.type == "cuda":
            torch.cuda.empty_cache()  # or the memory of the trials would count as reserved by the training
    return {value: min(seconds) for value, seconds in found.items()}


def warm_up(uses: Mapping[Any, Callable[[], object]], steps: Mapping[Any, Callable[[], None]]) -> None:
    """Have each value's step captured, and the libraries of a GPU loaded, before a turn is timed."""
    for value, use in uses.items():
        use()
        for _ in range(NUM_WARMUPS + 1):
            steps[value]()


def key_of(setting: str, trainer: Trainer, identity: dict[str, Any], others: dict[str, Any]) -> str:
    """A hash of what the choice depends on. The seed, the rate and the number of epochs do not belong to it.

    `others` are the values of other settings that may be chosen.
    """
    params = trainer.params
    about = {
        "setting": setting,
        **{name: value for name, value in flatten(params).items() if name.startswith("model.")},
        **{name: getattr(params, name) for name in ("grad_accum_steps", "deterministic")},
        "step": trainer.step.execution_mode,
        **others,
        "shapes": shapes(trainer),
        "code": [sha256_file(path) for path in sorted((ROOT / "stages" / "models").rglob("*.py"))],
        "hardware": {name: value for name, value in identity.items() if name not in NO_HARDWARE},
        "device": trainer.device.type,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
