"""From a table's columns and the given options to the workload's task and section `preprocess`, with reasons.

The rules are heuristics (see the table in docs/files.md); options override them. Reads and writes no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tandem.importing import recipe
from tandem.importing.columns import Choice, Choices, NotFound, TableColumns, named_like, shortened
from tandem.importing.infer_ids import find_ids, follows_days, labelled_ids
from tandem.importing.infer_label import MISTAKEN_SHARE
from tandem.importing.infer_sequences import OF_SEQUENCES, find_categories, infer_sequences
from tandem.importing.infer_series import (
    NO_SEASON,
    OF_SERIES,
    advice_on_several_series,
    advice_on_times,
    find_times,
    infer_series,
)
from tandem.importing.infer_windows import infer_recordings
from tandem.importing.names import SEQUENCE_NAMES
from tandem.importing.row_per_item import ROW_PER_ITEM
from tandem.importing.wide import numbered
from tandem.params import schema
from tandem.params.schema import NO_GROUPS
from tandem.terminal.command import WrongArgument
from tandem.terminal.messages import nearest

MOST_LETTERS = 40  # of a cell in a sentence


def preprocess_section(table: str, choices: Choices) -> dict[str, Any]:
    """The section `preprocess` of params.yaml for the file `table`."""
    values = {key: value for key, (value, _) in choices.items()}
    kind: Any = schema.Series if is_for_series(values["task"]) else schema.SequenceTable
    features = values["features"]
    section = {
        **values,
        "source": "series" if kind is schema.Series else "sequences",
        "table": table,
        "columns": {key: values[key] for key in (*OF_SEQUENCES, "time", "target", "features") if key in values},
        "split": recipe.SPLIT,
        "velocity": recipe.has_velocity(features, values.get("model", "")),
    }
    if section.get("season") == NO_SEASON:  # params.yaml then has no such key
        del section["season"]
    defaults = {field.name: field.default for field in fields(kind)}
    keys = ("source", "table", *(key for key in defaults if key not in ("source", "table")))
    return {key: section[key] for key in keys if section.get(key, defaults[key]) != defaults[key]}


def is_for_series(task: str) -> bool:
    return "series" in schema.built_in_attributes(task).sources


def choice_rows(choices: Choices) -> list[tuple[str, str, str]]:
    """Key, value and reason of each choice, as text."""
    features, why = choices["features"]
    besides = " besides the target" if is_for_series(choices["task"][0]) else ""
    shown = {**choices, "features": (shortened(features) or "none", f"{len(features)}{besides}, {why}")}
    if "window" in choices:
        window, why_window = choices["window"]
        shown["window"] = (f"{window['length']:,} steps every {window['stride']:,}", why_window)
    return [
        (key, shortened(value) if key in ("na", "categories") else str(value), why)
        for key, (value, why) in shown.items()
    ]


def infer_schema(columns: TableColumns, options: Mapping[str, Any], shape_choices: Choices) -> Choices:
    """Infer the schema of many sequences or of one series. `options`: the given options, by name. `shape_choices`: what
    follows from the shape of the data (tandem/importing/shapes.py).

    Raises ValueError, in one sentence that names the option to give, if the table is neither.
    """
    texts = columns.of_kind("text")
    if len(texts) > 1 and not columns.of_kind("whole", "number", "flag", "time", "odd"):
        cell = str(columns.frame[texts[0]].iloc[0])[:MOST_LETTERS]
        raise ValueError(
            f"{columns.shown} holds words and no numbers, such as {cell!r}, and Tandem learns from numbers; a source "
            "of your own can make numbers of words (docs/components.md)"
        )
    known_choices = shape_choices
    usable = columns.of_kind("whole", "number", "flag", "time", "text", "odd")
    options = with_own_names(options, usable)
    requested = [options[key] for key in (*OF_SEQUENCES, "time", "target", "groups") if key in options]
    requested += options.get("categories", ())
    requested = [column for column in requested if column != NO_GROUPS or column == options.get("label")]
    for column in (*requested, *options.get("features", ())):
        if column not in usable:
            raise WrongArgument(f"{columns.name} has no column {column!r}{nearest(column, usable)}")
    of_series = [key for key in options if key in OF_SERIES or (key == "task" and is_for_series(options[key]))]
    for_sequences = (*OF_SEQUENCES, "groups", "categories", "rate", "task")
    of_sequences = [key for key in options if key in for_sequences and key not in of_series]
    if of_sequences and of_series:
        flags = ", ".join(f"--{key}" for key in (*of_sequences, *of_series)).replace("_", "-")
        raise WrongArgument(
            f"{flags} do not go together: --sequence, --step and --label are for many sequences (classify, detect), "
            "--time and --target for one series (forecast); for a forecast leave out "
            f"{' and '.join(f'--{key}' for key in of_sequences)}"
        )
    if "categories" in options:
        options = {**options, "categories": find_categories(columns, options["categories"])}
    times = find_times(columns)
    is_series = times and not columns.repeats(times[0]) and not labelled_ids(columns)
    ids = named_like(SEQUENCE_NAMES, find_ids(columns)) if is_series else []  # of holidays come again
    is_series = is_series and all(follows_days(columns, name) and not columns.is_together(name) for name in ids)
    if not of_series:
        known_choices = {**known_choices, **infer_recordings(columns, options, known_choices, bool(is_series))}
    if "window" in known_choices and known_choices["sequence"][0] == NO_GROUPS:
        columns = columns.as_one_recording()
    choices: Choices = {}

    def choose(key: str, infer: Callable[[], Choice]) -> Any:
        choices[key] = (options[key], "as requested") if key in options else known_choices.get(key) or infer()
        return choices[key][0]

    as_series = of_series or (is_series and not of_sequences and not known_choices)
    if as_series and is_series and "time" not in options:
        check_times_are_there(columns, times[0])
    is_cut = "window" in known_choices
    try:
        infer_series(columns, choose) if as_series else infer_sequences(columns, choose, options, is_cut)
    except ValueError as error:
        advice = advice_on_times(columns)
        if (advice and advice in str(error)) or ROW_PER_ITEM in str(error):
            raise
        if isinstance(error, NotFound) and advice:
            raise ValueError(f"{columns.name}: {advice}") from None
        is_open = not (known_choices or "layout" in options) and not (of_sequences and not isinstance(error, NotFound))
        is_wide = is_open and 2 * sum(map(len, numbered([*columns.kinds]).values())) > len(columns.kinds)
        other_advice = advice_on_several_series(columns) if is_open and not of_sequences else ""
        hint = advice or ("--layout wide reads each row as a sequence" if is_wide else other_advice)
        raise ValueError(str(error) if hint in str(error) else f"{error}; {hint}") from None
    if is_cut:
        choices["window"] = known_choices["window"]
    for key in (key for key in ("features", "target", "label") if key in choices):
        value, why = choices[key]
        numeric = [name for name in ([value] if isinstance(value, str) else value)]
        numeric = [name for name in numeric if columns.kinds.get(name) in ("whole", "number")]
        choices[key] = value, "; ".join(filter(None, [why, *columns.likely_markers(numeric)]))
    if "na" in options:
        choices["na"] = (options["na"], "cells without a number")
    return {"task": choices["task"], **choices}


def check_times_are_there(columns: TableColumns, time: str) -> None:
    """Raises ValueError if a few rows have no time, such as lines about a person above the readings."""
    is_empty, place = columns.numbers(time).isna(), f"table[{time!r}]"
    if 0 < is_empty.mean() <= MISTAKEN_SHARE:
        cell = columns.frame[time].astype(object).fillna("").iloc[int(is_empty.argmax())]
        is_time = columns.kinds[time] == "time"
        read = f"to_datetime({place}, format='ISO8601', utc=True" if is_time else f"to_numeric({place}"
        raise ValueError(
            f"{columns.name}: {time!r} has no time in {is_empty.sum():,} of {len(is_empty):,} rows, first {cell!r} in "
            f"row {is_empty.argmax() + 1:,}; if these are no steps, leave them out: table = table[pandas.{read}, "
            "errors='coerce').notna()]; or name another with --step or --time"
        )


def with_own_names(options: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The options with the columns called as in the table, if spaces are left out, as messages do."""

    def own_name(column: str) -> str:
        matches = [name for name in columns if name.split() == column.split()]
        return column if column in columns or len(matches) != 1 else matches[0]

    named = {key: options[key] for key in (*OF_SEQUENCES, "time", "target", "groups") if key in options}
    listed = {key: options[key] for key in ("features", "categories") if key in options}
    lists = {key: [*map(own_name, names)] for key, names in listed.items()}
    return {**options, **{key: own_name(name) for key, name in named.items()}, **lists}
