"""A linear forecast that is never far from a simple one: ridge regressions towards simple forecasts, averaged.

Every simple forecast (nothing changes; exponential smoothing; a straight line; the last seasons again; each with and
without the drift) is a linear map of the window. A ridge regression (Hoerl and Kennard 1970, Technometrics 12, 55-67)
on what such a map leaves is drawn towards that map instead of towards zero: with few windows it stays there, with many
it is the autoregression of least squares. How strongly it is drawn is chosen by cross-validation in blocks of time
(Bergmeir, Hyndman and Koo 2018, Computational Statistics and Data Analysis 120, 70-83). Which map is best is not chosen
but weighed by these errors (Yang 2004, Econometric Theory 20, 176-222): with many windows the best one is left, with
few several, whose average errs less than a choice by chance (Bates and Granger 1969, Operational Research Quarterly 20,
451-468). A weighted average of linear maps is one linear map.

Shapes: N windows in the order of time, T steps, F features, H steps ahead; P = T * F inputs, M simple maps. Inputs and
outputs are standardized changes from step to step. In float64 on the CPU and on one thread, where equal windows give
equal bits on one kind of processor.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from stages.machine.threads import threads_kept

MAX_INPUTS = 1024  # of a regression: a decomposition takes a second
MAX_CELLS = 20_000_000  # of the windows that are looked at: of more, every second one, and so on
MAX_JUDGED = 500  # windows of a fold that choices are made by
NUM_FOLDS = 10
STRENGTHS = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)  # of the ridge, times the number of windows
SMOOTHING = (0.2, 0.5)


@dataclass(frozen=True)
class Unit:
    """What a standardized change of the target stands for."""

    mean: float
    std: float
    is_log: bool  # of the logarithm


@dataclass(frozen=True)
class Map:
    """(N, P) inputs -> (N, H) forecasts."""

    weights: Tensor  # (P, H)
    bias: Tensor  # (H,)


@torch.no_grad()
def fit(values: Tensor, targets: Tensor, unit: Unit, season: int) -> Map:
    """The map for windows `values` (N, T, F) with `targets` (N, H). `season` in steps; 0: the series has none."""
    (_, num_steps, num_features), horizon = values.shape, targets.shape[1]
    every = -(-values.numel() // MAX_CELLS)
    values, targets = (part[::every].cpu().double() for part in (values, targets))
    simple = simple_maps(num_steps, horizon, unit.mean / unit.std, season)
    judge, found = Judge(values, targets, unit), []
    with threads_kept(1):
        for size in sorted({1, num_features}):  # the target's own past, and with the other features'
            if size == 1 or num_steps * size <= MAX_INPUTS:
                maps = [widened(each, size) for each in simple]
                inputs = values[:, :, :size].flatten(1)
                found += [
                    (error, widened(each, num_features, size)) for error, each in fits(inputs, targets, maps, judge)
                ]
    errors = torch.tensor([error for error, _ in found], dtype=torch.float64)
    num_judged = len(targets) / max(horizon, season)  # windows that overlap tell less than their number
    shares = (-num_judged * (errors / errors.min().clamp_min(1e-12) - 1)).softmax(0)
    weights, bias = (
        sum(share * getattr(each, part) for share, (_, each) in zip(shares, found, strict=True))
        for part in ("weights", "bias")
    )
    assert isinstance(weights, Tensor) and isinstance(bias, Tensor)
    return Map(weights, bias)


def fits(inputs: Tensor, targets: Tensor, simple: list[Map], judge: "Judge") -> list[tuple[float, Map]]:
    """Of each simple map the regression towards it of the best strength, or the map itself; and its error."""
    num, horizon = targets.shape
    weights = torch.cat([each.weights for each in simple], dim=1)  # (P, M * H), as all below
    bias = torch.cat([each.bias for each in simple])
    started = inputs @ weights + bias
    left = targets.repeat(1, len(simple)) - started
    strengths = STRENGTHS if inputs.shape[1] <= MAX_INPUTS else ()
    totals = torch.zeros(1 + len(strengths), len(simple), dtype=torch.float64)
    for start, end in pairwise(torch.linspace(0, num, min(num, NUM_FOLDS) + 1).long().tolist()):
        # No window whose targets reach into those that are judged, or begin in them.
        others = torch.cat([torch.arange(max(0, start - horizon + 1)), torch.arange(min(num, end + horizon - 1), num)])
        judged = torch.linspace(start, end - 1, min(end - start, MAX_JUDGED)).long().unique()
        totals[0] += judge(started[judged], judged)
        if not len(others):
            totals[1:] += totals[0]  # no regression without a window
        elif strengths:
            ridge = Ridge(inputs[others], left[others])
            for number, strength in enumerate(strengths, start=1):
                more = with_constant(inputs[judged]) @ ridge.coefficients(strength)
                totals[number] += judge(started[judged] + more, judged)
    errors, best = totals.min(dim=0)
    if best.any():
        ridge = Ridge(inputs, left)
        for column, number in enumerate(best.tolist()):
            if number:
                own = slice(column * horizon, (column + 1) * horizon)
                coefficients = ridge.coefficients(strengths[number - 1])[:, own]
                weights[:, own] += coefficients[:-1]
                bias[own] += coefficients[-1]
    maps = zip(weights.split(horizon, dim=1), bias.split(horizon), strict=True)
    return [(error, Map(*each)) for error, each in zip((errors / (num * horizon)).tolist(), maps, strict=True)]


class Judge:
    """The error of forecasts for some of the windows, on the target's own levels as far as changes tell them.

    What a window's changes do not tell is the level it starts from. Of logarithms it scales the error, so it is
    followed from window to window.
    """

    def __init__(self, values: Tensor, targets: Tensor, unit: Unit) -> None:
        self.unit = unit
        self.anchors = (values[:, -1, 0] * unit.std + unit.mean).cumsum(0).exp() if unit.is_log else None
        self.actual = self.levels(targets[:, None], torch.arange(len(targets)))

    def __call__(self, found: Tensor, rows: Tensor) -> Tensor:
        """(M,) summed absolute errors of the changes `found` (n, M * H) for the windows `rows` (n,)."""
        changes = found.unflatten(1, (-1, self.actual.shape[2]))
        return (self.levels(changes, rows) - self.actual[rows]).abs().nan_to_num(posinf=1e300).sum(dim=(0, 2))

    def levels(self, changes: Tensor, rows: Tensor) -> Tensor:
        """(n, M, H)"""
        path = (changes * self.unit.std + self.unit.mean).cumsum(2)
        return path if self.anchors is None else self.anchors[rows, None, None] * path.exp()


class Ridge:
    """Regressions of `targets` (N, C) on `inputs` (N, P) and a constant."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        design = with_constant(inputs)
        values, self.vectors = torch.linalg.eigh(design.T @ design)
        self.values, self.num = values.clamp_min(0), len(inputs)
        self.turned = self.vectors.T @ (design.T @ targets)

    def coefficients(self, strength: float) -> Tensor:
        """(P + 1, C), the constant's last."""
        return self.vectors @ (self.turned / (self.values + strength * self.num)[:, None])


def with_constant(inputs: Tensor) -> Tensor:
    return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)


def widened(each: Map, num_features: int, own: int = 1) -> Map:
    """A map of the first `own` features of a window as one of `num_features`."""
    weights = each.weights.unflatten(0, (-1, own))
    wide = weights.new_zeros(len(weights), num_features, weights.shape[2])
    wide[:, :own] = weights
    return Map(wide.flatten(0, 1), each.bias)


def simple_maps(num_steps: int, horizon: int, offset: float, season: int) -> list[Map]:
    """Of the target's own past: averages of its levels, with and without the drift, and changes that come again.

    `offset`: the mean change in standard deviations, so that a change of -offset is none at all.
    """
    place = torch.arange(num_steps + 1, dtype=torch.float64)  # of the window's levels, the last one at num_steps
    averages = [(place == num_steps).double()[None], torch.full_like(place, 1 / (num_steps + 1))[None]]
    for share in SMOOTHING:  # the oldest level stands for those before it
        smoothed = share * (1 - share) ** (num_steps - place)
        smoothed[0] = 1 - smoothed[1:].sum()
        averages.append(smoothed[None])
    whole = num_steps // season if season else 0
    numbers = sorted({1, whole} - {0}) if whole else []
    averages += [past_seasons(num_steps + 1, horizon, season, number) for number in numbers]
    drift, maps = torch.zeros(horizon, dtype=torch.float64), []
    for levels in averages:
        steps = steps_of(levels.expand(horizon, -1))
        maps += [Map(steps, offset * (steps.sum(0) - 1)), Map(steps, drift)]
    line = steps_of(straight_line(num_steps + 1, horizon))
    maps.append(Map(line, offset * (line.sum(0) - 1)))
    return maps + [Map(past_seasons(num_steps, horizon, season, number).T, drift) for number in numbers]


def steps_of(levels: Tensor) -> Tensor:
    """(H, T + 1) shares of a window's levels in each forecast level, which add up to 1 -> (T, H) shares of its changes
    in each forecast change.
    """
    from_last = -levels.cumsum(dim=1)[:, :-1]  # a level is the last one minus the changes after it
    return torch.diff(from_last, dim=0, prepend=torch.zeros_like(from_last[:1])).T


def past_seasons(num: int, horizon: int, season: int, number: int) -> Tensor:
    """(H, num) shares of `num` values: equal ones of those at the same place of the last `number` seasons."""
    ahead = torch.arange(horizon)
    shares = torch.zeros(horizon, num, dtype=torch.float64)
    for back in range(1, number + 1):
        shares[ahead, num + ahead % season - back * season] = 1 / number
    return shares


def straight_line(num: int, horizon: int) -> Tensor:
    """(H, num) shares of `num` values in the continuation of the line of least squares through them."""
    place = torch.arange(num + horizon, dtype=torch.float64) - (num - 1) / 2
    return 1 / num + place[num:, None] * place[:num] / place[:num].square().sum()
