"""Calls of Prefect's API with a time limit, for everything in flows/ that asks or tells the server something."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import temporary_settings
from prefect.states import State

FLOWS = ("pipeline", "verify", "compare")  # of this project; Prefect knows a flow by its name
STAGE_TAG = "tandem"  # of the flow runs of stages, whose flows have the stages' names
UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # states of a started, unfinished run


@contextmanager
def prefect_client(timeout: float, retries: int = 1) -> Iterator[SyncPrefectClient]:
    """Prefect's client for the API in use. Each attempt has a time limit of `timeout` seconds."""
    # The server closes connections that are idle for 5 s.
    httpx_settings = {"timeout": timeout, "limits": httpx.Limits(keepalive_expiry=4.0)}
    settings: dict[Any, Any] = {"client.max_retries": retries}
    with temporary_settings(settings), get_client(httpx_settings, sync_client=True) as client:
        yield client


def unfinished_runs(client: SyncPrefectClient, **criteria: Any) -> list[FlowRun]:
    """This project's flow runs that have started, have not ended and match `criteria`, the fields of Prefect's
    FlowRunFilter. Other projects may use the same server: their runs are never among them.
    """
    wanted = {"state": {"type": {"any_": UNFINISHED}}, **criteria}
    of_flows = client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": [*FLOWS]}}),
        flow_run_filter=FlowRunFilter.model_validate(wanted),
    )
    tagged = FlowRunFilter.model_validate({**wanted, "tags": {"all_": [STAGE_TAG]}})
    of_stages = client.read_flow_runs(flow_run_filter=tagged)
    return list({run.id: run for run in [*of_flows, *of_stages]}.values())  # `compare` is both a flow and a stage


def end_runs(client: SyncPrefectClient, state: State[Any], **criteria: Any) -> None:
    """Set the state of the unfinished flow runs that match `criteria`."""
    for run in unfinished_runs(client, **criteria):
        client.set_flow_run_state(run.id, state, force=True)
