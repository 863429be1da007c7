"""`make screenshots`: does in a browser what a user does, and takes the pictures that the documents show.

    python -m tests.screenshots [FOLDER]     # of this project's results; `make ui` must run

It opens the report, starts the default run and an experiment by Prefect's form, cancels a third, has three seeds
trained and a recorded run verified, opens MLflow's runs, then two of them, then one. A step that does not come about
ends it, so it is a test of these pages too. It needs Chromium, and playwright (tests/browser.txt), which no other
part needs.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from flows import ui
from tandem import files
from tandem.tracking.store import run_page
from tandem.tracking.view import runs_page
from tests.conftest import CHROMIUM
from tests.projects import wait_for

SCREEN = {"width": 1440, "height": 900}
SECONDS = 300.0  # for a run, on a busy machine


class Walk:
    def __init__(self, page: Page, servers: dict[str, str], folder: Path) -> None:
        self.page, self.servers, self.folder = page, servers, folder
        page.set_default_timeout(SECONDS * 1000)

    def api(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.servers['prefect']}/api{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def take(self, name: str) -> None:
        self.page.wait_for_timeout(1500)  # for what a page draws after its data has come
        self.page.screenshot(path=self.folder / f"{name}.png")
        print(f"{name}.png", flush=True)

    def wait_for_state(self, run: str, *wanted: str) -> str:
        def reached() -> str:
            state = str(self.api(f"/flow_runs/{run}")["state"]["type"])
            return state if state in wanted else ""

        return str(wait_for(reached, SECONDS, f"a run that is {' or '.join(wanted)}"))

    def form(self) -> None:
        deployment = self.api("/deployments/name/pipeline/pipeline")["id"]
        self.page.goto(f"{self.servers['prefect']}/v2/deployments/deployment/{deployment}/run")
        self.page.get_by_text("Overrides").first.wait_for()

    def submit(self) -> str:
        """The id of the flow run that the form makes, and its page."""
        name = self.page.get_by_label("Run Name").input_value()
        self.page.get_by_role("button", name="Submit").click()
        [run] = wait_for(lambda: self.api("/flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}}), SECONDS)
        self.page.goto(f"{self.servers['prefect']}/v2/runs/flow-run/{run['id']}")
        return str(run["id"])

    def start(self) -> None:
        """The form as it opens, and one click: the default run."""
        self.form()
        self.take("prefect-form")
        run = self.submit()
        assert self.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
        [artifact] = self.artifacts(run, key="results")
        self.page.goto(f"{self.servers['prefect']}/v2/artifacts/artifact/{artifact['id']}")
        self.page.get_by_role("cell").first.wait_for()
        self.take("prefect-results")

    def submit_with(self, override: str) -> str:
        """The form with an override typed in: a DVC experiment, which leaves the workspace alone."""
        self.form()
        self.page.locator(".cm-content").last.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(override)
        return self.submit()

    def experiment(self, override: str) -> None:
        run = self.submit_with(override)
        assert self.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
        self.page.reload()
        self.page.get_by_text("Completed").first.wait_for()

    def cancel(self, override: str) -> None:
        """A run that is cancelled by the page's menu while it trains."""
        run = self.submit_with(override)
        child = {"parent_flow_run_id": {"any_": [run]}, "name": {"like_": "train@"}}
        wait_for(lambda: self.api("/flow_runs/filter", {"flow_runs": child}), SECONDS, "a training")
        self.page.reload()
        self.page.get_by_text("Running").first.wait_for()
        self.page.get_by_role("button", name="Open menu").or_(self.page.get_by_label("Actions")).first.click()
        self.page.get_by_role("menuitem", name="Cancel").click()
        self.page.get_by_role("button", name="Cancel").last.click()
        self.wait_for_state(run, "CANCELLED")
        self.page.reload()
        self.page.get_by_text("Cancelled").first.wait_for()

    def run(self, deployment: str, **parameters: Any) -> str:
        """The id of a finished run that was asked for without the form."""
        address = self.api(f"/deployments/name/{deployment}")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        run = str(self.api(f"/deployments/{address}/create_flow_run", body)["id"])
        assert self.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
        return run

    def verify(self, recorded: str) -> None:
        """A recorded run made again, its first epochs only: the verdict is the run's artifact."""
        [artifact] = self.artifacts(self.run("verify/verify", run=recorded, quick=True))
        self.page.goto(f"{self.servers['prefect']}/v2/artifacts/artifact/{artifact['id']}")
        self.page.get_by_text("bit-equal").first.wait_for()

    def artifacts(self, run: str, **criteria: str) -> Any:
        filters = {name: {"any_": [value]} for name, value in criteria.items()}
        return self.api("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}, **filters}})

    def mlflow(self, tracking: dict[str, str]) -> None:
        """The saved view, and a run's own page."""
        server = self.servers["mlflow"]
        self.page.goto(runs_page(server, tracking["experiment_id"]))
        self.page.locator(".ag-row [col-id*='Run Name'] button").first.wait_for()  # the parent run of several seeds
        self.take("mlflow-runs")
        self.page.goto(run_page(server, tracking["experiment_id"], tracking["run_id"]))
        self.page.get_by_text("test/").first.scroll_into_view_if_needed()

    def report(self) -> None:
        self.page.goto((files.results_dir() / "report.html").as_uri())
        self.take("report")


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else files.ROOT / "docs/pages")
    servers = ui.running_servers()
    if not servers or CHROMIUM is None:
        sys.exit(f"error: {'Chromium is not installed' if servers else '`make ui` does not run'}")
    rows = json.loads((files.compare_dir() / "compare.json").read_text(encoding="utf-8"))["rows"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        walk = Walk(browser.new_page(viewport=SCREEN), servers, folder)
        walk.report()
        walk.start()
        workload = rows[0]["workload"]
        walk.experiment(f'{{"{workload}.train.epochs": 8}}')
        overrides = {f"{workload}.train.epochs": 8}
        walk.run("pipeline/pipeline", workloads=[workload], seeds=[0, 1, 2], overrides=overrides)
        walk.verify(f"{workload}@{rows[0]['requested']}")
        walk.cancel(f'{{"{workload}.train.epochs": 5000}}')
        walk.mlflow(rows[0]["runs"][0]["tracking"])
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
