"""One table over all workloads and devices, and what may be said of them side by side.

In: results/runs/. Out: results/compare.json, compare.md, compare.png, a page per workload (pages/) and all of it in one
file to look at (report.html).
"""

from typing import Any

from stages import files
from stages.comparing.verdict import verdict
from stages.figures import comparison, drawing, overview, report, training
from stages.files import read_json, run_dir
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten

# What a row takes from timings.json and measured.json.
MEASURED = (
    "device", "device_name", "threads", "torch", "precision", "parameters_sha256", "data_sha256",
    "measured_at", "measured_on",
    "epoch_seconds", "epoch_seconds_quartile_low", "epoch_seconds_quartile_high", "samples_per_second",
    "num_epochs_measured", "train_seconds", "peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib",
    "missing_reasons", "finished_on", "out_of_memory", "summary_lines",
)  # fmt: skip


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
    by_workload = {row["workload"]: [each for each in rows if each["workload"] == row["workload"]] for row in rows}
    verdicts = [verdict(own) for own in by_workload.values()]
    text = comparison.markdown(rows, verdicts)
    folder = files.results_dir()
    files.write_json(folder / "compare.json", {"rows": rows, "verdicts": verdicts})
    files.write_text(folder / "compare.md", text)
    all_runs = drawing.save(overview.summary(rows), folder / "compare.png")
    pages = {}
    for workload, own in by_workload.items():
        page = training.page(workload, [files.read_run(workload, row["requested"]) for row in own])
        pages[workload] = [("Training", drawing.save(page, folder / "pages" / f"{workload}.png")), *pictures(own)]
    report.write_report(folder / "report.html", [facts(row) for row in rows], verdicts, pages, [("All runs", all_runs)])
    print(text, end="")


def read_row(workload: str, device: str) -> dict[str, Any]:
    folder, block = run_dir(workload, device), load_workload(workload)
    measured = {**read_json(folder / "timings.json"), **read_json(folder / "measured.json")}
    timings = files.read_numbers(folder / "timings.csv")
    return {
        "workload": workload,
        "requested": device,
        "task": block.task,
        "model": block.train.model.name,
        **{name: measured[name] for name in MEASURED},
        **read_json(folder / "result.json"),
        "metrics": read_json(folder / "metrics.json"),
        # Seconds of every epoch after warm-up, on the device asked for.
        "epochs": [row["epoch_seconds"] for row in timings if not (row["is_warmup"] or row["is_elsewhere"])],
        "mlflow_run_id": read_json(folder / "tracking.json").get("run_id"),
    }


def pictures(rows: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    """The pictures that evaluate drew of the results: (caption, PNG)."""
    return [
        (f"{path.stem.capitalize()}, {row['device']}", path.read_bytes())
        for row in rows
        for path in sorted((run_dir(row["workload"], row["requested"]) / "plots").glob("*.png"))
        if path.stem != "training"  # the page shows the trainings of all devices together
    ]


def facts(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what the report shows in addition: the parameters, the scores in detail, the data."""
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
