"""What a table of sequences must not have: each is named with its line, before anything is written."""

import gzip
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data.tables import find_table
from tandem.params.parsing import parse
from tandem.params.schema import SequenceTable
from tests.data.test_sequences import HEADER, PARAMS, make_table, prepare, prepared, refused
from tests.refusals import sentence


@pytest.mark.case(1)
def test_a_missing_table_is_named(tmp_path: Path, saw: Callable[[str], None]):
    saw(sentence(lambda: find_table(tmp_path, "mine.csv"), "mine.csv is not there", "workloads/README.md"))


@pytest.mark.parametrize("name", ["../x.csv", "/etc/x.csv", "a/../../x.csv"])
@pytest.mark.case(13)
def test_a_table_outside_the_folder_is_refused(name: str, saw: Callable[[str], None]):
    """a table above the folder, or anywhere on the disk"""
    raw = {**asdict(PARAMS), "table": name}
    saw(sentence(lambda: parse(SequenceTable, raw, "preprocess"), "must be in the workload's folder"))


def with_cell(column: int, cell: str) -> str:
    """The table with another cell in line 6."""
    lines = make_table().to_csv(index=False).splitlines()
    cells = lines[5].split(",")
    cells[column] = cell
    return "\n".join([*lines[:5], ",".join(cells), *lines[6:]])


def with_split(*words: str, **changes: Any) -> str:
    table = make_table().assign(**changes)
    return table.assign(split=np.repeat(words, 40 // len(words))[table["sequence"]]).to_csv(index=False)


def label_of(sequences: list[int], label: str) -> pd.Series:
    table = make_table()
    return table["label"].mask(table["sequence"].isin(sequences), label)


def rows(*lines: str) -> str:
    return "\n".join([HEADER, *lines])


def case(number: int, text: str, *words: str) -> Any:
    return pytest.param(text, words, marks=pytest.mark.case(number))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        case(2, "", "table.csv is empty", "0 bytes"),
        case(2, HEADER + "\n", "table.csv has a header but 0 rows"),
        *(
            case(3, with_cell(2, cell), "line 6", "column 'x'", "finite numbers", cell.replace("nan", ""))
            for cell in ("", "nan", "inf", "left", "12abc", "1_0", "٣")  # Python takes the last two for numbers
        ),
        case(3, with_cell(2, "1,5"), "table.csv cannot be read", "line 6"),
        (rows("a,0,1,2,p", "a,soon,1,2,p"), ["line 3", "column 'step'"]),
        (rows("a,0,1,2,p", "a,1,1,2,q"), ["line 3", "column 'label'"]),
        (rows("a,0,1,2,p", "a,1,1,2,p", ",0,1,2,q"), ["line 4", "column 'sequence'"]),
        (rows("a,0,1,2,p", "a,1,1,2,"), ["line 3", "column 'label'"]),
        (rows("a,0,1,2,p", "a,1,1,2,p", "a,1,3,4,p"), ["'step' repeats in sequence a, lines 3 and 4;"]),
        (rows("a,1,1,2,p", "a,0,1,2,p", "", "a,0,3,4,p", "a,1,3,4,p"), ["lines 3 and 5 (2 repeated rows in all)"]),
        (rows("a,0,1,2,p", "a,1,1,2,p,7,8"), ["table.csv cannot be read", "line 3"]),
        (rows("a,0,1,2,p", "", 'a,1,"1",2,p', "", "b,0,left,2,q", "b,1,1,2,q"), ["line 6", "found left"]),
        (rows("a,0,1,2,p").replace("label", "lable"), ["no column 'label'", "did you mean 'lable'?", "sequence, step"]),
        case(4, rows("a,0,1,2,p", "a,1,1,2,p", "b,0,1,2,q"), "sequence 'b' has 1 step", "at least 2"),
        case(
            5,
            make_table().assign(label=label_of([0, 1], "rare")).to_csv(index=False),
            "class 'rare' has too few sequences (2)",
            "3 splits",
        ),
        (make_table().assign(x=1.0, y=2.5).to_csv(index=False), ["no feature ever changes (x, y)"]),
        (
            make_table().assign(x=lambda table: table.step, y=lambda table: table.step).to_csv(index=False),
            ["no sequence is left", "40 only 1 differ"],
        ),
        (with_split("train", "val", "", "test"), ["line 122", "must be train, val or test", "found (empty)"]),
        (with_split("train", "val", "trial", "test"), ["line 122", "must be train, val or test", "found trial"]),
        (with_split("train", "train", "train", "val"), ["no test rows"]),
        case(8, with_split(*["train"] * 5, "val", *["test"] * 2, label=label_of([39], "new")), "label 'new' occurs in"),
    ],
)
def test_a_table_that_is_refused_is_named_with_its_line(
    tmp_path: Path, text: str, words: list[str], saw: Callable[[str], None]
):
    saw(refused(tmp_path, text, *words))


def test_a_label_that_joins_two_labels_is_refused(tmp_path: Path):
    table = make_table()
    table.loc[table["sequence"] == 3, "label"] = "class 0|class 1"
    refused(tmp_path, table.to_csv(index=False), "'class 0|class 1', which looks like 2 labels", "yes and no for each")
    table = table.assign(label=table.label.replace({"class 0|class 1": "up|down"}))
    table.loc[table["sequence"] < 16, "label"] = "up|down"  # a name like any other
    assert "up|down" in prepared(tmp_path, table).sequences.classes


def test_a_nan_among_numbers_that_name_classes_or_sequences_is_an_empty_cell(tmp_path: Path):
    """Parquet has NaN as well as empty cells; pandas writes the latter, and others NaN."""
    table, path = make_table(), tmp_path / "table.parquet"
    columns: dict[str, Any] = {**table, "label": (table["sequence"] % 4).astype(float)}
    for column in ("label", "sequence"):
        numbers = columns[column].astype(float).to_numpy(copy=True)
        numbers[12:18] = np.nan  # the third sequence
        pq.write_table(pa.table({**columns, column: pa.array(numbers)}), path)
        words = f"row 13: column {column!r} is empty (6 rows in all)"
        sentence(lambda: prepare(path, PARAMS), words)


def test_a_damaged_table_is_named(tmp_path: Path):
    whole = gzip.compress(make_table().to_csv(index=False).encode())
    (tmp_path / "table.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and no more")
    for name in ("table.csv.gz", "table.parquet"):
        with pytest.raises(ValueError, match=rf"{re.escape(name)}.*(cannot be read|not a parquet file)"):
            prepare(tmp_path / name, PARAMS)
