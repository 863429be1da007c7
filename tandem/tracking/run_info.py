"""What MLflow is told of a training at its start and its end, and of an evaluation.

`write_run_info` writes run.json to the run directory (run_dir.py), from which the publisher creates the MLflow run. An
evaluation with other settings than the training recorded gets an MLflow run of its own (`key_of_evaluation`).
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem import files
from tandem.params.loading import load_params, preset_in_force
from tandem.params.parsing import differing_names, flatten, literal, recorded_parameters
from tandem.runs import provenance, schemas
from tandem.runs.record import Record, memory_tags
from tandem.runs.run import Run
from tandem.runs.schemas import TimingRecord
from tandem.tasks import Task
from tandem.tasks.scores import baseline_scores
from tandem.tracking.headline import BASELINE_TAG
from tandem.tracking.results import add_records, realized_settings, totals, why_no_vram
from tandem.tracking.run_dir import GROUP_TAG, RunDir
from tandem.training.context import RunContext
from tandem.training.trainer import Trainer

MLFLOW_RECORD = "mlflow.json"  # beside timing.json: what MLflow got of the training


def write_run_info(
    context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], run_dir: RunDir
) -> None:
    """Write what is trained, on which device, data and code. The publisher creates the MLflow run from it."""
    device_tags, git = trainer.device.tags(context.hardware), provenance.git_tags(record.at_start["tree"])
    seeds, experiment = load_params().seeds, os.environ.get("DVC_EXP_NAME")
    # Without the experiment's name: its seeds belong to a first seed that was trained before it.
    inputs_key = files.digest({**inputs, "seed": None})[:32]
    group = group_key(inputs_key, context)
    device = context.requested if context.num_workers > 1 else trainer.device.name()
    name = f"{f'{experiment}: ' if experiment else ''}{context.workload}-{device}"
    run_dir.write_info(
        experiment=context.workload,
        name=f"{name}-{time.strftime('%m%d-%H%M%S')}",
        # Values in which two runs may differ are also parameters, because MLflow's compare page shows no tags.
        params={
            **flatten(context.block),
            **{name: device_tags[name] for name in ("device", "device.name", "torch")},
            "preset": preset_in_force(load_params(), context.workload),
            "seed": context.seed,
            **{name: value for name, value in realized_settings(trainer).items() if name != "grad_accum_steps"},
            **({"workers": context.num_workers} if context.num_workers > 1 else {}),
            "data.sha256": data_sha256(context),
            "git.commit": git.get("mlflow.source.git.commit", "none"),
            "git.dirty": git.get("git.dirty", "unknown"),
            "code.sha256": files.digest(inputs["code"])[:16],
            "environment.sha256": files.digest(provenance.environment())[:16],
            "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            "data_location": trainer.execution.data_location,
        },
        tags={
            **{name: device_tags[name] for name in ("device", "device.name", "host")},
            "mlflow.source.name": f"{context.stage}@{context.workload}-{context.requested}",
            "mlflow.source.type": "LOCAL",
            "workload": context.workload,
            "requested_device": context.requested,
            **record.bound,  # no parameters: the page that compares runs would begin with the differing advice
            GROUP_TAG: group,
            **{name: value for name, value in git.items() if name != "git.dirty"},
            **memory_tags(trainer.executor.fallbacks),
            **provenance.caller_tags(),
        },
        dataset=dataset_of(context),
        machine=device_tags,
        parent={"run_key": group, "name": f"{name}, all seeds"} if len(seeds) > 1 else None,
        inputs_key=inputs_key,
    )


def group_key(inputs_key: str, context: RunContext) -> str:
    """Return the digest that all runs share if they differ only in their seed. `inputs_key`: of the training's inputs;
    the settings of `evaluate` are those of `context`.
    """
    return files.digest([inputs_key, literal(replace(context.block.evaluate, metrics=()))])[:32]


def data_sha256(context: RunContext) -> str:
    """Return the sha256 of the raw table; for a source of the workload's own, of the packed training split."""
    return str(context.summary.get("table_sha256", context.plan["sha256"]["train"]))


def dataset_of(context: RunContext) -> dict[str, Any]:
    """The fields of mlflow.entities.Dataset."""
    summary, params = context.summary, context.block.preprocess
    source = params.component.path if params.component else files.raw_dir(context.workload) / params.table
    profile = {"num_sequences": summary["num_sequences"], "features": summary["features"]}
    if "classes" in summary:
        profile["num_classes"] = len(summary["classes"])
    return {
        "name": context.workload,
        "digest": data_sha256(context)[:16],
        "source_type": "local",
        "source": json.dumps({"uri": files.relative(source)}),
        "schema": None,
        "profile": json.dumps(profile),
    }


def write_mlflow_record(context: RunContext, run_dir: RunDir) -> None:
    """After the training has ended: write mlflow.json, what MLflow got of it, and add the ids of the MLflow run to
    timing.json, for links to its page.
    """
    files.write_json(context.measured_dir / MLFLOW_RECORD, {"run": run_dir.info, "end": run_dir.stage_end})
    path = context.measured_dir / "timing.json"
    timing = schemas.read(path.read_bytes(), files.relative(path), TimingRecord)
    schemas.write(path, TimingRecord, {**timing, "mlflow": {"experiment": context.workload, **run_dir.ids}})


def key_of_evaluation(context: RunContext, trained: Run) -> str:
    """Return the key of the MLflow run that gets the evaluation: that of the training if `evaluate` has the settings
    that the training recorded, else another one. MLflow changes no parameter of a run, and whoever serves its model
    expects the same weights.
    """
    key, differing = str(trained.timing["run_key"]), other_settings(context, trained)
    return files.digest([key, differing])[:32] if differing else key


def other_settings(context: RunContext, trained: Run) -> dict[str, Any]:
    """Return the settings of `evaluate` that are not those that the training recorded. Metrics of the workload's own
    change no other result, so they are added to the same run.
    """
    recorded, settings = (
        recorded_parameters({"evaluate": literal(evaluate)})
        for evaluate in (trained.train["block"]["evaluate"], context.block.evaluate)
    )
    differing = differing_names(recorded, settings)
    return {name: settings[name] for name in differing if name != "evaluate.metrics"}


def add_training(context: RunContext, trained: Run, run_dir: RunDir) -> None:
    """Write the whole training to the run directory of its evaluation. MLflow may lack it: it was trained in another
    clone, the store or the run was deleted, or the evaluation has other settings and so a run of its own.
    """
    content, source = trained.read(MLFLOW_RECORD)
    saved = files.parse_json(content, source)
    saved["end"]["metrics"] |= totals(trained.timing)
    saved["run"]["tags"] |= why_no_vram(trained.timing)
    if settings := other_settings(context, trained):
        run = saved["run"]
        run["params"] |= settings
        run["tags"][GROUP_TAG] = group = group_key(run["inputs_key"], context)
        run["name"] += f", {', '.join(f'{name}={value}' for name, value in settings.items())}"
        if run["parent"]:
            run["parent"] = {"run_key": group, "name": f"{run['parent']['name']}, evaluated again"}
    run_dir.add_artifact(context.result_dir / "history.csv")
    run_dir.add_artifact(context.measured_dir / "timings.csv")
    add_records(context, trained.timing, run_dir)
    files.write_json(run_dir.folder / "train.end.json", saved["end"])
    run_dir.write_info(**saved["run"])  # last: from now on it is published


def add_evaluation(
    task: Task, metrics: dict[str, float], fallbacks: list[str], paths: list[Path], run_dir: RunDir
) -> None:
    """Add to the run directory the scores on the test split, the fallbacks, and the files of the evaluation."""
    run_dir.add_metrics({f"test/{name}": value for name, value in metrics.items()})
    if fallbacks:
        run_dir.add_tags({"out_of_memory.evaluate": "; ".join(fallbacks)})
    if baseline := strongest_baseline(task, metrics):
        run_dir.add_tags({BASELINE_TAG: baseline})
    for path in paths:
        run_dir.add_artifact(path, "" if path.name == "score.json" else "evaluation")


def strongest_baseline(task: Task, metrics: dict[str, float]) -> str:
    """Return the name and the score of the strongest baseline of the task's score; empty if the task has none."""
    baselines = baseline_scores(task.baselines, task.score_name, metrics) or [(task.zero.partition(":")[0], 0.0)]
    name, value = baselines[0]
    return f"{name} {value:.4f}" if name else ""
