"""Test score over five seeds, in one or several precisions, with nearest neighbour and MiniRocket on the same splits.

    python -m benchmarks.accuracy [--workloads sign pen rally price] [--precisions fp32 bf16] [--first-seed 100]
                                  [--aeon-python .venv-aeon/bin/python]

Recipe and data are those of params.yaml. The seed changes the weights, the order and the random draws, and the split
(or the simulation) if it is random: see the column "seed varies". `price` is split by time and needs `dvc repro` first.
The score is the task's: accuracy, event F1, skill. If a recipe was chosen on some seeds' test splits, report it on
others, with `--first-seed`.

The baselines are for classify, train on train and val together and use only positions, no velocity. Nearest neighbour:
Euclidean distance of all positions, in the table's units. MiniRocket (Dempster et al. 2021, arXiv:2012.08791) with its
ridge classifier comes from aeon, in its own environment (benchmarks/README.md).
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.markdown import header, mean_lowest_highest, row
from tandem.data import prepare_data, write_arrays
from tandem.data.arrays import PreparedSequences
from tandem.data.packed import as_arrays, read_arrays
from tandem.files import prepared_dir, raw_dir, read_json
from tandem.models import Shape
from tandem.params.loading import load_workload
from tandem.params.schema import SequenceTable, Series, Workload
from tandem.tasks import open_task
from tandem.training import inference
from tandem.training.batches import Split, sequential_indices
from tandem.training.context import make_trainer
from tandem.training.device import open_device
from tandem.training.saved_network import PREDICTION_BATCH

SPLITS = ("train", "val", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["sign", "pen", "rally"])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--aeon-python", help="a Python with aeon installed; without it MiniRocket is left out")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(header("workload", "model", "seeds", "seed varies", "mean", "lowest", "highest", "seconds per training"))
    for workload in options.workloads:
        params = load_workload(workload)
        with tempfile.TemporaryDirectory() as folder:
            for precision in options.precisions:
                results = [tandem(workload, params, seed, Path(folder) / str(seed), precision) for seed in seeds]
                scores, seconds, drawn = zip(*results, strict=True)
                name, varies = f"{params.train.model.name}, {precision}", f"{drawn[0]}weights, order"
                print_row(workload, name, seeds, varies, scores, seconds)
            if params.task_attributes.target == "class":
                folders, alone = [Path(folder) / str(seed) for seed in seeds], drawn[0].rstrip(", ")
                found = zip(*(nearest_neighbour(each) for each in folders), strict=True)
                print_row(workload, "1 nearest neighbour", seeds, alone or "nothing", *found)
            if options.aeon_python and params.task_attributes.target == "class":
                found = peers(options.aeon_python, ["MiniRocket"], folders)["MiniRocket"]
                print_row(workload, "MiniRocket + ridge", seeds, f"{drawn[0]}kernels", *found)


def peers(python: str, names: Sequence[str], folders: list[Path]) -> dict[str, list[list[float]]]:
    """Scores and seconds of other methods (benchmarks/peers.py) on the splits in `folders`."""
    command = [python, Path(__file__).with_name("peers.py"), ",".join(names), *folders]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert isinstance(found, dict)
    return found


def print_row(workload: str, name: str, seeds: range, varies: str, scores: Any, seconds: Any) -> None:
    spread = mean_lowest_highest(scores)
    print(row(workload, name, f"{seeds[0]} to {seeds[-1]}", varies, *spread, f"{np.median(seconds):.1f}"), flush=True)


def tandem(workload: str, params: Workload, seed: int, folder: Path, precision: str) -> tuple[float, float, str]:
    """Test score and training seconds of one seed, and the data that the seed draws ("split, ", or empty).

    Writes the split of a table to `folder`, in the table's units and without velocity.
    """
    if isinstance(params.preprocess, Series):
        drawn, summary = "", read_json(prepared_dir(workload) / "summary.json")
        arrays = {name: read_arrays(prepared_dir(workload), name, summary) for name in SPLITS}
    else:
        prepared = prepare_seed(workload, params, seed)
        drawn = "split, " if prepared.table else "simulation, "
        if isinstance(params.preprocess, SequenceTable):
            if prepared.sequences.splits is not None:
                drawn = ""  # the table defines the split
            positions = replace(params, preprocess=replace(params.preprocess, velocity=False))
            write_in_units(folder, prepare_seed(workload, positions, seed))
        summary, arrays = prepared.summary, {name: tensors(prepared, rows) for name, rows in prepared.parts.items()}
    return *trained(params, seed, precision, summary, arrays), drawn


def trained(
    params: Workload, seed: int, precision: str, summary: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[float, float]:
    """Score on `arrays["test"]` and training seconds of the workload's recipe, on the CPU with one thread.

    arrays: split -> name -> array, as tandem/data/packed.py reads them.
    """
    task, _, outputs, seconds = predict_test(params, seed, precision, summary, arrays)
    targets, mask = (torch.from_numpy(arrays["test"][name]) for name in ("targets", "mask"))
    return task.score(task.predict(outputs, mask), targets, mask), seconds


def predict_test(
    params: Workload, seed: int, precision: str, summary: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[Any, Any, torch.Tensor, float]:
    """The task, the model, the outputs for the test split, and the training seconds."""
    settings = replace(params.train, precision=precision, threads=1, probe=False)
    task = open_task(params.task, dict(summary))
    device = open_device({"kind": "cpu"}, settings.threads, settings.deterministic)
    splits = {}
    for name, part in arrays.items():
        found = {key: torch.from_numpy(array) for key, array in part.items()}
        splits[name] = Split(found, device, groups=found.pop("groups", None))
    trainer = make_trainer(splits["train"], splits["val"], settings, Shape.of(dict(summary), task), task, seed)
    start = time.perf_counter()
    while trainer.epochs_done < settings.epochs:
        trainer.epoch()
    seconds = time.perf_counter() - start
    if params.evaluate.weights == "best":
        trainer.model.load_state_dict(trainer.best_weights)
    batches = splits["test"].batches(sequential_indices(splits["test"]), PREDICTION_BATCH)
    return task, trainer.model, inference.predict_outputs(trainer.model, batches), seconds


def prepare_seed(workload: str, params: Workload, seed: int) -> PreparedSequences:
    """The workload's data, split (or simulated) again with `seed` unless the table defines the split."""
    assert not isinstance(params.preprocess, Series), "the one split by time of a series has no seed"
    prepared = prepare_data(replace(params.preprocess, seed=seed), raw_dir(workload), params.task_attributes.target)
    assert isinstance(prepared, PreparedSequences)
    return prepared


def tensors(prepared: PreparedSequences, rows: np.ndarray) -> dict[str, np.ndarray]:
    arrays = prepared.arrays_of(rows)
    return as_arrays(arrays["values"], arrays["lengths"], arrays["targets"])


def write_in_units(folder: Path, prepared: PreparedSequences) -> None:
    """Write the arrays of every split as the stage preprocess does, but in the table's units."""
    sequences = prepared.sequences
    values = sequences.values * prepared.std + prepared.mean
    values[sequences.padding_mask] = 0.0
    write_arrays(folder, replace(prepared, sequences=replace(sequences, values=values.astype(np.float32))))


def nearest_neighbour(folder: Path) -> tuple[float, float]:
    """Test accuracy and seconds of a nearest-neighbour classifier on the positions in `folder`."""
    from sklearn.neighbors import KNeighborsClassifier

    values = {name: np.load(folder / name / "values.npy") for name in SPLITS}
    labels = {name: np.load(folder / name / "targets.npy") for name in SPLITS}
    known = np.concatenate([values["train"], values["val"]])
    start = time.perf_counter()
    model = KNeighborsClassifier(1, n_jobs=1).fit(
        known.reshape(len(known), -1), np.concatenate([labels["train"], labels["val"]])
    )
    accuracy = model.score(values["test"].reshape(len(values["test"]), -1), labels["test"])
    return float(accuracy), time.perf_counter() - start


if __name__ == "__main__":
    main()
