"""GRU stacks in one or both directions, pooling over the real steps (not with outputs per step), a linear layer."""

from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.layers import Dropout, mean_and_max
from tandem.models.recurrent import Directions
from tandem.parts import Fraction, Positive


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C), or (B, T, C) per step."""

    def __init__(
        self, shape: Shape, hidden_size: Positive, num_layers: Positive, bidirectional: bool, dropout: Fraction
    ) -> None:
        """`hidden_size` is per direction. `dropout` is between layers and before the last layer."""
        super().__init__()
        self.per_step = shape.per_step
        num_directions = 2 if bidirectional else 1
        self.recurrent = Directions(shape.num_features, hidden_size, num_layers, num_directions, dropout)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear((1 if shape.per_step else 2) * num_directions * hidden_size, shape.num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states = self.recurrent(values, mask)
        return self.head(self.dropout(states if self.per_step else mean_and_max(states, mask)))
