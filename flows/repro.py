"""Run what has changed, then print which stages ran and their results.

It calls `dvc repro` in this process. It prints a line for each stage that runs; what DVC and the stages print is in
`.tandem/logs/repro.log`. The other arguments go to `dvc repro`; `dvc repro --help` explains them.

    tandem repro
    tandem repro sign                       # one workload on all devices and seeds, and the report
    tandem repro evaluate@sign-auto         # one stage, and what it needs
    tandem repro --verbose                  # print everything
    tandem repro --dry                      # only list what would run, where everything has run before

Exit status: 0 done, 1 a stage failed, 2 a wrong argument, or another run uses the project, 130 stopped by Ctrl+C.
"""

import os
import re
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.events import StageEvent, counts
from flows.other_runs import LOCK, in_use
from flows.plan import commands_for, require_devices
from flows.processes import output_of
from flows.stage_lines import StageLines
from flows.ui import running_servers
from tandem import files
from tandem.params.loading import load_params
from tandem.params.reading import read_yaml
from tandem.terminal.command import DONE, FAILED, INTERRUPTED, NO_ANSWER, CommandError, Result, WrongArgument, aligned
from tandem.terminal.messages import MORE_SEEDS, more_seeds_of, nearest

LOG = files.STATE / "logs/repro.log"
# Arguments after which the output is that of `dvc repro`.
PRINTED_BY_DVC = {"--verbose", "-v", "--quiet", "-q", "--dry", "--interactive", "-i", "--help", "-h"}
IN_TERMINAL = ("workload", "device", "test score", "measured", "seconds per epoch")  # columns of compare.md
NEED_NO_DEVICE = {"--single-item", "-s"}  # arguments without which the stage `hardware` runs


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "tandem repro [-h] [--json] [arguments of dvc repro]"
    parser.set_defaults(more=[])


def main(options: Namespace) -> Result:
    os.chdir(files.ROOT)
    words = options.more
    require_targets(words)
    if not NEED_NO_DEVICE & {*words}:
        require_devices(load_params().devices)
    with files.locked(LOCK, wait=False) as holder:
        if holder is not None:
            raise CommandError(f"{in_use(holder)}, then run `{shlex.join(['tandem', 'repro', *words])}`", NO_ANSWER)
        return reproduce(words)


def reproduce(words: Sequence[str]) -> Result:
    """Run DVC, and return what `tandem repro` prints after it."""
    started = time.monotonic()
    if "--dry" in words:  # what would run depends on the machine and the code that this stage describes
        output_of(sys.executable, "-m", "tandem.stage", "hardware")
    workloads, commands = dvc_commands([word for word in words if word != "--verbose"])
    is_printed_by_dvc = bool(PRINTED_BY_DVC & {*words})
    status, events = run_commands(commands, is_printed_by_dvc)
    seconds = time.monotonic() - started
    stages = {event.stage: event for event in events if event.stage}
    reason = next((event.reason for event in events if event.outcome == "failed"), "")
    if status == NO_ANSWER:
        if reason:
            raise WrongArgument(f"{reason}; `dvc stage list --name-only` lists the stages")
        if not is_printed_by_dvc:
            sys.stderr.write(LOG.read_text(encoding="utf-8"))  # what DVC says of its arguments
    rows, table = results(workloads) if status == DONE else ([], [])
    if rows and "compare" not in stages and any("@" in word for word in words):
        table.append("  these are the results of the last `compare`; `tandem repro` compares again")
    document = {
        "seconds": seconds,
        "stages": {name: {"outcome": event.outcome, "seconds": event.seconds} for name, event in stages.items()},
        "results": rows,
        **({"error": reason} if reason else {}),
    }
    if status == NO_ANSWER or {"-q", "--quiet", "--dry"} & {*words}:
        return Result("", document, status)
    ending = {DONE: "Finished", INTERRUPTED: "Stopped"}.get(status, "Failed")
    num_stages = counts(event.outcome for event in stages.values())
    lines = ["", f"{ending} after {seconds:.1f} s; {num_stages}".removesuffix("; ")]
    if status == DONE:
        lines += ["", *table, "", *next_lines()]
    if reason:
        lines += [f"  output  {files.relative(LOG)}", f"error: {reason}"]
    if status == INTERRUPTED:
        lines.append(f"`{shlex.join(['tandem', 'repro', *words])}` continues.")
    return Result("\n".join(lines), document, status)


def run_commands(commands: Sequence[list[str]], is_printed_by_dvc: bool) -> tuple[int, list[StageEvent]]:
    """Run DVC's commands until one fails. Returns the exit status of `tandem repro`, and what happened to the stages,
    which a line for each also shows unless DVC prints its own.
    """
    from flows import dvc_run  # imports DVC

    events: list[StageEvent] = []
    if is_printed_by_dvc:
        dvc_status = first_failure(dvc_run.run(command, events.append) for command in commands)
    else:
        with StageLines(LOG) as stage_lines:

            def on_event(event: StageEvent) -> None:
                events.append(event)
                stage_lines.on_event(event)

            dvc_status = first_failure(dvc_run.run(command, on_event, log_level="WARNING") for command in commands)
    if any(event.is_interrupted for event in events if event.outcome == "failed"):
        return INTERRUPTED, events
    of_dvc = {0: DONE, dvc_run.DVC_INTERRUPTED: INTERRUPTED, dvc_run.DVC_REFUSED_ARGUMENTS: NO_ANSWER}
    return of_dvc.get(dvc_status, FAILED), events


def require_targets(words: Sequence[str]) -> None:
    """Raises WrongArgument for a word that can only be a misspelt workload or stage. DVC judges names of one stage
    (train@sign-cpu), files and patterns.
    """
    names = [word for word in words if re.fullmatch(r"\w[\w-]*", word) and not Path(word).exists()]
    if names and "--glob" not in words:
        targets = [*load_params().workloads, *read_yaml(files.ROOT / "dvc.yaml")["stages"]]
        for name in names:
            if name not in targets:
                raise WrongArgument(f"{name!r} is neither a workload nor a stage{nearest(name, targets)}")


def dvc_commands(words: Sequence[str]) -> tuple[Sequence[str], list[list[str]]]:
    """The workloads among the arguments, and the DVC commands that run them."""
    options = [word for word in words if word.startswith("-")]
    if len(options) == len(words):
        return [], [["repro", *words]]
    params = load_params()
    workloads = [word for word in words if word in params.workloads]
    if not workloads:
        return [], [["repro", *words]]
    stages = [word for word in words if word not in (*workloads, *options)]
    return workloads, commands_for(workloads, params, options, stages)


def first_failure(statuses: Iterable[int]) -> int:
    return next((status for status in statuses if status), 0)


def results(workloads: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of compare.json, and what the terminal shows: compare.md's table and the verdicts.

    `workloads`: only these, with their baselines.
    """
    from tandem.report.layout import first_verdicts

    folder = files.compare_dir()
    try:
        compared = files.read_json(folder / "compare.json")
        selected = workloads or [*dict.fromkeys(row["workload"] for row in compared["rows"])]
        rows = [row for row in compared["rows"] if row["workload"] in selected]
        short = {name: verdicts for name, verdicts in compared["short_verdicts"].items() if name in selected}
        lines = first_verdicts(short)
        if workloads:
            lines = [*(f"{row['workload']}: {row['sentence']}" for row in rows), *lines]
        for row in compared["outdated"]:
            if not workloads or row["workload"] in workloads:
                lines.append(f"{row['workload']} on {row['requested']} is left out: {row['reason']}")
        if rows and all(len(row["seeds"]) == 1 for row in rows):
            spread = more_seeds_of(" ".join(workloads)) if workloads else f"{MORE_SEEDS} shows the spread"
            lines.append(f"one seed each; {spread}")
        table = table_of((folder / "compare.md").read_text(encoding="utf-8"), selected)
        return rows, [*table, "", *(f"  {line}" for line in dict.fromkeys(lines))]
    except (OSError, ValueError, LookupError):  # missing or damaged
        return [], [f"no results in {files.relative(folder)}"]


def table_of(text: str, workloads: Sequence[str]) -> list[str]:
    """The table of compare.md: the rows of these workloads, and the columns that fit into a terminal."""
    hardware, *lines = text.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    places = list(map(cells[0].index, IN_TERMINAL))
    shown = [cells[0], *(row for row in cells[1:] if row[0].split()[0] in workloads)]
    return [f"  {hardware}", "", *aligned([[row[place] for place in places] for row in shown])]


def next_lines() -> list[str]:
    """Where to look next."""
    servers = running_servers()
    pages = f"{servers['prefect']}/report" if servers else "tandem ui"
    # `make repro` has the environment's commands in its PATH, the user's shell does not.
    is_activated = "VIRTUAL_ENV" in os.environ or "MAKELEVEL" not in os.environ
    return [
        *(() if is_activated else ("  first            . .venv/bin/activate",)),
        "  everything       results/report.html (open it in a browser)",
        "  changes          dvc metrics diff, dvc plots diff; all experiments: tandem show",
        f"  in the browser   {pages}",
    ]
