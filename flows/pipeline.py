"""The flow behind the Prefect UI: one DVC run with live logs and cancel, each of its stages shown as a child flow run.

By hand: `python -m flows.pipeline [--workloads sign pen] [--devices cpu cuda] [--seeds 0 1 2]
[-S sign.train.epochs=5] [--force]`. DVC owns the graph. The flow starts `dvc repro`, or `dvc exp run --temp` where
values differ from params.yaml, so that an override never stays behind in the working tree.
"""

import argparse
import difflib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from httpx import HTTPError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings, temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, State

from flows import dvc, repro
from flows.display import Display, StageCancelled, end_runs, prefect_client
from stages import files
from stages.params.loading import parse_params, read_yaml
from stages.params.parsing import nearest, one_line, replaced, shown
from stages.params.schema import Device
from stages.records.store import run_page
from stages.urls import without_password

# With Prefect's own settings a server lost during the run costs 157 s at its end; the heartbeat costs every run 1 s.
PATIENT_ENOUGH: dict[Any, Any] = {
    "client.max_retries": 2,
    "api.request_timeout": 10.0,
    "flows.heartbeat_frequency": None,
}
Names = Sequence[str] | None  # None: those of params.yaml


@flow(name="pipeline", log_prints=True, persist_result=False)
def pipeline(
    workloads: list[str] | None = None,
    devices: list[Device] | None = None,
    seeds: list[int] | None = None,
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
) -> State:
    """Reproduce the pipeline.

    Args:
        workloads: which of params.yaml's workloads; all of them where nothing is given.
        devices: auto, cpu, cuda; those of params.yaml where nothing is given.
        seeds: one training each, such as [0, 1, 2, 3, 4]; those of params.yaml where nothing is given.
        preset: one of params.yaml's presets, or auto or none; what params.yaml says where nothing is given.
        overrides: values that replace params.yaml's in this run only, by dotted name, such as
            {"sign.train.epochs": 5}. The run is then a DVC experiment named after this flow run.
        force: run every stage, even where nothing has changed.
    """
    run = FlowRunContext.get()
    assert run and run.flow_run
    if run.flow_run.deployment_id:
        dvc.end_with_parent()
    try:
        plan = make_plan(workloads, devices, seeds, preset, overrides or {}, force, run.flow_run.name)
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    try:
        with one_at_a_time(), prefect_client(timeout=5.0) as client, Display(run.flow_run, client) as display:
            with known_to_the_next(run.flow_run, client):
                result = execute(plan, display)
                display.check()
        if display.is_lost:  # Prefect itself would try for minutes and then fail, whatever the result is
            print(f"{result.name}: {result.message}", flush=True)
            sys.stderr.flush()
            os._exit(0 if result.is_completed() else 1)
        return result
    except KeyboardInterrupt:
        return Cancelled(message="stopped by Ctrl+C; run it again to go on from the last checkpoint")
    except StageCancelled as stage:
        return Cancelled(message=f"{stage} was cancelled; run the pipeline again to go on from the last checkpoint")


def execute(plan: "Plan", display: Display) -> State:
    for arguments in plan.commands:
        print("dvc " + " ".join(arguments))
        status = dvc.run(arguments, display.environment(), display.line, display.tick)
        if status != 0:
            ended = f"dvc {arguments[0]} {dvc.ending(status)}"
            display.stage_ended(Crashed(message=ended))
            return Failed(message=str(display.progress.failure(display.token, ended)))
        display.stage_ended(Completed())
    results = read_results(plan.experiment)
    display.finish()
    show_artifacts(results, display)
    return Completed(message=headline(results, display.progress.outcomes))


class Plan(NamedTuple):
    commands: list[list[str]]  # the arguments of each dvc command
    experiment: str | None  # the DVC experiment that they make; None where they work on the workspace


def make_plan(
    workloads: Names,
    devices: Names,
    seeds: Sequence[int] | None,
    preset: str | None,
    overrides: dict[str, Any],
    force: bool,
    name: str,
) -> Plan:
    """Check everything the caller chose against params.yaml. Raises ValueError naming the nearest accepted value."""
    raw = read_yaml(files.ROOT / "params.yaml")
    params = parse_params(raw)
    chosen = {
        key: list(names) for key, names in (("workloads", workloads), ("devices", devices), ("seeds", seeds)) if names
    }
    single = {"preset": preset} if preset else {}
    for key in chosen | single:
        if key in overrides:
            raise ValueError(f"{key} is given both as a parameter and in overrides; leave one of the two out")
    for workload in workloads or ():
        if workload not in params.blocks:
            raise ValueError(f"workload {workload!r} is not in params.yaml{nearest(workload, params.blocks)}")
    flags = ["--force"] if force else []
    values = overrides | single
    if values or any(not set(names) <= set(getattr(params, key)) for key, names in chosen.items()):
        # an experiment's graph follows from its params, so the choice is made there, without targets
        values |= chosen
        parse_params(override(raw, values))
        experiment = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "run"
        sets = [word for key, value in values.items() for word in ("--set-param", f"{key}={hydra(value)}")]
        return Plan([["exp", "run", "--temp", "--name", experiment, *flags, *sets]], experiment)
    everything = {key: list(getattr(params, key)) for key in ("workloads", "devices", "seeds")}
    if all(set(names) == set(everything[key]) for key, names in chosen.items()):
        return Plan([["repro", *flags]], None)
    targets = [f"evaluate@{'-'.join(map(str, item))}" for item in itertools.product(*(everything | chosen).values())]
    return Plan([["repro", *flags, *targets], ["repro", "--single-item", "compare"]], None)


def override(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of params.yaml's content with `values` put in. Raises ValueError for a name it does not have."""

    def complain(name: str) -> str:
        close = difflib.get_close_matches(name, dotted(raw), 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; name a key of params.yaml, such as sign.train.epochs"
        return f"overrides names {name!r}, which params.yaml does not have{hint}"

    changed: dict[str, Any] = replaced(raw, values, complain)
    return changed


def dotted(value: Any, prefix: str = "") -> list[str]:
    """The dotted name of every key at every depth."""
    pairs = value.items() if isinstance(value, dict) else ()
    return [name for key, part in pairs for name in (f"{prefix}{key}", *dotted(part, f"{prefix}{key}."))]


def hydra(value: Any) -> str:
    """`value` in the grammar of `--set-param` (https://hydra.cc/docs/advanced/override_grammar/basic/).

    Raises ValueError for what DVC would not take as it is: it puts the environment in the place of `${oc.env:...}`.
    """
    if isinstance(value, dict):
        for key in value:
            if not re.fullmatch(r"[\w.-]+", str(key), re.ASCII):
                raise ValueError(f"overrides has the key {shown(key)}; use letters, digits, _, - and . only")
        return "{" + ",".join(f"{key}:{hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if "${" in value or value == "???" or not value.isprintable():
        advice = "DVC would replace it; write printable text without ${ and other than ???"
        raise ValueError(f"overrides has the value {shown(value)}; {advice}")
    # A quote is escaped, and so are the backslashes before one; no others.
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" + found[2] if found[2] else ""), value) + '"'


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Make a second run on this repository wait. DVC would refuse it, and two trainings would share one device."""
    path = files.STATE / "pipeline.lock"
    with files.locked(path, wait=False) as holder:
        if holder is None:
            yield
            return
    print(f"another pipeline run works in this repository (process {holder}); waiting for it")
    with files.locked(path):
        yield


@contextmanager
def known_to_the_next(run: FlowRun, client: SyncPrefectClient) -> Iterator[None]:
    """Show the run that had the repository before, and was killed, as Crashed; leave a note for the next.

    A process that is killed tells Prefect nothing: its run and the stages below it would stay Running.
    """
    path, url = files.STATE / "pipeline.json", str(client.api_url)
    try:
        left = files.read_json(path)
        if left["api"] == url:
            gone: State[Any] = Crashed(message="its process was killed; the next run found it so")
            end_runs(client, gone, parent_flow_run_id={"any_": [left["run"]]})
            end_runs(client, gone, id={"any_": [left["run"]]})
    except (OSError, ValueError, KeyError, HTTPError, PrefectException):
        pass  # no note, or the server does not know the run any more: nothing is displayed wrongly
    files.write_json(path, {"api": url, "run": str(run.id)})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def show_artifacts(results: dict[str, Any], display: Display) -> None:
    """The metrics as a table, results/compare.md, and a link to each training's MLflow run."""
    rows = results.get("rows", [])
    table = [
        {key: row[key] for key in ("workload", "device", "device_name", "epoch_seconds", "samples_per_second")}
        | row["metrics"]
        | {"measured": f"{row['measured_at']} on {row['measured_on']}"}
        for row in rows
    ]
    display.artifact("metrics", "table", json.dumps(table), "Every training of params.yaml or of this experiment.")
    if "markdown" in results:
        display.artifact("comparison", "markdown", results["markdown"], "results/compare.md")
    server = repro.running_servers().get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
    for row in rows if server.startswith("http") else ():
        for tracking in [run["tracking"] for run in row["runs"] if "run_id" in run["tracking"]][:1]:
            name, run_id = f"{row['workload']}-{row['requested']}", tracking["run_id"]
            link = f"[MLflow run of {name}]({run_page(server, tracking['experiment_id'], run_id)})"
            display.artifact(f"mlflow-{name.lower()}".replace("_", "-"), "markdown", link, f"MLflow run of {name}")


def read_results(experiment: str | None) -> dict[str, Any]:
    """compare.json and compare.md, from the workspace or from an experiment's commit."""
    tree: Any = None
    if experiment:
        from dvc.api import DVCFileSystem

        tree = DVCFileSystem(str(files.ROOT), rev=experiment)

    def read(path: str) -> Any:
        return tree.read_text(path, encoding="utf-8") if experiment else (files.ROOT / path).read_text(encoding="utf-8")

    try:
        results = json.loads(read("results/compare.json"))
        return results | {"markdown": read("results/compare.md")}
    except OSError as error:
        print(f"warning: no results to show ({error})")
        return {}


def headline(results: dict[str, Any], stages: dict[str, dvc.Kind]) -> str:
    """One line for the list of runs: `sign 0.931 on cpu, pen 0.994 on cpu; 7 ran, 2 restored, 4 unchanged`."""
    scores = [f"{row['workload']} {row['score']:.4f} on {row['device']}" for row in results.get("rows", [])]
    words = {"running": "ran", "restored": "restored", "skipped": "unchanged"}
    counts = {word: sum(kind == outcome for outcome in stages.values()) for kind, word in words.items()}
    return "; ".join([", ".join(scores), ", ".join(f"{n} {word}" for word, n in counts.items() if n)]).strip("; ")


def main(arguments: list[str]) -> int:
    what = "Run the pipeline as a Prefect flow run."
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=what)
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="default: all of params.yaml's")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="auto, cpu, cuda; default: params.yaml's")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="one training each; default: params.yaml's")
    parser.add_argument("--preset", help="one of params.yaml's presets, auto or none")
    parser.add_argument("-S", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="override one value")
    parser.add_argument("--force", action="store_true", help="run every stage even where nothing has changed")
    options = parser.parse_args(arguments)
    url = get_current_settings().api.url or f"{repro.running_servers().get('prefect', '')}/api"
    advice = "; start it with `make ui`, or run `dvc repro` without Prefect"
    if url == "/api":
        sys.exit(f"error: no Prefect API is configured{advice}")
    with prefect_client(timeout=2.5, url=url, retries=0) as client:
        if error := client.api_healthcheck():
            sys.exit(f"error: {without_password(url)}: {without_password(str(error))}{advice}")
    try:
        overrides = dict(map(parse_set, options.sets))
    except ValueError as error:
        sys.exit(f"error: {error}")
    chosen = (options.workloads, options.devices, options.seeds, options.preset, overrides, options.force)
    with temporary_settings(PATIENT_ENOUGH | {"api.url": url}):
        final = pipeline(*chosen, return_state=True)
    print(f"{final.name}: {final.message}", file=sys.stdout if final.is_completed() else sys.stderr)
    return 0 if final.is_completed() else 130 if final.is_cancelled() else 1


def parse_set(text: str) -> tuple[str, Any]:
    """`sign.train.epochs=5`, the value in params.yaml's own YAML."""
    from ruamel.yaml import YAML

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-S {text!r} must be KEY=VALUE, such as -S sign.train.epochs=5")
    try:
        return name, YAML(typ="safe").load(value)
    except Exception as error:  # ruamel's failures have no base in common
        raise ValueError(f"-S {text!r} has a value that is not valid YAML: {one_line(error)}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
