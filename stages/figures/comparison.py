"""The comparison of all runs, for compare.md and the first screen of report.html.

The functions take rows of compare.json, their verdicts and the published runs. They return table cells, short verdicts,
and short names for the hardware, whose full names appear once.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.comparing.comparability import short_hardware
from stages.comparing.published import Reference
from stages.comparing.verdict import Judgement, Speed
from stages.figures.text import as_number, score_text, seconds, words

Row = Mapping[str, Any]
KINDS = {"cpu": "CPU", "cuda": "GPU"}
# Title in compare.md, the separator before a cell's first detail, and the separator between further details.
COLUMNS = {
    "workload": ("workload", ": ", ", "),
    "device": ("device", ", ", ", "),
    "score": ("test score", " ", ", "),
    "epoch": ("seconds per epoch", " ", ", "),
    "rate": ("samples/s", " ", ", "),
    "training": ("training (s)", " ", ", "),
    "memory": ("peak memory", " ", ", "),
    "measured": ("measured", " ", ", "),
}
# Short texts for the verdicts on the published run.
AS_PUBLISHED = {
    "bit-equal": "Bit-equal to the published run",
    "within rounding": "Within rounding of the published run",
    "statistically compatible": "Compatible with the published scores",
    "inconclusive": "Neither told from nor shown to be the published run",
    "different": "Differs from the published run",
    "not verifiable": "Not to be compared with the published run",
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
    """One workload: its rows, one per device, with the judgement and the published runs."""

    rows: Sequence[Row]
    judgement: Judgement
    references: Sequence[Reference] = ()
    no_reference: str = ""  # why `references` is empty

    @property
    def workload(self) -> str:
        return str(self.rows[0]["workload"])

    @property
    def is_alone(self) -> bool:
        """Whether there is only one kind of device."""
        return self.judgement.comparability is None


def named(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[Hardware]]:
    """Return the rows, each with a `label`, and the hardware that the labels stand for.

    Labels are `CPU`, or `CPU 1` and `CPU 2` if rows come from two machines.
    """
    found: list[Hardware] = []
    for kind in dict.fromkeys(row["device"] for row in rows):
        names = list(dict.fromkeys(row["device_name"] for row in rows if row["device"] == kind))
        for index, name in enumerate(names, 1):
            label = KINDS.get(kind, str(kind))
            found.append(Hardware(kind, label if len(names) == 1 else f"{label} {index}", name))
    labels = {(each.css, each.name): each.label for each in found}
    own = [{**row, "label": labels[row["device"], row["device_name"]]} for row in rows]
    # `cpu` and `auto` may be the same device.
    num = Counter((row["workload"], row["label"]) for row in own)
    twice = [num[row["workload"], row["label"]] > 1 for row in own]
    return [
        {**row, "label": f"{row['label']} ({row['requested']})" if is_twice else row["label"]}
        for row, is_twice in zip(own, twice, strict=True)
    ], found


def name_references(
    sections: Sequence[ReportSection], known: Sequence[Hardware]
) -> tuple[list[ReportSection], list[Hardware]]:
    """Return the sections with labels for their published runs, and the hardware that the labels stand for."""
    names = list(dict.fromkeys(each.hardware for section in sections for each in section.references))
    labels = {name: "published" if len(names) == 1 else f"published {index}" for index, name in enumerate(names, 1)}
    here = {each.name: f"the same as {each.label}" for each in known}
    hardware = [Hardware("published", label, here.get(name, short_hardware(name))) for name, label in labels.items()]
    return [
        replace(section, references=[replace(each, label=labels[each.hardware]) for each in section.references])
        for section in sections
    ], hardware


def cells(row: Row) -> dict[str, Cell]:
    """Return the cells of one run, one for each of COLUMNS."""
    num_seeds, score_details = len(row["seeds"]), [words(row["score_name"])]
    low, high = row["epoch_seconds_quartile_low"], row["epoch_seconds_quartile_high"]
    epoch_details = [] if low is None else [f"[{seconds(low)}, {seconds(high)}]"]
    if num_seeds > 1:
        lowest, highest = score_text(row["score_lowest"]), score_text(row["score_highest"])
        score_details += [f"mean of {num_seeds} seeds", f"{lowest} to {highest}"]
        fastest, slowest = seconds(row["epoch_seconds_lowest"]), seconds(row["epoch_seconds_highest"])
        epoch_details = [f"median of {num_seeds} processes", f"{fastest} to {slowest}"]
    threads = "1 thread, " if row["threads"] == 1 else f"{row['threads']} threads, "
    computed = [f"{threads if row['device'] == 'cpu' else ''}{row['precision']}"]
    return {
        "workload": Cell(row["workload"], (f"{row['task']}, {row['model']}",)),
        "device": Cell(row["label"], tuple(computed)),
        "score": Cell(score_text(row["score"]), tuple(score_details)),
        "epoch": Cell(seconds(row["epoch_seconds"]), tuple(epoch_details)),
        "rate": Cell(f"{row['samples_per_second']:,.0f}"),
        "training": Cell(f"{row['train_seconds']:,.1f}", (f"{num_seeds} seeds together",) if num_seeds > 1 else ()),
        "memory": memory(row),
        "measured": Cell(row["measured_at"][:10], (f"{row['measured_at'][11:16]} on {row['measured_on']}",)),
    }


def memory(row: Row) -> Cell:
    """Return the peak of the device's own memory; for a CPU, of the process."""
    name, kind = ("peak_rss_mib", "MiB of RAM") if row["device"] == "cpu" else ("peak_allocated_mib", "MiB of VRAM")
    if row.get(name) is None:
        return Cell("not measured", (row["missing_reasons"].get(name, "no reason is recorded"),))
    return Cell(f"{row[name]:,.0f}", (kind,))


def reference_cells(reference: Reference) -> dict[str, Cell]:
    """Return the cells of a published training in the same columns; empty if the value is not published."""
    scores, times = list(reference.scores.values()), reference.measured("epoch_seconds")
    is_cpu = reference.device == "cpu"

    def of_seeds(name: str, form: str, reduce: Callable[[list[float]], float], *details: str) -> Cell:
        found = reference.measured(name)
        return Cell(form.format(reduce(found)), details) if found else Cell("")

    name, kind = ("peak_rss_mib", "MiB of RAM") if is_cpu else ("peak_allocated_mib", "MiB of VRAM")
    many = (f"mean of {len(scores)} seeds", f"{score_text(min(scores))} to {score_text(max(scores))}")
    of_times = (f"median of {len(times)} processes", f"{seconds(min(times))} to {seconds(max(times))}") if times else ()
    return {
        "device": Cell(reference.label),
        "score": Cell(score_text(statistics.fmean(scores)), many if len(scores) > 1 else ()),
        "epoch": Cell(seconds(statistics.median(times)), of_times if len(times) > 1 else ()) if times else Cell(""),
        "rate": of_seeds("samples_per_second", "{:,.0f}", statistics.median),
        "training": of_seeds(
            "train_seconds", "{:,.1f}", sum, *([f"{len(scores)} seeds together"] if len(scores) > 1 else [])
        ),
        "memory": of_seeds(name, "{:,.0f}", max, kind),
    }


# Prefix of evaluate's baseline metrics -> the baseline's name.
YARDSTICKS = {
    "nearest_neighbour": "1-NN",
    "most_frequent": "always the most frequent class",
    "linear": "a linear model",
    "mean": "always the mean",
    "median": "always the median",
    "threshold": "the best threshold on one feature",
    "base_rate": "events at the base rate",
}


def baselines(row: Row) -> list[tuple[str, float]]:
    """Return the baselines of the score, strongest first. Empty for a forecast, and for runs without them."""
    found = {name: row["metrics"].get(f"{key}_{row['score_name']}") for key, name in YARDSTICKS.items()}
    known = [(name, value) for name, value in found.items() if value is not None and row["task"] != "forecast"]
    return sorted(known, key=lambda each: -each[1])


def baseline(row: Row) -> Cell:
    """Return the strongest baseline of the score, with the others as details."""
    if found := baselines(row):
        (name, value), *others = found
        return Cell(score_text(value), (name, *(f"{each}: {score_text(beside)}" for each, beside in others)))
    counts = [number for each in row["scores"] if (number := as_number(each.get("num_true"))) is not None]
    if row["task"] == "classify" and sum(counts):
        return Cell(score_text(max(counts) / sum(counts)), ("always the most frequent class",))
    if row["task"] == "forecast":
        return Cell("0", ("persistence: nothing changes",))
    return Cell("0", ("no event at all",)) if row["task"] == "detect" else Cell("")


def verdict(section: ReportSection) -> list[str]:
    """Return the verdict in a few words; empty if there is nothing to compare with."""
    if section.is_alone:
        is_one = len(section.references) == 1
        found = [published_result(each, "" if is_one else f" ({each.label})") for each in section.references]
    else:
        names = [KINDS.get(each, each) for each in dict.fromkeys(row["device"] for row in section.rows)]
        found = [speed_in_short(section.judgement, *names), score_in_short(section.judgement, *names)]
    return [*found, *against_persistence(section.rows[0]), *against_yardsticks(section.rows[0])]


def against_yardsticks(row: Row) -> list[str]:
    """Return a sentence only if the network does not beat a baseline."""
    unbeaten = [f"{name} ({score_text(value)})" for name, value in baselines(row) if row["score"] <= value]
    return [f"Does not beat {' or '.join(unbeaten)}"] if unbeaten else []


def against_persistence(row: Row) -> list[str]:
    """Return the verdict on persistence. A forecast's score is the share of persistence's error that it removes;
    `evaluate` gives its interval.
    """
    low, high = (row["metrics"].get(f"{row['score_name']}_{end}") for end in ("low", "high"))
    if low is None or high is None:
        return []
    message = (
        "Better than persistence" if low > 0 else "Worse than persistence" if high < 0 else "Not told from persistence"
    )
    return [f"{message} (95% interval {low:+.4f} to {high:+.4f})"]


def published_result(reference: Reference, which: str) -> str:
    """Return the verdict on a published run. `which`: which of several published runs, with a leading space or
    preposition.
    """
    if reference.verdict is None:
        return f"Other seeds than the published run{which}, so no verdict"
    cause = f": {reference.verdict.cause}" if reference.verdict.cause else ""
    return f"{AS_PUBLISHED[reference.verdict.name]}{which}{cause}"


def sentences(section: ReportSection) -> list[str]:
    """Return the full verdict."""
    if not section.is_alone:
        return section.judgement.sentences
    found, is_one = [], len(section.references) == 1
    for each in section.references:
        if each.verdict:
            message = published_result(each, "" if is_one else f" of {short_hardware(each.hardware)}")
            seen = f" ({each.verdict.sentence})" if each.verdict.sentence else ""
            found.append(f"{section.workload}: {message[0].lower()}{message[1:]}{seen}.")
    return found


def speed_in_short(judgement: Judgement, first: str, second: str) -> str:
    known = judgement.ratio
    if known is None:
        refusals = judgement.comparability.refusals if judgement.comparability else ()
        return f"Speeds are not comparable: {refusals[0]}" if refusals else "No speed-up is stated"
    fast, slow, found = (second, first, known) if known.ratio >= 1 else (first, second, turned(known))
    if found.low is None or found.high is None:
        return f"{fast} {found.ratio:.2f} times as fast as {slow}; no interval"
    interval = f"(95% interval {found.low:.2f} to {found.high:.2f})"
    if found.low <= 1 <= found.high:
        return f"Speeds not told apart: {found.ratio:.2f} {interval}"
    return f"{fast} {found.ratio:.2f} times as fast as {slow} {interval}"


def turned(known: Speed) -> Speed:
    """Return the inverse ratio."""
    low, high = (None if bound is None else 1 / bound for bound in (known.high, known.low))
    return replace(known, ratio=1 / known.ratio, low=low, high=high)


def score_in_short(judgement: Judgement, first: str, second: str) -> str:
    found = judgement.difference
    if found is None:
        return "Scores are not compared"
    if found.is_equal:
        return f"Scores equal in all {found.num_units:,} {found.unit}"
    if found.verdict == "different":
        better = second if (found.difference > 0) == found.is_larger_better else first
        by, low, high = (found.number(abs(value)) for value in (found.difference, found.low, found.high))
        low, high = (low, high) if found.difference > 0 else (high, low)
        return f"{better} better in {found.measure} by {by} (95% interval {low} to {high})"
    message = "No difference that matters" if found.verdict == "equivalent" else "Not told apart"
    interval = f"(95% interval {found.signed(found.low)} to {found.signed(found.high)})"
    return f"{message} in {found.measure}: {second} {found.signed(found.difference)} {interval}"


def markdown(rows: Sequence[Row], verdicts: Sequence[str]) -> str:
    """Return compare.md: the hardware, the table, the verdicts, then the remarks on each run."""
    shown, hardware = named(rows)
    lines = [[title for title, *_ in COLUMNS.values()], ["---"] * len(COLUMNS)]
    for found in map(cells, shown):
        lines.append([in_one_line(found[name], *joins).replace("|", r"\|") for name, (_, *joins) in COLUMNS.items()])
    table = [f"| {' | '.join(line)} |" for line in lines]
    # The bottleneck of the training, the purposes of its memory, the use of its device.
    remarks = [
        f"- {row['workload']} on {row['label']}: {row['sentence']}"
        + "".join(f"\n  - {line}" for line in row["summary_lines"].values())
        for row in shown
    ]
    named_once = "; ".join(f"{each.label}: {each.name}" for each in hardware)
    return "\n".join([named_once, "", *table, "", *(f"- {sentence}" for sentence in verdicts), *remarks]) + "\n"


def in_one_line(cell: Cell, first: str, others: str) -> str:
    return f"{cell.text}{first}{others.join(cell.details)}" if cell.details else cell.text
