"""The pipeline as a DVC user meets it: real repositories, real processes."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides

from tests.projects import (
    EVALUATED,
    PLACES,
    ROOT,
    TINY,
    add_workload,
    copy_of,
    dvc,
    environment,
    error_of,
    git,
    held,
    make_project,
    run,
    run_path,
    shell,
    stage,
    stages_at_once,
    start,
    tandem,
    unpublished,
    wait_for,
    wait_until_published,
    without_publisher,
)
from tests.recording import client_of, runs_of

yaml = pytest.importorskip("yaml")

DETERMINISTIC = [
    "data/prepared/tiny/summary.json",
    "data/packed/tiny/cpu/train.safetensors",
    "data/packed/tiny/cpu/plan.json",
    "results/baseline/tiny/outputs.npy",
    *(run_path(name) for folder in ("train/result", "evaluate/result") for name in PLACES[folder]),
]


def hashes(project: Path) -> dict[str, str]:
    return {name: hashlib.sha256((project / name).read_bytes()).hexdigest() for name in DETERMINISTIC}


def ran(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


def test_every_path_of_dvc_yaml_is_the_stores():
    from tandem import files

    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    text = (ROOT / "dvc.yaml").read_text().replace("${item.workload}", "w").replace("${item.device}", "d")
    paths = [files.prepared_dir("w"), files.packed_dir("w", "d"), files.runs_dir("w", "d")]
    paths += [files.hardware_file("d"), files.params_file("train", "w")]
    assert all(files.relative(path) in text for path in paths)
    for name, entry in stages.items():
        code = "train" if name == "replicate" else name
        assert files.relative(files.code_file(code, "" if name == "compare" else "${item.workload}")) in entry["deps"]
        assert not [path for path in entry["deps"] if path.startswith(("stages/", "flows/"))], "imports declare code"


def test_two_processes_give_the_same_bytes(trained: Path, tmp_path: Path):
    retrained = make_project(tmp_path / "again")
    stages_at_once(retrained, *EVALUATED, publishes=False)
    assert hashes(retrained) == hashes(trained)


@pytest.mark.long
def test_what_dvc_users_do(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    run(project, "git", "add", "-A")
    run(project, "git", "commit", "-qm", "trained")
    assert "accuracy" in dvc(project, "metrics", "show").stdout
    output = dvc(project, "exp", "run", "-S", "tiny.train.epochs=4", "--name", "longer").stdout
    assert "train@tiny-cpu" in ran(output) and "longer" in dvc(project, "exp", "show", "--csv").stdout
    assert "index.html" in dvc(project, "plots", "diff").stdout and (project / "dvc_plots/index.html").exists()
    # Of the experiments in copies only the training: it is what reports from there.
    target = ("train@tiny-cpu",)
    assert "train@tiny-cpu" in ran(dvc(project, "exp", "run", "--temp", "-S", "tiny.train.epochs=5", *target).stdout)
    dvc(project, "exp", "run", "--queue", "-S", "seeds=[1]", "--name", "queued", "train@tiny-cpu")
    # Not with `dvc`: its output would end with the worker, which looks for more work for a minute.
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["dvc", "queue", "start"], cwd=project, env=environment(), check=True, **quiet)
    finished = lambda: "/queued\n" in run(project, "git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout  # noqa: E731
    wait_for(finished, what="the experiment of the queue")
    with suppress(ProcessLookupError):
        os.kill(int((project / ".dvc/tmp/exps/celery/dvc-exp-worker-1.pid").read_text()), signal.SIGTERM)

    wait_until_published(project)
    client = client_of(project)
    entries = runs_of(client)
    assert len(entries) == 4, "the copies in .dvc/tmp/exps report to the project's own store"
    run_names = {entry.data.tags.get("dvc.experiment"): entry.info.run_name for entry in entries}
    assert all(run_names[name].startswith(f"{name}: tiny-cpu-") for name in ("longer", "queued"))
    # An experiment with other parameters than the commit's makes no version of the registered model.
    of_workspace = next(entry for entry in entries if "dvc.experiment" not in entry.data.tags)
    [version] = client.search_model_versions("name='tandem-tiny'")
    assert version.run_id == of_workspace.info.run_id
    longer = next(entry for entry in entries if entry.data.tags.get("dvc.experiment") == "longer")
    assert longer.data.tags["tandem.not_registered"].startswith("the experiment longer has other parameters")
    assert longer.outputs.model_outputs, "but its model is logged"

    # The workspace has the results of `longer`; `queued` was recorded later.
    refused = tandem(project, "compare", "tiny@cpu", "longer", check=False)
    assert refused.returncode == 2 and "tiny@cpu and longer are the same run" in refused.stdout
    compared = tandem(project, "compare", "tiny@cpu", "queued").stdout
    assert re.search(r"\| \* +\| seed +\| 0 +\| 1 ", compared), compared


DVC_REPRO, MAKE_REPRO = ["dvc", "repro"], [sys.executable, "-m", "tandem.cli", "repro"]


def start_training(project: Path, command: list[str] = DVC_REPRO, **extra: str) -> subprocess.Popen[str]:
    return start(project, *command, "train@tiny-cpu", **extra)


def read_until(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if start in line:  # after the name of the stage, if `tandem repro` prints it
            return
    raise AssertionError("".join(lines))


@pytest.mark.case(24)
def test_a_killed_training_gives_the_uninterrupted_result(
    prepared: Path, trained: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """kill -9 of dvc in epoch 2 of 3; `dvc repro` again"""
    killed = without_publisher(copy_of(prepared, tmp_path / "project"))
    repro = start_training(killed, **held(tmp_path / "held", 2, forks=False))
    read_until(repro, "epoch 2/")
    repro.kill()  # dvc alone: its trainer must not go on without it
    read_until(repro, "stopping after this epoch")
    (tmp_path / "held/go").touch()
    repro.communicate()  # ends when the last process that holds its output has ended
    assert not (killed / run_path("last.safetensors")).exists()
    output = dvc(killed, "repro", "train@tiny-cpu").stdout
    assert "resuming from .tandem/checkpoints/tiny/" in output
    saw(next(line for line in output.splitlines() if line.startswith("resuming from")))
    for name in PLACES["train/result"]:
        assert (killed / run_path(name)).read_bytes() == (trained / run_path(name)).read_bytes(), name


@pytest.mark.case(12)
def test_a_change_while_it_trains_is_not_recorded_as_its_result(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """params.yaml is edited in epoch 3 of 6"""
    project = without_publisher(copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 6")))
    with (project / "tandem/runs/inputs.py").open("a") as file:
        file.write("\nUNDO_SECONDS = 0.5\n")
    repro = start_training(project, **held(tmp_path / "held", 3))
    read_until(repro, "epoch 3/")
    (project / "params.yaml").write_text(TINY.replace("epochs: 3", "epochs: 5"))
    (tmp_path / "held/go").touch()
    rest, _ = repro.communicate()
    assert repro.returncode != 0
    assert "parameters (params.yaml) of tiny changed during the training" in rest and "epoch 4/" not in rest
    saw(next(line for line in rest.splitlines() if "changed during the training" in line))
    assert list((project / ".tandem/checkpoints/tiny").glob("*.pt"))
    assert "train@tiny-cpu" not in (project / "dvc.lock").read_text()


@pytest.mark.case(23)
def test_a_loss_that_is_no_number_stops_the_training(ready: Path, saw: Callable[[str], None]):
    """the largest learning rate and weight decay that are accepted: weights grow a thousandfold in a step"""
    text = (ready / "params.yaml").read_text()
    for usual, largest in (("1e-2", "10"), ("weight_decay: 0.01", "weight_decay: 100"), ("one-cycle", "cosine")):
        text = text.replace(usual, largest)
    (ready / "params.yaml").write_text(text.replace("epochs: 3", "epochs: 12"))
    done = stage(ready, "train", "tiny", "cpu", "0", check=False, publishes=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    message = error_of(done.stdout)
    assert re.search(r"the training loss is (nan|inf) in epoch \d", message) and "train.learning_rate" in message
    assert not list((ready / "results/runs/tiny/cpu").rglob("*.*")), "nothing passes for a result"
    saw(message)


@pytest.mark.case(26)
def test_ctrl_c_saves_and_exits_non_zero(prepared: Path, tmp_path: Path, saw: Callable[[str], None]):
    """Ctrl+C in epoch 3 of 6 of a training that dvc repro started"""
    project = without_publisher(copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 6")))
    repro = start_training(project, **held(tmp_path / "held", 3, forks=False))
    read_until(repro, "epoch 3/")
    os.killpg(repro.pid, signal.SIGINT)
    (tmp_path / "held/go").touch()
    rest, _ = repro.communicate()
    assert repro.returncode != 0
    saw(next(line for line in rest.splitlines() if "run again to resume" in line))
    assert "stopping after this epoch" in rest and "run again to resume" in rest and "Traceback" not in rest
    assert "resuming from" not in rest and "epoch 6/" not in rest
    assert not (project / ".dvc/tmp/rwlock").exists() or (project / ".dvc/tmp/rwlock").read_text() in ("", "{}")


@pytest.mark.long
@pytest.mark.case(26)
def test_ctrl_c_twice_stops_at_once(prepared: Path, tmp_path: Path, saw: Callable[[str], None]):
    """Ctrl+C twice in epoch 2 of 3 of a training that make repro started"""
    project = without_publisher(copy_of(prepared, tmp_path / "project"))
    repro = start_training(project, MAKE_REPRO, **held(tmp_path / "held", 2, forks=False))
    read_until(repro, "epoch 2/")
    os.killpg(repro.pid, signal.SIGINT)
    read_until(repro, "stopping after this epoch")
    os.killpg(repro.pid, signal.SIGINT)
    rest, _ = repro.communicate(timeout=300)  # nothing ends the wait in epoch 2
    assert repro.returncode != 0 and "Traceback" not in rest and "epoch 3/" not in rest
    saw(rest.strip().splitlines()[-1].strip())
    assert list((project / ".tandem/checkpoints/tiny").glob("*.pt"))


@pytest.mark.case(14)
def test_an_experiment_on_a_missing_gpu_names_the_commands_that_restore_everything(
    trained: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """`dvc exp run -S devices=[cuda]`, in a clone without DVC's run cache"""
    project = copy_of(trained, tmp_path / "project")
    shutil.rmtree(project / ".dvc/cache/runs")
    tracked = run(project, "git", "ls-files").stdout.split()
    done = dvc(project, "exp", "run", "-S", "devices=[cuda]", check=False, CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0
    saw(error_of(done.stdout))
    assert "device 'cuda' is not available: " in done.stdout and "use auto or cpu" in done.stdout
    restoring = re.search(r"to restore them, run `(.*?)`", done.stdout)
    assert restoring, done.stdout
    assert all((project / name).exists() for name in tracked)
    shell(project, restoring[1])
    repro = dvc(project, "repro")
    assert "Running stage 'train" not in repro.stdout and "Running stage 'evaluate" not in repro.stdout, repro.stdout


@pytest.mark.long
@pytest.mark.case(14)
def test_after_a_refused_experiment_the_printed_command_restores_params_yaml(
    trained: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """`dvc exp run -S` with a refused value as long as the old one; then the command that it gave"""
    project = copy_of(trained, tmp_path / "project")
    apply_overrides(project / "params.yaml", ["tiny.train.epochs=3"])  # DVC's layout of the file, for equal lengths
    git(project, "commit", "-qam", "the layout")
    committed = (project / "params.yaml").read_bytes()
    for value in ("devices=[tpu]", "tiny.train.warmup_epochs=9", "workloads=[tinn]"):
        done = dvc(project, "exp", "run", "-S", value, check=False)
        assert done.returncode != 0
        changed = (project / "params.yaml").read_bytes()
        assert changed != committed and len(changed) == len(committed)
        saw(error_of(done.stdout))
        command = re.search(r"to restore (?:it|them), run `(.*?)`", done.stdout)
        assert command, done.stdout
        of_devices = value.startswith("devices")  # results are removed too
        names_devices = "removed results of other devices" in done.stdout and "edit `devices`" in done.stdout
        assert names_devices == of_devices, done.stdout
        shell(project, command[1])
        assert (project / "params.yaml").read_bytes() == committed
        assert (project / run_path("score.json")).exists()


@pytest.mark.long
@pytest.mark.case(14)
def test_an_experiment_in_a_copy_names_the_data_that_git_does_not_track(
    prepared: Path, tmp_path: Path, saw: Callable[[str], None]
):
    """a new workload that git does not track; `dvc exp run --temp`; then the command that it gave"""
    project = copy_of(prepared, tmp_path / "project")
    add_workload(project, "new")
    experiment = ("exp", "run", "--temp", "-S", "new.preprocess.seed=1", "preload@new-cpu")
    refused = dvc(project, *experiment, check=False)
    sentence = "git does not track workloads/new/data, so the experiment lacks it; run `git add workloads/new/data`"
    assert refused.returncode != 0 and sentence in refused.stdout and "Errno" not in refused.stdout, refused.stdout
    saw(error_of(refused.stdout))
    run(project, "git", "add", "workloads/new/data")
    assert "preload@new-cpu" in ran(dvc(project, *experiment).stdout)


@pytest.mark.case(7)
def test_an_altered_file_is_found(prepared: Path, tmp_path: Path, saw: Callable[[str], None]):
    """a bit of a packed file flips; a prepared file is cut"""
    project = copy_of(prepared, tmp_path / "project")
    path = project / "data/packed/tiny/cpu/train.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    done = stage(project, "train", "tiny", "cpu", "0", check=False, publishes=False)
    assert done.returncode == 1 and "train.safetensors is altered" in done.stdout
    assert "dvc repro --force preload@tiny-cpu" in done.stdout
    path = project / "data/prepared/tiny/val/values.npy"
    path.write_bytes(path.read_bytes()[:-4])
    saw(done.stdout.strip().splitlines()[-1])
    done = stage(project, "preload", "tiny", "cpu", check=False)
    assert done.returncode == 1 and "val/values.npy is altered" in done.stdout
    assert "dvc repro --force preprocess@tiny" in done.stdout


def test_the_stage_that_always_runs_imports_nothing_heavy(ready: Path):
    code = "import sys; from tandem import stage; assert stage.main(['hardware']) == 0; "
    code += "print({'torch', 'pandas', 'numpy', 'prefect', 'mlflow', 'tandem.stage.errors'} & set(sys.modules))"
    assert run(ready, sys.executable, "-c", code).stdout.splitlines()[-1] == "set()"


def test_a_fresh_folder_is_left_clean(trained: Path):
    status = run(trained, "git", "status", "--porcelain").stdout
    assert status.split() == ["??", "dvc.lock", "??", "results/", "??", "stages/dvc.lock"], "what git is to keep"
    assert not unpublished(trained)
    assert not list((trained / ".tandem/checkpoints").rglob("*.pt"))


def test_a_machine_without_git_trains_the_same(ready: Path, trained: Path, tmp_path: Path):
    tandem(without_publisher(ready), "repro", "train@tiny-cpu", PATH=str(tmp_path / "empty"))
    weights = run_path("last.safetensors")
    assert (ready / weights).read_bytes() == (trained / weights).read_bytes()
