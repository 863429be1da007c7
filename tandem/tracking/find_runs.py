"""Finds recorded runs by name: `find_seeds("sign@cpu")` returns a run for each seed, `find` the first of them.

A run is named by

    an MLflow run id          or its first digits, at least 6; in the tracking store in use: the project's, or the one
                              that MLFLOW_TRACKING_URI names
    sign@cpu, sign@cpu-0      workload@device[-seed]. The device is the one in params.yaml (including `auto`), or the
                              one that was used: the run in results/; if there is none, the latest finished run in the
                              tracking store
    brown-swan                an experiment of DVC, as `tandem show` lists it, that trained one workload on one device
    a path                    of a run's folder (results/runs/sign/cpu, or of one of its seeds
                              results/runs/sign/cpu/train/result/0), or of a file in it

Returns `Run` (tandem/runs/run.py). Artifacts on a tracking server come through that server. Errors that the caller
can fix are ValueErrors with one sentence.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tandem import files
from tandem.params.loading import load_params
from tandem.runs.provenance import git
from tandem.runs.run import Run, open_folder, open_run, seeds_in
from tandem.terminal.command import WrongArgument
from tandem.terminal.messages import nearest, without_password
from tandem.tracking import connection
from tandem.tracking.headline import PARENT_TAG
from tandem.tracking.store import database_file, shown_uri, tracking_uri

RUN_ID = re.compile(r"[0-9a-f]{6,32}")  # of MLflow, or its beginning
ID_LENGTH = 32
NAME = re.compile(r"(?P<workload>[^@\s]+)@(?P<device>[a-z0-9]+)(?:-(?P<seed>\d+))?")
FORMS = (
    "an MLflow run id, a name such as sign@cpu or sign@cpu-0 (workload@device-seed), the name of an experiment, or the "
    "path of a run's folder"
)
NUM_LISTED = 8  # runs listed in the message if the run asked for does not exist
NUM_SEARCHED = 200
IS_TRAINING = "tags.requested_device LIKE '%'"  # `is_training` as a clause of a query


def find(run: str) -> Run:
    """Return the run that `run` names. Raises ValueError if it does not exist or this version cannot read it."""
    check_name(run)
    return find_seeds(run)[0]


def check_name(run: str) -> None:
    """Raises WrongArgument if `run` can name no run. Does not ask MLflow, because that takes seconds for its import."""
    if Path(run).exists() or RUN_ID.fullmatch(run) or is_experiment(run):
        return
    match, workloads = NAME.fullmatch(run), load_params().workloads
    if not match:
        raise WrongArgument(f"{run!r} is neither a run nor an existing file; accepted: {FORMS}")
    if (name := match["workload"]) not in workloads:
        former = "name a run of a removed workload by its MLflow run id"
        raise WrongArgument(f"{run}: {name!r} is not a workload of params.yaml ({former}){nearest(name, workloads)}")


def is_experiment(name: str) -> bool:
    """Whether DVC has an experiment with this name."""
    refs = git(files.ROOT, "for-each-ref", "--format=%(refname)", "refs/exps") or b""
    return any(ref.endswith(f"/{name}") for ref in refs.decode().splitlines())


def runs_of_workspace(name: re.Match[str]) -> list[Run]:
    """Return the runs in results/ that have this name, with a device of params.yaml; empty if there are none."""
    workload, devices = name["workload"], load_params().devices
    for device in sorted(devices, key=lambda device: device != name["device"]):  # `cpu` before `auto`
        folder = files.runs_dir(workload, device)
        seeds = [seed for seed in seeds_in(folder) if name["seed"] in (None, str(seed))]
        runs = [open_folder(folder, seed) for seed in seeds]
        if runs and name["device"] in (device, runs[0].kind):
            return [
                replace(run, name=f"{workload}@{device}-{run.seed}", run_id=run.tracking.get("run_id")) for run in runs
            ]
    return []


def find_seeds(run: str) -> list[Run]:
    """Return the runs that `run` names, one for each seed.

    `check_name` accepts `run`. It may be one run, the parent run of several seeds, a name without a seed, an
    experiment, or the folder of a device with all its seeds.
    """
    if (path := Path(run)).exists():
        return [open_folder(path, seed) for seed in seeds_in(path) or (None,)]
    match = NAME.fullmatch(run)
    if match and (runs := runs_of_workspace(match)):
        return runs
    if match or RUN_ID.fullmatch(run):
        entry = entry_of(run)
        parent_id = entry.data.tags.get(PARENT_TAG) if match and not match["seed"] else None
        siblings = children_of(entry, parent_id) if parent_id or not is_training(entry) else []
    else:
        siblings = trainings_of_experiment(run)
        entry = siblings[0]
    # For a seed that was trained again, the newest run counts: the newest runs come first.
    by_seed = {child.data.params.get("seed"): child for child in reversed(siblings) if child.info.status == "FINISHED"}
    if not by_seed and not is_training(entry):
        raise ValueError(f"{run} is the parent run of several seeds, but none of its runs is finished")
    chosen = sorted(by_seed.values(), key=lambda child: int(child.data.params.get("seed", 0))) or [entry]
    return [open_entry(child) for child in chosen]


def tag(recorded: Run, tags: dict[str, str]) -> None:
    """Set `tags` on a run that MLflow has, and on its parent run, which MLflow's pages show first.

    If this fails, it prints a warning and does not raise.
    """

    def set_tags(client: Any) -> None:
        parent_id = client.get_run(recorded.run_id).data.tags.get(PARENT_TAG)
        for name, value in tags.items():
            client.set_tag(recorded.run_id, name, value)
            if parent_id:
                client.set_tag(parent_id, name, f"seed {recorded.seed}: {value}")

    try:
        ask_store(set_tags)
    except ValueError as error:
        print(f"warning: the tags of {recorded.name} were not updated: {error}", file=sys.stderr)


# MLflow's runs. `entry` is MLflow's Run.


def ask_store(question: Callable[[Any], Any]) -> Any:
    """Return the tracking store's answer. Raises ValueError if it does not answer."""
    try:
        return question(client_of_store())
    except Exception as error:  # the store's errors share no base class, and mlflow is not imported here
        raise ValueError(connection.sentence(connection.explain(error, "did not answer"))) from error


@cache
def client_of_store() -> Any:
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return connection.open_client()


def search(experiments: list[str], *clauses: str, most: int = NUM_SEARCHED, by: str = "start_time") -> list[Any]:
    """Return the runs that meet all clauses, the latest first `by` start_time or end_time."""
    if not experiments:
        return []
    order = [f"attributes.{by} DESC"]
    query = " and ".join(clauses)
    return list(ask_store(lambda client: client.search_runs(experiments, query, max_results=most, order_by=order)))


def experiments(name: str | None = None) -> list[str]:
    if (file := database_file(tracking_uri())) and not file.exists():
        return []  # opening the store would create it
    all_experiments = ask_store(lambda client: client.search_experiments())
    return [experiment.experiment_id for experiment in all_experiments if name in (None, experiment.name)]


def entry_of(run: str) -> Any:
    """Return the run with an id, or the latest with a name. Raises WrongArgument if there is none."""
    if RUN_ID.fullmatch(run):
        if len(run) == ID_LENGTH:
            entries = search(experiments(), f"attributes.run_id = '{run}'", most=1)
        else:
            entries = [entry for entry in search(experiments()) if entry.info.run_id.startswith(run)]
        if len(entries) > 1:
            ids = ", ".join(entry.info.run_id for entry in entries)
            raise WrongArgument(f"{run!r} matches several run ids: {ids}; give more digits")
    else:
        match = NAME.fullmatch(run)
        assert match, run
        entries = latest_of_name(*match.groups())
    if not entries:
        kind = "run" if RUN_ID.fullmatch(run) else "finished run"
        raise WrongArgument(f"MLflow at {shown_uri(tracking_uri())} has no {kind} {run!r}; {available_runs()}")
    return entries[0]


def latest_of_name(workload: str, device: str, seed: str | None) -> list[Any]:
    """Return the latest finished training with this name, if any. `device` is the requested or the used one."""
    ids = experiments(workload)
    common = ["attributes.status = 'FINISHED'", IS_TRAINING, *([f"params.seed = '{seed}'"] if seed else [])]
    either = (f"tags.requested_device = '{device}'", f"params.device = '{device}'")
    entries = [entry for of_device in either for entry in search(ids, of_device, *common, most=1, by="end_time")]
    return sorted(entries, key=lambda entry: -entry.info.end_time)[:1]


def trainings_of_experiment(experiment: str) -> list[Any]:
    """Return its finished trainings. Raises WrongArgument if there is none, or if they are of several names."""
    entries = search(
        experiments(), f"tags.`dvc.experiment` = '{experiment}'", "attributes.status = 'FINISHED'", IS_TRAINING
    )
    if not entries:
        where = shown_uri(tracking_uri())
        raise WrongArgument(f"MLflow at {where} has no finished run of the experiment {experiment}; {available_runs()}")
    ids = {re.sub(r"-\d+$", "", name_of(entry)): entry.info.run_id for entry in entries}
    if len(ids) > 1:
        trained = ", ".join(f"{name} ({run_id})" for name, run_id in ids.items())
        raise WrongArgument(f"the experiment {experiment} trained {trained}; name one of them by its MLflow run id")
    return entries


def available_runs() -> str:
    entries = [entry for entry in search(experiments()) if is_training(entry)]
    names = list(dict.fromkeys(name_of(entry) for entry in entries if entry.info.status == "FINISHED"))
    if not names:
        return "it has none at all; run `dvc repro`, or set MLFLOW_TRACKING_URI to the store with the runs"
    more = f" and {len(names) - NUM_LISTED} more" if len(names) > NUM_LISTED else ""
    return f"the latest are {', '.join(names[:NUM_LISTED])}{more}"


def is_training(entry: Any) -> bool:
    """Whether the run is one training, not the parent run of several seeds."""
    return "requested_device" in entry.data.tags


def children_of(entry: Any, above: str | None = None) -> list[Any]:
    parent = above or entry.info.run_id
    return search([entry.info.experiment_id], f"tags.`{PARENT_TAG}` = '{parent}'")


def name_of(entry: Any) -> str:
    tags, seed = entry.data.tags, entry.data.params.get("seed")
    name = f"{tags.get('workload', '?')}@{tags.get('requested_device', '?')}"
    return name if seed is None else f"{name}-{seed}"


def open_entry(entry: Any) -> Run:
    run_id, name = entry.info.run_id, name_of(entry)
    label = f"{name} (MLflow run {run_id})"

    @cache
    def paths(folder: str) -> dict[str, str]:
        """File name -> artifact."""
        listed = ask_store(lambda client: client.list_artifacts(run_id, folder or None))
        return {file.path.rpartition("/")[2]: file.path for file in listed if not file.is_dir}

    def read(name: str) -> tuple[bytes, str]:
        artifact = paths("").get(name) or paths("evaluation").get(name)
        if artifact is None:
            raise FileNotFoundError(name)
        with tempfile.TemporaryDirectory() as temporary:
            path = ask_store(lambda client: client.download_artifacts(run_id, artifact, temporary))
            return Path(path).read_bytes(), f"{name} of {label}"

    if "train.json" not in paths(""):
        raise ValueError(f"{label} has no train.json: {missing_reason(entry)}")
    return replace(open_run(label, read, run_id), name=name)


def missing_reason(entry: Any) -> str:
    if (status := entry.info.status) != "FINISHED":
        return f"its status is {status}, and only a finished training has one"
    return f"it is not in {without_password(entry.info.artifact_uri)}; restore this folder"
