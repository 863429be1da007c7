"""results/report.html: all runs in one file that needs no network, no script and no other file.

Takes a `Comparison` for each workload and fills in report.html.j2. Equal input gives equal bytes.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tandem import files
from tandem.comparing.answers import answers
from tandem.comparing.comparison import PUBLISHED, Comparison, Side
from tandem.report import charts, drawing, layout
from tandem.report.outcomes import outcomes
from tandem.report.text import number, words
from tandem.terminal.messages import MORE_SEEDS

# Terms in the order of the legend. The report explains those that it uses.
TERMS = {
    "bit-equal": "all losses, weights and predictions have the same bits",
    "within rounding": "the losses differ by no more than rounding explains, which was measured",
    "statistically compatible": "the scores differ by no more than the spread over seeds",
    "published": "results of the named machine that come with the project (docs/published.json)",
    "skill": "the share of the error of the forecast “nothing changes” that is removed; 0 is no better, 1 is perfect",
    "event F1": "the harmonic mean of the found share of the events and the true share of the found ones",
    "1-NN": "each sequence gets the class of the most similar training sequence",
    "the fitted model": "the best of random convolutions, raw values and trees, fitted to train without a network",
    "persistence": "the forecast that nothing changes",
    "fp32": "numbers of 32 bits",
}


def write_report(path: Path, comparisons: Sequence[Comparison], outdated: Sequence[Mapping[str, str]] = ()) -> None:
    """Write the report to `path`. Any text may come from a user's data.

    `outdated`: workload, requested device and reason of runs that are left out (stages/compare.py).
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "words": words, "svg_address": cache(drawing.svg_address)}
    environment.filters |= {"code": with_code, "capitalized": charts.capitalized}
    sides = list[Side]()
    for comparison in comparisons:
        sides += [*comparison.sides, *([comparison.reference.side] if comparison.reference else [])]
    labelled, hardware = layout.labelled(sides)
    local = [side for side in labelled if side.name != PUBLISHED]
    with drawing.chart_style():
        pages = [page(comparison, labelled) for comparison in comparisons]
        template = environment.get_template("report.html.j2")
        content = dict(
            rows=[side.row for side in local],
            columns={name: layout.COLUMNS[name] for name in layout.IN_REPORT},
            hardware=hardware,
            pages=pages,
            outdated=outdated,
            more_seeds="" if any(len(side.runs) > 1 for side in local) else MORE_SEEDS,
            has_verdicts=any(page["verdict"] for page in pages),
            answers=answers(comparisons),
            times=[hour(side.first.timing["measured_at"]) for side in local],
        )
        text = template.render(content, legend=legend(template.render(content, legend={})))
    files.write_text(path, text)


def legend(text: str) -> dict[str, str]:
    """Return the terms that occur in the text of the report, with their meaning."""
    return {term: meaning for term, meaning in TERMS.items() if term in text}


def hour(time: str) -> str:
    """Return `2026-11-26T01:28:41+0000` as `2026-11-26 01:28 +0000`."""
    return f"{time[:16]} {time[19:]}".replace("T", " ")


def with_code(text: str) -> Markup:
    """Return `text` as HTML, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def page(comparison: Comparison, labelled: Sequence[Side]) -> dict[str, Any]:
    """Return one workload as the template takes it. `labelled`: the sides of all workloads."""
    sides = [side for side in labelled if side.first.workload == comparison.workload]
    local = [side for side in sides if side.name != PUBLISHED]
    run, label = local[0].first, f", {local[0].label}" if len(local) > 1 else ""
    of_training = [charts.scores(sides), charts.losses(local), charts.validation(local), *map(charts.over_time, local)]
    names = dict.fromkeys(name for side in local for name in side.metrics)
    metrics = [{"metric": words(name), **{side.label: side.metrics.get(name) for side in local}} for name in names]
    return {
        "workload": comparison.workload,
        "own": local,
        "lines": [(side.colour, layout.cells(side)) for side in sides],
        "baseline": layout.baseline(local[0]),
        "verdict": comparison.summaries,
        "sentences": comparison.sentences,
        # The predictions are those of the first device and seed.
        "charts": [*filter(None, of_training), *outcomes(run, f"{label}{charts.first_seed(local)}")],
        "tables": {"Metrics": metrics, f"Scores in detail{label}": run.table("scores")},
    }
