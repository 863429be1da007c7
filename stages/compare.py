"""Compare all workloads and devices in one table, with a verdict for each workload.

Reads results/runs/ and results/speed/. Writes results/compare/ (compare.json, compare.md), results/report.html, which
contains all of it with figures, and the small files that git tracks: scores.json and timings.json for `dvc metrics`,
losses.csv and seconds.csv for `dvc plots`.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem import files
from tandem.comparing import published
from tandem.comparing.comparison import Comparison, Side, compare
from tandem.files import read_json
from tandem.params.loading import block_in_force, load_params, preset_in_force
from tandem.params.parsing import flatten
from tandem.params.reading import PARAMS, read_yaml
from tandem.params.schema import with_defaults
from tandem.report import layout, report
from tandem.runs.inputs import other_parameters
from tandem.runs.provenance import at_commit, committed_params
from tandem.runs.quantities import TRACKED
from tandem.runs.run import Run, open_folder, seeds_in

# The outputs of a workload's stages on a device from which the score and the times of its row come.
RESTS_ON = ("evaluate/result", "replicate/measured", "train/measured")


def main() -> None:
    params, by_workload = load_params(), dict[str, list[Side]]()
    entries = published.read() if published.FILE.exists() else {}
    outdated = list[dict[str, str]]()
    # The workloads without published results, which are a user's own, come before the bundled ones.
    for workload in sorted(params.workloads, key=lambda workload: workload in entries):
        for side in evaluated_sides(workload, params.devices, params.seeds):
            if differing := next(filter(None, map(other_parameters, side.runs)), ""):
                outdated.append(outdated_row(side, differing))
            else:
                by_workload.setdefault(workload, []).append(side)
    if not by_workload:
        raise ValueError(
            "results/runs has no evaluated run of params.yaml's workloads, devices and parameters; run `dvc repro`"
        )
    comparisons = [comparison_of(workload, sides, entries.get(workload, [])) for workload, sides in by_workload.items()]
    all_sides = [side for comparison in comparisons for side in comparison.sides]
    verdicts = [sentence for comparison in comparisons for sentence in comparison.sentences]
    left_out = [f"{row['workload']} on {row['requested']} is left out: {row['reason']}" for row in outdated]
    verdicts += [f"{sentence}." for sentence in left_out]
    for comparison in (comparison for comparison in comparisons if not comparison.sentences):
        runs = [f"{comparison.workload}@{side.first.requested}" for side in comparison.sides]
        rest = f"`tandem compare {' '.join(runs)}` compares its runs" if len(runs) > 1 else "nothing to compare with"
        verdicts.append(f"{comparison.workload}: measured on one kind of device; {rest}.")
    summaries = {comparison.workload: comparison.summaries for comparison in comparisons}
    folder, rows = files.compare_dir(), [side.row for side in all_sides]
    content = {"rows": rows, "outdated": outdated, "short_verdicts": summaries}
    files.write_json(folder / "compare.json", content)
    files.write_text(folder / "compare.md", layout.summary(all_sides, verdicts))
    write_tracked(comparisons, params.workloads, {row["workload"] for row in outdated})
    report.write_report(files.results_dir() / "report.html", comparisons, outdated)
    print(*layout.score_table(all_sides), *layout.first_verdicts(summaries), *left_out, sep="\n")
    print("full results: results/report.html, results/compare/compare.md")


def outdated_row(side: Side, differing: str) -> dict[str, str]:
    """What compare.json says of a side whose runs have other parameters than those in force."""
    run = side.first
    advice = f"`tandem repro {run.workload}` runs it with the current ones"
    return {
        "workload": run.workload,
        "requested": run.requested,
        "reason": f"it has other parameters ({differing}); {advice}",
    }


def evaluated_sides(workload: str, devices: Iterable[str], seeds: Iterable[int]) -> list[Side]:
    """Open the evaluated runs, a side for each device. Raises ValueError if a file of a run is altered."""
    sides = []
    for device in devices:
        folder = files.runs_dir(workload, device)
        trained = seeds_in(folder)
        runs = [open_folder(folder, seed) for seed in seeds if seed in trained]
        scored = tuple(run for run in runs if run.score)
        for run in scored:
            run.require_intact()
        if scored:
            sides.append(Side(scored[0].kind, scored))
    return sides


def comparison_of(workload: str, sides: Sequence[Side], entries: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare the kinds of device that a workload was trained on. For each kind, the first device of params.yaml
    counts, several workers last. A single kind is compared with the published runs on the most similar hardware, of
    which `entries` has those of the workload.
    """
    by_kind: dict[str, Side] = {}
    for side in sorted(sides, key=lambda side: "workers" in side.first.train["realized"]):
        by_kind.setdefault(side.name, side)
    kinds = list(by_kind.values())
    if len(kinds) > 1:
        taken_in_turns = files.results_dir() / "speed" / f"{workload}.json"
        comparison = compare(workload, kinds, read_json(taken_in_turns) if taken_in_turns.exists() else None)
        return replace(comparison, sides=tuple(sides))
    return Comparison(workload, tuple(sides), (), *published.reference_of(entries, kinds[0].runs))


def write_tracked(comparisons: Sequence[Comparison], order: Sequence[str], outdated: Collection[str]) -> None:
    """Write the small files that git tracks: the results of the last run before a commit, on the machine that
    timings.json names. What is published is in docs/published.json alone.

    `order`: that of the workloads in params.yaml. Those that were not evaluated here keep what the last commit has of
    them, unless they are `outdated` or their parameters have changed since.
    """
    folder = files.results_dir()
    before, now = committed_params(), read_yaml(PARAMS)
    changed = {name for name in order if any(before.get(key) != now[key] for key in (name, "preset", "presets"))}
    rest = [name for name in order if name not in {*(result.workload for result in comparisons), *outdated, *changed}]
    for name, reduce in (("scores", scores), ("timings", timings)):
        new = {result.workload: {side.first.requested: reduce(side) for side in result.sides} for result in comparisons}
        committed = json.loads(at_commit(f"results/{name}.json") or "{}")
        unchanged = {workload: committed[workload] for workload in rest if workload in committed}
        files.write_json(folder / f"{name}.json", new | unchanged)
    runs = list[tuple[str, str, Run]]()
    for result in comparisons:
        for device, side in zip(device_names(result.sides), result.sides, strict=True):
            runs += [("own", device, run) for run in side.runs]
        if result.reference:
            runs += [("published", run.kind, run) for run in result.reference.side.runs]
    losses, seconds = list[dict[str, Any]](), list[dict[str, Any]]()
    for origin, device, run in runs:
        labels = {"workload": run.workload, "device": device, "seed": run.seed, "run": origin}
        for epoch in run.train["epochs"]:
            losses.append({**labels, **{name: epoch[name] for name in ("epoch", "train_loss", "val_loss")}})
        if run.is_timed:
            seconds.append({**labels, "epoch_seconds": run.times["epoch_seconds"]})
    label_columns = ("workload", "device", "seed", "run")
    for name, table, columns in (
        ("losses", losses, (*label_columns, "epoch", "train_loss", "val_loss")),
        ("seconds", seconds, (*label_columns, "epoch_seconds")),
    ):
        path = f"results/{name}.csv"
        committed_rows = files.parse_rows(at_commit(path) or b"", path)
        table += [row for row in committed_rows if tuple(row) == columns and row["workload"] in rest]
        table.sort(key=lambda row: (row["run"] != "own", order.index(row["workload"])))
        files.write_table(folder / f"{name}.csv", table, columns)


def device_names(sides: Sequence[Side]) -> list[str]:
    """The kind of each side's device; where several have one kind, as cpu and 2xcpu, the device in params.yaml."""
    num_of = Counter(side.first.kind for side in sides)
    return [side.first.requested if num_of[side.first.kind] > 1 else side.first.kind for side in sides]


def scores(side: Side) -> dict[str, float]:
    """Return the score; for several seeds the mean and the range."""
    extremes = {"lowest": min(side.scores), "highest": max(side.scores)} if len(side.runs) > 1 else {}
    return {side.score_name: side.score, **extremes}


def timings(side: Side) -> dict[str, Any]:
    """Return the main measurements, where they were made, the digests of what the row rests on, by which `tandem show`
    recognizes a score of another training, its seeds and its parameters: those of a commit's params.yaml may be others.
    Measurements that do not exist are left out. DVC's tables leave out lists.
    """
    run = side.first
    measurements = {key: value for key, name in TRACKED.items() if (value := side.measured(name)) is not None}
    busy = {"busy": side.busy} if side.busy else {}
    folder = files.runs_dir(run.workload, run.requested)
    rests_on = [f"{name} {files.dvc_md5(folder / name)}.dir" for name in RESTS_ON]
    machine = {"device": run.kind, "hardware": run.hardware_name, **busy}
    block = block_in_force(read_yaml(PARAMS), run.workload, preset_in_force(load_params(), run.workload))
    parameters = {"seeds": [run.seed for run in side.runs], **with_defaults(flatten(block))}
    return {**measurements, **machine, "rests_on": rests_on, "parameters": [parameters]}
