"""Empty cells, features that a sequence never has, rates: how a table of sequences becomes complete."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.data import source_module
from tandem.params.schema import SequenceTable, Window
from tests.data.test_sequences import PARAMS, make_table, prepare, prepared


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
    data = prepared(tmp_path, table, replace(PARAMS, missing="interpolate", velocity=False))
    order = np.argsort(data.sequences.ids.astype(int))
    x = data.sequences.values[order, :, 0].ravel() * data.std[0] + data.mean[0]
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)
    assert data.summary["num_filled"] == 40


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
    data = prepared(tmp_path, table, replace(HANDS, missing="interpolate"))
    order = np.argsort(data.sequences.ids.astype(int))
    values = data.sequences.values[order]
    assert not values[:10][:, :, [0, 1, 4, 5]].any() and values[10:, :, :2].any(axis=(1, 2)).all()
    train = table["sequence"].isin(data.sequences.ids[data.parts["train"]].astype(int))
    np.testing.assert_allclose(data.mean[:2], table.loc[train, ["left_x", "left_y"]].mean(), rtol=1e-5)
    np.testing.assert_allclose(data.std[:2], table.loc[train, ["left_x", "left_y"]].std(ddof=0), rtol=1e-5)
    assert data.summary["num_filled"] == 60  # of the right hand
    remark = "10 of 40 sequences never have a value of left_x, left_y; it is the mean of train there (0)"
    assert data.summary["remarks"] == [remark]
    table.loc[table["sequence"] == 3, ["right_x", "right_y"]] = np.nan
    with pytest.raises(ValueError, match="sequence '3' has no value of any feature; leave it out"):
        prepared(tmp_path, table, HANDS)


@pytest.mark.parametrize("velocity", [False, True])
def test_a_mask_says_which_features_were_seen_also_in_new_data(tmp_path: Path, velocity: bool):
    """One column for each group of features that are missing in the same rows."""
    table = with_hands()
    data = prepared(tmp_path, table, replace(HANDS, velocity=velocity))
    features = [*HANDS.columns.features, "left_x seen", "right_x seen"]
    assert data.summary["features"] == features + [f"d{name}" for name in features] * velocity
    order = np.argsort(data.sequences.ids.astype(int))
    masks = (data.sequences.values * data.std + data.mean)[order][:, :, 4:6].reshape(-1, 2)
    np.testing.assert_allclose(masks, table[["left_x", "right_x"]].notna(), atol=1e-5)
    plain = prepared(tmp_path, table, replace(HANDS, velocity=velocity, missing="interpolate"))
    np.testing.assert_array_equal(plain.sequences.values[:, :, :4], data.sequences.values[:, :, :4])

    raw = np.stack([table[name].to_numpy().reshape(40, 6) for name in HANDS.columns.features], axis=2)
    params = replace(HANDS, velocity=velocity)
    inputs, _ = source_module("sequences").raw_to_inputs(raw, np.ones((40, 6), dtype=bool), params, data.summary)
    np.testing.assert_allclose(inputs, data.sequences.values[order], atol=1e-6)


@pytest.mark.parametrize("times", [False, True])
def test_recordings_of_different_rates_are_named(tmp_path: Path, times: bool):
    """A network gets rows without their times. The first 20 sequences have 20 Hz, the others 20, then 10 Hz."""
    table = make_table(40)
    for slower, remark in ((1, None), (2, "the rows of a sequence are 0.05 to 0.1 s? apart")):
        seconds = 0.05 * table["step"] * np.where(table["sequence"] < 20, 1, slower)
        step = pd.Timestamp("2024-05-01") + pd.to_timedelta(seconds, "s") if times else seconds
        data = prepared(tmp_path, table.assign(step=step))
        assert data.summary["usual_step"] == pytest.approx(0.05 * (1 + slower) / 2)
        remarks = data.summary.get("remarks", [])
        if remark is None:
            assert not remarks
        else:
            assert re.match(remark if times else remark.replace("s?", "step"), remarks[0]), remarks
            assert "apart, 10 to 20 in one;" in remarks[0] and remarks[0].endswith(
                "(--rate 13.3, or rate in preprocess)"
            )
    assert "usual_step" not in prepared(tmp_path, table).summary


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
    data = prepared(tmp_path, table.sample(frac=1, random_state=0), params)
    assert (data.sequences.lengths == 61).all() and data.sequences.usual_step == 0.05
    assert f"rows at 20 per {'s' if times else 'step'}, made of 10 to 40 per" in data.message
    order = np.argsort(data.sequences.ids.astype(int))
    x, y = (data.sequences.values[order] * data.std + data.mean).transpose(2, 0, 1)
    steps = np.arange(61) / 20
    np.testing.assert_allclose(x, np.sin(2 * steps + phases[:, None]), atol=0.02)
    np.testing.assert_allclose(y[:, 1:-1], np.tile(steps[1:-1], (40, 1)), atol=1e-5)
    same, _ = waves((20,))
    values = prepared(tmp_path, same, params).sequences.values
    np.testing.assert_allclose(values, prepared(tmp_path, same, replace(params, rate=None)).sequences.values, atol=1e-6)


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
    data = prepared(tmp_path, table, replace(params, missing="interpolate"))
    masked = prepared(tmp_path, table, replace(params, missing="mask"))
    values, flags = data.sequences.values * data.std + data.mean, masked.sequences.values[:, :, 2]
    for number, name in enumerate(data.sequences.ids):
        of_sequence, num = table[table["sequence"] == int(name)], data.sequences.lengths[number]
        times, measured = np.arange(num) / rate, of_sequence.dropna()
        right = np.interp(times, measured["step"], measured["x"])
        np.testing.assert_allclose(values[number, :num, 0], right, atol=1e-5 if rate == 50 or every == 5 else 0.02)
        if rate == 50:  # the column that says what was seen is a row's own; it is constant in every table else
            distances = np.abs(times[:, None] - measured["step"].to_numpy()).min(axis=1) * rate
            assert (flags[number, :num][distances < 0.4] > 0).all() and (flags[number, :num][distances > 0.6] < 0).all()
    assert data.sequences.num_filled == table["x"].isna().sum()


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
    data = prepare(tmp_path / "table.parquet", replace(PARAMS, missing="interpolate", velocity=False))
    x = data.sequences.values[:, :, 0].ravel() * data.std[0] + data.mean[0]
    between = (table["x"][1] + table["x"][3]) / 2
    np.testing.assert_allclose(x[[2, 6, 11]], [between, table["x"][7], table["x"][10]], rtol=1e-5)
    assert data.summary["num_filled"] == 3
