"""The single epoch of a model that is fitted without steps.

A model with a method `fit(values, mask, targets)` fits itself (`OwnFit`). Otherwise the fit is one in closed form
(`ClosedForm`): fixed features, computed once, and a ridge regression.

`fit` fits the head to the training split. Validation uses these weights, and `best.safetensors` contains them. `refit`
then fits the head to train and val together, because val has no choice left to make; the result is `last.safetensors`.

For up to MAX_KEPT sequences (train and val together), all features stay in memory, the fit uses the products of
sequences (N x N), and leave-one-out chooses the ridge strength. For more, it sums the products of features (P x P) over
the batches, so memory depends only on the number of features, and chooses the strength on at most NUM_SAMPLE sequences
of val.

Sequences with groups are left out with their whole group: other windows of the same person would tell its label. A
training sequence whose label no other group has is then not judged, and with a single group only val is.

The task provides the regression targets (`encoded`) and a factor for the outputs (`scale_of`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tandem.fitted.rocket import COLUMNS
from tandem.tasks import FittedTask
from tandem.tasks.groups import Groups
from tandem.tasks.ridge import Primal, centred, leave_one_out
from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.executor import Executor
from tandem.training.inference import for_each_part

if TYPE_CHECKING:
    from tandem.fitted.rocket import FittedHead

MAX_KEPT = 4096  # with more, a decomposition of the products takes minutes
NUM_SAMPLE = 2048  # training sequences for the biases and, if not all features are kept, for mean and deviation
SAMPLE_BYTES = 2**28
NUM_SUMMED = 4096  # sequences whose features are added at a time

OnProgress = Callable[[int, int, str], None]  # gets the number done, the number of all, and what they are
SEQUENCES = "sequences' features"


class Fit(ABC):
    """The only epoch of a model that takes no steps."""

    def __init__(self, model: Any, task: Any, train: Split, val: Split, executor: Executor, batch_size: int) -> None:
        self.model, self.task, self.train, self.val, self.executor = model, task, train, val, executor
        self.batch_size = batch_size
        self.on_progress: OnProgress = lambda num_done, num_all, unit: None

    @abstractmethod
    def fit(self, order: Tensor) -> Tensor:
        """Fit to the training split; returns its summed loss. `order` (N,): that of the epoch."""

    def refit(self) -> None:  # noqa: B027  (most models have nothing to do)
        """Fit to train and val together. By default, keep the fit to the training split."""

    def batches(self, *parts: tuple[Split, Tensor]) -> Iterator[Batch]:
        """The batches of some rows of splits."""
        return chain.from_iterable(self.executor.batches(*part, self.batch_size) for part in parts)

    def all_batches(self, *splits: Split) -> Iterator[Batch]:
        return self.batches(*((split, sequential_indices(split)) for split in splits))


class ClosedForm(Fit):
    """Fits `model`'s head to the features of two splits."""

    model: FittedHead
    task: FittedTask
    # The outputs (M, C) for sequences that the fit did not see, before `scale_of`, and the targets.
    held_out: tuple[Tensor, Tensor]
    fit_again: Callable[[], None]  # what `refit` calls

    def fit(self, order: Tensor) -> Tensor:
        """Fit to the training split; returns its summed loss. The sample is the start of `order`."""
        self.model.eval()
        sample = self.sample(self.train, order)
        self.executor.run_with_fallbacks(lambda: self.model.calibrate(sample.values, sample.mask))
        return self.fit_kept() if is_kept(self.train, self.val) else self.fit_summed(sample)

    def sample(self, split: Split, order: Tensor) -> Batch:
        """The first sequences of `order`, limited by NUM_SAMPLE and SAMPLE_BYTES."""
        rows = order[: sample_size(split)]
        return next(self.executor.batches(split, rows, len(rows)))

    def features(self, batch: Batch, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The features (B, P) of a batch, computed in smaller parts if memory runs out."""
        return self.executor.concatenate(
            for_each_part(batch, lambda part: compute(part.values, part.mask), self.executor)
        )

    def refit(self) -> None:
        self.fit_again()
        self.fit_again = lambda: None  # frees the features

    def fit_kept(self) -> Tensor:
        num = len(self.train)
        shape = (num + len(self.val), self.model.head.in_features)
        features = self.executor.run_with_fallbacks(lambda: torch.empty(shape, device=self.train.device.torch_device))
        batch_targets, done = [], 0
        for batch in self.all_batches(self.train, self.val):
            features[done : done + len(batch)] = self.features(batch, self.model.features)
            batch_targets.append(batch.targets)
            done += len(batch)
            self.on_progress(done, len(features), SEQUENCES)
        targets = torch.cat(batch_targets)
        self.executor.run_with_fallbacks(lambda: self.model.standardize_by(features[:num]))
        features.sub_(self.model.mean).mul_(self.model.scale)
        encoded = self.task.encoded(targets).cpu()
        products = products_of(features)
        groups, train_targets = groups_of(self.train), targets[:num].cpu()
        fit = leave_one_out(centred(products[:num, :num]), encoded[:num].double(), features.shape[1], groups)
        judged = can_be_judged(train_targets, groups)
        scale = self.task.scale_of(fit.held_out[judged], train_targets[judged]) if judged.any() else 1.0

        def set_head(coefficients: Tensor) -> Tensor:
            """Set the head from the coefficients of the first sequences; returns its outputs for these sequences."""
            used = features[: len(coefficients)]
            weights = torch.cat([part.cpu().double().T @ coefficients for part in used.split(COLUMNS, dim=1)])  # (P, C)
            intercepts = encoded[: len(used)].double().mean(dim=0) - used.mean(dim=0).cpu().double() @ weights
            self.model.set_head(scale * weights.T, scale * intercepts)
            outputs: Tensor = self.model.head(used)
            return outputs

        def refit() -> None:
            of_both = encoded.double(), features.shape[1], groups_of(self.train, self.val)
            set_head(leave_one_out(centred(products), *of_both).coefficients)

        with torch.no_grad():
            outputs = set_head(fit.coefficients)
            of_val, val_targets = self.model.head(features[num:]).cpu().double() / scale, targets[num:].cpu()
            if not judged.any():
                scale = self.task.scale_of(of_val, val_targets)
                outputs = set_head(fit.coefficients)
            self.held_out = torch.cat([fit.held_out[judged], of_val]), torch.cat([train_targets[judged], val_targets])
            loss = self.task.loss(outputs, targets[:num], torch.empty(0), 0.0) * num
        self.fit_again = torch.no_grad()(refit)
        return loss

    @torch.no_grad()
    def fit_summed(self, sample: Batch) -> Tensor:
        """Like `fit_kept`, but compute the features batch by batch without storing them. The loss covers the sample."""
        sample_features = self.features(sample, self.model.features)
        self.model.standardize_by(sample_features)
        sample_features = (sample_features - self.model.mean) * self.model.scale
        sums = self.summed(self.train, Primal(sample_features.shape[1], self.task.num_outputs))
        val_sample = self.sample(self.val, rows_to_judge(self.val))
        features = self.features(val_sample, self.model.standardized).cpu()
        encoded = self.task.encoded(val_sample.targets).cpu().double()
        strength, weights, intercepts, outputs = sums.best(features, encoded, self.on_progress)
        self.held_out = outputs, val_sample.targets.cpu()
        scale = self.task.scale_of(*self.held_out)
        self.model.set_head(scale * weights.T, scale * intercepts)

        def refit() -> None:
            [(_, weights, intercepts)] = self.summed(self.val, sums).fits([strength])
            self.model.set_head(scale * weights.T, scale * intercepts)

        self.fit_again = torch.no_grad()(refit)
        loss = self.task.loss(self.model.head(sample_features), sample.targets, sample.mask, 0.0)
        return loss * len(self.train)

    def summed(self, split: Split, sums: Primal) -> Primal:
        """Add the split's sequences to `sums`, NUM_SUMMED at a time, because each addition rewrites all products."""
        waiting: list[tuple[Tensor, Tensor]] = []
        num_done = num_waiting = 0
        num_before = 0 if split is self.train else len(self.train)
        for batch in self.all_batches(split):
            waiting.append((self.features(batch, self.model.standardized), self.task.encoded(batch.targets)))
            num_done, num_waiting = num_done + len(batch), num_waiting + len(batch)
            self.on_progress(num_before + num_done, len(self.train) + len(self.val), SEQUENCES)
            if num_waiting >= NUM_SUMMED or num_done == len(split):
                sums.add(*(torch.cat(parts) for parts in zip(*waiting, strict=True)))
                waiting, num_waiting = [], 0
        return sums


class OwnFit(Fit):
    """Calls the model's own `fit(values, mask, targets)` with the training split, on the training's device."""

    @torch.no_grad()
    def fit(self, order: Tensor) -> Tensor:
        """Fit to the training split; returns its summed loss. `order` is unused: `fit` gets all sequences at once."""
        self.model.eval()
        tensors = [
            self.train.tensors[name].to(self.train.device.torch_device) for name in ("values", "mask", "targets")
        ]
        with torch.enable_grad():
            self.model.fit(*tensors)
        total = torch.zeros((), device=self.train.device.torch_device)
        for batch in self.all_batches(self.train):
            outputs = self.model(batch.values, batch.mask)
            total += self.task.loss(outputs, batch.targets, batch.mask, 0.0) * len(batch)
        return total


def is_kept(train: Split, val: Split) -> bool:
    """Whether all features stay in memory."""
    return len(train) + len(val) <= MAX_KEPT


def groups_of(*splits: Split) -> Tensor | None:
    """The groups of the splits' sequences, if they have groups."""
    groups = [split.groups for split in splits if split.groups is not None]
    return torch.cat(groups) if groups else None


def can_be_judged(targets: Tensor, groups: Tensor | None) -> Tensor:
    """Return (N,) bool: whether a group besides the sequence's own has its label. targets (N,): classes or numbers."""
    if groups is None:
        return torch.ones(len(targets), dtype=torch.bool)
    labels = torch.zeros_like(groups) if targets.is_floating_point() else targets.to(groups)
    num_groups = torch.stack([labels, groups]).unique(dim=1)[0].bincount()  # of each label
    return num_groups[labels] > 1


def groups_held_out(train: Split, val: Split) -> Groups | None:
    """The groups of the sequences in `held_out`, in its order; None if they have no groups."""
    of_train, of_val = groups_of(train), groups_of(val)
    if of_train is None or of_val is None:
        return None
    if not is_kept(train, val):
        return Groups(of_val[rows_to_judge(val)].numpy())
    judged = can_be_judged(train.tensors["targets"].cpu(), of_train)
    return Groups(torch.cat([of_train[judged], of_val]).numpy())


def sample_size(split: Split) -> int:
    return max(1, min(NUM_SAMPLE, SAMPLE_BYTES // split.tensors["values"][:1].nbytes))


def rows_to_judge(val: Split) -> Tensor:
    """The rows of val on which the ridge strength is chosen if the features do not all stay in memory."""
    return torch.linspace(0, len(val) - 1, min(len(val), NUM_SAMPLE)).long()[: sample_size(val)]


def products_of(features: Tensor) -> Tensor:
    """features (N, P) fp32 -> (N, N) float64 on the CPU, summed in float64 over parts of the features."""
    total = torch.zeros(len(features), len(features), dtype=torch.float64)
    for part in features.split(COLUMNS, dim=1):
        total += (part @ part.T).cpu()
    return total
