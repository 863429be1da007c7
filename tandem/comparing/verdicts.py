"""Judges whether a recorded run and a rerun of the same training agree, and returns a verdict; docs/comparing.md has
the rules. `open_rerun` makes a run of the output of tandem/comparing/retrain.py.

No tolerance is a fixed constant. The effect of rounding is measured: the training is repeated a few times with every
initial weight perturbed by one unit in the last place. The spread between different trainings is measured with other
seeds. The envelope is valid as long as the first effect is small compared with the second.

Call `judge_bitwise`, then `within`, then `judge_final_scores`; each returns None if the next one must decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.comparing.differences import difference, margin_of_seeds, measured_scores
from tandem.devices.names import is_accelerator
from tandem.runs.run import Run

STATUS = {
    "bit-equal": 0,
    "within rounding": 0,
    "statistically compatible": 0,
    "different": 1,
    "not verifiable": 2,
    "inconclusive": 3,
}
LOSSES = ("train_loss", "val_loss")
# Perturbed trainings that measure the envelope: the middle of the sensible range of three to five.
NUM_PERTURBED = 4
# Other seeds for the spread that ends the horizon. With the run itself these are three trainings, the fewest whose
# range is not a single difference.
NUM_SEEDS = 2
# Other seeds for a margin (differences.MIN_SEEDS_OF_MARGIN includes the run's own seed).
NUM_SEEDS_OF_MARGIN = 4
# The allowed multiple of the largest of four deviations. If a fifth deviation is a normal draw like the four, it is
# more than 3 times as large in 1.1% of all epochs, more than 5 times in 0.2%, more than 10 times in 0.01% (simulated).
# Measured with two perturbed trainings: the deviation of `pen` on 2 threads from 1 thread is at most 1.1 times theirs,
# and its horizon is all 12 epochs; the horizon of `sign` is 37 of 100.
MULTIPLE = 10.0
# The horizon ends when the envelope is wider than this share of the seeds' spread. Inside it, a training with another
# seed would still be detected.
SHARE_OF_SPREAD = 0.5
FP32_BITS = 23  # of the mantissa: losses and learning rates are fp32 numbers
# The hardware fields that affect bits. Memory and the number of cores do not.
HARDWARE = ("kind", "name", "capability", "driver", "torch", "torch_cuda", "variables")
SETTINGS = ("threads", "precision", "grad_accum_steps", "step", "workers")


@dataclass(frozen=True)
class Verdict:
    name: str  # a key of STATUS
    cause: str = ""  # the first cause if `different`; the reason if `not verifiable`
    sentence: str = ""  # the observed difference

    @property
    def status(self) -> int:
        """The exit status."""
        return STATUS[self.name]

    @property
    def document(self) -> dict[str, str]:
        """For --json."""
        return {"verdict": self.name, "cause": self.cause, "sentence": self.sentence}

    def __str__(self) -> str:
        return f"{self.name}: {self.cause}" if self.cause else self.name


@dataclass(frozen=True)
class EnvironmentInfo:
    """The differences around the training, such as `threads 2 here, 1 recorded`; empty if there are none."""

    versions: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def differences(self) -> list[str]:
        return [*self.versions, *self.hardware, *self.settings]


def open_rerun(output: Mapping[str, Any], recorded: Run) -> Run:
    """Return one training in the output of tandem/comparing/retrain.py as a run. What it lacks is as in `recorded`. It
    is evaluated if the test split was predicted.
    """
    seconds = output["epoch_seconds"][recorded.block["train"]["warmup_epochs"] :]
    train: Any = {**recorded.train, **{name: output[name] for name in ("device", "seed", "realized", "epochs")}}
    train |= {"digests": {**recorded.train["digests"], "weights": output["weights"]}, "files": {}}
    timing: Any = {**recorded.timing, **{name: output[name] for name in ("hardware", "environment")}}
    timing |= {"placement": {}, "files": {}}  # `realized` has the placement
    timing["timing"] = {"epoch_seconds": statistics.median(seconds) if seconds else None}
    predicted = output["predictions"]
    score: Any = {**(recorded.score or {}), "files": {"predictions.csv": predicted["sha256"]}} if predicted else None
    return Run("rerun", train, timing, score, lambda name: (predicted["csv"].encode(), name))


def environment_of(recorded: Run, here: Run) -> EnvironmentInfo:
    machines = recorded.timing["hardware"], here.timing["hardware"]
    # On a CPU, the hardware's name is the processor's.
    is_cpu = not any(is_accelerator(hardware.get("kind", "")) for hardware in machines)
    processors = [{"processor": hardware["cpu"]["name"]} for hardware in machines]
    # After an out-of-memory error, the remaining steps ran differently.
    memory = ["yes" if run.realized.get("out_of_memory") else "no" for run in (recorded, here)]
    lost = (f"out of memory: {memory[1]} here, {memory[0]} recorded",) if "yes" in memory else ()
    return EnvironmentInfo(
        tuple(differing(recorded.timing["environment"]["versions"], here.timing["environment"]["versions"])),
        (*differing(*machines, HARDWARE), *(() if is_cpu else differing(processors[0], processors[1]))),
        (*differing(recorded.realized, here.realized, SETTINGS), *lost),
    )


def differing(recorded: Mapping[str, Any], here: Mapping[str, Any], names: Sequence[str] = ()) -> Iterator[str]:
    for name in names or sorted({*recorded, *here}):
        if recorded.get(name) != here.get(name):
            yield f"{name} {here.get(name, 'none')} here, {recorded.get(name, 'none')} recorded"


def different(cause: str, sentence: str, environment: EnvironmentInfo) -> Verdict:
    """Return the verdict "different". If the environment differs, it is the cause, because it comes before
    the others.
    """
    if environment.versions:
        return Verdict(
            "different", "environment", f"{'; '.join(environment.versions)}; first seen in {cause}: {sentence}"
        )
    return Verdict("different", cause, sentence)


# Bitwise comparison.


def judge_bitwise(recorded: Run, here: Run, environment: EnvironmentInfo) -> Verdict | None:
    """Return a verdict if all bits are equal, or must be, or the inputs differ; None if rounding must be considered."""
    if inputs := different_inputs(recorded, here):
        return different(*inputs, environment)
    if first_difference := different_bits(recorded, here):
        return None if environment.differences else different(*first_difference, environment)
    compared = f"losses, weights and draws of {epochs_compared(recorded, here)}"
    has_predictions = all("predictions.csv" in run.digests for run in (recorded, here))
    return Verdict("bit-equal", sentence=compared + (", and the predictions" if has_predictions else ""))


def epochs_compared(recorded: Run, here: Run) -> str:
    num_here, num_recorded = len(here.train["epochs"]), len(recorded.train["epochs"])
    return f"all {num_here} epochs" if num_here == num_recorded else f"the first {num_here} of {num_recorded} epochs"


def different_inputs(recorded: Run, here: Run) -> tuple[str, str] | None:
    """Return (cause, sentence) if the initial weights or the random draws differ: rounding never changes these."""
    initial = [run.train["digests"]["weights"]["initial"] for run in (recorded, here)]
    if initial[0] != initial[1]:
        return "initial weights", f"sha256 {initial[1][:12]} here, {initial[0][:12]} recorded"
    for before, now in epochs_of_both(recorded, here):
        for name, label in (("order_sha256", "the order of the sequences"), ("draws_sha256", "the random changes")):
            if before[name] != now[name]:
                return "draws", f"{label} in epoch {before['epoch']}"
        rates = before.get("learning_rate", 0.0), now.get("learning_rate", 0.0)  # a fitted model has none
        if abs(rates[0] - rates[1]) > unit(rates[0]):
            return f"epoch {before['epoch']}", f"the learning rate ends at {rates[1]:.6g} here, {rates[0]:.6g} recorded"
    return None


def different_bits(recorded: Run, here: Run) -> tuple[str, str] | None:
    """Return (cause, sentence) for the first digest or loss that differs."""
    for before, now in epochs_of_both(recorded, here):
        names = [name for name in before if before[name] != now.get(name)]
        if not names:
            continue
        losses = ", ".join(f"{name} {now[name]!r} here, {before[name]!r} recorded" for name in names if name in LOSSES)
        return f"epoch {before['epoch']}", losses or f"{', '.join(names)} differ, but the losses are equal"
    for name, digest in here.train["digests"]["weights"].items():
        if digest != recorded.train["digests"]["weights"][name]:
            return "tensor", f"{name}.safetensors differs, but the weights of each epoch are equal"
    if len({run.digests["predictions.csv"] for run in (recorded, here) if "predictions.csv" in run.digests}) > 1:
        return "predictions", "predictions.csv differs, but the weights are equal"
    return None


def epochs_of_both(recorded: Run, here: Run) -> Iterator[tuple[Any, Any]]:
    """Yield the epochs that both have."""
    return zip(recorded.train["epochs"], here.train["epochs"], strict=False)


def unit(value: float) -> float:
    """Return one unit in the last place of `value` as an fp32 number; of 0.5 for a value of 0."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1 - FP32_BITS)


# The effect of rounding.


@dataclass(frozen=True)
class Envelope:
    """The deviation that rounding alone can explain: {loss: value} for each epoch."""

    allowed: list[dict[str, float]]
    horizon: int  # the number of first epochs for which the envelope is meaningful
    num_perturbed: int


def measure_envelope(run: Run, perturbed: Sequence[Run], other_seeds: Sequence[Run]) -> Envelope:
    """Measure the envelope of `run`. `perturbed` are reruns from perturbed weights, `other_seeds` runs with other
    seeds.

    A deviation grows over the epochs, but a few perturbed trainings may agree by chance in one epoch, so each epoch
    takes the largest deviation so far. For the same reason, the seeds' range in an epoch is the median over that epoch
    and two on each side.
    """
    num_epochs = len(run.train["epochs"])
    ranges = {loss: [spread_of([run, *other_seeds], epoch, loss) for epoch in range(num_epochs)] for loss in LOSSES}
    largest, allowed, horizon = dict.fromkeys(LOSSES, 0.0), [], 0
    for epoch in range(num_epochs):
        for loss in LOSSES:
            value = loss_of(run, epoch, loss)
            deviations = [abs(loss_of(training, epoch, loss) - value) for training in perturbed]
            largest[loss] = max(largest[loss], unit(value), *deviations)
        allowed.append({loss: MULTIPLE * largest[loss] for loss in LOSSES})
        spread = {loss: statistics.median(ranges[loss][max(0, epoch - 2) : epoch + 3]) for loss in LOSSES}
        if horizon == epoch and all(allowed[epoch][loss] <= SHARE_OF_SPREAD * spread[loss] for loss in LOSSES):
            horizon += 1
    return Envelope(allowed, horizon, len(perturbed))


def spread_of(runs: Sequence[Run], epoch: int, loss: str) -> float:
    values = [loss_of(run, epoch, loss) for run in runs]
    return max(values) - min(values)


def loss_of(run: Run, epoch: int, loss: str) -> float:
    return float(run.train["epochs"][epoch][loss])


def may_round(recorded: Run, here: Run) -> bool:
    """Whether the envelope of rounding can explain a difference. It cannot

    - if the precisions differ (a CPU has no TF32), or have 16 bits, in which its perturbation of a weight by one unit
      of fp32 mostly vanishes, while another order of sums does not (emulated TF32 stayed within 5% of it)
    - if the model has dropout and the devices draw it differently: each kind has its own generator, and a GPU draws as
      many numbers at once as it has threads (calc_execution_policy in torch's DistributionTemplates.h).
    """
    precisions = {run.train["realized"]["precision"] for run in (recorded, here)}
    if len(precisions) > 1 or precisions & {"bf16", "fp16"}:
        return False
    draw_alike = recorded.kind == here.kind and (
        not is_accelerator(here.kind) or recorded.one_device == here.one_device
    )
    return draw_alike or not recorded.train["block"]["train"]["model"].get("dropout")


def within(recorded: Run, here: Run, environment: EnvironmentInfo, envelope: Envelope) -> Verdict | int:
    """Return a verdict for the losses against the envelope, or the number of first epochs whose losses agree, if the
    scores must decide because the horizon ends before the training or the losses leave the envelope on other hardware.

    Other hardware rounds differently in every step, while a perturbation moves the weights once. Where two values are
    close, another one may then be the maximum of a pooling, which changes the gradients at once: `sign` on an EPYC of
    family 25 leaves the envelope of one of family 26 in epoch 12, by 3.3e-06, and has its score.
    """
    compared = list(epochs_of_both(recorded, here))
    for (before, now), allowed in zip(compared[: envelope.horizon], envelope.allowed, strict=False):
        for loss in LOSSES:
            deviation = abs(before[loss] - now[loss])
            if deviation > allowed[loss]:
                if environment.hardware:
                    return int(before["epoch"]) - 1
                losses = f"{loss} {now[loss]:.6g} here, {before[loss]:.6g} recorded"
                excess = f"a difference of {deviation:.2g}; rounding explains at most {allowed[loss]:.2g}"
                return different(f"epoch {before['epoch']}", f"{losses}: {excess}", environment)
    if envelope.horizon < len(compared):
        return envelope.horizon
    share = max(
        abs(before[loss] - now[loss]) / allowed[loss]
        for (before, now), allowed in zip(compared, envelope.allowed, strict=True)
        for loss in LOSSES
    )
    losses = f"the losses of {epochs_compared(recorded, here)} differ by at most {share:.0%} of what rounding explains"
    perturbed = f"measured with {envelope.num_perturbed} perturbed trainings"
    sentence = f"{losses}, {perturbed}; other differences: {'; '.join(environment.differences)}"
    return Verdict("within rounding", sentence=sentence)


# Beyond the horizon.


def beyond_rounding(here: Run, num_alike: int) -> str:
    """Say why the scores decide. `num_alike`: the first epochs whose losses agree."""
    if not num_alike:
        return "the losses cannot be compared within rounding, so the scores decide"
    num_epochs = len(here.train["epochs"])
    return f"the losses agree within rounding up to epoch {num_alike} of {num_epochs}, so the scores decide"


def judge_final_scores(
    recorded: Run, here: Run, other_seeds: Sequence[Run], environment: EnvironmentInfo, num_alike: int
) -> Verdict:
    """Judge by the test scores.

    The margin is twice the seeds' standard deviation (differences.margin_of_seeds). The verdict is "different" only if
    the whole interval lies outside the margin: two networks that rounding has driven apart differ as much as two seeds,
    and a test for any difference cannot distinguish these cases.
    """
    beyond = beyond_rounding(here, num_alike)
    try:
        rows = recorded.predictions
    except ValueError:  # they are missing or altered
        rows = []
    if not (here.predictions and rows):
        reason = "the recorded predictions are missing" if here.predictions else "the test split was not predicted"
        return Verdict("inconclusive", sentence=f"{beyond}, but {reason}")
    assert recorded.score
    paired, score_name = recorded.task_attributes["paired"], recorded.score["score_name"]
    sides = {run.seed: run.predictions for run in (here, *other_seeds)}
    margin = margin_of_seeds(list(measured_scores(paired, sides, score_name).values()))
    seed = here.seed
    score_difference = difference(paired, {seed: rows}, {seed: sides[seed]}, margin, score_name, recorded.has_groups)
    sentence = f"{beyond}: {score_difference.sentence('the record', 'this machine')}"
    if score_difference.verdict in ("equal", "equivalent"):
        return Verdict("statistically compatible", sentence=sentence)
    if score_difference.exceeds_margin:
        return different("predictions", sentence, environment)
    return Verdict("inconclusive", sentence=sentence)
