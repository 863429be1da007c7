"""Properties of preprocess, on small tables written out here and on the two that are committed."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.data import source_module, write_arrays
from tandem.data.arrays import PreparedSequences, standardize
from tandem.data.rows import to_sequences
from tandem.data.splits import SPLITS
from tandem.data.tables import find_table, from_frame
from tandem.files import raw_dir
from tandem.params.loading import load_workload
from tandem.params.schema import Columns, SequenceTable, Split
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
    data = prepare(path, PARAMS)
    sequences = data.sequences
    assert sequences.features == ("x", "y", "dx", "dy")
    assert sequences.classes == ("p", "q")
    assert sequences.labels.tolist() == [0, 1, 1, 0]
    assert sequences.lengths.tolist() == [3, 2, 2, 2]
    assert sequences.ids.tolist() == ["a", "b", "c", "d"]
    assert {name: rows.tolist() for name, rows in data.parts.items()} == {"train": [0, 1], "val": [2], "test": [3]}

    x, dx = np.array([0, 2, 4, 1, 1]), np.array([0, 2, 2, 0, 0])  # the train steps
    np.testing.assert_allclose(data.mean, [x.mean(), 1, dx.mean(), 0])
    np.testing.assert_allclose(data.std, [x.std(), 0, dx.std(), 0], rtol=1e-6)
    expected = np.array([[5, 1, 0, 0], [6, 1, 1, 0], [0, 0, 0, 0]], dtype=float)  # c, its last row padding
    expected[:2] = (expected[:2] - data.mean) / np.where(data.std, data.std, np.inf)
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


def test_a_feature_that_is_constant_in_train_is_zero_in_every_split_and_named(tmp_path: Path):
    table = make_table().assign(split=np.repeat(["train", "train", "val", "test"], 60))
    table["y"] = table["y"].mask(table["split"] == "train", 5.0) * 100
    data = prepared(tmp_path, table)
    assert data.sequences.features == ("x", "y", "dx", "dy") and data.summary["std"][1::2] == [0, 0]
    assert not data.sequences.values[:, :, 1::2].any() and data.sequences.values[:, :, 0::2].any(axis=(1, 2)).all()
    assert "; constant in train, so 0 in every split: y, dy" in data.message
    raw = np.stack([table[name].to_numpy().reshape(40, 6) for name in "xy"], axis=2)
    is_real = np.ones((40, 6), dtype=bool)
    inputs, _ = source_module("sequences").raw_to_inputs(raw, is_real, PARAMS, data.summary)
    np.testing.assert_allclose(inputs, data.sequences.values, atol=1e-6)
    older = {**data.summary, "std": [value or 1.0 for value in data.summary["std"]]}  # as it was recorded before
    inputs, _ = source_module("sequences").raw_to_inputs(raw, is_real, PARAMS, older)
    np.testing.assert_allclose(inputs[:, :, 1], raw[:, :, 1] - 500, rtol=1e-5)


def test_a_feature_in_a_large_unit_is_not_taken_for_a_constant(tmp_path: Path):
    """As farads: some picofarads."""
    table = make_table()
    data = prepared(tmp_path, table.assign(x=table["x"] * 1e-13))
    np.testing.assert_allclose(data.sequences.values, prepared(tmp_path, table).sequences.values, atol=1e-5)
    assert "constant" not in data.message


# Splits ---------------------------------------------------------------------------------------------------------------


def test_small_changes_of_large_numbers_are_kept(tmp_path: Path):
    """As a Unix time: 32-bit floats around 1.7e9 are 128 apart."""
    table = make_table()
    data = prepared(tmp_path, table)
    far = prepared(tmp_path, table.assign(x=table.x + 1.7e9))
    low = (table.x + 1.7e9).min()
    assert far.summary["offsets"] == {"x": low} and "offsets" not in data.summary and "taken off x" in far.message
    np.testing.assert_allclose(far.sequences.values, data.sequences.values, atol=1e-5)
    # As the trained model's predictor does with a table of some of the sequences.
    new_table = table.assign(x=table.x + 1.7e9)[lambda table: table.sequence < 3]
    rows = from_frame(new_table, [*new_table.columns], "the table")
    sequences = to_sequences(rows, PARAMS.columns, PARAMS, offsets=far.summary["offsets"])
    standardize(sequences.values, sequences.padding_mask, far.summary["mean"], far.summary["std"])
    np.testing.assert_array_equal(sequences.values, far.sequences.values[:3])


def test_the_velocities_of_places_on_a_map_are_kept(tmp_path: Path):
    """As of a walker at 10 Hz: degrees around 52.5 in 32 bits are 4e-6 apart, and a step is 1e-6."""
    table = make_table()
    near = table.assign(x=table.x * 1e-6 + table.sequence * 4e-3)
    data, far = (prepared(tmp_path, near.assign(x=near.x + place)) for place in (0.0, 52.5))
    assert data.sequences.features[2] == far.sequences.features[2] == "dx"
    np.testing.assert_allclose(far.sequences.values[..., 2], data.sequences.values[..., 2], atol=5e-2)
    assert "offsets" not in prepared(tmp_path, near.assign(x=near.x + 52.5), replace(PARAMS, velocity=False)).summary


def test_an_event_of_several_rows_is_remarked(tmp_path: Path):
    """A network that is right in every row would find one event of each, and be worse than the base rate."""
    table, steps = make_table(), np.arange(240) % 6
    for last, remark in ((2, False), (4, True)):
        table["label"] = np.where((steps >= 2) & (steps <= last), "hit", "none")
        path = tmp_path / "table.csv"
        table.to_csv(path, index=False)
        data = source_module("sequences").prepare(PARAMS, tmp_path, "class per step")
        assert (
            "80 of 120 rows with an event follow a row with the same one" in str(data.summary.get("remarks"))
        ) == remark


def test_the_last_digits_of_large_whole_numbers_are_kept_or_refused(tmp_path: Path):
    """64-bit floats around 2**53 are 2 apart, and those around a time of today in nanoseconds are 256 apart."""
    table = make_table()
    table = table.assign(x=table.x.rank().astype("int64"))
    expected = prepared(tmp_path, table).sequences.values[..., 0]
    large = table.assign(x=table.x + 1_700_000_000_000_000_000)
    for name, variant in (
        ("table.csv", large),
        ("table.parquet", large),
        ("table.parquet", large.assign(x=pd.to_datetime(large.x))),
        ("table.csv", table.assign(x=table.x + 2**53)),
    ):
        np.testing.assert_allclose(prepared(tmp_path, variant, name=name).sequences.values[..., 0], expected, atol=1e-5)
    missing = large.assign(x=large.x.astype("Int64").where(large.index != 3))
    for name in ("table.csv", "table.parquet"):  # NaN makes it a float
        with pytest.raises(ValueError, match="whole numbers from -9007199254740991 to 9007199254740991"):
            prepared(tmp_path, missing, replace(PARAMS, missing="interpolate"), name)


# The committed tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workload", "sizes"), [("sign", (162, 18, 180)), ("pen", (6728, 766, 3498))])
def test_committed_tables_match_their_readme(tmp_path: Path, workload: str, sizes: tuple[int, ...]):
    folder, params = raw_dir(workload), load_workload(workload).preprocess
    path = find_table(folder, params.table)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert f"| {path.name} | sha256 `{digest}` |" in (folder.parent / "README.md").read_text()
    split = Split(*([0.45, 0.05, 0.5] if workload == "sign" else sizes))
    data = prepare(path, replace(params, split=split))
    assert tuple(len(data.parts[name]) for name in SPLITS) == sizes
    summary = data.summary
    assert summary["num_duplicates_across_splits"] == 0
    assert summary["num_duplicates"] == (30 if workload == "sign" else 0)


# Text and lines as they stand in the file -----------------------------------------------------------------------------


def test_the_type_of_a_column_is_that_of_all_its_cells(tmp_path: Path):
    """Whole numbers for more than the first megabyte, then fractions."""
    table = make_table(num_sequences=30_000)
    table[["x", "y"]] = table[["x", "y"]].round()
    table = table.astype({"x": int, "step": int}).astype({"x": object, "step": object})
    table.loc[len(table) - 1, ["x", "step"]] = (0.5, 5.5)
    data = prepared(tmp_path, table, replace(PARAMS, velocity=False))
    last = data.sequences.values[-1, -1, 0] * data.std[0] + data.mean[0]
    assert last == pytest.approx(0.5, abs=1e-3)


def test_a_sequence_that_ends_in_zeros_is_no_duplicate_of_a_shorter_one(tmp_path: Path):
    table = make_table(num_sequences=16, lengths=(3,))
    longer = pd.concat(
        [table[table["sequence"] == 0], pd.DataFrame({"sequence": [0], "step": [3], "x": [0.0], "y": [0.0]})]
    )
    longer = longer.assign(sequence=16, label="class 0")
    assert prepared(tmp_path, pd.concat([table, longer])).summary["num_duplicates"] == 0


def test_words_of_a_column_are_features(tmp_path: Path):
    """An empty cell is none of them, and neither is a word that is not listed, which is named."""
    table = make_table().assign(mode=np.random.default_rng(0).choice(["low", "mid", " high", "off", ""], 240))
    params = replace(PARAMS, categories=("mode=low", "mode=mid", "mode=high"), velocity=False)
    data = prepared(tmp_path, table, params)
    assert data.summary["features"] == ["x", "y", "mode=low", "mode=mid", "mode=high"]
    order = np.argsort(data.sequences.ids.astype(int))
    cells = (data.sequences.values * data.std + data.mean)[order][:, :, 2:].reshape(-1, 3)
    expected = [table["mode"].str.strip() == word for word in ("low", "mid", "high")]
    np.testing.assert_allclose(cells.T, expected, atol=1e-6)
    assert "'mode' holds words that are no categories: off" in data.message
    plain = prepared(tmp_path, table, replace(PARAMS, velocity=False))
    np.testing.assert_array_equal(plain.sequences.values, data.sequences.values[:, :, :2])
    numbers = prepared(tmp_path, table.assign(mode=table.index % 3), replace(params, categories=("mode=0", "mode=2")))
    cells = (numbers.sequences.values * numbers.std + numbers.mean)[order][:, :, 2:].reshape(-1, 2)
    np.testing.assert_allclose(cells, np.stack([table.index % 3 == 0, table.index % 3 == 2], 1), atol=1e-6)


def test_a_step_that_goes_back_once_is_named(tmp_path: Path):
    """A counter that begins again, or a local time when the clock is set back: sorted, the end comes first."""
    table = make_table(40, lengths=(8,))
    wrapped = table.assign(step=(table["step"] + 250 + 2 * (table["sequence"] < 10)) % 256)
    remarks = prepared(tmp_path, wrapped).summary["remarks"]
    assert len(remarks) == 1 and remarks[0].startswith("'step' goes back once in 40 of 40 sequences"), remarks
    few_wrapped = table.assign(step=np.where(table["sequence"] < 3, (table["step"] + 4) % 8, table["step"]))
    assert "once in 3 of 40 sequences" in prepared(tmp_path, few_wrapped).summary["remarks"][0]
    for other in (table, table.iloc[::-1], table.sample(frac=1, random_state=0)):
        assert "remarks" not in prepared(tmp_path, other).summary


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
