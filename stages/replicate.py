"""Train with the other seeds of params.yaml, several at a time: `python -m tandem.stage replicate WORKLOAD DEVICE`.

The stage `train` trains with the first seed, alone, and its times are the reported ones. This stage gives the score its
spread, so it measures nothing for each seed. On a CPU, each core trains one seed at a time, with one thread; each
process imports torch once and the processes share the memory-mapped data. On a GPU, one process trains one seed after
the other, and so do several workers (2xcpu).

Reads what `train` reads, and the first seed's settings: what `auto` chose there is not measured again. Writes two
folders to results/runs/<workload>/<device>/replicate/: `result` and `measured` have a folder for each seed, with the
same files as those of `train`, and seeds.json with the seeds.

Each seed has its own checkpoint. One that has failed, or whose process was killed, does not stop the others; the next
`dvc repro` trains only what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tandem import files
from tandem.devices.hardware import free_memory_bytes, usable_cores
from tandem.devices.names import is_accelerator, split_device
from tandem.params.reading import PARAMS, read_yaml
from tandem.stop_signals import REPLICATE_PID, Forwarding, StopSignals

SHARE_OF_HOST_MEMORY = 0.8  # of what is free


def main(workload: str, device: str) -> None:
    first_seed, *seeds = read_yaml(PARAMS)["seeds"]  # `hardware` has validated them
    outputs = [files.runs_dir(workload, device) / "replicate" / kind for kind in ("result", "measured")]
    for path in (path for folder in outputs for path in folder.glob("*")):
        if path.is_dir() and path.name not in map(str, seeds):
            shutil.rmtree(path)
    if seeds:
        replicate(workload, device, first_seed, seeds)
    for folder in outputs:
        files.write_json(folder / "seeds.json", {"seeds": seeds})


def replicate(workload: str, device: str, first_seed: int, seeds: Sequence[int]) -> None:
    """Train with `seeds`. Raises ValueError if one could not be trained."""
    num_at_once = concurrency(workload, device, first_seed, len(seeds))
    concurrently = f", {num_at_once} at a time" if num_at_once > 1 else ""
    print(f"{workload}: {len(seeds)} more seed{'s' * (len(seeds) > 1)}{concurrently}", flush=True)
    errors = train_all(workload, device, seeds, num_at_once)
    if errors:
        raise ValueError("; ".join(errors))


def concurrency(workload: str, device: str, first_seed: int, num_seeds: int) -> int:
    """How many seeds to train at a time: limited by the cores, and by the memory that the first seed needed."""
    if split_device(device)[0] > 1 or is_accelerator(files.read_json(files.hardware_file(device))["kind"]):
        return 1
    measured = files.seed_dir(workload, device, "train", "measured", first_seed)
    peak_mib = files.read_json(measured / "timing.json")["timing"]["peak_rss_mib"]
    num_in_memory = SHARE_OF_HOST_MEMORY * free_memory_bytes() / (peak_mib * 2**20) if peak_mib else num_seeds
    return max(1, int(min(num_seeds, usable_cores(), num_in_memory)))


def train_all(workload: str, device: str, seeds: Sequence[int], num_at_once: int) -> list[str]:
    """Train with `seeds` in `num_at_once` processes. Returns the errors.

    If the system kills a process, which it does if memory runs out, its seeds are trained one after the other.
    """
    # Several workers need a launcher for each training.
    num_shares = len(seeds) if split_device(device)[0] > 1 else num_at_once
    shares = [seeds[index::num_shares] for index in range(num_shares)]
    with Forwarding() as stop:
        killed, errors = run_all(workload, device, shares, num_at_once, stop)
        if killed and num_at_once > 1 and not stop.stop_requested:
            print("a process was killed; its seeds are trained one after the other", flush=True)
            killed, more_errors = run_all(workload, device, [killed], 1, stop)
            errors += more_errors
    if stop.stop_requested:
        raise KeyboardInterrupt
    if killed:
        names = ", ".join(map(str, killed))
        errors.append(f"the process of seed {names} was killed; the system does this if memory runs out (see dmesg)")
    return errors


def run_all(
    workload: str, device: str, shares: Sequence[Sequence[int]], num_at_once: int, stop: StopSignals
) -> tuple[list[int], list[str]]:
    """Run a process for each share of the seeds. Returns the seeds of killed processes, and the errors of others."""
    killed, errors = list[int](), list[str]()

    def run(share: Sequence[int]) -> None:
        if stop.stop_requested:
            return
        status, printed = run_process(
            [sys.executable, "-m", "tandem.stage", "train", workload, device, *map(str, share)]
        )
        if status < 0:
            killed.extend(share)
        elif status:
            errors.extend(printed or [f"the process of seed {', '.join(map(str, share))} failed"])

    with ThreadPoolExecutor(num_at_once) as pool:
        list(pool.map(run, shares))
    return killed, errors


def run_process(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run `command` and print what it prints, except its errors. Returns the exit status and the errors."""
    errors = []
    with subprocess.Popen(
        command,
        cwd=files.ROOT,
        env={**os.environ, REPLICATE_PID: str(os.getpid()), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl+C reaches it once, through this process
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("error: "):
                errors.append(line.removeprefix("error: ").strip())
            else:
                print(line, end="", flush=True)
    return process.returncode, errors
