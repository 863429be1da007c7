"""Checkpoints: what is damaged, foreign or half-written is passed over, and a full disk leaves what there is."""

import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tandem import files
from tandem.training import checkpoint as checkpoints
from tandem.training.checkpoint import Checkpoint
from tests.projects import ROOT, python, wait_for

CPU = torch.device("cpu")
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads, from Python 3.12 on


def weights(value: float, count: int = 3) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((count,), value)}


def loaded(checkpoint: Checkpoint) -> tuple[float | None, str]:
    """The value that `weights` saved, and the sentence."""
    state, message = checkpoint.load()
    return (float(state["weight"][0]) if state else None), message


@pytest.mark.case(28)
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_goes_on(tmp_path: Path, saw: Callable[[str], None]):
    """a bit of the newest checkpoint flips; then the one before it is cut too"""
    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", {"parameters": 1})
    for value in (1.0, 2.0, 3.0):
        checkpoint.save(weights(value))
    raw = bytearray(checkpoint.path.read_bytes())
    raw[len(raw) // 2] ^= 1
    checkpoint.path.write_bytes(raw)
    value, message = loaded(checkpoint)
    saw(message.replace(f"{tmp_path}/", ""))
    assert value == 2.0
    assert "cpu-1-0.pt is damaged (its sha256 does not match)" in message
    assert message.endswith("cpu-1-0.previous.pt")
    checkpoint.save(weights(4.0))  # must not replace the good one before it by the damaged one
    assert loaded(checkpoint) == (4.0, f"resuming from {checkpoint.path}")
    checkpoint.path.write_bytes(b"")
    checkpoint.previous.write_bytes(checkpoint.previous.read_bytes()[:-1])
    value, message = loaded(checkpoint)
    assert value is None and message.count("is damaged") == 2 and message.endswith("starting from the first epoch")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=str)
def test_a_checkpoint_is_not_removed_because_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*arguments: object, **named: object) -> object:
        raise error

    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", {"parameters": 1})
    checkpoint.save(weights(1.0))
    with monkeypatch.context() as patched, pytest.raises(type(error)):
        patched.setattr(torch, "load", fail)
        checkpoint.load()
    assert loaded(checkpoint)[0] == 1.0


@pytest.mark.case(29)
def test_a_checkpoint_of_another_training_is_not_loaded(tmp_path: Path, saw: Callable[[str], None]):
    """the code differs from that of the checkpoint that is there; one is copied to another's name"""
    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", INPUTS)
    interrupt(checkpoint)
    other = Checkpoint(tmp_path / "cpu-2-0.pt", {**INPUTS, "code": {"stages/train.py": "2"}})
    state, message = other.load()
    saw(message.replace(f"{tmp_path}/", ""))
    assert state is None and message.endswith("it was made with other code")
    other.path.write_bytes(checkpoint.path.read_bytes())
    state, message = other.load()
    assert state is None and "belongs to another training" in message


INPUTS = {
    "seed": 0,
    "parameters": {"epochs": 9, "learning_rate": 0.1},
    "data": {"train": "1"},
    "code": {"stages/train.py": "1"},
    "hardware": {"torch": "2.15.0", "cpu": {"cores": 2.0}},
}


def interrupt(checkpoint: Checkpoint, epochs_done: int = 3) -> None:
    with checkpoint.locked():
        checkpoint.save({"trainer": {"epochs_done": epochs_done} if epochs_done else None})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameters": {"epochs": 12, "learning_rate": 0.1}}, "epochs"),
        ({"hardware": {"torch": "2.16.0", "cpu": {"cores": 2.0}}}, "hardware"),
        ({"code": {"stages/train.py": "2"}, "data": {"train": "2"}}, "code and data"),
        ({"parameters": {"epochs": 9, "learning_rate": 0.2}}, None),
        ({"parameters": {"epochs": 12, "learning_rate": 0.2}, "code": {"stages/train.py": "2"}}, None),
        ({"code": {"stages/train.py": "2"}, "stage": "replicate"}, None),
    ],
)
def test_an_interrupted_training_with_the_same_parameters_is_named(changes: dict, reason: str | None, tmp_path: Path):
    interrupt(Checkpoint.of(str(tmp_path), "cpu", INPUTS))
    current = Checkpoint.of(str(tmp_path), "cpu", {**INPUTS, **changes})
    with current.locked():
        state, message = current.load()
    expected = f"not resuming from {Checkpoint.of(str(tmp_path), 'cpu', INPUTS).path}: it was made with other {reason}"
    assert state is None and message == (expected if reason else "")


@pytest.mark.parametrize("what", ["ended", "stored", "no epoch", "other seed", "another one since"])
def test_a_training_that_nobody_expects_to_resume_is_not_named(what: str, tmp_path: Path):
    code = [{"code": {"stages/train.py": str(number)}} for number in range(3)]
    first = Checkpoint.of(str(tmp_path), "cpu", {**INPUTS, **code[0], "seed": int(what == "other seed")})
    interrupt(first, epochs_done=0 if what == "no epoch" else 3)
    if what in ("ended", "stored"):
        first.mark_ended(tmp_path)
    if what == "stored":
        first.remove()
    if what == "another one since":
        later = Checkpoint.of(str(tmp_path), "cpu", {**INPUTS, **code[1]})
        interrupt(later)
        later.remove()
    current = Checkpoint.of(str(tmp_path), "cpu", {**INPUTS, **code[2]})
    with current.locked():
        assert current.load() == (None, "")


@pytest.mark.case(51)
@pytest.mark.parametrize("content", ["attack", "text", "another"])
def test_a_checkpoint_that_would_run_code_is_refused(content: str, tmp_path: Path, saw: Callable[[str], None]):
    """a pickle that would run code, with a right checksum, lies where the checkpoint is looked for"""

    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "attacked"),)

    payload = io.BytesIO()
    if content == "attack":
        torch.save({"belongs_to": "{}", "state": Attack()}, payload)
    elif content == "another":
        torch.save([1, 2], payload)
    else:
        payload.write(b"no pickle at all")
    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", {})
    checkpoint.save(weights(1.0))
    checkpoint.save(weights(2.0))
    foreign = hashlib.sha256(payload.getvalue()).digest() + payload.getvalue()
    for path in (tmp_path / "cpu-2-0.pt", checkpoint.path):  # of this training, and of another that is only looked at
        path.write_bytes(foreign)
    (tmp_path / "cpu-2-0.lock").touch()
    value, message = loaded(checkpoint)
    assert value == 1.0 and "cpu-1-0.pt is no checkpoint of Tandem" in message
    if content == "attack":
        saw(message.replace(f"{tmp_path}/", ""))
    value, message = loaded(Checkpoint(tmp_path / "cpu-3-0.pt", {}))
    assert value is None and message
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("small_disk", [1], indirect=True)
@pytest.mark.case(31)
def test_a_full_disk_leaves_the_old_checkpoint(small_disk: Path, saw: Callable[[str], None]):
    """a checkpoint of 3.8 MiB for a disk of 1 MiB; then one for which the disk is filled meanwhile"""
    checkpoint = Checkpoint(small_disk / "cpu-1-0.pt", {})
    checkpoint.save(weights(1.0, 1000))
    sentence = (
        r"cpu-1-0\.pt could not be written: No space left on device \(it needs 3\.8 MiB, 1,016\.0 KiB are free\); "
    )
    sentence += r"the previous checkpoint is unchanged; make room and run the same command again"
    with pytest.raises(OSError, match=sentence) as raised:
        checkpoint.save(weights(2.0, 1000_000))
    saw(str(raised.value).replace(f"{small_disk}/", ""))
    assert loaded(checkpoint)[0] == 1.0
    assert [path.name for path in small_disk.iterdir()] == ["cpu-1-0.pt"]
    with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with pytest.raises(OSError, match=r"it needs \d+\.\d KiB, 0\.0 KiB are free"):
        checkpoint.save(weights(2.0, 1000))
    assert loaded(checkpoint)[0] == 1.0


def write_forever(checkpoint: Checkpoint) -> None:
    with checkpoint.locked():
        while True:
            checkpoint.save(weights(1.0, 1_000_000))


@pytest.mark.case(28)
def test_a_kill_while_it_is_written_leaves_the_one_before_it(tmp_path: Path, saw: Callable[[str], None]):
    """kill -9 of a process that writes a checkpoint"""
    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", {})
    writer = FORK.Process(target=write_forever, args=(checkpoint,))
    writer.start()
    wait_for(checkpoint.previous.exists)
    for _ in range(1000):
        wait_for(lambda: list(tmp_path.glob(".*.tmp")))
        os.kill(writer.pid, signal.SIGSTOP)
        if list(tmp_path.glob(".*.tmp")):  # it stands in the middle of the writing
            break
        os.kill(writer.pid, signal.SIGCONT)
    writer.kill()
    writer.join()
    assert list(tmp_path.glob(".*.tmp"))
    with checkpoint.locked():
        assert not list(tmp_path.glob(".*.tmp"))
    value, message = loaded(checkpoint)
    saw(message.replace(f"{tmp_path}/", ""))
    assert value == 1.0 and message.startswith("resuming from")


@pytest.mark.case(32)
def test_the_last_checkpoint_stays_until_dvc_has_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saw: Callable[[str], None]
):
    """a training has ended, dvc.lock does not hold its result yet; then it does"""
    monkeypatch.setattr(checkpoints, "ROOT", tmp_path)
    checkpoint, measured = Checkpoint(tmp_path / "cpu-1-0.pt", {}), tmp_path / "measured"
    measured.mkdir()
    (measured / "timings.csv").write_text("epoch,epoch_seconds\n1,0.5\n")
    checkpoint.save(weights(1.0))
    checkpoint.save(weights(2.0))
    checkpoint.mark_ended(measured)
    (tmp_path / "dvc.lock").write_text(f"md5: {'0' * 32}\n")
    checkpoint.prune()
    value, message = loaded(checkpoint)
    saw(message.replace(f"{tmp_path}/", ""))
    assert value == 2.0
    replicate = Checkpoint(tmp_path / "cpu-2-1.pt", {})
    replicate.save(weights(3.0))
    replicate.mark_ended(None)
    # As DVC 3 computes it: tests/flows/test_pipeline.py compares with a real dvc.lock.
    (tmp_path / "dvc.lock").write_text(f"md5: {files.dvc_md5(measured)}.dir\n")
    for num_removed in range(1, 3):  # killed after so many files; what was left by that was left for good
        checkpoint.save(weights(1.0))
        checkpoint.save(weights(2.0))
        checkpoint.mark_ended(measured)
        process = FORK.Process(target=prune_until_killed, args=(tmp_path, checkpoint, num_removed))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        checkpoint.prune()
        of_replicate = ["cpu-2-1.ended", "cpu-2-1.pt"]
        assert sorted(path.name for path in tmp_path.iterdir()) == [*of_replicate, "dvc.lock", "measured"]


def prune_until_killed(root: Path, checkpoint: Checkpoint, num_removed: int) -> None:
    """In a process of its own: prune, and be killed after so many files."""
    unlink, removals = Path.unlink, iter(range(num_removed))

    def unlink_some(path: Path, missing_ok: bool = False) -> None:
        if next(removals, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(path, missing_ok)

    checkpoints.ROOT = root
    Path.unlink = unlink_some  # type: ignore[method-assign]
    checkpoint.prune()


def test_checkpoints_of_other_trainings_are_bounded(tmp_path: Path):
    for number in range(checkpoints.NUM_KEPT + 3):
        checkpoint = Checkpoint(tmp_path / f"cpu-{number}-0.pt", {"parameters": number})
        checkpoint.save(weights(number))
        checkpoint.save(weights(number))
        os.utime(checkpoint.path, (number, number))
    Checkpoint(tmp_path / "cuda-1-0.pt", {}).save(weights(1.0))
    Checkpoint(tmp_path / "cpu-new-0.pt", {}).prune()
    names = {path.name for path in tmp_path.glob("*.pt")}
    numbers = range(4, checkpoints.NUM_KEPT + 3)
    assert names == {f"cpu-{number}-0{part}.pt" for number in numbers for part in ("", ".previous")} | {"cuda-1-0.pt"}


@pytest.mark.case(42)
def test_the_second_training_of_the_same_thing_is_told_who_holds_it(tmp_path: Path, saw: Callable[[str], None]):
    """a second process starts the same training"""
    checkpoint = Checkpoint(tmp_path / "cpu-1-0.pt", {})
    code = "from pathlib import Path; from tandem.training.checkpoint import Checkpoint\n"
    code += f"with Checkpoint(Path({str(checkpoint.path)!r}), {{}}).locked(): pass"
    with checkpoint.locked():
        second = python(ROOT, code, check=False)
    assert second.returncode != 0
    assert f"already running (process {os.getpid()})" in second.stdout
    saw(second.stdout.strip().splitlines()[-1].removeprefix("ValueError: ").replace(str(os.getpid()), "4711"))
    with Checkpoint(checkpoint.path, {}).locked():  # once the first has ended
        pass


def test_the_leftover_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for process in (dead.pid, os.getppid()):
        (tmp_path / f".history.csv.{process}.tmp").touch()
    files.write_text(tmp_path / "history.csv", "epoch\n")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"history.csv", f".history.csv.{os.getppid()}.tmp"}


# Runs preprocess; the table is edited once it has been read.
EDITED_TABLE = """
import sys
from tandem import files, stage
from stages import preprocess

def write_prepared(folder, prepared, write=preprocess.write_prepared):
    table = files.raw_dir("tiny") / "table.csv"
    table.write_text(table.read_text().replace("class 1", "class one"))
    return write(folder, prepared)

preprocess.write_prepared = write_prepared
sys.exit(stage.main(["preprocess", "tiny"]))
"""


@pytest.mark.case(12)
def test_a_table_that_is_edited_while_preprocess_works_is_found(project: Path, saw: Callable[[str], None]):
    """the raw table is edited while preprocess works"""
    done = python(project, EDITED_TABLE, check=False)
    error = done.stdout.strip()
    saw(error)
    assert done.returncode == 1 and error.startswith(
        "error: workloads/tiny/data/table.csv of tiny changed while preprocess"
    )
    assert not (project / "data/prepared/tiny/summary.json").exists(), "what later stages go by"


# Prints what a training of this project is told: for each file after a line end more, after an edit, and put back.
EDITS = """
import json, shutil
from tandem import files
from tandem.runs.inputs import Inputs

table = files.ROOT / "workloads/tiny/data/table.csv"
raw, sha256 = table.read_bytes(), files.sha256_file(table)
table.write_bytes(raw + b"99,0,1,1,class 1\\n")
try:
    Inputs("tiny", "cpu", 0, sha256)
except ValueError as error:
    found = {"edited after preprocess": str(error)}
table.write_bytes(raw)
inputs = Inputs("tiny", "cpu", 0, sha256)
found["nothing"] = inputs.changed()

def change(path, *contents):
    before = path.read_bytes()
    for content in (*contents, before):
        path.write_bytes(content)
        found.setdefault(files.relative(path), []).append(inputs.changed())

for name, old, new in (
    ("params.yaml", b"learning_rate: 1e-2", b"learning_rate: 2e-2"),
    ("tandem/training/inference.py", b"import torch\\n", b"import torch\\nANOTHER = 1\\n"),
    ("results/hardware/devices/cpu.json", b'"kind"', b'"kin"'),
    ("data/packed/tiny/cpu/plan.json", b'"train": "', b'"train": "0'),
):
    before = (files.ROOT / name).read_bytes()
    assert old in before, name
    change(files.ROOT / name, before + b"\\n", before.replace(old, new, 1))
for path in (table, files.packed_dir("tiny", "cpu") / "train.safetensors"):
    before = path.read_bytes()
    change(path, before, before[:-1] + b"0")
(files.ROOT / "params.yaml").write_text("tiny: [")
found["half an edit"] = inputs.changed()
shutil.rmtree(files.ROOT / "results")
found["removed"] = inputs.changed()
print(json.dumps(found))
"""


@pytest.mark.case(12)
def test_what_moves_under_a_training_is_named_and_what_only_looks_so_is_not(ready: Path, saw: Callable[[str], None]):
    """params.yaml, code, raw table, packed data and results are edited, put back, and removed"""
    changes = json.loads(python(ready, EDITS).stdout)
    assert changes.pop("nothing") == []
    assert "changed after data/prepared/tiny was made from it; run" in changes.pop("edited after preprocess")
    assert "params.yaml (" in str(changes.pop("half an edit"))
    assert "results/hardware/devices/cpu.json (removed)" in changes.pop("removed")
    messages = {name: edited for name, (_, edited, _) in changes.items()}
    assert changes == {name: [[], edited, []] for name, edited in messages.items()}
    assert messages == {
        "params.yaml": ["parameters (params.yaml)"],
        "tandem/training/inference.py": ["code (tandem/training/inference.py)"],
        "workloads/tiny/data/table.csv": ["workloads/tiny/data/table.csv"],
        "results/hardware/devices/cpu.json": ["hardware (results/hardware/devices/cpu.json)"],
        "data/packed/tiny/cpu/plan.json": ["data (data/packed/tiny/cpu/plan.json)"],
        "data/packed/tiny/cpu/train.safetensors": ["data/packed/tiny/cpu/train.safetensors"],
    }
    saw("; ".join(edited for [edited] in messages.values()))


# Prints what a training is told of an edit that is undone while it waits, of one that stays, and of other data.
UNDONE = """
import json, threading
from tandem import files
from tandem.runs import inputs

inputs.UNDO_SECONDS = 2.0
found, training = {}, inputs.Inputs("tiny", "cpu", 0, None)
params = files.ROOT / "params.yaml"
before = params.read_bytes()
for name, content in (("other", before.replace(b"1e-2", b"2e-2")), ("empty", b"")):
    params.write_bytes(content)
    undo = threading.Timer(0.3, params.write_bytes, [before])
    undo.start()
    found[f"{name}, undone"] = training.lasting_changes()
    undo.join()
params.write_bytes(before.replace(b"1e-2", b"2e-2"))
found["stays"] = training.lasting_changes()
params.write_bytes(before)
assert training.changed() == []
packed = files.packed_dir("tiny", "cpu") / "train.safetensors"
undo = threading.Timer(0.5, packed.write_bytes, [packed.read_bytes()])
packed.write_bytes(packed.read_bytes()[:-1])
undo.start()
found["data"] = training.lasting_changes()
undo.join()
print(json.dumps(found))
"""


@pytest.mark.case(12)
def test_a_training_waits_for_an_edit_to_be_undone(ready: Path):
    """params.yaml is edited and put back, as `dvc exp run --queue` does; data are at once an error"""
    changes = json.loads(python(ready, UNDONE).stdout.splitlines()[-1])
    assert changes == {
        "other, undone": [],
        "empty, undone": [],
        "stays": ["parameters (params.yaml)"],
        "data": ["data/packed/tiny/cpu/train.safetensors"],
    }
