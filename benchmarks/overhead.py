"""The cost of orchestration, compared with a bare DVC pipeline of four empty stages, in turns on the same machine.

    python -m benchmarks.overhead [noop] [full] [prefect] [--repeats 5]        # default: all three; needs no results

- noop: a `dvc repro` with nothing to do, with every workload of params.yaml, compared with the bare pipeline
- full: one workload (sign), every stage run by `dvc repro --force`, compared with four bare stages, and with four that
  import torch and mlflow, as ordinary stage scripts do
- prefect: the same run from a terminal and as a flow (Prefect starts it the same way), with a running Prefect server

Times are of whole commands: median, lowest and highest. Times of Tandem's full runs exclude the work that its stages
measure themselves (training with its validation, and evaluation) and include imports, DVC, preprocessing, loading, the
probe and tracking. Trainings have 3 epochs and run on the CPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.markdown import header, machine_sentence, row
from benchmarks.sandbox import Server, call, commit, copy_project, shorten, write_params
from tandem.machine.interleaving import interleave

WORKLOAD = "sign"
NUM_EPOCHS = 3
BARE = """stages:
  one: {{cmd: {cmd}, deps: [start], outs: [a]}}
  two: {{cmd: {cmd}, deps: [a], outs: [b]}}
  three: {{cmd: {cmd}, deps: [b], outs: [c]}}
  four: {{cmd: {cmd}, deps: [c], outs: [d]}}
"""
NOTHING = "touch a b c d"
USUAL = "python -c 'import torch, mlflow' && touch a b c d"
REPRO = ["dvc", "repro"]
PREFECT = ("prefect server start --host 127.0.0.1 --port {port}", "api/health")
PACKAGES = ("dvc", "prefect", "mlflow", "torch")
FLOW = [sys.executable, "-c", "import sys; from flows.pipeline import pipeline; pipeline(force='--force' in sys.argv)"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="question", help=f"{', '.join(QUESTIONS)}; all by default")
    parser.add_argument("--repeats", type=int, default=5, help="of every command (5)")
    options = parser.parse_args()
    if unknown := set(options.questions) - set(QUESTIONS):
        parser.error(f"unknown question {', '.join(sorted(unknown))}; accepted: {', '.join(QUESTIONS)}")
    print(machine_sentence(packages=PACKAGES), flush=True)
    for name in options.questions or QUESTIONS:
        print(f"\n## {name}\n\n{header('what', 'median (s)', 'lowest', 'highest')}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            print(QUESTIONS[name](Path(folder), options.repeats), flush=True)


def noop(folder: Path, repeats: int) -> str:
    bare, tandem = make_bare(folder / "bare", NOTHING), make_tandem(folder / "tandem", None)
    names = read_params(tandem)["workloads"]
    for project in (bare, tandem):
        call(REPRO, project)
    commands = {"bare, 4 stages": timed(REPRO, bare), f"Tandem, {len(names)} workloads": timed(REPRO, tandem)}
    times = measured(commands, repeats)
    base, own = times.values()
    ratio = statistics.median(mine / its for mine, its in zip(own, base, strict=True))
    return f"\nNothing to do takes {ratio:.2f} times as long as in the bare pipeline (median of the rounds)."


def full(folder: Path, repeats: int) -> str:
    bare, usual = make_bare(folder / "bare", NOTHING), make_bare(folder / "usual", USUAL)
    one = make_tandem(folder / "one", WORKLOAD)
    for project in (bare, usual, one):
        call(REPRO, project)
    force = [*REPRO, "--force"]
    commands = {"bare": timed(force, bare), "every stage imports torch and mlflow": timed(force, usual)}
    times = measured({**commands, f"Tandem, {WORKLOAD}": timed(force, one, less_work=True)}, repeats)
    return f"\nOne workload, everything run: {statistics.median(times[f'Tandem, {WORKLOAD}']):.1f} s beside the work."


def prefect(folder: Path, repeats: int) -> str:
    one = make_tandem(folder / "one", WORKLOAD)
    call(REPRO, one)
    home = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = Server(*PREFECT, **home)
    try:
        settings = {**home, "PREFECT_API_URL": f"{server.url}/api"}
        terminal = timed([*REPRO, "--force"], one, less_work=True)
        flow = timed([*FLOW, "--force"], one, less_work=True, **settings)
        call(FLOW, one, **settings)
        times = measured({"dvc repro": terminal, "the flow": flow}, repeats)
    finally:
        server.kill()
    plain, reported = map(statistics.median, times.values())
    return f"\nFrom Prefect: {reported - plain:+.1f} s."


QUESTIONS: dict[str, Callable[[Path, int], str]] = {"noop": noop, "full": full, "prefect": prefect}


def measured(commands: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every command, interleaved; prints a row for each."""
    times = interleave(commands, repeats)
    for name, seconds in times.items():
        print(row(name, *(f"{value:.2f}" for value in (statistics.median(seconds), min(seconds), max(seconds)))))
    return times


def timed(command: list[str], project: Path, less_work: bool = False, **settings: str) -> Callable[[], float]:
    """A call that runs `command` and returns its seconds; `less_work` subtracts those that the stages measured."""

    def seconds() -> float:
        start = time.perf_counter()
        call(command, project, **settings)
        return time.perf_counter() - start - (seconds_of_work(project) if less_work else 0.0)

    return seconds


def seconds_of_work(project: Path) -> float:
    folder = project / "results/runs" / WORKLOAD / "cpu"
    train = json.loads((folder / "train/measured/0/timing.json").read_text())["timing"]["train_seconds"]
    evaluate = json.loads((folder / "evaluate/measured/0/timing.json").read_text())["evaluate_seconds"]
    return float(train + 2 * evaluate)  # with one warm-up


def make_bare(folder: Path, cmd: str) -> Path:
    folder.mkdir()
    (folder / "dvc.yaml").write_text(BARE.format(cmd=json.dumps(cmd)))
    (folder / "start").touch()
    commit(folder)
    call(["dvc", "init", "-q"], folder)
    call(["dvc", "config", "core.analytics", "false"], folder)
    return folder


def make_tandem(folder: Path, workload: str | None) -> Path:
    """A copy of this project with short trainings on the CPU, of `workload` or of all workloads (None)."""
    copy_project(folder)
    params = read_params(folder)
    known = params["workloads"]
    if workload and workload not in known:
        sys.exit(f"params.yaml has the workloads {', '.join(known)}, and not {workload}, which this measures")
    params["workloads"], params["devices"] = [workload] if workload else known, ["cpu"]
    shorten(params, epochs=NUM_EPOCHS)
    write_params(folder, params)
    (folder / "mlruns").mkdir(exist_ok=True)
    commit(folder)
    return folder


def read_params(folder: Path) -> Any:
    return YAML().load(folder / "params.yaml")


if __name__ == "__main__":
    main()
