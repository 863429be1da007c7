"""Tables of comparisons: Markdown for a terminal and for compare.md, and cells for the report.

Hardware has short names, and each full name appears once.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tandem.comparing.comparability import short_hardware
from tandem.comparing.comparison import KINDS, PUBLISHED, Comparison, Side
from tandem.devices.names import is_accelerator
from tandem.report.text import score_text, words
from tandem.terminal.messages import seconds

COLUMNS = {  # of compare.md; `cells` makes their content
    "workload": "workload",
    "device": "device",
    "score": "test score",
    "epoch": "seconds per epoch",
    "rate": "samples/s",
    "training": "training seconds",
    "memory": "peak memory",
    "measured": "measured",
}
IN_REPORT = ("score", "epoch", "rate", "training", "memory")  # the other columns are headings there


@dataclass(frozen=True)
class Cell:
    text: str
    details: tuple[str, ...] = ()  # the lines below the text


@dataclass(frozen=True)
class Hardware:
    """A device with its short name in tables and charts."""

    kind: str  # `published` for the machine of published runs; its colour has this name
    label: str
    name: str


def labelled(sides: Sequence[Side]) -> tuple[list[Side], list[Hardware]]:
    """Return the sides with a label and a colour, and the hardware that they stand for.

    Labels are `CPU`, or `CPU 1` and `CPU 2` if sides come from two machines; several workers are `CPU, 2 workers`.
    """
    devices: dict[tuple[str, str], Hardware] = {}
    for kind in sorted({side.name: None for side in sides}, key=lambda kind: kind == PUBLISHED):
        machine_of = {side.first.hardware_name: side.first.one_device for side in sides if side.name == kind}
        machines = list(dict.fromkeys(machine_of.values()))
        aliases = {device.name: f"the same as {device.label}" for device in devices.values()}
        for name, machine in machine_of.items():
            label = KINDS.get(kind, kind) + (f" {machines.index(machine) + 1}" if len(machines) > 1 else "")
            if machine != name:
                label += f", {name.removesuffix(f' on {machine}')}"
            full_name = aliases.get(name, short_hardware(name)) if kind == PUBLISHED else name
            devices[kind, name] = Hardware(kind, label, full_name)
    hardware = [devices[side.name, side.first.hardware_name] for side in sides]
    counts = Counter((side.first.workload, device.label) for side, device in zip(sides, hardware, strict=True))
    labelled_sides = []
    for side, device in zip(sides, hardware, strict=True):
        # `cpu` and `auto` may be the same device.
        requested = f" ({side.first.requested})" if counts[side.first.workload, device.label] > 1 else ""
        labelled_sides.append(replace(side, label=f"{device.label}{requested}", colour=device.kind))
    return labelled_sides, list(devices.values())


def cells(side: Side) -> dict[str, Cell]:
    """Return the cells of a side, one for each of COLUMNS."""
    run, measured_at = side.first, side.first.timing["measured_at"]
    score_details, epoch_details = [words(side.score_name)], list[str]()
    if len(side.runs) > 1:
        lowest, highest = score_text(min(side.scores)), score_text(max(side.scores))
        score_details += [f"mean of {len(side.runs)} seeds", f"{lowest} to {highest}"]
        if len(timed := side.epoch_seconds) > 1:
            epoch_details = [f"median of {len(timed)} processes", f"{seconds(min(timed))} to {seconds(max(timed))}"]
    if run.is_fitted:
        epoch_details.append("one fit, no epochs")
    if (joules := side.measured("epoch_joules")) is not None:
        epoch_details.append(f"{joules:,.4g} J")
    if side.busy:
        epoch_details += ["busy machine", side.busy]
    threads = {None: "", 1: "1 thread, "}.get(run.threads, f"{run.threads} threads, ")
    training_details = [f"{joules:,.4g} J"] if (joules := side.measured("train_joules")) is not None else []
    return {
        "workload": Cell(run.workload, (f"{run.block['task']}, {'fitted ' * run.is_fitted}{run.model_name}",)),
        "device": Cell(side.label, (f"{'' if is_accelerator(run.kind) else threads}{run.realized['precision']}",)),
        "score": Cell(score_text(side.score), tuple(score_details)),
        "epoch": measured(side, "epoch_seconds", seconds, *epoch_details),
        "rate": measured(side, "samples_per_second", "{:,.0f}".format),
        "training": measured(side, "train_seconds", "{:,.1f}".format, *training_details),
        "memory": memory(side),
        "measured": Cell(measured_at[:10], (f"{measured_at[11:16]} on {run.timing['machine']}",)),
    }


def measured(side: Side, name: str, show: Callable[[float], str], *details: str) -> Cell:
    """Return the cell of a measurement, or why there is none."""
    value = side.measured(name)
    return Cell("", (missing_reason(side, name),)) if value is None else Cell(show(value), details)


def missing_reason(side: Side, name: str) -> str:
    default = "not published" if side.name == PUBLISHED else "no reason is recorded"
    return str(side.first.times.get("missing_reasons", {}).get(name, default))


def memory(side: Side) -> Cell:
    """Return the peak of the device's own memory; for a CPU, of the process."""
    name, kind = "peak_allocated_mib", "MiB of VRAM"
    if not is_accelerator(side.first.kind):
        name, kind = "peak_rss_mib", "MiB of RAM"
    if (value := side.measured(name)) is None:
        return Cell("" if side.name == PUBLISHED else "not measured", (missing_reason(side, name),))
    return Cell(f"{value:,.0f}", (kind,))


def baseline(side: Side) -> Cell:
    """Return the strongest baseline of the score, with the others as details."""
    if baselines := side.baselines:
        (name, value), *others = baselines
        return Cell(score_text(value), (name, *(f"{label}: {score_text(score)}" for label, score in others)))
    zero = side.first.task_attributes["zero"]
    return Cell("0", (zero,)) if zero else Cell("")


def score_table(sides: Sequence[Side]) -> list[str]:
    """Return the lines of the table of compare.md."""
    lines = [list(COLUMNS.values())]
    for row in map(cells, labelled(sides)[0]):
        lines.append([" ".join((row[name].text, ", ".join(row[name].details))).strip() for name in COLUMNS])
    return table(lines)


def first_verdicts(short_verdicts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each workload: the first of its verdicts in a few words."""
    return [f"{workload}: {verdicts[0]}" for workload, verdicts in short_verdicts.items() if verdicts]


def summary(sides: Sequence[Side], verdicts: Sequence[str]) -> str:
    """Return compare.md: the hardware, the table, the verdicts, then the remarks on each run."""
    labelled_sides, hardware = labelled(sides)
    # The bottleneck of the training, the purposes of its memory, the use of its device.
    remarks = [
        f"- {side.first.workload} on {side.label}: {side.sentence}"
        + "".join(f"\n  - {line}" for line in side.first.timing["summary_lines"].values())
        for side in labelled_sides
    ]
    named_once = "; ".join(f"{device.label}: {device.name}" for device in hardware)
    return "\n".join([named_once, "", *score_table(sides), "", *(f"- {text}" for text in verdicts), *remarks]) + "\n"


def details(comparison: Comparison) -> str:
    """Return the recorded values of all sides as a table, with `*` at those that differ, and the sentences."""
    lines = [("", comparison.workload, *(side.name for side in comparison.sides))]
    lines += [("*" if row.differs else "", row.name, *row.cells) for row in comparison.rows]
    return "\n".join([*table(lines), "", *(f"- {sentence}" for sentence in comparison.sentences)])


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table that is also readable in a terminal. The first line is its header."""
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*escaped, strict=True)]
    rows = [f"| {' | '.join(cell.ljust(size) for cell, size in zip(line, widths, strict=True))} |" for line in escaped]
    return [rows[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *rows[1:]]
