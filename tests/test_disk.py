"""A disk that is full, or may not be written: one sentence with path, bytes and next step; nothing is lost."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import lockfile
from stages import files
from tests.projects import TINY, copy_of, dvc, run, stage

RUN = "results/runs/tiny/cpu/0"


def fill(disk: Path, but: int = 0) -> Path:
    """A file that leaves `but` bytes of the file system free."""
    path, free = disk / "filler", os.statvfs(disk)
    path.write_bytes(bytes(max(free.f_bavail * free.f_frsize - but, 0)))
    return path


def sentence(output: str) -> str:
    """The one sentence of a stage that failed."""
    assert "Traceback" not in output
    [line] = [line for line in output.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(31, 33)
def test_every_way_to_write_a_file_names_the_path_and_the_next_step(small_disk: Path, saw: Callable[[str], None]):
    """a full disk, then a read-only one, under each way to write a file"""
    filler, target = fill(small_disk), small_disk / "results" / "history.csv"
    full = r"history\.csv could not be written: No space left on device \((it needs .* KiB, )?0\.0 KiB are free\); "
    with pytest.raises(OSError, match=full + "make room and run the same command again"):
        files.write_table(target, [{"epoch": number} for number in range(10000)])
    with pytest.raises(OSError, match=full + "make room") as raised:
        files.write_bytes(target, bytes(8192))
    saw(str(raised.value).replace(f"{small_disk}/", ""))
    with pytest.raises(OSError, match=full + "make room"), files.replacing(target) as temporary:
        temporary.write_bytes(bytes(8192))
    filler.unlink()
    assert not [path for path in small_disk.rglob("*") if path.is_file()]
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OSError, match="let this user write to .*results and run the same command again") as raised:
        files.require_writable(target.parent)
    saw(str(raised.value).replace(f"{small_disk}/", ""))


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(31, 32)
def test_a_disk_without_room_for_the_results_costs_no_second_training(
    ready: Path, small_disk: Path, saw: Callable[[str], None]
):
    """the disk of results/ is full when the training ends; then there is room"""
    (ready / RUN).parent.mkdir(parents=True, exist_ok=True)
    (ready / RUN).symlink_to(small_disk)
    filler = fill(small_disk)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False)
    said = sentence(done.stdout)
    saw(said)
    assert done.returncode == 1 and "best.safetensors could not be written: No space left on device (it needs" in said
    assert not [path for path in small_disk.iterdir() if path != filler]
    filler.unlink()
    done = stage(ready, "train", "tiny", "cpu", "0")
    assert "epoch 3 of 3: all are trained, the results are written again" in done.stdout
    assert "epoch 1/3" not in done.stdout and (ready / RUN / "last.safetensors").exists()


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(31, 33)
@pytest.mark.long
def test_a_disk_without_room_for_a_checkpoint(ready: Path, small_disk: Path, saw: Callable[[str], None]):
    """the disk of .tandem/ is full at the first checkpoint, then read-only"""
    (ready / ".tandem/checkpoints").mkdir(parents=True, exist_ok=True)
    (ready / ".tandem/checkpoints/tiny").symlink_to(small_disk)
    fill(small_disk, but=8192)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False)
    said = sentence(done.stdout)
    saw(said)
    found = re.fullmatch(
        r"\.tandem/checkpoints/tiny/cpu-\w+\.pt could not be written: No space left on device \(it needs [\d.]+ KiB, "
        r"[\d.]+ KiB are free\); the checkpoint before it is untouched; make room and run the same command again",
        said,
    )
    assert found, said
    assert not list(small_disk.glob("*.pt")) and not list(small_disk.glob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False)
    said = sentence(done.stdout)
    saw(said)
    assert "read-only file system; let this user write there" in said and "epoch 1/3" not in done.stdout


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(31, 33)
def test_a_disk_without_room_for_the_packed_data(ready: Path, small_disk: Path, saw: Callable[[str], None]):
    """the disk of data/packed/ is full, then read-only"""
    (ready / "data/packed/tiny/cpu").rename(ready / "before")
    (ready / "data/packed/tiny/cpu").symlink_to(small_disk)
    filler = fill(small_disk)
    for wanted in ("could not be written: No space left on device (it needs", "let this user write to data/packed"):
        done = stage(ready, "preload", "tiny", "cpu", check=False)
        said = sentence(done.stdout)
        saw(said)
        assert done.returncode == 1 and said.startswith("data/packed/tiny/cpu/train.safetensors") and wanted in said
        if filler.exists():
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(32)
@pytest.mark.long
def test_a_full_disk_when_dvc_stores_the_result(
    prepared: Path, tmp_path: Path, small_disk: Path, saw: Callable[[str], None]
):
    """the disk of DVC's cache is full when the training ends; then there is room; then a training is forced"""
    project = copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 4"))
    shutil.move(project / ".dvc/cache", small_disk / "cache")
    (project / ".dvc/cache").symlink_to(small_disk / "cache")
    filler = fill(small_disk)
    done = dvc(project, "repro", "train@tiny-cpu-0", check=False)
    assert done.returncode != 0 and "epoch 4/4" in done.stdout and "No space left on device" in done.stdout
    saw([line for line in done.stdout.splitlines() if "No space left on device" in line][-1])
    filler.unlink()
    again = dvc(project, "repro", "train@tiny-cpu-0").stdout
    saw([line for line in again.splitlines() if line.startswith("going on from")][0])
    assert "all are trained, the results are written again" in again and "epoch 1/4" not in again
    forced = dvc(project, "repro", "--force", "--single-item", "train@tiny-cpu-0").stdout
    assert "going on from" not in forced and "epoch 4/4" in forced


@pytest.mark.case(25)
def test_a_lock_file_that_dvc_was_killed_in_is_moved_aside(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """dvc.lock is cut off at 40 places, as a kill of dvc leaves it"""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import load_yaml

    whole, path = (trained / "dvc.lock").read_bytes(), tmp_path / "dvc.lock"
    sentences = []
    for length in range(0, len(whole) + 1, len(whole) // 40):
        path.write_bytes(whole[:length])
        if found := lockfile.mend(tmp_path):
            sentences += found
            assert not path.exists() and (tmp_path / "dvc.lock.cut").read_bytes() == whole[:length]
        else:
            COMPILED_LOCKFILE_SCHEMA(load_yaml(path))  # what DVC asks of it
    assert len(sentences) >= 5
    saw(sentences[0])
    for text in (whole, b"<<<<<<< ours\n"):  # nothing is wrong; and a conflict, which is the user's to solve
        path.write_bytes(text)
        assert not lockfile.mend(tmp_path) and path.read_bytes() == text


@pytest.mark.case(44)
def test_a_list_of_processes_that_dvc_left_cut_is_removed(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """.dvc/tmp/rwlock is cut off at every place, as a kill of dvc leaves it; then `make repro`"""
    from dvc.lock import make_lock
    from dvc.rwlock import SCHEMA

    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    assert not lockfile.mend(tmp_path), "there is none"
    whole = b'{"write": {"/a": {"pid": 4711, "cmd": "dvc repro"}}, "read": {}}'
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with make_lock(f"{path}.lock", tmp_dir=str(path.parent)):
            assert length % 32 or not lockfile.mend(tmp_path), "another DVC writes it at this moment"
        assert len(lockfile.mend(tmp_path)) == 1 and not path.exists()
    for text in (whole, b"{}"):
        SCHEMA(json.loads(text))  # what DVC asks of it
        path.write_bytes(text)
        assert not lockfile.mend(tmp_path) and path.read_bytes() == text

    project = copy_of(trained, tmp_path / "project")
    (project / ".dvc/tmp/rwlock").write_bytes(b"")
    assert "Unable to read RWLock-file" in dvc(project, "repro", "preprocess@tiny", check=False).stdout
    output = run(project, sys.executable, "-m", "flows.repro", "preprocess@tiny").stdout
    saw(next(line for line in output.splitlines() if "rwlock is cut off" in line))


@pytest.mark.case(25)
@pytest.mark.long
def test_after_a_kill_in_dvcs_lock_file_all_is_restored(trained: Path, tmp_path: Path, saw: Callable[[str], None]):
    """dvc.lock is cut off after a whole run; `make repro`"""
    project = copy_of(trained, tmp_path / "project")
    lock = project / "dvc.lock"
    whole = lock.read_text()
    cut = whole[: whole.rindex("md5:") + 2]
    lock.write_text(cut)
    assert dvc(project, "repro", "evaluate@tiny-cpu-0", check=False).returncode != 0
    output = run(project, sys.executable, "-m", "flows.repro", "evaluate@tiny-cpu-0").stdout
    saw(next(line for line in output.splitlines() if "dvc.lock is cut off" in line))
    assert "'train@tiny-cpu-0' is cached - skipping run" in output and "epoch 1/3" not in output
