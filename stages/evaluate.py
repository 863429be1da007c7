"""Score one trained model on the test split: `python -m flows.stage evaluate WORKLOAD DEVICE SEED`.

Reads the weights that `evaluate.weights` names and the packed test split. Writes two folders to
results/runs/<workload>/<device>/<seed>/evaluate/. `result` has the same bytes whenever the evaluation is reproduced:
`score.json`, `scores.csv`, `confusion.csv`, `predictions.csv` and the figures of the result. `measured` has the times
(`timing.json`) and the figure of the training. The results are added to the training's MLflow run.
"""

import platform
import time
from dataclasses import replace
from pathlib import Path

import torch

from stages import files
from stages.data import open_source
from stages.figures import draw_result, drawing, sweeps, training
from stages.machine.regions import measure
from stages.params.schema import Rally
from stages.records import schemas
from stages.records.checkpoint import folder_of, remove_stored
from stages.records.run import MEASURED, RESULT, TRAIN_RESULT, Run, open_folder
from stages.records.run_dir import recording
from stages.records.schemas import EvaluationTiming, ScoreRecord
from stages.tasks import Evaluation
from stages.training import loop
from stages.training.batches import Split, sequential_indices
from stages.training.memory import OomPolicy, advice, translate_oom
from stages.training.workload import RunContext, load_network

# With this MLmodel file, `mlflow.pyfunc.load_model` loads the model folder through this project's code, without a
# pickle.
MLMODEL = """flavors:
  python_function:
    loader_module: stages.predictor
    python_version: {python}
"""
NUM_NOISE_SEQUENCES = 500
TABLES = ("scores", "confusion", "predictions")


def main(workload: str, device: str, seed: str) -> None:
    context = RunContext.of(workload, device, int(seed))
    trained = replace(open_folder(context.folder), score=None)
    trained.require_intact()
    remove_stored(folder_of(workload))  # DVC has stored the training before it runs this stage
    with recording(trained.timing["token"], "evaluate") as run:
        run.open(workload, f"{workload}-{device}")
        result, by_noise, measured = evaluate(context, trained)
        paths = write_files(context, trained, result, by_noise, measured)
        run.metrics({f"test/{name}": value for name, value in result.metrics.items()})
        seconds, rate = measured["evaluate_seconds"], measured["samples_per_second"]
        run.metrics({"test/seconds": seconds, "test/samples_per_second": rate})
        if measured["out_of_memory"]:
            run.tag({"out_of_memory.evaluate": "; ".join(measured["out_of_memory"])})
        for path in paths:
            run.artifact(path, "" if path.name == "score.json" else "evaluation")
        weights = context.folder / TRAIN_RESULT / f"{context.params.evaluate.weights}.safetensors"
        run.artifact(weights, "model", "model.safetensors")
        run.artifact(context.folder / TRAIN_RESULT / "model.json", "model")
        run.text(MLMODEL.format(python=platform.python_version()), "model/MLmodel")
        run.model(validation_score(context, trained), context.summary["sha256"])
    found = run.ids.get("run_id", "not known yet")
    score = f"{context.task.score_name} {result.metrics[context.task.score_name]:.4f}"
    print(f"{workload} on {context.identity['name']}: {score}; {result.sentence}; MLflow run {found}")


def evaluate(context: RunContext, trained: Run) -> tuple[Evaluation, dict[float, float], EvaluationTiming]:
    """Return the result on the test split, the score by noise level in px (simulated data only), and the
    measurements.
    """
    # The number of threads of the training, not a new `auto` choice.
    device, task = context.open_device(trained.train["realized"]["threads"]), context.task
    split = context.open_split("test", device)
    oom = OomPolicy(splits=[split], advice=advice(device))
    weights = context.params.evaluate.weights
    with translate_oom(oom):
        model, _ = load_network(context.folder / TRAIN_RESULT, weights)
        model.to(device)
        if context.residency(device) == "device":
            oom.make_resident()
        outputs = predict(model, split, oom)  # warm-up: the first pass also allocates memory and selects kernels
        with measure(device) as measured:
            outputs = predict(model, split, oom)

        result, by_noise = task.evaluate(outputs.cpu(), context.read), {}
        if isinstance(params := context.params.preprocess, Rally):
            by_noise = scores_by_noise(context, params, model, device, oom)
            name = f"{task.score_name}_at_noise"
            result.metrics.update({f"{name}_{noise:g}px": score for noise, score in by_noise.items()})
            by_noise[params.noise] = result.metrics[task.score_name]
    timing: EvaluationTiming = {
        "schema": schemas.SCHEMA,
        "device": context.kind,
        "machine": platform.node(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "evaluate_seconds": measured.seconds,
        "samples_per_second": len(split) / measured.seconds,
        "num_samples": len(split),
        "out_of_memory": oom.actions,
    }
    return result, by_noise, timing


def validation_score(context: RunContext, trained: Run) -> float:
    """Return the validation score of the evaluated weights. It may be used to choose between models; the test score may
    not.
    """
    rows = trained.table("history")
    row = rows[-1] if context.params.evaluate.weights == "last" else min(rows, key=lambda row: float(row["val_loss"]))
    return float(row[f"val_{context.task.score_name}"])


def predict(model: torch.nn.Module, split: Split, oom: OomPolicy) -> torch.Tensor:
    return loop.predict_outputs(model, oom.batches(split, sequential_indices(split), loop.PREDICTION_BATCH), oom)


def scores_by_noise(
    context: RunContext, params: Rally, model: torch.nn.Module, device: torch.device, oom: OomPolicy
) -> dict[float, float]:
    """Return the score on newly simulated sequences with less and with more noise than in training. It shows how
    precise the camera must be.
    """
    task, found = context.task, {}
    new = open_source(params.source).with_noises(params, NUM_NOISE_SEQUENCES, context.summary)
    for pixels, simulated in new.items():
        values, targets = torch.from_numpy(simulated.values), torch.from_numpy(simulated.labels)
        mask = torch.ones(targets.shape, dtype=torch.bool)
        outputs = predict(model, Split({"values": values, "mask": mask, "targets": targets}, device), oom).cpu()
        found[pixels] = task.score(task.predict(outputs, mask), targets, mask)
    return found


def write_files(
    context: RunContext, trained: Run, result: Evaluation, by_noise: dict[float, float], measured: EvaluationTiming
) -> list[Path]:
    """Write the files and figures. Returns the paths that are copied to MLflow."""
    out, times, score = context.folder / RESULT, context.folder / MEASURED, context.task.score_name
    files.write_table(out / "scores.csv", result.scores)
    confusion = [{"actual": actual, "predicted": predicted} for actual, predicted in result.confusion]
    files.write_table(out / "confusion.csv", confusion, columns=("actual", "predicted"))
    files.write_table(out / "predictions.csv", result.predictions)
    tables = [out / f"{name}.csv" for name in TABLES]
    record: ScoreRecord = {
        "schema": schemas.SCHEMA,
        "score_name": score,
        "metrics": result.metrics,
        "weights": context.params.evaluate.weights,
        "sentence": result.sentence,
        "train_sha256": schemas.digest(trained.train),
        "files": {path.name: files.sha256_file(path) for path in tables},
    }
    schemas.write(out / "score.json", ScoreRecord, record)
    schemas.write(times / "timing.json", EvaluationTiming, measured)

    num_test = context.summary["num_per_split"]["test"]
    title = f"{context.workload}: {score} {result.metrics[score]:.3f} on {num_test:,} test sequences"
    evaluated = replace(trained, score=record)
    figures = {
        out / "result.png": draw_result(context.params.task, result.picture, title),
        times / "training.png": training.draw(context.workload, [training.of_run(evaluated)]),
    }
    if by_noise:
        levels = sorted(by_noise)
        title = f"{context.workload}: {score} against noise"
        figures[out / "noise.png"] = sweeps.noise(levels, [by_noise[level] for level in levels], title)
    for path, figure in figures.items():
        drawing.save(figure, path)
    return [out / "score.json", *tables, *figures]
