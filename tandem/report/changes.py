"""What changed since the last commit: the scores, and the parameters of the workloads whose scores differ."""

import json
from collections.abc import Iterable
from typing import Any

from ruamel.yaml import YAML

from tandem import files
from tandem.params.loading import PARAMS, read_yaml
from tandem.params.parsing import differing_names, flatten
from tandem.report.text import format_score
from tandem.runs.provenance import git

MAX_SHOWN = 4  # changed parameters in a line


def changes(evaluated: Iterable[str]) -> list[str]:
    """Return a line for each device of the `evaluated` workloads with another score than at the last commit, one for
    each workload that the commit does not have, and one for the others.

    Empty if there is no commit with scores.
    """
    commit, committed_scores = git(files.ROOT, "rev-parse", "--short", "HEAD"), at_commit("results/scores.json")
    if commit is None or committed_scores is None:
        return []
    name, before = commit.decode().strip(), json.loads(committed_scores)
    now = files.read_json(files.results_dir() / "scores.json")
    params_now = read_yaml(PARAMS)
    params_before = committed_params() or params_now
    changed, equal = list[str](), list[str]()
    for workload in evaluated:
        if workload not in before and workload not in params_before:
            changed.append(f"{workload}: new since commit {name}")
            continue
        for device, score in now.get(workload, {}).items():
            old = before.get(workload, {}).get(device)
            if old == score:
                equal.append(f"{workload}@{device}")
            else:
                new_text, old_text = format_score(score), format_score(old) if old else "none"
                differs = changed_params(params_before.get(workload, {}), params_now.get(workload, {}))
                changed.append(f"{workload}@{device}: {new_text}, at commit {name} {old_text}{differs}")
    return changed + ([f"same scores as at commit {name}: {', '.join(equal)}"] if equal else [])


def at_commit(path: str) -> bytes | None:
    return git(files.ROOT, "show", f"HEAD:./{path}")


def committed_params() -> dict[str, Any]:
    """The content of params.yaml at the last commit; empty if there is none."""
    return YAML(typ="safe").load(at_commit("params.yaml") or b"{}") or {}


def changed_params(block_before: dict[str, Any], block_now: dict[str, Any]) -> str:
    """` (train.epochs: 100 before, 3 now)`; empty if a workload's parameters are those of the last commit."""
    before, now = flatten(block_before), flatten(block_now)
    names = differing_names(before, now)
    found = [f"{name}: {before.get(name, 'absent')} before, {now.get(name, 'absent')} now" for name in names]
    more = [f"{len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    return f" ({'; '.join(found[:MAX_SHOWN] + more)})" if found else ""
