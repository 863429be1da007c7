"""A linear forecast: the weighted average of ridge regressions, each shrunk towards a simple forecast.

Every simple forecast (no change; exponential smoothing; a straight line; a repetition of the last seasons; with and
without drift) is a linear map of the window. A ridge regression (Hoerl and Kennard 1970, Technometrics 12, 55-67) on
the residuals of such a map shrinks towards that map instead of towards zero: with few windows it stays close to the
map; with many it becomes the least-squares autoregression. Cross-validation in blocks of time (Bergmeir, Hyndman and
Koo 2018, Computational Statistics and Data Analysis 120, 70-83) chooses the ridge strength. Its errors also give the
weights of the maps (Yang 2004, Econometric Theory 20, 176-222). With many windows only the best map remains; with few,
several remain, and their average errs less than a choice by chance (Bates and Granger 1969, Operational Research
Quarterly 20, 451-468). A weighted average of linear maps is one linear map.

Shapes: N windows in the order of time, T steps, F features, H steps ahead; P = T * F inputs, M simple maps. Inputs and
outputs are standardized changes from step to step. Everything runs in float64 on one CPU thread, so equal windows give
equal bits on one kind of processor.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tandem.machine.threads import threads_kept

MAX_INPUTS = 1024  # inputs of a regression: a decomposition takes a second
MAX_CELLS = 20_000_000  # values in the windows; if there are more, only every second (third, ...) window is used
MAX_SCORED = 500  # windows per fold that measure the error
NUM_FOLDS = 10
STRENGTHS = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)  # ridge strengths, multiplied by the number of windows
SMOOTHING = (0.2, 0.5)


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


@torch.no_grad()
def fit(values: Tensor, targets: Tensor, unit: ChangeUnit, season: int) -> LinearMap:
    """Fit the map to windows `values` (N, T, F) with `targets` (N, H). `season` is in steps; 0 means no season."""
    (_, num_steps, num_features), horizon = values.shape, targets.shape[1]
    every = -(-values.numel() // MAX_CELLS)
    values, targets = (part[::every].cpu().double() for part in (values, targets))
    simple = simple_maps(num_steps, horizon, unit.mean / unit.std, season)
    summed_errors, found = ForecastErrors(values, targets, unit), []
    with threads_kept(1):
        for size in sorted({1, num_features}):  # the target's own past, then the past of all features
            if size == 1 or num_steps * size <= MAX_INPUTS:
                maps = [widened(each, size) for each in simple]
                inputs = values[:, :, :size].flatten(1)
                found += [
                    (error, widened(each, num_features, size))
                    for error, each in fits(inputs, targets, maps, summed_errors)
                ]
    errors = torch.tensor([error for error, _ in found], dtype=torch.float64)
    num_scored = len(targets) / max(horizon, season)  # overlapping windows count as fewer
    shares = (-num_scored * (errors / errors.min().clamp_min(1e-12) - 1)).softmax(0)
    weights, bias = (
        sum(share * getattr(each, part) for share, (_, each) in zip(shares, found, strict=True))
        for part in ("weights", "bias")
    )
    assert isinstance(weights, Tensor) and isinstance(bias, Tensor)
    return LinearMap(weights, bias)


def fits(
    inputs: Tensor, targets: Tensor, simple: list[LinearMap], summed_errors: "ForecastErrors"
) -> list[tuple[float, LinearMap]]:
    """For each simple map: the error and the map of the best regression towards it, or of the simple map itself."""
    num, horizon = targets.shape
    weights = torch.cat([each.weights for each in simple], dim=1)  # (P, M * H); the weights below have the same layout
    bias = torch.cat([each.bias for each in simple])
    forecasts = inputs @ weights + bias
    residuals = targets.repeat(1, len(simple)) - forecasts
    strengths = STRENGTHS if inputs.shape[1] <= MAX_INPUTS else ()
    totals = torch.zeros(1 + len(strengths), len(simple), dtype=torch.float64)
    for start, end in pairwise(torch.linspace(0, num, min(num, NUM_FOLDS) + 1).long().tolist()):
        # Exclude windows whose targets overlap with those of the scored windows.
        others = torch.cat([torch.arange(max(0, start - horizon + 1)), torch.arange(min(num, end + horizon - 1), num)])
        scored = torch.linspace(start, end - 1, min(end - start, MAX_SCORED)).long().unique()
        totals[0] += summed_errors(forecasts[scored], scored)
        if not len(others):
            totals[1:] += totals[0]  # without windows there is no regression
        elif strengths:
            ridge = Ridge(inputs[others], residuals[others])
            for number, strength in enumerate(strengths, start=1):
                more = with_constant(inputs[scored]) @ ridge.coefficients(strength)
                totals[number] += summed_errors(forecasts[scored] + more, scored)
    errors, best = totals.min(dim=0)
    if best.any():
        ridge = Ridge(inputs, residuals)
        for column, number in enumerate(best.tolist()):
            if number:
                own = slice(column * horizon, (column + 1) * horizon)
                coefficients = ridge.coefficients(strengths[number - 1])[:, own]
                weights[:, own] += coefficients[:-1]
                bias[own] += coefficients[-1]
    maps = zip(weights.split(horizon, dim=1), bias.split(horizon), strict=True)
    return [(error, LinearMap(*each)) for error, each in zip((errors / (num * horizon)).tolist(), maps, strict=True)]


class ForecastErrors:
    """Computes the error of forecasts for some windows, measured in levels of the target instead of changes.

    The changes of a window do not determine its starting level. For logarithms this level scales the error, so
    `anchors` accumulates it from window to window.
    """

    def __init__(self, values: Tensor, targets: Tensor, unit: ChangeUnit) -> None:
        self.unit = unit
        self.anchors = (values[:, -1, 0] * unit.std + unit.mean).cumsum(0).exp() if unit.is_log else None
        self.actual = self.levels(targets[:, None], torch.arange(len(targets)))

    def __call__(self, found: Tensor, rows: Tensor) -> Tensor:
        """Returns the summed absolute errors (M,) of the changes `found` (n, M * H) for the windows `rows` (n,)."""
        changes = found.unflatten(1, (-1, self.actual.shape[2]))
        return (self.levels(changes, rows) - self.actual[rows]).abs().nan_to_num(posinf=1e300).sum(dim=(0, 2))

    def levels(self, changes: Tensor, rows: Tensor) -> Tensor:
        """Convert changes to levels (n, M, H)."""
        path = (changes * self.unit.std + self.unit.mean).cumsum(2)
        return path if self.anchors is None else self.anchors[rows, None, None] * path.exp()


class Ridge:
    """Ridge regressions of `targets` (N, C) on `inputs` (N, P) and a constant."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        design = with_constant(inputs)
        values, self.vectors = torch.linalg.eigh(design.T @ design)
        self.values, self.num = values.clamp_min(0), len(inputs)
        self.turned = self.vectors.T @ (design.T @ targets)

    def coefficients(self, strength: float) -> Tensor:
        """Coefficients (P + 1, C); the last row belongs to the constant."""
        return self.vectors @ (self.turned / (self.values + strength * self.num)[:, None])


def with_constant(inputs: Tensor) -> Tensor:
    return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)


def widened(each: LinearMap, num_features: int, own: int = 1) -> LinearMap:
    """Extend a map of a window's first `own` features to `num_features` features, with zero weights."""
    weights = each.weights.unflatten(0, (-1, own))
    wide = weights.new_zeros(len(weights), num_features, weights.shape[2])
    wide[:, :own] = weights
    return LinearMap(wide.flatten(0, 1), each.bias)


def simple_maps(num_steps: int, horizon: int, offset: float, season: int) -> list[LinearMap]:
    """Maps of the target's own past: averages of its levels, with and without drift, and repetitions of its changes.

    `offset` is the mean change in standard deviations, so a standardized change of -offset means no change.
    """
    place = torch.arange(num_steps + 1, dtype=torch.float64)  # indices of the window's levels; the last is num_steps
    averages = [(place == num_steps).double()[None], torch.full_like(place, 1 / (num_steps + 1))[None]]
    for share in SMOOTHING:  # the oldest level also gets the weight of all earlier levels
        smoothed = share * (1 - share) ** (num_steps - place)
        smoothed[0] = 1 - smoothed[1:].sum()
        averages.append(smoothed[None])
    whole = num_steps // season if season else 0
    numbers = sorted({1, whole} - {0}) if whole else []
    averages += [past_seasons(num_steps + 1, horizon, season, number) for number in numbers]
    drift, maps = torch.zeros(horizon, dtype=torch.float64), []
    for levels in averages:
        steps = steps_of(levels.expand(horizon, -1))
        maps += [LinearMap(steps, offset * (steps.sum(0) - 1)), LinearMap(steps, drift)]
    line = steps_of(straight_line(num_steps + 1, horizon))
    maps.append(LinearMap(line, offset * (line.sum(0) - 1)))
    return maps + [LinearMap(past_seasons(num_steps, horizon, season, number).T, drift) for number in numbers]


def steps_of(levels: Tensor) -> Tensor:
    """Weights of levels in each forecast level (H, T + 1) -> weights of changes in each forecast change (T, H)."""
    from_last = -levels.cumsum(dim=1)[:, :-1]  # a level is the last level minus the changes after it
    return torch.diff(from_last, dim=0, prepend=torch.zeros_like(from_last[:1])).T


def past_seasons(num: int, horizon: int, season: int, number: int) -> Tensor:
    """Weights (H, num) of `num` values: equal weights for the values at the same point of the last `number` seasons."""
    ahead = torch.arange(horizon)
    shares = torch.zeros(horizon, num, dtype=torch.float64)
    for back in range(1, number + 1):
        shares[ahead, num + ahead % season - back * season] = 1 / number
    return shares


def straight_line(num: int, horizon: int) -> Tensor:
    """Weights (H, num) of `num` values in the extrapolation of their least-squares line."""
    place = torch.arange(num + horizon, dtype=torch.float64) - (num - 1) / 2
    return 1 / num + place[num:, None] * place[:num] / place[:num].square().sum()
