"""List the committed results, the local results and every experiment.

Each workload has a table with a row per device: score, seconds per epoch, samples/s, VRAM peak, and the parameters that
differ from the last commit, which holds the published results. `dvc exp show` shows more, in a wider table.

    tandem show
    tandem show sign --commits 5

Exit status: 0 done, 1 failed.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.processes import output_of
from tandem.command import Result, aligned
from tandem.params.loading import load_params
from tandem.params.parsing import flatten, nearest

SHARED = ("devices", "seeds", "preset")  # parameters that belong to no workload
SCORES, TIMINGS = "results/scores.json", "results/timings.json"
MEASURED = {"epoch_seconds": ".3f", "samples_per_second": ",.0f", "vram_peak_mib": ",.0f"}
TITLES = ("experiment", "device", "score", "s/epoch", "samples/s", "VRAM MiB", "differs from the last commit in")
ROWS = {"workspace": "here, now"}
Experiment = Mapping[str, Any]  # of `dvc exp show --json`: rev, name, and data with metrics and params


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of params.yaml")
    parser.add_argument("--commits", type=int, default=1, metavar="N", help="with experiments of the last N commits")


def main(options: Namespace) -> Result:
    known = load_params().workloads
    for name in options.workloads:
        if name not in known:
            raise ValueError(f"workload {name!r} is not in params.yaml{nearest(name, known)}")
    experiments = list(recorded(options.commits))
    rows = {
        workload: [row for experiment in experiments for row in rows_of(workload, experiment, experiments)]
        for workload in options.workloads or known
    }
    return Result("\n".join(table(workload, found) for workload, found in rows.items()), rows)


def table(workload: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return f"{workload}: no results; `dvc repro` makes them\n"
    lines = [
        (
            row["experiment"],
            row["device"],
            ", ".join(f"{name} {value:.4f}" for name, value in row["score"].items()),
            *("-" if row[name] is None else format(row[name], style) for name, style in MEASURED.items()),
            ", ".join(f"{key}={value}" for key, value in row["params"].items()),
        )
        for row in rows
    ]
    return "\n".join([workload, *aligned([TITLES, *lines], indent=""), ""])


def recorded(num_commits: int) -> Iterator[Experiment]:
    """The workspace, each commit, and each commit's experiments. Raises CommandError with DVC's message."""
    command = [sys.executable, "-m", "dvc", "exp", "show", "--json", "--num", str(num_commits)]
    for baseline in json.loads(output_of(*command)):
        yield baseline
        for branch in baseline["experiments"] or ():
            yield from branch["revs"]


def rows_of(workload: str, experiment: Experiment, experiments: Sequence[Experiment]) -> Iterator[dict[str, Any]]:
    """A row per device. `params`: those that differ from the last commit."""
    if not experiment["data"]:  # it is queued, runs or has failed
        return
    committed = next((each for each in experiments if each["rev"] != "workspace"), experiment)
    theirs, own = (chosen(workload, each) for each in (committed, experiment))
    scores, timings = (content(experiment, "metrics", path).get(workload, {}) for path in (SCORES, TIMINGS))
    for requested, score in scores.items():
        times = timings.get(requested, {})
        yield {
            "experiment": experiment["name"] or ROWS.get(experiment["rev"], experiment["rev"][:7]),
            "device": times.get("device", requested) if requested == "auto" else requested,
            "score": score,
            **{name: times.get(name) for name in MEASURED},
            "params": {key: value for key, value in own.items() if value != theirs.get(key)},
        }


def chosen(workload: str, experiment: Experiment) -> dict[str, Any]:
    params = content(experiment, "params", "params.yaml")
    return {key: params.get(key) for key in SHARED} | flatten(params.get(workload, {}))


def content(experiment: Experiment, kind: str, path: str) -> dict[str, Any]:
    """DVC's copy of a metrics or parameters file; empty if DVC could not read it."""
    data = experiment["data"] or {}
    return dict((data.get(kind) or {}).get(path, {}).get("data") or {})
