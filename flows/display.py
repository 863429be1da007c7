"""Shows a pipeline run in Prefect's UI: each stage as a child flow run, its log lines, progress and artifacts.

Goes in: the lines that DVC prints (flows/dvc.py). Comes out: calls of Prefect's own client, made by the pipeline's
process. Losing the server costs the display and no result.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx
from prefect import Flow, Task, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import Artifact, FlowRun, StateType, TaskRun
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.settings import temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, State

from flows import dvc
from flows.progress import Training
from flows.stage import STAGES
from stages.urls import without_password

UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # a run that has started and not ended
SECONDS_BETWEEN_POLLS = 2.0  # of the child's state, for a cancel in the UI
SECONDS_BETWEEN_PROGRESS = 2.0
SECONDS_TO_FINISH = 15.0  # for what is not sent when DVC has ended
TRIES = 4  # of a request that a server on SQLite answers with 503, because two of its own transactions crossed
NOT_RUN: dict[str, dict[str, Any]] = {  # the state of a stage that DVC did not run
    "skipped": {"name": "Skipped", "message": "unchanged since the last run; DVC skipped it"},
    "restored": {"name": "Cached", "message": "restored from DVC's run-cache, timings included, without running"},
}
STOPPED = "stopped"  # the key of the artifact of a run that is stopped
NOTHING_LOST = "the same run again (Retry in Prefect) does nothing a second time that is finished"
T = TypeVar("T")


class StageCancelled(Exception):
    """Somebody cancelled the flow run of the stage that this names."""


@contextmanager
def prefect_client(timeout: float, url: str | None = None, retries: int = 1) -> Iterator[SyncPrefectClient]:
    """Prefect's client for `url`, or for the API in use. It gives each attempt `timeout` seconds."""
    # the server closes a connection that is idle for 5 s
    httpx_settings = {"timeout": timeout, "limits": httpx.Limits(keepalive_expiry=4.0)}
    settings: dict[Any, Any] = {"client.max_retries": retries} | ({"api.url": url} if url else {})
    with temporary_settings(settings), get_client(httpx_settings, sync_client=True) as client:
        yield client


def unfinished(client: SyncPrefectClient, **criteria: Any) -> list[FlowRun]:
    """The flow runs that have started, have not ended and meet `criteria`, the fields of Prefect's FlowRunFilter."""
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": UNFINISHED}}, **criteria})
    return client.read_flow_runs(flow_run_filter=wanted)


def end_runs(client: SyncPrefectClient, state: State[Any], **criteria: Any) -> None:
    for run in unfinished(client, **criteria):
        client.set_flow_run_state(run.id, state, force=True)


class Display:
    """The child flow runs, log lines and artifacts of one pipeline run.

    A thread sends them: a slow server then never blocks DVC's output, and a signal interrupts no request.
    """

    def __init__(self, pipeline_run: FlowRun, client: SyncPrefectClient):
        self.pipeline_run, self.client = pipeline_run, client
        self.progress = dvc.Progress()
        self.token = dvc.prepare_environment()
        self.child: FlowRun | None = None
        self.training: Training | None = None  # of the child, or of the last one
        self.shown: tuple[Artifact, str] | None = None  # its progress, and what was shown of it last
        self.next_progress = 0.0
        self.cancelled_stage = ""
        self.next_poll = 0.0
        self.todo: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.is_lost = False
        # or Prefect's log handler prints an error for each batch of lines once the server is lost
        logging.raiseExceptions = False

    def __enter__(self) -> "Display":
        # the thread needs this context for Prefect's settings and for the logger of the pipeline's run
        self.thread = Thread(target=copy_context().run, args=(self.work,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.finish()
        if kind is not None:
            why = "cancelled" if kind is StageCancelled else "stopped with the pipeline run above it"
            final: State[Any] = Cancelled(message=f"{why}; {self.left()}")
            self.send(lambda: end_runs(self.client, final, parent_flow_run_id={"any_": [self.pipeline_run.id]}))
            # Prefect's runner gives a cancelled run a state with words of its own, and flows/waiting.py one with these.
            get_run_logger().warning("stopped; %s", self.left())
            self.artifact(STOPPED, "markdown", f"stopped; {self.left()}", "Where it stands, and how to go on")

    def environment(self) -> dict[str, str]:
        """What DVC and the stages inherit. The stages' own flow runs begin after them, so they know the pipeline's."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
        run_id = str(self.pipeline_run.id)
        own |= {"TANDEM_FLOW_RUN_ID": run_id, "TANDEM_PARENT_FLOW_RUN_ID": run_id}
        return own | {"PYTHONUNBUFFERED": "1"}  # a stage's lines arrive as it prints them

    def work(self) -> None:
        """Send what there is to send, until `finish`."""
        for request in iter(self.todo.get, None):
            request()

    def finish(self) -> None:
        """Wait until everything is sent."""
        self.todo.put(None)
        self.thread.join(SECONDS_TO_FINISH)

    def line(self, line: str) -> None:
        """Take a line of DVC's or of the running stage's output."""
        event = self.progress.read(line)
        self.todo.put(lambda: self.show(line, event))

    def stage_ended(self, state: State[Any]) -> None:
        self.todo.put(lambda: self.end_child(state))

    def tick(self) -> None:
        """Raise StageCancelled where somebody has cancelled the stage's flow run; have the thread look now and then."""
        if self.cancelled_stage:
            raise StageCancelled(self.cancelled_stage)
        self.todo.put(self.poll)

    def show(self, line: str, event: dvc.Event | None) -> None:
        if event:
            self.end_child(self.failed_state() if event.kind == "failed" else Completed())
        first = line.partition(":")[0].lower()
        is_error = first in ("error", "traceback (most recent call last)")
        level = logging.ERROR if is_error else logging.WARNING if first.endswith("warning") else logging.INFO
        logger = flow_run_logger(self.child) if self.child else get_run_logger()
        logger.log(level, "%s", line)
        if self.training:
            self.training.read(line)
        if event and event.kind == "running":
            self.child = self.start_child(event.stages[0])
            self.training = Training(event.stages[0]) if event.stages[0].startswith("train@") else None
            self.shown, self.next_progress = None, 0.0
            self.show_progress()
            self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS
        elif event and event.kind in NOT_RUN:
            state: State[Any] = Completed(**NOT_RUN[event.kind])
            self.send(lambda: self.create_task_run(event.stages[0], state))

    def left(self) -> str:
        """What a run that is stopped leaves, and how to go on."""
        return self.training.left() if self.training else NOTHING_LOST

    def show_progress(self, is_last: bool = False) -> None:
        """Bring the progress of the training up to date, where it is time for it."""
        child, training = self.child, self.training
        is_early = time.monotonic() < self.next_progress and not is_last
        if child is None or training is None or is_early or (self.shown and self.shown[1] == training.about):
            return
        self.next_progress = time.monotonic() + SECONDS_BETWEEN_PROGRESS
        about = training.about
        found = self.shown[0] if self.shown else None
        if found:
            id, update = found.id, ArtifactUpdate(data=training.percent, description=about)
            self.send(lambda: self.client.update_artifact(id, update))
        else:
            key = f"progress-{slug(training.name.partition('@')[2])}"
            found = self.artifact(key, "progress", training.percent, about, child.parent_task_run_id)
        self.shown = (found, about) if found else None
        if found is None:  # refused, or the server is lost
            self.next_progress = float("inf")

    def create_task_run(self, name: str, state: State[Any] | None = None) -> TaskRun:
        task, key = Task(do_nothing, name=name.partition("@")[0]), f"{name}-{uuid4().hex}"
        return self.client.create_task_run(task, self.pipeline_run.id, key, name=name, state=state)

    def start_child(self, name: str) -> FlowRun | None:
        """Create the running flow run of a stage, below a task run of the pipeline that the server gives its state."""
        task_run = self.send(lambda: self.create_task_run(name))
        if task_run is None:
            return None
        stage, _, item = name.partition("@")
        words = STAGES.get(stage, ())
        # a workload's name may hold hyphens, a device's does not
        parameters = dict(zip(words, item.rsplit("-", max(len(words) - 1, 0)), strict=False))
        return self.send(
            lambda: self.client.create_flow_run(
                Flow(do_nothing, name=stage, validate_parameters=False),
                name=name,
                parameters=parameters,
                tags=["tandem", *parameters.values()],
                parent_task_run_id=task_run.id,
                state=Running(),
            )
        )

    def end_child(self, state: State[Any]) -> None:
        self.show_progress(is_last=True)
        if child := self.child:
            self.child = None
            self.send(lambda: self.client.set_flow_run_state(child.id, state, force=True))

    def failed_state(self) -> State[Any]:
        failure = self.progress.failure(self.token, "DVC ended before it")
        if failure.killed_by == "SIGINT":
            return Cancelled(message=f"interrupted; {self.left()}")
        return (Crashed if failure.killed_by else Failed)(message=failure.message)

    def poll(self) -> None:
        self.show_progress()
        child = self.child
        if child is None or time.monotonic() < self.next_poll:
            return
        run = self.send(lambda: self.client.read_flow_run(child.id))
        # without an answer there is nothing to watch: the server is lost, or somebody has deleted the flow run
        self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS if run else float("inf")
        if run and run.state and (run.state.is_cancelling() or run.state.is_cancelled()):
            self.cancelled_stage = child.name

    def artifact(self, key: str, kind: str, data: Any, description: str, task: UUID | None = None) -> Artifact | None:
        run_id = self.pipeline_run.id
        artifact = ArtifactCreate(
            key=key, type=kind, data=data, description=description, flow_run_id=run_id, task_run_id=task
        )
        return self.send(lambda: self.client.create_artifact(artifact))

    def check(self) -> None:
        """Send all, and ask whether the server answers: it may have been lost since the last call, or be back."""
        self.finish()
        with prefect_client(timeout=2.5, retries=0) as client:
            error = client.api_healthcheck()
        if error and not self.is_lost:
            warn_of_loss(error)
        self.is_lost = error is not None

    def send(self, request: Callable[[], T]) -> T | None:
        """The answer; None where the server refuses, and once it is lost, which is said once."""
        for attempt in range(1, TRIES + 1):
            if self.is_lost:
                return None
            try:
                return request()
            except httpx.TransportError as error:
                self.is_lost = True
                warn_of_loss(error)
            except (httpx.HTTPError, PrefectException) as error:
                is_busy = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 503
                if not is_busy or attempt == TRIES:
                    print(f"warning: Prefect refused a part of the display: {without_password(str(error))}")
                    return None
        return None


def warn_of_loss(error: Exception) -> None:
    reason = str(error) or type(error).__name__
    print(f"warning: lost the Prefect API ({reason}); the pipeline goes on, its display there may be out of date")


def do_nothing() -> None:
    """Prefect's Flow and Task want a function; DVC runs what these stand for."""


def slug(name: str) -> str:
    """`name` as a key of Prefect's artifacts may be."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
