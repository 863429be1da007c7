"""List the stages that `tandem repro` would run, and what has changed for each.

`dvc status` always lists the stage `hardware`, which runs every time. This command runs it first, because the other
stages depend on the machine and the code that it describes, and leaves it out.

    tandem status

Exit status: 0 up to date, 1 outdated.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from flows.processes import output_of
from tandem.command import DONE, FAILED, Result

ALWAYS_RUNS = "stages/dvc.yaml:hardware"


def main(options: Namespace) -> Result:
    output_of(sys.executable, "-m", "tandem.stage", "hardware")
    found = json.loads(output_of(sys.executable, "-m", "dvc", "status", "--json"))
    outdated = {name: changes for name, changes in found.items() if name != ALWAYS_RUNS}
    lines = [f"{name}: {', '.join(changed_in(changes))}" for name, changes in outdated.items()]
    lines.append(f"{len(outdated)} stages are outdated; `tandem repro` runs them" if outdated else "up to date")
    return Result("\n".join(lines), {"outdated": outdated}, FAILED if outdated else DONE)


def changed_in(changes: Sequence[object]) -> list[str]:
    """The changed files and parameters in DVC's answer for a stage."""
    names: list[str] = []
    for change in changes:
        if not isinstance(change, dict):  # such as "always changed"
            names.append(str(change))
            continue
        for kind, found in change.items():  # "changed deps": {path: state}
            names += [f"{path} ({state if isinstance(state, str) else kind})" for path, state in found.items()]
    return names
