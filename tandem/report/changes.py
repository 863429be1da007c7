"""What changed since the last commit: the scores, and the parameters of the workloads whose scores differ."""

import json
from collections.abc import Iterable
from typing import Any

from ruamel.yaml import YAML

from tandem import files
from tandem.params.parsing import differing_names
from tandem.params.schema import with_defaults
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
    name, scores_before = commit.decode().strip(), json.loads(committed_scores)
    scores_now, timings = (files.read_json(files.results_dir() / file) for file in ("scores.json", "timings.json"))
    committed_timings = json.loads(at_commit("results/timings.json") or b"{}")
    committed_workloads = committed_params()
    changed, equal = list[str](), list[str]()
    for workload in evaluated:
        if workload not in scores_before and workload not in committed_workloads:
            changed.append(f"{workload}: new since commit {name}")
            continue
        for device, score in scores_now.get(workload, {}).items():
            old_score = scores_before.get(workload, {}).get(device)
            if old_score == score:
                equal.append(f"{workload}@{device}")
            else:
                new_text, old_text = format_score(score), format_score(old_score) if old_score else "none"
                rows = (table.get(workload, {}).get(device, {}) for table in (committed_timings, timings))
                differs = changed_params(*rows)
                changed.append(f"{workload}@{device}: {new_text}, at commit {name} {old_text}{differs}")
    return changed + ([f"same scores as at commit {name}: {', '.join(equal)}"] if equal else [])


def at_commit(path: str) -> bytes | None:
    return git(files.ROOT, "show", f"HEAD:./{path}")


def committed_params() -> dict[str, Any]:
    """The content of params.yaml at the last commit; empty if there is none."""
    return YAML(typ="safe").load(at_commit("params.yaml") or b"{}") or {}


def changed_params(row_before: dict[str, Any], row_now: dict[str, Any]) -> str:
    """` (train.epochs: 100 before, 3 now)`, from two rows of timings.json. Empty if the parameters are equal, or if an
    earlier version, or nobody, recorded those of the last commit.
    """
    if "parameters" not in row_before or "parameters" not in row_now:
        return ""
    before, now = (with_defaults(*row["parameters"]) for row in (row_before, row_now))
    names = differing_names(before, now)
    texts = [f"{name}: {before.get(name, 'absent')} before, {now.get(name, 'absent')} now" for name in names]
    more = [f"{len(texts) - MAX_SHOWN} more"] if len(texts) > MAX_SHOWN else []
    return f" ({'; '.join(texts[:MAX_SHOWN] + more)})" if texts else ""
