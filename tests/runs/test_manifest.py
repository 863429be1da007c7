"""The manifest: what a run leaves for being compared and made again; the tree it ran from; the conditions."""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from tandem import files
from tandem.comparing import comparison, table
from tandem.devices.names import kind_of
from tandem.machine import conditions
from tandem.machine.measure import measure
from tandem.runs import provenance
from tests.projects import copy_of, git, manifest_of, read_record, run_path


def test_it_holds_what_the_files_of_the_run_hold(trained: Path) -> None:
    record = manifest_of(trained)
    assert record["digests"]["weights"]["last"] == files.sha256_file(trained / run_path("last.safetensors"))
    assert record["digests"]["predictions"] == files.sha256_file(trained / run_path("predictions.csv"))
    assert record["digests"]["data"]["table"] == files.sha256_file(trained / "workloads/tiny/data/table.csv")
    plan = json.loads((trained / "data/packed/tiny/cpu/plan.json").read_text())
    assert record["digests"]["data"]["packed"] == plan["sha256"]
    code = json.loads((trained / "results/hardware/code/tiny/train.json").read_text())
    assert record["digests"]["code"] == code
    epochs = files.read_numbers(trained / run_path("history.csv"))
    assert [{name: epoch[name] for name in row} for epoch, row in zip(record["epochs"], epochs, strict=True)] == epochs
    assert record["timing"]["epoch_seconds"] == read_record(trained, "timing.json")["timing"]["epoch_seconds"]
    assert record["result"]["metrics"] == read_record(trained, "score.json")["metrics"]
    assert (record["workload"], record["requested"], record["device"], record["seed"]) == ("tiny", "cpu", "cpu", 0)
    assert record["threads"] == 1 and record["realized"]["precision"] == "fp32"
    assert {"steal_share", "others_share"} <= record["conditions"]["between"].keys()
    digests = [epoch[name] for epoch in record["epochs"] for name in ("weights_sha256", "order_sha256", "draws_sha256")]
    assert len({*digests, record["digests"]["weights"]["initial"]}) == 3 * len(epochs) + 1, "all of them move"


def test_an_edited_tree_keeps_its_patch_with_untracked_code_and_parameters(trained: Path, tmp_path: Path) -> None:
    """That a training keeps it: test_verify.py makes one again from it."""
    project, worktree = copy_of(trained, tmp_path / "project"), tmp_path / "again"
    (project / "params.yaml").write_text((project / "params.yaml").read_text().replace("epochs: 3", "epochs: 2"))
    (project / "workloads/tiny/mine.py").write_text("VALUE = 'ä'\n")
    (project / "tandem/files.py").write_bytes((project / "tandem/files.py").read_bytes() + b"# edited\r\n")
    (project / "notes.txt").write_text("no code, not tracked")
    index = (project / ".git/index").read_bytes()
    tree = provenance.tree("tiny", project)
    assert (project / ".git/index").read_bytes() == index, "git's own index stays as it is"
    git(project, "worktree", "add", "-q", "--detach", str(worktree), tree["commit"])
    subprocess.run(["git", "apply", "--binary"], cwd=worktree, input=tree["patch"].encode(), check=True)
    for name in ("params.yaml", "workloads/tiny/mine.py", "tandem/files.py"):
        assert (worktree / name).read_bytes() == (project / name).read_bytes()
    assert not (worktree / "notes.txt").exists()
    assert provenance.git_tags(tree)["git.dirty"] == "true"


def test_edited_raw_data_is_an_edit_of_its_workload(trained: Path, tmp_path: Path) -> None:
    project = copy_of(trained, tmp_path / "project")
    with (project / "workloads/tiny/data/table.csv").open("ab") as table:
        table.write(b"\n")
    for workload, dirty in (("tiny", "true"), ("sign", "false")):
        tree = provenance.tree(workload, project)
        assert tree["patch"] == ""
        assert provenance.git_tags(tree)["git.dirty"] == dirty
    assert comparison.commit_of(provenance.tree("tiny", project)).endswith(" with edits")


def test_a_tree_without_commit_or_with_too_large_a_patch_says_why(tmp_path: Path) -> None:
    outside_git = provenance.tree("tiny", tmp_path)
    assert outside_git["missing_reason"] == "not a git repository, or no commit yet"
    assert table.SHOWN["edited"](outside_git) is None, "as `tandem compare` shows it"
    git(tmp_path, "init", "-q")
    (tmp_path / "table.bin").write_bytes(b"")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "start")
    assert provenance.tree("tiny", tmp_path)["patch"] == ""
    (tmp_path / "table.bin").write_bytes(os.urandom(8 * 2**20))
    tree = provenance.tree("tiny", tmp_path)
    assert tree["patch"] is None and "more than 4; commit or ignore large files" in tree["missing_reason"]


def test_a_process_on_the_same_core_makes_threads_wait_and_the_machine_busy() -> None:
    """A run is marked by what slowed it down, whoever started it and however little the others used."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen(["python3", "-c", "while True: pass"])
    try:
        with measure(kind_of("cpu")()) as measured:
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
    finally:
        os.sched_setaffinity(0, cores)
        other.kill()
        other.wait()
    assert measured.waiting_threads is not None and measured.waiting_threads > conditions.MAX_WAITING_THREADS
    busy = conditions.busy({"between": {"waiting_threads": measured.waiting_threads}})
    assert busy.endswith("of its threads waited for a core")
    assert conditions.busy({"between": {"waiting_threads": 0.003}}) == "" == conditions.busy({"between": {}})


def test_the_record_of_a_training_has_what_its_steps_took_and_how_its_threads_waited(trained: Path) -> None:
    timing = read_record(trained, "timing.json")
    assert timing["kernels"] == "Tandem's GRU, Tandem's dropout"
    epochs = [row["waiting_threads"] for row in files.read_numbers(trained / run_path("timings.csv"))]
    assert timing["conditions"]["between"]["waiting_threads"] == timing["timing"]["waiting_threads"]
    assert timing["timing"]["waiting_threads"] == statistics.median(epochs[1:])  # the first is a warm-up


def test_conditions_tell_own_work_from_that_of_others() -> None:
    """On any machine: this process and another one compute, and both must show."""
    before = conditions.read()
    other = subprocess.Popen(["python3", "-c", "while True: pass"])
    try:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        after = conditions.read()
    finally:
        other.kill()
        other.wait()
    shares = conditions.between(before, after)
    all_seconds = after["cpu_seconds"]["all"] - before["cpu_seconds"]["all"]
    assert 0 < shares["others_share"] <= 1 and 0 <= shares["steal_share"] <= 1
    assert shares["others_share"] * all_seconds <= all_seconds - 0.45, "what this process used is not the others'"
