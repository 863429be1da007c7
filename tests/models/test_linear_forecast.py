"""The linear part of hybrid: its forms, and what their average reaches on series of known kinds."""

import numpy as np
import pytest
import torch

from tandem.models import Shape
from tandem.models.hybrid import Network
from tandem.models.linear_forecast import ChangeUnit, LinearForecast, fit, relative_inputs, to_log_changes
from tandem.models.structural_maps import structural_maps
from tandem.tasks.forecast import linear_forecast

MONTHS, GROWTH = np.arange(200), 0.015
SEASON = np.array([-3.0, -2, 0, 1, 1, 2, 4, 3, 0, -1, -2, -3])


def windows(levels: np.ndarray, num_steps: int, horizon: int, is_log: bool) -> tuple:
    """values (N, T, 1), targets (N, H) and the levels (N,) before the targets, of all windows; and the unit."""
    changes = np.diff(np.log(levels) if is_log else levels)
    unit = ChangeUnit(float(changes.mean()), float(changes.std()), is_log)
    all_steps = torch.from_numpy((changes - unit.mean) / unit.std).unfold(0, num_steps + horizon, 1)
    anchors = levels[num_steps : num_steps + len(all_steps)]
    return all_steps[:, :num_steps, None].float(), all_steps[:, num_steps:].float(), anchors, unit


def forecasts(fitted: LinearForecast, values: torch.Tensor, unit: ChangeUnit) -> torch.Tensor:
    """(N, H) of windows (N, T, F), in float64."""
    values = values.double()
    changes = values.flatten(1) @ fitted.changes.weights + fitted.changes.bias
    levels = relative_inputs(values, unit.mean, unit.std).flatten(1) @ fitted.levels.weights + fitted.levels.bias
    return torch.lerp(changes, to_log_changes(levels, unit.mean, unit.std), fitted.levels_share)


def errors(levels: np.ndarray, season: int, is_log: bool, num_steps: int, horizon: int) -> tuple:
    """MAE of the forecast over the last fifth, of no change and of the last season; and the fitted forecast."""
    values, targets, anchors, unit = windows(levels, num_steps, horizon, is_log)
    num = len(values) * 4 // 5
    fitted = fit(values[: num - horizon], targets[: num - horizon], unit, season)
    start = num_steps + num  # of the first test window's last level
    actual = np.stack([levels[start + row + 1 :][:horizon] for row in range(len(values) - num)])
    path = (forecasts(fitted, values[num:], unit).numpy() * unit.std + unit.mean).cumsum(1)
    forecast = anchors[num:, None] * np.exp(path) if is_log else anchors[num:, None] + path
    season = season or 1
    naive = np.stack([levels[start + row + 1 - season :][: min(season, horizon)] for row in range(len(actual))])
    naive = np.tile(naive, -(-horizon // season))[:, :horizon]
    reference_errors = (np.abs(reference - actual).mean() for reference in (anchors[num:, None], naive))
    return np.abs(forecast - actual).mean(), *reference_errors, fitted


@pytest.mark.parametrize(("num_past", "horizon", "season"), [(32, 4, 4), (9, 4, 4), (3, 5, 0), (5, 2, 12)])
def test_maps_continue_a_constant_and_a_season_that_comes_again(num_past: int, horizon: int, season: int):
    pattern = torch.tensor([3.0, -1, 0, 5], dtype=torch.float64).repeat(9)
    maps = structural_maps(num_past, horizon, season)
    assert any("season" in name for name in maps) == (num_past > season > 0)
    for name, weights in maps.items():
        torch.testing.assert_close(weights.sum(1), torch.ones(horizon, dtype=torch.float64))
        if "season" in name and num_past == 32:
            assert (weights @ pattern[:32] - pattern[:4]).abs().max() < 0.5, name


@pytest.mark.parametrize("is_multiplied", [True, False])
def test_a_season_is_forecast_from_logarithms_if_it_grows_and_else_from_levels(is_multiplied: bool):
    draw, shares, ratios = np.random.default_rng(0), [], []
    for _ in range(5):
        trend, season = 100 * np.exp(GROWTH * MONTHS), np.tile(SEASON, 17)[:200]
        noise = 0.3 * draw.normal(size=200)
        levels = trend * np.exp((season + noise) / 12) if is_multiplied else trend + 6 * (season + noise)
        error, _, last_season, fitted = errors(levels, 12, True, 40, 12)
        shares.append(fitted.levels_share)
        ratios.append(error / last_season)
    assert (np.mean(shares) < 0.4) if is_multiplied else (np.mean(shares) > 0.6)
    assert np.mean(ratios) < 0.6


@pytest.mark.parametrize("is_log", [True, False])
def test_noise_is_forecast_better_than_by_no_change_and_a_random_walk_hardly_worse(is_log: bool):
    draw, of_walks, of_noise = np.random.default_rng(0), [], []
    for _ in range(12):
        noise = draw.normal(size=300)
        walk = noise.cumsum()
        for ratios, levels in (
            (of_walks, np.exp(0.02 * walk) if is_log else walk),
            (of_noise, 10 + noise),
        ):
            error, no_change, *_ = errors(levels, 0, is_log, 24, 4)
            ratios.append(error / no_change)
    assert np.mean(of_walks) < 1.12 and np.mean(of_noise) < 0.8


def test_equal_windows_give_equal_bits_and_the_selection_is_described():
    noise = 0.05 * np.random.default_rng(0).normal(size=200)
    levels = 100 * np.exp(GROWTH * MONTHS + np.tile(SEASON, 17)[:200] / 12 + noise)
    values, targets, _, unit = windows(levels, 24, 6, True)
    first, second = fit(values, targets, unit, 12), fit(values, targets, unit, 12)
    for layer, repeated in ((first.changes, second.changes), (first.levels, second.levels)):
        assert layer.weights.equal(repeated.weights) and layer.bias.equal(repeated.bias)
    assert first.selection == second.selection
    held_out = first.selection["held_out"]
    assert held_out[first.selection["selected"]] < held_out["last season"] < held_out["no change"] == 1


def test_hybrid_starts_from_the_linear_forecast_of_train_and_val_and_adds_in_units_of_its_error():
    levels = 100 + np.random.default_rng(0).normal(size=120).cumsum()
    values, targets, _, unit = windows(levels, 12, 3, True)
    splits = [{"values": values[rows], "targets": targets[rows]} for rows in (slice(60), slice(60, None))]
    of_unit = {"mean": unit.mean, "std": unit.std, "is_log": True, "season": 0}
    expected = forecasts(fit(values, targets, unit, 0), values, unit)
    for hidden_size in (0, 4):
        model = Network(Shape(1, 3, 12, False), hidden_size=hidden_size, dropout=0.0)
        model.fit_initial(splits, **of_unit)
        for parameter in model.parameters():
            parameter.data.zero_()
        (model.shift if model.network is None else model.network[-1].bias).data.fill_(0.5)
        outputs = model(values, torch.ones(values.shape[:2], dtype=torch.bool)).detach()
        errors = (targets - expected).square().mean(0).sqrt()
        torch.testing.assert_close(outputs.double(), expected + 0.5 * errors, atol=1e-4, rtol=1e-4)
        assert model.selection()["selected"] in model.describe_selection("skill")


def test_an_almost_exact_cycle_is_forecast_as_well_as_by_least_squares():
    hour, draw = np.arange(2400), np.random.default_rng(0)
    day, year = 2 * np.pi * hour / 24, 2 * np.pi * hour / 8766
    cycle = np.sin(day) + np.cos(2 * day) / 2 + np.sin(3 * day) / 4
    levels = 14 + 5 * np.sin(year) + 4 * (1 + 0.4 * np.cos(year)) * cycle + 0.005 * draw.normal(size=2400)
    values, targets, _, unit = windows(levels, 96, 24, False)
    num = len(values) * 4 // 5
    least_squares = linear_forecast(values[: num - 24].numpy(), targets[: num - 24].numpy(), values[num:].numpy())
    expected = np.abs((least_squares - targets[num:].numpy()).cumsum(1)).mean() * unit.std
    error, *_ = errors(levels, 24, False, 96, 24)
    assert error < 1.5 * expected


@pytest.mark.parametrize("num_windows", [1, 2, 12, 400])
def test_the_linear_part_finds_the_season_with_few_windows_and_the_regression_with_many(num_windows: int):
    """A season that comes again exactly, and another feature's last value that says the next change."""
    draw = torch.Generator().manual_seed(0)
    num, num_steps, horizon = num_windows + 10, 8, 2
    pattern = torch.tensor([1.0, -2.0, 0.5, 0.5])
    values = torch.stack([pattern.repeat(150)[start : start + num_steps] for start in range(num)])[:, :, None]
    targets = torch.stack([pattern.repeat(150)[start + num_steps :][:horizon] for start in range(num)])
    if num_windows == 400:
        feature = torch.randn(num, num_steps, 1, generator=draw)
        values, targets = torch.cat([values, feature], dim=2), targets + feature[:, -1]
    unit = ChangeUnit(mean=0.0, std=1.0, is_log=False)
    fitted = fit(values[:num_windows], targets[:num_windows], unit, season=4)
    deviations = forecasts(fitted, values[-10:], unit) - targets[-10:]
    assert deviations.abs().max() < (0.05 if num_windows > 2 else 3)
