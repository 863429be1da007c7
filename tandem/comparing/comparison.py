"""Builds the `Comparison` of one workload's recorded runs: differences, speed, scores and notes.

The input is runs of one or several sides and, if available, the speed measured by the stage `speed`. The first side is
the baseline of the others. All sentences are made here: `sentences`, and `summaries` with the same in a few words.
`tandem.report.layout` shows them as Markdown, also for a terminal, `tandem.report.report` as HTML.

A speed-up is reported, with an interval, only if the work is the same. Otherwise the sentence names the differences.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tandem.comparing import differences
from tandem.comparing.comparability import (
    Comparability,
    Row,
    best_threads,
    compare_sides,
    hardware_and_settings,
    short_hardware,
)
from tandem.comparing.differences import Difference, mean_and_range
from tandem.comparing.speed_up import SpeedUp, unpaired_speed_up
from tandem.comparing.table import rows_of
from tandem.comparing.units import Rows
from tandem.comparing.verdicts import Envelope, Verdict
from tandem.machine import conditions
from tandem.runs.provenance import is_edited
from tandem.runs.quantities import SEED_REDUCTIONS
from tandem.runs.run import Run
from tandem.tasks.scores import baseline_scores

# Differences that the descriptions of the sides do not show, so the sentence with the ratio names them.
NOT_DESCRIBED = ("machine", "step execution", "data location")
# The values of a row of compare.json that come from the first run: name -> path in its manifest.
OF_FIRST = {
    **{name: name for name in ("workload", "requested", "device")},
    "task": "block.task",
    "model": "block.train.model.name",
    "torch": "hardware.torch",
    "measured_on": "machine",
    "score_name": "result.score_name",
}
PUBLISHED = "published"  # the name of a side of published runs
KINDS = {"cpu": "CPU", "cuda": "GPU"}  # of devices, in summaries


@dataclass(frozen=True)
class Side:
    """A training, or several that differ only in their seed."""

    name: str
    runs: tuple[Run, ...]
    label: str = ""  # in tables and charts of several sides, with a colour; tandem/report/layout.py chooses them
    colour: str = ""

    @property
    def first(self) -> Run:
        """The run that stands for the side: of the first seed of params.yaml."""
        return self.runs[0]

    @property
    def kind(self) -> str:
        """The name in summaries."""
        return KINDS.get(self.name, self.name)

    @property
    def epoch_seconds(self) -> list[float]:
        """Of the timed runs: all but replicates."""
        return [run.times["epoch_seconds"] for run in self.runs if run.is_timed]

    def measured(self, name: str) -> float | None:
        """One of SEED_REDUCTIONS, over the seeds that have a value: the median, or the largest."""
        values = [value for run in self.runs if (value := run.times.get(name)) is not None]
        return SEED_REDUCTIONS[name](values) if values else None

    @property
    def busy(self) -> str:
        """How other processes disturbed the first timed training that they disturbed; empty if they disturbed none."""
        phrases = (conditions.busy(run.timing["conditions"]) for run in self.runs if run.is_timed)
        return next(filter(None, phrases), "")

    @property
    def score_name(self) -> str:
        return self.first.score["score_name"] if self.first.score else "score"

    @cached_property
    def scores(self) -> list[float]:
        """Of the evaluated runs."""
        return [run.test_score for run in self.runs if run.score]

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)

    @cached_property
    def metrics(self) -> dict[str, float | None]:
        """Means over the seeds; None if a seed lacks the value: a mean over the others would be another quantity."""
        rows = [run.score["metrics"] for run in self.runs if run.score]
        names = dict.fromkeys(name for row in rows for name in row)
        is_in_all = {name: all(name in row for row in rows) for name in names}
        return {name: statistics.fmean(row[name] for row in rows) if is_in_all[name] else None for name in names}

    @property
    def scored(self) -> str:
        """The score as text, e.g. `accuracy 0.9556 (0.9444 to 0.9667 over 5 seeds) on cpu`."""
        return f"{self.score_name} {mean_and_range(self.scores) if self.scores else 'not recorded'} on {self.name}"

    @property
    def sentence(self) -> str:
        """What `evaluate` says of the score, and how it varies over the seeds."""
        sentence: str = self.first.value("result.sentence") or ""
        if len(self.scores) == 1:
            return sentence
        return (
            f"{self.score_name} {self.score:.4f} on average over {len(self.scores)} seeds "
            f"({min(self.scores):.4f} to {max(self.scores):.4f}), which change the weights, the order and the random "
            f"draws but not the split; {self.num_above}seed {self.first.seed}: {sentence}"
        )

    @property
    def num_above(self) -> str:
        """How many of the seeds score above the strongest baseline: a sentence of `evaluate` is about one of them."""
        if not self.baselines:
            return ""
        name, value = self.baselines[0]
        return f"{sum(score > value for score in self.scores)} of them are above {name} ({value:.4f}); "

    def predictions(self) -> dict[int, Rows]:
        """Return the predictions by seed. Raises ValueError if some are missing or a seed occurs twice."""
        if missing := [str(run.seed) for run in self.runs if not run.predictions]:
            raise ValueError(f"the predictions of {self.name} are missing (seed {', '.join(missing)})")
        by_seed: dict[int, Rows] = {run.seed: run.predictions for run in self.runs}
        if len(by_seed) < len(self.runs):
            raise ValueError(
                f"{self.name} has several runs of one seed ({', '.join(str(run.seed) for run in self.runs)})"
            )
        return by_seed

    @cached_property
    def row(self) -> dict[str, Any]:
        """The evaluated runs as a row of compare.json: means of scores, medians of times, peaks of memory.

        `runs` has the score of each seed. All other values come from the first run.
        """
        first = self.first
        return {
            **{name: first.value(path) for name, path in OF_FIRST.items()},
            **{name: self.measured(name) for name in SEED_REDUCTIONS},
            "commit": commit_of(first.timing["tree"]),
            "summary_lines": first.timing["summary_lines"],
            "missing_reasons": first.times["missing_reasons"],
            "seeds": [run.seed for run in self.runs],
            "runs": [
                {
                    "seed": run.seed,
                    "score": run.test_score,
                    "measured_at": run.timing["measured_at"],
                    "tracking": run.tracking,
                }
                for run in self.runs
            ],
            "busy": self.busy,
            "score": self.score,
            "score_lowest": min(self.scores),
            "score_highest": max(self.scores),
            "metrics": self.metrics,
            "sentence": self.sentence,
        }

    @property
    def baselines(self) -> list[tuple[str, float]]:
        """The baselines of the score, strongest first."""
        return baseline_scores(self.first.task_attributes["baselines"], self.score_name, self.metrics)

    @property
    def summaries(self) -> list[str]:
        """What the score is worth: compared with what a score of 0 stands for, if `evaluate` gives the score's interval
        (a forecast's score is the share of persistence's error that it removes); and the baselines that it does not
        beat, or else the strongest one.
        """
        sentences, zero = list[str](), self.first.task_attributes["zero"].partition(":")[0]
        low, high = (self.metrics.get(f"{self.score_name}_{end}") for end in ("low", "high"))
        if low is not None and high is not None and zero:
            message = "Better than" if low > 0 else "Worse than" if high < 0 else "Not clearly different from"
            sentences.append(f"{message} {zero} (95% interval {low:+.4f} to {high:+.4f})")
        baselines = [(f"{name} ({value:.4f})", value) for name, value in self.baselines]
        if higher := [text for text, value in baselines if self.score < value]:
            sentences.append(f"Does not beat {' or '.join(higher)}")
        if equal := [text for text, value in baselines if self.score == value]:
            sentences.append(f"The same score as {' and '.join(equal)}")
        if baselines and not sentences:
            sentences.append(f"Above {baselines[0][0]}, the strongest baseline")
        return sentences


def commit_of(tree: Mapping[str, Any]) -> str:
    """The first digits of the commit, and whether files were edited; empty outside git."""
    return f"{tree['commit'][:7]}{' with edits' if is_edited(tree) else ''}" if tree.get("commit") else ""


@dataclass(frozen=True)
class Reference:
    """Published trainings of a workload on one kind of hardware."""

    side: Side
    run: Run  # of the seed whose weights and losses are published
    envelope: Envelope  # of that run
    verdict: Verdict | None = None  # on one's own run with that seed; None if there is none

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        name = f"Published run of {short_hardware(self.run.hardware_name)}, seed {self.run.seed}"
        return f"{name}: {self.verdict or 'no verdict, because no run here has this seed'}"


@dataclass(frozen=True)
class Judgement:
    """One side compared with another. All sentences end with a full stop."""

    first: Side
    second: Side
    comparability: Comparability
    speed_up: SpeedUp | None  # None: `speed` says why none is reported
    difference: Difference | None  # None: the scores are not compared; `scores` says why
    speed: str
    scores: str
    notes: tuple[str, ...]

    @property
    def summaries(self) -> tuple[str, str]:
        """The speed and the scores in a few words."""
        names, refusals = (self.first.kind, self.second.kind), self.comparability.refusals
        speed = f"Speeds are not comparable: {refusals[0]}" if refusals else "No speed-up is reported"
        if self.speed_up:
            speed = self.speed_up.summary(*names)
        return speed, self.difference.summary(*names) if self.difference else "Scores are not compared"


@dataclass(frozen=True)
class Comparison:
    """One workload's sides, compared with the first one or with the published runs."""

    workload: str
    sides: tuple[Side, ...]
    judgements: tuple[Judgement, ...]  # empty if there is only one side
    reference: Reference | None = None  # the published runs
    no_reference: str = ""  # why there is none

    @cached_property
    def rows(self) -> list[Row]:
        """The recorded values of all sides."""
        return list(rows_of([side.runs for side in self.sides]))

    @property
    def sentences(self) -> list[str]:
        by_judgement = [(judgement.speed, judgement.scores, *judgement.notes) for judgement in self.judgements]
        unique = dict.fromkeys(sentence for sentences in by_judgement for sentence in sentences)
        reference = self.reference
        published = [f"{reference.summary}; {reference.verdict.sentence}."] if reference and reference.verdict else []
        return [f"{self.workload}: {sentence}" for sentence in (*unique, *published)]

    @property
    def summaries(self) -> list[str]:
        """The verdicts in a few words: on the published run, on the other sides, and on the score of the first one."""
        judged = (summary for judgement in self.judgements for summary in judgement.summaries)
        published = [self.reference.summary] if self.reference else []
        return [*published, *judged, *self.sides[0].summaries]


def compare(workload: str, sides: Sequence[Side], speed: Mapping[str, Any] | None = None) -> Comparison:
    """`speed` is the content of results/speed/<workload>.json: {"speed_up": a SpeedUp, "sides": [base, other], "about":
    ...}; or {"sentence": why there is no ratio}. If it is None, the runs did not alternate and the ratio comes from
    the epochs.
    """
    return Comparison(workload, tuple(sides), tuple(judge(sides[0], other, speed) for other in sides[1:]))


def judge(first: Side, second: Side, speed: Mapping[str, Any] | None = None) -> Judgement:
    comparability = compare_sides({side.name: side.runs for side in (first, second)})
    scores, difference = compare_scores(first, second)
    speed_up = None
    if comparability.refusals:
        speed_text = f"no speed-up is reported: {'; '.join(comparability.refusals)}"
    else:
        try:
            if untimed := [side.name for side in (first, second) if not (speed or side.epoch_seconds)]:
                raise ValueError(f"{' and '.join(untimed)} trained together with other seeds and was not timed")
            # The recorded epochs are all that two machines offer.
            speed_up = (
                speed_in_turns(first, second, speed)
                if speed
                else unpaired_speed_up(first.epoch_seconds, second.epoch_seconds)
            )
            speed_text = speed_sentence(first, second, comparability, speed_up, speed)
        except ValueError as error:
            speed_text = f"no speed-up is reported: {error}"
    # When the sides alternate, the CPU uses its fastest number of threads, whatever the trainings used.
    of_threads = () if speed else filter(None, map(best_threads, (first.first, second.first)))
    notes = tuple(f"{note}." for note in (*of_threads, *comparability.notes))
    return Judgement(first, second, comparability, speed_up, difference, f"{speed_text}.", f"{scores}.", notes)


def speed_sentence(
    first: Side, second: Side, comparability: Comparability, speed_up: SpeedUp, speed: Mapping[str, Any] | None
) -> str:
    timed = speed["about"] if speed else {first.name: {}, second.name: {}}
    sides = [hardware_and_settings(side.first, timed[side.name].get("threads")) for side in (first, second)]
    differing = (
        replace(row, cells=row.cells[::-1]) for row in comparability.named_differences if row.name in NOT_DESCRIBED
    )
    differing_text = " and ".join(map(str, differing))
    other_differences = f"; they also differ in {differing_text}" if differing_text else ""
    return f"{speed_up.sentence(first.name, second.name)}. {sides[1]} vs {sides[0]}{other_differences}"


def speed_in_turns(first: Side, second: Side, speed: Mapping[str, Any]) -> SpeedUp:
    """Return the speed-up in results/speed/<workload>.json. Raises ValueError with the reason if it does not apply."""
    if "speed_up" not in speed:
        raise ValueError(speed["sentence"].removeprefix(f"{speed['workload']}: ").rstrip("."))
    names, measured = [first.name, second.name], list(speed["sides"])
    if sorted(names) != sorted(measured):
        raise ValueError(f"the speed was measured on {' and '.join(measured)}, the runs are on {' and '.join(names)}")
    if out_of_memory := [name for name in names if speed["out_of_memory"].get(name)]:
        raise ValueError(f"memory ran out on {' and '.join(out_of_memory)} in the speed measurement")
    precisions = [speed["about"][name].get("precision") for name in names]
    if precisions[0] != precisions[1]:
        raise ValueError(f"the speed was measured with different precisions ({precisions[0]} and {precisions[1]})")
    speed_up = SpeedUp(**speed["speed_up"])
    return speed_up if names == measured else speed_up.reversed()


def name_with_seeds(side: Side, used: Mapping[int, float]) -> str:
    """The side's name, with the seeds that are compared if the side has more."""
    number = "seed" if len(used) == 1 else "seeds"
    return side.name if len(used) == len(side.runs) else f"{side.name}, {number} {' and '.join(map(str, used))}"


def compare_scores(first: Side, second: Side) -> tuple[str, Difference | None]:
    try:
        name, paired = first.score_name, first.first.task_attributes["paired"]
        predictions = first.predictions(), second.predictions()
        if name != second.score_name:
            raise ValueError(f"{first.name} has the score {name}, and {second.name} has {second.score_name}")
        if paired != (other_paired := second.first.task_attributes["paired"]):
            raise ValueError(f"{first.name} is compared by {paired}, {second.name} by {other_paired}")
        scores = [list(differences.measured_scores(paired, side, name).values()) for side in predictions]
        grouped = any(side.first.has_groups for side in (first, second))
        result = differences.difference(paired, *predictions, differences.margin_of_seeds(*scores), name, grouped)
    except ValueError as error:
        return f"{first.scored}, {second.scored}; the scores are not compared, because {error}", None
    sentence = result.sentence(*(name_with_seeds(*pair) for pair in ((first, result.first), (second, result.second))))
    # The sentence lacks the scores if it tests the MAE instead of the score, or if one side has seeds that the other
    # lacks.
    is_said = result.is_larger_better and len(result.first) == len(first.runs) == len(second.runs)
    return (sentence if is_said else f"{first.scored}, {second.scored}. {sentence}"), result
