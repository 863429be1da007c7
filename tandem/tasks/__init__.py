"""Tasks, one module each: the loss to train with, the predictions, the scores.

A task is a class derived from `Task` below, or from another task, and created from preprocess's summary. A workload may
have one in its directory (docs/components.md); it is loaded like a built-in one. A task takes tensors and arrays and
returns data: it reads no file and draws no figure. Importing this package does not import torch.

Shapes: outputs (B, C), or (B, T, C) if `per_step`; targets as preprocess writes them; mask (B, T), True for real steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tandem.parts import find

if TYPE_CHECKING:
    from torch import Tensor


FLOAT32_ROUNDING = 2.0**-24  # largest error of a number in 32 bits, relative to it

ReadArray = Callable[[str, str], Any]  # (split, name) -> that numpy array, as preprocess wrote it


@dataclass(frozen=True)
class Evaluation:
    """The scores of the outputs for a test split."""

    metrics: dict[str, float]  # `score_name` is one of them
    sentence: str  # the result in plain words
    scores: list[dict[str, Any]]  # the scores in detail: one row per class, or per step ahead
    confusion: list[tuple[str, str]]  # (actual, predicted), one pair per counted case
    predictions: list[dict[str, Any]]  # one row per prediction


@dataclass(frozen=True)
class NewInputs:
    """What a network is applied to outside a training, besides the values: N sequences, or the last window of a series.

    The fields from `anchors` on are those of a series.
    """

    mask: "Tensor"  # (N, T)
    ids: np.ndarray  # (N,) the names of the sequences
    steps: Sequence[np.ndarray] = ()  # if `per_step`: for each sequence, its values in the table's step column
    anchors: np.ndarray = field(default_factory=lambda: np.empty(0))  # (N,) the target at the last known step
    times: np.ndarray = field(default_factory=lambda: np.empty(0))  # (H,) the times ahead, as text


@dataclass(frozen=True)
class Fitted:
    """A model that was fitted to the training split without a network (stages/baseline.py)."""

    outputs: "Tensor"  # (N, C) for the test split
    description: str  # what it is, and how many sequences it was fitted to


class Task:
    """The base of all tasks. A task from scratch has `score_name`, `loss` and `score`."""

    # Facts. They are read from the source, so a class that changes one must set it to a literal.
    score_name: str  # the main score; larger is better
    target: str = "class"  # what the source gives: class, number, class per step, window
    sources: tuple[str, ...] = ("sequences",)  # of the data
    # Augmentation changes only the inputs, so it is refused if the targets would have to change with them.
    forbidden_augment: tuple[str, ...] = ()
    smooths_labels: bool = False  # whether `loss` uses label_smoothing
    # The numbers in predictions.csv that compare two trainings (tandem/comparing/differences.py): correct (predicted is
    # actual), errors (their distance), window errors, events, or scores (the column `score`; larger is better).
    paired: str = "scores"
    charts: tuple[str, ...] = ("confusion",)  # of tandem/report/outcomes.py
    zero: str = ""  # the prediction whose score is 0; after a colon, its description
    baselines: ClassVar[dict[str, str]] = {}  # prefix of a baseline's metrics -> its name
    # What `tandem new` writes.
    usual_model: str = "gru"
    usual_weights: str = "last"
    usual_label_smoothing: float = 0.0

    num_outputs: int
    subject: str = "the network"  # what `evaluate` scores, in its sentence; another one for a fitted model
    fitted: Fitted | None = None  # what `evaluate` compares it with, besides the baselines that need no training

    def __init__(self, summary: dict[str, Any]) -> None:
        """`summary`: the content of preprocess's summary.json. `tandem predict` has classes, features, mean, std,
        target, offsets and num_per_class of it.
        """
        self.summary = summary
        self.classes = [str(name) for name in summary["classes"]] if self.target.startswith("class") else []
        self.num_outputs = {"number": 1, "window": summary.get("num_outputs", 0)}.get(self.target, len(self.classes))

    @property
    def per_step(self) -> bool:
        return self.target == "class per step"

    @property
    def fit_initial_arguments(self) -> dict[str, Any]:
        """Return keyword arguments for `fit_initial` of a network that is fitted to the data before the first step."""
        return {}

    def loss(self, outputs: "Tensor", targets: "Tensor", mask: "Tensor", label_smoothing: float) -> "Tensor":
        """Return the mean over the sequences of the batch, as a scalar on the device."""
        raise NotImplementedError

    def predict(self, outputs: "Tensor", mask: "Tensor") -> "Tensor":
        """Return the predictions, in the format of the targets."""
        if self.target == "number":
            return outputs[:, 0]
        return outputs if self.target == "window" else outputs.argmax(dim=-1)

    def score(self, predictions: "Tensor", targets: "Tensor", mask: "Tensor") -> float:
        """Return `score_name` over a whole split. May read from the device."""
        raise NotImplementedError

    def unit_scores(self, predictions: "Tensor", targets: "Tensor", mask: "Tensor") -> list[float]:
        """Return a number for each of the N sequences, larger is better: by default, its own score, so override it if a
        score of one sequence has no meaning (a correlation).
        """
        sequences = zip(predictions.split(1), targets.split(1), mask.split(1), strict=True)
        return [float(self.score(*sequence)) for sequence in sequences]

    def evaluate(self, outputs: "Tensor", read: ReadArray) -> Evaluation:
        """Score `outputs` for the test split. `read` returns the arrays that preprocess wrote for it.

        The column `score` of the predictions has `unit_scores`.
        """
        import torch

        targets, mask = torch.from_numpy(read("test", "targets")), self.test_mask(read)
        predictions = self.predict(outputs, mask)
        columns: dict[str, list[Any]] = {"sequence": [str(name) for name in read("test", "ids")]}
        if not self.per_step:
            columns |= {"actual": self.in_words(targets), "predicted": self.in_words(predictions)}
        columns["score"] = self.unit_scores(predictions, targets, mask)
        score = score_of(self, predictions, targets, mask)
        return Evaluation(
            {self.score_name: score, "loss": self.loss(outputs, targets, mask, 0.0).item()},
            f"{self.score_name} {score:.4g} over {len(targets):,} test sequences",
            [{"score": self.score_name, "value": score}],
            list(zip(columns["actual"], columns["predicted"], strict=True)) if self.target == "class" else [],
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        )

    def test_mask(self, read: ReadArray) -> "Tensor":
        """The mask (N, T) of the test split, as `loss`, `predict` and `score` get it of the other splits."""
        import torch

        return torch.arange(self.summary["max_steps"]) < torch.from_numpy(read("test", "lengths"))[:, None]

    def in_words(self, values: "Tensor") -> list[Any]:
        """Return classes by their names, and numbers in the target's own unit."""
        if self.target == "number":
            target = self.summary["target"]
            return list((values.double() * target["std"] + target["mean"]).tolist())
        return [self.classes[number] for number in values.tolist()]

    def to_units(self, values: np.ndarray, anchors: np.ndarray | None) -> np.ndarray:
        """Return predictions or targets (N, ...) as a workload's own metrics get them: in the target's unit.

        `anchors` (N,): the last known levels, of a series.
        """
        return values

    def targets_in_units(self, targets: np.ndarray, anchors: np.ndarray | None) -> np.ndarray:
        """Return targets (N, ...) as `to_units` does, without what their rounding to 32 bits has added."""
        return self.to_units(targets, anchors)

    def tabulate(self, outputs: "Tensor", new: NewInputs) -> dict[str, Any]:
        """Return the columns of the predictions for a new table (`tandem predict`).

        By default one row per sequence, or per step if `per_step`.
        """
        predictions = self.predict(outputs, new.mask)
        if not self.per_step:
            return {"sequence": new.ids, "predicted": self.in_words(predictions)}
        return {
            "sequence": np.repeat(new.ids, [len(steps) for steps in new.steps]),
            "step": np.concatenate(new.steps),
            "predicted": self.in_words(predictions[new.mask]),
        }


class FittedTask(Task):
    """A task whose model can be fitted in closed form (tandem/fitted/closed_form.py)."""

    def encoded(self, targets: "Tensor") -> "Tensor":
        """Return (B, C) float: the least-squares targets."""
        raise NotImplementedError

    def scale_of(self, outputs: "Tensor", targets: "Tensor") -> float:
        """Return the factor for the outputs (N, C) of that fit, chosen on sequences that the fit did not see."""
        raise NotImplementedError


def as_in_table(values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the numbers without the digits below their errors: 5.00000003, which is 5 in 32 bits, becomes 5."""
    with np.errstate(divide="ignore"):
        scale = 10.0 ** np.clip(np.floor(-np.log10(2 * errors)), 0, 15)
    return np.where(np.abs(values) * scale < 2**53, np.round(values * scale) / scale, values)


def open_task(name: str, summary: dict[str, Any], workload: str = "") -> Task:
    """Return the task of that name for the data in `summary` (preprocess's summary.json).

    Raises ValueError if it does not say how many outputs a network needs.
    """
    task: Task = find("task", name, workload).load()(summary)
    if not isinstance(number := getattr(task, "num_outputs", None), int) or number < 1:
        raise ValueError(f"{described(task)} has {number!r} as num_outputs; set it to a whole number in __init__")
    return task


def check_loss(task: Task, outputs: "Tensor", targets: "Tensor", mask: "Tensor", label_smoothing: float) -> None:
    """Try `task` on the targets (B, ...) and mask (B, T) of a few sequences, with any outputs.

    Raises ValueError if the loss is no scalar with a gradient, or if the number of predictions is not B.
    """
    import torch

    loss = task.loss(outputs.requires_grad_(), targets, mask, label_smoothing)
    returned = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
    if returned != "a tensor of shape ()":
        raise ValueError(
            f"{described(task)}.loss returns {returned}; it must return a scalar tensor, the mean over the batch"
        )
    if not loss.requires_grad:
        raise ValueError(f"{described(task)}.loss returns a number without a gradient; compute it from `outputs`")
    if (num := len(task.predict(outputs.detach(), mask))) != len(mask):
        raise ValueError(
            f"{described(task)}.predict returns {num} predictions for {len(mask)} sequences; return one for each"
        )


def score_of(task: Task, predictions: "Tensor", targets: "Tensor", mask: "Tensor") -> float:
    """Return `task.score(...)`. Raises ValueError if it is no number."""
    score: Any = task.score(predictions, targets, mask)
    try:
        return float(score)
    except (TypeError, ValueError):
        returned = type(score).__name__
        raise ValueError(f"{described(task)}.score returns {returned}; it must return one number") from None


def check_evaluation(task: Task, evaluation: Evaluation) -> None:
    """Raises ValueError if the metrics lack the task's score."""
    if task.score_name not in evaluation.metrics:
        raise ValueError(
            f"{described(task)}.evaluate returns the metrics {', '.join(evaluation.metrics)}; "
            f"its score_name {task.score_name!r} must be one of them"
        )


def described(task: Task) -> str:
    """The place of the task's class, such as `workloads/pen/task.py: Task`."""
    kind = type(task)
    return f"{kind.__module__.replace('.', '/')}.py: {kind.__name__}"
