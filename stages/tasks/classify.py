"""Classify: one label for a whole sequence.

Shapes: outputs (B, C) logits, targets (B,) int64, predictions (N,) int64, confusion (C, C) with true classes as rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.tasks import Evaluation, Read
from stages.tasks.scores import macro_f1, precision_recall_f1


class Task:
    score_name = "accuracy"
    per_step = False

    def __init__(self, summary: dict[str, Any]) -> None:
        self.classes = [str(name) for name in summary["classes"]]
        self.num_outputs = len(self.classes)

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """Cross-entropy; smoothing as in Szegedy et al. 2016, arXiv:1512.00567, section 7."""
        return F.cross_entropy(outputs, targets, label_smoothing=label_smoothing)

    def predict(self, outputs: Tensor, mask: Tensor) -> Tensor:
        return outputs.argmax(dim=1)

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        return (predictions == targets).float().mean().item()

    def evaluate(self, outputs: Tensor, read: Read) -> Evaluation:
        targets = torch.from_numpy(read("test", "targets"))
        no_mask = torch.empty(0)
        predictions = self.predict(outputs, no_mask)
        confusion = confusion_matrix(predictions, targets, self.num_outputs)
        metrics = {**scores(confusion), "loss": self.loss(outputs, targets, no_mask, 0.0).item()}
        actual, predicted = ([self.classes[number] for number in labels.tolist()] for labels in (targets, predictions))
        confidence = outputs.softmax(dim=1).amax(dim=1).tolist()
        keys = ("sequence", "actual", "predicted", "confidence")
        rows = zip(read("test", "ids").tolist(), actual, predicted, confidence, strict=True)
        wrong = int((predictions != targets).sum())
        return Evaluation(
            metrics,
            f"{len(targets) - wrong:,} of {len(targets):,} test sequences right, {wrong:,} wrong",
            [{"class": name, **row} for name, row in zip(self.classes, per_class(confusion), strict=True)],
            list(zip(actual, predicted, strict=True)),
            [dict(zip(keys, row, strict=True)) for row in rows],
            {"cells": confusion.tolist(), "classes": self.classes},
        )


def confusion_matrix(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    cells = torch.bincount(targets * num_classes + predictions, minlength=num_classes**2)
    return cells.view(num_classes, num_classes)


def scores(confusion: Tensor) -> dict[str, float]:
    return {
        "accuracy": confusion.diagonal().sum().item() / confusion.sum().item(),
        "macro_f1": macro_f1(per_class(confusion)),
    }


def per_class(confusion: Tensor) -> list[dict[str, Any]]:
    """Precision, recall and F1 of every class."""
    counts = torch.stack([confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)], dim=1)
    return [precision_recall_f1(*row) for row in counts.tolist()]
