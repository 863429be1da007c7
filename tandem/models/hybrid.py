"""A linear forecast fitted in closed form, plus a small network for its residuals.

Zhang 2003, Neurocomputing 50, 159-175, trains a network on the residuals of a linear model. Zeng et al. 2023,
arXiv:2205.13504, show that linear maps of the window are hard to beat. Here the linear part is a buffer, fitted before
the first step (linear_forecast.py): a map of the window's changes and, for logarithms, one of its levels. The network's
initial output is close to zero, so training starts from the linear forecast, and weight decay pulls the network back to
it. The output is in units of the linear part's errors, so it does not spoil a forecast that is almost exact.
`hidden_size: 0` omits the network, which is best for a short series: the optimizer then learns one number for each step
ahead. The linear part is fitted to train and val together. So the validation loss, which chooses the network's epoch,
is that of windows to which the linear part was fitted.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.layers import Dropout
from tandem.models.linear_forecast import ChangeUnit, fit, relative_inputs, to_log_changes
from tandem.parts import Fraction, Whole

MAX_ROWS = 1024  # windows whose residuals are computed at a time
FIRST_SHARE = 0.01  # scale of the last layer's initial weights: almost zero, but gradients still reach the first layer


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, H). It ignores the mask, because windows have no padding."""

    tasks = ("forecast",)
    weight: Tensor  # (H, T * F)
    bias: Tensor  # (H,)
    levels_weight: Tensor  # (H, T * F)
    levels_bias: Tensor  # (H,)
    residual_std: Tensor  # (H,) of the linear part: the unit of the network's output
    levels_share: Tensor  # weight of the forecast from levels; the forecast from changes has the rest
    mean: Tensor  # the unit of the changes
    std: Tensor

    def __init__(self, shape: Shape, hidden_size: Whole, dropout: Fraction) -> None:
        """`hidden_size` is the width of the network's single hidden layer; 0: no hidden layer."""
        super().__init__()
        num_inputs, horizon = shape.max_steps * shape.num_features, shape.num_outputs
        for prefix in ("", "levels_"):
            self.register_buffer(f"{prefix}weight", torch.zeros(horizon, num_inputs))
            self.register_buffer(f"{prefix}bias", torch.zeros(horizon))
        self.register_buffer("residual_std", torch.ones(horizon))
        for name, value in {"levels_share": 0.0, "mean": 0.0, "std": 1.0}.items():
            self.register_buffer(name, torch.tensor(value))
        self.network: nn.Module | None = None
        if hidden_size:
            self.network = nn.Sequential(
                nn.Linear(num_inputs, hidden_size),
                nn.GELU(),
                Dropout(dropout),
                nn.Linear(hidden_size, horizon),
            )
            for parameter in self.network[-1].parameters():
                parameter.data.mul_(FIRST_SHARE)
        else:
            self.shift = nn.Parameter(torch.zeros(horizon))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        residual = self.shift if self.network is None else self.network(values.flatten(1))
        return self.linear(values) + self.residual_std * residual

    def linear(self, values: Tensor) -> Tensor:
        """The forecasts (B, H) of the linear part."""
        linear, inputs = nn.functional.linear, values.to(self.weight.dtype)
        with torch.autocast(values.device.type, enabled=False):  # bf16 has too few digits for a forecast
            from_changes = linear(inputs.flatten(1), self.weight, self.bias)
            levels = relative_inputs(inputs, self.mean, self.std).flatten(1)
            from_levels = to_log_changes(linear(levels, self.levels_weight, self.levels_bias), self.mean, self.std)
            return torch.lerp(from_changes, from_levels, self.levels_share)

    def fit_initial(
        self, splits: list[Mapping[str, Tensor]], *, mean: float, std: float, is_log: bool, season: int
    ) -> None:
        """Fit the linear part to `values` and `targets` of the splits train and val.

        The other arguments are those of `linear_forecast.fit`.
        """
        values, targets = (torch.cat([split[name].cpu() for split in splits]) for name in ("values", "targets"))
        fitted = fit(values, targets, ChangeUnit(mean, std, is_log), season)
        self.form_of_linear_part = fitted.selection
        for prefix, linear_map in (("", fitted.changes), ("levels_", fitted.levels)):
            getattr(self, f"{prefix}weight").copy_(linear_map.weights.T)
            getattr(self, f"{prefix}bias").copy_(linear_map.bias)
        for name, value in {"levels_share": fitted.levels_share, "mean": mean, "std": std}.items():
            getattr(self, name).fill_(value)
        parts = zip(values.split(MAX_ROWS), targets.split(MAX_ROWS), strict=True)
        residuals = torch.cat([part_targets - self.linear(part_values) for part_values, part_targets in parts])
        self.residual_std.copy_(residuals.square().mean(dim=0).sqrt())

    def selection(self) -> dict[str, Any]:
        """The form of the linear part with the largest weight and its error, for train.json."""
        return self.form_of_linear_part

    def describe_selection(self, score_name: str) -> str:
        """A sentence with the form of the linear part that has the largest weight, and what it gains."""
        selection = self.form_of_linear_part
        share = selection.get("share_of_levels")
        of_levels = "" if share is None else f", forms that are linear in the levels {share:.0%}"
        errors = ", ".join(f"{name} {error:.3f}" for name, error in selection["held_out"].items())
        return (
            f"the linear part averages several forms: {selection['selected']} has the largest weight, "
            f"{selection['share']:.0%}{of_levels}; held-out errors relative to a forecast of no change: {errors}"
        )
