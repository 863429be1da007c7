"""Test errors of the default block for series over five seeds, compared with the baselines on the same windows.

    python -m benchmarks.series [TABLE ...] [--simulated] [--seeds 5] [--options "--season none"]

`--simulated` adds series of known kinds: months and quarters with a season and growth, half hours of sunshine, hours of
load and of counts, days of counts, business days of prices, years of a second-order autoregression.

Each table gets the block that `tandem.importing.new_workload` infers (`--options` are passed to it); training and
evaluation run in this process. `of the better` is the mean MAE over the seeds divided by that of the better of
seasonal naive and linear: below 1, the network is better. Seconds are those of one training.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.accuracy import predict_test
from benchmarks.markdown import header, mean_and_range, row
from tandem.data import source_module
from tandem.data.packed import as_tensors
from tandem.importing import new_workload

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
    print(header(*COLUMNS))
    with TemporaryDirectory() as folder:
        tables = [*options.tables, *(write_simulated(Path(folder), options.drawn) if options.simulated else ())]
        for table in tables:
            print(row(*measure(table, options.options.split(), options.seeds)), flush=True)


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


def measure(table: Path, words: list[str], seeds: int) -> list[str]:
    """A row of the table."""
    start = time.perf_counter()
    options = new_workload.make_parser().parse_args(["benchmark", str(table), *words])
    with TemporaryDirectory() as scratch:
        workload = new_workload.make_plan(options, Path(scratch)).workload
    inferred, params = time.perf_counter() - start, workload.preprocess
    prepared = source_module(params.source).prepare(params, table.parent, "window")
    arrays = {name: prepared.arrays(name) for name in ("train", "val", "test")}
    inputs = {name: as_tensors(each["values"], each["lengths"], each["targets"]) for name, each in arrays.items()}
    found, seconds = [], []
    for seed in range(seeds):
        task, outputs, spent, _ = predict_test(workload, seed, workload.train.precision, prepared.summary, inputs)
        found.append(task.evaluate(outputs, lambda split, name: arrays[split][name]).metrics)
        seconds.append(spent)
    own = [metrics["mae"] for metrics in found]
    others = [found[0].get(f"{name}_mae") for name in ("persistence", "seasonal_naive", "linear")]
    better = min(each for each in others[1:] if each is not None)
    return [
        table.stem, params.interval, str(params.season or "none"), f"{params.input_steps}, {params.horizon}",
        f"{len(arrays['train']['targets']):,}", str(workload.train.model.hidden_size), mean_and_range(own, ".4g"),
        f"{np.mean([metrics.get('mase', np.nan) for metrics in found]):.3f}",
        *("" if each is None else f"{each:.4g}" for each in others),
        f"{np.mean(own) / better:.3f}", f"{np.median(seconds):.1f}", f"{inferred:.1f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
