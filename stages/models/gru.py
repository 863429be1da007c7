"""GRU stacks in one or both directions, pooled over the real steps (or not), and one linear layer."""

from torch import Tensor, nn

from stages.models import Shape
from stages.models.parts import Dropout, mean_and_max
from stages.models.recurrent import Directions
from stages.params.schema import GRU


class GRUNetwork(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C), or (B, T, C) per step."""

    def __init__(self, shape: Shape, *, hidden_size: int, num_layers: int, num_directions: int, dropout: float) -> None:
        super().__init__()
        self.per_step = shape.per_step
        self.recurrent = Directions(shape.num_features, hidden_size, num_layers, num_directions, dropout)
        self.dropout = Dropout(dropout)
        width = num_directions * hidden_size
        self.head = nn.Linear(width if shape.per_step else 2 * width, shape.num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states = self.recurrent(values, mask)
        return self.head(self.dropout(states if self.per_step else mean_and_max(states, mask)))


def build(config: GRU, shape: Shape) -> GRUNetwork:
    return GRUNetwork(
        shape,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_directions=2 if config.bidirectional else 1,
        dropout=config.dropout,
    )
