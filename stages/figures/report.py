"""results/report.html: all runs in one file that needs no network, no script and no other file.

Takes a `comparison.ReportSection` for each workload, with the rows that `stages.compare.facts` extends, and fills in
report.html.j2. Equal input gives equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages import files
from stages.figures import charts, comparison, drawing
from stages.figures.comparison import ReportSection
from stages.figures.text import as_number, number, readable, words

Row = Mapping[str, Any]
Table = tuple[list[tuple[str, str]], list[tuple[str, ...]]]  # (title, CSS class) of each column; lines


def write_report(path: Path, sections: Sequence[ReportSection]) -> None:
    """Write the report to `path`. Any text may come from a user's data."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        function.__name__: function for function in (by_device, facts, metrics, records, drawing.svg_address)
    }
    rows, hardware = comparison.named([row for section in sections for row in section.rows])
    labelled = iter(rows)
    shown = [replace(section, rows=list(islice(labelled, len(section.rows)))) for section in sections]
    alone: dict[str, list[str]] = {}  # reason -> workloads with nothing to compare with
    for own in (section.comparison for section in shown):
        if not own.judgements and not own.references:
            alone.setdefault(own.no_reference, []).append(own.workload)
    with drawing.report_style():
        pages = [page(section) for section in shown]
        text = environment.get_template("report.html.j2").render(
            rows=[row for section in shown for row in section.own],
            columns={name: comparison.COLUMNS[name] for name in ("score", "epoch", "rate", "training", "memory")},
            hardware=hardware,
            pages=pages,
            alone=alone,
            has_verdicts=any(page["verdict"] for page in pages),
        )
    files.write_text(path, text)


def page(section: ReportSection) -> dict[str, Any]:
    """Return one workload as the template takes it."""
    rows = section.own
    first = [charts.scores(section.rows), charts.speeds(section.rows), charts.losses(rows), charts.validation(rows)]
    different = [rows[0], *(row for row in rows[1:] if row["predictions"] != rows[0]["predictions"])]
    seed = charts.first_seed(rows)
    outcomes = [
        (row["label"], charts.outcomes(row, f", {row['label']}{seed}" if len(different) > 1 else seed))
        for row in different
    ]
    return {
        "section": section,
        "lines": [(comparison.kind_of(row), comparison.cells(row)) for row in section.rows],
        "baseline": comparison.baseline(rows[0]),
        "verdict": comparison.verdict(section),
        "sentences": comparison.sentences(section.comparison),
        "charts": [each for each in first if each],
        "times": [charts.epoch_times(row, rows) for row in rows],
        "outcomes": [each for each in outcomes if each[1]],  # device -> its charts
    }


def metrics(rows: Sequence[Row]) -> list[Row]:
    """Return one row per metric, with one column per device."""
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    columns = {row["label"]: row["metrics"] for row in rows}
    return [{"metric": words(name), **{title: own.get(name) for title, own in columns.items()}} for name in names]


def by_device(rows: Sequence[Row], key: str) -> list[tuple[Row, str]]:
    """Return the rows that have a value for `key`, each with its device as text; only the first row if all values are
    equal.
    """
    if rows[0][key] and all(row[key] == rows[0][key] for row in rows):
        return [(rows[0], "")]
    return [(row, f", {row['label']}") for row in rows if row[key]]


def records(rows: Sequence[Row]) -> Table:
    """Return columns (title, CSS class) and lines of a table of dicts. Its columns are all keys, in order of
    appearance.

    Numbers, or their text as in a CSV, are shortened. The first column names the row and is not changed.
    """
    columns, contents = [], []
    for index, key in enumerate(dict.fromkeys(key for row in rows for key in row)):
        values = [row.get(key) for row in rows]
        numbers = [as_number(value) for value in values]
        pairs = zip(values, numbers, strict=True)
        is_numeric = index > 0 and all(found is not None or value in (None, "") for value, found in pairs)
        columns.append((words(key), "number" if is_numeric else ""))
        contents.append([number(value) for value in (numbers if is_numeric else values)])
    return columns, list(zip(*contents, strict=True))


def facts(values: Row, has_words: bool = True) -> Table:
    """Return a table of names and values."""
    return [("name", ""), ("value", "")], [
        (words(name) if has_words else name, readable(value)) for name, value in values.items()
    ]
