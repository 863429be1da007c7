"""Compares one's own runs with the results that are published with the project.

For each workload and kind of hardware, docs/published.json has an entry: the score and training time of every seed, and
one reference run: what its records say of what was trained and what came out, and the effect of rounding on its losses
(`envelope`). `open_entry` makes runs of it; the results are verdicts as in tandem/comparing/rerun.py. With the git
repository alone, a user can check whether their results are the published ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from tandem import files
from tandem.comparing import rerun
from tandem.comparing.comparability import of_data, parameters_of
from tandem.comparing.comparison import PUBLISHED, Reference, Side
from tandem.comparing.differences import margin_of_seeds
from tandem.comparing.rerun import Envelope, EnvironmentInfo, Verdict, different
from tandem.params.parsing import differing_names
from tandem.runs.quantities import QUANTITIES
from tandem.runs.run import Run

FILE = files.PUBLISHED
SCHEMA = 2
# What an entry has of the reference run's manifest. The rest says when it was made, and how to repeat it.
KEPT = ("workload", "requested", "device", "seed", "block", "realized", "environment", "hardware", "epochs")
DIGESTS = ("data", "weights", "predictions")
TIMED = [quantity.name for quantity in QUANTITIES if quantity.kept == "published"]


def read() -> dict[str, list[dict[str, Any]]]:
    """Return workload -> published entries. Raises ValueError for a file of another version."""
    mend = f"`git checkout {files.relative(FILE)}` restores it"
    content = files.read_json(FILE, mend)
    if content["schema"] != SCHEMA:
        raise ValueError(f"{files.relative(FILE)} has schema {content['schema']}, and this version reads {SCHEMA}")
    if empty := [workload for workload, entries in content["workloads"].items() if not entries]:
        raise files.damaged(files.relative(FILE), f"it has no entries for {empty[0]}", mend)
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
        "envelope": asdict(rerun.measure_envelope(first, perturbed, others)),
        "score_name": first.score["score_name"],
        "scores": {str(run.seed): run.test_score for run in runs},
        "timings": {str(run.seed): {name: run.times.get(name) for name in TIMED} for run in runs},
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


def references(entries: Sequence[Mapping[str, Any]], own: Sequence[Run]) -> tuple[tuple[Reference, ...], str]:
    """Return the references comparable with one's own runs, most similar first; if there are none, also the reason."""
    comparable, reasons = [], []
    for reference in sorted(map(open_entry, entries), key=lambda reference: distance(reference, own[0])):
        if changed_parameters := parameters(reference.run, own[0]):
            more = f" and {len(changed_parameters) - 3} more" if len(changed_parameters) > 3 else ""
            reasons.append(f"published with other parameters ({', '.join(changed_parameters[:3])}{more})")
        reasons += (data_differences := list(map(str, of_data(reference.run, own[0]))))
        if not changed_parameters and not data_differences:
            verdict = next((judge(reference, run) for run in own if run.seed == reference.run.seed), None)
            comparable.append(replace(reference, verdict=verdict))
    return tuple(comparable), "" if comparable else "; ".join(dict.fromkeys(reasons)) or "no published result exists"


def distance(published: Reference, own: Run) -> tuple[int, ...]:
    """Return a sort key: smaller if hardware and settings differ less. Of other processors or GPUs, those of the same
    vendor come first, then of the same family, then of the same model.
    """
    environment = rerun.environment_of(published.run, own)
    kinds = [kind_of_processor(run.hardware_name) for run in (published.run, own)]
    differing = (there != here for there, here in zip(*kinds, strict=True))
    num_differences = len(environment.differences)
    return published.run.kind != own.kind, *differing, bool(environment.hardware), num_differences


def kind_of_processor(name: str) -> tuple[str, ...]:
    """Return vendor, family, model and the whole name, e.g. of `AMD EPYC (family 26 model 2)`."""
    numbers = re.search(r"\(family (\w+) model (\w+)\)", name)
    vendor = re.search("AMD|Intel|NVIDIA", name) or re.match(r"\w*", name)
    return (vendor[0] if vendor else "", *(numbers.groups() if numbers else ("", "")), name)


def is_same_processor(published: Reference, own: Run) -> bool:
    return published.run.hardware_name == own.hardware_name


def judge(published: Reference, own: Run) -> Verdict:
    """Return the verdict on whether one's own run agrees with the published one."""
    reference = published.run
    if changed_parameters := parameters(reference, own):
        differing = f"the published values of {', '.join(changed_parameters)} differ"
        return Verdict("not verifiable", "other parameters", differing)
    if data_differences := list(of_data(reference, own)):
        return Verdict("different", "data", "; ".join(map(str, data_differences)))
    environment = rerun.environment_of(reference, own)
    if verdict := rerun.judge_bitwise(reference, own, environment):
        return verdict
    if rerun.may_round(reference, own) and (verdict := rerun.within(reference, own, environment, published.envelope)):
        return verdict
    return judge_score(published, own, environment)


def judge_score(published: Reference, own: Run, environment: EnvironmentInfo) -> Verdict:
    """Judge by the difference of the scores and the margin from the published seeds."""
    own_score, published_score = own.test_score, published.run.test_score
    margin = margin_of_seeds([run.test_score for run in published.side.runs])
    scores = f"{published.side.score_name} {own_score:.4f} here, {published_score:.4f} published"
    if margin is None:
        return Verdict("inconclusive", sentence=f"{scores}; five published seeds are needed to judge the difference")
    limit = f"{margin.value:.4f} ({margin.reason})"
    if abs(own_score - published_score) > margin.value:
        return different("predictions", f"{scores}; the difference is larger than {limit}", environment)
    sentence = f"{scores}; the difference is at most {limit}; other differences: {'; '.join(environment.differences)}"
    return Verdict("statistically compatible", sentence=sentence)


def parameters(published: Run, own: Run) -> list[str]:
    """Return the dotted names of the parameters that differ. Values that `auto` chose are not parameters.

    Metrics of the workload's own change no other result, and `preprocess` none if it makes the same data.
    """
    names = differing_names(*map(parameters_of, (published, own)))
    prepared = [run.train["digests"]["data"]["prepared"] for run in (published, own)]
    left_out = ("evaluate.metrics", *(["preprocess."] if prepared[0] == prepared[1] else []))
    return [name for name in names if not name.startswith(left_out)]
