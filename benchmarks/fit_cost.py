"""Time and memory of a fit by sequences, steps and features: the default block compared with MiniRocket and QUANT.

    python -m benchmarks.fit_cost --aeon-python .venv-aeon/bin/python [--sizes 1000x100x1 10000x500x10] [--seconds 900]

The data is simulated: autoregressive noise, in which two classes raise the level of a few features. Each fit has a
process of its own, one thread, and has fitted a tiny set before, so that no import and no compilation counts. The block
is the one that `tandem new` writes for so many sequences, of which 18% are val; its time contains the choice and the
second fit. Seconds are those of the processor, so that a busy machine does not count. Memory is the process's largest
resident size less the largest before it read the data. `--seconds` ends a fit.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (
    "100x100x1", "1000x100x1", "10000x100x1", "1000x500x1", "1000x2000x1", "1000x100x10", "1000x50x100",
    "1000x50x1000", "10000x500x10",
)  # fmt: skip
METHODS = ("default block", "MiniRocket", "QUANT")
VAL_SHARE, TINY = 0.18, 24


def main() -> None:
    from benchmarks.markdown import header, machine_sentence, row

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="sequences x steps x features")
    parser.add_argument("--aeon-python", required=True, help="a Python with aeon and torch installed")
    parser.add_argument("--seconds", type=int, default=900, help="the limit of a fit")
    options = parser.parse_args()
    print(f"{machine_sentence(packages=('torch', 'scikit-learn'))}\n")
    times = [f"{method}, s" for method in METHODS]
    print(header("sequences x steps x features", "selected", *times, "block / QUANT", *(f"{m}, MiB" for m in METHODS)))
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.npz"
            np.savez(data, **dict(zip(("values", "labels"), simulated(*map(int, size.split("x"))), strict=True)))
            pythons = (sys.executable, options.aeon_python, options.aeon_python)
            found = [in_own_process(*each, data, options.seconds) for each in zip(pythons, METHODS, strict=True)]
        seconds, mebibytes = ([each.get(key) for each in found] for key in ("seconds", "MiB"))
        shown = [f"{value:.1f}" if value else f"above {options.seconds}" for value in seconds]
        ratio = f"{seconds[0] / seconds[2]:.2f}" if seconds[0] and seconds[2] else ""
        peaks = ["" if value is None else f"{value:,.0f}" for value in mebibytes]
        print(row(size, found[0].get("selected", ""), *shown, ratio, *peaks), flush=True)


def simulated(num: int, num_steps: int, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (N, T, F) and classes (N,)."""
    random = np.random.default_rng(0)
    values = random.normal(size=(num, num_steps, num_features)).astype(np.float32)
    for step in range(1, num_steps):
        values[:, step] = 0.6 * values[:, step - 1] + 0.8 * values[:, step]
    labels = random.integers(2, size=num)
    num_informative = 1 + num_features // 50
    values[labels == 1, :, :num_informative] += random.choice([-0.6, 0.6], size=num_informative)
    return values, labels


def in_own_process(python: str, method: str, data: Path, seconds: int) -> dict[str, Any]:
    """Its seconds and MiB; nothing if it takes longer than `seconds`."""
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "NUMBA")}
    command = [python, __file__, method, data]
    try:
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds, env={**os.environ, **one_thread}
        )
    except subprocess.TimeoutExpired:
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(method: str, data: Path) -> dict[str, Any]:
    fit = block if method == METHODS[0] else peer
    fit(method, *simulated(TINY, 20, 2))()
    before = resident_mebibytes()
    arrays = np.load(data)
    run = fit(method, arrays["values"], arrays["labels"])
    start = time.process_time()
    found = run()
    seconds = time.process_time() - start
    return {"seconds": seconds, "MiB": resident_mebibytes() - before, **found}


def resident_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def block(method: str, values: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, Any]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    from benchmarks.public_sets import long_table
    from tandem import cli
    from tandem.data.packed import as_arrays
    from tandem.importing import new_workload, recipe
    from tandem.models import Shape
    from tandem.tasks import open_task
    from tandem.training.batches import Split
    from tandem.training.context import make_trainer
    from tandem.training.device import open_device

    with tempfile.TemporaryDirectory() as folder:
        table, scratch = Path(folder) / "table.parquet", Path(folder) / "scratch"
        scratch.mkdir()
        few, _ = simulated(TINY, 20, 2)
        long_table(few, np.arange(TINY) % 2, np.arange(TINY) >= TINY // 2).to_parquet(table, index=False)
        train = new_workload.make_plan(cli.parse("new", new_workload, ("tiny", str(table))), scratch).workload.train
    num_val = round(VAL_SHARE * len(values))
    summary = {
        "classes": ["low", "high"],
        "max_steps": values.shape[1],
        "num_per_split": {"train": len(values) - num_val, "val": num_val},
    }
    own = recipe.model_settings(train.model.name, "class", summary)
    train = replace(train, model=replace(train.model, **own), threads=1, precision="fp32", probe=False)
    device = open_device({"kind": "cpu"}, 1, train.deterministic)
    arrays = as_arrays(values, np.full(len(values), values.shape[1]), labels)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    fit_on, val = (
        Split({name: tensor[rows] for name, tensor in tensors.items()}, device)
        for rows in (slice(num_val, None), slice(num_val))
    )
    task = open_task("classify", summary)
    shape = Shape(values.shape[2], task.num_outputs, values.shape[1], False)
    trainer = make_trainer(fit_on, val, train, shape, task, 0)

    def fit() -> dict[str, Any]:
        trainer.epoch()
        return {"selected": trainer.model.selected_name}

    return fit


def peer(method: str, values: np.ndarray, labels: np.ndarray) -> Callable[[], dict[str, Any]]:
    from peers import made

    model = made(method, is_number=False, seed=0)
    series = values.transpose(0, 2, 1).astype(np.float64)

    def fit() -> dict[str, Any]:
        model.fit(series, labels)
        return {}

    return fit


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in METHODS:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
