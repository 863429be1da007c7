"""`python -m flows.serve`: the pipeline's deployments on the Prefect API in use, until stopped. `make ui` starts it.

`on-demand` runs when somebody starts it, `nightly` at 02:00 local time. One run at a time: the others wait their turn.
"""

import os
import sys
from pathlib import Path
from typing import Any

from prefect import serve
from prefect.deployments.runner import EntrypointType
from prefect.schedules import Cron
from prefect.settings import temporary_settings

from flows.pipeline import PATIENT_ENOUGH, pipeline

NIGHTLY = "0 2 * * *"


def main() -> int:
    deployments: list[Any] = [
        pipeline.to_deployment(
            "on-demand", description="Start by hand, with overrides.", entrypoint_type=EntrypointType.MODULE_PATH
        ),
        pipeline.to_deployment(
            "nightly",
            description="Every night: whatever has changed since the last run.",
            schedule=Cron(NIGHTLY, timezone=local_timezone()),
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
    ]
    with temporary_settings(PATIENT_ENOUGH):
        # serve() pauses its schedules when it stops, unless told otherwise; two seconds between two looks for work
        serve(*deployments, pause_on_shutdown=False, limit=1, query_seconds=2, print_starting_message=False)
    return 0


def local_timezone() -> str:
    """The machine's IANA name, such as America/Sao_Paulo; UTC where it has none."""
    name = os.environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return name if (Path("/usr/share/zoneinfo") / (name or "-")).is_file() else "UTC"


if __name__ == "__main__":
    sys.exit(main())
