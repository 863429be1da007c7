"""Tables that nobody has seen, and what tandem/importing/new_workload.py plans for one."""

import re
import shlex
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem import cli
from tandem.data import prepare_data, write_arrays
from tandem.importing import new_workload
from tests import refusals


def plan_in(scratch: Path, path: Path, *options: str) -> new_workload.WorkloadPlan:
    """The plan, and in its summary the hashes of the arrays that preprocess would write."""
    plan = new_workload.make_plan(parsed("mine", str(path), *options), scratch)
    prepared = prepare_data(plan.workload.preprocess, plan.table.parent, plan.workload.task_attributes.target)
    plan.summary["sha256"] = write_arrays(scratch / "prepared", prepared)
    return plan


def planned(path: Path, *options: str) -> new_workload.WorkloadPlan:
    with TemporaryDirectory(dir=path.parent) as scratch:
        return plan_in(Path(scratch), path, *options)


def parsed(*words: str) -> Namespace:
    """The options of `tandem new <words>`."""
    return cli.parse("new", new_workload, words)


def chosen(plan: new_workload.WorkloadPlan) -> dict[str, str]:
    return {key: value for key, value, _ in plan.choices}


def reasons(plan: new_workload.WorkloadPlan) -> dict[str, str]:
    return {key: reason for key, _, reason in plan.choices}


def clips(labels: list[Any], lengths: tuple[int, int] = (5, 9), num_features: int = 2, seed: int = 0) -> pd.DataFrame:
    """One sequence per label, of different lengths, each feature a random walk."""
    draw = np.random.default_rng(seed)
    parts, rows = [], []
    for number, label in enumerate(labels):
        length = int(draw.integers(*lengths))
        parts.append(draw.normal(size=(length, num_features)).cumsum(axis=0).round(3))
        rows += [(f"c{number:03}", frame, label) for frame in range(length)]
    clip, frame, label = zip(*rows, strict=True)
    features = dict(zip((f"f{index}" for index in range(num_features)), np.concatenate(parts).T, strict=True))
    return pd.DataFrame({"clip": clip, "frame": frame, **features, "label": label})


def series(**columns: Any) -> pd.DataFrame:
    """A random walk of 300 hours."""
    hours = pd.date_range("2024-01-01", periods=300, freq="h").strftime("%Y-%m-%d %H:%M:%SZ")
    value = np.random.default_rng(0).normal(size=300).cumsum()
    return pd.DataFrame({"time": hours, "value": value, **columns})


def saved(table: pd.DataFrame, path: Path) -> Path:
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return path


def recording(labels: list[Any], lengths: tuple[int, int] = (40, 60), seed: int = 0, **columns: Any) -> pd.DataFrame:
    """A recording at 20 Hz with a stretch of each of `labels`, one after another; None: the rows have no label.

    `row` counts the rows; `x` and `y` are noise around a level of their own for each label.
    """
    draw = np.random.default_rng(seed)
    label = np.repeat(np.array(labels, dtype=object), draw.integers(*lengths, size=len(labels)))
    level = pd.factorize(label)[0][:, None]
    x, y = (3 * level + draw.normal(size=(len(label), 2))).T.round(3)
    times = pd.date_range("2024-03-01 09:00", periods=len(label), freq="50ms").strftime("%Y-%m-%d %H:%M:%S.%f")
    return pd.DataFrame({**columns, "time": times, "row": np.arange(len(label)), "x": x, "y": y, "activity": label})


def people(num: int, labels: list[Any], **options: Any) -> pd.DataFrame:
    """A recording of each of several people, at the same times."""
    return pd.concat(
        [recording(labels, seed=seed, subject=f"p{seed}", **options) for seed in range(num)], ignore_index=True
    )


LABELS = ["a", "b", "c"] * 8
ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])


def table_with(**columns: Any) -> pd.DataFrame:
    """Clips, with further columns or other cells. A function gets the number of the clip of each row."""
    table = clips(LABELS)
    number = pd.factorize(table["clip"])[0]
    return table.assign(**{name: cells(number) if callable(cells) else cells for name, cells in columns.items()})


def with_cells(column: str, *cells: Any) -> pd.DataFrame:
    """Clips with the text of some cells of a column replaced, each in another clip."""
    table = clips(LABELS).astype({column: object})
    table.loc[table.groupby("clip").head(2).groupby("clip").tail(1).index[: len(cells)], column] = cells
    return table.astype({column: str})


def refusal(path: Path, *options: str) -> str:
    return refusals.sentence(lambda: planned(path, *options))


def rewritten(said: str, folder: Path) -> tuple[Path, list[str]]:
    """The table that the code of a refusal makes, and the options that it then gives."""
    before, _, rest = said.partition(" (before it: import pandas; ")
    read, write = rest.removesuffix(")").split("; after it: ")
    match = re.search(
        r"(table(?:\[.*?\])? = .*?)(?:; (?:and|then) give (--.*?))?(?:; (?:or|the|rows that) .*)?$", before
    )
    assert match, before
    write = re.sub(r"'newe?r?\.csv'", repr(str(folder / "new.csv")), write)
    exec(f"import pandas; {read}; {match[1]}; {write}")  # noqa: S102
    return folder / "new.csv", shlex.split(match[2] or "")


def remarks(plan: new_workload.WorkloadPlan) -> str:
    """What the command prints of cells that are read in another way than they are written."""
    text = "; ".join(plan.summary.get("remarks", ()))
    assert text in "; ".join(line.split("  remark    ")[-1] for line in new_workload.summary_lines(plan))
    return text


def text_table(path: Path, delimiter: str, **columns: list[str]) -> Path:
    """The cells as they are, in quotes where they have to."""
    pd.DataFrame(columns).to_csv(path, index=False, sep=delimiter)
    return path


def labelled_folder(folder: Path) -> Path:
    """A folder for each of LABELS, with a file for each sequence of it."""
    for number, label in enumerate(LABELS):
        (folder / label).mkdir(parents=True, exist_ok=True)
        clips([label], seed=number)[["f0", "f1"]].to_csv(folder / label / f"{number}.csv", index=False)
    return folder
