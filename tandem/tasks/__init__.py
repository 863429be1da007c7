"""Tasks, one module each: the loss to train with, the predictions, the scores.

Every task's module has a class `Task` with the protocol below, created from preprocess's summary. A task takes tensors
and arrays and returns data: it reads no file and draws no figure. Importing this package does not import torch.

Shapes: outputs (B, C), or (B, T, C) if `per_step`; targets as preprocess writes them; mask (B, T), True for real steps.
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
    """The scores of the outputs for a test split."""

    metrics: dict[str, float]
    sentence: str  # the result in plain words
    scores: list[dict[str, Any]]  # the scores in detail: one row per class, or per step ahead
    confusion: list[tuple[str, str]]  # (actual, predicted), one pair per counted case
    predictions: list[dict[str, Any]]  # one row per prediction


class Task(Protocol):
    score_name: str  # the main score of the task; larger is better
    per_step: bool
    num_outputs: int

    def loss(self, outputs: "Tensor", targets: "Tensor", mask: "Tensor", label_smoothing: float) -> "Tensor":
        """Return the mean over the sequences of the batch, as a scalar on the device."""

    def predict(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """Return the predictions, in the format of the targets."""

    def score(self, predictions: "Tensor", targets: "Tensor", mask: "Tensor") -> float:
        """Return `score_name` over a whole split. May read from the device."""

    def evaluate(self, outputs: "Tensor", read: Read) -> Evaluation:
        """Score `outputs` for the test split. `read` returns the arrays that preprocess wrote for it."""


class TaskWithUnits(Task, Protocol):
    """A task whose predictions are standardized numbers. Without `to_units`, they are what its users know."""

    def to_units(self, standardized: Any, anchors: Any) -> Any:
        """Return predictions or targets (N, ...) in the target's unit. `anchors`: as `read` has them, or None."""


class FittedTask(Task, Protocol):
    """A task whose model can be fitted in closed form (tandem/training/closed_form.py)."""

    def encoded(self, targets: "Tensor") -> "Tensor":
        """Return (B, C) float: the least-squares targets."""

    def scale_of(self, outputs: "Tensor", targets: "Tensor") -> float:
        """Return the factor for the outputs (N, C) of that fit, chosen on sequences that the fit did not see."""


def open_task(name: str, summary: dict[str, Any]) -> Task:
    """Return the task of that name for the data in `summary` (preprocess's summary.json)."""
    return importlib.import_module(f"{__name__}.{name}").Task(summary)
