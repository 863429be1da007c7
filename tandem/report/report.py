"""results/report.html: all runs in one file that needs no network, no script and no other file.

Takes a `comparison.ReportSection` for each workload and fills in report.html.j2. Equal input gives equal bytes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tandem import files
from tandem.report import answers, charts, comparison, drawing
from tandem.report.comparison import ReportSection
from tandem.report.outcomes import outcomes
from tandem.report.text import number, words


def write_report(path: Path, sections: Sequence[ReportSection], outdated: Sequence[Mapping[str, str]] = ()) -> None:
    """Write the report to `path`. Any text may come from a user's data.

    `outdated`: workload, device and reason of runs that are left out (stages/compare.py).
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "words": words, "svg_address": cache(drawing.svg_address)}
    environment.filters |= {"explained": answers.explained, "code": with_code, "capitalized": charts.capitalized}
    rows, hardware = comparison.named([row for section in sections for row in section.rows])
    labelled = iter(rows)
    shown = [replace(section, rows=list(islice(labelled, len(section.rows)))) for section in sections]
    alone: dict[str, list[str]] = {}  # reason -> workloads with nothing to compare with
    for own in (section.comparison for section in shown):
        if not own.judgements and not own.references:
            alone.setdefault(own.no_reference, []).append(own.workload)
    with drawing.chart_style():
        pages = [page(section) for section in shown]
        template = environment.get_template("report.html.j2")
        content = dict(
            rows=[row for section in shown for row in section.own],
            columns={name: comparison.COLUMNS[name] for name in ("score", "epoch", "rate", "training", "memory")},
            hardware=hardware,
            pages=pages,
            outdated=outdated,
            alone=alone,
            seconds_of_more_seeds=comparison.seconds_of_more_seeds([row for section in shown for row in section.own]),
            has_verdicts=any(page["verdict"] for page in pages),
            answers=answers.answers(shown),
            times=[hour(row["measured_at"]) for section in shown for row in section.own],
        )
        text = template.render(content, legend=answers.legend(template.render(content, legend={})))
    files.write_text(path, text)


def hour(time: str) -> str:
    """Return `2026-11-26T01:28:41+0000` as `2026-11-26 01:28 +0000`."""
    return f"{time[:16]} {time[19:]}".replace("T", " ")


def with_code(text: str) -> Markup:
    """Return `text` as HTML, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def page(section: ReportSection) -> dict[str, Any]:
    """Return one workload as the template takes it."""
    rows = section.own
    first, label = rows[0], f", {rows[0]['label']}" if len(rows) > 1 else ""
    of_training = [charts.scores(section.rows), charts.losses(rows), charts.validation(rows)]
    of_training += [charts.over_time(row) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    metrics = [{"metric": words(name), **{row["label"]: row["metrics"].get(name) for row in rows}} for name in names]
    return {
        "section": section,
        "lines": [(row["colour"], comparison.cells(row)) for row in section.rows],
        "baseline": comparison.baseline(first),
        "verdict": comparison.verdict(section),
        "sentences": comparison.sentences(section.comparison),
        # The predictions are those of the first device and seed.
        "charts": [*filter(None, of_training), *outcomes(first["run"], f"{label}{charts.first_seed(rows)}")],
        "tables": {"Metrics": metrics, f"Scores in detail{label}": first["run"].table("scores")},
    }
