"""Three networks, of which the one with the least held-out error predicts.

- `rocket`: the features of MiniRocket and HYDRA, and a ridge regression (rocket.py);
- `raw`: a ridge regression on the values themselves;
- `forest`: extremely randomized trees on quantiles over intervals (quant.py).

tandem/fitted/candidates.py fits all three and selects one.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from tandem.fitted import rocket
from tandem.fitted.quant import Forest
from tandem.models import Shape
from tandem.parts import Whole

NAMES = {
    "rocket": "rocket",
    "raw": "ridge on the raw values",
    "forest": "QUANT's forest (on the CPU, for every device)",
}
CONSTANT = "constant"  # the same outputs for every sequence
NOISE = "this is not clearly better than a constant prediction: the features may say nothing about the label"


class Network(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C)."""

    tasks = ("classify", "regress")
    is_fitted_in_closed_form = True
    last_weights_know_val = True
    selected: Tensor  # the candidate's number
    held_out_scores: Tensor  # of the candidates, NaN if it was not fitted, and of a constant prediction
    beats_constant: Tensor

    def __init__(
        self,
        shape: Shape,
        num_kernels: Annotated[int, Field(ge=84)] = 10_000,
        num_groups: Whole = 64,
        num_trees: Annotated[int, Field(ge=50)] = 200,
    ) -> None:
        """`num_kernels` and `num_groups` are those of rocket, `num_trees` those of the forest."""
        super().__init__()
        self.candidates = nn.ModuleDict({
            "rocket": rocket.Network(shape, num_kernels, num_groups),
            "raw": RawValues(shape),
            "forest": Forest(shape, num_trees),
        })  # fmt: skip
        self.register_buffer("selected", torch.zeros((), dtype=torch.int64))
        scores = torch.full((len(NAMES) + 1,), torch.nan, dtype=torch.float64)
        self.register_buffer("held_out_scores", scores)
        self.register_buffer("beats_constant", torch.zeros((), dtype=torch.bool))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.candidates[self.selected_name](values, mask)
        return outputs

    @property
    def selected_name(self) -> str:
        return list(self.candidates)[int(self.selected)]

    def selection(self) -> dict[str, Any]:
        """The selected candidate and the held-out scores, for train.json."""
        scores = zip([*self.candidates, CONSTANT], self.held_out_scores.tolist(), strict=True)
        return {"selected": self.selected_name, "held_out": {name: score for name, score in scores if score == score}}

    def describe_selection(self, score_name: str) -> str:
        """A sentence with what the selected candidate and the others reached."""
        scores, selected = self.selection()["held_out"], self.selected_name
        descriptions = {**NAMES, CONSTANT: "a constant prediction"}
        compared = ", ".join(f"{descriptions[name]} {scores[name]:.4g}" for name in scores if name != selected)
        noise = "" if self.beats_constant else f"; {NOISE}"
        return f"selected {NAMES[selected]}: held-out {score_name} {scores[selected]:.4g}; {compared}{noise}"


class RawValues(rocket.FittedHead):
    """The features are the values of all steps; the padding is zero."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.max_steps = shape.max_steps
        self.add_head(shape.max_steps * shape.num_features, shape.num_outputs)

    def features(self, values: Tensor, mask: Tensor) -> Tensor:
        values = values.float().masked_fill(~mask.unsqueeze(-1), 0.0)
        return nn.functional.pad(values, (0, 0, 0, self.max_steps - values.shape[1])).flatten(1)
