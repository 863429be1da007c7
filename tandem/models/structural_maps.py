"""Forecasts of structural time series models, as linear maps of past levels.

A series is the sum of a level, a slope, a season and noise (Harvey 1989, Forecasting, Structural Time Series Models and
the Kalman Filter, chapter 2); exponential smoothing with and without a damped trend or a season is of this kind
(Hyndman, Koehler, Ord and Snyder 2008, Forecasting with Exponential Smoothing, chapter 11). For given variances, the
best linear unbiased forecast is a fixed map of the past levels: the covariances of the future with the past times the
inverse covariances of the past (Cressie 1993, Statistics for Spatial Data, 3.2). No map is fitted to data.
"""

from itertools import product

import torch
from torch import Tensor

# Variances relative to the noise. A level is a random walk with this variance per step, or returns to its mean.
WALKS = (100.0, 1.0, 0.2, 0.04, 0.005)
RETURNING = ((0.8, 4.0), (0.8, 0.5), (0.95, 4.0))  # autocorrelation and variance
SLOPES = ((0.9, 0.05), (0.98, 0.005), (0.98, 0.1))  # autocorrelation, and the shocks' variance relative to the level's
SEASON_CHANGES = (0.0005, 0.02, 0.2)  # variance of a season's changes from one season to the next
FIRST_SEASON, FIRST_SLOPE = 10.0, 20.0  # variances at the start: large, because nothing is known
NO_CHANGE, LAST_SEASON = "no change", "last season"  # maps without noise


def structural_maps(num_past: int, horizon: int, season: int) -> dict[str, Tensor]:
    """Name -> weights (H, T) of `num_past` levels T in the next `horizon` levels; each row sums to one.

    `season` is in steps; 0 means no season.
    """
    step = torch.arange(num_past + horizon, dtype=torch.float64)
    distances, earlier = (step[:, None] - step).abs(), torch.minimum(step[:, None], step)
    levels = {f"level {variance:g}": variance * earlier for variance in WALKS}
    for (name, level), (decay, share) in product(list(levels.items()), SLOPES):
        responses = (decay**distances).tril().cumsum(0)  # of the levels (rows) to the slope's shocks (columns)
        shocks = responses @ responses.T + FIRST_SLOPE * responses[:, :1] @ responses[:, :1].T
        levels[f"{name}, slope {decay:g}"] = level + share * level[1, 1] * shocks
    levels |= {f"level returning by {decay:g} ({size:g})": size * decay**distances for decay, size in RETURNING}
    maps = {name: best_unbiased(level, num_past) for name, level in levels.items()}
    if season and num_past > season:
        is_same = (distances % season == 0).double()
        changes = torch.minimum(step[:, None] // season, step // season)
        for (name, level), variance in product(levels.items(), SEASON_CHANGES):
            seasonal = is_same * (FIRST_SEASON * (1 + level[1, 1]) + variance * changes)
            maps[f"{name}, season {variance:g}"] = best_unbiased(level + seasonal, num_past)
        maps[LAST_SEASON] = last_season(num_past, horizon, season)
    no_change = torch.zeros(horizon, num_past, dtype=torch.float64)
    no_change[:, -1] = 1
    return {NO_CHANGE: no_change, **maps}


def best_unbiased(covariances: Tensor, num_past: int) -> Tensor:
    """Weights (H, T) from the covariances (T + H, T + H) without the noise; the mean of the series is unknown."""
    past, cross = covariances[:num_past, :num_past], covariances[num_past:, :num_past]
    right = torch.cat([cross.T, torch.ones(num_past, 1, dtype=torch.float64)], dim=1)
    solved = torch.linalg.solve(past + torch.eye(num_past, dtype=torch.float64), right)
    weights, of_mean = solved[:, :-1], solved[:, -1:]
    return (weights + of_mean / of_mean.sum() * (1 - weights.sum(0))).T


def last_season(num_past: int, horizon: int, season: int) -> Tensor:
    ahead = torch.arange(horizon)
    weights = torch.zeros(horizon, num_past, dtype=torch.float64)
    weights[ahead, num_past + ahead % season - season] = 1
    return weights
