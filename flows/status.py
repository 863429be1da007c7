"""List the stages that `tandem repro` would run, and what has changed for each.

`dvc status` always lists the stage `hardware`, which runs every time. This command runs it first, because the other
stages depend on the machine and the code that it describes, and leaves it out.

    tandem status

Exit status: 0 up to date, 1 outdated.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence

from tandem import files
from tandem.command import DONE, FAILED, NO_ANSWER, CommandError, Result

ALWAYS_RUNS = "stages/dvc.yaml:hardware"


def main(options: Namespace) -> Result:
    output_of("tandem.stage", "hardware")
    found = json.loads(output_of("dvc", "status", "--json"))
    outdated = {name: changes for name, changes in found.items() if name != ALWAYS_RUNS}
    lines = [f"{name}: {', '.join(changed_in(changes))}" for name, changes in outdated.items()]
    lines.append(f"{len(outdated)} stages are outdated; `tandem repro` runs them" if outdated else "up to date")
    return Result("\n".join(lines), {"outdated": outdated}, FAILED if outdated else DONE)


def output_of(*command: str) -> str:
    """The output of `python -m <command>`. Raises CommandError with its last line if it fails."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=files.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"{' '.join(command)} failed"])[-1]
        raise CommandError(reason.removeprefix("error: ").removeprefix("ERROR: "), NO_ANSWER)
    return done.stdout


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
