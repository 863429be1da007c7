"""Test errors of the default block for series over five seeds, compared with the baselines on the same windows.

    python -m benchmarks.series [TABLE ...] [--simulated] [--seeds 5] [--options "--season none"]

`--simulated` adds series of known kinds: months and quarters with a season and growth, half hours of sunshine, hours of
load and of counts, days of counts, business days of prices, years of a second-order autoregression.

Each table gets the block that `stages.tools.new_workload` infers (`--options` are passed to it); training and
evaluation run in this process. `of the better` is the mean MAE over the seeds divided by that of the better of
seasonal naive and linear: below 1, the network is better. Seconds are those of one training.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from stages.data import open_source
from stages.data.packed import as_tensors
from stages.models import Shape
from stages.tasks import open_task
from stages.tools import new_workload
from stages.training import loop
from stages.training.batches import Split, sequential_indices
from stages.training.workload import make_trainer

SIMULATED = {  # name: points, and pandas' name of the interval
    "sales 60": (60, "M"), "sales 144": (144, "M"), "output 80": (80, "Q"), "sunshine 289": (289, "30min"),
    "sunshine 1500": (1500, "30min"), "load 4000": (4000, "h"), "calls 1500": (1500, "h"), "visits 400": (400, "D"),
    "price 2000": (2000, "B"), "cycle 114": (114, "Y"),
}  # fmt: skip
COLUMNS = (
    "series", "interval", "season", "window, horizon", "windows", "hybrid's width", "MAE, mean (range)", "MASE",
    "persistence", "seasonal naive", "linear", "of the better", "seconds", "seconds of new_workload",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--drawn", type=int, default=7, help="the seed of the simulated series")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--options", default="", help="of new_workload")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n")
    with TemporaryDirectory() as folder:
        tables = [*options.tables, *(write_simulated(Path(folder), options.drawn) if options.simulated else ())]
        for table in tables:
            cells, _ = measure(table, options.options.split(), options.seeds)
            print(f"| {' | '.join(cells)} |", flush=True)


def write_simulated(folder: Path, seed: int) -> Iterator[Path]:
    """A table of each kind, with columns `time` and `y`."""
    for name, (num, freq) in SIMULATED.items():
        draw, step = np.random.default_rng(seed), np.arange(num)
        noise, kind = draw.normal(size=num), name.split()[0]
        times = (
            pd.period_range("1900-01-01", periods=num, freq=freq)
            if freq != "B"
            else pd.bdate_range("1990-01-01", periods=num)
        )
        day = np.sin(2 * np.pi * step / 24 - 2)
        if kind == "sales":
            season = 0.15 * np.sin(2 * np.pi * step / 12) + 0.1 * np.cos(4 * np.pi * step / 12)
            values = 100 * np.exp(0.01 * step + season + 0.03 * noise + 0.02 * draw.normal(size=num).cumsum())
        elif kind == "output":
            season = 10 * np.array([1, -1, 0.5, -0.5])[step % 4]
            values = 100 + 0.5 * step + season + 4 * noise + 2 * draw.normal(size=num).cumsum()
        elif kind == "sunshine":
            height = np.sin(2 * np.pi * step / 48 - np.pi / 2)
            clear = np.repeat(draw.uniform(0.3, 1, size=num // 48 + 1), 48)[:num]
            values = np.maximum(0, height + 0.1) * clear * 100 + np.abs(noise) * (height > -0.1)
        elif kind == "load":
            week = 1 - 0.3 * (step // 24 % 7 >= 5)
            values = 500 + 100 * week * day + 40 * np.sin(4 * np.pi * step / 24) + 10 * autoregression(noise, 0.95, 0)
        elif kind == "calls":
            values = draw.poisson(10 * (1 + 0.8 * day))
        elif kind == "visits":
            values = draw.poisson(30 + 8 * np.array([0, 1, 2, 3, 2, -1, -2])[step % 7] + 0.02 * step)
        elif kind == "price":
            values = 100 * np.exp((0.01 * noise).cumsum())
        else:
            values = autoregression(noise, 1.4, -0.7)
        table, text = folder / f"{name}.csv", times.astype(str)
        if freq == "Q":
            text = text.str.replace("Q", " Q")
        pd.DataFrame({"time": text, "y": values}).to_csv(table, index=False)
        yield table


def autoregression(noise: np.ndarray, first: float, second: float) -> np.ndarray:
    values = noise.copy()
    for step in range(2, len(noise)):
        values[step] += first * values[step - 1] + second * values[step - 2]
    return values


def measure(
    table: Path, words: list[str], seeds: int, change: Callable[[Any], Any] = lambda train: train
) -> tuple[list[str], str]:
    """A row of the table, and the sentence of seed 0. `change` modifies the training's settings."""
    start = time.perf_counter()
    options = new_workload.make_parser().parse_args(["benchmark", str(table), *words])
    with TemporaryDirectory() as scratch:
        plan = new_workload.make_plan(options, Path(scratch))
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
