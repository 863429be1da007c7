"""Which column of a table of sequences is the label, and the task that follows from it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.command import NO_ANSWER, CommandError
from tandem.data.rows import NO_EVENT, alike_labels
from tandem.data.splits import SPLITS
from tandem.data.tables import MISSING
from tandem.importing.columns import (
    Choice,
    TableColumns,
    is_id,
    named_like,
    repeats_of,
    shortened,
)
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES
from tandem.params.schema import columns_of

MOST_RARE = 10  # of more whole numbers, some in fewer sequences than splits, each is rarely a class
MOST_BACKGROUND = 0.5  # the share of rows without an event
MISTAKEN_SHARE = 0.05  # of the sequences, in which a label may change by mistake


def find_label(columns: TableColumns, sequence: str, step: str, options: Mapping[str, Any]) -> Choice:
    """By name; else text, or few distinct whole numbers, constant in each sequence; else other text; else a number.
    People or devices only if there is no other column.

    Raises CommandError if several columns could be the label.
    """
    others_taken = (*options.get("features", ()), *columns_of(options.get("categories", ())))
    taken, task = (sequence, step, options.get("groups"), *others_taken), options.get("task")
    kinds = (("text", "flag"), ("whole",), ("number",))
    texts, whole, numbers = (columns.of_kind(*kind, exclude=taken) for kind in kinds)
    texts = [] if task == "regress" else texts
    firsts, num_sequences = columns.firsts(sequence), columns.num_distinct(sequence)

    def is_constant(column: str) -> bool:
        """Whether each sequence has one value. Of a text, a few sequences may have more: preprocess names the row."""
        cells = columns.frame[column].to_numpy()
        differs = (cells != cells[firsts]) & ~pd.isna(cells)
        num_changing = len(np.unique(columns.codes(sequence)[differs]))
        return num_changing <= (MISTAKEN_SHARE * num_sequences if columns.kinds[column] == "text" else 0)

    numbers = [column for column in numbers if is_constant(column)]
    names = named_like(LABEL_NAMES, (*texts, *whole, *numbers))
    if plain := [name for name in names if not is_id(name)]:
        return plain[0], "by its name"

    def with_few_values(column_names: Sequence[str]) -> list[str]:
        column_names = [column for column in column_names if 2 <= columns.num_distinct(column) <= num_sequences / 3]
        return [column for column in column_names if is_constant(column)]

    file_names = [name for name in texts if columns.num_distinct(name) == num_sequences and is_constant(name)]
    texts = [name for name in texts if name not in file_names and columns.num_distinct(name) < len(columns.frame)]
    ids = named_like((*GROUP_NAMES, *SEQUENCE_NAMES), (*texts, *whole, *numbers))
    people = named_like(GROUP_NAMES, columns.of_kind("text", "whole", exclude=(sequence, step)))
    people = [name for name in people if columns.num_distinct(name) < num_sequences and is_constant(name)]
    recognizable = [name for name in people if name in (*texts, *with_few_values(whole))]

    other_texts, other_whole, amounts = ([name for name in kind if name not in ids] for kind in (texts, whole, numbers))
    classes, codes = with_few_values(other_texts), with_few_values(other_whole)
    if names and (rivals := [*classes, *other_texts, *codes]):  # `names` may be ids, or codes of classes
        if coded := with_few_values(names):
            readings = [*dict.fromkeys([*coded[:1], *rivals[:3]])]
            raise CommandError(which_label(columns, readings, sequence, step), NO_ANSWER)
    elif names:
        return names[0], "by its name"
    amounts += [name for name in other_whole if name not in codes and is_constant(name)]
    amounts = [name for name in amounts if columns.num_distinct(name) > 1 and not (task == "classify" and recognizable)]
    candidates = (amounts or codes) if task == "regress" else classes or other_texts or codes or amounts
    candidates = candidates or with_few_values(texts) or texts or with_few_values(whole) or file_names
    if not candidates:
        markers = [name for name in whole if 2 <= columns.num_distinct(name) <= MOST_RARE]
        markers = [name for name in markers if (columns.frame[name] == 0).mean() >= MOST_BACKGROUND]
        events = "; or if {!r} is 0 where nothing happens, give --label {}, after {}" if markers else ""
        events = events and events.format(
            markers[0], shlex.quote(markers[0]), code_for_no_event(columns, markers[0], "0")
        )
        raise ValueError(
            f"{columns.shown} has sequences ({sequence!r}) and no column that could be their label, text or few whole "
            "numbers; name it with --label; or if another table has the labels: table = table.merge(pandas.read_csv("
            f"'labels.csv', dtype=str), on={sequence!r}); or for a forecast keep the rows of a single {sequence!r} and "
            f"give --time{events}"
        )
    changing = [
        name for name in (*classes, *codes, *amounts) if any(varies(columns, name, who, firsts) for who in people)
    ]
    likely = [name for name in candidates if name in changing] or candidates

    rivals = list[str]()
    is_class = bool(classes or (codes and not other_texts))
    if task is None and is_class:  # a number may be the label, unless it describes people, as an age does
        rivals = [name for name in amounts if columns.kinds[name] == "number"]
        if people:
            rivals = [name for name in (rivals if likely[0] in changing else [*codes, *amounts]) if name in changing]
    if task in (None, "classify") and not classes:
        rivals += recognizable
    # Events, which change within a sequence, beside a text that is constant there, such as the model of a machine.
    rivals += [name for name in other_texts if classes and names_events(columns, name)]
    rivals = [name for name in dict.fromkeys(rivals) if name not in candidates]
    if rivals or len(likely) > 1:
        likely = [*likely[-3:], *rivals[:3]]
        numbers = [name for name in amounts if columns.kinds[name] == "number" and name not in likely]
        raise CommandError(which_label(columns, [*likely, *numbers[: 3 * bool(rivals)]], sequence, step), NO_ANSWER)
    if doubt := why_no_label(columns, sequence, step, likely[0]):
        message = f"{columns.name}: {likely[0]!r} is the only column that could be the label, but {doubt}"
        raise CommandError(f"{message}; give --label {shlex.quote(likely[0])} if it is the label", NO_ANSWER)
    return likely[0], "the only column that could be one" if likely == candidates else f"it varies within {people[0]!r}"


def why_no_label(columns: TableColumns, sequence: str, step: str, label: str) -> str:
    """Why a column without the name of a label may not be one; empty if nothing speaks against it."""
    if is_id(label):
        return "it is called an id"
    num_sequences = columns.num_distinct(sequence)
    if columns.kinds[step] == "time" and columns.num_distinct(step) * num_sequences < 1.1 * len(columns.frame):
        return (
            f"each {sequence!r} has the same times, as several series do; for a forecast keep the rows of a single "
            f"{sequence!r}"
        )
    return ""


def stripped(columns: TableColumns, name: str) -> pd.Series:
    """(R,) the cells of a column as text; empty ones are ""."""
    return columns.frame[name].astype("string").fillna("").str.strip()


def names_events(columns: TableColumns, name: str) -> bool:
    """Whether most rows are empty or NO_EVENT, and others are not."""
    cells = stripped(columns, name)
    return bool(MOST_BACKGROUND <= cells.isin(("", NO_EVENT)).mean() < 1)


def labels_of(columns: TableColumns, sequence: str, label: str) -> pd.Series:
    """How many sequences have each label."""
    return columns.frame[label].iloc[np.unique(columns.firsts(sequence))].value_counts()


def rare_classes(columns: TableColumns, sequence: str, label: str, are_kept: bool) -> Choice | None:
    """What to do with classes that have fewer sequences than splits, if less than half of the sequences have such."""
    counts = labels_of(columns, sequence, label)
    rare = counts[counts < len(SPLITS)]
    names, num_rare = [f"{name} ({num:,})" for name, num in rare.items()], int(rare.sum())
    if not names or len(counts) - len(rare) < 2 or 2 * num_rare > counts.sum():
        return None
    if any(rare.index.isin(alike).any() for alike in alike_labels([*counts.index])):  # one may be a slip of another
        return None
    phrase = f"{num_rare:,} sequence{'s' * (num_rare > 1)} of {len(rare):,} class{'es' * (len(rare) > 1)} with too few"
    number = ", --task regress predicts the number" * (columns.kinds[label] == "whole")
    if are_kept:
        return "train", f"in train only, so no score covers them: {phrase}, {shortened(names)}"
    return "omit", f"left out: {phrase}, {shortened(names)} (--keep-rare puts them into train{number})"


def varies(columns: TableColumns, column: str, group: str, first_rows: np.ndarray) -> bool:
    """Whether two sequences of one person or device have different values. `first_rows` (R,): each sequence's."""
    rows = np.unique(first_rows)
    values = columns.frame[column].iloc[rows]
    return bool((values.groupby(columns.codes(group)[rows]).nunique() > 1).any())


def which_label(columns: TableColumns, labels: Sequence[str], sequence: str, step: str) -> str:
    """The question which of `labels` is learned, with the option that selects each."""
    readings = []
    for label in labels:
        try:
            task, _ = find_task(columns, sequence, step, label)
        except ValueError:  # text that changes within a sequence, and has another word where nothing happens
            task = "detect"
        meaning = f"one of {columns.num_distinct(label):,} values for each sequence"
        meaning = {"regress": "a number for each sequence", "detect": "events in the rows"}.get(task, meaning)
        readings.append(f"--label {shlex.quote(label)} ({task}: {meaning})")
    series = "; or --task forecast" if columns.of_kind("time") else ""
    return f"{columns.name} has {len(labels)} columns that could be the label; give {' or '.join(readings)}{series}"


def find_task(columns: TableColumns, sequence: str, step: str, label: str) -> Choice:
    """classify if the label is constant in each sequence, detect if some rows hold `none` or most are empty."""
    events = stripped(columns, label)
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if not changes.any():
        num_values, num_sequences = columns.num_distinct(label), columns.num_distinct(sequence)
        are_rare = num_values > MOST_RARE and labels_of(columns, sequence, label).min() < len(SPLITS)
        is_many = (num_values > max(20, num_sequences / 3) or are_rare) and not named_like(LABEL_NAMES[:3], [label])
        if columns.kinds[label] == "number" or (columns.kinds[label] == "whole" and is_many):
            why = f"{label!r} is a number with {num_values:,} values, one per sequence (--task classify: its classes)"
            return "regress", why
        is_number = columns.kinds[label] == "whole" and num_values > MOST_RARE
        hint = " (--task regress predicts the number)" * is_number
        return "classify", f"{label!r} is constant within every sequence{hint}"
    events = events.replace("None", NO_EVENT)  # as preprocess reads it
    usual = events.mode()[0]
    if usual == "" or (events == NO_EVENT).any():
        is_event = ~events.isin(("", NO_EVENT)).to_numpy()
        codes, rows = columns.codes(sequence), np.flatnonzero(is_event)
        lasts = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
        if any(np.array_equal(rows, np.sort(ends)) for ends in (np.unique(columns.firsts(sequence)), lasts)):
            filled = f"table.groupby({sequence!r})[{label!r}].transform('first')"
            raise ValueError(
                f"{columns.name}: {label!r} has one value in each sequence ({sequence!r}), in its first or last "
                f"row; if it holds for all, write it there: table[{label!r}] = {filled}; else give --task detect"
            )
        stretches, _ = stretches_of(columns, sequence, step, label)
        lengths = stretches["length"][~stretches["label"].isin(("", NO_EVENT))]
        if (lengths - 1).sum() > MISTAKEN_SHARE * lengths.sum():
            place = f"table[{label!r}]"
            code = f"{place} = {place}.mask({place} == table.groupby({sequence!r})[{label!r}].shift())"
            raise ValueError(
                f"{columns.name}: {label!r} has the same word in neighbouring rows, and an event is one row; keep the "
                f"first of each: {code}; or give --task detect if each of these rows is an event"
            )
        share = is_event.mean()
        return "detect", f"{label!r} names an event in {share:.1%} of the rows, the others are empty or {NO_EVENT!r}"
    if events[~changes].nunique() > 1:  # the change is a mistake, and preprocess names the row
        return "classify", f"{label!r} is constant within most sequences"
    if mistake := repeats_of(columns, sequence, step):  # the label may change because two sequences have one id
        raise ValueError(mistake)
    share, name = (events == usual).mean(), shlex.quote(label)
    why = f"{columns.name}: {label!r} changes within a sequence ({sequence!r})"
    stretches, _ = stretches_of(columns, sequence, step, label)
    labelled = stretches[stretches["label"] != ""]
    lengths, can_be_cut = labelled["length"], (labelled.groupby("recording")["label"].nunique() > 1).any()
    if can_be_cut and stretches["length"][stretches["label"] != usual].median() > 1:
        windows = f"--sequence {shlex.quote(sequence)} --label {name} --window {max(2, lengths.quantile(0.1)):.0f}"
        why += f" and stays the same for {lengths.median():,.0f} rows at a time (the median)"
        raise ValueError(f"{why}; {windows} cuts windows of one label; or name another column with --label")
    why += f", so it must be empty or {NO_EVENT!r} where nothing happens, and is {usual!r} in {share:.1%} of the rows"
    why += "; name another column with --label"
    if share >= MOST_BACKGROUND:
        why += f", or save the table again after {code_for_no_event(columns, label, usual)}"
    raise ValueError(why)


def code_for_no_event(columns: TableColumns, label: str, usual_label: str) -> str:
    """The code that writes NO_EVENT where the cell is `usual_label`, in a table of text or of other cells."""
    place = f"table[{label!r}]"
    if columns.kinds[label] == "text":
        return f"{place} = {place}.replace({usual_label!r}, {NO_EVENT!r})"
    form = rf"(?i)^{re.escape(usual_label.removesuffix('.0'))}(\.0)?$"
    return f"{place} = {place}.astype(str).replace({form!r}, {NO_EVENT!r}, regex=True)"


def stretches_of(columns: TableColumns, recording: str, step: str, label: str) -> tuple[pd.DataFrame, float]:
    """A row for each stretch: recording, label (empty if there is none), and `length`, its number of rows. Also the
    median distance of two steps in a recording.
    """
    labels = stripped(columns, label)
    labels = labels.where(~labels.isin(MISSING), "")
    rows = pd.DataFrame({"recording": columns.codes(recording), "label": labels, "step": columns.numbers(step)})
    rows = rows.sort_values(["recording", "step"])
    keys = rows[["recording", "label"]]
    starts = np.flatnonzero((keys != keys.shift()).any(axis=1))
    distance = rows["step"].diff()[rows["recording"].diff() == 0].median()
    return keys.iloc[starts].assign(length=np.diff([*starts, len(rows)])), float(distance)
