"""A linear forecast fitted in closed form, and a small network for what it leaves.

Zhang 2003, Neurocomputing 50, 159-175: a linear model first, a network on its residuals. That linear maps of the window
are hard to beat is shown by Zeng et al. 2023, arXiv:2205.13504. Here the linear part is a buffer, fitted before the
first step (linear_forecast.py); the network begins next to zero, so that a training starts from that forecast, and
weight decay draws it back there. `hidden_size: 0` leaves the network out, as is best for a short series: what the steps
then learn is one number for each step ahead.
"""

import torch
from torch import Tensor, nn

from stages.models import Shape
from stages.models.linear_forecast import Unit, fit
from stages.models.parts import Dropout
from stages.params.schema import Hybrid

FIRST_SHARE = 0.01  # of the last layer's usual first weights: next to nothing, and gradients reach the first layer


class HybridNetwork(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, H). Windows are full: the mask says nothing."""

    weight: Tensor  # (H, T * F)
    bias: Tensor  # (H,)

    def __init__(self, config: Hybrid, shape: Shape) -> None:
        super().__init__()
        num_inputs, horizon = shape.max_steps * shape.num_features, shape.num_outputs
        self.register_buffer("weight", torch.zeros(horizon, num_inputs))
        self.register_buffer("bias", torch.zeros(horizon))
        self.network: nn.Module | None = None
        if config.hidden_size:
            self.network = nn.Sequential(
                nn.Linear(num_inputs, config.hidden_size),
                nn.GELU(),
                Dropout(config.dropout),
                nn.Linear(config.hidden_size, horizon),
            )
            for parameter in self.network[-1].parameters():
                parameter.data.mul_(FIRST_SHARE)
        else:
            self.shift = nn.Parameter(torch.zeros(horizon))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        inputs = values.flatten(1)
        with torch.autocast(values.device.type, enabled=False):  # a forecast has more digits than bf16
            linear = nn.functional.linear(inputs.to(self.weight.dtype), self.weight, self.bias)
        return linear + (self.shift if self.network is None else self.network(inputs))

    def fit_initial(
        self, values: Tensor, targets: Tensor, *, mean: float, std: float, is_log: bool, season: int
    ) -> None:
        """Fit the linear part to the training split: `linear_forecast.fit` has the arguments."""
        found = fit(values, targets, Unit(mean, std, is_log), season)
        self.weight.copy_(found.weights.T)
        self.bias.copy_(found.bias)


build = HybridNetwork
