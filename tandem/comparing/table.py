"""The table of two or more sides' recorded values: a row per value, a column per side.

A row is shown if the sides differ in it, if it is always of interest, or if it was measured.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tandem.comparing.comparability import ABSENT, NAMED, Row, parameters_of, short, short_hardware
from tandem.files import digest
from tandem.params.parsing import differing_names
from tandem.runs.provenance import is_edited
from tandem.runs.quantities import QUANTITIES
from tandem.runs.run import Run

# Rows that the table shows even if all sides agree.
ALWAYS = ("network", "device", "hardware", "machine", "threads", "precision", "commit")


# Name -> path in the manifest.
FACTS = {
    **NAMED,
    "driver": "environment.versions.driver",
    "precision": "realized.precision",
    "micro-batches": "realized.grad_accum_steps",
    "memory ran out": "realized.out_of_memory",
    "commit": "tree.commit",
    "edited": "tree",
    "code": "digests.code",
    "raw table": "digests.data.table",
    "packed data": "digests.data.packed",
    "initial weights": "digests.weights.initial",
    "predictions": "digests.predictions",
    "preset": "preset",
    "network": "block.train.model.name",
    "torch": "environment.versions.torch",
    "Python": "environment.versions.python",
    "trained": "measured_at",
    "CPU share of other processes": "conditions.between.others_share",
    "threads that waited for a core": "conditions.between.waiting_threads",
}
# How a value is shown if not as it is.
SHOWN: dict[str, Callable[[Any], Any]] = {
    "hardware": lambda name: short_hardware(name or ""),
    "driver": lambda version: version or "-",
    "memory ran out": lambda actions: "; ".join(actions or []) or "no",
    "edited": lambda tree: (
        tree and (tree.get("patch_sha256") or (None if tree["patch"] is None else "data" if is_edited(tree) else "no"))
    ),
    "code": lambda digests: digests and digest(digests),
    "packed data": lambda digests: digests and digest(digests),
    "CPU share of other processes": lambda share: "-" if share is None else f"{share:.0%}",
    "threads that waited for a core": lambda waiting: "-" if waiting is None else f"{waiting:.2g}",
}


def rows_of(sides: Sequence[Sequence[Run]]) -> Iterator[Row]:
    """`sides`: for each side its runs, one per seed."""
    for fact in FACTS:
        row = Row(fact, tuple(over_seeds(fact, side) for side in sides))
        if row.differs or fact in ALWAYS:
            yield row
    blocks = [parameters_of(side[0]) for side in sides]
    for name in dict.fromkeys(name for block in blocks[1:] for name in differing_names(blocks[0], block)):
        if name != "train.model.name":  # it is the network
            yield Row(name, tuple(short(block.get(name, "absent")) for block in blocks))
    rows = [
        Row(entry.label, tuple(measured(side, "timing", entry.name, f" {entry.unit}".rstrip()) for side in sides))
        for entry in QUANTITIES
        if entry.label
    ]
    names = [side[0].value("result.score_name") for side in sides]
    scores = (
        measured(side, "result.metrics", name, f" ({name})", statistics.mean)
        for side, name in zip(sides, names, strict=True)
    )
    rows += [Row("score", tuple(scores)), *own_metrics(sides)]
    yield from (row for row in rows if set(row.cells) != {"-"})


def own_metrics(sides: Sequence[Sequence[Run]]) -> Iterator[Row]:
    """The metrics that the workloads add to those of their task, with their intervals if there is one seed."""
    higher = {name: best for side in sides for name, best in (side[0].value("result.own_metrics") or {}).items()}
    for name, is_better in higher.items():
        cells = []
        for side in sides:
            low, high = (measured(side, "result.metrics", f"{name}_{end}") for end in ("low", "high"))
            interval = f" ({low} to {high})" if len(side) == 1 and "-" not in (low, high) else ""
            cells.append(measured(side, "result.metrics", name, center=statistics.mean) + interval)
        yield Row(name if is_better else f"{name} (lower is better)", tuple(cells))


def over_seeds(fact: str, side: Sequence[Run]) -> str:
    """The value that the side's runs share, or the value of each run."""
    values = [ABSENT.get(fact) if (value := run.value(FACTS[fact])) is None else value for run in side]
    distinct = dict.fromkeys(SHOWN[fact](value) if fact in SHOWN else value for value in values)
    return ", ".join(str(value) if " " in str(value) else short(value) for value in distinct)


def measured(
    side: Sequence[Run],
    path: str,
    name: str,
    unit: str = "",
    center: Callable[[list[Any]], float] = statistics.median,
) -> str:
    """The measurement `name` of the records' part `path`; for several seeds the median, or `center`, and the range. A
    name may have points, as an own metric `accuracy_at_0.5` has.
    """
    values = [value for run in side if isinstance(value := (run.value(path) or {}).get(name), int | float)]
    if not values:
        return "-"
    middle = f"{center(values):,.4g}{unit}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.4g} to {max(values):,.4g}, {len(values)} seeds)"
