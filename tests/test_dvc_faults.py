"""What can be wrong with DVC's own files: a damaged cache, a conflict in dvc.lock, a remote that is out of reach."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.files import sha256_file
from tests.projects import commit, copy_of, dvc, git, run

WEIGHTS = "results/runs/tiny/cpu/0/last.safetensors"


def error_of(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize("mend", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.case(46)
def test_a_damaged_object_in_the_cache(trained: Path, tmp_path: Path, saw: Callable[[str], None], mend: bool):
    """a bit of the weights flipped in DVC's cache, the weights removed, make repro; then the command that it gave"""
    project = copy_of(trained, tmp_path / "project")
    sha256 = sha256_file(project / WEIGHTS)
    md5 = re.search(rf"path: {WEIGHTS}\n +hash: md5\n +md5: (\w+)", (project / "dvc.lock").read_text())
    assert md5
    cached = project / ".dvc/cache/files/md5" / md5[1][:2] / md5[1][2:]
    content = bytearray(cached.read_bytes())
    content[-20] ^= 8
    cached.chmod(0o644)
    cached.write_bytes(content)
    cached.chmod(0o444)
    (project / WEIGHTS).unlink()
    done = run(project, sys.executable, "-m", "flows.repro", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    message = error_of(done.stdout)
    assert "in DVC's cache is damaged" in message and WEIGHTS in message and message.endswith("&& dvc repro")
    saw(message)
    doctor = run(project, sys.executable, "-m", "flows.doctor", "--no-live", check=False).stdout
    assert doctor.count("in DVC's cache is damaged") == 1
    if mend:
        run(project, "sh", "-c", message.partition("; run: ")[2])
        assert sha256_file(project / WEIGHTS) == sha256
        assert (
            "project found, no lock is held" in run(project, sys.executable, "-m", "flows.doctor", check=False).stdout
        )


@pytest.mark.long
@pytest.mark.case(46)
def test_a_damaged_index_of_dvcs_own(ready: Path, tmp_path: Path, saw: Callable[[str], None]):
    """DVC's index of the project, in /var/tmp, is overwritten with text; make repro; then the command that it gave"""
    own = {"DVC_SITE_CACHE_DIR": str(tmp_path / "site")}
    repro = (sys.executable, "-m", "flows.repro", "preload@tiny-cpu")
    run(ready, *repro, **own)
    indices = list((tmp_path / "site").rglob("cache.db"))
    assert indices
    for index in indices:
        index.write_text("no database at all " * 999)
    done = run(ready, *repro, check=False, **own)
    reason = done.stdout.strip().splitlines()[-1].strip()
    assert done.returncode != 0 and "DVC's own index of this project is damaged" in reason
    saw(reason)
    fix = reason.partition("run: ")[2].partition(", which")[0]
    run(ready, "sh", "-ec", fix.replace("dvc repro", "dvc repro preload@tiny-cpu"), **own)


@pytest.mark.case(47)
def test_a_merge_conflict_in_dvc_lock(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """two branches with other results merged by git; make repro and the doctor; then the command that they gave"""
    project = copy_of(trained, tmp_path / "project")
    git(project, "add", "-f", "dvc.lock")
    commit(project)
    lock = project / "dvc.lock"
    for branch, size in (("theirs", "1"), ("main", "2")):
        git(project, "checkout", "-q", *(["-b", branch] if branch == "theirs" else ["main"]))
        lock.write_text(re.sub(r"size: \d+", f"size: {size}", lock.read_text(), count=1))
        commit(project)
    merged = run(project, "git", "merge", "theirs", check=False)
    assert merged.returncode == 1 and "<<<<<<<" in lock.read_text()
    done = run(project, sys.executable, "-m", "flows.repro", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    reason = done.stdout.strip().splitlines()[-1]
    assert re.match(
        r" +reason +dvc.lock has merge conflict markers \(<<<<<<< HEAD\), so DVC cannot read it; run: ", reason
    )
    saw(reason.strip())
    doctor = run(project, sys.executable, "-m", "flows.doctor", "--no-live", check=False).stdout
    assert "dvc.lock has merge conflict markers" in doctor
    fix = reason.partition("; run: ")[2].partition(" && git add")[0]
    again = run(project, "sh", "-c", fix).stdout
    assert "epoch 1/" not in again, "DVC's run-cache has the results: nothing is trained again"


@pytest.mark.long
@pytest.mark.case(48)
def test_a_remote_that_is_out_of_reach(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """dvc push to a server that is not there, after make repro with that remote set"""
    project = copy_of(trained, tmp_path / "project")
    (tmp_path / "gone").write_text("a file where the remote's folder should be")
    dvc(project, "remote", "add", "-d", "gone", str(tmp_path / "gone" / "remote"))
    sha256 = sha256_file(project / WEIGHTS)
    assert run(project, sys.executable, "-m", "flows.repro").returncode == 0, "what is here needs no remote"
    done = dvc(project, "push", check=False)
    assert done.returncode != 0
    saw(next(line for line in reversed(done.stdout.splitlines()) if "ERROR" in line))
    assert sha256_file(project / WEIGHTS) == sha256
    assert "everything" not in dvc(project, "status").stdout
