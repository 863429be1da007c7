"""`threads: auto` and `precision: auto`: time a few steps with each value and choose the fastest.

Only a measurement can decide. Two threads make a large Transformer 1.5 times as fast and a small LSTM slower; on the
same processor with AVX512-BF16 or AMX, bf16 makes an LSTM faster and a small GRU slower. The choice is cached
in the user's cache folder, so the same training on the same machine gives the same bits: neither `make clean` nor a
second clone changes it. Its key contains the hardware, so machines that share a home folder do not share choices.

A larger value must be MIN_GAIN times as fast. Otherwise measurement noise would decide. An extra thread also takes a
core from other processes, and if one of them uses that core, every part of a step waits.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tandem.files import ROOT, digest, locked, sha256_file, user_cache_dir, write_json
from tandem.machine.conditions import waited_seconds
from tandem.machine.hardware import usable_cores
from tandem.machine.interleaving import interleave
from tandem.machine.measure import seconds_of
from tandem.machine.rates import has_cores
from tandem.params.parsing import flatten
from tandem.training.graphs import NUM_WARMUPS
from tandem.training.oom import free_cache, is_out_of_memory
from tandem.training.trainer import Trainer, realized_precision

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16")}
MIN_GAIN = 1.15
BUDGET_SECONDS = 0.5  # for all values of a setting together, or one step with each value if that takes longer
PATIENCE_SECONDS = 5.0  # to wait for busy cores: about as long as the publisher, which starts now, imports mlflow
MAX_WAITED = 0.1  # share of the time in which threads wait for a core: 0.003 on an idle machine, 0.3 to 0.6 otherwise
NUM_ROUNDS = 3  # interleaved, because a machine's speed drifts
# Keys of results/hardware/devices/<device>.json that describe the request, not the hardware.
NO_HARDWARE = ("requested", "why_not_cuda")


@dataclass(frozen=True)
class Choice:
    """One setting for trainings of one shape on one machine."""

    setting: str  # threads or precision
    value: Any
    gains: list[list[Any]]  # (value, speed relative to the first value) for each value that was tried
    about: str  # the training and the machine, for a person who reads the file
    measured_at: str

    def is_possible(self) -> bool:
        """Whether a measurement can have produced this choice: the file may be damaged."""
        tried = [value for value, _ in self.gains]
        kinds = {"threads": int, "precision": str}
        return bool(self.sentence()) and isinstance(self.value, kinds.get(self.setting, ())) and self.value in tried

    def sentence(self) -> str:
        (first, _), *others = self.gains
        found = ", ".join(f"{value}: {gain:.2f} times as fast as {first}" for value, gain in others)
        is_small = self.value == first and any(gain > 1 for _, gain in others)
        return f"{found}; {MIN_GAIN} is needed for a change" if is_small else found


def resolve(trainer: Trainer, hardware: dict[str, Any]) -> dict[str, str]:
    """Replace `auto` in a training that has not started. Returns {setting: a sentence about its value and choice}.

    `hardware` is the hardware (tandem/machine/hardware.py). All other state of the trainer stays bitwise the same.
    """
    sentences = {}
    if trainer.params.threads == "auto":
        threads, sentences["threads"] = choose_threads(trainer, hardware)
        trainer.params = replace(trainer.params, threads=threads)
        torch.set_num_threads(threads)
    if trainer.params.precision == "auto" and not trainer.closed_form:
        precision, sentences["precision"] = choose_precision(trainer, hardware)
        trainer.set_precision(precision)
    return sentences


def choose_threads(trainer: Trainer, hardware: dict[str, Any]) -> tuple[Any, str]:
    """The number of threads and a sentence about the choice."""
    if trainer.device.type != "cpu":
        return 1, "threads 1: the GPU computes, and one thread launches its work"
    if trainer.params.step == "compile":
        return 1, "threads 1: torch.compile would compile again for each number of threads"
    numbers = [1]
    while 2 * numbers[-1] <= usable_cores():
        numbers.append(2 * numbers[-1])
    if len(numbers) == 1:
        return 1, "threads 1: only one core is usable"
    key = key_of("threads", trainer, hardware, {"precision": trainer.step.precision})
    if known := cached_choices().get(key):
        return explained(known, "as chosen before")
    end = time.perf_counter() + PATIENCE_SECONDS
    while not has_cores(numbers[-1]):
        if time.perf_counter() >= end:
            return 1, "threads 1: other processes use the cores, so more threads gain nothing; not cached"
        time.sleep(0.1)
    return measure_and_store(key, "threads", trainer, hardware, torch.set_num_threads, numbers)


def choose_precision(trainer: Trainer, hardware: dict[str, Any]) -> tuple[Any, str]:
    """The precision and a sentence about the choice."""
    key = key_of("precision", trainer, hardware, {"threads": trainer.params.threads})
    if known := cached_choices().get(key):
        return explained(known, "as chosen before")
    device, names = trainer.device, precisions(trainer.device)
    try:
        return measure_and_store(key, "precision", trainer, hardware, trainer.set_precision, names)
    except (RuntimeError, MemoryError) as error:
        if device.type == "cpu" or not is_out_of_memory(error):
            raise
    free_cache()  # outside the `except`, because the error references the tensors of the trial
    return names[0], f"precision {names[0]}: memory ran out while other precisions were tried; not cached"


def precisions(device: torch.device) -> list[str]:
    """The precisions to try on the device."""
    return [name for name in PRECISIONS[device.type] if realized_precision(name, device) == name]


def measure_and_store(
    key: str,
    setting: str,
    trainer: Trainer,
    hardware: dict[str, Any],
    use: Callable[[Any], object],
    values: Sequence[Any],
) -> tuple[Any, str]:
    """Choose the fastest of `values`, and store it if no other work took cores meanwhile.

    Measures again while other work takes cores, for up to PATIENCE_SECONDS. `has_cores` checks only one moment: the
    publisher's imports pause to wait for files and continue during the measurement. Two threads then seemed five times
    as slow as one, but they are 1.5 times as fast.
    """
    begin = time.perf_counter()
    while True:
        waited, start = waited_seconds() or 0.0, time.perf_counter()
        choice = measure(setting, trainer, hardware, {value: partial(use, value) for value in values})
        end = time.perf_counter()
        if trainer.device.type == "cuda" or (waited_seconds() or 0.0) - waited <= MAX_WAITED * (end - start):
            break
        if end - begin > PATIENCE_SECONDS:
            return explained(choice, "chosen by measuring; not cached, because other processes use some cores")
    try:
        return explained(store_choice(key, choice), "chosen by measuring")
    except OSError as error:
        return explained(choice, f"chosen by measuring; not cached: {error}")


def explained(choice: Choice, how: str) -> tuple[Any, str]:
    """The value and a sentence about the choice."""
    return choice.value, f"{choice.setting} {choice.value}, {how} ({choice.sentence()})"


def measure(
    setting: str, trainer: Trainer, hardware: dict[str, Any], uses: Mapping[Any, Callable[[], object]]
) -> Choice:
    """Choose the fastest value. `uses` maps each value to a function that makes the next steps use it.

    That is the first value, unless a later one is MIN_GAIN times as fast as the best before it.
    """
    seconds = seconds_with(uses, trainer)
    first, *others = seconds
    best = first
    for value in others:
        if seconds[best] >= MIN_GAIN * seconds[value]:
            best = value
    batch = " x ".join(map(str, shapes(trainer)[0]))
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    return Choice(
        setting,
        best,
        gains=[[value, seconds[first] / each] for value, each in seconds.items()],
        about=f"{trainer.params.model.name} with {num_parameters:,} parameters, batches of {batch}, {hardware['name']}",
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def shapes(trainer: Trainer) -> list[list[int]]:
    """The shapes of a full batch's values and targets."""
    split = trainer.train_split
    size = min(trainer.params.batch_size, len(split))
    return [[size, *split.tensors[name].shape[1:]] for name in ("values", "targets")]


def seconds_with(uses: Mapping[Any, Callable[[], object]], trainer: Trainer) -> dict[Any, float]:
    """Value -> seconds of a training step, the minimum over some rounds. Does not change the trainer."""
    batch = trainer.one_batch(trainer.params.batch_size)
    turn_seconds = BUDGET_SECONDS / NUM_ROUNDS / len(uses)

    def turn(use: Callable[[], object], step: Callable[[], None]) -> float:
        use()
        return seconds_of(step, trainer.device, turn_seconds)

    trainer.model.train()
    may_fall_back = trainer.step.may_fall_back
    with trainer.trial_steps():
        if trainer.device.type == "cuda":  # an OOM error in a trial must not drop the training's own graph
            trainer.step.may_fall_back = False
        try:
            steps = {value: trainer.step.repeated(batch) for value in uses}
            for value, use in uses.items() if trainer.device.type == "cuda" else ():
                use()
                for _ in range(NUM_WARMUPS + 1):  # load the GPU's libraries and capture the step
                    steps[value]()
            turns = {value: partial(turn, use, steps[value]) for value, use in uses.items()}
            found = interleave(turns, NUM_ROUNDS, longest_seconds=BUDGET_SECONDS)
        finally:
            trainer.step.may_fall_back = may_fall_back
    return {value: min(seconds) for value, seconds in found.items()}


def key_of(setting: str, trainer: Trainer, hardware: dict[str, Any], others: dict[str, Any]) -> str:
    """A hash of everything that the choice depends on, so not of the seed, learning rate or number of epochs.

    `others` contains the values of the other settings that `auto` may choose.
    """
    params = trainer.params
    about = {
        "setting": setting,
        **{name: value for name, value in flatten(params).items() if name.startswith("model.")},
        **{name: getattr(params, name) for name in ("grad_accum_steps", "deterministic", "kernels")},
        "step": trainer.step.execution_mode,
        **others,
        "shapes": shapes(trainer),
        "code": [sha256_file(path) for path in sorted((ROOT / "tandem" / "models").rglob("*.py"))],
        "hardware": {name: value for name, value in hardware.items() if name not in NO_HARDWARE},
        "device": trainer.device.type,
    }
    return digest(about)[:16]


def choices_file() -> Path:
    return user_cache_dir() / "choices.json"


def cached_choices() -> dict[str, Choice]:
    """Key -> choice. A missing or damaged file gives no choices, so they are measured again."""
    try:
        entries = json.loads(choices_file().read_text(encoding="utf-8"))
        found = {key: Choice(**entry) for key, entry in entries.items()}
        return found if all(choice.is_possible() for choice in found.values()) else {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def store_choice(key: str, choice: Choice) -> Choice:
    """Store and return the choice. If another training has stored one for `key` meanwhile, return that one.

    Raises OSError if the folder cannot be written.
    """
    with locked(choices_file().with_suffix(".lock")):
        known = cached_choices()
        if key not in known:
            known[key] = choice
            write_json(choices_file(), {key: asdict(choice) for key, choice in known.items()})
    return known[key]
