"""Shows a pipeline run in Prefect's UI: each stage is a child flow run with its log lines.

`Display` receives the lines and events of the child process that runs DVC. A thread of the flow's process calls
Prefect's client, so a slow server delays no stage. If the server is lost, only the display is lost.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from uuid import uuid4

import httpx
from prefect import Flow, Task, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.settings import temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, State

from flows.processes import Event, Outcome
from tandem.passwords import without_password
from tandem.stage import STAGES

UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # states of a started, unfinished run
SECONDS_BETWEEN_POLLS = 2.0
SECONDS_TO_FINISH = 15.0  # to send the rest after DVC has ended
NOT_RUN: dict[Outcome, str] = {
    "unchanged": "unchanged since the last run",
    "restored": "restored from DVC's run-cache, timings included",
}
RESUME = "the same run again (Retry in Prefect) goes on from the last checkpoint"
T = TypeVar("T")


class StageCancelled(Exception):
    """A user cancelled the flow run of the named stage."""


@contextmanager
def prefect_client(timeout: float, url: str | None = None, retries: int = 1) -> Iterator[SyncPrefectClient]:
    """Prefect's client for `url`, or for the API in use. Each attempt has a time limit of `timeout` seconds."""
    # The server closes connections that are idle for 5 s.
    httpx_settings = {"timeout": timeout, "limits": httpx.Limits(keepalive_expiry=4.0)}
    settings: dict[Any, Any] = {"client.max_retries": retries} | ({"api.url": url} if url else {})
    with temporary_settings(settings), get_client(httpx_settings, sync_client=True) as client:
        yield client


def unfinished(client: SyncPrefectClient, **criteria: Any) -> list[FlowRun]:
    """The flow runs that have started, have not ended and match `criteria`, the fields of Prefect's FlowRunFilter."""
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": UNFINISHED}}, **criteria})
    return client.read_flow_runs(flow_run_filter=wanted)


def end_runs(client: SyncPrefectClient, state: State[Any], **criteria: Any) -> None:
    for run in unfinished(client, **criteria):
        client.set_flow_run_state(run.id, state, force=True)


class Display:
    """The child flow runs, log lines and artifact of one pipeline run.

    `line`, `event` and `tick` are called while DVC runs and return at once; a thread sends what they queue.
    """

    def __init__(self, pipeline_run: FlowRun, client: SyncPrefectClient):
        self.pipeline_run, self.client = pipeline_run, client
        self.outcomes: dict[str, Outcome] = {}  # of each stage that DVC has examined
        self.failure = ""
        self.child: FlowRun | None = None  # of the running stage
        self.cancelled_stage = ""
        self.next_poll = 0.0
        self.todo: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.is_lost = False
        # Otherwise Prefect's log handler prints an error for each batch of lines after the server is lost.
        logging.raiseExceptions = False

    def __enter__(self) -> "Display":
        # The thread needs this context for Prefect's settings and for the logger of the pipeline's run.
        self.thread = Thread(target=copy_context().run, args=(self.work,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.finish()
        if kind is not None:
            why = "cancelled" if kind is StageCancelled else "stopped with the pipeline run above it"
            final: State[Any] = Cancelled(message=f"{why}; {RESUME}")
            self.send(lambda: end_runs(self.client, final, parent_flow_run_id={"any_": [self.pipeline_run.id]}))
            get_run_logger().warning("stopped; %s", RESUME)  # Prefect's runner sets its own message on the run

    def line(self, line: str) -> None:
        if line:
            self.todo.put(partial(self.log, line))

    def event(self, event: Event) -> None:
        if event.stage:
            self.outcomes[event.stage] = event.outcome
        if event.outcome == "failed":
            self.failure = self.failure or event.reason  # DVC's own error comes last and says only which stage failed
        self.todo.put(partial(self.show, event))

    def stage_ended(self, state: State[Any]) -> None:
        self.todo.put(partial(self.end_child, state))

    def tick(self) -> None:
        """Raise StageCancelled if a user has cancelled the stage's flow run."""
        if self.cancelled_stage:
            raise StageCancelled(self.cancelled_stage)
        self.todo.put(self.poll)

    # The thread runs the methods below.

    def work(self) -> None:
        """Send queued requests until `finish`."""
        for request in iter(self.todo.get, None):
            request()

    def finish(self) -> None:
        """Wait until everything is sent."""
        self.todo.put(None)
        self.thread.join(SECONDS_TO_FINISH)

    def log(self, line: str) -> None:
        first = line.partition(":")[0].lower()
        is_error = first in ("error", "traceback (most recent call last)")
        level = logging.ERROR if is_error else logging.WARNING if first.endswith("warning") else logging.INFO
        logger = flow_run_logger(self.child) if self.child else get_run_logger()
        logger.log(level, "%s", line)

    def show(self, event: Event) -> None:
        if event.outcome == "running":
            self.start_child(event.stage)
        elif event.outcome in NOT_RUN:
            state: State[Any] = Completed(name="Cached", message=NOT_RUN[event.outcome])
            self.send(lambda: self.create_task_run(event.stage, state))
        else:
            self.end_child(Completed() if event.outcome == "ran" else self.failed_state(event))

    def create_task_run(self, name: str, state: State[Any] | None = None) -> TaskRun:
        task, key = Task(do_nothing, name=name.partition("@")[0]), f"{name}-{uuid4().hex}"
        return self.client.create_task_run(task, self.pipeline_run.id, key, name=name, state=state)

    def start_child(self, name: str) -> None:
        """Create the running flow run of a stage, below a task run of the pipeline whose state the server sets."""
        stage, _, item = name.partition("@")
        self.child = None
        task_run = self.send(lambda: self.create_task_run(name))
        if task_run is None:
            return
        words = STAGES.get(stage, ())
        # A workload's name may contain hyphens, a device's does not.
        parameters = dict(zip(words, item.rsplit("-", max(len(words) - 1, 0)), strict=False))
        self.child = self.send(
            lambda: self.client.create_flow_run(
                Flow(do_nothing, name=stage, validate_parameters=False),
                name=name,
                parameters=parameters,
                tags=["tandem", *parameters.values()],
                parent_task_run_id=task_run.id,
                state=Running(),
            )
        )
        self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS

    def end_child(self, state: State[Any]) -> None:
        if child := self.child:
            self.child = None
            self.send(lambda: self.client.set_flow_run_state(child.id, state, force=True))

    def failed_state(self, event: Event) -> State[Any]:
        if event.killed_by == "SIGINT":
            return Cancelled(message=f"interrupted; {RESUME}")
        return (Crashed if event.killed_by else Failed)(message=event.message)

    def poll(self) -> None:
        """From time to time: check whether a user has cancelled the stage's flow run."""
        child = self.child
        if child is None or time.monotonic() < self.next_poll:
            return
        run = self.send(lambda: self.client.read_flow_run(child.id))
        # Without an answer, stop polling: the server is lost, or a user has deleted the flow run.
        self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS if run else float("inf")
        if run and run.state and (run.state.is_cancelling() or run.state.is_cancelled()):
            self.cancelled_stage = child.name

    def show_results(self, page: str) -> None:
        artifact = ArtifactCreate(key="results", type="markdown", data=page, flow_run_id=self.pipeline_run.id)
        self.send(lambda: self.client.create_artifact(artifact))

    def check(self) -> None:
        """Send everything, then check the server: it may be lost since the last call, or back."""
        self.finish()
        with prefect_client(timeout=2.5, retries=0) as client:
            error = client.api_healthcheck()
        if error:
            self.lose(error)
        else:
            self.is_lost = False

    def lose(self, error: Exception) -> None:
        """Stop sending, and log this once: the thread may still retry its last request when `check` has given up."""
        if not self.is_lost:
            self.is_lost = True
            reason = str(error) or type(error).__name__
            print(f"warning: lost the Prefect API ({reason}); the pipeline goes on, its display may be out of date")

    def send(self, request: Callable[[], T]) -> T | None:
        """The answer, or None if the server refuses or is lost. The loss is logged once."""
        if self.is_lost:
            return None
        try:
            return request()
        except httpx.TransportError as error:
            self.lose(error)
        except (httpx.HTTPError, PrefectException) as error:
            print(f"warning: Prefect refused a part of the display: {without_password(str(error))}")
        return None


def do_nothing() -> None:
    """Prefect's Flow and Task need a function; DVC does the work."""
