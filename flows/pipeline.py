"""The flow `pipeline`: one DVC run with live logs and cancel. Each stage that DVC runs is a child flow run; one that is
unchanged or restored is a task run in the state Cached.

DVC owns the graph. The flow runs `dvc repro`, or `dvc exp run --temp` if it is given overrides, other seeds, another
preset, or a workload or device that params.yaml does not list, so none of these stays in the working tree
(flows/plan.py). Which process starts which:

    flows.pipeline       started by Prefect's runner (flows/deployments.py) or by a team's worker (flows/remote.py)
      flows.dvc_run      in its own session: runs DVC and prints a line when a stage starts or ends
        tandem.stage     one for each stage that DVC runs: prints lines, and writes the stage's outputs

This process reads the lines and shows them in Prefect (`StageRuns`). The stages do not wait for it: their output waits
in a pipe. If Prefect's server is lost, only the display is lost.

Cancel of the run: Prefect's runner sends SIGTERM to this process, and Prefect's handler raises its TerminationSignal in
`processes.run`. Cancel of a stage's flow run: `check_cancelled` asks the server every two seconds and raises
StageCancelled there. Both end the process group of flows.dvc_run: SIGINT, after 12 s SIGTERM, after 6 s SIGKILL
(`processes.stop`). If this process is killed, the kernel sends SIGTERM to flows.dvc_run, and the stages notice that DVC
has ended (tandem/stop_signals.py).
"""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

import httpx
from prefect import Flow, Task, flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, State

from flows import processes, remote, results_in_prefect
from flows.events import Outcome, StageEvent, event_in
from flows.flow_runs import STAGE_TAG, end_runs, note_left, one_at_a_time, prefect_client, skipped_state
from flows.plan import RunPlan, make_plan
from tandem.stop_signals import end_with
from tandem.terminal.command import CommandError
from tandem.terminal.messages import without_password

# With Prefect's defaults, a server lost during the run costs 157 s at its end; the heartbeat costs every run 1 s.
PREFECT_SETTINGS: dict[Any, Any] = {
    "client.max_retries": 2,
    "api.request_timeout": 10.0,
    "flows.heartbeat_frequency": None,
}
SECONDS_BETWEEN_POLLS = 2.0
NOT_RUN: dict[Outcome, str] = {
    "unchanged": "unchanged since the last run",
    "restored": "restored from DVC's run-cache, timings included",
}
RESUME = "run it again (Retry in Prefect) to resume from the last checkpoint"
T = TypeVar("T")


@flow(name="pipeline", log_prints=True, persist_result=False)
def pipeline(
    workloads: list[str] | None = None,
    devices: list[str] | None = None,
    seeds: list[int] | None = None,
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
) -> State:
    """Reproduce the pipeline.

    Args:
        workloads: workloads of params.yaml; default: all of them.
        devices: auto, cpu, cuda, or several workers (2xcpu); default: those of params.yaml.
        seeds: one training each, such as [0, 1, 2, 3, 4]; default: those of params.yaml.
        preset: one of params.yaml's presets, or auto or none; default: that of params.yaml.
        overrides: values that replace params.yaml's in this run only, by dotted name, such as
            {"sign.train.epochs": 5}. The run is then a DVC experiment named after this flow run.
        force: run every stage, even if nothing has changed.
    """
    context = FlowRunContext.get()
    assert context and context.flow_run
    flow_run = context.flow_run
    end_with(os.getppid())
    if skipped := skipped_state(flow_run):
        return skipped
    choices = {"workloads": workloads, "devices": devices, "seeds": seeds, "preset": preset}
    try:
        plan = make_plan(choices, overrides or {}, force, flow_run.name)
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    try:
        with (
            one_at_a_time(),
            prefect_client(timeout=5.0, retries=3) as client,
            note_left(flow_run, client),
            StageRuns(flow_run, client) as stage_runs,
        ):
            result = execute(plan, stage_runs)
            if flow_run.work_pool_name and result.is_completed():
                result = push(result)
            stage_runs.check_server()
        if stage_runs.is_lost:  # Prefect itself would retry for minutes and then fail, whatever the result
            print(f"{result.name}: {result.message}", flush=True)
            sys.stderr.flush()
            os._exit(0 if result.is_completed() else 1)
        return result
    except KeyboardInterrupt:
        return Cancelled(message=f"stopped by Ctrl+C; {RESUME}")
    except StageCancelled as cancelled:
        return Cancelled(message=f"{cancelled} was cancelled; {RESUME}")


def execute(plan: RunPlan, stage_runs: "StageRuns") -> State:
    for command in plan.commands:
        print(f"dvc {shlex.join(command)}")
    # The pipeline's flow run: a stage's own begins after the stage.
    environment = {**os.environ, "TANDEM_FLOW_RUN_ID": str(stage_runs.pipeline_run.id)}
    child = ["flows.dvc_run", *map(shlex.join, plan.commands)]
    status = processes.run(child, stage_runs.take, stage_runs.check_cancelled, environment=environment)
    if status != 0:
        ended = f"DVC {processes.exit_text(status)}"
        stage_runs.end(Crashed(message=ended))  # DVC was killed before it reported this stage
        return Failed(message=stage_runs.failure or ended)
    results = results_in_prefect.read_results(plan.experiment)
    headline = results_in_prefect.headline(results["rows"], stage_runs.outcomes)
    if results["rows"]:
        stage_runs.check_server()  # if a lost server is back, it gets the results
        stage_runs.show_results(results_in_prefect.markdown(results, plan), headline)
    return Completed(message=headline)


def push(result: State) -> State:
    """Push what a worker's run has made to the team's servers. If they do not accept it, the state says so."""
    try:
        remote.push()
        return result
    except CommandError as error:
        print(f"warning: {error}")
        return Completed(name="Not sent", message=f"{result.message}; {error}")


class StageCancelled(Exception):
    """A user cancelled the flow run of the named stage."""


class StageRuns:
    """The child flow runs of one pipeline run, their log lines, and the outcome of each stage."""

    def __init__(self, pipeline_run: FlowRun, client: SyncPrefectClient):
        self.pipeline_run, self.client = pipeline_run, client
        self.outcomes: dict[str, Outcome] = {}  # of each stage that DVC has examined
        self.failure = ""
        self.running: FlowRun | None = None  # of the stage that runs
        self.next_poll = 0.0
        self.is_lost = False
        # Otherwise Prefect's log handler prints an error for each batch of lines after the server is lost.
        logging.raiseExceptions = False

    def __enter__(self) -> "StageRuns":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is not None:
            reason = "cancelled" if kind is StageCancelled else "stopped with its pipeline run"
            final: State[Any] = Cancelled(message=f"{reason}; {RESUME}")
            self.send(lambda: end_runs(self.client, final, parent_flow_run_id={"any_": [self.pipeline_run.id]}))
            get_run_logger().warning("stopped; %s", RESUME)  # Prefect's runner sets its own message on the run
            server_run = self.send(lambda: self.client.read_flow_run(self.pipeline_run.id))
            if server_run and server_run.state and server_run.state.is_cancelling():
                # Otherwise Prefect logs "Finished in state Running()".
                self.pipeline_run.state = Cancelled(message=RESUME)

    def take(self, line: str) -> None:
        """Show a line of output, or the event that it reports."""
        if event := event_in(line):
            self.take_event(event)
            return
        if not line:
            return
        prefix = line.partition(":")[0].lower()
        is_error = prefix in ("error", "traceback (most recent call last)")
        level = logging.ERROR if is_error else logging.WARNING if prefix.endswith("warning") else logging.INFO
        logger = flow_run_logger(self.running) if self.running else get_run_logger()
        logger.log(level, "%s", line)

    def take_event(self, event: StageEvent) -> None:
        if event.stage:
            self.outcomes[event.stage] = event.outcome
        if event.outcome == "running":
            self.start(event.stage)
        elif event.outcome == "ran":
            self.end(Completed())
        elif event.outcome == "failed":
            self.failure = self.failure or event.reason  # DVC's own error comes last and says only which stage failed
            if event.is_interrupted:
                self.end(Cancelled(message=f"interrupted; {RESUME}"))
            else:
                self.end((Crashed if event.ended_by else Failed)(message=event.message))
        else:
            state: State[Any] = Completed(name="Cached", message=NOT_RUN[event.outcome])
            self.send(lambda: self.create_task_run(event.stage, state))

    def create_task_run(self, name: str, state: State[Any] | None = None) -> TaskRun:
        task, key = Task(do_nothing, name=name.partition("@")[0]), f"{name}-{uuid4().hex}"
        return self.client.create_task_run(task, self.pipeline_run.id, key, name=name, state=state)

    def start(self, name: str) -> None:
        """Create the running flow run of a stage, below a task run of the pipeline whose state the server sets."""

        def create() -> FlowRun:
            return self.client.create_flow_run(
                Flow(do_nothing, name=name.partition("@")[0], validate_parameters=False),
                name=name,
                tags=[STAGE_TAG],
                parent_task_run_id=self.create_task_run(name).id,
                state=Running(),
            )

        self.running = self.send(create)
        self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS

    def end(self, state: State[Any]) -> None:
        """Set the final state of the stage that runs, if one does."""
        if run := self.running:
            self.running = None
            self.send(lambda: self.client.set_flow_run_state(run.id, state, force=True))

    def check_cancelled(self) -> None:
        """From time to time, ask the server. Raises StageCancelled if a user has cancelled the stage's flow run."""
        run = self.running
        if run is None or time.monotonic() < self.next_poll:
            return
        server_run = self.send(lambda: self.client.read_flow_run(run.id))
        # Without an answer, stop polling: the server is lost, or a user has deleted the flow run.
        self.next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS if server_run else float("inf")
        if server_run and server_run.state and (server_run.state.is_cancelling() or server_run.state.is_cancelled()):
            raise StageCancelled(run.name)

    def show_results(self, markdown: str, headline: str) -> None:
        artifact = ArtifactCreate(
            key="results",
            type="markdown",
            description=headline,
            data=markdown,
            flow_run_id=self.pipeline_run.id,
        )
        self.send(lambda: self.client.create_artifact(artifact))

    def check_server(self) -> None:
        """It may be lost since the last call, or back."""
        with prefect_client(timeout=2.5, retries=0) as client:
            error = client.api_healthcheck()
        if error:
            self.lose(error)
        else:
            self.is_lost = False

    def lose(self, error: Exception) -> None:
        """Stop sending, and log this once."""
        if not self.is_lost:
            self.is_lost = True
            reason = str(error) or type(error).__name__
            print(f"warning: lost the Prefect API ({reason}); the pipeline continues; Prefect may show an old state")

    def send(self, request: Callable[[], T]) -> T | None:
        """The answer, or None if the server refuses or is lost."""
        if self.is_lost:
            return None
        try:
            return request()
        except httpx.TransportError as error:
            self.lose(error)
        except (httpx.HTTPError, PrefectException) as error:
            print(f"warning: Prefect rejected an update: {without_password(str(error))}")
        return None


def do_nothing() -> None:
    """Prefect's Flow and Task need a function; DVC does the work."""
