"""Compare one's own results with the published ones: `python -m flows.verify published`.

Reads docs/published.json and the runs in results/ that `dvc repro` wrote, and prints a verdict for each workload
(stages/comparing/published.py) in seconds, without training. `--write` publishes the results in results/ instead; it
trains each workload a few more times to measure the effect of rounding.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flows import verify
from stages import files
from stages.comparing import published, retraced
from stages.comparing.published import FILE, SCHEMA, read
from stages.comparing.retraced import Verdict
from stages.params.loading import load_params
from stages.records.run import open_folder


def check() -> int:
    """Print the verdicts. The exit status is that of the worst: different, not verifiable, inconclusive, 0."""
    verdicts = {workload: verdict_of(workload, entries) for workload, entries in read().items()}
    width = max(map(len, verdicts))
    for workload, verdict in verdicts.items():
        print(f"  {workload:<{width}}  {verdict}{f' ({verdict.sentence})' if verdict.sentence else ''}")
    statuses = {verdict.status for verdict in verdicts.values()}
    return next(status for status in (1, 2, 3, 0) if status in statuses)


def verdict_of(workload: str, entries: list[dict[str, Any]]) -> Verdict:
    own = [each for each in own_manifests(workload) if each["seed"] == entries[0]["seed"]]
    if not own:
        return Verdict("not verifiable", "not trained here", f"`dvc repro` trains it with seed {entries[0]['seed']}")
    return published.judge(published.best_match(entries, own[0]), own[0])


def own_manifests(workload: str) -> list[dict[str, Any]]:
    """The workspace's manifests for params.yaml's devices and seeds."""
    params = load_params()
    folders = [
        files.run_dir(workload, device, seed) for device in params.devices for seed in dict.fromkeys((0, *params.seeds))
    ]
    runs = [open_folder(folder) for folder in folders if (folder / "train").exists()]
    return [run.manifest for run in runs if run.score]


def write(say: Any = print) -> int:
    """Publish results/ for this kind of hardware, next to the published results of other hardware."""
    known = read() if FILE.exists() else {}
    for workload in load_params().workloads:
        manifests = own_manifests(workload)
        if not manifests:
            raise ValueError(f"results/ has no evaluated run of {workload}; run `dvc repro` first")
        entry = published.entry(manifests, nudged(manifests[0], say))
        others = [each for each in known.get(workload, []) if not same_hardware(each, entry)]
        known[workload] = [*others, entry]
        files.write_json(FILE, {"schema": SCHEMA, "workloads": {name: known[name] for name in sorted(known)}})
        print(f"{workload}: published in {files.relative(FILE)}", flush=True)
    return 0


def same_hardware(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return not retraced.environment_of(first, second).hardware


def nudged(run: dict[str, Any], say: Any) -> list[dict[str, Any]]:
    """Train the run again several times, each with its initial weights perturbed by one unit in the last place."""
    with verify.checkout(run["tree"], say) as (project, folder):
        copy = verify.Copy(project, Path(folder), run, sys.executable, None, None, say)
        copy.place_table()
        copy.prepare()
        return copy.retrace([run["seed"]], None, nudges=range(1, retraced.NUM_NUDGES + 1))
