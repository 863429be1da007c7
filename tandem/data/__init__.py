"""The data sources. A source converts a workload's raw data to checked, split and standardized arrays.

Each source is a module of this package with the name `preprocess.source` of params.yaml. It has a function

    prepare(params, source, target_kind) -> Prepared

`params` is the source's dataclass in tandem/params/schema.py, `source` the folder with the workload's raw data, and
`target_kind` what the task needs (`Task.target` in tandem/tasks), such as "class per step". For user errors it raises
ValueError with one sentence. `own_source` calls a function in the workload's directory, and gives what that returns to
one of the others as `source`.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from tandem.data.splits import SPLITS
from tandem.files import replacing, sha256_file


class Prepared(Protocol):
    """Everything that preprocess will write for one workload."""

    table: Path | None  # the source file; None for a source of the workload's own
    summary: dict[str, Any]  # the content of summary.json: numbers and texts that later stages need
    message: str  # preprocess prints it after the workload's name

    def arrays(self, split: str) -> dict[str, np.ndarray]:
        """One split's arrays by name, one row per sequence: `values`, `lengths`, `targets`, `ids`, possibly others."""


@dataclass(frozen=True)
class Arrays:
    """N sequences of up to T steps with F features, as a function of a workload's own returns them."""

    values: np.ndarray  # (N, T, F) numbers; NaN: missing. Values after a sequence's end are ignored
    labels: np.ndarray  # (N,); detect: (N, T), and the label of a step without an event is "" or "none"
    lengths: np.ndarray | None = None  # (N,) whole numbers; None: all sequences have T steps
    features: Sequence[str] = ()  # F names; without them x0, x1, ...
    classes: Sequence[str] = ()  # if given, the labels are indices into it; detect: the first is "no event"
    ids: np.ndarray | None = None  # (N,) text; None: 0, 1, ...
    splits: np.ndarray | None = None  # (N,) train, val or test; None: a random split
    groups: np.ndarray | None = None  # (N,) equal for sequences that must stay in one split


def source_module(name: str) -> ModuleType:
    """Import the source `name` (tandem/params/loading.py has checked the name)."""
    return importlib.import_module(f"{__name__}.{'own_source' if ':' in name else name}")


def prepare_data(params: Any, folder: Path, target_kind: str) -> Prepared:
    """Prepare the data of a workload. `params`: the block `preprocess` of params.yaml; `target_kind`: `Task.target`."""
    prepared: Prepared = source_module(params.source).prepare(params, folder, target_kind)
    return prepared


def write_prepared(folder: Path, prepared: Prepared) -> dict[str, Any]:
    """Write the arrays to `folder`. Returns the content of summary.json, which the stage writes."""
    summary = {**prepared.summary, "sha256": write_arrays(folder, prepared)}
    if prepared.table:
        summary["table_sha256"] = sha256_file(prepared.table)
    return summary


def write_arrays(folder: Path, prepared: Prepared) -> dict[str, str]:
    """Write every split's arrays to <folder>/<split>/<name>.npy. Returns {path relative to `folder`: sha256}."""
    digests = {}
    for split in SPLITS:
        for name, array in prepared.arrays(split).items():
            path = folder / split / f"{name}.npy"
            with replacing(path, num_bytes=array.nbytes) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            digests[f"{split}/{name}.npy"] = sha256_file(path)
    return digests
