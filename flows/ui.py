"""Run Prefect's server, MLflow's server and the deployments until Ctrl+C.

The servers listen only on this machine, because none requires a password (docs/security.md). From another machine, use
`ssh -L 4200:127.0.0.1:4200 -L 5000:127.0.0.1:5000 HOST`; a team's servers are in docs/team.md. State and logs are in
`.tandem/` and `mlruns/`; nothing in the user's home directory changes. While they run, `.tandem/ui.json` has the
addresses.

    tandem ui
    tandem ui --prefect-port 4300 --mlflow-port 5100

Exit status: 0 stopped by Ctrl+C, 1 a server did not start or ended.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from flows import processes
from tandem import files
from tandem.terminal.command import CommandError, Result, WrongArgument, count

HOST = "127.0.0.1"
PORTS = {"Prefect": 4200, "MLflow": 5000}
LOGS = files.STATE / "logs"
STATE_FILE = files.STATE / "ui.json"  # the addresses, while the servers run
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY_WITHIN = 300.0  # seconds; Prefect's first start creates its database, which is slow on a busy machine
DEPLOYMENT_CRITERIA = {"deployment_id": {"is_null_": False}}  # flow runs started by the deployments
OTHER_DATABASE = "start a new history in Prefect: mv .tandem/prefect .tandem/prefect.old (results are not in it)"
# Words of an error in a server's log, and what it means for the user.
FIXES = {
    "Can't locate revision": f"a newer Prefect wrote .tandem/prefect/prefect.db: git pull && make -B setup, or "
    f"{OTHER_DATABASE}",
    "file is not a database": f".tandem/prefect/prefect.db is damaged; {OTHER_DATABASE}",
    "disk image is malformed": f".tandem/prefect/prefect.db is damaged; {OTHER_DATABASE}",
    "address already in use": "another process has just taken the port; run the same command again",
    "No space left on device": "`tandem doctor` names the full disk",
    "No usable temporary directory": "`tandem doctor` names the full disk; or set TMPDIR to a folder with room",
    "disk is full": "`tandem doctor` names the full disk",
    "readonly database": "let this user write to .tandem/prefect; `tandem doctor` has the command",
    "unable to open database file": "let this user write to .tandem/prefect; `tandem doctor` has the command",
}
LAST_LINES = 20  # of a server's log, in which the reason of its end is looked for
STOP_WITHIN = 30.0  # seconds; a running pipeline saves a checkpoint first (ESCALATION in flows/processes.py)


@dataclass(frozen=True)
class Server:
    name: str
    process: subprocess.Popen[bytes]
    ready_url: str
    log: Path


def add_arguments(parser: ArgumentParser) -> None:
    for name, port in PORTS.items():
        option, usual = f"--{name.lower()}-port", f"{port} or next free"
        parser.add_argument(option, type=count, default=port, metavar="N", help=usual)


def main(options: Namespace) -> Result:
    ports = [getattr(options, f"{name.lower()}_port") for name in PORTS]
    with files.locked(files.STATE / "ui.lock", wait=False) as process:
        if running := running_servers():
            raise CommandError(f"already running: {running['prefect']} and {running['mlflow']}")
        if process is not None:
            raise CommandError(f"another `tandem ui` (process {process}) is starting here; wait for its addresses")
        return run_servers(*ports)


def run_servers(*ports: int) -> Result:
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    servers: list[Server] = []
    try:
        start_all(servers, *ports)
        while not (dead := [server for server in servers if server.process.poll() is not None]):
            time.sleep(0.5)
        raise CommandError(ended(dead[0]))
    except KeyboardInterrupt:
        print("\nstopping", flush=True)
        return Result("", {server.name: server.ready_url for server in servers})
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        STATE_FILE.unlink(missing_ok=True)
        cancel_runs(servers)
        for server in reversed(servers):  # the deployments first, then the servers to which they report
            processes.stop(server.process, ((signal.SIGTERM, STOP_WITHIN), (signal.SIGKILL, 2.0)))


def start_all(servers: list[Server], prefect_port: int, mlflow_port: int) -> None:
    """Start the servers in order; add each to `servers` as soon as its process exists. Raises CommandError."""
    LOGS.mkdir(parents=True, exist_ok=True)
    prefect_port = free_port("Prefect", prefect_port)
    mlflow_port = free_port("MLflow", mlflow_port, besides=prefect_port)
    prefect, mlflow = f"http://{HOST}:{prefect_port}", f"http://{HOST}:{mlflow_port}"
    # The shell may have the settings of another server: its database, its password, its path, a profile.
    for variable in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[variable]
    home = files.STATE / "prefect"
    os.environ |= {  # child processes inherit it
        "PREFECT_HOME": str(home),
        # Also set where it is the default, because a file of settings (.env, prefect.toml) may name another database.
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "PREFECT_API_URL": f"{prefect}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # By default any page in the user's browser may call the API and start runs.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{prefect},http://localhost:{prefect_port}",
        "PREFECT_CLI_COLORS": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes of 245 MB each, for unused features
        "DO_NOT_TRACK": "true",
        "DVC_NO_ANALYTICS": "true",
    }
    print("starting Prefect, MLflow and the deployments ...", flush=True)
    command = ["flows.prefect_server", HOST, str(prefect_port)]
    servers.append(start("Prefect's server", command, f"{prefect}/api/health"))
    # MLflow's server would create the schema in place, without the lock that trainings use.
    try:
        processes.output_of(sys.executable, "-m", "tandem.tracking.publisher", "open")
    except CommandError as error:
        raise CommandError(f"MLflow's store cannot be opened: {error}") from None
    stored = [f"sqlite:///{files.MLRUNS}/mlflow.db", f"{files.MLRUNS.as_uri()}/artifacts"]
    command = ["tandem.tracking.mlflow_server", HOST, str(mlflow_port), *stored]
    servers.append(start("MLflow's server", command, f"{mlflow}/health"))
    wait_until_ready(servers[0])
    mark_orphans_crashed(servers[0])
    deployment = f"{prefect}/api/deployments/name/pipeline/pipeline"
    servers.append(start("the deployments (flows.deployments)", ["flows.deployments"], deployment))
    for server in servers[1:]:
        wait_until_ready(server)
    state = {"pid": os.getpid(), "project": str(files.REAL_ROOT), "prefect": prefect, "mlflow": mlflow}
    STATE_FILE.write_text(json.dumps(state), encoding="utf-8")
    print(f"  the report, with links to everything   {prefect}/report")
    print(f"  start, watch and schedule the pipeline {prefect}/v2/deployments")
    print(f"  MLflow; the report has its addresses   {mlflow}")
    print("Ctrl+C stops all three. Logs: " + files.relative(LOGS), flush=True)


def start(name: str, command: list[str], ready_url: str) -> Server:
    log = LOGS / f"{command[0]}.log"
    with log.open("wb") as file:
        return Server(name, processes.start(command, file), ready_url, log)


def free_port(name: str, port: int, besides: int | None = None) -> int:
    """`port`, or the next free one, which is printed. `besides` is the port of a server that is about to start."""
    free = next((other for other in range(port, min(port + 100, 65536)) if other != besides and is_free(other)), None)
    if free is None:
        raise WrongArgument(f"no free port for {name} from {port} on; choose another with --{name.lower()}-port")
    if free != port:
        print(f"port {port} is in use; {name} takes {free}", flush=True)
    return free


def is_free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True


def wait_until_ready(server: Server) -> None:
    """Raises CommandError if the server ends or does not answer."""
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise CommandError(ended(server))
        try:
            with urllib.request.urlopen(server.ready_url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise CommandError(f"{server.name} was not ready within {READY_WITHIN:.0f} s; see {server.log}")


def ended(server: Server) -> str:
    """How the server ended, with the error in its log and the next step if it is known."""
    text = server.log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.strip().splitlines()[-LAST_LINES:]] or ["nothing"]
    # uvicorn prints a traceback and then only that the start failed.
    error = next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception): ", line)), lines[-1])
    known = ((line, fix) for words, fix in FIXES.items() for line in reversed(lines) if words in line)
    error, fix = next(known, (error, ""))
    sentence = f"{server.name} {processes.exit_text(server.process.poll() or 0)}"
    return f"{sentence}; {error}{fix and '; '}{fix} (log: {files.relative(server.log)})"


def cancel_runs(servers: list[Server]) -> None:
    """Cancel the deployments' runs, as the UI would, so that a training saves a checkpoint.

    If a deployment were only terminated, its run and the child runs of its stages would stay Running for ever.
    """
    if any(server.process.poll() is not None for server in servers) or len(servers) < 3:
        return
    from httpx import HTTPError
    from prefect.states import Cancelling

    from flows.flow_runs import end_runs, prefect_client, unfinished_runs

    deadline = time.monotonic() + STOP_WITHIN
    try:
        with prefect_client(timeout=20.0) as client:
            for run in unfinished_runs(client, **DEPLOYMENT_CRITERIA):
                print(f"cancelling {run.name}, which saves a checkpoint", flush=True)
            end_runs(client, Cancelling(message="`tandem ui` was stopped"), **DEPLOYMENT_CRITERIA)
            while unfinished_runs(client, **DEPLOYMENT_CRITERIA) and time.monotonic() < deadline:
                time.sleep(0.2)
    except HTTPError as error:
        print(f"warning: running pipelines may stay displayed as Running ({error})", file=sys.stderr)


def mark_orphans_crashed(server: Server) -> None:
    """Set runs to Crashed that ended when the machine went down or when all processes were killed."""
    from httpx import HTTPError
    from prefect.states import Crashed, State

    from flows.flow_runs import end_runs, prefect_client

    gone: State[None] = Crashed(message="its process is gone: `tandem ui` or the machine was stopped")
    try:
        with prefect_client(timeout=60.0) as client:
            end_runs(client, gone)
    except HTTPError as error:
        raise CommandError(f"{server.name} does not answer: {error}; see {server.log}") from error


def running_servers() -> dict[str, str]:
    """The addresses of `tandem ui` and its process id; empty if it does not run."""
    try:
        state = json.loads(STATE_FILE.read_text(encoding="utf-8"))
        os.kill(int(state["pid"]), 0)
        is_ours = state["project"] == str(files.REAL_ROOT)  # False if the project is a copy
        return {name: str(state[name]) for name in ("pid", "prefect", "mlflow")} if is_ours else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # damaged: none
        return {}
