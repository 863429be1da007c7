"""From a table's columns and the given options to the workload's task and section `preprocess`, with reasons.

The rules are heuristics (see the table in docs/files.md); options override them. Reads and writes no file.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from tandem.command import WrongArgument
from tandem.importing import recipe
from tandem.importing.columns import Choice, Choices, NotFound, TableColumns, named, shortened
from tandem.importing.infer_sequences import (
    OF_SEQUENCES,
    SEQUENCE_NAMES,
    find_categories,
    find_ids,
    infer_sequences,
    labelled_ids,
)
from tandem.importing.infer_series import NO_SEASON, OF_SERIES, find_times, infer_series
from tandem.importing.infer_windows import infer_recordings
from tandem.params import schema
from tandem.params.parsing import nearest
from tandem.params.schema import NO_GROUPS


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
    defaults = {each.name: each.default for each in fields(kind)}
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


def infer_schema(columns: TableColumns, options: Mapping[str, Any], known: Choices | None = None) -> Choices:
    """Infer the schema of many sequences or of one series. `options`: the given options, by name. `known`: the choices
    that follow from the shape of the data (tandem/importing/shapes.py).

    Raises ValueError, in one sentence that names the option to give, if the table is neither.
    """
    known = known or {}
    given = [options[key] for key in (*OF_SEQUENCES, "time", "target", "groups") if key in options]
    given += options.get("categories", ())
    given = [column for column in given if column != NO_GROUPS or column == options.get("label")]
    usable = columns.of_kind("whole", "number", "flag", "time", "text", "odd")
    for column in (*given, *options.get("features", ())):
        if column not in usable:
            raise WrongArgument(f"{columns.name} has no column {column!r}{nearest(column, usable)}")
    of_series = [key for key in options if key in OF_SERIES or (key == "task" and is_for_series(options[key]))]
    for_sequences = (*OF_SEQUENCES, "groups", "categories", "rate", "task")
    of_sequences = [key for key in options if key in for_sequences and key not in of_series]
    if of_sequences and of_series:
        flags = ", ".join(f"--{key}" for key in (*of_sequences, *of_series)).replace("_", "-")
        raise WrongArgument(
            f"{flags} do not go together: --sequence, --step and --label are for many sequences (classify, detect), "
            "--time and --target for one series (forecast)"
        )
    if "categories" in options:
        options = {**options, "categories": find_categories(columns, options["categories"])}
    times = find_times(columns)
    is_series = times and not columns.repeats(times[0])
    is_series = is_series and not named(SEQUENCE_NAMES, find_ids(columns)) and not labelled_ids(columns)
    if not of_series:
        known = {**known, **infer_recordings(columns, options, known, bool(is_series))}
    if "window" in known and known["sequence"][0] == NO_GROUPS:
        columns = columns.as_one_recording()
    choices: Choices = {}

    def choose(key: str, infer: Callable[[], Choice]) -> Any:
        choices[key] = (options[key], "as requested") if key in options else known.get(key) or infer()
        return choices[key][0]

    as_series = of_series or (is_series and not of_sequences and not known)
    try:
        infer_series(columns, choose) if as_series else infer_sequences(columns, choose, options)
    except NotFound as error:
        odd = columns.of_kind("odd")
        advice = odd and f"{columns.name}: {odd[0]!r} holds {columns.advice(odd[0])}"
        raise ValueError(advice or str(error)) from None
    if "window" in known:
        choices["window"] = known["window"]
    features, why = choices["features"]
    numeric = [*features, *(choices[key][0] for key in ("target", "label") if key in choices)]
    numeric = [column for column in numeric if columns.kinds.get(column) in ("whole", "number")]
    choices["features"] = features, "; ".join(filter(None, [why, *map(columns.likely_marker, numeric)]))
    if "na" in options:
        choices["na"] = (options["na"], "as requested: cells without a number")
    return {"task": choices["task"], **choices}
