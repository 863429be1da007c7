"""`tandem repro [arguments of dvc repro]` (`make repro`): dvc repro, then a summary.

The summary lists the stages that ran and their results. DVC runs in this process, so a stage's output reaches the
terminal as it does under `dvc repro`. The exit status is DVC's.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.processes import Event, Outcome, ending
from tandem import files

UI_STATE = files.STATE / "ui.json"  # written by flows/ui.py while it runs
NUM_LONGEST = 6  # slowest stages whose time is printed


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(f"usage: tandem repro [arguments of dvc repro]\n\n{__doc__}\n`dvc repro --help` lists the arguments.")
        return 0
    os.chdir(files.ROOT)
    started = time.monotonic()
    from flows import reproduce

    events: list[Event] = []
    status = reproduce.run(["repro", *arguments], events.append)
    sys.stdout.flush()
    asks_for_less = {"-q", "--quiet", "--dry"} & set(arguments)
    if not asks_for_less:
        print("\n".join(summary(events, status, time.monotonic() - started)))
    return status


def summary(events: list[Event], status: int, seconds: float) -> list[str]:
    last = {event.stage: event for event in events}
    outcomes = {name: event.outcome for name, event in last.items()}
    lines = ["", f"Tandem: {'finished' if status == 0 else 'failed'} after {seconds:.1f} s"]
    for outcome in ("ran", "restored", "unchanged", "failed"):
        if names := [name for name in outcomes if name and outcomes[name] == outcome]:
            lines.append(f"  {outcome:<10} {', '.join(names)}")
    longest = sorted((event for event in last.values() if event.outcome == "ran"), key=lambda event: -event.seconds)
    if any(event.seconds >= 1 for event in longest):
        times = ", ".join(f"{event.stage} {event.seconds:.1f} s" for event in longest[:NUM_LONGEST])
        lines.append(f"  {'longest':<10} {times}")
    if status != 0:
        reasons = [event.reason for event in events if event.outcome == "failed"] or [f"DVC {ending(status)}"]
        return [*lines, f"  {'reason':<10} {reasons[0]}"]
    return [*lines, "", *results_lines(files.compare_dir() / "compare.json", outcomes), "", *next_lines()]


def results_lines(path: Path, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Score, epoch time and device of every training, and whether this run measured its times."""
    try:
        return table_of(json.loads(path.read_text(encoding="utf-8"))["rows"], outcomes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"no {files.relative(path)} to report from"]


def table_of(rows: list[dict[str, Any]], outcomes: Mapping[str, Outcome]) -> list[str]:
    table = [("workload", "device", "score", "epoch", "timing")]
    for row in rows:
        of_seeds = [outcomes.get(f"train@{row['workload']}-{row['requested']}-{seed}") for seed in row["seeds"]]
        outcome = next((each for each in ("ran", "restored") if each in of_seeds), None)
        age = "measured now" if outcome == "ran" else f"measured {row['measured_at'][:16].replace('T', ' ')}"
        if outcome == "restored":
            age = f"restored, {age}"
        if outcome != "ran" and row["measured_on"] != socket.gethostname():
            age += f" on {row['measured_on']}"
        device = f"{row['device']} ({row['device_name']})"
        epoch = f"{row['epoch_seconds']:.3f} s"
        table.append((row["workload"], device, f"{row['score_name']} {row['score']:.4f}", epoch, age))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]


def next_lines() -> list[str]:
    """Where to look next."""
    servers = running_servers()
    pages = f"MLflow {servers['mlflow']}, Prefect {servers['prefect']}" if servers else "make ui"
    return [
        "  everything        results/report.html (one file, to look at in a browser), results/compare/compare.md",
        "  against published dvc metrics diff, dvc plots diff; all experiments: make show",
        f"  in the browser    {pages}",
    ]


def running_servers() -> dict[str, str]:
    """The addresses of `make ui` and its process id; empty if it does not run."""
    try:
        state = json.loads(UI_STATE.read_text(encoding="utf-8"))
        os.kill(int(state["pid"]), 0)
        is_ours = state.get("project", str(files.HOME)) == str(files.HOME)  # False if the project is a copy
        return {name: str(state[name]) for name in ("pid", "prefect", "mlflow")} if is_ours else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # damaged: none
        return {}
