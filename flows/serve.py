"""`python -m flows.serve`: the deployments on the Prefect API in use, until stopped. `make ui` starts it.

    pipeline/on-demand    the pipeline, started by hand, with overrides
    pipeline/nightly      what has changed since the last run, at 02:00 local time
    compare/on-demand     recorded runs side by side, with the verdict
    verify/on-demand      a recorded run made again: is it the same?
    verify/nightly        the latest run of each workload, at 04:00 local time

One run at a time: the others wait their turn.
"""

import os
from pathlib import Path
from typing import Any

from prefect import serve
from prefect.deployments.runner import EntrypointType
from prefect.schedules import Cron
from prefect.settings import temporary_settings

from flows.deployed import compare, verify
from flows.pipeline import PATIENT_ENOUGH, pipeline

NIGHTLY, VERIFY_NIGHTLY = "0 2 * * *", "0 4 * * *"


def main() -> None:
    zone = local_timezone()
    schedules = {pipeline: Cron(NIGHTLY, timezone=zone), verify: Cron(VERIFY_NIGHTLY, timezone=zone)}
    about: tuple[tuple[Any, str, str], ...] = (
        (compare, "on-demand", "Two or more recorded runs, also of several machines: a table and the verdict."),
        (verify, "on-demand", "Make a recorded run again: is it the same?"),
        (verify, "nightly", "Every night: is the latest run of each workload still what was recorded?"),
        # The pipeline's last: when they are there, all are, and `make ui` is ready.
        (pipeline, "on-demand", "Start by hand, with overrides."),
        (pipeline, "nightly", "Every night: whatever has changed since the last run."),
    )
    deployments: list[Any] = [
        flow.to_deployment(
            name,
            description=description,
            schedule=schedules[flow] if name == "nightly" else None,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for flow, name, description in about
    ]
    with temporary_settings(PATIENT_ENOUGH):
        # serve() pauses its schedules when it stops, unless told otherwise; two seconds between two looks for work
        serve(*deployments, pause_on_shutdown=False, limit=1, query_seconds=2, print_starting_message=False)


def local_timezone() -> str:
    """The machine's IANA name, such as America/Sao_Paulo; UTC where it has none."""
    name = os.environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return name if (Path("/usr/share/zoneinfo") / (name or "-")).is_file() else "UTC"


if __name__ == "__main__":
    main()
