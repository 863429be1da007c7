"""Time and peak memory of preprocess by size of the table, 20 steps x 8 features per sequence.

    python -m benchmarks.preprocess [--sequences 1000 10000 100000 1000000] [--csv-up-to 100000] [--folder DIR]

Every size runs in a new process, from the file on disk to the written arrays, as in `dvc repro`. "Table" is the table's
memory as plain columns (int64 ids, steps and labels, float64 features: 88 bytes per row). Peak is the process's largest
resident size minus its size after the imports, so that the fixed cost of the libraries does not hide the growth with
the data. 1,000,000 sequences need up to 8 GiB of memory and 3 GiB of disk.
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import header, machine_sentence, row

PACKAGES = ("numpy", "pandas", "pyarrow")
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
    options = parser.parse_args()
    print(f"{machine_sentence(packages=PACKAGES)}\n")
    columns = ("format", "sequences", "rows", "seconds", "rows per second", "table, MiB", "peak, MiB", "peak / table")
    print(header(*columns))
    sizes = {".parquet": options.sequences, ".csv": [num for num in options.sequences if num <= options.csv_up_to]}
    seconds: dict[str, dict[int, float]] = {ending: {} for ending in sizes}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for ending, number in [(ending, number) for ending, numbers in sizes.items() for number in numbers]:
            table, rows = Path(folder) / f"table{ending}", number * NUM_STEPS
            in_fresh_process(make, table, number)
            spent, peak_bytes = in_fresh_process(prepare, table, Path(folder) / "prepared")
            seconds[ending][number] = spent
            peak, size = peak_bytes / 2**20, rows * BYTES_PER_ROW / 2**20
            cells = (f"{spent:.2f}", f"{rows / spent:,.0f}", f"{size:,.1f}", f"{peak:,.1f}", f"{peak / size:.2f}")
            print(row(ending[1:], f"{number:,}", f"{rows:,}", *cells), flush=True)
    print()
    for ending, found in seconds.items():
        # Start-up dominates small sizes; from 100,000 rows on the table does.
        for small, large in pairwise(number for number in sorted(found) if number >= 10_000):
            print(
                f"{ending[1:]}: {large / small:g} times the sequences took {found[large] / found[small]:.1f} times the "
                f"time ({small:,} to {large:,})"
            )


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The largest resident size of a process never shrinks, so each measurement has a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def largest_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def make(table: Path, total: int) -> None:
    """Random walks, one row group per 100,000 sequences; labels are whole numbers."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    keys = [(name, pa.int64()) for name in ("sequence", "step")]
    schema = pa.schema([*keys, *((name, pa.float64()) for name in FEATURES), ("label", pa.int64())])
    draw, chunk = np.random.default_rng(0), 100_000
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


def prepare(table: Path, target: Path) -> tuple[float, int]:
    """Seconds, and the growth of the largest resident size in bytes."""
    from tandem.data import sequences, write_arrays
    from tandem.params.schema import Columns, SequenceTable, Split

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
    before, start = largest_resident_bytes(), time.perf_counter()
    write_arrays(target, sequences.prepare(params, table.parent, "class"))
    return time.perf_counter() - start, largest_resident_bytes() - before


if __name__ == "__main__":
    main()
