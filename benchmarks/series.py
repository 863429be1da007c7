"""Test errors of the default block of series over five seeds, beside the forecasts that cost nothing, same windows.

    python -m benchmarks.series TABLE [TABLE ...] [--seeds 5] [--options "--season none"]

Each table goes through what `stages.tools.new_workload` infers and writes (`--options` are handed to it), and through
training and evaluation in this process. `of the better` is the MAE, its mean over the seeds, divided by that of the
better of seasonal naive and linear: below 1, the network is better. Seconds are those of one training.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stages.data import open_source
from stages.data.packed import as_tensors
from stages.models import Shape
from stages.tasks import open_task
from stages.tools import new_workload
from stages.training import loop
from stages.training.batches import Split, sequential_indices
from stages.training.workload import make_trainer

COLUMNS = (
    "series", "interval", "season", "window, horizon", "windows", "hybrid's width", "MAE, mean (range)", "MASE",
    "persistence", "seasonal naive", "linear", "of the better", "seconds", "seconds of new_workload",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--options", default="", help="of new_workload")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n")
    for table in options.tables:
        cells, sentence = measure(table, options.options.split(), options.seeds)
        print(f"| {' | '.join(cells)} |\n<!-- seed 0: {sentence} -->", flush=True)


def measure(
    table: Path, words: list[str], seeds: int, change: Callable[[Any], Any] = lambda train: train
) -> tuple[list[str], str]:
    """A row of the table, and the sentence of seed 0. `change`: of the training's settings."""
    start = time.perf_counter()
    plan = new_workload.make_plan(new_workload.make_parser().parse_args(["benchmark", str(table), *words]))
    inferred, params, train = time.perf_counter() - start, plan.workload.preprocess, change(plan.workload.train)
    settings = replace(train, threads=1, probe=False)
    prepared = open_source(params.source).prepare(params, table.parent, per_step=False)
    arrays = {name: prepared.arrays(name) for name in ("train", "val", "test")}
    task = open_task("forecast", prepared.summary)
    splits = {name: split_of(each) for name, each in arrays.items()}
    found, seconds = [], []
    for seed in range(seeds):
        start = time.perf_counter()
        trainer = make_trainer(splits["train"], splits["val"], settings, Shape.of(prepared.summary, task), task, seed)
        for _ in range(settings.epochs):
            trainer.epoch()
        if plan.workload.evaluate.weights == "best":
            trainer.model.load_state_dict(trainer.best_weights)
        batches = trainer.oom.batches(splits["test"], sequential_indices(splits["test"]), loop.PREDICTION_BATCH)
        outputs = loop.predict_outputs(trainer.model.eval(), batches, trainer.oom)
        found.append(task.evaluate(outputs, lambda split, name: arrays[split][name]))
        seconds.append(time.perf_counter() - start)
    metrics = found[0].metrics
    own = [each.metrics["mae"] for each in found]
    others = [metrics.get(f"{name}_mae") for name in ("persistence", "seasonal_naive", "linear")]
    better = min(each for each in others[1:] if each is not None)
    cells = [
        table.stem, params.interval, str(params.season or "none"), f"{params.input_steps}, {params.horizon}",
        f"{len(splits['train']):,}", str(settings.model.hidden_size),
        f"{np.mean(own):.4g} ({min(own):.4g} to {max(own):.4g})",
        f"{np.mean([each.metrics.get('mase', np.nan) for each in found]):.3f}",
        *("" if each is None else f"{each:.4g}" for each in others),
        f"{np.mean(own) / better:.3f}", f"{np.median(seconds):.1f}", f"{inferred:.1f}",
    ]  # fmt: skip
    return cells, found[0].sentence


def split_of(arrays: dict[str, np.ndarray]) -> Split:
    tensors = as_tensors(arrays["values"], arrays["lengths"], arrays["targets"])
    return Split({name: torch.from_numpy(each) for name, each in tensors.items()}, torch.device("cpu"))


if __name__ == "__main__":
    main()
