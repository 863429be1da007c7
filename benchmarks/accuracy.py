"""Test score over five seeds, in one precision or several, beside MiniRocket with its ridge classifier, same splits.

    python -m benchmarks.accuracy [--workloads sign pen rally price] [--precisions fp32 bf16]
                                  [--aeon-python .venv-aeon/bin/python]

Recipe and data are those of params.yaml; the seed changes the split, the weights and the batch order (of `price`, which
is split by time, the last two alone; it needs `dvc repro` first). The score is the task's: accuracy, event F1, skill.
MiniRocket (Dempster et al. 2021, arXiv:2012.08791) comes from aeon, in an environment of its own
(benchmarks/README.md); it trains on train and val together and sees positions only, no velocity.
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

from stages.data import open_source, write_arrays
from stages.data.arrays import PreparedSequences
from stages.data.packed import as_tensors, read_arrays
from stages.files import prepared_dir, raw_dir, read_json
from stages.models import Shape
from stages.params.loading import load_workload
from stages.params.schema import SequenceTable, Series, Workload
from stages.tasks import open_task
from stages.training import loop
from stages.training.batches import Split, sequential_indices
from stages.training.device import open_device
from stages.training.workload import make_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen", "rally"])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--aeon-python", help="a Python with aeon installed; without it MiniRocket is left out")
    options = parser.parse_args()
    print("| workload | model | mean | lowest | highest | seconds per training |\n|---|---|---|---|---|---|")
    for workload in options.workloads:
        with tempfile.TemporaryDirectory() as folder:
            for precision in options.precisions:
                results = [tandem(workload, seed, Path(folder) / str(seed), precision) for seed in range(options.seeds)]
                name = f"{load_workload(workload).train.model.name}, {precision}"
                print(row(workload, name, *zip(*results, strict=True)), flush=True)
            if options.aeon_python and load_workload(workload).task == "classify":
                script = Path(__file__).with_name("minirocket.py")
                folders = [f"{folder}/{seed}" for seed in range(options.seeds)]
                done = subprocess.run(
                    [options.aeon_python, script, *folders], check=True, stdout=subprocess.PIPE, text=True
                )
                print(row(workload, "MiniRocket + ridge", *json.loads(done.stdout)), flush=True)


def row(workload: str, name: str, accuracies: list[float], seconds: list[float]) -> str:
    spread = f"{np.mean(accuracies):.4f} | {min(accuracies):.4f} | {max(accuracies):.4f}"
    return f"| {workload} | {name} | {spread} | {np.median(seconds):.1f} |"


def tandem(workload: str, seed: int, folder: Path, precision: str) -> tuple[float, float]:
    """Test score and training seconds of one seed. Leaves the split in `folder`, without velocity."""
    params = load_workload(workload)
    settings = replace(params.train, seed=seed, precision=precision, threads=1)
    if isinstance(params.preprocess, Series):
        summary = read_json(prepared_dir(workload) / "summary.json")
        arrays = {name: read_arrays(prepared_dir(workload), name, summary) for name in ("train", "val", "test")}
    else:
        prepared = prepare_seed(workload, params, seed, folder)
        summary, sequences = prepared.summary, prepared.sequences
        arrays = {
            name: as_tensors(sequences.values[rows], sequences.lengths[rows], sequences.labels[rows])
            for name, rows in prepared.parts.items()
        }
    task = open_task(params.task, summary)
    device = open_device({"kind": "cpu"}, settings.threads, settings.deterministic)
    splits = {
        name: Split({key: torch.from_numpy(array) for key, array in tensors.items()}, device)
        for name, tensors in arrays.items()
    }
    trainer = make_trainer(splits["train"], splits["val"], settings, Shape.of(summary, task), task)
    start = time.perf_counter()
    while trainer.epochs_done < settings.epochs:
        trainer.epoch()
    seconds = time.perf_counter() - start
    if params.evaluate.weights == "best":
        trainer.model.load_state_dict(trainer.best_weights)
    test = splits["test"]
    outputs = loop.predict_outputs(trainer.model, test.batches(sequential_indices(test), 1024))
    targets, mask = test.tensors["targets"], test.tensors["mask"]
    return task.score(task.predict(outputs, mask), targets, mask), seconds


def prepare_seed(workload: str, params: Workload, seed: int, folder: Path) -> PreparedSequences:
    """The workload's data split (or simulated) anew with `seed`; a table's arrays without velocity go to `folder`."""
    assert not isinstance(params.preprocess, Series), "the one split by time of a series has no seed"
    source, seeded = open_source(params.preprocess.source), replace(params.preprocess, seed=seed)
    if isinstance(seeded, SequenceTable):
        without_velocity = replace(seeded, velocity=False)
        write_arrays(folder, source.prepare(without_velocity, raw_dir(workload), params.task == "detect"))
    prepared: PreparedSequences = source.prepare(seeded, raw_dir(workload), params.task == "detect")
    return prepared


if __name__ == "__main__":
    main()
