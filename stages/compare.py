"""Compare all workloads and devices in one table, with a verdict for each workload.

Reads results/runs/ and results/speed/. Writes results/compare/ (compare.json, compare.md), results/report.html, which
contains all of it with figures, and the small files that git tracks: scores.json and timings.json for `dvc metrics`,
losses.csv and seconds.csv for `dvc plots`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem import files
from tandem.comparing import published
from tandem.comparing.comparison import Comparison, Side, compare
from tandem.files import read_json
from tandem.params.loading import load_params
from tandem.report import comparison, report
from tandem.report.changes import at_commit, changes
from tandem.report.comparison import ReportSection
from tandem.runs.run import open_folder, seeds_in


def main() -> None:
    params = load_params()
    found = {workload: evaluated(workload, params.devices, params.seeds) for workload in own_first(params.workloads)}
    by_workload = {workload: sides for workload, sides in found.items() if sides}
    if not by_workload:
        raise ValueError("results/runs has no evaluated run of params.yaml's workloads and devices; run `dvc repro`")
    comparisons = [compared(workload, sides) for workload, sides in by_workload.items()]
    rows = [side.row for sides in by_workload.values() for side in sides]
    verdicts = [sentence for each in comparisons for sentence in comparison.sentences(each)]
    if alone := [each.workload for each in comparisons if not comparison.sentences(each)]:
        verdicts.append(f"{', '.join(alone)}: measured on one kind of device; nothing to compare with.")
    sections = [
        ReportSection(
            [*({**side.row, "run": side.runs[0]} for side in sides), *(known.row for known in each.references)], each
        )
        for each, sides in zip(comparisons, by_workload.values(), strict=True)
    ]
    short = {each.comparison.workload: comparison.verdict(each) for each in sections}
    folder = files.compare_dir()
    files.write_json(folder / "compare.json", {"rows": rows, "verdicts": verdicts, "short_verdicts": short})
    files.write_text(folder / "compare.md", comparison.summary(rows, verdicts))
    write_tracked(by_workload, comparisons, params.workloads)
    report.write_report(files.results_dir() / "report.html", sections)
    print(*comparison.score_table(rows), *comparison.first_verdicts(short), *changes(by_workload), sep="\n")
    print("full results: results/report.html, results/compare/compare.md")


def own_first(workloads: Iterable[str]) -> list[str]:
    """Return the workloads without published results, which are a user's own, before the bundled ones."""
    known = published_entries()
    return sorted(workloads, key=lambda workload: workload in known)


def published_entries() -> dict[str, list[dict[str, Any]]]:
    return published.read() if published.FILE.exists() else {}


def evaluated(workload: str, devices: Iterable[str], seeds: Iterable[int]) -> list[Side]:
    """Open the evaluated runs, a side for each device. Raises ValueError if a file of a run is altered."""
    found = []
    for device in devices:
        folder = files.runs_dir(workload, device)
        trained = seeds_in(folder)
        runs = [open_folder(folder, seed) for seed in seeds if seed in trained]
        scored = tuple(run for run in runs if run.score)
        for run in scored:
            run.require_intact()
        if scored:
            together = folder / "replicate/measured/seeds.json"
            replicates = read_json(together) if len(scored) > 1 and together.exists() else {}
            found.append(Side(scored[0].device, scored, replicates))
    return found


def compared(workload: str, sides: Sequence[Side]) -> Comparison:
    """Compare the kinds of device that a workload was trained on. For each kind, the first device of params.yaml
    counts. A single kind is compared with the published runs.
    """
    by_kind: dict[str, Side] = {}
    for side in sides:
        by_kind.setdefault(side.name, side)
    kinds = list(by_kind.values())
    if len(kinds) > 1:
        taken_in_turns = files.results_dir() / "speed" / f"{workload}.json"
        return compare(workload, kinds, read_json(taken_in_turns) if taken_in_turns.exists() else None)
    references, reason = published.references(published_entries().get(workload, []), kinds[0].runs)
    return replace(compare(workload, kinds), references=references, no_reference=reason)


def write_tracked(
    by_workload: Mapping[str, Sequence[Side]], comparisons: Sequence[Comparison], order: Sequence[str]
) -> None:
    """Write the small files that git tracks: the results of the last run before a commit, on the machine that
    timings.json names. What is published is in docs/published.json alone.

    `order`: that of the workloads in params.yaml. Those that were not evaluated here keep what the last commit has of
    them.
    """
    folder = files.results_dir()
    others = [name for name in order if name not in by_workload]
    rows = {name: {side.row["requested"]: side.row for side in sides} for name, sides in by_workload.items()}
    for name, reduce in (("scores", scores), ("timings", timings)):
        content = {workload: {device: reduce(row) for device, row in own.items()} for workload, own in rows.items()}
        committed = json.loads(at_commit(f"results/{name}.json") or "{}")
        kept = {workload: committed[workload] for workload in others if workload in committed}
        files.write_json(folder / f"{name}.json", content | kept)
    runs = [("own", run) for sides in by_workload.values() for side in sides for run in side.runs]
    # The published runs on the most similar hardware.
    runs += [("published", run) for each in comparisons for known in each.references[:1] for run in known.side.runs]
    losses, seconds = list[dict[str, Any]](), list[dict[str, Any]]()
    for origin, run in runs:
        own = {"workload": run.workload, "device": run.device, "seed": run.seed, "run": origin}
        for epoch in run.train["epochs"]:
            losses.append({**own, **{name: epoch[name] for name in ("epoch", "train_loss", "val_loss")}})
        if run.is_timed:
            seconds.append({**own, "epoch_seconds": run.timing["timing"]["epoch_seconds"]})
    own_columns = ("workload", "device", "seed", "run")
    for name, table, columns in (
        ("losses", losses, (*own_columns, "epoch", "train_loss", "val_loss")),
        ("seconds", seconds, (*own_columns, "epoch_seconds")),
    ):
        path = f"results/{name}.csv"
        known = files.parse_rows(at_commit(path) or b"", path)
        table += [row for row in known if tuple(row) == columns and row["workload"] in others]
        table.sort(key=lambda row: (row["run"] != "own", order.index(row["workload"])))
        files.write_table(folder / f"{name}.csv", table, columns)


def scores(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the score; for several seeds the mean and the range."""
    extremes = {"lowest": row["score_lowest"], "highest": row["score_highest"]} if len(row["seeds"]) > 1 else {}
    return {row["score_name"]: row["score"], **extremes}


def timings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the main measurements, and where they were made. Those that do not exist are left out."""
    measured = {"epoch_seconds": "epoch_seconds", "samples_per_second": "samples_per_second"}
    measured["vram_peak_mib"] = "peak_allocated_mib"
    found = {name: row[key] for name, key in measured.items() if row[key] is not None}
    busy = {"busy": row["busy"]} if row["busy"] else {}
    return {**found, "device": row["device"], "hardware": row["device_name"], **busy}
