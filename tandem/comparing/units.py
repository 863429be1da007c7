"""Reads the predictions of several runs of one test split, as one or a few numbers for each unit: a sequence or window.

Shapes: R runs, N units, C classes. All raise ValueError if the test splits differ.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tandem.tasks.groups import COLUMN, Groups

Rows = Sequence[Mapping[str, Any]]  # of predictions.csv: strings as csv gives them, or the values themselves

# Recorded levels come from `exp`, which differs in the last digits between processors.
SAME_LEVEL = 1e-6


def read_classified(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): 1 if the run classifies the sequence correctly, else 0."""
    actual, predicted = (by_sequence(runs, column, str) for column in ("actual", "predicted"))
    differing = int((actual != actual[0]).any(axis=0).sum())
    if differing:
        raise ValueError(f"the test splits differ in {differing:,} of the labels")
    return (predicted == actual).astype(float)


def read_classes(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N, C, 3): per run, sequence and class whether it is correct, actual and predicted."""
    is_right = read_classified(runs).astype(bool)
    actual, predicted = (by_sequence(runs, column, str) for column in ("actual", "predicted"))
    classes = np.unique([actual, predicted])
    is_true, is_predicted = (labels[..., None] == classes for labels in (actual, predicted))
    return np.stack([is_true & is_right[..., None], is_true, is_predicted], axis=-1).astype(int)


def read_detected(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N, C, 3): per run, sequence and class the numbers of correct, actual and predicted events.

    A row is an actual event with the predicted event that matches it, or one of them alone (`list_events` in
    tandem/tasks/detect.py). A sequence without any event in any run has no row; it does not change the score.
    """
    actual = [
        {(str(row["sequence"]), str(row["event"]), int(row["actual"])) for row in rows if row["actual"] != ""}
        for rows in runs
    ]
    refuse_other_split(actual, "events")
    sequences, events = (
        {name: index for index, name in enumerate(sorted_names(runs, column))} for column in ("sequence", "event")
    )
    counts = np.zeros((len(runs), len(sequences), len(events), 3), dtype=int)
    for run_counts, rows in zip(counts, runs, strict=True):
        for row in rows:
            is_true, is_predicted = row["actual"] != "", row["predicted"] != ""
            cell = run_counts[sequences[str(row["sequence"])], events[str(row["event"])]]
            cell += (is_true and is_predicted, is_true, is_predicted)
    return counts


def read_forecast(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): a window's mean absolute error over its steps, in the target's own unit, ordered by time."""
    keys = [[(str(row["time"]), int(row["step_ahead"])) for row in rows] for rows in runs]
    refuse_other_split([{time for time, _ in run_keys} for run_keys in keys], "windows")
    if keys != [keys[0]] * len(runs):
        raise ValueError("the test splits differ: the windows have another order or horizon")
    horizon = max(step for _, step in keys[0])
    actual, predicted = (
        np.array([[float(row[column]) for row in rows] for rows in runs]).reshape(len(runs), -1, horizon)
        for column in ("actual", "predicted")
    )
    if not np.allclose(actual, actual[0], rtol=SAME_LEVEL, atol=0):
        raise ValueError("the test splits differ: the windows have other values")
    return np.abs(predicted - actual[0]).mean(axis=2)


def read_regressed(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): the absolute error of a sequence's prediction, in the target's own unit."""
    actual, predicted = (by_sequence(runs, column, float) for column in ("actual", "predicted"))
    if not np.allclose(actual, actual[0], rtol=SAME_LEVEL, atol=0):
        raise ValueError("the test splits differ: the sequences have other targets")
    return np.abs(predicted - actual[0])


def read_scores(runs: Sequence[Rows]) -> np.ndarray:
    """Return (R, N): the number that the task gave a sequence, in the column `score`."""
    if not all(row.get("score") for rows in runs for row in rows):
        raise ValueError("predictions.csv needs a column `score` with a number for each sequence")
    return by_sequence(runs, "score", float)


def by_sequence(runs: Sequence[Rows], column: str, kind: type) -> np.ndarray:
    """Return (R, N): the values of a column, with the sequences in the order of the first run."""
    values = [{str(row["sequence"]): kind(row[column]) for row in rows} for rows in runs]
    refuse_other_split([set(run_values) for run_values in values], "sequences")
    return np.array([[run_values[sequence] for sequence in names_in_first(runs)] for run_values in values])


def names_in_first(runs: Sequence[Rows]) -> list[str]:
    """The sequences in the order of the first run."""
    return list(dict.fromkeys(str(row["sequence"]) for row in runs[0]))


def sorted_names(runs: Sequence[Rows], column: str = "sequence") -> list[str]:
    return sorted({str(row[column]) for rows in runs for row in rows})


def groups_of(runs: Sequence[Rows], sequences: Sequence[str]) -> Groups | None:
    """Return the groups of the sequences; None if a run was recorded without them. A run may lack sequences, in which
    no event happens.
    """
    groups: dict[str, str] = {}
    for row in chain.from_iterable(runs):
        if not (group := str(row.get(COLUMN, ""))):
            return None
        if groups.setdefault(str(row["sequence"]), group) != group:
            raise ValueError("the test splits differ in the groups of the sequences")
    return Groups(np.array([groups[sequence] for sequence in sequences]))


def refuse_other_split(truths: Sequence[set[Any]], of_what: str) -> None:
    if num_differing := max(len(truth ^ truths[0]) for truth in truths):
        raise ValueError(f"the test splits differ in {num_differing:,} of the {of_what}")
