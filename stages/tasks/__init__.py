"""What a workload asks of a model, one module each: the loss to train with, the prediction, the scores.

Every task's module has a class `Task` of the protocol below, made from preprocess's summary. Tensors and arrays go in,
data come out: a task reads no file and draws nothing. Importing this package does not import torch.

Shapes: outputs (B, C), or (B, T, C) where `per_step`; targets as preprocess writes them;
mask (B, T), True: a real step.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


Read = Callable[[str, str], Any]  # (split, name) -> that numpy array, as preprocess wrote it


@dataclass(frozen=True)
class Evaluation:
    """The result of scoring the outputs for a test split."""

    metrics: dict[str, float]
    sentence: str  # the result in plain words
    scores: list[dict[str, Any]]  # the scores in detail: a row per class, or per step ahead
    confusion: list[tuple[str, str]]  # (actual, predicted), a pair per counted case
    predictions: list[dict[str, Any]]  # a row per prediction
    picture: dict[str, Any]  # what the task's picture shows: arguments of `draw` in stages/figures/<task>.py


class Task(Protocol):
    score_name: str  # the one number that stands for a model of this kind; larger is better
    per_step: bool
    num_outputs: int

    def loss(self, outputs: "Tensor", targets: "Tensor", mask: "Tensor", label_smoothing: float) -> "Tensor":
        """Mean over the sequences of the batch, as a scalar on the device."""

    def predict(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """The predictions, in the form of the targets."""

    def score(self, predictions: "Tensor", targets: "Tensor", mask: "Tensor") -> float:
        """`score_name` over a whole split. May read from the device."""

    def evaluate(self, outputs: "Tensor", read: Read) -> Evaluation:
        """`outputs` are those of the test split; `read` gives the arrays that preprocess wrote for it."""


class FittedTask(Task, Protocol):
    """A task whose model may be fitted in closed form (stages/training/closed_form.py)."""

    def encoded(self, targets: "Tensor") -> "Tensor":
        """(B, C) float: what least squares are fitted to."""

    def scale_of(self, outputs: "Tensor", targets: "Tensor") -> float:
        """What the outputs (N, C) of that fit must be multiplied with, by those for sequences that it did not see."""


def open_task(name: str, summary: dict[str, Any]) -> Task:
    """The task of that name for the data that `summary` (preprocess's summary.json) describes."""
    return importlib.import_module(f"{__name__}.{name}").Task(summary)
