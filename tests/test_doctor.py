"""The doctor in environments that are really broken: what it names, the fix, the exit status. Where a GPU is needed,
on literal facts.
"""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import doctor
from stages.diagnosis.livecheck import Finding, driver_findings, judge, process_name, runs_on, visible
from tests.projects import ROOT, environment, make_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project. Whoever breaks it mends it again."""
    return copy_to(tmp_path_factory.mktemp("doctor") / "project")


def copy_to(folder: Path) -> Path:
    make_project(folder)
    (folder / "requirements.txt").write_bytes((ROOT / "requirements.txt").read_bytes())
    (folder / ".dvc/tmp").mkdir()
    return folder


def run(project: Path, *arguments: str, python: tuple[str, ...] = (sys.executable, "-m"), **extra: str):
    command = [*python, "flows.doctor", *arguments]
    return subprocess.run(command, cwd=project, env=environment(**extra), capture_output=True, text=True, timeout=1800)


def diagnose(project: Path, live: bool = False, **extra: Any) -> tuple[int, list[Finding]]:
    """(exit status, all findings)."""
    done = run(project, "--json", *([] if live else ["--no-live"]), **extra)
    assert not done.stderr, done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] == (done.returncode == 0)
    return done.returncode, [Finding(**entry) for entry in report["findings"]]


def about(findings: list[Finding], word: str) -> Finding:
    """The one finding that is not ok and whose text holds `word`."""
    found = [finding for finding in findings if finding.status != "ok" and word in finding.what]
    assert len(found) == 1, [finding for finding in findings if finding.status != "ok"]
    assert found[0].why and found[0].fix
    return found[0]


def test_this_environment_is_healthy_and_both_reports_agree(project: Path):
    status, findings = diagnose(project)
    problems = [finding for finding in findings if finding.status == "problem"]
    assert {"python", "packages", "gpu", "disk", "dvc", "mlflow"} <= {finding.check for finding in findings}
    # The machine may have its own: a full disk, little memory, a GPU that this torch cannot use.
    assert not [finding for finding in problems if finding.check not in ("memory", "disk", "gpu")], problems
    text = run(project, "--no-live")
    assert text.returncode == status == bool(problems)
    assert (f"\nproblems: {len(problems)}" if problems else "\nhealthy, warnings: ") in text.stdout
    lines = re.findall(r"^(ok|warning|problem|absent) +(\w+) +(.+)$", text.stdout, re.MULTILINE)
    same = [finding for finding in findings if finding.check not in ("memory", "disk")]  # these move meanwhile
    assert [line for line in lines if line[1] not in ("memory", "disk")] == [(f.status, f.check, f.what) for f in same]


def test_torch_computes_on_the_cpu(project: Path):
    _, findings = diagnose(project, live=True)
    live = [finding for finding in findings if finding.check == "live"]
    assert all(finding.status in ("ok", "warning") for finding in live)
    assert re.match(r"torch [\d.]+\S* imported in [\d.]+ s", live[0].what)
    assert "right numbers" in live[1].what and "GFLOP/s on one thread" in live[2].what


def test_a_bare_python_gets_a_report(project: Path):
    bare = (
        f"import sys; sys.path.insert(0, {str(project)!r}); from flows.doctor import main; sys.exit(main(sys.argv[2:]))"
    )
    status, findings = diagnose(project, python=(sys.executable, "-I", "-S", "-c", bare))
    assert status == 1
    missing = about(findings, "are not installed")
    assert missing.status == "problem" and missing.check == "packages" and "setup" in missing.fix
    assert set(re.findall(r"\w+", missing.what)) >= {"torch", "dvc", "prefect", "mlflow"}
    assert not [finding for finding in findings if "check failed" in finding.what]


def test_an_environment_without_torch(project: Path, tmp_path: Path):
    packages = tmp_path / "venv/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("torch"):
            (packages / entry.name).symlink_to(entry)
    base = Path(sys.executable).resolve()
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python").symlink_to(base)
    status, findings = diagnose(project, live=True, python=(str(tmp_path / "venv/bin/python"), "-m"))
    assert status == 1
    assert about(findings, "locked packages are not installed: torch").status == "problem"
    assert about(findings, "torch is not installed").fix == "make -B setup"
    assert "No module named 'torch'" in about(findings, "importing torch: the process ended with exit status 1").what
    assert about(findings, "`python` on PATH is").status == "warning"


def test_a_torch_that_crashes(project: Path, tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    status, findings = diagnose(project, live=True, PYTHONPATH=str(tmp_path))
    assert status == 1
    assert about(findings, "importing torch: the process was killed by SIGSEGV").status == "problem"


def fake_package(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


@pytest.mark.case(41)
def test_versions_that_do_not_work_together(project: Path, tmp_path: Path, saw: Callable[[str], None]):
    """fastapi 0.155, sqlalchemy 2.1, numpy 1.0 and pynvml beside the locked packages; the doctor"""
    for name, version in {"fastapi": "0.155.0", "sqlalchemy": "2.1.0", "numpy": "1.0.0", "pynvml": "11.0.0"}.items():
        fake_package(tmp_path, name, version)
    status, findings = diagnose(project, PYTHONPATH=str(tmp_path))
    assert status == 1
    fastapi, sqlalchemy = about(findings, "fastapi 0.155.0 does not work"), about(findings, "sqlalchemy 2.1.0 does not")
    saw(f"{fastapi.what}: {fastapi.why}")
    assert "prefect 3.8" in fastapi.what and fastapi.status == sqlalchemy.status == "problem"
    assert "inserts no runs" in sqlalchemy.why
    assert fastapi.fix.startswith("unset PYTHONPATH") and str(tmp_path) in fastapi.fix
    others = about(findings, "3 packages are not in the locked version")
    assert others.status == "warning" and re.search(r"numpy 1\.0\.0 instead of [2-9]", others.what)
    pynvml = about(findings, "the package pynvml is installed")
    assert pynvml.status == "warning" and "pip uninstall -y pynvml" in pynvml.fix


@pytest.mark.parametrize("small_disk", [32], indirect=True)
@pytest.mark.case(33)
def test_a_full_disk_and_a_read_only_one(small_disk: Path, saw: Callable[[str], None]):
    """the whole project on a disk that is full, then read-only; the doctor"""
    project = copy_to(small_disk / "project")
    with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    status, findings = diagnose(project)
    assert status == 1
    full = about(findings, "0.0 GiB free for the project")
    assert full.status == "problem" and full.check == "disk"
    unwritable = about(findings, "data cannot be written: No space left on device")
    saw(unwritable.what)
    assert unwritable.status == "problem"
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    status, findings = diagnose(project)
    assert status == 1
    read_only = about(findings, "mlruns cannot be written: Read-only file system")
    saw(f"{read_only.what}; {read_only.fix}")
    assert "chown" in read_only.fix


@pytest.mark.parametrize(
    ("file", "content", "what", "fix"),
    [
        (".dvc/tmp/rwlock", '{"write": {"/pro', ".dvc/tmp/rwlock is damaged", "rm .dvc/tmp/rwlock"),
        (
            "dvc.lock",
            "<<<<<<< HEAD\nschema: '2.0'\n=======\nschema: '2.0'\n>>>>>>> other\n",
            "dvc.lock has merge conflict markers (<<<<<<< HEAD)",
            "rm dvc.lock && dvc repro && git add dvc.lock",
        ),
        ("mlruns/mlflow.db", "no database at all " * 99, "mlflow.db is damaged: file is not a database", "mv mlruns/"),
    ],
    ids=["rwlock", "dvc.lock", "mlflow.db"],
)
def test_damaged_files(project: Path, file: str, content: str, what: str, fix: str):
    (project / file).write_text(content)
    try:
        status, findings = diagnose(project)
    finally:
        (project / file).unlink()
    assert status == 1
    assert about(findings, what).status == "problem"
    assert about(findings, what).fix.startswith(fix)


def check_alone(project: Path, name: str) -> list[Finding]:
    code = f"import json; from flows import doctor; print(json.dumps([vars(f) for f in doctor.guarded(doctor.{name})]))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment(), capture_output=True, text=True, check=True
    )
    return [Finding(**entry) for entry in json.loads(done.stdout)]


def test_a_store_with_flipped_bytes_or_another_schema(project: Path):
    path = project / "mlruns/mlflow.db"
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE alembic_version (version_num TEXT)")
        store.execute("INSERT INTO alembic_version VALUES ('df50e92ffc5e')")  # of MLflow 1.x
        store.execute("CREATE TABLE runs (text TEXT)")
        store.executemany("INSERT INTO runs VALUES (?)", [("x" * 1000,)] * 100)
    store.close()
    try:
        older = about(check_alone(project, "history"), "mlflow.db has schema df50e92ffc5e, the installed MLflow wants")
        assert older.status == "problem" and "mlflow db upgrade sqlite:///mlruns/mlflow.db" in older.fix
        content = bytearray(path.read_bytes())
        content[8192:12288] = bytes(4096)
        path.write_bytes(content)
        assert about(check_alone(project, "history"), "mlruns/mlflow.db is damaged").status == "problem"
        path.unlink()
        (project / "mlruns/0").mkdir()
        assert "mv mlruns/0 " in about(check_alone(project, "history"), "mlruns holds the folders 0").fix
    finally:
        path.unlink(missing_ok=True)
        (project / "mlruns/0").rmdir()


@pytest.mark.case(44)
def test_who_holds_dvc(project: Path, saw: Callable[[str], None]):
    """DVC's lock names a process that lives, and one whose number is now a stranger's; the doctor"""
    rwlock = project / ".dvc/tmp/rwlock"
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        entries = {"write": {"/a": {"pid": os.getpid(), "cmd": "dvc repro"}}, "read": {}}
        rwlock.write_text(json.dumps(entries))
        held = about(check_alone(project, "dvc"), f"process {os.getpid()} (")
        saw(f"{held.what}; {held.fix}".replace(str(os.getpid()), "4711"))
        assert held.status == "warning" and held.fix == f"wait, or: kill -INT {os.getpid()}"

        entries = {"write": {}, "read": {"/a": [{"pid": stranger.pid, "cmd": "dvc repro"}]}}
        rwlock.write_text(json.dumps(entries))
        reused = about(check_alone(project, "dvc"), f"names process {stranger.pid}, which is now sleep 600 and no DVC")
        saw(f"{reused.what}; run: {reused.fix}".replace(str(stranger.pid), "4712"))
        assert reused.status == "problem" and reused.fix == "rm .dvc/tmp/rwlock"
    finally:
        stranger.kill()
        stranger.wait()
    assert [finding.status for finding in check_alone(project, "dvc")] == ["ok"], "DVC drops the dead by itself"
    rwlock.unlink()


def test_what_is_left_over(project: Path):
    journal, ui_json = project / ".tandem/journals/20200101T000000-1-abc", project / ".tandem/ui.json"
    journal.mkdir(parents=True)
    (journal / "writer").write_text("999999999")
    ui_json.write_text(json.dumps({"pid": 999999999, "prefect": "", "mlflow": ""}))
    findings = check_alone(project, "leftovers")
    assert about(findings, "journals that wait to be sent: 1").fix == "python -m stages.records.uploader sync"
    assert about(findings, ".tandem/ui.json is left").status == "warning"
    ui_json.write_text(json.dumps({"pid": os.getpid(), "prefect": "", "mlflow": ""}))
    refused = about(check_alone(project, "leftovers"), "its process is now")
    assert refused.status == "problem" and refused.fix == "rm .tandem/ui.json", "make ui would refuse to start"
    ui_json.unlink()
    folder = project / ".tandem/checkpoints/tiny"
    folder.mkdir(parents=True)
    for name in ("cpu-1.pt", "cpu-1.previous.pt", "cpu-2.pt", "cpu-2.previous.pt", "cpu-2.result", "cpu-3.previous.pt"):
        (folder / name).write_bytes(bytes(2**19))
    assert checkpoints_of(project) == (
        "checkpoints of trainings: 2 that were interrupted (dvc repro goes on from them), "
        "1 that have ended (kept until DVC has their results); 2.5 MiB"
    )
    training = subprocess.Popen([sys.executable, "-", "flows.stage"], stdin=subprocess.PIPE)
    try:
        (folder / "cpu-1.lock").write_text(str(training.pid))
        assert "1 that are training, 1 that were interrupted" in checkpoints_of(project)
    finally:
        training.communicate()


def checkpoints_of(project: Path) -> str:
    return next(finding.what for finding in check_alone(project, "leftovers") if "checkpoints" in finding.what)


def test_servers_that_do_not_answer_and_no_password_is_shown(project: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        secret = f"http://me:top@secret@{address}"
        extra = {"MLFLOW_TRACKING_URI": secret, "PREFECT_API_URL": f"{secret}/api"}
        done = run(project, "--no-live", **extra)
    assert done.returncode == 1 and "secret" not in done.stdout + done.stderr
    assert f"warning  servers    MLFLOW_TRACKING_URI http://{address} does not answer: " in done.stdout
    assert f"problem  servers    PREFECT_API_URL http://{address}/api does not answer: " in done.stdout


def test_a_busy_port_names_who_has_it(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {"MLflow": port})
        monkeypatch.setattr(doctor, "ui_process", lambda: "")
        found = about(doctor.guarded(doctor.ports), f"{port}, which MLflow takes in make ui, is in use by process ")
    assert found.status == "warning" and f"process {os.getpid()} ({process_name(os.getpid())})" in found.what
    assert "--mlflow-port" in found.fix and "next free port" in found.why


def test_a_check_that_fails_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    def fails():
        yield Finding("first", "ok", "this much was found")
        raise OSError("cannot reach http://me:secret@there")

    def hangs():
        time.sleep(1)
        yield Finding("never", "ok", "")

    assert [finding.status for finding in doctor.guarded(fails)] == ["ok", "problem"]
    assert doctor.guarded(fails)[1].what == "this check failed: OSError: cannot reach http://there"
    monkeypatch.setattr(doctor, "CHECK_SECONDS", 0.1)
    assert [finding.what for finding in doctor.guarded(hangs)] == ["no answer within 0.1 s"]


def test_an_old_python_is_told_so_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (99, 0))
    [old] = [finding for check in doctor.checks(True) for finding in doctor.guarded(check)]
    assert old.status == "problem" and old.fix == "make PYTHON=/path/to/python3.11 -B setup"


CARD = {"name": "A", "uuid": "GPU-aaaa-1", "total_mib": 6000, "free_mib": 5900, "mig": False, "holders": []}
OTHER = {**CARD, "name": "B", "uuid": "GPU-bbbb-2"}
FACTS = {
    "torch": "2.15.0",
    "torch_cuda": "13.2",
    "gpu": None,
    "obstacle": "",
    "cards": [CARD],
    "no_nvml": "",
    "on_bus": 1,
}
USABLE = {"gpu": {"count": 1, "name": "A", "driver": "580.1"}}
NO_DRIVER = {"obstacle": "no NVIDIA driver is installed here (libcuda.so.1 not found)", "cards": None}
TOO_OLD = "the driver supports CUDA 12.4 and torch is built for CUDA 13.2; update the driver"


@pytest.mark.parametrize(
    ("facts", "environ", "status", "words"),
    [
        (USABLE, {}, "ok", "1 usable, the first is A; driver 580.1, CUDA 13.2, torch 2.15.0"),
        ({**NO_DRIVER, "on_bus": 0}, {}, "absent", "no NVIDIA driver"),
        ({**NO_DRIVER, "on_bus": 0}, {"NVIDIA_VISIBLE_DEVICES": "void"}, "absent", "NVIDIA_VISIBLE_DEVICES='void'"),
        (NO_DRIVER, {}, "warning", "but 1 NVIDIA GPU on the PCI bus"),
        ({"torch_cuda": None, "obstacle": "this torch is built for the CPU only"}, {}, "problem", "for the CPU only"),
        ({"obstacle": "hides"}, {"CUDA_VISIBLE_DEVICES": ""}, "warning", "CUDA_VISIBLE_DEVICES='' hides every GPU"),
        ({"obstacle": TOO_OLD}, {}, "problem", "supports CUDA 12.4 and torch is built for CUDA 13.2"),
        ({"obstacle": "the driver shows no GPU (cuInit 803)"}, {}, "problem", "cuInit 803"),
        ({"obstacle": "the driver shows no GPU (cuInit 100)", "cards": [], "on_bus": 0}, {}, "absent", "cuInit 100"),
        ({**USABLE, "cards": None, "no_nvml": "not found"}, {}, "warning", "NVML cannot be asked (not found)"),
        (USABLE, {"CUDA_VISIBLE_DEVICES": "0,7"}, "warning", "'7' names no GPU of this machine (0 is GPU-aaaa-1)"),
        ({**USABLE, "cards": [CARD, OTHER]}, {}, "warning", "CUDA_DEVICE_ORDER"),
        (
            {**USABLE, "cards": [CARD, OTHER]},
            {"CUDA_VISIBLE_DEVICES": "0"},
            "ok",
            "B GPU-bbbb-2, 5900 of 6000 MiB free, hidden",
        ),
        ({**USABLE, "cards": [{**CARD, "mig": True}]}, {}, "warning", "MIG mode is on"),
        (
            {**USABLE, "cards": [{**CARD, "holders": ["process 7 (python)"]}]},
            {},
            "warning",
            "in use by process 7 (python)",
        ),
        ({**USABLE, "cards": [{**CARD, "free_mib": 900}]}, {}, "warning", "in use by processes outside this container"),
        (
            {"torch": None, "torch_cuda": None, "obstacle": "x"},
            {},
            "problem",
            "torch is not installed",
        ),
    ],
)  # fmt: skip
@pytest.mark.case(15, 16, 17)
def test_what_the_driver_says(
    facts: dict[str, Any], environ: dict[str, str], status: str, words: str, saw: Callable[[str], None]
):
    """what drivers, torch and NVML say on other machines, handed to the doctor"""
    findings = list(driver_findings({**FACTS, **facts}, environ))
    [found] = [finding for finding in findings if words in finding.what]
    if status != "ok":
        saw(found.what)
    assert found.status == status
    assert status == "ok" or (found.why and found.fix)


@pytest.mark.case(16, 19)
def test_the_visible_devices(saw: Callable[[str], None]):
    """CUDA_VISIBLE_DEVICES by number, by UUID, in another order, with a part (MIG), with a number that is not there"""
    saw("the UUIDs of the GPUs that it leaves, and what in it names none")
    cards = [CARD, OTHER]
    assert visible(None, cards) == (["GPU-aaaa-1", "GPU-bbbb-2"], "")
    assert visible("1,0", cards) == (["GPU-bbbb-2", "GPU-aaaa-1"], "")
    assert visible("GPU-bbbb", cards) == (["GPU-bbbb-2"], "")
    assert visible("1,5,0", cards) == (["GPU-bbbb-2"], "5")
    assert visible("MIG-c", cards) == (["MIG-c"], "")
    assert visible("-1", cards) == visible("", cards) == ([], "")


@pytest.mark.case(15)
def test_which_builds_run_on_which_card(saw: Callable[[str], None]):
    """builds of torch for other cards than the one that is there"""
    assert runs_on((9, 0), ["sm_80", "sm_90"])
    assert runs_on((8, 9), ["sm_80"]), "the same major version"
    assert not runs_on((8, 0), ["sm_86"]), "a newer minor version"
    assert not runs_on((6, 1), ["sm_75", "sm_80", "sm_120"])
    assert runs_on((12, 0), ["sm_80", "compute_80"]), "PTX is compiled for newer cards"
    assert not runs_on((10, 0), ["sm_90a", "compute_90a"])
    assert runs_on((10, 0), ["sm_100"])
    [found] = judge("cuda:0", {"capability": (6, 1), "arch_list": ["sm_75"]})
    saw(found.what)
    assert found.status == "problem" and "(6, 1); this torch is built for sm_75" in found.what


MEASURED = {
    "capability": (9, 0), "arch_list": ["sm_90"], "cudnn": 92600, "matmul_error": 3e-7, "gru_repeats": True,
    "pinned": 50.0, "pageable": 8.0, "launch_us": 5.0, "fp32": 50.0, "tf32": 300.0, "bf16": 600.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "status", "words"),
    [
        ({}, "ok", "right numbers; a GRU run twice gives the same bits (cuDNN 92600)"),
        ({}, "ok", "pinned 50.0 GB/s, pageable 8.0 GB/s, fp32 50.0 TFLOP/s"),
        ({"pinned": 2.0}, "warning", "too low: pinned (3.0 expected)"),
        ({"launch_us": 90.0}, "warning", "too low: launch (at most 20 us expected)"),
        ({"tf32": 10.0}, "warning", "too low: tf32 (40.0 expected)"),
        ({"matmul_error": float("inf")}, "problem", "a product of matrices is off by inf"),
        ({"gru_repeats": False}, "problem", "a GRU run twice differs"),
    ],
)
@pytest.mark.case(18)
def test_the_judgement_of_a_gpu(changed: dict[str, Any], status: str, words: str, saw: Callable[[str], None]):
    """measurements of a GPU that is slower than it should be, as with another process on it, or computes otherwise"""
    [found] = [finding for finding in judge("cuda:0", {**MEASURED, **changed}) if words in finding.what]
    if status != "ok":
        saw(found.what)
    assert found.status == status


@pytest.mark.parametrize(
    ("kernel", "processor", "status"),
    [("Linux", "x86_64", "ok"), ("Linux", "aarch64", "warning"), ("Darwin", "arm64", "problem")],
)
def test_where_tandem_is_supported(kernel: str, processor: str, status: str):
    found = doctor.support(kernel, processor)
    assert found.status == status and found.what.startswith(f"{kernel} on {processor}")
    assert bool(found.fix) == (status != "ok")
