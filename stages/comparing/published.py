"""The results that are published with the project, and whether one's own are the same.

docs/published.json has for each workload and kind of hardware the score of every seed and the run of one: its digests,
its exact losses, and how far rounding moves these there (`envelope`). In: that file's content and one's own manifests.
Out: verdicts as in stages/comparing/retraced.py. By them a person who has the git repository alone sees whether what
they get is what was published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stages.comparing import retraced
from stages.comparing.comparability import flat
from stages.comparing.differences import margin_of_seeds
from stages.comparing.retraced import Envelope, Facts, Manifest, Retraced, Verdict, different

# What is published of a manifest; the rest says where and when, or is text to make the run again.
KEPT = ("schema", "workload", "requested", "device", "seed", "block", "realized", "environment", "hardware", "epochs")
DIGESTS = ("data", "weights", "predictions")


def entry(manifests: Sequence[Manifest], nudged: Sequence[Retraced]) -> dict[str, Any]:
    """What is published of a workload on one kind of hardware.

    `manifests` are of one run for each seed, the first of them the one that others compare theirs with; `nudged` that
    run again from weights moved by one unit in the last place.
    """
    first, *others = manifests
    envelope = retraced.measure_envelope(as_retraced(first), nudged, [as_retraced(each) for each in others])
    return {
        **{name: first[name] for name in KEPT},
        "digests": {name: first["digests"][name] for name in DIGESTS},
        "envelope": asdict(envelope),
        "score_name": first["result"]["score_name"],
        "scores": {str(each["seed"]): score_of(each) for each in manifests},
    }


def score_of(manifest: Manifest) -> float:
    return float(manifest["result"]["metrics"][manifest["result"]["score_name"]])


def as_retraced(manifest: Manifest) -> dict[str, Any]:
    """A recorded run in the words of one that was made again."""
    return {
        **{name: manifest[name] for name in ("device", "seed", "hardware", "environment", "realized", "epochs")},
        "weights": manifest["digests"]["weights"],
        "predictions": {"sha256": manifest["digests"]["predictions"]},
    }


def best_match(entries: Sequence[Mapping[str, Any]], own: Manifest) -> Mapping[str, Any]:
    """The published run on one's own kind of hardware with one's own settings, else the one that differs least."""

    def distance(published: Mapping[str, Any]) -> tuple[bool, bool, int]:
        facts = retraced.facts_of(published, as_retraced(own))
        return published["device"] != own["device"], bool(facts.hardware), len(facts.phrases)

    return min(entries, key=distance)


def judge(published: Mapping[str, Any], own: Manifest) -> Verdict:
    """Whether one's own run is the published one."""
    if asked := parameters(published, own):
        return Verdict("not verifiable", "other parameters", f"{', '.join(asked)} of params.yaml are not as published")
    found = as_retraced(own)
    facts = retraced.facts_of(published, found, other_data(published, own))
    envelope = Envelope(**published["envelope"])
    if verdict := retraced.at_once(published, found, facts):
        return verdict
    if retraced.may_round(published, found) and (verdict := retraced.within(published, found, facts, envelope)):
        return verdict
    return by_score(published, own, facts)


def by_score(published: Mapping[str, Any], own: Manifest, facts: Facts) -> Verdict:
    """By the distance of the scores, against the margin of the published seeds."""
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
    """The dotted names of what params.yaml asks for and differs, what machines choose (`auto`) left out."""
    pair = [dict(flat(manifest["block"])) for manifest in (published, own)]
    return [name for name in sorted({*pair[0], *pair[1]}) if pair[0].get(name) != pair[1].get(name)]


def other_data(published: Mapping[str, Any], own: Manifest) -> list[str]:
    """The first of raw table, prepared and packed arrays that is another one."""
    for name, what in (
        ("table", "the raw table"),
        ("prepared", "the prepared arrays"),
        ("packed", "the packed splits"),
    ):
        theirs, ours = (manifest["digests"]["data"][name] for manifest in (published, own))
        if theirs != ours:
            return [f"{what} differ from the published ones" if name != "table" else f"{what} is not the published one"]
    return []
