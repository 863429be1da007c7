"""Compare all workloads and devices in one table, with a verdict for each workload.

Reads results/runs/ and results/speed/. Writes results/compare/ (compare.json, compare.md), results/figures/
(compare.png, one figure per workload), results/report.html, which contains all of it, and the small files that git
tracks: scores.json and timings.json for `dvc metrics`, losses.csv and seconds.csv for `dvc plots`.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stages import files
from stages.comparing import published
from stages.comparing.verdict import Judgement, judge
from stages.figures import comparison, drawing, overview, report, training
from stages.files import read_json, run_dir
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten
from stages.records.run import MEASURED, RESULT, Run, open_folder

# The fields that a row takes from `timing` in timing.json.
TIMED = (
    "epoch_seconds", "epoch_seconds_quartile_low", "epoch_seconds_quartile_high", "samples_per_second",
    "num_epochs_measured", "train_seconds", "peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib",
    "missing_reasons",
)  # fmt: skip

# How the values of several seeds are reduced to one.
REDUCED: dict[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(("epoch_seconds", "samples_per_second"), statistics.median),
    **dict.fromkeys(("peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib"), max),
}
Runs = Mapping[str, list[Run]]  # device in params.yaml -> the evaluated runs of a workload, one per seed


def main() -> None:
    params = load_params()
    found = {workload: evaluated(workload, params.devices, params.seeds) for workload in params.workloads}
    by_workload = {workload: runs for workload, runs in found.items() if runs}
    if not by_workload:
        raise ValueError("results/runs holds no evaluated run of params.yaml's workloads and devices; run `dvc repro`")
    rows = {name: [over_seeds([read_row(run) for run in own]) for own in runs.values()]
            for name, runs in by_workload.items()}  # fmt: skip
    every = [row for own in rows.values() for row in own]
    sections = [section(rows[name], runs, judged(name, runs)) for name, runs in by_workload.items()]
    verdicts = [sentence for each in sections for sentence in comparison.sentences(each)]
    if alone := [each.workload for each in sections if not comparison.sentences(each)]:
        verdicts.append(f"{', '.join(alone)}: measured on one kind of device; nothing to compare it with.")
    text = comparison.markdown(every, verdicts)
    folder = files.compare_dir()
    files.write_json(folder / "compare.json", {"rows": every, "verdicts": verdicts})
    files.write_text(folder / "compare.md", text)
    figures = files.results_dir() / "figures"
    drawing.save(overview.summary(every), figures / "compare.png")
    for name, runs in by_workload.items():
        save_training(name, [own[0] for own in runs.values()], figures / f"{name}.png")
    write_tracked(rows, by_workload, sections)
    report.write_report(files.results_dir() / "report.html", sections)
    print(text, end="")


def evaluated(workload: str, devices: Iterable[str], seeds: Iterable[int]) -> dict[str, list[Run]]:
    """Open the evaluated runs by device. Raises ValueError if a file of a run is altered."""
    found: dict[str, list[Run]] = {}
    for device in devices:
        folders = [run_dir(workload, device, seed) for seed in seeds]
        runs = [open_folder(folder) for folder in folders if (folder / RESULT / "score.json").exists()]
        if scored := [run for run in runs if run.score]:
            found[device] = scored
    for run in (run for runs in found.values() for run in runs):
        run.require_intact()
    return found


def write_tracked(rows: Mapping[str, list[dict[str, Any]]], by_workload: Mapping[str, Runs], sections: Any) -> None:
    """Write the small files that git tracks: the published results of a commit."""
    folder = files.results_dir()
    scores = {name: {row["requested"]: {row["score_name"]: row["score"]} for row in own} for name, own in rows.items()}
    files.write_json(folder / "scores.json", scores)
    files.write_json(folder / "timings.json", {name: {row["requested"]: timings(row) for row in own}
                                               for name, own in rows.items()})  # fmt: skip
    losses, seconds = [], []
    for run in (run for runs in by_workload.values() for own in runs.values() for run in own):
        own = {"workload": run.workload, "device": run.device, "seed": run.seed, "run": "own"}
        losses += [{**own, **losses_of(row)} for row in run.epochs("history")]
        seconds.append({**own, "epoch_seconds": run.timing["timing"]["epoch_seconds"]})
    for each in sections:
        for reference in each.references[:1]:  # the one on the most similar hardware
            known = {"workload": each.workload, "device": reference.device, "run": "published"}
            losses += [{**known, "seed": reference.seed, **losses_of(row)} for row in reference.epochs]
            seconds += [{**known, "seed": seed, "epoch_seconds": times["epoch_seconds"]}
                        for seed, times in reference.timings.items()]  # fmt: skip
    columns = ("workload", "device", "seed", "run")
    files.write_table(folder / "losses.csv", losses, (*columns, "epoch", "train_loss", "val_loss"))
    files.write_table(folder / "seconds.csv", seconds, (*columns, "epoch_seconds"))


def losses_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch": int(row["epoch"]), "train_loss": row["train_loss"], "val_loss": row["val_loss"]}


def timings(row: dict[str, Any]) -> dict[str, Any]:
    """Return the main measurements. Those that do not exist are left out."""
    measured = {"epoch_seconds": "epoch_seconds", "samples_per_second": "samples_per_second"}
    measured["vram_peak_mib"] = "peak_allocated_mib"
    found = {name: row[key] for name, key in measured.items() if row[key] is not None}
    return {**found, "device": row["device"]}


def save_training(workload: str, runs: list[Run], path: Path) -> None:
    """Save the figure of a workload's trainings, one per device. For a single device, evaluate's figure is copied,
    because drawing takes a second.
    """
    (drawn, *others) = [run_dir(workload, run.train["requested"], run.seed) / MEASURED / "training.png" for run in runs]
    if not others and drawn.exists():
        files.write_bytes(path, drawn.read_bytes())
    else:
        drawing.save(training.draw(workload, [training.of_run(run) for run in runs]), path)


def judged(workload: str, runs: Runs) -> Judgement:
    """Compare the kinds of device that a workload was trained on. For each kind, the first device of params.yaml
    counts.
    """
    sides: dict[str, list[Run]] = {}
    for own in runs.values():
        sides.setdefault(own[0].device, own)
    taken_in_turns = files.results_dir() / "speed" / f"{workload}.json"
    return judge(workload, sides, read_json(taken_in_turns) if taken_in_turns.exists() else None)


def read_row(run: Run) -> dict[str, Any]:
    assert run.score
    hardware, placement, block = run.timing["hardware"], run.timing["placement"], run.train["block"]
    return {
        "workload": run.workload,
        "requested": run.train["requested"],
        "seed": run.seed,
        "task": block["task"],
        "model": block["train"]["model"]["name"],
        "device": run.device,
        "device_name": hardware["name"],
        "torch": hardware["torch"],
        "precision": run.train["realized"]["precision"],
        "threads": run.train["realized"]["threads"],
        "measured_at": run.timing["measured_at"],
        "measured_on": run.timing["machine"],
        "out_of_memory": placement["out_of_memory"],
        "summary_lines": run.timing.get("summary_lines", {}),
        **{name: run.timing["timing"][name] for name in TIMED},
        "score_name": run.score["score_name"],
        "score": run.score["metrics"][run.score["score_name"]],
        "sentence": run.score.get("sentence", ""),
        "metrics": run.score["metrics"],
        "tracking": run.timing.get("mlflow", {}),
    }


def over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine rows that differ only in their seed: means of scores, medians of times, peaks of memory.

    `runs` keeps the values of each seed. All other values come from the first row.
    """
    first = rows[0]
    kept = ("seed", "score", "epoch_seconds", "samples_per_second", "train_seconds", "measured_at", "tracking")
    scores = [row["score"] for row in rows]
    found: dict[str, Any] = {
        **{key: value for key, value in first.items() if key not in ("seed", "tracking")},
        "seeds": [row["seed"] for row in rows],
        "runs": [{key: row[key] for key in kept} for row in rows],
        "score_lowest": min(scores),
        "score_highest": max(scores),
    }
    if len(rows) == 1:
        return found
    for name, reduce in REDUCED.items():
        values = [row[name] for row in rows if row[name] is not None]
        found[name] = reduce(values) if values else None
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    seconds = [row["epoch_seconds"] for row in rows]
    return found | {
        "score": statistics.fmean(scores),
        "metrics": {name: mean_of(row["metrics"].get(name) for row in rows) for name in names},
        "epoch_seconds_quartile_low": None,
        "epoch_seconds_quartile_high": None,
        "epoch_seconds_lowest": min(seconds),
        "epoch_seconds_highest": max(seconds),
        "train_seconds": sum(row["train_seconds"] for row in rows),
        "sentence": over_seeds_sentence(first, scores),
    }


def over_seeds_sentence(first: dict[str, Any], scores: list[float]) -> str:
    mean, name = statistics.fmean(scores), first["score_name"]
    return (
        f"{name} {mean:.4f} on average over {len(scores)} seeds ({min(scores):.4f} to {max(scores):.4f}), which vary "
        f"weights, order and draws and leave the split as it is; with seed {first['seed']}: {first['sentence']}"
    )


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return None if a value is missing: a mean over the other seeds would be a different quantity."""
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def section(rows: list[dict[str, Any]], runs: Runs, judgement: Judgement) -> comparison.ReportSection:
    """Return the report's section for a workload. If it was trained on one kind of device, the section shows published
    runs.
    """
    shown = [facts(row, own[0]) for row, own in zip(rows, runs.values(), strict=True)]
    if judgement.comparability:
        return comparison.ReportSection(shown, judgement)
    own = [run.manifest for run in next(iter(runs.values()))]
    entries = published.read().get(rows[0]["workload"], []) if published.FILE.exists() else []
    return comparison.ReportSection(shown, judgement, *published.references(entries, own))


def facts(row: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return a row with additional data for the report: parameters and data, and the curves, scores and predictions of
    its first seed.
    """
    summary = read_json(files.prepared_dir(row["workload"]) / "summary.json")
    return {
        **row,
        **{name: run.table(name) for name in ("scores", "confusion", "predictions")},
        **{name: run.epochs(name) for name in ("history", "timings")},
        "parameters": flatten(load_workload(row["workload"])),
        "data": {
            name: value
            for name, value in summary.items()
            if isinstance(value, str | int | float) and "sha256" not in name
        },
    }
