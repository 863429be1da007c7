"""`python -m flows.server HOST PORT`: Prefect's server without outside requests, and the report. `tandem ui` starts it.

`/report` is the report with links (flows/results_in_prefect.py). Prefect's UI starts an analytics library that contacts
a company's host, even if the server's settings disable it. A Content-Security-Policy makes the browser refuse that.
Everything else is as in `prefect server start`.
"""

import sys

import uvicorn
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from prefect.server.api.server import create_app
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import RequestResponseEndpoint

from flows.results_in_prefect import report_page

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


def main(host: str, port: str) -> None:
    app = create_app(final=True)

    @app.middleware("http")
    async def keep_to_this_machine(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if request.url.path == "/report":
            return HTMLResponse(await run_in_threadpool(report_page))
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    uvicorn.run(app, host=host, port=int(port), timeout_keep_alive=5, log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
