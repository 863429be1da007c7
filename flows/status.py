"""`tandem status`: list the stages that `tandem repro` would run, and why.

`dvc status` always lists the stage `hardware`, which runs every time. This command runs it first, because the other
stages depend on the machine and the code that it describes, and leaves it out. Exit status: 0 up to date, 1 outdated.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tandem import files

ALWAYS_RUNS = "stages/dvc.yaml:hardware"


def main(arguments: Sequence[str]) -> int:
    what, _, how = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "tandem status", description=what, epilog=how, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help='print {"outdated": {stage: what changed}}')
    options = parser.parse_args(arguments)
    os.chdir(files.ROOT)
    stage = subprocess.run([sys.executable, "-m", "tandem.stage", "hardware"], stdout=subprocess.DEVNULL, check=False)
    if stage.returncode:
        return stage.returncode
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"error: {(done.stderr.strip().splitlines() or ['dvc status failed'])[-1]}", file=sys.stderr)
        return 2
    outdated = {name: changes for name, changes in json.loads(done.stdout).items() if name != ALWAYS_RUNS}
    if options.json:
        print(json.dumps({"outdated": outdated}, indent=2))
    else:
        for name, changes in outdated.items():
            print(f"{name}: {', '.join(changed_in(changes))}")
        print(f"{len(outdated)} stages are outdated; `tandem repro` runs them" if outdated else "up to date")
    return 1 if outdated else 0


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
