"""The networks of tandem/models written with torch's own modules, for the contenders of throughput.py.

Each function takes a network of tandem/models and returns one with the same parameters and the same outputs
(tests/benchmarks/test_benchmarks.py), without Tandem's optimizations (tandem/models/kernels, and choices by device).
They are written out here instead of disabling the optimizations there, so a change to Tandem does not change its
baseline. All sequences must fill their tensor, as in these benchmarks.

Shapes: values (B, T, F), mask (B, T), x (B, T, H).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.models.layers import mean_and_max, mean_over_steps


class Usual(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.run = FORWARD[type(network).__module__.rpartition(".")[2]]

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self.network, *inputs)


def gru(network: Any, values: Tensor, mask: Tensor) -> Tensor:
    return head(network, read(network.recurrent.stacks, values), mask)


def conv_gru(network: Any, values: Tensor, mask: Tensor) -> Tensor:
    padding = ~mask.unsqueeze(1)
    state = values.transpose(1, 2).masked_fill(padding, 0.0)
    for convolution in network.convolutions:
        state = torch.relu(convolution(state)).masked_fill(padding, 0.0)
    return head(network, read(network.recurrent.stacks, state.transpose(1, 2)), mask)


def read(stacks: Any, x: Tensor) -> Tensor:
    """Apply nn.GRU, in both directions if there are two."""
    states = [stacks[0](x)[0]]
    if len(stacks) == 2:
        states.append(stacks[1](x.flip(1))[0].flip(1))
    return torch.cat(states, dim=-1)


def head(network: Any, states: Tensor, mask: Tensor) -> Tensor:
    return network.head(drop(network, states if network.per_step else mean_and_max(states, mask)))


def drop(module: Any, x: Tensor) -> Tensor:
    return F.dropout(x, module.dropout.p, module.training)


def transformer(network: Any, values: Tensor, mask: Tensor) -> Tensor:
    state = network.embedding(values) + network.positions[: values.shape[1]]
    for block in network.blocks:
        split = block.query_key_value(block.attention_norm(state)).unflatten(2, (3, block.num_heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        state = state + drop(block, block.attention_out(mixed.transpose(1, 2).flatten(2)))
        state = state + drop(block, block.feedforward_out(F.gelu(block.feedforward_in(block.feedforward_norm(state)))))
    state = network.norm(state)
    return network.head(state if network.per_step else mean_over_steps(state, mask))


def seq2seq(network: Any, values: Tensor, mask: Tensor, teacher_targets: Tensor | None = None) -> Tensor:
    """`teacher_targets`: the decoder's inputs after the first step, instead of its own outputs."""
    _, state = network.encoder(values)
    decoder_input, outputs = values[:, -1, 0], []
    for step in range(network.horizon):
        states, state = network.decoder(decoder_input[:, None, None], state)
        outputs.append(network.head(drop(network, states[:, 0])).squeeze(1))
        decoder_input = outputs[-1] if teacher_targets is None else teacher_targets[:, step]
    return torch.stack(outputs, dim=1)


FORWARD: dict[str, Callable[..., Tensor]] = {
    "gru": gru,
    "conv_gru": conv_gru,
    "transformer": transformer,
    "seq2seq": seq2seq,
}
