"""results/report.html: everything a person wants to see of all runs, in one file that needs no network, no script and no other file.

In: the comparison's rows and verdicts, and the pictures as PNG bytes. Out: the same bytes for the same input.
"""

import base64
import html
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from stages import files

Picture = tuple[str, bytes]  # caption, PNG
MAX_OPEN_ROWS = 40  # a longer table is folded
MAX_METRICS = 4  # beside the score, in the comparison; the workload's section has them all
MAX_ITEMS = 30  # of a list or a group in one cell

# The policy makes the browser hold to the promise: nothing is loaded, nothing runs.
PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<nav aria-label="Contents"><a href="#top">$title</a> $links</nav>
<main id="top">
$body
</main>
</body>
</html>
""")

STYLE = """
:root { color-scheme: light dark; --text: #1c2733; --soft: #5a6875; --back: #f6f7f9; --card: #fff; --line: #d9dee4; --link: #1f6fb2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --soft: #9aa7b3; --back: #14191f; --card: #1c232b; --line: #333e49; --link: #7db8ea; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 4rem; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
nav {
  position: sticky; top: 0; z-index: 1; display: flex; gap: .25rem 1.25rem; overflow-x: auto; white-space: nowrap;
  padding: .7rem max(1rem, calc((100% - 1100px) / 2 + 1rem)); background: var(--card); border-bottom: 1px solid var(--line);
}
nav a { color: var(--link); text-decoration: none; }
nav a:first-child { font-weight: 600; color: var(--text); }
nav a:hover { text-decoration: underline; }
main { max-width: 1100px; margin: 0 auto; padding: 0 1rem 4rem; }
h1 { font-size: 1.8rem; margin: 1.6rem 0 .2rem; }
h2 { font-size: 1.4rem; margin: 3rem 0 .3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
.soft, figcaption { color: var(--soft); }
.table { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); }
.wide { min-width: 7.5rem; }
.whole { white-space: nowrap; }
tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.table thead th { vertical-align: bottom; white-space: normal; }
.cpu, .cuda { white-space: nowrap; }
.cpu::before, .cuda::before {
  content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .45em; border-radius: 2px; background: #1f77b4;
}
.cuda::before { background: #2ca02c; }
figure { margin: 1.2rem 0; padding: .9rem; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
figure img { display: block; width: 100%; height: auto; margin: 0 auto; }
figcaption { color: #5a6875; font-size: .9rem; margin-top: .5rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--link); margin-bottom: .5rem; }
""".strip()


def write_report(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    verdicts: Sequence[str],
    pages: Mapping[str, Sequence[Picture]],
    overview: Sequence[Picture] = (),
) -> None:
    """Write the report to `path`.

    `rows` are compare.json's, each with score_name, score, sentence (text), task, model, and parameters, data (dict), scores (list of
    dict); `pages` holds each workload's pictures; those of `overview` stand below the comparison. All text may come from a user's data.
    """
    workloads = list(dict.fromkeys(str(row["workload"]) for row in rows))
    links = [f'<a href="#workload-{index}">{escape(name)}</a>' for index, name in enumerate(workloads)]
    body = [
        "<h1>Tandem: what was trained, how well, how fast</h1>",
        f'<p class="soft">{escape(circumstances(rows))}</p>',
        comparison(rows),
        '<ul class="verdicts">',
        *(f"<li>{escape(sentence)}</li>" for sentence in verdicts),
        "</ul>",
        *(picture(*each) for each in overview),
        *(
            section(index, [row for row in rows if str(row["workload"]) == name], pages.get(name, ()))
            for index, name in enumerate(workloads)
        ),
    ]
    text = PAGE.substitute(title="Tandem: report", style=STYLE, links=" ".join(links), body="\n".join(body))
    files.write_text(path, text)


def circumstances(rows: Sequence[Mapping[str, Any]]) -> str:
    """When and where, in a sentence: a time without them is worth nothing."""
    days = sorted({str(row["measured_at"])[:10] for row in rows})
    machines = " and ".join(dict.fromkeys(str(row["measured_on"]) for row in rows))
    devices = ", ".join(dict.fromkeys(f"{row['device']}: {row['device_name']}" for row in rows))
    versions = " and ".join(dict.fromkeys(str(row["torch"]) for row in rows))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Measured {when} on {machines} ({devices}), with PyTorch {versions}."


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table over all runs."""
    columns = {
        "workload": "whole", "device": "wide", "test score": "whole", "other metrics": "whole", "epoch (s), median [quartiles]": "number",
        "samples/s": "number", "training (s)": "number", "VRAM peak (MiB)": "wide", "measured": "whole",
    }  # fmt: skip
    lines = []
    for row in rows:
        others = [
            f"{words(name)} {number(value)}" for name, value in row["metrics"].items() if name != row["score_name"]
        ]
        others.sort(key=len)  # the plain ones have the short names: mae before linear_mae
        if len(others) > MAX_METRICS:
            others[MAX_METRICS:] = [f"and {len(others) - MAX_METRICS} more"]
        low, high = row["epoch_seconds_quartile_low"], row["epoch_seconds_quartile_high"]
        spread = "" if low is None else f"<br>[{seconds(low)}, {seconds(high)}]"
        vram, why = row["peak_allocated_mib"], row["missing_reasons"].get("peak_allocated_mib", "no reason is recorded")
        cells = (
            f"<strong>{escape(row['workload'])}</strong><br>{escape(row['task'])}, {escape(row['model'])}",
            f'<span class="{kind(row)}">{escape(row["device"])}</span><br>{escape(row["device_name"])}',
            f"<strong>{number(row['score'])}</strong><br>{escape(words(row['score_name']))}",
            "<br>".join(escape(text) for text in others),
            "none" if row["epoch_seconds"] is None else f"<strong>{seconds(row['epoch_seconds'])}</strong>{spread}",
            "none" if row["samples_per_second"] is None else f"{row['samples_per_second']:,.0f}",
            f"{row['train_seconds']:,.1f}",
            f"{vram:,.0f}" if vram is not None else f'<span class="soft">{escape(why)}</span>',
            f"{escape(str(row['measured_at'])[:10])}<br>{escape(str(row['measured_at'])[11:16])} on {escape(row['measured_on'])}",
        )
        lines.append(list(zip(cells, columns.values(), strict=True)))
    return table(list(columns.items()), lines)


def section(index: int, rows: Sequence[Mapping[str, Any]], pictures: Sequence[Picture]) -> str:
    """One workload: what came out in words, the pictures, the scores of every run, the parameters and the data."""
    parts = [
        f'<section id="workload-{index}" aria-labelledby="title-{index}">',
        f'<h2 id="title-{index}">{escape(rows[0]["workload"])}</h2>',
        f'<p class="soft">{escape(rows[0]["task"])}, {escape(rows[0]["model"])}</p>',
    ]
    parts += [f"<p>{escape(sentence)}</p>" for sentence in dict.fromkeys(row["sentence"] for row in rows)]
    for row in rows:
        message = "; ".join(str(answer) for answer in row.get("summary_lines", {}).values())
        parts += [f"<p>On {escape(row['device'])}: {escape(message)}.</p>"] if message else []
    parts += [picture(*each) for each in pictures]
    parts += ["<h3>Metrics</h3>", metrics(rows)]
    for row, of in named(rows, "scores"):
        parts += [f"<h3>Scores{of}</h3>", folded(records(row["scores"]), len(row["scores"]))]
    for row, of in named(rows, "data"):
        parts += [f"<h3>Data{of}</h3>", facts(row["data"])]
    for row, of in named(rows, "parameters"):
        inside = facts(row["parameters"])
        parts.append(
            f"<details><summary>Effective parameters{of} ({len(row['parameters'])})</summary>{inside}</details>"
        )
    return "\n".join([*parts, "</section>"])


def metrics(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per metric, a column per device."""
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    return records(
        [
            {
                "metric": words(name),
                **{f"{row['device']}: {row['device_name']}": row["metrics"].get(name) for row in rows},
            }
            for name in names
        ]
    )


def named(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[Mapping[str, Any], str]]:
    """The rows that hold anything under `key`, each with the device to say; once and without it where all hold the same."""
    filled = [row for row in rows if row[key]]
    if filled and all(row[key] == filled[0][key] for row in filled) and len(filled) == len(rows):
        return [(rows[0], "")]
    return [(row, f" on {escape(row['device'])}: {escape(row['device_name'])}") for row in filled]


def picture(caption: str, png: bytes) -> str:
    """`png` in the page itself, as wide as the page but never enlarged."""
    width, height = struct.unpack(">II", png[16:24])  # of the IHDR chunk, which is always the first
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(caption)}" width="{width}" height="{height}" '
        f'style="max-width: {width}px"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def records(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of dicts; its columns are all their keys, in order of appearance. The first names the row, and stays as it is."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = {key: [row.get(key) for row in rows] for key in keys}
    numeric = {
        key for key in keys[1:] if all(as_number(value) is not None or value in (None, "") for value in columns[key])
    }
    css_classes = ["number" if key in numeric else "" for key in keys]
    for key in numeric:
        columns[key] = [as_number(value) for value in columns[key]]
    head = [escape(words(key)) for key in keys]
    lines = zip(*([escape(number(value)) for value in column] for column in columns.values()), strict=True)
    return table(
        list(zip(head, css_classes, strict=True)), [list(zip(line, css_classes, strict=True)) for line in lines]
    )


def as_number(value: Any) -> float | None:
    """`value` if it is a number, or the number that it is the text of, as a CSV holds it."""
    if not isinstance(value, str):
        return value if is_number(value) else None
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        return None


def facts(values: Mapping[str, Any]) -> str:
    """A table of names and values; a group of groups is written as one row per group, with a dot."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(message(value))}</td></tr>' for name, value in flat(values)
    )
    return f'<div class="table"><table><tbody>{lines}</tbody></table></div>'


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def table(head: Sequence[tuple[str, str]], lines: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Cells are (html, css class); the table scrolls by itself where the screen is narrow."""
    titles = "".join(f'<th scope="col"{css(name)}>{cell}</th>' for cell, name in head)
    body = "\n".join("<tr>" + "".join(f"<td{css(name)}>{cell}</td>" for cell, name in line) + "</tr>" for line in lines)
    return f'<div class="table"><table><thead><tr>{titles}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def folded(inside: str, num_rows: int) -> str:
    if num_rows <= MAX_OPEN_ROWS:
        return inside
    return f"<details><summary>{num_rows:,} rows</summary>{inside}</details>"


def css(name: str) -> str:
    return f' class="{name}"' if name else ""


def kind(row: Mapping[str, Any]) -> str:
    return "cuda" if row["device"] == "cuda" else "cpu"


def message(value: Any) -> str:
    """A value as a person reads it. Long groups are cut, and say so."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_number(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, Mapping):
        return joined([f"{name}: {message(each)}" for name, each in value.items()])
    if isinstance(value, (list, tuple)):
        return joined([message(each) for each in value])
    return str(value)


def joined(items: list[str]) -> str:
    more = f", and {len(items) - MAX_ITEMS:,} more" if len(items) > MAX_ITEMS else ""
    return ", ".join(items[:MAX_ITEMS]) + more


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: Any) -> str:
    """A measured value: whole numbers with every digit, others with four significant ones. Empty where there is none."""
    if not isinstance(value, float):
        return message(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:#.4g}"


def seconds(value: float) -> str:
    return f"{value:,.3f}" if value < 100 else f"{value:,.1f}"


def words(name: Any) -> str:
    return str(name).replace("_", " ")


def escape(text: Any) -> str:
    return html.escape(str(text))
