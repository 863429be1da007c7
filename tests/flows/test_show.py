"""What git keeps of the results, and how it stands beside one's own: DVC's own commands, and flows/show.py."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import show
from flows.show import WORKSPACE, differing, params_in_force
from tandem.runs import provenance
from tests.projects import (
    ROOT,
    TINY,
    add_workload,
    commit,
    copy_of,
    dvc,
    environment,
    git,
    held,
    read_record,
    run,
    shell,
    start,
    tandem,
    wait_for,
    without_publisher,
)

TRACKED = [f"results/{name}" for name in ("losses.csv", "scores.json", "seconds.csv", "timings.json")]


@pytest.fixture(scope="module")
def experiment(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project whose results are committed, after an experiment in its workspace; and what the experiment printed."""
    project = without_publisher(copy_of(trained, tmp_path_factory.mktemp("published") / "project"))
    commit(project)
    command = "dvc exp run -S 'seeds=[0,1]' --name shorter -S tiny.train.epochs=2"
    return project, shell(project, command).stdout


@pytest.fixture(scope="module")
def published(experiment: tuple[Path, str]) -> Path:
    return experiment[0]


@pytest.fixture
def project(published: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return copy_of(published, tmp_path / "project", (published / "params.yaml").read_text())


def test_an_experiment_runs_only_the_stages_that_depend_on_it(experiment: tuple[Path, str]):
    stages = re.findall(r"Running stage '([^']+)'", experiment[1])
    assert stages[:4] == ["stages/dvc.yaml:hardware", "train@tiny-cpu", "replicate@tiny-cpu", "evaluate@tiny-cpu"]
    assert stages[4:] == ["speed@tiny", "compare"]


def test_git_keeps_the_lock_the_metrics_and_small_plots(published: Path):
    tracked = subprocess.run(["git", "ls-files", "results", "*.lock"], cwd=published, capture_output=True, text=True)
    assert tracked.stdout.split() == ["dvc.lock", *TRACKED, "stages/dvc.lock"]


def test_make_show_lists_each_experiment_with_its_changes(published: Path):
    lines = tandem(published, "show").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[2:] if line}
    assert list(rows) == ["here,", "main", "shorter"]
    assert all(" cpu " in line and "accuracy 0." in line for line in rows.values())
    assert "train.epochs=2" in rows["shorter"] and "train.epochs" not in rows["main"]
    refused = tandem(published, "show", "tinny", check=False)
    assert refused.returncode == 2 and "did you mean 'tiny'?" in refused.stdout


def rows_in(project: Path, **extra: str) -> list[dict[str, Any]]:
    return list(json.loads(tandem(project, "show", "--json", **extra).stdout)["tiny"])


def test_a_row_is_outdated_if_an_input_of_its_result_has_changed(project: Path):

    def changed(*said: str, **extra: str) -> dict[str, list[str]]:
        rows = rows_in(project, **extra)
        assert all(row["update"] == ("tandem repro tiny" if row["changed"] else None) for row in rows)
        assert all(row["outdated"] == bool({*row["changed"]} - {"machine"}) for row in rows)
        assert all((row["epoch_seconds"] is None) == ("machine" in row["changed"]) for row in rows if row["score"])
        assert all(f"\n{line}; " in show.table("tiny", rows) for line in said)
        return {row["experiment"]: row["changed"] for row in rows}

    unchanged = {"main": [], "shorter": []}
    assert changed() == {"here, now": [], **unchanged}
    edits = {
        "tandem/tasks/classify.py": ("\ndef ", "\nTHRESHOLD = 1\n\ndef "),
        "workloads/tiny/data/table.csv": ("class 0\n", "class 1\n"),
        "params.yaml": ("epochs: 2", "epochs: 4"),
    }
    contents = {path: (project / path).read_text() for path in edits}
    for path, (old, new) in edits.items():
        (project / path).write_text(contents[path].replace(old, new, 1))
    kinds = ["parameters", "code", "data"]
    assert changed(f"outdated: {' and '.join(kinds)} changed after this result") == {"here, now": kinds, **unchanged}
    assert "data" not in shown_rows(project)["here, now"]["params"]
    for path, content in contents.items():
        (project / path).write_text(content)
    of_another = changed("no times: another machine measured them", MKL_CBWR="AVX2")  # its times are not shown
    assert of_another == {"here, now": ["machine"], **unchanged}
    dvc(project, "repro", "--single-item", "--force", "stages/dvc.yaml:hardware", "train@tiny-cpu")
    assert changed() == {"here, now": ["earlier results"], **unchanged}
    shutil.rmtree(project / "results/runs/tiny/cpu/evaluate")  # as after a kill of `evaluate`
    assert shown_rows(project)["here, now"]["state"] == "not evaluated"
    shutil.rmtree(project / "results/runs")  # as in a clone, where git has the scores and the times of another machine
    row = shown_rows(project)["here, now"]
    assert (row["state"], row["score"], row["epoch_seconds"]) == ("not trained", None, None)


def test_edited_data_is_a_difference_from_the_last_commit(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    commit(project)
    table = project / "workloads/tiny/data/table.csv"
    table.write_text(re.sub(r"\d\.\d+", "0.5", table.read_text(), count=1))
    dvc(project, "commit", "--force")  # as if `dvc repro` had made the same results of it
    rows = shown_rows(project)
    assert rows["here, now"]["score"] and rows["here, now"]["params"] == {"data": "edited"}
    assert rows["main"]["params"] == {}


def test_the_data_of_a_workload_that_the_last_commit_lacks_is_not_edited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for module in (show.files, provenance):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "before")
    (tmp_path / "workloads/new/data").mkdir(parents=True)
    (tmp_path / "workloads/new/data/table.csv").write_text("1\n")
    commit(tmp_path)
    git(tmp_path, "branch", "experiment")
    assert not show.data_differs("new", {"rev": "experiment"})
    git(tmp_path, "reset", "-q", "--hard", "HEAD~")
    assert not show.data_differs("new", {"rev": "experiment"})
    git(tmp_path, "merge", "-q", "experiment")
    (tmp_path / "workloads/new/data/table.csv").write_text("2\n")
    assert show.data_differs("new", {"rev": WORKSPACE})
    commit(tmp_path)
    assert show.data_differs("new", {"rev": "experiment"})


def shown_rows(project: Path) -> dict[str, dict[str, Any]]:
    return {row["experiment"]: row for row in rows_in(project)}


@pytest.mark.long  # of one that runs, and one that was not compared: the tests below
def test_an_experiment_without_a_result_has_a_state_and_no_score(project: Path, tmp_path: Path):
    """Refused, running in the queue, killed, waiting."""
    git(project, "checkout", "-q", ".")
    waiting = held(tmp_path / "held", 1, forks=False)  # `dvc queue kill` signals a process group

    def queue(name: str, value: str) -> None:
        dvc(project, "exp", "run", "--queue", "--name", name, "-S", value)

    def start_worker() -> None:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["dvc", "queue", "start"], cwd=project, env=environment(**waiting), check=True, **quiet)

    def state_in_dvc(name: str) -> str:
        lines = dvc(project, "queue", "status").stdout.splitlines()
        return next((line.split()[-1] for line in lines if f" {name} " in line), "")

    try:
        queue("fails", "tiny.train.learning_rate=11")
        start_worker()
        wait_for(lambda: state_in_dvc("fails") == "Failed")
        queue("runs", "tiny.train.epochs=5")
        start_worker()
        wait_for(lambda: "epoch 1/" in dvc(project, "queue", "logs", "runs", check=False).stdout)
        queue("waits", "tiny.train.epochs=7")
        rows = shown_rows(project)
        states = {name: rows[name]["state"] for name in ("runs", "waits", "fails")}
        assert (states["runs"], states["fails"]) == ("running", "failed")
        assert states["waits"] in ("queued", "running")  # if DVC's first worker has not ended, it takes this one
        assert all(rows[name]["score"] is rows[name]["epoch_seconds"] is None for name in states)
        assert rows["waits"]["params"] == {"train.epochs": 7}
        assert rows["main"]["score"] and rows["main"]["state"] is None
        text = tandem(project, "show").stdout
        assert all(re.search(rf"^{name} +cpu +{state} +- +- +- ", text, re.MULTILINE) for name, state in states.items())
        dvc(project, "queue", "kill", "runs")
        (tmp_path / "held/go").touch()  # the training ends after its epoch
        wait_for(lambda: state_in_dvc("runs") == "Failed")
        assert shown_rows(project)["runs"]["state"] == "failed"
    finally:
        (tmp_path / "held/go").touch()
        dvc(project, "queue", "stop", "--kill", check=False)


def test_a_workload_keeps_its_row_while_another_one_runs(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    add_workload(project, "other")
    running = start(project, "dvc", "repro", "train@other-cpu", **held(tmp_path / "held", 1))
    assert running.stdout
    while "epoch 1/" not in running.stdout.readline():
        assert running.poll() is None
    tables = json.loads(tandem(project, "show", "--json").stdout)
    (tmp_path / "held/go").touch()
    running.communicate()
    [tiny], [other] = (
        [row for row in tables[workload] if row["experiment"] == "here, now"] for workload in ("tiny", "other")
    )
    assert tiny["score"] and tiny["epoch_seconds"] and tiny["state"] is None and not tiny["outdated"]
    assert (other["state"], other["score"]) == ("running", None)
    [tiny] = [row for row in rows_in(project) if row["experiment"] == "here, now"]
    assert tiny["score"] and not tiny["outdated"], "nor does the end of the other training make it so"


def test_no_row_has_the_score_of_another_training(project: Path):
    """`compare` ran for the workspace, not for the next experiment."""
    dvc(project, "exp", "run", "--name", "partial", "-S", "tiny.train.epochs=4", "evaluate@tiny-cpu")
    rows = shown_rows(project)
    assert "not compared: `compare` has not run" in show.table("tiny", [*rows.values()])
    for name in ("partial", "here, outdated", "here, now"):
        row = rows.pop(name, None)
        assert row is None or (row["state"], row["score"], row["epoch_seconds"]) == ("not compared", None, None)
    assert {name: row["state"] for name, row in rows.items()} == {"main": None, "shorter": None}
    git(project, "commit", "-qam", "results that were not compared")
    assert shown_rows(project)["main"]["state"] == "not compared"


@pytest.mark.long  # the same with DVC's answer as a literal: test_a_result_without_a_score_is_not_compared
def test_what_compare_left_out_keeps_its_row(trained: Path, tmp_path: Path):
    """Another workload was run after an edit of this one's parameters."""
    project = without_publisher(copy_of(trained, tmp_path / "project"))
    add_workload(project, "other")
    params = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(params.replace("epochs: 3", "epochs: 4", 1))
    tandem(project, "repro", "other")
    assert "tiny" not in json.loads((project / "results/scores.json").read_text())
    row = shown_rows(project)["here, now"]
    assert (row["state"], row["score"], row["outdated"]) == ("not compared", None, True)
    (project / "params.yaml").write_text(params)
    text = tandem(project, "show", "tiny").stdout
    assert re.search("^here, now +cpu +not compared ", text, re.MULTILINE)
    assert "left it out because of other parameters" in text and "`tandem repro tiny` runs it" in text
    output = tandem(project, "repro", "tiny").stdout
    assert "train@tiny" not in output and shown_rows(project)["here, now"]["score"]


def test_a_row_has_the_mean_of_its_seeds_as_dvc_does(published: Path):
    scores = [read_record(published, "score.json", seed=seed)["metrics"]["accuracy"] for seed in (0, 1)]
    row = shown_rows(published)["shorter"]
    assert row["state"] is None and row["score"]["accuracy"] == pytest.approx(sum(scores) / 2)
    metrics = json.loads(dvc(published, "metrics", "show", "--json").stdout)[""]["data"]
    assert metrics["results/scores.json"]["data"]["tiny"]["cpu"] == row["score"]
    names = {"device", "hardware", "epoch_seconds", "samples_per_second"}
    assert set(metrics["results/timings.json"]["data"]["tiny"]["cpu"]) - {"busy"} == names  # not the list of digests


@pytest.mark.long
def test_a_score_has_the_parameters_that_made_it(project: Path):
    """Not those of params.yaml: a preset replaces them, and they are edited after the training."""
    (project / "params.yaml").write_text(TINY.replace("presets: {}", "presets: {small: {tiny: {train.epochs: 4}}}"))
    git(project, "commit", "-qm", "a preset", "params.yaml")
    sets = ("-S", "preset=small", "-S", "tiny.train.epochs=5")
    output = dvc(project, "exp", "run", "--name", "preset", *sets).stdout
    assert "tiny: preset small sets train.epochs=4\n" in output
    rows = shown_rows(project)
    assert rows["preset"]["score"] and rows["preset"]["params"] == {"train.epochs": 4}
    commit(project)
    (project / "params.yaml").write_text(TINY.replace("1e-2", "1e-9").replace("seeds: [0]", "seeds: [5]"))
    git(project, "commit", "-qm", "parameters that were not trained", "params.yaml")
    (project / "params.yaml").write_text((project / "params.yaml").read_text().replace("preset: none", "preset: auto"))
    rows = shown_rows(project)
    trained = {"seeds": [0], "train.epochs": 4, "train.learning_rate": 0.01}
    assert rows["main"]["params"] == rows["here, now"]["params"] == trained
    git(project, "checkout", "-q", "params.yaml")
    dvc(project, "repro")
    assert shown_rows(project)["here, now"]["params"] == {}


def test_a_parameter_that_was_removed_differs():
    committed = {"train.epochs": 3, "train.kernels": "torch", "train.model.wide": 2}
    assert differing({"train.epochs": 3}, committed) == {"train.kernels": "auto", "train.model.wide": "removed"}


def test_a_key_that_is_written_with_its_default_differs_in_nothing():
    short = {"tiny": {"task": "classify", "preprocess": {"source": "sequences"}, "train": {"epochs": 3}}}
    written = copy.deepcopy(short)
    written["tiny"]["train"] |= {"schedule": "one-cycle", "kernels": "auto", "augment": {"mix": 0.0}}
    written["tiny"]["preprocess"] |= {"seed": 0, "window": None}
    bare, full = ({"rev": WORKSPACE, "data": {"params": {"params.yaml": {"data": data}}}} for data in (short, written))
    assert differing(params_in_force("tiny", bare), params_in_force("tiny", full)) == {}
    full["data"]["params"]["params.yaml"]["data"]["tiny"]["train"]["schedule"] = "cosine"
    assert differing(params_in_force("tiny", full), params_in_force("tiny", bare)) == {"train.schedule": "cosine"}


def in_workspace(device: str, scores: dict[str, Any]) -> dict[str, Any]:
    params = {"devices": [device], "seeds": [0], "preset": "none", "presets": {}, "tiny": {"task": "classify"}}
    data = {"params": {"params.yaml": {"data": params}}, "metrics": {show.SCORES: {"data": {"tiny": scores}}}}
    return {"rev": WORKSPACE, "name": None, "state": None, "data": data}


@pytest.mark.parametrize(("status", "expected"), [({"compare": None}, ["running"]), ({}, ["not trained"])])
def test_while_compare_runs_a_row_without_its_score_is_running(status: dict[str, Any], expected: list[str]):
    here = in_workspace("cpu", {})
    assert [row["state"] for row in show.rows_of("tiny", here, [here], status)] == expected


def test_a_result_without_a_score_is_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(show, "has_result", lambda workload, device, stage: True)
    here = in_workspace("cpu", {})
    rows = [*show.rows_of("tiny", here, [here], {})]
    assert [(row["experiment"], row["state"], row["score"]) for row in rows] == [("here, now", "not compared", None)]
    assert "here, `tandem repro tiny` runs it" in show.table("tiny", rows)


def test_a_device_that_was_added_is_not_trained_and_one_that_was_removed_has_no_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(show, "has_result", lambda workload, device, stage: device == "cpu")
    here = in_workspace("2xcpu", {"cpu": {"accuracy": 0.9}, "2xcpu": {"accuracy": 0.9}})  # of the last commit
    rows = [*show.rows_of("tiny", here, [here], {})]
    assert [(row["device"], row["state"], row["score"]) for row in rows] == [("2xcpu", "not trained", None)]
    assert "not trained: `tandem repro tiny` does it" in show.table("tiny", rows)


@pytest.mark.long
def test_workloads_without_results_here_keep_those_of_the_commit(project: Path):
    """As `tandem new other FILE --run` in a new clone."""
    git(project, "checkout", "-q", ".")
    shutil.rmtree(project / "results/runs")
    add_workload(project, "other")
    before = {path: (project / path).read_text() for path in TRACKED}
    output = tandem(project, "repro", "other").stdout
    assert "evaluate@other-cpu" in output and "tiny" not in output
    [row] = json.loads(tandem(project, "show", "other", "--json").stdout)["other"]
    assert row["params"] == {} and row["score"]
    for path, content in before.items():
        after = (project / path).read_text()
        assert "other" in after and after != content
        if path.endswith("csv"):
            assert [line for line in after.splitlines() if "other" not in line] == content.splitlines()
        else:
            assert json.loads(after)["tiny"] == json.loads(content)["tiny"]


def test_raw_data_and_files_that_dvc_writes_do_not_make_the_code_dirty(project: Path):
    git(project, "checkout", "-q", "params.yaml")
    (project / "workloads/other/data").mkdir(parents=True)
    (project / "workloads/other/data/table.csv").write_text("a,b\n")
    changed = subprocess.run(["git", "status", "--short"], cwd=project, capture_output=True, text=True).stdout
    assert " M dvc.lock" in changed and " M results/scores.json" in changed
    assert provenance.tree("tiny", project)["patch"] == ""


def test_make_clean_leaves_what_git_keeps(project: Path):
    (project / "workloads/tiny/data/more.csv").write_text("mine\n")
    run(project, "make", "-f", str(ROOT / "Makefile"), "clean")
    remaining = {path.relative_to(project).as_posix() for path in (project / "results").rglob("*") if path.is_file()}
    assert remaining == set(TRACKED)
    assert all((project / name).exists() for name in ("dvc.lock", "workloads/tiny/data/more.csv", "mlruns/mlflow.db"))
    assert not any((project / name).exists() for name in ("data/prepared", "data/packed", ".tandem"))
    assert (project / ".dvc/cache").exists()  # the only copy of the experiments' results
    run(project, "make", "-f", str(ROOT / "Makefile"), "clean", "ARGS=--cache")
    assert not (project / ".dvc/cache").exists()


@pytest.mark.case(49)
def test_what_was_trained_before_is_restored_and_says_so(trained: Path, project: Path, saw: Callable[[str], None]):
    """params.yaml put back to what was trained before; make repro."""
    shutil.copy(trained / "params.yaml", project)
    output = tandem(project, "repro").stdout
    assert re.search(r"^train@tiny-cpu +[\d.]+ s  restored$", output, re.MULTILINE)
    measured_at = read_record(trained, "timing.json")["measured_at"]
    when = f"{measured_at[:16].replace('T', ' ')} on "
    assert when in output
    saw(next(line for line in output.splitlines() if when in line))
    assert read_record(project, "timing.json")["measured_at"] == measured_at
