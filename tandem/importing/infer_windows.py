"""Recordings with a label in each row that stays the same for many rows: their columns, and the windows to cut.

tandem/data/windows.py cuts them. Other tables have no such label: in a table of sequences it is constant in each, in a
table of events most rows have none, and a series has none or one that changes a few times. Reads no file.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tandem.data.tables import MISSING
from tandem.importing.columns import Choice, Choices, TableColumns, named, words_of
from tandem.importing.infer_sequences import GROUP_NAMES, SEQUENCE_NAMES, find_ids, find_steps
from tandem.params.schema import NO_GROUPS

OF_RECORDINGS = ("window_length", "stride")  # options that only recordings have
RECORDED_NAMES = "activity label class category event gesture action behavior behaviour exercise posture stage state"
SECONDS_NAMES = "time t seconds second sec s".split()
MIN_STRETCH = 16  # rows: an event is shorter
MIN_LABELLED, MIN_LONG = 0.5, 0.8  # shares: of the rows with a label, and of these in stretches of MIN_STRETCH rows
# The usual length of a window: four seconds, within limits; without times a number of steps between these.
SECONDS, FEWEST, MOST, USUAL = 4.0, 64, 256, 128
MANY_WINDOWS = 10_000  # windows do not overlap if they are this many


def infer_recordings(columns: TableColumns, options: Mapping[str, Any], known: Choices, is_series: bool) -> Choices:
    """The columns of recordings, the groups and the windows; empty if the table holds something else.

    `is_series`: the table may be a series to forecast. It is a recording only if two labels have two stretches each.
    """
    if options.get("task", "classify") != "classify" or "label" in known:
        return {}
    of_label = columns.of_kind("text", "whole", "flag")
    labels = [options["label"]] if "label" in options else named(RECORDED_NAMES.split(), of_label)
    requested = [f"--{key.removesuffix('_length')}" for key in OF_RECORDINGS if key in options]
    requested += ["--sequence none"] if options.get("sequence") == NO_GROUPS else []
    for label in labels:
        given = options.get("sequence") or (known["sequence"][0] if "sequence" in known else None)
        others = columns.of_kind("text", "whole", "time", exclude=[label])
        people = [name for name in named((*GROUP_NAMES, *SEQUENCE_NAMES), others) if columns.repeats(name)]
        for recording in [given] if given else [*people, NO_GROUPS]:
            if recording == NO_GROUPS:  # a column with one value stands for the only recording
                if NO_GROUPS in columns.kinds or (not given and has_clips(columns, label)):
                    continue
                columns.frame = columns.frame.assign(**{NO_GROUPS: 0})
            steps = find_steps(columns, recording, [options["step"]] if "step" in options else None)
            step, why_step = known.get("step") or next(steps, (None, ""))
            if step is None or not is_needed(columns, recording, step):
                continue
            seconds = seconds_of(columns, recording, step)
            stretches = stretches_of(columns, recording, step, label)
            may_be_series = is_series and recording == NO_GROUPS and seconds >= 1  # the shortest interval of a series
            if why := why_recorded(stretches, label, may_be_series, bool(requested)):
                num = columns.num_distinct(recording)
                whole = "the table is one recording" if recording == NO_GROUPS else f"{num:,} recordings"
                return {
                    "sequence": (recording, whole),
                    "step": (step, why_step),
                    "label": (label, "by its name"),
                    "task": ("classify", why),
                    "groups": find_groups_of_windows(columns, recording, (label, step)),
                    "window": find_window(seconds, stretches, options),
                }
    if requested:
        raise ValueError(
            f"{columns.shown} is no recording with a label in each row, so {requested[0]} has no effect; leave it out, "
            "or name the columns: --label, --step, and --sequence for what tells the recordings apart (or none)"
        )
    return {}


def has_clips(columns: TableColumns, label: str) -> bool:
    """Whether a column has a value for each of several sequences with one label each."""
    return any(
        not (columns.frame.groupby(columns.codes(name))[label].nunique() > 1).any()
        for name in find_ids(columns)
        if name != label
    )


def is_needed(columns: TableColumns, recording: str, step: str) -> bool:
    """Whether the rows of each recording are together, or else their steps repeat in other recordings."""
    codes = columns.codes(recording)
    is_together = int((codes[1:] != codes[:-1]).sum()) + 1 == columns.num_distinct(recording)
    return is_together or columns.num_distinct(step) < len(columns.frame)


def stretches_of(columns: TableColumns, recording: str, step: str, label: str) -> pd.DataFrame:
    """A row for each stretch: its recording, its label (empty if it has none) and its number of rows."""
    texts = columns.frame[label].astype("string").fillna("").str.strip()
    cells = pd.DataFrame({"recording": columns.codes(recording), "label": texts.where(~texts.isin(MISSING), "")})
    cells = cells.iloc[np.lexsort((columns.numbers(step).to_numpy(), cells["recording"]))]
    starts = np.flatnonzero((cells != cells.shift()).any(axis=1))
    return cells.iloc[starts].assign(length=np.diff([*starts, len(cells)]))


def why_recorded(stretches: pd.DataFrame, label: str, is_series: bool, is_requested: bool) -> str:
    """Why the stretches are those of recordings; empty if they are not."""
    labelled = stretches[stretches["label"] != ""]
    num_changing = (labelled.groupby("recording")["label"].nunique() > 1).sum()
    long = labelled[labelled["length"] >= MIN_STRETCH]
    num_rows, num_labelled, num_long = (each["length"].sum() for each in (stretches, labelled, long))
    num_repeated = (long["label"].value_counts() > 1).sum()
    is_recorded = (
        2 * num_changing >= stretches["recording"].nunique()
        and num_labelled >= MIN_LABELLED * num_rows
        and num_long >= MIN_LONG * num_labelled
        and long["label"].nunique() > 1
        and (not is_series or num_repeated > 1)
    )
    if not (is_recorded or (is_requested and num_changing)):
        return ""
    typical = labelled["length"].median()
    return f"{label!r} stays the same for {typical:,.0f} rows at a time (the median), in {len(labelled):,} stretches"


def find_groups_of_windows(columns: TableColumns, recording: str, taken: tuple[str, str]) -> Choice:
    """People if there are enough for three splits, else the recordings, else the stretches."""
    if columns.has_split:
        return NO_GROUPS, "the table's own column `split` decides"
    first = columns.firsts(recording)
    for column in [*named(GROUP_NAMES, columns.of_kind("text", "whole", exclude=taken)), recording]:
        cells, num = columns.frame[column].to_numpy(), columns.num_distinct(column)
        if num >= 3 and (cells == cells[first]).all():
            return column, f"each of its {num:,} values stays in one split (--groups {NO_GROUPS}: each stretch does)"
    return NO_GROUPS, "each stretch stays in one split, because there are fewer than three recordings"


def seconds_of(columns: TableColumns, recording: str, step: str) -> float:
    """The usual seconds between two rows, of times or of fractions in a column called time or seconds; else 0."""
    is_fraction = columns.kinds[step] == "number" and words_of(step) & {*SECONDS_NAMES}
    if columns.kinds[step] != "time" and not is_fraction:
        return 0.0
    times, codes = columns.numbers(step).to_numpy(), columns.codes(recording)
    order = np.lexsort((times, codes))
    return float(np.median(np.diff(times[order])[np.diff(codes[order]) == 0]))


def find_window(seconds: float, stretches: pd.DataFrame, options: Mapping[str, Any]) -> Choice:
    """As long as is usual, if nine of ten stretches and half of those of every label are as long."""
    wanted = round(min(max(SECONDS / seconds, FEWEST), MOST)) if seconds else USUAL
    usual = stretches[(stretches["label"] != "") & (stretches["length"] >= MIN_STRETCH)]
    fitting = wanted
    if len(usual):
        fitting = int(min(usual["length"].quantile(0.1), usual.groupby("label")["length"].median().min()))
    length = options.get("window_length", min(wanted, fitting))
    stride = options.get("stride") or max(1, length // 2)
    if "stride" not in options and stretches["length"].sum() > MANY_WINDOWS * stride:
        stride = length
    if "window_length" in options:
        why = "as requested"
    elif fitting < wanted:
        why = "nine of ten stretches and half of those of every label are as long"
    else:
        why = "the usual length"
    times = f", {length * seconds:.3g} s every {stride * seconds:.3g} s" if seconds else ""
    return {"length": length, "stride": stride}, f"{why}{times} (--window and --stride set others)"
