"""List the stages that `tandem repro` would run, and what has changed for each.

`dvc status` always lists the stage `hardware`, which runs every time. This command runs it first, because the other
stages depend on the machine and the code that it describes, and leaves it out. If a workload has no results here, one
line says so, with the number of stages that run.

    tandem status

Exit status: 0 up to date, 1 outdated.
"""

import json
import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence

from flows.processes import output_of
from tandem import files
from tandem.params.loading import load_params
from tandem.terminal.command import DONE, FAILED, Result

ALWAYS_RUNS = "stages/dvc.yaml:hardware"
DEVICES = "results/hardware/devices"
# What a changed input is, by the beginning of its path.
KINDS = {
    "params.yaml": "parameters",
    "results/hardware/params/": "parameters",
    "results/hardware/code/": "code",
    DEVICES: "machine",
    "results/": "the training's files",
    "": "data",
}
NEVER_RAN = "params.yaml (new)"  # DVC lists every input and output of such a stage
MAX_LETTERS = 100  # of a line; --json has all


def main(options: Namespace) -> Result:
    output_of(sys.executable, "-m", "tandem.stage", "hardware")
    status = json.loads(output_of(sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json"))
    outdated = {name: changes for name, changes in status.items() if name != ALWAYS_RUNS}
    params, lines = load_params(), list[str]()
    changed = {name: changed_in(changes) for name, changes in outdated.items()}
    for workload in params.workloads:
        items = {workload, *(f"{workload}-{device}" for device in params.devices)}
        stages = [name for name in changed if name.partition("@")[2] in items]
        if stages and not any(has_result(workload, device, "train") for device in params.devices):
            lines.append(f"{workload}: no results here ({len(stages)} stages)")
            changed = {name: inputs for name, inputs in changed.items() if name not in stages}
    lines += [f"{name}: {', '.join(inputs)}" for name, inputs in changed.items()]
    lines.append(f"{len(outdated)} stages are outdated; `tandem repro` runs them" if outdated else "up to date")
    lines = [textwrap.shorten(line, MAX_LETTERS, placeholder=" ...") for line in lines]
    return Result("\n".join(lines), {"outdated": outdated}, FAILED if outdated else DONE)


def has_result(workload: str, requested: str, stage: str) -> bool:
    return (files.runs_dir(workload, requested) / stage / "result").exists()


def changed_in(changes: Sequence[object]) -> list[str]:
    """The changed files and parameters in DVC's answer for a stage."""
    names: list[str] = []
    for change in changes:
        if not isinstance(change, dict):  # such as "always changed"
            names.append(str(change))
            continue
        for kind, states in change.items():  # "changed deps": {path: state}
            names += [f"{path} ({state if isinstance(state, str) else kind})" for path, state in states.items()]
    return ["has not run here"] if NEVER_RAN in names else names


def kinds_of_changes(changes: Sequence[object]) -> set[str]:
    """What has changed of a stage's inputs. An input that is not there, as in a fresh clone, has not changed."""
    inputs = [change.get("changed deps", {}) for change in changes if isinstance(change, dict)]  # not "always changed"
    paths = [path for states in inputs for path, state in states.items() if state != "deleted"]
    return {next(kind for start, kind in KINDS.items() if path.startswith(start)) for path in paths}
