"""Compares one's own runs with the results that are published with the project.

For each workload and kind of hardware, docs/published.json contains the score and training time of every seed, and one
reference run: the keys of its manifest that say what was trained and what came out, and the effect of rounding on its
losses (`envelope`). `read` returns that content; the results are verdicts as in tandem/comparing/rerun.py. With the git
repository alone, a user can check whether their results are the published ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tandem import files
from tandem.comparing import rerun
from tandem.comparing.comparability import Manifest, of_data, parameters_of
from tandem.comparing.comparison import Reference, Side
from tandem.comparing.differences import margin_of_seeds
from tandem.comparing.rerun import Envelope, EnvironmentInfo, Verdict, different
from tandem.params.parsing import differing_names
from tandem.runs.quantities import QUANTITIES
from tandem.runs.run import Run

FILE = files.PUBLISHED
SCHEMA = 2
# The published parts of a manifest. The others describe where and when the run was made, or how to repeat it.
KEPT = ("workload", "requested", "device", "seed", "block", "realized", "environment", "hardware", "epochs")
DIGESTS = ("data", "weights", "predictions")
TIMED = [each.name for each in QUANTITIES if each.kept == "published"]
Entry = Mapping[str, Any]  # of a workload on one kind of hardware


def read() -> dict[str, list[dict[str, Any]]]:
    """Return workload -> published entries. Raises ValueError for a file of another version."""
    mend = f"`git checkout {files.relative(FILE)}` restores it"
    content = files.read_json(FILE, mend)
    if content["schema"] != SCHEMA:
        raise ValueError(f"{files.relative(FILE)} has schema {content['schema']}, and this version reads {SCHEMA}")
    if empty := [workload for workload, entries in content["workloads"].items() if not entries]:
        raise files.damaged(files.relative(FILE), f"it has no entries for {empty[0]}", mend)
    return dict(content["workloads"])


def entry_of(runs: Sequence[Run], perturbed: Sequence[Manifest]) -> dict[str, Any]:
    """Return the published entry of evaluated runs, one per seed.

    The first is the reference run. `perturbed`: reruns of it from weights perturbed by one unit in the last place.
    """
    first, *others = (run.manifest for run in runs)
    envelope = rerun.measure_envelope(first, perturbed, others)
    return {
        **{name: first[name] for name in KEPT},
        "digests": {name: first["digests"][name] for name in DIGESTS},
        "envelope": asdict(envelope),
        "score_name": first["result"]["score_name"],
        "scores": {str(run.seed): run.test_score for run in runs},
        "timings": {str(run.seed): {name: run.timing["timing"].get(name) for name in TIMED} for run in runs},
    }


def side_of(entry: Entry) -> Side:
    """Return a published entry as a side. Of its runs, only the reference run has epochs."""

    def run_of(seed: str, score: float) -> Run:
        known = entry.get("timings", {}).get(seed, {})
        train: Any = {name: entry[name] for name in ("workload", "requested", "device", "block", "realized")}
        train |= {"seed": int(seed), "epochs": entry["epochs"] if int(seed) == entry["seed"] else []}
        timing: Any = {
            "hardware": entry["hardware"],
            "machine": "",
            "measured_at": "",
            "conditions": {"before": {}, "after": {}, "between": {}},
            "placement": {"out_of_memory": entry["realized"]["out_of_memory"]},
            "timing": known,
        }
        result: Any = {"score_name": entry["score_name"], "metrics": {entry["score_name"]: score}}
        return Run("published", train, timing, result, no_file)

    return Side("published", tuple(run_of(seed, score) for seed, score in entry["scores"].items()))


def no_file(name: str) -> tuple[bytes, str]:
    raise FileNotFoundError(name)


def references(entries: Sequence[Entry], own: Sequence[Run]) -> tuple[tuple[Reference, ...], str]:
    """Return the references comparable with one's own runs, most similar first; if there are none, also the reason."""
    found, reasons = [], []
    manifest = own[0].manifest
    for entry in sorted(entries, key=lambda entry: distance(entry, manifest)):
        if changed_parameters := parameters(entry, manifest):
            more = f" and {len(changed_parameters) - 3} more" if len(changed_parameters) > 3 else ""
            reasons.append(f"published with other parameters ({', '.join(changed_parameters[:3])}{more})")
        reasons += (other := list(map(str, of_data(entry, manifest))))
        if not changed_parameters and not other:
            verdict = next((judge(entry, run) for run in own if run.seed == entry["seed"]), None)
            found.append(Reference(side_of(entry), verdict, entry["seed"]))
    return tuple(found), "" if found else "; ".join(dict.fromkeys(reasons)) or "no published result exists"


def distance(published: Entry, own: Manifest) -> tuple[int, ...]:
    """Return a sort key: smaller if hardware and settings differ less. Of other processors or GPUs, those of the same
    vendor come first, then of the same family, then of the same model.
    """
    environment = rerun.environment_of(published, own)
    kinds = [kind_of_processor(manifest["hardware"]["name"]) for manifest in (published, own)]
    differing = (there != here for there, here in zip(*kinds, strict=True))
    return published["device"] != own["device"], *differing, bool(environment.hardware), len(environment.differences)


def kind_of_processor(name: str) -> tuple[str, ...]:
    """Return vendor, family, model and the whole name, e.g. of `AMD EPYC (family 26 model 2)`."""
    numbers = re.search(r"\(family (\w+) model (\w+)\)", name)
    vendor = re.search("AMD|Intel|NVIDIA", name) or re.match(r"\w*", name)
    return (vendor[0] if vendor else "", *(numbers.groups() if numbers else ("", "")), name)


def is_same_processor(published: Entry, own: Manifest) -> bool:
    return bool(published["hardware"]["name"] == own["hardware"]["name"])


def judge(published: Entry, own: Run) -> Verdict:
    """Return the verdict on whether one's own run agrees with the published one."""
    found = own.manifest
    if changed_parameters := parameters(published, found):
        return Verdict(
            "not verifiable", "other parameters", f"the published values of {', '.join(changed_parameters)} differ"
        )
    if other := list(of_data(published, found)):
        return Verdict("different", "data", "; ".join(map(str, other)))
    environment = rerun.environment_of(published, found)
    if verdict := rerun.judge_bitwise(published, found, environment):
        return verdict
    if rerun.may_round(published, found):
        if verdict := rerun.within(published, found, environment, Envelope(**published["envelope"])):
            return verdict
    return judge_score(published, own, environment)


def judge_score(published: Entry, own: Run, environment: EnvironmentInfo) -> Verdict:
    """Judge by the difference of the scores and the margin from the published seeds."""
    name, seed = published["score_name"], str(published["seed"])
    here, there = own.test_score, published["scores"][seed]
    margin = margin_of_seeds(list(published["scores"].values()))
    seen = f"{name} {here:.4f} here, {there:.4f} published"
    if margin is None:
        return Verdict("inconclusive", sentence=f"{seen}; five published seeds are needed to judge the difference")
    limit = f"{margin.value:.4f} ({margin.reason})"
    if abs(here - there) > margin.value:
        return different("predictions", f"{seen}; the difference is larger than {limit}", environment)
    sentence = f"{seen}; the difference is at most {limit}; other differences: {'; '.join(environment.differences)}"
    return Verdict("statistically compatible", sentence=sentence)


def parameters(published: Entry, own: Manifest) -> list[str]:
    """Return the dotted names of the parameters that differ. Values that `auto` chose are not parameters.

    Metrics of the workload's own change no other result, and `preprocess` none if it makes the same data.
    """
    names = differing_names(*map(parameters_of, (published, own)))
    is_same_data = published["digests"]["data"]["prepared"] == own["digests"]["data"]["prepared"]
    return [
        name for name in names if name != "evaluate.metrics" and not (is_same_data and name.startswith("preprocess."))
    ]
