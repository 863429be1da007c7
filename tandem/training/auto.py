"""`threads: auto` and `precision: auto`: time a few steps with each value.

Only a measurement can decide. Two threads make a large Transformer 1.5 times as fast and a small LSTM slower; on the
same processor with AVX512-BF16 or AMX, bf16 makes an LSTM faster and a small GRU slower.

A few steps show whether the number of threads changes the bits of a training. Usually it does not, and the number
changes with the machine's load (threads.py). The precision, and a number of threads that changes bits, are chosen once:
a larger value must be MIN_GAIN times as fast, or measurement noise would decide. The choice is cached in the user's
cache folder, so the same training on the same machine gives the same bits: neither `make clean` nor a second clone
changes it. Its key contains the hardware, so machines that share a home folder do not share choices.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tandem.devices.device import Device
from tandem.devices.graphs import NUM_WARMUPS
from tandem.devices.hardware import usable_cores
from tandem.devices.memory import free_cache, is_out_of_memory
from tandem.files import ROOT, digest, locked, now, sha256_file, user_cache_dir, write_json
from tandem.machine.conditions import waited_seconds
from tandem.machine.interleaving import interleave
from tandem.machine.measure import seconds_of
from tandem.machine.rates import has_cores
from tandem.params.parsing import flatten
from tandem.training import inference
from tandem.training.batches import sequential_indices
from tandem.training.random_draws import sha256_of
from tandem.training.saved_network import PREDICTION_BATCH
from tandem.training.threads import ThreadTuner
from tandem.training.trainer import Trainer, snapshot
from tandem.training.trials import one_batch, repeated_step, step_of, without_trace

PRECISIONS = ("fp32", "tf32", "bf16")  # that `auto` chooses from: the range of fp16 is too small for some gradients
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
        gains = ", ".join(f"{value}: {gain:.2f} times as fast as {first}" for value, gain in others)
        is_small = self.value == first and any(gain > 1 for _, gain in others)
        return f"{gains}; {MIN_GAIN} is needed for a change" if is_small else gains


def resolve(trainer: Trainer, hardware: dict[str, Any]) -> dict[str, str]:
    """Replace `auto` in a training that has not started. Returns {setting: a sentence about its value and choice}.

    `hardware` is the hardware (tandem/devices/hardware.py). All other state of the trainer stays bitwise the same.
    """
    sentences = {}
    if trainer.settings.precision == "auto":
        if trainer.settings.threads == "auto" and not trainer.device.is_accelerator:
            torch.set_num_threads(numbers_of_threads()[-1])
        precision, sentences["precision"] = choose_precision(trainer, hardware)
        trainer.executor.use(replace(trainer.execution, precision=precision))
    if sentence := open_threads(trainer, hardware):
        sentences["threads"] = sentence
    return sentences


def open_threads(trainer: Trainer, hardware: dict[str, Any]) -> str:
    """Set the threads of a training that starts or resumes. Returns a sentence about `auto`, else nothing."""
    threads, sentence = choose_threads(trainer, hardware)
    trainer.use_threads(threads)
    return sentence if trainer.settings.threads == "auto" else ""


def choose_threads(trainer: Trainer, hardware: dict[str, Any]) -> tuple[ThreadTuner, str]:
    """The threads of a training and a sentence about them."""
    requested, is_auto = trainer.settings.threads, trainer.settings.threads == "auto"
    numbers = numbers_of_threads() if requested == "auto" else [1, requested]
    most = numbers[-1]
    if trainer.is_fitted:
        number = most if not is_auto or has_cores(most) else 1
        return ThreadTuner([number]), f"threads {number}: the number changes no bit of this fit"
    if is_auto and (why := why_one_thread(trainer, most)):
        return ThreadTuner([1]), f"threads 1: {why}"
    # In bf16, rounding hides most differences of torch's operations from a trial of a few steps.
    has_order = ":" not in trainer.settings.model.name and trainer.settings.kernels == "auto"
    may_differ = trainer.execution.precision == "bf16" and not has_order
    why_kept = trainer.why_no_steps or may_differ and "in bf16 another number may change the last bits"
    can_try = most > 1 and not (why_kept or trainer.device.is_accelerator)
    seconds = seconds_with_same_bits(trainer, numbers) if can_try else {}
    if not is_auto:
        return ThreadTuner([most], changes_bits=most > 1 and most not in seconds), ""
    if len(seconds) > 1:
        start = fastest(seconds)
        times = seconds[1] / seconds[start]
        is_said = 1 < times <= start  # beside other processes, one step may be disturbed
        gain = f", with which a step is {times:.2f} times as fast as with 1" if is_said else ""
        return ThreadTuner(sorted(seconds), start), (
            f"threads {start} at first{gain}; then the number that is fastest, at most {max(seconds)}: it changes no "
            "bit of the result"
        )
    number, sentence = choose_kept_threads(trainer, hardware, numbers)
    why = why_kept or "another number would change the last bits of the result (see `tandem check`)"
    return ThreadTuner([number], changes_bits=number > 1), f"{sentence}; it is kept, because {why}"


def why_one_thread(trainer: Trainer, most: int) -> str:
    """Why a training uses one thread without trying others; empty if it tries them."""
    if trainer.device.is_accelerator:
        return "the GPU computes, and one thread launches its work"
    if trainer.settings.step == "compile":
        return "torch.compile would compile again for each number of threads"
    return "only one core is usable" if most == 1 else ""


def seconds_with_same_bits(trainer: Trainer, numbers: Sequence[int]) -> dict[int, float]:
    """Number of threads -> seconds of a step, for the numbers with which the steps have the bits of one thread.

    Tries a full batch, the smaller last one of an epoch and a part of the validation, because a product is divided
    among threads by its sizes.
    """
    settings, seconds_of_number, expected = trainer.settings, {}, ""
    batch, last = one_batch(trainer, settings.batch_size), len(trainer.train_split) % settings.batch_size
    val = next(trainer.val_split.batches(sequential_indices(trainer.val_split)[:PREDICTION_BATCH], PREDICTION_BATCH))
    for number in numbers:
        with without_trace(trainer):
            torch.set_num_threads(number)
            trainer.model.train()
            losses = [trainer.step(part) for part in ([batch, batch.first(last)] if last else [batch])]
            start = time.perf_counter()
            losses.append(trainer.step(batch))
            seconds = time.perf_counter() - start
            with torch.no_grad():
                outputs = inference.forward(trainer.model.eval(), val, trainer.execution.precision)
            digest_of_trial = sha256_of([*snapshot(trainer.model).values(), torch.stack(losses), outputs])
        expected = expected or digest_of_trial
        if digest_of_trial == expected:
            seconds_of_number[number] = seconds
    return seconds_of_number


def fastest(seconds: Mapping[Any, float]) -> Any:
    """The fastest value: the first one, unless a later one is MIN_GAIN times as fast as the best before it."""
    best, *others = seconds
    for value in others:
        if seconds[best] >= MIN_GAIN * seconds[value]:
            best = value
    return best


def numbers_of_threads() -> list[int]:
    """The numbers of threads to choose from: 1, 2, 4 and so on, at most one for each usable core."""
    numbers = [1]
    while 2 * numbers[-1] <= usable_cores():
        numbers.append(2 * numbers[-1])
    return numbers


def choose_kept_threads(trainer: Trainer, hardware: dict[str, Any], numbers: Sequence[int]) -> tuple[Any, str]:
    """The number of threads of a training whose bits depend on it, and a sentence about the choice."""
    key = key_of("threads", trainer, hardware, {"precision": trainer.execution.precision})
    if choice := cached_choices().get(key):
        return explained(choice, "as chosen before")
    end = time.perf_counter() + PATIENCE_SECONDS
    while not has_cores(numbers[-1]):
        if time.perf_counter() >= end:
            return 1, "threads 1: other processes use the cores, so more threads gain nothing; not cached"
        time.sleep(0.1)
    return measure_and_store(key, "threads", trainer, hardware, numbers)


def choose_precision(trainer: Trainer, hardware: dict[str, Any]) -> tuple[Any, str]:
    """The precision and a sentence about the choice."""
    values = precisions(trainer.device)
    if len(values) == 1:
        return values[0], f"precision {values[0]}: this device has no other one that `auto` tries"
    key = key_of("precision", trainer, hardware, {"threads": trainer.settings.threads})
    if choice := cached_choices().get(key):
        return explained(choice, "as chosen before")
    return measure_and_store(key, "precision", trainer, hardware, values)


def precisions(device: Device) -> list[str]:
    """The precisions to try on the device."""
    return [name for name in device.precisions() if name in PRECISIONS]


def measure_and_store(
    key: str, setting: str, trainer: Trainer, hardware: dict[str, Any], values: Sequence[Any]
) -> tuple[Any, str]:
    """Choose the fastest of `values`, and store it if no other work took cores meanwhile.

    Measures again while other work takes cores, for up to PATIENCE_SECONDS. `has_cores` checks only one moment: the
    publisher's imports pause to wait for files and continue during the measurement. Two threads then seemed five times
    as slow as one, but they are 1.5 times as fast.
    """
    begin = time.perf_counter()
    while True:
        waited, start = waited_seconds() or 0.0, time.perf_counter()
        try:
            choice = time_choices(setting, trainer, hardware, values)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            break
        end = time.perf_counter()
        if trainer.device.is_accelerator or (waited_seconds() or 0.0) - waited <= MAX_WAITED * (end - start):
            try:
                return explained(store_choice(key, choice), "chosen by measuring")
            except OSError as error:
                return explained(choice, f"chosen by measuring; not cached: {error}")
        if end - begin > PATIENCE_SECONDS:
            return explained(choice, "chosen by measuring; not cached, because other processes use some cores")
    free_cache(trainer.device)  # outside the `except`, because the error references the tensors of the trial
    return values[0], f"{setting} {values[0]}: memory ran out while others were tried; not cached"


def explained(choice: Choice, how: str) -> tuple[Any, str]:
    """The value and a sentence about the choice."""
    return choice.value, f"{choice.setting} {choice.value}, {how} ({choice.sentence()})"


def time_choices(setting: str, trainer: Trainer, hardware: dict[str, Any], values: Sequence[Any]) -> Choice:
    """Time a step with each value, and choose the `fastest`."""
    with without_trace(trainer):  # ends after `seconds_with` has freed its graphs
        seconds = seconds_with(setting, trainer, values)
    name, first = trainer.settings.model.name, next(iter(seconds))
    batch = " x ".join(map(str, shapes(trainer)[0]))
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    return Choice(
        setting,
        fastest(seconds),
        gains=[[value, seconds[first] / seconds_with_value] for value, seconds_with_value in seconds.items()],
        about=f"{name} with {num_parameters:,} parameters, batches of {batch}, {hardware['name']}",
        measured_at=now(),
    )


def shapes(trainer: Trainer) -> list[list[int]]:
    """The shapes of a full batch's values and targets."""
    split = trainer.train_split
    size = min(trainer.settings.batch_size, len(split))
    return [[size, *split.tensors[name].shape[1:]] for name in ("values", "targets")]


def seconds_with(setting: str, trainer: Trainer, values: Sequence[Any]) -> dict[Any, float]:
    """Value -> seconds of a training step, the minimum over some rounds."""
    batch, device = one_batch(trainer, trainer.settings.batch_size), trainer.device
    turn_seconds = BUDGET_SECONDS / NUM_ROUNDS / len(values)
    changes = {value: {} if setting == "threads" else {setting: value} for value in values}
    trials = {value: step_of(trainer, replace(trainer.execution, **changes[value])) for value in values}
    steps = {value: repeated_step(trial, batch) for value, trial in trials.items()}

    def turn(value: Any) -> float:
        if setting == "threads":
            torch.set_num_threads(value)
        with trials[value].execution.active():
            return seconds_of(steps[value], device, turn_seconds)

    trainer.model.train()
    for value in values if device.is_accelerator else ():
        with trials[value].execution.active():
            for _ in range(NUM_WARMUPS + 1):  # load the GPU's libraries and capture the step
                steps[value]()
    turns = {value: partial(turn, value) for value in values}
    turns_of_value = interleave(turns, NUM_ROUNDS, longest_seconds=BUDGET_SECONDS)
    return {value: min(seconds) for value, seconds in turns_of_value.items()}


def key_of(setting: str, trainer: Trainer, hardware: dict[str, Any], others: dict[str, Any]) -> str:
    """A hash of everything that the choice depends on, so not of the seed, learning rate or number of epochs.

    `others` contains the values of the other settings that `auto` may choose.
    """
    settings = trainer.settings
    inputs = {
        "setting": setting,
        **{name: value for name, value in flatten(settings).items() if name.startswith("model.")},
        **{name: getattr(settings, name) for name in ("grad_accum_steps", "deterministic", "kernels")},
        "step": trainer.execution.step,
        **others,
        "shapes": shapes(trainer),
        "code": [sha256_file(path) for path in sorted((ROOT / "tandem" / "models").rglob("*.py"))],
        "hardware": {name: value for name, value in hardware.items() if name not in NO_HARDWARE},
        "device": trainer.device.name(),
    }
    return digest(inputs)[:16]


def choices_file() -> Path:
    return user_cache_dir() / "choices.json"


def cached_choices() -> dict[str, Choice]:
    """Key -> choice. A missing or damaged file gives no choices, so they are measured again."""
    try:
        entries = json.loads(choices_file().read_text(encoding="utf-8"))
        choices = {key: Choice(**entry) for key, entry in entries.items()}
        return choices if all(choice.is_possible() for choice in choices.values()) else {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def store_choice(key: str, choice: Choice) -> Choice:
    """Store and return the choice. If another training has stored one for `key` meanwhile, return that one.

    Raises OSError if the folder cannot be written.
    """
    with locked(choices_file().with_suffix(".lock")):
        choices = cached_choices()
        if key not in choices:
            choices[key] = choice
            write_json(choices_file(), {key: asdict(choice) for key, choice in choices.items()})
    return choices[key]
