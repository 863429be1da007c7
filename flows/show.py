"""`tandem show [WORKLOAD ...]` (`make show`): list published results, local results and every experiment.

Each workload has a table with a row per device: score, seconds per epoch, samples/s, VRAM peak, and the parameters that
differ from the last commit, which holds the published results. `dvc exp show` shows more, in a wider table.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tandem import files
from tandem.comparing.comparability import flat
from tandem.params.loading import load_params

SHARED = ("devices", "seeds", "preset")  # parameters that belong to no workload
SCORES, TIMINGS = "results/scores.json", "results/timings.json"
MEASURED = {"epoch_seconds": ".3f", "samples_per_second": ",.0f", "vram_peak_mib": ",.0f"}
TITLES = ("experiment", "device", "score", "s/epoch", "samples/s", "VRAM MiB", "differs from the last commit in")
ROWS = {"workspace": "here, now"}
Experiment = Mapping[str, Any]  # of `dvc exp show --json`: rev, name, and data with metrics and params


def main(arguments: list[str]) -> int:
    known = load_params().workloads
    parser = argparse.ArgumentParser(prog="tandem show", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: {', '.join(known)}")
    parser.add_argument("--commits", type=int, default=1, metavar="N", help="with experiments of the last N commits")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.workloads if name not in known]:
        sys.exit(f"error: {unknown[0]!r} is no workload of params.yaml; it has {', '.join(known)}")
    try:
        experiments = list(recorded(options.commits))
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    for workload in options.workloads or known:
        lines = [line for experiment in experiments for line in lines_of(workload, experiment, experiments)]
        widths = [max(map(len, column)) for column in zip(TITLES, *lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (TITLES, *lines)]
        print("\n".join([workload, *table, ""] if lines else [f"{workload}: no results; `dvc repro` makes them", ""]))
    return 0


def recorded(num_commits: int) -> Iterator[Experiment]:
    """The workspace, each commit, and each commit's experiments. Raises RuntimeError with DVC's message."""
    command = ["dvc", "exp", "show", "--json", "--num", str(num_commits)]
    done = subprocess.run(command, cwd=files.ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
    for baseline in json.loads(done.stdout):
        yield baseline
        for branch in baseline["experiments"] or ():
            yield from branch["revs"]


def lines_of(workload: str, experiment: Experiment, experiments: Sequence[Experiment]) -> Iterator[tuple[str, ...]]:
    name = experiment["name"] or ROWS.get(experiment["rev"], experiment["rev"][:7])
    if not experiment["data"]:  # it is queued, runs or has failed
        return
    changed = ", ".join(differing(workload, experiment, experiments))
    scores, timings = (content(experiment, "metrics", path).get(workload, {}) for path in (SCORES, TIMINGS))
    for requested, of_device in scores.items():
        times = timings.get(requested, {})
        yield (
            name,
            times.get("device", requested) if requested == "auto" else requested,
            ", ".join(f"{score} {value:.4f}" for score, value in of_device.items()),
            *(format(times[key], style) if key in times else "-" for key, style in MEASURED.items()),
            changed,
        )


def differing(workload: str, experiment: Experiment, experiments: Sequence[Experiment]) -> Iterator[str]:
    """The parameters that differ from the last commit, such as `train.epochs=5`."""
    committed = next((each for each in experiments if each["rev"] != "workspace"), experiment)
    theirs, own = (chosen(workload, each) for each in (committed, experiment))
    for key, value in own.items():
        if value != theirs.get(key):
            yield f"{key}={value}"


def chosen(workload: str, experiment: Experiment) -> dict[str, Any]:
    params = content(experiment, "params", "params.yaml")
    return {key: params.get(key) for key in SHARED} | dict(flat(params.get(workload, {})))


def content(experiment: Experiment, kind: str, path: str) -> dict[str, Any]:
    """DVC's copy of a metrics or parameters file; empty if DVC could not read it."""
    data = experiment["data"] or {}
    return dict((data.get(kind) or {}).get(path, {}).get("data") or {})
