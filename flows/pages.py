"""The artifact of a finished run: a table, pictures, and links to the report and MLflow.

The next run overwrites results/, and the results of an experiment are in no folder. So this module copies the linked
files to `.tandem/pages/<flow run>/`, which `make ui` serves: Prefect's UI loads pictures only from an address.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
    """The content of compare.json; `rows` and `verdicts` are empty if there is none."""
    try:
        results: dict[str, Any] = json.loads(read("results/compare/compare.json"))
        return results
    except OSError as error:
        print(f"warning: no results to show ({error})")
        return {"rows": [], "verdicts": []}


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
    """The artifact as Markdown. Unless `make ui` runs, it has no pictures and shows paths instead of links."""
    rows: list[Row] = results["rows"]
    servers = repro.running_servers()
    address = f"{servers['results']}/{run}" if "results" in servers else ""
    mlflow = servers.get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
    compared = len(rows) > len({row["workload"] for row in rows})
    # With one device, the table already shows everything.
    verdicts = results["verdicts"] if compared else []
    ways = []
    if "report.html" in kept:
        where = files.relative(PAGES / run / "report.html")
        ways.append(f"[the report]({address}/report.html)" if address else f"the report: {where}, in a browser")
    if mlflow.startswith("http"):
        ways += [link for row in rows for link in links(row, mlflow)]
    shown = [name for name in kept if address and name.endswith(".png") and (compared or name != "compare.png")]
    pictures = [f"![{name}]({address}/{name})" for name in shown]
    remarks = [*devices(rows), *why_no_vram(rows), *verdicts, *ways]
    parts = [table(rows), [f"- {sentence}" for sentence in remarks], *([each] for each in pictures)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def table(rows: list[Row]) -> list[str]:
    titles = ["", "test score", "s per epoch", "samples/s", "VRAM peak", "device", "measured"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        cells = [
            f"**{row['workload']}**",
            f"**{row['score']:.4f}** {row['score_name'].replace('_', ' ')}{spread(row)}",
            rounded(row["epoch_seconds"], ".3f"),
            rounded(row["samples_per_second"], ",.0f"),
            rounded(row.get("peak_allocated_mib"), ",.0f", " MiB"),
            row["device"],
            f"{row['measured_at'][:16].replace('T', ' ')} on {row['measured_on']}",
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines


def spread(row: Row) -> str:
    if len(row["seeds"]) == 1:
        return ""
    return f", mean of {len(row['seeds'])} seeds ({row['score_lowest']:.4f} to {row['score_highest']:.4f})"


def rounded(value: float | None, form: str, unit: str = "") -> str:
    return "none" if value is None else f"{value:{form}}{unit}"


def devices(rows: list[Row]) -> list[str]:
    """The hardware of each device, listed once because a name is longer than a row's numbers."""
    return grouped((f"{row['device']} is {row['device_name']}", row) for row in rows)


def why_no_vram(rows: list[Row]) -> list[str]:
    missing = [row for row in rows if row.get("peak_allocated_mib") is None]
    why = "no reason is recorded"
    return grouped(
        (f"no VRAM peak: {row.get('missing_reasons', {}).get('peak_allocated_mib', why)}", row) for row in missing
    )


def grouped(sentences: Iterable[tuple[str, Row]]) -> list[str]:
    """Each sentence once, with its workloads."""
    about: dict[str, list[str]] = {}
    for sentence, row in sentences:
        about.setdefault(sentence, []).append(row["workload"])
    return [f"{sentence} ({', '.join(dict.fromkeys(names))})" for sentence, names in about.items()]


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
