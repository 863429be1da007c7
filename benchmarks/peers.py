"""Models compared with their peers on the same splits, over several seeds; on the CPU, with one thread, in fp32.

    python -m benchmarks.peers sign pen rally price                             # the workloads of params.yaml
    python -m benchmarks.peers ArrowHead co2 --python .venv-aeon/bin/python     # data that packages ship
    python -m benchmarks.peers TABLE.csv --options "--label activity"           # a table

A workload is trained with its recipe. A table, or a set or series that a package ships (peer_methods.py has the names),
gets the block that `tandem new` writes without options except for `--options`. A seed sets weights, kernels, trees, the
order and the random draws, and the split or the simulation if it is random. If a recipe was chosen on some seeds' test
splits, report it on others, with `--first-seed`.

Sequences with one label: MiniRocket (Dempster et al. 2021, arXiv:2012.08791) and QUANT (the same authors 2023,
arXiv:2308.00928) of aeon, 1-NN and a ridge on the raw values of scikit-learn. They get train and val together, in the
table's units and without velocity, and the same seeds. The score is the task's: accuracy, R2, event F1.

Series: AutoETS, AutoARIMA and seasonal naive of statsforecast. They forecast from the last steps of at most 24 test
windows, evenly spaced, and know all points up to there. `of the best peer` is the MAE on these windows divided by the
smallest of the three: below 1, the model is better.

`--python` is a Python with aeon and statsforecast (benchmarks/README.md); without it their methods are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.markdown import header, mean_and_range, row
from tandem import cli
from tandem.data import Prepared, prepare_data, write_arrays
from tandem.data.arrays import PreparedSequences
from tandem.data.packed import as_arrays
from tandem.data.series import choose_windows, to_grid
from tandem.data.tables import find_table, read_table
from tandem.files import raw_dir
from tandem.importing import new_workload
from tandem.models import Shape
from tandem.params.intervals import parse_interval
from tandem.params.loading import load_params, load_workload
from tandem.params.schema import SequenceTable, Series, Workload
from tandem.tasks import open_task
from tandem.training import inference
from tandem.training.batches import Split
from tandem.training.execution import CPU, open_device
from tandem.training.opening import make_trainer

METHODS = Path(__file__).with_name("peer_methods.py")
OF_AEON, OF_SKLEARN = ("MiniRocket", "QUANT"), ("1-NN", "ridge")
OF_STATSFORECAST = ("AutoETS", "AutoARIMA", "seasonal naive")
MAX_PEER_SECONDS = 600
MAX_ORIGINS = 24
NONE = "none"  # the cell of what was not asked for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="DATA", help="a workload, a table, or a set or series of a package")
    parser.add_argument("--seeds", type=int, default=5, help="how many (5)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--options", default="", help="of `tandem new`, for the tables")
    parser.add_argument("--python", help="a Python with the packages of the peers")
    options = parser.parse_args()
    seeds, titles = range(options.first_seed, options.first_seed + options.seeds), list[str]()
    gains, ratios = list[float](), list[float]()
    for name in options.data:
        with tempfile.TemporaryDirectory() as folder:
            try:
                block, raw = block_of(name, Path(folder), options)
                is_series = isinstance(block.preprocess, Series)
                compare, values = (compare_series, ratios) if is_series else (compare_sequences, gains)
                cells, *value = compare(block, raw, seeds, options.python)
            except Exception as error:  # one of them does not end the hours of the others
                print(f"{name} was not measured: {error!r}", flush=True)
                continue
        values += value
        if titles != [*cells]:
            titles = [*cells]
            print(f"\n{header('data', *titles)}")
        print(row(Path(name).stem, *cells.values()), flush=True)
    if gains:
        print(f"\nLess the best of the peers: {np.mean(gains):+.4f} on average, {min(gains):+.4f} at worst.")
    if ratios:
        mean = np.exp(np.mean(np.log(ratios)))
        print(f"\nGeometric mean of the ratio to the best peer over {len(ratios)} series: {mean:.3f}.")


def block_of(name: str, folder: Path, options: argparse.Namespace) -> tuple[Workload, Path]:
    """The block of params.yaml, and the folder of its raw data."""
    if name in load_params().workloads:
        return load_workload(name), raw_dir(name)
    path, words = Path(name), options.options.split()
    if not path.is_file():
        if not options.python:
            raise ValueError(f"{name!r} is no workload of params.yaml and no file; packages have more data: --python")
        subprocess.run([options.python, METHODS, "data", name, folder], check=True)
        path = folder / f"{name}.csv"
        if not path.exists():
            arrays, path = np.load(folder / f"{name}.npz"), folder / f"{name}.parquet"
            long_table(**arrays).to_parquet(path, index=False)
            words += ["--task", "regress", "--label", "label"] if arrays["labels"].dtype.kind == "f" else []
    scratch = folder / "scratch"
    scratch.mkdir()
    plan = new_workload.make_plan(cli.parse("new", new_workload, ["benchmark", str(path), *words]), scratch)
    return plan.workload, plan.table.parent


def long_table(values: np.ndarray, labels: np.ndarray, is_test: np.ndarray) -> pd.DataFrame:
    """values (N, T, F), NaN after a sequence's end -> a row per step."""
    is_real = ~np.isnan(values).all(axis=2)
    rows, steps = np.nonzero(is_real)
    features = {f"x{number}": values[..., number][is_real] for number in range(values.shape[2])}
    words = np.where(is_test, "test", "train")[rows]
    return pd.DataFrame({"case": rows, "step": steps, **features, "label": labels[rows], "split": words})


@dataclass(frozen=True)
class Trained:
    """A training, and what it says about the test split."""

    task: Any
    model: Any
    outputs: torch.Tensor
    score: float
    metrics: dict[str, float]  # of `evaluate`, which has the baselines
    seconds: float


def train(block: Workload, seed: int, prepared: Prepared) -> Trained:
    settings = replace(block.train, precision="fp32", threads=1, probe=False)
    arrays = {split: prepared.arrays(split) for split in ("train", "val", "test")}
    task = open_task(block.task, dict(prepared.summary))
    open_device({"kind": "cpu"}, settings.threads, settings.deterministic)
    splits = {name: split_of(part) for name, part in arrays.items()}
    shape = Shape.of(dict(prepared.summary), task)
    trainer = make_trainer(splits["train"], splits["val"], settings, shape, task, seed)
    start = time.perf_counter()
    while trainer.epochs_done < settings.epochs:
        trainer.train_epoch()
    seconds = time.perf_counter() - start
    if block.evaluate.weights == "best":
        trainer.model.load_state_dict(trainer.best_weights)
    outputs = inference.predict(trainer.model, splits["test"])
    targets, mask = (splits["test"].tensors[name] for name in ("targets", "mask"))
    score = task.score(task.predict(outputs, mask), targets, mask)
    metrics = task.evaluate(outputs, lambda split, name: arrays[split][name]).metrics
    return Trained(task, trainer.model, outputs, score, metrics, seconds)


def split_of(arrays: Mapping[str, Any]) -> Split:
    """The arrays of a split that preprocess writes, on the CPU."""
    inputs = as_arrays(arrays["values"], arrays["lengths"], arrays["targets"])
    groups = torch.from_numpy(arrays["groups"].astype(np.int64)) if "groups" in arrays else None
    tensors = {key: torch.from_numpy(array) for key, array in inputs.items()}
    return Split(tensors, CPU, groups=groups)


def compare_sequences(block: Workload, raw: Path, seeds: range, python: str | None) -> tuple[Any, ...]:
    """The cells of a row, by title, and the mean score less that of the best peer, if there are peers."""
    target, runs = block.task_attributes.target, list[Trained]()
    has_peers = isinstance(block.preprocess, SequenceTable) and target in ("class", "number")
    names = [*(OF_AEON if python else ()), *OF_SKLEARN] if has_peers else []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            source = replace(block.preprocess, seed=seed)
            prepared = prepare_data(source, raw, target)
            runs.append(train(block, seed, prepared))
            if has_peers:
                write_in_units(Path(folder) / str(seed), prepare_data(replace(source, velocity=False), raw, target))
        folders = [Path(folder) / str(seed) for seed in seeds]
        peers = peer_scores(python or sys.executable, names, folders) if names else {}
    scores, summary, inputs = [run.score for run in runs], prepared.summary, prepared.arrays("test")["values"]
    counts = " + ".join(str(count) for count in summary["num_per_split"].values())
    models = [getattr(run.model, "selected_name", block.train.model.name) for run in runs]
    gains = [np.mean(scores) - max(np.mean(values) for values, _ in peers.values())] if peers else []
    cells = {
        "seeds": f"{seeds[0]} to {seeds[-1]}",
        "train + val + test, steps, features": f"{counts}, {summary['max_steps']}, {inputs.shape[2]}",
        "model": ", ".join(f"{name} {models.count(name)}" for name in dict.fromkeys(models)),
        f"{runs[0].task.score_name}, mean (range)": mean_and_range(scores),
        **{name: mean_and_range(peers[name][0]) if name in peers else NONE for name in (*OF_AEON, *OF_SKLEARN)},
        "less the best": f"{gains[0]:+.4f}" if gains else NONE,
        "baselines": baselines(runs[-1]),
        "training, s": f"{np.median([run.seconds for run in runs]):.1f}",
        "QUANT, s": f"{np.median(peers['QUANT'][1]):.1f}" if "QUANT" in peers else NONE,
    }
    return cells, *gains


def baselines(trained: Trained) -> str:
    end = f"_{trained.task.score_name}"
    scores = {name.removesuffix(end): value for name, value in trained.metrics.items() if name.endswith(end)}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items())


def write_in_units(folder: Path, prepared: PreparedSequences) -> None:
    """Write the arrays of every split as the stage preprocess does, but in the table's units."""
    sequences = prepared.sequences
    values = sequences.values * prepared.std + prepared.mean
    values[sequences.padding_mask] = 0.0
    write_arrays(folder, replace(prepared, sequences=replace(sequences, values=values.astype(np.float32))))


def peer_scores(python: str, names: Sequence[str], folders: list[Path]) -> Any:
    """Method -> scores and seconds on the splits in `folders`."""
    command = [python, METHODS, "scores", ",".join(names), *folders]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare_series(block: Workload, raw: Path, seeds: range, python: str | None) -> tuple[Any, ...]:
    """The cells of a row, by title, and the ratio to the best peer, if there are peers."""
    params = block.preprocess
    assert isinstance(params, Series)
    prepared = prepare_data(params, raw, "window")
    runs, test = [train(block, seed, prepared) for seed in seeds], prepared.arrays("test")
    metrics, task = [run.metrics for run in runs], runs[0].task
    cells = {
        "points": f"{prepared.summary['num_grid_points']:,}",
        "interval": params.interval,
        "window, horizon": f"{params.input_steps}, {params.horizon}",
        "windows": f"{len(prepared.arrays('train')['targets']):,}",
        "model": block.train.model.name,
        "skill, mean (range)": mean_and_range([values["skill"] for values in metrics]),
        "MAE, mean (range)": mean_and_range([values["mae"] for values in metrics], ".4g"),
        "MAE of the baselines": ", ".join(
            f"{name.replace('_', ' ')} {metrics[0][f'{name}_mae']:.4g}"
            for name in ("persistence", "seasonal_naive", "linear")
            if f"{name}_mae" in metrics[0]
        ),
        "training, s": f"{np.median([run.seconds for run in runs]):.1f}",
    }
    if not python:
        return (cells,)
    rows = np.unique(np.linspace(0, len(test["ids"]) - 1, min(MAX_ORIGINS, len(test["ids"]))).round().astype(int))
    actual = task.levels(test["targets"], test["anchors"])[rows]
    errors, seconds = peer_errors(params, raw, rows, actual, python)
    run_errors = [np.abs(task.levels(run.outputs.numpy(), test["anchors"])[rows] - actual).mean() for run in runs]
    ratio = np.mean(run_errors) / min(errors.values())
    cells |= {f"MAE of {name}": f"{errors[name]:.4g}" if name in errors else NONE for name in OF_STATSFORECAST}
    return cells | {"of the best peer": f"{ratio:.3f}", "seconds of the peers (fits, if few)": seconds}, ratio


def peer_errors(
    params: Series, raw: Path, rows: np.ndarray, actual: np.ndarray, python: str
) -> tuple[dict[str, float], str]:
    """The peers' MAE for the test windows `rows`, whose levels are `actual` (N, H), and their seconds.

    With the seconds: the peers with fewer fits than windows, and those that a limit ended.
    """
    columns = params.columns
    table = read_table(
        find_table(raw, params.table), texts=(columns.time,), features=(columns.target, *columns.features), na=params.na
    )
    grid = to_grid(table, params, parse_interval(params.interval))
    task = {
        "levels": pd.Series(grid.levels[:, 0]).ffill().tolist(),  # the peers know no missing points
        "last": choose_windows(grid, params)[0]["test"][rows].tolist(),
        "horizon": params.horizon,
        "season": params.season or 1,
    }
    start, errors, remarks = time.perf_counter(), dict[str, float](), list[str]()
    for name in OF_STATSFORECAST:
        command = [python, METHODS, "forecasts", name]
        try:
            process = subprocess.run(
                command, input=json.dumps(task), check=True, text=True, stdout=subprocess.PIPE, timeout=MAX_PEER_SECONDS
            )
        except subprocess.SubprocessError as error:  # its time or memory is over
            remarks.append(f"{name}: {'too slow' if isinstance(error, subprocess.TimeoutExpired) else 'too large'}")
            continue
        forecasts, num_fits = json.loads(process.stdout)
        errors[name] = float(np.abs(np.array(forecasts) - actual).mean())
        if num_fits < len(rows):
            remarks.append(f"{name}: {num_fits}")
    return errors, f"{time.perf_counter() - start:.0f}" + (f" ({', '.join(remarks)})" if remarks else "")


if __name__ == "__main__":
    main()
