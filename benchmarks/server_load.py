"""The cost of one request to the team's servers: `python -m benchmarks.server_load [--requests 100]`

Sends the usual requests of workers and trainings to Prefect (PREFECT_API_URL) and MLflow (MLFLOW_TRACKING_URI), which
must run on this machine, and reads the processor seconds of their processes, which a busy machine hardly affects.
`--database-port` adds PostgreSQL's own share. Use only servers that you can delete.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psutil

from benchmarks.markdown import header, row
from tandem.runs import recorded


def spent(ports: list[int]) -> float:
    """Processor seconds of all processes that listen on these ports, including living and dead children."""
    pids = {each.pid for each in psutil.net_connections("inet") if each.status == "LISTEN" and each.laddr.port in ports}
    roots = [psutil.Process(pid) for pid in pids if pid]
    every = {process for root in roots for process in (root, *root.children(recursive=True))}
    return sum(sum(process.cpu_times()[:4]) for process in every)


def of_prefect() -> dict[str, Callable[[], object]]:
    import httpx

    auth = os.environ.get("PREFECT_API_AUTH_STRING", ":").partition(":")
    client = httpx.Client(base_url=os.environ["PREFECT_API_URL"], auth=(auth[0], auth[2]), timeout=120)

    def post(path: str, body: Any) -> Any:
        answer = client.post(path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    runs = post("/flow_runs/filter", {"limit": 1})
    line = {"name": "benchmark", "level": 20, "flow_run_id": runs[0]["id"], "message": "epoch 1/2: train loss 1.0"}
    at = datetime.now(UTC).isoformat()
    return {
        "Prefect: a worker asks for work": lambda: post("/work_pools/cpu/get_scheduled_flow_runs", {}),
        "Prefect: a worker says that it lives": lambda: client.post(
            "/work_pools/cpu/workers/heartbeat", json={"name": "b"}
        ),
        "Prefect: a run's state is read": lambda: client.get(f"/flow_runs/{runs[0]['id']}").raise_for_status(),
        "Prefect: ten lines of a log": lambda: post("/logs/", [line | {"timestamp": at}] * 10),
    }


def of_mlflow() -> dict[str, Callable[[], object]]:
    from mlflow.entities import Metric

    client: Any = recorded.open_store()
    run = client.create_run(client.create_experiment(f"benchmark-{uuid4().hex}")).info.run_id
    steps = iter(range(10**9))

    def epoch() -> None:
        step = next(steps)
        client.log_batch(run, metrics=[Metric(f"m{index}", 1.0, step, step) for index in range(10)])

    return {"MLflow: ten metrics of an epoch": epoch, "MLflow: a run is read": lambda: client.get_run(run)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_load", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="of each kind")
    parser.add_argument("--database-port", type=int, help="PostgreSQL's; its processor time is then counted, too")
    options = parser.parse_args(arguments)
    database = [options.database_port] if options.database_port else []
    print(header("request", "processor time of the server", "with its database"))
    for name, asked in (("PREFECT_API_URL", of_prefect), ("MLFLOW_TRACKING_URI", of_mlflow)):
        port = urlsplit(os.environ[name]).port
        assert port
        for what, question in asked().items():
            question()
            before = spent([port]), spent(database)
            for _ in range(options.requests):
                question()
            server, stored = (now - then for now, then in zip((spent([port]), spent(database)), before, strict=True))
            server, both = (1000 * value / options.requests for value in (server, server + stored))
            print(row(what, f"{server:.1f} ms", f"{both:.1f} ms" if database else "not asked for"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
