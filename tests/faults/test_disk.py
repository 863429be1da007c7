"""A disk that is full, or may not be written: one sentence with path, bytes and next step; nothing is lost."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem import files
from tests.projects import RUN, TINY, copy_of, dvc, stage

pytestmark = pytest.mark.parametrize("small_disk", [1], indirect=True)


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


@pytest.mark.case(31, 32)
def test_a_disk_without_room_for_the_results_costs_no_second_training(
    ready: Path, small_disk: Path, saw: Callable[[str], None]
):
    """the disk of results/ is full when the training ends; then there is room"""
    (ready / RUN).parent.mkdir(parents=True, exist_ok=True)
    (ready / RUN).symlink_to(small_disk)
    filler = fill(small_disk)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False, publishes=False)
    error = sentence(done.stdout)
    saw(error)
    assert done.returncode == 1 and "best.safetensors could not be written: No space left on device (it needs" in error
    assert not [path for path in small_disk.iterdir() if path != filler]
    filler.unlink()
    done = stage(ready, "train", "tiny", "cpu", "0", publishes=False)
    assert "epoch 3 of 3: training is complete, the results are written again" in done.stdout
    assert "epoch 1/3" not in done.stdout and (ready / RUN / "last.safetensors").exists()


@pytest.mark.case(31, 33)
@pytest.mark.long
def test_a_disk_without_room_for_a_checkpoint_is_named(ready: Path, small_disk: Path, saw: Callable[[str], None]):
    """the disk of .tandem/ is full at the first checkpoint, then read-only"""
    (ready / ".tandem/checkpoints").mkdir(parents=True, exist_ok=True)
    (ready / ".tandem/checkpoints/tiny").symlink_to(small_disk)
    fill(small_disk, but=8192)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False)
    error = sentence(done.stdout)
    saw(error)
    match = re.fullmatch(
        r"\.tandem/checkpoints/tiny/cpu-\w+-0\.pt could not be written: No space left on device \(it needs [\d.]+ KiB, "
        r"[\d.]+ KiB are free\); the previous checkpoint is unchanged; make room and run the same command again",
        error,
    )
    assert match, error
    assert not list(small_disk.glob("*.pt")) and not list(small_disk.glob(".*.tmp"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = stage(ready, "train", "tiny", "cpu", "0", check=False)
    error = sentence(done.stdout)
    saw(error)
    assert "read-only file system; let this user write there" in error and "epoch 1/3" not in done.stdout


@pytest.mark.case(31, 33)
def test_a_disk_without_room_for_the_packed_data_is_named(ready: Path, small_disk: Path, saw: Callable[[str], None]):
    """the disk of data/packed/ is full, then read-only"""
    (ready / "data/packed/tiny/cpu").rename(ready / "before")
    (ready / "data/packed/tiny/cpu").symlink_to(small_disk)
    filler = fill(small_disk)
    for words in ("could not be written: No space left on device (it needs", "let this user write to data/packed"):
        done = stage(ready, "preload", "tiny", "cpu", check=False)
        error = sentence(done.stdout)
        saw(error)
        assert done.returncode == 1 and error.startswith("data/packed/tiny/cpu/train.safetensors") and words in error
        if filler.exists():
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)


@pytest.mark.case(32)
@pytest.mark.long
def test_a_full_disk_when_dvc_stores_the_result_costs_no_second_training(
    prepared: Path, tmp_path: Path, small_disk: Path, saw: Callable[[str], None]
):
    """the disk of DVC's cache is full when the training ends; then there is room; then a training is forced"""
    project = copy_of(prepared, tmp_path / "project", TINY.replace("epochs: 3", "epochs: 4"))
    shutil.move(project / ".dvc/cache", small_disk / "cache")
    (project / ".dvc/cache").symlink_to(small_disk / "cache")
    filler = fill(small_disk)
    done = dvc(project, "repro", "train@tiny-cpu", check=False)
    assert done.returncode != 0 and "epoch 4/4" in done.stdout and "No space left on device" in done.stdout
    saw([line for line in done.stdout.splitlines() if "No space left on device" in line][-1])
    filler.unlink()
    resumed = dvc(project, "repro", "train@tiny-cpu").stdout
    saw([line for line in resumed.splitlines() if line.startswith("resuming from")][0])
    assert "training is complete, the results are written again" in resumed and "epoch 1/4" not in resumed
    forced = dvc(project, "repro", "--force", "--single-item", "train@tiny-cpu").stdout
    assert "resuming from" not in forced and "epoch 4/4" in forced
