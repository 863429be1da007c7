"""Writes the records of one training: its run in MLflow, and the files beside its weights.

Takes a run context, its trainer and the recorded epochs (history.py). Writes to the run's folder: the weights,
`model.json`, `history.csv`, `timings.csv`, `timings.json`, `measured.json` and `training.json`, the manifest
(manifest.py). Writes the same to the run directory for MLflow (run_dir.py).
"""

import hashlib
import json
import os
import time
from dataclasses import asdict
from typing import Any

from safetensors.torch import save

from stages import files
from stages.files import preset_file, read_json
from stages.machine import conditions
from stages.machine.regions import gpu_uuid
from stages.params.loading import load_params
from stages.params.parsing import flatten, literal
from stages.params.schema import Rally
from stages.records import manifest, provenance
from stages.records.history import (
    RUN_METRICS,
    Record,
    device_sentence,
    first_timed_epoch,
    measurement_context,
    memory_tags,
    summarize,
    summarize_gpu,
    workers_of,
)
from stages.records.run_dir import RunDir
from stages.training.device import describe
from stages.training.trainer import Trainer, snapshot
from stages.training.workload import RunContext

# The outputs of a training, without training.json, which contains their sha256.
FILES = (
    "best.safetensors", "last.safetensors", "model.json", "history.csv", "timings.csv", "timings.json", "measured.json",
)  # fmt: skip
# Values that preprocessing learned from the data. New tables must be preprocessed with them.
LEARNED = ("features", "classes", "mean", "std", "offsets", "target")
# The fields that the manifest takes from measured.json and timings.json.
REALIZED = (
    "threads", "precision", "step", "why_not_graph", "residency", "out_of_memory", "workers", "workers_from_epoch",
    "batch_size", "learning_rate",
)  # fmt: skip
TIMING = (
    "epoch_seconds", "samples_per_second", "num_epochs_measured", "train_seconds",
    "peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib", "missing_reasons",
)  # fmt: skip


def describe_start(trainer: Trainer) -> dict[str, Any]:
    """Return the manifest's entries for the start of a training. They are recorded now because another process may end
    it.
    """
    return {
        "tree": provenance.tree(),
        "conditions": conditions.read(gpu_uuid(trainer.device)),
        "weights_sha256": trainer.weights_sha256(),
        "process": os.getpid(),
    }


def describe_end(trainer: Trainer, record: Record, cpu_seconds_of_others: float) -> dict[str, Any]:
    """Return the results' entries for the end of a training. They are recorded now because another process may write
    them.

    `cpu_seconds_of_others`: the processor time that the other workers on this machine have used for the training.
    """
    before, after = record.start["conditions"], conditions.read(gpu_uuid(trainer.device))
    after["own_cpu_seconds"] += cpu_seconds_of_others
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "conditions": after,
        # Processor time is counted per process, so a resumed training has no total.
        "between": conditions.between(before, after) if record.start["process"] == os.getpid() else {},
        **({"workers": trainer.workers.count} if trainer.workers.count > 1 else {}),
    }


def write_results(context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], run: RunDir) -> None:
    """Write all results except tracking.json, and copy them for MLflow."""
    out = context.folder
    for name, weights in {"best": trainer.best_weights, "last": snapshot(trainer.model)}.items():
        files.write_bytes(out / f"{name}.safetensors", save(weights))
    files.write_json(out / "model.json", describe_model(context))
    files.write_table(out / "history.csv", record.history)
    files.write_table(out / "timings.csv", record.timings)
    gpu_summary, missing_reasons = summarize_gpu(record.sampled.values())
    result = {**summarize(record.timings, first_timed_epoch(record)), **gpu_summary}
    record.missing_reasons |= missing_reasons
    files.write_json(out / "timings.json", result)
    measured = describe_measurement(context, trainer, record, inputs, result)
    files.write_json(out / "measured.json", measured)
    about = describe_run(context, trainer, record, inputs, {**result, **measured})
    files.write_json(out / manifest.OF_TRAINING, about)

    run.metrics({name: result[key] for name, key in RUN_METRICS.items()})
    if record.probe:
        probed = {"probe": record.probe, "not_probed": record.not_probed}
        run.text(json.dumps(probed, indent=2) + "\n", "probe.json")
    run.text("".join(f"{key}: {sentence}\n" for key, sentence in record.summary_lines.items()), "answers.txt")
    run.save_epochs(record)  # includes the last epochs, if their checkpoint could not be written
    run.artifact(out / manifest.OF_TRAINING, name=manifest.NAME)
    if others := conditions.others_on_gpu(about["conditions"]):
        run.tag({"not_comparable": others})
        print(f"warning: {others}: no comparison of times takes this run", flush=True)

    print(
        f"{context.workload} on {context.identity['name']}: epoch {result['epoch_seconds']:.3f} s (median of "
        f"{result['num_epochs_measured']}), {result['samples_per_second']:,.0f} samples/s, "
        f"{result['train_seconds']:.1f} s in all"
    )


def describe_measurement(
    context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of measured.json. Completes the record's summary lines."""
    seen = {**result, "num_kernels": record.probe.get("num_kernels")}
    record.summary_lines["device"] = device_sentence(context.kind, len(trainer.verified), seen, context.num_workers)
    if trainer.oom.actions:
        record.summary_lines["out_of_memory"] = f"memory ran out: {', then '.join(trainer.oom.actions)}"
    for reason in trainer.missing_graph().values():
        record.summary_lines["step"] = f"steps were taken eagerly instead of captured as a CUDA graph: {reason}"
    missing_reasons = {name: why for name, why in record.missing_reasons.items() if result.get(name) is None}
    return {
        **measurement_context(missing_reasons, context.identity, trainer.params.num_threads, record.end["measured_at"]),
        **{f"{name}_sha256": digest(inputs[name]) for name in ("parameters", "data")},
        "out_of_memory": trainer.oom.actions,
        **workers_of(record),
        **batch_of(context),
        "residency": trainer.oom.residency,
        "precision": trainer.step.precision,
        "step": trainer.step.execution_mode,
        **({"why_not_graph": why} if (why := trainer.step.fallback_reason) else {}),
        "asked": {name: getattr(context.params.train, name) for name in ("threads", "precision", "step")},
        "probe": record.probe,
        "not_probed": record.not_probed,
        "summary_lines": record.summary_lines,
    }


def batch_of(context: RunContext) -> dict[str, Any]:
    """Return the batch size and learning rate that `scaling: weak-...` set; empty if params.yaml's values
    are in force.
    """
    if context.settings.batch_size == context.params.train.batch_size:
        return {}
    return {"batch_size": context.settings.batch_size, "learning_rate": context.settings.learning_rate}


def describe_run(
    context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], measured: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest (stages/records/manifest.py) without the test result."""
    found = provenance.environment()
    if trainer.device.type == "cuda":
        found["versions"] |= provenance.gpu_versions(context.identity["driver"])
    losses = ("epoch", "learning_rate", "train_loss", "val_loss", f"val_{context.task.score_name}")
    others = measured["other_processes"]  # the maximum of all readings
    return {
        "schema": manifest.SCHEMA,
        **{name: measured[name] for name in ("device", "measured_at")},
        "workload": context.workload,
        "requested": context.device,
        "seed": context.seed,
        "machine": measured["measured_on"],
        "token": record.token,
        "tree": record.start["tree"],
        "block": literal(context.params),
        "preset": read_json(preset_file(context.workload))["preset"],
        "realized": {
            **{name: measured[name] for name in REALIZED if name in measured},
            "accumulation": trainer.step.accumulation,
        },
        "digests": {
            "data": {
                "table": context.summary.get("table_sha256"),
                "prepared": context.summary["sha256"],
                "packed": inputs["data"],
            },
            "code": inputs["code"],
            "weights": {
                "initial": record.start["weights_sha256"],
                **{name: files.sha256_file(context.folder / f"{name}.safetensors") for name in ("best", "last")},
            },
        },
        "files": manifest.digests(context.folder, *FILES),
        "environment": found,
        "hardware": context.identity,
        "kernels": "cuDNN" if trainer.device.type == "cuda" else "Tandem's kernels",
        "conditions": {
            "before": record.start["conditions"],
            "after": record.end["conditions"],
            "between": record.end["between"] | ({} if others is None else {"other_processes": others}),
        },
        "epochs": [
            {**{name: row[name] for name in losses}, **digests}
            for row, digests in zip(record.history, record.digests, strict=True)
        ],
        "timing": {name: measured[name] for name in TIMING},
    }


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def describe_model(context: RunContext) -> dict[str, Any]:
    """Return the content of model.json: how to build the network and how to preprocess a new table for it."""
    learned = {name: context.summary[name] for name in LEARNED if name in context.summary}
    return {
        "model": asdict(context.params.train.model),
        "shape": asdict(context.shape),
        "task": context.params.task,
        "workload": context.workload,
        "preprocessing": {**asdict(context.params.preprocess), **learned},
    }


def open_run(context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], run: RunDir) -> None:
    """Open the MLflow run: what is trained, on which device, on what data, and from which code."""
    about, git = describe(trainer.device, context.identity), provenance.git_tags(record.start["tree"])
    preset = read_json(preset_file(context.workload))["preset"]
    seeds, group = load_params().seeds, group_of(inputs)
    experiment = os.environ.get("DVC_EXP_NAME")
    device = context.device if context.num_workers > 1 else trainer.device.type
    name = f"{f'{experiment}: ' if experiment else ''}{context.workload}-{device}"
    run.open(
        experiment=context.workload,
        name=f"{name}-{time.strftime('%m%d-%H%M%S')}",
        # Values in which two runs may differ are also parameters, because MLflow's compare page shows no tags.
        params={
            **flatten(context.params),
            **{name: about[name] for name in ("device", "device.name", "torch")},
            "preset": preset,
            "seed": context.seed,
            "threads": trainer.params.num_threads,
            "precision": trainer.step.precision,
            "step": trainer.step.execution_mode,
            **({"workers": context.num_workers} if context.num_workers > 1 else {}),
            "data.sha256": data_sha256(context),
            "git.commit": git.get("mlflow.source.git.commit", "none"),
            "git.dirty": git.get("git.dirty", "unknown"),
            "code.sha256": digest(inputs["code"])[:16],
            "environment.sha256": digest(provenance.environment())[:16],
            "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            "residency": trainer.oom.residency,
            **record.bound,
        },
        tags={
            **about,
            "mlflow.source.name": f"train@{context.workload}-{context.device}-{context.seed}",
            "mlflow.source.type": "LOCAL",
            "workload": context.workload,
            "requested_device": context.device,
            "preset": preset,
            "data.sha256": data_sha256(context),
            "tandem.group": group,
            **git,
            **memory_tags(trainer.oom.actions),
            **provenance.caller_tags(),
        },
        dataset=dataset_of(context),
        parent={"token": group, "name": f"{name}, {len(seeds)} seeds"} if len(seeds) > 1 else None,
    )


def group_of(inputs: dict[str, Any]) -> str:
    """Return the digest that all runs share if they differ only in their seed."""
    return digest({**inputs, "seed": None, "experiment": os.environ.get("DVC_EXP_NAME")})[:32]


def data_sha256(context: RunContext) -> str:
    """Return the sha256 of the raw table; for simulated data, of the packed training split."""
    return str(context.summary.get("table_sha256", context.plan["sha256"]["train"]))


def dataset_of(context: RunContext) -> dict[str, Any]:
    """The fields of mlflow.entities.Dataset."""
    summary, params = context.summary, context.params.preprocess
    table = None if isinstance(params, Rally) else files.raw_dir(context.workload) / params.table
    source = files.relative(table) if table else "stages/data/rally.py"
    profile = {"num_sequences": summary["num_sequences"], "features": summary["features"]}
    if "classes" in summary:
        profile["num_classes"] = len(summary["classes"])
    return {
        "name": context.workload,
        "digest": data_sha256(context)[:16],
        "source_type": "local",
        "source": json.dumps({"uri": source}),
        "schema": None,
        "profile": json.dumps(profile),
    }
