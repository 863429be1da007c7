"""`python -m flows.repro [arguments of dvc repro]`, which is `make repro`: dvc repro, then a summary.

The summary says what ran and what came out. DVC runs in this process, so a stage's output reaches the terminal as it
does under `dvc repro`. The exit status is DVC's.
"""

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from flows import dvc
from stages import files
from stages.records import store

UI_STATE = files.STATE / "ui.json"  # written by flows/ui.py while it runs
NUM_LONGEST = 6  # stages whose time is printed


class LogHandler(logging.Handler):
    """Hands the records of DVC's log to `progress`, as the lines that DVC prints."""

    def __init__(self, progress: dvc.Progress) -> None:
        super().__init__(logging.INFO)
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        while error:
            text, error = f"{text}: {error}".strip(": "), error.__cause__
        self.progress.read(f"ERROR: {text}" if record.levelno >= logging.ERROR else text)


def main(arguments: list[str]) -> int:
    os.chdir(files.ROOT)
    token = dvc.prepare_environment()
    started = time.monotonic()

    from dvc.cli import main as run_dvc  # sets up its loggers

    os.environ["TANDEM_DVC_PID"] = str(os.getpid())  # the follower (stages/records/follower.py) ends with this process
    progress = dvc.Progress()
    logging.getLogger("dvc").addHandler(LogHandler(progress))
    status: int = run_dvc(["repro", *arguments])
    sys.stdout.flush()
    asks_for_less = {"-q", "--quiet", "-h", "--help", "--dry"} & set(arguments)
    if not asks_for_less:
        print("\n".join(summary(progress, token, status, time.monotonic() - started)))
    return status


def summary(progress: dvc.Progress, token: str, status: int, seconds: float) -> list[str]:
    stages = progress.outcomes
    lines = ["", f"Tandem: {'finished' if status == 0 else 'failed'} after {seconds:.1f} s"]
    for title, kind in (("ran", "running"), ("restored", "restored"), ("unchanged", "skipped"), ("failed", "failed")):
        if names := [name for name, outcome in stages.items() if outcome == kind]:
            lines.append(f"  {title:<10} {', '.join(names)}")
    longest = sorted(progress.seconds.items(), key=lambda entry: -entry[1])[:NUM_LONGEST]
    if any(seconds >= 1 for _, seconds in longest):
        lines.append(f"  {'longest':<10} {', '.join(f'{name} {seconds:.1f} s' for name, seconds in longest)}")
    if status != 0:
        return [*lines, f"  {'reason':<10} {progress.failure(token, f'dvc {dvc.ending(status)}')}"]
    return [*lines, "", *results_lines(files.results_dir() / "compare.json", stages), "", *next_lines()]


def results_lines(path: Path, stages: dict[str, dvc.Kind]) -> list[str]:
    """Score, epoch time and device of every training, and whether its times were measured in this run."""
    try:
        return table_of(json.loads(path.read_text(encoding="utf-8"))["rows"], stages)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"no {files.relative(path)} to report from"]


def table_of(rows: list[dict[str, Any]], stages: dict[str, dvc.Kind]) -> list[str]:
    table = [("workload", "device", "score", "epoch", "timing")]
    for row in rows:
        outcomes = [stages.get(f"train@{row['workload']}-{row['requested']}-{seed}") for seed in row["seeds"]]
        outcome = next((kind for kind in ("running", "restored") if kind in outcomes), None)
        age = "measured now" if outcome == "running" else f"measured {row['measured_at'][:16].replace('T', ' ')}"
        if outcome == "restored":
            age = f"restored, {age}"
        if outcome != "running" and row["measured_on"] != socket.gethostname():
            age += f" on {row['measured_on']}"
        device = f"{row['device']} ({row['device_name']})"
        epoch = "none" if row["epoch_seconds"] is None else f"{row['epoch_seconds']:.3f} s"
        table.append((row["workload"], device, f"{row['score_name']} {row['score']:.4f}", epoch, age))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]


def next_lines() -> list[str]:
    """Where to look next."""
    lines = [
        "  everything        results/report.html (one file, to look at in a browser), results/compare.md",
        "  against published dvc metrics diff, dvc plots diff; all experiments: make show",
    ]
    if not (servers := running_servers()):
        return [*lines, "  run histories     make ui (MLflow and Prefect in the browser)"]
    return [
        *lines,
        f"  every run         MLflow {servers['mlflow']}",
        *(f"  runs of {name:<9} {address}" for name, address in store.runs_pages(servers["mlflow"]).items()),
        f"  runs and logs     Prefect {servers['prefect']}",
    ]


def running_servers() -> dict[str, str]:
    """The addresses `make ui` serves on and its process; empty where it does not run."""
    try:
        state = json.loads(UI_STATE.read_text(encoding="utf-8"))
        os.kill(int(state["pid"]), 0)
        is_ours = state.get("project", str(files.HOME)) == str(files.HOME)  # or the project is a copy
        names = ("pid", "prefect", "mlflow", *(["results"] if "results" in state else []))
        return {name: str(state[name]) for name in names} if is_ours else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # damaged: none
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
