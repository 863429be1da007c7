"""`python -m flows.prefect_server HOST PORT`: Prefect's server without outside requests, and the report.

`tandem ui` starts it. `/report` is the report with links to MLflow and Prefect. Prefect's UI starts an analytics
library that contacts a company's host, even if the server's settings disable it. A Content-Security-Policy makes the
browser refuse that. Everything else is as in `prefect server start`.
"""

import html
import json
import sys

import uvicorn
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from prefect.server.api.server import create_app
from starlette.middleware.base import RequestResponseEndpoint

from flows.results_in_prefect import mlflow_links
from flows.ui import running_servers
from tandem import files

# Both names of this machine; a tunnel keeps them. Needed for the API and its events.
LOCAL = "127.0.0.1:* localhost:*"
POLICY = "; ".join(
    (
        f"default-src 'self' {LOCAL}",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        f"img-src 'self' data: blob: {LOCAL}",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        f"connect-src 'self' {LOCAL} ws://127.0.0.1:* ws://localhost:*",
    )
)

PREFECT_LINKS = (
    '<a href="/v2/deployments">start or schedule the pipeline</a>, <a href="/v2/runs">runs</a>. '
    "<code>tandem repro</code> and <code>dvc repro</code> do not use Prefect, so Prefect does not list their runs."
)
NO_REPORT = "<p>There is no report yet. Run <code>tandem repro</code>, or start the deployment in Prefect.</p>"


def main(host: str, port: str) -> None:
    app = create_app(final=True)

    @app.middleware("http")
    async def keep_to_this_machine(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if request.url.path == "/report":
            return HTMLResponse(report_page())
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    uvicorn.run(app, host=host, port=int(port), timeout_keep_alive=5, log_level="warning")


def report_page() -> str:
    """results/report.html with links to MLflow and Prefect in its header, as HTML."""
    try:
        rows = json.loads((files.compare_dir() / "compare.json").read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        rows = []
    server = running_servers().get("mlflow", "")
    parts = [
        f"<strong>{html.escape(workload)}</strong> {', '.join(link(*page) for page in pages)}"
        for workload, pages in mlflow_links(rows, server).items()
    ]
    mlflow = "; ".join(parts) or link("no runs yet", server)
    links = f'<p class="note">In MLflow: {mlflow}<br>In Prefect: {PREFECT_LINKS}</p>'
    try:
        report = (files.results_dir() / "report.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"<!DOCTYPE html><title>Tandem</title><h1>Tandem</h1>{NO_REPORT}{links}"
    return report.replace("</header>", f"{links}</header>", 1)


def link(text: str, address: str) -> str:
    return f'<a href="{html.escape(address)}">{html.escape(text)}</a>'


if __name__ == "__main__":
    main(*sys.argv[1:])
