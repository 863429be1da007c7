"""One run at a time on a repository: DVC would refuse a second one, and two trainings would share one device.

A run that finds the repository taken waits, and says for whom: a run of `flows.serve` finds it so where one was started
from a terminal. What waits within `flows.serve` is told by flows/waiting.py.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.states import Crashed, Running, State

from flows.display import end_runs, prefect_client
from stages import files

NOTE = files.STATE / "pipeline.json"  # about the run that has the repository


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Have the repository alone; wait for it where another process has it.

    A run of a work pool has the machine alone, too, as far as its user's other clones have workers: two trainings on
    one GPU would both be slow, and neither could be compared with anything.
    """
    context = FlowRunContext.get()
    is_of_pool = context and context.flow_run and context.flow_run.work_pool_name
    with taken(files.STATE / "pipeline.lock", "this repository"):
        with taken(files.user_cache_dir() / "worker.lock", "this machine") if is_of_pool else nullcontext():
            yield


@contextmanager
def taken(path: Path, what: str) -> Iterator[None]:
    """Have the lock `path`, which stands for `what`; wait for it where another process has it, and say so."""
    with files.locked(path, wait=False) as holder:
        if holder is None:
            yield
            return
    print(f"another pipeline run works in {what} (process {holder}); waiting for it")
    show(Running(name=f"Waiting for {name_of(holder)}", message=f"process {holder} works in {what}"))
    with files.locked(path):
        show(Running())
        yield


def name_of(process: int) -> str:
    try:
        note = files.read_json(NOTE)
        return str(note["name"]) if note["process"] == process else f"process {process}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"process {process}"


def show(state: State[None]) -> None:
    """Give this flow run a state of its own words. Without it nothing is lost."""
    context = FlowRunContext.get()
    with suppress(HTTPError, PrefectException):
        if context and context.flow_run:
            with prefect_client(timeout=5.0) as client:
                client.set_flow_run_state(context.flow_run.id, state)


@contextmanager
def known_to_the_next(run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Show the run that had the repository before, and was killed, as Crashed; leave a note for the next.

    A process that is killed tells Prefect nothing: its run and the stages below it would stay Running.
    """
    url = str(client.api_url)
    try:
        left = files.read_json(NOTE)
        if left["api"] == url:
            gone: State[None] = Crashed(message="its process was killed; the next run found it so")
            end_runs(client, gone, parent_flow_run_id={"any_": [left["run"]]})
            if left["run"] != str(run.id):  # of a run that was killed and goes on itself, the stages alone
                end_runs(client, gone, id={"any_": [left["run"]]})
    except (OSError, ValueError, KeyError, TypeError, HTTPError, PrefectException):
        pass  # no note, or the server does not know the run any more: nothing is displayed wrongly
    files.write_json(NOTE, {"api": url, "run": str(run.id), "name": run.name, "process": os.getpid()})
    try:
        yield
    finally:
        NOTE.unlink(missing_ok=True)
