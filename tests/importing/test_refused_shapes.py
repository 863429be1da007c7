"""What cannot be read gets one sentence, whatever shape it has."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import refusals
from tests.own_tables import clips, planned, saved
from tests.shapes import LABELS, padded, wide_table, write_files, written


def arrays(path: Path, **named: np.ndarray) -> Path:
    np.savez(path, **named)
    return path


def flat(folder: Path) -> Path:
    return write_files(folder / "d", lambda number: f"r_{number}.csv")


def with_other_columns(folder: Path, text: str = "x,z\n1,2\n") -> Path:
    write_files(folder / "d", lambda number: f"{LABELS[number]}/{number}.csv")
    return written(folder / "d/push/3.csv", text).parents[1]


def with_a_clock(folder: Path) -> Path:
    write_files(folder / "d", lambda number: f"{LABELS[number]}/{number}.csv", header=False)
    for path in folder.glob("d/*/*"):
        path.write_text("1550000000.0,1550000000.0\n32.0,32.0\n" + path.read_text())
    return folder / "d"


def wide_with(folder: Path, column: str, cell: str) -> Path:
    table = wide_table().astype(object)
    table.loc[4, column] = cell
    table.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def without_an_id(folder: Path) -> Path:
    table = clips(["a", "b"] * 10)
    table["clip"] = pd.factorize(table["clip"])[0]
    table.loc[10, "clip"] = None
    return saved(table, folder / "t.csv")


def with_a_column_twice(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table([[1.0, 2.0], [0.0, 1.0]], names=["x", "x"]), path)
    return path


def torn(path: Path) -> Path:
    """The file with some bytes changed after its first half."""
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 20]) + data[middle + 20 :])
    return path


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda at: at / "no.csv", "", "no.csv is not there; give the path of a table"),
        (lambda at: at / "recordings", "--pattern {label}_*", "recordings is not there; give the path of a table"),
        (lambda at: written(at / "t.csv", b""), "", "is empty"),
        (lambda at: written(at / "t.csv", b"\xff\xfe\x00"), "", "is empty"),
        (lambda at: written(at / "t.csv", b"a,b\0c\n1,2,3\n"), "", "holds zero bytes"),
        (lambda at: written(at / "t.xlsx", b"\xd0\xcf\x11\xe0more"), "", "an Excel file; save the sheet as CSV"),
        (lambda at: written(at / "t.pkl", b"\x80\x04more"), "", "a Python pickle, which is never opened"),
        (
            lambda at: written(at / "t.fit", b"\x0e\x10T\x08\xf4\x01\0\0.FIT"),
            "",
            "t.fit is a FIT file of a sports watch",
        ),
        (
            lambda at: written(at / "d/t.fit", b"\x0e\x10T\x08\xf4\x01\0\0.FIT").parent,
            "",
            "t.fit is a FIT file of a sp",
        ),
        (
            lambda at: written(at / "d/t.csv", 'Name,Ann\nDevice,"Watch4,1"\n\nUnit,uV\n\n' + "1.5\n" * 9).parent,
            "",
            r"has 4 lines about the recording above its numbers; \(echo value; tail -n \+5 ",
        ),
        (lambda at: written(at / "t.parquet", b"clip,frame"), "", "cannot be read"),
        (lambda at: written(at / "t.arff", "% eye\n\n@RELATION eye\n@DATA\n1,2\n"), "", "is ARFF; save it as CSV"),
        (lambda at: with_a_column_twice(at / "t.parquet"), "", "t.parquet has 2 columns 'x'; rename all but one"),
        (
            lambda at: with_a_column_twice(with_a_column_twice(at / "d/a_1.parquet").with_name("b_1.parquet")).parent,
            "--pattern {label}_*",
            "a_1.parquet has 2 columns 'x'; rename all but one",
        ),
        (lambda at: written(at / "d/x.jpg", "a").parent, "", r"a folder of 1 files \(.jpg\), none a sequence"),
        (flat, "", "nothing says which label the 18 sequences"),
        (flat, "--pattern {label}-*", "does not fit 18 of 18 names"),
        (with_a_clock, "", r"begins with the time of its start and the rate, .*; leave these two lines out"),
        (lambda at: with_other_columns(at, "x\n1\n2\n"), "", r"3.csv has other columns than .*0.csv \(y\); make them"),
        (with_other_columns, "", r"3.csv has other columns than .*0.csv \(y, z\)"),
        (lambda at: arrays(at / "a.npz", X=np.ones((4, 5, 2, 2))), "", r"X \(4, 5, 2, 2\); accepted: numbers \(N, T"),
        (
            lambda at: arrays(at / "a.npz", X=np.ones((4, 5)), y=np.ones(3)),
            "",
            r"a.npz: y \(3,\) does not go with a.npz: X",
        ),
        (lambda at: arrays(at / "a.npz", X=np.array([[1], [1, 2]], dtype=object)), "", "which only pickle"),
        (
            lambda at: arrays(at / "a.npz", X=padded(), y=np.eye(3)[[0, 1, 2] * 6]),
            "",
            r"y \(18, 3\): .*e.g. y.argmax\(axis=1\)$",
        ),
        (
            lambda at: arrays(at / "a.npz", X=padded(), y=np.ones((18, 3))),
            "",
            r"give one number each, e.g. y\[:, 0\]$",
        ),
        (lambda at: arrays(at / "a.npz", X=padded()), "", "a.npz has no labels: put an array y"),
        (lambda at: wide_with(at, "y_1", "abc"), "", "column 'y_1' must hold numbers, found 'abc' in line 6; correct"),
        (
            lambda at: wide_with(at, "label", ""),
            "",
            r"row 29 \(sequence 4\): column 'label' is empty",
        ),
        (
            lambda at: arrays(at / "a.npz", X_train=padded(), y_train=LABELS, X_test=padded() * np.nan, y_test=LABELS),
            "",
            "a.npz: X_test: sequence 0 has no value at all; leave it out",
        ),
        (without_an_id, "", r"t.csv, line 12: column 'clip' is empty"),
        (lambda at: torn(arrays(at / "a.npz", X=np.ones((200, 100)), y=np.ones(200))), "", "a.npz: X cannot be read"),
        (
            lambda at: written(at / "a.ts", "@classLabel true a\n@data\n1:a\n1,b:a"),
            "",
            "a.ts, line 4: must hold numbers",
        ),
        (lambda at: written(at / "a.ts", "@data\n1,2,3,4:5,6,7,9\n2,3,4,6:5,6,7,8"), "", "sequence' and give --time$"),
        (lambda at: written(at / "a.ts", "@timestamps true\n@data\n(1,2):a"), "", "has time stamps"),
        (lambda at: written(at / "t.tsv", "a\tb\tc\n"), "", "t.tsv has a header but 0 rows"),
        (lambda at: written(at / "t.csv", "1\n2\n"), "--layout wide", r"has no 4 numbered columns"),
        (lambda at: written(at / "t.csv", "1,a\n2,b\n"), "", r"t.csv has no header \(its first row is|no column"),
    ],
)
def test_a_shape_that_cannot_be_read_gets_one_sentence(tmp_path: Path, make: Any, options: str, words: str):
    path = make(tmp_path)
    assert re.search(words, refusals.sentence(lambda: planned(path, *options.split())))
