"""The columns of a table of many sequences, each choice with its reason. Reads no file."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.command import NO_ANSWER, CommandError, WrongArgument
from tandem.data.rows import digits_of_times
from tandem.importing.columns import (
    Choice,
    Choose,
    NotFound,
    TableColumns,
    find_features,
    named,
    repeats_of,
    shortened,
    words_of,
)
from tandem.importing.infer_label import MISTAKEN_SHARE, find_label, find_task, rare_classes
from tandem.importing.names import CALENDAR_NAMES, COUNTING_NAMES, GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES, STEP_NAMES
from tandem.params.schema import NO_GROUPS, columns_of

MOST_REPEATS = 0.5  # the share of rows up to which a repeated step is a mistake, such as an id that occurs twice
ROW_PER_ITEM = "has a row for each quantity; write a column for each"
ITEM_NAMES = "landmark keypoint joint marker point item".split()  # of numbers that say what a row has
QUANTITY_NAMES = "parameter variable quantity measurement measure metric signal item".split()  # of words that say it
MOST_DISTINCT = 0.99  # the share of rows up to which two of them have the same item at a step
FEWEST_ITEMS = 0.25  # the share of items, which numbers tell apart, that a step has on average
FEW_WORDS, MOST_WORDS = 10, 50  # of a column whose words may become features
INCREASES = "it increases from row to row in every sequence"
UNEVEN = 0.01  # of the usual distance of two rows, by which a clock's may differ
FAR_FEWER = 4  # times fewer stretches of equal labels than by chance
OF_SEQUENCES = ("sequence", "step", "label")  # options that only this kind of table has


def infer_sequences(
    columns: TableColumns, choose: Choose, options: Mapping[str, Any], is_converted: bool = False
) -> None:
    """`is_converted`: the table was made of files or arrays."""
    sequence = choose("sequence", lambda: find_sequence(columns))
    step = choose("step", lambda: likeliest_step(columns, sequence))
    if step is None:
        raise NotFound(without_step(columns, sequence))
    if not {"step", "features"} & {*options}:
        check_not_a_row_per_item(columns, sequence, step, is_converted)
    if columns.kinds[step] != "time" and (mistake := digits_of_times(columns.numbers(step).to_numpy(), step)):
        raise ValueError(f"{columns.name}: {mistake}")
    label = choose("label", lambda: find_label(columns, sequence, step, options))
    if columns.frame[label].nunique(dropna=False) < 2:
        raise ValueError(f"{columns.name}: {label!r} holds one value only; a label needs two; --label names another")
    task = choose("task", lambda: find_task(columns, sequence, step, label))
    groups = choose("groups", lambda: find_groups(columns, sequence, (sequence, step, label)))
    is_drawn = task == "classify" and groups == NO_GROUPS and not columns.has_split
    if is_drawn and (rare := rare_classes(columns, sequence, label, "keep_rare" in options)):
        choose("rare_classes", lambda: rare)
    taken = (sequence, step, label, *columns_of(options.get("categories", ())))
    if "categories" in options:
        choose("categories", lambda: ([], ""))
    if "rate" in options:
        choose("rate", lambda: (None, ""))
    features = choose("features", lambda: find_changing(columns, sequence, taken))
    choose("missing", lambda: find_missing(columns, sequence, features))


def without_step(columns: TableColumns, sequence: str) -> str:
    are_empty = columns.frame.isna() | (columns.frame == "")
    if are_empty[sequence].mean() > MOST_REPEATS and not are_empty[sequence].iloc[0]:
        empty = [name for name in are_empty if (are_empty[name] == are_empty[sequence]).all()]
        return (
            f"{columns.shown}: {sequence!r} is empty in most rows; if an empty cell means what stands above it, as in "
            f"merged cells of a spreadsheet, write it: table[{empty!r}] = table[{empty!r}].ffill()"
        )
    if columns.kinds[sequence] == "time":
        return repeated_times(columns, sequence)
    if named(LABEL_NAMES, [sequence]):
        return (
            f"{columns.shown} looks like one row per sequence ({sequence!r} repeats and nothing orders its rows), and "
            "a sequence needs several steps: number their columns (x_0, x_1, ...) for one row per sequence, or name "
            "columns with --sequence and --step; if the table is one recording in the order of its rows, add a column "
            "that counts them: table['step'] = range(len(table))"
        )
    for step in columns.of_kind("whole", "number", exclude=[sequence]):
        cells, numbers = columns.frame[step].astype("string"), columns.numbers(step)
        is_wrong = numbers.isna() & (cells.fillna("") != "")
        if is_wrong.any() and (counted := TableColumns(columns.frame[~is_wrong], columns.name)).kinds[step] == "whole":
            if any(name == step for name, _ in find_steps(counted, sequence)):
                others = cells[is_wrong].unique()[:4].tolist()
                return f"{columns.name}: {step!r} has numbers, and {columns.without(step, others)}"
    for step in times_of_steps(columns, sequence):
        if code := code_for_long_form(columns, sequence, step):
            return f"{columns.shown} {ROW_PER_ITEM}: {code}"
        if mistake := repeats_of(columns, sequence, step, MOST_REPEATS):
            return mistake
    for other in columns.of_kind("text", "whole", exclude=[sequence]):
        pairs = columns.frame.groupby([sequence, other], sort=False, dropna=False).ngroup()
        joined = TableColumns(columns.frame.assign(**{sequence: pairs}), columns.name)
        if 1 < joined.num_distinct(sequence) <= len(pairs) / 2 and joined.is_together(sequence):
            for step in [step for step, _ in find_steps(joined, sequence) if step != other][:1]:
                code = f"table[{sequence!r}].astype(str) + ' ' + table[{other!r}].astype(str)"
                return (
                    f"{columns.shown}: {step!r} orders the rows of each {sequence!r} and {other!r}; join these "
                    f"columns if they tell sequences apart: table['sequence'] = {code}"
                )
    return (
        f"{columns.shown} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, "
        f"or add one that counts them: table['step'] = table.groupby({sequence!r}).cumcount(); "
        "if several columns tell sequences apart, join them"
    )


def times_of_steps(columns: TableColumns, *exclude: str) -> list[str]:
    """Columns that may be the times of steps, by their names and kinds."""
    named_so = named(STEP_NAMES, columns.of_kind("whole", "number", "time", "odd", exclude=exclude))
    return list(dict.fromkeys([*named_so, *columns.of_kind("time", exclude=exclude)]))


def check_not_a_row_per_item(columns: TableColumns, sequence: str, step: str, is_converted: bool) -> None:
    """Raises ValueError if a row has one of several quantities at a time, and so is no step. `is_converted`: the table
    was made of files, which lack its other columns.
    """
    for time in times_of_steps(columns, sequence, step):
        if code := code_for_long_form(columns, sequence, time, [step], [sequence, time] if is_converted else None):
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
    sizes, first = np.bincount(steps), np.unique(steps, return_index=True)[1][steps]
    is_shared = (sizes[steps] > 1).mean() > MOST_REPEATS
    others = [name for name in columns.kinds if name in frame and name not in (*ids, *exclude)]
    if not is_shared and not (named(QUANTITY_NAMES, others) and named(["value"], others)):
        return ""
    changing = [name for name in others if changes(columns, name, first).any()]
    num_numeric = len({*changing} & {*columns.of_kind("whole", "number")})

    def are_items(names: Sequence[str]) -> bool:
        """Whether they tell the rows of each step apart, and the same come again at other steps of a sequence."""
        codes = frame.groupby([*names], sort=False, dropna=False).ngroup().to_numpy()
        num, is_text = codes.max() + 1, columns.kinds[names[0]] == "text"
        follow_each_other = (np.diff(codes) == 0).mean() > MOST_REPEATS  # as the rows of a sequence
        if follow_each_other and not (is_text and num_numeric == 1):
            return False
        if num * len(sizes) * FEWEST_ITEMS > len(frame) and not (is_text and num <= MOST_WORDS):
            return False
        comes_again = 2 * len(np.unique(columns.codes(sequence) * num + codes)) <= len(frame)
        return comes_again and len(np.unique(steps * num + codes)) > MOST_DISTINCT * len(frame)

    texts, numbers = ([name for name in columns.of_kind(kind) if name in changing] for kind in ("text", "whole"))
    numbers = [name for name in numbers if named(ITEM_NAMES, [name]) or not is_range(columns.numbers(name))]
    single = [[name] for name in columns.kinds if name in (*texts, *numbers) and are_items([name])]
    single = single if is_shared else [[name] for name in named(QUANTITY_NAMES, texts) if [name] in single]
    items = max(single, key=lambda names: columns.num_distinct(names[0]), default=None)
    if items is None and is_shared:
        items = next(filter(are_items, ([text, number] for text in texts for number in numbers)), None)
    if items is None:
        return ""
    item = frame.groupby(items, sort=False, dropna=False).ngroup().to_numpy()
    first_of_item = np.unique(item, return_index=True)[1][item]
    values = [name for name in columns.of_kind("whole", "number") if name in changing and name not in items]
    values = [name for name in values if changes(columns, name, first_of_item).any()]
    values = [name for n, name in enumerate(values) if not any(frame[name].equals(frame[v]) for v in values[:n])]
    if not values or not (is_shared or [values[0]] == values == named(["value"], values)):
        return ""
    index = index or [name for name in columns.kinds if name in frame and name not in (*changing, *exclude)]
    is_plain = len(values) == len(items) == 1 and columns.kinds[items[0]] == "text"
    what = f"columns={items[0]!r}, values={values[0]!r}" if is_plain else f"columns={items!r}, values={values!r}"
    pivot = "pivot_table" if frame.duplicated([*ids, *items]).any() else "pivot"
    last = ", aggfunc='last'" * (pivot == "pivot_table")
    if is_plain:
        return f"table = table.{pivot}(index={index!r}, {what}{last}).reset_index()"
    joined = "table.columns = [' '.join(map(str, each)) for each in table.columns]; table = table.reset_index()"
    return f"table = table.{pivot}(index={index!r}, {what}{last}); {joined}"


def is_range(numbers: pd.Series) -> bool:
    """Whether they are all whole numbers from one to another, as those of a counter."""
    return bool(numbers.nunique() == numbers.max() - numbers.min() + 1)


def repeated_times(columns: TableColumns, time: str) -> str:
    return (
        f"{columns.shown}: the times in {time!r} repeat ({columns.num_distinct(time):,} in {len(columns.frame):,} "
        "rows) and nothing tells sequences apart; of several series in one table keep the rows of one, or name "
        "columns with --sequence and --step"
    )


def find_changing(columns: TableColumns, sequence: str, taken: Sequence[str]) -> Choice:
    """Numeric columns that change within a sequence. An id, a second label or an age is constant: no feature."""
    numeric, first = columns.numeric(exclude=taken), columns.firsts(sequence)
    why_not = {}
    for column in numeric:
        words = words_of(column)
        if not changes(columns, column, first).any():
            why_not[column] = "never changes" if columns.never_changes(column) else "constant within every sequence"
        elif columns.kinds[column] == "whole" and words & {*LABEL_NAMES[:3]}:
            why_not[column] = "a second label, by its name"
        elif words & {*COUNTING_NAMES} and is_even(columns, sequence, column):  # it may start again, as after 255
            why_not[column] = "counts the rows"
        elif words & {*STEP_NAMES} and orders_too(columns, sequence, taken[1], column):
            why_not[column] = "orders the rows too"
        elif is_clock(columns, sequence, column):
            why_not[column] = "counts the rows of each sequence, or is their time"
    few = [name for name in columns.of_kind("text", exclude=taken) if columns.num_distinct(name) <= FEW_WORDS]
    few = [name for name in few if changes(columns, name, first).any()]
    hints = {name: f"text; --categories {shlex.quote(name)} adds a feature for each word" for name in few}
    found, why = find_features(columns, numeric, taken, why_not, hints)
    if not found:
        left = shortened([f"{column} ({reason})" for column, reason in why_not.items()])
        raise ValueError(
            f"{columns.name} has no feature that changes within a sequence: {left}; --features takes one anyway"
        )
    return found, why


def changes(columns: TableColumns, column: str, first: np.ndarray) -> np.ndarray:
    """(R,) whether a row's cell differs from that of its sequence's first row (`first`); two empty cells are equal."""
    cells = columns.frame[column].to_numpy()
    return np.asarray((cells != cells[first]) & ~(pd.isna(cells) & pd.isna(cells[first])))


def in_stretches(cells: pd.Series) -> tuple[bool, bool]:
    """Whether each value is in one stretch of rows, and whether there are far fewer stretches than by chance."""
    codes = pd.factorize(cells, use_na_sentinel=False)[0]
    num, counts = 1 + np.count_nonzero(np.diff(codes)), np.bincount(codes)
    by_chance = 1 + len(codes) - (counts**2).sum() / len(codes)
    return bool(num == len(counts)), bool(num <= by_chance / FAR_FEWER)


def find_missing(columns: TableColumns, sequence: str, features: Sequence[str]) -> Choice:
    """mask if features are missing together, such as the points of a hand, and some sequences never have them."""
    codes, patterns, num_empty = columns.codes(sequence), set[bytes](), 0
    is_never, lengths = np.zeros(codes.max() + 1, dtype=bool), np.bincount(codes)
    for column in features:
        is_empty = columns.numbers(column).isna().to_numpy()
        if num := int(is_empty.sum()):
            num_empty += num
            patterns.add(np.packbits(is_empty).tobytes())
            is_never |= np.bincount(codes, is_empty) == lengths
    if not num_empty:
        return "refuse", "no cell is empty"
    gaps = f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty"
    if not is_never.any():
        return "interpolate", gaps
    gaps += f", and {is_never.sum():,} of {len(lengths):,} sequences never have some of the features"
    if 2 * len(patterns) <= len(features):
        num = len(patterns)
        return (
            "mask",
            f"{gaps}, so {num} column{'s say' if num > 1 else ' says'} what was seen (or --missing interpolate)",
        )
    return "interpolate", f"{gaps} (--missing mask adds columns that say what was seen)"


def find_categories(columns: TableColumns, names: Sequence[str]) -> list[str]:
    """A feature for each word of the columns `names`."""
    found = list[str]()
    for name in names:
        words = sorted({str(cell).strip() for cell in columns.frame[name].dropna().unique()} - {""})
        if len(words) > MOST_WORDS:
            raise WrongArgument(f"--categories names {name!r}, which has {len(words):,} values; accepted: {MOST_WORDS}")
        found += [f"{name}={word}" for word in words]
    return found


def orders_too(columns: TableColumns, sequence: str, step: str, column: str) -> bool:
    """Whether `column` rises, or falls, with the step in every sequence."""
    codes = columns.codes(sequence)
    order = np.lexsort((columns.numbers(step), codes))
    changes = np.diff(columns.numbers(column).to_numpy()[order])[np.diff(codes[order]) == 0]
    return bool((changes > 0).all() or (changes < 0).all())


def find_groups(columns: TableColumns, sequence: str, taken: Sequence[str]) -> Choice:
    """A column named like people or devices, whose values several sequences share."""
    none = "no column is named like people, devices or days (--groups selects one)"
    for column in named(GROUP_NAMES, columns.of_kind("text", "whole", exclude=taken)):
        cells, num = columns.frame[column].to_numpy(), columns.num_distinct(column)
        if not 2 <= num < columns.num_distinct(sequence) or (cells != cells[columns.firsts(sequence)]).any():
            none = f"{column!r} changes within a sequence, or no two sequences share a value of it"
            continue
        if are_too_few(columns.frame[column], columns.splits):
            none = f"{column!r} has {num} values, too few to keep each on one side of three splits"
            continue
        return column, f"by its name; {what_groups_do(num, columns.has_split)}"
    for column in (shared := shared_columns(columns, sequence, taken)):
        if label_follows(columns, taken[-1], column) and not are_too_few(columns.frame[column], columns.splits):
            num = columns.num_distinct(column)
            return column, f"{taken[-1]!r} follows it; {what_groups_do(num, columns.has_split)}"
    if shared:
        none += (
            f"; several sequences share a value of {shared[0]!r}: if it is who or what was recorded, give "
            f"--groups {shlex.quote(shared[0])}"
        )
    return NO_GROUPS, none


def shared_columns(columns: TableColumns, sequence: str, taken: Sequence[str]) -> list[str]:
    """Columns that are constant in each sequence and equal in several, unless named like people, labels or steps."""
    first, most = columns.firsts(sequence), columns.num_distinct(sequence) / 2
    candidates = columns.of_kind("text", "whole", exclude=taken)
    others = named((*LABEL_NAMES, *STEP_NAMES, *GROUP_NAMES), candidates)
    shared = [each for each in candidates if each not in others and 2 <= columns.num_distinct(each) <= most]
    return [column for column in shared if not changes(columns, column, first).any()]


def label_follows(columns: TableColumns, label: str, column: str) -> bool:
    """Whether each value of `column` has one label, and each label enough values for three splits: other sequences of
    the same value tell a sequence's label. Another name of the label has one value for each, kinds of it a few.
    """
    pairs = columns.frame[[column, label]].drop_duplicates()
    per_value, per_label = pairs[column].value_counts(), pairs[label].value_counts()
    return bool(per_value.max() == 1 and per_label.min() >= 3)


def are_too_few(names: Sequence[Any] | pd.Series, splits: Sequence[Any] | pd.Series | None) -> bool:
    """Whether there are fewer than three names, or with splits of the data's own a single one, or two in the same."""
    pairs = pd.DataFrame({"name": names} if splits is None else {"name": names, "split": splits}).drop_duplicates()
    num = pairs["name"].nunique()
    return bool(num < 2 or (num < 3 and (splits is None or len(pairs) > num)))


def what_groups_do(num: int, has_split: bool) -> str:
    if has_split:
        return f"intervals are over its {num:,} values, unless --groups {NO_GROUPS}; `split` decides the split"
    return f"each of its {num:,} values stays in one split (--groups {NO_GROUPS} mixes them)"


def find_sequence(columns: TableColumns) -> Choice:
    ids = find_ids(columns)
    if not ids:
        if times := columns.of_kind("time"):
            if not columns.repeats(times[0]):
                raise NotFound(
                    f"{columns.shown}: every time in {times[0]!r} occurs once, so the table is one series; name the "
                    "column to forecast with --target, or the column that tells sequences apart with --sequence"
                )
            raise NotFound(repeated_times(columns, times[0]))
        for name in columns.of_kind("whole"):
            if mistake := digits_of_times(columns.numbers(name).to_numpy(), name):
                raise ValueError(f"{columns.name}: {mistake}")
        raise NotFound(
            f"{columns.shown} has no column that tells sequences apart, nor one of times that differ; name them: "
            "--sequence and --step for many sequences, --time for one series; if the rows are in order, count them: "
            "table['step'] = range(len(table)), and give --step step and --label for a recording with labels in its "
            "rows; or for a forecast table['time'] = pandas.to_datetime(table.index, unit='s'), a second for each row"
        )
    column, step = next(((name, step) for name in ids for step, _ in find_steps(columns, name)), (ids[0], None))
    for group in restarting_in(columns, column, step):
        raise CommandError(
            f"{columns.name}: {column!r} may count the sequences of each {group!r}, whose rows are together within a "
            f"value of {column!r}; give --sequence {shlex.quote(column)} if that is one sequence, or join the columns: "
            f"table['sequence'] = table[{group!r}].astype(str) + ' ' + table[{column!r}].astype(str)",
            NO_ANSWER,
        )
    num = columns.num_distinct(column)
    rows_each = f"{num:,} values, {len(columns.frame) / num:.1f} rows each on average"
    return column, f"by its name; {rows_each}" if named(SEQUENCE_NAMES, [column]) else rows_each


def restarting_in(columns: TableColumns, sequence: str, step: str | None) -> Iterator[str]:
    """The columns, such as people, for each of whose values the ids may count from 1 again: in the order of the steps,
    the rows of each value are together in a sequence, and in more sequences than by mistake there are several.
    """
    codes, num = columns.codes(sequence), columns.num_distinct(sequence)
    likely = columns.of_kind("text", "whole", exclude=[name for name in (sequence, step) if name])
    found = named(GROUP_NAMES[:-1], likely)  # without days, which follow each other
    if step and not columns.is_together(sequence):  # without a step, the error names the first one that repeats
        others = {*columns.of_kind("text"), *named(SEQUENCE_NAMES, likely)}
        found += [name for name in likely if name in others and columns.is_together(name)]
    for column in found:
        order = np.lexsort((columns.numbers(step) if step else np.arange(len(codes)), codes))
        num_values = columns.num_distinct(column) + 1  # with that of an empty cell
        pairs = (codes * num_values + columns.codes(column) + 1)[order]
        distinct, num_runs = np.unique(pairs), 1 + np.count_nonzero(np.diff(pairs))
        num_shared = np.count_nonzero(np.unique(distinct // num_values, return_counts=True)[1] > 1)
        if num_runs == len(distinct) <= len(pairs) / 2 and num_shared > MISTAKEN_SHARE * num:
            yield column


def find_ids(columns: TableColumns) -> list[str]:
    """Repeating columns: first by name, then with equal cells in adjacent rows, then text, then more distinct ids. Of
    ids of the same name, those of people or devices, which have several sequences, come last.
    """
    candidates = columns.of_kind("text", "whole", "time")
    names, people, labelled = named(SEQUENCE_NAMES, candidates), named(GROUP_NAMES, candidates), labelled_ids(columns)
    likely, ranked = list[tuple[str, bool]](), list[tuple[Any, ...]]()
    for column in candidates:
        is_together = columns.is_together(column)
        is_likely = column in (*names, *labelled) or is_together or columns.kinds[column] == "text"
        if 2 <= columns.num_distinct(column) <= len(columns.frame) / 2 and is_likely:
            likely.append((column, is_together))
    around = [column for column, is_together in likely if is_together]
    for column, is_together in likely:
        num, is_named = columns.num_distinct(column), column in names
        is_named = is_named and (is_together or not counts_within(columns, column, around))
        # Of two matching names (trial, sample), the sequence id has its equal cells in adjacent rows.
        word = min(number for number, name in enumerate(SEQUENCE_NAMES) if name in words_of(column)) if is_named else 0
        is_of_people = column in people
        last = names.index(column) if is_named else column
        ranked.append((not is_named, not is_together, word, is_named and is_of_people, -num, not is_of_people, last))
    return [names[last] if isinstance(last, int) else last for *_, last in sorted(ranked)]


def counts_within(columns: TableColumns, column: str, ids: Sequence[str]) -> bool:
    """Whether `column` increases from row to row for each value of one of `ids`, as a trial does that has one row for
    each person, and no text follows it, as a label follows its sequence.
    """
    if columns.kinds[column] != "whole":
        return False
    values, num = columns.numbers(column).to_numpy(), columns.num_distinct(column)
    for text in (columns.frame[name] for name in columns.of_kind("text", exclude=[column])):
        pairs = pd.DataFrame({"id": values, "text": text}).drop_duplicates()
        if len(pairs) == num > 1 < pairs["text"].nunique() and not (text.isna() | (text == "")).any():
            return False
    for name in (each for each in ids if columns.kinds[each] != "time" and not named(STEP_NAMES, [each])):
        order, same = together(columns, name)
        if not (np.diff(values[order])[same] <= 0).any():  # an empty cell may be a row of totals
            return True
    return False


def labelled_ids(columns: TableColumns) -> list[str]:
    """The ids of labelled sequences, whatever their names: the rows of each value are together, in the file or in the
    order of their times, and another text column, or one called label, has one word there. No days, months and so on.
    """
    steps = [
        name for name in named(STEP_NAMES, columns.of_kind("time", "whole", "number")) if not columns.repeats(name)
    ]
    orders = [np.arange(len(columns.frame)), *(np.argsort(columns.numbers(step), kind="stable") for step in steps)]
    candidates = columns.of_kind("text", "whole")
    candidates = [name for name in candidates if name not in named(CALENDAR_NAMES, candidates)]
    candidates = [name for name in candidates if any(columns.is_together(name, order) for order in orders)]
    labels = {*columns.of_kind("text"), *named(LABEL_NAMES[:3], columns.of_kind("whole", "flag"))}
    num = {name: columns.num_distinct(name) for name in {*candidates, *labels}}
    found = []
    for name in candidates:
        for label in labels:
            if name != label and 2 <= num[label] <= num[name] / 2 <= len(columns.frame) / 8:
                if len(columns.frame[[name, label]].drop_duplicates()) == num[name]:
                    found.append(name)
                    break
    return found


def likeliest_step(columns: TableColumns, sequence: str) -> tuple[str | None, str]:
    """The likeliest step; None if there is none. Of two signals that increase, the user says which one is a clock."""
    found = find_steps(columns, sequence)
    step, why = next(found, (None, ""))
    if step is None or columns.kinds[step] == "time" or named(STEP_NAMES, [step]):
        return step, why
    others = [column for column, _ in found]
    if others and not is_even(columns, sequence, step):
        options = " or ".join(f"--step {shlex.quote(column)}" for column in (step, *others))
        raise CommandError(
            f"{columns.name}: {shortened([step, *others])} increase in every sequence, none in equal steps, so "
            f"each may be the step; give {options}; the others are features then",
            NO_ANSWER,
        )
    return step, why


def find_steps(columns: TableColumns, sequence: str, of: Sequence[str] | None = None) -> Iterator[Choice]:
    """Columns (of those given) that increase in every sequence, or have a matching name and no duplicates within one;
    the likeliest first: by name, then times, then what increases in equal steps, as a clock and a counter do, and the
    same in every sequence, then other numbers.
    """
    order, same = together(columns, sequence)
    candidates = columns.of_kind("whole", "time", "number", exclude=[sequence]) if of is None else [*of]
    names, unnamed = named(STEP_NAMES, candidates), []
    for column in dict.fromkeys((*names, *candidates)):
        values = columns.numbers(column).to_numpy()
        ordered = values[order]
        if (ordered[1:] > ordered[:-1])[same].all() and np.isfinite(values).all():
            if column in names:
                yield column, INCREASES
            else:
                unnamed.append(column)
        elif column in names and not columns.frame.duplicated([sequence, column]).any():
            yield column, "by its name; no value repeats within a sequence"
    if len(unnamed) > 1:
        unnamed.sort(key=lambda column: likelihood_of_a_clock(columns, sequence, column))
    yield from ((column, INCREASES) for column in unnamed)


def likelihood_of_a_clock(columns: TableColumns, sequence: str, column: str) -> int:
    """A rank, the likeliest first, of a column that increases in every sequence."""
    if columns.kinds[column] == "time":
        return 0
    if not is_even(columns, sequence, column):
        return 4 if columns.kinds[column] == "number" else 3
    order, same = together(columns, sequence)
    starts = columns.numbers(column).to_numpy()[order][np.r_[True, ~same]]
    return 1 if (starts == starts[0]).all() else 2


def together(columns: TableColumns, sequence: str) -> tuple[np.ndarray, np.ndarray]:
    """The order (R,) that puts a sequence's rows together as they follow in the file, and whether each two neighbours
    in it are of one sequence (R - 1,).
    """
    codes = columns.codes(sequence)
    order = np.argsort(codes, kind="stable")
    return order, codes[order][1:] == codes[order][:-1]


def is_clock(columns: TableColumns, sequence: str, column: str) -> bool:
    """Whether `column` rises in equal steps in every sequence, from the same number or mostly from another one in each:
    two numbers may be a setting, as of a force that rises.
    """
    order, same = together(columns, sequence)
    values = columns.numbers(column).to_numpy()[order]
    starts = values[np.r_[True, ~same]]
    num, increases = len(np.unique(starts)), (values[1:] > values[:-1])[same].all()
    return bool(increases and (num == 1 or 2 * num > len(starts))) and is_even(columns, sequence, column)


def is_even(columns: TableColumns, sequence: str, column: str) -> bool:
    """Whether the numbers increase by the same amount from row to row, in all sequences; jumps of a few are gaps. Not
    if every sequence has one row.
    """
    order, same = together(columns, sequence)
    if not same.any():
        return False
    distances = np.diff(columns.numbers(column).to_numpy()[order])[same]
    return are_even(distances)


def are_even(distances: np.ndarray) -> bool:
    """Whether nearly all of them are equal."""
    return bool((np.abs(distances / np.median(distances) - 1) < UNEVEN).mean() > 0.9)
