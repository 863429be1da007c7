"""CPU operations whose bits do not depend on the number of threads, so that the number may change between two steps.

torch gives the same bits with any number of threads for most operations: each thread computes other elements of the
result. It divides a sum among threads in three: a product with a long inner dimension, the gradients of LayerNorm's
weight and bias, and the gradient of a convolution's weight. Here, a long inner dimension is cut into equal parts that
are added in order, and one thread computes the two others. The result has the bits of a training on one thread.

Measured with MKL's kernels for AVX-512 and 1, 2, 3, 4 and 8 threads. MKL's kernels for older processors divide sums
everywhere; tandem/training/threads.py therefore tries the network of each training.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tandem.machine.threads import num_threads

LONGEST = 383  # inner dimension that MKL does not divide; 384 it divides among eight threads


def is_divided(inner: int, *outer: int) -> bool:
    """Whether MKL may divide the inner dimension of a product among threads. `outer`: the other two dimensions."""
    return inner > LONGEST or 1 in outer


def add_product(target: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> None:
    """target += factor * left @ right. torch's FlopCounterMode counts this form, but not `target.addmm_`."""
    inner = left.shape[1]
    if not is_divided(inner, *target.shape):
        torch.addmm(target, left, right, alpha=factor, out=target)
    elif inner == LONGEST + 1 or 1 in target.shape:  # 384 in two parts would have other bits than on one thread
        with num_threads(1):
            torch.addmm(target, left, right, alpha=factor, out=target)
    else:
        length = math.ceil(inner / math.ceil(inner / LONGEST))
        for start in range(0, inner, length):
            part = slice(start, start + length)
            torch.addmm(target, left[:, part], right[part], alpha=factor, out=target)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, of two matrices."""
    (rows, inner), columns = left.shape, right.shape[1]
    if not is_divided(inner, rows, columns):
        return left @ right
    least = math.ceil(inner / LONGEST)
    num_parts = next((number for number in range(least, 2 * least) if inner % number == 0), 1)
    if num_parts == 1 or inner == LONGEST + 1 or 1 in (rows, columns):
        found = left.new_zeros(rows, columns)
        add_product(found, left, right)
        return found
    # All parts at once are as fast as an undivided product.
    parts = left.unflatten(1, (num_parts, -1)).transpose(0, 1), right.unflatten(0, (num_parts, -1))
    return torch.bmm(*parts).sum(0)


def use_in(model: nn.Module) -> None:
    """Let the network's layers of the types below compute with these operations, by replacing the classes of its
    modules. Their parameters stay.
    """
    for module in model.modules():
        if own := {nn.Linear: Linear, nn.LayerNorm: LayerNorm, nn.Conv1d: Conv1d}.get(type(module)):
            module.__class__ = own


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        sizes = (self.in_features, self.out_features, x.numel() // self.in_features)
        if torch.is_autocast_enabled("cpu") or not (max(sizes) > LONGEST or 1 in sizes):
            return super().forward(x)
        outputs: Tensor = OrderedLinear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return outputs


class OrderedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.flatten(0, -2)
        if not is_divided(weight.shape[1], len(weight), len(rows)):
            return F.linear(x, weight, bias)
        found = product(rows, weight.t())
        return (found if bias is None else found.add_(bias)).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_x = product(rows, weight).view_as(x) if ctx.needs_input_grad[0] else None
        return of_x, product(rows.t(), x.flatten(0, -2)), rows.sum(0) if ctx.needs_input_grad[2] else None


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or self.bias is None:
            return super().forward(x)
        outputs: Tensor = OrderedLayerNorm.apply(x, self.normalized_shape, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return outputs


class OrderedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        outputs, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        ctx.shape = shape
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd, weight, bias = ctx.saved_tensors

        def gradients(*wanted: bool) -> Any:
            return torch.ops.aten.native_layer_norm_backward(gradient, x, ctx.shape, mean, rstd, weight, bias, wanted)

        of_x = gradients(True, False, False)[0]
        with num_threads(1):
            _, of_weight, of_bias = gradients(False, True, True)
        return of_x, None, of_weight, of_bias, None


class Conv1d(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        reach = [width * (size - 1) for width, size in zip(self.dilation, self.kernel_size, strict=True)]
        is_same = self.padding == "same"
        if self.padding_mode != "zeros" or is_same and reach[0] % 2:
            return super().forward(x)
        padding = [reach[0] // 2] if is_same else [0] if self.padding == "valid" else list(self.padding)
        about = (list(self.stride), padding, list(self.dilation), self.groups)
        parts = [x, self.weight, self.bias]
        if torch.is_autocast_enabled("cpu"):
            parts = [part if part is None else part.to(torch.get_autocast_dtype("cpu")) for part in parts]
        outputs: Tensor = OrderedConv1d.apply(*parts, about)  # type: ignore[no-untyped-call]
        return outputs


class OrderedConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, about: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.about = about
        return F.conv1d(x, weight, bias, *about)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.about
        needs_x, _, needs_bias, _ = ctx.needs_input_grad

        def gradients(*wanted: bool) -> Any:
            return torch.ops.aten.convolution_backward(
                gradient, x, weight, [len(weight)], stride, padding, dilation, False, [0], groups, wanted
            )

        of_x = gradients(True, False, False)[0] if needs_x else None
        with num_threads(1):
            _, of_weight, of_bias = gradients(False, True, needs_bias)
        return of_x, of_weight, of_bias, None
