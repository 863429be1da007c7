"""What benchmarks.recipes and benchmarks.accuracy compare: folds without test data, positions as the table has them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import accuracy, recipes
from stages.files import ROOT, raw_dir
from stages.params.loading import load_workload, parse_block, read_yaml


@pytest.mark.parametrize("workload", sorted(recipes.RECIPES))
def test_folds_hold_train_and_val_once_and_nothing_of_test(workload: str):
    prepared = accuracy.prepare_seed(workload, load_workload(workload), seed=3)
    rows, fold = recipes.folds_of(prepared, 5)
    assert sorted(rows) == sorted([*prepared.parts["train"], *prepared.parts["val"]])
    assert not set(rows) & set(prepared.parts["test"])
    groups = prepared.groups[rows]
    assert len(set(zip(groups.tolist(), fold.tolist(), strict=True))) == len(set(groups.tolist()))
    labels = prepared.sequences.labels[rows]
    for number in range(5):  # every class is there to learn, and every fold is about a fifth
        assert set(labels[fold != number]) == set(labels)
        assert len(rows) / 5 - 10 <= (fold == number).sum() <= len(rows) / 5 + 10


@pytest.mark.parametrize("workload", sorted(recipes.RECIPES))
def test_recipes_are_changes_that_params_yaml_knows(workload: str):
    block = read_yaml(ROOT / "params.yaml")[workload]
    now = parse_block(workload, block, {})
    for name, recipe in recipes.RECIPES[workload].items():
        changed = parse_block(workload, block, recipe)
        assert (changed == now) == (name == "as it is"), name
        assert changed.preprocess == now.preprocess  # or the folds would differ


def test_the_split_of_pen_is_the_one_of_the_table_for_every_seed():
    table = pd.read_csv(raw_dir("pen") / "table.csv.gz").groupby("sequence").first()
    params = load_workload("pen")
    for seed in (0, 1):
        prepared = accuracy.prepare_seed("pen", params, seed)
        for name, rows in prepared.parts.items():
            assert set(prepared.sequences.ids[rows].astype(int)) == set(table.index[table["split"] == name])
        per_class = [num for _, num in sorted(prepared.summary["num_per_class"]["test"].items())]
        assert per_class == [363, 364, 364, 336, 364, 335, 336, 364, 336, 336]  # of pendigits.tes, as published


def test_a_nearest_neighbour_sees_the_tables_own_numbers(tmp_path: Path):
    params = load_workload("pen")
    positions = replace(params, preprocess=replace(params.preprocess, velocity=False))
    prepared = accuracy.prepare_seed("pen", positions, seed=0)
    accuracy.write_in_units(tmp_path, prepared)
    table = pd.read_csv(raw_dir("pen") / "table.csv.gz")
    written = np.load(tmp_path / "test" / "values.npy")
    expected = table.loc[table["split"] == "test", ["x", "y"]].to_numpy().reshape(-1, 8, 2)
    np.testing.assert_allclose(written, expected, atol=1e-4)
    assert accuracy.nearest_neighbour(tmp_path)[0] == pytest.approx(0.9774, abs=5e-4)  # as published
