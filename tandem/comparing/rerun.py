"""Judges whether a recorded run and a rerun of the same training agree. It compares their manifests (`as_manifest`
makes one of the output of tandem/comparing/retrain.py) and returns a verdict; docs/comparing.md has their rules.

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

from tandem import files
from tandem.comparing.comparability import Manifest, has_groups
from tandem.comparing.differences import Rows, difference, margin_of_seeds, measured_scores

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
# Another machine also rounds differently in every step, while a perturbation moves the weights once. Measured with two
# perturbed trainings: the deviation of `pen` on 2 threads from 1 thread is at most 1.1 times theirs, and its horizon is
# all 12 epochs; the horizon of `sign` is 37 of 100.
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
    def rank(self) -> int:
        """0 for the strongest verdict."""
        return list(STATUS).index(self.name)

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


def as_manifest(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return one training in the output of tandem/comparing/retrain.py with the keys of a manifest. `predictions`: the
    rows of predictions.csv; empty if the test split was not predicted.
    """
    digests, predicted = {"weights": output["weights"]}, output["predictions"]
    return {
        **output,
        "digests": digests | ({"predictions": predicted["sha256"]} if predicted else {}),
        "predictions": files.parse_rows(predicted["csv"].encode(), "predictions.csv") if predicted else [],
    }


def environment_of(manifest: Manifest, found: Manifest) -> EnvironmentInfo:
    hardware, here = manifest["hardware"], found["hardware"]
    # On a CPU, the hardware's name is the processor's.
    is_cpu = hardware.get("kind") == "cpu" == here.get("kind")
    processors = () if is_cpu else differing({"processor": hardware["cpu"]["name"]}, {"processor": here["cpu"]["name"]})
    realized, again = manifest["realized"], found["realized"]
    # After an out-of-memory error, the remaining steps ran differently.
    memory = ["yes" if of.get("out_of_memory") else "no" for of in (realized, again)]
    lost = (f"out of memory: {memory[1]} here, {memory[0]} recorded",) if "yes" in memory else ()
    return EnvironmentInfo(
        tuple(differing(manifest["environment"]["versions"], found["environment"]["versions"])),
        (*differing(hardware, here, HARDWARE), *processors),
        (*differing(realized, again, SETTINGS), *lost),
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


def judge_bitwise(manifest: Manifest, found: Manifest, environment: EnvironmentInfo) -> Verdict | None:
    """Return a verdict if all bits are equal, or must be, or the inputs differ; None if rounding must be considered."""
    if inputs := different_inputs(manifest, found):
        return different(*inputs, environment)
    if seen := different_bits(manifest, found):
        return None if environment.differences else different(*seen, environment)
    what = f"losses, weights and draws of {epochs_compared(manifest, found)}"
    has_predictions = "predictions" in found["digests"] and "predictions" in manifest["digests"]
    return Verdict("bit-equal", sentence=what + (", and the predictions" if has_predictions else ""))


def epochs_compared(manifest: Manifest, found: Manifest) -> str:
    num, whole = len(found["epochs"]), len(manifest["epochs"])
    return f"all {num} epochs" if num == whole else f"the first {num} of {whole} epochs"


def different_inputs(manifest: Manifest, found: Manifest) -> tuple[str, str] | None:
    """Return (cause, sentence) if the initial weights or the random draws differ: rounding never changes these."""
    initial = manifest["digests"]["weights"]["initial"], found["digests"]["weights"]["initial"]
    if initial[0] != initial[1]:
        return "initial weights", f"sha256 {initial[1][:12]} here, {initial[0][:12]} recorded"
    for recorded, here in pairs(manifest, found):
        for name, what in (("order_sha256", "the order of the sequences"), ("draws_sha256", "the random changes")):
            if recorded[name] != here[name]:
                return "draws", f"{what} in epoch {recorded['epoch']}"
        rates = recorded.get("learning_rate", 0.0), here.get("learning_rate", 0.0)  # a fitted model has none
        if abs(rates[0] - rates[1]) > unit(rates[0]):
            return (
                f"epoch {recorded['epoch']}",
                f"the learning rate ends at {rates[1]:.6g} here, {rates[0]:.6g} recorded",
            )
    return None


def different_bits(manifest: Manifest, found: Manifest) -> tuple[str, str] | None:
    """Return (cause, sentence) for the first digest or loss that differs."""
    for recorded, here in pairs(manifest, found):
        if recorded == here:
            continue
        names = [name for name in recorded if recorded[name] != here.get(name)]
        losses = ", ".join(
            f"{name} {here[name]!r} here, {recorded[name]!r} recorded" for name in names if name in LOSSES
        )
        return f"epoch {recorded['epoch']}", losses or f"{', '.join(names)} differ, but the losses are equal"
    recorded_digests, digests = manifest["digests"], found["digests"]
    for name, digest in digests["weights"].items():
        if digest != recorded_digests["weights"][name]:
            return "tensor", f"{name}.safetensors differs, but the weights of each epoch are equal"
    both = [own["predictions"] for own in (recorded_digests, digests) if "predictions" in own]
    if len(set(both)) > 1:
        return "predictions", "predictions.csv differs, but the weights are equal"
    return None


def pairs(manifest: Manifest, found: Manifest) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the epochs that both have."""
    return zip(manifest["epochs"], found["epochs"], strict=False)


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


def measure_envelope(found: Manifest, perturbed: Sequence[Manifest], others: Sequence[Manifest]) -> Envelope:
    """Measure the envelope. `found` is the rerun, `perturbed` are reruns from perturbed weights, `others` have other
    seeds.

    A deviation grows over the epochs, but a few perturbed trainings may agree by chance in one epoch, so each epoch
    takes the largest deviation so far. For the same reason, the seeds' range in an epoch is the median over that epoch
    and two on each side.
    """
    num = len(found["epochs"])
    ranges = {loss: [spread_of([found, *others], epoch, loss) for epoch in range(num)] for loss in LOSSES}
    largest, allowed, horizon = dict.fromkeys(LOSSES, 0.0), [], 0
    for epoch, row in enumerate(found["epochs"]):
        for loss in LOSSES:
            deviations = [abs(each["epochs"][epoch][loss] - row[loss]) for each in perturbed]
            largest[loss] = max(largest[loss], unit(row[loss]), *deviations)
        allowed.append({loss: MULTIPLE * largest[loss] for loss in LOSSES})
        spread = {loss: statistics.median(ranges[loss][max(0, epoch - 2) : epoch + 3]) for loss in LOSSES}
        if horizon == epoch and all(allowed[epoch][loss] <= SHARE_OF_SPREAD * spread[loss] for loss in LOSSES):
            horizon += 1
    return Envelope(allowed, horizon, len(perturbed))


def spread_of(runs: Sequence[Manifest], epoch: int, loss: str) -> float:
    values = [run["epochs"][epoch][loss] for run in runs]
    return float(max(values) - min(values))


def may_round(manifest: Manifest, found: Manifest) -> bool:
    """Whether rounding can explain a difference. It cannot if the precisions differ (a CPU has no TF32), or if the
    devices differ and the model has dropout, because each device draws it from its own generator.
    """
    if manifest["realized"]["precision"] != found["realized"]["precision"]:
        return False
    return manifest["device"] == found["device"] or not manifest["block"]["train"]["model"].get("dropout")


def within(manifest: Manifest, found: Manifest, environment: EnvironmentInfo, envelope: Envelope) -> Verdict | None:
    """Return a verdict for the losses against the envelope; None if the horizon ends before the training and the losses
    agree up to it.
    """
    compared = list(pairs(manifest, found))
    for (recorded, here), allowed in zip(compared[: envelope.horizon], envelope.allowed, strict=False):
        for loss in LOSSES:
            off = abs(recorded[loss] - here[loss])
            if off > allowed[loss]:
                seen = f"{loss} {here[loss]:.6g} here, {recorded[loss]:.6g} recorded"
                why = f"a difference of {off:.2g}; rounding explains at most {allowed[loss]:.2g}"
                return different(f"epoch {recorded['epoch']}", f"{seen}: {why}", environment)
    if envelope.horizon < len(compared):
        return None
    share = max(
        abs(recorded[loss] - here[loss]) / allowed[loss]
        for (recorded, here), allowed in zip(compared, envelope.allowed, strict=True)
        for loss in LOSSES
    )
    seen = f"the losses of {epochs_compared(manifest, found)} differ by at most {share:.0%} of what rounding explains"
    perturbed = f"measured with {envelope.num_perturbed} perturbed trainings"
    sentence = f"{seen}, {perturbed}; other differences: {'; '.join(environment.differences)}"
    return Verdict("within rounding", sentence=sentence)


# Beyond the horizon.


def judge_final_scores(
    manifest: Manifest,
    recorded: Rows | None,
    found: Manifest,
    others: Sequence[Manifest],
    environment: EnvironmentInfo,
    horizon: int,
) -> Verdict:
    """Judge by the test scores. `recorded`: the rows of the recorded predictions; None if they are not available.

    The margin is twice the seeds' standard deviation (differences.margin_of_seeds). The verdict is "different" only if
    the whole interval lies outside the margin: two networks that rounding has driven apart differ as much as two seeds,
    and a test for any difference cannot distinguish these cases.
    """
    beyond = (
        f"the losses after epoch {horizon} of {len(found['epochs'])} show no more than rounding, so the scores decide"
        if horizon
        else "the losses cannot be compared within rounding, so the scores decide"
    )
    if recorded is None or not found["predictions"]:
        missing = "the recorded predictions are missing" if recorded is None else "the test split was not predicted"
        return Verdict("inconclusive", sentence=f"{beyond}, but {missing}")
    paired, score_name = manifest["result"]["paired"], manifest["result"]["score_name"]
    sides = {run["seed"]: run["predictions"] for run in (found, *others)}
    margin = margin_of_seeds(list(measured_scores(paired, sides).values()))
    seed = found["seed"]
    seen = difference(paired, {seed: recorded}, {seed: sides[seed]}, margin, score_name, has_groups(manifest))
    sentence = f"{beyond}: {seen.sentence('the record', 'this machine')}"
    if seen.verdict in ("equal", "equivalent"):
        return Verdict("statistically compatible", sentence=sentence)
    if seen.exceeds_margin:
        return different("predictions", sentence, environment)
    return Verdict("inconclusive", sentence=sentence)
