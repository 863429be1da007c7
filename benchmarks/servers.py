"""What the team's servers cost (docs/team.md). Use only servers and stores that you can delete.

    python -m benchmarks.servers load [--requests 100]
    python -m benchmarks.servers history --database URL --run-id ID [--runs 10000]

load: the processor seconds of Prefect's server (PREFECT_API_URL) and of MLflow's (MLFLOW_TRACKING_URI) for the usual
requests of workers and trainings. Both must run on this machine; other processes hardly affect these numbers.
`--database-port` adds PostgreSQL's own share.

history: MLflow's response times, the median of several requests, before and after one recorded run was copied many
times within MLflow's database (by SQL: its parameters, tags, and metrics of 20 epochs). `--database` is MLflow's store
as an SQLAlchemy URL (PGPASSWORD holds a password).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.markdown import header, row
from tandem.runs import recorded, run_dir
from tandem.runs.publisher import RUN_KEY_TAG
from tests.epochs import epochs

TABLES = ("runs", "params", "tags", "metrics", "latest_metrics")
REPEATS = 5
NUM_EPOCHS = 20  # of the run whose points are copied
PAGE = 100  # runs in the first request of MLflow's page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("load")
    one.add_argument("--requests", type=int, default=100, metavar="N", help="of each kind")
    one.add_argument("--database-port", type=int, help="PostgreSQL's; its processor time is then counted, too")
    one.set_defaults(measure=measure_load)
    other = commands.add_parser("history")
    other.add_argument("--database", required=True, help="such as postgresql://tandem@127.0.0.1/mlflow")
    other.add_argument("--run-id", required=True, help="the run to copy")
    other.add_argument("--runs", type=int, default=10_000)
    other.set_defaults(measure=measure_history)
    options = parser.parse_args()
    options.measure(options)


def measure_load(options: argparse.Namespace) -> None:
    database = [options.database_port] if options.database_port else []
    print(header("request", "processor time of the server", "with its database"))
    for name, asked in (("PREFECT_API_URL", prefect_requests), ("MLFLOW_TRACKING_URI", mlflow_requests)):
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


def spent(ports: list[int]) -> float:
    """Processor seconds of all processes that listen on these ports, including living and dead children."""
    pids = {each.pid for each in psutil.net_connections("inet") if each.status == "LISTEN" and each.laddr.port in ports}
    roots = [psutil.Process(pid) for pid in pids if pid]
    every = {process for root in roots for process in (root, *root.children(recursive=True))}
    return sum(sum(process.cpu_times()[:4]) for process in every)


def prefect_requests() -> dict[str, Callable[[], object]]:
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


def mlflow_requests() -> dict[str, Callable[[], object]]:
    from mlflow.entities import Metric

    client: Any = recorded.open_store()
    run = client.create_run(client.create_experiment(f"benchmark-{uuid.uuid4().hex}")).info.run_id
    steps = iter(range(10**9))

    def epoch() -> None:
        step = next(steps)
        client.log_batch(run, metrics=[Metric(f"m{index}", 1.0, step, step) for index in range(10)])

    return {"MLflow: ten metrics of an epoch": epoch, "MLflow: a run is read": lambda: client.get_run(run)}


def measure_history(options: argparse.Namespace) -> None:
    before = seconds_of_requests(options.run_id)
    since = time.perf_counter()
    rows = copy_run(options.database, options.run_id, options.runs)
    print(f"{options.runs:,} runs, {rows:,} rows, copied in {time.perf_counter() - since:.1f} s\n")
    after = seconds_of_requests(options.run_id)
    print(header("", "before", f"with {options.runs:,} more runs"))
    for what in before:
        print(row(what, f"{before[what]:.3f} s", f"{after[what]:.3f} s"))


def seconds_of_requests(run_id: str) -> dict[str, float]:
    found = {}
    for what, question in history_requests(run_id).items():
        question()  # warm-up: connections, caches
        seconds = []
        for _ in range(REPEATS):
            since = time.perf_counter()
            question()
            seconds.append(time.perf_counter() - since)
        found[what] = statistics.median(seconds)
    return found


def history_requests(run_id: str) -> dict[str, Callable[[], object]]:
    """The requests, by name."""
    entry = recorded.entry_of(run_id)
    experiment, name = [entry.info.experiment_id], recorded.name_of(entry)
    run_key = entry.data.tags[RUN_KEY_TAG]
    client: Any = recorded.open_store()
    newest = ["attributes.start_time DESC"]
    return {
        f"the page of runs: the newest {PAGE}": lambda: client.search_runs(
            experiment, max_results=PAGE, order_by=newest
        ),
        f"the latest run of a name ({name})": lambda: recorded.entry_of(name),
        "the publisher asks for its run, by a tag": lambda: client.search_runs(
            experiment, f"tags.`{RUN_KEY_TAG}` = '{run_key}'"
        ),
        "the publisher writes ten metrics and a tag": lambda: write(client, run_id),
        f"a whole run of {NUM_EPOCHS} epochs, MLflow's import included": lambda: publish_run(entry),
    }


def write(client: Any, run_id: str) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    client.log_batch(run_id, metrics=[Metric(f"benchmark/{index}", 1.0, now, 0) for index in range(10)])
    client.set_tag(run_id, "benchmark", str(now))


def publish_run(like: Any) -> None:
    """Publish a training, from its first file until MLflow has all of it."""
    tags = {name: value for name, value in like.data.tags.items() if name != RUN_KEY_TAG and "." not in name}
    experiment = recorded.open_store().get_experiment(like.info.experiment_id).name
    with run_dir.recording(uuid.uuid4().hex, "train") as run:
        run.write_info(experiment, "benchmark", tags, params=dict(like.data.params))
        run.save_epochs(epochs(NUM_EPOCHS))
    while run.folder.exists():
        time.sleep(0.02)
        if "error" in (state := run_dir.read_publication(run.folder)):
            raise SystemExit(f"error: {state['error']}")


def copy_run(database: str, run_id: str, number: int) -> int:
    """Copy the run `number` times, each a minute older. Returns the number of inserted rows."""
    from sqlalchemy import BigInteger, Column, MetaData, String, Table, case, create_engine, insert, select

    engine, metadata, made = create_engine(database), MetaData(), 0
    copies = Table("copies", metadata, Column("id", String(32)), Column("earlier", BigInteger), prefixes=["TEMPORARY"])
    with engine.begin() as connection:
        copies.create(connection)
        ids = [{"id": uuid.uuid4().hex, "earlier": 60_000 * index} for index in range(1, number + 1)]
        connection.execute(insert(copies), ids)
        for name in TABLES:
            table = Table(name, metadata, autoload_with=engine)
            values: dict[str, Any] = {column.name: column for column in table.columns} | {"run_uuid": copies.c.id}
            if name == "runs":
                values["start_time"] = table.c.start_time - copies.c.earlier
            if name == "tags":  # each run has its own key
                values["value"] = case((table.c.key == RUN_KEY_TAG, copies.c.id), else_=table.c.value)
            rows = select(*values.values()).select_from(table.join(copies, table.c.run_uuid == run_id))
            if name == "metrics":
                rows = rows.where(table.c.step < NUM_EPOCHS)
            made += connection.execute(insert(table).from_select(list(values), rows)).rowcount
    return made


if __name__ == "__main__":
    main()
