"""benchmarks.recipes never uses test data."""

import pytest

from benchmarks import accuracy, recipes
from tandem.params.loading import load_workload


@pytest.mark.parametrize("workload", sorted(recipes.RECIPES))
def test_folds_use_train_and_val_once_and_no_test_data(workload: str):
    prepared = accuracy.prepare_seed(workload, load_workload(workload), seed=3)
    rows, fold = recipes.folds_of(prepared, 5)
    assert sorted(rows) == sorted([*prepared.parts["train"], *prepared.parts["val"]])
    assert not set(rows) & set(prepared.parts["test"])
    groups = prepared.duplicates[rows]
    assert len(set(zip(groups.tolist(), fold.tolist(), strict=True))) == len(set(groups.tolist()))
    labels = prepared.sequences.labels[rows]
    for number in range(5):  # every class is there to learn, and every fold is about a fifth
        assert set(labels[fold != number]) == set(labels)
        assert len(rows) / 5 - 10 <= (fold == number).sum() <= len(rows) / 5 + 10
