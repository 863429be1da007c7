"""`make team-test`: a team's servers and two workers on this machine, the pipeline in two pools, one of the two
machines killed in the middle, and the comparison of what both recorded: docs/team.md, tried.

    python -m tests.team [--without NAME ...] [--keep FOLDER]

Each "machine" is a clone of its own with a host name of its own; they have nothing in common but the servers. A part
that cannot be started makes it fail, unless `--without` names it (postgresql, s3). Exit status 0: everything held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tandem.files import ROOT
from tests.projects import TINY, commit, git, make_project, wait_for
from tests.served import call, processes
from tests.servers import HOST, PARTS, Servers, as_header, stop_group

POOLS = {"cpu": "first", "gpu": "second"}  # pool -> the machine of its worker
EPOCHS = 600  # long enough to be killed in the middle
SECONDS = 1800.0  # for a run of both pools on a slow, busy machine
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Team:
    """The clones, their workers, and questions to the servers."""

    def __init__(self, servers: Servers) -> None:
        self.servers, self.folder = servers, servers.folder
        self.environment = servers.client | {f"GIT_{role}_{field}": "team" for role in ("AUTHOR", "COMMITTER")
                                             for field in ("NAME", "EMAIL")}  # fmt: skip
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def make_clones(self, epochs: int) -> None:
        seed = make_project(self.folder / "seed", TINY.replace("epochs: 3", f"epochs: {epochs}"))
        for name in ("prefect.yaml", "requirements.txt"):
            shutil.copy(ROOT / name, seed)
        remote = f"{self.folder}/remote" if "s3" in self.servers.without else "s3://dvc/tandem"
        with (seed / ".dvc/config").open("a") as config:
            config.write(f"    remote = team\n['remote \"team\"']\n    url = {remote}\n")
            if "s3" not in self.servers.without:
                config.write(f"    endpointurl = http://{HOST}:{self.servers.ports['s3']}\n")
        commit(seed)
        git(self.folder, "clone", "-q", "--bare", "seed", "origin.git")
        shutil.rmtree(seed)
        for machine in (*POOLS.values(), "beside"):  # a clone of somebody who only looks
            git(self.folder, "clone", "-q", "origin.git", machine)

    def register(self) -> None:
        """What docs/team.md does once."""
        pools = [f"work-pool create {pool} --type process" for pool in POOLS]
        limits = [f"work-pool set-concurrency-limit {pool} 1" for pool in POOLS]
        automations = f"automation create --from-file {ROOT / 'deploy/lost-runs.yaml'}"
        for words in (*pools, *limits, automations, "--no-prompt deploy --all"):
            command = [sys.executable, "-m", "prefect", *words.split()]
            self.servers.must(f"`prefect {words}`", *command, cwd=self.folder / "beside", env=self.environment)

    def start_worker(self, pool: str) -> None:
        machine = POOLS[pool]
        worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", machine]
        worker += ["--limit", "1"]
        prefix = ["unshare", "--uts", "sh", "-c", f'hostname {machine} && exec "$@"', "sh"]
        if subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:  # not root, or no such namespaces
            prefix = []
        with (self.folder / "logs" / f"{machine}.log").open("ab") as log:
            self.workers[pool] = subprocess.Popen(
                [*prefix, *worker], cwd=self.folder / machine, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self.environment | {
                    "PREFECT_HOME": str(self.folder / f"home-{machine}"),
                    "XDG_CACHE_HOME": str(self.folder / f"cache-{machine}"),  # each machine's user has one of its own
                },
            )  # fmt: skip

    def kill_machine(self, pool: str) -> None:
        """Everything of it at once, as by a power cut."""
        while remaining := processes(self.folder / POOLS[pool], ""):
            for process in remaining:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.workers[pool].poll()
            time.sleep(0.1)

    def stop(self) -> None:
        for worker in self.workers.values():
            stop_group(worker)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return call(f"{self.environment['PREFECT_API_URL']}{path}", method, body, self.servers.authorization())

    def create(self, deployment: str, **parameters: Any) -> str:
        id = self.api("GET", f"/deployments/name/{deployment}")["id"]
        return str(self.api("POST", f"/deployments/{id}/create_flow_run", {"parameters": parameters})["id"])

    def state(self, run: str) -> dict[str, Any]:
        return dict(self.api("GET", f"/flow_runs/{run}")["state"])

    def wait(self, run: str, seconds: float = SECONDS) -> dict[str, Any]:
        return dict(wait_for(lambda: (found := self.state(run))["type"] in FINAL and found, seconds, "a run's end"))

    def all_of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """What the API has of `flow_runs`, `logs`, ..., page by page."""
        rows: list[dict[str, Any]] = []
        while page := self.api("POST", f"/{kind}/filter", wanted | {"limit": 200, "offset": len(rows)}):
            rows += page
        return rows

    def logs(self, run: str) -> str:
        entries = self.all_of("logs", logs={"flow_run_id": {"any_": [run]}}, sort="TIMESTAMP_ASC")
        return "\n".join(entry["message"] for entry in entries)

    def recorded(self) -> list[dict[str, Any]]:
        """Every training in MLflow: its id, status, host and Prefect flow run."""
        code = """
import json
from tandem.tracking import find_runs
found = find_runs.search(find_runs.experiments("tiny"), most=5000)
print(json.dumps([{"id": each.info.run_id, "status": each.info.status, **each.data.tags} for each in found]))
"""
        command = [sys.executable, "-c", code]
        return list(json.loads(self.servers.must("MLflow's runs", *command, cwd=self.folder / "beside",
                                                 env=self.environment).splitlines()[-1]))  # fmt: skip


def in_both(team: Team) -> None:
    """One run in each pool, and their comparison; the second machine is lost while it trains, and comes back."""
    say("one run in each of the pools cpu and gpu; the second machine is killed while it trains")
    runs = {pool: team.create(f"pipeline/{pool}", devices=["cpu"]) for pool in ("cpu", "gpu")}  # there may be no GPU
    lose_second(team, runs["gpu"])
    for pool, run in runs.items():
        wait_for_success(team, run, f"the run of the pool {pool}")
    check_second(team, runs["gpu"])
    recorded = {entry["prefect.flow_run_id"]: entry for entry in team.recorded()}
    if set(recorded) != set(runs.values()) or {entry["status"] for entry in recorded.values()} != {"FINISHED"}:
        listed = [(entry["id"], entry["status"]) for entry in recorded.values()]
        raise SystemExit(f"error: MLflow has {listed}, expected two finished runs")
    command = [sys.executable, "-m", "tandem.cli", "compare", *(entry["id"] for entry in recorded.values())]
    print(team.servers.must("the comparison", *command, cwd=team.folder / "beside", env=team.environment))


def wait_for_success(team: Team, run: str, what: str) -> str:
    """The message of its last state."""
    state = team.wait(run)
    if state["type"] != "COMPLETED":
        raise SystemExit(f"error: {what} is {state['name']}: {state['message']}\n{team.logs(run)}")
    return str(state["message"])


def lose_second(team: Team, run: str) -> None:
    """Kill the second machine while it trains, and start its worker again once Prefect has scheduled its run again."""
    checkpoints = team.folder / "second/.tandem/checkpoints/tiny"
    wait_for(lambda: list(checkpoints.glob("*.pt")), SECONDS, "the second machine's first checkpoint")
    team.kill_machine("gpu")
    say(f"killed; Prefect says of its run: {team.state(run)['name']}")
    start = time.monotonic()
    wait_for(lambda: team.state(run)["type"] == "SCHEDULED", 600, "the lost run, scheduled again,")
    say(f"Prefect has scheduled the lost run again after {time.monotonic() - start:.0f} s")
    team.start_worker("gpu")


def check_second(team: Team, lost: str) -> None:
    """The lost run was started once more, and resumed from its checkpoint."""
    starts = team.api("GET", f"/flow_runs/{lost}")["run_count"]
    if starts != 2:
        raise SystemExit(f"error: the lost run was started {starts} times, expected 2")
    if "resuming from" not in (team.folder / "logs/second.log").read_text(errors="replace"):
        raise SystemExit("error: the second machine's training did not resume from its checkpoint; see its log")


def check_passwords(team: Team) -> None:
    """No password in what others can read: command lines, logs, what the servers show, what a machine keeps."""
    texts = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            texts[f"the command line of process {process.pid}"] = " ".join(process.cmdline())
    for kind in ("work_pools", "deployments", "flow_runs", "logs", "artifacts"):
        texts[f"Prefect's {kind}"] = json.dumps(team.all_of(kind))
    texts["MLflow's tags"] = json.dumps(team.recorded())
    of_machines = [file for machine in POOLS.values() for file in (team.folder / machine / ".tandem").rglob("*")]
    for file in [*(team.folder / "logs").glob("*.log"), *of_machines]:
        if file.is_file() and file.suffix in (".log", ".json", ".jsonl"):
            texts[str(file)] = file.read_text(errors="replace")
    passwords = dict(team.servers.secrets)
    passwords |= {f"{name}, as HTTP sends it": as_header("admin", secret) for name, secret in passwords.items()}
    for place, text in texts.items():
        for name, secret in passwords.items():
            if secret in text:
                raise SystemExit(f"error: the password of {name} stands in {place}")
    if "Running stage 'train@" not in texts["Prefect's logs"]:
        raise SystemExit("error: the logs that were looked through do not hold what the runs have printed")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(arguments: list[str]) -> int:
    purpose = "A team's servers and workers on this machine, one of them killed: docs/team.md, tried."
    parser = argparse.ArgumentParser(prog="python -m tests.team", description=purpose)
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="leave this part out")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in FOLDER, which must not exist, and keep it")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="tandem-team-"))
    try:
        with Servers(folder, set(options.without)) as servers:
            say(f"servers: {', '.join(servers.processes)}; without {', '.join(options.without) or 'nothing'}")
            team = Team(servers)
            team.make_clones(EPOCHS)
            team.register()
            try:
                for pool in POOLS:
                    team.start_worker(pool)
                in_both(team)
                check_passwords(team)
                say("no password in any log, command line, tag or page of the API")
            except KeyboardInterrupt:
                return 130
            finally:
                team.stop()
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
