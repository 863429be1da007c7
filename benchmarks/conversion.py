"""Time and peak memory of new_workload by size of the converted data: 100 steps x 3 channels per sequence.

    python -m benchmarks.conversion [--sequences 1000 10000 100000] [--shapes wide folder npy ts lists]

Every size runs in a new process, from the files on disk to the plan of the workload: detection of the shape,
conversion, inference and dry run. Peak is the process's largest resident size minus its size after the imports. The
folder has a file per sequence. 200,000 sequences take up to 500 MiB of disk in each shape, and
`--sequences 2700000 --shapes wide` 5 GB.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import numpy as np

from benchmarks.preprocess import describe_machine

NUM_STEPS, NUM_CHANNELS, NUM_CLASSES = 100, 3, 5
BLOCK = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shapes", nargs="+", choices=tuple(MAKERS), default=list(MAKERS))
    parser.add_argument("--folder", type=Path, help="where the data goes (default: the system's temporary folder)")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job, path, number = options.job
        print(json.dumps(JOBS[job](Path(path), int(number)) or {}))
        return
    print(f"{describe_machine()}\n")
    print(
        "| shape | sequences | on disk, MiB | table, MiB | conversion, s | sequences/s | in all, s | peak memory, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for shape in options.shapes:
        for number in options.sequences:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                path = Path(folder) / NAMES[shape]
                in_fresh_process(f"make {shape}", path, number)
                found = in_fresh_process("plan", path, number)
                source, table = found["source_bytes"] / 2**20, found["table_bytes"] / 2**20
                print(
                    f"| {shape} | {number:,} | {source:,.0f} | {table:,.0f} | "
                    f"{found['conversion']:.1f} | {number / found['conversion']:,.0f} | {found['seconds']:.1f} | "
                    f"{found['peak_bytes'] / 2**20:,.0f} |",
                    flush=True,
                )


def in_fresh_process(job: str, path: Path, number: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.conversion", "--job", job, str(path), str(number)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def walks(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, T, C) and their labels (n,), for the block that starts with sequence `number`."""
    draw = np.random.default_rng(number)
    return draw.normal(size=(BLOCK, NUM_STEPS, NUM_CHANNELS)).cumsum(axis=1).round(3), np.arange(BLOCK) % NUM_CLASSES


def make_wide(path: Path, number: int) -> None:
    names = [f"{channel}_{step}" for channel in "xyz" for step in range(NUM_STEPS)]
    with path.open("w") as file:
        file.write(",".join(["label", *names]) + "\n")
        for low in range(0, number, BLOCK):
            values, labels = walks(low)
            for each, label in zip(values[: number - low], labels, strict=False):
                file.write(f"class {label}," + ",".join(map(str, each.T.ravel().tolist())) + "\n")


def make_folder(path: Path, number: int) -> None:
    for low in range(0, number, BLOCK):
        values, labels = walks(low)
        for place, (each, label) in enumerate(zip(values[: number - low], labels, strict=False), start=low):
            folder = path / f"class {label}"
            folder.mkdir(parents=True, exist_ok=True)
            lines = [",".join(map(str, step)) for step in each.tolist()]
            (folder / f"r{place:07}.csv").write_text("\n".join(["x,y,z", *lines, ""]))


def make_npy(path: Path, number: int) -> None:
    array = np.lib.format.open_memmap(path, "w+", np.float32, (number, NUM_STEPS, NUM_CHANNELS))
    for low in range(0, number, BLOCK):
        array[low : low + BLOCK] = walks(low)[0][: number - low]
    np.save(path.with_name("y.npy"), np.arange(number) % NUM_CLASSES)


def make_ts(path: Path, number: int) -> None:
    with path.open("w") as file:
        file.write("@problemName all\n@univariate false\n@classLabel true 0 1 2 3 4\n@data\n")
        for low in range(0, number, BLOCK):
            values, labels = walks(low)
            for each, label in zip(values[: number - low], labels, strict=False):
                file.write(":".join([*(",".join(map(str, channel)) for channel in each.T.tolist()), str(label)]) + "\n")


def make_lists(path: Path, number: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    writer = None
    for low in range(0, number, BLOCK):
        values, labels = (part[: number - low] for part in walks(low))
        columns = {channel: list(values[:, :, place]) for place, channel in enumerate("xyz")}
        table = pa.table(columns | {"label": labels})
        writer = writer or pa.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


def plan(path: Path, number: int) -> dict[str, float]:
    from stages.tools import long_table, new_workload

    before, seconds, write = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [], long_table.write

    def timed(*arguments: object) -> long_table.Index:
        start = time.perf_counter()
        index = write(*arguments)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
        return index

    long_table.write = timed
    words: Namespace = new_workload.make_parser().parse_args(["mine", str(path)])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = new_workload.make_plan(words, Path(scratch))
        elapsed = time.perf_counter() - start
        table_bytes = made.table.stat().st_size
    assert made.summary["num_sequences"] == number, made.summary["num_sequences"]
    files = [path] if path.is_file() else [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "source_bytes": sum(file.stat().st_size for file in files),
        "table_bytes": table_bytes,
        "conversion": sum(seconds),
        "seconds": elapsed,
        "peak_bytes": (peak - before) * 1024,
    }


MAKERS = {"wide": make_wide, "folder": make_folder, "npy": make_npy, "ts": make_ts, "lists": make_lists}
NAMES = {"wide": "wide.csv", "folder": "files", "npy": "X.npy", "ts": "all.ts", "lists": "lists.parquet"}
JOBS = {"plan": plan, **{f"make {name}": make for name, make in MAKERS.items()}}

if __name__ == "__main__":
    main()
