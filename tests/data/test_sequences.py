"""Properties of preprocess, on small tables written out here and on the two that are committed."""

import gzip
import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data import source_module, write_arrays
from tandem.data.arrays import PreparedSequences, standardize
from tandem.data.rows import to_sequences
from tandem.data.splits import SPLITS
from tandem.data.tables import find_table, from_frame
from tandem.files import raw_dir
from tandem.params.loading import load_workload
from tandem.params.parsing import parse
from tandem.params.schema import Columns, SequenceTable, Split, Window
from tests.refusals import sentence

PARAMS = SequenceTable(
    source="sequences",
    table="table.csv",
    columns=Columns(sequence="sequence", step="step", features=("x", "y"), label="label"),
    split=Split(train=0.5, val=0.25, test=0.25),
    seed=0,
    velocity=True,
    missing="refuse",
    groups="none",
)
HEADER = "sequence,step,x,y,label"


def make_table(
    num_sequences: int = 40, lengths: tuple[int, ...] = (6,), num_classes: int = 4, seed: int = 0
) -> pd.DataFrame:
    """Random walks; the sequences' lengths are `lengths` in turn, their labels the classes in turn."""
    draw = np.random.default_rng(seed)
    length = np.resize(lengths, num_sequences)
    sequence = np.repeat(np.arange(num_sequences), length)
    x, y = draw.normal(size=(2, length.sum())).cumsum(axis=1)
    step = np.concatenate([np.arange(count) for count in length])
    label = np.array([f"class {number}" for number in range(num_classes)])[sequence % num_classes]
    return pd.DataFrame({"sequence": sequence, "step": step, "x": x, "y": y, "label": label})


def repeated(table: pd.DataFrame, copies: dict[int, int]) -> pd.DataFrame:
    """`table` with the values of some sequences replaced by those of others: copies[to] = from."""
    table = table.copy()
    for to, source in copies.items():
        table.loc[table["sequence"] == to, ["x", "y", "label"]] = table.loc[
            table["sequence"] == source, ["x", "y", "label"]
        ].to_numpy()
    return table


def prepare(path: Path, params: Any) -> Any:
    return source_module(params.source).prepare(replace(params, table=path.name), path.parent, "class")


def prepared(
    tmp_path: Path, table: pd.DataFrame, params: SequenceTable = PARAMS, name: str = "table.csv"
) -> PreparedSequences:
    path = tmp_path / name
    (table.to_csv if path.suffix == ".csv" else table.to_parquet)(path, index=False)
    return prepare(path, params)


def refused(tmp_path: Path, text: str, *words: str, params: Any = PARAMS) -> str:
    """`text` as a table is refused in one sentence that holds all of `words`: this one."""
    path = tmp_path / "table.csv"
    path.write_text(text)
    return sentence(lambda: prepare(path, params), *words)


# What comes out -------------------------------------------------------------------------------------------------------


def test_arrays_equal_those_computed_by_hand(tmp_path: Path):
    """Two features, velocity, three lengths."""
    rows = [HEADER + ",split"]
    values = {"a": [(0, 1), (2, 1), (4, 1)], "b": [(1, 1), (1, 1)], "c": [(5, 1), (6, 1)], "d": [(7, 1), (9, 1)]}
    for sequence, (split, label) in zip(
        values, [("train", "p"), ("train", "q"), ("val", "q"), ("test", "p")], strict=True
    ):
        rows += [f"{sequence},{step},{x},{y},{label},{split}" for step, (x, y) in enumerate(values[sequence])]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    found = prepare(path, PARAMS)
    sequences = found.sequences
    assert sequences.features == ("x", "y", "dx", "dy")
    assert sequences.classes == ("p", "q")
    assert sequences.labels.tolist() == [0, 1, 1, 0]
    assert sequences.lengths.tolist() == [3, 2, 2, 2]
    assert sequences.ids.tolist() == ["a", "b", "c", "d"]
    assert {name: rows.tolist() for name, rows in found.parts.items()} == {"train": [0, 1], "val": [2], "test": [3]}

    x, dx = np.array([0, 2, 4, 1, 1]), np.array([0, 2, 2, 0, 0])  # the train steps
    np.testing.assert_allclose(found.mean, [x.mean(), 1, dx.mean(), 0])
    np.testing.assert_allclose(found.std, [x.std(), 0, dx.std(), 0], rtol=1e-6)
    expected = np.array([[5, 1, 0, 0], [6, 1, 1, 0], [0, 0, 0, 0]], dtype=float)  # c, its last row padding
    expected[:2] = (expected[:2] - found.mean) / np.where(found.std, found.std, np.inf)
    np.testing.assert_allclose(sequences.values[2], expected, atol=1e-6)


def test_formats_and_the_order_of_rows_come_to_the_same_bytes(tmp_path: Path):
    table = make_table(lengths=(3, 5))
    table["step"] = table["step"] * 1.5 - 2  # any growing number will do
    expected = write_arrays(tmp_path / "expected", prepared(tmp_path, table))
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress((tmp_path / "table.csv").read_bytes()))
    table.to_parquet(tmp_path / "table.parquet")
    table.sample(frac=1, random_state=1).to_csv(tmp_path / "shuffled.csv", index=False)
    for name in ("table.csv.gz", "table.parquet", "shuffled.csv"):
        assert write_arrays(tmp_path / "found", prepare(tmp_path / name, PARAMS)) == expected, name


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "c"], ["a", "b", "c"]),
        ([10, 9, 2], [2, 9, 10]),
        (["class 10", "class 9", "B"], ["B", "class 10", "class 9"]),
    ],
)
def test_classes_and_sequences_are_sorted(tmp_path: Path, labels: list, classes: list):
    table = make_table(num_sequences=30, num_classes=3)
    table["label"] = [labels[sequence % 3] for sequence in table["sequence"]]
    sequences = prepared(tmp_path, table).sequences
    assert list(sequences.classes) == classes
    assert [sequences.classes[label] for label in sequences.labels[:3]] == labels
    assert sequences.ids.tolist() == [str(number) for number in range(30)]
    table["sequence"] = "s" + table["sequence"].astype(str)
    assert prepared(tmp_path, table).sequences.ids.tolist() == sorted(f"s{number}" for number in range(30))


def test_no_statistic_leaks_from_test_and_validation(tmp_path: Path):
    """Other values in test and val leave every training array as it is."""
    table = make_table(num_sequences=80)
    first = prepared(tmp_path, table)
    outside = first.sequences.ids[np.concatenate([first.parts["val"], first.parts["test"]])].astype(int)
    changed = table.copy()
    changed.loc[table["sequence"].isin(outside), ["x", "y"]] *= 100
    second = prepared(tmp_path, changed)
    assert (second.parts["train"] == first.parts["train"]).all()
    rows = first.parts["train"]
    np.testing.assert_array_equal(second.sequences.values[rows], first.sequences.values[rows])
    np.testing.assert_array_equal(second.mean, first.mean)


def test_a_feature_that_is_constant_in_train_is_zero_in_every_split_and_named(tmp_path: Path):
    table = make_table().assign(split=np.repeat(["train", "train", "val", "test"], 60))
    table["y"] = table["y"].mask(table["split"] == "train", 5.0) * 100
    found = prepared(tmp_path, table)
    assert found.sequences.features == ("x", "y", "dx", "dy") and found.summary["std"][1::2] == [0, 0]
    assert not found.sequences.values[:, :, 1::2].any() and found.sequences.values[:, :, 0::2].any(axis=(1, 2)).all()
    assert "; constant in train, so 0 in every split: y, dy" in found.message
    raw = np.stack([table[name].to_numpy().reshape(40, 6) for name in "xy"], axis=2)
    is_real = np.ones((40, 6), dtype=bool)
    again, _ = source_module("sequences").raw_to_inputs(raw, is_real, PARAMS, found.summary)
    np.testing.assert_allclose(again, found.sequences.values, atol=1e-6)
    older = {**found.summary, "std": [each or 1.0 for each in found.summary["std"]]}  # as it was recorded before
    again, _ = source_module("sequences").raw_to_inputs(raw, is_real, PARAMS, older)
    np.testing.assert_allclose(again[:, :, 1], raw[:, :, 1] - 500, rtol=1e-5)


def test_a_feature_in_a_large_unit_is_not_taken_for_a_constant(tmp_path: Path):
    """As farads: some picofarads."""
    table = make_table()
    found = prepared(tmp_path, table.assign(x=table["x"] * 1e-13))
    np.testing.assert_allclose(found.sequences.values, prepared(tmp_path, table).sequences.values, atol=1e-5)
    assert "constant" not in found.message


# Splits ---------------------------------------------------------------------------------------------------------------


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
    found = prepared(tmp_path, table, replace(PARAMS, split=split))
    assert {name: len(rows) for name, rows in found.parts.items()} == sizes
    for name, rows in found.parts.items():
        counts = np.bincount(found.sequences.labels[rows], minlength=3)
        assert abs(counts - sizes[name] / 3).max() <= 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.case(6)
def test_duplicates_stay_on_one_side(tmp_path: Path, seed: int, saw: Callable[[str], None]):
    """16 of 40 sequences are copies of others"""
    saw("nothing: copies stay in one split, and summary.json counts them")
    copies = {number + 4: number for number in range(0, 32) if number % 8 < 4}  # half of the sequences, in pairs
    found = prepared(tmp_path, repeated(make_table(), copies), replace(PARAMS, seed=seed))
    side = {row: name for name, rows in found.parts.items() for row in rows.tolist()}
    assert len(copies) == 16
    for to, source in copies.items():
        assert side[to] == side[source]
    summary = found.summary
    assert summary["num_duplicates"] == 16
    assert summary["num_duplicates_with_other_label"] == summary["num_duplicates_across_splits"] == 0


@pytest.mark.parametrize(("num_copies", "are_groups"), [(8, False), (9, True)])
def test_many_copies_are_groups_so_that_intervals_count_each_sequence_once(
    tmp_path: Path, num_copies: int, are_groups: bool
):
    """More than a fifth of 40 sequences."""
    copies = {number + 20: number for number in range(num_copies)}
    found = prepared(tmp_path, repeated(make_table(), copies))
    assert ("num_groups" in found.summary) == are_groups
    if are_groups:
        groups = found.sequences.groups
        assert all(groups[to] == groups[source] for to, source in copies.items()) and len(set(groups)) == 31
        assert "9 of 40 sequences are copies" in found.message


@pytest.mark.parametrize("sides", [("train", "val", "test"), ("train", "train", "test")])
def test_a_split_column_decides_the_split(tmp_path: Path, sides: tuple[str, ...]):
    """Where it has no val, train is divided as asked for: 0.5 : 0.25."""
    table = make_table(num_sequences=48)
    wanted = np.array(sides)[np.arange(48) // 4 % 3]
    table["split"] = wanted[table["sequence"]]
    for seed in (0, 1):
        parts = prepared(tmp_path, table, replace(PARAMS, seed=seed)).parts
        assert parts["test"].tolist() == np.flatnonzero(wanted == "test").tolist()
        if "val" in sides:
            assert parts["train"].tolist() == np.flatnonzero(wanted == "train").tolist()
        else:
            assert (len(parts["train"]), len(parts["val"])) == (21, 11)
            assert sorted([*parts["train"], *parts["val"]]) == np.flatnonzero(wanted == "train").tolist()


@pytest.mark.case(6)
def test_duplicates_across_the_tables_own_splits_are_counted(tmp_path: Path, saw: Callable[[str], None]):
    """the table's own split column puts two equal sequences on two sides"""
    table = repeated(make_table(), {39: 3})
    table["split"] = np.array(["train"] * 20 + ["val"] * 8 + ["test"] * 12)[table["sequence"]]
    found = prepared(tmp_path, table)
    saw(found.message.splitlines()[-1])
    assert (
        found.summary["num_duplicates_across_splits"] == 1 and "warning: 1 sequences of val and test" in found.message
    )


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
        found = prepared(tmp_path, table, replace(params, seed=seed))
        sides = {name: set(person[found.sequences.ids[rows].astype(int)]) for name, rows in found.parts.items()}
        assert sum(map(len, sides.values())) == num_people == len(set.union(*sides.values()))
        assert all(map(len, sides.values())) and found.summary["num_groups"] == {k: len(v) for k, v in sides.items()}
        if num_people == 40:  # persons of about three sequences: sizes and classes come out nearly as asked for
            for name, share in (("train", 84), ("val", 18), ("test", 18)):
                assert abs(len(found.parts[name]) - share) <= 5


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
    found = prepared(
        tmp_path, table.assign(split=np.where(is_train, "train", "test")), replace(PARAMS, groups="person")
    )
    train, val, test = (set(found.arrays(split)["groups"]) for split in SPLITS)
    assert train and val and test and not test & (train | val)
    assert bool(train & val) == (num_in_train in (1, 3))


def test_small_changes_of_large_numbers_are_kept(tmp_path: Path):
    """As a Unix time: 32-bit floats around 1.7e9 are 128 apart."""
    table = make_table()
    found = prepared(tmp_path, table)
    far = prepared(tmp_path, table.assign(x=table.x + 1.7e9))
    low = (table.x + 1.7e9).min()
    assert far.summary["offsets"] == {"x": low} and "offsets" not in found.summary and "taken off x" in far.message
    np.testing.assert_allclose(far.sequences.values, found.sequences.values, atol=1e-5)
    # As the trained model's predictor does with a table of some of the sequences.
    few = table.assign(x=table.x + 1.7e9)[lambda table: table.sequence < 3]
    rows = from_frame(few, [*few.columns], "the table")
    again = to_sequences(rows, PARAMS.columns, PARAMS, offsets=far.summary["offsets"])
    standardize(again.values, again.padding_mask, far.summary["mean"], far.summary["std"])
    np.testing.assert_array_equal(again.values, far.sequences.values[:3])


def test_the_last_digits_of_large_whole_numbers_are_kept_or_refused(tmp_path: Path):
    """64-bit floats around 2**53 are 2 apart, and those around a time of today in nanoseconds are 256 apart."""
    table = make_table()
    table = table.assign(x=table.x.rank().astype("int64"))
    wanted = prepared(tmp_path, table).sequences.values[..., 0]
    large = table.assign(x=table.x + 1_700_000_000_000_000_000)
    for name, each in (
        ("table.csv", large),
        ("table.parquet", large),
        ("table.parquet", large.assign(x=pd.to_datetime(large.x))),
        ("table.csv", table.assign(x=table.x + 2**53)),
    ):
        np.testing.assert_allclose(prepared(tmp_path, each, name=name).sequences.values[..., 0], wanted, atol=1e-5)
    missing = large.assign(x=large.x.astype("Int64").where(large.index != 3))
    for name in ("table.csv", "table.parquet"):  # NaN makes it a float
        with pytest.raises(ValueError, match="whole numbers from -9007199254740991 to 9007199254740991"):
            prepared(tmp_path, missing, replace(PARAMS, missing="interpolate"), name)


# What is refused ------------------------------------------------------------------------------------------------------


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
            "class 'rare' has 2 sequences",
            "3 splits",
        ),
        (make_table().assign(x=1.0, y=2.5).to_csv(index=False), ["no feature ever changes (x, y)"]),
        (
            make_table().assign(x=lambda t: t.step, y=lambda t: t.step).to_csv(index=False),
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


def test_a_damaged_table_is_named(tmp_path: Path):
    whole = gzip.compress(make_table().to_csv(index=False).encode())
    (tmp_path / "table.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and no more")
    for name in ("table.csv.gz", "table.parquet"):
        with pytest.raises(ValueError, match=rf"{re.escape(name)}.*(cannot be read|not a parquet file)"):
            prepare(tmp_path / name, PARAMS)


# The committed tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workload", "sizes"), [("sign", (162, 18, 180)), ("pen", (6728, 766, 3498))])
def test_committed_tables_match_their_readme(tmp_path: Path, workload: str, sizes: tuple[int, ...]):
    folder, params = raw_dir(workload), load_workload(workload).preprocess
    path = find_table(folder, params.table)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"| {path.name} | sha256 `{digest}` |" in (folder.parent / "README.md").read_text()
    split = Split(*([0.45, 0.05, 0.5] if workload == "sign" else sizes))
    found = prepare(path, replace(params, split=split))
    assert tuple(len(found.parts[name]) for name in SPLITS) == sizes
    summary = found.summary
    assert summary["num_duplicates_across_splits"] == 0
    assert summary["num_duplicates"] == (30 if workload == "sign" else 0)


def test_written_files_have_the_digests_and_types_that_are_returned(tmp_path: Path):
    found = prepared(tmp_path, make_table())
    digests = write_arrays(tmp_path / "out", found)
    written = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert sorted(digests) == [path.relative_to(tmp_path / "out").as_posix() for path in written]
    for path in written:
        array = np.load(path, allow_pickle=False)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digests[path.relative_to(tmp_path / "out").as_posix()]
        expected = {"values": np.float32, "lengths": np.int32, "targets": np.int64}.get(path.stem)
        assert array.dtype == expected or (path.stem == "ids" and array.dtype.kind == "U")
        assert len(array) == len(found.parts[path.parent.name])


# Text and lines as they stand in the file -----------------------------------------------------------------------------


def test_the_type_of_a_column_is_that_of_all_its_cells(tmp_path: Path):
    """Whole numbers for more than the first megabyte, then fractions."""
    table = make_table(num_sequences=30_000)
    table[["x", "y"]] = table[["x", "y"]].round()
    table = table.astype({"x": int, "step": int}).astype({"x": object, "step": object})
    table.loc[len(table) - 1, ["x", "step"]] = (0.5, 5.5)
    found = prepared(tmp_path, table, replace(PARAMS, velocity=False))
    last = found.sequences.values[-1, -1, 0] * found.std[0] + found.mean[0]
    assert last == pytest.approx(0.5, abs=1e-3)


def test_a_sequence_that_ends_in_zeros_is_no_duplicate_of_a_shorter_one(tmp_path: Path):
    table = make_table(num_sequences=16, lengths=(3,))
    longer = pd.concat(
        [table[table["sequence"] == 0], pd.DataFrame({"sequence": [0], "step": [3], "x": [0.0], "y": [0.0]})]
    )
    longer = longer.assign(sequence=16, label="class 0")
    assert prepared(tmp_path, pd.concat([table, longer])).summary["num_duplicates"] == 0


@pytest.mark.parametrize("is_sorted", [True, False])
def test_gaps_are_filled_over_the_step_column(tmp_path: Path, is_sorted: bool):
    """As a wearable that pauses: with the row as the distance, the empty cell would be 51."""
    steps = [1e9 + part for part in (0, 0.5, 1, 1.5, 100, 101)]
    table = make_table().assign(step=np.tile(steps, 40))
    table["x"] = table["step"] - 1e9 + table["sequence"]
    expected = table["x"].copy()
    table.loc[3::6, "x"] = np.nan
    if not is_sorted:
        table = table.sample(frac=1, random_state=0)
    found = prepared(tmp_path, table, replace(PARAMS, missing="interpolate", velocity=False))
    order = np.argsort(found.sequences.ids.astype(int))
    x = found.sequences.values[order, :, 0].ravel() * found.std[0] + found.mean[0]
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)
    assert found.summary["num_filled"] == 40


def with_hands() -> pd.DataFrame:
    """Two hands: in sequences 0 to 9 the left one is never seen, in 10 to 19 the right one not in the first steps."""
    table = make_table().rename(columns={"x": "left_x", "y": "left_y"})
    table[["right_x", "right_y"]] = make_table(seed=1)[["x", "y"]].to_numpy()
    table.loc[table["sequence"] < 10, ["left_x", "left_y"]] = np.nan
    table.loc[table["sequence"].between(10, 19) & (table["step"] < 3), ["right_x", "right_y"]] = np.nan
    return table


HANDS = replace(
    PARAMS, columns=replace(PARAMS.columns, features=("left_x", "left_y", "right_x", "right_y")), missing="mask"
)


def test_a_feature_that_a_sequence_never_has_is_the_mean_of_train(tmp_path: Path):
    """The mean and the deviation are those of the sequences that have it. The velocity is a feature like others."""
    table = with_hands()
    found = prepared(tmp_path, table, replace(HANDS, missing="interpolate"))
    order = np.argsort(found.sequences.ids.astype(int))
    values = found.sequences.values[order]
    assert not values[:10][:, :, [0, 1, 4, 5]].any() and values[10:, :, :2].any(axis=(1, 2)).all()
    train = table["sequence"].isin(found.sequences.ids[found.parts["train"]].astype(int))
    np.testing.assert_allclose(found.mean[:2], table.loc[train, ["left_x", "left_y"]].mean(), rtol=1e-5)
    np.testing.assert_allclose(found.std[:2], table.loc[train, ["left_x", "left_y"]].std(ddof=0), rtol=1e-5)
    assert found.summary["num_filled"] == 60  # of the right hand
    remark = "10 of 40 sequences never have a value of left_x, left_y; it is the mean of train there (0)"
    assert found.summary["remarks"] == [remark]
    table.loc[table["sequence"] == 3, ["right_x", "right_y"]] = np.nan
    with pytest.raises(ValueError, match="sequence '3' has no value of any feature; leave it out"):
        prepared(tmp_path, table, HANDS)


@pytest.mark.parametrize("velocity", [False, True])
def test_a_mask_says_which_features_were_seen_also_in_new_data(tmp_path: Path, velocity: bool):
    """One column for each group of features that are missing in the same rows."""
    table = with_hands()
    found = prepared(tmp_path, table, replace(HANDS, velocity=velocity))
    features = [*HANDS.columns.features, "left_x seen", "right_x seen"]
    assert found.summary["features"] == features + [f"d{name}" for name in features] * velocity
    order = np.argsort(found.sequences.ids.astype(int))
    masks = (found.sequences.values * found.std + found.mean)[order][:, :, 4:6].reshape(-1, 2)
    np.testing.assert_allclose(masks, table[["left_x", "right_x"]].notna(), atol=1e-5)
    plain = prepared(tmp_path, table, replace(HANDS, velocity=velocity, missing="interpolate"))
    np.testing.assert_array_equal(plain.sequences.values[:, :, :4], found.sequences.values[:, :, :4])

    raw = np.stack([table[name].to_numpy().reshape(40, 6) for name in HANDS.columns.features], axis=2)
    params = replace(HANDS, velocity=velocity)
    again, _ = source_module("sequences").raw_to_inputs(raw, np.ones((40, 6), dtype=bool), params, found.summary)
    np.testing.assert_allclose(again, found.sequences.values[order], atol=1e-6)


def test_words_of_a_column_are_features(tmp_path: Path):
    """An empty cell is none of them, and neither is a word that is not listed, which is named."""
    table = make_table().assign(mode=np.random.default_rng(0).choice(["low", "mid", " high", "off", ""], 240))
    params = replace(PARAMS, categories=("mode=low", "mode=mid", "mode=high"), velocity=False)
    found = prepared(tmp_path, table, params)
    assert found.summary["features"] == ["x", "y", "mode=low", "mode=mid", "mode=high"]
    order = np.argsort(found.sequences.ids.astype(int))
    cells = (found.sequences.values * found.std + found.mean)[order][:, :, 2:].reshape(-1, 3)
    expected = [table["mode"].str.strip() == word for word in ("low", "mid", "high")]
    np.testing.assert_allclose(cells.T, expected, atol=1e-6)
    assert "'mode' holds words that are no categories: off" in found.message
    plain = prepared(tmp_path, table, replace(PARAMS, velocity=False))
    np.testing.assert_array_equal(plain.sequences.values, found.sequences.values[:, :, :2])
    numbers = prepared(tmp_path, table.assign(mode=table.index % 3), replace(params, categories=("mode=0", "mode=2")))
    cells = (numbers.sequences.values * numbers.std + numbers.mean)[order][:, :, 2:].reshape(-1, 2)
    np.testing.assert_allclose(cells, np.stack([table.index % 3 == 0, table.index % 3 == 2], 1), atol=1e-6)


def test_a_step_that_goes_back_once_is_named(tmp_path: Path):
    """A counter that begins again, or a local time when the clock is set back: sorted, the end comes first."""
    table = make_table(40, lengths=(8,))
    wrapped = table.assign(step=(table["step"] + 250 + 2 * (table["sequence"] < 10)) % 256)
    remarks = prepared(tmp_path, wrapped).summary["remarks"]
    assert len(remarks) == 1 and remarks[0].startswith("'step' goes back once in 40 of 40 sequences"), remarks
    few = table.assign(step=np.where(table["sequence"] < 3, (table["step"] + 4) % 8, table["step"]))
    assert "once in 3 of 40 sequences" in prepared(tmp_path, few).summary["remarks"][0]
    for other in (table, table.iloc[::-1], table.sample(frac=1, random_state=0)):
        assert "remarks" not in prepared(tmp_path, other).summary


@pytest.mark.parametrize("times", [False, True])
def test_recordings_of_different_rates_are_named(tmp_path: Path, times: bool):
    """A network gets rows without their times. The first 20 sequences have 20 Hz, the others 20, then 10 Hz."""
    table = make_table(40)
    for slower, remark in ((1, None), (2, "the rows of a sequence are 0.05 to 0.1 s? apart")):
        seconds = 0.05 * table["step"] * np.where(table["sequence"] < 20, 1, slower)
        step = pd.Timestamp("2024-05-01") + pd.to_timedelta(seconds, "s") if times else seconds
        found = prepared(tmp_path, table.assign(step=step))
        assert found.summary["usual_step"] == pytest.approx(0.05 * (1 + slower) / 2)
        remarks = found.summary.get("remarks", [])
        if remark is None:
            assert not remarks
        else:
            assert re.match(remark if times else remark.replace("s?", "step"), remarks[0]), remarks
            assert "apart, 10 to 20 in one;" in remarks[0] and remarks[0].endswith(
                "(--rate 13.3, or rate in preprocess)"
            )
    assert "usual_step" not in prepared(tmp_path, table).summary


def test_ids_and_labels_beyond_63_bits_are_those_of_the_file(tmp_path: Path):
    """As hashes of 64 bits, which Parquet keeps as unsigned numbers."""
    table = make_table()
    table["sequence"] = np.uint64(2**63) + table["sequence"].to_numpy(np.uint64)
    table["label"] = np.uint64(2**63 + 100) + pd.factorize(table["label"])[0].astype(np.uint64)
    of_parquet, of_csv = (prepared(tmp_path, table, name=name) for name in ("table.parquet", "table.csv"))
    assert set(of_parquet.sequences.ids) == set(table["sequence"].astype(str))
    assert set(of_parquet.summary["classes"]) == set(table["label"].astype(str))
    assert of_parquet.summary["classes"] == of_csv.summary["classes"]
    np.testing.assert_array_equal(of_parquet.sequences.ids, of_csv.sequences.ids)


def waves(rates: tuple[int, ...], num: int = 40) -> tuple[pd.DataFrame, np.ndarray]:
    """Three seconds of a sine in each sequence, at the rates in turn; and its phases."""
    phases, parts = np.random.default_rng(0).uniform(0, 6, num), []
    for number, rate in enumerate(np.resize(rates, num)):
        step = np.arange(3 * rate + 1) / rate
        part = {
            "sequence": number,
            "step": step,
            "x": np.sin(2 * step + phases[number]),
            "y": step,
            "label": number % 2,
        }
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True), phases


@pytest.mark.parametrize("times", [False, True])
def test_recordings_of_different_rates_are_resampled_to_one(tmp_path: Path, times: bool):
    """Means of the rows around a time where there are more, straight lines where there are fewer."""
    table, phases = waves((10, 20, 40))
    if times:
        table["step"] = pd.Timestamp("2024-05-01") + pd.to_timedelta(table["step"], "s")
    table.loc[[5, 100], "x"] = np.nan
    params = replace(PARAMS, rate=20.0, velocity=False, missing="interpolate")
    found = prepared(tmp_path, table.sample(frac=1, random_state=0), params)
    assert (found.sequences.lengths == 61).all() and found.sequences.usual_step == 0.05
    assert f"rows at 20 per {'s' if times else 'step'}, made of 10 to 40 per" in found.message
    order = np.argsort(found.sequences.ids.astype(int))
    x, y = (found.sequences.values[order] * found.std + found.mean).transpose(2, 0, 1)
    steps = np.arange(61) / 20
    np.testing.assert_allclose(x, np.sin(2 * steps + phases[:, None]), atol=0.02)
    np.testing.assert_allclose(y[:, 1:-1], np.tile(steps[1:-1], (40, 1)), atol=1e-5)
    same, _ = waves((20,))
    kept = prepared(tmp_path, same, params).sequences.values
    np.testing.assert_allclose(kept, prepared(tmp_path, same, replace(params, rate=None)).sequences.values, atol=1e-6)


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("rate", [20, 40, 50])
def test_a_column_with_a_value_in_some_rows_is_resampled_from_its_values_alone(tmp_path: Path, every: int, rate: int):
    """Two sensors in one log: `y` in every row at 50 Hz, whose times jitter, `x` in every second or fifth row."""
    table, _ = waves((50,))
    rng = np.random.default_rng(1)
    jitter = pd.Series(rng.uniform(-0.002, 0.002, len(table)))
    table["step"] += jitter.where(table["step"] > 0, 0.0)
    table.loc[np.arange(len(table)) % every > 0, "x"] = np.nan
    params = replace(PARAMS, rate=float(rate), velocity=False)
    found = prepared(tmp_path, table, replace(params, missing="interpolate"))
    masked = prepared(tmp_path, table, replace(params, missing="mask"))
    values, seen = found.sequences.values * found.std + found.mean, masked.sequences.values[:, :, 2]
    for number, name in enumerate(found.sequences.ids):
        of_sequence, num = table[table["sequence"] == int(name)], found.sequences.lengths[number]
        times, known = np.arange(num) / rate, of_sequence.dropna()
        right = np.interp(times, known["step"], known["x"])
        np.testing.assert_allclose(values[number, :num, 0], right, atol=1e-5 if rate == 50 or every == 5 else 0.02)
        if rate == 50:  # the column that says what was seen is a row's own; it is constant in every table else
            distances = np.abs(times[:, None] - known["step"].to_numpy()).min(axis=1) * rate
            assert (seen[number, :num][distances < 0.4] > 0).all() and (seen[number, :num][distances > 0.6] < 0).all()
    assert found.sequences.num_filled == table["x"].isna().sum()


def test_a_rate_that_cannot_be_is_refused(tmp_path: Path):
    table, _ = waves((20,))
    with pytest.raises(ValueError, match="at 0.3 rows per step: sequence '0' has 1 step; every sequence needs"):
        prepared(tmp_path, table, replace(PARAMS, rate=0.3))
    table["label"] = np.where(table["step"] == 1, "hit", "none")
    table.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(ValueError, match="preprocess.rate is 20; accepted for one label per sequence"):
        source_module("sequences").prepare(replace(PARAMS, rate=20.0), tmp_path, "class per step")
    keys = {"columns": PARAMS.columns, "split": PARAMS.split, "window": Window(10, 5), "rate": 20.0}
    with pytest.raises(ValueError, match="rate is 20, and windows are cut of the rows as they are"):
        SequenceTable(source="sequences", table="t.csv", **keys).check()


def test_gaps_are_filled_in_a_parquet_file_of_float32(tmp_path: Path):
    """Its cells are used as they lie in the file's buffer, which cannot be written to."""
    table = make_table().astype({"x": np.float32})
    table.loc[[2, 6, 11], "x"] = np.nan  # within a sequence, at its start, at its end
    pq.write_table(pa.table({name: pa.array(table[name].to_numpy()) for name in table}), tmp_path / "table.parquet")
    found = prepare(tmp_path / "table.parquet", replace(PARAMS, missing="interpolate", velocity=False))
    x = found.sequences.values[:, :, 0].ravel() * found.std[0] + found.mean[0]
    between = (table["x"][1] + table["x"][3]) / 2
    np.testing.assert_allclose(x[[2, 6, 11]], [between, table["x"][7], table["x"][10]], rtol=1e-5)
    assert found.summary["num_filled"] == 3
