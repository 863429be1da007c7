"""Attention over few steps: the result and gradients of `scaled_dot_product_attention`, in less time.

For many small problems, torch's kernel spends its time between the problems. Batched products and pointwise operations
over all problems took 0.5 of its time with 8 steps, 0.9 with 30 and the same with 64 (forward and backward together),
and much less in bf16, for which torch's kernel is slow on the CPU. They store the attention weights (B * heads * T * T
numbers), which is the reason for MAX_STEPS.

Attention: Vaswani et al. 2017, arXiv:1706.03762. Shapes: B sequences, T steps, D width of a head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tandem.models.kernels import choose

MAX_STEPS = 64


def is_supported(qkv: Tensor) -> bool:
    """Whether `Attention` supports qkv and is faster. bf16 is computed in fp32. torch.compile has its own kernel."""
    is_supported = qkv.device.type == "cpu" and qkv.shape[1] <= MAX_STEPS and not torch.compiler.is_compiling()
    return choose("attention", is_supported)


class Attention(torch.autograd.Function):
    """qkv (B, T, 3, heads, D), mask (B, T), True: a real step, at least one in each sequence -> (B, T, heads * D)."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, qkv: Tensor, mask: Tensor) -> Tensor:
        B, T, _, heads, D = qkv.shape
        packed = laid_out(qkv.permute(2, 0, 3, 1, 4), torch.promote_types(qkv.dtype, torch.float32))
        packed = packed.view(3, B * heads, T, D)
        query, key, value = packed
        query *= D**-0.5
        weights = torch.bmm(query, key.transpose(1, 2))
        if not mask.all():
            weights.view(B, heads, T, T).masked_fill_(~mask[:, None, None, :], float("-inf"))
        # torch's softmax takes several times as long for such short rows.
        weights.sub_(weights.amax(dim=2, keepdim=True)).exp_()
        weights.div_(weights.sum(dim=2, keepdim=True))
        ctx.save_for_backward(packed, weights)
        ctx.shape, ctx.dtype = qkv.shape, qkv.dtype
        context = torch.bmm(weights, value).view(B, heads, T, D)
        return laid_out(context.transpose(1, 2), qkv.dtype).view(B, T, heads * D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        B, T, _, heads, D = ctx.shape
        packed, weights = ctx.saved_tensors
        query, key, value = packed
        grad = laid_out(grad.view(B, T, heads, D).transpose(1, 2), packed.dtype).view(B * heads, T, D)
        grad_packed = torch.empty_like(packed)
        by_products = torch.bmm(grad, value.transpose(1, 2)).mul_(weights)
        by_products.addcmul_(weights, by_products.sum(dim=2, keepdim=True), value=-1)  # gradient of the softmax
        torch.bmm(by_products, key, out=grad_packed[0]).mul_(D**-0.5)
        torch.bmm(by_products.transpose(1, 2), query, out=grad_packed[1])  # the query already contains the factor
        torch.bmm(weights.transpose(1, 2), grad, out=grad_packed[2])
        return laid_out(grad_packed.view(3, B, heads, T, D).permute(1, 3, 0, 2, 4), ctx.dtype), None


def laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy of x in `dtype`."""
    return torch.empty(x.shape, dtype=dtype).copy_(x)
