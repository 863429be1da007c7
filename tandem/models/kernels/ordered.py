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
            if operation is in_parts:
                show_rounding(*arguments[:2])
            if operation is F.linear:
                show_rounding(arguments[0], arguments[1].t(), arguments[2])
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
    safely(add_in_parts, target, left, right, factor)


def add_in_parts(target: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> Tensor:
    inner = left.shape[1]
    if is_short(inner, *target.shape):
        return addmm(target, left, right, factor)
    length = math.ceil(inner / math.ceil(inner / LONGEST))
    for start in range(0, inner, length):
        addmm(target, left[:, start : start + length], right[start : start + length], factor)
    return target


def adder(target: Tensor, left: Tensor, right: Tensor) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """`add_product` for the steps of a recurrence, whose layouts, those of these matrices, are then looked up once."""
    return addmm if is_short(left.shape[1], *target.shape) and is_safe(addmm, target, left, right) else add_product


def is_short(inner: int, rows: int, columns: int) -> bool:
    """Whether a product is computed at once. In two parts, 384 would have other bits than MKL's on one thread."""
    return inner <= LONGEST + 1 or 1 in (rows, columns)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, of two matrices."""
    (rows, inner), columns = left.shape, right.shape[1]
    if num_parts := equal_parts(left.dtype, inner, rows, columns):
        return safely(in_parts, left, right, num_parts)
    total = left.new_zeros(rows, columns)
    add_product(total, left, right)
    return total


def in_parts(left: Tensor, right: Tensor, num_parts: int) -> Tensor:
    """left @ right, as the sum of products of equal parts. All parts at once are as fast as an undivided product."""
    if num_parts == 1:
        return torch.mm(left, right)
    return torch.bmm(left.unflatten(1, (num_parts, -1)).transpose(0, 1), right.unflatten(0, (num_parts, -1))).sum(0)


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


class OrderedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.num_parts = 0
        if x.is_contiguous() and weight.is_contiguous():
            ctx.num_parts = safe_parts(torch.get_num_threads(), x.dtype, x.shape, weight.shape, bias is not None)
        if ctx.num_parts:
            return F.linear(x, weight, bias)
        num_outputs, num_features = weight.shape
        if equal_parts(x.dtype, num_features, num_outputs, x.numel() // num_features) == 1:
            return safely(F.linear, x, weight, bias)
        products = product(x.flatten(0, -2), weight.t())
        return (products if bias is None else products.add_(bias)).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias = ctx.needs_input_grad
        rows, inputs = gradient.reshape(-1, len(weight)), x.reshape(-1, x.shape[-1])
        if ctx.num_parts and gradient.is_contiguous():
            of_x, of_weight = torch.mm(rows, weight) if needs_x else None, in_parts(rows.t(), inputs, ctx.num_parts)
        else:
            of_x, of_weight = product(rows, weight) if needs_x else None, product(rows.t(), inputs)
        return None if of_x is None else of_x.view_as(x), of_weight, rows.sum(0) if needs_bias else None


@functools.lru_cache(4096)
def safe_parts(number: int, dtype: torch.dtype, shape: torch.Size, weight_shape: torch.Size, has_bias: bool) -> int:
    """In how many parts `product` computes a weight's gradient; 0 if the layer's other two products need parts, or if
    `number` threads give one of the three, of contiguous tensors, other bits than one. One lookup for all three saves
    3% of a small network's step.
    """
    (num_outputs, num_features), num_rows = weight_shape, shape[:-1].numel()
    x, weight = torch.empty(shape, dtype=dtype), torch.empty(weight_shape, dtype=dtype)
    bias = torch.empty(num_outputs, dtype=dtype) if has_bias else None
    rows, inputs = torch.empty(num_rows, num_outputs, dtype=dtype), x.flatten(0, -2)
    num_parts = equal_parts(dtype, num_rows, num_outputs, num_features)
    has_others_whole = (
        equal_parts(dtype, num_features, num_outputs, num_rows) == 1
        and equal_parts(dtype, num_outputs, num_rows, num_features) == 1
    )
    is_simple = (
        num_parts
        and has_others_whole
        and is_safe(F.linear, x, weight, bias)
        and is_safe(in_parts, rows, weight, 1)
        and is_safe(in_parts, rows.t(), inputs, num_parts)
    )
    return num_parts if is_simple else 0


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        number, node = torch.get_num_threads(), outputs.grad_fn
        if number > 1 and node is not None:  # one thread computes all gradients, as fast as several in layers so small
            node.register_prehook(lambda _: torch.set_num_threads(1))
            node.register_hook(lambda *_: torch.set_num_threads(number))
        return outputs


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
        gradient = gradient.contiguous()  # once for both calls

        def gradients(*wanted: bool) -> Any:
            return torch.ops.aten.convolution_backward(
                gradient, x, weight, [len(weight)], stride, padding, dilation, False, [0], groups, wanted
            )

        of_x = gradients(needs_x, False, False)[0] if needs_x else None
        with using_threads(1):
            return of_x, *gradients(False, True, needs_bias)[1:], None


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
