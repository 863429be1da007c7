"""Detect: the frames at which events happen, and their classes.

Shapes: outputs (B, T, C) logits with class 0 for "no event", targets and predictions (B, T) int64.

A predicted event is correct if an actual event of its class is within TOLERANCE frames and matches no other prediction
(one-to-one matching). Onset and sound event detection are scored this way: Mesaros et al. 2016, "Metrics for Polyphonic
Sound Event Detection", section 3.2.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tandem import tasks
from tandem.tasks import Evaluation, NewInputs, ReadArray
from tandem.tasks.baselines import Baseline, compare_with_baselines, sample_rows
from tandem.tasks.groups import Groups
from tandem.tasks.scores import macro_f1_of_sums, macro_mean, match_steps, precision_recall_f1
from tandem.tasks.statistics import interval_of_gain

TOLERANCE = 2  # frames
THRESHOLD = 0.5  # minimum probability at an event's frame
# With 0 (no reweighting) the model misses rare events; with 1 (equal shares for all classes) it predicts too many.
WEIGHT_EXPONENT = 0.5

# The search of the threshold baseline, which predicts an event when one feature crosses one threshold. It takes a few
# seconds. A rare event may need a threshold beyond all of the quantiles, so levels between the extremes are tried too.
QUANTILES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)
NUM_LEVELS = 20
NUM_THRESHOLD_STEPS = 10_000
MAX_THRESHOLD_FEATURES = 16


class Task(tasks.Task):
    score_name = "event_f1"
    target = "class per step"
    sources = ("sequences", "rally")
    forbidden_augment = ("warp",)
    smooths_labels = True
    paired = "events"
    charts = ("events", "confusion")
    baselines = {"threshold": "the best threshold on one feature", "base_rate": "events at the base rate"}
    usual_model = "conv_gru"

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__(summary)
        counts = summary["num_per_class"]["train"]
        steps = torch.tensor([float(max(counts[name], 1)) for name in self.classes])
        weights = (steps.max() / steps) ** WEIGHT_EXPONENT
        # By device: a copy to the device in every step would be a synchronization in every step.
        self.weights = {weights.device: weights}

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """The cross-entropy, averaged over a sequence's real steps. Rare classes have larger `weights`."""
        if outputs.device not in self.weights:
            self.weights[outputs.device] = self.weights[torch.device("cpu")].to(outputs.device)
        losses = F.cross_entropy(
            outputs.transpose(1, 2),
            targets,
            weight=self.weights[outputs.device],
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return (losses.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)).mean()

    def predict(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """Predict an event where its probability is above THRESHOLD and its class's highest within TOLERANCE frames."""
        # The outputs for padded steps are meaningless: they must not exceed those of the last real steps.
        probabilities = outputs.softmax(dim=2).masked_fill(~mask.unsqueeze(2), 0.0)
        highest = F.max_pool1d(probabilities.transpose(1, 2), 2 * TOLERANCE + 1, 1, TOLERANCE).transpose(1, 2)
        is_event = (probabilities == highest) & (probabilities > THRESHOLD)
        is_event[:, :, 0] = False
        return torch.where(is_event.any(dim=2), is_event.int().argmax(dim=2), 0)

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        return self.event_f1(self.counts(*to_numpy(predictions, targets, mask)))

    def event_f1(self, counts: np.ndarray) -> float:
        return macro_mean(self.per_class(counts), "f1")

    def counts(self, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """(N, C - 1, 3): each sequence's numbers of matched, actual and predicted events of every class but 0."""
        rows = []
        for number in range(1, self.num_outputs):
            actual, predicted = np.argwhere(targets == number), np.argwhere(predictions == number)
            matched = actual[[index for index, _ in match_events(actual, predicted, targets.shape[1])]]
            rows.append([np.bincount(events[:, 0], minlength=len(targets)) for events in (matched, actual, predicted)])
        return np.array(rows).transpose(2, 0, 1)

    def per_class(self, counts: np.ndarray) -> list[dict[str, Any]]:
        """Return event precision, recall and F1 of every class except 0."""
        names, sums = self.classes[1:], counts.sum(axis=0).tolist()
        return [{"class": name, **precision_recall_f1(*row)} for name, row in zip(names, sums, strict=True)]

    def evaluate(self, outputs: Tensor, read: ReadArray) -> Evaluation:
        targets, mask = torch.from_numpy(read("test", "targets")), self.test_mask(read)
        probabilities = outputs.softmax(dim=2)
        predictions, actual = to_numpy(self.predict(outputs, mask), targets, mask)
        counts = self.counts(predictions, actual)
        per_class, groups = self.per_class(counts), Groups.of_test_split(self.summary, read)
        baselines = [
            Baseline(name, self.event_f1(tally), interval_of_gain(counts, tally, groups, macro_f1_of_sums))
            for name, tally in self.count_baselines(actual, mask.numpy(), read).items()
        ]
        metrics = {
            **{f"event_{name}": macro_mean(per_class, name) for name in ("f1", "precision", "recall")},
            "frame_accuracy": (outputs.argmax(dim=2) == targets)[mask].float().mean().item(),
            "loss": self.loss(outputs, targets, mask, 0.0).item(),
            **dict(zip(("threshold_event_f1", "base_rate_event_f1"), (base.score for base in baselines), strict=True)),
        }
        rows = self.list_events(predictions, actual, probabilities.numpy(), read("test", "ids"))
        missed, invented = (sum(row[name] == "" for row in rows) for name in ("predicted", "actual"))
        occurring = [row for row in per_class if row["num_true"]]
        worst = min(occurring or per_class, key=lambda row: row["f1"])
        absent = [row["class"] for row in per_class if not row["num_true"]]
        of_absent = f"; the test split has no {', no '.join(absent)}" * bool(absent)
        return Evaluation(
            metrics,
            f"{compare_with_baselines(metrics['event_f1'], baselines, len(actual), groups, self.subject)}; "
            f"{len(rows) - missed - invented:,} events found within {TOLERANCE} frames, {missed:,} missed, "
            f"{invented:,} false alarms; hardest class: {worst['class']} (F1 {worst['f1']:.3f}){of_absent}",
            per_class,
            self.confusion_pairs(predictions, actual),
            rows,
        )

    def tabulate(self, outputs: Tensor, new: NewInputs) -> dict[str, Any]:
        """Return one row per event. `step` is the value in the table's own column."""
        predictions = self.predict(outputs, new.mask).numpy()
        rows, steps = np.nonzero(predictions)
        numbers = predictions[rows, steps]
        return {
            "sequence": new.ids[rows],
            "step": [new.steps[row][step] for row, step in zip(rows.tolist(), steps.tolist(), strict=True)],
            "predicted": np.array(self.classes)[numbers],
            "confidence": outputs.softmax(dim=2).numpy()[rows, steps, numbers],
        }

    def count_baselines(self, actual: np.ndarray, mask: np.ndarray, read: ReadArray) -> dict[str, np.ndarray]:
        """Return the counts of two detectors that need no training.

        The first predicts each class when one feature crosses one threshold, both chosen on training sequences. The
        second predicts events at random steps, at the training rate.
        """
        targets, lengths = read("train", "targets"), read("train", "lengths")
        num_steps, generator = targets.shape[1], np.random.default_rng(0)
        rows = sample_rows(len(targets), max(1, NUM_THRESHOLD_STEPS // num_steps))
        is_real = np.arange(num_steps) < lengths[:, None]
        values, test_values = read("train", "values")[rows], read("test", "values")
        # With a negative sign, the feature crosses downwards.
        crossing, random = (np.zeros_like(actual) for _ in range(2))
        for number in range(1, self.num_outputs):
            events = np.argwhere(targets[rows] == number)
            best, chosen = -1.0, (0, 1.0, 0.0)
            for feature in range(min(values.shape[2], MAX_THRESHOLD_FEATURES)):
                for sign in (1.0, -1.0):
                    signed = sign * values[:, :, feature]
                    real = signed[is_real[rows]]
                    levels = np.linspace(real.min(), real.max(), NUM_LEVELS + 1, endpoint=False)[1:]
                    scores = {}
                    for level in (*np.quantile(real, QUANTILES).tolist(), *levels.tolist()):
                        guesses = np.argwhere(crossings(signed, level) & is_real[rows])
                        num_matched = len(match_events(events, guesses, num_steps))
                        scores[level] = 2 * num_matched / max(1, len(events) + len(guesses))
                    if max(scores.values()) > best:
                        best = max(scores.values())
                        equal = sorted(level for level, f1 in scores.items() if f1 == best)
                        chosen = (feature, sign, equal[len(equal) // 2])  # far from both events and noise
            feature, sign, level = chosen
            crossing[crossings(sign * test_values[:, :, feature], level) & mask] = number
            random[(generator.random(actual.shape) < (targets == number).sum() / is_real.sum()) & mask] = number
        detectors = {"the best threshold on one feature": crossing, "events at the base rate": random}
        return {name: self.counts(predictions, actual) for name, predictions in detectors.items()}

    def list_events(
        self, predictions: np.ndarray, targets: np.ndarray, probabilities: np.ndarray, ids: np.ndarray
    ) -> list[dict[str, Any]]:
        """Return one row for every actual event and for every predicted event without a match."""
        rows = []
        for number in range(1, self.num_outputs):
            places, guesses = np.argwhere(targets == number), np.argwhere(predictions == number)
            for actual, predicted in pair_events(places, guesses, targets.shape[1]):
                sequence, step = predicted or actual
                row = {
                    "sequence": str(ids[sequence]),
                    "event": self.classes[number],
                    "actual": actual[1] if actual else "",
                    "predicted": predicted[1] if predicted else "",
                    "confidence": float(probabilities[sequence, step, number]) if predicted else "",
                }
                rows.append((row["sequence"], step, row))
        return [row for *_, row in sorted(rows, key=lambda entry: entry[:2])]

    def confusion_pairs(self, predictions: np.ndarray, targets: np.ndarray) -> list[tuple[str, str]]:
        """Return the (actual, predicted) classes of events for the confusion matrix: matched as the F1 counts them, and
        the others by position alone.
        """
        pairs, missed, invented = [], np.zeros_like(targets), np.zeros_like(predictions)
        for number in range(1, self.num_outputs):
            events = np.argwhere(targets == number), np.argwhere(predictions == number)
            for actual, predicted in pair_events(*events, targets.shape[1]):
                if actual and predicted:
                    pairs.append((number, number))
                elif actual:
                    missed[actual] = number
                else:
                    invented[predicted] = number
        for actual, predicted in pair_events(np.argwhere(missed), np.argwhere(invented), targets.shape[1]):
            pairs.append((missed[actual] if actual else 0, invented[predicted] if predicted else 0))
        return [(self.classes[actual], self.classes[predicted]) for actual, predicted in pairs]


def crossings(values: np.ndarray, level: float) -> np.ndarray:
    """values (N, T) -> (N, T) bool: each first step above `level`."""
    above = values > level
    above[:, 1:] &= ~(values[:, :-1] > level)
    return above


def to_numpy(predictions: Tensor, targets: Tensor, mask: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and targets, 0 in the padding."""
    predictions, targets = (labels.masked_fill(~mask, 0).cpu() for labels in (predictions, targets))
    return predictions.numpy(), targets.numpy()


def match_events(actual: np.ndarray, predicted: np.ndarray, num_steps: int) -> list[tuple[int, int]]:
    """The index pairs of a maximum one-to-one matching of events (K, 2), (L, 2) in sequences of `num_steps` steps."""
    spacing = num_steps + TOLERANCE + 1  # keeps events from matching across sequences
    left, right = ((pairs[:, 0] * spacing + pairs[:, 1]).tolist() for pairs in (actual, predicted))
    return match_steps(left, right, TOLERANCE)


def pair_events(actual: np.ndarray, predicted: np.ndarray, num_steps: int) -> list[tuple[Any, Any]]:
    """Return (actual, predicted) events (sequence, step) after `match_events`: all actual events, then the unmatched
    predicted ones. None takes the place of a missing event.
    """
    left, right = (dict(enumerate(map(tuple, places.tolist()))) for places in (actual, predicted))
    partner = {index: right.pop(other) for index, other in match_events(actual, predicted, num_steps)}
    pairs: list[tuple[Any, Any]] = [(event, partner.get(index)) for index, event in left.items()]
    return pairs + [(None, event) for event in right.values()]
