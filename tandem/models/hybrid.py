"""A linear forecast fitted in closed form, plus a small network for its residuals.

Zhang 2003, Neurocomputing 50, 159-175, trains a network on the residuals of a linear model. Zeng et al. 2023,
arXiv:2205.13504, show that linear maps of the window are hard to beat. Here the linear part is a buffer, fitted before
the first step (linear_forecast.py). The network's initial output is close to zero, so training starts from the linear
forecast, and weight decay pulls the network back to it. `hidden_size: 0` omits the network, which is best for a short
series: the optimizer then learns one number for each step ahead.
"""

import torch
from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.layers import Dropout
from tandem.models.linear_forecast import ChangeUnit, fit
from tandem.parts import Fraction, Whole

FIRST_SHARE = 0.01  # scale of the last layer's initial weights: almost zero, but gradients still reach the first layer


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, H). It ignores the mask, because windows have no padding."""

    tasks = ("forecast",)
    weight: Tensor  # (H, T * F)
    bias: Tensor  # (H,)

    def __init__(self, shape: Shape, hidden_size: Whole, dropout: Fraction) -> None:
        """`hidden_size` is the width of the network's single hidden layer; 0: no hidden layer."""
        super().__init__()
        num_inputs, horizon = shape.max_steps * shape.num_features, shape.num_outputs
        self.register_buffer("weight", torch.zeros(horizon, num_inputs))
        self.register_buffer("bias", torch.zeros(horizon))
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
        inputs = values.flatten(1)
        with torch.autocast(values.device.type, enabled=False):  # bf16 has too few digits for a forecast
            linear = nn.functional.linear(inputs.to(self.weight.dtype), self.weight, self.bias)
        return linear + (self.shift if self.network is None else self.network(inputs))

    def fit_initial(
        self, values: Tensor, targets: Tensor, *, mean: float, std: float, is_log: bool, season: int
    ) -> None:
        """Fit the linear part to the training split. The arguments are those of `linear_forecast.fit`."""
        found = fit(values, targets, ChangeUnit(mean, std, is_log), season)
        self.weight.copy_(found.weights.T)
        self.bias.copy_(found.bias)
