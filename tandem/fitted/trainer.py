"""`FittedTrainer`: a `Trainer` whose only epoch fits the model, without steps."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from tandem.fitted.candidates import Selection
from tandem.fitted.closed_form import MAX_SEQUENCES, ClosedForm, sampled
from tandem.machine.measure import Measurement, measure
from tandem.models import kernels
from tandem.params.schema import Train
from tandem.tasks import Task
from tandem.training.batches import Split
from tandem.training.random_draws import RandomDraws
from tandem.training.trainer import Epoch, Trainer

NO_STEPS = "a fit in closed form takes no steps"


class FittedTrainer(Trainer):
    """A Trainer whose epoch is a `Fit` (closed_form.py): first to train, and after the validation to train and val.

    Of more than MAX_SEQUENCES sequences, the fit gets a sample. Validation uses all of val.
    """

    is_fitted = True

    def __init__(self, model: nn.Module, train: Split, val: Split, settings: Train, task: Task, seed: int = 0) -> None:
        sample, val_sample = sampled(train, val, MAX_SEQUENCES)
        super().__init__(model, sample, val, replace(settings, precision="fp32", step="eager"), task, seed)
        fit = Selection if hasattr(model, "candidates") else ClosedForm
        self.fit = fit(model, task, sample, val_sample, self.executor, settings.batch_size)
        if len(sample) < len(train):
            self.sentences["sequences"] = f"fitted to {len(sample):,} of {len(train):,} sequences, drawn at random"
        self.why_no_steps = NO_STEPS

    def take_steps(self, random_draws: RandomDraws) -> Iterator[int]:
        """Fit the model: the only step of its epoch."""
        self.fit.on_progress = self.on_progress
        with kernels.noted_in(self.step.kernels_used):
            self.loss_sum = self.fit.fit(random_draws.order)
        yield len(self.train_split)

    def end_epoch(self, training: Measurement, *others: Any) -> Epoch:
        epoch = super().end_epoch(training, *others)
        with measure(self.device) as refit:
            self.fit.refit()
        training.add(refit)
        training.missing_reasons["learning_rate"] = NO_STEPS
        digests = {**epoch.digests, "weights_sha256": self.weights_sha256()}
        return replace(epoch, learning_rate=None, digests=digests)
