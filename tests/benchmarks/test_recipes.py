"""benchmarks.recipes never uses test data. The nearest neighbour of benchmarks.accuracy scores as published."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import accuracy, recipes
from tandem.files import raw_dir
from tandem.params.loading import load_workload


@pytest.mark.parametrize("workload", sorted(recipes.RECIPES))
def test_folds_use_train_and_val_once_and_no_test_data(workload: str):
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


def test_the_nearest_neighbour_scores_as_published(tmp_path: Path):
    params = load_workload("pen")
    positions = replace(params, preprocess=replace(params.preprocess, velocity=False))
    prepared = accuracy.prepare_seed("pen", positions, seed=0)
    accuracy.write_in_units(tmp_path, prepared)
    table = pd.read_csv(raw_dir("pen") / "table.csv.gz")
    written = np.load(tmp_path / "test" / "values.npy")
    expected = table.loc[table["split"] == "test", ["x", "y"]].to_numpy().reshape(-1, 8, 2)
    np.testing.assert_allclose(written, expected, atol=1e-4)
    assert accuracy.nearest_neighbour(tmp_path)[0] == pytest.approx(0.9774, abs=5e-4)  # as published
