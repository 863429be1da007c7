"""Time and peak memory of preprocess by size of the table, 20 steps x 8 features per sequence.

    python -m benchmarks.preprocess [--sequences 1000 10000 100000 1000000] [--csv-up-to 100000] [--folder DIR]

Every size runs in a new process, from the file on disk to the written arrays, as in `dvc repro`. "Table" is the table's
memory as plain columns (int64 ids, steps and labels, float64 features: 88 bytes per row). Peak is the process's largest
resident size minus its size after the imports, so that the fixed cost of the libraries does not hide the growth with
the data. 1,000,000 sequences need up to 8 GiB of memory and 3 GiB of disk.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NUM_STEPS, NUM_FEATURES, NUM_CLASSES = 20, 8, 10
BYTES_PER_ROW = 8 * (3 + NUM_FEATURES)
FEATURES = tuple(f"f{index}" for index in range(NUM_FEATURES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--csv-up-to", type=int, default=100_000, help="CSV is slow to read; larger tables as Parquet only"
    )
    parser.add_argument("--folder", type=Path, help="where the tables go (default: the system's temporary folder)")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        context, table, target = options.step
        print(json.dumps(JOBS[context](Path(table), Path(target))))
        return
    print(f"{describe_machine()}\n")
    print("| format | sequences | rows | seconds | rows per second | table, MiB | peak, MiB | peak / table |")
    print("|---|---|---|---|---|---|---|---|")
    seconds: dict[str, dict[int, float]] = {".parquet": {}, ".csv": {}}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for ending in seconds:
            for number in options.sequences:
                if ending == ".csv" and number > options.csv_up_to:
                    continue
                table = Path(folder) / f"table{ending}"
                in_fresh_process("make", table, Path(str(number)))
                found = in_fresh_process("prepare", table, Path(folder) / "prepared")
                seconds[ending][number] = found["seconds"]
                rows, peak = number * NUM_STEPS, found["peak_bytes"] / 2**20
                size = rows * BYTES_PER_ROW / 2**20
                print(
                    f"| {ending[1:]} | {number:,} | {rows:,} | {found['seconds']:.2f} | {rows / found['seconds']:,.0f} "
                    f"| {size:,.1f} | {peak:,.1f} | {peak / size:.2f} |",
                    flush=True,
                )
    print()
    for ending, found in seconds.items():
        # Start-up dominates small sizes; from 100,000 rows on the table does.
        sizes = [number for number in sorted(found) if number >= 10_000]
        for small, large in zip(sizes, sizes[1:], strict=False):
            ratio = found[large] / found[small]
            print(
                f"{ending[1:]}: {large / small:g} times the sequences took {ratio:.1f} times the time "
                f"({small:,} to {large:,})"
            )


def in_fresh_process(context: str, table: Path, target: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.preprocess", "--step", context, str(table), str(target)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    return json.loads(done.stdout.splitlines()[-1])


def make(table: Path, number: Path) -> dict[str, float]:
    """Random walks, one row group per 100,000 sequences; labels are whole numbers."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema = pa.schema(
        [
            ("sequence", pa.int64()),
            ("step", pa.int64()),
            *((name, pa.float64()) for name in FEATURES),
            ("label", pa.int64()),
        ]
    )
    draw, total, chunk = np.random.default_rng(0), int(str(number)), 100_000
    writer = (pa.parquet.ParquetWriter if table.suffix == ".parquet" else pa.csv.CSVWriter)(table, schema)
    with writer:
        for low in range(0, total, chunk):
            count = min(chunk, total - low)
            columns = {
                "sequence": np.repeat(np.arange(low, low + count), NUM_STEPS),
                "step": np.tile(np.arange(NUM_STEPS), count),
                **{name: draw.normal(size=(count, NUM_STEPS)).cumsum(axis=1).ravel() for name in FEATURES},
                "label": np.repeat(np.arange(low, low + count) % NUM_CLASSES, NUM_STEPS),
            }
            writer.write_table(pa.table(columns, schema=schema))
    return {}


def prepare(table: Path, target: Path) -> dict[str, float]:
    from stages.data import sequences, write_arrays
    from stages.params.schema import Columns, SequenceTable, Split

    params = SequenceTable(
        source="sequences",
        table=table.name,
        columns=Columns(sequence="sequence", step="step", features=FEATURES, label="label"),
        split=Split(train=0.8, val=0.1, test=0.1),
        seed=0,
        velocity=True,
        missing="refuse",
        groups="none",
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    write_arrays(target, sequences.prepare(params, table.parent, per_step=False))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return {"seconds": seconds, "peak_bytes": (peak - before) * kilobyte}


JOBS = {"make": make, "prepare": prepare}


def describe_machine() -> str:
    import pandas as pd
    import pyarrow as pa

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return (
        f"{model}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {np.__version__}, pandas {pd.__version__}, pyarrow {pa.__version__}"
    )


if __name__ == "__main__":
    main()
