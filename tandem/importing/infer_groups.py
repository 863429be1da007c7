"""The column of people or devices whose sequences stay in one split."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.importing.columns import Choice, TableColumns, named_like
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES, STEP_NAMES
from tandem.params.schema import NO_GROUPS

ID_WORDS = "id|ids|identifier|idx|index|key|code|name|number|num|nr|no|serial|ref"
# A name that ends so, as PatientID does; PatientAge is no name of people.
NAMES_PEOPLE = re.compile(rf"({'|'.join(GROUP_NAMES)}|{ID_WORDS})[^a-z]*$", re.IGNORECASE)


def find_groups(columns: TableColumns, sequence: str, taken: Sequence[str]) -> Choice:
    """A column named like people or devices, whose values several sequences share."""
    reason = "no column is named like people, devices or days (--groups selects one)"
    named = named_like(GROUP_NAMES, columns.of_kind("text", "whole", "time", exclude=taken))
    for column in filter(NAMES_PEOPLE.search, named):
        cells, num_values = columns.frame[column], columns.num_distinct(column)
        is_shared = num_values < columns.num_distinct(sequence) and not are_too_few(cells, columns.splits)
        if is_shared and (cells == cells.iloc[columns.firsts(sequence)].to_numpy()).all():
            return column, f"by its name; {what_groups_do(num_values, columns.has_split)}"
        reason = f"{column!r} changes within a sequence, has too few values, or no two sequences share one"
    shared = shared_columns(columns, sequence, taken)
    followed = [column for column in shared if follows(columns.frame[[column, taken[-1]]], taken[-1], column)]
    for column in followed:
        is_number = columns.kinds[column] == "number"  # a person's weight, or a setting that is a feature
        if not is_number:
            num_values = columns.num_distinct(column)
            return column, f"{taken[-1]!r} follows it; {what_groups_do(num_values, columns.has_split)}"
    if shared:
        column = (followed or shared)[0]
        both = f", and {taken[-1]!r} follows it" if followed else ""
        reason += (
            f"; several sequences share a value of {column!r}{both}: if it tells who or what was recorded, give "
            f"--groups {shlex.quote(column)}"
        )
    return NO_GROUPS, reason + ("" if shared else shared_part(columns, sequence, taken[-1]))


def shared_columns(columns: TableColumns, sequence: str, taken: Sequence[str]) -> list[str]:
    """Columns that are constant in each sequence and equal in several, unless named like people, labels or steps, or
    with too few values to be groups.
    """
    firsts, most = columns.firsts(sequence), columns.num_distinct(sequence) / 2
    candidates = columns.of_kind("text", "whole", "time", "number", exclude=taken)
    excluded = named_like(LABEL_NAMES, candidates)
    excluded += filter(NAMES_PEOPLE.search, named_like(GROUP_NAMES, candidates))
    excluded += named_like(STEP_NAMES, columns.of_kind("text", "whole"))  # a date of several sequences is no step
    # Most numbers are features, which change; to see that is faster than to count their values.
    same = [name for name in candidates if name not in excluded and not columns.changes(name, firsts).any()]
    same = [column for column in same if columns.num_distinct(column) <= most]
    return [column for column in same if not are_too_few(columns.frame[column], columns.splits)]


def shared_part(columns: TableColumns, sequence: str, label: str) -> str:
    """A sentence about a part of ids, such as 791 of X21.V1.791, that several sequences share and the label follows."""
    rows = columns.frame.iloc[np.unique(columns.firsts(sequence))]
    for name in columns.of_kind("text"):
        ids = rows[name].astype(str).str.rpartition("/")[2]  # of a file, without its folder, which may be the label
        signs = [sign for sign in "_.- " if ids.is_unique and ids.str.contains(sign, regex=False).all()]
        for sign in signs:
            parts = ids.str.split(sign, expand=True, regex=False)
            for place in parts.columns if not parts.isna().any(axis=None) else ():
                pairs = pd.DataFrame({"part": parts[place], "label": rows[label]})
                if pairs["part"].nunique() <= len(pairs) / 2 and follows(pairs, "label", "part"):
                    return (
                        f"; several sequences share a part of {name!r}, as {parts[place].iloc[0]!r} of "
                        f"{ids.iloc[0]!r}, and {label!r} follows it: if it tells who was recorded, write it into a "
                        "column and name that with --groups"
                    )
    return ""


def follows(rows: pd.DataFrame, label: str, column: str) -> bool:
    """Whether each value of `column` has one label, and each label enough values for three splits: other sequences of
    the same value tell a sequence's label. Another name of the label has one value for each, kinds of it a few.
    """
    pairs = rows.drop_duplicates()
    per_value, per_label = pairs[column].value_counts(), pairs[label].value_counts()
    return bool(per_value.max() == 1 and per_label.min() >= 3)


def are_too_few(names: Sequence[Any] | pd.Series, splits: Sequence[Any] | pd.Series | None) -> bool:
    """Whether there are fewer than three names, or with splits of the data's own a single one, or two in the same."""
    pairs = pd.DataFrame({"name": names} if splits is None else {"name": names, "split": splits}).drop_duplicates()
    num_names = pairs["name"].nunique()
    return bool(num_names < 2 or (num_names < 3 and (splits is None or len(pairs) > num_names)))


def what_groups_do(num: int, has_split: bool) -> str:
    if has_split:
        return f"intervals are over its {num:,} values, unless --groups {NO_GROUPS}; `split` decides the split"
    return f"each of its {num:,} values stays in one split (--groups {NO_GROUPS} mixes them)"
