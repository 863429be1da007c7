"""Metrics in the workload's directory: the functions that `evaluate.metrics` of params.yaml names.

    def balanced_accuracy(predictions, targets, mask) -> float

`predictions` and `targets` are numpy arrays of the whole test split, in the task's own terms: class numbers (N,) for
classify, numbers in the target's unit (N,) for regress, levels in the target's unit (N, H) for forecast, and event
classes (N, T) for detect, 0 in the padding. `mask` (N, T) is true for the real steps of the inputs.

A metric with the parameter `predict` or `source` scores new data: `predict(values, mask)` returns the predictions for
new sequences in the unit of the raw data, and `source` (`OwnData`) calls the workload's source with other parameters.

A number gets a 95% interval by a bootstrap over the sequences, or over their groups, which calls the function up to
1,000 times (tandem/tasks/statistics.py). A metric may also return several numbers by name; these, and those of a metric
that scores new data, get no interval.
"""

import importlib
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tandem.files import raw_dir
from tandem.params.schema import OwnSource
from tandem.parts import Component, find
from tandem.tasks.groups import Groups
from tandem.tasks.statistics import interval_of_metric, num_resamples
from tandem.terminal.messages import nearest
from tandem.training.context import RunContext
from tandem.training.random_draws import seed_python_and_numpy

SLOW_SECONDS = 10.0  # an interval that takes longer is announced
NAME = r"[\w.\- /]+"  # what MLflow accepts

# values (N, T, F) as the network gets them, mask (N, T), targets (N,) -> the network's outputs (N, ...) on the CPU.
Outputs = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class OwnScores:
    metrics: dict[str, float]
    higher_is_better: dict[str, bool]  # without the ends of intervals
    sentence: str  # about the numbers with an interval; empty if there is none


@dataclass(frozen=True)
class OwnData:
    """The workload's source, for new data: `source(noise=4.0)` returns what its function returns."""

    workload: str
    params: OwnSource

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that params.yaml gives, by name."""
        return self.params.parameters

    def __call__(self, **changed: Any) -> Any:
        for name in changed:
            if name not in self.parameters:
                raise ValueError(f"source has no parameter {name!r}{nearest(name, self.parameters)}")
        own_source = importlib.import_module("tandem.data.own_source")
        return own_source.read(self.params, raw_dir(self.workload), changed)


def score(context: RunContext, outputs: Tensor, outputs_of: Outputs, known: Mapping[str, float]) -> OwnScores:
    """Call the workload's metrics. `outputs` are those of the test split on the CPU, `known` the task's own metrics.

    Raises ValueError with the file and the line if a metric fails, or returns something other than finite numbers.
    """
    components = [find("metric", name, context.workload) for name in context.block.evaluate.metrics]
    if not components:
        return OwnScores({}, {}, "")
    mask = context.task.test_mask(context.read).numpy()
    anchors = context.read("test", "anchors") if "test/anchors.npy" in context.summary["sha256"] else None
    predictions = in_units(context, context.task.predict(outputs, torch.from_numpy(mask)), mask, anchors)
    targets = without_padding(context, context.task.targets_in_units(context.read("test", "targets"), anchors), mask)
    groups = Groups.of_test_split(context.summary, context.read)
    cases = groups or (Groups.of_each(len(mask)) if anchors is None else Groups.of_neighbours(*targets.shape))
    requested = {
        "predict": Predictions(context, outputs_of),
        "source": OwnData(context.workload, context.block.preprocess),  # type: ignore[arg-type]
    }
    metrics: dict[str, float] = {}
    higher_is_better: dict[str, bool] = {}
    sentences = []
    for component in components:
        function = component.load()
        arguments = {name: value for name, value in requested.items() if name in component.arguments}
        seed_python_and_numpy(component.attribute)  # a metric may draw
        start = time.monotonic()
        with component.explained():
            returned = function(predictions.copy(), targets.copy(), mask.copy(), **arguments)  # it may change them
        seconds = time.monotonic() - start
        numbers = numbers_of(component, returned)
        ends: tuple[float, float] | str = ""  # or why there is no interval
        if not arguments and not isinstance(returned, Mapping):
            expected = seconds * num_resamples(predictions, mask)
            if expected > SLOW_SECONDS and not cases.shortage:
                print(
                    f"{component.place} took {seconds:.2g} s; its interval needs "
                    f"{num_resamples(predictions, mask):,} calls, about {expected / 60:.1f} minutes",
                    flush=True,
                )
            ends = interval_of_metric(function, predictions, targets, mask, cases)
        is_better = bool(getattr(function, "higher_is_better", True))
        higher_is_better |= dict.fromkeys(numbers, is_better)
        if not isinstance(returned, Mapping):
            name = component.attribute
            sentence = f"{name} {numbers[name]:.4g}"
            direction = "" if is_better else "lower is better, "
            if isinstance(ends, tuple):
                over = f" over {groups}" if groups else ""
                sentence += f" ({direction}95% interval {ends[0]:.4g} to {ends[1]:.4g}{over})"
                numbers |= {f"{name}_low": ends[0], f"{name}_high": ends[1]}
            elif ends:
                sentence += f" ({direction}no 95% interval: {ends})"
            sentences.append(sentence)
        if taken := [name for name in numbers if name in known or name in metrics]:
            raise ValueError(f"{component.place} returns {taken[0]!r}, which is the name of another metric")
        metrics |= numbers
    return OwnScores(metrics, higher_is_better, "; ".join(sentences))


@dataclass(frozen=True)
class Predictions:
    """predict(values, mask): the task's predictions for new sequences."""

    context: RunContext
    outputs_of: Outputs

    def __call__(self, values: Any, mask: Any) -> np.ndarray:
        """values (N, T, F) as in the raw data, mask (N, T), true for real steps. A forecast takes levels (N, T + 1, F),
        because the network gets their changes.
        """
        context, params = self.context, self.context.block.preprocess
        # By name: with an import of `tandem.data`, evaluate would be repeated after each change of a source
        reader = importlib.import_module(f"tandem.data.{params.reader}")  # knows the format of the raw data
        raw = np.asarray(values), np.asarray(mask, dtype=bool)
        inputs, anchors = reader.raw_to_inputs(*raw, params, context.summary)
        mask = np.ones(inputs.shape[:2], dtype=bool) if anchors is not None else raw[1]
        tensors = {
            "values": torch.from_numpy(inputs),
            "mask": torch.from_numpy(mask),
            "targets": torch.zeros(len(mask)),
        }
        outputs = self.outputs_of(tensors)
        return in_units(context, context.task.predict(outputs, tensors["mask"]), mask, anchors)


def in_units(context: RunContext, predictions: Tensor, mask: np.ndarray, anchors: np.ndarray | None) -> np.ndarray:
    """The predictions of a task as its users know them."""
    return without_padding(context, context.task.to_units(predictions.cpu().numpy(), anchors), mask)


def without_padding(context: RunContext, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, values, 0) if context.task.per_step else values


def numbers_of(component: Component, returned: Any) -> dict[str, float]:
    """Name -> number. Raises ValueError if there is something else in what a metric returned."""
    named = dict(returned) if isinstance(returned, Mapping) else {component.attribute: returned}
    numbers = {}
    for name, value in named.items():
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise ValueError(f"{component.place} returns the name {name!r}; use letters, digits, _, -, ., / and spaces")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"{component.place} returns {type(value).__name__} {str(value)[:80]!r} for {name!r}; accepted: a number"
            ) from None
        if not math.isfinite(numbers[name]):
            raise ValueError(f"{component.place} returns {numbers[name]} for {name!r}; accepted: a finite number")
    return numbers
