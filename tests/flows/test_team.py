"""What a worker of a team's pool does: what it fetches, which flows it runs, and all of it with real servers."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tandem.files import ROOT
from tandem.params.reading import read_yaml
from tests.projects import commit, environment, git, make_project, run


def test_every_deployment_is_of_a_flow_and_takes_its_parameters_and_what_is_lost_is_found() -> None:
    from prefect import Flow
    from prefect.events.schemas.automations import AutomationCore
    from prefect.events.schemas.events import Resource

    from flows.flow_runs import FLOWS

    of_flow = {"prefect.resource.id": "prefect.flow.1", "prefect.resource.role": "flow"}

    for deployment in read_yaml(ROOT / "prefect.yaml")["deployments"]:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(import_module(module), name)
        assert isinstance(flow, Flow)
        if parameters := deployment.get("parameters"):
            flow.validate_parameters(parameters)
    for automation in read_yaml(ROOT / "deploy/lost-runs.yaml")["automations"]:
        related = AutomationCore.model_validate(automation).trigger.match_related
        assert not related.includes([Resource({**of_flow, "prefect.resource.name": "of another project"})])
        for name in FLOWS:
            assert related.includes([Resource({**of_flow, "prefect.resource.name": name})])


def test_a_worker_fetches_code_puts_results_back_and_keeps_an_edit(tmp_path: Path) -> None:
    origin = make_project(tmp_path / "origin")
    shutil.copy(ROOT / "requirements.txt", origin)
    (origin / "results").mkdir()
    (origin / "results/scores.json").write_text("{}")
    commit(origin)
    git(tmp_path, "clone", "-q", "origin", "clone")
    clone = tmp_path / "clone"
    (origin / "new.txt").write_text("of another commit")
    losses = Path("results/losses.csv")
    for place, text in ((origin, "committed by somebody"), (clone, "made by a run")):
        (place / losses).parent.mkdir(parents=True, exist_ok=True)
        (place / losses).write_text(text)
    commit(origin)
    (clone / "results/scores.json").write_text('{"of": "a run"}')
    (clone / "dvc.yaml").write_text((clone / "dvc.yaml").read_text() + "# an edit\n")
    done = run(clone, sys.executable, "-c", "from flows import remote; remote.pull()")
    assert (clone / "new.txt").exists() and json.loads((clone / "results/scores.json").read_text()) == {}
    assert (clone / losses).read_text() == "committed by somebody"
    assert (clone / "dvc.yaml").read_text().endswith("# an edit\n") and "no DVC remote" in done.stdout
    # Other packages than are installed end the run in one sentence.
    lock = (origin / "requirements.txt").read_text()
    (origin / "requirements.txt").write_text(re.sub(r"^tqdm==\S+", "tqdm==0.1", lock, flags=re.MULTILINE))
    commit(origin)
    refused = run(clone, sys.executable, "-m", "flows.remote", check=False)
    assert refused.returncode == 1 and "(locked: ==0.1); run on this machine: " in refused.stdout
    assert "Traceback" not in refused.stdout


def test_without_an_address_no_command_starts_a_server(tmp_path: Path) -> None:
    """Prefect would start a temporary one, whose SQLite prints errors (PrefectHQ/prefect#19771)."""
    code = "from flows import deployments, remote\nassert remote.report('a reason') == 1\ndeployments.main()"
    settings = {"PREFECT_HOME": str(tmp_path), "PREFECT__FLOW_RUN_ID": "0b9c8a5e-5d57-4f8e-9c9e-1f8f3c3d7a11"}
    done = run(ROOT, sys.executable, "-c", code, check=False, **settings)
    assert done.returncode == 1 and done.stdout.count("no Prefect server; start `tandem ui`") == 2
    assert len(done.stdout.splitlines()) == 2 and not list(tmp_path.glob("*.db*"))


@pytest.mark.long
def test_two_machines_of_which_one_is_lost(tmp_path: Path) -> None:
    """With SQLite and folders. `make team-test` has PostgreSQL and S3."""
    command = [sys.executable, "-m", "tests.team", "--without", "postgresql", "--without", "s3"]
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "team")], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Prefect has scheduled the lost run again" in done.stdout
    assert "no password in any log" in done.stdout
