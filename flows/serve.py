"""`python -m flows.serve`: serve the deployments on the Prefect API in use until stopped. `make ui` starts it.

    pipeline/on-demand    the pipeline, started by hand, with overrides
    pipeline/nightly      stages that changed since the last run, at 02:00 local time
    compare/on-demand     a comparison of recorded runs, with the verdict
    verify/on-demand      a rerun of a recorded run, to check that the result is the same
    verify/nightly        the same for the latest run of each workload, at 04:00 local time

One run executes at a time; the others wait. The form follows params.yaml while this process runs. Changes in the UI
(schedules, pauses, parameters, tags, limits) persist: the values here apply only to new deployments.
"""

import asyncio
import os
import time
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.deployments.runner import EntrypointType
from prefect.exceptions import ObjectNotFound, PrefectException, TerminationSignal
from prefect.runner import Runner
from prefect.schedules import Cron
from prefect.settings import temporary_settings

from flows import form
from flows.command_flows import compare, verify
from flows.pipeline import PREFECT_SETTINGS, pipeline
from flows.prefect_api import prefect_client
from tandem.files import ROOT
from tandem.params.loading import read_yaml

SECONDS_BETWEEN_CHECKS = 2.0  # of params.yaml
# (flow, name, description, schedule). The last one is created last: when it exists, all exist, and `make ui` is ready.
DEPLOYMENTS: tuple[tuple[Any, str, str, str | None], ...] = (
    (compare, "on-demand", "Two or more recorded runs, also of several machines: a table and the verdict.", None),
    (verify, "on-demand", "Make a recorded run again: is it the same?", None),
    (verify, "nightly", "Every night: is the latest run of each workload still what was recorded?", "0 4 * * *"),
    (pipeline, "on-demand", "Start by hand, with overrides.", None),
    (pipeline, "nightly", "Every night: whatever has changed since the last run.", "0 2 * * *"),
)
OF_THE_USER = {"schedules", "paused", "parameters", "tags", "concurrency_limit", "concurrency_options"}


def main() -> None:
    with temporary_settings(PREFECT_SETTINGS):
        # By default, a stopping runner pauses its schedules. It polls for work every two seconds.
        runner = Runner(pause_on_shutdown=False, limit=1, query_seconds=2)
        forms = [id for name, id in register(runner).items() if name.startswith("pipeline/")]
        Thread(target=copy_context().run, args=(update_forms, forms), daemon=True).start()
        try:
            asyncio.run(runner.start())
        except (KeyboardInterrupt, TerminationSignal):
            pass


def register(runner: Runner) -> dict[str, UUID]:
    """Create or update the deployments. Returns their ids by name."""
    ids: dict[str, UUID] = {}
    with prefect_client(timeout=30.0) as client:
        for flow, name, description, cron in DEPLOYMENTS:
            deployment = flow.to_deployment(
                name,
                description=description,
                schedule=Cron(cron, timezone=local_timezone()) if cron else None,
                entrypoint_type=EntrypointType.MODULE_PATH,
            )
            with suppress(ObjectNotFound):
                client.read_deployment_by_name(deployment.full_name)
                # It exists. Unset fields are not sent; an empty list of schedules would delete the existing ones.
                deployment.schedules = None
                deployment.model_fields_set.difference_update(OF_THE_USER)
            id = runner.add_deployment(deployment)
            assert isinstance(id, UUID)  # a coroutine only if an event loop runs
            ids[deployment.full_name] = id
    return ids


def update_forms(deployments: list[UUID]) -> None:
    """Update the forms whenever params.yaml changes. If it is invalid, the forms stay, and a run reports the error."""
    params, done = ROOT / "params.yaml", dict.fromkeys(deployments, 0)
    while True:
        for deployment in deployments:
            # Such as a busy server, or parameters that were set in the UI and no longer fit.
            with suppress(HTTPError, PrefectException, OSError, ValueError):
                if (changed := params.stat().st_mtime_ns) != done[deployment]:
                    schema = {"parameter_openapi_schema": form.schema(read_yaml(params))}
                    with prefect_client(timeout=5.0) as client:
                        client.update_deployment(deployment, DeploymentUpdate.model_validate(schema))
                    done[deployment] = changed
        time.sleep(SECONDS_BETWEEN_CHECKS)


def local_timezone() -> str:
    """The machine's IANA timezone, such as America/Sao_Paulo; UTC if it has none."""
    name = os.environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return name if (Path("/usr/share/zoneinfo") / (name or "-")).is_file() else "UTC"


if __name__ == "__main__":
    main()
