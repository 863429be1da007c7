"""`python -m flows.serve`: the pipeline's deployments on the Prefect API in use, until stopped. `make ui` starts it.

`on-demand` runs when somebody starts it, `nightly` at 02:00 local time. One run at a time: the others wait their turn.
"""

import os
from pathlib import Path
from typing import Any

from prefect import serve
from prefect.deployments.runner import EntrypointType
from prefect.schedules import Cron
from prefect.settings import temporary_settings

from flows.pipeline import PATIENT_ENOUGH, pipeline

NIGHTLY = "0 2 * * *"


def main() -> None:
    importable, schedule = EntrypointType.MODULE_PATH, Cron(NIGHTLY, timezone=local_timezone())
    every_night = "Every night: whatever has changed since the last run."
    deployments: list[Any] = [
        pipeline.to_deployment("on-demand", description="Start by hand, with overrides.", entrypoint_type=importable),
        pipeline.to_deployment("nightly", description=every_night, schedule=schedule, entrypoint_type=importable),
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
