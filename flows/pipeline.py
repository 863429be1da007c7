"""The flow `pipeline`: one DVC run with live logs and cancel, each of its stages shown as a child flow run.

DVC owns the graph. The flow runs `dvc repro`, or `dvc exp run --temp` if values differ from params.yaml, so an override
never stays in the working tree. Which process starts which:

    flows.pipeline       started by Prefect's runner (flows/serve.py) or by a team's worker (flows/remote.py)
      flows.dvc_run      in its own session: runs DVC and prints a line when a stage starts or ends
        tandem.stage     one for each stage that DVC runs: prints lines, and writes the stage's outputs

This process reads the lines and shows them in Prefect (flows/stage_runs.py). To stop a run, it signals the session of
flows.dvc_run (flows/processes.py). If a process is killed, the kernel sends SIGTERM to its child.
"""

import os
import shlex
import sys
from typing import Any

from prefect import flow
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Completed, Crashed, Failed, State

from flows import processes, remote, results_in_prefect
from flows.flow_runs import known_to_the_next, one_at_a_time, prefect_client, skipped_state
from flows.plan import RunPlan, make_plan
from flows.stage_runs import RESUME, StageCancelled, StageRuns
from tandem.command import CommandError
from tandem.stop_signals import stop_when_ended

# With Prefect's defaults, a server lost during the run costs 157 s at its end; the heartbeat costs every run 1 s.
PREFECT_SETTINGS: dict[Any, Any] = {
    "client.max_retries": 2,
    "api.request_timeout": 10.0,
    "flows.heartbeat_frequency": None,
}


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
    stop_when_ended(os.getppid())
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
            known_to_the_next(flow_run, client),
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
    except StageCancelled as stage:
        return Cancelled(message=f"{stage} was cancelled; {RESUME}")


def execute(plan: RunPlan, stage_runs: StageRuns) -> State:
    for command in plan.commands:
        print(f"dvc {shlex.join(command)}")
    run_id = str(stage_runs.pipeline_run.id)  # a stage's own flow run begins after the stage
    environment = {**os.environ, "TANDEM_FLOW_RUN_ID": run_id, "TANDEM_PARENT_FLOW_RUN_ID": run_id}
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
