"""Detect: the frames at which events happen, and which.

Shapes: outputs (B, T, C) logits with class 0 for "no event", targets and predictions (B, T) int64.

A predicted event counts as right where an actual one of its class lies within TOLERANCE frames and is not taken by another
prediction (one-to-one matching). This is how onset and sound event detection are scored: Mesaros et al. 2016, "Metrics for Polyphonic
Sound Event Detection", section 3.2.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from stages.tasks import Evaluation, Read
from stages.tasks.classify import precision_recall_f1

TOLERANCE = 2  # frames
THRESHOLD = 0.5  # of the probability at an event's frame
# Between no reweighting (0), where rare events are missed, and equal shares for all classes (1), where they are seen everywhere.
WEIGHT_EXPONENT = 0.5


class Task:
    score_name = "event_f1"
    per_step = True

    def __init__(self, summary: dict[str, Any]) -> None:
        self.classes = [str(name) for name in summary["classes"]]
        self.num_outputs = len(self.classes)
        self.features = summary["features"]
        counts = summary["num_per_class"]["train"]
        steps = torch.tensor([float(max(counts[name], 1)) for name in self.classes])
        weights = (steps.max() / steps) ** WEIGHT_EXPONENT
        # By device: a copy to it in every step would be a synchronization in every step.
        self.weights = {weights.device: weights}

    def loss(
        self, outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, label_smoothing: float
    ) -> torch.Tensor:
        """Cross-entropy, averaged over a sequence's real steps; rare classes weigh more (`weights`)."""
        if outputs.device not in self.weights:
            self.weights[outputs.device] = self.weights[torch.device("cpu")].to(outputs.device)
        each = F.cross_entropy(
            outputs.transpose(1, 2),
            targets,
            weight=self.weights[outputs.device],
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return (each.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)).mean()

    def predict(self, outputs: torch.Tensor) -> torch.Tensor:
        return predict(outputs)

    def score(self, predictions: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> float:
        return macro_f1(self.per_class(*on_cpu(predictions, targets, mask)))

    def per_class(self, predictions: np.ndarray, targets: np.ndarray) -> list[dict[str, Any]]:
        """Event precision, recall and F1 of every class but 0."""
        rows = []
        for number in range(1, self.num_outputs):
            actual, found = events(targets, number), events(predictions, number)
            matched = match(actual, found, targets.shape[1])
            rows.append({"class": self.classes[number], **precision_recall_f1(len(matched), len(actual), len(found))})
        return rows

    def evaluate(self, outputs: torch.Tensor, read: Read) -> Evaluation:
        targets, lengths = torch.from_numpy(read("test", "targets")), torch.from_numpy(read("test", "lengths"))
        mask = torch.arange(targets.shape[1])[None, :] < lengths[:, None]
        probabilities = outputs.softmax(dim=2)
        predictions, actual = on_cpu(self.predict(outputs), targets, mask)
        per_class = self.per_class(predictions, actual)
        metrics = {
            "event_f1": macro_f1(per_class),
            **{f"event_{name}": float(np.mean([row[name] for row in per_class])) for name in ("precision", "recall")},
            "frame_accuracy": (outputs.argmax(dim=2) == targets)[mask].float().mean().item(),
            "loss": self.loss(outputs, targets, mask, 0.0).item(),
        }
        rows = self.list_events(predictions, actual, probabilities.numpy(), read("test", "ids"))
        missed, invented = (sum(not row[name] for row in rows) for name in ("predicted", "actual"))
        worst = min(per_class, key=lambda row: row["f1"])
        return Evaluation(
            metrics,
            f"{len(rows) - missed - invented:,} events found within {TOLERANCE} frames, {missed:,} missed, {invented:,} invented; "
            f"hardest class: {worst['class']} (F1 {worst['f1']:.3f})",
            per_class,
            self.confused(predictions, actual),
            rows,
            lambda title: self.draw(read, actual, predictions, probabilities.numpy(), title),
        )

    def list_events(
        self, predictions: np.ndarray, targets: np.ndarray, probabilities: np.ndarray, ids: np.ndarray
    ) -> list[dict[str, Any]]:
        """A row for every actual event, and for every predicted one that matches none."""
        num_steps, rows = targets.shape[1], []
        for number in range(1, self.num_outputs):
            actual, found = events(targets, number), events(predictions, number)
            matched = dict(match(actual, found, num_steps))
            taken = set(matched.values())
            pairs: list[tuple[int | None, int | None]] = [(a, matched.get(a)) for a in range(len(actual))]
            pairs += [(None, f) for f in range(len(found)) if f not in taken]
            for a, f in pairs:
                sequence = int(actual[a][0] if a is not None else found[f][0])
                rows.append(
                    {
                        "sequence": str(ids[sequence]),
                        "event": self.classes[number],
                        "actual": "" if a is None else int(actual[a][1]),
                        "predicted": "" if f is None else int(found[f][1]),
                        "confidence": "" if f is None else float(probabilities[sequence, found[f][1], number]),
                    }
                )
        return sorted(
            rows, key=lambda row: (row["sequence"], row["actual"] if row["predicted"] == "" else row["predicted"])
        )

    def confused(self, predictions: np.ndarray, targets: np.ndarray) -> list[tuple[str, str]]:
        """(actual, predicted) by place alone, whatever the class: what an event is taken for."""
        any_actual, any_found = np.argwhere(targets > 0), np.argwhere(predictions > 0)
        matched = dict(match(any_actual, any_found, targets.shape[1]))
        name = lambda labels, event: self.classes[labels[event[0], event[1]]]  # noqa: E731
        none = self.classes[0]
        pairs = [
            (name(targets, event), name(predictions, any_found[matched[index]]) if index in matched else none)
            for index, event in enumerate(any_actual)
        ]
        taken = set(matched.values())
        return pairs + [(none, name(predictions, event)) for index, event in enumerate(any_found) if index not in taken]

    def draw(self, read: Read, actual: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray, title: str) -> Any:
        """The fullest sequences, and the first ones with a mistake."""
        from stages.figures import events

        num_events, is_wrong = (actual > 0).sum(axis=1), (actual > 0).sum(axis=1) != (predicted > 0).sum(axis=1)
        rows = np.concatenate([np.argsort(-num_events, kind="stable")[:2], np.flatnonzero(is_wrong)[:2]])
        ids, values = read("test", "ids"), read("test", "values")
        titles = [f"{title}\nsequence {ids[row]}" if row == rows[0] else f"sequence {ids[row]}" for row in rows]
        parts = (values[rows], actual[rows], predicted[rows], probabilities[rows])
        return events.events(*parts, self.classes, titles, self.features, TOLERANCE)


def predict(outputs: torch.Tensor) -> torch.Tensor:
    """An event stands where its probability is above THRESHOLD and the highest of its class within TOLERANCE frames."""
    probabilities = outputs.softmax(dim=2)
    highest = F.max_pool1d(probabilities.transpose(1, 2), 2 * TOLERANCE + 1, 1, TOLERANCE).transpose(1, 2)
    is_event = (probabilities == highest) & (probabilities > THRESHOLD)
    is_event[:, :, 0] = False
    return torch.where(is_event.any(dim=2), is_event.int().argmax(dim=2), 0)


def on_cpu(predictions: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both without what stands in the padding."""
    return tuple(labels.masked_fill(~mask, 0).cpu().numpy() for labels in (predictions, targets))  # type: ignore[return-value]


def events(labels: np.ndarray, number: int) -> np.ndarray:
    """(K, 2): sequence and frame of every event of a class, in order. labels (N, T)."""
    return np.argwhere(labels == number)


def match(actual: np.ndarray, found: np.ndarray, num_steps: int) -> list[tuple[int, int]]:
    """Index pairs of a largest one-to-one matching of events (K, 2), (L, 2) that lie within TOLERANCE frames of each other.

    Going through both in order and always taking the earliest that fits is optimal for intervals of one length.
    """
    spacing = num_steps + TOLERANCE + 1  # so that no event reaches into the next sequence
    left, right = ((pairs[:, 0] * spacing + pairs[:, 1]).tolist() for pairs in (actual, found))
    matched, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if abs(left[i] - right[j]) <= TOLERANCE:
            matched.append((i, j))
            i, j = i + 1, j + 1
        elif left[i] < right[j]:
            i += 1
        else:
            j += 1
    return matched


def macro_f1(per_class: list[dict[str, Any]]) -> float:
    """Mean F1 of the classes that occur, as label or prediction."""
    present = [row["f1"] for row in per_class if row["num_true"] or row["num_predicted"]]
    return float(np.mean(present)) if present else 0.0
