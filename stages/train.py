"""Train one workload's model on one device: `python -m tandem.stage train WORKLOAD DEVICE SEED`.

Reads the packed splits and their plan, the hardware file and params.yaml. Writes two folders to
results/runs/<workload>/<device>/train/, with a folder for the seed in each. `result` has the same bytes whenever the
training is reproduced: the weights, `model.json`, `history.csv` and `train.json`. `measured` has the times:
`timings.csv`, and `timing.json`, which also says where, when and on what they were measured. It also has `mlflow.json`,
the training as MLflow gets it.

The seed is the first one of params.yaml. The stage `replicate` runs this module for the other seeds, with one or more
seeds as arguments, and then nothing is measured.

SIGKILL saves nothing: the next `dvc repro` resumes from the last checkpoint (tandem/training/checkpoint.py). Under DVC,
that one is kept until dvc.lock records the result, so a failed `dvc commit` does not repeat the training. Ctrl+C
finishes the epoch and saves a checkpoint; a second Ctrl+C stops at once.

For several workers (device 2xcpu), tandem/training/launcher.py starts the processes. The first worker runs `main`, like
a training in one process; the others run `run_other_worker`.
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
from tandem.runs.inputs import Inputs, read_inputs
from tandem.runs.record import Record
from tandem.runs.run import open_folder
from tandem.stop_signals import GracefulStop, StopSignals
from tandem.terminal.command import sentence_of
from tandem.tracking.recorder import Recorder, entries_at_start
from tandem.tracking.results import write_results
from tandem.tracking.run_dir import RunDir, open_run_dir
from tandem.tracking.run_info import write_mlflow_record, write_run_info
from tandem.training import auto
from tandem.training.checkpoint import Checkpoint
from tandem.training.context import RunContext
from tandem.training.execution import EAGERLY
from tandem.training.opening import open_trainer, stop_on_out_of_memory
from tandem.training.trainer import Trainer
from tandem.training.workers import Workers, process_group, workers_sentence


def main(workload: str, device: str, *seeds: str) -> None:
    """Train with each seed. A replicate that fails does not stop the others; its error is raised at the end."""
    contexts, errors = [open_context(workload, device, int(seed)) for seed in seeds], []
    first = contexts[0]
    with process_group(device, first.num_workers, first.kind) as workers, GracefulStop() as interruption:
        for context in contexts:
            try:
                train(context, workers, interruption)
            except (ValueError, OSError) as error:
                if not context.is_replicate:
                    raise
                errors.append(f"seed {context.seed}: {sentence_of(error)}")
    if errors:
        raise ValueError("; ".join(errors))


def train(context: RunContext, workers: Workers, interruption: GracefulStop) -> None:
    """Train to the last epoch, from a checkpoint if there is one, and write the results."""
    inputs = Inputs(context.workload, context.requested, context.seed, context.summary.get("table_sha256"))
    with locked_training(context, inputs, workers) as (checkpoint, state, run_dir):
        record, trainer = Record(**state["record"]), open_trainer(context, state["trainer"], workers)
        with stop_on_out_of_memory(trainer):
            context = context.with_evaluate(record.at_start["evaluate"])
            if not trainer.epochs_done:
                choose_settings(context, trainer, record)
            elif not record.is_finished:
                choose_threads(context, trainer, record)
            connect_workers(context, trainer, record, workers)
            write_run_info(context, trainer, record, inputs.values, run_dir)
            if record.history:  # the run directory may have been removed, or the process killed before it wrote these
                run_dir.save_epochs(record)
            if not record.is_finished:
                recorder = Recorder(context, trainer, record, inputs, checkpoint, run_dir, interruption)
                with recorder.recording():
                    trainer.train_epochs(recorder.record_epoch)
                workers.close()  # the other workers leave their process group now, and do not wait for the results
            write_results(context, trainer, record, inputs.values, run_dir)


def open_context(workload: str, device: str, seed: int) -> RunContext:
    """Open a training. A replicate takes the realized settings of the first seed, so it needs no measurement of its
    own. On a CPU it uses one thread, because several replicates run at the same time.
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
    record = Record(uuid.uuid4().hex, at_start={"evaluate": literal(context.block.evaluate)})
    state = {"trainer": None, "record": vars(record)}
    checkpoint.save(state)  # a training that is killed in its first epoch keeps its MLflow run
    return state


def choose_settings(context: RunContext, trainer: Trainer, record: Record) -> None:
    """Before the first epoch: choose what is `auto`, find the bottleneck, and record both."""
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    model, epochs = context.block.train.model.name, context.settings.epochs
    duration = "fit it to" if trainer.is_fitted else f"train on, {epochs} epoch{'s' * (epochs > 1)}"
    if not context.is_replicate:
        print(
            f"{context.workload} on {context.hardware['name']}: {model} with {num_parameters:,} parameters, "
            f"{len(trainer.train_split):,} sequences to {duration}",
            flush=True,
        )
    record.at_start |= entries_at_start(trainer)
    start = time.monotonic()
    notes = auto.resolve(trainer, context.hardware)
    auto_seconds = time.monotonic() - start
    notes |= trainer.sentences
    print(*notes.values(), sep="\n", end="\n" if notes else "", flush=True)
    if reason := trainer.why_no_graph:
        print(f"{EAGERLY}: {reason}", flush=True)
    find_bottleneck(trainer, record, auto_seconds)
    record.summary_lines |= notes


def choose_threads(context: RunContext, trainer: Trainer, record: Record) -> None:
    """After a resume: the number of threads may have to be chosen anew."""
    if sentence := auto.open_threads(trainer, context.hardware):
        record.summary_lines["threads"] = sentence
        print(sentence, flush=True)


def find_bottleneck(trainer: Trainer, record: Record, auto_seconds: float) -> None:
    """If params.yaml enables the probe, record the bottleneck of a training step and the advice for it."""
    if not trainer.settings.probe:
        return
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


def connect_workers(context: RunContext, trainer: Trainer, record: Record, workers: Workers) -> None:
    """Connect the other workers, if any, to this training, and print a description of them."""
    if workers.count > 1:
        workers.broadcast(trainer.execution.precision)
        trainer.use_workers(workers)
    if changed := record.set_num_workers(workers.count):
        print(changed, flush=True)
    if workers.count > 1:
        record.summary_lines["workers"] = workers_sentence(workers, context.kind, trainer.settings, context.block.train)
        print(record.summary_lines["workers"], flush=True)


def run_other_worker(workload: str, device: str, seed: str) -> None:
    """Train as one of several workers, except the first. Such a worker prints nothing and writes no file."""
    context = open_context(workload, device, int(seed))
    with process_group(device, context.num_workers, context.kind) as workers, StopSignals() as interruption:
        workers.require_same(read_inputs(workload, device, context.seed))
        state = workers.broadcast()
        trainer = open_trainer(context, state["trainer"], workers)
        with stop_on_out_of_memory(trainer):
            trainer.executor.use(replace(trainer.execution, precision=workers.broadcast()))
            trainer.use_workers(workers)
            if Record(**state["record"]).is_finished:
                return
            workers.cpu_seconds_of_others()
            while trainer.epochs_done < context.settings.epochs:
                trainer.train_epoch()
                if trainer.epochs_done < context.settings.epochs and workers.any(interruption.stop_requested):
                    return  # interrupted: the first worker saves the checkpoint
            workers.cpu_seconds_of_others()
