"""List the stages that `tandem repro` would run, and what has changed for each; --json names the files.

`dvc status` always lists the stage `hardware`, which runs every time. This command runs it first, because the other
stages depend on the machine and the code that it describes, and leaves it out. If a workload has no results here, one
line says so, with the number of stages that run.

    tandem status

Exit status: 0 up to date, 1 outdated.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence

from flows.damaged_files import with_damaged_file
from flows.processes import output_of
from tandem import files
from tandem.params.loading import load_params
from tandem.terminal.command import DONE, FAILED, CommandError, Result

ALWAYS_RUNS = "stages/dvc.yaml:hardware"
DEVICES = "results/hardware/devices"
# What a changed input is, by the beginning of its path.
KINDS = {
    "params.yaml": "parameters",
    "results/hardware/params/": "parameters",
    "results/hardware/code/": "code",
    DEVICES: "machine",
    "results/": "earlier results",
    "": "data",
}


def main(options: Namespace) -> Result:
    output_of(sys.executable, "-m", "tandem.stage", "hardware")
    try:
        status = json.loads(output_of(sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json"))
    except CommandError as error:
        raise CommandError(with_damaged_file(str(error)), error.status) from None
    outdated = {name: changes for name, changes in status.items() if name != ALWAYS_RUNS}
    params, lines = load_params(), list[str]()
    changed = {name: kinds_of_changes([changes]) or ["its outputs"] for name, changes in outdated.items()}
    for workload in params.workloads:
        items = {workload, *(f"{workload}-{device}" for device in params.devices)}
        stages = [name for name in changed if name.partition("@")[2] in items]
        if stages and not any(has_result(workload, device, "train") for device in params.devices):
            lines.append(f"{workload}: no results here ({len(stages)} stages)")
            changed = {name: inputs for name, inputs in changed.items() if name not in stages}
    lines += [f"{name}: {', '.join(inputs)}" for name, inputs in changed.items()]
    lines.append(f"{len(outdated)} stages are outdated; `tandem repro` runs them" if outdated else "up to date")
    return Result("\n".join(lines), {"outdated": outdated}, FAILED if outdated else DONE)


def has_result(workload: str, requested: str, stage: str) -> bool:
    return (files.runs_dir(workload, requested) / stage / "result").exists()


def kinds_of_changes(stages: Iterable[Sequence[object]]) -> list[str]:
    """What has changed of the stages' inputs. An input that is not there, as in a fresh clone, has not changed."""
    of_deps = [change.get("changed deps", {}) for changes in stages for change in changes if isinstance(change, dict)]
    paths = [path for states in of_deps for path, state in states.items() if state != "deleted"]
    kinds = {next(kind for start, kind in KINDS.items() if path.startswith(start)) for path in paths}
    return [kind for kind in dict.fromkeys(KINDS.values()) if kind in kinds]
