"""MLflow's response times by history size: `python -m benchmarks.history --database URL --run-id ID [--runs 10000]`

Copies one recorded run many times within MLflow's database (by SQL: its parameters, tags, and metrics of 20 epochs),
and times the requests of Tandem and of MLflow's pages before and after. MLFLOW_TRACKING_URI names the server, and
`--database` its store as an SQLAlchemy URL (PGPASSWORD holds a password). Use only a store that you can delete.

Prints a table of seconds, the median of several requests, by number of runs in the experiment.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.epochs import epochs
from benchmarks.markdown import header, row
from tandem.runs import recorded, run_dir
from tandem.runs.publish import RUN_KEY_TAG

TABLES = ("runs", "params", "tags", "metrics", "latest_metrics")
REPEATS = 5
NUM_EPOCHS = 20  # of the run whose points are copied
PAGE = 100  # runs in the first request of MLflow's page


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


def questions(run_id: str) -> dict[str, Callable[[], object]]:
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
        run.open_run(experiment, "benchmark", tags, params=dict(like.data.params))
        run.save_epochs(epochs(NUM_EPOCHS))
    while run.folder.exists():
        time.sleep(0.02)
        if "error" in (state := run_dir.read_publication(run.folder)):
            raise SystemExit(f"error: {state['error']}")


def ask(run_id: str) -> dict[str, float]:
    found = {}
    for what, question in questions(run_id).items():
        question()  # warm-up: connections, caches
        seconds = []
        for _ in range(REPEATS):
            since = time.perf_counter()
            question()
            seconds.append(time.perf_counter() - since)
        found[what] = statistics.median(seconds)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--database", required=True, help="MLflow's store, such as postgresql://tandem@127.0.0.1/mlflow"
    )
    parser.add_argument("--run-id", required=True, help="the run to copy")
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args(arguments)
    before = ask(options.run_id)
    since = time.perf_counter()
    rows = copy_run(options.database, options.run_id, options.runs)
    print(f"{options.runs:,} runs, {rows:,} rows, copied in {time.perf_counter() - since:.1f} s\n")
    after = ask(options.run_id)
    print(header("", "before", f"with {options.runs:,} more runs"))
    for what in before:
        print(row(what, f"{before[what]:.3f} s", f"{after[what]:.3f} s"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
