"""CPU operations whose bits do not depend on the number of threads, so that the number may change between two steps.

torch gives the same bits with any number of threads for most operations: each thread computes other elements of the
result. There are five exceptions. It divides a sum among threads in four: a product with a long inner dimension, the
gradients of LayerNorm's weight and bias, the gradient of a convolution's weight and, with some numbers, that of an
LSTM's weights. And on some processors, the last rows of each thread's part are computed in another order, in bf16 all
rows. Here, a long inner dimension is cut into equal parts that are added in order, and one thread computes what more
threads would compute with other bits. The result has the bits of a training on one thread.

Measured with 1, 2, 3, 4 and 8 threads.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tandem.machine.threads import using_threads

LONGEST = 383  # inner dimension that MKL does not divide; 384 it divides among eight threads


def safely(operation: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """operation(*arguments), on one thread if torch's number of threads would give it other bits."""
    if is_safe(operation, *arguments):
        return operation(*arguments)
    with using_threads(1):
        return operation(*arguments)


def is_safe(operation: Callable[..., Any], *arguments: Any) -> bool:
    """Whether torch's number of threads gives operation(*arguments), one tensor or more, the bits of one thread."""
    number = torch.get_num_threads()
    return number == 1 or keeps_bits(operation, number, *map(layout, arguments))


def layout(argument: Any) -> Any:
    return (argument.shape, argument.stride(), argument.dtype) if isinstance(argument, Tensor) else argument


@functools.lru_cache(4096)  # a step always has the same layouts
def keeps_bits(operation: Callable[..., Any], number: int, *layouts: Any) -> bool:
    """Whether `number` threads give the bits of one thread, tried with random values: MKL does not document it."""
    results = []
    for num_threads in (1, number):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad(), using_threads(num_threads):
            arguments = [example(argument, generator) for argument in layouts]
            if operation in (torch.mm, linear):
                show_rounding(*arguments)
            results.append(operation(*arguments))
    return all(map(torch.equal, *results))  # of several tensors, or of the rows of one


def example(argument: Any, generator: torch.Generator) -> Any:
    if not isinstance(argument, tuple):
        return argument
    shape, strides, dtype = argument
    size = max(1, 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)))
    return torch.randn(size, generator=generator, dtype=dtype).as_strided(shape, strides)


def show_rounding(left: Tensor, right: Tensor, bias: Tensor | None = None) -> None:
    """Let the second half of a sum in bf16 take back the first: what remains is how the sum was rounded. Otherwise the
    rounding of the result would hide most differences.
    """
    if left.dtype != torch.bfloat16 or 0 in left.stride() + right.stride():
        return
    half = left.shape[-1] // 2
    first, second = slice(half), slice(half, 2 * half)
    left[..., second], right[second] = left[..., first].flip(-1), -right[first].flip(0)
    right[2 * half :] = 0
    if bias is not None:
        bias.zero_()


def addmm(target: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> Tensor:
    """target += factor * left @ right. torch's FlopCounterMode counts this form, but not `target.addmm_`."""
    return torch.addmm(target, left, right, alpha=factor, out=target)


def add_product(target: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> None:
    """target += factor * left @ right, of matrices."""
    inner = left.shape[1]
    if is_short(inner, *target.shape):
        safely(addmm, target, left, right, factor)
        return
    length = math.ceil(inner / math.ceil(inner / LONGEST))
    for start in range(0, inner, length):
        part = slice(start, start + length)
        safely(addmm, target, left[:, part], right[part], factor)


def adder(target: Tensor, left: Tensor, right: Tensor) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """`add_product` for the steps of a recurrence, whose layouts, those of these matrices, are then looked up once."""
    return addmm if is_short(left.shape[1], *target.shape) and is_safe(addmm, target, left, right) else add_product


def is_short(inner: int, rows: int, columns: int) -> bool:
    """Whether a product is computed at once. In two parts, 384 would have other bits than MKL's on one thread."""
    return inner <= LONGEST + 1 or 1 in (rows, columns)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, of two matrices."""
    (rows, inner), columns = left.shape, right.shape[1]
    num_parts = equal_parts(left.dtype, inner, rows, columns)
    if num_parts == 1:
        return safely(torch.mm, left, right)
    if not num_parts:
        total = left.new_zeros(rows, columns)
        add_product(total, left, right)
        return total
    # All parts at once are as fast as an undivided product.
    parts = left.view(rows, num_parts, -1).transpose(0, 1), right.view(num_parts, -1, columns)
    return safely(torch.bmm, *parts).sum(0)


@functools.cache  # a step calls it for each layer, always with the same sizes
def equal_parts(dtype: torch.dtype, inner: int, rows: int, columns: int) -> int:
    """The number of equal parts of a product's inner dimension that MKL does not divide; 0 if there is none. In bf16 it
    is 1, because each part would be rounded.
    """
    if dtype == torch.bfloat16 or inner <= LONGEST and 1 not in (rows, columns):
        return 1
    if inner == LONGEST + 1 or 1 in (rows, columns):
        return 0
    least = math.ceil(inner / LONGEST)
    return next((number for number in range(least, 2 * least) if inner % number == 0), 0)


def in_order(gradients: Callable[..., Any], of_x: bool, *of_parameters: bool) -> Any:
    """`gradients(...)` of those that are wanted, with those of the parameters computed by one thread."""
    if torch.get_num_threads() == 1:
        return gradients(of_x, *of_parameters)
    grad_x = gradients(True, False, False)[0] if of_x else None
    with using_threads(1):
        return grad_x, *gradients(False, *of_parameters)[1:]


def use_in(model: nn.Module) -> None:
    """Let the network's layers of the types below compute with these operations, by replacing the classes of its
    modules. Their parameters stay.
    """
    classes = {nn.Linear: Linear, nn.LayerNorm: LayerNorm, nn.Conv1d: Conv1d, nn.LSTM: LSTM}
    for module in model.modules():
        if ordered_class := classes.get(type(module)):
            module.__class__ = ordered_class


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = OrderedLinear.apply(*autocast(x, self.weight, self.bias))  # type: ignore[no-untyped-call]
        return outputs


def autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the type of autocast on the CPU, if it is active."""
    if not torch.is_autocast_enabled("cpu"):
        return [*tensors]
    return [tensor if tensor is None else tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors]


def linear(x: Tensor, weight_t: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight_t.t(), bias)


class OrderedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.flatten(0, -2)
        if equal_parts(x.dtype, weight.shape[1], len(weight), len(rows)) == 1:
            return safely(linear, x, weight.t(), bias)
        products = product(rows, weight.t())
        return (products if bias is None else products.add_(bias)).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, len(weight))
        of_x = product(rows, weight).view_as(x) if ctx.needs_input_grad[0] else None
        of_weight = product(rows.t(), x.reshape(-1, x.shape[-1]))
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        if torch.get_num_threads() == 1 or self.weight is None or self.bias is None:
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
        if torch.get_num_threads() == 1 or self.padding_mode != "zeros" or is_same and reach[0] % 2:
            return super().forward(x)
        padding = [reach[0] // 2] if is_same else [0] if self.padding == "valid" else list(self.padding)
        geometry = (list(self.stride), padding, list(self.dilation), self.groups)
        outputs: Tensor = OrderedConv1d.apply(*autocast(x, self.weight, self.bias), geometry)  # type: ignore[no-untyped-call]
        return outputs


class OrderedConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return F.conv1d(x, weight, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.geometry
        needs_x, _, needs_bias, _ = ctx.needs_input_grad

        def gradients(*wanted: bool) -> Any:
            return torch.ops.aten.convolution_backward(
                gradient, x, weight, [len(weight)], stride, padding, dilation, False, [0], groups, wanted
            )

        return *in_order(gradients, needs_x, True, needs_bias), None


class LSTM(nn.LSTM):
    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> Any:  # type: ignore[override]
        is_plain = isinstance(x, Tensor) and x.dim() == 3 and not self.proj_size
        if torch.get_num_threads() == 1 or not is_plain:
            return super().forward(x, state)
        zeros = x.new_zeros(self.num_layers * (1 + self.bidirectional), x.shape[1 - self.batch_first], self.hidden_size)
        hidden, cell = state or (zeros, zeros)
        self.check_forward_args(x, (hidden, cell), None)  # oneDNN would read beyond a tensor that is too small
        parts, has_graph = (x, hidden, cell, *self._flat_weights), torch.is_grad_enabled()
        settings = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional, self.batch_first)
        can_try = not torch.is_autocast_enabled("cpu")  # rounding to bf16 would hide differences
        if can_try and is_safe(try_lstm, has_graph, has_graph, *settings, *parts):
            return super().forward(x, state)
        is_forward_safe = can_try and is_safe(try_lstm, has_graph, False, *settings, *parts)
        with using_threads(torch.get_num_threads() if is_forward_safe else 1):
            if not has_graph:
                return super().forward(x, state)
            outputs, hidden, cell = OrderedLSTM.apply(settings, *parts)  # type: ignore[no-untyped-call]
            return outputs, (hidden, cell)


def try_lstm(has_graph: bool, has_gradients: bool, *arguments: Any) -> tuple[Tensor, ...]:
    """An LSTM's outputs and, if `has_gradients`, all gradients. Its weights are as small as new ones: large ones have
    no gradients, since the gates are then open or shut.
    """
    (has_biases, num_layers, _, _, *directions), (x, hidden, cell, *weights) = arguments[:6], arguments[6:]
    parts = [x, hidden, cell, *(weight / math.sqrt(hidden.shape[-1]) for weight in weights)]
    with torch.set_grad_enabled(has_graph):
        weights = [part.requires_grad_(has_gradients) for part in parts][3:]
        outputs = torch.lstm(x, (hidden, cell), weights, has_biases, num_layers, 0.0, False, *directions)
        return (*outputs, *torch.autograd.grad(outputs, parts, outputs)) if has_gradients else outputs


class OrderedLSTM(torch.autograd.Function):
    """torch's operation, whose backward pass is computed by one thread."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.parts = [part.detach().requires_grad_() for part in parts]
        x, hidden, cell, *weights = ctx.parts
        with torch.enable_grad():
            ctx.outputs = torch.lstm(x, (hidden, cell), weights, *settings)
        return tuple(output.detach() for output in ctx.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with using_threads(1):
            return None, *torch.autograd.grad(ctx.outputs, ctx.parts, gradients, retain_graph=True)
