"""Data in the shapes that people have it in: each becomes the same sequences."""

import bz2
import gzip
import lzma
import re
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data import source_module
from tandem.data.arrays import PreparedSequences
from tandem.importing import new_workload, text_tables, wide
from tests import own_tables, refusals
from tests.own_tables import parsed
from tests.projects import ROOT

LABELS = ["push", "swipe", "twist"] * 6
PEOPLE = ["ann", "bob", "cid", "dan", "eve", "fay"]


def recordings(shortest: int = 5, num_channels: int = 2) -> list[np.ndarray]:
    """(T, C) each, of different lengths; numbers with three digits, which every format keeps."""
    draw = np.random.default_rng(0)
    return [draw.normal(size=(draw.integers(shortest, 9), num_channels)).round(3) for _ in LABELS]


def plan_in(scratch: Path, path: Path, *options: str) -> new_workload.WorkloadPlan:
    return new_workload.make_plan(parsed("mine", str(path), *options), scratch)


def planned(path: Path, *options: str) -> tuple[new_workload.WorkloadPlan, PreparedSequences]:
    """The plan, and what preprocess makes of the table and the block that it would write."""
    with TemporaryDirectory(dir=path.parent) as scratch:
        plan = plan_in(Path(scratch), path, *options)
        params = plan.workload.preprocess
        (Path(scratch) / "again").mkdir()
        (Path(scratch) / "again" / plan.table.name).symlink_to(plan.table.resolve())
        return plan, source_module("sequences").prepare(
            params, Path(scratch) / "again", plan.workload.task_attributes.target
        )


def expect(
    path: Path, *options: str, num_channels: int = 2, shortest: int = 5, ordered: bool = True
) -> new_workload.WorkloadPlan:
    """The sequences come out with their lengths, labels and values, whatever they came in."""
    plan, found = planned(path, *options)
    wanted, sequences = recordings(shortest, num_channels), found.sequences
    assert (plan.workload.task, len(sequences.ids)) == ("classify", len(wanted))
    assert sequences.classes == ("push", "swipe", "twist")
    raw = sequences.values[:, :, :num_channels] * found.std[:num_channels] + found.mean[:num_channels]
    order = range(len(wanted)) if ordered else [int(name.split("_")[-1]) for name in sequences.ids]
    for row, number in enumerate(order):
        assert sequences.lengths[row] == len(wanted[number])
        assert sequences.classes[sequences.labels[row]] == LABELS[number]
        np.testing.assert_allclose(raw[row, : len(wanted[number])], wanted[number], atol=1e-5)
    return plan


def long_table() -> pd.DataFrame:
    parts = []
    for number, (values, label) in enumerate(zip(recordings(), LABELS, strict=True)):
        part = pd.DataFrame(values, columns=["x", "y"]).assign(label=label)
        part.insert(0, "clip", f"c_{number:02}")
        part.insert(1, "frame", range(len(values)))
        parts.append(part)
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
def test_a_table_with_one_row_per_sequence_is_read(tmp_path: Path, ending: str):
    path = tmp_path / f"wide.{ending}"
    wide = wide_table()
    sep = "\t" if ending == "tsv" else ","
    wide.to_parquet(path) if ending == "parquet" else wide.to_csv(path, index=False, sep=sep)
    assert expect(path).workload.preprocess.columns.features == ("x", "y")


def test_padding_at_the_start_of_an_array_is_no_step(tmp_path: Path):
    """As Keras' pad_sequences has it by default. A gap in the middle is missing."""
    at_end = padded()
    at_end[0, 1] = np.nan
    at_start = np.full_like(at_end, np.nan)
    for number, each in enumerate(at_end):
        num = len(recordings()[number])
        at_start[number, -num:] = each[:num]
    found = []
    for name, array in (("end", at_end), ("start", at_start)):
        np.savez(tmp_path / f"{name}.npz", X=array, y=np.array(LABELS))
        found.append(planned(tmp_path / f"{name}.npz", "--axes", "NTC", "--missing", "interpolate")[1].sequences)
    assert (found[0].lengths == found[1].lengths).all() and (found[0].values == found[1].values).all()


def test_columns_named_as_lags_are_in_the_order_of_time(tmp_path: Path):
    """x-11, x-10, ..., x-0: the oldest first. In the other order, x-0, x-1, ..., the sign separates."""
    wide = wide_table()
    last = padded().shape[1] - 1
    lags = {f"{name}_{step}": f"{name}-{last - step}" for name in "xy" for step in range(last + 1)}
    path = tmp_path / "lags.csv"
    wide.rename(columns=lags).to_csv(path, index=False)
    expect(path)
    wide.rename(columns={name: name.replace("_", "-") for name in lags}).to_csv(path, index=False)
    expect(path)


@pytest.mark.parametrize(
    "names, features",
    [
        (lambda step: f"x{step / 10:.1f}", ("x",)),
        (lambda step: f"{step / 10:.1f}", ("value",)),
        (lambda step: f"{1990 + 5 * step}", ("value",)),
        (lambda step: f"s{1 + step // 6}.{step % 6}", ("s1", "s2")),
    ],
)
def test_columns_are_numbered_with_decimals_and_years(
    tmp_path: Path, names: Callable[[int], str], features: tuple[str, ...]
):
    """x0.0, x0.1, ..., x1.1 once was x0 with 10 steps, and a header of numbers that are not 1 apart was a row."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(len(LABELS), 12)), columns=[names(step) for step in range(12)])
    table.assign(label=LABELS).to_csv(tmp_path / "t.csv", index=False)
    plan, found = planned(tmp_path / "t.csv")
    assert plan.workload.preprocess.columns.features == features
    assert found.sequences.values.shape[:2] == (len(LABELS), 12 // len(features))


def test_a_gap_in_numbered_columns_is_said(tmp_path: Path):
    table = wide_table().drop(columns=["x_4", "y_4"])
    table.to_csv(tmp_path / "t.csv", index=False)
    assert "x_3 is followed by x_5, read as the next step" in "".join(
        new_workload.summary_lines(planned(tmp_path / "t.csv")[0])
    )
    wide_table().to_csv(tmp_path / "t.csv", index=False)
    assert "followed" not in "".join(new_workload.summary_lines(planned(tmp_path / "t.csv")[0]))


def test_a_table_without_a_header_is_read(tmp_path: Path):
    array = np.nan_to_num(padded(1))[:, :, 0]
    for place, name in ((0, "first.txt"), (array.shape[1], "last.csv")):
        table = pd.DataFrame(array)
        table.insert(place, "label", [" abc".index(label[0]) if label[0] in "abc" else len(label) for label in LABELS])
        sep = "," if name.endswith("csv") else " "
        table.to_csv(tmp_path / name, index=False, header=False, sep=sep)
        plan, found = planned(tmp_path / name)
        assert found.sequences.classes == (4, 5) and found.sequences.values.shape[1] == array.shape[1]
        asked, again = planned(tmp_path / name, "--label", str(place + 1))
        assert asked.workload == plan.workload and (again.sequences.labels == found.sequences.labels).all()


def test_train_and_test_in_two_files_are_the_split(tmp_path: Path):
    wide = wide_table()
    for name, part in (("TRAIN", wide[:12]), ("TEST", wide[12:])):  # both count from 0: no sequence is another one's
        part.assign(id=range(len(part))).to_csv(tmp_path / f"Hand_{name}.csv", index=False)
    plan = expect(tmp_path / "Hand_TRAIN.csv")
    assert plan.summary["num_per_split"]["test"] == 6 and "{train: 10, val: 2, test: 6}" in plan.block
    assert own_tables.planned(tmp_path / "Hand_TRAIN.csv", "--alone").summary["num_sequences"] == 12
    with pytest.raises(ValueError, match="'step' repeats in sequence 0, rows 1 and "):
        planned(tmp_path / "Hand_TRAIN.csv", "--sequence", "id")
    for name, part in (("TRAIN", wide[:12]), ("TEST", wide[12:])):
        people = [PEOPLE[number // 3] for number in part.index]
        part.assign(subject=people).to_csv(tmp_path / f"Hand_{name}.csv", index=False)
    plan = expect(tmp_path / "Hand_TRAIN.csv")
    assert plan.workload.preprocess.groups == "subject" and plan.summary["num_groups"]["test"] == 2


def test_columns_beside_the_steps_stay_with_their_sequence(tmp_path: Path):
    wide = wide_table()
    wide.insert(0, "id", [f"r{number:02}" for number in range(len(wide))])
    wide.insert(1, "person", [PEOPLE[number // 3] for number in range(len(wide))])
    wide.insert(2, "age", [20.5 + number // 3 for number in range(len(wide))])
    wide.insert(3, "x", 7.0)  # called as a feature is
    wide.to_csv(tmp_path / "wide.csv", index=False)
    plan = expect(tmp_path / "wide.csv")
    assert plan.workload.preprocess.groups == "person" and sum(plan.summary["num_groups"].values()) == 6
    assert plan.workload.preprocess.columns.features == ("x_", "y")
    asked = expect(tmp_path / "wide.csv", "--groups", "none", "--sequence", "id")
    assert asked.workload.preprocess.groups == "none"


def test_a_row_per_step_is_seen_even_if_the_first_sequence_is_longer_than_the_rows_that_are_inspected(tmp_path: Path):
    num_steps = text_tables.NUM_SAMPLED + 100
    steps = pd.DataFrame({"case": np.repeat(range(6), num_steps), "step": [*range(num_steps)] * 6})
    draw = np.random.default_rng(0)
    features = pd.DataFrame(draw.normal(size=(len(steps), 6)), columns=[f"x{number}" for number in range(6)])
    labels = steps["case"].map(lambda case: "ab"[case % 2])
    pd.concat([steps, features], axis=1).assign(label=labels).to_parquet(tmp_path / "long.parquet")
    _, found = planned(tmp_path / "long.parquet")
    assert found.sequences.values.shape == (6, num_steps, 12), "with velocities"


def numbered_recording(num_channels: int = 4, stretch: int = 40, names: str = "channel") -> pd.DataFrame:
    """A class per row, in stretches, of which each class has several; the numbered columns are channels."""
    classes = np.repeat([0, 1, 0, 2] * 6, stretch)
    draw = np.random.default_rng(0)
    values = draw.normal(size=(len(classes), num_channels)).round(3)
    table = pd.DataFrame(values, columns=[f"{names}{number}" for number in range(1, num_channels + 1)])
    return table.assign(**{"class": classes})


RISING: dict[str, tuple[str, Callable[[int], Any]]] = {
    "counted from 1": ("time", lambda num: range(1, num + 1)),
    "frames": ("frame", lambda num: range(num)),
    "times": ("Timestamp", lambda num: pd.date_range("2024-03-01", periods=num, freq="20ms")),
    "a name that is no English word": ("Zeit", lambda num: np.arange(num) / 64),
    "milliseconds": ("ms", lambda num: np.arange(num) * 4),
}


@pytest.mark.parametrize("kind", RISING)
@pytest.mark.parametrize("stretch, ending", [(40, "csv"), (400, "csv"), (40, "parquet")])
def test_numbered_channels_of_a_recording_are_no_steps(tmp_path: Path, kind: str, stretch: int, ending: str):
    """Neighbouring rows of it once were sequences, in train and test. 400: the first rows show two classes."""
    table, (name, times), path = numbered_recording(stretch=stretch), RISING[kind], tmp_path / f"t.{ending}"
    table.insert(0, name, times(len(table)))
    table.to_parquet(path) if ending == "parquet" else table.to_csv(path, index=False)
    columns = own_tables.planned(path).workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label) == ("none", name, "class")
    assert columns.features == ("channel1", "channel2", "channel3", "channel4")


BOTH = "--layout long reads it as a step, --layout wide as a sequence"


@pytest.mark.parametrize("stretch", [40, 1100])  # 1100: the first rows show one class
def test_numbered_channels_without_a_time_or_without_stretches_are_asked_about(tmp_path: Path, stretch: int):
    table, path = numbered_recording(stretch=stretch, names="emg_"), tmp_path / "t.csv"
    people = np.arange(len(table)) // (len(table) // 6)
    draw = np.random.default_rng(0)
    mixed = table.assign(**{"class": draw.permutation(table["class"].to_numpy())})
    words = table.assign(**{"class": table["class"].map(["rest", "fist", "flex"].__getitem__)})
    for asked in (table, words, table.assign(subject=people), mixed.assign(frame=range(len(table)))):
        asked.to_csv(path, index=False)
        assert BOTH in question(path)
        assert own_tables.planned(path, "--layout", "wide").summary["max_steps"] == 4
    words.assign(step=range(len(table))).to_csv(path, index=False)
    assert own_tables.planned(path).workload.preprocess.columns.step == "step"
    words.rename(columns={"class": "pose"}).assign(no=range(len(table))).to_csv(path, index=False)
    assert BOTH in question(path)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("header", [True, False])
def test_a_row_per_sequence_needs_no_option_sorted_by_class_or_not(tmp_path: Path, is_sorted: bool, header: bool):
    classes = np.random.default_rng(0).permutation(np.repeat([1, 2, 3], [900, 300, 60]))
    values = pd.DataFrame(np.random.default_rng(1).normal(size=(len(classes), 6)).round(3)).add_prefix("x")
    values.insert(0, "class", np.sort(classes) if is_sorted else classes)
    if header:
        values.insert(0, "id", range(len(values)))
    values.to_csv(tmp_path / "t.csv", index=False, header=header)
    summary = own_tables.planned(tmp_path / "t.csv").summary
    assert (summary["num_sequences"], summary["max_steps"], len(summary["classes"])) == (1260, 6, 3)


@pytest.mark.parametrize(
    "of_row, column",
    [
        (lambda row: [1714644000 + 60 * row, 20.1, 50.2, row % 2], 1),
        (lambda row: [1 + row // 50, 1 + row % 50, 0.0012, 100.0, 518.67], 2),  # a unit and its cycle
        (lambda row: [1 + row // 9, 1 + row % 9, 0.0012, 100.0, 518.67], 2),
        (lambda row: [f"2024-03-01 00:{row // 60:02}:{row % 60:02}", 20.1, 50.2, 1.5, row // 30 % 3], 1),
        (lambda row: [row // 40 % 3, f"{row / 64:.4f}", 20.1, 50.2], 2),
    ],
)
def test_rows_without_a_header_that_go_on_are_asked_about(tmp_path: Path, of_row: Callable[[int], Any], column: int):
    rows = [[*of_row(row)] for row in range(180)]
    for place in range(2, len(rows[0])):  # readings
        if isinstance(rows[0][place], float):
            noise = np.random.default_rng(place).normal(size=len(rows)).round(3)
            for row, value in zip(rows, noise, strict=True):
                row[place] += value
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False, header=False)
    said = question(tmp_path / "t.csv")
    assert f"column {column} increases from row to row" in said and "--layout wide" in said
    with pytest.raises(ValueError, match="write the columns' names there"):
        planned(tmp_path / "t.csv", "--layout", "long")


# Lists in cells -------------------------------------------------------------------------------------------------------


def lists_table() -> pd.DataFrame:
    values = recordings()
    columns = {name: [each[:, place] for each in values] for place, name in enumerate("xy")}
    return pd.DataFrame(columns).assign(label=LABELS)


def test_lists_in_the_cells_of_parquet_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wide, "BLOCK_CELLS", 40)
    table, files = lists_table(), tmp_path / "set/data"
    table.to_parquet(tmp_path / "t.parquet")
    files.mkdir(parents=True)
    parts = {"test-0-of-1": slice(12, 18), "train-0-of-2": slice(6), "train-1-of-2": slice(6, 12)}
    for name, rows in parts.items():
        table[rows].to_parquet(files / f"{name}.parquet")
    assert expect(tmp_path / "t.parquet").workload.preprocess.columns.features == ("x", "y")
    for path, num_test in ((tmp_path / "t.parquet", 3), (tmp_path / "set", 6)):
        with TemporaryDirectory(dir=tmp_path) as scratch:
            plan = plan_in(Path(scratch), path)
            assert pq.ParquetFile(plan.table).num_row_groups >= 5  # block by block
        assert (plan.summary["num_sequences"], plan.summary["num_per_split"]["test"]) == (18, num_test)


def test_lists_of_words_are_events_and_lists_of_unequal_length_are_refused(tmp_path: Path):
    table, path = lists_table(), tmp_path / "t.parquet"
    words = [["none"] * 3 + ["hit"] + ["none"] * (len(each) - 4) for each in table["x"]]
    table.drop(columns="label").assign(event=words).to_parquet(path)
    plan, found = planned(path)
    assert plan.workload.task == "detect" and found.sequences.classes == ("none", "hit")
    table.assign(z=[each[1:] for each in table["x"]]).to_parquet(path)
    expect(path, "--features", "x,y")
    with pytest.raises(ValueError, match=r"row 1: 'x' has \d entries and 'z' \d; correct .* with --features"):
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


def write_recordings(folder: Path, name: Callable[[int, int], str], column: str) -> Path:
    """Four folders with three files, whose rows have a label that changes."""
    for person in range(4):
        for number in range(3):
            table = numbered_recording().rename(columns={"class": column})
            table["channel1"] += np.random.default_rng(3 * person + number).normal(size=len(table)).round(3)
            table.insert(0, "time", range(len(table)))
            (path := folder / name(person, number)).parent.mkdir(parents=True, exist_ok=True)
            table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False, sep="\t")
    return folder


@pytest.mark.parametrize("column", ["class", "label", "Activity"])
@pytest.mark.parametrize("name", ["0{}/{}_raw.txt", "s{}/run{}.parquet", "made/P{}/{}.txt"])
def test_a_label_that_changes_within_files_comes_before_numbered_folders(tmp_path: Path, name: str, column: str):
    """The number of a person once was the class, and the label of each row was left out."""
    plan = own_tables.planned(write_recordings(tmp_path / "d", name.format, column))
    params = plan.workload.preprocess
    assert (params.columns.label, params.groups) == (column, "folder1")
    assert sum(plan.summary["num_groups"].values()) == 4 and len(plan.summary["classes"]) == 3


def test_a_label_within_files_and_one_of_folders_is_a_question(tmp_path: Path):
    words = ["ann", "bob", "cid", "dan"]
    folder = write_recordings(tmp_path / "d", lambda person, number: f"{words[person]}/{number}.txt", "class")
    assert "give --label class if it is the label, or --label label if the folders' names, such as 'ann'" in question(
        folder
    )
    assert own_tables.planned(folder, "--label", "class").workload.preprocess.groups == "folder1"
    assert own_tables.planned(folder, "--label", "label").summary["classes"] == words
    for path in folder.glob("*/*.txt"):  # a label that is the same in each file leaves the folder's
        table = pd.read_csv(path, sep="\t")
        table.assign(**{"class": 1 + "012".index(path.stem)}).to_csv(path, index=False, sep="\t")
    assert own_tables.planned(folder).summary["classes"] == words


@pytest.mark.parametrize("ending", ["csv", "txt", "csv.gz", "parquet", "npy"])
def test_a_folder_of_files_labelled_by_their_folders(tmp_path: Path, ending: str):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.{ending}")
    (folder / "notes.md").write_text("anything")
    expect(folder, ordered=False)


def test_a_folder_of_files_without_a_header_labelled_by_a_pattern(tmp_path: Path):
    def name(number: int) -> str:
        return f"{LABELS[number]}-{PEOPLE[number // 3]}_{number:02}.csv"

    folder = write_files(tmp_path / "data", name, header=False)
    plan = expect(folder, "--pattern", "{label}-{person}_*", ordered=False)
    assert plan.workload.preprocess.columns.features == ("1", "2") and plan.workload.preprocess.groups == "person"


def test_a_folder_of_files_labelled_by_a_table(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"r_{number:02}.csv")
    files = [f"r_{number:02}.csv" for number in range(len(LABELS))]
    table = pd.DataFrame({"file": files, "gesture": LABELS, "person": np.repeat(PEOPLE, 3)})
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "which.csv", index=False)
    plan = expect(folder, "--labels", str(tmp_path / "which.csv"), ordered=False)
    assert plan.workload.preprocess.columns.label == "gesture" and plan.workload.preprocess.groups == "person"
    table.to_csv(folder / "labels.csv", index=False)
    expect(folder, ordered=False)
    table[2:].to_csv(folder / "labels.csv", index=False)
    with pytest.raises(ValueError, match=r"labels.csv has a row for 16 of 18 files \(by 'file'\), none for r_00"):
        planned(folder)


def test_folders_called_train_and_test_are_the_split(tmp_path: Path):
    folder = write_files(
        tmp_path / "data", lambda number: f"{'train' if number < 12 else 'test'}/{LABELS[number]}/r_{number:02}.csv"
    )
    assert expect(folder, ordered=False).summary["num_per_split"]["test"] == 6


def test_folders_of_people_are_in_one_split(tmp_path: Path):
    for name, form in (("a", "s{1:02}/{0}"), ("b", "{0}/s{1:02}")):  # person/label or label/person
        folder = write_files(tmp_path / name, lambda n, form=form: f"{form.format(LABELS[n], n // 3)}/r_{n:02}.csv")
        plan = expect(folder, ordered=False)
        assert plan.workload.preprocess.groups.startswith("folder") and sum(plan.summary["num_groups"].values()) == 6


def test_folders_of_people_are_groups_below_train_and_test(tmp_path: Path):
    def name(number: int) -> str:
        return f"{'train' if number < 12 else 'test'}/s{number // 3:02}/{LABELS[number]}/r_{number:02}.csv"

    plan = expect(write_files(tmp_path / "data", name), ordered=False)
    assert plan.workload.preprocess.groups.startswith("folder") and plan.summary["num_groups"]["test"] == 2
    assert sum(plan.summary["num_groups"].values()) == 6


@pytest.mark.parametrize("step", ["frame", "time"])
def test_files_with_rows_out_of_order_are_in_the_order_of_their_step(tmp_path: Path, step: str):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*/*.csv"))):
        table = pd.read_csv(path)
        table[step] = np.arange(len(table)) * (1 if step == "frame" else 0.05)
        (table.sample(frac=1, random_state=1) if number % 3 == 0 else table).to_csv(path, index=False)
    assert expect(folder, ordered=False).workload.preprocess.columns.step == step


def test_a_reading_in_files_that_is_called_like_a_step_is_a_feature(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(folder.glob("*/*.csv")):
        table = pd.read_csv(path)
        table.assign(t=np.random.default_rng(number).normal(size=len(table))).to_csv(path, index=False)
    columns = expect(folder, ordered=False).workload.preprocess.columns
    assert columns.step == "step" and columns.features == ("x", "y", "t")


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
def test_arrays_are_read_in_both_orders_of_axes(tmp_path: Path, axes: str):
    array = padded() if axes == "NTC" else padded().swapaxes(1, 2)
    np.savez_compressed(tmp_path / "a.npz", X=array.astype(np.float32), y=np.array(LABELS))
    expect(tmp_path / "a.npz")
    np.save(tmp_path / "X.npy", array)
    np.save(tmp_path / "y.npy", np.array(LABELS))
    expect(tmp_path / "X.npy")
    np.save(tmp_path / "data_of_mine.npy", np.asfortranarray(array))
    expect(tmp_path / "data_of_mine.npy", "--labels", str(tmp_path / "y.npy"), "--axes", axes)
    (tmp_path / "data_of_mine.npy").rename(tmp_path / "array.bin")  # known by its first bytes
    expect(tmp_path / "array.bin", "--labels", str(tmp_path / "y.npy"), "--axes", axes)


@pytest.mark.parametrize("axes", ["NTC", "NCT"])
def test_zeros_after_the_end_of_a_sequence_are_no_measurements(tmp_path: Path, axes: str):
    """Arrays of equal length with `lengths` or a mask, as padding for Keras or torch leaves them."""
    array = padded()
    real = ~np.isnan(array).all(axis=2)
    zeros = np.nan_to_num(array if axes == "NTC" else array.swapaxes(1, 2))
    for name, ends in (("lengths", real.sum(axis=1)), ("mask", real), ("mask", real.astype(np.float32))):
        np.savez(tmp_path / "a.npz", **{name: ends}, X=zeros, y=np.array(LABELS))
        expect(tmp_path / "a.npz")
        (tmp_path / name).mkdir(exist_ok=True)
        for file, values in (("X", zeros), ("y", np.array(LABELS)), (name, ends)):
            np.save(tmp_path / name / f"{file}.npy", values)
        expect(tmp_path / name / "X.npy")
    for name, ends in (
        ("mask", ~real),
        ("mask", real[:, :-1]),
        ("lengths", real.sum(axis=1) - 5),
        ("length", [0.5] * 18),
    ):
        np.savez(tmp_path / "b.npz", X=zeros, y=np.array(LABELS), **{name: np.array(ends)})
        with pytest.raises(ValueError, match=f"b.npz: {name} .* does not go with b.npz: X .*; accepted: "):
            planned(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=zeros, y=np.array(LABELS), times=real * 0.5)
    assert f"c.npz: times {real.shape}" in str(planned(tmp_path / "c.npz")[0])


def question(path: Path, *options: str) -> str:
    return refusals.question(lambda: planned(path, *options))


def test_an_array_whose_axes_may_both_be_time_is_a_question(tmp_path: Path):
    values, labels = np.random.default_rng(0).normal(size=(24, 12, 30)).round(3), np.array(["a", "b", "c"] * 8)
    np.savez(tmp_path / "a.npz", X=values, y=labels)
    assert "give --axes NTC for 12 steps or --axes NCT for 30 steps" in question(tmp_path / "a.npz")
    for axes, shape in (("NTC", (24, 12, 30)), ("NCT", (24, 30, 12))):
        plan, found = planned(tmp_path / "a.npz", "--axes", axes)
        assert found.sequences.values.shape == shape and f"npz --axes {axes}`" in plan.done
    np.savez(tmp_path / "b.npz", X_train=values, y_train=labels, X_test=values[:, :9], y_test=labels)
    assert planned(tmp_path / "b.npz")[1].sequences.values.shape == (48, 12, 30)  # time is the axis that varies
    np.savez(tmp_path / "c.npz", X=values[:, :9, :].repeat(2, axis=2), y=labels)  # as in UCI's data set HAR
    assert planned(tmp_path / "c.npz")[1].sequences.values.shape == (24, 60, 9)


def frames(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An npy for each of 11 frames of 18 videos, as label/video/frame.npy. Returns all numbers (18, 11, *shape)."""
    values = np.random.default_rng(0).normal(size=(18, 11, *shape)).round(3)
    for number, video in enumerate(values):
        (folder / LABELS[number] / f"{number // 3}").mkdir(parents=True)
        for frame, numbers in enumerate(video):
            np.save(folder / LABELS[number] / f"{number // 3}" / f"{frame}.npy", numbers)
    return values


@pytest.mark.parametrize(("shape", "axes"), [((63,), "T"), ((21, 3), "TC")])
def test_a_folder_of_numbered_arrays_may_have_a_file_for_each_step(tmp_path: Path, shape: tuple[int, ...], axes: str):
    values, size = frames(tmp_path / "d", shape), int(np.prod(shape))
    asked = question(tmp_path / "d")
    assert f"--axes C if each is one step of {size} channels or --axes {axes} if each is a sequence" in asked
    plan, found = planned(tmp_path / "d", "--axes", "C")
    assert sorted(found.sequences.ids) == sorted(f"{LABELS[number]}/{number // 3}" for number in range(18))
    raw = found.sequences.values[:, :, :size] * found.std[:size] + found.mean[:size]
    for row, name in enumerate(found.sequences.ids):
        label, number = name.split("/")
        assert found.sequences.classes[found.sequences.labels[row]] == label
        expected = values[3 * int(number) + LABELS.index(label)].reshape(11, size)  # frame 10 comes after frame 2
        np.testing.assert_allclose(raw[row], expected, atol=1e-5)
    assert planned(tmp_path / "d", "--axes", axes)[0].summary["num_sequences"] == 18 * 11


def test_a_folder_of_arrays_of_equal_shape_has_a_row_per_step_only_if_time_is_longer(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(18, 20, 8))
    for name, arrays in (("long", values), ("wide", values.swapaxes(1, 2)), ("varied", values.swapaxes(1, 2))):
        for number, each in enumerate(arrays):
            (tmp_path / name / LABELS[number]).mkdir(parents=True, exist_ok=True)
            each = each[:, : 20 - number % 3] if name == "varied" else each
            np.save(tmp_path / name / LABELS[number] / f"r{number}.npy", each)
    assert planned(tmp_path / "long")[1].sequences.values.shape == (18, 20, 16), "with velocities"
    assert "give --axes TC for 8 steps or --axes CT for 20 steps" in question(tmp_path / "wide")
    for name, options in (("wide", ("--axes", "CT")), ("varied", ())):
        assert planned(tmp_path / name, *options)[1].sequences.values.shape == (18, 20, 16)


def test_arrays_of_train_and_test_are_the_split(tmp_path: Path):
    array, labels = padded(), np.array(LABELS)
    parts = {"X_train": array[:12], "y_train": labels[:12], "X_test": array[12:], "y_test": labels[12:]}
    np.savez(tmp_path / "a.npz", **parts)
    (tmp_path / "npy").mkdir()
    for name, part in parts.items():
        np.save(tmp_path / "npy" / f"{name}.npy", part)
    for path in (tmp_path / "a.npz", tmp_path / "npy/X_train.npy"):
        assert expect(path).summary["num_per_split"]["test"] == 6
    np.savez(tmp_path / "b.npz", X=array, y=labels, groups=np.repeat(PEOPLE, 3))
    assert expect(tmp_path / "b.npz").workload.preprocess.groups == "groups"


def write_ts(path: Path, numbers: range) -> Path:
    header = ["# anything", "@problemName Hand", "@univariate false", "@classLabel true push swipe twist", "@data"]
    lines = []
    for number in numbers:
        channels = [",".join(map(str, channel)) for channel in recordings()[number].T]
        lines.append(":".join([*channels, LABELS[number]]))
    path.write_text("\n".join([*header, *lines]))
    return path


def test_ts_files_are_read(tmp_path: Path):
    write_ts(tmp_path / "Hand_TEST.ts", range(12, 18))
    plan = expect(write_ts(tmp_path / "Hand_TRAIN.ts", range(12)))
    assert plan.summary["num_per_split"]["test"] == 6 and plan.table.name == "mine.parquet"
    expect(tmp_path)  # the folder of the two


def test_ts_says_whether_its_targets_are_numbers(tmp_path: Path):
    values = recordings()
    lines = [f"{','.join(map(str, values[number][:, 0]))}:{number % 3}" for number in range(18)]
    written(tmp_path / "a.ts", "\n".join(["@univariate true", "@targetLabel true", "@data", *lines]))
    assert own_tables.planned(tmp_path / "a.ts").workload.task == "regress"


# Text of all kinds ----------------------------------------------------------------------------------------------------


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
    ],
)
def test_text_of_any_encoding_and_separator_is_read(tmp_path: Path, name: str, options: dict[str, Any], encoding: str):
    table = long_table().rename(columns={"label": "événement" if encoding.startswith("win") else "label"})
    (tmp_path / name).write_bytes(table.to_csv(index=False, **options).encode(encoding))
    assert expect(tmp_path / name).workload.preprocess.columns.label == table.columns[-1]


@pytest.mark.parametrize("name", ["t.csv.gz", "a_gzip_called.csv", "t.csv.bz2", "t.csv.xz", "t.zip"])
def test_compressed_text_is_read(tmp_path: Path, name: str):
    data = long_table().to_csv(index=False).encode()
    if name == "t.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("t.csv", data)
    else:
        compress = {"bz2": bz2.compress, "xz": lzma.compress}.get(name.split(".")[-1], gzip.compress)
        (tmp_path / name).write_bytes(compress(data))
    expect(tmp_path / name)


def test_text_cells_keep_their_characters(tmp_path: Path):
    table = long_table()
    table["label"] = np.array(["007", "NA", "a, b"])[pd.factorize(table["clip"])[0] % 3]
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    _, found = planned(tmp_path / "t.csv")
    assert found.sequences.classes == ("007", "NA", "a, b")


def test_every_documented_command_is_valid():
    table = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    commands = [
        cell for row in re.findall(r"^\|.*`tandem new hand.*\|$", table, re.MULTILINE) for cell in row.split("|")[2:3]
    ]
    assert len(commands) >= 11
    for cell in commands:
        first, *options = re.findall(r"`([^`]*)`", cell)
        words = shlex.split(first)
        assert words[:2] == ["tandem", "new"]
        for more in ["", *options]:
            parsed(*words[2:], *shlex.split(more))


# What is refused ---------------------------------------------------------------------------------------------------


def arrays(path: Path, **named: np.ndarray) -> Path:
    np.savez(path, **named)
    return path


def flat(folder: Path) -> Path:
    return write_files(folder / "d", lambda number: f"r_{number}.csv")


def with_other_columns(folder: Path) -> Path:
    write_files(folder / "d", lambda number: f"{LABELS[number]}/{number}.csv")
    return written(folder / "d/push/3.csv", "x,z\n1,2\n").parents[1]


def wide_with(folder: Path, column: str, cell: str) -> Path:
    table = wide_table().astype(object)
    table.loc[4, column] = cell
    table.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


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


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
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
        (lambda at: written(at / "t.parquet", b"clip,frame"), "", "cannot be read"),
        (lambda at: with_a_column_twice(at / "t.parquet"), "", "t.parquet has 2 columns 'x'; rename all but one"),
        (
            lambda at: with_a_column_twice(with_a_column_twice(at / "d/a_1.parquet").with_name("b_1.parquet")).parent,
            "--pattern {label}_*",
            "a_1.parquet has 2 columns 'x'; rename all but one",
        ),
        (lambda at: written(at / "d/x.jpg", "a").parent, "", r"a folder of 1 files \(.jpg\), none a sequence"),
        (flat, "", "nothing says which label the 18 sequences"),
        (flat, "--pattern {label}-*", "does not fit 18 of 18 names"),
        (with_other_columns, "", r"3.csv has other columns than the files before it \(y, z\)"),
        (lambda at: arrays(at / "a.npz", X=np.ones((4, 5, 2, 2))), "", r"X \(4, 5, 2, 2\); accepted: \(N, T, C\)"),
        (
            lambda at: arrays(at / "a.npz", X=np.ones((4, 5)), y=np.ones(3)),
            "",
            r"a.npz: y \(3,\) does not go with a.npz: X",
        ),
        (lambda at: arrays(at / "a.npz", X=np.array([[1], [1, 2]], dtype=object)), "", "which only pickle"),
        (lambda at: arrays(at / "a.npz", X=padded()), "", "a.npz has no labels: put an array y"),
        (lambda at: wide_with(at, "y_1", "abc"), "", "column 'y_1' must hold numbers, found 'abc' in line 6; correct"),
        (
            lambda at: wide_with(at, "label", ""),
            "",
            r"row 29 \(sequence 4\): column 'label' is empty",
        ),
        (lambda at: torn(arrays(at / "a.npz", X=np.ones((200, 100)), y=np.ones(200))), "", "a.npz: X cannot be read"),
        (
            lambda at: written(at / "a.ts", "@classLabel true a\n@data\n1:a\n1,b:a"),
            "",
            "a.ts, line 4: must hold numbers",
        ),
        (lambda at: written(at / "a.ts", "@timestamps true\n@data\n(1,2):a"), "", "has time stamps"),
        (lambda at: written(at / "t.tsv", "a\tb\tc\n"), "", "t.tsv has a header but 0 rows"),
        (lambda at: written(at / "t.csv", "1\n2\n"), "--layout wide", r"has no 4 numbered columns"),
        (lambda at: written(at / "t.csv", "1,a\n2,b\n"), "", r"t.csv has no header \(its first row is|no column"),
    ],
)
def test_a_shape_that_cannot_be_read_gets_one_sentence(tmp_path: Path, make: Any, options: str, words: str):
    path = make(tmp_path)
    assert re.search(words, refusals.sentence(lambda: planned(path, *options.split())))
