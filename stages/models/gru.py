"""GRU classifier: one GRU stack per reading direction, pooled over the real steps, and one linear layer.

Two stacks of `nn.GRU` rather than one with `bidirectional=True`: the second reads each sequence reversed within its own
length, so in both the padding comes after the last real step and can change nothing. A bidirectional `nn.GRU` would read
the padding first, and `PackedSequence`, the usual remedy, turns off cuDNN's persistent kernel.

GRU: Cho et al. 2014, arXiv:1406.1078.
"""

import torch
from torch import Tensor, nn

from stages.params import GRU


class GRUClassifier(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> logits (B, C). Padding must follow the real steps."""

    def __init__(
        self,
        *,
        num_features: int,
        num_outputs: int,
        max_steps: int,
        hidden_size: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        num_directions = 2 if bidirectional else 1
        between_layers = dropout if num_layers > 1 else 0.0  # nn.GRU warns about a dropout that has no place
        self.directions = nn.ModuleList(
            nn.GRU(num_features, hidden_size, num_layers, batch_first=True, dropout=between_layers)
            for _ in range(num_directions)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * num_directions * hidden_size, num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        readings = [values, reverse_within_length(values, mask)]
        pooled = [
            pool(direction(reading)[0], mask) for direction, reading in zip(self.directions, readings, strict=False)
        ]
        return self.head(self.dropout(torch.cat(pooled, dim=-1)))


def reverse_within_length(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T, F) -> (B, T, F): the real steps of each sequence in reverse order, the padding left where it is."""
    steps = torch.arange(values.shape[1], device=values.device)
    source = torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)
    return values.gather(1, source.unsqueeze(-1).expand_as(values))


def pool(states: Tensor, mask: Tensor) -> Tensor:
    """(B, T, H) -> (B, 2 H): mean and maximum over the real steps."""
    real = mask.unsqueeze(-1)
    mean = states.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1)
    maximum = states.masked_fill(~real, float("-inf")).amax(dim=1)
    return torch.cat([mean, maximum], dim=-1)


def build(config: GRU, num_features: int, num_outputs: int, max_steps: int) -> GRUClassifier:
    return GRUClassifier(
        num_features=num_features,
        num_outputs=num_outputs,
        max_steps=max_steps,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        bidirectional=config.bidirectional,
        dropout=config.dropout,
    )
