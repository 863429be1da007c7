"""One pipeline on several machines: the flow `team` starts a run in each work pool, sees all of them to their end,
and compares what they recorded.

What is trained where is one parameter, `pools`: {"cpu": {"devices": ["cpu"]}, "gpu": {"devices": ["cuda"]}}. A run
whose machine or process was lost (Crashed) is scheduled again, and goes on from its checkpoint where the same machine
takes it. prefect.yaml has the deployments that a pool's runs are of (`pipeline/<pool>`) and that of this flow.
"""

import json
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

from httpx import HTTPError, HTTPStatusError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import ArtifactSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry, Cancelling, Completed, Failed, State

from flows.deployed import call, headline, kept, shortened
from flows.display import prefect_client
from stages.params.parsing import one_line

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
    runs: Runs = {}
    with prefect_client(timeout=30.0, retries=3) as client:
        try:
            for pool, own in pools.items():
                runs[pool] = start(pool, common | own, client)
            see_to_the_end(runs, client, attempts)
        except ValueError as error:
            cancel(runs, client)
            return Failed(message=shortened(str(error)))
        except BaseException:
            cancel(runs, client)
            raise
        lost = [
            sentence for pool, run in runs.items() if (sentence := why_not_good(pool, client.read_flow_run(run.id)))
        ]
        if lost:
            return Failed(message=shortened("; ".join(lost)))
        recorded = {pool: recorded_by(run.id, client) for pool, run in runs.items()}
    return compare(recorded)


def start(pool: str, parameters: dict[str, Any], client: SyncPrefectClient) -> FlowRun:
    """The run of `pool` that belongs to this flow's run: a new one, or where this one is retried, that of before.

    Of a run that is made again, what is complete stays, what still runs is waited for, and the rest starts again.
    Raises ValueError where the pool has no deployment, or Prefect refuses the parameters.
    """
    name = f"pipeline/{pool}"
    try:
        # With the same key Prefect gives the run that it made with it.
        run: Any = run_deployment(name, parameters=parameters, timeout=0, idempotency_key=f"{flow_run.id}/{pool}")
    except ObjectNotFound:
        known = "prefect.yaml has its deployments, and `prefect deploy --all` registers them"
        raise ValueError(f"there is no deployment {name} for the pool {pool!r}; {known}") from None
    except HTTPStatusError as error:
        if error.response.status_code >= 500:
            raise
        raise ValueError(f"Prefect refuses a run of {name}: {one_line(error.response.text)}") from None
    assert isinstance(run, FlowRun)
    print(f"{pool}: {run.name} {json.dumps(parameters)}")
    if run.state and run.state.is_final() and not run.state.is_completed():
        print(f"{pool}: was {run.state.name}; it starts again")
        client.set_flow_run_state(run.id, AwaitingRetry(message="the run above it starts again"), force=True)
    return run


def cancel(runs: Runs, client: SyncPrefectClient) -> None:
    """The pools' runs are part of the one above them: where that is stopped, or one of them cannot start, all are."""
    for run in runs.values():
        with suppress(HTTPError, PrefectException):
            client.set_flow_run_state(run.id, Cancelling(message="the run of all pools was stopped"))


def see_to_the_end(runs: Runs, client: SyncPrefectClient, attempts: int) -> None:
    """Wait until every run has ended; schedule one again that has crashed, `attempts` times in all.

    A server that is away for a while ends nothing: the runs go on without it.
    """
    started, open_runs, is_away = dict.fromkeys(runs, 1), dict(runs), False
    while open_runs:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            look(open_runs, started, client, attempts)
            is_away = False
        except HTTPError as error:
            if isinstance(error, HTTPStatusError) and error.response.status_code < 500:
                raise
            if not is_away:
                print(f"warning: the Prefect API does not answer ({one_line(error)}); waiting for it")
            is_away = True


def look(open_runs: Runs, started: dict[str, int], client: SyncPrefectClient, attempts: int) -> None:
    """Take from `open_runs` what has ended, and start what has crashed again; `started`: how often each was."""
    for pool, run in list(open_runs.items()):
        state = client.read_flow_run(run.id).state
        if state is None or not state.is_final():
            continue
        print(f"{pool}: {state.name}{f': {state.message}' if state.message else ''}")
        if state.is_crashed() and started[pool] < attempts:
            client.set_flow_run_state(run.id, AwaitingRetry(message="crashed; it starts again"), force=True)
            started[pool] += 1
            print(f"{pool}: starts again, {started[pool]} of {attempts}")
        else:
            del open_runs[pool]


def why_not_good(pool: str, run: FlowRun) -> str:
    """Empty where the run is completed."""
    state = run.state
    if state and state.is_completed():
        return ""
    return f"{pool}: {state.name}: {state.message}" if state else f"{pool}: it has no state"


def recorded_by(run: UUID, client: SyncPrefectClient) -> dict[str, list[str]]:
    """MLflow's ids of what a run has trained, by workload and device; of one that was started again, the last time."""
    about = {"flow_run_id": {"any_": [str(run)]}, "key": {"any_": ["runs"]}}
    found: dict[str, list[str]] = {}
    newest = ArtifactSort.CREATED_DESC
    for artifact in client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(about), sort=newest)[:1]:
        for row in json.loads(str(artifact.data)):
            found.setdefault(f"{row['workload']} {row['device']}", []).append(row["run_id"])
    return found


def compare(recorded: dict[str, dict[str, list[str]]]) -> State:
    """Every workload that was trained in two pools, or on two devices of one: each device of each pool is a side."""
    if unknown := [pool for pool, own in recorded.items() if not own]:
        return Failed(
            message=f"every pool has finished, but Prefect does not know what {' and '.join(unknown)} trained: "
            "its API was away when the run ended; MLflow has the runs, and `python -m flows.compare` takes their ids"
        )
    sides: dict[str, list[str]] = {}
    for own in recorded.values():
        for name, ids in own.items():
            sides.setdefault(name.partition(" ")[0], []).append(",".join(ids))
    words = [word for several in sides.values() if len(set(several)) > 1 for word in dict.fromkeys(several)]
    if not words:
        return Completed(message="finished; no workload was trained twice, so there is nothing to compare")
    status, lines = call("flows.compare", "--", *words)
    if status != 0:
        return Failed(message=f"every pool has finished, but: {headline(lines)}")
    return kept(lines, recorded)
