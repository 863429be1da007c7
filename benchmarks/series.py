"""Test errors of the default block for series over five seeds, compared with the baselines on the same windows.

    python -m benchmarks.series [TABLE ...] [--simulated] [--seeds 5] [--options "--season none"]
                                [--peers-python .venv-series/bin/python]

`--simulated` adds series of known kinds: months and quarters with a season and growth, half hours of sunshine, hours of
load and of counts, days of counts, business days of prices, years of a second-order autoregression.

Each table gets the block that `tandem.importing.new_workload` infers (`--options` are passed to it); training and
evaluation run in this process. `of the better` is the mean MAE over the seeds divided by that of the better of
seasonal naive and linear: below 1, the network is better. Seconds are those of one training.

`--peers-python`, a Python with statsforecast, adds AutoETS, AutoARIMA and seasonal naive (series_peers.py). They
forecast from the last steps of at most 24 test windows, evenly spaced, and know all points up to there. `of the best
peer` is the MAE of the default block on these windows divided by the smallest of the three.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from benchmarks.accuracy import predict_test
from benchmarks.markdown import header, mean_and_range, row
from tandem import cli
from tandem.data import source_module
from tandem.data.packed import as_arrays
from tandem.data.series import choose_windows, to_grid
from tandem.data.tables import find_table, read_table
from tandem.importing import new_workload
from tandem.params.intervals import parse_interval
from tandem.params.schema import Series

SIMULATED = {  # name: points, and pandas' name of the interval
    "sales 60": (60, "M"), "sales 144": (144, "M"), "output 80": (80, "Q"), "sunshine 289": (289, "30min"),
    "sunshine 1500": (1500, "30min"), "load 4000": (4000, "h"), "calls 1500": (1500, "h"), "visits 400": (400, "D"),
    "price 2000": (2000, "B"), "cycle 114": (114, "Y"),
}  # fmt: skip
COLUMNS = (
    "series", "interval", "season", "window, horizon", "windows", "hybrid's width", "MAE, mean (range)", "MASE",
    "persistence", "seasonal naive", "linear", "of the better", "seconds", "seconds of new_workload",
)  # fmt: skip
PEERS = ("AutoETS", "AutoARIMA", "seasonal naive")
OF_PEERS = ("points", "form", f"MAE of {', '.join(PEERS)}", "of the best peer", "seconds of the peers (fits, if few)")
MAX_PEER_SECONDS = 600
MAX_ORIGINS = 24
LARGEST_RATIO, ENOUGH_POINTS = 1.05, 100  # no series of so many points should be above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--drawn", type=int, default=7, help="the seed of the simulated series")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--options", default="", help="of new_workload")
    parser.add_argument("--peers-python", help="a Python with statsforecast; without it the peers are left out")
    options = parser.parse_args()
    print(header(*COLUMNS, *(OF_PEERS if options.peers_python else ())))
    ratios: dict[str, float] = {}
    above: list[str] = []
    with TemporaryDirectory() as folder:
        tables = [*options.tables, *(write_simulated(Path(folder), options.drawn) if options.simulated else ())]
        for table in tables:
            try:
                cells, num_points, ratio = measure(table, options.options.split(), options.seeds, options.peers_python)
            except Exception as error:  # one series does not end the hours of the others
                print(f"{table.stem} was not measured: {error!r}", flush=True)
                continue
            print(row(*cells), flush=True)
            ratios[table.stem] = ratio
            if num_points >= ENOUGH_POINTS and ratio > LARGEST_RATIO:
                above.append(table.stem)
    if options.peers_python:
        mean = np.exp(np.mean(np.log([*ratios.values()])))
        print(
            f"\nGeometric mean of the ratio to the best peer over {len(ratios)} series: {mean:.3f}. "
            f"Above {LARGEST_RATIO} with at least {ENOUGH_POINTS} points: {', '.join(above) or 'none'}."
        )


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


def measure(table: Path, words: list[str], seeds: int, peers_python: str | None) -> tuple[list[str], int, float]:
    """A row of the table, the number of points, and the ratio to the best peer (NaN without peers)."""
    start = time.perf_counter()
    options = cli.parse("new", new_workload, ["benchmark", str(table), *words])
    with TemporaryDirectory() as scratch:
        workload = new_workload.make_plan(options, Path(scratch)).workload
    inferred, params = time.perf_counter() - start, workload.preprocess
    prepared = source_module(params.source).prepare(params, table.parent, "window")
    arrays = {name: prepared.arrays(name) for name in ("train", "val", "test")}
    inputs = {name: as_arrays(each["values"], each["lengths"], each["targets"]) for name, each in arrays.items()}
    found, seconds, levels = [], [], []
    for seed in range(seeds):
        task, model, outputs, spent = predict_test(workload, seed, workload.train.precision, prepared.summary, inputs)
        found.append(task.evaluate(outputs, lambda split, name: arrays[split][name]).metrics)
        levels.append(task.levels(outputs.numpy(), arrays["test"]["anchors"]))
        seconds.append(spent)
    own = [metrics["mae"] for metrics in found]
    others = [found[0].get(f"{name}_mae") for name in ("persistence", "seasonal_naive", "linear")]
    better = min(each for each in others[1:] if each is not None)
    cells = [
        table.stem, params.interval, str(params.season or "none"), f"{params.input_steps}, {params.horizon}",
        f"{len(arrays['train']['targets']):,}", str(workload.train.model.hidden_size), mean_and_range(own, ".4g"),
        f"{np.mean([metrics.get('mase', np.nan) for metrics in found]):.3f}",
        *("" if each is None else f"{each:.4g}" for each in others),
        f"{np.mean(own) / better:.3f}", f"{np.median(seconds):.1f}", f"{inferred:.1f}",
    ]  # fmt: skip
    num_points = prepared.summary["num_grid_points"]
    if not peers_python:
        return cells, num_points, np.nan
    assert isinstance(params, Series)
    rows = np.unique(np.linspace(0, len(levels[0]) - 1, min(MAX_ORIGINS, len(levels[0]))).round().astype(int))
    actual = task.levels(arrays["test"]["targets"], arrays["test"]["anchors"])[rows]
    errors, spent = peer_errors(params, table, rows, actual, peers_python)
    ratio = np.mean([np.abs(each[rows] - actual).mean() for each in levels]) / min(errors.values())
    form = model.selection()["selected"]
    shown = ", ".join(f"{errors[name]:.4g}" if name in errors else "none" for name in PEERS)
    return [*cells, f"{num_points:,}", form, shown, f"{ratio:.3f}", spent], num_points, float(ratio)


def peer_errors(
    params: Series, table: Path, rows: np.ndarray, actual: np.ndarray, python: str
) -> tuple[dict[str, float], str]:
    """The peers' MAE for the test windows `rows`, whose levels are `actual` (N, H), and their seconds.

    With the seconds: the peers with fewer fits than windows, and those that a limit ended.
    """
    path, columns = find_table(table.parent, params.table), params.columns
    raw = read_table(path, texts=(columns.time,), features=(columns.target, *columns.features), na=params.na)
    grid = to_grid(raw, params, parse_interval(params.interval))
    last = choose_windows(grid, params)[0]["test"][rows]
    task = {
        "levels": pd.Series(grid.levels[:, 0]).ffill().tolist(),  # the peers know no missing points
        "last": last.tolist(),
        "horizon": params.horizon,
        "season": params.season or 1,
    }
    start = time.perf_counter()
    errors, few = {}, []
    for name in PEERS:
        command = [python, Path(__file__).with_name("series_peers.py"), name]
        try:
            done = subprocess.run(
                command, input=json.dumps(task), check=True, text=True, stdout=subprocess.PIPE, timeout=MAX_PEER_SECONDS
            )
        except subprocess.SubprocessError as error:  # its time or memory is over
            few.append(f"{name}: {'too slow' if isinstance(error, subprocess.TimeoutExpired) else 'too large'}")
            continue
        found, num_fits = json.loads(done.stdout)
        errors[name] = float(np.abs(np.array(found) - actual).mean())
        if num_fits < len(rows):
            few.append(f"{name}: {num_fits}")
    return errors, f"{time.perf_counter() - start:.0f}" + (f" ({', '.join(few)})" if few else "")


if __name__ == "__main__":
    main()
