"""The same sequences in each shape that people have them in, and what `tandem new` makes of them."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from tandem.data import source_module
from tandem.data.arrays import PreparedSequences
from tandem.importing.new_workload import WorkloadPlan
from tests import refusals
from tests.own_tables import plan_in, planned

LABELS = ["push", "swipe", "twist"] * 6
PEOPLE = ["ann", "bob", "cid", "dan", "eve", "fay"]


def recordings(shortest: int = 5, num_channels: int = 2) -> list[np.ndarray]:
    """(T, C) each, of different lengths; numbers with three digits, which every format keeps."""
    draw = np.random.default_rng(0)
    return [draw.normal(size=(draw.integers(shortest, 9), num_channels)).round(3) for _ in LABELS]


def prepared(path: Path, *options: str) -> tuple[WorkloadPlan, PreparedSequences]:
    """The plan, and what preprocess makes of the table and the block that it would write."""
    with TemporaryDirectory(dir=path.parent) as scratch:
        plan = plan_in(Path(scratch), path, *options)
        attributes = plan.workload.task_attributes
        return plan, source_module("sequences").prepare(plan.workload.preprocess, Path(scratch), attributes.target)


def expect(path: Path, *options: str, ordered: bool = True) -> WorkloadPlan:
    """The sequences come out with their lengths, labels and values, whatever they came in."""
    plan, data = prepared(path, *options)
    expected, sequences = recordings(), data.sequences
    assert (plan.workload.task, len(sequences.ids)) == ("classify", len(expected))
    assert sequences.classes == ("push", "swipe", "twist")
    raw = sequences.values[:, :, :2] * data.std[:2] + data.mean[:2]
    order = range(len(expected)) if ordered else [int(name.split("_")[-1]) for name in sequences.ids]
    for row, number in enumerate(order):
        assert sequences.lengths[row] == len(expected[number])
        assert sequences.classes[sequences.labels[row]] == LABELS[number]
        np.testing.assert_allclose(raw[row, : len(expected[number])], expected[number], atol=1e-5)
    return plan


def question(path: Path, *options: str) -> str:
    return refusals.question(lambda: planned(path, *options))


def padded(num_channels: int = 2) -> np.ndarray:
    """(N, T, C), NaN after the end of each."""
    values = recordings(num_channels=num_channels)
    array = np.full((len(values), max(map(len, values)), num_channels), np.nan)
    for number, sequence in enumerate(values):
        array[number, : len(sequence)] = sequence
    return array


def wide_table() -> pd.DataFrame:
    array = padded()
    columns = {
        f"{name}_{step}": array[:, step, place] for place, name in enumerate("xy") for step in range(array.shape[1])
    }
    return pd.DataFrame({"label": LABELS, **columns})


def numbered_recording(stretch: int = 40, names: str = "channel") -> pd.DataFrame:
    """A class per row, in stretches, of which each class has several; the numbered columns are channels."""
    classes = np.repeat([0, 1, 0, 2] * 6, stretch)
    draw = np.random.default_rng(0)
    values = draw.normal(size=(len(classes), 4)).round(3)
    table = pd.DataFrame(values, columns=[f"{names}{number}" for number in range(1, 5)])
    return table.assign(**{"class": classes})


def write_files(folder: Path, name: Callable[[int], str], header: bool = True) -> Path:
    for number, values in enumerate(recordings()):
        path = folder / name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, values)
        elif path.suffix == ".parquet":
            pd.DataFrame(values, columns=["x", "y"]).to_parquet(path)
        else:
            sep = "\t" if ".txt" in path.name else ","
            pd.DataFrame(values, columns=["x", "y"]).to_csv(path, index=False, header=header, sep=sep)
    return folder


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
