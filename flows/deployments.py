"""`python -m flows.deployments`: serve the deployments on the Prefect API in use until stopped. `tandem ui` starts it.

    pipeline/pipeline    the pipeline, from its form with overrides; at 02:00 local time what changed since the last run
    verify/verify        a rerun of a recorded run, to check that the result is the same; at 04:00 local time of the
                         latest run of each workload on each device

One run executes at a time; the others wait. Of the times that a schedule has missed, for example because this process
did not run, only the last one runs; the others end as Skipped (flows/flow_runs.py). The form follows params.yaml
while this process runs. Changes in the UI (schedules, pauses, parameters, tags, limits) persist: the values here apply
only to new deployments.
"""

import asyncio
import os
import sys
import tempfile
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

from flows.flow_runs import prefect_client
from flows.pipeline import PREFECT_SETTINGS, pipeline
from flows.plan import form_schema
from flows.verify_flow import verify
from tandem.files import ROOT, STATE
from tandem.params.reading import read_yaml
from tandem.terminal.command import CommandError

SECONDS_BETWEEN_CHECKS = 2.0  # of params.yaml
# (flow, description, tags, the hour at which it runs every day). A deployment has the name of its flow. The last one is
# created last: when it exists, all exist, and `tandem ui` is ready.
DEPLOYMENTS: tuple[tuple[Any, str, list[str], int], ...] = (
    (verify, "Run a recorded training again and compare the result. Default: the latest of each workload and device.",
     ["verify"], 4),
    (pipeline, "Run the stages that changed since the last run. Values other than params.yaml's make a DVC experiment.",
     ["train"], 2),
)  # fmt: skip
USER_FIELDS = {"schedules", "paused", "parameters", "tags", "concurrency_limit", "concurrency_options"}


def main() -> None:
    # Prefect's runner keeps files in the directory `runner_storage` there. All users of the machine share /tmp, and the
    # second one may not write the first one's.
    tempfile.tempdir = str(STATE)
    with temporary_settings(PREFECT_SETTINGS):
        # By default, a stopping runner pauses its schedules. It polls for work every two seconds.
        runner = Runner(pause_on_shutdown=False, limit=1, query_seconds=2)
        try:
            pipeline_id = register(runner)["pipeline/pipeline"]
        except CommandError as error:
            sys.exit(f"error: {error}")
        Thread(target=copy_context().run, args=(update_form, pipeline_id), daemon=True).start()
        try:
            asyncio.run(runner.start())
        except (KeyboardInterrupt, TerminationSignal):
            pass


def register(runner: Runner) -> dict[str, UUID]:
    """Create or update the deployments. Returns their ids by name."""
    ids: dict[str, UUID] = {}
    timezone = local_timezone()
    with prefect_client(timeout=30.0) as client:
        for flow, description, tags, hour in DEPLOYMENTS:
            at_night = f" Unless you change the schedule, every night at {hour:02}:00 ({timezone})."
            deployment = flow.to_deployment(
                flow.name,
                description=description + at_night,
                tags=tags,
                schedule=Cron(f"0 {hour} * * *", timezone=timezone),
                entrypoint_type=EntrypointType.MODULE_PATH,
            )
            with suppress(ObjectNotFound):
                client.read_deployment_by_name(deployment.full_name)
                # It exists. Unset fields are not sent; an empty list of schedules would delete the existing ones.
                deployment.schedules = None
                deployment.model_fields_set.difference_update(USER_FIELDS)
            deployment_id = runner.add_deployment(deployment)
            assert isinstance(deployment_id, UUID)  # a coroutine only if an event loop runs
            ids[deployment.full_name] = deployment_id
    return ids


def update_form(deployment: UUID) -> None:
    """Update the form whenever params.yaml changes. If it is invalid, the form stays, and a run reports the error."""
    params, last_modified = ROOT / "params.yaml", 0
    while True:
        # Such as a busy server, or parameters that were set in the UI and no longer fit.
        with suppress(HTTPError, PrefectException, OSError, ValueError):
            if (modified := params.stat().st_mtime_ns) != last_modified:
                schema = {"parameter_openapi_schema": form_schema(read_yaml(params))}
                with prefect_client(timeout=5.0) as client:
                    client.update_deployment(deployment, DeploymentUpdate.model_validate(schema))
                last_modified = modified
        time.sleep(SECONDS_BETWEEN_CHECKS)


def local_timezone() -> str:
    """The machine's IANA timezone, such as America/Sao_Paulo; UTC if it has none."""
    name = os.environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return name if (Path("/usr/share/zoneinfo") / (name or "-")).is_file() else "UTC"


if __name__ == "__main__":
    main()
