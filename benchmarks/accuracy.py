"""Test accuracy over five seeds of the split, beside MiniRocket with its ridge classifier on the same splits.

    python -m benchmarks.accuracy [--workloads sign pen] [--seeds 5] [--aeon-python .venv-aeon/bin/python]

Recipe and data are those of params.yaml; the seed changes the split, the weights and the batch order. MiniRocket (Dempster et al. 2021,
arXiv:2012.08791) comes from aeon, in an environment of its own (benchmarks/README.md); it trains on train and val together and sees
positions only, no velocity.
"""

import argparse
import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stages import models
from stages.params import load_workload
from stages.preload import as_tensors
from stages.preprocess import find_table, prepare, write_arrays
from stages.runtime import loop
from stages.runtime.batches import Split, in_order
from stages.runtime.device import open_device
from stages.runtime.fit import Fit
from stages.runtime.store import raw_dir
from stages.tasks import task_module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--aeon-python", help="a Python with aeon installed; without it MiniRocket is left out")
    options = parser.parse_args()
    print("| workload | model | mean | lowest | highest | seconds per training |\n|---|---|---|---|---|---|")
    for workload in options.workloads:
        with tempfile.TemporaryDirectory() as folder:
            results = [tandem(workload, seed, Path(folder) / str(seed)) for seed in range(options.seeds)]
            print(row(workload, load_workload(workload).train.model.name, *zip(*results, strict=True)), flush=True)
            if options.aeon_python:
                script = Path(__file__).with_name("minirocket.py")
                folders = [f"{folder}/{seed}" for seed in range(options.seeds)]
                done = subprocess.run(
                    [options.aeon_python, script, *folders], check=True, stdout=subprocess.PIPE, text=True
                )
                print(row(workload, "MiniRocket + ridge", *json.loads(done.stdout)), flush=True)


def row(workload: str, name: str, accuracies: list[float], seconds: list[float]) -> str:
    spread = f"{np.mean(accuracies):.4f} | {min(accuracies):.4f} | {max(accuracies):.4f}"
    return f"| {workload} | {name} | {spread} | {np.median(seconds):.1f} |"


def tandem(workload: str, seed: int, folder: Path) -> tuple[float, float]:
    """Test accuracy and training seconds of one seed; the split it was measured on is left in `folder`, without velocity."""
    params = load_workload(workload)
    path = find_table(raw_dir(workload), params.preprocess.table)
    write_arrays(folder, prepare(path, replace(params.preprocess, seed=seed, velocity=False)))
    prepared = prepare(path, replace(params.preprocess, seed=seed))
    sequences, settings, task = prepared.sequences, replace(params.train, seed=seed), task_module(params.task)
    device = open_device({"kind": "cpu"}, settings.threads, settings.deterministic)
    splits = {
        name: Split(
            {
                key: torch.from_numpy(array)
                for key, array in as_tensors(
                    sequences.values[rows], sequences.lengths[rows], sequences.labels[rows]
                ).items()
            },
            device,
        )
        for name, rows in prepared.parts.items()
    }
    torch.manual_seed(seed)
    model = models.build(settings.model, len(sequences.features), len(sequences.classes), sequences.values.shape[1])
    fit = Fit(model, splits["train"], splits["val"], settings, task.loss, task.num_correct)
    start = time.perf_counter()
    while fit.epochs_done < settings.epochs:
        fit.epoch()
    seconds = time.perf_counter() - start
    if params.evaluate.weights == "best":
        model.load_state_dict(fit.best_weights)
    outputs = loop.outputs_of(model, splits["test"].batches(in_order(splits["test"]), 1024))
    return (task.predict(outputs) == splits["test"].tensors["targets"]).double().mean().item(), seconds


if __name__ == "__main__":
    main()
