"""What Tandem's own work costs on this machine: `python -m benchmarks.costs COST`, and `COST --help` for its options.

Alternatives are measured in turns. The imports are in the functions, because the memory of preprocess is measured in a
process that has imported nothing else.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from ruamel.yaml import YAML

from benchmarks.markdown import header, machine_sentence, quartiles, row
from benchmarks.sandbox import STAGE, call, environment, make_ready, write_params
from tandem.devices.hardware import detect_hardware
from tandem.devices.names import is_accelerator
from tandem.files import STATE, read_json
from tandem.machine.interleaving import interleave
from tandem.params.loading import load_params, load_workload

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer

WORKLOADS = ("sign", "pen", "price", "rally")
Requests = dict[str, Callable[[], object]]


def open_prepared(workload: str, device: str) -> Trainer:
    """A trial training of the workload on `device` (cpu or cuda), with the prepared data resident on the device."""
    from benchmarks.contenders import read_training
    from tandem.training import auto
    from tandem.training.execution import open_device
    from tandem.training.opening import make_trial

    settings, hardware = load_workload(workload).train, detect_hardware(device)
    options = (settings.threads, settings.deterministic, settings.precision)
    trainer = make_trial(*read_training(workload), settings, open_device(hardware, *options, kernels=settings.kernels))
    auto.resolve(trainer, hardware)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    costs = parser.add_subparsers(dest="cost", required=True, metavar="COST")
    for name, cost in COSTS.items():
        docstring = str(inspect.getdoc(cost))
        form = argparse.RawDescriptionHelpFormatter
        subparser = costs.add_parser(name, help=docstring.splitlines()[0], description=docstring, formatter_class=form)
        for option, parameter in inspect.signature(cost).parameters.items():
            default, is_required = parameter.default, parameter.default is parameter.empty
            is_list = isinstance(default, tuple)
            subparser.add_argument(
                f"--{option.replace('_', '-')}",
                type=str if is_required else type(default[0] if is_list else default),
                nargs="+" if is_list else None,
                help=None if is_required else f"({' '.join(map(str, default)) if is_list else default})",
                default=None if is_required else default,
                required=is_required,
            )
    options = vars(parser.parse_args())
    try:
        identity = detect_hardware(options.get("device", "cpu"))
    except ValueError as error:
        parser.error(str(error))
    print(
        f"{machine_sentence(identity['kind'], ('torch', 'dvc', 'prefect', 'mlflow', 'pandas', 'pyarrow'))}\n",
        flush=True,
    )
    COSTS[options.pop("cost")](**options)


# While a training runs.


def advice(
    workloads: tuple[str, ...] = WORKLOADS, device: str = "cpu", rounds: int = 5, seconds: float = 2.0, probes: int = 3
) -> None:
    """What a wrong prediction costs: the gains that the probe predicts, compared with measured gains.

    The probe (tandem/diagnosis/probe.py) runs at the start of every training, tries changes for a few steps, and
    suggests what would make it faster. This makes every change that it tried, promising or not, and trains with it:
    `Trainer.training_steps`, with augmentation and the ragged last batch. The unchanged settings and all changes take
    turns in rounds of --seconds each, after one warm-up round.

    A gain is the ratio of sequences per second to the unchanged settings in the same round, as the median over the
    rounds: at 1.30 an epoch takes 1/1.30 of the time. The probe runs --probes times, half of them after the rounds. A
    user gets only one probe, so the error in a row is that of the worst, and the summary counts single probes. The rest
    is the bottleneck of each training, and what the probe did not try. Run nothing else: two threads are compared with
    one on the same cores.
    """
    from tandem.diagnosis import probe, probe_result

    print(header("workload", "change", "predicted (range)", "measured (range)", "error"))
    answers, remarks = list[tuple[float, float]](), list[str]()
    for workload in workloads:
        trainer = open_prepared(workload, device)
        changes = probe.alternatives(trainer)
        runs = [probed(trainer) for _ in range(probes - probes // 2)]
        tried = runs[0].gains
        measured = gains({"": trainer} | {name: changed(trainer, changes[name]) for name in tried}, rounds, seconds)
        runs += [probed(trainer) for _ in range(probes // 2)]
        not_tried = [f"{name}: {reason}" for name, reason in runs[0].missing_reasons.items() if name in changes]
        remarks += [f"- {workload}: {sentence}" for sentence in (runs[0].sentence(), *not_tried)]
        for name, ratios in measured.items():
            predicted, actual = [run.gains[name] for run in runs if name in run.gains], statistics.median(ratios)
            answers += [(promised, actual) for promised in predicted]
            error = max((promised / actual - 1 for promised in predicted), key=abs)
            cells = (
                f"{statistics.median(part):.2f} ({min(part):.2f} to {max(part):.2f})" for part in (predicted, ratios)
            )
            print(row(workload, name, *cells, f"{error:+.0%}"), flush=True)
    if answers:
        errors = [abs(promised / actual - 1) for promised, actual in answers]
        promises = [(promised, actual) for promised, actual in answers if promised >= probe_result.MIN_GAIN]
        less = sum(actual - 1 < (promised - 1) / 2 for promised, actual in promises)
        print(
            f"\nA single probe was off by {statistics.median(errors):.1%} in the median, by {max(errors):.0%} at most "
            f"({len(errors)} answers). Of {len(promises)} promised gains of {probe_result.MIN_GAIN} or more, {less} "
            "came to less than half.\n"
        )
    print("\n".join(remarks))


def probed(trainer: Any) -> Any:
    from tandem.diagnosis import probe

    result = probe.probe(trainer)
    if isinstance(result, str):
        raise SystemExit(f"error: {result}")
    return result


def changed(trainer: Any, changes: Mapping[str, Any]) -> Any:
    """Another training with changed settings and what `auto` chose. It shares only the data with the probed one."""
    import torch

    from tandem.training.threads import ThreadTuner
    from tandem.training.trainer import Trainer

    model = copy.deepcopy(trainer.model)
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):
            part.flatten_parameters()  # the copied weights are not contiguous: cuDNN would gather them in every step
    settings = replace(trainer.settings, **{"precision": trainer.execution.precision, **changes})
    other = Trainer(model, trainer.train_split, trainer.val_split, settings, trainer.task)
    other.thread_tuner = ThreadTuner(trainer.thread_tuner.numbers, trainer.thread_tuner.number)
    return other


def gains(fits: dict[str, Any], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Change -> speed-up over the unchanged settings, round by round."""
    from tandem.diagnosis import probe

    parts = {name: probe.ProbePart(trainer, probe.epochs(trainer.training_steps)) for name, trainer in fits.items()}
    for part in parts.values():
        part.warm_up()
        part.turn(seconds)
    speed_ups: dict[str, list[float]] = {name: [] for name in fits if name}
    for _ in range(rounds):
        times = {name: part.turn(seconds) for name, part in parts.items()}
        for name, ratios in speed_ups.items():
            ratios.append(times[""] / times[name])
    return speed_ups


def sampling(
    workloads: tuple[str, ...] = WORKLOADS, device: str = "cpu", rounds: int = 20, seconds: float = 0.5
) -> None:
    """Measuring: steps with a running sampler and `measure`, compared with steps without both, in turns.

    On a GPU one thread queries NVML from a training's first epoch to its last (tandem/machine/sampler.py), and
    `measure` (tandem/machine/measure.py) marks every epoch. On the CPU there is no such thread, only readings of clocks
    and counters before and after. A pair is the same steps of `Trainer.training_steps`, about --seconds long, once with
    and once without; every other pair runs in reverse order. Both are timed from outside.

    The ratio of the times is with / without: the median over the pairs, with quartiles.
    """
    from tandem.diagnosis import probe
    from tandem.machine.sampler import SAMPLE_SECONDS

    thread = f"a thread that samples every {1000 * SAMPLE_SECONDS:.0f} ms" if is_accelerator(device) else "no thread"
    print(f"device {device} ({thread})\n")
    print(header("workload", "with / without, median [quartiles]"))
    for workload in workloads:
        trainer = open_prepared(workload, device)
        steps, count = probe.epochs(trainer.training_steps), 1
        while seconds_of_steps(trainer, steps, count, True) < seconds / 2:  # also warms up
            count *= 2
        ratios = []
        for number in range(rounds):
            order = (bool(number % 2), not number % 2)
            times = {is_sampled: seconds_of_steps(trainer, steps, count, is_sampled) for is_sampled in order}
            ratios.append(times[True] / times[False])
        print(row(workload, quartiles(ratios, ".4f")), flush=True)


def seconds_of_steps(trainer: Any, steps: Any, count: int, is_sampled: bool) -> float:
    from tandem.machine.measure import Clock, measure, sampled

    with sampled(trainer.device) if is_sampled else nullcontext():
        with Clock(trainer.device) as clock, measure(trainer.device) if is_sampled else nullcontext():
            for _ in range(count):
                next(steps)
        return clock.seconds


SAVES = "saves.json"  # of the training, in the copy
# The stage `train`, without MLflow. It writes the bytes and the seconds of each checkpoint.
TRAIN = f"""
import json, sys, time
from pathlib import Path
from stages import train
from tandem.stage import recorder
from tandem.tracking import run_dir

run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0
saves, save = [], recorder.Recorder.save

def timed(recorder):
    start = time.perf_counter()
    save(recorder)
    saves.append((recorder.checkpoint.path.stat().st_size, time.perf_counter() - start))

recorder.Recorder.save = timed
train.main(*sys.argv[1:])
Path("{SAVES}").write_text(json.dumps(saves))
"""


def checkpoints(workloads: tuple[str, ...] = WORKLOADS, device: str = "cpu") -> None:
    """Checkpoints: their share of the training time, which is that of the epochs.

    Each workload trains in a copy of the project, by the code of its stage, with checkpoints at the same times: after
    the first epoch, every ten seconds, and after the last. A checkpoint is synced, read back and checked.
    """
    columns = ("epochs", "training (s)", "checkpoints", "size (MiB)", "one takes (ms)", "share of the training")
    print(header("workload", *columns), flush=True)
    STATE.mkdir(exist_ok=True)
    for workload in workloads:
        with tempfile.TemporaryDirectory(dir=STATE) as folder:  # on the disk of the real checkpoints
            project = make_ready(Path(folder) / "project", workload, device)
            call([sys.executable, "-c", TRAIN, workload, device, "0"], project)
            timing = read_json(project / f"results/runs/{workload}/{device}/train/measured/0/timing.json")["timing"]
            saves = json.loads((project / SAVES).read_text())
        training, saving = timing["train_seconds"], sum(seconds for _, seconds in saves)
        epochs, mebibytes = load_params().blocks[workload].train.epochs, f"{saves[-1][0] / 2**20:.2f}"
        cells = (len(saves), mebibytes, f"{1000 * saving / len(saves):.0f}", f"{saving / training:.2%}")
        print(row(workload, epochs, f"{training:.1f}", *cells), flush=True)


def replicates(
    workload: str = "sign", device: str = "cpu", seeds: tuple[int, ...] = (1, 2, 4, 8, 16), repeats: int = 3
) -> None:
    """More seeds: the seconds and the memory of `replicate` for --seeds more seeds, beside those of the first seed.

    Each number of seeds is trained anew, in a copy of the project, from the same prepared data; the repeats are
    interleaved. Memory is the largest sum over all processes of the stage, with shared pages counted once (PSS), read
    five times a second.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the publisher may still write into it
        project = make_ready(Path(folder) / "project", workload, device)
        call([*STAGE, "train", workload, device, "0"], project)
        stages = {number: partial(train_seeds, project, workload, device, number) for number in (0, *seeds)}
        measurements = interleave(stages, repeats)
    first = statistics.median(seconds for seconds, _ in measurements.pop(0))
    print(f"The first seed (the stage `train`): {first:.1f} s (median of {repeats}).\n")
    names = ("seconds", "relative to the first seed", "seconds per seed", "host memory, MiB")
    print(header("more seeds", *names))
    for number, trainings in measurements.items():
        seconds = statistics.median(seconds for seconds, _ in trainings)
        largest_mib = max(host_mib for _, host_mib in trainings)
        relative, each = f"{seconds / first:.2f}", f"{seconds / number:.2f}"
        print(row(number, f"{seconds:.1f}", relative, each, f"{largest_mib:,.0f}"))


def train_seeds(project: Path, workload: str, device: str, number: int) -> tuple[float, float]:
    """Train with `number` more seeds, or the first one again (0). Returns the seconds and the largest memory in MiB."""
    shutil.rmtree(project / ".tandem/checkpoints", ignore_errors=True)
    shutil.rmtree(project / f"results/runs/{workload}/{device}/replicate", ignore_errors=True)
    params = YAML().load(project / "params.yaml")
    params["seeds"] = list(range(number + 1))
    write_params(project, params)
    words = ["replicate", workload, device] if number else ["train", workload, device, "0"]
    start, host_mib = time.perf_counter(), 0.0
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*STAGE, *words], cwd=project, env=environment(), **output)
    while process.poll() is None:
        host_mib = max(host_mib, memory_mib(process.pid))
        time.sleep(0.2)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{errors}")
    return time.perf_counter() - start, host_mib


def memory_mib(pid: int) -> float:
    """The memory of a process and of those that it started, except the publisher."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (root := psutil.Process(pid), *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "tandem.tracking.publisher" not in process.cmdline():
                    total += process.memory_full_info().pss
    return total / 2**20


# Before a training.

NUM_STEPS, NUM_CLASSES, FEATURES = 20, 10, tuple(f"f{index}" for index in range(8))
BYTES_PER_ROW = 8 * (3 + len(FEATURES))


def preprocess(sequences: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000), csv_up_to: int = 100_000) -> None:
    """Preprocess: time and peak memory by size of the table, 20 steps x 8 features per sequence.

    Every size runs in a new process, from the file on disk to the written arrays, as in `dvc repro`; CSV is slow to
    read, so its largest size is --csv-up-to. "Table" is the table's memory as plain columns (int64 ids, steps and
    labels, float64 features: 88 bytes per row). Peak is the process's largest resident size minus its size after the
    imports, so that the fixed cost of the libraries does not hide the growth with the data. 1,000,000 sequences need up
    to 8 GiB of memory and 3 GiB of disk.
    """
    columns = ("format", "sequences", "rows", "seconds", "rows per second", "table, MiB", "peak, MiB", "peak / table")
    print(header(*columns))
    sizes = {"parquet": sequences, "csv": [number for number in sequences if number <= csv_up_to]}
    with tempfile.TemporaryDirectory() as folder:
        for ending, number in [(ending, number) for ending, numbers in sizes.items() for number in numbers]:
            table, rows = Path(folder) / f"table.{ending}", number * NUM_STEPS
            in_fresh_process(write_table, table, number)
            seconds, peak_bytes = in_fresh_process(prepare, table, Path(folder) / "prepared")
            peak, size = peak_bytes / 2**20, rows * BYTES_PER_ROW / 2**20
            cells = (f"{seconds:.2f}", f"{rows / seconds:,.0f}", f"{size:,.1f}", f"{peak:,.1f}", f"{peak / size:.2f}")
            print(row(ending, f"{number:,}", f"{rows:,}", *cells), flush=True)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The largest resident size of a process never shrinks, so each measurement has a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def write_table(table: Path, number: int) -> None:
    """Random walks, one row group per 100,000 sequences; labels are whole numbers."""
    import pandas as pd

    draw, shape = np.random.default_rng(0), (number, NUM_STEPS)
    rows, steps = np.indices(shape).reshape(2, -1)
    walks = {name: draw.normal(size=shape).cumsum(axis=1).ravel() for name in FEATURES}
    frame = pd.DataFrame({"sequence": rows, "step": steps, **walks, "label": rows % NUM_CLASSES})
    if table.suffix == ".parquet":
        frame.to_parquet(table, index=False, row_group_size=100_000 * NUM_STEPS)
    else:
        frame.to_csv(table, index=False)


def prepare(table: Path, target: Path) -> tuple[float, int]:
    """Seconds, and the growth of the largest resident size in bytes."""
    from tandem.data import sequences, write_arrays
    from tandem.params.schema import Columns, SequenceTable, Split

    columns = Columns(sequence="sequence", step="step", features=FEATURES, label="label")
    options = {"source": "sequences", "seed": 0, "missing": "refuse", "groups": "none"}
    split = Split(train=0.8, val=0.1, test=0.1)
    params = SequenceTable(table=table.name, columns=columns, split=split, velocity=True, **options)
    before, start = largest_resident_bytes(), time.perf_counter()
    write_arrays(target, sequences.prepare(params, table.parent, "class"))
    return time.perf_counter() - start, largest_resident_bytes() - before


def largest_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# A team's servers (docs/team.md). Use only servers and stores that you can delete.


def load(requests: int = 100, database_port: int = 0) -> None:
    """A request to a team's servers: the processor seconds of Prefect's and of MLflow's server.

    The servers of PREFECT_API_URL and MLFLOW_TRACKING_URI must run on this machine, and you must be able to delete
    them; other processes hardly affect these numbers. --database-port adds PostgreSQL's own share.
    """
    database = [database_port] if database_port else []
    print(header("request", "processor time of the server", "with its database"))
    for name, questions in (("PREFECT_API_URL", prefect_requests), ("MLFLOW_TRACKING_URI", mlflow_requests)):
        port = urlsplit(os.environ[name]).port
        assert port
        for request, question in questions().items():
            question()
            before = spent([port]), spent(database)
            for _ in range(requests):
                question()
            server, stored = (end - start for end, start in zip((spent([port]), spent(database)), before, strict=True))
            server, total = (1000 * value / requests for value in (server, server + stored))
            print(row(request, f"{server:.1f} ms", f"{total:.1f} ms" if database else "not asked for"), flush=True)


def spent(ports: list[int]) -> float:
    """Processor seconds of all processes that listen on these ports, including living and dead children."""
    pids = {link.pid for link in psutil.net_connections("inet") if link.status == "LISTEN" and link.laddr.port in ports}
    roots = [psutil.Process(pid) for pid in pids if pid]
    processes = {process for root in roots for process in (root, *root.children(recursive=True))}
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def prefect_requests() -> Requests:
    import httpx

    auth = os.environ.get("PREFECT_API_AUTH_STRING", ":").partition(":")
    client = httpx.Client(base_url=os.environ["PREFECT_API_URL"], auth=(auth[0], auth[2]), timeout=120)

    def post(path: str, body: Any) -> Any:
        answer = client.post(path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    run = post("/flow_runs/filter", {"limit": 1})[0]["id"]
    line = {"name": "benchmark", "level": 20, "flow_run_id": run, "message": "epoch 1/2: train loss 1.0"}
    line["timestamp"] = datetime.now(UTC).isoformat()
    return {
        "Prefect: a worker asks for work": lambda: post("/work_pools/cpu/get_scheduled_flow_runs", {}),
        "Prefect: a worker says that it lives": lambda: post("/work_pools/cpu/workers/heartbeat", {"name": "b"}),
        "Prefect: a run's state is read": lambda: client.get(f"/flow_runs/{run}").raise_for_status(),
        "Prefect: ten lines of a log": lambda: post("/logs/", [line] * 10),
    }


def mlflow_requests() -> Requests:
    from mlflow.entities import Metric

    from tandem.tracking import find_runs

    client: Any = find_runs.client_of_store()
    run = client.create_run(client.create_experiment(f"benchmark-{uuid.uuid4().hex}")).info.run_id
    steps = iter(range(10**9))

    def epoch() -> None:
        step = next(steps)
        client.log_batch(run, metrics=[Metric(f"m{index}", 1.0, step, step) for index in range(10)])

    return {"MLflow: ten metrics of an epoch": epoch, "MLflow: a run is read": lambda: client.get_run(run)}


COSTS: dict[str, Callable[..., None]] = {
    cost.__name__: cost for cost in (advice, sampling, checkpoints, replicates, preprocess, load)
}


if __name__ == "__main__":
    main()
