"""Score one trained model on the test split: `python -m flows.stage evaluate WORKLOAD DEVICE SEED`.

Reads the weights that `evaluate.weights` names and the packed test split. Writes to
results/runs/<workload>/<device>/<seed>/. The deterministic outputs are `metrics.json`, `result.json`, `scores.csv`,
`confusion.csv` and `predictions.csv`; the measurements are in `evaluate.json`. The figures in `plots/` show the result,
the training, and for simulated data the score against the noise. The results are added to the training's MLflow run.
"""

import platform
import time
from pathlib import Path
from typing import Any

import torch

from stages import files
from stages.data import open_source
from stages.figures import draw_result, drawing, sweeps, training
from stages.files import read_json, write_json
from stages.machine.regions import measure
from stages.params.schema import Rally
from stages.records import manifest
from stages.records.checkpoint import folder_of, remove_stored
from stages.records.run_dir import recording
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
OTHERS = ("evaluate.json", manifest.OF_TRAINING, "tracking.json")  # files of the run that are not copied to MLflow


def main(workload: str, device: str, seed: str) -> None:
    context = RunContext.of(workload, device, int(seed))
    trained = read_json(context.folder / "tracking.json")
    remove_stored(folder_of(workload))  # DVC has stored the training before it runs this stage
    with recording(trained["token"], "evaluate") as run:
        run.open(workload, f"{workload}-{device}")
        result, by_noise, measured = evaluate(context)
        paths = write_files(context, result, by_noise, measured)
        run.metrics({f"test/{name}": value for name, value in result.metrics.items()})
        seconds, rate = measured["evaluate_seconds"], measured["samples_per_second"]
        run.metrics({"test/seconds": seconds, "test/samples_per_second": rate})
        if measured["out_of_memory"]:
            run.tag({"out_of_memory.evaluate": "; ".join(measured["out_of_memory"])})
        for path in paths:
            run.artifact(path, "evaluation")
        run.artifact(context.folder / manifest.NAME)
        run.artifact(context.folder / f"{context.params.evaluate.weights}.safetensors", "model", "model.safetensors")
        run.artifact(context.folder / "model.json", "model")
        run.text(MLMODEL.format(python=platform.python_version()), "model/MLmodel")
        run.model(validation_score(context), context.summary["sha256"])
    found = run.ids.get("run_id", "not known yet")
    score = f"{context.task.score_name} {result.metrics[context.task.score_name]:.4f}"
    print(f"{workload} on {context.identity['name']}: {score}; {result.sentence}; MLflow run {found}")


def evaluate(context: RunContext) -> tuple[Evaluation, dict[float, float], dict[str, Any]]:
    """Return the result on the test split, the score by noise level in px (simulated data only), and the
    measurements.
    """
    for name, sha256 in manifest.read(context.folder / manifest.OF_TRAINING)["files"].items():
        files.verified(context.folder / name, sha256, f"train@{context.workload}-{context.device}-{context.seed}")
    # Use the number of threads of the training. It comes from measured.json, which dvc.yaml lists as a dependency, and
    # not from a new `auto` choice.
    device, task = context.open_device(read_json(context.folder / "measured.json")["threads"]), context.task
    split = context.open_split("test", device)
    oom = OomPolicy(splits=[split], advice=advice(device))
    weights = context.params.evaluate.weights
    with translate_oom(oom):
        model, _ = load_network(context.folder, weights)
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
    measurement = {
        "device": context.kind,
        "out_of_memory": oom.actions,
        "evaluate_seconds": measured.seconds,
        "samples_per_second": len(split) / measured.seconds,
        "num_samples": len(split),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "measured_on": platform.node(),
    }
    return result, by_noise, measurement


def validation_score(context: RunContext) -> float:
    """Return the validation score of the evaluated weights. It may be used to choose between models; the test score may
    not.
    """
    rows = files.read_rows(context.folder / "history.csv")
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
    context: RunContext, result: Evaluation, by_noise: dict[float, float], measured: dict[str, Any]
) -> list[Path]:
    """Write the files and figures. Returns the paths that are copied to MLflow."""
    out, score = context.folder, context.task.score_name
    write_json(out / "metrics.json", result.metrics)
    write_json(out / "result.json", {"score_name": score, "score": result.metrics[score], "sentence": result.sentence})
    write_json(out / "evaluate.json", measured)
    tables = {
        "scores": result.scores,
        "confusion": [{"actual": actual, "predicted": predicted} for actual, predicted in result.confusion],
        "predictions": result.predictions,
    }
    for name, rows in tables.items():
        files.write_table(out / f"{name}.csv", rows, columns=("actual", "predicted") if name == "confusion" else ())
    num_test = context.summary["num_per_split"]["test"]
    title = f"{context.workload}: {score} {result.metrics[score]:.3f} on {num_test:,} test sequences"
    pictures = {
        "result": draw_result(context.params.task, result.picture, title),
        "training": training.draw(context.workload, [files.read_run(context.workload, context.device, context.seed)]),
    }
    if by_noise:
        levels = sorted(by_noise)
        title = f"{context.workload}: {score} against noise"
        pictures["noise"] = sweeps.noise(levels, [by_noise[level] for level in levels], title)
    for name, figure in pictures.items():
        drawing.save(figure, out / "plots" / f"{name}.png")
    copied = ("metrics.json", "result.json", *(f"{name}.csv" for name in tables))
    trained, digests = manifest.read(out / manifest.OF_TRAINING), manifest.digests(out, *copied, *OTHERS)
    whole = manifest.with_result(trained, score, result.metrics, context.params.evaluate.weights, digests)
    write_json(out / manifest.NAME, whole)
    return [out / name for name in copied] + [out / "plots" / f"{name}.png" for name in pictures]
