"""The flows and their deployments in Prefect: real servers (`make ui`), a real DVC repository, real kills."""

import base64
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows.results_in_prefect import mlflow_links
from tandem.devices.hardware import detect_hardware
from tests.conftest import CHROMIUM
from tests.projects import commit, git, tandem, wait_for
from tests.recording import record, refusing_server, runs_of, said_of_tracking
from tests.served import STAGE_SECONDS, Door, Project, make_project, processes, running_ui

mlflow = pytest.importorskip("mlflow")


def settings_of_others(root: Path) -> dict[str, str]:
    """What the shell has on the machine of a team's server (docs/team.md), behind a proxy that does not answer."""
    proxies = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{root}/team.db",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{root}/team.db",  # its former name
        "PREFECT_SERVER_API_AUTH_STRING": "team:secret",
        "PREFECT_SERVER_API_BASE_PATH": "/prefect",
        "PREFECT_UI_API_URL": "https://prefect.example.org/api",
        "PREFECT_API_URL": "https://prefect.example.org/api",
        "PREFECT_API_AUTH_STRING": "team:secret",
        **dict.fromkeys(proxies, "http://127.0.0.1:9"),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
    }


@pytest.fixture(scope="module")
def served(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with `make ui` running in it, whose shell has the settings of a team's server and of a proxy."""
    root = make_project(tmp_path_factory.mktemp("project"))
    (root / "mlruns").mkdir()
    shutil.copy(empty_history, root / "mlruns")
    with running_ui(root, **settings_of_others(root)) as project:
        yield project


@pytest.fixture
def project(served: Project) -> Project:
    """Its stages behave as usual at the start of each test."""
    served.reset()
    return served


@pytest.fixture
def door(project: Project) -> Iterator[Door]:
    door = Door(project.prefect)
    yield door
    project.api_url = f"{project.prefect}/api"
    door.hangs = False
    try:
        door.shut()
    except OSError:
        pass


def test_ui_uses_the_projects_own_database_whatever_the_shell_has(project: Project) -> None:
    assert project.api("GET", "/deployments/name/pipeline/pipeline")
    assert httpx.get(f"{project.prefect}/ui-settings").json()["api_url"] == f"{project.prefect}/api"
    assert (project.root / ".tandem/prefect/prefect.db").exists()
    assert not (project.root / "team.db").exists()


@pytest.mark.case(52)
def test_every_socket_of_the_servers_is_on_loopback(project: Project, saw: Callable[[str], None]) -> None:
    """make ui started; the addresses that its processes listen on; a page of another site calling the API"""
    listening = {
        connection.laddr.ip
        for process in psutil.Process(project.ui.pid).children(recursive=True)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening and listening <= {"127.0.0.1", "::1"}
    for origin, is_allowed in (("http://evil.example", False), (project.prefect, True)):
        asking = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        answer = httpx.get(f"{project.prefect}/api/health", headers=asking)
        assert (answer.headers.get("Access-Control-Allow-Origin") in ("*", origin)) == is_allowed
    saw(f"listening on {', '.join(sorted(listening))} alone")


def running_flow(project: Project, flow: str, **fields: Any) -> dict[str, Any]:
    """A flow run in the state Running, as another project that uses the same server has it."""
    flow_id = project.api("POST", "/flows/", {"name": flow})["id"]
    body = {"flow_id": flow_id, "state": {"type": "RUNNING", "name": "Running"}, **fields}
    run: dict[str, Any] = project.api("POST", "/flow_runs/", body)
    return run


def test_pipeline_links_children_and_shows_their_results(project: Project) -> None:
    result = project.run_flow(force=True)
    assert result.returncode == 0, result.stdout + result.stderr
    run = project.latest()
    assert run["state"]["message"] == "sign 0.8750 on cpu; 3 ran"
    assert run["parameters"]["force"] is True
    children = project.children(run)
    assert set(children) == {"hardware", "train@sign-auto", "compare"}
    assert {child["state"]["type"] for child in children.values()} == {"COMPLETED"}
    train = children["train@sign-auto"]
    assert train["total_run_time"] > 0 and train["parent_task_run_id"]
    logs = {name: project.logs(child) for name, child in children.items()} | {"pipeline": project.logs(run)}
    lines = "\n".join(logs.values()).splitlines()
    owners = {"hardware says hello": "hardware", "train-sign-auto-0 says hello": "train@sign-auto"}
    for line, owner in (owners | {"dvc repro --force": "pipeline"}).items():
        assert lines.count(line) == 1 and line in logs[owner], (line, logs)
    artifact = project.artifacts(run)["results"]
    assert artifact["description"] == run["state"]["message"]
    page = artifact["data"]
    assert "the comparison of all runs" in page and "the report: open results/report.html" in page
    assert f"({project.mlflow}/#/experiments/1/runs/abc?workflowType=machine_learning)" in page


def in_mlflow(project: Project, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{project.mlflow}/api/2.0/mlflow/{path}", json=body).json()
    return answer


@pytest.mark.case(53)
def test_a_server_gets_the_password_and_nobody_sees_it(
    project: Project, ready: Path, saw: Callable[[str], None]
) -> None:
    """`http://me:password@host` as the tracking server's address: one that refuses, then sync to one that takes it"""
    with refusing_server() as (address, received):
        output = record(ready, "kept", MLFLOW_TRACKING_URI=f"http://me:top%20secret@{address}")
    assert f"MLflow at http://{address} refused the record" in output and "403" in output
    saw(re.sub(r":\d+ ", " ", said_of_tracking(output)))
    assert received[0] == "Basic " + base64.b64encode(b"me:top secret").decode()
    paths = [path for path in (ready / ".tandem/runs").rglob("*") if path.is_file()]
    text = output + "".join(path.read_text() for path in paths)
    synced = tandem(ready, "sync", MLFLOW_TRACKING_URI=project.mlflow.replace("//", "//me:secret@")).stdout
    assert synced == f"MLflow at {project.mlflow}: up to date\n"
    assert "secret" not in text + synced
    [run] = runs_of(mlflow.MlflowClient(project.mlflow))
    assert (run.info.run_name, run.info.status) == ("kept", "FINISHED")


def drawn(page: str, folder: Path) -> str:
    """What a new browser shows at an address."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--window-size=1440,900", "--virtual-time-budget=30000", f"--user-data-dir={folder}", "--dump-dom"]
    return subprocess.run([str(CHROMIUM), *options, page], capture_output=True, text=True, timeout=300).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
def test_a_new_browser_shows_the_two_runs_of_a_link_and_their_score_device_and_time(
    project: Project, tmp_path: Path
) -> None:
    """At the link of two runs, and at the address that a click on their experiment opens."""
    experiment = in_mlflow(project, "experiments/create", name="three runs")["experiment_id"]
    tags = {"score": "0.9123", "device": "cpu", "s/epoch": "0.0417"}
    listed = [{"key": name, "value": value} for name, value in tags.items()]
    names = ("on the CPU", "on the GPU", "a third run")
    runs = [in_mlflow(project, "runs/create", experiment_id=experiment, run_name=name, tags=listed) for name in names]
    rows = [
        {"workload": "sign", "device": device, "requested": requested,
         "runs": [{"tracking": {"run_id": run["run"]["info"]["run_id"], "experiment_id": experiment}}]}
        for device, requested, run in zip(("cpu", "cuda"), ("cpu", "auto"), runs, strict=False)
    ]  # fmt: skip
    page = drawn(dict(mlflow_links(rows, project.mlflow)["sign"])["cpu vs cuda"], tmp_path)
    assert [name in page for name in names] == [True, True, False], page
    table = drawn(f"{project.mlflow}/#/experiments/{experiment}", tmp_path)
    cells = re.findall(r'role="gridcell"[^>]*col-id="([^"]+)".*?>([^<>]+)<', table)
    assert {(f"tags.`{name}`", value) for name, value in tags.items()} <= set(cells), cells


def test_a_device_that_is_not_here_is_rejected_before_dvc_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="^device 'cuda' is not available: ") as unavailable:
        detect_hardware("cuda")
    sentence = str(unavailable.value)

    def on_disk() -> dict[Path, int]:
        paths = [*project.root.glob("*"), *(project.root / "results").rglob("*"), *(project.root / ".dvc").rglob("*")]
        return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}

    before = on_disk()
    result = project.run_flow(devices=["cuda"])
    assert result.returncode == 1 and f"Failed: {sentence}" in result.stdout, result.stdout
    assert not project.children(project.latest()) and on_disk() == before
    params = project.root / "params.yaml"
    text = params.read_text()
    try:
        params.write_text(text.replace("devices:\n- auto\n", "devices: [cpu, cuda]\n"))
        edited = on_disk()
        result = project.run("-m", "tandem.cli", "repro")
        assert (result.returncode, result.stdout, result.stderr) == (1, "", f"error: {sentence}\n")
        assert on_disk() == edited
    finally:
        params.write_text(text)


def test_an_override_is_an_experiment_and_leaves_the_workspace_alone(project: Project) -> None:
    before = (project.root / "params.yaml").read_bytes()
    project.behave(train={"fail": "this is not in git, so the experiment does not see it"})
    result = project.run_flow(overrides={"sign.train.epochs": 7}, devices=["cpu"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert (project.root / "params.yaml").read_bytes() == before
    run = project.latest()
    assert run["parameters"]["overrides"] == {"sign.train.epochs": 7}
    assert set(project.children(run)) == {"hardware", "train@sign-cpu", "compare"}
    page = project.artifacts(run)["results"]["data"]
    assert "the comparison of all runs" in page and f"`dvc exp apply {run['name']}`" in page
    assert "- `sign.train.epochs`: `100` -> `7`" in page and "- `devices`: `['auto']` -> `['cpu']`" in page
    command = ["git", "for-each-ref", "--format=%(refname)", "refs/exps"]
    shown = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True)
    assert f"/{run['name']}\n" in shown.stdout, "DVC has it as an experiment"
    log = project.logs(run)
    assert f"`dvc exp apply {run['name']}`" in log and "<exp>" not in log and "\n\n" not in log, log


@pytest.mark.long
def test_the_log_of_an_experiment_whose_training_fails_has_each_error_once(project: Project) -> None:
    project.behave(train={"say": "epoch 3/4", "fail": "the loss is not a number"})
    git(project.root, "add", "-f", "behave.json")  # otherwise the experiment does not see it
    commit(project.root)
    try:
        result = project.run_flow(overrides={"sign.train.epochs": 8})
    finally:
        git(project.root, "rm", "-q", "behave.json")
        commit(project.root)
    log = project.logs(project.latest())
    assert result.returncode == 1 and log.count("ERROR: failed to reproduce 'train@sign-auto'") == 1, log


def resume() -> str:
    """What a stopped run says. Its import takes Prefect's, which other workers of pytest-xdist collect without."""
    from flows.pipeline import RESUME

    return RESUME


@pytest.mark.long
@pytest.mark.case(40)
def test_a_killed_stage_is_shown_crashed(project: Project, saw: Callable[[str], None]) -> None:
    """kill -9 of a stage below a flow, then of its dvc."""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start_flow(force=True) as process:
        project.stage_process().kill()
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    run = project.latest()
    killed = "killed by SIGKILL (by `kill -9`, or by the kernel because memory ran out)"
    assert run["state"]["message"] == f"train@sign-auto: {killed}"
    child = project.children(run)["train@sign-auto"]["state"]
    assert (child["type"], child["message"]) == ("CRASHED", killed)

    (project.root / "train.pid").unlink()
    with project.start_flow(force=True) as process:
        project.stage_process()
        [dvc_process] = processes(project.root, "flows.dvc_run")
        dvc_process.kill()
        output, _ = process.communicate(timeout=600)
    run = project.latest()
    assert (run["state"]["type"], run["state"]["message"]) == ("FAILED", "DVC was killed by SIGKILL")
    child = project.children(run)["train@sign-auto"]["state"]
    assert (child["type"], child["message"]) == ("CRASHED", "DVC was killed by SIGKILL")
    saw(f"Crashed: {killed}")
    saw(f"Crashed: {child['message']}")
    assert not project.left_running()


@pytest.mark.case(27)
def test_cancel_leaves_nothing_behind(project: Project, saw: Callable[[str], None]) -> None:
    """As the UI does it: a run of the deployment, put into state Cancelling."""
    project.behave(train={"sleep": STAGE_SECONDS})
    run = project.create("pipeline/pipeline", force=True)
    project.stage_process()
    wait_for(lambda: project.children(run).get("train@sign-auto"), what="the stage's flow run")  # after its process
    started = time.monotonic()
    project.cancel(run)
    wait_for(lambda: project.state(run)["type"] == "CANCELLED", STAGE_SECONDS / 2, "the state Cancelled")
    wait_for(lambda: not project.left_running(), STAGE_SECONDS / 2, "the end of every process")
    seconds = time.monotonic() - started
    children = project.children(run)
    states = {name: child["state"]["type"] for name, child in children.items()}
    assert states == {"hardware": "COMPLETED", "train@sign-auto": "CANCELLED"}
    train = children["train@sign-auto"]
    assert train["state"]["message"].endswith(f"; {resume()}")
    # What the stage says at its end reaches the log: a training, where it has saved.
    wait_for(lambda: "error: interrupted" in project.logs(train), what="the stage's last words in its log")
    wait_for(lambda: "Finished in state" in project.logs(run), what="the end of the log")
    lines = [*project.logs(run).split("\n"), *project.logs(train).split("\n")]
    ending = f"Finished in state Cancelled({resume()!r})"
    assert f"stopped; {resume()}" in lines and ending in lines and "" not in lines
    saw(f"{train['state']['message']} ({seconds:.0f} s after the cancel)")


@pytest.mark.long
@pytest.mark.case(27)
def test_cancelling_a_stage_ends_it_and_the_pipeline_says_so(project: Project, saw: Callable[[str], None]) -> None:
    """The flow run of one stage cancelled, as the UI does it."""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start_flow(force=True) as process:
        project.stage_process()
        run = project.latest()
        child = wait_for(lambda: project.children(run).get("train@sign-auto"), what="the stage's flow run")
        project.cancel(child)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in output, output
    assert not project.left_running()
    run = project.latest()
    message = f"train@sign-auto was cancelled; {resume()}"
    assert (run["state"]["type"], run["state"]["message"]) == ("CANCELLED", message)
    saw(message)
    states = {name: child["state"]["type"] for name, child in project.children(run).items()}
    assert states == {"hardware": "COMPLETED", "train@sign-auto": "CANCELLED"}


@pytest.mark.long
@pytest.mark.case(25, 40)
def test_a_killed_flow_ends_its_stages_and_the_next_run_shows_it_crashed(
    project: Project, saw: Callable[[str], None]
) -> None:
    """kill -9 of the flow's own process, while a stage runs."""
    project.behave(train={"sleep": STAGE_SECONDS})
    killed = project.create("pipeline/pipeline", force=True)
    project.stage_process()
    wait_for(lambda: project.children(killed).get("train@sign-auto"), what="the stage's flow run")
    [dvc_process] = processes(project.root, "flows.dvc_run")
    dvc_process.parent().kill()
    wait_for(lambda: not project.left_running(), STAGE_SECONDS / 2, "the end of every process")
    wait_for(lambda: not project.holds_dvc(), what="the end of DVC's process for everyone")
    project.behave(train={"fail": "sign: the loss is not a number"})
    result = project.run_flow(force=True)
    assert project.state(killed)["type"] == "CRASHED"  # set by Prefect's runner
    child = project.children(killed)["train@sign-auto"]["state"]
    assert (child["type"], child["message"]) == ("CRASHED", "its process was killed, as the next run has found")
    saw(f"Crashed: {child['message']}")
    # And the next run fails with the stage's own message.
    assert result.returncode == 1 and "Traceback" not in result.stdout + result.stderr
    run = project.latest()
    message = "sign: the loss is not a number"
    assert (run["state"]["type"], run["state"]["message"]) == ("FAILED", f"train@sign-auto: {message}")
    child = project.children(run)["train@sign-auto"]["state"]
    assert (child["type"], child["message"]) == ("FAILED", message)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["flows.deployments", "tandem.cli ui"])
@pytest.mark.case(25)
def test_killing_what_serves_the_flows_ends_them(tmp_path: Path, victim: str, saw: Callable[[str], None]) -> None:
    """kill -9 of Prefect's runner, or of `make ui`, while a run of a deployment trains."""
    with running_ui(make_project(tmp_path / "project")) as project:
        project.behave(train={"sleep": STAGE_SECONDS})
        project.create("pipeline/pipeline", force=True)
        project.stage_process()
        [process, *_] = processes(project.root, victim)
        process.kill()
        wait_for(lambda: not processes(project.root, "python"), STAGE_SECONDS / 2, "the end of every process")
        output = project.ui.communicate(timeout=600)[0]
        saw(output.strip().splitlines()[-1] if output.strip() else f"{victim} was killed: nothing runs any more")


@pytest.mark.long
@pytest.mark.case(45)
def test_a_second_pipeline_waits_for_the_first_and_shows_what_dvc_did_not_run(
    project: Project, saw: Callable[[str], None]
) -> None:
    """A second pipeline run while the first one trains."""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start_flow(force=True) as first:
        project.stage_process()
        with project.start_flow() as second:
            assert second.stdout
            lines = iter(second.stdout.readline, "")
            saw(next(line for line in lines if "a run in Prefect (process " in line and "uses this project" in line))
            assert first.poll() is None
            (project.root / "go").touch()
            second.communicate(timeout=600)
        assert (first.wait(600), second.returncode) == (0, 0)
        first.communicate()
    states = project.task_states(project.latest())
    assert states == {"hardware": "Completed", "train@sign-auto": "Cached", "compare": "Cached"}


@pytest.mark.long
@pytest.mark.parametrize("module", ["tandem.cli", "dvc"])
@pytest.mark.case(45)
def test_a_pipeline_waits_for_a_run_at_the_terminal(project: Project, module: str, saw: Callable[[str], None]) -> None:
    """A pipeline run while `tandem repro` or `dvc repro` trains at the terminal."""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start("-m", module, "repro", "--force") as first:
        project.stage_process()
        with project.start_flow() as second:
            assert second.stdout
            lines = iter(second.stdout.readline, "")
            waiting = f"`{module.partition('.')[0]} repro --force` (process {first.pid}, since "
            saw(next(line for line in lines if waiting in line and "uses this project; waiting for its end" in line))
            assert first.poll() is None
            (project.root / "go").touch()
            output, _ = second.communicate(timeout=600)
        first.communicate()
        assert (first.returncode, second.returncode) == (0, 0), output
    states = project.task_states(project.latest())
    assert states == {"hardware": "Completed", "train@sign-auto": "Cached", "compare": "Cached"}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["killed", "black hole"])
@pytest.mark.case(39)
def test_a_server_lost_midway_costs_seconds_and_no_result(
    project: Project, door: Door, kind: str, saw: Callable[[str], None]
) -> None:
    """The way to Prefect's API is cut while a stage runs, or takes everything and passes nothing on."""
    project.behave(train={"sleep": STAGE_SECONDS})
    project.api_url = f"{door.url}/api"
    with project.start_flow(force=True) as process:
        project.stage_process()
        if kind == "killed":
            door.shut()
        else:
            door.hangs = True
        (project.root / "go").touch()
        started = time.monotonic()
        output, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, output
    assert "Traceback" not in output and output.count("lost the Prefect API") == 1, output
    assert time.monotonic() - started < 150, output  # Prefect alone takes 157 s, on a machine with nothing else to do
    assert "Completed: sign 0.8750 on cpu; 3 ran" in output
    saw(next(line for line in output.splitlines() if "lost the Prefect API" in line))


# Ends flows/verify_flow.py: what flows/verify.py finds is said by behave.json.
FOUND = """

import json

from flows.verify import Verified
from tandem.comparing.verdicts import Verdict
from tandem.files import ROOT


def found(*arguments):
    about = json.loads((ROOT / "behave.json").read_text())["command"]
    return Verdict(about["verdict"], sentence=f"with {arguments}")


verify_run = lambda run, quick: Verified(run, found(run, quick), ("took 1 s",))
"""


QUICK = {"run": "sign@auto", "quick": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("parameters", "behaviour", "name", "message", "artifacts"),
    [
        ({}, {"verdict": "bit-equal"}, "Completed", "sign@auto: bit-equal",  # each of params.yaml
         {"verify-sign-auto": "with ('sign@auto', False)\n  took 1 s"}),
        (QUICK, {"verdict": "different"}, "Failed", "sign@auto: different",
         {"verify-sign-auto": "with ('sign@auto', True)\n  took 1 s"}),
    ],
)  # fmt: skip
def test_verify_leaves_its_verdict_as_an_artifact(
    project: Project, parameters: dict[str, Any], behaviour: dict[str, str], name: str, message: str,
    artifacts: dict[str, str],
) -> None:  # fmt: skip
    """As the UI starts it; it calls the function of the command."""
    module = project.root / "flows/verify_flow.py"
    if not (before := module.read_text()).endswith(FOUND):
        module.write_text(before + FOUND)
    project.behave(command=behaviour)
    run = project.create("verify/verify", **parameters)
    state = wait_for(lambda: (shown := project.state(run))["type"] in ("COMPLETED", "FAILED", "CRASHED") and shown, 600)
    assert (state["name"], state["message"]) == (name, message)
    shown = {key: artifact["data"] for key, artifact in project.artifacts(run).items()}
    assert set(shown) == set(artifacts) and all(text in shown[key] for key, text in artifacts.items())


# What a user sets in Prefect's pages: the form of a run, schedules, automations.


def test_the_form_offers_what_params_yaml_has_and_takes_nothing_else(project: Project) -> None:
    def fields() -> dict[str, Any]:
        schema: dict[str, Any] = project.api("GET", "/deployments/name/pipeline/pipeline")["parameter_openapi_schema"]
        return schema["properties"]

    params = project.root / "params.yaml"
    before = params.read_text()
    wait_for(lambda: fields()["seeds"].get("default") == [0], what="the form as params.yaml is")
    try:
        params.write_text(before.replace("seeds:\n- 0\n", "seeds: [0, 1]\n"))
        wait_for(lambda: fields()["seeds"]["default"] == [0, 1], what="the form as params.yaml is after an edit")
    finally:
        params.write_text(before)
    wait_for(lambda: fields()["seeds"]["default"] == [0], what="the form as params.yaml was")
    form = fields()
    assert form["workloads"]["items"]["enum"] == ["sign", "pen", "price", "rally"]
    assert form["workloads"]["default"] == ["sign"] and form["devices"]["items"]["enum"] == ["auto", "cpu", "cuda"]
    assert form["preset"]["enum"][:3] == ["none", "auto", "cpu"] and form["preset"]["default"] == "none"
    assert not any("anyOf" in field for field in form.values()), "a field that asks for its type first"
    for wrong, reason in (
        ({"workloads": ["sgin"]}, "'sgin' is not one of"),
        ({"preset": "small"}, "'small' is not one of"),
        ({"overrides": {"sign.train.epoch": 3}}, "'sign.train.epoch' was unexpected"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            project.create("pipeline/pipeline", **wrong)
        assert refused.value.code == 409 and reason in refused.value.read().decode()


def test_the_schedule_makes_runs(project: Project) -> None:
    """SQLAlchemy 2.1 breaks Prefect's scheduler without a word to the user, and so does whenever 0.10 that of 3.9."""
    body = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    planned = wait_for(lambda: project.api("POST", "/flow_runs/filter", body), what="a scheduled run")
    deployments = [project.api("GET", f"/deployments/name/{flow}/{flow}") for flow in ("pipeline", "verify")]
    assert {run["deployment_id"] for run in planned} <= {nightly["id"] for nightly in deployments}
    assert not any(nightly["paused"] for nightly in deployments)
    timezone = psutil.Process(project.ui.pid).environ()["TZ"]  # in a test's own, another hour may have begun
    for nightly in deployments:
        assert [entry["schedule"]["timezone"] for entry in nightly["schedules"]] == [timezone]
        assert "every night at 0" in nightly["description"] and timezone in nightly["description"] and nightly["tags"]
        query = {"deployments": {"id": {"any_": [nightly["id"]]}}, **body}
        wait_for(lambda query=query: project.api("POST", "/flow_runs/count", query), what="a run of each schedule")


@pytest.mark.long
@pytest.mark.parametrize(("flow", "nights"), [("pipeline", 2), ("verify", 3)])
def test_of_the_missed_nights_only_the_last_one_runs(project: Project, flow: str, nights: int) -> None:
    """As when `make ui` starts again after a weekend: Prefect's runner takes every run that is late."""
    deployment = project.api("GET", f"/deployments/name/{flow}/{flow}")["id"]
    now = datetime.now(UTC)
    times = {"start_time": (now - timedelta(days=nights)).isoformat(), "end_time": now.isoformat()}
    project.api("POST", f"/deployments/{deployment}/schedule", {**times, "min_runs": nights})
    body = {
        "deployments": {"id": {"any_": [deployment]}},
        "flow_runs": {"expected_start_time": {"before_": now.isoformat()}},
        "sort": "EXPECTED_START_TIME_ASC",
    }

    def ended() -> list[dict[str, Any]]:
        """The missed runs, the oldest first, once all have ended."""
        runs = [run for run in project.api("POST", "/flow_runs/filter", body) if run["auto_scheduled"]]
        return runs if all(run["end_time"] for run in runs) else []

    *missed, last = wait_for(ended, 600, "the end of all runs")
    assert [run["state"]["name"] for run in missed] == ["Skipped"] * (nights - 1)
    assert {run["state"]["type"] for run in missed} == {"CANCELLED"}
    assert all("is due too" in run["state"]["message"] for run in missed)
    assert last["state"]["name"] != "Skipped" and "is due too" not in last["state"]["message"]
    if flow == "pipeline":
        assert last["state"]["type"] == "COMPLETED"
    if nights == 2:
        return
    # A run that a user creates is never skipped: those of the other tests are not, and none on this day.
    created = project.create(f"{flow}/{flow}")
    wait_for(lambda: project.api("GET", f"/flow_runs/{created['id']}")["end_time"], 600, "the end of a run")
    assert project.state(created)["name"] != "Skipped"


def test_a_start_of_ui_keeps_edited_schedules_and_the_flow_runs_of_other_projects(project: Project) -> None:
    """What the page of a deployment can change, and runs that no process has any more; then what `make ui` does at its
    next start.
    """

    def read(name: str) -> dict[str, Any]:
        deployment: dict[str, Any] = project.api("GET", f"/deployments/name/{name}/{name}")
        return {key: deployment[key] for key in ("id", "paused", "parameters", "schedules")}

    pipeline, verify = read("pipeline"), read("verify")
    schedule = f"/deployments/{pipeline['id']}/schedules/{pipeline['schedules'][0]['id']}"
    project.api("PATCH", schedule, {"active": False, "schedule": {"cron": "30 5 * * 1", "timezone": "UTC"}})
    project.api("PATCH", f"/deployments/{pipeline['id']}", {"parameters": {"workloads": ["pen"]}})
    project.api("POST", f"/deployments/{verify['id']}/pause_deployment")
    before = read("pipeline"), read("verify")
    [edited] = before[0]["schedules"]
    assert not edited["active"] and edited["schedule"]["cron"] == "30 5 * * 1" and before[1]["paused"]
    foreign = [running_flow(project, "train"), running_flow(project, "train_of_the_team", tags=["train"])]
    own_runs = [running_flow(project, "pipeline"), running_flow(project, "compare", tags=["tandem"])]
    code = "from flows import ui; ui.mark_orphans_crashed(None)\n"
    code += "from flows.deployments import register; from prefect.runner import Runner; register(Runner())"
    done = project.run("-c", code, PREFECT_API_URL=f"{project.prefect}/api")
    assert done.returncode == 0, done.stderr
    assert (read("pipeline"), read("verify")) == before
    assert [project.state(run)["type"] for run in own_runs] == ["CRASHED", "CRASHED"]
    assert [project.state(run)["type"] for run in foreign] == ["RUNNING", "RUNNING"]


def test_ui_stops_everything_and_leaves_home_alone(project: Project) -> None:
    result = project.run("-m", "tandem.cli", "ui")
    assert result.returncode == 1 and project.prefect in result.stderr
    flow = project.api("POST", "/flows/", {"name": "train_of_the_team"})["id"]
    deployment = project.api("POST", "/deployments/", {"name": "theirs", "flow_id": flow})["id"]
    foreign = running_flow(project, "train_of_the_team", deployment_id=deployment)
    project.ui.send_signal(signal.SIGINT)
    assert project.ui.wait(600) == 0
    with closing(sqlite3.connect(project.root / ".tandem/prefect/prefect.db")) as database:
        query = "SELECT state_type FROM flow_run WHERE id = ?"
        assert database.execute(query, [foreign["id"]]).fetchone() == ("RUNNING",), "not cancelled with ours"
    assert not processes(project.root, "python")
    assert not (project.root / ".tandem" / "ui.json").exists()
    assert not list((project.root / "home").iterdir())


def stop_ui(project: Project) -> None:
    """End the servers of the module's tests, if the test before has not."""
    if project.ui.poll() is None:
        project.ui.send_signal(signal.SIGINT)
        assert project.ui.wait(600) == 0


@pytest.mark.long  # that it runs once: the test above
def test_ui_refuses_a_second_one_while_it_starts(project: Project) -> None:
    stop_ui(project)
    with project.start("-m", "tandem.cli", "ui", "--prefect-port", str(random.randrange(30_000, 32_000))) as ui:
        assert ui.stdout
        first_line = ui.stdout.readline()
        second = project.run("-m", "tandem.cli", "ui")
        # Where the first one is quick, it already runs.
        refusals = (f"`tandem ui` (process {ui.pid}) is starting here", "already running: http://127.0.0.1:")
        assert second.returncode == 1 and any(refusal in second.stderr for refusal in refusals), second.stderr
        ui.send_signal(signal.SIGINT)
        rest = ui.communicate()
    assert ui.returncode == 0, (first_line, rest)


@pytest.mark.long
def test_ui_names_the_cause_and_the_command_if_a_newer_prefect_wrote_the_database(project: Project) -> None:
    stop_ui(project)
    with closing(sqlite3.connect(project.root / ".tandem/prefect/prefect.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    result = project.run("-m", "tandem.cli", "ui")
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 1 and "a newer Prefect wrote .tandem/prefect/prefect.db: git pull" in error
    command = re.search(r"start a new history in Prefect: (mv \S+ \S+)", error)
    assert command and subprocess.run(command[1].split(), cwd=project.root).returncode == 0
    assert not (project.root / ".tandem/prefect/prefect.db").exists()
