"""Classify: one label for a whole sequence.

Shapes: logits (B, C), targets (B,) int64, predictions (N,) int64, confusion (C, C) with true classes as rows.
"""

from typing import Any

import torch
import torch.nn.functional as F

SCORE = "accuracy"  # the one number that stands for a model of this kind


def loss(logits: torch.Tensor, targets: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Mean cross-entropy over the batch; smoothing as in Szegedy et al. 2016, arXiv:1512.00567, section 7."""
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def predict(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=1)


def num_correct(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """How many of the batch are right, as a scalar on the device: reading it would be a synchronization."""
    return (predict(logits) == targets).sum()


def confusion_matrix(predictions: torch.Tensor, targets: torch.Tensor, num_classes: int) -> torch.Tensor:
    cells = torch.bincount(targets * num_classes + predictions, minlength=num_classes**2)
    return cells.view(num_classes, num_classes)


def scores(confusion: torch.Tensor) -> dict[str, float]:
    """accuracy, and macro F1: the mean over the classes that occur (as label or prediction), as scikit-learn counts it."""
    table = per_class(confusion)
    present = [row["f1"] for row in table if row["num_true"] or row["num_predicted"]]
    return {
        "accuracy": confusion.diagonal().sum().item() / confusion.sum().item(),
        "macro_f1": sum(present) / len(present),
    }


def per_class(confusion: torch.Tensor) -> list[dict[str, Any]]:
    """precision, recall and F1 per class; 0 where a ratio is 0/0, as scikit-learn has it."""
    rows = []
    for index in range(len(confusion)):
        right, num_true = confusion[index, index].item(), confusion[index].sum().item()
        num_predicted = confusion[:, index].sum().item()
        rows.append(
            {
                "precision": right / num_predicted if num_predicted else 0.0,
                "recall": right / num_true if num_true else 0.0,
                "f1": 2 * right / (num_true + num_predicted) if num_true + num_predicted else 0.0,
                "num_true": num_true,
                "num_predicted": num_predicted,
            }
        )
    return rows
