"""Score the trained models on the test split: `python -m tandem.stage evaluate WORKLOAD DEVICE`.

Reads the weights that `evaluate.weights` names, of each seed, the packed test split, and what the fitted model of the
stage `baseline` predicts for it. Writes two folders to results/runs/<workload>/<device>/evaluate/. `result` has the
same bytes whenever the evaluation is reproduced: for each seed, `score.json`, `scores.csv`, `confusion.csv`,
`predictions.csv` and their figure `result.png`. `measured` has the ids of the MLflow runs (`in_mlflow.json`). The
results are added to the MLflow runs of the trainings; with other weights than a training recorded, to a run of their
own.
"""

import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tandem import files
from tandem.params.parsing import literal
from tandem.params.reading import PARAMS, read_yaml
from tandem.predicting.model_package import write_model
from tandem.report import drawing
from tandem.report.outcomes import outcomes
from tandem.runs import schemas
from tandem.runs.inputs import other_parameters
from tandem.runs.provenance import committed_params
from tandem.runs.run import Run, open_folder, seeds_in
from tandem.runs.schemas import BaselineRecord, ScoreRecord
from tandem.tasks import Evaluation, Fitted, check_evaluation
from tandem.tasks.groups import name_groups
from tandem.tracking.run_dir import open_run_dir
from tandem.tracking.run_info import add_evaluation, add_training, key_of_evaluation
from tandem.training import inference, own_metrics
from tandem.training.batches import Split
from tandem.training.checkpoint import folder_of, remove_stored
from tandem.training.context import RunContext
from tandem.training.execution import Execution
from tandem.training.executor import Executor, advice_for, translate_oom
from tandem.training.own_metrics import OwnScores
from tandem.training.saved_network import load_network

TABLES = ("scores", "confusion", "predictions")


def main(workload: str, device: str) -> None:
    remove_stored(folder_of(workload))  # DVC has stored the trainings before it runs this stage
    trained = seeds_in(files.runs_dir(workload, device))
    scores = [evaluate_seed(RunContext.of(workload, device, seed)) for seed in trained]
    if len(scores) > 1:
        mean, low, high = statistics.fmean(scores), min(scores), max(scores)
        print(f"mean of {len(scores)} seeds {mean:.4f} ({low:.4f} to {high:.4f})")


def evaluate_seed(context: RunContext) -> float:
    """Evaluate one training. Returns its score."""
    workload, device = context.workload, context.requested
    trained = replace(open_folder(files.runs_dir(workload, device), context.seed), score=None)
    trained.require_intact()
    if differing := other_parameters(trained):
        command = f"dvc repro --force {context.stage}@{workload}-{device}"
        raise ValueError(f"{trained.name} was trained with other parameters ({differing}); run `{command}`")
    key = key_of_evaluation(context, trained)
    with open_run_dir(key, "evaluate") as run_dir:
        add_training(context, trained, run_dir)
        result, own_scores, fallbacks = evaluate(context, trained)
        paths = write_files(context, trained, result, own_scores)
        add_evaluation(context.task, result.metrics, fallbacks, paths, run_dir)
        write_model(run_dir.folder / "artifacts/model", context.result_dir, workload, context.block)
        run_dir.add_model(validation_score(context, trained), context.summary["sha256"], why_not_registered())
    recorded = trained.timing.get("mlflow", {}) if key == trained.timing["run_key"] else {}
    ids = {"experiment": workload, **recorded, **run_dir.ids}
    files.write_json(context.output("evaluate", "measured") / files.IN_MLFLOW, ids)
    run_id = ids.get("run_id", "not known yet")
    score = result.metrics[context.task.score_name]
    sentences = filter(None, (f"{context.task.score_name} {score:.4f}", result.sentence, own_scores.sentence))
    prefix = "" if context.stage == "train" else f"seed {context.seed}: "
    print(f"{prefix}{'; '.join(sentences)}; MLflow run {run_id}", flush=True)
    return score


def evaluate(context: RunContext, trained: Run) -> tuple[Evaluation, OwnScores, list[str]]:
    """Return the result on the test split, what the workload's own metrics add to it, and the fallbacks taken when
    memory ran out.
    """
    device, task = context.open_device(1), context.task  # the bits of one thread, on any machine
    task.subject, task.fitted = trained.subject, read_fitted(context.workload)
    split = context.open_split("test", device)
    executor = Executor(Execution(device), splits=[split], advice=advice_for(device))
    weights = context.block.evaluate.weights
    with translate_oom(executor):
        model, _ = load_network(context.result_dir, weights)
        model.to(device.torch_device)
        if context.data_location(device) == "device":
            executor.make_resident()
        outputs = inference.predict(model, split, executor)
        evaluated = task.evaluate(outputs.cpu(), context.read_known(model))
        result = name_groups(evaluated, context.summary, context.read)
        check_evaluation(task, result)

        def outputs_of(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
            return inference.predict(model, Split(tensors, device, data_location="host"), executor).cpu()

        own_scores = own_metrics.score(context, outputs.cpu(), outputs_of, result.metrics)
        result.metrics.update(own_scores.metrics)
    return result, own_scores, executor.fallbacks


def read_fitted(workload: str) -> Fitted | None:
    """What the stage `baseline` wrote; None if it says why there is no fitted model."""
    folder, stage = files.baseline_dir(workload), f"baseline@{workload}"
    path = folder / "baseline.json"
    fix = f"make it again with `dvc repro --force {stage}`"
    if not path.exists():
        raise ValueError(f"{files.relative(path)} is missing; {fix}")
    record = schemas.read(path.read_bytes(), files.relative(path), BaselineRecord, fix)
    if record["reason"]:
        return None
    [(name, sha256)] = record["files"].items()
    return Fitted(torch.from_numpy(np.load(files.verified(folder / name, sha256, stage))), record["about"])


def why_not_registered() -> str:
    """Return why the models are no versions: they are those of a DVC experiment with other parameters. Else empty."""
    name = os.environ.get("DVC_EXP_NAME")
    if not name or read_yaml(PARAMS) == committed_params():
        return ""
    return f"the experiment {name} has other parameters than the commit; Register model, on the model's page, keeps it"


def validation_score(context: RunContext, trained: Run) -> float:
    """Return the validation score of the evaluated weights. It may be used to choose between models; the test score may
    not.
    """
    rows = trained.table("history")
    row = rows[-1] if context.block.evaluate.weights == "last" else min(rows, key=lambda row: float(row["val_loss"]))
    return float(row[f"val_{context.task.score_name}"])


def write_files(context: RunContext, trained: Run, result: Evaluation, own_scores: OwnScores) -> list[Path]:
    """Write the files and the figure. Returns the paths that are copied to MLflow."""
    out = context.output("evaluate", "result")
    files.write_table(out / "scores.csv", result.scores)
    confusion = [{"actual": actual, "predicted": predicted} for actual, predicted in result.confusion]
    files.write_table(out / "confusion.csv", confusion, columns=("actual", "predicted"))
    files.write_table(out / "predictions.csv", result.predictions)
    tables = [out / f"{name}.csv" for name in TABLES]
    record: ScoreRecord = {
        "schema": schemas.SCHEMA,
        "score_name": context.task.score_name,
        "metrics": result.metrics,
        "evaluate": literal(context.block.evaluate),
        "task": context.block.task_attributes.recorded,
        "sentence": "; ".join(filter(None, (result.sentence, own_scores.sentence))),
        "train_sha256": files.digest(trained.train),
        "files": {path.name: files.sha256_file(path) for path in tables},
    }
    if own_scores.higher_is_better:
        record["own_metrics"] = own_scores.higher_is_better
    schemas.write(out / "score.json", ScoreRecord, record)

    paths = [out / "score.json", *tables]
    with drawing.chart_style():
        if charts := outcomes(replace(trained, score=record)):
            drawing.save_charts(charts, out / "result.png")
            paths.append(out / "result.png")
    return paths
