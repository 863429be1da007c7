"""Temporal convolutions for local motion, followed by a bidirectional GRU for its context.

The convolutions keep the number of steps ("same" padding), so each output belongs to its input step. The network sets
padded steps to zero after each convolution; otherwise the next one would mix their values into real steps.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.layers import Dropout, mean_and_max
from tandem.models.recurrent import Directions
from tandem.parts import Fraction, Positive, Whole


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C), or (B, T, C) per step."""

    def __init__(
        self,
        shape: Shape,
        hidden_size: Positive,
        num_layers: Positive,
        num_convolutions: Whole,
        kernel_size: Positive,
        dropout: Fraction,
    ) -> None:
        """`hidden_size` is per direction of the GRU, and the channels of the convolutions. `kernel_size` is odd."""
        super().__init__()
        self.per_step = shape.per_step
        widths = [shape.num_features, *[hidden_size] * num_convolutions]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(narrow, wide, kernel_size, padding="same") for narrow, wide in pairwise(widths)
        )
        self.recurrent = Directions(widths[-1], hidden_size, num_layers, 2, dropout)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear((2 if shape.per_step else 4) * hidden_size, shape.num_outputs)

    @staticmethod
    def check(kernel_size: int) -> None:
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {kernel_size}; it must be odd, so that a frame stays in the middle")

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        is_real = mask.unsqueeze(1)
        x = values.transpose(1, 2) * is_real  # (B, F, T)
        for convolution in self.convolutions:
            x = torch.relu(convolution(x)) * is_real  # a tenth of the time of masked_fill
        states = self.recurrent(x.transpose(1, 2), mask)
        return self.head(self.dropout(states if self.per_step else mean_and_max(states, mask)))
