"""What stands in a cell: words and numbers for a missing one, flags, and features that are never seen."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tandem.data import source_module
from tandem.data.rows import to_sequences
from tandem.data.tables import from_frame, read_table
from tandem.importing import new_workload
from tests.data.test_gaps import with_hands
from tests.own_tables import LABELS, clips, planned, reasons, refusal, remarks, saved, series, table_with, with_cells
from tests.shapes import wide_table

ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])
WORDS = ("NA", "-", "?", "NULL", "n/a", "", "NA")


@ENDINGS
def test_words_for_a_missing_number_are_counted_and_filled(tmp_path: Path, ending: str):
    path = saved(with_cells("f0", *WORDS), tmp_path / f"t.{ending}")
    plan = planned(path)
    assert plan.summary["num_filled"] == 7 and plan.workload.preprocess.missing == "interpolate"
    assert "cells that count as missing: - (1), ? (1), NA (2), NULL (1), n/a (1)" in remarks(plan)
    empty = planned(saved(with_cells("f0", *[""] * 7), tmp_path / f"e.{ending}"))
    assert (plan.summary["mean"], plan.summary["sha256"]) == (empty.summary["mean"], empty.summary["sha256"])
    assert "found NA" in refusal(path, "--missing", "refuse")
    assert "found left" in refusal(saved(with_cells("f0", *WORDS, "left"), tmp_path / f"t.{ending}"))


@pytest.mark.parametrize("is_wide", [False, True])
def test_the_advised_cell_with_spaces_is_read_as_missing(tmp_path: Path, is_wide: bool):
    """Once the option was advised again, and the cell was still no number."""
    table = wide_table() if is_wide else series()
    column = "x_3" if is_wide else "value"
    table[column] = table[column].astype(object)
    table.loc[[5, 9, 7], column] = " Null ", " Null ", "?0.2"
    path = saved(table, tmp_path / "t.csv")
    [advised] = re.findall("give --na='?(.*?)'? if they mean", refusal(path))
    assert planned(path, f"--na={advised}").summary["num_missing" if not is_wide else "num_filled"] == 3
    table.loc[[5, 9, 7], column] = "."  # as FRED and SAS write it
    assert planned(saved(table, path)).summary["num_missing" if not is_wide else "num_filled"] == 3


@ENDINGS
def test_na_adds_spellings_of_missing_numbers(tmp_path: Path, ending: str):
    table = with_cells("f0", "broken", "NA").assign(f1=with_cells("f1", -999, "-999.0")["f1"].astype(float))
    path = saved(table, tmp_path / f"t.{ending}")
    assert "found broken" in refusal(path)
    plan = planned(path, "--na=-999,broken")
    assert plan.summary["num_filled"] == 4 and plan.workload.preprocess.na == ("-999", "broken")
    assert "cells that count as missing: -999 (2), NA (1), broken (1)" in remarks(plan)


@ENDINGS
def test_keypoints_of_a_hand_that_is_never_seen_are_masked(tmp_path: Path, ending: str):
    path, table = tmp_path / f"t.{ending}", with_hands()
    plan = planned(saved(table, path))
    flags = [name for name in plan.summary["features"] if name.endswith(" seen") and name[0] != "d"]
    assert flags == ["left_x seen", "right_x seen"] and plan.workload.preprocess.missing == "mask"
    assert "10 of 40 sequences never have some of the features, so 2 columns say" in reasons(plan)["missing"]
    arrays = table[[*plan.workload.preprocess.columns.features]].to_numpy().reshape(40, 6, 4)
    np.savez(tmp_path / "t.npz", X=arrays, y=table["label"][::6].to_numpy(str))
    assert planned(tmp_path / "t.npz", "--axes", "NTC").summary["num_filled"] == plan.summary["num_filled"] > 0
    interpolated = planned(saved(table.drop(columns=["left_y", "right_y"]), path))
    assert interpolated.workload.preprocess.missing == "interpolate"
    assert "(--missing mask adds columns that say what was seen)" in reasons(interpolated)["missing"]


def test_words_for_a_missing_number_in_a_series_and_a_wide_table(tmp_path: Path):
    table = series().astype({"value": object})
    table.loc[[5, 9], "value"] = ["n/a", "gone"]
    plan = planned(saved(table, tmp_path / "t.csv"), "--na", "gone")
    assert plan.summary["num_missing"] == 2 and "gone (1), n/a (1)" in remarks(plan)
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(24, 8)), columns=[f"x_{step}" for step in range(8)])
    wide = wide.astype(object).assign(label=LABELS)
    wide.loc[3, "x_2"], wide.loc[4, ["x_6", "x_7"]] = "NULL", "gone"
    plan = planned(saved(wide, tmp_path / "t.csv"), "--na", "gone", "--layout", "wide")
    assert (plan.summary["num_filled"], plan.summary["min_steps"]) == (1, 6)


KINDS = ("clips", "series", "semicolons", "wide")


@pytest.mark.parametrize(
    ("kind", "word"),
    [*((kind, word) for kind in KINDS for word in ("--", "no data")), ("clips", "#DIV/0!"), ("clips", "bad")],
)
def test_an_error_about_a_cell_names_the_option_that_reads_it_as_missing(tmp_path: Path, word: str, kind: str):
    """--na=-- was as good as none: argparse drops it."""
    path, options = tmp_path / "t.csv", ()
    if kind == "wide":
        wide = pd.DataFrame(np.random.default_rng(0).normal(size=(24, 8)).round(3)).add_prefix("x_").astype(object)
        wide.loc[5, "x_3"] = word
        wide.assign(label=LABELS).to_csv(path, index=False)
        options = ("--layout", "wide")
    elif kind == "series":
        table = series().astype({"value": object})
        table.loc[[5, 9], "value"] = word
        saved(table, path)
    else:
        with_cells("f0", word, word).to_csv(path, index=False, sep=";" if kind == "semicolons" else ",")
    message = refusal(path, *options)
    option = shlex.split(re.search(r"--na=('.*?'|\S+)", message)[0])[0]
    assert option == f"--na={word}" and "means that there is none" in message
    plan = planned(path, option, *options)
    assert plan.summary.get("num_filled", plan.summary.get("num_missing")) in (1, 2)


def test_a_number_that_may_mean_missing_is_named(tmp_path: Path):
    """-999 in some cells once was a measurement, without a word."""
    table = clips(LABELS)
    rows = table.index[::9]
    for column, marker in (("f0", "-999"), ("f1", "9999"), ("f0", "-200")):
        marked = table.assign(**{column: table[column].where(~table.index.isin(rows), float(marker))})
        plan = planned(saved(marked, tmp_path / "t.csv"))
        note = f"{marker} in {column!r} ({len(rows)} cells) may mean missing: --na={marker} then says so"
        assert note in "".join(new_workload.summary_lines(plan))
        plan = planned(tmp_path / "t.csv", f"--na={marker}", "--missing", "interpolate")
        assert "may mean missing" not in "".join(new_workload.summary_lines(plan))
    at = pd.Timestamp("2024-03-01") + pd.to_timedelta(table["frame"], unit="min")  # once refused with such a mark
    timed = saved(marked.drop(columns="frame").assign(time=at), tmp_path / "timed.csv")
    timed = planned(timed, f"--na={marker}", "--missing", "interpolate")
    assert timed.workload.preprocess.columns.step == "time"
    assert timed.summary["num_filled"] == plan.summary["num_filled"] == len(rows)
    plan = planned(saved(table.assign(f0=np.arange(len(table)) % 100), tmp_path / "t.csv"))
    assert "may mean missing" not in "".join(new_workload.summary_lines(plan)), "99 is one of its numbers"
    counts = series(spots=np.where(np.arange(300) % 50 < 2, -1, np.arange(300)), code=np.arange(300) % 4 - 1)
    note = "".join(new_workload.summary_lines(planned(saved(counts, tmp_path / "counts.csv"))))
    assert "-1 in 'spots' (12 cells) may mean missing" in note and "'code'" not in note
    gas = series(gas=np.where(np.arange(300) % 50 < 2, -999, 450 + 7 * np.arange(300)))
    gas["air"] = gas["gas"] + 1.5 * (gas["gas"] != -999)
    note = "".join(new_workload.summary_lines(planned(saved(gas, tmp_path / "gas.csv"), "--target", "value")))
    assert "-999 in 'gas' (12 cells), 'air' (12 cells) may mean missing" in note


def test_a_table_is_read_for_predictions_as_it_was_for_the_training(tmp_path: Path):
    """By preprocess, and by the reader of `tandem predict`, which passes a DataFrame on."""
    table = with_cells("f0", *WORDS, "gone").assign(on=lambda table: table.frame % 2 == 0)
    plan = planned(path := saved(table, tmp_path / "t.csv"), "--na", "gone")
    params = plan.workload.preprocess
    assert "on" in params.columns.features
    features = [*params.columns.features, "label"]
    frame = read_table(path, ["clip"], params.columns.features, ["frame", "label"], params.na)
    reread = from_frame(pa.table(frame.columns).to_pandas(), ["clip", "frame", *features], "the table", params.na)
    sequences = to_sequences(reread, params.columns, params)
    expected = source_module("sequences").prepare(params, tmp_path, "class")
    expected_values = expected.sequences.values * expected.std + expected.mean
    is_real = ~sequences.padding_mask
    np.testing.assert_allclose(sequences.values[is_real], expected_values[is_real], atol=1e-5)
    assert sequences.num_filled == expected.sequences.num_filled == 8


@ENDINGS
def test_false_and_true_are_0_and_1(tmp_path: Path, ending: str):
    table = clips(LABELS)
    flags, numbers = table.assign(on=table["f0"] > 0), table.assign(on=(table["f0"] > 0).astype(int))
    plans = [planned(saved(table, tmp_path / f"{number}.{ending}")) for number, table in enumerate((flags, numbers))]
    assert plans[0].workload.preprocess.columns.features == ("f0", "f1", "on")
    assert plans[0].summary["sha256"] == plans[1].summary["sha256"]
    label = planned(saved(table_with(label=lambda number: number % 2 == 0), tmp_path / f"t.{ending}"))
    assert len(label.summary["classes"]) == 2 and label.workload.task == "classify"
