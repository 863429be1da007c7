"""`python -m tandem.runs.mlflow_server HOST PORT STORE ARTIFACTS`: MLflow's server, with other defaults in the browser.

A new browser would show MLflow's pages for language models, an assistant and a notice about telemetry. The first page
sets what a user can also set by hand: the pages for trainings, no assistant, no telemetry. A user's own setting stays.
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

PAGE = Path(mlflow.server.__file__).parent / "js/build/index.html"

# The names under which MLflow's pages store a setting in the browser.
SETTINGS = {
    "mlflow.workflowType_v1": "machine_learning",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,
    "mlflow.assistant.panelOpen_v1": False,
    "mlflow.settings.telemetry.enabled_v1": False,
    "mlflow.telemetry.info.alert.dismissed_v1": True,
}
SCRIPT = (
    f"<script>for (const [name, value] of Object.entries({json.dumps(SETTINGS)}))"
    " if (localStorage.getItem(name) === null) localStorage.setItem(name, JSON.stringify(value))</script>"
)


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
