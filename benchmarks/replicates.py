"""What more seeds cost: the seconds and the memory of `replicate` for 1 to 16 seeds, beside those of the first seed.

    python -m benchmarks.replicates [--workload sign] [--device cpu] [--seeds 1 2 4 8 16] [--repeats 3]

Each number of seeds is trained anew, in a copy of the project, from the same prepared data; the repeats are
interleaved. Memory is the largest sum over all processes of the stage, with shared pages counted once (PSS), read five
times a second; on a GPU, also the largest memory in use on the device.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from ruamel.yaml import YAML

from benchmarks.folklore import device_of
from benchmarks.markdown import header, machine_sentence, row
from benchmarks.sandbox import STAGE, call, environment, make_ready, write_params
from tandem.machine import nvml
from tandem.machine.interleaving import interleave
from tandem.machine.measure import gpu_uuid
from tandem.params.loading import load_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=load_params().workloads, default="sign")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of more seeds")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    kind = device_of(parser, options.device)[0].type
    print(machine_sentence(kind), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        project = make_ready(Path(folder) / "project", options.workload, options.device)
        call([*STAGE, "train", options.workload, options.device, "0"], project)
        uuid = gpu_uuid(torch.device("cuda")) if kind == "cuda" else None
        found: dict[int, list[dict[str, float]]] = {number: [] for number in (0, *options.seeds)}

        def measured(number: int) -> Callable[[], float]:
            def measure() -> float:
                found[number].append(run(project, options.workload, options.device, number, uuid))
                return found[number][-1]["seconds"]

            return measure

        interleave({str(number): measured(number) for number in found}, options.repeats)
    first = statistics.median(each["seconds"] for each in found.pop(0))
    print(f"\nThe first seed (the stage `train`): {first:.1f} s (median of {options.repeats}).\n")
    names = ("seconds", "relative to the first seed", "seconds per seed", "host memory, MiB", "GPU memory, MiB")
    print(header("more seeds", *names))
    for number, times in found.items():
        seconds = statistics.median(each["seconds"] for each in times)
        host, device = (max(each[name] for each in times) for name in ("host_mib", "device_mib"))
        cells = f"{seconds:.1f}", f"{seconds / first:.2f}", f"{seconds / number:.2f}", f"{host:,.0f}"
        print(row(number, *cells, f"{device:,.0f}" if device else "-"))


def run(project: Path, workload: str, device: str, number: int, uuid: str | None) -> dict[str, float]:
    """Train with `number` more seeds; with 0, the first seed again. Returns the seconds and the largest memory."""
    shutil.rmtree(project / ".tandem/checkpoints", ignore_errors=True)
    shutil.rmtree(project / f"results/runs/{workload}/{device}/replicate", ignore_errors=True)
    params = YAML().load(project / "params.yaml")
    params["seeds"] = list(range(number + 1))
    write_params(project, params)
    words = ["replicate", workload, device] if number else ["train", workload, device, "0"]
    gpu = nvml.cached_gpu(uuid) if uuid else None
    start, host_mib, device_mib = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen(
        [*STAGE, *words], cwd=project, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        host_mib = max(host_mib, memory_mib(process.pid))
        used = gpu.ask("device_mib") if gpu else 0.0
        device_mib = max(device_mib, 0.0 if isinstance(used, str) else used)
        time.sleep(0.2)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{errors}")
    return {"seconds": time.perf_counter() - start, "host_mib": host_mib, "device_mib": device_mib}


def memory_mib(pid: int) -> float:
    """The memory of a process and of those that it started, except the publisher."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (root := psutil.Process(pid), *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "tandem.runs.publisher" not in process.cmdline():
                    total += process.memory_full_info().pss
    return total / 2**20


if __name__ == "__main__":
    main()
