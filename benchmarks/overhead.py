"""What orchestration costs, beside a bare DVC pipeline of four stages that do nothing, measured in turns on the same machine.

    python -m benchmarks.overhead [--repeats 5] [--skip-prefect]

Three questions: how long is a `dvc repro` that has nothing to do; what does a whole run cost beyond the work measured inside its stages
(training, validation and evaluation; all else counts as overhead, preprocessing and loading included); what does Prefect add with a
server running. Wall times of whole commands; medians and the range.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BARE = """stages:
  one: {{cmd: {cmd}, deps: [start], outs: [a]}}
  two: {{cmd: {cmd}, deps: [a], outs: [b]}}
  three: {{cmd: {cmd}, deps: [b], outs: [c]}}
  four: {{cmd: {cmd}, deps: [c], outs: [d]}}
"""
NOTHING = "touch a b c d"
USUAL = "python -c 'import torch, mlflow' && touch a b c d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-prefect", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        bare, usual = make_bare(here / "bare", NOTHING), make_bare(here / "usual", USUAL)
        both, one = make_tandem(here / "both", None), make_tandem(here / "one", "sign")
        plain = environment(TANDEM_PREFECT="off")
        for project in (bare, usual, both, one):
            call(["dvc", "repro"], project, plain)

        measured: dict[str, list[float]] = {}
        for turn in range(options.repeats):
            timed(measured, "no-op, bare", lambda: call(["dvc", "repro"], bare, plain))
            timed(measured, "no-op, Tandem (2 workloads)", lambda: call(["dvc", "repro"], both, plain))
            timed(measured, "full, bare", lambda: call(["dvc", "repro", "--force"], bare, plain))
            timed(
                measured,
                "full, every stage imports torch and mlflow",
                lambda: call(["dvc", "repro", "--force"], usual, plain),
            )
            timed(measured, "full, Tandem (sign)", lambda: call(["dvc", "repro", "--force"], one, plain), one)
            print(f"turn {turn + 1} of {options.repeats}", file=sys.stderr, flush=True)
        if not options.skip_prefect:
            with prefect_server(here) as url:
                under = environment(PREFECT_API_URL=url, PREFECT_HOME=str(here / "prefect"))
                for _ in range(options.repeats):
                    timed(
                        measured,
                        "full, Tandem (sign), for the next",
                        lambda: call(["dvc", "repro", "--force"], one, plain),
                        one,
                    )
                    timed(
                        measured,
                        "full, Tandem (sign), dvc repro reporting to Prefect",
                        lambda: call(["dvc", "repro", "--force"], one, under),
                        one,
                    )
                    timed(
                        measured, "full, Tandem (sign), started as a Prefect flow",
                        lambda: call([sys.executable, "-m", "flows.pipeline", "--force"], one, under), one,
                    )  # fmt: skip
        report(measured)


def environment(**extra: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "DVC", "TANDEM"))
    }
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", **extra}


def call(command: list[str], folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")


def timed(measured: dict[str, list[float]], name: str, action: Callable[[], None], project: Path | None = None) -> None:
    """Seconds of `action`; where `project` is given, less the work that its stages measured themselves."""
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    if project:
        folder = project / "results/runs/sign/cpu"
        seconds -= json.loads((folder / "timings.json").read_text())["train_seconds"]
        seconds -= 2 * json.loads((folder / "evaluate.json").read_text())["evaluate_seconds"]  # it warms up once
    measured.setdefault(name, []).append(seconds)


def make_bare(folder: Path, cmd: str) -> Path:
    folder.mkdir()
    (folder / "dvc.yaml").write_text(BARE.format(cmd=json.dumps(cmd)))
    (folder / "start").touch()
    repository(folder)
    call(["dvc", "init", "-q"], folder, environment())
    call(["dvc", "config", "core.analytics", "false"], folder, environment())
    return folder


def make_tandem(folder: Path, workload: str | None) -> Path:
    """This project with short trainings, on the CPU."""
    folder.mkdir()
    for name in ("stages", "flows", "data/raw"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
    params = (ROOT / "params.yaml").read_text().replace("devices: [auto]", "devices: [cpu]")
    for line in set(params.splitlines()):
        if line.strip().startswith("epochs:"):
            params = params.replace(line, "    epochs: 3")
    if workload:
        params = params.replace("workloads: [sign, pen]", f"workloads: [{workload}]")
    (folder / "params.yaml").write_text(params)
    (folder / "mlruns").mkdir()
    repository(folder)
    return folder


def repository(folder: Path) -> None:
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-qm", "start"],
    ):
        call(["git", *words], folder, environment())


class prefect_server:
    """A Prefect server on a free port while the block runs."""

    def __init__(self, folder: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api"
        env = environment(PREFECT_HOME=str(folder / "prefect"), PREFECT_SERVER_ANALYTICS_ENABLED="false")
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> str:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1)
                return self.url
            except OSError:
                time.sleep(0.1)
        sys.exit("the Prefect server did not start within a minute")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def report(measured: dict[str, list[float]]) -> None:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("dvc", "prefect", "mlflow", "torch"))
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}\n"
    )
    print("| what | median (s) | lowest | highest |\n|---|---|---|---|")
    for name, seconds in measured.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |")
    middle = {name: statistics.median(seconds) for name, seconds in measured.items()}
    print(f"\nno-op: {middle['no-op, Tandem (2 workloads)'] / middle['no-op, bare']:.2f} times the bare one")
    for execution_mode in ("dvc repro reporting to Prefect", "started as a Prefect flow"):
        name = f"full, Tandem (sign), {execution_mode}"
        if name in middle:
            print(f"Prefect, {execution_mode}: {middle[name] - middle['full, Tandem (sign), for the next']:+.2f} s")


if __name__ == "__main__":
    main()
