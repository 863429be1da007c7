"""Compare recipes of a workload without its test data; the choices in params.yaml are based on this.

    python -m benchmarks.recipes [--workload pen] [--recipes "as it is" "no augmentation"] [--seeds 3]

Splits train and val of the workload's table together into folds: the network trains on all folds but one and is scored
on that one, so each sequence is scored once per seed (weights, order, random draws). No test sequence is used. Equal
sequences are in one fold. Prints Markdown: the share of correct sequences, with mean, lowest and highest over seeds.

The folds are the same for every recipe and seed. RECIPES lists the differences of each recipe from params.yaml.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks.accuracy import prepare_seed, tensors, trained
from benchmarks.markdown import header, mean_lowest_highest, row
from tandem.data.arrays import PreparedSequences
from tandem.files import ROOT
from tandem.params.loading import parse_block, read_yaml

AUGMENT = "train.augment."
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "pen": {
        "as it is": {},
        "no augmentation": {AUGMENT + "mix": 0.0, AUGMENT + "shift": 0.0, AUGMENT + "warp": 0.0},
        "twice the augmentation": {AUGMENT + "mix": 0.2, AUGMENT + "shift": 0.2, AUGMENT + "warp": 0.2},
        "no label smoothing": {"train.label_smoothing": 0.0},
        "no dropout": {"train.model.dropout": 0.0},
        "learning rate 5e-3": {"train.learning_rate": 5e-3},
        "learning rate 2e-3": {"train.learning_rate": 2e-3},
        "hidden size 48, 16 epochs": {"train.model.hidden_size": 48, "train.epochs": 16},
    },
    "sign": {
        "as it is": {},
        "no augmentation": {AUGMENT + "mix": 0.0, AUGMENT + "shift": 0.0, AUGMENT + "warp": 0.0},
        "half the augmentation": {AUGMENT + "mix": 0.1, AUGMENT + "shift": 0.15, AUGMENT + "warp": 0.25},
        "no label smoothing": {"train.label_smoothing": 0.0},
        "dropout 0.2": {"train.model.dropout": 0.2},
        "hidden size 64": {"train.model.hidden_size": 64},
        "learning rate 4e-3": {"train.learning_rate": 4e-3},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=sorted(RECIPES), default="pen")
    parser.add_argument("--recipes", nargs="+", metavar="NAME", help="some of them; their names are in RECIPES")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="of each recipe")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--split-seed", type=int, help="where the split is drawn; params.yaml's otherwise")
    options = parser.parse_args()
    recipes = RECIPES[options.workload]
    for name in options.recipes or ():
        if name not in recipes:
            parser.error(f"{options.workload} has no recipe {name!r}; there are {', '.join(map(repr, recipes))}")
    print(header("recipe", "sequences", "mean", "lowest", "highest", "seconds per training"))
    for name in options.recipes or recipes:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        found = [compared(options, recipes[name], seed) for seed in seeds]
        scores, counts, seconds = zip(*found, strict=True)
        spread = mean_lowest_highest(scores)
        print(row(name, f"{counts[0]:,}", *spread, f"{np.median(seconds):.1f}"), flush=True)


def compared(options: argparse.Namespace, recipe: dict[str, Any], seed: int) -> tuple[float, int, float]:
    """Share of correct sequences over all folds, their number, and the median seconds of a training."""
    params = parse_block(options.workload, read_yaml(ROOT / "params.yaml")[options.workload], recipe)
    split_seed = params.preprocess.seed if options.split_seed is None else options.split_seed
    prepared = prepare_seed(options.workload, params, split_seed)
    rows, fold = folds_of(prepared, options.folds)
    num_right, seconds = 0.0, []
    for number in range(options.folds):
        held_out = tensors(prepared, rows[fold == number])
        arrays = {"train": tensors(prepared, rows[fold != number]), "val": held_out, "test": held_out}
        score, spent = trained(params, seed, params.train.precision, prepared.summary, arrays)
        num_right += score * len(held_out["targets"])
        seconds.append(spent)
    return num_right / len(rows), len(rows), float(np.median(seconds))


def folds_of(prepared: PreparedSequences, num_folds: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequence numbers of train and val, and the fold of each, dealt in the order of the file."""
    rows = np.sort(np.concatenate([prepared.parts["train"], prepared.parts["val"]]))
    _, first, group = np.unique(prepared.duplicates[rows], return_index=True, return_inverse=True)
    return rows, np.unique(first[group], return_inverse=True)[1] % num_folds


if __name__ == "__main__":
    main()
