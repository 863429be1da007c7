"""Compares one's own runs with the results that are published with the project.

For each workload and kind of hardware, docs/published.json has an entry: the score and training time of every seed, and
one reference run: what its records say of what was trained and what came out, and the effect of rounding on its losses
(`envelope`). `open_entry` makes runs of it; the results are verdicts as in tandem/comparing/verdicts.py. With the git
repository alone, a user can check whether their results are the published ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from statistics import fmean, stdev
from typing import Any

from tandem import files
from tandem.comparing import verdicts
from tandem.comparing.comparability import data_differences, parameters_of
from tandem.comparing.comparison import PUBLISHED, Reference, Side
from tandem.comparing.differences import MIN_SEEDS_OF_MARGIN
from tandem.comparing.verdicts import Envelope, EnvironmentInfo, Verdict, different
from tandem.params.parsing import differing_names
from tandem.runs.quantities import SEED_REDUCTIONS
from tandem.runs.run import Run
from tandem.tasks.statistics import student_interval

FILE = files.PUBLISHED
SCHEMA = 2
# What an entry has of the reference run's manifest. The rest says when it was made, and how to repeat it.
KEPT = ("workload", "requested", "device", "seed", "block", "realized", "environment", "hardware", "epochs")
DIGESTS = ("data", "weights", "predictions")


def read() -> dict[str, list[dict[str, Any]]]:
    """Return workload -> published entries. Raises ValueError for a file of another version."""
    fix = f"`git checkout {files.relative(FILE)}` restores it"
    content = files.read_json(FILE, fix)
    if content["schema"] != SCHEMA:
        raise ValueError(f"{files.relative(FILE)} has schema {content['schema']}, and this version reads {SCHEMA}")
    if empty := [workload for workload, entries in content["workloads"].items() if not entries]:
        raise files.damaged(files.relative(FILE), f"it has no entries for {empty[0]}", fix)
    return dict(content["workloads"])


def entry_of(runs: Sequence[Run], perturbed: Sequence[Run]) -> dict[str, Any]:
    """Return the published entry of evaluated runs, one per seed.

    The first is the reference run. `perturbed`: reruns of it from weights perturbed by one unit in the last place.
    """
    first, *others = runs
    assert first.score
    return {
        **{name: first.manifest[name] for name in KEPT},
        "digests": {name: first.manifest["digests"][name] for name in DIGESTS},
        "envelope": asdict(verdicts.measure_envelope(first, perturbed, others)),
        "score_name": first.score["score_name"],
        "scores": {str(run.seed): run.test_score for run in runs},
        "timings": {str(run.seed): {name: run.times.get(name) for name in SEED_REDUCTIONS} for run in runs},
    }


def open_entry(entry: Mapping[str, Any]) -> Reference:
    """Return an entry of docs/published.json as runs, without a verdict. Only the reference run has epochs."""
    runs = [run_of(entry, seed) for seed in entry["scores"]]
    envelope = Envelope(*(entry["envelope"][field.name] for field in fields(Envelope)))
    return Reference(Side(PUBLISHED, tuple(runs)), run_of(entry, str(entry["seed"])), envelope)


def run_of(entry: Mapping[str, Any], seed: str) -> Run:
    is_reference = seed == str(entry["seed"])
    train: Any = {name: entry[name] for name in ("workload", "requested", "device", "block", "realized", "digests")}
    train |= {"seed": int(seed), "epochs": entry["epochs"] if is_reference else [], "files": {}}
    timing: Any = {
        **{name: entry[name] for name in ("hardware", "environment")},
        **{"machine": "", "measured_at": "", "conditions": {"before": {}, "after": {}, "between": {}}},
        **{"placement": {}, "files": {}, "timing": entry.get("timings", {}).get(seed, {})},
    }
    predictions = {"predictions.csv": entry["digests"]["predictions"]} if is_reference else {}
    name = entry["score_name"]
    score: Any = {"score_name": name, "metrics": {name: entry["scores"][seed]}, "files": predictions}
    return Run(PUBLISHED, train, timing, score, no_file)


def no_file(name: str) -> tuple[bytes, str]:
    raise FileNotFoundError(name)


def reference_of(entries: Sequence[Mapping[str, Any]], own_runs: Sequence[Run]) -> tuple[Reference | None, str]:
    """Return the published runs to compare one's own with, and the verdict; or None and the reason."""
    if not entries:
        return None, "no published result exists"
    reference = nearest(entries, own_runs[0])
    own_run = next((run for run in own_runs if run.seed == reference.run.seed), own_runs[0])
    verdict = judge(reference, own_run)
    if verdict.cause in ("other parameters", "data"):
        return None, verdict.sentence
    return replace(reference, verdict=verdict if own_run.seed == reference.run.seed else None), ""


def nearest(entries: Sequence[Mapping[str, Any]], own_run: Run) -> Reference:
    """Return the published runs on the most similar hardware; of equally similar ones the last, which is the newest."""
    return min(map(open_entry, reversed(entries)), key=lambda reference: distance(reference, own_run))


def distance(reference: Reference, own_run: Run) -> tuple[int, ...]:
    """Return a sort key: smaller if the hardware differs less. Results of other parameters come last. Of other
    processors or GPUs, those of the same vendor come first, then of the same family, then of the same model.
    """
    has_other_parameters = bool(parameters(reference.run, own_run))
    kinds = [kind_of_processor(run.hardware_name) for run in (reference.run, own_run)]
    differing = (there != here for there, here in zip(*kinds, strict=True))
    num_differences = len(verdicts.environment_of(reference.run, own_run).hardware)
    return has_other_parameters, reference.run.kind != own_run.kind, *differing, num_differences


def kind_of_processor(name: str) -> tuple[str, ...]:
    """Return vendor, family, model and the whole name, e.g. of `AMD EPYC (family 26 model 2)`."""
    numbers = re.search(r"\(family (\w+) model (\w+)\)", name)
    vendor = re.search("AMD|Intel|NVIDIA", name) or re.match(r"\w*", name)
    return (vendor[0] if vendor else "", *(numbers.groups() if numbers else ("", "")), name)


def judge(reference: Reference, own_run: Run) -> Verdict:
    """Return the verdict on whether one's own run agrees with the published one."""
    published = reference.run
    if changed_parameters := parameters(published, own_run):
        differing = f"the published values of {', '.join(changed_parameters)} differ"
        return Verdict("not verifiable", "other parameters", differing)
    if changed_data := list(data_differences(published, own_run)):
        return Verdict("different", "data", "; ".join(map(str, changed_data)))
    environment = verdicts.environment_of(published, own_run)
    if verdict := verdicts.judge_bitwise(published, own_run, environment):
        return verdict
    num_alike = 0
    if verdicts.may_round(published, own_run):
        result = verdicts.within(published, own_run, environment, reference.envelope)
        if isinstance(result, Verdict):
            return result
        num_alike = result
    return judge_score(reference, own_run, environment, num_alike)


def judge_score(reference: Reference, own_run: Run, environment: EnvironmentInfo, num_alike: int) -> Verdict:
    """Judge by whether the score is one that another seed could have: by Student's prediction interval of one more
    score (Hahn and Meeker 1991, Statistical Intervals). With four workloads and its level of 99%, 4 of 100 machines
    that compute correctly get a "different".
    """
    published = reference.side.scores
    sentence = (
        f"{verdicts.beyond_rounding(own_run, num_alike)}: {reference.side.score_name} {own_run.test_score:.4f} here, "
        f"{reference.run.test_score:.4f} published"
    )
    deviation = stdev(published) if len(published) >= MIN_SEEDS_OF_MARGIN else 0.0
    if not deviation:
        return Verdict("inconclusive", sentence=f"{sentence}; five published seeds that differ are needed to judge it")
    error = deviation * (1 + 1 / len(published)) ** 0.5
    low, high = student_interval(fmean(published), error, len(published) - 1, level=0.99)
    sentence += f"; another seed has {low:.4f} to {high:.4f} (99% prediction interval from {len(published)} seeds)"
    if not low <= own_run.test_score <= high:
        return different("predictions", sentence, environment)
    sentence += f"; other differences: {'; '.join(environment.differences)}"
    return Verdict("statistically compatible", sentence=sentence)


def parameters(published: Run, own_run: Run) -> list[str]:
    """Return the dotted names of the parameters that differ. Values that `auto` chose are not parameters.

    Metrics of the workload's own change no other result, and `preprocess` none if it makes the same data.
    """
    names = differing_names(*map(parameters_of, (published, own_run)))
    prepared = [run.train["digests"]["data"]["prepared"] for run in (published, own_run)]
    left_out = ("evaluate.metrics", *(["preprocess."] if prepared[0] == prepared[1] else []))
    return [name for name in names if not name.startswith(left_out)]
