"""What a user sets in Prefect's pages: the form of a run, schedules, automations; and the plan that DVC gets of it."""

import json
import re
import signal
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flows.plan import make_plan
from tests.projects import ROOT as SOURCE
from tests.projects import wait_for
from tests.served import Project, clean_environment, processes


@pytest.fixture
def project(served: Project) -> Project:
    """Its stages behave as usual at the start of each test."""
    served.reset()
    return served


@pytest.mark.parametrize(
    ("choices", "overrides", "expected"),
    [
        ({"workloads": ["sgin"]}, {}, "did you mean 'sign'?"),
        ({"devices": ["tpu"]}, {}, "accepted: auto, cpu, cuda"),
        ({"devices": ["cpu"]}, {"devices": ["cpu"]}, "leave one of the two out"),
        ({"devices": ["cuda"]}, {}, "device 'cuda' was asked for, but"),
    ],
)
def test_a_wrong_parameter_is_named(
    monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any], overrides: dict[str, Any], expected: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=re.escape(expected)):
        make_plan(choices, overrides, False, "calm-fox")


EXPERIMENT = ["exp", "run", "--temp", "--name", "calm-fox", "--set-param"]


FORM = {"workloads": ["rally", "sign", "pen", "price"], "devices": ["auto"], "seeds": [0], "preset": "none"}


@pytest.mark.parametrize(
    ("choices", "overrides", "force", "commands"),
    [
        ({}, {}, False, [["repro"]]),
        (FORM, {}, False, [["repro"]]),  # a form sends what it was filled in with
        ({"preset": "small-gpu"}, {}, False, [[*EXPERIMENT, 'preset="small-gpu"']]),
        ({"workloads": ["sign"]}, {}, True,
         [["repro", "--force", "evaluate@sign-auto"], ["repro", "--single-item", "compare"]]),
        ({"devices": ["cpu"]}, {"sign.train.schedule": "cosine"}, False,
         [[*EXPERIMENT, 'sign.train.schedule="cosine"', "--set-param", 'devices=["cpu"]']]),
    ],
)  # fmt: skip
def test_a_choice_becomes_targets_and_a_new_value_an_experiment(
    choices: dict[str, Any], overrides: dict[str, Any], force: bool, commands: list[list[str]]
) -> None:
    plan = make_plan(choices, overrides, force, "calm-fox")
    assert plan.commands == commands and plan.experiment == ("calm-fox" if commands[0][0] == "exp" else None)


def test_the_form_offers_what_params_yaml_has_and_takes_nothing_else(project: Project) -> None:
    def fields() -> dict[str, Any]:
        found: dict[str, Any] = project.api("GET", "/deployments/name/pipeline/pipeline")["parameter_openapi_schema"]
        return found["properties"]

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
    nightly = [project.api("GET", f"/deployments/name/{flow}/{flow}") for flow in ("pipeline", "verify")]
    assert {run["deployment_id"] for run in planned} <= {each["id"] for each in nightly}
    assert not any(each["paused"] for each in nightly)
    timezone = clean_environment(project.root)["TZ"]
    for each in nightly:
        assert [entry["schedule"]["timezone"] for entry in each["schedules"]] == [timezone]
        assert "every night at 0" in each["description"] and timezone in each["description"] and each["tags"]
        own = {"deployments": {"id": {"any_": [each["id"]]}}, **body}
        wait_for(lambda own=own: project.api("POST", "/flow_runs/count", own), what="a run of each schedule")


def test_make_ui_keeps_a_schedule_as_it_was_paused_and_edited(project: Project) -> None:
    """What the page of a deployment can change, and then what `make ui` does to the deployments at its next start."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = project.api("GET", f"/deployments/name/{name}/{name}")
        return {key: found[key] for key in ("id", "paused", "parameters", "schedules")}

    pipeline, verify = read("pipeline"), read("verify")
    schedule = f"/deployments/{pipeline['id']}/schedules/{pipeline['schedules'][0]['id']}"
    project.api("PATCH", schedule, {"active": False, "schedule": {"cron": "30 5 * * 1", "timezone": "UTC"}})
    project.api("PATCH", f"/deployments/{pipeline['id']}", {"parameters": {"workloads": ["pen"]}})
    project.api("POST", f"/deployments/{verify['id']}/pause_deployment")
    before = read("pipeline"), read("verify")
    [edited] = before[0]["schedules"]
    assert not edited["active"] and edited["schedule"]["cron"] == "30 5 * * 1" and before[1]["paused"]
    code = "from flows import serve; from prefect.runner import Runner; serve.register(Runner())"  # as it starts
    done = project.run("-c", code, PREFECT_API_URL=f"{project.prefect}/api")
    assert done.returncode == 0, done.stderr
    assert (read("pipeline"), read("verify")) == before


@pytest.mark.long
def test_the_automation_posts_one_message_for_a_failed_run_and_none_for_a_completed_one(project: Project) -> None:
    """`python -m deploy.webhook URL`; a failed stage is a flow run too, and does not count."""
    posted: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    def run_to_end(**parameters: Any) -> str:
        run = project.create("pipeline/pipeline", **parameters)
        ended = ("COMPLETED", "FAILED", "CRASHED")
        state = wait_for(lambda: (found := project.state(run))["type"] in ended and found, 600, "the run's end")
        return f"pipeline: {run['name']}: {state['name']}: {state['message']}"

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/hook"
            done = project.run("-m", "deploy.webhook", url, PYTHONPATH=str(SOURCE))
            assert done.returncode == 0 and f"{project.prefect}/v2/automations" in done.stdout, done.stderr
            assert ": Completed: " in run_to_end(force=True)
            project.behave(train={"fail": 'sign: the loss is "not a number"'})
            failed = run_to_end(force=True)
            invalid = run_to_end(overrides={"sign.train.epochs": -1})
            wait_for(lambda: len(posted) > 1, what="the messages of two failed runs")
            assert ": Failed: " in failed and "sign.train.epochs" in invalid
            assert posted == [failed, invalid]
        finally:
            server.shutdown()


def test_ui_stops_everything_and_leaves_home_alone(project: Project) -> None:
    again = project.run("-m", "tandem.cli", "ui")
    assert again.returncode == 1 and project.prefect in again.stderr
    project.ui.send_signal(signal.SIGINT)
    assert project.ui.wait(600) == 0
    assert not processes(project.root, "python")
    assert not (project.root / ".tandem" / "ui.json").exists()
    assert not list((project.root / "home").iterdir())
