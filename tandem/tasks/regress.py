"""Regress: one number for a whole sequence.

Shapes: outputs (B, 1), targets and predictions (B,) float32, standardized with the training targets' mean and standard
deviation; the results of `evaluate` are in the target's own unit. The score is R2, the share of the targets' variance
that the predictions explain: 1 is perfect, 0 is no better than the mean of the predicted targets.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tandem.tasks import FLOAT32_ROUNDING, Evaluation, FittedTask, ReadArray, as_in_table
from tandem.tasks.baselines import Baseline, compare_with_baselines, compare_with_fitted
from tandem.tasks.groups import Groups
from tandem.tasks.statistics import interval_of_gain


class Task(FittedTask):
    score_name = "r2"
    target = "number"
    paired = "errors"
    charts = ("predicted_numbers",)
    zero = "the mean of what is predicted"
    baselines = {
        "mean": "always the mean",
        "median": "always the median",
        "fitted": "the fitted model",
    }
    usual_model = "conv_gru"
    usual_weights = "best"  # with few sequences, the last epochs memorize (docs/recipes.md)

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__(summary)
        target = summary["target"]
        self.target_name, self.mean, self.std = target["name"], target["mean"], target["std"]

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """Return the mean squared error."""
        return (outputs[:, 0] - targets).square().mean()

    def encoded(self, targets: Tensor) -> Tensor:
        """Return (B, 1): the targets of a ridge regression."""
        return targets[:, None]

    def scale_of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return 1: least squares need no scaling."""
        return 1.0

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        return r2_score(*(part.detach().cpu().double().numpy() for part in (predictions, targets)))

    def to_units(self, values: np.ndarray, anchors: np.ndarray | None = None) -> np.ndarray:
        return values.astype(np.float64) * self.std + self.mean

    def targets_in_units(self, targets: np.ndarray, anchors: np.ndarray | None = None) -> np.ndarray:
        return as_in_table(self.to_units(targets), np.abs(targets) * self.std * FLOAT32_ROUNDING)

    def evaluate(self, outputs: Tensor, read: ReadArray) -> Evaluation:
        targets, ids = read("test", "targets"), read("test", "ids").tolist()
        actual, predicted = self.targets_in_units(targets), self.to_units(outputs[:, 0].numpy())
        train_targets, groups = self.to_units(read("train", "targets")), Groups.of_test_split(self.summary, read)
        baseline_predictions = {
            "mean": np.full(len(actual), train_targets.mean()),
            "median": np.full(len(actual), np.median(train_targets)),
        }
        if self.fitted:
            baseline_predictions["fitted"] = self.to_units(self.fitted.outputs[:, 0].numpy())
        model = self.subject.removeprefix("the ")
        predictions = {model: predicted, **baseline_predictions}
        table = {name: errors(values, actual) for name, values in predictions.items()}
        metrics = {
            **table[model],
            "loss": self.loss(outputs, torch.from_numpy(targets), self.test_mask(read), 0.0).item(),
        }
        for name in baseline_predictions:
            metrics |= {f"{name}_{key}": value for key, value in table[name].items()}
        baselines = {
            name: Baseline(self.baselines[name], table[name]["r2"], gain_over(values, predicted, actual, groups))
            for name, values in baseline_predictions.items()
        }
        of_fitted = baselines.pop("fitted", None)
        compared = compare_with_baselines(metrics["r2"], [*baselines.values()], len(actual), groups, self.subject)
        if self.fitted and of_fitted:
            details = self.fitted.description
            compared += "; " + compare_with_fitted(metrics["r2"], of_fitted, details, len(actual), groups, self.subject)
        baseline_errors = ", ".join(f"{self.baselines[name]} {table[name]['mae']:.4g}" for name in baseline_predictions)
        return Evaluation(
            metrics,
            f"{compared}; MAE of {self.target_name} {metrics['mae']:.4g} ({baseline_errors}), "
            f"RMSE {metrics['rmse']:.4g}",
            [{"prediction": name, **row} for name, row in table.items()],
            [],
            [
                {"sequence": name, "actual": true, "predicted": guess}
                for name, true, guess in zip(ids, actual.tolist(), predicted.tolist(), strict=True)
            ],
        )


def r2_score(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return R2 as in scikit-learn. If all targets are equal, it is 1 for perfect predictions, else 0."""
    residual, total = np.square(actual - predicted).sum(), np.square(actual - actual.mean()).sum()
    if not total:
        return float(not residual)
    return float(1 - residual / total)


def gain_over(
    baseline: np.ndarray, predicted: np.ndarray, actual: np.ndarray, groups: Groups | None = None
) -> tuple[float, float] | None:
    """Return the 95% interval of the gain in r2_score variance of one prediction (N,) over another.

    The variance of these targets counts as known: it affects the size of the gain, but not which prediction is better.
    """
    unit = actual.var() or 1.0
    scores, baseline_scores = (-np.square(actual - values) / unit for values in (predicted, baseline))
    return interval_of_gain(scores, baseline_scores, groups, largest=np.inf)


def errors(predicted: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    residuals = predicted - actual
    return {
        "r2": r2_score(predicted, actual),
        "mae": float(np.abs(residuals).mean()),
        "rmse": float(np.sqrt(np.square(residuals).mean())),
    }
