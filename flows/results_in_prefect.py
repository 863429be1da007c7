"""The artifact `results` of a finished run in Prefect, with links to the runs in MLflow."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from flows.events import Outcome, counts
from flows.plan import RunPlan
from flows.ui import running_servers
from tandem import files
from tandem.terminal.messages import abridged
from tandem.tracking.store import compare_page, run_page
from tandem.tracking.view import runs_page

Row = dict[str, Any]


def read_results(experiment: str | None) -> dict[str, Any]:
    """The content of compare.json, and that of compare.md as `markdown`, of the workspace or of an experiment's commit.

    Both are empty if there are none.
    """
    try:
        compared, table = (read(f"results/compare/{name}", experiment) for name in ("compare.json", "compare.md"))
        return {**json.loads(compared), "markdown": table.decode()}
    except OSError as error:
        print(f"warning: no results to show ({error})")
        return {"rows": [], "markdown": ""}


def read(path: str, experiment: str | None) -> bytes:
    if experiment is None:
        return (files.ROOT / path).read_bytes()
    from dvc.api import DVCFileSystem

    tree: Any = DVCFileSystem(str(files.ROOT), rev=experiment)
    return bytes(tree.cat_file(path))


def markdown(results: dict[str, Any], plan: RunPlan) -> str:
    """The artifact as Markdown."""
    mlflow = running_servers().get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
    apply = f"`dvc exp apply {plan.experiment}`"
    first = f"commit your edits, run {apply} to get the experiment into the workspace, then " if plan.experiment else ""
    ways = [f"the report: {first}open results/report.html in a browser"]
    if mlflow.startswith("http"):
        for workload, links in mlflow_links(results["rows"], mlflow).items():
            ways.append(f"{workload} in MLflow: {', '.join(f'[{text}]({address})' for text, address in links)}")
    overridden = [f"- `{name}`: `{abridged(old)}` -> `{abridged(new)}`" for name, (old, new) in plan.overridden.items()]
    parts = [["Overridden in this run only (params.yaml -> this run):", "", *overridden]] if overridden else []
    parts += [[results["markdown"]], [f"- {way}" for way in ways]]
    return "\n\n".join("\n".join(part) for part in parts)


def mlflow_links(rows: list[Row], server: str) -> dict[str, list[tuple[str, str]]]:
    """Workload -> (text, address): all of its runs, each run in `rows` of compare.json, and each two compared.

    The run of several seeds is that of the first one. A workload without a run in MLflow is left out.
    """
    tracked: dict[str, dict[str, dict[str, str]]] = {}
    num_of = Counter((row["workload"], row["device"]) for row in rows)  # cpu and 2xcpu are both on a CPU
    for row in rows:
        name = row["requested" if num_of[row["workload"], row["device"]] > 1 else "device"]
        if tracking := next((run["tracking"] for run in row["runs"] if "run_id" in run["tracking"]), None):
            tracked.setdefault(row["workload"], {})[name] = tracking
    links = {}
    for workload, devices in tracked.items():
        experiment = next(iter(devices.values()))["experiment_id"]
        links[workload] = [("all runs", runs_page(server, experiment))]
        links[workload] += [(name, run_page(server, experiment, run["run_id"])) for name, run in devices.items()]
        for pair in combinations(devices, 2):
            address = compare_page(server, experiment, [devices[name]["run_id"] for name in pair])
            links[workload].append((" vs ".join(pair), address))
    return links


def headline(rows: list[Row], outcomes: Mapping[str, Outcome]) -> str:
    """One line for the list of runs: `sign 0.931 on cpu, pen 0.994 on cpu; 7 ran, 2 restored, 4 unchanged`."""
    scores = [f"{row['workload']} {row['score']:.4f}{spread(row)} on {row['device']}" for row in rows]
    return "; ".join([", ".join(scores), counts(outcomes.values())]).strip("; ")


def spread(row: Row) -> str:
    """The range of the score over several seeds, in parentheses."""
    if len(row["seeds"]) == 1:
        return ""
    return f" ({row['score_lowest']:.4f} to {row['score_highest']:.4f})"
