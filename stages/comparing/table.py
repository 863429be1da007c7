"""The table of two or more sides' recorded values: a row per value, a column per side.

A row is shown if the sides differ in it, if it is always of interest, or if it was measured.
"""

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stages.comparing.comparability import NAMED, Manifest, differing_names, flat, short, short_hardware, value_of

MAX_PARAMETERS = 8  # differing parameters that get a row of their own
# Rows that the table shows even if all sides agree.
ALWAYS = ("device", "hardware", "machine", "threads", "precision", "commit")


@dataclass(frozen=True)
class Row:
    what: str
    cells: tuple[str, ...]  # one for each side

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1


def digest_of(files: Any) -> str | None:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() if files else None


# Name -> path in the manifest, and a function that shortens the value.
FACTS: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    **{what: (path, None) for what, path in NAMED.items()},
    "hardware": ("hardware.name", lambda name: short_hardware(name or "")),
    "driver": ("environment.versions.driver", lambda version: version or "-"),
    "precision": ("realized.precision", None),
    "micro-batches": ("realized.grad_accum_steps", None),
    "memory ran out": ("realized.out_of_memory", lambda actions: "; ".join(actions or []) or "no"),
    "commit": ("tree.commit", None),
    "edited": ("tree", lambda tree: tree and (tree["patch_sha256"] or ("no" if tree["patch"] == "" else None))),
    "code": ("digests.code", digest_of),
    "raw table": ("digests.data.table", None),
    "packed data": ("digests.data.packed", digest_of),
    "initial weights": ("digests.weights.initial", None),
    "predictions": ("digests.predictions", None),
    "preset": ("preset", None),
    "torch": ("environment.versions.torch", None),
    "Python": ("environment.versions.python", None),
    "made": ("measured_at", None),
    "others' share of the cores": (
        "conditions.between.others_share",
        lambda share: "-" if share is None else f"{share:.0%}",
    ),
}
# Measurement -> path in the manifest, unit.
MEASURED = {
    "epoch seconds": ("timing.epoch_seconds", " s"),
    "samples a second": ("timing.samples_per_second", ""),
    "training seconds": ("timing.train_seconds", " s"),
    "VRAM peak, tensors": ("timing.peak_allocated_mib", " MiB"),
    "VRAM peak, process": ("timing.process_mib", " MiB"),
    "memory peak, process": ("timing.peak_rss_mib", " MiB"),
}


def rows_of(sides: Sequence[Sequence[Manifest]]) -> Iterator[Row]:
    """`sides`: for each side its manifests, one per seed."""
    for what in FACTS:
        row = Row(what, tuple(over_seeds(what, side) for side in sides))
        if row.differs or what in ALWAYS:
            yield row
    yield from differing_parameters([dict(flat(value_of(side[0], "block") or {})) for side in sides])
    for what, (path, unit) in MEASURED.items():
        row = Row(what, tuple(measured(side, path, unit) for side in sides))
        if set(row.cells) != {"-"}:
            yield row
    names = [value_of(side[0], "result.score_name") for side in sides]
    scores = [measured(side, f"result.metrics.{name}", f" ({name})") for side, name in zip(sides, names, strict=True)]
    if set(scores) != {"-"}:
        yield Row("score", tuple(scores))


def over_seeds(what: str, side: Sequence[Manifest]) -> str:
    """The value that the side's runs share, or the value of each run."""
    path, shorten = FACTS[what]
    values = dict.fromkeys(shorten(value) if shorten else value for own in side for value in [value_of(own, path)])
    return ", ".join(str(value) if " " in str(value) else short(value) for value in values)


def measured(side: Sequence[Manifest], path: str, unit: str) -> str:
    """A measurement; for several seeds the median and the range."""
    known = [value for own in side if isinstance(value := value_of(own, path), int | float)]
    if not known:
        return "-"
    middle = f"{statistics.median(known):,.4g}{unit}"
    return middle if len(known) == 1 else f"{middle} ({min(known):,.4g} to {max(known):,.4g}, {len(known)} seeds)"


def differing_parameters(blocks: Sequence[dict[str, Any]]) -> Iterator[Row]:
    names = list(dict.fromkeys(name for block in blocks[1:] for name in differing_names(blocks[0], block)))
    for name in names[:MAX_PARAMETERS]:
        yield Row(name, tuple(short(block.get(name, "absent")) for block in blocks))
    if len(names) > MAX_PARAMETERS:
        yield Row(f"{len(names) - MAX_PARAMETERS} more parameters", tuple(f"set {n + 1}" for n in range(len(blocks))))
