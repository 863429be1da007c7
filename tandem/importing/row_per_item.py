"""A table with a row for each quantity or landmark at a time: the code that makes a column of each."""

from collections.abc import Sequence

import numpy as np

from tandem.importing.columns import MOST_REPEATS, TableColumns, named_like
from tandem.importing.infer_step import times_of_steps

ROW_PER_ITEM = "has a row for each quantity; write a column for each"
ITEM_NAMES = "landmark keypoint joint marker point item".split()  # of numbers that say what a row has
QUANTITY_NAMES = "parameter variable quantity measurement measure metric signal item".split()  # of words that say it
MOST_DISTINCT = 0.99  # the share of rows up to which two of them have the same item at a step
MOST_ITEMS = 50  # that words name
FEWEST_ITEMS = 0.5  # the share of items, which numbers tell apart, that a step has on average


def check_not_a_row_per_item(columns: TableColumns, sequence: str, step: str) -> None:
    """Raises ValueError if a row has one of several quantities at a time, and so is no step."""
    for time in times_of_steps(columns, sequence, step):
        index = [time] if columns.is_converted else None  # the files lack the other columns
        if code := code_for_long_form(columns, sequence, time, [step], index):
            raise ValueError(f"{columns.shown} {ROW_PER_ITEM}: {code}")


def code_for_long_form(
    columns: TableColumns, sequence: str, step: str, exclude: Sequence[str] = (), index: list[str] | None = None
) -> str:
    """The code that makes a column of each item, such as a quantity or a landmark, of a table with several rows for
    each step, one for each item; empty if the table has another form. Columns say which item it is: a text, a number
    that is a code, or both. By the names of the columns, a step may also have a single row. `index`: the columns to
    keep, by default those that are constant within a step.
    """
    frame, ids = columns.frame, [sequence, step]
    steps = frame.groupby(ids, sort=False, dropna=False).ngroup().to_numpy()
    sizes, firsts = np.bincount(steps), np.unique(steps, return_index=True)[1][steps]
    is_shared = (sizes[steps] > 1).mean() > MOST_REPEATS
    candidates = [name for name in columns.kinds if name in frame and name not in (*ids, *exclude)]
    if not is_shared and not (named_like(QUANTITY_NAMES, candidates) and named_like(["value"], candidates)):
        return ""
    changing = [name for name in candidates if columns.changes(name, firsts).any()]
    num_numeric = len({*changing} & {*columns.of_kind("whole", "number")})

    def are_items(names: Sequence[str]) -> bool:
        """Whether they tell the rows of each step apart, and the same come again at other steps of a sequence."""
        codes = frame.groupby([*names], sort=False, dropna=False).ngroup().to_numpy()
        num_items, is_text = codes.max() + 1, columns.kinds[names[0]] == "text"
        follow_each_other = (np.diff(codes) == 0).mean() > MOST_REPEATS  # as the rows of a sequence
        if follow_each_other and not (is_text and num_numeric == 1):
            return False
        if num_items * len(sizes) * FEWEST_ITEMS > len(frame) and not (is_text and num_items <= MOST_ITEMS):
            return False
        comes_again = 2 * len(np.unique(columns.codes(sequence) * num_items + codes)) <= len(frame)
        return comes_again and len(np.unique(steps * num_items + codes)) > MOST_DISTINCT * len(frame)

    texts, numbers = ([name for name in columns.of_kind(kind) if name in changing] for kind in ("text", "whole"))
    ranges = [name for name in numbers if columns.num_distinct(name) == np.ptp(columns.numbers(name).dropna()) + 1]
    numbers = [name for name in numbers if named_like(ITEM_NAMES, [name]) or name not in ranges]  # of a counter
    single = [[name] for name in columns.kinds if name in (*texts, *numbers) and are_items([name])]
    single = single if is_shared else [[name] for name in named_like(QUANTITY_NAMES, texts) if [name] in single]
    items = max(single, key=lambda names: columns.num_distinct(names[0]), default=None)
    if items is None and is_shared:
        items = next(filter(are_items, ([text, number] for text in texts for number in numbers)), None)
    if items is None:
        return ""
    item = frame.groupby(items, sort=False, dropna=False).ngroup().to_numpy()
    first_of_item = np.unique(item, return_index=True)[1][item]
    values = [name for name in columns.of_kind("whole", "number") if name in changing and name not in items]
    values = [name for name in values if columns.changes(name, first_of_item).any()]
    values = [name for n, name in enumerate(values) if not any(frame[name].equals(frame[twin]) for twin in values[:n])]
    if not values or not (is_shared or [values[0]] == values == named_like(["value"], values)):
        return ""
    index = index or [name for name in columns.kinds if name in frame and name not in (*changing, *exclude)]
    is_plain = len(values) == len(items) == 1 and columns.kinds[items[0]] == "text"
    arguments = f"columns={items[0]!r}, values={values[0]!r}" if is_plain else f"columns={items!r}, values={values!r}"
    pivot = "pivot_table" if frame.duplicated([*ids, *items]).any() else "pivot"
    aggregation = ", aggfunc='last'" * (pivot == "pivot_table")
    if is_plain:
        return f"table = table.{pivot}(index={index!r}, {arguments}{aggregation}).reset_index()"
    joined = "table.columns = [' '.join(map(str, each)) for each in table.columns]; table = table.reset_index()"
    return f"table = table.{pivot}(index={index!r}, {arguments}{aggregation}); {joined}"
