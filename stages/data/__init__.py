"""The sources of data by name: from a workload's raw data to arrays that are checked, split and standardized.

Every source is one module of this package, named as `preprocess.source` in params.yaml. It has a function

    prepare(params, folder, per_step) -> Prepared

`params` is its dataclass in stages/params/schema.py, `folder` holds the workload's table, `per_step` says whether every
step has a label of its own (detect); to regress, it gets `is_number=True` too. It raises ValueError, in one sentence,
for what a user can get wrong. No source imports another one.

A source that can make new data with other noise also has `with_noises` (see rally.py).
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from stages.data.splits import SPLITS
from stages.files import replacing, sha256_file


class Prepared(Protocol):
    """Everything that preprocess writes for one workload, before it writes it."""

    table: Path | None  # the file that the data come from; None where they are simulated
    summary: dict[str, Any]  # what later stages must know of the data: plain numbers and texts for summary.json
    message: str  # what preprocess prints after the workload's name

    def arrays(self, split: str) -> dict[str, np.ndarray]:
        """One split's arrays by name, a row per sequence: `values`, `lengths`, `targets`, `ids`, perhaps others."""


def open_source(name: str) -> ModuleType:
    """The source of that name (checked by stages/params/loading.py)."""
    return importlib.import_module(f"{__name__}.{name}")


def prepare(task: str, params: Any, folder: Path) -> Prepared:
    """The data of a workload for its task; `params` are those of its source."""
    of_task = {"is_number": True} if task == "regress" else {}
    prepared: Prepared = open_source(params.source).prepare(params, folder, per_step=task == "detect", **of_task)
    return prepared


def write_prepared(folder: Path, prepared: Prepared) -> dict[str, Any]:
    """Write the arrays into `folder`; return what is to stand in its summary.json, which later stages go by."""
    summary = {**prepared.summary, "sha256": write_arrays(folder, prepared)}
    if prepared.table:
        summary["table_sha256"] = sha256_file(prepared.table)
    return summary


def write_arrays(folder: Path, prepared: Prepared) -> dict[str, str]:
    """Write every split's arrays to <folder>/<split>/<name>.npy; return their sha256 by path relative to `folder`."""
    digests = {}
    for split in SPLITS:
        for name, array in prepared.arrays(split).items():
            path = folder / split / f"{name}.npy"
            with replacing(path, num_bytes=array.nbytes) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            digests[f"{split}/{name}.npy"] = sha256_file(path)
    return digests
