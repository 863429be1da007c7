"""The splits of a table of sequences: sizes, seeds, groups, copies, and a column of the table's own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tandem.data.splits import SPLITS
from tandem.params.schema import Split
from tests.data.test_sequences import PARAMS, make_table, prepared, refused, repeated


def test_splits_are_seeded_disjoint_and_complete(tmp_path: Path):
    table = make_table(num_sequences=101, num_classes=3)
    parts = [prepared(tmp_path, table, replace(PARAMS, seed=seed)).parts for seed in (0, 0, 1)]
    for name in SPLITS:
        assert (parts[0][name] == parts[1][name]).all()
    assert not np.array_equal(parts[0]["test"], parts[2]["test"])
    assert sorted(np.concatenate(list(parts[0].values()))) == list(range(101))


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        (Split(train=0.45, val=0.05, test=0.5), {"train": 54, "val": 6, "test": 60}),
        (Split(train=0.7, val=0.15, test=0.15), {"train": 84, "val": 18, "test": 18}),
        (Split(train=61, val=17, test=42), {"train": 61, "val": 17, "test": 42}),
    ],
)
def test_sizes_are_exact_and_classes_in_proportion(tmp_path: Path, split: Split, sizes: dict[str, int]):
    table = make_table(num_sequences=120, num_classes=3)
    table = repeated(table, {3: 0, 4: 1, 7: 1, 8: 5})
    data = prepared(tmp_path, table, replace(PARAMS, split=split))
    assert {name: len(rows) for name, rows in data.parts.items()} == sizes
    for name, rows in data.parts.items():
        counts = np.bincount(data.sequences.labels[rows], minlength=3)
        assert abs(counts - sizes[name] / 3).max() <= 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.case(6)
def test_duplicates_stay_on_one_side(tmp_path: Path, seed: int, saw: Callable[[str], None]):
    """16 of 40 sequences are copies of others"""
    saw("nothing: copies stay in one split, and summary.json counts them")
    copies = {number + 4: number for number in range(0, 32) if number % 8 < 4}  # half of the sequences, in pairs
    data = prepared(tmp_path, repeated(make_table(), copies), replace(PARAMS, seed=seed))
    side = {row: name for name, rows in data.parts.items() for row in rows.tolist()}
    assert len(copies) == 16
    for to, source in copies.items():
        assert side[to] == side[source]
    summary = data.summary
    assert summary["num_duplicates"] == 16
    assert summary["num_duplicates_with_other_label"] == summary["num_duplicates_across_splits"] == 0


@pytest.mark.parametrize(("num_copies", "are_groups"), [(8, False), (9, True)])
def test_many_copies_are_groups_so_that_intervals_count_each_sequence_once(
    tmp_path: Path, num_copies: int, are_groups: bool
):
    """More than a fifth of 40 sequences."""
    copies = {number + 20: number for number in range(num_copies)}
    data = prepared(tmp_path, repeated(make_table(), copies))
    assert ("num_groups" in data.summary) == are_groups
    if are_groups:
        groups = data.sequences.groups
        assert all(groups[to] == groups[source] for to, source in copies.items()) and len(set(groups)) == 31
        assert "9 of 40 sequences are copies" in data.message


@pytest.mark.parametrize("sides", [("train", "val", "test"), ("train", "train", "test")])
def test_a_split_column_decides_the_split(tmp_path: Path, sides: tuple[str, ...]):
    """Where it has no val, train is divided as asked for: 0.5 : 0.25."""
    table = make_table(num_sequences=48)
    expected = np.array(sides)[np.arange(48) // 4 % 3]
    table["split"] = expected[table["sequence"]]
    for seed in (0, 1):
        parts = prepared(tmp_path, table, replace(PARAMS, seed=seed)).parts
        assert parts["test"].tolist() == np.flatnonzero(expected == "test").tolist()
        if "val" in sides:
            assert parts["train"].tolist() == np.flatnonzero(expected == "train").tolist()
        else:
            assert (len(parts["train"]), len(parts["val"])) == (21, 11)
            assert sorted([*parts["train"], *parts["val"]]) == np.flatnonzero(expected == "train").tolist()


@pytest.mark.case(6)
def test_duplicates_across_the_tables_own_splits_are_counted(tmp_path: Path, saw: Callable[[str], None]):
    """the table's own split column puts two equal sequences on two sides"""
    table = repeated(make_table(), {39: 3})
    table["split"] = np.array(["train"] * 20 + ["val"] * 8 + ["test"] * 12)[table["sequence"]]
    data = prepared(tmp_path, table)
    saw(data.message.splitlines()[-1])
    assert data.summary["num_duplicates_across_splits"] == 1 and "warning: 1 sequences of val and test" in data.message


def with_people(num_people: int, num_sequences: int = 120) -> pd.DataFrame:
    table = make_table(num_sequences=num_sequences, num_classes=3)
    draw = np.random.default_rng(1)
    return table.assign(
        person=("p" + pd.Series(draw.integers(0, num_people, num_sequences).astype(str)))[table.sequence].to_numpy()
    )


@pytest.mark.parametrize("num_people", [3, 40])
def test_a_person_is_in_one_split(tmp_path: Path, num_people: int):
    table = with_people(num_people)
    person = table.groupby("sequence").person.first()
    params = replace(PARAMS, groups="person", split=Split(train=0.7, val=0.15, test=0.15))
    for seed in range(3):
        data = prepared(tmp_path, table, replace(params, seed=seed))
        sides = {name: set(person[data.sequences.ids[rows].astype(int)]) for name, rows in data.parts.items()}
        assert sum(map(len, sides.values())) == num_people == len(set.union(*sides.values()))
        assert all(map(len, sides.values())) and data.summary["num_groups"] == {k: len(v) for k, v in sides.items()}
        if num_people == 40:  # persons of about three sequences: sizes and classes come out nearly as asked for
            for name, share in (("train", 84), ("val", 18), ("test", 18)):
                assert abs(len(data.parts[name]) - share) <= 5


def test_people_that_cannot_be_kept_apart_are_refused_or_reported(tmp_path: Path):
    params = replace(PARAMS, groups="person")
    refused(tmp_path, with_people(2).to_csv(index=False), "'person': its 2 groups", "3 splits", params=params)
    table = with_people(9).assign(split=lambda table: np.resize(["train", "val", "test", "train"], 120)[table.sequence])
    sides = table.groupby("person").split.nunique()
    assert set(sides) == {2, 3} or set(sides) == {3}  # a person in three splits counts once
    crossing = f"{(sides > 1).sum()} groups stand in more than one split, because the table's own"
    assert crossing in prepared(tmp_path, table, params).message


@pytest.mark.parametrize(("num_in_train", "have_own_class"), [(1, False), (6, False), (3, True), (6, True)])
def test_val_drawn_from_train_has_other_people_if_train_can_spare_one(
    tmp_path: Path, num_in_train: int, have_own_class: bool
):
    table = with_people(9)
    if have_own_class:
        table["label"] = table.person.str[1].astype(int) % 3
    is_train = table.person.isin([f"p{number}" for number in range(num_in_train)])
    data = prepared(tmp_path, table.assign(split=np.where(is_train, "train", "test")), replace(PARAMS, groups="person"))
    train, val, test = (set(data.arrays(split)["groups"]) for split in SPLITS)
    assert train and val and test and not test & (train | val)
    assert bool(train & val) == (num_in_train in (1, 3))
