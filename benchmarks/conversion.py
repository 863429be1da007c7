"""Time and peak memory of new_workload by size of the converted data: 100 steps x 3 channels per sequence.

    python -m benchmarks.conversion [--sequences 1000 10000 100000] [--shapes wide folder npy ts lists]

Every size runs in a new process, from the files on disk to the plan of the workload: detection of the shape,
conversion, inference and dry run. Peak is the process's largest resident size minus its size after the imports. The
folder has a file per sequence. 200,000 sequences take up to 500 MiB of disk in each shape, and
`--sequences 2700000 --shapes wide` 5 GB.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.markdown import describe_machine, header, row
from benchmarks.preprocess import PACKAGES, in_fresh_process, largest_resident_bytes

NUM_STEPS, NUM_CHANNELS, NUM_CLASSES = 100, 3, 5
BLOCK = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--folder", type=Path, help="where the data goes (default: the system's temporary folder)")
    options = parser.parse_args()
    print(f"{describe_machine(packages=PACKAGES)}\n")
    columns = ("on disk, MiB", "table, MiB", "conversion, s", "sequences/s", "in all, s", "peak memory, MiB")
    print(header("shape", "sequences", *columns))
    for shape in options.shapes:
        make, name = SHAPES[shape]
        for number in options.sequences:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                in_fresh_process(make, Path(folder) / name, number)
                sizes, conversion, seconds = in_fresh_process(plan, Path(folder) / name, number)
            source, table, peak = (f"{size / 2**20:,.0f}" for size in sizes)
            times = (f"{conversion:.1f}", f"{number / conversion:,.0f}", f"{seconds:.1f}")
            print(row(shape, f"{number:,}", source, table, *times, peak), flush=True)


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


def plan(path: Path, number: int) -> tuple[tuple[int, int, int], float, float]:
    """Bytes of source, table and memory; seconds of the conversion and of everything."""
    from tandem import cli
    from tandem.importing import long_table, new_workload

    before, seconds, write = largest_resident_bytes(), [], long_table.write

    def timed(*arguments: object) -> None:
        start = time.perf_counter()
        write(*arguments)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)

    long_table.write = timed
    words = cli.parse("new", new_workload, ["mine", str(path)])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = new_workload.make_plan(words, Path(scratch))
        elapsed = time.perf_counter() - start
        table_bytes = made.table.stat().st_size
    assert made.summary["num_sequences"] == number, made.summary["num_sequences"]
    files = [path] if path.is_file() else [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    source_bytes = sum(file.stat().st_size for file in files)
    return (source_bytes, table_bytes, largest_resident_bytes() - before), sum(seconds), elapsed


SHAPES = {  # how it is made, and its file or folder
    "wide": (make_wide, "wide.csv"), "folder": (make_folder, "files"), "npy": (make_npy, "X.npy"),
    "ts": (make_ts, "all.ts"), "lists": (make_lists, "lists.parquet"),
}  # fmt: skip

if __name__ == "__main__":
    main()
