"""One run at a time per repository: DVC would refuse a second one, and two trainings would share one device.

If another run has the repository, a run waits and says so in its log.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.states import Crashed, State

from flows.prefect_api import end_runs
from tandem import files

NOTE = files.STATE / "pipeline.json"  # describes the run that has the repository


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lock the repository; wait if another process has it.

    A run of a work pool also locks the machine, across its user's other clones with workers: two trainings on one GPU
    would both be slow, and their times could not be compared.
    """
    context = FlowRunContext.get()
    is_of_pool = context and context.flow_run and context.flow_run.work_pool_name
    with taken(files.STATE / "pipeline.lock", "this repository"):
        with taken(files.user_cache_dir() / "worker.lock", "this machine") if is_of_pool else nullcontext():
            yield


@contextmanager
def taken(path: Path, what: str) -> Iterator[None]:
    """Take the lock `path`, which stands for `what`. If another process has it, wait and report that."""
    with files.locked(path, wait=False) as holder:
        if holder is None:
            yield
            return
    print(f"another pipeline run uses {what} (process {holder}); waiting for its end")
    with files.locked(path):
        yield


@contextmanager
def known_to_the_next(run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Leave a note of this run while it has the repository. If its process is killed, the next run finds the note.

    A killed process sends nothing to Prefect. Its runner or worker sets its run to Crashed, or Prefect restarts it; the
    runs of its stages would stay Running.
    """
    url = str(client.api_url)
    try:
        killed = files.read_json(NOTE)
        if killed["api"] == url:
            crashed: State[None] = Crashed(message="its process was killed, as the next run has found")
            end_runs(client, crashed, parent_flow_run_id={"any_": [killed["run"]]})
    except (OSError, ValueError, KeyError, TypeError, HTTPError, PrefectException):
        pass  # no note, or the server has deleted the run: nothing to correct
    files.write_json(NOTE, {"api": url, "run": str(run.id)})
    try:
        yield
    finally:
        NOTE.unlink(missing_ok=True)
