"""Forecast: the next H steps of a series, compared with simple forecasts and two constant directions.

Shapes: outputs, targets, predictions (B, H), in units of feature 0 (the target, transformed and standardized); levels
(N, H) in the target's own unit.

Persistence predicts that nothing changes, seasonal naive that the last season repeats. Linear is a least-squares
autoregression on the same windows. Always up and always down predict a direction and no level; they show how often the
series rises or falls. Skill is 1 - error / persistence's error: 0 is no better than persistence, 1 is perfect (Murphy
1988). MASE is the error divided by the error of the seasonal naive forecast over the training time, one season ahead;
without a season, by the error of persistence one step ahead (Hyndman and Koehler 2006, International Journal of
Forecasting 22, 679-688).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tandem import tasks
from tandem.tasks import FLOAT32_ROUNDING, Evaluation, NewInputs, ReadArray, as_in_table
from tandem.tasks.statistics import interval_of_skill

# Relative to the error of other steps, a smaller error is rounding: the targets are stored as 32-bit floats.
ROUNDING = 1e-6


class Task(tasks.Task):
    score_name = "skill"
    target = "window"
    sources = ("series",)
    forbidden_augment = ("mix", "shift", "warp")
    paired = "window errors"
    charts = ("errors_ahead", "last_forecasts")
    zero = "persistence: nothing changes"
    baselines = {
        "persistence": "persistence",
        "seasonal_naive": "the seasonal naive forecast",
        "linear": "the linear autoregression",
    }
    usual_model = "hybrid"
    usual_weights = "best"

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__(summary)
        self.mean, self.std = summary["mean"][0], summary["std"][0]
        self.target_name, self.transform = summary["target"]["name"], summary["target"]["transform"]
        self.season, self.naive_error = summary.get("season"), summary.get("naive_error", 0.0)

    @property
    def fit_initial_arguments(self) -> dict[str, Any]:
        """Return the unit of a standardized change."""
        return {
            "mean": self.mean,
            "std": self.std,
            "is_log": self.transform == "log-return",
            "season": self.season or 0,
        }

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
        """Return the mean squared error."""
        return (outputs - targets).square().mean()

    def score(self, predictions: Tensor, targets: Tensor, mask: Tensor) -> float:
        """Return the skill of the mean absolute error, on the summed changes (of log returns: the gain so far)."""
        predicted, actual = ((part * self.std + self.mean).cumsum(dim=1) for part in (predictions, targets))
        return (1 - (predicted - actual).abs().mean() / actual.abs().mean()).item()

    def tabulate(self, outputs: Tensor, new: NewInputs) -> dict[str, Any]:
        """Return one row per step after the table's last time."""
        predicted = self.levels(outputs.numpy(), new.anchors)[0]
        return {"time": new.times, "step_ahead": np.arange(1, len(predicted) + 1), "predicted": predicted}

    def evaluate(self, outputs: Tensor, read: ReadArray) -> Evaluation:
        anchors, targets = read("test", "anchors"), read("test", "targets")
        linear = linear_forecast(read("train", "values"), read("train", "targets"), read("test", "values"))
        actual = self.levels(targets, anchors)
        forecasts = {
            "network": self.levels(outputs.numpy(), anchors),
            "persistence": np.repeat(anchors[:, None], self.num_outputs, axis=1),
            **({"seasonal_naive": read("test", "seasonal")} if self.season else {}),
            "linear": self.levels(linear, anchors),
        }
        loss = self.loss(outputs, torch.from_numpy(targets), self.test_mask(read), 0.0).item()
        metrics = {"loss": loss, "persistence_skill": 0.0}
        for name, levels in forecasts.items():
            prefix = "" if name == "network" else f"{name}_"
            metrics |= {f"{prefix}{key}": value for key, value in errors(levels, actual).items()}
            if name != "persistence":  # persistence has no direction
                metrics[f"{prefix}directional_accuracy"] = same_direction(levels, actual, anchors)
        for name, level in (("always_up", np.inf), ("always_down", -np.inf)):
            metrics[f"{name}_directional_accuracy"] = same_direction(np.full_like(actual, level), actual, anchors)
        for name in forecasts:
            prefix = "" if name == "network" else f"{name}_"
            if name != "persistence":
                metrics[f"{prefix}skill"] = 1 - metrics[f"{prefix}mae"] / metrics["persistence_mae"]
                metrics[f"{prefix}skill_rmse"] = 1 - metrics[f"{prefix}rmse"] / metrics["persistence_rmse"]
            if self.naive_error:
                metrics[f"{prefix}mase"] = metrics[f"{prefix}mae"] / self.naive_error
        interval = interval_of_skill(forecasts["network"], forecasts["persistence"], actual)
        if not isinstance(interval, str):
            metrics |= {"skill_low": interval[0], "skill_high": interval[1]}
        best = min((name for name in Task.baselines if name in forecasts), key=lambda name: metrics[f"{name}_mae"])
        gain = interval_of_skill(forecasts["network"], forecasts[best], actual)
        times = read("test", "ids").tolist()
        rows = by_step(forecasts, actual)
        return Evaluation(
            metrics,
            verdict(metrics, best, gain, self.target_name, self.subject) + without_skill(rows),
            rows,
            directions(forecasts["network"], actual, anchors),
            list_forecasts(times, anchors, actual, forecasts),
        )

    def to_units(self, values: np.ndarray, anchors: np.ndarray | None) -> np.ndarray:
        assert anchors is not None
        return self.levels(values, anchors)

    def targets_in_units(self, targets: np.ndarray, anchors: np.ndarray | None) -> np.ndarray:
        values = self.to_units(targets, anchors)
        rounding = np.cumsum(np.abs(targets) * self.std * FLOAT32_ROUNDING, axis=1, dtype=np.float64)
        return as_in_table(values, np.abs(values) * rounding if self.transform == "log-return" else rounding)

    def levels(self, standardized: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Network outputs (N, H) and the levels (N,) at which they start -> levels (N, H)."""
        return levels(standardized.astype(np.float64) * self.std + self.mean, anchors, self.transform)


def levels(steps: np.ndarray, anchors: np.ndarray, kind: str) -> np.ndarray:
    """The inverse of the transform: levels (N, H) from `steps` (N, H), in its unit, and `anchors` (N,)."""
    path = np.cumsum(steps, axis=1, dtype=np.float64)
    return anchors[:, None] * np.exp(path) if kind == "log-return" else anchors[:, None] + path


def linear_forecast(train_values: np.ndarray, train_targets: np.ndarray, test_values: np.ndarray) -> np.ndarray:
    """Return forecasts (M, H) float64 of an autoregression, fitted to each of the H targets by least squares.

    train_values (N, T, F), of which it uses the target's own past (feature 0) and a constant, but no more steps than a
    third of the windows, because many coefficients of few windows forecast nothing; train_targets (N, H);
    test_values (M, T, F). One regression per target step is the "direct" forecast of Marcellino, Stock and Watson
    (2006), Journal of Econometrics 135, 499-526.
    """
    order = max(1, min(train_values.shape[1], len(train_values) // 3))
    train, test = (
        np.column_stack([values[:, -order:, 0].astype(np.float64), np.ones(len(values))])
        for values in (train_values, test_values)
    )
    return test @ np.linalg.lstsq(train, train_targets.astype(np.float64), rcond=None)[0]


def errors(levels: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    residuals = levels - actual
    return {"mae": float(np.abs(residuals).mean()), "rmse": float(np.sqrt(np.square(residuals).mean()))}


def signs(actual: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Return (N, H) 1, 0 or -1: the direction of the target. A change within rounding counts as 0."""
    change = actual - anchors[:, None]
    return np.where(np.abs(change) > ROUNDING * np.abs(change).max(), np.sign(change), 0.0)


def same_direction(levels: np.ndarray, actual: np.ndarray, anchors: np.ndarray) -> float:
    """Return the share of forecasts with the target's direction, among those whose target changed."""
    actual_signs = signs(actual, anchors)
    if not actual_signs.any():
        return 0.0
    return float((np.sign(levels - anchors[:, None]) == actual_signs)[actual_signs != 0].mean())


def verdict(
    metrics: dict[str, float], best: str, gain: tuple[float, float] | str, target: str, subject: str = "the network"
) -> str:
    """Return the result of `subject` in plain words: the comparison with the `best` of the baselines, then the others.

    `gain`: the 95% interval of the relative reduction of the baseline's error, or why there is none.
    """
    error, base = metrics["mae"], metrics[f"{best}_mae"]
    message, why = "is not clearly better than" if error < base else "does not beat", ""
    if not isinstance(gain, str):
        is_better, is_worse = gain[0] > 0, gain[1] < 0
        message = "beats" if is_better else "does not beat"
        why = "" if is_better else ": it is worse" if is_worse else ": the difference is not clear"
        interval = f"95% interval of the gain {gain[0]:+.1%} to {gain[1]:+.1%}"
    elif base == 0:  # a relative reduction does not exist
        message, why = "does not beat", ": it is worse" if error > 0 else ": neither makes an error"
        interval = "no interval, because the forecast makes no error"
    else:
        interval = f"no interval: {gain}"
    names = [name for name in Task.baselines if f"{name}_mae" in metrics]
    rank = "the better of the two" if len(names) == 2 else "the best of the three"
    others = " and of ".join(f"{Task.baselines[name]} {metrics[f'{name}_mae']:.4g}" for name in names if name != best)
    scaled = f", MASE {metrics['mase']:.3f} vs {metrics[f'{best}_mase']:.3f}" if "mase" in metrics else ""
    up, down = (metrics[f"always_{way}_directional_accuracy"] for way in ("up", "down"))
    return (
        f"{subject[:1].upper()}{subject[1:]} {message} {Task.baselines[best]}, {rank} simple forecasts{why} "
        f"(MAE of {target} {error:.4g} vs {base:.4g}, {interval}{scaled}); MAE of {others}; "
        f"skill relative to persistence {metrics['skill']:+.4f}; "
        f"the direction is right in {metrics['directional_accuracy']:.1%} "
        f"({'always up' if up > down else 'always down'} {max(up, down):.1%}, "
        f"linear {metrics['linear_directional_accuracy']:.1%})"
    )


def without_skill(rows: list[dict[str, Any]]) -> str:
    """Return the steps ahead without a skill in `by_step`, with the reason, as the end of a sentence."""
    steps = ", ".join(str(row["step_ahead"]) for row in rows if row["skill"] is None)
    return f"; the skill {steps} steps ahead is undefined, because persistence makes no error" if steps else ""


def by_step(forecasts: dict[str, np.ndarray], actual: np.ndarray) -> list[dict[str, Any]]:
    """Return one row per step ahead: MAE and RMSE of every forecast, and the network's skill.

    The skill is None if persistence makes no error: the series returns to its level after that many steps.
    """
    step_errors = [
        {name: errors(levels[:, step], actual[:, step]) for name, levels in forecasts.items()}
        for step in range(actual.shape[1])
    ]
    smallest = ROUNDING * max(pairs["persistence"]["mae"] for pairs in step_errors)
    return [
        {
            "step_ahead": step + 1,
            **{f"{name}_{key}": value for name, pair in pairs.items() for key, value in pair.items()},
            "skill": 1 - pairs["network"]["mae"] / pairs["persistence"]["mae"]
            if pairs["persistence"]["mae"] > smallest
            else None,
        }
        for step, pairs in enumerate(step_errors)
    ]


def directions(levels: np.ndarray, actual: np.ndarray, anchors: np.ndarray) -> list[tuple[str, str]]:
    """Return the (actual, predicted) direction over the whole horizon, one pair per window."""
    words = np.array(["down", "unchanged", "up"])
    both_signs = signs(actual, anchors)[:, -1], np.sign(levels[:, -1] - anchors)
    actual_words, predicted_words = (words[sign.astype(int) + 1].tolist() for sign in both_signs)
    return list(zip(actual_words, predicted_words, strict=True))


def list_forecasts(
    times: list[str], anchors: np.ndarray, actual: np.ndarray, forecasts: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Return one row per window and step ahead. Persistence is `last`, the level at the time of the forecast."""
    names = [name for name in ("network", "linear", "seasonal_naive") if name in forecasts]
    columns = ["actual", *("predicted" if name == "network" else name for name in names)]
    levels = [actual.tolist(), *(forecasts[name].tolist() for name in names)]
    return [
        {"time": time, "step_ahead": step + 1, "last": last, **dict(zip(columns, values, strict=True))}
        for time, last, *rows in zip(times, anchors.tolist(), *levels, strict=True)
        for step, values in enumerate(zip(*rows, strict=True))
    ]
