"""The flow behind the Prefect UI: one DVC pipeline run with live logs, cancel, and what DVC skipped or restored shown.

By hand: `python -m flows.pipeline [--workloads sign pen] [--devices cpu cuda] [-S sign.train.epochs=5] [--force]`.
DVC owns the graph. The flow starts `dvc repro`, or `dvc exp run --temp` where values differ from params.yaml, so that an
override never stays behind in the working tree. Each stage DVC runs is a child flow run (flows/stage.py).
"""

import argparse
import difflib
import fcntl
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from prefect import flow, get_client
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings, temporary_settings
from prefect.states import Cancelled, Completed, Failed, State

from flows import dvc_log, prefect_api, repro
from flows.prefect_api import UNFINISHED, ApiError, ApiLost, PrefectApi, state
from stages import files
from stages.params.loading import parse_params, read_yaml
from stages.params.parsing import nearest, replaced
from stages.params.schema import Device, Params

# Ctrl+C, which saves a checkpoint; then Ctrl+C's successors. Prefect's own patience with a cancelled run is 30 s.
ESCALATION = ((signal.SIGINT, 12.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0))
# With Prefect's own settings a server lost during the run costs 157 s at its end; the heartbeat thread costs every run 1 s.
PATIENT_ENOUGH: dict[Any, Any] = {
    "client.max_retries": 2,
    "api.request_timeout": 10.0,
    "flows.heartbeat_frequency": None,
}
# Dies with the pipeline's process, and takes Ctrl+C even where the caller ignores it (a shell's background job).
DVC = """
import signal, sys
from flows.stage import die_with
signal.signal(signal.SIGINT, signal.default_int_handler)
die_with(int(sys.argv.pop(1)))
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""
SHOWN = {  # what the UI shows for a stage that DVC did not run
    "skipped": state("COMPLETED", "unchanged since the last run; DVC skipped it", "Skipped"),
    "restored": state("COMPLETED", "restored from DVC's run-cache, timings included, without running", "Cached"),
}


@flow(name="pipeline", log_prints=True, persist_result=False)
def pipeline(
    workloads: list[str] | None = None,
    devices: list[Device] | None = None,
    preset: str | None = None,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
) -> State:
    """Reproduce the pipeline.

    Args:
        workloads: which of params.yaml's workloads; all of them where nothing is given.
        devices: auto, cpu, cuda; those of params.yaml where nothing is given.
        preset: one of params.yaml's presets, or auto or none; what params.yaml says where nothing is given.
        overrides: values that replace params.yaml's in this run only, by dotted name, such as
            {"sign.train.epochs": 5}. The run is then a DVC experiment named after this flow run.
        force: run every stage, even where nothing has changed.
    """
    run = FlowRunContext.get()
    assert run and run.flow_run
    try:
        plan = make_plan(workloads, devices, with_preset(preset, overrides or {}), force, run.flow_run.name)
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    try:
        with one_at_a_time(), Display(str(run.flow_run.id)) as display:
            result = execute(plan, display)
        if not display.reaches_server():
            leave(result)
        return result
    except KeyboardInterrupt:
        return Cancelled(message="stopped by Ctrl+C; run it again to go on from the last checkpoint")


def execute(plan: "Plan", display: "Display") -> State:
    for arguments in plan.commands:
        print("dvc " + " ".join(arguments))
        status = run_dvc(arguments, display.environment(), display.line)
        if status != 0:
            return Failed(message=display.reason(f"dvc {arguments[0]} ended with exit status {status}"))
    results = read_results(plan.experiment)
    display.artifacts(results)
    return Completed(message=headline(results, dvc_log.outcomes(display.events)))


def leave(result: State) -> NoReturn:
    """End without the server: Prefect itself would try for minutes and then fail, whatever the pipeline came to."""
    print(f"{result.name}: {result.message}", flush=True)
    sys.stderr.flush()
    os._exit(0 if result.is_completed() else 1)


class Plan:
    """The DVC commands of a run, and the experiment they make (None: they work on the workspace)."""

    def __init__(self, commands: list[list[str]], experiment: str | None):
        self.commands, self.experiment = commands, experiment


def with_preset(preset: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` with the preset among them. Raises ValueError where both say one."""
    if preset and "preset" in overrides:
        raise ValueError("preset is given both as a parameter and in overrides; leave one of the two out")
    return {**overrides, "preset": preset} if preset else overrides


def make_plan(
    workloads: list[str] | None, devices: list[Device] | None, overrides: dict[str, Any], force: bool, name: str
) -> Plan:
    """Check everything the caller chose against params.yaml. Raises ValueError naming the nearest accepted value."""
    raw = read_yaml(files.ROOT / "params.yaml")
    params = parse_params(raw)
    for key, chosen in (("workloads", workloads), ("devices", devices)):
        if chosen and key in overrides:
            raise ValueError(f"{key} is given both as a parameter and in overrides; leave one of the two out")
    for workload in workloads or ():
        if workload not in params.blocks:
            raise ValueError(f"workload {workload!r} is not in params.yaml{nearest(workload, params.blocks)}")
    flags = ["--force"] if force else []
    values = dict(overrides)
    if workloads and not set(workloads) <= set(params.workloads):
        values["workloads"] = list(workloads)
    if devices and not set(devices) <= set(params.devices):
        values["devices"] = list(devices)
    if values:
        # an experiment's graph follows from its params, so the choice is made there, without targets
        values |= {key: list(chosen) for key, chosen in (("workloads", workloads), ("devices", devices)) if chosen}
        parse_params(override(raw, values))
        experiment = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")
        sets = [word for key, value in values.items() for word in ("--set-param", f"{key}={hydra(value)}")]
        return Plan([["exp", "run", "--temp", "--name", experiment, *flags, *sets]], experiment)
    targets = select(params, workloads, devices)
    if not targets:
        return Plan([["repro", *flags]], None)
    return Plan([["repro", *flags, *targets], ["repro", "--single-item", "compare"]], None)


def select(params: Params, workloads: list[str] | None, devices: list[Device] | None) -> list[str]:
    """DVC's targets for this choice; none where it is all of params.yaml."""
    chosen = [(w, d) for w in workloads or params.workloads for d in devices or params.devices]
    if set(chosen) == {(w, d) for w in params.workloads for d in params.devices}:
        return []
    return [f"evaluate@{workload}-{device}" for workload, device in chosen]


def override(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of params.yaml's content with `values` put in. Raises ValueError for a name it does not have."""

    def complain(name: str) -> str:
        close = difflib.get_close_matches(name, dotted(raw), 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; name a key of params.yaml, such as sign.train.epochs"
        return f"overrides names {name!r}, which params.yaml does not have{hint}"

    changed: dict[str, Any] = replaced(raw, values, complain)
    return changed


def dotted(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [prefix]
    here = [prefix] if prefix else []
    return here + [n for key, part in value.items() for n in dotted(part, f"{prefix}.{key}" if prefix else str(key))]


def hydra(value: Any) -> str:
    """`value` in the grammar of `--set-param` (https://hydra.cc/docs/advanced/override_grammar/basic/)."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra, value)) + "]"
    return json.dumps(value)


def run_dvc(arguments: list[str], environment: dict[str, str], on_line: Callable[[str], None]) -> int:
    """DVC's exit status. It runs in a session of its own, and nothing of it is left where this is interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-c", DVC, str(os.getpid()), *arguments],
        cwd=files.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stdout
    try:
        with process.stdout as lines:
            for line in lines:
                on_line(line.rstrip())
        return process.wait()
    except BaseException:  # Prefect's TerminationSignal, with which a cancel arrives, is no Exception
        stop(process)
        raise


def stop(process: subprocess.Popen[str]) -> None:
    """End the process group: politely, then firmly, then at once. What arrives meanwhile does not cut this short."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, patience in ESCALATION:
            try:
                os.killpg(process.pid, number)
                deadline = time.monotonic() + patience
                while time.monotonic() < deadline:
                    process.poll()
                    os.killpg(process.pid, 0)
                    time.sleep(0.05)
            except ProcessLookupError:  # the group is empty
                return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two runs on one repository: the second waits. DVC would refuse it, and two trainings would share one device."""
    files.STATE.mkdir(parents=True, exist_ok=True)
    with open(files.STATE / "pipeline.lock", "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            print(f"another pipeline run works in this repository (process {file.read().strip()}); waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class Display:
    """What the UI shows of the run: log lines, stages DVC did not run, artifacts. Losing the server costs nothing else."""

    def __init__(self, flow_run: str):
        self.flow_run = flow_run
        self.token = os.urandom(6).hex()
        self.events: list[dvc_log.Event] = []
        self.dvc_error = self.failed = ""
        self.logger = get_run_logger()
        logging.raiseExceptions = False  # a lost server is said once, not with every batch of log lines
        self.settings = api_settings()
        self.api: PrefectApi | None = PrefectApi(self.settings)

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """No child is left Running: one that was killed could not say so itself."""
        if kind is None:
            final = state("CRASHED", "its process ended without a word (kill -9, or the machine's memory ran out)")
        else:
            final = state("CANCELLED", "stopped with the pipeline run above it")
        for child in self.send(PrefectApi.children, self.flow_run, UNFINISHED) or []:
            self.send(PrefectApi.set_state, child, final)

    def environment(self) -> dict[str, str]:
        """What DVC and the stages inherit."""
        repro.prepare_environment()
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
        own.pop("TANDEM_PREFECT", None)
        return own | self.settings | {"TANDEM_RUN": self.token, "TANDEM_PARENT_FLOW_RUN_ID": self.flow_run}

    def line(self, line: str) -> None:
        if not line:
            return
        if line.startswith("ERROR:"):
            self.dvc_error = line.removeprefix("ERROR:").strip()
        level = {"ERROR": 40, "error": 40, "WARNING": 30, "warning": 30}.get(line.partition(":")[0], 20)
        self.logger.log(level, "%s", line)
        if event := dvc_log.parse(line):
            self.events.append(event)
            self.failed = ", ".join(event.stages) if event.kind == "failed" else ""
            for name in event.stages if event.kind in SHOWN else ():
                key = name.partition("@")[0]
                self.send(PrefectApi.create_task_run, self.flow_run, key, name, SHOWN[event.kind], 3.0)

    def reason(self, otherwise: str) -> str:
        """Why DVC failed: in the stage's own words, or else in DVC's."""
        killed = dvc_log.killer(self.dvc_error)
        return repro.last_error(self.token) or (killed and f"{self.failed}: {killed}") or self.dvc_error or otherwise

    def artifacts(self, results: dict[str, Any]) -> None:
        rows = results.get("rows", [])
        table = [
            {key: row[key] for key in ("workload", "device", "device_name", "epoch_seconds", "samples_per_second")}
            | row["metrics"]
            | {"measured": f"{row['measured_at']} on {row['measured_on']}"}
            for row in rows
        ]
        self.artifact("metrics", "table", json.dumps(table), "Every training of params.yaml or of this experiment.")
        if "markdown" in results:
            self.artifact("comparison", "markdown", results["markdown"], "results/compare.md")
        server = (repro.running_servers() or {}).get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
        for row in rows:
            name = f"{row['workload']}-{row['requested']}"
            tracking = results["tracking"].get(name, {})
            if not tracking.get("run_id") or not server.startswith("http"):
                continue
            address = f"{prefect_api.without_password(server).rstrip('/')}/#/experiments/{tracking['experiment_id']}"
            link = f"[MLflow run of {name}]({address}/runs/{tracking['run_id']})"
            self.artifact(f"mlflow-{name.lower()}".replace("_", "-"), "markdown", link, f"MLflow run of {name}")

    def artifact(self, key: str, kind: str, data: str, description: str) -> None:
        body = {"key": key, "type": kind, "data": data, "description": description, "flow_run_id": self.flow_run}
        self.send(PrefectApi.call, "POST", "/artifacts/", body, 5.0)

    def reaches_server(self) -> bool:
        self.send(PrefectApi.check)
        return self.api is not None

    def send(self, request: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None once the server is lost, which is said once."""
        if self.api is None:
            return None
        try:
            return request(self.api, *arguments)
        except ApiLost as error:
            self.api = None
            print(
                f"warning: lost the Prefect API ({error}); the pipeline goes on, its display there may be out of date"
            )
        except ApiError as error:
            print(f"warning: Prefect refused a part of the display: {error}")
        return None


def api_settings() -> dict[str, str]:
    """The API this flow run reports to, as environment variables."""
    with get_client(sync_client=True) as client:
        found = {"PREFECT_API_URL": str(client.api_url).rstrip("/")}
    api = get_current_settings().api
    if api.key:
        found["PREFECT_API_KEY"] = api.key.get_secret_value()
    if api.auth_string:
        found["PREFECT_API_AUTH_STRING"] = api.auth_string.get_secret_value()
    if api.ssl_cert_file:
        found["PREFECT_API_SSL_CERT_FILE"] = api.ssl_cert_file
    return found


def read_results(experiment: str | None) -> dict[str, Any]:
    """compare.json, compare.md and each run's tracking.json, from the workspace or from an experiment's commit."""
    if experiment is None:
        read = read_here
    else:
        from dvc.api import DVCFileSystem

        at_commit = DVCFileSystem(str(files.ROOT), rev=experiment)

        def read(path: str) -> str:
            return at_commit.read_text(path, encoding="utf-8")

    try:
        results = json.loads(read("results/compare.json"))
        results["markdown"] = read("results/compare.md")
        results["tracking"] = {}
        for row in results["rows"]:
            name = f"{row['workload']}-{row['requested']}"
            text = read(f"results/runs/{row['workload']}/{row['requested']}/tracking.json")
            results["tracking"][name] = json.loads(text)
    except OSError as error:
        print(f"warning: no results to show ({error})")
        return {}
    return results


def read_here(path: str) -> str:
    return (files.ROOT / path).read_text(encoding="utf-8")


def headline(results: dict[str, Any], stages: dict[str, dvc_log.Kind]) -> str:
    """One line for the list of runs: `sign 0.931 on cpu, pen 0.994 on cpu; 7 ran, 2 restored, 4 unchanged`."""
    scores = [f"{row['workload']} {row['score']:.4f} on {row['device']}" for row in results.get("rows", [])]
    words = {"running": "ran", "restored": "restored", "skipped": "unchanged"}
    counts = {word: sum(kind == outcome for outcome in stages.values()) for kind, word in words.items()}
    return "; ".join([", ".join(scores), ", ".join(f"{n} {word}" for word, n in counts.items() if n)]).strip("; ")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description="Run the pipeline as a Prefect flow run."
    )
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="default: all of params.yaml's")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="auto, cpu, cuda; default: params.yaml's")
    parser.add_argument("--preset", help="one of params.yaml's presets, auto or none")
    parser.add_argument("-S", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="override one value")
    parser.add_argument("--force", action="store_true", help="run every stage even where nothing has changed")
    options = parser.parse_args(arguments)
    settings = prefect_api.configured() or {}
    if "PREFECT_API_URL" not in settings and (servers := repro.running_servers()):
        settings["PREFECT_API_URL"] = f"{servers['prefect']}/api"
    try:
        if "PREFECT_API_URL" not in settings:
            raise ApiError("no Prefect API is configured")
        PrefectApi(settings).check()
        overrides = {key: value for key, value in map(parse_set, options.sets)}
    except (ApiError, ValueError) as error:
        where = prefect_api.without_password(settings.get("PREFECT_API_URL", "")) or "PREFECT_API_URL"
        advice = "; start it with `make ui`, or run `dvc repro` without Prefect" if isinstance(error, ApiError) else ""
        print(f"error: {where}: {error}{advice}", file=sys.stderr)
        return 1
    with temporary_settings(PATIENT_ENOUGH | {"api.url": settings["PREFECT_API_URL"]}):
        final = pipeline(
            options.workloads, options.devices, options.preset, overrides, options.force, return_state=True
        )
    print(f"{final.name}: {final.message}", file=sys.stdout if final.is_completed() else sys.stderr)
    return 0 if final.is_completed() else 130 if final.is_cancelled() else 1


def parse_set(text: str) -> tuple[str, Any]:
    """`sign.train.epochs=5`, the value in params.yaml's own YAML."""
    from io import StringIO

    from ruamel.yaml import YAML

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-S {text!r} must be KEY=VALUE, such as -S sign.train.epochs=5")
    return name, YAML(typ="safe").load(StringIO(value))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
