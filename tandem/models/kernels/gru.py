"""GRU layers: the result of `nn.GRU`, from the parameters of `nn.GRU`, in less time.

Input: sequences and `nn.GRU` stacks. Output: the stacks' states and, in training, their gradients.

`nn.GRU` has no fused kernel for training on the CPU: it runs and differentiates many small operations per step. Here

- a step is one matrix product per direction and five in-place pointwise operations for all directions;
- the backward pass computes everything that depends only on the forward pass for many steps at once; three operations
  per step remain;
- products that no step waits for (of inputs; for gradients of weights and inputs) are computed for many steps at once;
- tanh(a) is 2 sigmoid(2 a) - 1: torch's tanh takes as long as the matrix product of a step, its sigmoid a sixth.

Forward and backward pass together were 1.2 to 1.9 times as fast as `nn.GRU` on one thread, and more with small batches.

The equations are those in torch's documentation of `nn.GRU` (Cho et al. 2014, arXiv:1406.1078, with the reset gate
applied after the product); m is the part of n that comes from the state h:

    r = sigmoid(W_r x + b_r + U_r h + c_r)      m  = U_n h + c_n
    z = sigmoid(W_z x + b_z + U_z h + c_z)      n  = tanh(W_n x + b_n + r m)
                                                h' = n + z (h - n)

Shapes: T steps, B sequences, D directions, F features, H hidden size. Time is the first dimension, so a step is
contiguous in memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tandem.models.kernels import choose
from tandem.models.kernels.dropout import drop_as_torch
from tandem.models.kernels.ordered import add_product, adder

# The number of gate values in a chunk of steps, 2 MiB of float32: larger chunks do not fit into the cache, smaller ones
# make matrix products inefficient. Measured from 2 ** 15 to 2 ** 21.
CHUNK_VALUES = 2**19

# grad * y * (1 - y) and grad * (1 - y * y) in one pass, into a given buffer.
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


def is_supported(x: Tensor) -> bool:
    """Whether `gru` supports x: on the CPU. Under autocast it computes in fp32. Use `nn.GRU` otherwise."""
    return choose("GRU", x.device.type == "cpu")


def gru(inputs: Sequence[Tensor], stacks: Sequence[nn.GRU] | nn.ModuleList) -> list[Tensor]:
    """`[stack(x)[0] for x, stack in zip(inputs, stacks)]`: D times (B, T, F) -> D times (B, T, H).

    The stacks run together, which halves the number of operations of two stacks. They may differ only in their
    parameters, and must have `batch_first` and a bias and not be `bidirectional`. The result equals that of `nn.GRU` up
    to rounding, has the same bits in every run, and is differentiable once. With up to two layers, dropout between the
    layers draws the same numbers as `nn.GRU`.
    """
    grus: list[Any] = list(stacks)
    first = grus[0]
    assert first.batch_first and first.bias and not first.bidirectional
    record = torch.is_grad_enabled()
    states = [x.transpose(0, 1).to(first.weight_hh_l0.dtype) for x in inputs]
    for layer in range(first.num_layers):
        if layer > 0:
            states = [drop_as_torch(x, first.dropout, first.training, dim=1) for x in states]
        kinds = zip(*(gru.all_weights[layer] for gru in grus), strict=True)
        states = Layer.apply(record, *states, *(parameter for kind in kinds for parameter in kind))
    return [x.transpose(0, 1) for x in states]


class Layer(torch.autograd.Function):
    """One layer in D directions: x (T, B, F), weight_ih, weight_hh, bias_ih, bias_hh, D of each -> D times (T, B, H).

    The last dimension of `gates`, 4 H, contains n, r, z and m in this order: the input product contributes to the first
    three, the state product to the last three, so each product writes one slice.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, record: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        D = len(tensors) // 5
        directions = range(D)
        xs, weights_ih, weights_hh, biases_ih, biases_hh = (tensors[k * D : (k + 1) * D] for k in range(5))
        (T, B, F), H = xs[0].shape, weights_hh[0].shape[1]
        xs = tuple(x.reshape(T * B, F) for x in xs)
        states = xs[0].new_empty(T, B, D, H)
        gates: list[Tensor] = []  # one tensor per chunk: the allocator reuses small tensors for the next batch

        # The sigmoid's input for n is doubled (see tanh above), hence the factors of 2.
        biases = zip(biases_ih, biases_hh, strict=True)
        bias = torch.stack([torch.cat([2 * b[2 * H :], b[: 2 * H] + c[: 2 * H], c[2 * H :]]) for b, c in biases])
        minus_one = states.new_tensor(-1.0)
        into_n, into_rz = [w[2 * H :].t() for w in weights_ih], [w[: 2 * H].t() for w in weights_ih]
        recurrent = [w.t() for w in weights_hh]

        # Create all steps' views at once: one at a time, they take as long as the arithmetic of a small step.
        h_joint = states.unbind(0)
        h_of = [states[:, :, d].unbind(0) for d in directions]
        h_before = torch.zeros_like(h_joint[0])
        chunk = span_length(T, B * D * 4 * H)
        for start in range(0, T, chunk):
            end = min(start + chunk, T)
            if record or not gates:
                gates.append(states.new_empty(end - start, B, D, 4 * H))
            part = gates[-1][: end - start]
            part.copy_(bias)
            for d in directions:
                x, flat = xs[d][start * B : end * B], part.view(-1, D, 4 * H)[:, d]
                add_product(flat[:, :H], x, into_n[d], factor=2)
                add_product(flat[:, H : 3 * H], x, into_rz[d])

            rzm_of = [part[:, :, d, H:].unbind(0) for d in directions]
            rz_joint = part[..., H : 3 * H].unbind(0)
            single = (gate.unbind(0) for gate in part.view(-1, B, D, 4, H).unbind(3))
            add = adder(rzm_of[0][0], h_of[0][0], recurrent[0])
            for i, (rz, n, r, z, m) in enumerate(zip(rz_joint, *single, strict=True)):
                t = start + i
                if t > 0:
                    for d in directions:
                        add(rzm_of[d][i], h_of[d][t - 1], recurrent[d])
                rz.sigmoid_()
                n.addcmul_(r, m, value=2).sigmoid_()
                torch.add(minus_one, n, alpha=2, out=n)
                torch.lerp(n, h_before, z, out=h_joint[t])
                h_before = h_joint[t]
        if record:
            ctx.save_for_backward(states, *xs, *weights_ih, *weights_hh, *gates)
        return tuple(states[:, :, d] for d in directions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        D = len(grads)
        directions = range(D)
        states, *saved = ctx.saved_tensors
        xs, weights_ih, weights_hh, gates = saved[:D], saved[D : 2 * D], saved[2 * D : 3 * D], saved[3 * D :]
        (T, B, _, H), F = states.shape, xs[0].shape[1]
        chunk = span_length(T, B * D * 4 * H)

        dgates = states.new_empty(chunk, B, D, 4 * H)
        # Slot i + 1 belongs to step i of the chunk; slot 0 to the step before it, where the next chunk continues.
        dh = states.new_empty(chunk + 1, B, D, 1, H)
        scratch = states.new_empty(chunk, B, D, H)
        dgates_joint = dgates.view(chunk, B, D, 4, H).unbind(0)
        drzm_of = [dgates[:, :, d, H:].unbind(0) for d in directions]
        dh_joint = dh.unbind(0)
        dh_of = [dh[:, :, d, 0].unbind(0) for d in directions]

        dxs = [torch.zeros_like(x) if needed else None for x, needed in zip(xs, ctx.needs_input_grad[1:], strict=False)]
        # The weights' gradients are transposed, because BLAS is faster this way, several times for small F.
        dweights_ih = [states.new_zeros(F, 3 * H) for _ in directions]
        dweights_hh = [states.new_zeros(H, 3 * H) for _ in directions]
        dbias = states.new_zeros(D, 4 * H)

        for d in directions:
            dh[0, :, d, 0] = grads[d][-1]
        for number, start in reversed(list(enumerate(range(0, T, chunk)))):
            end = min(start + chunk, T)
            length, first = end - start, 1 if start == 0 else 0  # step 0 has no predecessor
            before = slice(start + first - 1, end - 1)
            dh_joint[length].copy_(dh_joint[0])
            for d in directions:
                dh[first:length, :, d, 0] = grads[d][before]

            part, split = dgates[:length], gates[number].view(length, B, D, 4, H)
            derivatives(split, states[before], first, scratch[:length], part.view_as(split))
            zs = split[..., 2:3, :].unbind(0)
            add = adder(dh_of[0][0], drzm_of[0][0], weights_hh[0])
            for i in reversed(range(length)):
                dgates_joint[i].mul_(dh_joint[i + 1])
                if start + i > 0:
                    dh_joint[i].addcmul_(dh_joint[i + 1], zs[i])
                    for d in directions:
                        add(dh_of[d][i], drzm_of[d][i], weights_hh[d])

            joint, h_before, rows = part.view(-1, D, 4 * H), states[before].view(-1, D, H), slice(start * B, end * B)
            for d in directions:
                flat, dx = joint[:, d], dxs[d]
                add_product(dweights_ih[d], xs[d][rows].t(), flat[:, : 3 * H])
                add_product(dweights_hh[d], h_before[:, d].t(), flat[first * B :, H:])
                if dx is not None:
                    add_product(dx[rows], flat[:, :H], weights_ih[d][2 * H :])
                    add_product(dx[rows], flat[:, H : 3 * H], weights_ih[d][: 2 * H])
            dbias += joint.sum(0)

        return (
            None,
            *(None if dx is None else dx.view(T, B, F) for dx in dxs),
            *(torch.cat([dw[:, H:], dw[:, :H]], dim=1).t() for dw in dweights_ih),  # n, r, z -> r, z, n
            *(dw.t() for dw in dweights_hh),
            *(torch.cat([db[H : 3 * H], db[:H]]) for db in dbias),
            *(db[H:] for db in dbias),
        )


def derivatives(gates: Tensor, h_before: Tensor, first: int, scratch: Tensor, out: Tensor) -> None:
    """Fill out (T, B, D, 4, H) with the derivatives of h' by the gates, before their sigmoid or tanh, and by m.

    h_before starts at step `first` of the gates: 1 at the start of the sequence, because the state before step 0 is
    zero.
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
    return min(max(CHUNK_VALUES // values_per_step, 1), num_steps)
