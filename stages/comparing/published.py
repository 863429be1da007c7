"""Compares one's own runs with the results that are published with the project.

For each workload and kind of hardware, docs/published.json contains the score and training time of every seed, and one
reference run: its digests, its exact losses, and the effect of rounding on them there (`envelope`). The inputs are that
file's content (`read`) and one's own manifests; the results are verdicts as in stages/comparing/retraced.py. With the
git repository alone, a user can check whether their results are the published ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stages import files
from stages.comparing import retraced
from stages.comparing.comparability import flat
from stages.comparing.differences import margin_of_seeds
from stages.comparing.retraced import Envelope, EnvironmentInfo, Manifest, Retraced, Verdict, different

FILE = files.PUBLISHED
SCHEMA = 2
# The published parts of a manifest. The others describe where and when the run was made, or how to repeat it.
KEPT = ("workload", "requested", "device", "seed", "block", "realized", "environment", "hardware", "epochs")
DIGESTS = ("data", "weights", "predictions")
TIMED = ("epoch_seconds", "samples_per_second", "train_seconds", "peak_allocated_mib", "peak_rss_mib")


def read() -> dict[str, list[dict[str, Any]]]:
    """Return workload -> published entries, one per kind of hardware. Raises ValueError for a file of
    another version.
    """
    mend = f"`git checkout {files.relative(FILE)}` brings it back"
    content = files.read_json(FILE, {"workloads": (dict, list)}, mend)
    if content["schema"] != SCHEMA:
        raise ValueError(f"{files.relative(FILE)} has schema {content['schema']}, and this version reads {SCHEMA}")
    for workload, entries in content["workloads"].items():
        if not entries or not all(isinstance(entry, dict) for entry in entries):
            raise files.damaged(files.relative(FILE), f"its entries of {workload} are no objects", mend)
    return dict(content["workloads"])


def entry(manifests: Sequence[Manifest], nudged: Sequence[Retraced]) -> dict[str, Any]:
    """Return the published entry of a workload on one kind of hardware.

    `manifests`: one run per seed; the first is the reference run. `nudged`: reruns of it from weights perturbed by one
    unit in the last place.
    """
    first, *others = manifests
    envelope = retraced.measure_envelope(as_retraced(first), nudged, [as_retraced(each) for each in others])
    return {
        **{name: first[name] for name in KEPT},
        "digests": {name: first["digests"][name] for name in DIGESTS},
        "envelope": asdict(envelope),
        "score_name": first["result"]["score_name"],
        "scores": {str(each["seed"]): score_of(each) for each in manifests},
        "timings": {str(each["seed"]): {name: each["timing"].get(name) for name in TIMED} for each in manifests},
    }


def score_of(manifest: Manifest) -> float:
    return float(manifest["result"]["metrics"][manifest["result"]["score_name"]])


def as_retraced(manifest: Manifest) -> dict[str, Any]:
    """Return a recorded run in the format of a rerun."""
    return {
        **{name: manifest[name] for name in ("device", "seed", "hardware", "environment", "realized", "epochs")},
        "weights": manifest["digests"]["weights"],
        "predictions": {"sha256": manifest["digests"]["predictions"]},
    }


@dataclass(frozen=True)
class Reference:
    """A published training on the same data and with the same parameters as one's own."""

    device: str
    hardware: str  # the device's name
    scores: Mapping[str, float]  # by seed
    timings: Mapping[str, Mapping[str, Any]]  # by seed, with the keys of TIMED; empty if not published
    seed: int  # of the reference run
    epochs: Sequence[Mapping[str, Any]]  # of the reference run
    verdict: Verdict | None  # of one's own run with the published run's seed; None if there is none
    label: str = "published"

    def measured(self, name: str) -> list[float]:
        """Return the value `name` of TIMED for each seed that has it."""
        return [float(each[name]) for each in self.timings.values() if each.get(name) is not None]


def references(entries: Sequence[Mapping[str, Any]], own: Sequence[Manifest]) -> tuple[list[Reference], str]:
    """Return the references comparable with one's own runs, most similar first; if there are none, also the reason."""
    found, reasons = [], []
    for entry in sorted(entries, key=lambda entry: distance(entry, own[0])):
        if asked := parameters(entry, own[0]):
            more = f" and {len(asked) - 3} more" if len(asked) > 3 else ""
            reasons.append(f"published with other parameters ({', '.join(asked[:3])}{more})")
        if other := other_data(entry, own[0]):
            reasons += other
        if asked or other:
            continue
        verdict = next((judge(entry, each) for each in own if each["seed"] == entry["seed"]), None)
        scores, timings = entry["scores"], entry.get("timings", {})
        name, seed, epochs = entry["hardware"]["name"], entry["seed"], entry["epochs"]
        found.append(Reference(entry["device"], name, scores, timings, seed, epochs, verdict))
    return found, "" if found else "; ".join(dict.fromkeys(reasons)) or "nothing is published of it"


def best_match(entries: Sequence[Mapping[str, Any]], own: Manifest) -> Mapping[str, Any]:
    """Return the published run on the same kind of hardware with the same settings, otherwise the most similar one."""
    return min(entries, key=lambda entry: distance(entry, own))


def distance(published: Mapping[str, Any], own: Manifest) -> tuple[bool, bool, int]:
    """Return a sort key: smaller if hardware and settings differ less."""
    facts = retraced.environment_of(published, as_retraced(own))
    return published["device"] != own["device"], bool(facts.hardware), len(facts.phrases)


def judge(published: Mapping[str, Any], own: Manifest) -> Verdict:
    """Return the verdict on whether one's own run agrees with the published one."""
    if asked := parameters(published, own):
        return Verdict("not verifiable", "other parameters", f"{', '.join(asked)} of params.yaml are not as published")
    found = as_retraced(own)
    facts = retraced.environment_of(published, found, other_data(published, own))
    envelope = Envelope(**published["envelope"])
    if verdict := retraced.judge_bitwise(published, found, facts):
        return verdict
    if retraced.may_round(published, found) and (verdict := retraced.within(published, found, facts, envelope)):
        return verdict
    return by_score(published, own, facts)


def by_score(published: Mapping[str, Any], own: Manifest, facts: EnvironmentInfo) -> Verdict:
    """Judge by the difference of the scores and the margin from the published seeds."""
    name, seed = published["score_name"], str(published["seed"])
    here, there = score_of(own), published["scores"][seed]
    margin = margin_of_seeds(list(published["scores"].values()))
    seen = f"{name} {here:.4f} here, {there:.4f} published"
    if margin is None:
        return Verdict("inconclusive", sentence=f"{seen}; it takes five published seeds to say what that means")
    limit = f"{margin.value:.4f}, {margin.reason}"
    if abs(here - there) > margin.value:
        return different("predictions", f"{seen}, further apart than {limit}", facts)
    sentence = f"{seen}, no further apart than {limit}; what else differs: {'; '.join(facts.phrases)}"
    return Verdict("statistically compatible", sentence=sentence)


def parameters(published: Mapping[str, Any], own: Manifest) -> list[str]:
    """Return the dotted names of the parameters that differ. Values that `auto` chose are not parameters."""
    pair = [dict(flat(manifest["block"])) for manifest in (published, own)]
    return [name for name in sorted({*pair[0], *pair[1]}) if pair[0].get(name) != pair[1].get(name)]


def other_data(published: Mapping[str, Any], own: Manifest) -> list[str]:
    """Return the first difference among raw table, prepared arrays and packed splits; empty if there is none."""
    for name, what in (
        ("table", "the raw table"),
        ("prepared", "the prepared arrays"),
        ("packed", "the packed splits"),
    ):
        theirs, ours = (manifest["digests"]["data"][name] for manifest in (published, own))
        if theirs != ours:
            return [f"{what} differ from the published ones" if name != "table" else f"{what} is not the published one"]
    return []
