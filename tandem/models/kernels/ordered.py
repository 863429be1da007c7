"""CPU operations whose bits do not depend on the number of threads, so that the number may change between two steps.

torch gives the same bits with any number of threads for most operations: each thread computes other elements of the
result. It divides a sum among threads in three: a product with a long inner dimension, the gradients of LayerNorm's
weight and bias, and the gradient of a convolution's weight. Here, a long inner dimension is cut into equal parts that
are added in order, and one thread computes the two others. The result has the bits of a training on one thread.

Measured with MKL's kernels for AVX-512 and 1, 2, 3, 4 and 8 threads. MKL's kernels for older processors divide sums
everywhere; tandem/training/threads.py therefore tries the network of each training.
"""

import functools
import math
from collections.abc import Callable
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
    num_parts = equal_parts(inner, rows, columns)
    if num_parts == 1:
        return left @ right
    if not num_parts:
        found = left.new_zeros(rows, columns)
        add_product(found, left, right)
        return found
    # All parts at once are as fast as an undivided product.
    parts = left.view(rows, num_parts, -1).transpose(0, 1), right.view(num_parts, -1, columns)
    return torch.bmm(*parts).sum(0)


@functools.cache  # a step calls it for each layer, always with the same sizes
def equal_parts(inner: int, rows: int, columns: int) -> int:
    """The number of equal parts of a product's inner dimension that MKL does not divide; 0 if there is none."""
    if not is_divided(inner, rows, columns):
        return 1
    if inner == LONGEST + 1 or 1 in (rows, columns):
        return 0
    least = math.ceil(inner / LONGEST)
    return next((number for number in range(least, 2 * least) if inner % number == 0), 0)


def in_order(gradients: Callable[..., Any], of_x: bool, *of_parameters: bool) -> Any:
    """`gradients(...)` of those that are wanted, with those of the parameters computed by one thread."""
    if torch.get_num_threads() == 1:
        return gradients(of_x, *of_parameters)
    found = gradients(True, False, False)[0] if of_x else None
    with num_threads(1):
        return found, *gradients(False, *of_parameters)[1:]


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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, len(weight))
        of_x = product(rows, weight).view_as(x) if ctx.needs_input_grad[0] else None
        of_weight = product(rows.t(), x.reshape(-1, x.shape[-1]))
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


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

        of_x, of_weight, of_bias = in_order(gradients, True, True, True)
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

        return *in_order(gradients, needs_x, True, needs_bias), None
