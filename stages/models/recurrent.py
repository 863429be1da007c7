"""GRU stacks that read in one direction or in both, for sequences of different lengths."""

import torch
from torch import Tensor, nn

from stages.models.kernels import gru
from stages.models.parts import run_recurrent


class Directions(nn.Module):
    """x (B, T, F) -> (B, T, num_directions * H): one GRU stack per reading direction. Padding must follow real steps.

    Two stacks of `nn.GRU` rather than one with `bidirectional=True`: the second reads each sequence reversed within its
    own length, so in both the padding comes after the last real step and can change nothing. A bidirectional `nn.GRU`
    would read the padding first, and `PackedSequence`, the usual remedy, turns off cuDNN's persistent kernel.

    GRU: Cho et al. 2014, arXiv:1406.1078.
    """

    def __init__(
        self, num_features: int, hidden_size: int, num_layers: int, num_directions: int, dropout: float
    ) -> None:
        super().__init__()
        between_layers = dropout if num_layers > 1 else 0.0  # nn.GRU warns about a dropout that has no place
        self.stacks = nn.ModuleList(
            nn.GRU(num_features, hidden_size, num_layers, batch_first=True, dropout=between_layers)
            for _ in range(num_directions)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        inputs = [x] if len(self.stacks) == 1 else [x, reverse_within_length(x, mask)]
        if gru.is_supported(x):
            states = gru.gru(inputs, self.stacks)
        else:
            states = [run_recurrent(stack, read)[0] for stack, read in zip(self.stacks, inputs, strict=True)]
        if len(states) == 2:
            states[1] = reverse_within_length(states[1], mask)
        return torch.cat(states, dim=-1)


def reverse_within_length(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T, F) -> (B, T, F): the real steps of each sequence in reverse order, the padding left where it is."""
    steps = torch.arange(values.shape[1], device=values.device)
    source = torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)
    rows = source + values.shape[1] * torch.arange(len(values), device=values.device).unsqueeze(1)
    # This takes a third of the time of a `gather`, which uses an index for every number.
    return values.flatten(0, 1).index_select(0, rows.flatten()).view_as(values)
