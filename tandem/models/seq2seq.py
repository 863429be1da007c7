"""Sequence to sequence: an encoder LSTM reads the past, a decoder LSTM predicts the future from its own last output.

In training, some inputs of the decoder are the true values instead of its own outputs (teacher forcing, Williams and
Zipser 1989). Their share decays over the epochs (scheduled sampling, Bengio et al. 2015, arXiv:1506.03099), so the
network learns to cope with its own errors. The caller draws the teacher forcing mask. Sequence to sequence: Sutskever
et al. 2014, arXiv:1409.3215.

`cell: manual` is the hand-written LSTM that a popular guide recommends over nn.LSTM. Its parameters are the same; its
outputs are equal up to rounding.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from tandem.models import Shape
from tandem.models.kernels import decoder
from tandem.models.kernels.dropout import drop_as_torch
from tandem.models.layers import Dropout, run_recurrent
from tandem.parts import Fraction, Positive, TeacherForcing

State = tuple[Tensor, Tensor]  # hidden and cell, each (num_layers, B, H)


class ManualLSTM(nn.LSTM):
    """nn.LSTM (batch_first) in Python: about 15 kernels per step, instead of one library call per sequence."""

    # So a step with dropout can be captured, unlike cuDNN's (graph_blocker in training/execution.py).
    uses_torch_dropout = True

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.shape[0], self.hidden_size)
            state = (zeros, zeros)
        hidden, cell = list(state[0]), list(state[1])
        for layer in range(self.num_layers):
            w_input, w_hidden, b_input, b_hidden = (getattr(self, f"{name}_l{layer}") for name in PARAMETERS)
            outputs = []
            for step in x.unbind(1):
                gates = step @ w_input.T + b_input + hidden[layer] @ w_hidden.T + b_hidden
                write, forget, candidate, show = gates.chunk(4, dim=1)
                cell[layer] = forget.sigmoid() * cell[layer] + write.sigmoid() * candidate.tanh()
                hidden[layer] = show.sigmoid() * cell[layer].tanh()
                outputs.append(hidden[layer])
            x = torch.stack(outputs, dim=1)
            if layer < self.num_layers - 1:
                x = drop_as_torch(x, self.dropout, self.training)
        return x, (torch.stack(hidden), torch.stack(cell))


PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T), teacher_targets)` -> (B, H): the next H values of feature 0.

    `teacher_targets` (B, H): the true value if it is the decoder's next input, NaN if the decoder's own output is. None
    means that all inputs are the decoder's own outputs.
    """

    tasks = ("forecast",)

    def __init__(
        self,
        shape: Shape,
        hidden_size: Positive,
        num_layers: Positive,
        dropout: Fraction,
        cell: Literal["native", "manual"] = "native",
        teacher_forcing: TeacherForcing = TeacherForcing(),  # noqa: B008  (it is frozen)
    ) -> None:
        """`cell`: nn.LSTM, or the same cell written by hand. tandem/training/random_draws.py uses `teacher_forcing`."""
        super().__init__()
        lstm = {"native": nn.LSTM, "manual": ManualLSTM}[cell]
        width = hidden_size
        between_layers = dropout if num_layers > 1 else 0.0
        self.horizon = shape.num_outputs
        self.encoder = lstm(shape.num_features, width, num_layers, batch_first=True, dropout=between_layers)
        self.decoder = lstm(1, width, num_layers, batch_first=True, dropout=between_layers)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(width, 1)

    def forward(self, values: Tensor, mask: Tensor, teacher_targets: Tensor | None = None) -> Tensor:
        _, state = run_recurrent(self.encoder, values)
        decoder_input = values[:, -1, 0]  # windows have no padding: the last step is real
        if decoder.is_supported(self.decoder, decoder_input):
            return decoder.decode(
                self.decoder, self.head, decoder_input, state, self.horizon, teacher_targets, self.dropout.p
            )
        outputs = []
        for step in range(self.horizon):
            states, state = run_recurrent(self.decoder, decoder_input[:, None, None], state)
            decoder_input = self.head(self.dropout(states[:, 0])).squeeze(1).to(values.dtype)
            outputs.append(decoder_input)
            if teacher_targets is not None:
                true = teacher_targets[:, step]
                decoder_input = torch.where(true.isnan(), decoder_input, true)
        return torch.stack(outputs, dim=1)
