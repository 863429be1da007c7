"""MiniRocket's features: the share of steps at which fixed convolutions exceed a bias.

Dempster, Schmidt and Webb 2021, "MiniRocket: A Very Fast (Almost) Deterministic Transform for Time Series
Classification", KDD, arXiv:2012.08791. 84 kernels of 9 weights, three of which are 2 and six -1, in dilations that
reach up to the longest sequence; the biases are quantiles of the responses to training sequences. If the data has
several features, each pair of kernel and dilation sees the sum of one to nine random features, as in the authors'
multivariate variant. The output order is that of the authors and of aeon: dilation, kernel, bias.

For sequences of unequal length, only the real steps of a sequence count, and kernels read zeros beyond both ends, so
padding has no effect. Half of the outputs are shares of the sequence's own steps, the other half shares of the longest
sequence's steps: one kind ignores the length, the other contains it, because the length may or may not be informative.

Shapes: B sequences, T steps, F features of the data, K = 84 kernels.
"""

from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH = 9  # weights of a kernel
REACH = LENGTH // 2
MAX_DILATIONS = 32
MAX_CHANNELS = 9  # channels that are summed for a kernel
TWOS = torch.tensor(list(combinations(range(LENGTH), 3)))
WEIGHTS = torch.full((len(TWOS), LENGTH), -1.0).scatter_(1, TWOS, 2.0)  # (K, 9)


class MiniRocket(nn.Module):
    """`forward(x (B, F, T), lengths (B,))` -> (B, num_features), shares from 0 to 1. `x` is zero in the padding.

    Call `fit_biases` or load the biases first.
    """

    weights: Tensor
    biases: Tensor
    places: Tensor
    channels: Tensor | None

    def __init__(self, num_channels: int, max_steps: int, num_features: int) -> None:
        super().__init__()
        self.max_steps = max_steps
        self.dilations, self.counts = dilations_for(max_steps, num_features // len(WEIGHTS))
        self.num_at_once = len(WEIGHTS)
        num_kernels, num_pairs = len(WEIGHTS), len(self.dilations) * len(WEIGHTS)
        self.num_features = num_kernels * sum(self.counts)
        self.register_buffer("weights", WEIGHTS.clone(), persistent=False)
        self.register_buffer("biases", torch.zeros(self.num_features))
        # Index of the training sequence for the biases of each dilation and kernel, as a fraction of the number.
        self.register_buffer("places", torch.rand(len(self.dilations), num_kernels), persistent=False)
        self.register_buffer("channels", None)
        if num_channels > 1:
            most = min(num_channels, MAX_CHANNELS)
            sizes = (2 ** (torch.rand(num_pairs) * np.log2(most + 1))).int()
            self.channels = draw_channels(num_channels, sizes, most).view(len(self.dilations), num_kernels, most)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = with_zero_channel(x)
        steps, kernels = (torch.arange(count, device=x.device) for count in (x.shape[2], len(WEIGHTS)))
        is_beyond = steps >= lengths[:, None]  # (B, T)
        parts, start = [], 0
        for number, (dilation, count) in enumerate(zip(self.dilations, self.counts, strict=True)):
            responses = self.responses(x, number, dilation)
            # Every second kernel counts only the steps at which it is entirely within the sequence, if there are any.
            # The next dilation starts with the other kind of kernel.
            reach = REACH * dilation
            is_inside = lengths > 2 * reach
            is_outside = (steps < reach) | (steps >= (lengths - reach)[:, None])
            masks = torch.stack([is_beyond, torch.where(is_inside[:, None], is_outside, is_beyond)]).roll(number, 0)
            # Adding -inf takes a third of the time of masked_fill_.
            responses.view(-1, *masks.shape).add_(torch.where(masks, -torch.inf, 0.0))
            cut = torch.stack([torch.zeros_like(lengths), torch.where(is_inside, 2 * reach, 0)]).roll(number, 0)
            whole = torch.stack([lengths - cut, self.max_steps - cut], dim=2).to(x.dtype)  # steps: own, longest
            whole = whole.repeat(len(WEIGHTS) // 2, 1, 1)  # (K, B, 2)
            stop = start + len(WEIGHTS) * count
            biases = self.biases[start:stop].view(len(WEIGHTS), count)
            above, num_above = torch.empty_like(responses), []
            for bias in biases.unbind(1):
                # The output dtype is float, not bool: the sum then takes a quarter of the time.
                num_above.append(torch.gt(responses, bias[:, None, None], out=above).sum(dim=2))
            kinds = (kernels[:, None] // 2 + torch.arange(count, device=x.device)) % 2  # (K, count)
            shares = whole.gather(2, kinds[:, None].expand(-1, x.shape[1], -1))
            parts.append((torch.stack(num_above, dim=2) / shares).transpose(0, 1).flatten(1))
            start = stop
        return torch.cat(parts, dim=1)

    def responses(self, x: Tensor, number: int, dilation: int) -> Tensor:
        """x (F + 1, B, T) -> (K, B, T): every kernel's response in one dilation, with zero padding at both ends."""
        if self.channels is not None:
            return weighted(summed_channels(x, self.channels[number]), self.weights, dilation)
        shifts = shifted(x[0], dilation)
        return (self.weights @ shifts.flatten(1)).view(len(self.weights), *shifts.shape[1:])

    def fit_biases(self, x: Tensor, lengths: Tensor) -> None:
        """Compute the biases from some training sequences: x (N, F, T), zero in the padding."""
        x = with_zero_channel(x)
        start = 0
        for number, (dilation, count) in enumerate(zip(self.dilations, self.counts, strict=True)):
            rows = (self.places[number] * x.shape[1]).long()
            series = x[0, rows] if self.channels is None else summed_channels_at(x, self.channels[number], rows)
            responses = weighted(series.unsqueeze(1), self.weights, dilation).squeeze(1)  # (K, T)
            stop = start + len(WEIGHTS) * count
            shares = quantile_shares(start, stop).to(x.device).view(len(WEIGHTS), count)
            self.biases[start:stop] = quantiles(responses, lengths[rows], shares).flatten()
            start = stop


def dilations_for(num_steps: int, num_biases: int) -> tuple[list[int], list[int]]:
    """The dilations for sequences of `num_steps`, and the number of a kernel's `num_biases` for each dilation."""
    num_dilations = min(num_biases, MAX_DILATIONS)
    largest = max(0.0, np.log2((num_steps - 1) / (LENGTH - 1)))
    dilations, counts = np.unique(np.logspace(0, largest, num_dilations, base=2).astype(np.int32), return_counts=True)
    counts = (counts * (num_biases / num_dilations)).astype(np.int32)
    for index in range(num_biases - counts.sum()):
        counts[index % len(counts)] += 1
    return dilations.tolist(), counts.tolist()


def draw_channels(num_channels: int, sizes: Tensor, most: int) -> Tensor:
    """(S, most) int64: S random choices of `sizes` (S,) channels each; the value `num_channels` means no channel."""
    order = torch.rand(len(sizes), num_channels).argsort(dim=1)[:, :most]
    return order.masked_fill(torch.arange(most) >= sizes[:, None], num_channels)


def with_zero_channel(x: Tensor) -> Tensor:
    """(B, F, T) -> (F + 1, B, T); the last channel is zero."""
    return F.pad(x.transpose(0, 1), (0, 0, 0, 0, 0, 1))


def summed_channels(x: Tensor, channels: Tensor) -> Tensor:
    """x (F + 1, B, T), channels (S, M) -> (S, B, T). The order of the sum does not depend on B and T."""
    total = x.index_select(0, channels[:, 0])
    for column in channels.unbind(1)[1:]:
        total += x.index_select(0, column)
    return total


def summed_channels_at(x: Tensor, channels: Tensor, rows: Tensor) -> Tensor:
    """x (F + 1, N, T), channels (S, M), rows (S,) -> (S, T): sum s uses the sequence rows[s]."""
    total = x[channels[:, 0], rows]
    for column in channels.unbind(1)[1:]:
        total = total + x[column, rows]
    return total


def shifted(series: Tensor, dilation: int) -> Tensor:
    """(..., T) -> (9, ..., T): the input of each kernel weight at every step."""
    padded, num_steps = F.pad(series, (REACH * dilation, REACH * dilation)), series.shape[-1]
    return torch.stack([padded[..., tap * dilation : tap * dilation + num_steps] for tap in range(LENGTH)])


def weighted(series: Tensor, weights: Tensor, dilation: int) -> Tensor:
    """series (S, B, T), weights (S, 9) -> (S, B, T): convolve each series with its own kernel."""
    padded, num_steps = F.pad(series, (REACH * dilation, REACH * dilation)), series.shape[-1]
    total = torch.zeros_like(series)
    for tap in range(LENGTH):
        total.addcmul_(padded[..., tap * dilation : tap * dilation + num_steps], weights[:, tap, None, None])
    return total


def quantile_shares(start: int, stop: int) -> Tensor:
    """The authors' low-discrepancy sequence for quantiles: multiples of the golden ratio."""
    return torch.from_numpy(((np.arange(start, stop) + 1) * ((np.sqrt(5) + 1) / 2)) % 1).float()


def quantiles(values: Tensor, lengths: Tensor, shares: Tensor) -> Tensor:
    """values (K, T), lengths (K,), shares (K, Q) -> (K, Q): linear quantiles of the first `lengths` values."""
    is_beyond = torch.arange(values.shape[1], device=values.device) >= lengths[:, None]
    ordered = values.masked_fill(is_beyond, torch.inf).sort(dim=1).values
    places = shares * (lengths[:, None] - 1)
    low = places.long()
    high = torch.minimum(low + 1, lengths[:, None] - 1)
    return torch.lerp(ordered.gather(1, low), ordered.gather(1, high), places - low)
