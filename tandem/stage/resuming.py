"""The state of a training that may be killed at any time: a checkpoint's, or that of a new training.
tandem/training/checkpoint.py says what is in a checkpoint and how long it is kept.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tandem import files
from tandem.params.parsing import literal
from tandem.runs.inputs import Inputs
from tandem.runs.record import Record
from tandem.tracking.run_dir import RunDir, open_run_dir
from tandem.tracking.run_info import write_mlflow_record
from tandem.training.checkpoint import Checkpoint
from tandem.training.context import RunContext
from tandem.training.workers import Workers


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
