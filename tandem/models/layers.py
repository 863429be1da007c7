"""Parts of several models: dropout, recurrent layers under autocast, pooling over the real steps."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tandem.models.kernels import CUDNN, TORCH, dropout, note

NO_KERNEL = "could not create a primitive descriptor"  # oneDNN's message; if memory runs out, it lacks "descriptor"


class Dropout(nn.Dropout):
    """nn.Dropout, but faster on the CPU, with other random numbers. Several workers share one draw per batch."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.p > 0:
            return dropout.dropout(x, self.p)
        return super().forward(x)


def run_recurrent(stack: nn.Module, x: Tensor, state: Any = None) -> Any:
    """Returns `stack(x, state)`, in fp32 or TF32 if autocast to bf16 is harmful or impossible.

    On CUDA, torch passes fp16 to cuDNN's recurrent layers even if autocast requests bf16 (ATen,
    cudnn/AutocastRNN.cpp), and fp16 without loss scaling loses small gradients. On a CPU without AVX-512, oneDNN has no
    LSTM in bf16 and raises. Notes which library computes it, as torch decides it.
    """
    is_bf16 = x.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    x = x.float() if is_bf16 else x  # a layer before it may have computed in bf16
    is_own_loop = hasattr(stack, "uses_torch_dropout")  # ManualLSTM: a Python loop over the steps
    library = CUDNN if x.is_cuda and not is_own_loop and torch.backends.cudnn.is_acceptable(x) else TORCH
    operation = getattr(stack, "mode", "recurrent layer")  # GRU or LSTM
    if is_bf16:
        is_tf32 = library == CUDNN and torch.backends.cudnn.allow_tf32
        note(library, f"{operation} in {'tf32' if is_tf32 else 'fp32'}")
        return in_fp32(stack, x, state)
    if not x.is_cuda and torch.is_autocast_enabled("cpu"):
        try:
            outputs = stack(x, state)
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            note(library, f"{operation} in fp32")
            return in_fp32(stack, x, state)
        note(library, operation)
        return outputs
    note(library, operation)
    return stack(x, state)


def in_fp32(stack: nn.Module, x: Tensor, state: Any) -> Any:
    with torch.autocast(x.device.type, enabled=False):
        return stack(x.float(), tree_map_only(Tensor, Tensor.float, state))


def mean_over_steps(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, H) -> (B, H): mean over the real steps."""
    return (x * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def mean_and_max(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, H) -> (B, 2 H): mean and maximum over the real steps."""
    maximum = x.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)
    return torch.cat([mean_over_steps(x, mask), maximum], dim=-1)
