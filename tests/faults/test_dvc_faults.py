"""What can be wrong with DVC's own files: a damaged cache, a conflict in dvc.lock, a remote that is out of reach."""

import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.files import sha256_file
from tests.projects import commit, copy_of, dvc, error_of, git, run, run_path, shell, tandem, without_publisher

WEIGHTS = run_path("last.safetensors")


def is_restored(repro: subprocess.CompletedProcess[str]) -> bool:
    """Whether DVC took the training's result from its run-cache."""
    [line] = [line for line in repro.stdout.splitlines() if line.startswith("train@tiny-cpu ")]
    return line.endswith(" restored")


def damage(project: Path, path: str) -> Path:
    """Change a digit or a weight of an output in DVC's cache and remove the output. Returns the cached object."""
    content = bytearray((project / path).read_bytes())
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    cached = project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    is_text = not path.endswith(".safetensors")
    content[next(place for place, byte in enumerate(content) if chr(byte).isdigit()) if is_text else -20] ^= 1
    cached.chmod(0o644)
    cached.write_bytes(content)
    cached.chmod(0o444)
    (project / path).unlink()
    return cached


@pytest.mark.case(46)
def test_a_damaged_object_in_the_cache_is_never_read_as_good(
    trained: Path, tmp_path: Path, saw: Callable[[str], None]
) -> None:
    """a bit of an output flipped in DVC's cache, the output removed, evaluate again; then the command that it gave"""
    project = without_publisher(copy_of(trained, tmp_path / "project"))
    path = run_path("best.safetensors")
    sha256 = sha256_file(project / path)
    cached = damage(project, path)
    tandem(project, "repro", "train@tiny-cpu")
    assert sha256_file(project / path) != sha256, "DVC restores the damaged file"
    options = ("--force", "--single-item", "evaluate@tiny-cpu")
    done = tandem(project, "repro", *options, check=False)
    message = error_of(done.stdout)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert f": {path} is altered" in message
    saw(message)
    doctor = tandem(project, "doctor", "--no-live", check=False).stdout
    assert f"{cached.relative_to(project)}, from which DVC restores {path}, is damaged" in doctor
    shell(project, message.partition("`")[2].partition("`")[0])
    assert tandem(project, "repro").returncode == 0
    assert sha256_file(project / path) == sha256


@pytest.mark.case(46)
def test_compare_refuses_a_damaged_score(trained: Path, tmp_path: Path, saw: Callable[[str], None]) -> None:
    """a digit of a score changed in DVC's cache, the score removed and restored by `dvc checkout`; compare"""
    project = copy_of(trained, tmp_path / "project")
    damage(project, run_path("score.json"))
    dvc(project, "checkout")
    done = tandem(project, "repro", "--force", "--single-item", "compare", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert f": {run_path('score.json')} is altered" in error_of(done.stdout) and "make it again with `" in done.stdout
    saw(error_of(done.stdout))


@pytest.mark.long
@pytest.mark.case(46)
def test_a_damaged_index_of_dvcs_own(ready: Path, tmp_path: Path, saw: Callable[[str], None]):
    """DVC's index of the project, in /var/tmp, is overwritten with text; make repro; then the command that it gave"""
    variables = {"DVC_SITE_CACHE_DIR": str(tmp_path / "site")}
    repro = ("repro", "preload@tiny-cpu")
    tandem(ready, *repro, **variables)
    indices = list((tmp_path / "site").rglob("cache.db"))
    assert indices
    for index in indices:
        index.write_text("no database at all " * 999)
    done = tandem(ready, *repro, check=False, **variables)
    reason = done.stdout.strip().splitlines()[-1].strip()
    assert done.returncode != 0 and "DVC's index of this project is damaged" in reason
    saw(reason)
    fix = reason.partition("run: ")[2]
    shell(ready, fix.replace("dvc repro", "dvc repro preload@tiny-cpu"), **variables)


@pytest.mark.case(47)
def test_a_merge_conflict_in_dvc_lock(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """two branches with other results merged by git; make repro; then the command that it gave"""
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
    follow_the_advice(project, "dvc.lock has merge conflict markers", saw)


# dvc.lock is cut within a word, and before a stage's command, where it is valid YAML.
@pytest.mark.parametrize(
    ("name", "cut"),
    [("dvc.lock", "d5: "), pytest.param("dvc.lock", "    cmd: ", marks=pytest.mark.long), (".dvc/tmp/rwlock", "")],
)
@pytest.mark.case(25, 44)
def test_a_file_that_dvc_was_killed_in(
    trained: Path, tmp_path: Path, saw: Callable[[str], None], name: str, cut: str
) -> None:
    """dvc.lock and DVC's list of running processes are cut off; make repro; then its command"""
    project = copy_of(trained, tmp_path / "project")
    text = (project / "dvc.lock").read_text()
    (project / ".dvc/tmp").mkdir(exist_ok=True)
    (project / name).write_text(text[: text.rindex(cut)] if cut else '{"write": {}')
    follow_the_advice(project, f"{name} ", saw)


@pytest.mark.long
@pytest.mark.case(25)
def test_a_run_cache_entry_that_dvc_was_killed_in_or_before(trained: Path, tmp_path: Path) -> None:
    """a temporary file of DVC's run-cache, which DVC takes for an entry, ends within an output; an empty directory"""
    project = without_publisher(copy_of(trained, tmp_path / "project"))
    lock, entries = project / "dvc.lock", list((project / ".dvc/cache/runs").glob("*/*/*"))
    for entry in entries:
        text = entry.read_text()
        entry.with_name(".cut.tmp").write_text(text[: text.rindex("  hash: ")])
    lock.unlink()
    assert is_restored(tandem(project, "repro")), "the complete entry has the result"
    for entry in entries:
        entry.unlink()
    lock.unlink()
    assert not is_restored(tandem(project, "repro", "train@tiny-cpu"))


def follow_the_advice(project: Path, words: str, saw: Callable[[str], None]) -> None:
    """`make repro` names the file; the command that it gives restores every result. The doctor: test_doctor.py."""
    done = tandem(project, "repro", check=False)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    reason = done.stdout.strip().splitlines()[-1].strip()
    assert words in reason and ", so DVC cannot read it; run: rm " in reason
    saw(reason)
    fixed = shell(project, reason.partition("; run: ")[2].partition(" && git add")[0]).stdout
    assert "epoch 1/" not in fixed, "DVC's run-cache has the results"
    assert "train@tiny-cpu " not in tandem(project, "repro").stdout, "nothing is left to do"


@pytest.mark.case(44)
def test_a_lock_whose_process_has_ended(trained: Path, tmp_path: Path, saw: Callable[[str], None]) -> None:
    """DVC's list of running processes names a number that another program has by now; then the command that it gave"""
    project = copy_of(trained, tmp_path / "project")
    other = subprocess.Popen(["sleep", "600"])
    try:
        (project / ".dvc/tmp").mkdir(exist_ok=True)
        entry = {"pid": other.pid, "cmd": "dvc repro"}
        locks = {"write": {str(project / run_path("score.json")): entry}, "read": {}}
        (project / ".dvc/tmp/rwlock").write_text(json.dumps(locks))
        repro = ("repro", "--force", "--single-item", "evaluate@tiny-cpu")
        done = tandem(project, *repro, check=False)
        reason = done.stdout.strip().splitlines()[-1].strip()
        assert done.returncode != 0 and "a process that has ended" in reason, done.stdout
        saw(reason)
        shell(project, reason.partition("run: ")[2])
        tandem(project, *repro)
    finally:
        other.kill()
        other.wait()


def test_a_missing_dvc_lock_is_not_damaged(trained: Path, tmp_path: Path) -> None:
    project = copy_of(trained, tmp_path / "project")
    (project / "dvc.lock").unlink()
    assert "truncated" not in tandem(project, "doctor", "--no-live", check=False).stdout


@pytest.mark.long
@pytest.mark.case(48)
def test_a_remote_that_is_out_of_reach(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """dvc push to a server that is not there, after make repro with that remote set"""
    project = copy_of(trained, tmp_path / "project")
    (tmp_path / "gone").write_text("a file where the remote's folder should be")
    dvc(project, "remote", "add", "-d", "gone", str(tmp_path / "gone" / "remote"))
    sha256 = sha256_file(project / WEIGHTS)
    assert tandem(project, "repro").returncode == 0, "what is here needs no remote"
    done = dvc(project, "push", check=False)
    assert done.returncode != 0
    saw(next(line for line in reversed(done.stdout.splitlines()) if "ERROR" in line))
    assert sha256_file(project / WEIGHTS) == sha256
    assert "everything" not in dvc(project, "status").stdout
