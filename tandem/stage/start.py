"""What a training does before its first epoch: it opens its context, and its state from a checkpoint if there is one
(tandem/training/checkpoint.py), chooses what is `auto`, finds the bottleneck of a step, and connects the other workers.
What it chooses and finds is printed and recorded.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tandem import files
from tandem.diagnosis import probe
from tandem.params.loading import load_params
from tandem.params.parsing import literal
from tandem.runs.inputs import Inputs
from tandem.runs.record import Record
from tandem.runs.run import open_folder
from tandem.stage.recorder import entries_at_start
from tandem.tracking.run_dir import RunDir, open_run_dir
from tandem.tracking.run_info import write_mlflow_record
from tandem.training import auto
from tandem.training.checkpoint import Checkpoint
from tandem.training.context import RunContext
from tandem.training.execution import EAGERLY
from tandem.training.trainer import Trainer
from tandem.training.workers import Workers, workers_sentence


def open_context(workload: str, device: str, seed: int) -> RunContext:
    """Open a training. A replicate takes the realized precision of the first seed, so it needs no measurement of its
    own. It uses one thread, because on a CPU several replicates run at the same time.
    """
    context = RunContext.of(workload, device, seed)
    if not context.is_replicate:
        return context
    first_run = open_folder(files.runs_dir(workload, device), load_params().seeds[0])
    overrides = {"probe": False, "precision": first_run.train["realized"]["precision"]}
    if context.num_workers == 1:
        overrides["threads"] = 1
    return replace(context, overrides=overrides)


@contextmanager
def locked_training(
    context: RunContext, inputs: Inputs, workers: Workers
) -> Iterator[tuple[Checkpoint, dict[str, Any], RunDir]]:
    """Yield the training's checkpoint, locked, its state, and its run directory.

    After a body without an error, write mlflow.json; under DVC mark the checkpoint as ended, else remove it.
    """
    checkpoint = Checkpoint.of_training(context, inputs.values)
    files.require_writable(context.result_dir)
    with checkpoint.locked():
        workers.require_same(inputs.values)
        state = open_state(context, checkpoint)
        workers.broadcast(state)
        with open_run_dir(state["record"]["run_key"], "train") as run_dir:
            yield checkpoint, state, run_dir
        write_mlflow_record(context, run_dir)
        if "DVC_STAGE" in os.environ:
            output = context.measured_dir.parent  # with the folders of all seeds
            checkpoint.mark_ended(None if context.is_replicate else output)
        else:
            checkpoint.remove()


def open_state(context: RunContext, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the training's state from its checkpoint, or a new state, whose `trainer` is None."""
    checkpoint.prune()
    saved, message = checkpoint.load()
    record = Record(**saved["record"]) if saved else None
    if record and record.is_finished and record.num_workers != context.num_workers:
        # Finished with another number of workers: the results are equal within rounding, but the timings differ.
        saved, message = None, ""
    if saved and record:
        epochs_done = saved["trainer"]["epochs_done"] if saved["trainer"] else 0
        written = ": training is complete, the results are written again" if record.is_finished else ""
        print(f"{message}, epoch {epochs_done} of {context.settings.epochs}{written}", flush=True)
        return saved
    if message:
        print(message, flush=True)
    record = Record(uuid.uuid4().hex, evaluate=literal(context.block.evaluate))
    state = {"trainer": None, "record": vars(record)}
    checkpoint.save(state)  # a training that is killed in its first epoch keeps its MLflow run
    return state


def prepare(context: RunContext, trainer: Trainer, record: Record, workers: Workers) -> None:
    """Choose what is `auto`, find the bottleneck, and connect the other workers.

    A resumed training keeps what was chosen and found, but for the number of threads; its workers may be others.
    """
    if not trainer.epochs_done:
        choose_settings(context, trainer, record)
    elif not record.is_finished and (sentence := auto.open_threads(trainer, context.hardware)):
        record.summary_lines["threads"] = sentence
        print(sentence, flush=True)
    trainer.use_workers(workers)
    if changed := record.set_num_workers(workers.count):
        print(changed, flush=True)
    if workers.count > 1:
        record.summary_lines["workers"] = workers_sentence(workers, context.kind, trainer.settings, context.block.train)
        print(record.summary_lines["workers"], flush=True)


def choose_settings(context: RunContext, trainer: Trainer, record: Record) -> None:
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    model, epochs = context.block.train.model.name, context.settings.epochs
    duration = "fit it to" if trainer.is_fitted else f"train on, {epochs} epoch{'s' * (epochs > 1)}"
    if not context.is_replicate:
        print(
            f"{context.workload} on {context.hardware['name']}: {model} with {num_parameters:,} parameters, "
            f"{len(trainer.train_split):,} sequences to {duration}",
            flush=True,
        )
    record.at_start = entries_at_start(context.workload, trainer)
    begin = time.monotonic()
    notes = auto.resolve(trainer, context.hardware)
    auto_seconds = time.monotonic() - begin
    notes |= trainer.sentences
    print(*notes.values(), sep="\n", end="\n" if notes else "", flush=True)
    if reason := trainer.execution.why_no_graph:
        print(f"{EAGERLY}: {reason}", flush=True)
    if trainer.settings.probe:
        find_bottleneck(trainer, record, auto_seconds)
    record.summary_lines |= notes


def find_bottleneck(trainer: Trainer, record: Record, auto_seconds: float) -> None:
    """Record the bottleneck of a training step and the advice for it."""
    result = trainer.why_no_steps or probe.probe(trainer, auto_seconds)
    if isinstance(result, str):
        record.summary_lines["bound"] = f"not probed: {result}"
    else:
        record.probe, record.not_probed = result.numbers(), result.missing_reasons
        record.bound = {"bound": result.bottleneck, "advice": result.advice()}
        record.summary_lines |= {"bound": result.sentence(), "memory": result.memory_sentence()}
        if missing := result.missing_sentence():
            record.summary_lines["not_measured"] = missing
    print(record.summary_lines["bound"], flush=True)
