"""The default block on public sets, compared with other methods and the baselines of `evaluate`.

    python -m benchmarks.public_sets --aeon-python .venv-aeon/bin/python [--sets ArrowHead OSULeaf] [--seeds 5]

Each set becomes a long table with its published split and goes through `new_workload` with no option but the task; the
resulting block is trained with several seeds. A seed selects the kernels and trees, and which training sequences are
val. The peers get train and val together and the same seeds: MiniRocket (Dempster et al. 2021, arXiv:2012.08791) and
QUANT (the same authors 2023, arXiv:2308.00928) of aeon, 1-NN and a ridge on the raw values of scikit-learn. The score
is accuracy, or R2 for regress. CPU, one thread. The last line compares the mean scores with the best peer's.
"""

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.accuracy import peers, predict_test, tensors, write_in_units
from benchmarks.markdown import header, mean_and_range, row
from tandem import cli
from tandem.data import prepare_data
from tandem.data.arrays import PreparedSequences
from tandem.importing import new_workload
from tandem.tasks import open_task

TITLES = (
    "set", "train + val + test, steps, features", "selected", "default block", "MiniRocket", "QUANT", "1-NN", "ridge",
    "less the best", "baselines", "training, s", "QUANT, s",
)  # fmt: skip
PEERS = ("MiniRocket", "QUANT", "1-NN", "ridge")
SETS = ("ItalyPowerDemand", "ArrowHead", "OSULeaf", "ACSF1", "CardanoSentiment", "Covid3Month")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sets", nargs="+", default=SETS, metavar="NAME", help="as aeon names them, or made: aeon_sets.py"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--aeon-python", required=True, help="a Python with aeon installed")
    options = parser.parse_args()
    print(header(*TITLES))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("aeon_sets.py")
        subprocess.run([options.aeon_python, script, folder, *options.sets], check=True)
        gains = {}
        for name in options.sets:
            try:
                cells, gains[name] = measure(name, Path(folder), range(options.seeds), options.aeon_python)
                print(row(*cells), flush=True)
            except Exception as error:  # one set does not end the hours of the others
                print(f"{name} was not measured: {error!r}", flush=True)
        worst = min(gains, key=lambda name: gains[name])
        mean = np.mean([*gains.values()])
        print(f"less the best of the peers: {mean:+.4f} on average, {gains[worst]:+.4f} on {worst}")


def measure(name: str, folder: Path, seeds: range, python: str) -> tuple[list[str], float]:
    """The cells of the set's row, and the mean score less that of the best peer."""
    arrays = np.load(folder / f"{name}.npz")
    path = folder / name / "table.parquet"
    path.parent.mkdir()
    long_table(arrays["values"], arrays["labels"], arrays["is_test"]).to_parquet(path, index=False)
    is_number = arrays["labels"].dtype.kind == "f"
    asked = ["--task", "regress", "--label", "label"] if is_number else []
    start = time.perf_counter()
    scratch = path.parent / "scratch"
    scratch.mkdir()
    plan = new_workload.make_plan(cli.parse("new", new_workload, (name.lower(), str(path), *asked)), scratch)
    print(f"{name}: new_workload {time.perf_counter() - start:.1f} s; {plan.choices[-1]}", flush=True)
    scores, seconds, folders, selected = [], [], [], []
    for seed in seeds:
        block = replace(plan.workload, preprocess=replace(plan.workload.preprocess, seed=seed))
        prepared = prepare_data(block.preprocess, path.parent, block.task_attributes.target)
        assert isinstance(prepared, PreparedSequences)
        splits = {split: tensors(prepared, rows) for split, rows in prepared.parts.items()}
        task, network, outputs, spent = predict_test(block, seed, "fp32", prepared.summary, splits)
        targets, mask = (torch.from_numpy(splits["test"][each]) for each in ("targets", "mask"))
        score = task.score(task.predict(outputs, mask), targets, mask)
        name_of = block.train.model.name
        selected.append(network.selected_name if name_of == "model_selection" else name_of)
        folders.append(folder / name / str(seed))
        plain = replace(block.preprocess, velocity=False)
        write_in_units(folders[-1], prepare_data(plain, path.parent, block.task_attributes.target))
        scores.append(score)
        seconds.append(spent)
    others = peers(python, PEERS, folders)
    counts = " + ".join(str(num) for num in prepared.summary["num_per_split"].values())
    gain = float(np.mean(scores)) - max(float(np.mean(found)) for found, _ in others.values())
    return [
        name,
        f"{counts}, {prepared.summary['max_steps']}, {arrays['values'].shape[2]}",
        ", ".join(f"{each} {num}" for each, num in Counter(selected).most_common()),
        mean_and_range(scores),
        *(mean_and_range(found) if min(found) < max(found) else f"{found[0]:.4f}" for found, _ in others.values()),
        f"{gain:+.4f}",
        baselines(block.task, prepared),
        *(f"{np.median(each):.1f}" for each in (seconds, others["QUANT"][1])),
    ], gain


def long_table(values: np.ndarray, labels: np.ndarray, is_test: np.ndarray) -> pd.DataFrame:
    """values (N, T, F), NaN after a sequence's end -> a row per step."""
    is_real = ~np.isnan(values).all(axis=2)
    rows, steps = np.nonzero(is_real)
    features = {f"x{number}": values[..., number][is_real] for number in range(values.shape[2])}
    words = np.where(is_test, "test", "train")[rows]
    return pd.DataFrame({"case": rows, "step": steps, **features, "label": labels[rows], "split": words})


def baselines(task_name: str, prepared: PreparedSequences) -> str:
    """The baselines that `evaluate` reports with a network's score; they do not depend on the network."""
    task, num = open_task(task_name, prepared.summary), len(prepared.parts["test"])
    nothing = torch.zeros(num, task.num_outputs)
    found = task.evaluate(nothing, lambda split, name: prepared.arrays(split)[name]).metrics
    end = f"_{task.score_name}"
    names = {name.removesuffix(end).replace("_", " "): found[name] for name in found if name.endswith(end)}
    return ", ".join(f"{name} {value:.4f}" for name, value in names.items())


if __name__ == "__main__":
    main()
