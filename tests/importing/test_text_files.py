"""Text of any encoding, separator, line end and compression; other formats are named."""

import bz2
import gzip
import json
import lzma
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tandem.importing import text_tables
from tests.own_tables import LABELS, clips, planned, refusal, saved
from tests.shapes import written


@pytest.mark.parametrize(
    ("name", "options", "encoding"),
    [
        ("UP.CSV", {}, "utf-8"),
        ("t.csv", {}, "utf-8-sig"),
        ("t.csv", {}, "utf-16"),
        ("t.csv", {}, "windows-1252"),
        ("t.csv", {"sep": ";", "decimal": ","}, "utf-8"),
        ("t.tsv", {"sep": "\t"}, "utf-8"),
        ("t.txt", {"sep": " "}, "utf-8"),
        ("t.txt", {"sep": "|"}, "utf-8"),
    ],
)
def test_text_of_any_encoding_and_separator_is_read(tmp_path: Path, name: str, options: dict[str, Any], encoding: str):
    table = clips(LABELS).rename(columns={"label": "événement" if encoding.startswith("win") else "label"})
    (tmp_path / name).write_bytes(table.to_csv(index=False, **options).encode(encoding))
    plan, plain = planned(tmp_path / name), planned(saved(table, tmp_path / "plain.csv"))
    assert plan.summary["sha256"] == plain.summary["sha256"]
    assert plan.workload.preprocess.columns.label == table.columns[-1]


@pytest.mark.parametrize("name", ["t.csv.gz", "a_gzip_called.csv", "t.csv.bz2", "t.csv.xz", "t.zip"])
def test_compressed_text_is_read(tmp_path: Path, name: str):
    data = saved(clips(LABELS), tmp_path / "plain.csv").read_bytes()
    if name == "t.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("t.csv", data)
    else:
        compress = {"bz2": bz2.compress, "xz": lzma.compress}.get(name.split(".")[-1], gzip.compress)
        (tmp_path / name).write_bytes(compress(data))
    assert planned(tmp_path / name).summary["sha256"] == planned(tmp_path / "plain.csv").summary["sha256"]


def test_text_cells_keep_their_characters(tmp_path: Path):
    labels = ["007", "NA", "a, b"]
    clips(labels * 8).to_csv(tmp_path / "t.csv", index=False, sep=";")
    assert planned(tmp_path / "t.csv").summary["classes"] == labels


@pytest.mark.parametrize("sep", [" ", ",", "\t"])
def test_blank_lines_between_blocks_of_numbers_are_refused(tmp_path: Path, sep: str):
    """The lines once were dropped: a file of blocks of steps was a row per sequence."""
    table = clips([1, 2, 3] * 8).drop(columns=["frame", "label"])
    blocks = [part.drop(columns="clip").to_csv(sep=sep, index=False, header=False) for _, part in table.groupby("clip")]
    path = written(tmp_path / "it's mine.txt", "\n".join(blocks) + "\n")
    assert "has blank lines between blocks of rows, which may be sequences; number them" in refusal(path)
    header = sep.join(table.columns[1:])
    for label, name in enumerate(("punch", "flex")):
        written(tmp_path / f"d/{name}.csv", "\n".join([header, *blocks[label::2]]))
    code = refusal(tmp_path / "d").partition("number them: ")[2].partition("; then give")[0]
    exec(code.replace("new.csv", f"{tmp_path}/new.csv"), {})  # noqa: S102
    plan = planned(tmp_path / "new.csv")
    assert (plan.summary["num_sequences"], plan.summary["classes"]) == (24, ["flex", "punch"])
    for label, name in enumerate(("punch", "flex")):  # lines of dashes once were missing points
        written(
            tmp_path / f"dashes/{name}_it's.txt", "".join(f"{sep.join('--')}\n{block}\n" for block in blocks[label::2])
        )
    code = refusal(tmp_path / "dashes", "--pattern", "{label}_*").partition("for each: ")[2].partition("; then give")[0]
    exec(code.replace("'new'", repr(f"{tmp_path}/new")), {})  # noqa: S102
    assert planned(tmp_path / "new", "--pattern", "{label}_*").summary["num_sequences"] == 24


def test_blank_lines_in_a_recording_of_a_folder_are_left_out(tmp_path: Path):
    for number, label in enumerate(LABELS):
        rows = clips([label], seed=number)[["f0", "f1"]].to_csv(index=False, header=False).splitlines()
        for folder, blank in (("plain", []), ("blocks", [""])):
            lines = [*rows[:2], *blank, *rows[2:4], *blank, *rows[4:], *rows[:2], ""]
            (tmp_path / folder).mkdir(exist_ok=True)
            written(tmp_path / folder / f"{label}_{number}.txt", "\n".join(lines))
    plain, blocks = (planned(tmp_path / name, "--pattern", "{label}_*") for name in ("plain", "blocks"))
    assert blocks.summary["sha256"] == plain.summary["sha256"]


@pytest.mark.parametrize("block_bytes", [400, 2 << 20])  # several blocks, and one
def test_old_line_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int):
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", block_bytes)
    text = clips(LABELS).to_csv(index=False)
    (tmp_path / "t.csv").write_bytes(text.replace("\n", "\r").encode())
    (tmp_path / "u.csv").write_text(text)
    plan, expected = planned(tmp_path / "t.csv"), planned(tmp_path / "u.csv")
    assert plan.summary["sha256"] == expected.summary["sha256"]
    (tmp_path / "t.csv").write_bytes(text.replace("\n", "\r").replace("c002,3,", "c002,3,x", 1).encode())
    line = text.splitlines().index(next(row for row in text.splitlines() if row.startswith("c002,3,"))) + 1
    assert f"line {line}: column 'f0'" in refusal(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda table, path: table.to_feather(path), "a Feather (Arrow) file; save it as Parquet"),
        (lambda table, path: table.to_html(path), "HTML or XML; save the table as CSV, e.g. pandas.read_html(path)"),
        (lambda table, path: table.to_json(path), "JSON; save the table as CSV, e.g. pandas.read_json(path)"),
        (lambda table, path: table.to_json(path, orient="records"), "JSON; save the table as CSV"),
        (lambda table, path: table.to_json(path, orient="records", lines=True), "JSON; save the table as CSV"),
        (lambda table, path: table.to_xml(path, parser="etree"), "HTML or XML"),
    ],
    ids="feather html json records lines xml".split(),
)
def test_a_table_in_another_format_is_named_by_it(tmp_path: Path, write: Any, words: str):
    write(clips(LABELS), tmp_path / "t.txt")
    assert f"{tmp_path / 't.txt'} is {words}" in refusal(tmp_path / "t.txt")


def test_arrays_in_json_are_refused_with_the_code_that_saves_them_as_npz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As tutorials on genres of music write MFCCs."""
    monkeypatch.chdir(tmp_path)
    data = {
        "mapping": ["pop", "rock"],
        "labels": [0, 1] * 12,
        "mfcc": [[[n, n * t] for t in range(9)] for n in range(24)],
    }
    written(path := tmp_path / "t.json", json.dumps(data, indent=4))
    code = refusal(path).partition("save them as npz: ")[2]
    exec(f"import json, numpy, pathlib; path = {str(path)!r}; {code}")  # noqa: S102
    assert planned(tmp_path / "new.npz", "--axes", "NTC").summary["num_sequences"] == 24
    written(path, json.dumps({"X": [[[1, 2]]], "y": [[1, 0]]}))
    assert "X=data['X'], y=data['y']" in refusal(path)


def test_lines_of_arduinos_monitor_are_refused_with_the_command_that_converts_them(tmp_path: Path):
    """The time and the first number were one cell of text, which was left out."""
    for seed, name in enumerate(["walk/1", "walk/2", "walk/3", "stand/1", "stand/2", "stand/3"]):
        rows = clips(["a"], seed=seed)[["f0", "f1"]].to_csv(index=False, header=False).splitlines()
        (path := tmp_path / f"d/{name}.csv").parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"15:42:{second:02}.123 -> {row}\n" for second, row in enumerate(rows)))
    command = re.search(r"(cp -r .*? \+) writes all files", refusal(tmp_path / "d"))
    subprocess.run(["sh", "-c", command[1]], check=True, cwd=tmp_path)
    assert len(planned(tmp_path / "new").workload.preprocess.columns.features) >= 2
