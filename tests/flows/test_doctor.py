"""`make doctor` in environments that are really broken: what it names, the fix, the exit status. What drivers and NVML
say of other GPUs is given as literal facts; on a GPU, or an emulated one, the same checks ask the real thing.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flows import doctor
from tandem.devices import cuda
from tests import forked
from tests.projects import (
    ROOT,
    dvc,
    environment,
    make_project,
    stage,
)
from tests.projects import run as run_in


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("doctor") / "project")


def copy_to(folder: Path) -> Path:
    make_project(folder)
    shutil.copy(ROOT / "requirements.txt", folder)
    return folder


def run(project: Path, *arguments: str, python: tuple[str, ...] = (sys.executable, "-m"), **extra: str):
    command, variables = [*python, "tandem.cli", "doctor", *arguments], environment(**extra)
    if python == (sys.executable, "-m") and "PYTHONPATH" not in extra:  # otherwise what a forked process would not see
        variables = forked.handing_over(variables)
    return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=600)


def diagnose(project: Path, *arguments: str, **extra: Any) -> list[dict[str, str]]:
    """The findings that are not ok."""
    done = run(project, "--json", *(arguments or ["--no-live"]), **extra)
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads(done.stdout)
    is_healthy = all(finding["status"] != "problem" for finding in report["findings"])
    assert report["healthy"] == is_healthy == (done.returncode == 0)
    assert all(finding["what"] for finding in report["findings"])
    checks = doctor.CHECKS if arguments else doctor.CHECKS[:-1]
    assert {finding["check"] for finding in report["findings"]} == {check.__name__ for check in checks}
    remarks = [finding for finding in report["findings"] if finding["status"] != "ok"]
    assert all(finding["why"] and finding["fix"] for finding in remarks)
    return remarks


def about(findings: list[dict[str, str]], words: str) -> dict[str, str]:
    [finding] = [finding for finding in findings if words in finding["what"]]
    return finding


def test_the_report_contains_every_check_and_a_step_on_the_cpu(project: Path) -> None:
    done = run(project)
    lines = re.findall(r"^(ok|warning|problem) +(\w+) +(.+)$", done.stdout, re.MULTILINE)
    assert list(dict.fromkeys(check for _, check, _ in lines)) == [check.__name__ for check in doctor.CHECKS]
    assert done.returncode == int(any(status == "problem" for status, _, _ in lines))
    [cpu] = [what for _, check, what in lines if check == "live" and what.startswith("cpu: ")]
    assert " ms; its tensors are on cpu; peak memory " in cpu


def test_a_python_without_packages_gets_one_sentence(project: Path) -> None:
    start = f"import sys; sys.path[:0] = [{str(project)!r}]; from tandem.cli import main; sys.exit(main(sys.argv[2:]))"
    done = run(project, python=(sys.executable, "-I", "-S", "-c", start))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.match(r"error: No module named .*; run: make -B setup$", done.stderr)


def test_a_torch_that_crashes_is_named(project: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.15.0'\n")
    finding = about(diagnose(project, "--json", PYTHONPATH=str(tmp_path)), "cpu: ")
    assert finding["status"] == "problem" and "SIGSEGV" in finding["what"]


@pytest.mark.case(41)
def test_versions_that_do_not_work_together_are_named(
    project: Path, tmp_path: Path, saw: Callable[[str], None]
) -> None:
    """fastapi 0.155 before the locked packages; the doctor"""
    (tmp_path / "fastapi-0.155.0.dist-info").mkdir()
    (tmp_path / "fastapi-0.155.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: fastapi\nVersion: 0.155.0\n"
    )
    finding = about(diagnose(project, PYTHONPATH=str(tmp_path)), "fastapi 0.155.0 (locked: ==")
    saw(f"{finding['what']}: {finding['why']}")
    assert finding["status"] == "problem" and "unset PYTHONPATH" in finding["fix"]


@pytest.mark.parametrize("small_disk", [48], indirect=True)
@pytest.mark.case(33)
def test_a_full_disk_and_a_read_only_one_are_named(small_disk: Path, saw: Callable[[str], None]) -> None:
    """the whole project on a disk that is full, then read-only; the doctor"""
    project = copy_to(small_disk / "project")
    with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    findings = diagnose(project)
    full = about(findings, f"{project}/mlruns: ")
    saw(full["what"].replace(f"{small_disk}/", ""))
    assert full["status"] == "problem" and "No space left on device" in full["what"]
    room = about(findings, "GiB are free on the disk of the project, ")
    assert room["fix"].startswith(f"du -xh --max-depth=2 {project} ")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    read_only = about(diagnose(project), "Read-only file system")
    saw(read_only["what"].replace(f"{small_disk}/", ""))
    assert read_only["what"].startswith(f"{project}: ")
    shown = run_in(project, sys.executable, "-m", "tandem.cli", "show", check=False)
    assert shown.returncode == 2 and "Read-only file system" in shown.stdout
    assert "DVC locks what it reads: let this user write there, or run this in a clone" in shown.stdout
    run_in(project, "sh", "-c", read_only["fix"].partition("; or: sudo ")[2])
    assert not [finding for finding in diagnose(project) if "Read-only" in finding["what"]]


UNTIL_THEN = "until then, a training records no commit and cannot be verified"


def test_a_cache_that_this_user_may_not_write_is_named_with_the_way_to_share_it(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "everybodys"
    (cache / "files/md5/ab").mkdir(parents=True)
    (cache / "files/md5/ab").chmod(0o555)
    dvc(project, "config", "--local", "cache.dir", str(cache))
    try:
        # Without its capabilities, root may write no more than others.
        without = (
            ("setpriv", "--bounding-set=-all", sys.executable, "-m") if os.getuid() == 0 else (sys.executable, "-m")
        )
        finding = about(diagnose(project, python=without), "files/md5/ab")
    finally:
        (project / ".dvc/config.local").unlink()
    assert finding["status"] == "problem" and "dvc config --local cache.shared group" in finding["fix"]


def test_a_clone_of_another_user_is_named_with_gits_command(project: Path, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may give a folder away")
    settings = {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig")}
    os.chown(project, 2001, -1)
    try:
        finding = about(diagnose(project, **settings), "git does not read this clone")
        warned = stage(project, "hardware", **settings).stdout
        assert warned.splitlines()[0] == f"warning: {finding['what']}; run: {finding['fix']}; " + UNTIL_THEN
        run_in(project, *shlex.split(finding["fix"]), **settings)
        assert not [remark for remark in diagnose(project, **settings) if remark["check"] == "git"]
        assert "warning" not in stage(project, "hardware", **settings).stdout
    finally:
        os.chown(project, 0, -1)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project with the lock files that git has, of a doctor who finds nothing wrong with git, params.yaml and DVC."""
    project = copy_to(tmp_path / "project")
    for folder in (project, project / "stages"):
        (folder / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    return project


def problems_of_the_project(project: Path) -> list[dict[str, str]]:
    return [finding for finding in diagnose(project) if finding["check"] in ("git", "params", "dvc")]


def test_a_folder_without_git_is_named_and_git_init_is_enough(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    of_git, of_dvc = problems_of_the_project(clone)
    assert of_git["what"].startswith(f"{clone} is not in a git repository") and of_git["fix"].startswith("git init;")
    assert of_dvc["what"].endswith(" is not a git repository") and of_dvc["fix"] == "first what git says above"
    for command in ("repro", "status", "show"):
        refused = run_in(clone, sys.executable, "-m", "tandem.cli", command, check=False)
        assert refused.returncode and "is not a git repository, as after a download; run: git init" in refused.stdout
    run_in(clone, "git", "init", "-q")
    for lock in clone.glob("**/dvc.lock"):  # what the first run writes is not a damaged one before it
        lock.unlink()
    assert problems_of_the_project(clone) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tiny:\n", "tiny\n", "not valid YAML"),
        ("devices:", "devces:", "the file lacks devices; add `devices: [auto]`"),
        ("epochs: 3", "epochs: 0", "tiny.train.epochs is 0; it must be "),
    ],
)
def test_a_mistake_in_params_has_the_sentence_of_other_commands(clone: Path, old: str, new: str, words: str) -> None:
    params = clone / "params.yaml"
    params.write_text(params.read_text().replace(old, new, 1))
    mistake, *others = problems_of_the_project(clone)
    assert mistake["check"] == "params" and mistake["what"].startswith("params.yaml") and words in mistake["what"]
    assert {other["fix"] for other in others} <= {"first what params says above"}


@pytest.mark.long
def test_a_user_id_without_a_name_and_a_limit_of_addresses_are_named(project: Path) -> None:
    nameless = ("unshare", "--user", "--map-user=2009", sys.executable, "-m")
    if subprocess.run([*nameless[:3], "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user, or this container, may not make user namespaces")
    without = {name: "" for name in ("LOGNAME", "USER", "LNAME", "USERNAME")}
    findings = diagnose(project, python=nameless, **without)
    assert about(findings, "the user id 2009 has no name")["fix"] == "export USER=2009"
    assert not [finding for finding in findings if "getpwuid" in finding["what"]]
    limited = ("bash", "-c", 'ulimit -v 4000000; exec "$0" -m "$@"', sys.executable)
    findings = diagnose(project, "--json", python=limited)
    assert about(findings, "(ulimit -v)")["fix"] == "ulimit -v unlimited"
    assert {finding["fix"] for finding in findings if finding["check"] == "live"} <= {"ulimit -v unlimited"}


def test_every_damaged_file_is_named_with_its_fix(project: Path) -> None:
    damaged = [
        (".dvc/tmp/rwlock", '{"write": {"/pro', ".dvc/tmp/rwlock (DVC's list", "rm .dvc/tmp/rwlock"),
        ("dvc.lock", "<<<<<<< HEAD\n", "dvc.lock has merge conflict markers", "rm dvc.lock && dvc repro"),
        ("mlruns/mlflow.db", "no database " * 99, "mlflow.db is damaged: file is not a database", "mv mlruns/"),
    ]
    for file, content, _, _ in damaged:
        (project / file).parent.mkdir(exist_ok=True)
        (project / file).write_text(content)
    try:
        findings = diagnose(project)
    finally:
        for file, _, _, _ in damaged:
            (project / file).unlink()
    for _, _, words, fix in damaged:
        finding = about(findings, words)
        assert finding["status"] == "problem" and finding["fix"].startswith(fix)


USABLE = {"count": 1, "name": "A", "driver": "580.1", "torch_cuda": "13.2"}
HIDDEN = "CUDA_VISIBLE_DEVICES='' hides every GPU"
TOO_OLD = "the driver supports CUDA 12.4 and torch is built for CUDA 13.2; update the driver"
NO_KERNELS = "this torch has no kernels for A"


def fake_nvml(error: str = "", pids: tuple[int, ...] = ()) -> SimpleNamespace:
    """The module pynvml of a machine with two GPUs and processes on the second; or one that fails."""

    def init() -> None:
        if error:
            raise RuntimeError(error)

    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "AB"[handle],
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=pid) for pid in pids if handle],
    )


OBSTACLES: dict[int, list[tuple[Any, ...]]] = {  # by fault of tests/catalogue.py
    14: [(None, "no NVIDIA driver is installed here", None, fake_nvml("not found"), "ok", "no NVIDIA driver", "")],
    15: [
        (None, TOO_OLD, None, fake_nvml(), "problem", TOO_OLD, "install the current driver"),
        (None, "this torch is built for the CPU only", None, fake_nvml(), "problem", "CPU only", ""),
        (None, "the driver shows no GPU (cuInit 803)", None, fake_nvml("mismatch"), "problem", "cuInit 803", ""),
        (None, NO_KERNELS, None, fake_nvml(), "problem", NO_KERNELS, "make -B setup TORCH=installed"),
    ],
    16: [
        (None, HIDDEN, "", fake_nvml(), "warning", "hides every GPU", ""),
        (USABLE, "", "1", fake_nvml(), "ok", "1 of 2 GPUs are visible, CUDA_VISIBLE_DEVICES is '1': A GPU-0; B", ""),
    ],
    17: [
        (USABLE, "", None, fake_nvml("not found"), "warning", "NVML: not found", ""),
        (USABLE | {"driver": None}, "", None, fake_nvml("not found"), "ok", "1 GPUs, driver (unknown)", ""),
    ],
    18: [(USABLE, "", "1", fake_nvml(pids=(7,)), "warning", "B GPU-1: other processes [7]", "")],
}


@pytest.mark.parametrize(
    ("gpu", "obstacle", "setting", "nvml", "status", "words", "fix"),
    [pytest.param(*row, marks=pytest.mark.case(case)) for case, rows in OBSTACLES.items() for row in rows],
)
def test_every_obstacle_of_a_gpu_is_reported_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, gpu: Any, obstacle: str, setting: str | None, nvml: Any, status: str,
    words: str, fix: str, saw: Callable[[str], None],
) -> None:  # fmt: skip
    """what drivers, torch and NVML say on other machines, handed to the doctor"""
    monkeypatch.setattr(cuda, "detect_gpu", lambda torch_cuda: (gpu, obstacle))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    findings = [*doctor.gpu()]
    [finding] = [finding for finding in findings if words in finding.what]
    assert not fix or [other for other in findings if other.status != "ok"] == [finding], "it is not a hidden one"
    if status != "ok":
        saw(finding.what)
    assert finding.status == status and (status == "ok" or (finding.why and finding.fix))
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("changed", "status"),
    [({}, "ok"), ({"seconds": 2.0}, "warning"), ({"norm": float("nan")}, "problem"), ({"devices": ["cpu"]}, "problem")],
)
@pytest.mark.case(18)
def test_a_gpu_that_is_slow_or_wrong_is_reported(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], status: str, saw: Callable[[str], None]
) -> None:
    """a training step on a GPU that is slower than the CPU, or whose gradients differ; the doctor"""
    facts = {"seconds": 1.0, "norm": 0.5, "devices": ["cuda:0"], "peak_mib": 20}
    measured = {"cpu": facts | {"devices": ["cpu"]}, "cuda:0": facts | changed}
    monkeypatch.setattr(cuda, "detect_gpu", lambda torch_cuda: (USABLE, ""))
    monkeypatch.setattr(
        doctor.subprocess, "run", lambda command, **_: SimpleNamespace(stdout=json.dumps(measured[command[-1]]))
    )
    _, finding = doctor.live()
    saw(finding.what)
    assert finding.status == status


@pytest.mark.gpu
def test_the_gpu_is_found_and_trains(project: Path) -> None:
    findings = json.loads(run(project, "--json").stdout)["findings"]
    [gpu] = [finding for finding in findings if finding["what"].startswith("cuda:0: ")]
    assert "its tensors are on cuda:0; peak memory " in gpu["what"] and gpu["status"] != "problem"
    assert [finding for finding in findings if "GPUs are visible, CUDA_VISIBLE_DEVICES is " in finding["what"]]


OWN_OF_TORCH = re.compile(r"triton|(cuda|nvidia)-(?!ml-py)")  # what only torch needs


def test_a_set_up_with_an_installed_torch_leaves_out_torch_and_what_only_torch_needs(tmp_path: Path):
    """The line of the Makefile that selects the packages."""
    words = ("make", "--dry-run", "--always-make", "setup", f"PYTHON={sys.executable}")
    for torch in ((), ("TORCH=installed",)):
        planned = run_in(ROOT, *words, *torch).stdout
        [line] = [line for line in planned.splitlines() if line.endswith("> .venv/requirements.txt")]
        selected = run_in(ROOT, "sh", "-c", line.partition(" > ")[0]).stdout
        assert ("--system-site-packages" in planned) == bool(torch)
        if not torch:
            assert selected == (ROOT / "requirements.txt").read_text()
            continue
        texts = ((ROOT / "requirements.txt").read_text(), selected)
        locked, left = (re.findall(r"^([\w.-]+)==", text, re.MULTILINE) for text in texts)
        assert set(locked) - set(left) == {name for name in locked if name == "torch" or OWN_OF_TORCH.match(name)}
        needed = {canonicalize_name(Requirement(dependency).name) for name in left for dependency in requires_of(name)}
        assert not {name for name in needed if OWN_OF_TORCH.match(name)}
        assert not [block for block in re.split(r"\n(?=\S)", selected.strip()) if "--hash=sha256:" not in block]


def requires_of(name: str) -> list[str]:
    try:
        return [dependency for dependency in requires(name) or () if "extra ==" not in dependency]
    except PackageNotFoundError:  # for another Python or system
        return []


PACKAGES = """
import sys
from pathlib import Path
from flows import doctor
sys.path[:] = [path for path in sys.path if not path.startswith(sys.prefix)] + {folders}
print([finding.status for finding in doctor.packages()])
"""


def test_the_libraries_of_a_torch_that_was_installed_before_are_not_missed(project: Path, tmp_path: Path):
    packages = Path(find_spec("torch").origin).parents[1]
    for folder in ("venv", "installed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "installed/torch").symlink_to(packages / "torch")
    for path in packages.glob("*.dist-info"):
        name = path.name.partition("-")[0].lower().replace("_", "-")
        if not OWN_OF_TORCH.match(name):
            (tmp_path / ("installed" if name == "torch" else "venv") / path.name).symlink_to(path)
    folders = [str(tmp_path / "venv"), str(tmp_path / "installed")]
    assert run_in(project, sys.executable, "-c", PACKAGES.format(folders=folders)).stdout.strip() == "['ok']"
