"""Compare all workloads and devices in one table, with a verdict for each workload.

Reads results/runs/. Writes results/compare.json, compare.md, compare.png, one figure per workload (pages/), a report
that contains all of it (report.html), and the main figures as DVC metrics (metrics.json).
"""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stages import files
from stages.comparing import published
from stages.comparing.verdict import Judgement, Run, judge
from stages.figures import comparison, drawing, overview, report, training
from stages.files import read_json, run_dir
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten
from stages.records import manifest

# The fields that a row takes from timings.json and measured.json.
TEXTS = (
    "device", "device_name", "torch", "precision", "parameters_sha256", "data_sha256", "measured_at", "measured_on",
)  # fmt: skip
MEASURED = (
    *TEXTS, "threads",
    "epoch_seconds", "epoch_seconds_quartile_low", "epoch_seconds_quartile_high", "samples_per_second",
    "num_epochs_measured", "train_seconds", "peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib",
    "missing_reasons", "out_of_memory", "summary_lines",
)  # fmt: skip

# How the values of several seeds are reduced to one.
REDUCED: dict[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(("epoch_seconds", "samples_per_second"), statistics.median),
    **dict.fromkeys(("peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib"), max),
}


def main() -> None:
    params = load_params()
    rows = []
    for workload in params.workloads:
        for device in params.devices:
            evaluated = [seed for seed in params.seeds if (run_dir(workload, device, seed) / "metrics.json").exists()]
            if evaluated:
                rows.append(over_seeds([read_row(workload, device, seed) for seed in evaluated]))
    if not rows:
        raise ValueError("results/runs holds no evaluated run of params.yaml's workloads and devices; run `dvc repro`")
    by_workload = {row["workload"]: [each for each in rows if each["workload"] == row["workload"]] for row in rows}
    sections = [section(own, judged(workload, own)) for workload, own in by_workload.items()]
    verdicts = [sentence for each in sections for sentence in comparison.sentences(each)]
    if alone := [each.workload for each in sections if not comparison.sentences(each)]:
        verdicts.append(f"{', '.join(alone)}: measured on one kind of device; nothing to compare it with.")
    text = comparison.markdown(rows, verdicts)
    folder = files.results_dir()
    files.write_json(folder / "compare.json", {"rows": rows, "verdicts": verdicts})
    files.write_text(folder / "compare.md", text)
    files.write_json(folder / "metrics.json", {name: figures(own) for name, own in by_workload.items()})
    drawing.save(overview.summary(rows), folder / "compare.png")
    for workload, own in by_workload.items():
        save_training(workload, own, folder / "pages" / f"{workload}.png")
    report.write_report(folder / "report.html", sections)
    print(text, end="")


def save_training(workload: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Save the figure of a workload's trainings, one per device. For a single device, evaluate's figure is copied,
    because drawing takes a second.
    """
    drawn = [run_dir(workload, row["requested"], row["seeds"][0]) / "plots/training.png" for row in rows]
    if len(drawn) == 1 and drawn[0].exists():
        files.write_bytes(path, drawn[0].read_bytes())
        return
    runs = [files.read_run(workload, row["requested"], row["seeds"][0]) for row in rows]
    drawing.save(training.draw(workload, runs), path)


def figures(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the main figures by device in params.yaml. Measurements that do not exist are left out."""
    measured = {"epoch_seconds": "epoch_seconds", "samples_per_second": "samples_per_second"}
    measured["vram_peak_mib"] = "peak_allocated_mib"
    return {
        row["requested"]: {
            row["score_name"]: row["score"],
            **{name: row[key] for name, key in measured.items() if row[key] is not None},
            "device": row["device"],
        }
        for row in rows
    }


def judged(workload: str, rows: list[dict[str, Any]]) -> Judgement:
    """Compare the kinds of device that a workload was trained on. For each kind, the first device of params.yaml
    counts.
    """
    sides: dict[str, list[Run]] = {}
    for row in rows:
        folders = [run_dir(workload, row["requested"], seed) for seed in row["seeds"]]
        is_alone = all(other["device"] == row["device"] for other in rows)  # no test uses its predictions
        runs = [
            Run(manifest.read(each / manifest.NAME), () if is_alone else files.read_rows(each / "predictions.csv"))
            for each in folders
        ]
        sides.setdefault(row["device"], runs)
    taken_in_turns = files.results_dir() / "speed" / f"{workload}.json"
    return judge(workload, sides, read_json(taken_in_turns) if taken_in_turns.exists() else None)


def read_row(workload: str, device: str, seed: int) -> dict[str, Any]:
    folder, block = run_dir(workload, device, seed), load_workload(workload)
    manifest.require_intact(folder, f"train@{workload}-{device}-{seed}")
    timings = read_json(folder / "timings.json")
    measured = read_json(folder / "measured.json", dict.fromkeys(TEXTS, str))
    return {
        "workload": workload,
        "requested": device,
        "seed": seed,
        "task": block.task,
        "model": block.train.model.name,
        **{name: (timings if name in timings else measured)[name] for name in MEASURED},
        **read_json(folder / "result.json", {"score_name": str, "score": float, "sentence": str}),
        "metrics": read_json(folder / "metrics.json"),
        "tracking": read_json(folder / "tracking.json"),
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


def section(rows: list[dict[str, Any]], judgement: Judgement) -> comparison.ReportSection:
    """Return the report's section for a workload. If it was trained on one kind of device, the section shows published
    runs.
    """
    shown = [facts(row) for row in rows]
    if judgement.comparability:
        return comparison.ReportSection(shown, judgement)
    workload, device = rows[0]["workload"], rows[0]["requested"]
    own = [manifest.read(run_dir(workload, device, seed) / manifest.NAME) for seed in rows[0]["seeds"]]
    entries = published.read().get(workload, []) if published.FILE.exists() else []
    return comparison.ReportSection(shown, judgement, *published.references(entries, own))


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with additional data for the report: parameters and data, and the curves, scores and predictions of
    its first seed.
    """
    folder = run_dir(row["workload"], row["requested"], row["seeds"][0])
    summary = read_json(files.prepared_dir(row["workload"]) / "summary.json")
    tables = {name: files.read_rows(folder / f"{name}.csv") for name in ("scores", "confusion", "predictions")}
    return {
        **row,
        **tables,
        **{name: files.read_numbers(folder / f"{name}.csv") for name in ("history", "timings")},
        "parameters": flatten(load_workload(row["workload"])),
        "data": {
            name: value
            for name, value in summary.items()
            if isinstance(value, str | int | float) and "sha256" not in name
        },
    }
