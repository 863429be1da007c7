"""The first page of `tandem ui`: the report, with links to its runs in MLflow and to Prefect's pages."""

import html
import json
from itertools import combinations

from flows.results_artifact import first_tracking
from flows.ui import running_servers
from tandem import files
from tandem.runs.store import compare_page, run_page, runs_page

PREFECT_LINKS = (
    '<a href="/v2/deployments">start or schedule the pipeline</a>, <a href="/v2/runs">runs</a>. '
    "<code>tandem repro</code> and <code>dvc repro</code> do not use Prefect, so their runs are not there."
)
NO_REPORT = "<p>There is no report yet. Run <code>tandem repro</code>, or start the deployment in Prefect.</p>"


def report_page() -> str:
    """results/report.html with the links in its header, as HTML."""
    links = f'<p class="note">In MLflow: {mlflow_links()}<br>In Prefect: {PREFECT_LINKS}</p>'
    try:
        report = (files.results_dir() / "report.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"<!DOCTYPE html><title>Tandem</title><h1>Tandem</h1>{NO_REPORT}{links}"
    return report.replace("</header>", f"{links}</header>", 1)


def mlflow_links() -> str:
    """For each workload: all of its runs, each run of the report, and each two of them compared."""
    try:
        rows = json.loads((files.compare_dir() / "compare.json").read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        rows = []
    server, workloads = running_servers().get("mlflow", ""), dict[str, dict[str, dict[str, str]]]()
    for row in rows:
        if tracking := first_tracking(row):
            workloads.setdefault(row["workload"], {})[row["requested"]] = tracking
    found = []
    for workload, devices in workloads.items():
        experiment = next(iter(devices.values()))["experiment_id"]
        links = [link(runs_page(server, experiment), "all runs")]
        links += [link(run_page(server, experiment, run["run_id"]), device) for device, run in devices.items()]
        links += [
            link(compare_page(server, experiment, [devices[each]["run_id"] for each in pair]), " beside ".join(pair))
            for pair in combinations(devices, 2)
        ]
        found.append(f"<strong>{html.escape(workload)}</strong> {', '.join(links)}")
    return "; ".join(found) or link(server, "no runs yet")


def link(address: str, text: str) -> str:
    return f'<a href="{html.escape(address)}">{html.escape(text)}</a>'
