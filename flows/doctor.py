"""Report the problems of this machine and project, with the commands that fix them. Nothing is changed.

    tandem doctor
    tandem doctor --no-live      # without training steps, in a few seconds

Exit status: 0 no problem (warnings do not count), 1 a problem.
"""

# To add a check, write a function that yields findings and add it to CHECKS.

import errno
import json
import os
import platform
import pwd
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from tandem.terminal.command import DONE, FAILED, CommandError, Result, sentence_of

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    from flows import damaged_files
    from tandem.devices import cuda, nvml
    from tandem.devices.hardware import driver_text, free_memory_bytes, torch_build
    from tandem.files import FULL, ROOT, relative
    from tandem.params.loading import load_params
    from tandem.runs import provenance
    from tandem.tracking import store
except ImportError as error:
    missing = f"{error}; the locked packages are not installed for {sys.executable}; run: make -B setup"
    raise CommandError(missing) from None

Finding = namedtuple("Finding", "status what why fix")  # status: ok, warning or problem
LIFT_LIMIT = "ulimit -v unlimited"
REINSTALL = "make -B setup"  # without -B, make treats a modified environment as up to date


def python() -> Iterator[Finding]:
    is_venv = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()  # flows/__init__.py checks the version
    what = f"Python {sys.version.split()[0]} in {sys.prefix}"
    yield Finding("ok" if is_venv else "warning", what, "the locked packages are in .venv", "make setup && make doctor")


def packages() -> Iterator[Finding]:
    """Compare requirements.txt and requirements.own.txt with the installed packages."""
    locked = [Requirement(line.rstrip("\\ \n")) for line in (ROOT / "requirements.txt").open() if "==" in line]
    for requirement in map(Requirement, provenance.own_requirements()):
        requirement.name = canonicalize_name(requirement.name)
        locked.append(requirement)
    locked = [package for package in locked if not package.marker or package.marker.evaluate()]
    torch = find_spec("torch")
    if torch and torch.origin and not Path(torch.origin).is_relative_to(sys.prefix):  # make setup TORCH=installed
        locked = [package for package in locked if not re.match(r"torch$|triton|cuda-|nvidia-(?!ml-py)", package.name)]
    installed = reversed(list(distributions()))  # if the path has two versions, Python imports the first
    versions = {package.name.lower().replace("_", "-").replace(".", "-"): package.version for package in installed}
    wrong = [f"{entry.name} {versions.get(entry.name, 'missing')} (locked: {entry.specifier})" for entry in locked
             if not entry.specifier.contains(versions.get(entry.name, "missing"), prereleases=True)]  # fmt: skip
    # With another fastapi, sqlalchemy or whenever, Prefect's server lists or schedules no runs and reports no error.
    is_fatal = any(words in "; ".join(wrong) for words in ("missing", "fastapi ", "sqlalchemy ", "whenever "))
    status = "problem" if is_fatal else "warning" if wrong else "ok"
    what = f"{len(wrong)} of {len(locked)} locked packages differ; {', '.join(wrong[:8])}".removesuffix("; ")
    why = "stages or Prefect may fail; tests and published results use the locked versions"
    yield Finding(status, what, why, f"{REINSTALL} (and unset PYTHONPATH)")


def gpu() -> Iterator[Finding]:
    """Compare torch's build with the driver. NVML also lists the GPUs that CUDA_VISIBLE_DEVICES hides."""
    torch, torch_cuda = torch_build()
    usable, obstacle = cuda.detect_gpu(torch_cuda)
    num_visible = usable["count"] if usable else 0
    install = "install the current driver (nvidia.com/drivers), reboot"
    if "microsoft" in platform.release().lower():  # a Linux driver would replace the libcuda that WSL gets from Windows
        install = "install the current driver in Windows, and none in WSL; then: wsl --shutdown"
    install += "; in a container: docker run --gpus all"
    own_torch = "make -B setup TORCH=installed PYTHON=/path/to/python3 (of an environment with such a torch)"
    fixes = {
        "hides": "unset CUDA_VISIBLE_DEVICES", "CPU only": REINSTALL, "cuInit": "nvidia-smi; sudo reboot",
        "no kernels": own_torch,
    }  # fmt: skip
    fix = next((fixes[words] for words in fixes if words in obstacle), install)
    is_fine = usable or "no NVIDIA" in obstacle or "cuInit 100" in obstacle  # 100: a driver without a GPU
    status = "ok" if is_fine else "warning" if "hides" in obstacle else "problem"
    what = f"{num_visible} GPUs, {driver_text(usable)}" if usable else f"{obstacle}; trainings run on the CPU"
    yield Finding(status, f"torch {torch} for CUDA {torch_cuda}: {what}", "trainings do not use a GPU", fix)

    setting, cards = os.environ.get("CUDA_VISIBLE_DEVICES"), {}
    try:
        pynvml = nvml.start()
        for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
            name = f"{pynvml.nvmlDeviceGetName(handle)} {pynvml.nvmlDeviceGetUUID(handle)}"
            cards[name] = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except Exception as error:
        why = "memory per process and other users are unknown (normal with MIG and on WSL); trainings run"
        yield Finding("warning" if usable else "ok", f"NVML: {error}", why, "nvidia-smi")
        return
    if usable or "hides" in obstacle:
        is_meant = num_visible == (len(cards) if setting is None else len(setting.split(",")))
        shown = f"{num_visible} of {len(cards)} GPUs are visible, CUDA_VISIBLE_DEVICES is {setting!r}"
        why = "CUDA ignores an entry that names no GPU, and all after it; it shows one instance of a GPU with MIG"
        fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs by UUID"
        yield Finding("ok" if is_meant else "warning", f"{shown}: {'; '.join(cards)}", why, fix)
    for card, pids in cards.items():
        why = "times measured now are not comparable, and the GPU's memory may be too small"
        yield Finding("warning" if pids else "ok", f"{card}: other processes {pids or 'none'}", why, "nvidia-smi")


def account() -> Iterator[Finding]:
    """Check what this user's id and the limits of the shell prevent."""
    uid, limit = os.getuid(), resource.getrlimit(resource.RLIMIT_AS)[0]
    try:
        pwd.getpwuid(uid)
        status, name = "ok", "has a name"
    except KeyError:
        status, name = "warning", "has no name on this machine"
    why = "`tandem` takes the number; DVC's own commands and git need a name"
    yield Finding(status, f"the user id {uid} {name}", why, f"export USER={uid}")
    if limit != resource.RLIM_INFINITY:
        what = f"the shell limits a process to {limit / 2**30:.1f} GiB of addresses (ulimit -v)"
        yield Finding("problem", what, "torch maps far more than it uses, and fails", LIFT_LIMIT)


def space() -> Iterator[Finding]:
    """Check free memory, and free disk and write permission wherever the project writes."""
    free = free_memory_bytes() / 2**30
    why = "the kernel kills a training if memory runs out; torch needs 0.5 GiB"
    yield Finding("ok" if free > 2 else "warning", f"{free:.1f} GiB of memory are free", why, "top -o %MEM")
    why, disks, read_only = "a checkpoint or a result cannot be saved", defaultdict(list), set[int]()
    cache, temporary = damaged_files.cache_folder(), Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    for folder in (*(ROOT / name for name in (".", "results", "mlruns", ".tandem")), cache, temporary):
        if not folder.is_dir():
            continue
        disk = folder.stat().st_dev
        disks[disk].append(folder)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"tandem")
        except OSError as error:
            fix = f'sudo chown -R "$USER" {quote(str(folder))}; findmnt -T {quote(str(folder))}'
            if error.errno in FULL:
                fix = room_advice(folder)
            elif error.errno == errno.EROFS:
                if disk in read_only:  # one remedy for all its folders
                    continue
                read_only.add(disk)
                remount = f'sudo mount -o remount,rw "$(findmnt -no TARGET -T {quote(str(folder))})"'
                fix = f"clone the project to a disk that this user may write; or: {remount}"
            elif folder == cache and not cache.is_relative_to(ROOT):
                fix = share_advice(cache)
            yield Finding("problem", f"{folder}: cannot be written: {error.strerror}", why, fix)
    folders_of_cache = (path for path in cache_folders(cache) if path.stat().st_dev not in read_only)
    if closed := next((path for path in folders_of_cache if not os.access(path, os.W_OK | os.X_OK)), None):
        what = f"{closed} belongs to {owner(closed)} and cannot be written"
        yield Finding("problem", what, "DVC cannot store results there", share_advice(cache))
    for folders in disks.values():
        free = shutil.disk_usage(folders[0]).free / 2**30
        status = "problem" if free < 1 else "warning" if free < 5 else "ok"
        names = ", ".join("the project" if folder == ROOT else relative(folder) for folder in folders)
        yield Finding(status, f"{free:.1f} GiB are free on the disk of {names}", why, room_advice(folders[0]))


def cache_folders(cache: Path) -> Iterator[Path]:
    """The folders in which DVC stores the objects and its run-cache."""
    for pattern in ("files", "files/md5", "files/md5/??", "runs", "runs/??"):
        yield from filter(Path.is_dir, cache.glob(pattern))


def owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"the user id {path.stat().st_uid}"


def share_advice(cache: Path) -> str:
    return (
        f"sudo find {quote(str(cache))} -type d -exec chgrp GROUP {{}} + -exec chmod g+rwxs {{}} + "
        "(GROUP: one to which all users belong), and in each clone: dvc config --local cache.shared group"
    )


def room_advice(folder: Path) -> str:
    top = quote(str(ROOT if folder.is_relative_to(ROOT) else folder))
    return f"du -xh --max-depth=2 {top} | sort -h | tail (docs/dvc.md, Make room, says what can be deleted)"


def dvc() -> Iterator[Finding]:
    for what, fix in damaged_files.unreadable_files() or damaged_files.damaged_objects():
        yield Finding("problem", what, "DVC stops, or restores a file that is not the recorded one", fix)


def git() -> Iterator[Finding]:
    why = "a training records no commit and can never be verified"
    if reason := provenance.refusal():
        what, _, fix = reason.partition("; run: ")
        yield Finding("problem", what, why, fix)
    elif not shutil.which("git"):
        yield Finding("problem", "git is not installed", f"DVC needs it; {why}", "install git")
    elif provenance.git(ROOT, "rev-parse", "--git-dir") is None:
        what = f"{ROOT} is not in a git repository, as after a download without git"
        yield Finding("problem", what, f"DVC, `tandem repro` and others fail; {why}", "git init; or clone the project")


def params() -> Iterator[Finding]:
    try:
        load_params()
    except (OSError, ValueError) as error:
        yield Finding("problem", sentence_of(error), "other commands end with this sentence", "git diff params.yaml")


def mlflow() -> Iterator[Finding]:
    if path := store.database_file(store.tracking_uri()):
        condition = store.inspect(path, thorough=True)
        status = {"absent": "ok", "whole": "ok", "locked": "warning"}.get(condition.kind, "problem")
        yield Finding(status, condition.message, "MLflow cannot record runs in it", condition.fix)


def live() -> Iterator[Finding]:
    """Take a training step of a small GRU per device, each in its own process: a driver can crash or hang."""
    usable, _ = cuda.detect_gpu(torch_build()[1])
    cpu: dict[str, Any] = {}
    for device in ("cpu", *(f"cuda:{number}" for number in range(usable["count"] if usable else 0))):
        command = [sys.executable, "-m", "tandem.diagnosis.gru_step", device]
        try:
            process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            reason = str(error.stderr or "").strip().rpartition("\n")[2] or str(error)
            is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
            fix = LIFT_LIMIT if is_limited else f"nvidia-smi; {REINSTALL}" if cpu else REINSTALL
            yield Finding("problem", f"{device}: {reason}", "trainings on it fail", fix)
            continue
        result = json.loads(process.stdout.splitlines()[-1])  # a sitecustomize of the machine may print
        cpu = cpu or result
        ms, gain, location = 1e3 * result["seconds"], cpu["seconds"] / result["seconds"], ", ".join(result["devices"])
        is_right = location == device and abs(result["norm"] / cpu["norm"] - 1) < 1e-2  # a GPU may use TF32
        speed = "" if result is cpu else f", {gain:.1f} times the CPU's speed"
        what = f"{device}: a GRU's step takes {ms:.1f} ms{speed}; its tensors are on {location}"
        why = "gradients that differ from the CPU's are wrong; another process or a power limit slows a GPU"
        status = "problem" if not is_right else "warning" if gain < 1 else "ok"
        fix = "nvidia-smi -q -d PERFORMANCE,POWER,PIDS"
        yield Finding(status, f"{what}; peak memory {result['peak_mib']} MiB", why, fix)


CHECKS = (python, packages, account, gpu, space, git, params, dvc, mlflow, live)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--no-live", action="store_true", help="skip the training steps")


def main(options: Namespace) -> Result:
    report = list[dict[str, str]]()
    for check in CHECKS[:-1] if options.no_live else CHECKS:
        try:
            findings = list(check()) or [Finding("ok", "no problem found", "", "")]
        except Exception as error:  # what a check reads may be missing or damaged in any way
            earlier = [finding["check"] for finding in report if finding["status"] == "problem"]
            fix = f"first what {' and '.join(dict.fromkeys(earlier))} says above" if earlier else REINSTALL
            findings = [Finding("problem", f"{type(error).__name__}: {error}", "this check failed", fix)]
        for finding in findings:
            report.append({"check": check.__name__, **finding._asdict()})
            advice = "" if finding.status == "ok" else f"\n  why: {finding.why}\n  fix: {finding.fix}"
            print(f"{finding.status:<8} {check.__name__:<8} {finding.what}{advice}", flush=True)
    is_healthy = all(finding["status"] != "problem" for finding in report)
    return Result("", {"healthy": is_healthy, "findings": report}, DONE if is_healthy else FAILED)
