"""The artifact `results` of a finished run: the table of compare.md, where the report is, and links to MLflow."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flows.events import Outcome
from flows.plan import RunPlan
from flows.ui import running_servers
from tandem import files
from tandem.messages import shown
from tandem.runs.store import run_page, runs_page

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
    first = f"after {apply}, which puts this experiment into the workspace, " if plan.experiment else ""
    ways = [f"the report: {first}results/report.html, in a browser"]
    if mlflow.startswith("http"):
        ways += [link for row in results["rows"] for link in links(row, mlflow)]
    overridden = [f"- `{name}`: `{shown(old)}` -> `{shown(new)}`" for name, (old, new) in plan.overridden.items()]
    parts = [["Overridden in this run only (params.yaml -> this run):", "", *overridden]] if overridden else []
    parts += [[results["markdown"]], [f"- {way}" for way in ways]]
    return "\n\n".join("\n".join(part) for part in parts)


def links(row: Row, server: str) -> list[str]:
    """Links to the first seed's run in MLflow and to all runs of its workload."""
    tracking = first_tracking(row)
    if tracking is None:
        return []
    experiment, name = tracking["experiment_id"], f"{row['workload']} on {row['requested']}"
    one, every = run_page(server, experiment, tracking["run_id"]), runs_page(server, experiment)
    return [f"{name}: [this run in MLflow]({one}), [all runs of {row['workload']}]({every})"]


def first_tracking(row: Row) -> dict[str, str] | None:
    """MLflow's ids of the first seed's run in a row of compare.json; None if MLflow has no run of it."""
    return next((run["tracking"] for run in row["runs"] if "run_id" in run["tracking"]), None)


def headline(rows: list[Row], outcomes: Mapping[str, Outcome]) -> str:
    """One line for the list of runs: `sign 0.931 on cpu, pen 0.994 on cpu; 7 ran, 2 restored, 4 unchanged`."""
    scores = [f"{row['workload']} {row['score']:.4f} on {row['device']}" for row in rows]
    counts = Counter(outcomes.values())
    words = [f"{counts[outcome]} {outcome}" for outcome in ("ran", "restored", "unchanged") if counts[outcome]]
    return "; ".join([", ".join(scores), ", ".join(words)]).strip("; ")
