"""Data in the shapes that people have it in: each becomes the same sequences."""

import bz2
import gzip
import lzma
import os
import re
import shlex
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from stages.data import open_source
from stages.data.arrays import PreparedSequences
from stages.tools import list_cells, new_workload, progress, trial
from tests.projects import ROOT

LABELS = ["push", "swipe", "twist"] * 6
PEOPLE = ["ann", "bob", "cid", "dan", "eve", "fay"]


def recordings(shortest: int = 5, num_channels: int = 2) -> list[np.ndarray]:
    """(T, C) each, of different lengths; numbers with three digits, which every format keeps."""
    draw = np.random.default_rng(0)
    return [draw.normal(size=(draw.integers(shortest, 9), num_channels)).round(3) for _ in LABELS]


def planned(path: Path, *options: str) -> tuple[new_workload.WorkloadPlan, PreparedSequences]:
    """The plan, and what preprocess makes of the table and the block that it would write."""
    with TemporaryDirectory(dir=path.parent) as scratch:
        plan = new_workload.make_plan(
            new_workload.make_parser().parse_args(["mine", str(path), *options]), Path(scratch)
        )
        params = plan.workload.preprocess
        (Path(scratch) / "again").mkdir()
        (Path(scratch) / "again" / plan.table_name).symlink_to(plan.table.resolve())
        return plan, open_source("sequences").prepare(params, Path(scratch) / "again", plan.workload.task == "detect")


def planned_only(path: Path, *options: str) -> new_workload.WorkloadPlan:
    with TemporaryDirectory(dir=path.parent) as scratch:
        return new_workload.make_plan(
            new_workload.make_parser().parse_args(["mine", str(path), *options]), Path(scratch)
        )


def said(plan: new_workload.WorkloadPlan) -> str:
    return "\n".join(new_workload.summary_lines(plan))


def expect(
    path: Path, *options: str, num_channels: int = 2, shortest: int = 5, ordered: bool = True
) -> new_workload.WorkloadPlan:
    """The sequences come out with their lengths, labels and values, whatever they came in."""
    plan, found = planned(path, *options)
    wanted, sequences = recordings(shortest, num_channels), found.sequences
    assert (plan.workload.task, len(sequences.ids)) == ("classify", len(wanted)), said(plan)
    assert sequences.classes == ("push", "swipe", "twist")
    raw = sequences.values[:, :, :num_channels] * found.std[:num_channels] + found.mean[:num_channels]
    order = range(len(wanted)) if ordered else [int(name.split("_")[-1]) for name in sequences.ids]
    for row, number in enumerate(order):
        assert sequences.lengths[row] == len(wanted[number])
        assert sequences.classes[sequences.labels[row]] == LABELS[number]
        np.testing.assert_allclose(raw[row, : len(wanted[number])], wanted[number], atol=1e-5)
    return plan


def long_table() -> pd.DataFrame:
    parts = [
        pd.DataFrame(
            {
                "clip": f"c_{number:02}",
                "frame": range(len(values)),
                "x": values[:, 0],
                "y": values[:, 1],
                "label": label,
            }
        )
        for number, (values, label) in enumerate(zip(recordings(), LABELS, strict=True))
    ]
    return pd.concat(parts, ignore_index=True)


def padded(num_channels: int = 2) -> np.ndarray:
    """(N, T, C), NaN after the end of each."""
    values = recordings(num_channels=num_channels)
    array = np.full((len(values), max(map(len, values)), num_channels), np.nan)
    for number, each in enumerate(values):
        array[number, : len(each)] = each
    return array


def wide_table() -> pd.DataFrame:
    array = padded()
    columns = {
        f"{name}_{step}": array[:, step, place] for place, name in enumerate("xy") for step in range(array.shape[1])
    }
    return pd.DataFrame({"label": LABELS, **columns})


# One row per sequence -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_one_row_per_sequence(tmp_path: Path, ending: str):
    path = tmp_path / f"wide.{ending}"
    wide = wide_table()
    wide.to_parquet(path) if ending == "parquet" else wide.to_csv(
        path, index=False, sep="," if ending == "csv" else "\t"
    )
    plan = expect(path)
    assert "one row per sequence: x_0, x_1, ..., x_7 are numbered" in said(plan) and "--layout long" in said(plan)
    assert plan.workload.preprocess.columns.features == ("x", "y")


def test_rows_without_a_header_as_archives_have_them(tmp_path: Path):
    array = np.nan_to_num(padded(1))[:, :, 0]
    for place, name in ((0, "first.txt"), (array.shape[1], "last.csv")):
        table = pd.DataFrame(array)
        table.insert(place, "label", [" abc".index(label[0]) if label[0] in "abc" else len(label) for label in LABELS])
        sep = "," if name.endswith("csv") else " "
        table.to_csv(tmp_path / name, index=False, header=False, sep=sep)
        plan, found = planned(tmp_path / name)
        assert found.sequences.classes == (4, 5) and found.sequences.values.shape[1] == array.shape[1]
        assert "it has no header" in said(plan) and f"column {place + 1} of {array.shape[1] + 1}" in said(plan)
        asked, again = planned(tmp_path / name, "--label", str(place + 1))
        assert asked.workload == plan.workload and (again.sequences.labels == found.sequences.labels).all()


def test_train_and_test_in_two_files_are_the_split(tmp_path: Path):
    wide = wide_table()
    for name, part in (("TRAIN", wide[:12]), ("TEST", wide[12:])):  # both count from 0: no sequence is another one's
        part.assign(id=range(len(part))).to_csv(tmp_path / f"Hand_{name}.csv", index=False)
    plan = expect(tmp_path / "Hand_TRAIN.csv")
    assert plan.summary["num_per_split"]["test"] == 6 and "Hand_TRAIN.csv and Hand_TEST.csv: its parts" in said(plan)
    assert "the table's own column `split`" in plan.block and "{train: 10, val: 2, test: 6}" in plan.block
    plan, found = planned(tmp_path / "Hand_TRAIN.csv", "--alone")
    assert len(found.sequences.ids) == 12
    with pytest.raises(ValueError, match="column 'id' holds '0' twice, and every row is a sequence"):
        planned(tmp_path / "Hand_TRAIN.csv", "--sequence", "id")
    for name in ("TRAIN", "TEST"):
        long_table().to_csv(tmp_path / f"Long_{name}.csv", index=False)
    assert "Long_TEST.csv: not read" in said(planned(tmp_path / "Long_TRAIN.csv")[0])


def test_columns_beside_the_steps_stay_with_their_sequence(tmp_path: Path):
    wide = wide_table()
    wide.insert(0, "id", [f"r{number:02}" for number in range(len(wide))])
    wide.insert(1, "person", [PEOPLE[number // 3] for number in range(len(wide))])
    wide.insert(2, "age", [20.5 + number // 3 for number in range(len(wide))])
    wide.insert(3, "x", 7.0)  # called as a feature is
    for number in range(5):
        wide.insert(4, f"q{number}", number)
    wide.to_csv(tmp_path / "wide.csv", index=False)
    plan = expect(tmp_path / "wide.csv")
    assert plan.workload.preprocess.groups == "person" and sum(plan.summary["num_groups"].values()) == 6
    assert plan.workload.preprocess.columns.features == ("x_", "y")
    assert "age (the same throughout every sequence)" in said(plan) and "--groups none: all mixed" in said(plan)
    assert "q0, q1, ..., q4: numbered, but not 8, so they belong to the sequence" in said(plan)
    asked = expect(tmp_path / "wide.csv", "--groups", "none", "--sequence", "id")
    assert asked.workload.preprocess.groups == "none" and "sequence  sequence: asked for" in said(asked)


# Lists in cells -------------------------------------------------------------------------------------------------------


def lists_table() -> pd.DataFrame:
    values = recordings()
    table = pd.DataFrame({name: [each[:, place] for each in values] for place, name in enumerate("xy")})
    return table.assign(label=LABELS, caption=[f"{number:02} " * 20 for number in range(len(LABELS))])


def test_lists_in_the_cells_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(list_cells, "BLOCK_CELLS", 40)
    table, files = lists_table(), tmp_path / "set/data"
    table.to_parquet(tmp_path / "t.parquet")
    files.mkdir(parents=True)
    parts = {"test-0-of-1": slice(12, 18), "train-0-of-2": slice(6), "train-1-of-2": slice(6, 12)}
    for name, rows in parts.items():
        table[rows].to_parquet(files / f"{name}.parquet")
    plan = expect(tmp_path / "t.parquet")
    assert "its cells are lists" in said(plan) and "lists     x, y: an entry for each step" in said(plan)
    assert plan.workload.preprocess.columns.features == ("x", "y")
    assert expect(tmp_path / "t.parquet", "--sequence", "caption").workload.preprocess.columns.sequence == "sequence"
    for path, num_test in ((tmp_path / "t.parquet", 3), (tmp_path / "set", 6)):
        with TemporaryDirectory(dir=tmp_path) as scratch:
            options = new_workload.make_parser().parse_args(["mine", str(path)])
            plan = new_workload.make_plan(options, Path(scratch))
            assert pq.ParquetFile(plan.table).num_row_groups >= 5  # block by block
        assert (plan.summary["num_sequences"], plan.summary["num_per_split"]["test"]) == (18, num_test)


def test_files_of_a_sequence_each_may_have_lists_beside_their_numbers(tmp_path: Path):
    for number, values in enumerate(recordings()):
        path = tmp_path / f"data/{LABELS[number]}/r_{number:02}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(values, columns=["x", "y"]).assign(pair=[[1, 2]] * len(values)).to_parquet(path)
    assert expect(tmp_path / "data", ordered=False).workload.preprocess.columns.features == ("x", "y")


def test_lists_of_words_are_events_and_others_get_one_sentence(tmp_path: Path):
    table, path = lists_table(), tmp_path / "t.parquet"
    words = [["none"] * 3 + ["hit"] + ["none"] * (len(each) - 4) for each in table["x"]]
    table.drop(columns="label").assign(event=words).to_parquet(path)
    plan, found = planned(path)
    assert plan.workload.task == "detect" and found.sequences.classes == ("none", "hit")
    table.assign(z=[each[1:] for each in table["x"]]).to_parquet(path)
    expect(path, "--features", "x,y")
    with pytest.raises(ValueError, match=r"row 1: 'x' has \d entries and 'z' \d; correct .* with --features"):
        planned(path)
    table.assign(x=[[[1.0, 2.0], [2.0, 3.0]]] * len(table)).drop(columns="y").to_parquet(path)
    with pytest.raises(ValueError, match="the cells of 'x' are lists of lists"):
        planned(path)


# A folder with a file per sequence ------------------------------------------------------------------------------------


def write_files(folder: Path, name: Callable[[int], str], header: bool = True) -> Path:
    for number, values in enumerate(recordings()):
        path = folder / name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, values)
        elif path.suffix == ".parquet":
            pd.DataFrame(values, columns=["x", "y"]).to_parquet(path)
        else:
            sep = "\t" if ".txt" in path.name else ","
            pd.DataFrame(values, columns=["x", "y"]).to_csv(path, index=False, header=header, sep=sep)
    return folder


@pytest.mark.parametrize("ending", ["csv", "txt", "csv.gz", "parquet", "npy"])
def test_a_folder_of_files_labelled_by_their_folders(tmp_path: Path, ending: str):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.{ending}")
    (folder / "notes.md").write_text("anything")
    plan = expect(folder, ordered=False)
    assert "label     label: the folder's name" in said(plan) and "notes.md: 1 files that are not" in said(plan)


def test_a_folder_of_files_without_a_header_labelled_by_a_pattern(tmp_path: Path):
    def name(number: int) -> str:
        return f"{LABELS[number]}-{PEOPLE[number // 3]}_{number:02}.csv"

    folder = write_files(tmp_path / "data", name, header=False)
    plan = expect(folder, "--pattern", "{label}-{person}_*", ordered=False)
    assert plan.workload.preprocess.columns.features == ("1", "2") and plan.workload.preprocess.groups == "person"


def test_a_folder_of_files_labelled_by_a_table(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"r_{number:02}.csv")
    table = pd.DataFrame(
        {
            "file": [f"r_{number:02}.csv" for number in range(len(LABELS))],
            "gesture": LABELS,
            "person": np.repeat(PEOPLE, 3),
        }
    )
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "which.csv", index=False)
    plan = expect(folder, "--labels", str(tmp_path / "which.csv"), ordered=False)
    assert plan.workload.preprocess.columns.label == "gesture" and plan.workload.preprocess.groups == "person"
    table.to_csv(folder / "labels.csv", index=False)
    assert "labels.csv: it is called so" in said(expect(folder, ordered=False))
    table[2:].to_csv(folder / "labels.csv", index=False)
    with pytest.raises(ValueError, match=r"labels.csv has a row for 16 of 18 files \(by 'file'\), none for r_00"):
        planned(folder)
    pd.concat([table, table[:1]]).to_csv(folder / "labels.csv", index=False)
    with pytest.raises(ValueError, match="labels.csv has two rows for r_00; it needs one for each file"):
        planned(folder)
    table[["file", "gesture"]].to_csv(folder / "labels.csv", index=False, header=False)
    with pytest.raises(ValueError, match=r"its first row \(r_00.csv, ...\) counts as the header"):
        planned(folder)


def test_what_lies_beside_the_files_is_left_out_and_folders_beside_a_label_are_groups(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for name, text in {"README.txt": "a b\nc d\n", "classes.txt": "1 push\n2 swipe\n", "index.html": "<p>"}.items():
        (folder / name).write_text(text)
    np.save(folder / "labels.npy", np.arange(3))
    plan = expect(folder, ordered=False)
    assert "README.txt, index.html, labels.npy: 3 files that are not .csv" in said(plan)
    assert "classes.txt: called so, but no table with a row for each file" in said(plan)
    people = pd.DataFrame(
        {
            "file": [f"{PEOPLE[number // 3]}/r_{number:02}" for number in range(18)],
            "gesture": LABELS,
        }
    )
    folder = write_files(tmp_path / "people", lambda number: f"{PEOPLE[number // 3]}/r_{number:02}.csv")
    people.to_csv(folder / "labels.csv", index=False)
    plan = expect(folder, ordered=False)
    assert (plan.workload.preprocess.groups, plan.workload.preprocess.columns.label) == ("folder1", "gesture")
    people[["file"]].assign(age=30).to_csv(folder / "labels.csv", index=False)  # says no label: the folders do
    assert planned(folder)[0].workload.preprocess.columns.label == "label"


def test_folders_called_train_and_test_are_the_split(tmp_path: Path):
    folder = write_files(
        tmp_path / "data", lambda number: f"{'train' if number < 12 else 'test'}/{LABELS[number]}/r_{number:02}.csv"
    )
    assert expect(folder, ordered=False).summary["num_per_split"]["test"] == 6


def test_folders_of_people_stay_on_one_side(tmp_path: Path):
    for name, form in (("a", "s{1:02}/{0}"), ("b", "{0}/s{1:02}")):  # person/label or label/person
        folder = write_files(tmp_path / name, lambda n, form=form: f"{form.format(LABELS[n], n // 3)}/r_{n:02}.csv")
        plan = expect(folder, ordered=False)
        assert plan.workload.preprocess.groups.startswith("folder") and sum(plan.summary["num_groups"].values()) == 6
        assert "the names of folders; each of the 6 stays on one side" in said(plan)


def test_files_with_events_are_for_detect(tmp_path: Path):
    for number, values in enumerate(recordings(shortest=7)):
        table = pd.DataFrame(values, columns=["x", "y"]).assign(t=range(len(values)), event="none")
        table.loc[3, "event"] = "hit"
        (tmp_path / "data").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "data" / f"{number}.csv", index=False)
    plan, _ = planned(tmp_path / "data")
    assert plan.workload.task == "detect" and plan.workload.preprocess.columns.step == "t"


# Arrays and .ts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["NTC", "NCT"])
def test_arrays(tmp_path: Path, axes: str):
    array = padded() if axes == "NTC" else padded().swapaxes(1, 2)
    np.savez_compressed(tmp_path / "a.npz", X=array.astype(np.float32), y=np.array(LABELS))
    assert f"{axes}, the longer of the last two is time" in said(expect(tmp_path / "a.npz"))
    np.save(tmp_path / "X.npy", array)
    np.save(tmp_path / "y.npy", np.array(LABELS))
    expect(tmp_path / "X.npy")
    np.save(tmp_path / "data_of_mine.npy", np.asfortranarray(array))
    expect(tmp_path / "data_of_mine.npy", "--labels", str(tmp_path / "y.npy"), "--axes", axes)


def test_arrays_in_train_and_test(tmp_path: Path):
    array, labels = padded(), np.array(LABELS)
    person = np.array(PEOPLE)[np.arange(18) // 3]
    np.savez(tmp_path / "a.npz", x_train=array[:12], y_train=labels[:12], x_test=array[12:], y_test=labels[12:])
    assert expect(tmp_path / "a.npz").summary["num_per_split"]["test"] == 6
    (tmp_path / "npy").mkdir()
    for name, part in {
        "X_train": array[:12],
        "y_train": labels[:12],
        "X_test": array[12:],
        "y_test": labels[12:],
    }.items():
        np.save(tmp_path / "npy" / f"{name}.npy", part)
    assert expect(tmp_path / "npy/X_train.npy").summary["num_per_split"]["test"] == 6
    np.save(tmp_path / "npy/which.npy", labels[:12])
    options = ("--alone", "--labels", str(tmp_path / "npy/which.npy"))
    assert planned(tmp_path / "npy/X_train.npy", *options)[0].summary["num_sequences"] == 12
    for name in ("subject", "groups"):
        np.savez(tmp_path / "b.npz", X=array, y=labels, **{name: person})
        assert expect(tmp_path / "b.npz").workload.preprocess.groups == name


def test_arrays_of_different_kinds_become_one_table(tmp_path: Path):
    """Of both splits the same channels in different types, and beside y an array that is no label."""
    array, number = padded(), np.arange(18) % 3
    parts = {"X_train": array[:12].astype("f4"), "X_test": array[12:].astype(">f8"), "g": np.arange(18)}
    labels = {"y_train": number[:12], "y_test": number[12:].astype(float)}
    named = parts | labels | {"g_train": np.arange(12) // 2, "g_test": np.arange(6) // 2}
    plan, found = planned(arrays(tmp_path / "a.npz", **named))
    assert plan.workload.preprocess.columns.label == "y" and found.sequences.labels.tolist() == number.tolist()
    assert plan.summary["classes"] == [0, 1, 2] and plan.summary["num_per_split"]["test"] == 6


def write_ts(path: Path, numbers: range, header: str = "@classLabel true push swipe twist") -> Path:
    values = recordings()
    lines = [
        ":".join([",".join(map(str, channel)) for channel in values[number].T] + [LABELS[number]]) for number in numbers
    ]
    path.write_text(
        "\n".join(
            ["# anything", "@problemName Hand", "@univariate false", "@equalLength false", header, "@data", *lines]
        )
    )
    return path


def test_ts(tmp_path: Path):
    write_ts(tmp_path / "Hand_TEST.ts", range(12, 18))
    plan = expect(write_ts(tmp_path / "Hand_TRAIN.ts", range(12)))
    assert plan.summary["num_per_split"]["test"] == 6 and plan.table_name == "mine.parquet"
    expect(tmp_path)  # the folder of the two


def test_ts_says_itself_that_its_targets_are_numbers_and_keeps_letters_apart(tmp_path: Path):
    values = recordings()
    lines = [f"{','.join(map(str, values[number][:, 0]))}:{number % 3}" for number in range(18)]
    written(tmp_path / "a.ts", "\n".join(["@univariate true", "@targetLabel true", "@data", *lines]))
    plan = planned_only(tmp_path / "a.ts")
    assert plan.workload.task == "regress" and "as @targetLabel says" in said(plan)
    lines = [line.rsplit(":", 1)[0] + f":{'éèê'[number % 3]}" for number, line in enumerate(lines)]
    text = "\n".join(["@univariate true", "@classLabel true é è ê", "@data", *lines])
    (tmp_path / "a.ts").write_bytes(text.encode("latin-1"))
    assert planned_only(tmp_path / "a.ts").summary["classes"] == ["è", "é", "ê"]


# Text of all kinds ----------------------------------------------------------------------------------------------------


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize(
    ("name", "options", "encoding", "note"),
    [
        ("UP.CSV", {}, "utf-8", ""),
        ("t.csv", {}, "utf-8-sig", ""),
        ("t.csv", {}, "utf-16", "utf-16: by its byte order mark"),
        ("t.csv", {}, "utf-16-le", "every other byte is zero"),
        ("t.csv", {}, "windows-1252", "byte 0xe9 is no UTF-8"),
        ("t.csv", {"sep": ";", "decimal": ","}, "utf-8", "between semicolons, with decimal commas"),
        ("t.tsv", {"sep": "\t"}, "utf-8", "between tabs"),
        ("t.txt", {"sep": " "}, "utf-8", "between spaces"),
        ("t.csv.gz", {}, "utf-8", ""),
        ("called.csv", {"as": "gz"}, "utf-8", "gzip: by its first bytes"),
        ("t.csv.bz2", {"as": "bz2"}, "utf-8", "bz2"),
        ("t.csv.xz", {"as": "xz"}, "utf-8", "xz"),
        ("t.zip", {"as": "zip"}, "utf-8", "zip"),
    ],
)  # fmt: skip
def test_text_of_all_kinds(tmp_path: Path, name: str, options: dict[str, Any], encoding: str, note: str):
    table = long_table().rename(columns={"label": "événement" if encoding.startswith("win") else "label"})
    to = {key: value for key, value in options.items() if key != "as"}
    data = table.to_csv(index=False, **to).encode(encoding)
    form = options.get("as", "gz" if name.endswith(".gz") else "")
    if form == "zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("t.csv", data)
    else:
        (tmp_path / name).write_bytes(COMPRESS[form](data) if form else data)
    plan = expect(tmp_path / name)
    assert note in said(plan)
    assert plan.table_name.endswith((".csv", ".csv.gz")) and plan.table_name == plan.table_name.lower().replace(
        "up", "UP"
    )
    assert plan.workload.preprocess.columns.label == table.columns[-1]


def test_what_was_read_in_another_way_keeps_its_cells(tmp_path: Path):
    table = long_table().assign(label=["007", "NA", "1e3"] * 2 + ["007"] * (len(long_table()) - 6))
    table["label"] = np.array(["007", "NA", "a, b"])[pd.factorize(table["clip"])[0] % 3]
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    _, found = planned(tmp_path / "t.csv")
    assert found.sequences.classes == ("007", "NA", "a, b")


def test_every_command_of_the_document_is_one():
    table = (ROOT / "docs/own-data.md").read_text(encoding="utf-8")
    commands = [
        cell for row in re.findall(r"^\|.*new_workload hand.*\|$", table, re.MULTILINE) for cell in row.split("|")[2:3]
    ]
    assert len(commands) >= 11
    for cell in commands:
        first, *options = re.findall(r"`([^`]*)`", cell)
        words = shlex.split(first)
        assert words.pop(0) == "new_workload"
        for more in ["", *options]:
            new_workload.make_parser().parse_args([*words, *shlex.split(more)])


def test_what_a_killed_process_was_converting_is_removed(tmp_path: Path):
    done = subprocess.Popen(["true"])
    done.wait()
    for number in (done.pid, os.getpid()):
        (tmp_path / f".mine.{number}.abc").mkdir()
    (tmp_path / ".mine.notes").mkdir()
    new_workload.remove_leftovers(tmp_path, "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".mine.{os.getpid()}.abc", ".mine.notes"]


# What is refused, or sampled ------------------------------------------------------------------------------------------


def arrays(path: Path, **named: np.ndarray) -> Path:
    np.savez(path, **named)
    return path


def flat(folder: Path) -> Path:
    return write_files(folder / "d", lambda number: f"r_{number}.csv")


def uneven(folder: Path) -> Path:
    return write_files(folder / "d", lambda number: f"{LABELS[number]}{'/x' * (number % 2)}/{number}.csv")


def with_other_columns(folder: Path) -> Path:
    write_files(folder / "d", lambda number: f"{LABELS[number]}/{number}.csv")
    return written(folder / "d/push/3.csv", "x,z\n1,2\n").parents[1]


def with_an_empty_one(folder: Path) -> Path:
    write_files(folder / "d", lambda number: f"{LABELS[number]}/{number}.csv")
    return written(folder / "d/push/3.csv", "x,y\n").parents[1]


def wide_with(folder: Path, column: str, cell: str) -> Path:
    table = wide_table().astype(object)
    table.loc[4, column] = cell
    table.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def without_third() -> np.ndarray:
    array = padded()
    array[2] = np.nan
    return array


def torn(path: Path, data: bytes | None = None) -> Path:
    """The file with some bytes changed after its first half."""
    data = data or path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 20]) + data[middle + 20 :])
    return path


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda at: at / "no.csv", "", "no.csv is not there; give the path of a table"),
        (lambda at: written(at / "d/x.jpg", "a").parent, "", r"a folder of 1 files \(.jpg\), none a sequence"),
        (flat, "", "nothing says which label the 18 files"),
        (flat, "--pattern {label}-*", "does not fit 18 of 18 names"),
        (flat, "--pattern label", "names parts in braces"),
        (uneven, "", "files 1 and 2 folders below"),
        (with_other_columns, "", r"3.csv has other columns than the files before it \(y, z\)"),
        (lambda at: arrays(at / "a.npz", X=np.ones((4, 5, 2, 2))), "", r"shape \(4, 5, 2, 2\); accepted: \(N, T, C\)"),
        (lambda at: arrays(at / "a.npz", X=np.ones((4, 5)), y=np.ones(3)), "", r"a.npz: y has the shape \(3,\)"),
        (lambda at: arrays(at / "a.npz", X=np.ones((4, 5)), y=np.eye(4)), "", "labels have several columns"),
        (lambda at: arrays(at / "a.npz", X=np.array([[1], [1, 2]], dtype=object)), "", "which only pickle"),
        (lambda at: arrays(at / "a.npz", X=padded()), "", "a.npz has no labels: put an array y"),
        (
            lambda at: arrays(at / "a.npz", X_train=padded(), y_train=np.array(LABELS), X_test=padded()),
            "",
            "a.npz has y for a.npz: X_train and none for a.npz: X_test",
        ),
        (
            lambda at: arrays(at / "a.npz", X=padded(), X_test=padded(), y=np.array(LABELS), y_test=np.array(LABELS)),
            "",
            "one has no split in its name",
        ),
        (
            lambda at: arrays(
                at / "a.npz", X_train=padded(), X_test=padded(1), y_train=np.ones(18), y_test=np.ones(18)
            ),
            "",
            "other channels; give both the same",
        ),
        (lambda at: arrays(at / "a.npz", X=without_third(), y=np.array(LABELS)), "", "sequence 2 has no value at all"),
        (with_an_empty_one, "", "3.csv has no rows, and every file is a sequence"),
        (lambda at: wide_with(at, "y_1", "abc"), "", "column 'y_1' must hold numbers, found 'abc' in line 6; correct"),
        (lambda at: wide_with(at, "label", ""), "", "t.csv: sequence 4 has no 'label'; give it one"),
        (
            lambda at: torn(at / "t.csv.gz", gzip.compress(long_table().to_csv().encode())),
            "",
            "t.csv.gz cannot be read",
        ),
        (
            lambda at: torn(arrays(at / "a.npz", X=np.ones((200, 100)), y=np.ones(200))),
            "",
            "a.npz: X cannot be read.*save it again",
        ),
        (lambda at: written(at / "a.ts", "@problemName x\n1,2:a"), "", "a.ts has no line @data"),
        (
            lambda at: written(at / "a.ts", "@classLabel true a\n@data\n1:a\n1,b:a"),
            "",
            "a.ts, line 4: must hold numbers",
        ),
        (lambda at: written(at / "a.ts", "@timestamps true\n@data\n(1,2):a"), "", "has time stamps"),
        (lambda at: written(at / "t.csv", "1,a\n2,b\n"), "", r"t.csv has no header \(its first row is|no column"),
        (
            lambda at: written(at / "t.csv", "a,b\n1,2\n"),
            "--encoding nonsense",
            "'nonsense', which Python does not know",
        ),
    ],
)
def test_a_shape_that_cannot_be_read_gets_one_sentence(tmp_path: Path, make: Any, options: str, words: str):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        planned(make(tmp_path), *options.split())
    assert "\n" not in str(caught.value)


def test_of_a_large_table_some_sequences_of_each_class_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "LARGE_CELLS", 100)
    monkeypatch.setattr(trial, "SAMPLED_CELLS", 10)
    monkeypatch.setattr(trial, "FEWEST_PER_CLASS", 5)
    plan = planned_only(write_ts(tmp_path / "a.ts", range(18)))
    assert plan.summary["num_tried"] == 15 and plan.summary["num_sequences"] == 18
    assert sum(plan.summary["num_per_split"].values()) == 18 and "with 15 of the sequences" in said(plan)
    assert "push (6), swipe (6), twist (6)" in said(plan)
    for number in range(18):  # whichever sequence has the empty cell, in the sample or not
        array = padded()
        array[number, 1, 0] = np.nan
        plan = planned_only(arrays(tmp_path / "a.npz", X=array, y=np.array(LABELS)), "--axes", "NTC")
        assert plan.workload.preprocess.missing == "interpolate"


def test_of_a_large_table_sizes_and_classes_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "LARGE_CELLS", 100)
    monkeypatch.setattr(trial, "SAMPLED_CELLS", 10)
    array = np.random.default_rng(0).normal(size=(100, 6, 2))
    parts = {"X_train": array[:88], "X_test": array[88:]}
    labels = {"y_train": np.arange(88) % 2 * 1.0, "y_test": np.arange(12) % 2 * 1.0}  # 1.0 is the class 1
    plan = planned_only(arrays(tmp_path / "a.npz", **parts, **labels))
    assert plan.summary["num_tried"] == 2 * (8 + 6) and "0 (50), 1 (50)" in said(plan)
    assert plan.summary["num_per_split"] == {"train": 72, "val": 16, "test": 12}  # as preprocess will share them out
    plan = planned_only(arrays(tmp_path / "a.npz", X=array, y=np.arange(100) / 7))
    assert plan.workload.task == "regress" and plan.summary["num_tried"] == 8  # of every number a few would be all


def test_a_line_of_progress_appears_while_nothing_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    shown = StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress, "DELAY", 0.01)
    with progress.progress("looking at it", 4, "steps") as at:
        end = time.monotonic() + 60
        while "0/4" not in shown.getvalue() and time.monotonic() < end:
            time.sleep(0.05)
        at(2)
    assert "looking at it" in shown.getvalue() and "0/4" in shown.getvalue()
