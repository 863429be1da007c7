"""The columns of many sequences and what is to be learnt of them, each choice with its reason. Reads no file."""

from collections.abc import Iterator

import numpy as np

from stages.data.sequences import NO_EVENT
from stages.tools.columns import Choice, Choose, Columns, find_features, named

# Columns whose name holds one of these words come first, in the order of the words.
SEQUENCE_NAMES = "sequence seq series trial recording session clip track episode case sample id".split()
STEP_NAMES = "step frame tick t time timestamp datetime date index".split()
LABEL_NAMES = "label class category event activity gesture target type kind outcome".split()
OF_SEQUENCES = ("sequence", "step", "label")  # options of this kind of table alone


def infer_sequences(columns: Columns, choose: Choose) -> None:
    sequence = choose("sequence", lambda: find_sequence(columns))
    step = choose("step", lambda: next(find_steps(columns, sequence), (None, "")))
    if step is None:
        raise ValueError(
            f"{columns.shown} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, "
            f"or add one that counts them: table['step'] = table.groupby({sequence!r}).cumcount(); "
            "if several columns tell sequences apart, join them"
        )
    label = choose("label", lambda: find_label(columns, sequence, step))
    if columns.frame[label].nunique(dropna=False) < 2:
        raise ValueError(f"{columns.name}: {label!r} holds one value only; a label needs two; --label names another")
    choose("task", lambda: find_task(columns, sequence, label))
    taken = (sequence, step, label)
    features = choose("features", lambda: find_features(columns, columns.numeric(exclude=taken), taken))
    num_empty = sum(int(columns.numbers(column).isna().sum()) for column in features)
    gaps = f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty"
    choose("missing", lambda: ("interpolate", gaps) if num_empty else ("refuse", "no cell is empty"))


def find_sequence(columns: Columns) -> Choice:
    ids = find_ids(columns)
    if not ids:
        raise ValueError(
            f"{columns.shown} has no column that tells sequences apart, nor one of times that differ; name them: "
            "--sequence and --step for many sequences, --time for one series"
        )
    column = next((column for column in ids if any(find_steps(columns, column))), ids[0])
    num, is_named = columns.num_distinct(column), named(SEQUENCE_NAMES, [column])
    rows_each = f"{num:,} values, {len(columns.frame) / num:.1f} rows each on average"
    return column, f"named so; {rows_each}" if is_named else rows_each


def find_ids(columns: Columns) -> list[str]:
    """Columns that repeat: first with a telling name, then with equal cells side by side, then text; more ids first."""
    candidates = columns.of_kind("text", "whole", "time")
    names, ranked = named(SEQUENCE_NAMES, candidates), []
    for column in candidates:
        codes, num, is_named = columns.codes(column), columns.num_distinct(column), column in names
        is_together = int((codes[1:] != codes[:-1]).sum()) + 1 == num
        if 2 <= num <= len(codes) / 2 and (is_named or is_together or columns.kinds[column] == "text"):
            # Of two telling names (trial, sample), that of the sequences has its equal cells side by side.
            ranked.append((not is_named, not is_together, names.index(column) if is_named else -num, column))
    return [column for *_, column in sorted(ranked)]


def find_steps(columns: Columns, sequence: str) -> Iterator[Choice]:
    """Columns that rise in every sequence, or have a telling name and never repeat in one; the likeliest first."""
    codes = columns.codes(sequence)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    candidates = [*columns.of_kind("whole", "time", exclude=[sequence]), *columns.of_kind("number", exclude=[sequence])]
    names = named(STEP_NAMES, candidates)
    for column in dict.fromkeys((*names, *candidates)):
        values = columns.numbers(column).to_numpy()
        if (np.diff(values[order])[same] > 0).all() and not np.isnan(values).any():
            yield column, "it rises from row to row in every sequence"
        elif column in names and not columns.frame.duplicated([sequence, column]).any():
            yield column, "named so, and never twice the same in a sequence"


def find_label(columns: Columns, sequence: str, step: str) -> Choice:
    """By name; else text, or else few whole numbers, the same throughout a sequence; else text."""
    texts, whole = (columns.of_kind(kind, exclude=(sequence, step)) for kind in ("text", "whole"))
    if names := named(LABEL_NAMES, (*texts, *whole)):
        return names[0], "named so"
    groups = columns.frame.groupby(columns.codes(sequence))

    def is_constant(column: str) -> bool:
        is_few = 2 <= columns.num_distinct(column) <= groups.ngroups / 3
        return is_few and bool((groups[column].nunique() <= 1).all())

    found = [*filter(is_constant, texts)] or texts or [*filter(is_constant, whole)]
    if found:
        many = f"the last of {len(found)} columns that could be one (--label chooses)"
        return found[-1], many if len(found) > 1 else "the only column that could be one"
    raise ValueError(
        f"{columns.shown} has sequences ({sequence!r}) and no column that could be their label, text or few whole "
        f"numbers; name it with --label, or for a forecast keep the rows of a single {sequence!r} and give --time"
    )


def find_task(columns: Columns, sequence: str, label: str) -> Choice:
    """classify where the label is constant in each sequence, detect where some rows hold `none` or most are empty."""
    events = columns.frame[label].astype("string").fillna("").str.strip()
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if not changes.any():
        return "classify", f"{label!r} is the same throughout every sequence"
    most = events.mode()[0]
    if most == "" or (events == NO_EVENT).any():
        share = 1 - events.isin(("", NO_EVENT)).mean()
        return "detect", f"{label!r} names an event in {share:.1%} of the rows, the others are empty or {NO_EVENT!r}"
    if events[~changes].nunique() > 1:  # where it changes it is a mistake, and preprocess names the row
        return "classify", f"{label!r} is the same throughout most sequences"
    background = columns.frame[label][events == most].iloc[:1].tolist()[0]
    raise ValueError(
        f"{columns.name}: {label!r} changes within a sequence, so it must be empty or {NO_EVENT!r} where nothing "
        f"happens, and is {most!r} in {(events == most).mean():.1%} of the rows; name another column with --label, "
        f"or save the table again after table[{label!r}] = table[{label!r}].replace({background!r}, {NO_EVENT!r})"
    )
