"""Compare recorded runs from any machines: `python -m flows.compare RUN RUN...`

A RUN is one of

    sign@cpu, sign@cuda   the latest finished run of workload@device in MLflow, with the seeds trained with it
    sign@cpu-0            the latest run with this seed only
    1a2b...               the id of an MLflow run; the id of a parent run means all its seeds;
                          ids joined by commas are trainings of one side that differ only in their seed
    results/runs/sign/cpu/0   the folder of a run, including one copied from another machine

MLflow is the project's own store, or the server that MLFLOW_TRACKING_URI names. If two machines train with one server,
either of them can compare both. This command trains and measures nothing. It prints:

    a table               the runs and their measurements; `*` marks differences
    how fast              the speed-up if both sides did the same work, with what differs; otherwise the reason
    how good              the difference of the scores, tested on the predictions for the test split
    what to keep in mind  different versions, different load, throttled clocks

The first run of each workload is the baseline for the others. Each run in MLflow gets the tag `compared` with the first
sentence of the result. Exit status: 0 compared, 1 something is unavailable (one sentence).
"""

import argparse
import hashlib
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.comparing.comparability import flat, short, short_hardware, value_of
from stages.comparing.verdict import Judgement, judge
from stages.files import write_json
from stages.records import recorded
from stages.records.run import Run

MAX_TAG = 250  # characters
MAX_PARAMETERS = 8  # differing parameters that get a row of their own
# Rows that the table shows even if all runs agree.
ALWAYS = ("device", "hardware", "machine", "threads", "precision", "commit", "score", "epoch seconds")


@dataclass(frozen=True)
class ComparedSide:
    """The training that one RUN names, or several that differ only in their seed."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Row:
    """One row of the table: a cell per side."""

    what: str
    cells: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1


@dataclass(frozen=True)
class Comparison:
    """The comparison of one workload. `verdicts`: (the other side's name, result), each against the first side."""

    workload: str
    sides: tuple[ComparedSide, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[tuple[str, Judgement], ...]


def compare(words: list[str]) -> list[Comparison]:
    """Compare the runs that `words` name. Raises ValueError if a run is unavailable or no two runs can be compared."""
    found = [recorded.find_seeds(word) for word in words]
    for run in itertools.chain.from_iterable(found):
        if run.score:
            run.open("predictions.csv")  # altered predictions are an error
    for (word, runs), (other, others) in itertools.combinations(zip(words, found, strict=True), 2):
        if both := {run.run_id for run in runs if run.run_id} & {run.run_id for run in others}:
            raise ValueError(f"{word} and {other} are the same run ({both.pop()}); name two different ones")
    by_workload: dict[str, list[list[Run]]] = {}
    for runs in found:
        by_workload.setdefault(runs[0].workload, []).append(runs)
    if alone := [workload for workload, sides in by_workload.items() if len(sides) < 2]:
        counts = ", ".join(f"{len(sides)} of {workload}" for workload, sides in by_workload.items())
        raise ValueError(f"two runs of one workload can be compared, and of {alone[0]} there is one ({counts})")
    return [compare_workload(workload, sides) for workload, sides in by_workload.items()]


def compare_workload(workload: str, found: list[list[Run]]) -> Comparison:
    sides = tuple(ComparedSide(name, tuple(runs)) for name, runs in zip(names_of(found), found, strict=True))
    first, *others = sides
    pairs = ({first.name: first.runs, other.name: other.runs} for other in others)
    verdicts = tuple((other.name, judge(workload, pair)) for other, pair in zip(others, pairs, strict=True))
    return Comparison(workload, sides, tuple(rows_of(sides)), verdicts)


def names_of(found: list[list[Run]]) -> list[str]:
    """The shortest names that distinguish the sides."""
    of_run: tuple[Callable[[Run], str], ...] = (
        lambda run: run.device,
        lambda run: f"{run.device} of {run.timing['machine']}",
        lambda run: run.name,
        lambda run: f"{run.name} ({run.run_id[:8] if run.run_id else 'files'})",
    )
    for name in of_run:
        names = [name(runs[0]) for runs in found]
        if len(set(names)) == len(names):
            return names
    return [f"run {number} ({name})" for number, name in enumerate(names, start=1)]


# The table.


def rows_of(sides: tuple[ComparedSide, ...]) -> Iterator[Row]:
    """The rows that differ, and those that are always shown."""
    for what, show in FACTS.items():
        row = Row(what, tuple(over_seeds(show, side) for side in sides))
        if row.differs or what in ALWAYS:
            yield row
    yield from differing_parameters(sides)
    for what, path, unit in MEASURED:
        row = Row(what, tuple(measured(side, path, unit) for side in sides))
        if set(row.cells) != {"-"}:
            yield row


def over_seeds(show: Callable[[dict[str, Any]], Any], side: ComparedSide) -> str:
    """The value that the side's runs share, or the value of each run."""
    values = dict.fromkeys(show(run.manifest) for run in side.runs)
    return ", ".join(str(value) if " " in str(value) else short(value) for value in values)


FACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "device": lambda own: value_of(own, "device"),
    "hardware": lambda own: short_hardware(value_of(own, "hardware.name") or ""),
    "machine": lambda own: value_of(own, "machine"),
    "driver": lambda own: value_of(own, "environment.versions.driver") or "-",
    "kernels": lambda own: value_of(own, "kernels"),
    "threads": lambda own: value_of(own, "realized.threads"),
    "precision": lambda own: value_of(own, "realized.precision"),
    "micro-batches": lambda own: value_of(own, "realized.grad_accum_steps"),
    "way of stepping": lambda own: value_of(own, "realized.step"),
    "place of the data": lambda own: value_of(own, "realized.data_location"),
    "memory ran out": lambda own: "; ".join(value_of(own, "realized.out_of_memory") or []) or "no",
    "seed": lambda own: value_of(own, "seed"),
    "commit": lambda own: value_of(own, "tree.commit"),
    "edited": lambda own: value_of(own, "tree.patch_sha256") or ("no" if value_of(own, "tree.patch") == "" else None),
    "code": lambda own: digest_of(value_of(own, "digests.code")),
    "raw table": lambda own: value_of(own, "digests.data.table"),
    "packed data": lambda own: digest_of(value_of(own, "digests.data.packed")),
    "initial weights": lambda own: value_of(own, "digests.weights.initial"),
    "predictions": lambda own: value_of(own, "digests.predictions"),
    "preset": lambda own: value_of(own, "preset"),
    "torch": lambda own: value_of(own, "environment.versions.torch"),
    "Python": lambda own: value_of(own, "environment.versions.python"),
    "made": lambda own: value_of(own, "measured_at"),
    "others' share of the cores": lambda own: as_share(value_of(own, "conditions.between.others_share")),
}
# Measurements: name, path in the manifest, unit.
MEASURED = (
    ("epoch seconds", "timing.epoch_seconds", " s"),
    ("samples a second", "timing.samples_per_second", ""),
    ("training seconds", "timing.train_seconds", " s"),
    ("VRAM peak, tensors", "timing.peak_allocated_mib", " MiB"),
    ("VRAM peak, process", "timing.process_mib", " MiB"),
    ("memory peak, process", "timing.peak_rss_mib", " MiB"),
    ("score", "", ""),
)


def digest_of(files: Any) -> str | None:
    if not files:
        return None
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def as_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def measured(side: ComparedSide, path: str, unit: str) -> str:
    """A measurement; for several seeds the median and the range."""
    if not path:
        name = value_of(side.runs[0].manifest, "result.score_name")
        path, unit = (f"result.metrics.{name}", f" ({name})") if name else ("result", "")
    known = [value for run in side.runs if isinstance(value := value_of(run.manifest, path), int | float)]
    if not known:
        return "-"
    middle = f"{statistics.median(known):,.4g}{unit}"
    return middle if len(known) == 1 else f"{middle} ({min(known):,.4g} to {max(known):,.4g}, {len(known)} seeds)"


def differing_parameters(sides: tuple[ComparedSide, ...]) -> Iterator[Row]:
    blocks = [dict(flat(value_of(side.runs[0].manifest, "block") or {})) for side in sides]
    names = dict.fromkeys(name for block in blocks for name in block)
    rows = [Row(name, tuple(short(block.get(name, "absent")) for block in blocks)) for name in names]
    rows = [row for row in rows if row.differs]
    yield from rows[:MAX_PARAMETERS]
    if len(rows) > MAX_PARAMETERS:
        yield Row(f"{len(rows) - MAX_PARAMETERS} more parameters", tuple(f"set {n + 1}" for n in range(len(sides))))


# Output for people and programs.


def markdown(found: Comparison) -> str:
    """The table and the sentences as Markdown that is also readable in a terminal."""
    header = ("", found.workload, *(side.name for side in found.sides))
    table = [header, *(("*" if row.differs else "", row.what, *row.cells) for row in found.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*table, strict=True)]
    lines = [f"| {' | '.join(cell.ljust(n) for cell, n in zip(row, widths, strict=True))} |" for row in table]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    sentences = dict.fromkeys(sentence for _, judgement in found.verdicts for sentence in judgement.sentences)
    return "\n".join([*lines, "", *(f"- {sentence}" for sentence in sentences)])


def as_json(found: Comparison) -> dict[str, Any]:
    return {
        "workload": found.workload,
        "sides": [
            {
                "name": side.name,
                "runs": [{"name": run.name, "run_id": run.run_id, "seed": run.seed} for run in side.runs],
            }
            for side in found.sides
        ],
        "rows": [{"what": row.what, "differs": row.differs, "cells": list(row.cells)} for row in found.rows],
        "verdicts": [
            {
                "first": found.sides[0].name,
                "second": name,
                "speed": judgement.speed,
                "scores": judgement.scores,
                "notes": list(judgement.notes),
                "refusals": list(judgement.comparability.refusals) if judgement.comparability else [],
                "named": list(map(str, judgement.comparability.named)) if judgement.comparability else [],
            }
            for name, judgement in found.verdicts
        ],
    }


def tag(found: Comparison) -> None:
    """Set the tag `compared` on the runs in MLflow."""
    first, others = found.sides[0], {side.name: side for side in found.sides[1:]}
    for name, judgement in found.verdicts:
        for side, other in ((others[name], first), (first, others[name])):
            against = other.runs[0].run_id or other.runs[0].name
            text = f"{judgement.speed} (against {against})"
            if len(text) > MAX_TAG:
                text = f"{judgement.speed[: MAX_TAG - len(against) - 20].rstrip()}... (against {against})"
            for run in side.runs:
                if run.run_id:
                    recorded.tag(run, {"compared": text})


def main(arguments: list[str]) -> int:
    what, _, how = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m flows.compare", description=what, epilog=how, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two or more")
    parser.add_argument("--json", metavar="FILE", help="write what was found to FILE as JSON, too")
    options = parser.parse_args(arguments)
    try:
        if len(options.runs) < 2:
            raise ValueError(f"two runs can be compared, not {options.runs[0]} alone; see --help")
        found = compare(options.runs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(map(markdown, found)))
    if options.json:
        write_json(Path(options.json), {"comparisons": list(map(as_json, found))})
    for each in found:
        tag(each)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
