"""What `flows.serve` does beside starting runs: it keeps the form as params.yaml is, and tells what runs wait for.

One run is started at a time, and the others are only planned: no process of theirs takes time from a training that is
measured. So they are looked at from here: a wrong parameter is refused at once, and the state says for what a run
waits, where Prefect says "Late".
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from httpx import HTTPError, HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Failed, Scheduled

from flows import form
from flows.display import STOPPED, prefect_client, unfinished
from flows.pipeline import pipeline
from flows.plan import make_plan
from stages import files
from stages.params.loading import parse_params, read_yaml
from stages.params.parsing import one_line

PARAMS = files.ROOT / "params.yaml"
SECONDS_BETWEEN_POLLS = 2.0
BY_RUNNER = "Flow run was cancelled successfully."  # what Prefect's runner says in place of the run's own words


def watch_queue(deployments: Mapping[str, UUID]) -> None:
    """Poll until the process ends. `deployments`: their ids by name."""
    forms = [each for name, each in deployments.items() if name.startswith("pipeline/")]
    read, checked = 0, set[UUID]()
    while True:
        with suppress(HTTPError, PrefectException, OSError, ValueError), prefect_client(timeout=5.0) as client:
            while True:
                if (changed := PARAMS.stat().st_mtime_ns) != read:
                    fill_forms(client, forms)
                    read = changed
                poll(client, list(deployments.values()), forms, checked)
                explain_cancelled(client, forms)
                time.sleep(SECONDS_BETWEEN_POLLS)
        time.sleep(SECONDS_BETWEEN_POLLS)  # the server is busy or gone


def fill_forms(client: SyncPrefectClient, deployments: list[UUID]) -> None:
    """Make the forms from params.yaml as it is; where that is refused, they stay, and a run says why."""
    try:
        schema = form.schema(read_yaml(PARAMS))
    except ValueError as error:
        print(f"the form stays as it was: {error}", flush=True)
        return
    for deployment in deployments:
        try:
            client.update_deployment(deployment, DeploymentUpdate.model_validate({"parameter_openapi_schema": schema}))
        except HTTPStatusError as error:
            if error.response.status_code != 409:
                raise
            # its own parameters, which were set in the UI, do not fit any more
            print(f"the form of a deployment stays as it was: {one_line(error)}", flush=True)


def poll(client: SyncPrefectClient, deployments: list[UUID], pipelines: list[UUID], checked: set[UUID]) -> None:
    """Refuse what cannot run, and say for what the others wait. `checked`: the runs that were looked at before."""
    due = planned_for_now(client, deployments)
    if not due:
        return
    new = [run for run in due if run.id not in checked and run.deployment_id in pipelines]
    checked.update(run.id for run in new)
    for run in new:
        if reason := refusal(run):
            client.set_flow_run_state(run.id, Failed(message=reason), force=True)
    before = [run.name for run in unfinished(client, deployment_id={"any_": deployments})]
    if not before:
        return  # the first of them is about to start
    for run in planned_for_now(client, deployments):
        message = f"one run at a time; before this one: {', '.join(before)}"
        if run.state and run.state.message != message:
            name, when = f"Waiting for {before[0]}", run.next_scheduled_start_time
            client.set_flow_run_state(run.id, Scheduled(scheduled_time=when, name=name, message=message))
        before.append(run.name)


def explain_cancelled(client: SyncPrefectClient, pipelines: list[UUID]) -> None:
    """Have the state of a run that was cancelled say where its checkpoint lies, as its artifact does."""
    wanted = {
        "deployment_id": {"any_": pipelines},
        "state": {"type": {"any_": [StateType.CANCELLED]}},
        "end_time": {"after_": datetime.now(UTC) - timedelta(minutes=1)},
    }
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted)):
        if run.state and run.state.message == BY_RUNNER:
            about = {"flow_run_id": {"any_": [run.id]}, "key": {"any_": [STOPPED]}}
            for artifact in client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(about))[:1]:
                client.set_flow_run_state(run.id, Cancelled(message=str(artifact.data)), force=True)


def planned_for_now(client: SyncPrefectClient, deployments: list[UUID]) -> list[FlowRun]:
    wanted = {
        "deployment_id": {"any_": deployments},
        "state": {"type": {"any_": [StateType.SCHEDULED]}},
        "next_scheduled_start_time": {"before_": datetime.now(UTC)},
    }
    order = FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC
    return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted), sort=order)


def refusal(run: FlowRun) -> str:
    """Why the pipeline would refuse this run's parameters; empty where it would not."""
    with suppress(ValueError, OSError):
        parse_params(read_yaml(PARAMS))
        return mistake(run.parameters, run.name)
    return ""  # params.yaml is being edited: nothing is said of the run


def mistake(parameters: dict[str, Any], name: str) -> str:
    nothing = dict.fromkeys(("workloads", "devices", "seeds", "preset", "overrides", "force"))
    try:
        chosen = nothing | pipeline.validate_parameters(parameters)
        make_plan(**chosen | {"overrides": chosen["overrides"] or {}, "name": name})
    except (ValueError, TypeError, PrefectException) as error:
        return one_line(error)
    return ""
