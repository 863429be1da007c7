"""The flow runs of this project: calls of Prefect's API with a time limit, and one run at a time.

DVC would refuse a second run in a repository, and two trainings would share one device. If another run has the
repository, a run waits and says so in its log.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from httpx import HTTPError, Limits
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings, temporary_settings
from prefect.states import Cancelled, Crashed, State

from flows.other_runs import LOCK, described
from tandem import files
from tandem.terminal.command import CommandError

FLOWS = ("pipeline", "verify")  # of this project; Prefect knows a flow by its name
STAGE_TAG = "tandem"  # of the flow runs of stages, whose flows have the stages' names
UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # states of a started, unfinished run
NOT_STARTED = [StateType.SCHEDULED, StateType.PENDING]
NOTE = files.STATE / "pipeline.json"  # describes the run that has the repository


@contextmanager
def prefect_client(timeout: float, retries: int = 1) -> Iterator[SyncPrefectClient]:
    """Prefect's client for the API in use. Each attempt has a time limit of `timeout` seconds.

    Raises CommandError if no API is set: only a flow may use the temporary server that Prefect then starts.
    """
    if not get_current_settings().api.url and FlowRunContext.get() is None:
        raise CommandError("no Prefect server; start `tandem ui`, or set PREFECT_API_URL to the server's address")
    # The server closes connections that are idle for 5 s.
    httpx_settings = {"timeout": timeout, "limits": Limits(keepalive_expiry=4.0)}
    settings: dict[Any, Any] = {"client.max_retries": retries}
    with temporary_settings(settings), get_client(httpx_settings, sync_client=True) as client:
        yield client


def unfinished_runs(client: SyncPrefectClient, **criteria: Any) -> list[FlowRun]:
    """Tandem's flow runs that have started, have not ended and match `criteria`, the fields of Prefect's FlowRunFilter.
    Those of other clones of Tandem on the same server are among them, those of other projects are not.
    """
    filters = {"state": {"type": {"any_": UNFINISHED}}, **criteria}
    of_flows = client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": [*FLOWS]}}),
        flow_run_filter=FlowRunFilter.model_validate(filters),
    )
    tagged = FlowRunFilter.model_validate({**filters, "tags": {"all_": [STAGE_TAG]}})
    of_stages = client.read_flow_runs(flow_run_filter=tagged)
    return [*of_flows, *of_stages]


def end_runs(client: SyncPrefectClient, state: State[Any], **criteria: Any) -> None:
    """Set the state of the unfinished flow runs that match `criteria`."""
    for run in unfinished_runs(client, **criteria):
        client.set_flow_run_state(run.id, state, force=True)


def skipped_state(run: FlowRun) -> State[Any] | None:
    """Return the state of a scheduled run that came too late: a newer run of its schedule is due too. Otherwise None.

    Prefect runs every time that a schedule has missed, for example the nights without `tandem ui`. Only the last one is
    needed, because it runs what has changed since.
    """
    if not run.auto_scheduled or run.expected_start_time is None:  # a user has created it
        return None
    due = {"after_": run.expected_start_time, "before_": datetime.now(UTC)}
    criteria = {"state": {"type": {"any_": NOT_STARTED}}, "expected_start_time": due}
    run_filter = FlowRunFilter.model_validate({"deployment_id": {"any_": [run.deployment_id]}, **criteria})
    try:
        with prefect_client(timeout=5.0) as client:
            due_runs = client.read_flow_runs(flow_run_filter=run_filter)
    except (HTTPError, PrefectException):
        return None
    scheduled = [other for other in due_runs if other.auto_scheduled and other.parameters == run.parameters]
    times = [other.expected_start_time for other in scheduled if other.id != run.id and other.expected_start_time]
    if not times:
        return None
    return Cancelled(name="Skipped", message=f"missed; the run of {max(times).astimezone():%Y-%m-%d %H:%M} is due too")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lock the project, as `tandem repro` does; wait if another process has it.

    A run of a work pool also locks the machine, across its user's other clones with workers: two trainings on one GPU
    would both be slow, and their times could not be compared.
    """
    context = FlowRunContext.get()
    is_of_pool = context and context.flow_run and context.flow_run.work_pool_name
    with lock_taken(LOCK, "this project"):
        with lock_taken(files.user_cache_dir() / "worker.lock", "this machine") if is_of_pool else nullcontext():
            yield


@contextmanager
def lock_taken(path: Path, resource: str) -> Iterator[None]:
    """Take the lock `path`, which stands for `resource`. If another process has it, wait and report that."""
    with files.locked(path, wait=False) as holder:
        if holder is None:
            yield
            return
    print(f"{described(holder)} uses {resource}; waiting for its end")
    with files.locked(path):
        yield


@contextmanager
def note_left(run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Leave a note of this run while it has the repository. If its process is killed, the next run finds the note.

    A killed process sends nothing to Prefect. Its runner or worker sets its run to Crashed, or Prefect restarts it; the
    runs of its stages would stay Running.
    """
    url = str(client.api_url)
    try:
        note = files.read_json(NOTE)
        if note["api"] == url:
            crashed: State[None] = Crashed(message="its process was killed, as the next run has found")
            end_runs(client, crashed, parent_flow_run_id={"any_": [note["run"]]})
    except (OSError, ValueError, KeyError, TypeError, HTTPError, PrefectException):
        pass  # no note, or the server has deleted the run: nothing to correct
    files.write_json(NOTE, {"api": url, "run": str(run.id)})
    try:
        yield
    finally:
        NOTE.unlink(missing_ok=True)
