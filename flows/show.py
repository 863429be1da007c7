"""List the committed results, the local results and every experiment.

Each workload has a table with a row per device: score, seconds per epoch, samples/s, VRAM peak, and the parameters that
differ from the last commit. `dvc exp show` shows more, in a wider table.

A row "here, outdated" is the result of earlier parameters, code or data; the line below its table says which changed,
and has the command that updates it. Instead of a score, a row has "queued", "running", "failed", "not trained" or "not
evaluated" if there is no result, and "not compared" if `compare` did not run after its training, or left it out:
results/scores.json then has the score of another one, or none.

    tandem show
    tandem show sign --commits 5

Exit status: 0 done, 1 failed.
"""

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from flows.damaged_files import with_damaged_file
from flows.processes import output_of
from flows.status import DEVICES, KINDS, has_result, kinds_of_changes
from tandem import files
from tandem.devices.hardware import detect_hardware
from tandem.params.loading import block_in_force, choose_preset, load_params
from tandem.params.parsing import INTRODUCED, flatten
from tandem.params.schema import with_defaults
from tandem.report.text import format_score
from tandem.runs.provenance import git, is_data_edited
from tandem.runs.quantities import TRACKED
from tandem.terminal.command import CommandError, Result, WrongArgument, aligned, count
from tandem.terminal.messages import nearest, seconds

SHARED = ("devices", "seeds", "preset")  # parameters that belong to no workload
SCORES, TIMINGS = "results/scores.json", "results/timings.json"
TITLES = ("experiment", "device", "score", "s/epoch", "samples/s", "VRAM MiB", "differs from the last commit in")
WORKSPACE, HERE = "workspace", "here, now"  # the working tree, as DVC and as the table call it
# States of an experiment in which its metrics are those of the commit that it started from.
WITHOUT_RESULT, NOT_COMPARED = ("queued", "running", "failed"), "not compared"
# A device of params.yaml without a result in the workspace, as in a clone, or after a kill.
NOT_TRAINED, NOT_EVALUATED = "not trained", "not evaluated"
MACHINE = KINDS[DEVICES]
RESULTS = "results/runs"
# One process, because importing DVC takes most of the time. Each command prints one line. `dvc status` fails while a
# stage runs, because it is locked: here such a stage is null. `dvc exp show` fails if a worker has taken an experiment
# and not written its file, for ever if the worker has ended meanwhile: such an experiment is queued.
STATUS_AND_EXPERIMENTS = """
import os, sys
from dvc.cli import main
from dvc.lock import LockError
from dvc.repo.experiments.queue.celery import LocalCeleryQueue as Queue
from dvc.stage import Stage
status_of_dvc = Stage.status
def status(stage, **options):
    try:
        return status_of_dvc(stage, **options)
    except LockError:
        return {stage.addressing: None}
Stage.status = status
of_dvc = Queue.iter_active, Queue.iter_queued
def begun(queue, entry):
    return os.path.exists(queue.get_infofile_path(entry.stash_rev))
Queue.iter_active = lambda queue: (each for each in of_dvc[0](queue) if begun(queue, each))
Queue.iter_queued = lambda queue: (
    each for found in of_dvc for each in found(queue) if found is of_dvc[1] or not begun(queue, each)
)
failed = main(["--wait-for-lock", "status", "--json"])
sys.exit(failed or main(["--wait-for-lock", "exp", "show", "--json", "--num", sys.argv[1]]))
"""
# Of `dvc status --json`: stage -> changes; None while it, or one that it depends on, runs.
Status = Mapping[str, Sequence[Any] | None]
# Of `dvc exp show --json`: rev, name, and data with metrics, params and the digests of outputs. `state`: that of an
# experiment's executor; None for the workspace and a commit.
Experiment = Mapping[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of params.yaml")
    parser.add_argument("--commits", type=count, default=1, metavar="N", help="show experiments of the last N commits")


def main(options: Namespace) -> Result:
    workloads = load_params().workloads
    for name in options.workloads:
        if name not in workloads:
            raise WrongArgument(f"workload {name!r} is not in params.yaml{nearest(name, workloads)}")
    status, experiments = status_and_experiments(options.commits)
    tables = {
        workload: [row for experiment in experiments for row in rows_of(workload, experiment, experiments, status)]
        for workload in options.workloads or workloads
    }
    return Result("\n".join(table(workload, rows) for workload, rows in tables.items()), tables)


def table(workload: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return f"{workload}: no results; run `dvc repro`\n"
    lines = [
        (
            "here, outdated" if row["outdated"] else row["experiment"],
            row["device"],
            row["state"] or format_score(row["score"]),
            *(
                "-" if (value := row[key]) is None else seconds(value) if key == "epoch_seconds" else f"{value:,.0f}"
                for key in TRACKED
            ),
            ", ".join(f"{key}={value}" for key, value in row["params"].items()),
        )
        for row in rows
    ]
    advice = [
        f"outdated: {' and '.join(row['changed'])} changed after this result; `{row['update']}` updates it"
        for row in rows
        if row["outdated"]
    ][:1]
    advice += [f"{row['state']}: `{row['update']}` does it" for row in rows
               if row["state"] in (NOT_TRAINED, NOT_EVALUATED)][:1]  # fmt: skip
    advice += [f"no times: another machine measured them; `{row['update']}` does it here" for row in rows
               if MACHINE in row["changed"]][:1]  # fmt: skip
    if any(row["state"] == NOT_COMPARED for row in rows):
        advice.append(
            "not compared: `compare` has not run after this training, left it out because of other parameters, or was "
            f"of an earlier version of Tandem; here, `tandem repro {workload}` runs it, and an experiment with "
            "`compare` among its targets has a score"
        )
    return "\n".join([workload, *aligned([TITLES, *lines], indent=""), *advice, ""])


def status_and_experiments(num_commits: int) -> tuple[Status, list[Experiment]]:
    """DVC's status; and the workspace, each commit, and each commit's experiments. Raises CommandError with DVC's
    message.
    """
    with suppress(CommandError):  # this machine may lack a device of params.yaml; other results can still be shown
        output_of(sys.executable, "-m", "tandem.stage", "hardware")  # the status depends on the code that it describes
    try:
        output = output_of(sys.executable, "-c", STATUS_AND_EXPERIMENTS, str(num_commits))
    except CommandError as error:
        may_not = re.search(r"\[Errno (13|30)\]", str(error))  # in another user's folder, on a read-only disk
        step = "; DVC locks what it reads: let this user write there, or run this in a clone" if may_not else ""
        raise CommandError(f"{with_damaged_file(str(error))}{step}", error.status) from None
    status, baselines = map(json.loads, output.splitlines())
    experiments: list[Experiment] = []
    for baseline in baselines:
        experiments.append({**baseline, "state": None})
        for branch in baseline["experiments"] or ():
            state = (branch["executor"] or {}).get("state") or "success"
            experiments += [{**revision, "state": state} for revision in branch["revs"]]
    return status, experiments


def changes_of(workload: str, device: str, status: Status) -> list[Sequence[Any] | None]:
    """DVC's answers for the stages that make the workspace's result."""
    regex = re.compile(rf"(preprocess|baseline)@{workload}|(preload|train|replicate|evaluate)@{workload}-{device}")
    return [changes for stage, changes in status.items() if regex.fullmatch(stage)]


def changed_inputs(workload: str, device: str, status: Status) -> list[str]:
    """What has changed of the inputs of the workspace's result."""
    return kinds_of_changes(changes or () for changes in changes_of(workload, device, status))


def rows_of(
    workload: str, experiment: Experiment, experiments: Sequence[Experiment], status: Status
) -> Iterator[dict[str, Any]]:
    """A row per device. `params`: those that differ from the last commit, or from the workspace if the workload is not
    committed, and whether the raw data does. `changed`: the inputs that did so after the result. `update`: the command
    that replaces an outdated result, or measures its times here. `state`: why there is no score.
    """
    is_here = experiment["rev"] == WORKSPACE and experiment["state"] is None
    state = experiment["state"]
    reference = next((candidate for candidate in experiments if candidate["rev"] != WORKSPACE), experiment)
    if workload not in content(reference, "params", "params.yaml"):  # new since that commit
        reference = experiments[0]  # the workspace
    before, params = (params_in_force(workload, source) for source in (reference, experiment))
    name = HERE if is_here else experiment["name"] or experiment["rev"][:7]
    data = {"data": "edited"} if data_differs(workload, experiment) else {}
    changes = {**differing(params, before), **data} if experiment["data"] else {}
    empty = {"score": None, **dict.fromkeys(TRACKED), "params": changes}
    empty |= {"outdated": False, "changed": [], "update": None}
    devices = params["devices"] or ()
    if state in WITHOUT_RESULT:
        for requested in devices or ["-"]:
            yield {"experiment": name, "device": requested, **empty, "state": state}
        return
    scores, timings = (content(experiment, "metrics", path).get(workload, {}) for path in (SCORES, TIMINGS))
    if is_here:
        # While `compare` itself runs, and no stage before it, DVC has removed the scores.
        is_comparing = not scores and [stage for stage, changes in status.items() if changes is None] == ["compare"]
        running = [each for each in devices if is_comparing or None in changes_of(workload, each, status)]
        for requested in running:
            yield {"experiment": HERE, "device": requested, **empty, "state": "running"}
        devices = [requested for requested in devices if requested not in running]
    records = recorded_timings(experiment).get(workload, {}) if scores else {}
    if is_here:
        here = {requested for requested in devices if has_result(workload, requested, "evaluate")}
        for requested in devices:
            if requested not in here:
                update = f"tandem repro {workload}"
                missing = NOT_EVALUATED if has_result(workload, requested, "train") else NOT_TRAINED
                yield {"experiment": name, "device": requested, **empty, "update": update, "state": missing}
        # `compare` leaves out what has other parameters: no score then, and "not compared".
        scores = {requested: scores.get(requested) for requested in devices if requested in here}
    for requested, score in scores.items():
        times = timings.get(requested, {})
        changed = changed_inputs(workload, requested, status) if is_here else []
        edits = {} if "data" in changed else data
        row = {
            "experiment": name,
            "device": times.get("device", requested) if requested == "auto" else requested,
            **empty,
            "outdated": changed not in ([], [MACHINE]),  # another machine changes no score
            "changed": changed,
            "update": f"tandem repro {workload}" if changed else None,
        }
        of_row = records.get(requested, {})
        if is_compared(workload, requested, experiment, of_row.get("rests_on", ())):
            # Those that made the score: params.yaml may have changed since. The row itself names the device.
            made = with_defaults(*of_row["parameters"])
            known = {key: before[key] for key in before if key in made or key not in SHARED}
            row["params"] = {**differing(made, known), **edits}
            measured = {} if MACHINE in changed else times
            yield {**row, "score": score, **{key: measured.get(key) for key in TRACKED}, "state": None}
        else:
            yield {**row, "params": {**differing(params, before), **edits}, "state": NOT_COMPARED}


def differing(parameters: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Return `parameters` that differ from `reference`. One that is missing has its default, or is "removed" if it has
    none.
    """
    new, old = INTRODUCED | parameters, INTRODUCED | reference
    return {key: new.get(key, "removed") for key in new | old if new.get(key) != old.get(key)}


def data_differs(workload: str, experiment: Experiment) -> bool:
    """Whether the raw data differs from the last commit's; not if that has none of it, as of a new workload."""
    folder = files.relative(files.raw_dir(workload))
    if not git(files.ROOT, "ls-tree", "HEAD", "--", folder):
        return False
    if experiment["rev"] == WORKSPACE:
        return is_data_edited(files.ROOT, workload)
    return bool(git(files.ROOT, "diff", "--name-only", "HEAD", experiment["rev"], "--", folder))


def recorded_timings(experiment: Experiment) -> dict[str, Any]:
    """timings.json of the experiment. DVC leaves out its lists."""
    if experiment["rev"] != WORKSPACE:
        return dict(json.loads(git(files.ROOT, "show", f"{experiment['rev']}:./{TIMINGS}") or "{}"))
    with suppress(FileNotFoundError):  # while `compare` runs
        return dict(files.read_json(files.ROOT / TIMINGS))
    return {}


def is_compared(workload: str, device: str, experiment: Experiment, rests_on: Sequence[str]) -> bool:
    """Whether the score is that of the training which dvc.lock records. An earlier version wrote no digests."""
    outputs = experiment["data"].get("outs") or {}
    pairs = [entry.split() for entry in rests_on]
    matches = [outputs.get(f"{RESULTS}/{workload}/{device}/{name}", {}).get("hash") == digest for name, digest in pairs]
    return bool(matches) and all(matches)


def params_in_force(workload: str, experiment: Experiment) -> dict[str, Any]:
    """The parameters of params.yaml with its preset, for `auto` the one for this machine."""
    params = content(experiment, "params", "params.yaml")
    block = params.get(workload, {})
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # of an experiment that was refused
        preset = choose_preset(params["preset"], params["presets"], this_machine())
        block = block_in_force(params, workload, preset)
    return {key: params.get(key) for key in SHARED} | with_defaults(flatten(block))


@cache
def this_machine() -> dict[str, Any]:
    return detect_hardware("auto")


def content(experiment: Experiment, kind: str, path: str) -> dict[str, Any]:
    """DVC's copy of a metrics or parameters file; empty if DVC could not read it."""
    data = experiment["data"] or {}
    return dict((data.get(kind) or {}).get(path, {}).get("data") or {})
