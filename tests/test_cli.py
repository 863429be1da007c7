"""The command `tandem`, as a user calls it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from stages.evaluate import TABLES
from tandem.cli import COMMANDS
from tandem.files import ROOT
from tests.projects import TINY, copy_of, dvc, environment, run, run_path


def tandem(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(project, sys.executable, "-m", "tandem.cli", *arguments, check=False)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_and_does_nothing(project: Path, command: str):
    before = sorted(project.rglob("*"))
    where = ROOT if command == "gpu" else project  # projects of tests have no benchmarks/
    done = tandem(where, *command.split(), "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: tandem")
    assert [path for path in sorted(project.rglob("*")) if "__pycache__" not in path.parts] == [
        path for path in before if "__pycache__" not in path.parts
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.projects import make_project

    return make_project(tmp_path_factory.mktemp("cli") / "project")


def test_an_unknown_command_gets_one_sentence(project: Path):
    done = tandem(project, "verfy")
    assert done.returncode == 2
    assert done.stdout == "error: 'verfy' is not a command; did you mean 'verify'?; `tandem --help` lists them\n"


def test_the_command_runs_the_project_that_contains_the_current_directory(project: Path, tmp_path: Path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python").symlink_to(sys.executable)
    command = shutil.copy(ROOT / "tandem/command.sh", bin_folder / "tandem")
    os.chmod(command, 0o755)
    copied = shutil.copytree(project, tmp_path / "copied")
    cli = copied / "tandem/cli.py"
    cli.write_text(cli.read_text().replace("usage: tandem COMMAND", "usage of the copy: tandem COMMAND"))
    for folder, usage in ((project / "workloads/tiny", "usage: "), (copied / "workloads/tiny", "usage of the copy: ")):
        done = subprocess.run([command], cwd=folder, env=environment(), capture_output=True, text=True, check=True)
        assert done.stdout.startswith(usage)
    outside = subprocess.run([command], cwd=bin_folder, capture_output=True, text=True, check=False)
    assert outside.returncode == 2 and "is not in a Tandem project" in outside.stderr


def test_predict_gives_the_predictions_that_evaluate_recorded(trained: Path, tmp_path: Path):
    table = pd.read_csv(trained / "workloads/tiny/data/table.csv").drop(columns="label")
    table.to_csv(tmp_path / "new.csv", index=False)
    done = tandem(trained, "predict", "tiny", str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stdout
    found = pd.read_csv(tmp_path / "out.csv", dtype=str).set_index("sequence")["predicted"]
    assert "predictions" in TABLES
    recorded = pd.read_csv(trained / run_path("predictions.csv"), dtype=str).set_index("sequence")["predicted"]
    assert len(found) == table["sequence"].nunique()
    assert (found.loc[recorded.index] == recorded).all()
    for arguments, words in (
        (("tinny", "new.csv"), "did you mean 'tiny'?"),
        (("tiny@cuda", "new.csv"), "has no model; train it with `dvc repro`"),
        (("tiny", "nothing.csv"), "there is no table nothing.csv"),
    ):
        refused = tandem(trained, "predict", *arguments)
        assert refused.returncode == 1 and words in refused.stdout and "Traceback" not in refused.stdout


def test_status_names_what_would_run(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    done = tandem(project, "status")
    assert (done.returncode, done.stdout) == (0, "up to date\n")
    params = project / "params.yaml"
    params.write_text(TINY.replace("weights: last", "weights: best"))
    done = tandem(project, "status", "--json")
    assert done.returncode == 1
    assert set(json.loads(done.stdout)["outdated"]) == {"evaluate@tiny-cpu-0"}
    assert dvc(project, "repro", "--dry").returncode == 0
