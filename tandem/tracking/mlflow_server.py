"""MLflow's server, with other defaults in the browser.

    python -m tandem.tracking.mlflow_server HOST PORT STORE ARTIFACTS

A new browser would show MLflow's pages for language models, an assistant, a notice about telemetry, and a table of runs
without any metric. The first page sets what a user can also set by hand: the pages for trainings, no assistant, no
telemetry, and the columns of the table. A user's own setting stays.
"""

import json
import os
import sys
from pathlib import Path

import mlflow.server
import uvicorn
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from mlflow.server import constants
from mlflow.server.handlers import initialize_backend_stores
from starlette.middleware.base import RequestResponseEndpoint

from tandem.tracking.view import TABLE

PAGE = Path(mlflow.server.__file__).parent / "js/build/index.html"

# The names under which MLflow's pages store a setting in the browser.
SETTINGS = {
    "mlflow.workflowType_v1": "machine_learning",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,
    "mlflow.assistant.panelOpen_v1": False,
    "mlflow.settings.telemetry.enabled_v1": False,
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
# The table of an experiment that this browser has not opened yet. MLflow selects the columns source, models and dataset
# for every experiment, and no metric, parameter or tag.
TABLE_NAME = r"^MLflowLocalStorage-.+-ExperimentPage-.+-ReactComponentState$"
SCRIPT = f"""<script>
for (const [name, value] of Object.entries({json.dumps(SETTINGS)}))
  if (localStorage.getItem(name) === null) localStorage.setItem(name, JSON.stringify(value))
const stored = Storage.prototype.getItem
Storage.prototype.getItem = function (name) {{
  return stored.call(this, name) ?? (/{TABLE_NAME}/.test(name) ? {json.dumps(json.dumps(TABLE))} : null)
}}
</script>"""


def main(host: str, port: str, store: str, artifacts: str) -> None:
    # `mlflow server` sets these for the workers that it starts.
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    initialize_backend_stores(store, default_artifact_root=artifacts)
    from mlflow.server.fastapi_app import app  # reads the environment

    @app.middleware("http")
    async def open_for_trainings(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if request.url.path != "/":
            return await call_next(request)
        return HTMLResponse(PAGE.read_text(encoding="utf-8").replace("<head>", f"<head>{SCRIPT}", 1))

    uvicorn.run(app, host=host, port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
