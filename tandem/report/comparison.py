"""A comparison as text: Markdown for a terminal and for compare.md, and cells and short verdicts for the report.

The functions take `Comparison` objects and rows of compare.json (`Side.row`). Hardware has short names, and each full
name appears once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.comparing.comparability import short_hardware
from tandem.comparing.comparison import Comparison, Judgement
from tandem.comparing.rerun import STATUS
from tandem.report.text import score_text, seconds, words

Row = Mapping[str, Any]
KINDS = {"cpu": "CPU", "cuda": "GPU", "published": "published"}
NUM_PUBLISHED_COLOURS = 4  # of drawing.DEVICE_COLOURS
COLUMNS = {  # of compare.md; the report shows those that report.py selects
    "workload": "workload",
    "device": "device",
    "score": "test score",
    "epoch": "seconds per epoch",
    "rate": "samples/s",
    "training": "training (s)",
    "memory": "peak memory",
    "measured": "measured",
}


@dataclass(frozen=True)
class Cell:
    text: str
    details: tuple[str, ...] = ()  # the lines below the text


@dataclass(frozen=True)
class Hardware:
    """A device with its short name in tables and charts."""

    css: str
    label: str
    name: str


@dataclass(frozen=True)
class ReportSection:
    """One workload in the report."""

    rows: Sequence[Row]  # one per device, then one per published run
    comparison: Comparison

    @property
    def own(self) -> list[Row]:
        """The rows of one's own runs."""
        return [row for row in self.rows if kind_of(row) != "published"]


def named(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[Hardware]]:
    """Return the rows, each with a `label` and a `colour`, and the hardware that they stand for.

    Labels are `CPU`, or `CPU 1` and `CPU 2` if rows come from two machines. Published machines differ in colour.
    """
    found: dict[tuple[str, str], Hardware] = {}
    for kind in sorted({kind_of(row): None for row in rows}, key=lambda kind: kind == "published"):
        names = list(dict.fromkeys(row["device_name"] for row in rows if kind_of(row) == kind))
        here = {each.name: f"the same as {each.label}" for each in found.values()}
        for index, name in enumerate(names, 1):
            label = KINDS.get(kind, kind) if len(names) == 1 else f"{KINDS.get(kind, kind)} {index}"
            shown = here.get(name, short_hardware(name)) if kind == "published" else name
            number = (index - 1) % NUM_PUBLISHED_COLOURS + 1
            css = f"{kind}-{number}" if kind == "published" and number > 1 else kind
            found[kind, name] = Hardware(css, label, shown)
    hardware = [found[kind_of(row), row["device_name"]] for row in rows]
    own = [{**row, "label": each.label, "colour": each.css} for row, each in zip(rows, hardware, strict=True)]
    # `cpu` and `auto` may be the same device.
    num = Counter((row["workload"], row["label"]) for row in own)
    return [
        {**row, "label": f"{row['label']} ({row['requested']})"} if num[row["workload"], row["label"]] > 1 else row
        for row in own
    ], list(found.values())


def kind_of(row: Row) -> str:
    """Return the row's device, or `published`."""
    return str(row.get("css", row["device"]))


def cells(row: Row) -> dict[str, Cell]:
    """Return the cells of a row, one for each of COLUMNS."""
    num_seeds, score_details, epoch_details = len(row["seeds"]), [words(row["score_name"])], []
    if num_seeds > 1:
        lowest, highest = score_text(row["score_lowest"]), score_text(row["score_highest"])
        score_details += [f"mean of {num_seeds} seeds", f"{lowest} to {highest}"]
        if len(timed := [run["epoch_seconds"] for run in row["runs"] if run["epoch_seconds"] is not None]) > 1:
            epoch_details = [f"median of {len(timed)} processes", f"{seconds(min(timed))} to {seconds(max(timed))}"]
    if row["is_fitted"]:
        epoch_details.append("one fit, no epochs")
    if row["epoch_joules"] is not None:
        epoch_details.append(f"{row['epoch_joules']:,.4g} J")
    if row["busy"]:
        epoch_details += ["busy machine", row["busy"]]
    threads = {None: "", 1: "1 thread, "}.get(row["threads"], f"{row['threads']} threads, ")
    training_details = [f"{row['train_joules']:,.4g} J"] if row["train_joules"] is not None else []
    if "total_seconds" in (together := row["replicates"]):
        concurrently = f", {together['num_at_once']} at a time" if together["num_at_once"] > 1 else ""
        training_details.append(f"{together['num_seeds']} more seeds: {together['total_seconds']:,.0f} s{concurrently}")
    return {
        "workload": Cell(row["workload"], (f"{row['task']}, {'fitted ' * row['is_fitted']}{row['model']}",)),
        "device": Cell(row["label"], (f"{threads if row['device'] == 'cpu' else ''}{row['precision']}",)),
        "score": Cell(score_text(row["score"]), tuple(score_details)),
        "epoch": measured(row, "epoch_seconds", seconds, *epoch_details),
        "rate": measured(row, "samples_per_second", "{:,.0f}".format),
        "training": measured(row, "train_seconds", "{:,.1f}".format, *training_details),
        "memory": memory(row),
        "measured": Cell(row["measured_at"][:10], (f"{row['measured_at'][11:16]} on {row['measured_on']}",)),
    }


def measured(row: Row, name: str, show: Callable[[float], str], *details: str) -> Cell:
    """Return the cell of a measurement, or why there is none."""
    if row[name] is not None:
        return Cell(show(row[name]), details)
    return Cell("", (missing_reason(row, name),))


def missing_reason(row: Row, name: str) -> str:
    known = "not published" if kind_of(row) == "published" else "no reason is recorded"
    return str(row["missing_reasons"].get(name, known))


def memory(row: Row) -> Cell:
    """Return the peak of the device's own memory; for a CPU, of the process."""
    name, kind = ("peak_rss_mib", "MiB of RAM") if row["device"] == "cpu" else ("peak_allocated_mib", "MiB of VRAM")
    if row.get(name) is None:
        return Cell("" if kind_of(row) == "published" else "not measured", (missing_reason(row, name),))
    return Cell(f"{row[name]:,.0f}", (kind,))


def baselines(row: Row) -> list[tuple[str, float]]:
    """Return the baselines of the score, strongest first."""
    found = {name: row["metrics"].get(f"{key}_{row['score_name']}") for key, name in row["baselines"].items()}
    known = [(name, value) for name, value in found.items() if value is not None]
    return sorted(known, key=lambda each: -each[1])


def baseline(row: Row) -> Cell:
    """Return the strongest baseline of the score, with the others as details."""
    if found := baselines(row):
        (name, value), *others = found
        return Cell(score_text(value), (name, *(f"{each}: {score_text(other)}" for each, other in others)))
    return Cell("0", (row["zero"],)) if row["zero"] else Cell("")


def verdict(section: ReportSection) -> list[str]:
    """Return the verdict in a few words; empty if there is nothing to compare with."""
    found = [f"{result}{in_parentheses(seed)}" for result, seed, _ in published_results(section.comparison)]
    for each in section.comparison.judgements:
        names = [KINDS.get(side.name, side.name) for side in (each.first, each.second)]
        found += [speed_summary(each, *names), score_summary(each, *names)]
    return [*found, *compare_with_zero(section.rows[0]), *unbeaten_baselines(section.rows[0])]


def seconds_of_more_seeds(rows: Sequence[Row]) -> float | None:
    """Return the seconds of four more seeds, one after the other; None if there are several seeds already. On a CPU
    with several cores it takes less.
    """
    if any(len(row["seeds"]) > 1 for row in rows):
        return None
    return 4 * sum(row["train_seconds"] or 0.0 for row in rows)


def unbeaten_baselines(row: Row) -> list[str]:
    """Return a sentence about the baselines with a higher score, and one about those with the same."""
    known, own = [(f"{name} ({score_text(value)})", value) for name, value in baselines(row)], row["score"]
    higher, equal = [text for text, value in known if own < value], [text for text, value in known if own == value]
    found = [f"Does not beat {' or '.join(higher)}"] if higher else []
    return [*found, f"As good as {' and '.join(equal)}"] if equal else found


def compare_with_zero(row: Row) -> list[str]:
    """Return the verdict on what a score of 0 stands for, if `evaluate` gives the score's interval. A forecast's score
    is the share of persistence's error that it removes.
    """
    low, high = (row["metrics"].get(f"{row['score_name']}_{end}") for end in ("low", "high"))
    if low is None or high is None or not row["zero"]:
        return []
    message = "Better than" if low > 0 else "Worse than" if high < 0 else "Not clearly different from"
    return [f"{message} {row['zero'].partition(':')[0]} (95% interval {low:+.4f} to {high:+.4f})"]


def published_results(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict on each published run, the seed it is on, and the reason; the strongest verdict first.

    The seed is empty if the published row stands for a single one.
    """
    for each in sorted(comparison.references, key=lambda known: known.verdict.rank if known.verdict else len(STATUS)):
        name = short_hardware(each.side.row["device_name"])
        which = f"Published run of {name}" if len(comparison.references) > 1 else "Published run"
        if each.verdict:
            seed = f"seed {each.seed}" if len(each.side.runs) > 1 else ""
            yield f"{which}: {each.verdict}", seed, each.verdict.sentence
        else:
            yield f"{which}: no verdict, because no run here has its seed {each.seed}", "", ""


def sentences(comparison: Comparison) -> list[str]:
    """Return the full verdict: on the other sides, and on the published runs."""
    published = (f"{found}{in_parentheses(seed, reason)}." for found, seed, reason in published_results(comparison))
    return [*comparison.sentences, *(f"{comparison.workload}: {each[0].lower()}{each[1:]}" for each in published)]


def in_parentheses(*parts: str) -> str:
    """Return ` (seed 0: all losses)`, without empty parts; empty if all are."""
    text = ": ".join(filter(None, parts))
    return f" ({text})" if text else ""


def speed_summary(judgement: Judgement, first: str, second: str) -> str:
    if judgement.speed_up:
        return judgement.speed_up.summary(first, second)
    refusals = judgement.comparability.refusals
    return f"Speeds are not comparable: {refusals[0]}" if refusals else "No speed-up is reported"


def score_summary(judgement: Judgement, first: str, second: str) -> str:
    found = judgement.difference
    if found is None:
        return "Scores are not compared"
    if found.is_equal:
        return f"Scores equal in all {found.num_units:,} {found.unit}"
    if found.low is None or found.high is None:
        return f"{found.measure}: {second} {found.signed(found.difference)}, {found.interval}"
    if found.verdict == "different":
        better = second if (found.difference > 0) == found.is_larger_better else first
        by, low, high = (found.number(abs(value)) for value in (found.difference, found.low, found.high))
        low, high = (low, high) if found.difference > 0 else (high, low)
        return f"{better} better in {found.measure} by {by} (95% interval {low} to {high}{found.over_groups})"
    message = "No difference that matters" if found.verdict == "equivalent" else "No difference detected"
    return f"{message} in {found.measure}: {second} {found.signed(found.difference)} ({found.interval})"


def score_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table of compare.md."""
    lines = [list(COLUMNS.values())]
    for found in map(cells, named(rows)[0]):
        lines.append([" ".join((found[name].text, ", ".join(found[name].details))).strip() for name in COLUMNS])
    return table(lines)


def first_verdicts(short_verdicts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each workload: the first of its verdicts in a few words."""
    return [f"{workload}: {found[0]}" for workload, found in short_verdicts.items() if found]


def summary(rows: Sequence[Row], verdicts: Sequence[str]) -> str:
    """Return compare.md: the hardware, the table, the verdicts, then the remarks on each run."""
    shown, hardware = named(rows)
    # The bottleneck of the training, the purposes of its memory, the use of its device.
    remarks = [
        f"- {row['workload']} on {row['label']}: {row['sentence']}"
        + "".join(f"\n  - {line}" for line in row["summary_lines"].values())
        for row in shown
    ]
    named_once = "; ".join(f"{each.label}: {each.name}" for each in hardware)
    return "\n".join([named_once, "", *score_table(rows), "", *(f"- {each}" for each in verdicts), *remarks]) + "\n"


def details(found: Comparison) -> str:
    """Return the recorded values of all sides as a table, with `*` at those that differ, and the sentences."""
    lines = [("", found.workload, *(side.name for side in found.sides))]
    lines += [("*" if row.differs else "", row.what, *row.cells) for row in found.rows]
    return "\n".join([*table(lines), "", *(f"- {sentence}" for sentence in found.sentences)])


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table that is also readable in a terminal. The first line is its header."""
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*escaped, strict=True)]
    found = [f"| {' | '.join(cell.ljust(n) for cell, n in zip(line, widths, strict=True))} |" for line in escaped]
    return [found[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *found[1:]]
