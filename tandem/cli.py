"""The command `tandem`: `tandem COMMAND [arguments]`. COMMANDS lists every command with its module.

A command's module has `main(arguments) -> int`, which returns the exit status. It is imported only when it is called.
`make setup` writes .venv/bin/tandem, which runs the project that contains the current directory.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    module: str
    purpose: str


COMMANDS = {
    "repro": Command("flows.repro", "run what has changed (dvc repro), then print the results"),
    "status": Command("flows.status", "list what `tandem repro` would run"),
    "new": Command("tandem.importing.new_workload", "create a workload from your data"),
    "check": Command("tandem.checking.command", "test a network before training it"),
    "compare": Command("flows.compare", "compare recorded runs: score, speed, what differs"),
    "verify": Command("flows.verify", "repeat a recorded run, or compare yours with the published ones"),
    "predict": Command("tandem.predict", "apply a trained model to a new table"),
    "sync": Command("tandem.sync", "publish in MLflow what a server did not take"),
    "show": Command("flows.show", "list results and experiments"),
    "sweep": Command("tandem.diagnosis.sweep", "measure the throughput for each batch size"),
    "scaling": Command("tandem.diagnosis.scaling", "measure the throughput for each number of workers"),
    "choices": Command("tandem.choices", "list or clear the threads and precisions that `auto` chose here"),
    "doctor": Command("flows.doctor", "check this machine and project"),
    "ui": Command("flows.ui", "run Prefect and MLflow on this machine until Ctrl+C"),
    "gpu": Command("benchmarks.gpu", "run every check and benchmark for a GPU"),
}


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print("usage: tandem COMMAND [arguments]\n")
        print("\n".join(f"  {name:<{width}}  {command.purpose}" for name, command in COMMANDS.items()))
        print("\n`tandem COMMAND --help` explains a command. `dvc`, `prefect` and `mlflow` work as usual.")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        similar = get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        print(f"error: {name!r} is not a command{hint}; `tandem --help` lists them", file=sys.stderr)
        return 2
    try:
        status: int = import_module(COMMANDS[name].module).main(rest)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("tandem", "flows", "stages", "benchmarks"):
            raise
        print(f"error: the package {error.name!r} is not installed here; `make setup` installs it", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
