"""The columns of a table of many sequences, each choice with its reason. Reads no file."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tandem.data.rows import digits_of_times
from tandem.importing.columns import (
    MOST_CLASSES,
    MOST_REPEATS,
    Choice,
    Choose,
    NotFound,
    TableColumns,
    find_features,
    in_stretches,
    named_like,
    repeats_of,
    shortened,
    words_of,
)
from tandem.importing.infer_groups import find_groups
from tandem.importing.infer_ids import NO_ORDER, find_ids, find_sequence, joined
from tandem.importing.infer_label import (
    MOST_RARE,
    code_for_windows,
    find_label,
    find_task,
    firsts_of_stretches,
    rare_classes,
    stripped,
)
from tandem.importing.infer_series import advice_on_several_series, advice_on_times
from tandem.importing.infer_step import (
    advice_on_recordings,
    find_blocks,
    find_steps,
    is_clock,
    likeliest_step,
    rows_together,
    times_of_steps,
)
from tandem.importing.names import CALENDAR_NAMES, LABEL_NAMES, SEQUENCE_NAMES
from tandem.importing.row_per_item import ROW_PER_ITEM, check_not_a_row_per_item, code_for_long_form
from tandem.params.schema import NO_GROUPS, columns_of
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument

FOLLOWS = 0.9  # correlation of two labels that say about the same
NEAR = 10  # rows from a change up to which another label may mark it
FEW_WORDS, MOST_WORDS = 10, 50  # of a column whose words may become features
OF_SEQUENCES = ("sequence", "step", "label")  # options that only this kind of table has


def infer_sequences(columns: TableColumns, choose: Choose, options: Mapping[str, Any], is_cut: bool) -> None:
    """`is_cut`: windows are cut of the table's recordings."""
    named_so = [options[key] for key in OF_SEQUENCES if key in options]
    named_so += [*options.get("features", ()), *columns_of(options.get("categories", ()))]
    if "label" in options and "sequence" not in options and not is_cut and {*find_ids(columns)} <= {*named_so}:
        single, numbers = columns.as_one_recording(), ("time", "whole", "number")
        candidates = [options["step"]] if "step" in options else columns.of_kind(*numbers, exclude=[options["label"]])
        for step, _ in islice(find_steps(single, NO_GROUPS, candidates), 1):
            check_not_a_number_per_step(single, NO_GROUPS, step, options["label"], options.get("task"))
            try:
                find_task(single, NO_GROUPS, step, options["label"])
            except ValueError as error:  # how each row may have a label of its own
                raise ValueError(f"{error}; {NO_ORDER}") from None
    sequence = choose("sequence", lambda: find_sequence(columns, named_so))
    if "sequence" not in options and (columns.kinds.get(sequence) == "time" or named_like(CALENDAR_NAMES, [sequence])):
        # A day's hours or a year's months are rarely a sequence.
        several = "" if columns.is_converted else advice_on_several_series(columns, of_text=True)
        of_times = advice_on_times(columns)
        if advice := of_times or several:
            others = [] if of_times else [name for name in find_ids(columns) if columns.kinds[name] == "text"]
            flags = " or ".join(f"--sequence {shlex.quote(name)}" for name in [*others[:1], sequence])
            raise ValueError(f"{columns.name}: {advice}; or give {flags} if each is a sequence")
    if sequence != NO_GROUPS and not columns.frame[sequence].duplicated().any():
        raise ValueError(
            f"{columns.name}: {sequence!r} has another value in every row, so no sequence has a second step; name a "
            f"column that several rows share with --sequence; {NO_ORDER}"
        )
    step = choose("step", lambda: likeliest_step(columns, sequence, named_so))
    if step is None:
        raise NotFound(without_step(columns, sequence))
    if not {"step", "features"} & {*options}:
        check_not_a_row_per_item(columns, sequence, step)
    if columns.kinds[step] != "time" and (mistake := digits_of_times(columns.numbers(step).to_numpy(), step)):
        raise ValueError(f"{columns.name}: {mistake}")
    varying = columns.without_constants()
    label = choose("label", lambda: find_label(varying, sequence, step, options))
    if columns.frame[label].nunique(dropna=False) < 2:
        first_rows, likely = columns.firsts(sequence), varying.of_kind("text", "flag", "whole", "number")
        candidates = [name for name in likely if name != sequence and not columns.changes(name, first_rows).any()]
        can_be = f"; {shortened(candidates)} can be one" if candidates else ""
        raise ValueError(
            f"{columns.name}: {label!r} holds one value only; a label needs two; --label names another{can_be}"
        )
    check_not_a_number_per_step(columns, sequence, step, label, options.get("task"))
    if options.get("task") == "classify" and not is_cut:
        find_task(columns, sequence, step, label)  # says how to write a label that changes within a sequence
    task = choose("task", lambda: find_task(columns, sequence, step, label))
    groups = choose("groups", lambda: find_groups(columns, sequence, (sequence, step, label)))
    if groups == label and not {"label", "groups"} & {*options}:  # the names of folders
        raise CommandError(
            f"{columns.name}: {label!r} is the only column that could be the label, and may also say who or what was "
            f"recorded; give --label {shlex.quote(label)} if it is the label, or --groups {shlex.quote(label)} and "
            "name the label with --label, --pattern or --labels",
            NO_ANSWER,
        )
    is_drawn = task == "classify" and groups == NO_GROUPS and not columns.has_split
    if is_drawn and (rare := rare_classes(columns, sequence, label, "keep_rare" in options)):
        choose("rare_classes", lambda: rare)
    taken = (sequence, step, label, groups, *columns_of(options.get("categories", ())))
    if "categories" in options:
        choose("categories", lambda: ([], ""))
    if "rate" in options:
        choose("rate", lambda: (None, ""))
    features = choose("features", lambda: find_changing(columns, sequence, taken, is_cut))
    choose("missing", lambda: find_missing(columns, sequence, features))


def check_not_a_number_per_step(columns: TableColumns, sequence: str, step: str, label: str, task: str | None) -> None:
    """Raises ValueError, with the code that gives windows the number of their last row, if each step has another."""
    if columns.kinds[label] not in ("whole", "number") or task == "detect":
        return
    order, same = rows_together(columns, sequence)
    changes = np.abs(np.diff(columns.numbers(label).to_numpy()[order])[same]) > 0  # not of an empty cell
    may_be_class = task != "regress" and columns.kinds[label] == "whole" and columns.num_distinct(label) <= MOST_RARE
    if may_be_class or changes.sum() <= MOST_REPEATS * len(changes):
        return
    code, flags = code_for_windows(columns, sequence, step, label)
    raise ValueError(
        f"{columns.name}: {label!r} is a number that changes from row to row; a sequence has one label, so cut windows "
        f"and give each the number of its last row: {code}; then give {flags} --task regress"
    )


def without_step(columns: TableColumns, sequence: str) -> str:
    is_empty = columns.frame[sequence].isna() | (columns.frame[sequence] == "")
    if is_empty.mean() > MOST_REPEATS and not is_empty.iloc[0]:
        return (
            f"{columns.shown}: {sequence!r} is empty in most rows; if an empty cell means what stands above it, as in "
            "merged cells of a spreadsheet, write it into each row (pandas.Series.ffill)"
        )
    returns = in_stretches(columns.frame[sequence]) == (False, True) and not named_like(SEQUENCE_NAMES, [sequence])
    if named_like(LABEL_NAMES, [sequence]) or (returns and columns.num_distinct(sequence) <= MOST_RARE):
        return advice_on_recordings(columns, sequence, f" --label {shlex.quote(sequence)}") or (
            f"{columns.shown} looks like one row per sequence ({sequence!r} repeats and nothing orders its rows), and "
            "a sequence needs several steps: number the columns (x_0, x_1, ...) if they are steps of one feature, or "
            f"name columns with --sequence and --step; {NO_ORDER}; if the table is one recording in the order of its "
            "rows, count them: table['step'] = range(len(table)); then give --step step --label "
            f"{shlex.quote(sequence)}"
        )
    for step in times_of_steps(columns, sequence):
        if code := code_for_long_form(columns, sequence, step):
            return f"{columns.shown} {ROW_PER_ITEM}: {code}"
        if mistake := repeats_of(columns, sequence, step, MOST_REPEATS):
            return mistake
    texts, first_rows = columns.of_kind("text", exclude=[sequence]), columns.firsts(sequence)
    keys = [sequence, *(name for name in texts if columns.changes(name, first_rows).any())]
    num, numbers = len(columns.frame[keys].drop_duplicates()), columns.of_kind("whole", "number")
    steps = [name for name in numbers if num < num * columns.num_distinct(name) == len(columns.frame)]  # as in each
    steps = [name for name in steps if not columns.frame.duplicated([*keys, name]).any()]
    if names := names_of_blocks(columns) or [name for step in steps[:1] for name in (step, *keys)]:
        return f"{columns.shown}: {advice_on_blocks(*names)}"
    if columns.kinds[sequence] == "time" and (several := advice_on_several_series(columns, True, MOST_REPEATS)):
        return f"{columns.shown}: {several}; then give --task forecast"
    if recordings := advice_on_recordings(columns, sequence):
        return recordings
    is_a_clock = columns.kinds[sequence] == "whole" and (np.diff(columns.numbers(sequence)) >= 0).all()
    count = "range(len(table))" if is_a_clock else f"table.groupby({sequence!r}).cumcount()"
    return (
        f"{columns.shown} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, "
        f"or add one that counts them: table['step'] = {count}; "
        f"if several columns tell sequences apart, join them; {NO_ORDER}"
    )


def advice_on_blocks(step: str, *keys: str) -> str:
    """The code that joins `keys`, which have other values in each block of `step`."""
    return (
        f"{step!r} orders the rows of each {' and '.join(map(repr, keys))}; join these columns if they tell sequences "
        f"apart: {joined(keys)}; then give --sequence sequence --step {shlex.quote(step)}"
    )


def names_of_blocks(columns: TableColumns) -> list[str]:
    """A column that rises from row to row and begins again in block after block, and the fewest others that together
    have other values in each block, and the same in all of its rows; empty if there are none.
    """
    for step, starts in find_blocks(columns):
        first_rows = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        keys = columns.of_kind("text", "whole", exclude=[step])
        keys = [key for key in keys if not columns.changes(key, first_rows).any()]
        firsts = columns.frame[keys][starts]
        if firsts.duplicated().any() or not keys:
            continue
        for key in reversed(keys):
            rest = [other for other in keys if other != key]
            keys = keys if not rest or firsts.duplicated(rest).any() else rest
        return [step, *keys]
    return []


def find_changing(columns: TableColumns, sequence: str, taken: Sequence[str], is_cut: bool) -> Choice:
    """Numeric columns that change within a sequence. An id, a second label or an age is constant: no feature."""
    numeric, firsts = columns.numeric(exclude=taken), columns.firsts(sequence)
    of_stretches = firsts_of_stretches(columns, *taken[:3]) if is_cut else firsts
    why_not = {}
    for column in numeric:
        words = words_of(column)
        if not columns.changes(column, firsts).any():
            why_not[column] = "never changes" if columns.never_changes(column) else "constant within every sequence"
        elif columns.kinds[column] == "whole" and words & {*LABEL_NAMES[:3]}:
            why_not[column] = "a second label, by its name"
        elif tells_label(columns, column, taken[2], firsts):
            why_not[column] = "its values tell the label, as a code of the label does"
        elif may_be_label(columns, column, taken[2], firsts):
            why_not[column] = "it may be another label"
        elif is_clock(columns, sequence, taken[1], column):
            why_not[column] = "counts the rows, or is their time"
        elif columns.kinds[column] == "whole" and not columns.changes(column, of_stretches).any():
            why_not[column] = "constant within every stretch, as a trial"
        elif columns.kinds[column] == "whole" and "id" in words:
            why_not[column] = "an id, by its name"
    categories = [name for name in columns.of_kind("text", exclude=taken) if columns.num_distinct(name) <= FEW_WORDS]
    categories = [name for name in categories if columns.changes(name, firsts).any()]
    hints = {name: f"text; --categories {shlex.quote(name)} adds a feature for each word" for name in categories}
    features, why = find_features(columns, numeric, taken, why_not, hints)
    if not features:
        excluded = shortened([f"{column} ({reason})" for column, reason in why_not.items()])
        raise ValueError(
            f"{columns.name} has no feature that changes within a sequence: {excluded}; --features takes one anyway"
        )
    return features, why


def tells_label(columns: TableColumns, column: str, label: str, first_rows: np.ndarray) -> bool:
    """Whether a few whole numbers tell the label: each has one, and together they have all. One of them may have
    several, as 0 between the exercises has.
    """
    if columns.kinds[column] not in ("whole", "flag") or not 2 <= columns.num_distinct(column) <= MOST_WORDS:
        return False
    labels = columns.frame[label]
    rows = columns.frame[[column, label]].assign(sequence=first_rows)[labels.notna() & (labels != "")]
    pairs = rows[[column, label]].drop_duplicates()
    certain = pairs[~pairs[column].duplicated(keep=False)]
    if pairs[column].nunique() - len(certain) > 1 or certain[label].nunique() < max(2, pairs[label].nunique()):
        return False
    in_sequences = rows[[column, "sequence"]].drop_duplicates()[column].value_counts()
    return bool(columns.changes(label, first_rows).any() or in_sequences[certain[column]].min() > 1)


def may_be_label(columns: TableColumns, column: str, label: str, first_rows: np.ndarray) -> bool:
    """Whether both hold few whole numbers, each for many rows, or one marks rows where the other changes: a table may
    have several labels as numbers. Or both are numbers that share a word in their names and follow each other.
    """
    both, kinds = columns.frame[[label, column]], [columns.kinds[label], columns.kinds[column]]
    if {*kinds} <= {"whole", "number"} and words_of(label) & words_of(column) and both.nunique().min() > MOST_CLASSES:
        return bool(abs(columns.numbers(label).corr(columns.numbers(column))) > FOLLOWS)
    if kinds[1] != "whole" or max(both.nunique()) > MOST_CLASSES:
        return False
    changes = columns.changes(label, first_rows).any()
    for marks, other in ((column, label), (label, column)) if changes else ():
        is_marked = (texts := stripped(columns, marks)) != texts.mode()[0]
        is_near = np.convolve(np.diff(columns.codes(other), prepend=0) != 0, np.ones(2 * NEAR + 1), "same") > 0.5
        if 2 * is_near.mean() < 1 < 2 * is_near[is_marked].mean():
            return True
    return kinds[0] == "whole" and all(in_stretches(both[name]) == (False, True) for name in (label, column))


def find_missing(columns: TableColumns, sequence: str, features: Sequence[str]) -> Choice:
    """mask if features are missing together, such as the points of a hand, and some sequences never have them."""
    codes, patterns, num_empty = columns.codes(sequence), set[bytes](), 0
    is_never, lengths = np.zeros(codes.max() + 1, dtype=bool), np.bincount(codes)
    for column in features:
        is_empty = columns.numbers(column).isna().to_numpy()
        if num_in_column := int(is_empty.sum()):
            num_empty += num_in_column
            patterns.add(np.packbits(is_empty).tobytes())
            is_never |= np.bincount(codes, is_empty) == lengths
    if not num_empty:
        return "refuse", "no cell is empty"
    gaps = f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty"
    if not is_never.any():
        return "interpolate", gaps
    gaps += f", and {is_never.sum():,} of {len(lengths):,} sequences never have some of the features"
    if 2 * len(patterns) <= len(features):
        num_masks = len(patterns)
        return (
            "mask",
            f"{gaps}, so {num_masks} column{'s say' if num_masks > 1 else ' says'} what was seen "
            "(or --missing interpolate)",
        )
    return "interpolate", f"{gaps} (--missing mask adds columns that say what was seen)"


def find_categories(columns: TableColumns, names: Sequence[str]) -> list[str]:
    """A feature for each word of the columns `names`."""
    features = list[str]()
    for name in names:
        words = sorted({str(cell).strip() for cell in columns.frame[name].dropna().unique()} - {""})
        if len(words) > MOST_WORDS:
            raise WrongArgument(f"--categories names {name!r}, which has {len(words):,} values; accepted: {MOST_WORDS}")
        features += [f"{name}={word}" for word in words]
    return features
