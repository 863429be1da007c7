"""GRU layers for the CPU, written by hand: the numbers of `nn.GRU` from the parameters of `nn.GRU`, in about 0.6 of its time.

In: sequences and `nn.GRU` stacks. Out: what the stacks would give, and in training their gradients. Everything is ordinary torch:
nothing is compiled.

`nn.GRU` has no fused kernel for training on the CPU: it runs, and differentiates, some fifteen small operations per step. Here

- one step is a matrix product per direction and five pointwise operations for all directions, in place in one buffer;
- going back, all that the forward pass already determines is computed for many steps at once, which leaves three operations per step;
- products that no step waits for (inputs, and gradients of weights and inputs) are made for many steps at once;
- tanh(a) is 2 sigmoid(2 a) - 1: torch's sigmoid takes a sixth of the time of its tanh, which costs as much as the matrix product.

The equations are those of torch's documentation of `nn.GRU` (Cho et al. 2014, arXiv:1406.1078, the reset gate applied after the product):

    r, z = sigmoid(W_r x + b_r + U_r h + c_r), the same with W_z ...
    m = U_n h + c_n;  n = tanh(W_n x + b_n + r m);  h' = n + z (h - n)

Shapes: T steps, B sequences, D directions, F features, H hidden size; time comes first, so that a step lies in one piece.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout

# Steps are taken in spans of about so many gate values, 2 MiB of float32: larger ones leave the cache, smaller ones make
# inefficient matrix products. Measured between 2 ** 15 and 2 ** 21.
SPAN_VALUES = 2**19

# grad * y * (1 - y) and grad * (1 - y * y) in one pass, into a given buffer.
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


def takes(x: Tensor) -> bool:
    """Whether `gru` is the one to use for x: on the CPU, in the precision of its own dtype. Otherwise `nn.GRU` is."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")


def gru(inputs: Sequence[Tensor], stacks: Sequence[nn.GRU]) -> list[Tensor]:
    """`[stack(x)[0] for x, stack in zip(inputs, stacks)]`: D times (B, T, F) -> D times (B, T, H), all steps of the last layer.

    The stacks must be alike but for their parameters: `batch_first`, with bias, not `bidirectional`. They run side by side,
    which halves the number of operations for two. Equal to `nn.GRU` up to rounding, and two runs give the same bits; dropout
    between the layers draws what `nn.GRU` would draw, up to two layers. The result can be differentiated once.
    """
    first = stacks[0]
    assert first.batch_first and first.bias and not first.bidirectional
    record = torch.is_grad_enabled()
    states = [x.transpose(0, 1) for x in inputs]
    for layer in range(first.num_layers):
        if layer > 0:
            states = [dropout(x, first.dropout, first.training) for x in states]
        parameters = [stack.all_weights[layer] for stack in stacks]
        by_kind = [tensor for kind in zip(*parameters, strict=True) for tensor in kind]
        states = Layer.apply(record, *states, *by_kind)
    return [x.transpose(0, 1) for x in states]


class Layer(torch.autograd.Function):
    """One layer in D directions: x (T, B, F), weight_ih, weight_hh, bias_ih, bias_hh, each D times -> D times (T, B, H).

    `gates` (T, B, D, 4 H) holds n, r, z and m of each step, in this order: the input reaches the first three, the state the
    last three, so both products write into one slice.
    """

    @staticmethod
    def forward(ctx: Any, record: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        directions = range(len(tensors) // 5)
        D = len(directions)
        xs, weights_ih, weights_hh, biases_ih, biases_hh = (tensors[k * D : (k + 1) * D] for k in range(5))
        (T, B, F), H = xs[0].shape, weights_hh[0].shape[1]
        span = span_length(T, B * D * 4 * H)
        xs = tuple(x.reshape(T * B, F) for x in xs)
        gates = xs[0].new_empty(T if record else span, B, D, 4 * H)
        states = xs[0].new_empty(T, B, D, H)

        # n is kept doubled on its way to the sigmoid, hence the factors of 2.
        biases = zip(biases_ih, biases_hh, strict=True)
        bias = torch.stack([torch.cat([2 * b[2 * H :], b[: 2 * H] + c[: 2 * H], c[2 * H :]]) for b, c in biases])
        into_n = [weight[2 * H :].t() for weight in weights_ih]
        into_rz = [weight[: 2 * H].t() for weight in weights_ih]
        recurrent = [weight.t() for weight in weights_hh]
        minus_one = states.new_tensor(-1.0)

        # Views of all steps at once: making them one by one would cost as much as the arithmetic of a small step.
        h_joint = states.unbind(0)
        h_of = [states[:, :, d].unbind(0) for d in directions]
        h_before = torch.zeros_like(h_joint[0])
        for start in range(0, T, span):
            end = min(start + span, T)
            part = gates[start:end] if record else gates[: end - start]
            part.copy_(bias)
            flat = part.view(-1, D, 4 * H)
            for d in directions:
                x = xs[d][start * B : end * B]
                flat[:, d, :H].addmm_(x, into_n[d], alpha=2)
                flat[:, d, H : 3 * H].addmm_(x, into_rz[d])

            rzm_of = [part[:, :, d, H:].unbind(0) for d in directions]
            rz_joint = part[..., H : 3 * H].unbind(0)
            each = (gate.unbind(0) for gate in part.view(-1, B, D, 4, H).unbind(3))
            for i, (rz, n, r, z, m) in enumerate(zip(rz_joint, *each, strict=True)):
                t = start + i
                if t > 0:
                    for d in directions:
                        rzm_of[d][i].addmm_(h_of[d][t - 1], recurrent[d])
                rz.sigmoid_()
                n.addcmul_(r, m, value=2).sigmoid_()
                torch.add(minus_one, n, alpha=2, out=n)
                torch.lerp(n, h_before, z, out=h_joint[t])
                h_before = h_joint[t]
        if record:
            ctx.save_for_backward(gates, states, *xs, *weights_ih, *weights_hh)
        return tuple(states[:, :, d] for d in directions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        D = len(grads)
        directions = range(D)
        gates, states, *rest = ctx.saved_tensors
        xs, weights_ih, weights_hh = rest[:D], rest[D : 2 * D], rest[2 * D :]
        (T, B, _, H), F = states.shape, xs[0].shape[1]
        span = span_length(T, B * D * 4 * H)

        dgates = gates.new_empty(span, B, D, 4 * H)
        # Slot i + 1 for step i of the span; slot 0 for the step before the span, which the next span goes on from.
        dh = gates.new_empty(span + 1, B, D, 1, H)
        scratch = gates.new_empty(span, B, D, H)
        dgates_joint = dgates.view(span, B, D, 4, H).unbind(0)
        drzm_of = [dgates[:, :, d, H:].unbind(0) for d in directions]
        dh_joint = dh.unbind(0)
        dh_of = [dh[:, :, d, 0].unbind(0) for d in directions]

        dxs = [torch.empty_like(x) if needed else None for x, needed in zip(xs, ctx.needs_input_grad[1:], strict=False)]
        # Weights' gradients transposed: BLAS is faster so, by far where F is small.
        dweights_ih = [gates.new_zeros(F, 3 * H) for _ in directions]
        dweights_hh = [gates.new_zeros(H, 3 * H) for _ in directions]
        dbias = gates.new_zeros(D, 4 * H)

        for d in directions:
            dh[0, :, d, 0] = grads[d][-1]
        for end in range(T, 0, -span):
            start = max(end - span, 0)
            first = 1 if start == 0 else 0  # step 0 has no step before it
            length = end - start
            before = slice(start + first - 1, end - 1)
            dh_joint[length].copy_(dh_joint[0])
            for d in directions:
                dh[first:length, :, d, 0] = grads[d][before]

            part = dgates[:length]
            split = gates[start:end].view(length, B, D, 4, H)
            derivatives(split, states[before], first, scratch[:length], part.view_as(split))
            zs = split[..., 2:3, :].unbind(0)
            for i in reversed(range(length)):
                dgates_joint[i].mul_(dh_joint[i + 1])
                if start + i > 0:
                    dh_joint[i].addcmul_(dh_joint[i + 1], zs[i])
                    for d in directions:
                        dh_of[d][i].addmm_(drzm_of[d][i], weights_hh[d])

            flat, h_before = part.view(-1, D, 4 * H), states[before].view(-1, D, H)
            rows = slice(start * B, end * B)
            for d in directions:
                dn, drz, dnrz, drzm = (
                    flat[:, d, :H],
                    flat[:, d, H : 3 * H],
                    flat[:, d, : 3 * H],
                    flat[first * B :, d, H:],
                )
                dweights_ih[d].addmm_(xs[d][rows].t(), dnrz)
                dweights_hh[d].addmm_(h_before[:, d].t(), drzm)
                dx = dxs[d]
                if dx is not None:
                    torch.mm(dn, weights_ih[d][2 * H :], out=dx[rows])
                    dx[rows].addmm_(drz, weights_ih[d][: 2 * H])
            dbias += flat.sum(0)

        return (
            None,
            *(None if dx is None else dx.view(T, B, F) for dx in dxs),
            *(torch.cat([dw[:, H:], dw[:, :H]], dim=1).t() for dw in dweights_ih),  # n, r, z -> r, z, n
            *(dw.t() for dw in dweights_hh),
            *(torch.cat([db[H : 3 * H], db[:H]]) for db in dbias),
            *(db[H:] for db in dbias),
        )


def derivatives(gates: Tensor, h_before: Tensor, first: int, scratch: Tensor, out: Tensor) -> None:
    """Fill out (T, B, D, 4, H) with the derivatives of h' by the gates before their sigmoid or tanh, and by m.

    h_before begins at step `first` of the gates: before step 0 of a sequence the state is zero.
    """
    n, r, z, m = gates.unbind(3)
    by_n, by_r, by_z, by_m = out.unbind(3)
    torch.sub(z.new_tensor(1.0), z, out=scratch)
    tanh_backward(scratch, n, grad_input=by_n)  # (1 - z) (1 - n^2)
    torch.mul(by_n, r, out=by_m)
    torch.mul(by_n, m, out=scratch)
    sigmoid_backward(scratch, r, grad_input=by_r)  # by_n m r (1 - r)
    torch.neg(n[:first], out=scratch[:first])
    torch.sub(h_before, n[first:], out=scratch[first:])
    sigmoid_backward(scratch, z, grad_input=by_z)  # (h - n) z (1 - z)


def span_length(num_steps: int, values_per_step: int) -> int:
    return min(max(SPAN_VALUES // values_per_step, 1), num_steps)
