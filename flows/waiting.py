"""What `flows.serve` does besides starting runs: it updates the form from params.yaml and reports waiting runs.

It starts one run at a time. The other runs have no process, so they take no time from a training that is measured. This
module checks them instead: it rejects wrong parameters at once, and it sets a state that says for which run they wait,
where Prefect would show "Late".
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
BY_RUNNER = "Flow run was cancelled successfully."  # Prefect's runner replaces the run's message with this


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
        time.sleep(SECONDS_BETWEEN_POLLS)  # the server is busy or unreachable


def fill_forms(client: SyncPrefectClient, deployments: list[UUID]) -> None:
    """Update the forms from the current params.yaml. If it is invalid, the forms stay, and a run reports the error."""
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
            # Parameters that were set in the UI no longer fit.
            print(f"the form of a deployment stays as it was: {one_line(error)}", flush=True)


def poll(client: SyncPrefectClient, deployments: list[UUID], pipelines: list[UUID], checked: set[UUID]) -> None:
    """Reject invalid runs, and report for which run the others wait. `checked`: ids of runs examined before."""
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
    """Set the state of a cancelled run to where its checkpoint is, as its artifact says."""
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
    """Why the pipeline would reject this run's parameters; empty if it would accept them."""
    with suppress(ValueError, OSError):
        parse_params(read_yaml(PARAMS))
        return mistake(run.parameters, run.name)
    return ""  # params.yaml is being edited: report nothing


def mistake(parameters: dict[str, Any], name: str) -> str:
    nothing = dict.fromkeys(("workloads", "devices", "seeds", "preset", "overrides", "force"))
    try:
        chosen = nothing | pipeline.validate_parameters(parameters)
        make_plan(**chosen | {"overrides": chosen["overrides"] or {}, "name": name})
    except (ValueError, TypeError, PrefectException) as error:
        return one_line(error)
    return ""
