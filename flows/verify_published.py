"""Compare one's own results with the published ones: `tandem verify published`.

Reads docs/published.json and the runs in results/ that `dvc repro` wrote, and prints a verdict for each workload
(tandem/comparing/published.py) in seconds, without training. `--write` publishes the results in results/ instead; it
trains each workload a few more times to measure the effect of rounding.
"""

from dataclasses import replace
from typing import Any

from flows.recorded_project import checkout
from tandem import files
from tandem.command import Result, aligned
from tandem.comparing import published, rerun
from tandem.comparing.published import FILE, SCHEMA, read
from tandem.comparing.rerun import Verdict
from tandem.params.loading import load_params
from tandem.runs.run import Run, open_folder, seeds_in


def check() -> Result:
    """The verdicts. The exit status is that of the worst: different, not verifiable, inconclusive, 0."""
    verdicts = {workload: verdict_of(workload, entries) for workload, entries in read().items()}
    lines = aligned(
        [
            (workload, f"{verdict}{f' ({verdict.sentence})' if verdict.sentence else ''}")
            for workload, verdict in verdicts.items()
        ]
    )
    document = {
        workload: {"verdict": verdict.name, "cause": verdict.cause, "sentence": verdict.sentence}
        for workload, verdict in verdicts.items()
    }
    statuses = {verdict.status for verdict in verdicts.values()}
    return Result("\n".join(lines), document, next(status for status in (1, 2, 3, 0) if status in statuses))


def verdict_of(workload: str, entries: list[dict[str, Any]]) -> Verdict:
    """The strongest of the verdicts on the published runs, which are of different hardware; of equal ones, that on the
    most similar hardware. If the run of one's own processor is different, the sentence says so.
    """
    runs = {run.seed: run for run in own_runs(workload)}
    judged = []
    for entry in entries:
        if run := runs.get(entry["seed"]):
            distance = published.distance(entry, run.manifest)
            judged.append((published.judge(entry, run), distance, published.is_same_processor(entry, run.manifest)))
    if not judged:
        step = f"`dvc repro` trains and evaluates it with seed {entries[0]['seed']}"
        return Verdict("not verifiable", "no results here", step)
    best, _, _ = min(judged, key=lambda each: (each[0].rank, each[1]))
    of_own = next((each for each, _, is_own in judged if is_own and each.name == "different"), None)
    if of_own is None or best.name == "different":
        return best
    also = f"but different from the published run of this processor: {of_own.cause}, {of_own.sentence}"
    return replace(best, sentence=f"{best.sentence}; {also}")


def own_runs(workload: str) -> list[Run]:
    """The workspace's evaluated runs on params.yaml's devices."""
    params = load_params()
    folders = [files.runs_dir(workload, device) for device in params.devices]
    return [run for folder in folders for seed in seeds_in(folder) if (run := open_folder(folder, seed)).score]


def write() -> Result:
    """Publish results/ for this kind of hardware, next to the published results of other hardware."""
    known = read() if FILE.exists() else {}
    for workload in load_params().workloads:
        runs = own_runs(workload)
        if not runs:
            raise ValueError(f"results/ has no evaluated run of {workload}; run `dvc repro` first")
        entry = published.entry_of(runs, perturbed(runs[0]))
        others = [each for each in known.get(workload, []) if rerun.environment_of(each, entry).hardware]
        known[workload] = [*others, entry]
        files.write_json(FILE, {"schema": SCHEMA, "workloads": {name: known[name] for name in sorted(known)}})
        print(f"{workload}: published in {files.relative(FILE)}", flush=True)
    return Result("", {"published": list(load_params().workloads), "file": files.relative(FILE)})


def perturbed(run: Run) -> list[dict[str, Any]]:
    """Train the run again several times, each with its initial weights perturbed by one unit in the last place."""
    with checkout(run.manifest) as project:
        project.prepare()
        return project.rerun([run.seed], None, perturbations=range(1, rerun.NUM_PERTURBED + 1))
