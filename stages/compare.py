"""One table over all workloads and devices, and what may be said of them side by side.

In: results/runs/. Out: results/compare.json, compare.md, compare.png, a page per workload (pages/) and all of it in one file to look at
(report.html). A speed-up is stated only between runs of the same data and
parameters, as an interval; where they differ, the difference is stated instead.
"""

import random
import statistics
from pathlib import Path
from typing import Any

from stages import files
from stages.figures import drawing, overview, report, training
from stages.files import read_json, run_dir
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten

NUM_RESAMPLES = 2000
# Fields of a row that must agree before two rows' times are compared.
SAME = ("data_sha256", "parameters_sha256", "precision", "torch")


def main() -> None:
    params = load_params()
    rows = [
        read_row(workload, device)
        for workload in params.workloads
        for device in params.devices
        if (run_dir(workload, device) / "metrics.json").exists()
    ]
    if not rows:
        raise ValueError("results/runs holds no evaluated run of params.yaml's workloads and devices; run `dvc repro`")
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    verdicts = [verdict([row for row in rows if row["workload"] == workload]) for workload in workloads]
    folder = files.results_dir()
    files.write_json(folder / "compare.json", {"rows": rows, "verdicts": verdicts})
    files.write_text(folder / "compare.md", markdown(rows, verdicts))
    drawn_overview = drawing.save(overview.summary(rows), folder / "compare.png")
    pages = {}
    for workload in workloads:
        own = [row for row in rows if row["workload"] == workload]
        page = training.page(workload, [files.read_run(workload, row["requested"]) for row in own])
        drawn = drawing.save(page, folder / "pages" / f"{workload}.png")
        pages[workload] = [("Training", drawn), *pictures(own)]
    report.write_report(
        folder / "report.html", [facts(row) for row in rows], verdicts, pages, [("All runs", drawn_overview)]
    )
    print(markdown(rows, verdicts), end="")


def read_row(workload: str, device: str) -> dict[str, Any]:
    folder = run_dir(workload, device)
    measured = {**read_json(folder / "timings.json"), **read_json(folder / "measured.json")}
    keep = (
        "device",
        "device_name",
        "torch",
        "epoch_seconds",
        "epoch_seconds_quartile_low",
        "epoch_seconds_quartile_high",
        "samples_per_second",
        "num_epochs_measured",
        "train_seconds",
        "peak_allocated_mib",
        "peak_reserved_mib",
        "process_mib",
        "peak_rss_mib",
        "missing_reasons",
        "finished_on",
        "out_of_memory",
        "precision",
        "summary_lines",
        "parameters_sha256",
        "data_sha256",
        "measured_at",
        "measured_on",
    )
    block = load_workload(workload)
    return {
        "workload": workload,
        "requested": device,
        "task": block.task,
        "model": block.train.model.name,
        **{name: measured[name] for name in keep},
        **read_json(folder / "result.json"),
        "metrics": read_json(folder / "metrics.json"),
        "epochs": measured_epochs(folder / "timings.csv"),
        "mlflow_run_id": read_json(folder / "tracking.json").get("run_id"),
    }


def pictures(rows: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    """What evaluate drew of the result, device by device: (caption, PNG)."""
    return [
        (f"{path.stem.capitalize()}, {row['device']}", path.read_bytes())
        for row in rows
        for path in sorted((run_dir(row["workload"], row["requested"]) / "plots").glob("*.png"))
        if path.stem != "training"  # all devices together are on the page
    ]


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what the report tells beyond the comparison."""
    folder = run_dir(row["workload"], row["requested"])
    summary = read_json(files.prepared_dir(row["workload"]) / "summary.json")
    return {
        **row,
        "parameters": flatten(load_workload(row["workload"])),
        "scores": files.read_rows(folder / "scores.csv"),
        "data": {
            name: value
            for name, value in summary.items()
            if isinstance(value, str | int | float) and "sha256" not in name
        },
    }


def measured_epochs(path: Path) -> list[float]:
    """Seconds of every epoch after warm-up, on the device asked for."""
    import csv

    with path.open(encoding="utf-8") as file:
        counting = [row for row in csv.DictReader(file) if row["is_warmup"] == row["is_elsewhere"] == "0"]
    return [float(row["epoch_seconds"]) for row in counting]


def verdict(rows: list[dict[str, Any]]) -> str:
    """What may be said of one workload's runs, in a sentence."""
    workload = rows[0]["workload"]
    by_kind = {row["device"]: row for row in rows}
    if len(by_kind) < 2:
        return f"{workload}: measured on one kind of device ({rows[0]['device']}); nothing to compare it with."
    cpu, gpu = by_kind["cpu"], by_kind["cuda"]
    if gpu.get("finished_on", "cuda") != "cuda":
        return (
            f"{workload}: no speed-up is stated, because the GPU's memory ran out and its run was finished on the CPU."
        )
    if ran_out := [row["device"] for row in (cpu, gpu) if row.get("out_of_memory")]:
        # What was done about it slows a step down, from somewhere in the middle of the training on.
        return f"{workload}: no speed-up is stated, because memory ran out while training on {' and '.join(ran_out)}."
    differing = [name for name in SAME if cpu[name] != gpu[name]]
    if differing:
        message = ", ".join(
            f"{name.removesuffix('_sha256')} ({str(cpu[name])[:12]} on the CPU, {str(gpu[name])[:12]} on the GPU)"
            for name in differing
        )
        return f"{workload}: no speed-up is stated, because the runs differ in {message}."
    low, ratio, high = speed_up(cpu["epochs"], gpu["epochs"])
    score = f"{cpu['score_name']} {cpu['score']:.4f} on the CPU, {gpu['score']:.4f} on the GPU"
    if low <= 1 <= high:
        return f"{workload}: no difference in speed can be told ({ratio:.2f} times, 95% interval {low:.2f} to {high:.2f}); {score}."
    faster = "GPU" if ratio > 1 else "CPU"
    low, ratio, high = (low, ratio, high) if ratio > 1 else (1 / high, 1 / ratio, 1 / low)
    return f"{workload}: an epoch on the {faster} is {ratio:.2f} times as fast (95% interval {low:.2f} to {high:.2f}); {score}."


def speed_up(slower: list[float], faster: list[float]) -> tuple[float, float, float]:
    """Ratio of the median epoch times and its 95% percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13), seeded."""
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(slower, k=len(slower))) / statistics.median(draw.choices(faster, k=len(faster)))
        for _ in range(NUM_RESAMPLES)
    )
    return (
        ratios[int(0.025 * NUM_RESAMPLES)],
        statistics.median(slower) / statistics.median(faster),
        ratios[int(0.975 * NUM_RESAMPLES)],
    )


def sentences(row: dict[str, Any]) -> list[str]:
    """The result, what bounds the training, what its memory is for, whether its device was used."""
    return [row["sentence"], *row["summary_lines"].values()]


def markdown(rows: list[dict[str, Any]], verdicts: list[str]) -> str:
    lines = [
        "| workload | task, model | device | score | epoch, median [quartiles] (s) | samples/s "
        "| training (s) | VRAM peak (MiB) | measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["epoch_seconds_quartile_low"], row["epoch_seconds_quartile_high"]
        spread = f" [{low:.3f}, {high:.3f}]" if low is not None else ""
        vram = f"{row['peak_allocated_mib']:,.0f}" if row["peak_allocated_mib"] is not None else "none (CPU)"
        timed = "none | none"
        if row["epoch_seconds"] is not None:
            timed = f"{row['epoch_seconds']:.3f}{spread} | {row['samples_per_second']:,.0f}"
        lines.append(
            f"| {row['workload']} | {row['task']}, {row['model']} | {row['device']}: {row['device_name']} "
            f"| {row['score_name']} {row['score']:.4f} "
            f"| {timed} | {row['train_seconds']:.1f} | {vram} "
            f"| {row['measured_at'][:16].replace('T', ' ')} on {row['measured_on']} |"
        )
    message = [f"- {row['workload']} on {row['device']}: {'; '.join(sentences(row))}." for row in rows]
    return "\n".join([*lines, "", *message, *(f"- {sentence}" for sentence in verdicts)]) + "\n"
