"""Classes: rare ones, numbers that may be classes, and words that become features."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.own_tables import LABELS, clips, planned, reasons, refusal, remarks, saved, table_with


def test_a_class_with_too_few_sequences_is_left_out_or_in_train(tmp_path: Path):
    labels = [*LABELS, "rare", "odd", "odd"]
    path = saved(clips(labels), tmp_path / "t.csv")
    plan = planned(path)
    assert plan.summary["classes"] == ["a", "b", "c"] and plan.summary["num_sequences"] == 24
    assert "3 sequences left out, of classes with fewer than 3: odd, rare" in remarks(plan)
    assert "left out: 3 sequences of 2 classes with too few, odd (2), rare (1)" in reasons(plan)["rare_classes"]
    without = planned(saved(clips(LABELS), tmp_path / "t.csv"))
    assert without.summary["sha256"] == plan.summary["sha256"]
    assert without.workload.preprocess.rare_classes is None

    plan = planned(saved(clips(labels), path), "--keep-rare")
    assert plan.summary["classes"] == ["a", "b", "c", "odd", "rare"]
    per_class = plan.summary["num_per_class"]
    assert per_class["train"] | {"odd": 2, "rare": 1} == per_class["train"]
    assert sum(per_class[split][name] for split in ("val", "test") for name in ("odd", "rare")) == 0
    assert "no score covers the classes with fewer than 3 sequences, which are in train: odd, rare" in remarks(plan)
    assert "'A' has too few sequences (1)" in refusal(saved(clips([*LABELS, "A"]), path))  # a slip of a
    grouped = clips(labels).assign(person=lambda table: pd.factorize(table["clip"])[0] // 3)
    assert planned(saved(grouped, path)).workload.preprocess.rare_classes is None  # groups place it
    assert "class 'a' has too few sequences (1)" in refusal(saved(clips([*"abcdefgh"]), path))


def test_classes_that_all_have_too_few_sequences_are_refused_with_the_column_split(tmp_path: Path):
    message = refusal(saved(clips([*"abcdefgh"] * 2), tmp_path / "t.csv"))
    assert "or a column `split` (train, val or test in every row) decides" in message and "leave" not in message


def test_a_class_of_one_person_is_refused_with_the_options_that_help(tmp_path: Path):
    """The advice was to move sequences to train, which no option does."""
    table, path = clips(["x"] * 27).drop(columns="label"), tmp_path / "t.csv"
    person = pd.factorize(table["clip"])[0] // 3
    table["event"] = np.where(table["frame"] == 2, "hit", "none")
    table.loc[(person == 1) & (table["frame"] == 3), "event"] = "odd"
    message = refusal(saved(table.assign(person=[f"p{number}" for number in person]), path))
    assert "label 'odd' occurs in val but not in train" in message
    assert "--groups none splits the sequences of each 'person'; a column `split`" in message
    assert planned(path, "--groups", "none").summary["classes"] == ["none", "hit", "odd"]
    words = np.take(["train", "val", "test"], np.where(person < 6, 0, person % 3))
    assert planned(saved(table.assign(split=words), path)).summary["classes"] == ["none", "hit", "odd"]


@pytest.mark.parametrize(("num", "high"), [(60, 60), (120, 60), (300, 60), (60, 12), (10, 9000)])
def test_many_whole_numbers_are_numbers_to_predict_or_the_option_is_named(tmp_path: Path, num: int, high: int):
    """An age that several sequences share; but 60 signs of five clips each are classes."""
    ages = np.random.default_rng(0).integers(0, high, num).tolist()
    table = clips(ages)
    plan = planned(saved(table.rename(columns={"label": "age"}), tmp_path / "t.csv"))
    assert plan.workload.task == "regress" and plan.workload.preprocess.columns.label == "age"
    path = saved(table, tmp_path / "t.csv")  # a column called label is one
    try:
        assert "--task regress predicts the number" in reasons(planned(path))["rare_classes"]
    except ValueError as error:
        assert "or predict the number with task regress (--task regress)" in str(error)
    assert planned(path, "--task", "regress").workload.task == "regress"
    classes = planned(saved(clips([*range(60)] * 5).rename(columns={"label": "sign"}), path))
    assert classes.workload.task == "classify" and len(classes.summary["classes"]) == 60


def test_a_column_of_a_few_words_is_named_with_its_option_and_becomes_features(tmp_path: Path):
    table = clips(LABELS)
    table["mode"] = np.random.default_rng(0).choice(["low", "mid", "high"], len(table))
    table = table.assign(note=[f"n{row}" for row in range(len(table))], sex=np.where(table["clip"] < "c012", "f", "m"))
    path = saved(table, tmp_path / "t.csv")
    reason = reasons(planned(path))["features"]
    assert "mode (text; --categories mode adds a feature for each word), note (text), sex (text)" in reason
    plan = planned(path, "--categories", "mode")
    assert plan.workload.preprocess.categories == ("mode=high", "mode=low", "mode=mid")
    assert plan.summary["features"] == ["f0", "f1", "mode=high", "mode=low", "mode=mid", *plan.summary["features"][5:]]
    assert "has 154 values; accepted: 50" in refusal(path, "--categories", "note")
    assert "has no column 'mood'; did you mean 'mode'" in refusal(path, "--categories", "mood")


def test_a_class_of_groups_that_are_all_in_train_is_named(tmp_path: Path):
    """A score of 1.0 says nothing about it."""
    table = table_with(
        person=lambda number: np.where(number % 3 == 2, "p4", np.char.add("p", (number // 3 % 4).astype(str)))
    )
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert plan.workload.preprocess.groups == "person"
    assert re.search(r"no score covers the labels without a test sequence: c \(in 1 group\)", remarks(plan))
