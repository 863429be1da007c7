"""Pooled fixed convolutions and a linear layer: the features of MiniRocket and HYDRA with one closed-form fit.

The two feature sets together are more accurate than either alone (Dempster, Schmidt and Webb 2023, arXiv:2203.13652,
section 4). tandem/fitted/closed_form.py computes them once per sequence, standardizes them by the training split, and
fits a ridge regression in closed form: one epoch, no learning rate. `forward` has the usual interface, so evaluation,
the predictor and GPU code treat the network like any other.
"""

from abc import ABC, abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from tandem.fitted.hydra import Hydra
from tandem.fitted.minirocket import MiniRocket
from tandem.models import Shape
from tandem.parts import Whole

# Size of the largest tensor of a pass: small enough for the CPU's cache, large enough to keep a GPU busy.
CHUNK_BYTES = {"cpu": 2**22, "cuda": 2**28}
COLUMNS = 2048  # features that are converted to float64 at a time
RARITY_EXPONENT = 4  # from HYDRA's authors: a count that is nearly always zero must not become a large feature


class FittedHead(nn.Module, ABC):
    """Features of a sequence, standardized, and a linear layer: `forward(values (B, T, F), mask (B, T))` -> (B, C)."""

    last_weights_know_val = True  # `last.safetensors` is fitted to train and val
    mean: Tensor
    scale: Tensor

    def add_head(self, num_features: int, num_outputs: int) -> None:
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))  # 1 / standard deviation; 0 for constant features
        self.head = nn.Linear(num_features, num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.features(values, mask) - self.mean) * self.scale)

    @abstractmethod
    def features(self, values: Tensor, mask: Tensor) -> Tensor:
        """Features (B, P) in fp32."""

    def calibrate(self, values: Tensor, mask: Tensor) -> None:
        """Fit what the features depend on to some training sequences: by default, nothing."""

    @torch.no_grad()
    def standardize_by(self, features: Tensor) -> None:
        """Compute mean and scale from the features (N, P) of training sequences."""
        parts = features.split(COLUMNS, dim=1)  # a copy of all features in float64 would be the largest tensor
        statistics = [torch.std_mean(part.double(), dim=0, correction=0) for part in parts]
        deviation, mean = (torch.cat(pieces) for pieces in zip(*statistics, strict=True))
        self.damp(deviation, features)
        # A constant feature may vary by rounding.
        changes = deviation > 1e-6 * mean.abs().clamp_min(1e-3)
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(changes, 1 / deviation, 0.0))

    def damp(self, deviation: Tensor, features: Tensor) -> None:
        """Raise the deviation (P,) of features that must not become large: by default, of none."""

    @torch.no_grad()
    def set_head(self, weights: Tensor, intercepts: Tensor) -> None:
        """Set weights (C, P) and intercepts (C,), which apply to the standardized features."""
        self.head.weight.copy_(weights)
        self.head.bias.copy_(intercepts)


class Network(FittedHead):
    tasks = ("classify", "regress")
    is_fitted_in_closed_form = True

    def __init__(
        self,
        shape: Shape,
        num_kernels: Annotated[int, Field(ge=84)] = 10_000,
        num_groups: Whole = 64,
    ) -> None:
        """`num_kernels`: of MiniRocket, one feature each. `num_groups`: groups of HYDRA's competing kernels for each
        dilation; 0: without HYDRA.
        """
        super().__init__()
        self.minirocket = MiniRocket(shape.num_features, shape.max_steps, num_kernels)
        transforms: list[MiniRocket | Hydra] = [self.minirocket]
        if num_groups:
            self.hydra = Hydra(shape.num_features, shape.max_steps, num_groups)
            transforms.append(self.hydra)
        self.transforms = tuple(transforms)
        self.add_head(sum(transform.num_features for transform in transforms), shape.num_outputs)

    @torch.no_grad()
    def features(self, values: Tensor, mask: Tensor) -> Tensor:
        """Features (B, P) of the two transforms, always computed in fp32."""
        device = values.device.type
        with torch.autocast(device, enabled=False):
            series, lengths = series_of(values.float(), mask), mask.sum(dim=1)
            num_at_once = max(part.num_at_once for part in self.transforms)  # responses (T steps each) to a sequence
            largest = 4 * series.shape[2] * num_at_once
            size = max(1, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // largest)
            chunks = zip(series.split(size), lengths.split(size), strict=True)
            return torch.cat([torch.cat([part(*chunk) for part in self.transforms], dim=1) for chunk in chunks])

    @torch.no_grad()
    def calibrate(self, values: Tensor, mask: Tensor) -> None:
        """Compute the biases of MiniRocket's kernels from some training sequences."""
        self.minirocket.fit_biases(series_of(values.float(), mask), mask.sum(dim=1))

    def damp(self, deviation: Tensor, features: Tensor) -> None:
        """HYDRA's counts that are nearly always zero."""
        start = self.minirocket.num_features
        rare = (features[:, start:] == 0).double().mean(dim=0)
        deviation[start:] += (rare**RARITY_EXPONENT) * (deviation[start:] > 0)


def series_of(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T, F) -> (B, F, T), zero in the padding."""
    return values.masked_fill(~mask.unsqueeze(-1), 0.0).transpose(1, 2)
