"""Transformer classifier: linear embedding, learned positions, pre-norm encoder blocks, mean over the real steps.

Encoder: Vaswani et al. 2017, arXiv:1706.03762; normalization before each sublayer: Xiong et al. 2020, arXiv:2002.04745.
`blocks` is a plain list of `Block(x, mask) -> x`, so each call can be checkpointed as it is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.params import Transformer


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
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.attention_norm(x), mask))
        hidden = F.gelu(self.feedforward_in(self.feedforward_norm(x)))
        return x + self.dropout(self.feedforward_out(hidden))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        num_sequences, num_steps, width = x.shape
        split = self.query_key_value(x).view(num_sequences, num_steps, 3, self.num_heads, width // self.num_heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, T, D / heads)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.attention_out(mixed.transpose(1, 2).reshape(num_sequences, num_steps, width))


class TransformerClassifier(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> logits (B, C), for T <= max_steps."""

    def __init__(
        self,
        *,
        num_features: int,
        num_outputs: int,
        max_steps: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        feedforward_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(num_features, hidden_size)
        self.positions = nn.Parameter(torch.randn(max_steps, hidden_size) * 0.02)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, feedforward_size, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(values) + self.positions[: values.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        real = mask.unsqueeze(-1)
        mean = self.norm(x).masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1)
        return self.head(mean)


def build(config: Transformer, num_features: int, num_outputs: int, max_steps: int) -> TransformerClassifier:
    return TransformerClassifier(
        num_features=num_features,
        num_outputs=num_outputs,
        max_steps=max_steps,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        feedforward_size=config.feedforward_size,
        dropout=config.dropout,
    )
