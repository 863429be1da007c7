"""A forecast that is linear in the window's changes or levels: the weighted average of many forms.

Forms are structural models (structural_maps.py) with and without the training time's drift, and regressions towards the
best of these. A ridge regression (Hoerl and Kennard 1970, Technometrics 12, 55-67) on the residuals of a map shrinks
towards that map: with few windows it stays close to it; with many it becomes an autoregression. Distant steps are
shrunk more (Doan, Litterman and Sims 1984, Econometric Reviews 3, 1-100). The forecast of several steps is direct, or
repeats the forecast of one step (Marcellino, Stock and Watson 2006, Journal of Econometrics 135, 499-526).

If the changes are those of a logarithm, each form has a second version, which is linear in the levels themselves, as
shares of the last level: a season is then added instead of multiplied.

Every window measures the forms' errors: the maps that are not fitted by forecasts from each origin, the regressions by
cross-validation in blocks of time (Bergmeir, Hyndman and Koo 2018, Computational Statistics and Data Analysis 120,
70-83). The errors give the forms' weights (Yang 2004, Econometric Theory 20, 176-222). With many windows only the best
form remains; with few, several remain, and their average errs less than a choice by chance (Bates and Granger 1969,
Operational Research Quarterly 20, 451-468).

Shapes: N windows in the order of time, T steps, F features, H steps ahead; P = T * F inputs, M forms, S strengths.
Inputs and outputs are standardized changes from step to step. Everything runs in float64 on one CPU thread, so equal
windows give equal bits on one kind of processor.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tandem.machine.threads import using_threads
from tandem.models.structural_maps import LAST_SEASON, NO_CHANGE, structural_maps

MAX_INPUTS = 1024  # inputs of a regression: a decomposition takes a second
MAX_CELLS = 20_000_000  # values in the windows; if there are more, only every second (third, ...) window is used
MAX_SCORED = 1000  # windows that measure the errors
NUM_FOLDS = 5
NUM_REGRESSED = 2  # number of best maps towards which regressions shrink
STRENGTHS = (1e-8, 1e-6, 1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # ridge strengths, multiplied by the number of windows
SHARPNESS = 4.0  # how much the weights prefer the smallest error
LARGEST_LOG = 8.0  # levels are limited to exp(8) times the last one, up and down
SMALLEST_LEVEL = 0.02  # of a forecast, as a share of the last level: it must be positive to have a logarithm


@dataclass(frozen=True)
class ChangeUnit:
    """The unit of the target's standardized changes."""

    mean: float
    std: float
    is_log: bool  # whether they are changes of the logarithm


@dataclass(frozen=True)
class LinearMap:
    """(N, P) inputs -> (N, H) forecasts."""

    weights: Tensor  # (P, H)
    bias: Tensor  # (H,)


@dataclass(frozen=True)
class Form:
    """One of the averaged forecasts. Its inputs are the window's first features."""

    name: str
    of_levels: bool  # linear in the levels, not in their logarithms
    error: float  # mean absolute error in levels of the target
    map: LinearMap


@dataclass(frozen=True)
class LinearForecast:
    """The weighted averages of the forms of both kinds."""

    changes: LinearMap
    levels: LinearMap
    levels_share: float  # weight of `levels`: 0 unless the changes are those of a logarithm
    selection: dict[str, Any]  # see `selection_of`


@torch.no_grad()
def fit(values: Tensor, targets: Tensor, unit: ChangeUnit, season: int) -> LinearForecast:
    """Fit the forecast to windows `values` (N, T, F) with `targets` (N, H).

    `season` is in steps; 0 means no season.
    """
    (_, num_steps, num_features), horizon = values.shape, targets.shape[1]
    every = -(-values.numel() // MAX_CELLS)
    values, targets = (part[::every].cpu().double() for part in (values, targets))
    forms: list[Form] = []
    with using_threads(1):
        simple = change_maps(structural_maps(num_steps + 1, horizon, season), unit.mean / unit.std)
        for windows in [Windows(values, targets, unit, False), *([Windows(values, targets, unit, True)] * unit.is_log)]:
            for size in sorted({1, num_features}):  # the target's own past, then the past of all features
                if size == 1 or num_steps * size <= MAX_INPUTS:
                    forms += fit_forms(windows, simple, size)
    errors = torch.tensor([form.error for form in forms], dtype=torch.float64)
    num_scored = len(targets) / max(horizon, season)  # overlapping windows count as fewer
    shares = (-SHARPNESS * num_scored * (errors / errors.min().clamp_min(1e-12) - 1)).softmax(0).tolist()
    pairs = list(zip(shares, forms, strict=True))
    return LinearForecast(
        average([pair for pair in pairs if not pair[1].of_levels], num_steps, num_features, horizon),
        average([pair for pair in pairs if pair[1].of_levels], num_steps, num_features, horizon),
        sum(share for share, form in pairs if form.of_levels),
        selection_of(pairs, unit),
    )


def average(pairs: list[tuple[float, Form]], num_steps: int, num_features: int, horizon: int) -> LinearMap:
    """The average of forms by their shares; features that a form lacks have weight zero. No form: zeros."""
    weights = torch.zeros(num_steps, num_features, horizon, dtype=torch.float64)
    bias, total = torch.zeros(horizon, dtype=torch.float64), max(1e-300, sum(share for share, _ in pairs))
    for share, form in pairs:
        own_weights = form.map.weights.unflatten(0, (num_steps, -1))
        weights[:, : own_weights.shape[1]] += share / total * own_weights
        bias += share / total * form.map.bias
    return LinearMap(weights.flatten(0, 1), bias)


def selection_of(pairs: list[tuple[float, Form]], unit: ChangeUnit) -> dict[str, Any]:
    """The form with the largest weight, and errors as shares of the error of no change."""
    share, best = max(pairs, key=lambda pair: pair[0])
    errors: dict[str, float] = {}
    for _, form in pairs:
        errors[form.name] = min(form.error, errors.get(form.name, form.error))
    scale = max(errors[NO_CHANGE], 1e-300)
    return {
        "selected": best.name,
        "share": share,
        **({"share_of_levels": sum(share for share, form in pairs if form.of_levels)} if unit.is_log else {}),
        "held_out": {name: errors[name] / scale for name in (best.name, NO_CHANGE, LAST_SEASON) if name in errors},
    }


class Windows:
    """Inputs and targets of one kind, and the errors of forecasts in levels of the target.

    The changes of a window do not determine its last level. For logarithms this level scales the error, so `anchors`
    accumulates it from window to window.
    """

    def __init__(self, values: Tensor, targets: Tensor, unit: ChangeUnit, of_levels: bool) -> None:
        self.unit, self.of_levels = unit, of_levels
        self.inputs = relative_inputs(values, unit.mean, unit.std) if of_levels else values  # (N, T, F)
        self.targets = relative_targets(targets, unit.mean, unit.std) if of_levels else targets  # (N, H)
        logs = (values[:, -1, 0] * unit.std + unit.mean).cumsum(0)
        self.anchors = (logs - logs.mean()).clamp(-50, 50).exp() if unit.is_log else torch.ones_like(logs)
        # A change relative to the last level has a spread that is inverse to this level.
        self.row_weights = self.anchors / self.anchors.mean() if of_levels else torch.ones_like(logs)
        self.actual = self.levels(self.targets[:, None], torch.arange(len(targets)))

    def errors(self, forecasts: Tensor, rows: Tensor) -> Tensor:
        """Returns the summed absolute errors (M,) of the changes `forecasts` (n, M, H) of the windows `rows` (n,)."""
        return (self.levels(forecasts, rows) - self.actual[rows]).abs().nan_to_num(posinf=1e300).sum(dim=(0, 2))

    def levels(self, changes: Tensor, rows: Tensor) -> Tensor:
        """Convert changes (n, M, H) to levels above the last one."""
        path = (changes * self.unit.std + self.unit.mean).cumsum(2)
        if self.unit.is_log and not self.of_levels:
            path = path.clamp(-50, 50).expm1()
        return self.anchors[rows, None, None] * path


def fit_forms(windows: Windows, simple: dict[str, LinearMap], size: int) -> list[Form]:
    """The simple maps (for one feature), and regressions on the first `size` features towards the best of them."""
    inputs, targets = windows.inputs[:, :, :size].flatten(1), windows.targets
    (num, num_inputs), horizon, names = inputs.shape, targets.shape[1], list(simple)
    weights = torch.zeros(len(names), num_inputs // size, size, horizon, dtype=torch.float64)
    weights[:, :, 0] = torch.stack([linear_map.weights for linear_map in simple.values()])
    weights, bias = weights.flatten(1, 2), torch.stack([linear_map.bias for linear_map in simple.values()])
    folds = []
    for start, end in pairwise(torch.linspace(0, num, min(num, NUM_FOLDS) + 1).long().tolist()):
        # Exclude windows whose targets overlap with those of the scored windows.
        others = torch.cat([torch.arange(max(0, start - horizon + 1)), torch.arange(min(num, end + horizon - 1), num)])
        num_scored = min(end - start, MAX_SCORED // NUM_FOLDS)
        folds.append((others, torch.linspace(start, end - 1, num_scored).long().unique()))
    rows = torch.cat([scored for _, scored in folds])
    errors = windows.errors(predict(inputs[rows], weights, bias), rows)
    num_errors = len(rows) * horizon
    entries = zip(names, errors.tolist(), weights, bias, strict=True)
    forms = [Form(name, windows.of_levels, error / num_errors, LinearMap(*pair)) for name, error, *pair in entries]
    if size > 1:
        forms = []  # they are the same for every size
    if num_inputs > MAX_INPUTS or any(len(others) < 2 for others, _ in folds):
        return forms

    best = errors.argsort(stable=True)[:NUM_REGRESSED]
    weights, bias = weights[best], bias[best]
    residuals = targets[:, None] - predict(inputs, weights, bias)

    def regress(subset: Tensor) -> Ridge:
        return Ridge(inputs[subset], residuals[subset], windows.row_weights[subset], size)

    methods = {"ridge": add_direct, **({"repeated ridge": add_repeated} if size == 1 else {})}
    totals = torch.zeros(len(methods), len(STRENGTHS), len(best), dtype=torch.float64)
    for others, scored in folds:
        ridge = regress(others)
        for column, strength in enumerate(STRENGTHS):
            coefficients = ridge.coefficients(strength)
            for row, add in enumerate(methods.values()):
                forecasts = predict(inputs[scored], *add(weights, bias, coefficients))
                totals[row, column] += windows.errors(forecasts, scored)
    ridge = regress(torch.arange(num))
    of_strength = [ridge.coefficients(strength) for strength in STRENGTHS]
    for (method, add), total in zip(methods.items(), totals, strict=True):
        for place, (error, column) in enumerate(zip(*(part.tolist() for part in total.min(dim=0)), strict=True)):
            of_form = slice(place, place + 1)
            added = add(weights[of_form], bias[of_form], of_strength[column][of_form])
            name = f"{names[best[place]]}, {method} {STRENGTHS[column]:g}{' on all features' if size > 1 else ''}"
            forms.append(Form(name, windows.of_levels, error / num_errors, LinearMap(*(part[0] for part in added))))
    return forms


def predict(inputs: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """(n, P) inputs, (M, P, H) weights, (M, H) bias -> (n, M, H)."""
    return torch.einsum("np,mph->nmh", inputs, weights) + bias


def add_direct(weights: Tensor, bias: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Add a regression's coefficients (M, P + 1, H) to the maps (M, P, H) and (M, H)."""
    return weights + coefficients[:, :-1], bias + coefficients[:, -1]


def add_repeated(weights: Tensor, bias: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Add a regression's coefficients for the first step, and repeat this step: each forecast is the next's input."""
    first, constant = (part[..., 0] for part in add_direct(weights, bias, coefficients))  # (M, T), (M,)
    found_weights, found_bias, num_steps = torch.zeros_like(weights), torch.zeros_like(bias), first.shape[1]
    for step in range(bias.shape[1]):
        num = min(step, num_steps)  # of forecasts among the inputs
        recent, earlier = first[:, num_steps - num :], slice(step - num, step)
        found_weights[:, :, step] = (found_weights[:, :, earlier] @ recent[:, :, None])[:, :, 0]
        found_weights[:, num:, step] += first[:, : num_steps - num]
        found_bias[:, step] = constant + (found_bias[:, earlier] * recent).sum(1)
    return found_weights, found_bias


class Ridge:
    """Ridge regressions of `targets` (N, M, H) on `inputs` (N, P) and a constant, with weighted rows."""

    def __init__(self, inputs: Tensor, targets: Tensor, row_weights: Tensor, num_features: int) -> None:
        nearness = 1 / torch.arange(inputs.shape[1] // num_features, 0, -1, dtype=torch.float64)
        nearness = (nearness / nearness.square().mean().sqrt()).repeat_interleave(num_features)
        self.scale = torch.cat([nearness, nearness.new_ones(1)])[:, None]
        design = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1) * row_weights[:, None] * self.scale[:, 0]
        values, self.vectors = torch.linalg.eigh(design.T @ design)
        self.values, self.num, self.shape = values.clamp_min(0), len(inputs), targets.shape[1:]
        self.turned = self.vectors.T @ (design.T @ (targets.flatten(1) * row_weights[:, None]))

    def coefficients(self, strength: float) -> Tensor:
        """Coefficients (M, P + 1, H); the last row belongs to the constant."""
        weights = self.scale * (self.vectors @ (self.turned / (self.values + strength * self.num)[:, None]))
        return weights.unflatten(1, self.shape).transpose(0, 1)


def change_maps(levels: dict[str, Tensor], offset: float) -> dict[str, LinearMap]:
    """Weights (H, T + 1) of levels -> maps of standardized changes, without and with the training time's drift.

    `offset` is the mean change in standard deviations, so a standardized change of -offset means no change.
    """
    maps = {}
    for name, weights in levels.items():
        from_last = -weights.cumsum(dim=1)[:, :-1]  # a level is the last level minus the changes after it
        steps = torch.diff(from_last, dim=0, prepend=torch.zeros_like(from_last[:1])).T
        maps[name] = LinearMap(steps, offset * (steps.sum(0) - 1))
        if "slope" not in name:
            maps[f"{name}, drift"] = LinearMap(steps, torch.zeros_like(steps[0]))
    return maps


def relative_inputs(values: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Feature 0 of windows (N, T, F): changes of logarithms -> changes of levels, as shares of the last level."""
    to_last = (values[:, :, 0] * std + mean).flip(1).cumsum(1).flip(1)
    levels = torch.nn.functional.pad(-to_last, (0, 1)).clamp(-LARGEST_LOG, LARGEST_LOG).exp()
    return torch.cat([((levels.diff(dim=1) - mean) / std)[:, :, None], values[:, :, 1:]], dim=2)


def relative_targets(targets: Tensor, mean: float, std: float) -> Tensor:
    """Changes of logarithms after the last level -> changes of levels, as shares of that level."""
    levels = (targets * std + mean).cumsum(1).clamp(-LARGEST_LOG, LARGEST_LOG).exp()
    return (levels.diff(dim=1, prepend=torch.ones_like(levels[:, :1])) - mean) / std


def to_log_changes(changes: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """The inverse of `relative_targets`, for forecasts; levels stay above zero."""
    logs = (1 + (changes * std + mean).cumsum(1)).clamp_min(SMALLEST_LEVEL).log()
    return (logs.diff(dim=1, prepend=torch.zeros_like(logs[:, :1])) - mean) / std
