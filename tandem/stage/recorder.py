"""Shows and records the epochs of a training while it runs, and saves its checkpoints."""

import math
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tandem import files
from tandem.machine import conditions
from tandem.machine.measure import Meter, sampled
from tandem.machine.sampler import SampledWindow
from tandem.params import schema
from tandem.runs import provenance
from tandem.runs.inputs import Inputs
from tandem.runs.quantities import history_row, timing_row
from tandem.runs.record import NOT_TIMED, Record, memory_tags
from tandem.runs.terminal import Progress
from tandem.stop_signals import GracefulStop
from tandem.tracking.run_dir import RunDir
from tandem.training.checkpoint import Checkpoint
from tandem.training.context import RunContext
from tandem.training.network_checks import check_state
from tandem.training.trainer import Epoch, Trainer

# After an epoch, a checkpoint is saved if the last one is older than CHECKPOINT_SECONDS, and old enough for saving to
# take at most CHECKPOINT_SHARE of the time.
CHECKPOINT_SHARE = 0.01
CHECKPOINT_SECONDS = 10.0
THIS_PROCESS = uuid.uuid4().hex  # a resumed training may have the same process id, as in a container


class Recorder:
    """What a training in progress shows, records and saves. `trainer` passes each epoch to `record_epoch`."""

    def __init__(
        self,
        context: RunContext,
        trainer: Trainer,
        record: Record,
        inputs: Inputs,
        checkpoint: Checkpoint,
        run_dir: RunDir,
        interruption: GracefulStop,
    ) -> None:
        self.context, self.trainer, self.record, self.inputs = context, trainer, record, inputs
        self.checkpoint, self.run_dir, self.interruption = checkpoint, run_dir, interruption
        self.first_epoch_here = trainer.epochs_done + 1  # of the epochs that this process trains
        self.meter, self.readings = Meter(trainer.device), SampledWindow({})
        self.saved_at, self.save_seconds = time.monotonic(), 0.0
        prefix = f"seed {context.seed}, " if context.is_replicate else ""
        self.progress = Progress(context.workload, context.settings.epochs, trainer.epochs_done, prefix)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Sample the device in the body, which trains to the last epoch. Then complete the record and save it."""
        workers = self.trainer.workers
        self.trainer.on_progress = self.progress.show_fit
        # The tags at once: the training may fail after a fallback.
        self.trainer.executor.on_fallback = lambda fallbacks: self.run_dir.add_tags(memory_tags(fallbacks))
        cpu_seconds_before = workers.cpu_seconds_of_others()
        with sampled(self.trainer.device) as readings:  # of a replicate too: else each epoch would start a sampler
            if not self.context.is_replicate:
                self.readings = readings
            yield
        self.progress.close()
        self.add_readings()  # with the sampler's last reading
        cpu_seconds = workers.cpu_seconds_of_others() - cpu_seconds_before
        self.record.at_end = entries_at_end(self.trainer, self.record, cpu_seconds)
        self.save_last()

    def record_epoch(self, epoch: Epoch) -> None:
        """Record `epoch`, check the inputs, and save a checkpoint if one is due.

        Raises ValueError if a loss is not finite, a network has state that is not saved or an input has changed, and
        KeyboardInterrupt, after saving, if the user has interrupted the training.
        """
        score_name, num_sequences = self.context.task.score_name, self.trainer.num_sequences
        self.progress.show(epoch, score_name, num_sequences)
        self.check_finite(epoch)
        self.check_state(epoch)
        self.record.history.append(history_row(epoch, score_name))
        self.record.digests.append(epoch.digests)
        warmup_epochs = self.context.settings.warmup_epochs
        self.record.timings.append(timing_row(epoch, num_sequences, warmup_epochs, not self.context.is_replicate))
        self.record.missing_reasons = epoch.training.missing_reasons
        self.record.summary_lines |= self.trainer.sentences
        self.record.kernels = sorted({*self.record.kernels, *self.trainer.step.kernels_used})
        self.add_readings()
        self.check_inputs()
        if epoch.number < self.context.settings.epochs:
            # All workers stop after the same epoch.
            is_interrupted = self.trainer.workers.any(self.interruption.stop_requested)
            self.save_if_due(epoch.number, is_interrupted)
            if is_interrupted:
                self.stop(epoch.number)

    def add_readings(self) -> None:
        """Record the energy and the GPU sampler's readings of the epochs that this process has trained."""
        reason = NOT_TIMED if self.context.is_replicate else self.trainer.why_no_energy
        self.record.energy[self.first_epoch_here] = reason or self.meter.joules()
        self.record.sampled[self.first_epoch_here] = self.readings.totals()

    def check_finite(self, epoch: Epoch) -> None:
        losses = {"training": epoch.train_loss, "validation": epoch.val_loss}
        if diverged := [name for name, loss in losses.items() if not math.isfinite(loss)]:
            path = files.relative(self.checkpoint.path)
            note = f"; the last good checkpoint is kept in {path}" if self.checkpoint.path.exists() else ""
            raise ValueError(
                f"the {diverged[0]} loss is {losses[diverged[0]]} in epoch {epoch.number}{note}; "
                "try a smaller train.learning_rate, or train.max_grad_norm 1.0"
            )

    def check_state(self, epoch: Epoch) -> None:
        """Of a network of the workload's own, after the first epoch, so that a mistake costs little, and the last."""
        settings = self.context.settings
        if settings.model.name not in schema.BUILT_IN and epoch.number in (1, settings.epochs):
            check_state(self.trainer.model, self.trainer.val_split, self.context.shape, settings)

    def check_inputs(self) -> None:
        """Raise ValueError if an input changed: DVC would record the new one (treeverse/dvc#11058)."""
        changed = self.inputs.lasting_changes()
        if not changed:
            return
        if not self.inputs.has_other_data():  # which this epoch may have read
            self.save()
        path = files.relative(self.checkpoint.path)
        changes = f"{' and '.join(changed)} of {self.context.workload}"
        raise ValueError(
            f"{changes} changed during the training, so a result would match neither version; the checkpoint is kept "
            f"({path}): undo the change and run again to resume from it, or run `dvc repro` again to train with the "
            "current files"
        )

    def save_if_due(self, epochs_done: int, is_interrupted: bool) -> None:
        is_old = time.monotonic() - self.saved_at > max(CHECKPOINT_SECONDS, self.save_seconds / CHECKPOINT_SHARE)
        if is_old or epochs_done == 1 or is_interrupted:
            self.save()

    def stop(self, epochs_done: int) -> NoReturn:
        """Say where the checkpoint is, and raise KeyboardInterrupt, which ends the training."""
        path = files.relative(self.checkpoint.path)
        print(f"interrupted after epoch {epochs_done}, saved in {path}; run again to resume", flush=True)
        raise KeyboardInterrupt

    def save_last(self) -> None:
        """Save the last checkpoint. If this fails, print a warning: the results are still written."""
        try:
            self.save()
        except OSError as error:
            print(f"warning: {error}", file=sys.stderr, flush=True)

    def save(self) -> None:
        start = time.monotonic()
        self.checkpoint.save({"trainer": self.trainer.state(), "record": vars(self.record)})
        self.run_dir.save_epochs(self.record)
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - start


def entries_at_start(workload: str, trainer: Trainer) -> dict[str, Any]:
    """Return what the result files say about the start of a training. Checkpoints contain it, because after a resume
    another process writes the results.
    """
    return {
        "tree": provenance.tree(workload),
        "conditions": conditions.read(trainer.device),
        "weights_sha256": trainer.weights_sha256(),
        "process": THIS_PROCESS,
    }


def entries_at_end(trainer: Trainer, record: Record, cpu_seconds_of_others: float) -> dict[str, Any]:
    """Return what timing.json says about the end of a training.

    `cpu_seconds_of_others`: the processor time that the other workers on this machine have used for the training.
    """
    before, after = record.at_start["conditions"], conditions.read(trainer.device)
    after["own_cpu_seconds"] += cpu_seconds_of_others
    return {
        "measured_at": files.now(),
        "conditions": after,
        # Processor time is counted per process, so a resumed training has no total.
        "between": conditions.between(before, after) if record.at_start["process"] == THIS_PROCESS else {},
    }
