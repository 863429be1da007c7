"""Fits every candidate of a network and selects one by held-out errors (tandem/fitted/model_selection.py).

All candidates are judged on the same sequences, which no fit saw: the training sequences, left out one at a time
(ridge) or out of the bag (forest), and those of val.

If the sequences have groups (a person, or a recording that was cut into windows), a training sequence is left out with
its whole group (ridge), or with a fifth of the groups (forest), so that the held-out score is one for new groups.

The error of a sequence is the squared error, or for classify 1 for a wrong class plus the Brier score (Brier 1950,
Monthly Weather Review 78, 1-3): with few sequences, the number of wrong ones hardly tells two candidates apart. The
first candidate, rocket, is selected unless the best one's mean error is smaller by more than one standard error of the
difference, paired by sequence: chance alone makes one of three better, and leave-one-out is a little optimistic after
it has chosen the strength of a ridge (docs/recipes.md).
"""

from __future__ import annotations

import math
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tandem.fitted import closed_form
from tandem.fitted.closed_form import ClosedForm, Fit
from tandem.tasks import FittedTask
from tandem.tasks.groups import Groups
from tandem.tasks.statistics import jackknife_error

if TYPE_CHECKING:
    from tandem.fitted.model_selection import Network
    from tandem.fitted.quant import Forest

NUM_STANDARD_ERRORS = 1.0
NUM_STANDARD_ERRORS_OVER_CONSTANT = 2.0  # more than 1, because the best of three candidates is compared
SHARE_OF_FEATURES = 0.1  # of all features, from which a node chooses, as in QUANT
SECONDS_OF_A_PART = 2.0  # between two reports of progress
MAX_FOREST_BYTES = 2**30  # of all sequences' quantiles; if there are more, a random part of them is used
NUM_FOLDS = 5  # of groups
SHARE_OF_TREES = 3 / 8  # size of a fold's forest: about the share of trees whose bootstrap sample lacks a sequence


class Selection(Fit):
    model: Network
    task: FittedTask

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        candidates: dict[str, Any] = dict(self.model.candidates.items())
        self.fits: dict[str, ClosedForm | ForestFit] = {
            name: (ForestFit if name == "forest" else ClosedForm)(candidate, *inputs[1:])
            for name, candidate in candidates.items()
        }

    def fit(self, order: Tensor) -> Tensor:
        """Fit all candidates to the training split and select one; returns its summed loss."""
        losses, errors, scores = {}, {}, dict.fromkeys(self.model.candidates, float("nan"))
        for name, fit in self.fits.items():
            fit.on_progress = self.on_progress
            losses[name] = fit.fit(order)
            outputs, targets = fit.held_out
            encoded = self.task.encoded(targets)  # the same for all candidates
            errors[name], scores[name] = errors_of(outputs, encoded, targets), self.score(outputs, targets)
        constant = encoded.mean(dim=0).expand_as(encoded)
        selected = selected_by(errors)
        self.model.selected.fill_([*scores].index(selected))
        self.model.held_out_scores.copy_(torch.tensor([*scores.values(), self.score(constant, targets)]))
        gain = errors_of(constant, encoded, targets) - errors[selected]
        groups = closed_form.groups_held_out(self.train, self.val)
        self.model.beats_constant.fill_(is_clear(gain, NUM_STANDARD_ERRORS_OVER_CONSTANT, groups))
        self.fits = {selected: self.fits[selected]}  # frees the others' features
        return losses[selected]

    def refit(self) -> None:
        """Fit the selected candidate to train and val together."""
        for fit in self.fits.values():
            fit.refit()

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        mask = torch.empty(0)
        return self.task.score(self.task.predict(outputs, mask), targets, mask)


def errors_of(outputs: Tensor, encoded: Tensor, targets: Tensor) -> Tensor:
    """outputs and encoded targets (M, C), targets (M,) -> (M,)"""
    squared = (outputs - encoded).square().sum(dim=1)
    if targets.is_floating_point():
        return squared
    return (outputs.argmax(dim=1) != targets) + squared / 4  # the classes are encoded as -1 and 1 instead of 0 and 1


def selected_by(errors: dict[str, Tensor]) -> str:
    """The name of the candidate to select. errors: name -> (M,), of the same sequences; the first is the default."""
    default, best = next(iter(errors)), min(errors, key=lambda name: errors[name].mean().item())
    return best if is_clear(errors[default] - errors[best], NUM_STANDARD_ERRORS) else default


def is_clear(gains: Tensor, num_standard_errors: float, groups: Groups | None = None) -> bool:
    """Whether the mean of gains (M,) is more than so many standard errors above 0. If the sequences have groups, the
    error is over these, and with too few of them nothing is clear.
    """
    error = float(gains.std()) / len(gains) ** 0.5
    if groups:
        sums = groups.sums(gains.numpy())
        error = jackknife_error((sums.sum() - sums) / (len(gains) - groups.sizes)) if not groups.shortage else math.inf
    return bool(gains.mean() > num_standard_errors * error)


def folds_of(groups: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return (N,) fold numbers. Groups are whole, and dealt to the folds in the order of their median target, so that
    groups of one label come into different folds.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    medians = [np.median(targets[numbers == group]) for group in range(numbers.max() + 1)]
    return (np.argsort(np.argsort(medians, kind="stable")) % NUM_FOLDS)[numbers]


class ForestFit(Fit):
    """Grows the trees of `model` on the CPU, with scikit-learn."""

    model: Forest
    task: FittedTask
    features: np.ndarray  # (N, P) of the sequences of train, then of val
    columns: np.ndarray  # (P,) their numbers among all features
    targets: Tensor  # (N,)

    @torch.no_grad()
    def fit(self, order: Tensor) -> Tensor:
        """Fit to bootstrap samples of the training split; returns its summed loss, out of the bag or of the folds."""
        lengths = self.train.tensors["mask"].sum(dim=1)
        self.model.has_padding.fill_(bool(lengths.min() < lengths.max()))
        groups, num_train = closed_form.groups_of(self.train), len(self.train)
        self.read()
        outputs = self.held_out_outputs(self.grow(num_train, bootstrap=True), num_train, groups)
        judged = torch.ones(len(outputs), dtype=torch.bool)
        judged[:num_train] = closed_form.can_be_judged(self.targets[:num_train], groups)
        self.held_out = outputs[judged].double(), self.targets[judged]
        scale_rows = torch.where(judged[:num_train])[0] if judged[:num_train].any() else slice(num_train, None)
        scale = self.task.scale_of(outputs[scale_rows], self.targets[scale_rows])
        self.model.scale.fill_(scale)
        loss = self.task.loss(scale * outputs[:num_train], self.targets[:num_train], torch.empty(0), 0.0)
        return loss.to(self.train.device.torch_device) * len(self.train)

    @torch.no_grad()
    def refit(self) -> None:
        """Fit to train and val, without bootstrap samples, because no score is computed any more."""
        self.grow(len(self.targets), bootstrap=False)
        self.features = np.empty((0, 0), np.float32)  # frees them

    def read(self) -> None:
        """Compute the features of both splits."""
        num_rows = len(self.train) + len(self.val)
        first_batch = next(self.batches(self.train)).first(1)
        num_features = self.model.features(first_batch.values, first_batch.mask).shape[1]
        size = min(num_features, max(1, MAX_FOREST_BYTES // (4 * num_rows)))
        self.columns = np.sort(np.random.default_rng(self.model.seed).choice(num_features, size, replace=False))
        # A node reads one feature of all its sequences, so these are next to each other in memory.
        self.features, done, targets = np.empty((num_rows, size), np.float32, order="F"), 0, []
        for batch in self.batches(self.train, self.val):
            features = self.model.features(batch.values, batch.mask).numpy()
            self.features[done : done + len(batch)] = features if size == num_features else features[:, self.columns]
            targets.append(batch.targets.cpu())
            done += len(batch)
            self.on_progress(done, num_rows, closed_form.SEQUENCES)
        self.targets = torch.cat(targets)

    def grow_in_parts(self, forest: Any, features: np.ndarray, targets: np.ndarray) -> None:
        """Fit scikit-learn's `forest` a few trees at a time, to show progress. The trees are those of a single fit."""
        start, num_trees, num_all = time.monotonic(), 0, self.model.num_trees
        while num_trees < num_all:
            num_in_time = int(SECONDS_OF_A_PART * num_trees / max(time.monotonic() - start, 1e-3))
            num_trees = min(num_all, num_trees + max(forest.n_jobs, num_in_time))
            forest.set_params(n_estimators=num_trees)
            with warnings.catch_warnings():  # scikit-learn warns in each tree if there are many classes
                warnings.filterwarnings("ignore", "The number of unique classes")
                forest.fit(features, targets)
            self.on_progress(num_trees, num_all, "trees")

    def grow(self, num: int, bootstrap: bool) -> Any:
        """Grow the trees on the first `num` sequences. Returns scikit-learn's forest."""
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        is_number = self.targets.is_floating_point()
        kind, criterion = (ExtraTreesRegressor, "squared_error") if is_number else (ExtraTreesClassifier, "entropy")
        forest = kind(
            criterion=criterion,
            max_features=SHARE_OF_FEATURES,
            bootstrap=bootstrap,
            random_state=self.model.seed,
            n_jobs=torch.get_num_threads(),  # changes no bit
            warm_start=True,
        )
        self.grow_in_parts(forest, self.features[:num], self.targets[:num].numpy())
        trees = [estimator.tree_ for estimator in forest.estimators_]
        values = [tree.value[:, 0] for tree in trees]  # (nodes, 1), or (nodes, classes): their shares
        leaves = [value[:, 0] if is_number else forest.classes_[value.argmax(axis=1)] for value in values]
        self.model.set_trees(trees, leaves)
        self.model.feature = torch.from_numpy(self.columns).to(self.model.feature)[self.model.feature.long()]
        return forest

    def held_out_outputs(self, forest: Any, num_train: int, groups: Tensor | None) -> Tensor:
        """(N, C) outputs of trees that did not see the sequence: those out of the bag, or with `groups` (num_train,)
        those of other groups.
        """
        predictions = mean_of_unseen(forest, self.features)
        if groups is not None and len(groups.unique()) > 1:
            predictions[:num_train] = self.predictions_of_other_groups(forest, groups.numpy())
        if self.targets.is_floating_point():
            return torch.from_numpy(predictions).float()
        shares = torch.zeros(len(predictions), self.task.num_outputs)
        shares[:, forest.classes_] = torch.from_numpy(predictions).float()
        return 2 * shares - 1

    def predictions_of_other_groups(self, forest: Any, groups: np.ndarray) -> np.ndarray:
        """(num_train, C) predictions by forests like `forest` that did not see the sequence's fold of the groups."""
        from sklearn import clone

        num_trees, num_train = round(SHARE_OF_TREES * self.model.num_trees), len(groups)
        features, targets = self.features[:num_train], self.targets[:num_train].numpy()
        folds = folds_of(groups, targets)
        num_folds, predictions = folds.max() + 1, []
        for fold in range(num_folds):
            fold_forest = clone(forest).set_params(n_estimators=num_trees, bootstrap=False, warm_start=False)
            fold_forest.fit(features, targets, sample_weight=folds != fold)
            predict = getattr(fold_forest, "predict_proba", fold_forest.predict)
            predictions.append(predict(features[folds == fold]))
            self.on_progress(fold + 1, num_folds, "forests, each without a fold of the groups")
        order = np.argsort(np.argsort(folds, kind="stable"))
        return np.concatenate(predictions)[order].reshape(num_train, -1)


def mean_of_unseen(forest: Any, features: np.ndarray) -> np.ndarray:
    """features (N, P), first those that the trees of scikit-learn's `forest` were grown on -> (N, C): the mean
    prediction of the trees whose bootstrap sample does not contain the sequence; 0 if there is none.
    """
    total, num_trees = 0, np.zeros((len(features), 1))
    for tree, sample in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        is_unseen = np.ones((len(features), 1))
        is_unseen[sample] = 0
        total = total + is_unseen * tree.tree_.predict(features)
        num_trees += is_unseen
    return total / num_trees.clip(min=1)
