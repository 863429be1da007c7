"""Forecast: the next H steps of a series, beside two forecasts that cost nothing, and two directions.

Shapes: outputs, targets, predictions (B, H), in units of feature 0 (the target, transformed and standardized); levels
(N, H) in the target's own unit. Persistence says that nothing changes. Linear is a least-squares autoregression on the
same windows. Always up and always down say a direction and no level: a series that falls more often than it rises gives
its direction away. Skill is 1 - error / persistence's error: 0 is no better than saying that nothing changes, 1 is
perfect (Murphy 1988).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.tasks import Evaluation, Read

NUM_RESAMPLES = 1000
# An error this small beside that of other steps is the rounding of the targets, which are stored as 32-bit floats.
ROUNDING = 1e-6


class Task:
    score_name = "skill"
    per_step = False

    def __init__(self, summary: dict[str, Any]) -> None:
        self.num_outputs = summary["num_outputs"]
        self.mean, self.std = summary["mean"][0], summary["std"][0]
        self.target, self.transform = summary["target"]["name"], summary["target"]["transform"]

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """Mean squared error."""
        return (outputs - targets).square().mean()

    def predict(self, outputs: Tensor, mask: Tensor) -> Tensor:
        return outputs

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        """Skill of the mean absolute error, on the summed changes (of log returns: the gain so far)."""
        found, actual = ((part * self.std + self.mean).cumsum(dim=1) for part in (predictions, targets))
        return (1 - (found - actual).abs().mean() / actual.abs().mean()).item()

    def evaluate(self, outputs: Tensor, read: Read) -> Evaluation:
        anchors, targets = read("test", "anchors"), read("test", "targets")
        linear = linear_forecast(read("train", "values"), read("train", "targets"), read("test", "values"))
        actual = self.levels(targets, anchors)
        forecasts = {
            "network": self.levels(outputs.numpy(), anchors),
            "persistence": np.repeat(anchors[:, None], self.num_outputs, axis=1),
            "linear": self.levels(linear, anchors),
        }
        metrics = {"loss": self.loss(outputs, torch.from_numpy(targets), torch.empty(0), 0.0).item()}
        for name, levels in forecasts.items():
            prefix = "" if name == "network" else f"{name}_"
            metrics |= {f"{prefix}{key}": value for key, value in errors(levels, actual).items()}
            if name != "persistence":  # which has no direction
                metrics[f"{prefix}directional_accuracy"] = same_direction(levels, actual, anchors)
        for name, level in (("always_up", np.inf), ("always_down", -np.inf)):
            metrics[f"{name}_directional_accuracy"] = same_direction(np.full_like(actual, level), actual, anchors)
        for name in ("", "linear_"):
            metrics[f"{name}skill"] = 1 - metrics[f"{name}mae"] / metrics["persistence_mae"]
            metrics[f"{name}skill_rmse"] = 1 - metrics[f"{name}rmse"] / metrics["persistence_rmse"]
        if interval := skill_interval(forecasts["network"], forecasts["persistence"], actual):
            metrics |= {"skill_low": interval[0], "skill_high": interval[1]}
        times = read("test", "ids").tolist()
        rows = by_step(forecasts, actual)
        return Evaluation(
            metrics,
            verdict(metrics, self.target) + without_skill(rows),
            rows,
            directions(forecasts["network"], actual, anchors),
            list_forecasts(times, anchors, actual, forecasts),
            {"times": times, "anchors": anchors, "actual": actual, "forecasts": forecasts},
        )

    def levels(self, standardized: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """(N, H) as the network gives them, and the levels (N,) they start from -> levels (N, H)."""
        return levels(standardized.astype(np.float64) * self.std + self.mean, anchors, self.transform)


def levels(steps: np.ndarray, anchors: np.ndarray, kind: str) -> np.ndarray:
    """Levels (N, H) from `steps` (N, H), in the transform's unit, and `anchors` (N,): the inverse of the transform."""
    path = np.cumsum(steps, axis=1, dtype=np.float64)
    return anchors[:, None] * np.exp(path) if kind == "log-return" else anchors[:, None] + path


def linear_forecast(train_values: np.ndarray, train_targets: np.ndarray, test_values: np.ndarray) -> np.ndarray:
    """Forecasts (M, H) float64 of an autoregression of order T, fitted to each of the H targets by least squares.

    Inputs are train_values (N, T, F), of which the target's own past (feature 0) and a constant are used, train_targets
    (N, H) and test_values (M, T, F). One regression per target step is the "direct" forecast of Marcellino, Stock and
    Watson (2006), Journal of Econometrics 135, 499-526.
    """

    train, test = (
        np.column_stack([values[:, :, 0].astype(np.float64), np.ones(len(values))])
        for values in (train_values, test_values)
    )
    return test @ np.linalg.lstsq(train, train_targets.astype(np.float64), rcond=None)[0]


def errors(levels: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    off = levels - actual
    return {"mae": float(np.abs(off).mean()), "rmse": float(np.sqrt(np.square(off).mean()))}


def signs(actual: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(N, H) 1, 0 or -1: the way that the target went. What only rounding moved did not move."""
    change = actual - anchors[:, None]
    return np.where(np.abs(change) > ROUNDING * np.abs(change).max(), np.sign(change), 0.0)


def same_direction(levels: np.ndarray, actual: np.ndarray, anchors: np.ndarray) -> float:
    """Share of the forecasts that go the way that the target went, of those where it moved at all."""
    went = signs(actual, anchors)
    return float((np.sign(levels - anchors[:, None]) == went)[went != 0].mean()) if went.any() else 0.0


def skill_interval(levels: np.ndarray, persistence: np.ndarray, actual: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the skill by a moving-block bootstrap over time (Kuensch 1989), seeded.

    Neighbouring windows share most of their steps, so their errors move together; blocks of sqrt(N) windows keep that.
    None where persistence makes no error in some resample, which then has no skill: the series changes in few windows.
    """
    own, base = (np.abs(part - actual).mean(axis=1) for part in (levels, persistence))
    size = max(1, round(len(own) ** 0.5))
    num_blocks = -(-len(own) // size)
    starts = np.random.default_rng(0).integers(0, len(own) - size + 1, size=(NUM_RESAMPLES, num_blocks))
    summed = [np.concatenate([[0.0], np.cumsum(part)]) for part in (own, base)]
    totals = [(sums[starts + size] - sums[starts]).sum(axis=1) for sums in summed]
    if not totals[1].all():
        return None
    low, high = np.quantile(1 - totals[0] / totals[1], [0.025, 0.975])
    return float(low), float(high)


def verdict(metrics: dict[str, float], target: str) -> str:
    """The result in plain words. `skill_low` and `skill_high` may be absent from `metrics`."""
    interval = "no interval, because the series changes in few windows only"
    message = "is not told apart from persistence"
    if "skill_low" in metrics:
        interval = f"95% interval {metrics['skill_low']:+.4f} to {metrics['skill_high']:+.4f}"
        message = "does not beat persistence: the two cannot be told apart"
        if metrics["skill_low"] > 0:
            message = "beats persistence"
        elif metrics["skill_high"] < 0:
            message = "does not beat persistence: it is worse than saying that nothing changes"
    up, down = (metrics[f"always_{way}_directional_accuracy"] for way in ("up", "down"))
    return (
        f"The network {message} (MAE of {target} {metrics['mae']:.4g} against {metrics['persistence_mae']:.4g}, "
        f"skill {metrics['skill']:+.4f}, {interval}); a linear autoregression on the same windows has "
        f"MAE {metrics['linear_mae']:.4g}, skill {metrics['linear_skill']:+.4f}; "
        f"the direction is right in {metrics['directional_accuracy']:.1%} "
        f"({'always up' if up > down else 'always down'} {max(up, down):.1%}, "
        f"linear {metrics['linear_directional_accuracy']:.1%})"
    )


def without_skill(rows: list[dict[str, Any]]) -> str:
    """The steps ahead of `by_step` that have no skill, and why, as the end of a sentence."""
    steps = ", ".join(str(row["step_ahead"]) for row in rows if row["skill"] is None)
    return f"; no skill is given {steps} steps ahead, where persistence makes no error" if steps else ""


def by_step(forecasts: dict[str, np.ndarray], actual: np.ndarray) -> list[dict[str, Any]]:
    """A row per step ahead: MAE and RMSE of every forecast, and the network's skill.

    The skill is None where persistence makes no error: the series comes back to its level after that many steps.
    """
    found = [
        {name: errors(levels[:, step], actual[:, step]) for name, levels in forecasts.items()}
        for step in range(actual.shape[1])
    ]
    smallest = ROUNDING * max(pairs["persistence"]["mae"] for pairs in found)
    return [
        {
            "step_ahead": step + 1,
            **{f"{name}_{key}": value for name, pair in pairs.items() for key, value in pair.items()},
            "skill": 1 - pairs["network"]["mae"] / pairs["persistence"]["mae"]
            if pairs["persistence"]["mae"] > smallest
            else None,
        }
        for step, pairs in enumerate(found)
    ]


def directions(levels: np.ndarray, actual: np.ndarray, anchors: np.ndarray) -> list[tuple[str, str]]:
    """(actual, predicted) direction over the whole horizon, a pair per window."""
    words = np.array(["down", "unchanged", "up"])
    ways = signs(actual, anchors)[:, -1], np.sign(levels[:, -1] - anchors)
    went, message = (words[way.astype(int) + 1] for way in ways)
    return list(zip(went.tolist(), message.tolist(), strict=True))


def list_forecasts(
    times: list[str], anchors: np.ndarray, actual: np.ndarray, forecasts: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """A row per window and step ahead. Persistence is `last`, the level at the time of the forecast."""
    network, linear = forecasts["network"].tolist(), forecasts["linear"].tolist()
    return [
        {"time": time, "step_ahead": step + 1, "last": last, "actual": true, "predicted": message, "linear": line}
        for time, last, *rows in zip(times, anchors.tolist(), actual.tolist(), network, linear, strict=True)
        for step, (true, message, line) in enumerate(zip(*rows, strict=True))
    ]
