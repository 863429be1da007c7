"""Writes the results of one training: its files and its records.

Takes a run context, its trainer and the recorded epochs (runs/record.py). Writes to the seed's folders in the stage's
outputs (run.py): `result` with the weights, model.json, history.csv and train.json, which are the same bytes whenever
the training is reproduced; `measured` with timings.csv and timing.json. Copies them to the run directory for MLflow
(run_dir.py).
"""

import platform
from dataclasses import asdict
from typing import Any, cast

from safetensors.torch import save

from tandem import files
from tandem.machine import conditions
from tandem.machine.measure import ENERGY_METHOD
from tandem.models import kernels
from tandem.params.loading import load_params, preset_in_force
from tandem.params.parsing import literal
from tandem.runs import provenance, schemas
from tandem.runs.quantities import RUN_METRICS, summarize, summarize_gpu
from tandem.runs.record import (
    NOT_TIMED,
    Record,
    device_sentence,
    energy_sentence,
    overfitting_sentence,
    summarize_energy,
)
from tandem.runs.schemas import Placement, Realized, TimingRecord, TrainRecord
from tandem.terminal.messages import seconds
from tandem.tracking.headline import NO_VRAM_TAG
from tandem.tracking.run_dir import RunDir
from tandem.training.context import RunContext
from tandem.training.execution import EAGERLY
from tandem.training.trainer import Trainer, snapshot

# Values that preprocessing learned from the data. New tables must be preprocessed with them.
LEARNED = ("features", "classes", "num_per_class", "mean", "std", "offsets", "usual_step", "target")


def write_results(
    context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any], run_dir: RunDir
) -> None:
    """Write all results, and copy them for MLflow."""
    result, measured = context.result_dir, context.measured_dir
    for name, weights in {"best": trainer.best_weights, "last": snapshot(trainer.model)}.items():
        files.write_bytes(result / f"{name}.safetensors", save(weights))
    files.write_json(result / "model.json", model_document(context))
    files.write_table(result / "history.csv", record.history)
    files.write_table(measured / "timings.csv", record.timings)
    times, missing_reasons = measured_values(context, record)
    lines = record.summary_lines | closing_lines(context, trainer, record, times, missing_reasons)
    train = train_record(context, trainer, record, inputs)
    timing = timing_record(context, trainer, record, times, missing_reasons, lines)
    schemas.write(result / "train.json", TrainRecord, train)
    schemas.write(measured / "timing.json", TimingRecord, timing)

    run_dir.add_metrics(totals(timing))
    run_dir.add_tags(why_no_vram(timing))
    run_dir.save_epochs(record)  # includes the last epochs, if their checkpoint could not be written
    add_records(context, timing, run_dir)
    announce(context, trainer, record, timing, run_dir)


def announce(context: RunContext, trainer: Trainer, record: Record, timing: TimingRecord, run_dir: RunDir) -> None:
    """Print what came out. Warn if other processes have disturbed the measurement; MLflow gets a tag then."""
    lines, times = timing["summary_lines"], timing["timing"]
    if "model_selection" in lines:
        print(lines["model_selection"], flush=True)
    if "overfitting" in lines:
        print(f"warning: {lines['overfitting']}", flush=True)
    if not context.is_replicate and (shared_gpu := conditions.others_on_gpu(timing["conditions"])):
        run_dir.add_tags({"not_comparable": shared_gpu})
        print(f"warning: {shared_gpu}; comparisons of speed exclude this run", flush=True)
    elif not context.is_replicate and (busy := conditions.busy(timing["conditions"])):
        run_dir.add_tags({"busy": busy})
        print(f"warning: busy machine: {busy}; the recorded times are longer than on an idle one", flush=True)

    if not context.is_replicate:
        how = "to fit" if trainer.is_fitted else f"per epoch (median of {times['num_epochs_measured']})"
        print(
            f"{seconds(times['epoch_seconds'])} s {how}, "
            f"{times['samples_per_second']:,.0f} samples/s, {times['train_seconds']:.1f} s in total"
        )
    else:
        name = f"val_{context.task.score_name}"
        print(f"seed {context.seed}: {name.replace('_', ' ', 1)} {record.history[-1][name]:.4f}", flush=True)


def train_record(context: RunContext, trainer: Trainer, record: Record, inputs: dict[str, Any]) -> TrainRecord:
    """Return what was trained and what came out."""
    sha256 = {
        name: files.sha256_file(context.result_dir / name)
        for name in ("best.safetensors", "last.safetensors", "model.json", "history.csv")
    }
    realized = realized_settings(trainer)
    if record.workers:
        realized["workers"] = record.num_workers
    if context.settings.batch_size != context.block.train.batch_size:  # `scaling: weak-...` changed both
        realized["batch_size"] = context.settings.batch_size
        realized["learning_rate"] = context.settings.learning_rate
    model: Any = trainer.model
    selection: Any = {"selection": model.selection()} if hasattr(model, "selection") else {}
    return {
        "schema": schemas.SCHEMA,
        "workload": context.workload,
        "requested": context.requested,
        "device": context.kind,
        "seed": context.seed,
        "preset": preset_in_force(load_params(), context.workload),
        "block": literal(context.block),
        "realized": realized,
        **selection,
        "digests": {
            "data": {
                "table": context.summary.get("table_sha256"),
                "prepared": context.summary["sha256"],
                "packed": inputs["data"],
            },
            "code": inputs["code"],
            "weights": {
                "initial": record.at_start["weights_sha256"],
                **{name: sha256[f"{name}.safetensors"] for name in ("best", "last")},
            },
        },
        "epochs": [{**row, **digests} for row, digests in zip(record.history, record.digests, strict=True)],
        "files": sha256,
    }


def realized_settings(trainer: Trainer) -> Realized:
    realized: Realized = {
        "precision": trainer.execution.precision,
        "grad_accum_steps": trainer.execution.grad_accum_steps,
    }
    if trainer.thread_tuner.kept_number:
        realized["threads"] = trainer.thread_tuner.kept_number
    if not trainer.is_fitted:
        realized["step"] = trainer.execution.step
    return realized


def measured_values(context: RunContext, record: Record) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the totals of the training, None where one is missing, and the reasons for those that may be missing."""
    gpu, missing_of_gpu = summarize_gpu(record.sampled.values())
    energy, missing_energy = summarize_energy(record)
    times = {**summarize(record.timings, record.first_epoch_of_workers), **gpu, **energy}
    missing_reasons = record.missing_reasons | missing_of_gpu | missing_energy
    missing_reasons.pop("energy_joules", None)  # of the last epoch
    if context.is_replicate:
        missing_reasons = {name: NOT_TIMED for name, value in times.items() if value is None} | missing_reasons
    return times, missing_reasons


def closing_lines(
    context: RunContext, trainer: Trainer, record: Record, times: dict[str, Any], missing_reasons: dict[str, str]
) -> dict[str, str]:
    """Return the sentences about the whole training."""
    epochs, model = trainer.epochs_done, cast(Any, trainer.model)
    period = "the fit" if trainer.is_fitted else "the epoch" if epochs == 1 else f"all {epochs} epochs"
    usage = {**times, "num_kernels": record.probe.get("num_kernels")}
    lines = {"device": device_sentence(context.kind, period, usage, context.num_workers)}
    if hasattr(model, "describe_selection"):
        lines["model_selection"] = model.describe_selection(context.task.score_name)
    lines["energy"] = energy_sentence(times, missing_reasons, ENERGY_METHOD)
    if sentence := overfitting_sentence(record.history):
        lines["overfitting"] = sentence
    if trainer.executor.fallbacks:
        lines["out_of_memory"] = f"memory ran out: {', then '.join(trainer.executor.fallbacks)}"
    if reason := trainer.execution.why_no_graph:
        lines["step"] = f"{EAGERLY}: {reason}"
    return lines


def timing_record(
    context: RunContext,
    trainer: Trainer,
    record: Record,
    times: dict[str, Any],
    missing_reasons: dict[str, str],
    lines: dict[str, str],
) -> TimingRecord:
    """Return what was measured, and where, when and on what."""
    # The maximum of all readings; and in the median epoch.
    load = {name: times[name] for name in ("other_processes", "waiting_threads")}
    placement: Placement = {
        "data_location": trainer.execution.data_location,
        "out_of_memory": trainer.executor.fallbacks,
    }
    if record.workers_from_epoch:
        placement["workers_from_epoch"] = record.workers_from_epoch
    return {
        "schema": schemas.SCHEMA,
        "run_key": record.run_key,
        "machine": platform.node(),
        "measured_at": record.at_end["measured_at"],
        "tree": record.at_start["tree"],
        "environment": provenance.environment(context.hardware),
        "hardware": context.hardware,
        "kernels": kernels.described(record.kernels),
        "conditions": {
            "before": record.at_start["conditions"],
            "after": record.at_end["conditions"],
            "between": record.at_end["between"] | {name: value for name, value in load.items() if value is not None},
        },
        "placement": placement,
        "timing": {
            **times,
            **({} if times["train_joules"] is None else {"energy_method": ENERGY_METHOD}),
            "missing_reasons": {name: reason for name, reason in missing_reasons.items() if times.get(name) is None},
        },
        "probe": record.probe,
        "not_probed": record.not_probed,
        "summary_lines": lines,
        "files": {"timings.csv": files.sha256_file(context.measured_dir / "timings.csv")},
    }


def add_records(context: RunContext, timing: TimingRecord, run_dir: RunDir) -> None:
    """Copy the records of the training for MLflow."""
    run_dir.add_text("".join(f"{key}: {line}\n" for key, line in timing["summary_lines"].items()), "answers.txt")
    run_dir.add_artifact(context.result_dir / "train.json")
    run_dir.add_artifact(context.measured_dir / "timing.json")


def totals(timing: TimingRecord) -> dict[str, float]:
    """Return the metrics of the whole training that were measured."""
    times = timing["timing"]
    return {metric: times[name] for name, metric in RUN_METRICS.items() if times.get(name) is not None}


def why_no_vram(timing: TimingRecord) -> dict[str, str]:
    """Return the tag with the reason why there is no metric of VRAM; empty if there is one."""
    reason = timing["timing"]["missing_reasons"].get("peak_allocated_mib")
    return {NO_VRAM_TAG: reason} if reason else {}


def model_document(context: RunContext) -> dict[str, Any]:
    """Return the content of model.json: how to build the network and how to preprocess a new table for it."""
    learned = {name: context.summary[name] for name in LEARNED if name in context.summary}
    params = asdict(context.block.preprocess)
    for key in ("window", "rare_classes", "categories", "rate"):  # model.json names them only if they are in use
        if not params.get(key, True):
            del params[key]
    return {
        "model": literal(context.block.train.model),
        "shape": asdict(context.shape),
        "task": context.block.task,
        "workload": context.workload,
        "preprocessing": {**params, **learned},
    }
