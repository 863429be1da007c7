"""One pipeline on several machines: the flow `team` starts a run in each work pool, sees all of them to their end,
and compares what they recorded.

What is trained where is one parameter, `pools`: {"cpu": {"devices": ["cpu"]}, "gpu": {"devices": ["cuda"]}}. A run
whose machine or process was lost (Crashed) is scheduled again, and goes on from its checkpoint where the same machine
takes it. prefect.yaml has the deployments that a pool's runs are of (`pipeline/<pool>`) and that of this flow.
"""

import json
import time
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelling, Completed, Failed, State

from flows.deployed import call, headline, kept, shortened
from flows.display import prefect_client

SECONDS_BETWEEN_LOOKS = 2.0
Runs = dict[str, FlowRun]  # by pool


@flow(name="team", log_prints=True, persist_result=False)
def team(
    pools: dict[str, dict[str, Any]],
    workloads: list[str] | None = None,
    seeds: list[int] | None = None,
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
    attempts: int = 3,
) -> State:
    """Run the pipeline in several work pools, and compare their runs.

    Args:
        pools: what each trains: {"cpu": {"devices": ["cpu"]}, "gpu": {"devices": ["cuda"], "workloads": ["sign"]}}.
            These are parameters of the flow `pipeline`; they come before the common ones below. The first pool is
            what the others are compared with.
        workloads: in every pool that names none of its own; all of params.yaml's where nothing is given.
        seeds: one training each; those of params.yaml where nothing is given.
        preset: one of params.yaml's presets, or auto or none; what params.yaml says where nothing is given.
        overrides: values that replace params.yaml's, by dotted name, such as {"sign.train.epochs": 5}.
        force: run every stage, even where nothing has changed.
        attempts: how often a pool's run is started before it is given up as crashed.
    """
    if not pools:
        return Failed(message='pools is empty; name at least one, such as {"cpu": {"devices": ["cpu"]}}')
    given = {"workloads": workloads, "seeds": seeds, "preset": preset, "overrides": overrides, "force": force}
    common = {name: value for name, value in given.items() if value}
    try:
        runs = {pool: start(pool, common | own) for pool, own in pools.items()}
    except ValueError as error:
        return Failed(message=str(error))
    with prefect_client(timeout=30.0, retries=3) as client:
        try:
            see_to_the_end(runs, client, attempts)
        except BaseException:  # cancelled: the pools' runs are part of this one
            for run in runs.values():
                client.set_flow_run_state(run.id, Cancelling(message="the run of all pools was stopped"))
            raise
        lost = [
            sentence for pool, run in runs.items() if (sentence := why_not_good(pool, client.read_flow_run(run.id)))
        ]
        if lost:
            return Failed(message=shortened("; ".join(lost)))
        recorded = {pool: recorded_by(run.id, client) for pool, run in runs.items()}
    return compare(recorded)


def start(pool: str, parameters: dict[str, Any]) -> FlowRun:
    name = f"pipeline/{pool}"
    try:
        run: Any = run_deployment(name, parameters=parameters, timeout=0)
    except ObjectNotFound:
        known = "prefect.yaml has its deployments, and `prefect deploy --all` registers them"
        raise ValueError(f"there is no deployment {name} for the pool {pool!r}; {known}") from None
    print(f"{pool}: {run.name} {json.dumps(parameters)}")
    assert isinstance(run, FlowRun)
    return run


def see_to_the_end(runs: Runs, client: SyncPrefectClient, attempts: int) -> None:
    """Wait until every run has ended; schedule one again that has crashed, `attempts` times in all."""
    started = dict.fromkeys(runs, 1)
    open_runs = dict(runs)
    while open_runs:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for pool, run in list(open_runs.items()):
            state = client.read_flow_run(run.id).state
            if state is None or not state.is_final():
                continue
            print(f"{pool}: {state.name}{f': {state.message}' if state.message else ''}")
            if state.is_crashed() and started[pool] < attempts:
                started[pool] += 1
                print(f"{pool}: starts again, {started[pool]} of {attempts}")
                client.set_flow_run_state(run.id, AwaitingRetry(message="crashed; it starts again"), force=True)
            else:
                del open_runs[pool]


def why_not_good(pool: str, run: FlowRun) -> str:
    """Empty where the run is completed."""
    state = run.state
    if state and state.is_completed():
        return ""
    return f"{pool}: {state.name}: {state.message}" if state else f"{pool}: it has no state"


def recorded_by(run: UUID, client: SyncPrefectClient) -> dict[str, list[str]]:
    """MLflow's ids of what a run has trained, by workload and device."""
    about = {"flow_run_id": {"any_": [str(run)]}, "key": {"any_": ["runs"]}}
    found: dict[str, list[str]] = {}
    for artifact in client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(about))[:1]:
        for row in json.loads(str(artifact.data)):
            found.setdefault(f"{row['workload']} {row['device']}", []).append(row["run_id"])
    return found


def compare(recorded: dict[str, dict[str, list[str]]]) -> State:
    """Every workload that two pools or more have trained; of one pool's devices, each is a side."""
    sides: dict[str, list[str]] = {}
    for own in recorded.values():
        for name, ids in own.items():
            sides.setdefault(name.partition(" ")[0], []).append(",".join(ids))
    words = [word for several in sides.values() if len(set(several)) > 1 for word in dict.fromkeys(several)]
    if not words:
        return Completed(message="finished; no workload was trained in two pools, so there is nothing to compare")
    status, lines = call("flows.compare", "--", *words)
    if status != 0:
        return Failed(message=f"every pool has finished, but: {headline(lines)}")
    return kept(lines, recorded)
