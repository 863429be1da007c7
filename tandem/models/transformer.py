"""Transformer encoder: linear embedding, learned positions, pre-norm blocks, mean over the real steps if pooled.

Encoder: Vaswani et al. 2017, arXiv:1706.03762; normalization before each sublayer: Xiong et al. 2020, arXiv:2002.04745.
`blocks` is a ModuleList of `Block(x, mask) -> x`, so each call can be checkpointed without a wrapper.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem.models import Shape
from tandem.models.kernels import TORCH, attention, note
from tandem.models.layers import Dropout, mean_over_steps
from tandem.parts import Fraction, Positive


class Block(nn.Module):
    """x (B, T, D), mask (B, T) -> (B, T, D)."""

    def __init__(self, hidden_size: int, num_heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.attention_out = nn.Linear(hidden_size, hidden_size)
        self.feedforward_norm = nn.LayerNorm(hidden_size)
        self.feedforward_in = nn.Linear(hidden_size, feedforward_size)
        self.feedforward_out = nn.Linear(feedforward_size, hidden_size)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.attention_norm(x), mask))
        hidden = F.gelu(self.feedforward_in(self.feedforward_norm(x)))
        return x + self.dropout(self.feedforward_out(hidden))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        num_sequences, num_steps, width = x.shape
        split = self.query_key_value(x).view(num_sequences, num_steps, 3, self.num_heads, width // self.num_heads)
        if attention.is_supported(split):
            return self.attention_out(attention.Attention.apply(split, mask))
        note(TORCH, "attention")
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, T, D / heads)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.attention_out(context.transpose(1, 2).reshape(num_sequences, num_steps, width))


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C), or (B, T, C) per step, for T <= max_steps."""

    def __init__(
        self,
        shape: Shape,
        hidden_size: Positive,
        num_layers: Positive,
        num_heads: Positive,
        feedforward_size: Positive,
        dropout: Fraction,
        checkpoint_activations: bool = False,
    ) -> None:
        """`feedforward_size` is the width of the hidden layer in each block. `dropout` is on each sublayer's output."""
        super().__init__()
        self.per_step = shape.per_step
        # True: the backward pass recomputes each block's activations (Chen et al. 2016, arXiv:1604.06174). The value
        # may change between any two steps.
        self.checkpoint_activations = checkpoint_activations
        self.embedding = nn.Linear(shape.num_features, hidden_size)
        self.positions = nn.Parameter(torch.randn(shape.max_steps, hidden_size) * 0.02)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, feedforward_size, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, shape.num_outputs)

    @staticmethod
    def check(hidden_size: int, num_heads: int) -> None:
        if hidden_size % num_heads:
            raise ValueError(
                f"hidden_size is {hidden_size} and num_heads is {num_heads}; the first must be a multiple of the second"
            )

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(values) + self.positions[: values.shape[1]]
        for block in self.blocks:
            if self.checkpoint_activations and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        x = self.norm(x)
        return self.head(x if self.per_step else mean_over_steps(x, mask))
