"""`python -m flows.doctor [--json] [--no-live]`, which is `make doctor`: what is wrong here, and how to mend it.

Goes in: the machine and the project as they are. Comes out: one line for everything that is well; for the rest what is
wrong, why it matters and the fix. Exit status 0 is healthy (warnings allowed), 1 means problems. It changes nothing.

It works in broken environments: each check runs by itself with a time limit, and what may crash (the GPU's driver,
torch) runs in a process of its own, stages/diagnosis/livecheck.py. Any Python 3.11 will do: without packages only the
free memory and the process that has a port stay unknown.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from stages.diagnosis.livecheck import REINSTALL, RESTART, Finding, process_name
from stages.urls import without_password

OLDEST_PYTHON = (3, 11)
if sys.version_info >= OLDEST_PYTHON:  # an older one cannot read these modules, and is told so
    from flows.cache import cache_dir, damaged
    from flows.dvc import ending
    from flows.lockfile import conflicts
    from flows.repro import UI_STATE, running_servers
    from flows.ui import PORTS, is_free
    from stages.files import HOME, MLRUNS, STATE, relative
    from stages.machine import identity

ROOT = Path(__file__).resolve().parents[1]
CHECK_SECONDS = 20  # a check that takes longer hangs: a dead network drive, a wedged driver
LIVE_SECONDS = 60
GIB = 2**30
LARGEST = "du -xh . | sort -h | tail"
# package -> first version that breaks Prefect 3.8, and how. pyproject.toml holds them back; pip does not.
BREAKS_PREFECT = {
    "fastapi": ((0, 151), "Prefect's server answers 422 or fails with a TypeError, so no run is listed"),
    "sqlalchemy": ((2, 1), "Prefect's scheduler inserts no runs, and says so in its log only"),
}
NAMED_FIRST = ("torch", "dvc", "prefect", "mlflow", "numpy", "pandas")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--no-live", action="store_true", help="skip what starts torch and measures")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    findings: list[Finding] = []
    for check in checks(not options.no_live):
        for finding in guarded(check):
            findings.append(finding)
            if not options.json:
                print(f"{finding.status:<8} {finding.check:<10} {finding.what}", flush=True)
            if not options.json and finding.status != "ok":
                print(f"{'':<8} {'why':<10} {finding.why}\n{'':<8} {'fix':<10} {finding.fix}", flush=True)
    counts = {status: sum(finding.status == status for finding in findings) for status in ("problem", "warning")}
    if options.json:
        print(json.dumps({"healthy": not counts["problem"], "findings": list(map(asdict, findings))}, indent=2))
    else:
        verdict = f"problems: {counts['problem']}" if counts["problem"] else "healthy"
        print(f"\n{verdict}, warnings: {counts['warning']}")
    return 1 if counts["problem"] else 0


def checks(with_live: bool) -> list[Callable[[], Iterator[Finding]]]:
    if sys.version_info < OLDEST_PYTHON:
        return [python]
    here = [python, system, packages, gpu, limits, memory, disk, writable, ports]
    offline = [*here, git, dvc, history, servers, leftovers]
    return [*offline, live] if with_live else offline


def guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What `check` finds. That it failed, or hangs, is a finding too."""
    found: list[Finding] = []

    def work() -> None:
        try:
            found.extend(check())
        except Exception as error:
            what = f"this check failed: {type(error).__name__}: {without_password(str(error))}"
            why, fix = "what it looks at may be damaged or missing", "see the message; git status shows altered files"
            found.append(Finding(check.__name__, "problem", what, why, fix))

    seconds = CHECK_SECONDS + (LIVE_SECONDS if check is live else 0)
    thread = threading.Thread(target=work, daemon=True)  # a daemon: the report ends even where a check does not
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        what, why = f"no answer within {seconds:g} s", "a network drive or a driver may hang"
        found.append(Finding(check.__name__, "warning", what, why, "dmesg | tail"))
    return found


def child(command: list[str], seconds: float) -> tuple[str, str]:
    """(what went wrong, stdout) of `command`, run at the project's root; nothing went wrong where it ended with 0."""
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return f"did not end within {seconds:g} s", (late.stdout or b"").decode(errors="replace")
    except OSError as error:
        return f"could not be started ({error.strerror})", ""
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    wrong = ": ".join([ending(done.returncode), *errors[-1:]]) if done.returncode else ""
    return wrong, done.stdout.decode(errors="replace")


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        why, fix = "the code needs Python 3.11; nothing else was checked", "make PYTHON=/path/to/python3.11 -B setup"
        yield Finding("python", "problem", f"this is Python {version}", why, fix)
        return
    venv = (ROOT / ".venv").resolve()
    if Path(sys.prefix).resolve() == venv:
        yield Finding("python", "ok", f"{version}, the project's .venv")
    elif venv.is_dir() and (broken := child([f"{venv}/bin/python", "-c", ""], 10)[0]):
        why, fix = "nothing runs; an update of the Python below it does that", "rm -rf .venv && make setup"
        yield Finding("python", "problem", f".venv/bin/python {broken}", why, fix)
    else:
        what = f"{version} in {sys.prefix}, not the project's .venv{'' if venv.is_dir() else ', which is not there'}"
        fix = ".venv/bin/python -m flows.doctor" if venv.is_dir() else "make setup"
        yield Finding("python", "warning", what, "the locked versions are installed in .venv, and nowhere else", fix)
    found = shutil.which("python")
    is_this = found is not None and os.path.realpath(os.path.dirname(found)) == os.path.realpath(f"{sys.prefix}/bin")
    if sys.prefix != sys.base_prefix and not is_this:
        why = "dvc.yaml says `python`: a plain `dvc repro` would run the stages with that one (`make repro` would not)"
        fix = f"source {sys.prefix}/bin/activate"
        yield Finding("python", "warning", f"`python` on PATH is {found or 'not found'}, not this one", why, fix)


def system() -> Iterator[Finding]:
    yield support(platform.system(), platform.machine())


def support(kernel: str, processor: str) -> Finding:
    what = f"{kernel} on {processor}"
    if (kernel, processor) == ("Linux", "x86_64"):
        return Finding("system", "ok", f"{what}, which Tandem is tested on")
    if kernel == "Linux":
        return Finding("system", "warning", what, "nobody has tried Tandem on such a processor", "make test")
    why = "locks, the end of processes and what is measured rest on Linux"
    return Finding("system", "problem", what, why, "use Linux: a machine, a container, or WSL 2 on Windows")


def packages() -> Iterator[Finding]:
    """Every line of requirements.txt that holds for this machine, against what is installed."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\\n]+))?", text, re.MULTILINE)
    wanted = {name: version for name, version, marker in locked if not marker or applies(marker)}
    versions = {name: installed(name) for name in wanted}
    missing = sorted((name for name in wanted if not versions[name][0]), key=lambda name: name not in NAMED_FIRST)
    differing, elsewhere = [], set()
    for name, (version, folder) in versions.items():
        if version and version.partition("+")[0] != wanted[name]:
            differing.append(f"{name} {version} instead of {wanted[name]}")
            elsewhere |= set() if folder.startswith(sys.prefix) else {folder}
    fix = f"unset PYTHONPATH (or what else puts {', '.join(elsewhere)} first)" if elsewhere else REINSTALL
    if missing:
        some = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        what = f"{len(missing)} of {len(wanted)} locked packages are not installed: {some}"
        why, repair = "the stages or the servers do not start", f"{REINSTALL} && make doctor"
        yield Finding("packages", "problem", what, why, repair)
    prefect = installed("prefect")[0]
    for name, (limit, how) in BREAKS_PREFECT.items():
        version = installed(name)[0]
        if prefect.startswith("3.8.") and tuple(map(int, re.findall(r"\d+", version)[:2])) >= limit:
            what = f"{name} {version} does not work with prefect {prefect}, which needs {name}<{limit[0]}.{limit[1]}"
            yield Finding("packages", "problem", what, f"{how}; pip does not say so", fix)
    if installed("pynvml")[0]:
        why, repair = "it takes the place of nvidia-ml-py, and only warns", "python -m pip uninstall -y pynvml"
        yield Finding("packages", "warning", "the package pynvml is installed", why, f"{repair} && {REINSTALL}")
    if differing:
        what = f"{len(differing)} packages are not in the locked version: {', '.join(differing[:8])}"
        yield Finding("packages", "warning", what, "tests and recorded results are from the locked ones", fix)
    if not missing and not differing:
        yield Finding("packages", "ok", f"all {len(wanted)} locked packages are installed in the locked version")


def installed(name: str) -> tuple[str, str]:
    """Version and folder of an installed package, as `import` would find it; empty where it is absent or damaged."""
    try:
        found = distribution(name)
        return found.version or "", str(found.locate_file(""))
    except (PackageNotFoundError, KeyError):
        return "", ""


def applies(marker: str) -> bool:
    """Whether a requirement's condition holds here. Where nothing can evaluate it, the requirement is passed over."""
    with suppress(ImportError):
        from packaging.markers import Marker

        return Marker(marker).evaluate()
    return False


def gpu() -> Iterator[Finding]:
    return livecheck("gpu", CHECK_SECONDS / 2, RESTART)


def live() -> Iterator[Finding]:
    return livecheck("live", LIVE_SECONDS, REINSTALL)


def livecheck(part: str, seconds: float, fix: str) -> Iterator[Finding]:
    wrong, output = child([sys.executable, "-m", "stages.diagnosis.livecheck", part], seconds)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    yield from (Finding(**line) for line in lines if "doing" not in line)
    if wrong:
        doing = [line["doing"] for line in lines if "doing" in line] or ["starting Python"]
        fix = f"{fix}; python -m stages.diagnosis.livecheck {part} shows all of it"
        yield Finding(part, "problem", f"{doing[-1]}: the process {wrong}", "a training would meet the same", fix)


def limits() -> Iterator[Finding]:
    cores, allowed = identity.usable_cores(), identity.memory_limit_bytes() / GIB
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    what = f"{cores:g} of {os.cpu_count()} cores and {allowed:.1f} of {there:.1f} GiB memory may be used"
    why, fix = "trainings crawl, or the kernel ends them", "docker run --cpus 2 --memory 4g, or your scheduler's limits"
    yield Finding("limits", "warning" if cores < 1 or allowed < 2 else "ok", what, why, fix)


def memory() -> Iterator[Finding]:
    try:
        import psutil
    except ImportError:  # `packages` says so
        return
    free = psutil.virtual_memory().available
    used, parts = (identity.read_words(f"/sys/fs/cgroup/memory.{name}") for name in ("current", "stat"))
    if used and "inactive_file" in parts:  # the page cache counts as used, and is given back on demand
        cached = int(parts[parts.index("inactive_file") + 1])
        free = min(free, identity.memory_limit_bytes() - int(used[0]) + cached)
    status = "problem" if free < GIB / 4 else "warning" if free < 2 * GIB else "ok"
    why = "importing torch alone takes 0.5 GiB; without room the kernel ends the training"
    yield Finding("memory", status, f"{free / GIB:.1f} GiB free", why, "end what takes most: ps aux --sort=-rss | head")


def folders() -> dict[Path, str]:
    """Where this project writes, and the name a person knows it by: each folder, or the nearest existing one above."""
    cache = cache_dir()
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    found = {ROOT: "the project"}
    for path in (ROOT / "data", ROOT / "results", STATE, MLRUNS, HOME / ".dvc/tmp", cache, temporary):
        nearest = next(folder for folder in (path, *path.parents) if folder.is_dir())
        found.setdefault(nearest, relative(nearest))
    return found


def disk() -> Iterator[Finding]:
    drives: dict[int, dict[Path, str]] = {}
    for folder, name in folders().items():
        drives.setdefault(folder.stat().st_dev, {})[folder] = name
    why, collect = "a checkpoint, or DVC's copy of a result, may not fit", "dvc gc --workspace --all-commits"
    fix = f"{LARGEST}; {collect} --all-experiments drops results that nothing names"
    for members in drives.values():
        state = os.statvfs(next(iter(members)))
        free, no_inodes = state.f_bavail * state.f_frsize, state.f_files > 0 and state.f_favail == 0
        status = "problem" if free < GIB or no_inodes else "warning" if free < 5 * GIB else "ok"
        what = f"{free / GIB:.1f} GiB free{', and no inodes,' if no_inodes else ''} for {', '.join(members.values())}"
        yield Finding("disk", status, what, why, fix)


def writable() -> Iterator[Finding]:
    refused = False
    for folder, name in folders().items():
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"tandem")
                file.flush()
        except OSError as error:
            refused, reason = True, error.strerror or str(error)
            fix = f"free some: {LARGEST}" if "space" in reason else f'sudo chown -R "$USER" {folder}'
            yield Finding("writable", "problem", f"{name} cannot be written: {reason}", "stages cannot save", fix)
    if not refused:
        yield Finding("writable", "ok", "every folder that the project writes to")


def ports() -> Iterator[Finding]:
    if is_ui(ui_process()):
        yield Finding("ports", "ok", "make ui runs, and has its ports")
        return
    for name, port in PORTS.items():
        if is_free(port):
            yield Finding("ports", "ok", f"{port} is free for {name}")
            continue
        what = f"{port}, which {name} takes in make ui, is in use by {listener(port)}"
        why = f"make ui says so, and gives {name} the next free port: bookmarks and PREFECT_API_URL miss it"
        fix = f"end that process, or choose: python -m flows.ui --{name.lower()}-port {port + 100}"
        yield Finding("ports", "warning", what, why, fix)


def ui_process() -> str:
    """What the process is that .tandem/ui.json names; empty where none of that number lives."""
    running = running_servers()
    return process_name(int(running["pid"])) if running else ""


def is_ui(process: str) -> bool:
    return "flows.ui" in process or "/proc" in process  # nothing is known of it where there is no /proc


def listener(port: int) -> str:
    """The process that listens on `port`, as far as this user may see it."""
    with suppress(ImportError, PermissionError):
        import psutil

        for found in psutil.net_connections("tcp"):
            if found.pid and found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                return f"process {found.pid} ({process_name(found.pid)})"
    return "a process that this user may not see"


def git() -> Iterator[Finding]:
    wrong, _ = child(["git", "rev-parse", "--show-toplevel"], 10)
    fix = "git init && git add -A && git commit -m start"
    if "could not be started" in wrong:
        fix = "sudo apt-get install git"
    elif "dubious ownership" in wrong:
        fix = f"git config --global --add safe.directory {ROOT}"
    what, why = f"git {wrong}" if wrong else "repository found", "DVC needs it, and results name their commit"
    yield Finding("git", "problem" if wrong else "ok", what, why, fix)
    for what, fix in conflicts(ROOT):
        yield Finding("git", "problem", what, "DVC cannot read it: nothing runs", fix)


def dvc() -> Iterator[Finding]:
    if not (HOME / ".dvc").is_dir():
        yield Finding("dvc", "problem", "there is no .dvc", "DVC sees no project here", "git checkout .dvc || dvc init")
        return
    holders: set[int] = running_dvc(HOME / ".dvc/tmp/lock")
    try:
        locks = json.loads((HOME / ".dvc/tmp/rwlock").read_text())
        infos = [*locks.get("write", {}).values(), *sum(locks.get("read", {}).values(), [])]
        holders |= {info["pid"] for info in infos if is_alive(info["pid"])}
    except FileNotFoundError:
        pass
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        why = "dvc repro fails until then, make repro removes it; it only lists running processes, nothing is lost"
        fix = "".join(f"wait for process {pid}, then: " for pid in holders) + "rm .dvc/tmp/rwlock"
        yield Finding("dvc", "problem", f".dvc/tmp/rwlock is damaged ({error})", why, fix)
        return
    for pid in holders:
        name = process_name(pid)
        if re.search("dvc|flows|python|/proc", name):
            why = "a second dvc repro of the same stages is refused until it ends"
            what = f"process {pid} ({name}) holds DVC's lock"
            yield Finding("dvc", "warning", what, why, f"wait, or: kill -INT {pid}")
        else:  # after a reboot the number is somebody else's, and DVC looks at the number alone
            what = f".dvc/tmp/rwlock names process {pid}, which is now {name} and no DVC"
            yield Finding("dvc", "problem", what, "dvc repro is refused while that lives", "rm .dvc/tmp/rwlock")
    objects = damaged()
    for what, fix in objects:
        yield Finding("dvc", "problem", what, "DVC restores it as good: the result is another one", fix)
    if not (holders or objects):
        yield Finding("dvc", "ok", "project found, no lock is held")


def running_dvc(lock: Path) -> set[int]:
    """The process that holds DVC's own lock (zc.lockfile: an flock, the number inside)."""
    if not lock.exists():
        return set()
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once; DVC tries for 3 s
            return set()
        except BlockingIOError:
            return set(map(int, re.findall(r"\d+", file.read())))


def history() -> Iterator[Finding]:
    """MLflow's store: readable, whole, in the schema that the installed MLflow wants."""
    import sqlite3

    from stages.records import store

    library = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < (3, 31):
        fix = "make PYTHON=/path/to/another/python3.11 -B setup"
        yield Finding("mlflow", "problem", f"this Python has {library}", "MLflow needs 3.31, Prefect 3.24", fix)
    if numeric := sorted(path.name for path in MLRUNS.glob("[0-9]*") if path.is_dir()):
        why = "an older MLflow's file store: `mlflow ui` typed by hand shows it instead of this project's runs"
        fix = f"mkdir -p ../old-mlruns && mv {' '.join(f'mlruns/{name}' for name in numeric)} ../old-mlruns"
        yield Finding("mlflow", "warning", f"mlruns holds the folders {', '.join(numeric)}", why, fix)
    path = store.database_file(store.tracking_uri()) or MLRUNS / "mlflow.db"
    found = store.inspect(path, thorough=True)
    status, why, fix = "problem", "MLflow records no run in it", found.fix
    if found.kind in ("absent", "whole"):
        makes = ", the first training makes it" if found.kind == "absent" else ""
        yield Finding("mlflow", "ok", f"{found.message}{makes}; {library}")
        return
    if found.kind == "locked":
        status, why, fix = "warning", "records of trainings wait for it", f"wait, or: {found.fix}"
    elif found.kind == "unfinished" and found.is_empty:
        status, why = "warning", "the next training moves it aside and makes it anew"
    yield Finding("mlflow", status, found.message, why, fix)


def servers() -> Iterator[Finding]:
    """The servers that the environment names. User names and passwords in addresses are not shown."""
    uri, url = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("PREFECT_API_URL", "")
    shown = f"MLFLOW_TRACKING_URI {without_password(uri).partition('?')[0]}"
    if uri.startswith("http") and (wrong := unreachable(uri)):
        why = "trainings go on, and keep their records in .tandem/journals until these can be sent"
        fix = "start that server, or: unset MLFLOW_TRACKING_URI; then: python -m stages.records.uploader sync"
        yield Finding("servers", "warning", f"{shown} does not answer: {wrong}", why, fix)
    elif uri.startswith("file:") or (uri and "://" not in uri and uri != "databricks"):
        what, why = f"{shown} is a folder", "MLflow refuses folders"
        yield Finding("servers", "problem", what, why, "unset MLFLOW_TRACKING_URI")
    elif uri:
        yield Finding("servers", "ok", f"{shown}{' answers' if uri.startswith('http') else ''}")
    shown = f"PREFECT_API_URL {without_password(url).partition('?')[0]}"
    if not url:
        what = "PREFECT_API_URL is not set; python -m flows.pipeline takes the server of make ui"
        yield Finding("servers", "ok", what)
    elif wrong := unreachable(url):
        why = "python -m flows.pipeline fails at its start (dvc repro does not need it)"
        what, fix = f"{shown} does not answer: {wrong}", "unset PREFECT_API_URL, or: make ui"
        yield Finding("servers", "problem", what, why, fix)
    else:
        yield Finding("servers", "ok", f"{shown} answers")


def unreachable(url: str) -> str:
    """Why an MLflow server or Prefect API does not answer within 2 s; empty where it does, or asks for a password."""
    try:
        with urlopen(f"{without_password(url).partition('?')[0].rstrip('/')}/health", timeout=2):
            return ""
    except HTTPError as error:
        return "" if error.code in (401, 403) else f"/health answered {error.code}, so this may be another server"
    except (OSError, ValueError) as error:
        return without_password(str(getattr(error, "reason", error)))


def is_alive(process: int) -> bool:
    """Whether the process runs. Without psutil: no package may be installed."""
    if process <= 0:  # signal 0 to process 0 would ask for this very process group
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # killed, but not yet waited for by its parent
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def leftovers() -> Iterator[Finding]:
    from stages.records.journal import JOURNALS, has_writer

    waiting = sum(folder.is_dir() and not has_writer(folder) for folder in JOURNALS.glob("*"))
    if waiting:
        what, fix = f"journals that wait to be sent: {waiting}", "python -m stages.records.uploader sync"
        yield Finding("leftovers", "warning", what, "these trainings are not in MLflow yet", fix)
    if UI_STATE.exists() and not is_ui(process := ui_process()):
        now = f"; its process is now {process}" if process else ""
        what = f".tandem/ui.json is left from a make ui that was killed{now}"
        why = "make ui takes itself for running, and refuses to start" if process else "nothing is lost"
        yield Finding("leftovers", "problem" if process else "warning", what, why, "rm .tandem/ui.json")
    yield Finding("leftovers", "ok", checkpoints())


def checkpoints() -> str:
    """What the checkpoints that are there belong to. Of a training there are two files: the newest, the one before."""
    files = list((STATE / "checkpoints").rglob("*.pt"))
    kinds = {
        "running": "are training",
        "interrupted": "were interrupted (dvc repro goes on from them)",
        "ended": "have ended (kept until DVC has their results)",
    }
    counts = dict.fromkeys(kinds, 0)
    for path in {path.with_name(path.name.replace(".previous.pt", ".pt")) for path in files}:
        is_ended = path.with_suffix(".result").exists()
        counts["running" if is_training(path) else "ended" if is_ended else "interrupted"] += 1
    found = [f"{counts[kind]} that {words}" for kind, words in kinds.items() if counts[kind]]
    size = sum(path.stat().st_size for path in files) / 2**20
    return f"checkpoints of trainings: {', '.join(found)}; {size:.1f} MiB" if found else "no interrupted training"


def is_training(checkpoint: Path) -> bool:
    """Whether a process works on it: by the number in its lock, because a training that starts just then would be
    refused the lock while this one tries it.
    """
    with suppress(OSError, ValueError):
        process = int(checkpoint.with_suffix(".lock").read_text())
        return is_alive(process) and any(word in process_name(process) for word in ("flows.stage", "/proc"))
    return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # `make doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails once more at exit
        sys.exit(1)
