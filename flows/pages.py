"""The artifact of a finished run: compare.md, pictures, and links to the report and MLflow.

The next run overwrites results/, and the results of an experiment are in no folder. So this module copies the linked
files to `.tandem/pages/<flow run>/`, which `make ui` serves: Prefect's UI loads pictures only from an address.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flows import repro
from flows.processes import Outcome
from stages import files
from stages.records.store import run_page, runs_page

PAGES = files.STATE / "pages"
NUM_KEPT = 20  # runs
LOOPBACK = ("127.0.0.1", "localhost")
Row = dict[str, Any]


def reader(experiment: str | None) -> Callable[[str], bytes]:
    """A function that reads a project file from the workspace or from an experiment's commit; it raises OSError."""
    if experiment is None:
        return lambda path: (files.ROOT / path).read_bytes()
    from dvc.api import DVCFileSystem

    tree: Any = DVCFileSystem(str(files.ROOT), rev=experiment)
    return lambda path: bytes(tree.cat_file(path))


def read_results(read: Callable[[str], bytes]) -> dict[str, Any]:
    """The content of compare.json, and that of compare.md as `markdown`; both are empty if there are none."""
    try:
        results: dict[str, Any] = json.loads(read("results/compare/compare.json"))
        return results | {"markdown": read("results/compare/compare.md").decode()}
    except OSError as error:
        print(f"warning: no results to show ({error})")
        return {"rows": [], "verdicts": [], "markdown": ""}


def keep(read: Callable[[str], bytes], rows: list[Row], run: str) -> list[str]:
    """Copy the files that the page of `run` links to. Returns their names."""
    names = {"report.html": "results/report.html", "compare.png": "results/figures/compare.png"}
    names |= {f"{each}.png": f"results/figures/{each}.png" for each in dict.fromkeys(row["workload"] for row in rows)}
    folder, kept = PAGES / run, []
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in names.items():
        try:
            (folder / name).write_bytes(read(path))
            kept.append(name)
        except OSError as error:
            print(f"warning: {path} is not shown ({error})")
    runs = sorted(PAGES.iterdir(), key=lambda each: each.stat().st_mtime)
    for old in runs[:-NUM_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return kept


def page(results: dict[str, Any], kept: list[str], run: str) -> str:
    """The artifact as Markdown: compare.md, links and pictures. Unless `make ui` runs, it has no pictures and shows
    paths instead of links.
    """
    rows: list[Row] = results["rows"]
    servers = repro.running_servers()
    address = f"{servers['results']}/{run}" if "results" in servers else ""
    mlflow = servers.get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
    ways = []
    if "report.html" in kept:
        where = files.relative(PAGES / run / "report.html")
        ways.append(f"[the report]({address}/report.html)" if address else f"the report: {where}, in a browser")
    if mlflow.startswith("http"):
        ways += [link for row in rows for link in links(row, mlflow)]
    pictures = [f"![{name}]({address}/{name})" for name in kept if address and name.endswith(".png")]
    return "\n\n".join([results["markdown"], "\n".join(f"- {way}" for way in ways), *pictures]).strip()


def links(row: Row, server: str) -> list[str]:
    """Links to the first seed's run in MLflow and to all runs of its workload."""
    tracking = next((run["tracking"] for run in row["runs"] if "run_id" in run["tracking"]), None)
    if tracking is None:
        return []
    experiment, name = tracking["experiment_id"], f"{row['workload']} on {row['requested']}"
    one, every = run_page(server, experiment, tracking["run_id"]), runs_page(server, experiment)
    return [f"{name}: [this run in MLflow]({one}), [all runs of {row['workload']}]({every})"]


def headline(rows: list[Row], outcomes: Mapping[str, Outcome]) -> str:
    """One line for the list of runs: `sign 0.931 on cpu, pen 0.994 on cpu; 7 ran, 2 restored, 4 unchanged`."""
    scores = [f"{row['workload']} {row['score']:.4f} on {row['device']}" for row in rows]
    counts = Counter(outcomes.values())
    words = [f"{counts[outcome]} {outcome}" for outcome in ("ran", "restored", "unchanged") if counts[outcome]]
    return "; ".join([", ".join(scores), ", ".join(words)]).strip("; ")


class Handler(SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        """Answer only requests for this machine's names: another site could point its own name here."""
        if self.headers.get("Host", "").rpartition(":")[0] not in LOOPBACK:
            self.send_error(403)
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> Any:
        self.send_error(404)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def server(port: int) -> ThreadingHTTPServer:
    PAGES.mkdir(parents=True, exist_ok=True)
    return ThreadingHTTPServer((LOOPBACK[0], port), partial(Handler, directory=str(PAGES)))
