"""Which column of a table of sequences is the label, and the task that follows from it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.data.rows import NO_EVENT, alike_labels
from tandem.data.splits import SPLITS
from tandem.data.tables import MISSING
from tandem.data.windows import LONG_GAP
from tandem.importing.columns import (
    Choice,
    TableColumns,
    is_id,
    named_like,
    repeats_of,
    shortened,
    words_of,
)
from tandem.importing.infer_step import is_clock, rows_together
from tandem.importing.names import CALENDAR_NAMES, GROUP_NAMES, LABEL_NAMES, SEQUENCE_NAMES
from tandem.params.schema import NO_GROUPS, columns_of
from tandem.terminal.command import NO_ANSWER, CommandError

MOST_RARE = 10  # of more whole numbers, some in fewer sequences than splits, each is rarely a class
MOST_BACKGROUND = 0.5  # the share of rows without an event
USUAL_BACKGROUND = 0.75  # the same, of a value that is not called none
SHORTEST_WINDOW = 8  # rows of one label that are worth a window
MIN_STRETCH = 16  # rows: an event is shorter
MIN_LABELLED, MIN_LONG = 0.5, 0.8  # shares: of the rows with a label, and of these in stretches of MIN_STRETCH rows
USUAL_ROWS = 30  # of a window that gets the label of its last row
COLUMN_KINDS = ("text", "flag", "whole", "number")
FEW_SEQUENCES, LONG = 100, 1000  # of so many rows on average
WEAK_NAMES = {"type", "kind"}  # of labels, but of much else too
MISTAKEN_SHARE = 0.05  # of the sequences, in which a label may change by mistake


def find_label(columns: TableColumns, sequence: str, step: str, options: Mapping[str, Any]) -> Choice:
    """The column that is called label, class and so on, or else the only one that could be the label: each sequence has
    one value of it, or it names events. People, devices and ids are asked about.

    Raises CommandError with the question if several could be, or only such a one, and ValueError if none could.
    """
    task, first_rows = options.get("task"), columns.firsts(sequence)
    taken = [sequence, step, options.get("groups"), *options.get("features", ())]
    kinds = {"regress": ("whole", "number"), "classify": ("text", "flag", "whole")}.get(task or "", COLUMN_KINDS)
    free = columns.of_kind(*kinds, exclude=[*taken, *columns_of(options.get("categories", ()))])
    of_calendar = named_like(CALENDAR_NAMES, free)
    free = [name for name in free if name not in of_calendar or {*columns.frame[name].unique()} <= {0, 1, "0", "1"}]
    likely = [name for name in free if is_constant(columns, name, sequence, first_rows)]
    likely += [name for name in free if name not in likely and names_events(columns, name)]
    by_name, ids = named_like(LABEL_NAMES, likely), named_like((*GROUP_NAMES, *SEQUENCE_NAMES), likely)
    others = [name for name in likely if name not in (*by_name, *ids) and not is_id(name)]
    plain = [name for name in by_name if not is_id(name)]
    if plain and not (others and words_of(plain[0]) & WEAK_NAMES):
        if alike := alike_names(columns, plain, LABEL_NAMES):
            raise CommandError(which_label(columns, alike, sequence, step), NO_ANSWER)
        return plain[0], "by its name"

    def are_classes(names: Sequence[str]) -> list[str]:
        return [name for name in names if columns.kinds[name] in ("text", "flag")]

    people = named_like(GROUP_NAMES, columns.of_kind("text", "whole", exclude=[sequence, step]))
    people = [who for who in people if columns.num_distinct(who) < columns.num_distinct(sequence)]
    varying = [name for name in others if any(varies(columns, name, who, first_rows) for who in people)]
    if varying:  # what never varies within a person may describe the person, as an age does
        others = varying if are_classes(varying) else [*are_classes(others), *varying]
    candidates = [*by_name, *others]
    if candidates and task is None and not are_classes(candidates) and not plain:
        candidates += [who for who in people if who in likely]  # to tell people apart is the other reading
    if not candidates:  # find_task says what the only text that changes within the sequences lacks
        changing = [name for name in free if columns.changes(name, first_rows).any()]
        changing = [name for name in changing if columns.num_distinct(name) < len(columns.frame)]
        few_words = [
            name for name in changing if columns.kinds[name] == "text" and columns.num_distinct(name) <= MOST_RARE
        ]
        sure_names, named = {*LABEL_NAMES[:3], "target"}, named_like(LABEL_NAMES, changing)
        if few_words:  # a number called activity may be a count
            named = [name for name in named if name in few_words or words_of(name) & sure_names]
        changing = named[:1] or are_classes(changing)
        candidates = changing if len(changing) == 1 else ids
    if len(candidates) > 1:
        raise CommandError(which_label(columns, candidates, sequence, step), NO_ANSWER)
    if not candidates:
        raise ValueError(no_label(columns, sequence))
    doubt = why_no_label(columns, sequence, step, candidates[0])
    if doubt and candidates[0] not in by_name:
        message = f"{columns.name}: {candidates[0]!r} is the only column that could be the label, but {doubt}"
        raise CommandError(f"{message}; give --label {shlex.quote(candidates[0])} if it is the label", NO_ANSWER)
    within = next((who for who in people if varies(columns, candidates[0], who, first_rows)), "")
    return candidates[0], f"it varies within {within!r}" if within else "the only column that could be one"


def alike_names(columns: TableColumns, names: Sequence[str], words: Sequence[str]) -> list[str]:
    """The first column and those that share one of `words` in their names, as label:sits and label:walks do, but not
    their cells, as a code of the label does: one for each. Empty if there are none, or the first is called just label.
    """
    shared = words_of(names[0]) & {*words} if names else set()
    others = [name for name in names[1:] if words_of(name) & shared and names[0].strip().lower() not in shared]
    pairs = {name: columns.frame[[names[0], name]].drop_duplicates() for name in others}
    others = [name for name, both in pairs.items() if len(both) > min(both.nunique(dropna=False))]
    return [names[0], *others] if others else []


def is_constant(columns: TableColumns, name: str, sequence: str, first_rows: np.ndarray) -> bool:
    """Whether each sequence has one value, and not all have the same. Of a text, a few sequences may have more:
    preprocess names the row.
    """
    cells = columns.frame[name].to_numpy()
    differs, is_text = (cells != cells[first_rows]) & ~pd.isna(cells), columns.kinds[name] == "text"
    if differs.any() and not is_text:
        return False
    num_changing = len(np.unique(columns.codes(sequence)[differs]))
    num_values, num_sequences = columns.num_distinct(name), columns.num_distinct(sequence)
    is_name = is_text and num_values >= num_sequences and not named_like(LABEL_NAMES, [name])  # as of a file
    return num_changing <= MISTAKEN_SHARE * num_sequences * is_text and num_values > 1 and not is_name


def no_label(columns: TableColumns, sequence: str) -> str:
    events, markers = "", [name for name in columns.of_kind("whole") if 2 <= columns.num_distinct(name) <= MOST_RARE]
    if markers := [name for name in markers if (columns.frame[name] == 0).mean() >= USUAL_BACKGROUND]:
        events = f"; or if {markers[0]!r} is 0 where nothing happens, give --label {shlex.quote(markers[0])}, after "
        events += code_for_no_event(columns, markers[0], "0")
    of_names = ""
    if (
        columns.kinds[sequence] == "text"
        and not columns.is_converted
        and stripped(columns, sequence).str.contains("_").all()
    ):
        of_names = f"; or if a part of these names is it: table['label'] = table[{sequence!r}].str.split('_').str[0]"
    return (
        f"{columns.shown} has sequences ({sequence!r}) and no column that could be their label, text or few whole "
        f"numbers; name it with --label{of_names}; or if another table has the labels: table = table.merge("
        f"pandas.read_csv('labels.csv', dtype=str), on={sequence!r}); or for a forecast keep the rows of a single "
        f"{sequence!r} and give --time{events}"
    )


def why_no_label(columns: TableColumns, sequence: str, step: str, label: str) -> str:
    """Why a column without the name of a label may not be one; empty if nothing speaks against it."""
    if is_id(label):
        return "it is called an id"
    if named_like(GROUP_NAMES, [label]):
        merge = f"table = table.merge(pandas.read_csv('labels.csv', dtype=str), on={sequence!r})"
        return f"it is named like people or devices; if another table has the labels, write {merge}"
    if columns.kinds[label] in ("whole", "number") and columns.num_distinct(label) <= MOST_RARE:
        if re.search(r"[\[(][^\d=][^=]*[\])]$", label):
            return "it has a unit and few values, as a setting has (--label may name a number of each row too)"
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
    if columns.frame[name].dtype.kind in "iuf":  # as text, millions of numbers take seconds
        is_background = columns.frame[name].isna()
    else:
        is_background = stripped(columns, name).replace("None", NO_EVENT).isin(("", NO_EVENT))  # as preprocess reads it
    return bool(MOST_BACKGROUND <= is_background.mean() < 1)


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
        meaning = f"one of {columns.num_distinct(label):,} values for each {sequence!r}"
        meaning = {"regress": f"a number for each {sequence!r}", "detect": "events in the rows"}.get(task, meaning)
        readings.append(f"--label {shlex.quote(label)} ({task}: {meaning})")
    end = "; or only --task forecast" if columns.of_kind("time") else ""
    are_numbers = all(columns.kinds[label] in ("whole", "number") for label in labels)
    if are_numbers and not columns.is_converted and not named_like((*LABEL_NAMES, "state"), labels):  # as people's ages
        numbers, first_rows = columns.of_kind("whole", "number", exclude=[sequence, step]), columns.firsts(sequence)
        numbers = [name for name in numbers if columns.changes(name, first_rows).mean() > MOST_BACKGROUND]
        if numbers := [name for name in numbers if not is_clock(columns, sequence, step, name)]:
            end = f"; or --label with a number of each row: {shortened(numbers, 4)}{end}"
    names = [label for label in labels if stripped(columns, label).str.fullmatch(r"[A-Za-z]{1,3}[-_]?\d+").all()]
    for name in names[:1]:  # as A01 and A02
        end += f"; if {name!r} tells who or what was recorded, give --groups {shlex.quote(name)} and another --label"
    return f"{columns.name} has {len(labels)} columns that could be the label; give {' or '.join(readings)}{end}"


def find_task(columns: TableColumns, sequence: str, step: str, label: str) -> Choice:
    """classify if the label is constant in each sequence, detect if some rows hold `none` or most are empty."""
    events = stripped(columns, label)
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if not changes.any():
        num_values, num_sequences = columns.num_distinct(label), columns.num_distinct(sequence)
        are_rare = num_values > MOST_RARE and labels_of(columns, sequence, label).min() < len(SPLITS)
        is_whole = columns.kinds[label] == "whole"
        is_own = is_whole and num_values == num_sequences <= np.ptp(columns.numbers(label).dropna())  # no codes
        is_many = num_values > max(20, num_sequences / 3) or are_rare or is_own
        is_many = is_many and not named_like(LABEL_NAMES[:3], [label])
        if columns.kinds[label] == "number" or (is_whole and is_many):
            why = f"{label!r} is a number with {num_values:,} values, one per sequence (--task classify: its classes)"
            return "regress", why
        hint = " (--task regress predicts the number)" * (is_whole and num_values > MOST_RARE)
        if num_sequences < FEW_SEQUENCES and len(columns.frame) > LONG * num_sequences:
            hint += "; --window 256 cuts windows of these few long sequences"
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
    where = "from row to row" if sequence == NO_GROUPS else f"within a sequence ({sequence!r})"
    why = f"{columns.name}: {label!r} changes {where}"
    stretches, _ = stretches_of(columns, sequence, step, label)
    labelled = stretches[stretches["label"] != ""]
    lengths, can_be_cut = labelled["length"], (labelled.groupby("recording")["label"].nunique() > 1).any()
    if can_be_cut and stretches["length"][stretches["label"] != usual].median() >= SHORTEST_WINDOW:
        window = max(SHORTEST_WINDOW, lengths.quantile(0.1))
        windows = f"--sequence {shlex.quote(sequence)} --label {name} --window {window:.0f}"
        why += f" and stays the same for {lengths.median():,.0f} rows at a time (the median)"
        raise ValueError(f"{why}; {windows} cuts windows of one label; or name another column with --label")
    why += f", so it must be empty or {NO_EVENT!r} where nothing happens, and is {usual!r} in {share:.1%} of the rows"
    why += "; name another column with --label"
    if share >= USUAL_BACKGROUND:
        why += f", or save the table again after {code_for_no_event(columns, label, usual)}"
    if len(columns.frame) >= SHORTEST_WINDOW * columns.num_distinct(sequence):
        code, flags = code_for_windows(columns, sequence, step, label)
        why += "; or if each row has one of its own, cut windows and give each that of its last row: "
        why += f"{code}; then give {flags}"
    raise ValueError(why)


def code_for_windows(columns: TableColumns, sequence: str, step: str, label: str) -> tuple[str, str]:
    """The code that cuts windows, backwards from the last row of a sequence, and gives each the label of its last row;
    and the options for them.
    """
    order, same = rows_together(columns, sequence)
    length = max(2, min(USUAL_ROWS, int(np.quantile(np.bincount(columns.codes(sequence)), 0.1))))
    whose = "" if sequence == NO_GROUPS else f"table[{sequence!r}].astype(str) + '_' + "
    count = "pandas.Series(range(len(table)), table.index)"
    count = f"table.groupby({sequence!r}).cumcount(ascending=False)" if whose else count
    code = f"table['window'] = {whose}({count} // {length}).astype(str)"
    if (np.diff(columns.numbers(step).to_numpy()[order])[same] < 0).any():
        key = ", key=pandas.to_numeric" if columns.kinds[step] != "time" else ""
        code = f"table = table.sort_values({step!r}{key}); {code}"
    code += f"; table = table[table.groupby('window')['window'].transform('size') == {length}]"
    code += f"; table[{label!r}] = table.groupby('window')[{label!r}].transform('last')"
    flags = f"--sequence window --step {shlex.quote(step)} --label {shlex.quote(label)}"
    flags += f" --groups {shlex.quote(sequence)}" if whose and columns.num_distinct(sequence) >= len(SPLITS) else ""
    return code, flags


def code_for_no_event(columns: TableColumns, label: str, usual_label: str) -> str:
    """The code that writes NO_EVENT where the cell is `usual_label`, in a table of text or of other cells."""
    place = f"table[{label!r}]"
    if columns.kinds[label] == "text":
        return f"{place} = {place}.replace({usual_label!r}, {NO_EVENT!r})"
    form = rf"(?i)^{re.escape(usual_label.removesuffix('.0'))}(\.0)?$"
    return f"{place} = {place}.astype(str).replace({form!r}, {NO_EVENT!r}, regex=True)"


def stretches_of(columns: TableColumns, recording: str, step: str, label: str) -> tuple[pd.DataFrame, float]:
    """A row for each stretch: recording, label (empty if there is none), and `length`, its number of rows. Also the
    median distance of two steps in a recording; a long gap ends a stretch.
    """
    labels = stripped(columns, label)
    labels = labels.where(~labels.isin(MISSING), "")
    rows = pd.DataFrame({"recording": columns.codes(recording), "label": labels, "step": columns.numbers(step)})
    rows = rows.iloc[columns.order(recording, step)]
    keys, distances = rows[["recording", "label"]], rows["step"].diff()
    usual_distance = distances[rows["recording"].diff() == 0].median()
    starts = np.flatnonzero((keys != keys.shift()).any(axis=1) | (distances > LONG_GAP * usual_distance))
    return keys.iloc[starts].assign(length=np.diff([*starts, len(rows)])), float(usual_distance)


def are_recorded(stretches: pd.DataFrame, is_series: bool, is_requested: bool) -> bool:
    """Whether a label stays the same for many rows, and changes in a recording, or at least does if it `is_requested`.
    `is_series`: of one that may be forecast, two labels must come again.
    """
    labelled = stretches[stretches["label"] != ""]
    num_changing = (labelled.groupby("recording")["label"].nunique() > 1).sum()
    long = labelled[labelled["length"] >= MIN_STRETCH]
    num_rows, num_labelled, num_long = (part["length"].sum() for part in (stretches, labelled, long))
    return bool(
        labelled["label"].nunique() > 1
        if is_requested
        else 2 * num_changing >= stretches["recording"].nunique()
        and num_labelled >= MIN_LABELLED * num_rows
        and num_long >= MIN_LONG * num_labelled
        and (long["label"].value_counts() > int(is_series)).sum() > 1
    )


def firsts_of_stretches(columns: TableColumns, recording: str, step: str, label: str) -> np.ndarray:
    """(R,) for each row, the first row of its stretch."""
    stretches, _ = stretches_of(columns, recording, step, label)
    order = columns.order(recording, step)
    first_rows = np.empty(len(order), dtype=np.int64)
    first_rows[order] = np.repeat(stretches.index, stretches["length"])
    return first_rows
