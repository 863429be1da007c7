"""GRU stacks in one or both directions, pooling over the real steps (not with outputs per step), a linear layer."""

from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.layers import Dropout, mean_and_max
from tandem.models.recurrent import Directions
from tandem.params.schema import GRU


class GRUNetwork(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C), or (B, T, C) per step."""

    def __init__(self, config: GRU, shape: Shape) -> None:
        super().__init__()
        self.per_step = shape.per_step
        width, num_directions = config.hidden_size, 2 if config.bidirectional else 1
        self.recurrent = Directions(shape.num_features, width, config.num_layers, num_directions, config.dropout)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear((1 if shape.per_step else 2) * num_directions * width, shape.num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states = self.recurrent(values, mask)
        return self.head(self.dropout(states if self.per_step else mean_and_max(states, mask)))


build = GRUNetwork
