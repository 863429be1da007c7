"""Fit the model that every network is compared with: `python -m tandem.stage baseline WORKLOAD`.

It needs no steps and no GPU, and often predicts as well as a network (tandem/fitted/baseline.py). Reads what preprocess
wrote. Writes results/baseline/<workload>/: baseline.json, and the outputs for the test split, outputs.npy.
`evaluate` compares the network with these outputs, on every device and for every seed. A workload without such a model
gets the reason instead, and this stage then does not import torch.
"""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tandem.data.packed import read_prepared, read_prepared_array
from tandem.files import baseline_dir, prepared_dir, read_json, sha256_file
from tandem.params.loading import load_workload
from tandem.params.schema import FITTED_BASELINE
from tandem.runs import schemas
from tandem.runs.schemas import BaselineRecord
from tandem.terminal.progress import ProgressLine


def main(workload: str) -> None:
    block, out = load_workload(workload), baseline_dir(workload)
    start = time.monotonic()
    record: BaselineRecord = {"schema": schemas.SCHEMA, "reason": block.no_fit_reason, "files": {}}
    if not record["reason"]:
        record = fit(workload, block.task, out / "outputs.npy")
    schemas.write(out / "baseline.json", BaselineRecord, record)
    if record["reason"]:
        print(f"{workload}: no fitted model to compare with: {record['reason']}")
    else:
        seconds = time.monotonic() - start
        scores = ", ".join(f"{name} {score:.4g}" for name, score in record["held_out"].items())
        print(f"{workload}: {record['about']}; held-out scores: {scores}; {seconds:.1f} s on one thread")


def fit(workload: str, task_name: str, path: Path) -> BaselineRecord:
    """Fit to the prepared data, and write the outputs (N, C) for the test split to `path`."""
    import torch

    from tandem.models import Shape
    from tandem.tasks import open_task
    from tandem.training.batches import Split
    from tandem.training.execution import open_device

    folder, fitted = prepared_dir(workload), import_module(FITTED_BASELINE)
    summary = read_json(folder / "summary.json")
    task = open_task(task_name, summary, workload)
    shape = Shape.of(summary, task)
    if reason := fitted.refusal(shape, summary["num_per_split"]["test"]):
        return {"schema": schemas.SCHEMA, "reason": reason, "files": {}}
    device = open_device({"kind": "cpu"}, threads=1, deterministic=True)

    def read(name: str) -> Split:
        groups = None
        if f"{name}/groups.npy" in summary["sha256"]:
            groups = torch.from_numpy(read_prepared_array(folder, name, "groups", summary).astype(np.int64))
        tensors = {key: torch.from_numpy(array) for key, array in read_prepared(folder, name, summary).items()}
        return Split(tensors, device, groups=groups)

    with ProgressLine(f"fitting the baseline of {workload}", 1, "sequences") as line:

        def show(num_done: int, num_all: int, unit: str) -> None:
            if num_done < line.n or num_all != line.total:  # the next part of the fit
                line.n, line.total = 0, num_all
            line.unit = f" {unit}"
            line.at(num_done)

        model: Any = fitted.fit(read("train"), read("val"), read("test"), shape, task, show)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, model.outputs.numpy())
    return {
        "schema": schemas.SCHEMA,
        "reason": "",
        "about": model.description,
        "selected": model.selected,
        "held_out": model.held_out,
        "files": {path.name: sha256_file(path)},
    }
