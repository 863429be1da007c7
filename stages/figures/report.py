"""results/report.html: all runs in one file that needs no network, no script and no other file.

In: the comparison's rows and verdicts, and the pictures as PNG bytes. Out: report.html.j2 filled in; equal input gives
equal bytes.
"""

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages import files
from stages.figures import comparison
from stages.figures.text import as_number, number, readable, words

Row = Mapping[str, Any]
Picture = tuple[str, bytes]  # caption, PNG
MAX_OPEN_ROWS = 40  # a longer table is folded


def write_report(
    path: Path,
    rows: Sequence[Row],
    verdicts: Sequence[str],
    pictures: Mapping[str, Sequence[Picture]],
    overview: Sequence[Picture] = (),
) -> None:
    """Write the report to `path`.

    `rows` are compare.json's, each with parameters, data (dict) and scores (list of dict); `pictures` are those of each
    workload; those of `overview` stand below the comparison. All text may come from a user's data.
    """
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode("ascii"),
        **{function.__name__: function for function in (by_device, flat, metrics, readable, records, size)},
    }
    workloads = dict.fromkeys(row["workload"] for row in rows)
    page = environment.get_template("report.html.j2").render(
        rows=rows,
        devices=dict.fromkeys(f"{row['device']}: {row['device_name']}" for row in rows),
        columns=[(title, css) for title, css, _ in comparison.COLUMNS],
        comparison=[comparison.cells(row) for row in rows],
        verdicts=verdicts,
        overview=overview,
        pages={name: ([row for row in rows if row["workload"] == name], pictures.get(name, ())) for name in workloads},
        max_open_rows=MAX_OPEN_ROWS,
    )
    files.write_text(path, page)


def metrics(rows: Sequence[Row]) -> list[Row]:
    """A row per metric, a column per device."""
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    columns = {f"{row['device']}: {row['device_name']}": row["metrics"] for row in rows}
    return [{"metric": words(name), **{title: own.get(name) for title, own in columns.items()}} for name in names]


def by_device(rows: Sequence[Row], key: str) -> list[tuple[Row, str]]:
    """The rows that hold anything under `key`, each with its device in words; one without where all hold the same."""
    if rows[0][key] and all(row[key] == rows[0][key] for row in rows):
        return [(rows[0], "")]
    return [(row, f" on {row['device']}: {row['device_name']}") for row in rows if row[key]]


def records(rows: Sequence[Row]) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """Columns (title, CSS class) and lines of a table of dicts; its columns are all their keys, in order of appearance.

    A column of numbers, or of their text as in a CSV, is shortened. The first column names the row and stays as it is.
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


def flat(values: Row, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Names and values; a group of groups becomes one name per group, with a dot."""
    for name, value in values.items():
        if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels: of the IHDR chunk, which is always the first."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height
