"""Recordings with a label in each row that stays the same for many rows: their columns, and the windows to cut.

tandem/data/windows.py cuts them. Other tables have no such label: in a table of sequences it is constant in each, in a
table of events most rows have none, and in a series it changes a few times at most. On request (--window), recordings
with one label each are cut too. Reads no file.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tandem.data.splits import SPLITS
from tandem.data.windows import LONG_GAP
from tandem.importing.columns import Choice, Choices, TableColumns, in_stretches, is_id, named_like
from tandem.importing.infer_groups import are_too_few, find_groups, what_groups_do
from tandem.importing.infer_ids import find_ids, follows_days, labelled_ids
from tandem.importing.infer_label import (
    MIN_STRETCH,
    SHORTEST_WINDOW,
    alike_names,
    are_recorded,
    is_constant,
    stretches_of,
)
from tandem.importing.infer_sequences import advice_on_blocks, names_of_blocks
from tandem.importing.infer_step import find_steps, rows_together
from tandem.importing.names import GROUP_NAMES, LABEL_NAMES, RECORDED_NAMES, SEQUENCE_NAMES, STEP_NAMES
from tandem.params.schema import NO_GROUPS
from tandem.terminal.command import NO_ANSWER, CommandError, WrongArgument

UNNAMED = "it changes within the recordings"  # why a column is the label that is not called so, or not alone
MOST_NAMED = 10  # columns called like labels
PARTS_OF_TIMES = "week weekday month hour quarter year season".split()
SECONDS, FEWEST, MOST, USUAL = 4.0, 64, 256, 128  # the usual length of a window, its limits, and without times


def infer_recordings(
    columns: TableColumns, options: Mapping[str, Any], shape_choices: Choices, is_series: bool
) -> Choices:
    """The columns of recordings, the groups and the windows; empty if the table holds something else.

    `is_series`: the table may be a series to forecast. It is a recording only if two labels have two stretches each.
    """
    is_requested = bool({"window_length", "stride"} & {*options}) or options.get("sequence") == NO_GROUPS
    if options.get("task", "classify") != "classify" or ("label" in shape_choices and not is_requested):
        return {}
    if "label" in shape_choices:
        options = {"label": shape_choices["label"][0], **options}
    choices = dict[str, Choices]()
    for label, recording in likely_columns(columns, options, shape_choices, is_series):
        if label[0] in choices:
            continue
        data = columns.as_one_recording() if recording == NO_GROUPS else columns
        if (step := find_step(data, recording, options, shape_choices)) is None:
            continue
        stretches, distance = stretches_of(data, recording, step[0], label[0])
        seconds = distance if columns.kinds[step[0]] == "time" else 0.0
        may_be_series = is_series and recording == NO_GROUPS and seconds >= 1  # the shortest interval of a series
        if not are_recorded(stretches, may_be_series, is_requested):
            continue
        num, typical = data.num_distinct(recording), stretches["length"][stretches["label"] != ""].median()
        choices[label[0]] = {
            "sequence": (recording, f"{num:,} recordings" if num > 1 else "the table is one recording"),
            "step": step,
            "label": shape_choices.get("label", label),
            "task": ("classify", f"{label[0]!r} stays the same for {typical:,.0f} rows at a time (the median)"),
            "groups": shape_choices.get("groups")
            or find_groups_of_recordings(data, recording, (recording, step[0], label[0])),
            "window": find_window(seconds, stretches, options),
        }
        if label[1] != UNNAMED:
            break
    if not choices and is_requested:
        raise WrongArgument(
            f"{columns.shown} is no recording with a label in each row, and --window, --stride and --sequence none are "
            "for these; leave them out, or name the columns with --label, --step and --sequence"
        )
    if not choices:
        return {}
    [choice, *_] = choices.values()
    (sequence, _), (name, why) = choice["sequence"], choice["label"]
    if "label" not in options:
        others = named_like(LABEL_NAMES, [] if sequence == NO_GROUPS else columns.of_kind("text", exclude=[sequence]))
        if why != UNNAMED:
            likelier = named_like(RECORDED_NAMES, [name, *others])
            others = likelier[: likelier.index(name)]
        others = [name for name in others if is_constant(columns, name, sequence, columns.firsts(sequence))]
        if len(likely := list(dict.fromkeys([*choices, *others]))) > 1:
            labels = " or ".join(f"--label {shlex.quote(label)}" for label in likely)
            raise CommandError(
                f"{columns.name} has {len(likely)} columns that could be the label; give {labels}", NO_ANSWER
            )
    if not (is_requested or "sequence" in options or shape_choices):
        check_no_clips_of_blocks(columns, sequence, name, choice["step"][0])
    if sequence == NO_GROUPS and not is_requested:
        check_not_several(columns, choice["step"][0], name)
    return choice


def likely_columns(
    columns: TableColumns, options: Mapping[str, Any], shape_choices: Choices, is_series: bool
) -> Iterator[tuple[Choice, str]]:
    """The column of the label, and that of the recordings or NO_GROUPS for a single one; the likeliest first."""
    of_shape = [shape_choices["sequence"][0]] if "sequence" in shape_choices else []
    selected = [options["sequence"]] if "sequence" in options else of_shape
    by_name = named_like(RECORDED_NAMES, columns.of_kind("text", "whole", "flag"))
    by_name = by_name if len(by_name) <= MOST_NAMED else []  # many columns of one word are features
    # A name that ends in id is a label if its values come again, and nothing else is one.
    ids = named_like((*GROUP_NAMES, *SEQUENCE_NAMES), columns.kinds)
    likelier = [*columns.of_kind("text", "flag", exclude=ids), *(name for name in by_name if not is_id(name))]
    by_name = [name for name in by_name if not is_id(name) or not (likelier or columns.is_together(name))]
    # Of several recordings, other text may be the label too: a label comes again, unlike an id.
    other_texts = [name for name in columns.of_kind("text", exclude=[*by_name, *ids]) if not columns.is_together(name)]
    clip_ids = [] if selected else ids_of_clips(columns)
    alike = alike_names(columns, by_name, RECORDED_NAMES)
    for label in [options["label"]] if "label" in options else [*by_name, *other_texts]:
        why = "by its name" if label in by_name and label not in alike else UNNAMED
        people = named_like((*GROUP_NAMES, *SEQUENCE_NAMES), columns.of_kind("text", "whole", "time", exclude=[label]))
        people = [name for name in people if not named_like(PARTS_OF_TIMES, [name]) and not follows_days(columns, name)]
        may_be_one = NO_GROUPS not in columns.kinds and (
            selected or "label" in options or label in by_name or not is_series
        )
        for recording in selected or [*filter(columns.repeats, people), NO_GROUPS]:
            if recording == NO_GROUPS and not may_be_one:
                continue
            if selected or not has_clips(columns, clip_ids, label, recording):
                yield (label, why), recording


def check_not_several(columns: TableColumns, step: str, label: str) -> None:
    """Raises CommandError if another column may tell who was recorded: the rows of each value are together, in the file
    or in time, and have several labels.
    """
    in_time = np.argsort(columns.numbers(step), kind="stable")
    for name in columns.of_kind("text", "whole", exclude=[step, label]):
        num_labels = columns.frame.groupby(name)[label].nunique()
        if 3 <= len(num_labels) <= len(columns.frame) / MIN_STRETCH and (num_labels > 1).all():
            if columns.is_together(name) or columns.is_together(name, in_time):
                raise CommandError(
                    f"{columns.name}: {name!r} may say who or what was recorded; give --sequence {shlex.quote(name)} "
                    f"if it does, or --sequence {NO_GROUPS} if the table is one recording",
                    NO_ANSWER,
                )


def check_no_clips_of_blocks(columns: TableColumns, recording: str, label: str, time: str) -> None:
    """Raises CommandError if a column called like a step begins again in blocks, which the recording's column and
    another one tell apart, and each has one label, as the frames of each play of a game, or the `time` of the recording
    goes back too, as with two devices of a person.
    """
    step, *keys = names_of_blocks(columns) or ["", ""]
    if len(keys) > 1 and recording in keys and named_like(STEP_NAMES, [step]):
        order, same = rows_together(columns, recording)
        goes_back = label not in keys and (np.diff(columns.numbers(time).to_numpy()[order])[same] <= 0).any()
        if goes_back or columns.frame.groupby(keys, sort=False)[label].nunique().max() < 2:
            raise CommandError(
                f"{columns.name}: {advice_on_blocks(step, *keys)}; or give --sequence "
                f"{shlex.quote(recording)} to cut windows of each {recording!r}, in the order of {time!r}",
                NO_ANSWER,
            )


def find_step(
    columns: TableColumns, recording: str, options: Mapping[str, Any], shape_choices: Choices
) -> Choice | None:
    steps = find_steps(columns, recording, [options["step"]] if "step" in options else None)
    step = shape_choices.get("step") or next(steps, None)
    # A column called `sensor` may hold readings. It tells recordings apart if steps repeat without it, or if the rows
    # of each of its values are together, in the file or in time: a file may be sorted by label.
    if step and recording != NO_GROUPS and columns.num_distinct(step[0]) == len(columns.frame):
        in_time = columns.frame[recording].iloc[np.argsort(columns.numbers(step[0]), kind="stable")]
        if not any(any(in_stretches(cells)) for cells in (columns.frame[recording], in_time)):
            return None
    return step


def find_groups_of_recordings(columns: TableColumns, recording: str, taken: Sequence[str]) -> Choice:
    """The column of people, or else the recordings, or with few of them the stretches. A stretch is a whole recording
    if each has one label and no gap: a split of stretches then has each label, one of recordings often has not.
    """
    groups = find_groups(columns, recording, taken)
    if groups[0] != NO_GROUPS:
        return groups
    _, step, label = taken
    codes, steps = columns.codes(recording), columns.numbers(step).to_numpy()
    order = columns.order(recording, step)
    distances = np.diff(steps[order])[np.diff(codes[order]) == 0]
    first_rows, has_gap = columns.firsts(recording), (distances > LONG_GAP * np.median(distances)).any()
    if not (columns.has_split or has_gap or columns.changes(label, first_rows).any()):
        if columns.frame[label].iloc[np.unique(first_rows)].value_counts().min() >= len(SPLITS):
            return NO_GROUPS, "the recordings of each label are split among train, val and test"
    num = columns.num_distinct(recording)
    if are_too_few(columns.frame[recording], columns.splits):
        how = "the column `split` decides" if columns.has_split else "each stretch stays in one split"
        return NO_GROUPS, f"there are fewer than three recordings, so {how}"
    if columns.has_split:
        return recording, f"the recordings; {what_groups_do(num, has_split=True)}"
    return recording, f"each of the {num:,} recordings stays in one split (--groups {NO_GROUPS}: each stretch does)"


def ids_of_clips(columns: TableColumns) -> list[str]:
    """The columns that may be the ids of sequences, by their names or because their rows are together."""
    ids = find_ids(columns)
    likely = {*named_like(SEQUENCE_NAMES, ids), *labelled_ids(columns)}
    return [name for name in ids if name in likely or columns.is_together(name)]


def has_clips(columns: TableColumns, ids: Sequence[str], label: str, recording: str) -> bool:
    """Whether one of `ids`, the likeliest first, tells apart sequences with one label each. One that is likelier than
    `recording` may count them in each recording.
    """
    for place, name in enumerate(ids):
        if name in (label, recording):
            continue
        keys = [name] if recording in (NO_GROUPS, *ids[:place]) else [name, recording]
        num_labels = columns.frame.groupby([columns.codes(key) for key in keys])[label].nunique()
        if (num_labels < 2).all() and 2 * len(num_labels) <= len(columns.frame):
            return True
    return False


def find_window(seconds: float, stretches: pd.DataFrame, options: Mapping[str, Any]) -> Choice:
    """As long as is usual, if nine of ten stretches and half of those of every label are as long, of those that are
    worth a window.
    """
    usual_length, why = round(min(max(SECONDS / seconds, FEWEST), MOST)) if seconds else USUAL, "the usual length"
    long = stretches[(stretches["label"] != "") & (stretches["length"] >= SHORTEST_WINDOW)]
    if len(long):
        fitting = int(min(long["length"].quantile(0.1), long.groupby("label")["length"].median().min()))
        if fitting < usual_length:
            usual_length, why = fitting, "nine of ten stretches"
            why += f" of {SHORTEST_WINDOW} rows or more and half of those of every label are as long"
    length = options.get("window_length", usual_length)
    stride = options.get("stride", max(1, length // 2))
    why = "as requested" if "window_length" in options else why
    return {"length": length, "stride": stride}, f"{why} (--window and --stride set others)"
