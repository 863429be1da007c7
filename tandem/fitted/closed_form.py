"""The single epoch of a model that is fitted without steps.

`ClosedForm` has fixed features, computed once, and fits a ridge regression; candidates.py has the other fits.

`fit` fits the head to the training split. Validation uses these weights, and `best.safetensors` contains them. `refit`
then fits the head to train and val together, because val has no choice left to make; the result is `last.safetensors`.

All features stay in memory, the fit uses the products of sequences (N x N), and leave-one-out chooses the ridge
strength. Of more than MAX_SEQUENCES sequences (train and val together), it gets a sample (`sampled`).

Sequences with groups are left out with their whole group: other windows of the same person would tell its label. A
training sequence whose label no other group has is then not judged, and with a single group only val is.

The task provides the regression targets (`encoded`) and a factor for the outputs (`scale_of`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tandem.fitted.rocket import COLUMNS
from tandem.tasks import FittedTask
from tandem.tasks.baselines import sample_rows
from tandem.tasks.groups import Groups
from tandem.tasks.ridge import centred, leave_one_out
from tandem.training.batches import Batch, Split, sequential_indices
from tandem.training.executor import Executor
from tandem.training.inference import for_each_part

if TYPE_CHECKING:
    from tandem.fitted.rocket import FittedHead

MAX_SEQUENCES = 4096  # with more, a decomposition of the products takes minutes
NUM_SAMPLE = 2048  # training sequences for the biases
SAMPLE_BYTES = 2**28

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

    @abstractmethod
    def refit(self) -> None:
        """Fit to train and val together."""

    def batches(self, *splits: Split) -> Iterator[Batch]:
        return chain.from_iterable(
            self.executor.batches(split, sequential_indices(split), self.batch_size) for split in splits
        )


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
        rows = order[: max(1, min(NUM_SAMPLE, SAMPLE_BYTES // self.train.tensors["values"][:1].nbytes))]
        sample = next(self.executor.batches(self.train, rows, len(rows)))
        self.executor.run_with_fallbacks(lambda: self.model.calibrate(sample.values, sample.mask))
        return self.fit_head()

    def features(self, batch: Batch) -> Tensor:
        """The features (B, P) of a batch, computed in smaller parts if memory runs out."""
        return self.executor.concatenate(
            for_each_part(batch, lambda part: self.model.features(part.values, part.mask), self.executor)
        )

    def refit(self) -> None:
        self.fit_again()
        self.fit_again = lambda: None  # frees the features

    def fit_head(self) -> Tensor:
        """Fit the head to the features of the training split; returns its summed loss."""
        num = len(self.train)
        shape = (num + len(self.val), self.model.head.in_features)
        features = self.executor.run_with_fallbacks(lambda: torch.empty(shape, device=self.train.device.torch_device))
        batch_targets, done = [], 0
        for batch in self.batches(self.train, self.val):
            features[done : done + len(batch)] = self.features(batch)
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


def sampled(train: Split, val: Split, largest: int) -> tuple[Split, Split]:
    """`largest` sequences of two splits, in their proportion, drawn with a fixed seed; all if there are no more."""
    share = min(1.0, largest / (len(train) + len(val)))
    return sampled_split(train, share), sampled_split(val, share)


def sampled_split(split: Split, share: float) -> Split:
    if share == 1:
        return split
    rows = torch.from_numpy(sample_rows(len(split), max(1, int(share * len(split)))))
    groups = None if split.groups is None else split.groups[rows]
    return replace(
        split, tensors={name: tensor[rows] for name, tensor in split.tensors.items()}, path=None, groups=groups
    )


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
    judged = can_be_judged(train.tensors["targets"].cpu(), of_train)
    return Groups(torch.cat([of_train[judged], of_val]).numpy())


def products_of(features: Tensor) -> Tensor:
    """features (N, P) fp32 -> (N, N) float64 on the CPU, summed in float64 over parts of the features."""
    total = torch.zeros(len(features), len(features), dtype=torch.float64)
    for part in features.split(COLUMNS, dim=1):
        total += (part @ part.T).cpu()
    return total
