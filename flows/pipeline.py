"""The flow behind the Prefect UI: one DVC run with live logs and cancel, each of its stages shown as a child flow run.

By hand: `python -m flows.pipeline [--workloads sign pen] [--devices cpu cuda] [--seeds 0 1 2]
[-S sign.train.epochs=5] [--force]`. DVC owns the graph. The flow runs `dvc repro`, or `dvc exp run --temp` if values
differ from params.yaml, so an override never stays in the working tree.

Which process starts which:

    flows.pipeline       started by Prefect's runner (flows/serve.py) or from a terminal
      flows.reproduce    in its own session: runs DVC and reports each stage as a JSON line on a pipe
        tandem.stage      one for each stage that DVC runs: prints lines, and writes the stage's outputs

This process reads the lines and the reports and shows them in Prefect (flows/display.py). To stop a run, it signals the
session of flows.reproduce (flows/processes.py). If a process is killed, the kernel sends SIGTERM to its child.
"""

import argparse
import os
import shlex
import sys
from typing import Any

from prefect import flow
from prefect.context import FlowRunContext
from prefect.settings import get_current_settings, temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, State

from flows import pages, remote, repro
from flows.display import RESUME, Display, StageCancelled, prefect_client
from flows.plan import RunPlan, make_plan, parse_set
from flows.processes import end_with_parent, ending, run
from flows.run_lock import known_to_the_next, one_at_a_time
from tandem.passwords import without_password

# With Prefect's defaults, a server lost during the run costs 157 s at its end; the heartbeat costs every run 1 s.
PATIENT_ENOUGH: dict[Any, Any] = {
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
    if flow_run.deployment_id:
        end_with_parent()
    try:
        plan = make_plan(workloads, devices, seeds, preset, overrides or {}, force, flow_run.name)
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    try:
        with (
            one_at_a_time(),
            prefect_client(timeout=5.0, retries=3) as client,
            Display(flow_run, client) as display,
        ):
            with known_to_the_next(flow_run, client):
                result = execute(plan, display)
                if flow_run.work_pool_name and result.is_completed():
                    result = send(result)
                display.check()
        if display.is_lost:  # Prefect itself would retry for minutes and then fail, whatever the result
            print(f"{result.name}: {result.message}", flush=True)
            sys.stderr.flush()
            os._exit(0 if result.is_completed() else 1)
        return result
    except KeyboardInterrupt:
        return Cancelled(message=f"stopped by Ctrl+C; {RESUME}")
    except StageCancelled as stage:
        return Cancelled(message=f"{stage} was cancelled; {RESUME}")


def execute(plan: RunPlan, display: Display) -> State:
    for command in plan.commands:
        print(f"dvc {shlex.join(command)}")
    run_id = str(display.pipeline_run.id)  # a stage's own flow run begins after the stage
    environment = {**os.environ, "TANDEM_FLOW_RUN_ID": run_id, "TANDEM_PARENT_FLOW_RUN_ID": run_id}
    child = ["flows.reproduce", *map(shlex.join, plan.commands)]
    status = run(child, display.line, display.event, display.tick, environment=environment)
    if status != 0:
        ended = f"DVC {ending(status)}"
        display.stage_ended(Crashed(message=ended))  # DVC was killed before it reported this stage
        return Failed(message=display.failure or ended)
    results = pages.read_results(plan.experiment)
    if results["rows"]:
        display.check()  # if a lost server is back, it gets the results
        display.show_results(pages.page(results, plan.experiment))
    return Completed(message=pages.headline(results["rows"], display.outcomes))


def send(result: State) -> State:
    """Push what a worker's run has made to the team's servers. If they do not accept it, the state says so."""
    try:
        remote.push()
        return result
    except RuntimeError as error:
        print(f"warning: {error}")
        return Completed(name="Not sent", message=f"{result.message}; {error}")


def main(arguments: list[str]) -> int:
    what = "Run the pipeline as a Prefect flow run."
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=what)
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="default: all of params.yaml's")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="auto, cpu, cuda; default: params.yaml's")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="one training each; default: params.yaml's")
    parser.add_argument("--preset", help="one of params.yaml's presets, auto or none")
    parser.add_argument("-S", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="override one value")
    parser.add_argument("--force", action="store_true", help="run every stage even where nothing has changed")
    options = parser.parse_args(arguments)
    url = get_current_settings().api.url or f"{repro.running_servers().get('prefect', '')}/api"
    advice = "; start it with `make ui`, or run `dvc repro` without Prefect"
    if url == "/api":
        sys.exit(f"error: no Prefect API is configured{advice}")
    with prefect_client(timeout=2.5, url=url, retries=0) as client:
        if error := client.api_healthcheck():
            sys.exit(f"error: {without_password(url)}: {without_password(str(error))}{advice}")
    try:
        overrides = dict(map(parse_set, options.sets))
    except ValueError as error:
        sys.exit(f"error: {error}")
    chosen = (options.workloads, options.devices, options.seeds, options.preset, overrides, options.force)
    with temporary_settings(PATIENT_ENOUGH | {"api.url": url}):
        final = pipeline(*chosen, return_state=True)
    print(f"{final.name}: {final.message}", file=sys.stdout if final.is_completed() else sys.stderr)
    return 0 if final.is_completed() else 130 if final.is_cancelled() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
