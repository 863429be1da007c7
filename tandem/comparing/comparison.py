"""Builds the `Comparison` of one workload's recorded runs: differences, speed, scores and notes.

The input is runs of one or several sides and, if available, the speed measured by the stage `speed`. The first side is
the baseline of the others. `tandem.report.comparison` shows the result as Markdown, also for a terminal, and as short
texts, `tandem.report.report` as HTML.

A speed-up is reported, with an interval, only if the work is the same. Otherwise the sentence names the differences.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tandem.comparing import differences
from tandem.comparing.comparability import (
    Comparability,
    Manifest,
    best_threads,
    compare_sides,
    hardware_and_settings,
    has_groups,
)
from tandem.comparing.differences import Difference, Rows, mean_and_range
from tandem.comparing.rerun import Verdict
from tandem.comparing.speed_up import SpeedUp, unpaired_speed_up
from tandem.comparing.table import Row, rows_of
from tandem.machine.conditions import busy
from tandem.runs.quantities import COMPARED, TIMES
from tandem.runs.run import Run

# Differences that the descriptions of the sides do not show, so the sentence with the ratio names them.
NOT_DESCRIBED = ("machine", "step execution", "data location")
OF_SEED = ("seed", "score", *TIMES, "measured_at", "tracking")


@dataclass(frozen=True)
class Side:
    """A training, or several that differ only in their seed."""

    name: str
    runs: tuple[Run, ...]
    replicates: Mapping[str, Any] = field(default_factory=dict)  # measured of them together (stages/replicate.py)

    @property
    def manifest(self) -> Manifest:
        return self.runs[0].manifest

    @property
    def epoch_seconds(self) -> list[float]:
        """Of the timed runs: all but replicates."""
        return [run.timing["timing"]["epoch_seconds"] for run in self.runs if run.is_timed]

    @property
    def score_name(self) -> str:
        return self.runs[0].score["score_name"] if self.runs[0].score else "score"

    @cached_property
    def scores(self) -> str:
        """The score as text, e.g. `accuracy 0.9556 (0.9444 to 0.9667 over 5 seeds) on cpu`."""
        scores = [run.test_score for run in self.runs if run.score]
        return f"{self.score_name} {mean_and_range(scores) if scores else 'not recorded'} on {self.name}"

    def predictions(self) -> dict[int, Rows]:
        """Return the predictions by seed. Raises ValueError if some are missing or a seed occurs twice."""
        if missing := [str(run.seed) for run in self.runs if not run.predictions]:
            raise ValueError(f"the predictions of {self.name} are missing (seed {', '.join(missing)})")
        found: dict[int, Rows] = {run.seed: run.predictions for run in self.runs}
        if len(found) < len(self.runs):
            raise ValueError(f"{self.name} has several runs of one seed ({', '.join(str(r.seed) for r in self.runs)})")
        return found

    @cached_property
    def row(self) -> dict[str, Any]:
        """The evaluated runs as a row of compare.json: means of scores, medians of times, peaks of memory.

        `runs` has the values of each seed. All other values come from the first run.
        """
        rows = [row_of(run) for run in self.runs]
        first, scores = rows[0], [row["score"] for row in rows]
        found = {name: value for name, value in first.items() if name not in ("seed", "tracking")}
        for name, reduce in COMPARED.items():
            values = [row[name] for row in rows if row[name] is not None]
            found[name] = reduce(values) if values else None
        names = dict.fromkeys(name for row in rows for name in row["metrics"])
        found |= {
            "seeds": [row["seed"] for row in rows],
            "runs": [{name: row[name] for name in OF_SEED} for row in rows],
            "replicates": dict(self.replicates),
            "busy": next((row["busy"] for row in rows if row["busy"]), ""),
            "score": statistics.fmean(scores),
            "score_lowest": min(scores),
            "score_highest": max(scores),
            "metrics": {name: mean_of(row["metrics"].get(name) for row in rows) for name in names},
        }
        if len(rows) > 1:
            found["sentence"] = (
                f"{found['score_name']} {found['score']:.4f} on average over {len(scores)} seeds ({min(scores):.4f}"
                f" to {max(scores):.4f}), which change the weights, the order and the random draws but not the split; "
                f"seed {first['seed']}: {first['sentence']}"
            )
        return found


def row_of(run: Run) -> dict[str, Any]:
    assert run.score
    hardware, block, timing = run.timing["hardware"], run.train["block"], run.timing["timing"]
    return {
        "workload": run.workload,
        "requested": run.train["requested"],
        "seed": run.seed,
        "task": block["task"],
        "model": block["train"]["model"]["name"],
        "is_fitted": run.is_fitted,
        "device": run.device,
        "device_name": hardware["name"],
        "why_not_cuda": hardware.get("why_not_cuda", ""),
        "commit": commit_of(run.timing.get("tree", {})),
        "torch": hardware["torch"],
        "precision": run.train["realized"]["precision"],
        "threads": run.threads,
        "measured_at": run.timing["measured_at"],
        "measured_on": run.timing["machine"],
        "busy": busy(run.timing["conditions"]) if run.is_timed else "",
        "out_of_memory": run.timing["placement"]["out_of_memory"],
        "summary_lines": run.timing.get("summary_lines", {}),
        **{name: timing.get(name) for name in (*COMPARED, "num_epochs_measured")},
        "missing_reasons": timing.get("missing_reasons", {}),
        "score_name": run.score["score_name"],
        "score": run.test_score,
        "zero": run.task_attributes["zero"],
        "baselines": run.task_attributes["baselines"],
        "sentence": run.score.get("sentence", ""),
        "metrics": run.score["metrics"],
        "tracking": run.timing.get("mlflow", {}),
    }


def commit_of(tree: Mapping[str, Any]) -> str:
    """The first digits of the commit, and whether files were edited; empty outside git."""
    return f"{tree['commit'][:7]}{' with edits' if tree['patch'] else ''}" if tree.get("commit") else ""


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return None if a value is missing: a mean over the other seeds would be a different quantity."""
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class Reference:
    """A published training on the same data and with the same parameters as one's own."""

    side: Side
    verdict: Verdict | None  # of one's own run with `seed`; None if there is none
    seed: int  # of the published weights and losses

    @property
    def row(self) -> dict[str, Any]:
        return {**self.side.row, "css": "published"}


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


@dataclass(frozen=True)
class Comparison:
    """One workload's sides, each compared with the first one."""

    workload: str
    sides: tuple[Side, ...]
    judgements: tuple[Judgement, ...]  # empty if there is only one side
    references: tuple[Reference, ...] = ()  # published runs
    no_reference: str = ""  # why `references` is empty

    @cached_property
    def rows(self) -> list[Row]:
        """The recorded values of all sides."""
        return list(rows_of([[run.manifest for run in side.runs] for side in self.sides]))

    @property
    def sentences(self) -> list[str]:
        every = [(found.speed, found.scores, *found.notes) for found in self.judgements]
        return list(dict.fromkeys(f"{self.workload}: {sentence}" for found in every for sentence in found))


def compare(workload: str, sides: Sequence[Side], speed: Mapping[str, Any] | None = None) -> Comparison:
    """`speed` is the content of results/speed/<workload>.json: {"speed_up": a SpeedUp, "sides": [base, other], "about":
    ...}; or {"sentence": why there is no ratio}. If it is None, the runs did not alternate and the ratio comes from
    the epochs.
    """
    return Comparison(workload, tuple(sides), tuple(judge(sides[0], other, speed) for other in sides[1:]))


def judge(first: Side, second: Side, speed: Mapping[str, Any] | None = None) -> Judgement:
    found = compare_sides({side.name: [run.manifest for run in side.runs] for side in (first, second)})
    scores, difference = compare_scores(first, second)
    speed_up = None
    if found.refusals:
        fast = f"no speed-up is reported: {'; '.join(found.refusals)}"
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
            fast = speed_sentence(first, second, found, speed_up, speed)
        except ValueError as error:
            fast = f"no speed-up is reported: {error}"
    # When the sides alternate, the CPU uses its fastest number of threads, whatever the trainings used.
    of_threads = () if speed else filter(None, map(best_threads, (first.manifest, second.manifest)))
    notes = tuple(f"{note}." for note in (*of_threads, *found.notes))
    return Judgement(first, second, found, speed_up, difference, f"{fast}.", f"{scores}.", notes)


def speed_sentence(
    first: Side, second: Side, found: Comparability, speed_up: SpeedUp, speed: Mapping[str, Any] | None
) -> str:
    timed = speed["about"] if speed else {first.name: {}, second.name: {}}
    sides = [hardware_and_settings(side.manifest, timed[side.name].get("threads")) for side in (first, second)]
    differing = [f"{each.what} ({each.second} vs {each.first})" for each in found.named]
    others = " and ".join(each for each in differing if each.startswith(NOT_DESCRIBED))
    other_differences = f"; they also differ in {others}" if others else ""
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
    found = SpeedUp(**speed["speed_up"])
    return found if names == measured else found.reversed()


def name_with_seeds(side: Side, used: Mapping[int, float]) -> str:
    """The side's name, with the seeds that are compared if the side has more."""
    number = "seed" if len(used) == 1 else "seeds"
    return side.name if len(used) == len(side.runs) else f"{side.name}, {number} {' and '.join(map(str, used))}"


def compare_scores(first: Side, second: Side) -> tuple[str, Difference | None]:
    try:
        name, paired = first.score_name, first.runs[0].task_attributes["paired"]
        pair = first.predictions(), second.predictions()
        if name != second.score_name:
            raise ValueError(f"{first.name} has the score {name}, and {second.name} has {second.score_name}")
        if paired != (other := second.runs[0].task_attributes["paired"]):
            raise ValueError(f"{first.name} is compared by {paired}, {second.name} by {other}")
        scores = [list(differences.measured_scores(paired, side).values()) for side in pair]
        grouped = any(has_groups(side.manifest) for side in (first, second))
        found = differences.difference(paired, *pair, differences.margin_of_seeds(*scores), name, grouped)
    except ValueError as error:
        return f"{first.scores}, {second.scores}; the scores are not compared, because {error}", None
    sentence = found.sentence(*(name_with_seeds(*each) for each in ((first, found.first), (second, found.second))))
    # The sentence lacks the scores if it tests the MAE instead of the score, or if one side has seeds that the other
    # lacks.
    is_said = found.is_larger_better and len(found.first) == len(first.runs) == len(second.runs)
    return (sentence if is_said else f"{first.scores}, {second.scores}. {sentence}"), found
