"""Classify: one label for a whole sequence.

Shapes: outputs (B, C) logits, targets (B,) int64, predictions (N,) int64, confusion (C, C) with true classes as rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.tasks import Evaluation, FittedTask, NewInputs, ReadArray, described
from tandem.tasks.baselines import (
    Baseline,
    compare_with_baselines,
    compare_with_fitted,
    nearest_neighbours,
    num_comparable,
    num_useful_features,
    sample_rows,
)
from tandem.tasks.groups import Groups
from tandem.tasks.scores import macro_f1_of_sums, macro_mean, precision_recall_f1
from tandem.tasks.statistics import agreeing_with, interval_of_gain, mcnemar
from tandem.tasks.stretches import Stretches

RARE = 0.5  # of the share that a class would have if all were equally frequent
SCALES = [2 ** (power / 2) for power in range(13)]  # from 1 to 64


class Task(FittedTask):
    score_name = "accuracy"
    smooths_labels = True
    paired = "correct"
    baselines = {
        "most_frequent": "always the most frequent class",
        "nearest_neighbour": "1-NN",
        "fitted": "the fitted model",
    }
    usual_model = "conv_gru"
    usual_label_smoothing = 0.1

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """Return the cross-entropy; label smoothing as in Szegedy et al. 2016, arXiv:1512.00567, section 7."""
        return F.cross_entropy(outputs, targets, label_smoothing=label_smoothing)

    def encoded(self, targets: Tensor) -> Tensor:
        """Return (B, C): 1 for the sequence's class, -1 for the others, the targets of a ridge classifier."""
        return 2 * F.one_hot(targets, self.num_outputs).float() - 1

    def scale_of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the factor that turns the outputs of such a fit into logits: the temperature with the least
        cross-entropy.

        Guo et al. 2017, arXiv:1706.04599. outputs (N, C) for sequences that the fit did not see. The factor does not
        change the predicted class.
        """
        losses = [F.cross_entropy(outputs * scale, targets).item() for scale in SCALES]
        return SCALES[losses.index(min(losses))]

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        if self.score_name == "accuracy":
            return (predictions == targets).float().mean().item()
        metrics = scores(confusion_matrix(predictions, targets, self.num_outputs))
        if self.score_name not in metrics:
            raise ValueError(
                f"{described(self)} has the score_name {self.score_name!r}; classify computes {' and '.join(metrics)}; "
                "define `score` and `evaluate` for another one"
            )
        return metrics[self.score_name]

    def evaluate(self, outputs: Tensor, read: ReadArray) -> Evaluation:
        targets, mask = torch.from_numpy(read("test", "targets")), self.test_mask(read)
        predictions = self.predict(outputs, mask)
        confusion = confusion_matrix(predictions, targets, self.num_outputs)
        metrics = {**scores(confusion), "loss": self.loss(outputs, targets, mask, 0.0).item()}
        actual, predicted = ([self.classes[number] for number in labels.tolist()] for labels in (targets, predictions))
        shares = outputs.softmax(dim=1)
        confidence = shares.amax(dim=1).tolist()
        keys = ["sequence", "actual", "predicted", "confidence"]
        columns = [read("test", "ids").tolist(), actual, predicted, confidence]
        if stretches := Stretches.of(self.summary, read):
            keys, columns = [*keys, "stretch"], [*columns, stretches.names.tolist()]
        wrong = int((predictions != targets).sum())
        compared_by = self.score_name if self.score_name in metrics else "accuracy"
        groups, baselines = Groups.of_test_split(self.summary, read), []
        for key, (name, baseline_predictions) in self.predict_baselines(targets, read).items():
            baseline_metrics = scores(confusion_matrix(baseline_predictions, targets, self.num_outputs))
            metrics |= {f"{key}_{score}": value for score, value in baseline_metrics.items()}
            if stretches:
                voted = stretches.is_right(F.one_hot(baseline_predictions, self.num_outputs).numpy(), targets.numpy())
                metrics[f"{key}_stretch_accuracy"] = float(voted.mean())
            gain = self.interval_of_gain(compared_by, predictions, baseline_predictions, targets, groups)
            baselines.append(Baseline(name, baseline_metrics[compared_by], gain))
        of_stretches = ""
        if stretches:
            stretch_metrics, sentence = stretches.score(shares.numpy(), targets.numpy())
            metrics, of_stretches = metrics | stretch_metrics, f"; {sentence}"
        if self.fitted:
            *baselines, of_fitted = baselines
        compared = compare_with_baselines(metrics[compared_by], baselines, len(targets), groups, self.subject)
        if self.fitted:
            details = self.fitted.description
            compared += "; " + compare_with_fitted(
                metrics[compared_by], of_fitted, details, len(targets), groups, self.subject
            )
        if compared_by != self.score_name:
            compared = f"by {compared_by}, {compared}"
        class_scores = [{"class": name, **row} for name, row in zip(self.classes, per_class(confusion), strict=True)]
        return Evaluation(
            metrics,
            f"{compared}{self.rare_class_report(class_scores, metrics)}; "
            f"{len(targets) - wrong:,} of {len(targets):,} test sequences are right, {wrong:,} wrong{of_stretches}",
            class_scores,
            list(zip(actual, predicted, strict=True)),
            [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)],
        )

    def tabulate(self, outputs: Tensor, new: NewInputs) -> dict[str, Any]:
        """Return one row per sequence; `confidence` is the softmax of the predicted class."""
        confidence = outputs.softmax(dim=1).amax(dim=1).numpy()
        return {**super().tabulate(outputs, new), "confidence": confidence}

    def predict_baselines(self, targets: Tensor, read: ReadArray) -> dict[str, tuple[str, Tensor]]:
        """Return two baselines that need no training, and the fitted model if there is one: key -> (name, predicted
        classes (N,)).
        """
        train_targets = torch.from_numpy(read("train", "targets"))
        values, test_values = (read(split, "values") for split in ("train", "test"))
        rows = sample_rows(len(values), num_comparable(values, test_values))
        sampled = f" (among {len(rows):,} of {len(values):,} training sequences)" if len(rows) < len(values) else ""
        most_frequent = torch.full_like(targets, int(torch.bincount(train_targets).argmax()))
        examples, labels = values[rows], train_targets[rows]
        num_features = num_useful_features(examples, labels.numpy(), self.summary["features"])
        nearest = labels[nearest_neighbours(examples[:, :, :num_features], test_values[:, :, :num_features])]
        variant = " without velocities" if num_features < values.shape[2] else ""
        baselines = {
            "most_frequent": ("the most frequent class", most_frequent),
            "nearest_neighbour": (f"1-NN{variant}{sampled}", nearest),
        }
        if self.fitted:
            baselines["fitted"] = "the fitted model", self.predict(self.fitted.outputs, torch.empty(0))
        return baselines

    def interval_of_gain(
        self, score_name: str, own: Tensor, other: Tensor, targets: Tensor, groups: Groups | None
    ) -> tuple[float, float] | None:
        """Return the interval of the gain in accuracy or macro F1 of the predicted classes `own` (N,) over `other`."""
        if score_name == "accuracy":
            right, other_right = ((classes == targets).double().numpy() for classes in (own, other))
            interval = interval_of_gain(right, other_right, groups)
            if interval is None or groups:
                return interval
            return agreeing_with(mcnemar(int((right > other_right).sum()), int((right < other_right).sum())), interval)
        true, *predicted = (F.one_hot(classes, self.num_outputs) for classes in (targets, own, other))
        counts = [torch.stack([true * guess, true, guess], dim=2).double().numpy() for guess in predicted]  # (N, C, 3)
        return interval_of_gain(counts[0], counts[1], groups, macro_f1_of_sums)

    def rare_class_report(self, class_scores: list[dict[str, Any]], metrics: dict[str, float]) -> str:
        """The scores of classes that are rare in the test split, which accuracy hides. Empty without such classes."""
        total = sum(row["num_true"] for row in class_scores)
        rare = [row for row in class_scores if 0 < row["num_true"] < RARE * total / len(class_scores)]
        if not rare:
            return ""
        rare.sort(key=lambda row: row["num_true"])
        recalls = ", ".join(f"{row['class']} {row['recall']:.2f} of {row['num_true']:,}" for row in rare[:3])
        rest = f" and {len(rare) - 3} more rare classes" if len(rare) > 3 else ""
        return (
            f"; macro F1 {metrics['macro_f1']:.4g} (the most frequent class {metrics['most_frequent_macro_f1']:.4g}, "
            f"1-NN {metrics['nearest_neighbour_macro_f1']:.4g}); recall of the rarest: {recalls}{rest}"
        )


def confusion_matrix(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    cells = torch.bincount(targets * num_classes + predictions, minlength=num_classes**2)
    return cells.view(num_classes, num_classes)


def scores(confusion: Tensor) -> dict[str, float]:
    return {
        "accuracy": confusion.diagonal().sum().item() / confusion.sum().item(),
        "macro_f1": macro_mean(per_class(confusion), "f1"),
    }


def per_class(confusion: Tensor) -> list[dict[str, Any]]:
    """Precision, recall and F1 of every class."""
    counts = torch.stack([confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)], dim=1)
    return [precision_recall_f1(*row) for row in counts.tolist()]
