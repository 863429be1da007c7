"""Writes the verdict on one workload's runs: sentences on speed, scores and reservations.

The input is recorded runs (manifests and predictions) and, if available, the speed measured in turns.

A speed-up is stated, with an interval, only if the work is the same. Otherwise the sentence names the differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stages.comparing.comparability import (
    Comparability,
    Manifest,
    best_threads,
    compare_sides,
    describe,
    value_of,
)
from stages.comparing.differences import (
    LEVEL,
    MEASURES,
    Difference,
    Rows,
    difference,
    margin_of_seeds,
    mean_and_range,
    measured_scores,
)
from stages.records.run import Run

MIN_PAIRS = 3  # for an interval
HOW_TO_GET_AN_INTERVAL = "`dvc exp run -S 'seeds=[0,1,2,3,4]'`"
# Differences that the descriptions of the sides do not show, so they are stated with the ratio.
NOT_DESCRIBED = ("machine", "way of stepping", "place of the data")


@dataclass(frozen=True)
class Judgement:
    """The verdict on one workload. All sentences end with a full stop."""

    workload: str
    speed: str
    scores: str
    notes: tuple[str, ...]
    comparability: Comparability | None  # None: there is only one side
    difference: Difference | None  # None: the scores are not compared; `scores` says why
    ratio: Speed | None = None  # None: no speed-up is stated; `speed` says why

    @property
    def sentences(self) -> list[str]:
        return [f"{self.workload}: {self.speed}", f"{self.workload}: {self.scores}", *self.notes]


def judge(workload: str, sides: Mapping[str, Sequence[Run]], speed: Mapping[str, Any] | None = None) -> Judgement:
    """Compare one or two `sides`. Each is named by its device (or as the caller likes) and has a run for each seed.

    `speed` is the content of results/speed/<workload>.json: {"speed_up": {"ratio", "low", "high", "num_pairs"},
    "sides": [base, other], "about": ...}, where the ratio is base's seconds divided by other's; or {"sentence": why
    there is no ratio}. If `speed` is None, the runs did not take turns and the ratio comes from the manifests' epochs.
    Raises ValueError for more than two sides, which must be compared in pairs.
    """
    if not 0 < len(sides) <= 2 or not all(sides.values()):
        counts = ", ".join(f"{name} ({len(runs)} runs)" for name, runs in sides.items()) or "none"
        raise ValueError(
            f"one or two sides with at least a run each can be judged, not {counts}; judge others in pairs"
        )
    described = [Side(name, tuple(runs)) for name, runs in sides.items()]
    if len(described) == 1:
        side = described[0]
        alone = f"measured on one kind of device ({describe(side.manifest)}); nothing to compare it with."
        return Judgement(workload, alone, f"{side.scores}.", (), None, None)
    first, second = described
    found = compare_sides({side.name: [run.manifest for run in side.runs] for side in described})
    scored, compared = score_sentence(first, second)
    # When the sides take turns, the CPU uses its fastest number of threads, whatever the trainings used.
    threads = [] if speed else [best_threads(side.manifest) for side in described]
    notes = tuple(f"{workload}: {each}." for each in (*filter(None, threads), *found.notes))
    known = speed_of(first, second, found, speed)
    fast = known if isinstance(known, str) else speed_sentence(first, second, found, known)
    ratio = None if isinstance(known, str) else known
    return Judgement(workload, f"{fast}.", f"{scored}.", notes, found, compared, ratio)


@dataclass(frozen=True)
class Side:
    name: str
    runs: tuple[Run, ...]

    @property
    def manifest(self) -> Manifest:
        return self.runs[0].manifest

    @cached_property
    def epoch_seconds(self) -> list[float]:
        found = [value_of(run.manifest, "timing.epoch_seconds") for run in self.runs]
        return [float(seconds) for seconds in found if seconds]

    @property
    def score_name(self) -> str:
        return str(value_of(self.manifest, "result.score_name") or "score")

    @cached_property
    def scores(self) -> str:
        """The score as text, e.g. `accuracy 0.9556 (0.9444 to 0.9667 over 5 seeds) on cpu`, from the manifests."""
        known = [(value_of(run.manifest, "result.metrics") or {}).get(self.score_name) for run in self.runs]
        scores = [float(score) for score in known if score is not None]
        return f"{self.score_name} {mean_and_range(scores) if scores else 'not recorded'} on {self.name}"

    def predictions(self) -> dict[int, Rows]:
        """Return the predictions by seed. Raises ValueError if some are missing or a seed occurs twice."""
        if missing := [str(run.seed) for run in self.runs if not run.predictions]:
            raise ValueError(f"the predictions of {self.name} are not at hand (seed {', '.join(missing)})")
        found: dict[int, Rows] = {run.seed: run.predictions for run in self.runs}
        if len(found) < len(self.runs):
            raise ValueError(f"{self.name} has several runs of one seed ({', '.join(str(r.seed) for r in self.runs)})")
        return found


@dataclass(frozen=True)
class Speed:
    """How many times as long an epoch takes on the first side as on the second."""

    ratio: float
    low: float | None
    high: float | None
    counted: str  # the number of processes, as text
    threads: tuple[int | None, int | None]  # of each side, if they differ from the training's


def speed_of(first: Side, second: Side, found: Comparability, speed: Mapping[str, Any] | None) -> Speed | str:
    """Return the ratio of the two sides, or the reason why none is stated."""
    if found.refusals:
        return f"no speed-up is stated. What stands against it: {'; '.join(found.refusals)}"
    known = measured_in_turns(first, second, speed) if speed else measured_apart(first, second)
    return f"no speed-up is stated: {known}" if isinstance(known, str) else known


def speed_sentence(first: Side, second: Side, found: Comparability, known: Speed) -> str:
    sides = [describe(side.manifest, threads) for side, threads in zip((first, second), known.threads, strict=True)]
    differing = [each for each in found.named if each.what in NOT_DESCRIBED]
    others = " and ".join(f"{each.what} ({each.second} against {each.first})" for each in differing)
    beside = f"; they differ in {others} too" if others else ""
    return f"{faster_sentence(first.name, second.name, known)}. {sides[1]} against {sides[0]}{beside}"


def measured_in_turns(first: Side, second: Side, speed: Mapping[str, Any]) -> Speed | str:
    """Return the ratio from results/speed/<workload>.json, or the reason why it does not apply."""
    figures = speed.get("speed_up", speed)
    if "ratio" not in figures:
        reason = str(speed.get("sentence", "the speed is not recorded")).rstrip(".")
        return reason.removeprefix(f"{speed.get('workload')}: ")
    measured, sides = list(speed.get("sides") or (first.name, second.name)), (first, second)
    names = [next((n for n in measured if n in (side.name, side.manifest.get("device"))), None) for side in sides]
    if None in names or names[0] == names[1]:
        return f"{' and '.join(map(str, measured))} took turns, and these are {first.name} and {second.name}"
    about = [(speed.get("about") or {}).get(name) or {} for name in names]
    if out_of_memory := [str(name) for name in names if (speed.get("out_of_memory") or {}).get(name)]:
        return f"memory ran out on {' and '.join(out_of_memory)} while they took turns"
    precisions = [own.get("precision") for own in about]
    if precisions[0] != precisions[1]:
        return f"the sides took turns in precision {precisions[0]} and {precisions[1]}"
    ratio, low, high = (figures.get(name) for name in ("ratio", "low", "high"))
    if names != measured[:2]:
        ratio, low, high = (None if value is None else 1 / value for value in (ratio, high, low))
    num = figures["num_pairs"]
    counted = f"{num} pair{'' if num == 1 else 's'} of processes in turns"
    return Speed(ratio, low, high, counted, (about[0].get("threads"), about[1].get("threads")))


def measured_apart(first: Side, second: Side) -> Speed | str:
    """Return the ratio of the recorded epochs, which is all that two machines offer."""
    if untimed := [side.name for side in (first, second) if not side.epoch_seconds]:
        return f"no epoch of {' and '.join(untimed)} is timed"
    counts = [len(side.epoch_seconds) for side in (first, second)]
    processes = "1 process a side" if counts == [1, 1] else f"{counts[0]} and {counts[1]} processes"
    counted = f"{processes} that took no turns, so the drift of the machines is in it"
    return Speed(*ratio_of_epochs(first.epoch_seconds, second.epoch_seconds), counted, (None, None))


def faster_sentence(first: str, second: str, found: Speed) -> str:
    fast, slow, ratio, low, high = second, first, found.ratio, found.low, found.high
    if ratio < 1:
        fast, slow, ratio = first, second, 1 / ratio
        low, high = (None, None) if low is None or high is None else (1 / high, 1 / low)
    if low is None or high is None:
        none = f"no interval can be had from fewer than {MIN_PAIRS}: {HOW_TO_GET_AN_INTERVAL}"
        return f"the ratio of an epoch on {slow} to one on {fast} is {ratio:.2f} ({found.counted}; {none})"
    interval = f"95% interval {low:.2f} to {high:.2f}; {found.counted}"
    if low <= 1 <= high:
        return f"no difference in speed can be told (ratio {ratio:.2f} in favour of {fast}, {interval})"
    return f"an epoch on {fast} is {ratio:.2f} times as fast as on {slow} ({interval})"


def ratio_of_epochs(first: Sequence[float], second: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return (ratio, low, high) of the geometric means. The interval is Welch's on the logarithms, for at least three
    processes per side.
    """
    logs = np.log(first), np.log(second)
    ratio = float(np.exp(logs[0].mean() - logs[1].mean()))
    if min(len(first), len(second)) < MIN_PAIRS:
        return ratio, None, None
    from scipy.stats import ttest_ind

    interval = ttest_ind(*logs, equal_var=False).confidence_interval(LEVEL)
    return ratio, float(np.exp(interval.low)), float(np.exp(interval.high))


def score_sentence(first: Side, second: Side) -> tuple[str, Difference | None]:
    try:
        name, pair = first.score_name, (first.predictions(), second.predictions())
        if name != second.score_name:
            raise ValueError(f"{first.name} is scored by {name}, {second.name} by {second.score_name}")
        margin = margin_of_seeds(*(list(measured_scores(name, side).values()) for side in pair))
        found = difference(name, *pair, margin)
    except ValueError as error:
        return f"{first.scores}, {second.scores}; the two are not compared, because {error}", None
    except ModuleNotFoundError as error:  # a GPU machine may have few packages
        return f"{first.scores}, {second.scores}; the two are not compared, because {error.name} is not installed", None
    sentence = found.sentence(first.name, second.name)
    # The sentence lacks the scores if it tests the MAE instead of the score, or if one side has seeds that the other
    # lacks.
    is_said = MEASURES[name].is_larger_better and len(found.first) == len(first.runs) == len(second.runs)
    return (sentence if is_said else f"{first.scores}, {second.scores}. {sentence}"), found
