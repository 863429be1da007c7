"""What several models share: dropout, the call of a recurrent layer under autocast, pooling over the real steps."""

from typing import Any

import torch
from torch import Tensor, nn

from stages.models.kernels import dropout


class Dropout(nn.Dropout):
    """nn.Dropout, in less time on the CPU, where it draws other numbers than nn.Dropout does."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.p > 0 and x.device.type == "cpu":
            return dropout.dropout(x, self.p)
        return super().forward(x)


def run_recurrent(stack: nn.Module, x: Tensor, state: Any = None) -> Any:
    """`stack(x, state)`, but in fp32 where autocast on CUDA asks for bf16.

    torch hands fp16 to cuDNN's recurrent layers there, whatever autocast asks for (ATen, cudnn/AutocastRNN.cpp), and
    fp16 without a scaled loss loses small gradients.
    """
    if x.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16:
        with torch.autocast("cuda", enabled=False):
            return stack(x.float(), state)
    return stack(x, state)


def mean_over_steps(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, H) -> (B, H): mean over the real steps."""
    return x.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def mean_and_max(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, H) -> (B, 2 H): mean and maximum over the real steps."""
    maximum = x.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)
    return torch.cat([mean_over_steps(x, mask), maximum], dim=-1)
