"""The columns of a table that a workload is made of: of what kind each is, and what its name tells. Reads no file.

Shapes: R rows of the table.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stages.data.tables import SPLIT_COLUMN

Choice = tuple[Any, str]  # the value, and why
Choose = Callable[[str, Callable[[], Choice]], Any]  # (key, how to infer it without an option) -> the value
Choices = dict[str, Choice]  # by key: the task and what the columns, gaps and steps of `preprocess` are


class Columns:
    """A table's columns with the kind of each: whole (numbers), number, time, text, or other (empty, lists)."""

    def __init__(self, frame: pd.DataFrame, name: str):
        self.frame, self.name = frame, name
        self.kinds = {column: kind_of(frame[column]) for column in frame.columns if column != SPLIT_COLUMN}
        self.shown = f"{name} ({shortened(list(self.kinds))})"

    def of_kind(self, *kinds: str, exclude: Sequence[str] = ()) -> list[str]:
        return [column for column, kind in self.kinds.items() if kind in kinds and column not in exclude]

    def numeric(self, exclude: Sequence[str]) -> list[str]:
        """At least one column. Raises ValueError."""
        if found := self.of_kind("whole", "number", exclude=exclude):
            return found
        taken = ", ".join(exclude)
        raise ValueError(f"{self.shown} has no numeric column besides {taken}; numbers must stand in digits")

    def numbers(self, column: str) -> pd.Series:
        """(R,) numbers, of times the seconds since 1970; NaN where a cell holds neither."""
        cells = self.frame[column]
        if self.kinds[column] in ("whole", "number"):
            return pd.to_numeric(cells, errors="coerce")
        times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
        return times.dt.as_unit("us").astype("int64").where(times.notna()) / 1e6

    def codes(self, column: str) -> np.ndarray:
        """(R,) integers, equal where the cells are."""
        return pd.factorize(self.frame[column])[0]

    def num_distinct(self, column: str) -> int:
        return int(self.frame[column].nunique())

    def repeats(self, column: str) -> bool:
        return self.num_distinct(column) < max(2, 0.95 * len(self.frame))


def kind_of(cells: pd.Series) -> str:
    cells = cells.dropna()
    if cells.empty or not pd.api.types.is_hashable(cells.iloc[0]):
        return "other"
    if pd.api.types.is_bool_dtype(cells):
        return "text"
    if not pd.api.types.is_numeric_dtype(cells):
        # A column mostly of times or numbers is meant as such; preprocess names the cells that hold `NA` or `-`.
        sample = cells.iloc[:: max(1, len(cells) // 1000)].astype(str)
        if sample.str.match(r"\d{4}-\d\d-\d\d").mean() > 0.5:
            return "time"
        if pd.to_numeric(sample, errors="coerce").notna().mean() <= 0.5:
            return "text"
    return "whole" if (pd.to_numeric(cells, errors="coerce").dropna() % 1 == 0).all() else "number"


def named(names: Sequence[str], columns: Iterable[str]) -> list[str]:
    """The columns whose name holds one of the words `names`, in the order of these."""
    words = {column: re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column) for column in columns}
    found = [column for name in names for column in words if name in map(str.lower, words[column])]
    return list(dict.fromkeys(found))


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names in a line, without the middle of a long list."""
    return ", ".join([*names[: most - 1], "...", names[-1]] if len(names) > most else names)


def find_features(columns: Columns, found: list[str], taken: Sequence[str]) -> Choice:
    others = [f"{column} ({kind})" for column, kind in columns.kinds.items() if column not in (*found, *taken)]
    return found, "all other numeric columns" + (f"; left out: {shortened(others)}" if others else "")
