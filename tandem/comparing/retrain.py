"""Repeat recorded trainings, and write their results: `python -m tandem.comparing.retrain WORKLOAD DEVICE SEED... --out
FILE [--epochs K] [--perturb I...] [--evaluate]`.

Reads params.yaml and the outputs of hardware, preprocess and preload, as `train` does. Writes only FILE, a JSON list
with a dictionary for each training, of which `open_rerun` (tandem/comparing/verdicts.py) makes a run:

    device, seed, hardware, environment
    realized         precision, grad_accum_steps, step, data_location, out_of_memory; threads if the result needs them
    weights          initial (before the perturbation); after a complete run also best and last: digests of their files
    epochs           per epoch: the exact losses and score, weights_sha256, order_sha256, draws_sha256
    epoch_seconds    of each epoch; measured, not compared
    predictions      with --evaluate: predictions.csv as text, its sha256

It writes no checkpoint, no MLflow run and no results: flows/verify.py runs it in a copy of the project and compares. A
perturbation moves every weight by one unit in the last place before the first epoch, up or down at random with
generator I. The differences between such trainings show the effect of rounding alone.
"""

import hashlib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from tandem import files, models
from tandem.runs import provenance
from tandem.runs.quantities import history_row
from tandem.runs.terminal import Progress
from tandem.tasks.groups import name_groups
from tandem.tracking.results import realized_settings
from tandem.training import auto, inference
from tandem.training.context import RunContext
from tandem.training.execution import Execution
from tandem.training.executor import Executor, translate_oom
from tandem.training.opening import open_trainer
from tandem.training.trainer import Epoch, Trainer, snapshot


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    try:
        contexts = [RunContext.of(options.workload, options.device, seed) for seed in options.seeds]
        results = [retrain(context, perturbation, options) for context in contexts for perturbation in options.perturb]
        files.write_json(options.out, results, is_durable=False)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser("python -m tandem.comparing.retrain", description="Repeat recorded trainings.")
    parser.add_argument("workload")
    parser.add_argument("device", help="as in params.yaml; one process does the work of several workers (2xcpu)")
    parser.add_argument("seeds", type=int, nargs="+", metavar="SEED", help="one training for each seed")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file for the JSON output")
    parser.add_argument("--epochs", type=int, metavar="K", help="only the first K epochs, with the schedule of all")
    parser.add_argument(
        "--perturb", type=int, nargs="+", default=[None], metavar="I",
        help="perturb the initial weights by one unit in the last place, with generator I; one training for each",
    )  # fmt: skip
    parser.add_argument("--evaluate", action="store_true", help="also predict the test split")
    return parser.parse_args(arguments)


def retrain(context: RunContext, perturbation: int | None, options: Namespace) -> dict[str, Any]:
    """One training, opened and run as `train` does."""
    trainer = open_trainer(context, None)
    with translate_oom(trainer.executor):
        auto.resolve(trainer, context.hardware)
        weights = {"initial": trainer.weights_sha256()}
        if perturbation is not None:
            perturb_one_ulp(trainer.model, perturbation)
        title = f"{context.workload}, seed {context.seed}" + (
            "" if perturbation is None else f", perturbation {perturbation}"
        )
        epochs, seconds = run_epochs(context, trainer, options.epochs or context.settings.epochs, title)
        is_whole = trainer.epochs_done == context.settings.epochs
        if is_whole:  # the digests of the files that `train` would write
            snapshots = {"best": trainer.best_weights, "last": snapshot(trainer.model)}
            weights |= {name: hashlib.sha256(save(tensors)).hexdigest() for name, tensors in snapshots.items()}
        predictions = predict(context, trainer) if options.evaluate and is_whole else {}
    return {
        "device": context.kind,
        "seed": context.seed,
        "hardware": context.hardware,
        "environment": provenance.environment(context.hardware),
        "realized": {
            **realized_settings(trainer),
            "data_location": trainer.execution.data_location,
            "out_of_memory": trainer.executor.fallbacks,
        },
        "weights": weights,
        "epochs": epochs,
        "epoch_seconds": seconds,
        "predictions": predictions,
    }


def run_epochs(
    context: RunContext, trainer: Trainer, num_epochs: int, title: str
) -> tuple[list[dict[str, Any]], list[float]]:
    """The rows of train.json for the first `num_epochs`, and their seconds."""
    rows, seconds = [], []
    num_epochs = min(num_epochs, context.settings.epochs)
    progress = Progress(title, num_epochs, 0)

    def note(epoch: Epoch) -> None:
        rows.append({**history_row(epoch, context.task.score_name), **epoch.digests})
        seconds.append(epoch.training.seconds)
        progress.show(epoch, context.task.score_name, trainer.num_sequences)

    trainer.train_epochs(note, num_epochs)
    progress.close()
    return rows, seconds


@torch.no_grad()
def perturb_one_ulp(model: nn.Module, number: int) -> None:
    """Move every weight to a neighbouring fp32 number, up or down at random."""
    generator = torch.Generator().manual_seed(number)
    for weight in model.parameters():
        towards = torch.where(torch.rand(weight.shape, generator=generator) < 0.5, torch.inf, -torch.inf)
        weight.copy_(torch.nextafter(weight.cpu(), towards))


def predict(context: RunContext, trainer: Trainer) -> dict[str, Any]:
    """The test split's predictions, as in `evaluate`."""
    device = context.open_device(1)  # as `evaluate`: one thread, and fp32 whatever the training's precision
    split = context.open_split("test", device)
    model = models.build(context.block.train.model, context.shape)
    model.load_state_dict(trainer.best_weights if context.block.evaluate.weights == "best" else snapshot(trainer.model))
    outputs = inference.predict(model.to(device.torch_device), split, Executor(Execution(device))).cpu()
    evaluated = context.task.evaluate(outputs, context.read_known(model))
    result = name_groups(evaluated, context.summary, context.read)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.csv"
        files.write_table(path, result.predictions)
        return {"csv": path.read_bytes().decode(), "sha256": files.sha256_file(path)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
