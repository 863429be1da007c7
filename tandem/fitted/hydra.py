"""HYDRA's features: how often and how strongly each of several competing random convolutions matches best.

Dempster, Schmidt and Webb 2023, "Hydra: Competing Convolutional Kernels for Fast and Accurate Time Series
Classification", Data Mining and Knowledge Discovery 37, 1779-1805, arXiv:2203.13652. Groups of 8 random kernels of 9
weights compete at every step: the largest response of a group is added to that kernel's first count, the smallest one
adds 1 to that kernel's second. Half of the groups see the sequence, half its differences; dilations are powers of two.
If the data has several features, a group sees the sum of a few of them. The outputs are the square roots of the counts.

Counts are sums over the real steps of a sequence, so they depend on its length. Responses that differ from zero only by
rounding, as in constant sequences, do not count; otherwise rounding errors would decide.

Shapes: B sequences, T steps, F features of the data, G groups.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tandem.fitted.minirocket import LENGTH, draw_channels, shifted, summed_channels, with_zero_channel

NUM_COMPETING = 8
GROUPS_AT_ONCE = 8  # so that the responses to a long sequence stay in the CPU's cache
MAX_CHANNELS = 8
ROUNDING = 1e-5  # largest rounding error of a response: a kernel's absolute weights sum to 1; the data have deviation 1


class Hydra(nn.Module):
    """`forward(x (B, F, T), lengths (B,))` -> (B, num_features), square roots of counts. `x` is zero in the padding."""

    weights: Tensor
    channels: Tensor | None

    def __init__(self, num_channels: int, max_steps: int, num_groups: int) -> None:
        super().__init__()
        self.dilations = [1]
        while 2 * self.dilations[-1] * (LENGTH - 1) < max_steps:
            self.dilations.append(2 * self.dilations[-1])
        half = max(1, num_groups // 2)  # groups for the sequence; its differences have the same number
        self.num_at_once = min(half, GROUPS_AT_ONCE) * NUM_COMPETING
        num_dilations = len(self.dilations)
        self.num_features = 2 * 2 * num_dilations * half * NUM_COMPETING
        weights = torch.randn(num_dilations, 2, half, NUM_COMPETING, LENGTH)
        weights -= weights.mean(dim=-1, keepdim=True)
        self.register_buffer("weights", weights / weights.abs().sum(dim=-1, keepdim=True))
        self.register_buffer("channels", None)
        if num_channels > 1:
            size = min(MAX_CHANNELS, max(2, num_channels // 2))
            sizes = torch.full((num_dilations * 2 * half,), size)
            self.channels = draw_channels(num_channels, sizes, size).view(num_dilations, 2, half, size)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(x.shape[2], device=x.device)
        is_real = steps < lengths[:, None]  # (B, T)
        has_next = is_real[:, 1:]
        x = with_zero_channel(x)
        differences = (x[..., 1:] - x[..., :-1]) * has_next
        parts: list[Tensor] = []
        for index, dilation in enumerate(self.dilations):
            for series_index, (series, mask) in enumerate(((x, is_real), (differences, has_next))):
                wins = [winners(responses, mask) for responses in self.responses(series, index, series_index, dilation)]
                parts += [torch.cat(counts) for counts in zip(*wins, strict=True)]
        return torch.cat([part.flatten(0, 1) for part in parts]).clamp_min_(0).sqrt_().T

    def responses(self, x: Tensor, index: int, series_index: int, dilation: int) -> Iterator[Tensor]:
        """x (F + 1, B, T) -> (G, 8, B, T) of a few groups at a time. `index`: the number of the dilation;
        `series_index`: 0 for the sequences, 1 for their differences.
        """
        parts = self.weights[index, series_index].split(GROUPS_AT_ONCE)
        if self.channels is None:
            shifts = shifted(x[0], dilation)  # (9, B, T)
            for weights in parts:
                yield (weights.flatten(0, 1) @ shifts.flatten(1)).view(*weights.shape[:2], *shifts.shape[1:])
        else:
            for weights, channels in zip(parts, self.channels[index, series_index].split(GROUPS_AT_ONCE), strict=True):
                shifts = shifted(summed_channels(x, channels), dilation).transpose(0, 1)  # (G, 9, B, T)
                yield torch.bmm(weights, shifts.flatten(2)).view(*weights.shape[:2], *shifts.shape[2:])


def winners(responses: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """responses (G, 8, B, T), mask (B, T) -> two of (G, 8, B): the sum of winning responses, and how often a response
    is smallest.

    This compares with the group's extreme instead of using argmax: all equal responses win, on every device.
    """
    nothing = torch.full((), torch.nan, device=responses.device)  # equals no response
    largest, smallest = responses.amax(dim=1, keepdim=True), responses.amin(dim=1, keepdim=True)
    largest = torch.where((largest.abs() > ROUNDING) & mask, largest, nothing)
    smallest = torch.where((smallest.abs() > ROUNDING) & mask, smallest, nothing)
    won = torch.empty_like(responses)
    best = torch.eq(responses, largest, out=won).mul_(responses).sum(dim=3)
    return best, torch.eq(responses, smallest, out=won).sum(dim=3)
