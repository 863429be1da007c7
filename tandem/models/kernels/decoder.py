"""An LSTM decoder: the result of one `nn.LSTM` call per step, in less time.

The input of a step is the last output or a true value (teacher forcing). `nn.LSTM` uses oneDNN, which is made for whole
sequences: for a single step it reorders the weights for longer than it computes. autograd also records about fifteen
small operations per step and differentiates each. Here, as in gru.py, the backward pass computes for all steps at once
the gradients of the weights and everything that depends only on the forward pass. Both passes together took half of the
time.

The equations are those in torch's documentation of `nn.LSTM` (Hochreiter and Schmidhuber 1997, Neural Computation 9):

    i, f, o = sigmoid(W x + b + U h + c)      g = tanh(W x + b + U h + c)      c' = f c + i g      h' = o tanh(c')

Shapes: S steps, B sequences, L layers, H hidden size. Time is the first dimension, so a step is contiguous in memory.
The gates are in nn.LSTM's order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tandem.machine.threads import using_threads
from tandem.models.kernels import choose, dropout
from tandem.models.kernels.gru import sigmoid_backward, tanh_backward
from tandem.models.kernels.ordered import LSTM, adder, product


def is_supported(lstm: nn.LSTM, x: Tensor) -> bool:
    """Whether `decode` supports this LSTM and input. Under autocast it computes in fp32."""
    return choose("LSTM decoder", x.device.type == "cpu" and type(lstm) in (nn.LSTM, LSTM))


def decode(
    lstm: nn.LSTM,
    head: nn.Linear,
    decoder_input: Tensor,
    state: tuple[Tensor, Tensor],
    num_steps: int,
    teacher_targets: Tensor | None,
    p: float,
) -> Tensor:
    """Returns outputs (B, S).

    decoder_input (B,): the first input. state: hidden and cell, each (L, B, H). teacher_targets (B, S): the input after
    each step; NaN means the step's own output. p: dropout probability before the head; between layers it is the LSTM's.
    """
    (hidden, cell), L = (part.to(decoder_input.dtype) for part in state), lstm.num_layers
    _, B, H = hidden.shape
    if teacher_targets is None:  # all NaN: the input is always the decoder's own output
        teacher_targets = decoder_input.new_full((B, num_steps), torch.nan)
    before_head = dropout.factor((num_steps, B, H), p, dim=1) if lstm.training and p > 0 else None
    between = None
    if lstm.training and lstm.dropout > 0 and L > 1:
        between = dropout.factor((num_steps, L - 1, B, H), lstm.dropout, dim=2)
    weights = (weight for layer in lstm.all_weights for weight in layer)
    outputs: Tensor = Decoder.apply(
        decoder_input, hidden, cell, teacher_targets.t(), before_head, between, head.weight, head.bias, *weights
    )  # type: ignore[no-untyped-call]
    return outputs.t()


class Decoder(torch.autograd.Function):
    """decoder_input (B,), hidden and cell (L, B, H), teacher_targets (S, B), factors of dropout (S, B, H) and (S, L -
    1, B, H) or None, the head's weight (1, H) and bias (1,), then each layer's weight_ih, weight_hh, bias_ih and
    bias_hh -> outputs (S, B)."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(
        ctx: Any,
        decoder_input: Tensor,
        hidden: Tensor,
        cell: Tensor,
        teacher_targets: Tensor,
        before_head: Tensor | None,
        between: Tensor | None,
        head_weight: Tensor,
        head_bias: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        (L, B, H), S = hidden.shape, len(teacher_targets)
        layers = [weights[4 * layer : 4 * layer + 4] for layer in range(L)]
        # tanh(a) is 2 sigmoid(2 a) - 1, which is faster, so the sigmoid's input for g is doubled.
        twice = decoder_input.new_ones(4 * H)
        twice[2 * H : 3 * H] = 2
        into = [((w * twice[:, None]).t(), (u * twice[:, None]).t(), (b + c) * twice) for w, u, b, c in layers]
        minus_one, projection = decoder_input.new_tensor(-1.0), head_weight[0]

        empty = decoder_input.new_empty
        inputs = [empty(S, B, 1 if layer == 0 else H) for layer in range(L)]
        gates, tanhs = empty(L, S, B, 4 * H), empty(L, S, B, H)
        hiddens, cells = empty(L, S + 1, B, H), empty(L, S + 1, B, H)
        seen, outputs = empty(S, B, H), empty(S, B)
        hiddens[:, 0], cells[:, 0], inputs[0][0, :, 0] = hidden, cell, decoder_input
        is_own = teacher_targets.isnan()

        parts = [tuple(gate.unbind(0) for gate in layer_gates.split(H, dim=2)) for layer_gates in gates]
        adders = [
            (adder(gates[0, 0], x[0], w), adder(gates[0, 0], hidden[0], u))
            for x, (w, u, _) in zip(inputs, into, strict=True)
        ]
        for t in range(S):
            for layer in range(L):
                (w, u, bias), (add_input, add_state) = into[layer], adders[layer]
                x, joint, h, c = inputs[layer][t], gates[layer, t], hiddens[layer], cells[layer]
                i, f, g, o = (gate[t] for gate in parts[layer])
                joint.copy_(bias)
                add_state(joint, h[t], u)
                add_input(joint, x, w)
                joint.sigmoid_()
                torch.add(minus_one, g, alpha=2, out=g)
                torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
                tanh = torch.mul(c[t + 1], 2, out=tanhs[layer, t]).sigmoid_()
                torch.add(minus_one, tanh, alpha=2, out=tanh)
                torch.mul(o, tanh, out=h[t + 1])
                if layer < L - 1:
                    torch.mul(h[t + 1], 1 if between is None else between[t, layer], out=inputs[layer + 1][t])
            read = hiddens[-1, t + 1]
            if before_head is not None:
                read = torch.mul(read, before_head[t], out=seen[t])
            with using_threads(1):  # BLAS sums other rows in another order if threads divide them
                torch.addmv(head_bias, read, projection, out=outputs[t])
            if t + 1 < S:
                torch.where(is_own[t], outputs[t], teacher_targets[t], out=inputs[0][t + 1, :, 0])
        if before_head is None:
            seen = hiddens[-1, 1:]
        ctx.save_for_backward(
            is_own, before_head, between, head_weight, gates, hiddens, cells, tanhs, seen, *inputs, *weights
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutputs: Tensor) -> tuple[Tensor | None, ...]:
        is_own, before_head, between, head_weight, gates, hiddens, cells, tanhs, seen, *rest = ctx.saved_tensors
        L, S, B, H = tanhs.shape
        inputs, weights = rest[:L], rest[L:]
        weights_ih, weights_hh, projection = weights[::4], weights[1::4], head_weight[0]

        # Derivatives of c' by i, f and g, and of h' by o, without the factor from later steps.
        dgates = torch.empty_like(gates)
        i, f, g, o = gates.split(H, dim=3)
        di, df, dg, do = dgates.split(H, dim=3)
        sigmoid_backward(g, i, grad_input=di)
        sigmoid_backward(cells[:, :-1], f, grad_input=df)
        tanh_backward(i, g, grad_input=dg)
        sigmoid_backward(tanhs, o, grad_input=do)
        dcell_by_dhidden = torch.empty_like(tanhs)
        tanh_backward(o, tanhs, grad_input=dcell_by_dhidden)

        dhidden, dcell = torch.zeros_like(hiddens[:, 0]), torch.zeros_like(cells[:, 0])
        doutputs = doutputs.clone()
        dfed = doutputs.new_zeros(B)
        kept = is_own.logical_not()
        add = adder(dhidden[0], dgates[0, 0], weights_hh[0])
        for t in reversed(range(S)):
            if t + 1 < S:
                doutputs[t] += dfed.masked_fill_(kept[t], 0.0)
            dread = torch.outer(doutputs[t], projection)
            dhidden[-1] += dread if before_head is None else dread.mul_(before_head[t])
            for layer in reversed(range(L)):
                joint, dh, dc = dgates[layer, t], dhidden[layer], dcell[layer]
                dc.addcmul_(dh, dcell_by_dhidden[layer, t])
                joint[:, : 3 * H].view(B, 3, H).mul_(dc.unsqueeze(1))
                joint[:, 3 * H :].mul_(dh)
                dc *= f[layer, t]
                add(dh.zero_(), joint, weights_hh[layer])
                if layer > 0:
                    dx = product(joint, weights_ih[layer])
                    dhidden[layer - 1] += dx if between is None else dx.mul_(between[t, layer - 1])
                else:
                    with using_threads(1):
                        dfed = joint @ weights_ih[0][:, 0]
        gradients: list[Tensor] = []
        for x, h, dgate in zip(inputs, hiddens[:, :-1], dgates, strict=True):
            flat = dgate.view(S * B, 4 * H)
            dbias = flat.sum(0)
            gradients += [product(factor.reshape(S * B, -1).t(), flat).t() for factor in (x, h)] + [dbias, dbias]
        dprojection = product(doutputs.reshape(1, S * B), seen.reshape(S * B, H))
        return dfed, dhidden, dcell, None, None, None, dprojection, doutputs.sum().view(1), *gradients
