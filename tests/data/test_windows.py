"""Properties of the windows that preprocess cuts from recordings."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tandem.data import write_arrays, write_prepared
from tandem.data.arrays import PreparedSequences
from tandem.data.packed import pack_splits
from tandem.data.sequences import prepare
from tandem.devices.names import kind_of
from tandem.params.schema import Columns, SequenceTable, Split, Window
from tandem.training.batches import load_split
from tests.data import test_sequences
from tests.own_tables import people, recording, saved
from tests.refusals import sentence

DAY = ["sit", None, "walk", "sit", "run", None, "walk", "run", "sit", "walk", "run"]  # three stretches of each
PARAMS = replace(
    test_sequences.PARAMS,
    columns=Columns(sequence="none", step="time", features=("row", "x", "y"), label="activity"),
    split=Split(train=0.6, val=0.2, test=0.2),
    velocity=False,
    window=Window(length=10, stride=4),
)
OF_PEOPLE = replace(PARAMS, columns=replace(PARAMS.columns, sequence="subject"), groups="subject")


def prepared(folder: Path, table: pd.DataFrame, params: SequenceTable = PARAMS) -> PreparedSequences:
    return prepare(replace(params, table=saved(table, folder / "t.csv").name), folder, "class")


def rows_of(found: PreparedSequences, split: str) -> np.ndarray:
    """(N, L) the column `row` of the windows of a split."""
    values = found.arrays(split)["values"][:, :, 0] * found.std[0] + found.mean[0]
    return np.asarray(values.round().astype(int))


def test_val_drawn_from_the_only_recording_of_train_has_other_stretches(tmp_path: Path):
    table = people(2, DAY).assign(split=lambda table: table["subject"].map({"p0": "train", "p1": "test"}))
    data = prepared(tmp_path, table, OF_PEOPLE)
    train, val, test = (data.arrays(split) for split in ("train", "val", "test"))
    assert len(val["values"]) and not {*train["stretches"]} & {*val["stretches"]}
    assert not {*test["groups"]} & {*train["groups"], *val["groups"]}


def stretch_numbers(table: pd.DataFrame) -> np.ndarray:
    keys = table[["activity"]].fillna("")
    return np.asarray((keys != keys.shift()).any(axis=1).cumsum())


@pytest.mark.parametrize("seed", range(3))
def test_a_window_is_of_one_label_and_no_stretch_is_in_two_splits(tmp_path: Path, seed: int):
    table = recording(DAY, seed=seed)
    numbers, splits = stretch_numbers(table), dict[int, str]()
    data = prepared(tmp_path, table, replace(PARAMS, seed=seed))
    for split in data.parts:
        arrays, rows = data.arrays(split), rows_of(data, split)
        assert (np.diff(rows, axis=1) == 1).all() and rows.shape[1] == 10
        labels = np.array(data.summary["classes"])[arrays["targets"]]
        assert (table["activity"].to_numpy()[rows] == labels[:, None]).all()
        for number in np.unique(numbers[rows]):
            assert splits.setdefault(number, split) == split
        assert set(labels) == {"sit", "walk", "run"}  # each has a stretch in each split
        assert len(np.unique(arrays["stretches"])) == len(np.unique(arrays["groups"])) == len(np.unique(numbers[rows]))


def test_every_row_is_in_a_window_or_counted(tmp_path: Path):
    table = recording([*DAY, "sit"])
    numbers = stretch_numbers(table)
    table = table[(numbers < numbers.max()) | (table["row"] > len(table) - 8)]  # 7 rows of the last stretch
    data = prepared(tmp_path, table)
    num_used = len(np.unique(np.concatenate([rows_of(data, split).ravel() for split in data.parts])))
    lengths = np.bincount(stretch_numbers(table))[1:]
    ends = sum((length - 10) % 4 for length in lengths if length >= 10 and table["activity"].notna().any())
    remark = next(line for line in data.summary["remarks"] if "are in no window" in line)
    assert f"{len(table) - num_used:,} of {len(table):,} rows" in remark
    assert f"{table['activity'].isna().sum():,} without a label, 7 in 1 stretches shorter than a window" in remark
    assert 0 < len(table) - num_used - table["activity"].isna().sum() - 7 <= ends
    assert data.summary["remarks"][0].startswith("1 recording, 9 stretches of one label, windows of 10 steps every 4")
    assert "(0.5 s every 0.2 s)" in data.summary["remarks"][0]


def test_a_person_is_in_one_split_and_windows_do_not_depend_on_the_order_of_the_rows(tmp_path: Path):
    table = people(6, DAY)
    data = prepared(tmp_path, table, OF_PEOPLE)
    persons = {split: {name.split()[0] for name in data.arrays(split)["ids"]} for split in data.parts}
    assert sum(map(len, persons.values())) == 6 == len(set.union(*persons.values()))
    assert data.summary["num_groups"] == {split: len(names) for split, names in persons.items()}
    reordered = prepared(tmp_path, table.sample(frac=1, random_state=1), OF_PEOPLE)
    assert write_arrays(tmp_path / "a", data) == write_arrays(tmp_path / "b", reordered)


def test_a_training_knows_who_each_window_is_of(tmp_path: Path):
    data = prepared(tmp_path, people(6, DAY), OF_PEOPLE)
    summary = write_prepared(tmp_path / "prepared", data)
    pack_splits(tmp_path / "prepared", tmp_path, summary)
    for name in ("train", "val"):
        split = load_split(tmp_path / f"{name}.safetensors", kind_of("cpu")())
        assert {*split.tensors} == {"values", "mask", "targets"} and split.groups is not None
        persons = [identity.split()[0] for identity in data.arrays(name)["ids"]]
        assert len(set(persons)) == len(set(zip(persons, split.groups.tolist(), strict=True)))


def test_a_gap_in_time_ends_a_stretch(tmp_path: Path):
    table = recording(DAY)
    sit = table.index[table["activity"] == "sit"][:40]
    data = prepared(tmp_path, table.drop(index=sit[15:30]))
    assert all((np.diff(rows_of(data, split), axis=1) == 1).all() for split in data.parts)


def test_windows_without_any_value_are_left_out(tmp_path: Path):
    """Those without a value of one feature are not: it gets the mean of train."""
    table = recording(DAY)
    params = replace(PARAMS, missing="interpolate", columns=replace(PARAMS.columns, features=("x", "y")))
    whole = prepared(tmp_path, table, params)
    table.loc[table.index[table["activity"] == "run"][:25], "x"] = np.nan
    data = prepared(tmp_path, table, params)
    assert "4 of 90 sequences never have a value of x" in data.message
    assert len(data.sequences.ids) == len(whole.sequences.ids) == 90
    table.loc[table.index[table["activity"] == "run"][:25], "y"] = np.nan
    data = prepared(tmp_path, table, params)
    assert "4 windows are left out: no feature has a value in them" in data.message
    assert len(data.sequences.ids) == 86
    assert all(np.isfinite(data.arrays(split)["values"]).all() for split in data.parts)


def test_a_label_in_no_window_is_reported(tmp_path: Path):
    table = recording([*DAY, "jump"])
    jumps = table.index[table["activity"] == "jump"]
    data = prepared(tmp_path, table.drop(index=jumps[8:]))
    assert "no window has the labels jump: all of their stretches are shorter" in data.message
    assert "jump" not in data.summary["classes"]


def test_a_label_with_few_stretches_is_reported(tmp_path: Path):
    data = prepared(tmp_path, recording([*DAY, "jump"]))
    assert "no score covers the labels without a test sequence: jump (in 1 stretch)" in data.message
    jump = data.summary["classes"].index("jump")
    assert jump in data.arrays("train")["targets"]
    assert jump not in np.concatenate([data.arrays(split)["targets"] for split in ("val", "test")])


@pytest.mark.parametrize(
    ("table", "window", "words"),
    [
        (recording(DAY), Window(200, 100), "no window of 200 rows .*the longest stretch has"),
        (recording(["sit", "walk", "sit", "walk"]), Window(10, 4), "no label has a stretch with windows for each of"),
        (recording([None, None]), Window(10, 4), r"the longest stretch has 0 rows"),
        (recording(DAY).replace({"time": "2024-03-01 09:00:00.100000"}, "2024-03-01 09:00:00.050000"), Window(10, 4),
         "'time' repeats in the recording, lines 3 and 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_or_split_gets_one_sentence(tmp_path: Path, table: pd.DataFrame, window: Window, words: str):
    assert re.search(words, sentence(lambda: prepared(tmp_path, table, replace(PARAMS, window=window))))
