"""Ridge regression in closed form, with the strength chosen by leave-one-out or on a validation split.

Hoerl and Kennard 1970, Technometrics 12, 55-67. The leave-one-out error from a single fit, and the strength that
minimizes it: Golub, Heath and Wahba 1979, Technometrics 21, 215-223, after Allen's PRESS. If a group is left out, the
residuals r of its sequences become (I - H)^-1 r, where H is the group's block of the hat matrix.

`leave_one_out` uses the products of sequences with each other (N, N) and suits fewer sequences than features.
`Primal` uses the products of features with each other (P, P), summed over the sequences. Both use float64 on the CPU,
where equal products give equal bits.

Shapes: N sequences, P features, C outputs. Features are standardized, so `strength` means the same for any data.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Strengths as multiples of the number of features, which is about the product of a sequence with itself.
STRENGTHS = 10.0 ** torch.arange(-4, 2.25, 0.5, dtype=torch.float64)
FEW_STRENGTHS = STRENGTHS[::2]


@dataclass(frozen=True)
class Fit:
    coefficients: Tensor  # (N, C) of the sequences
    strength: float
    held_out: Tensor  # (N, C) outputs for each sequence of a fit without it, or without its group


def leave_one_out(products: Tensor, targets: Tensor, num_features: int, groups: Tensor | None = None) -> Fit:
    """products (N, N), centred. Return the fit with the least squared leave-one-out error.

    `groups` (N,): whole groups are left out, if there are two or more.
    """
    members = [] if groups is None else [torch.where(groups == group)[0] for group in groups.unique()]
    values, vectors = torch.linalg.eigh(products)
    values, mean = values.clamp_min(0), targets.mean(dim=0)
    turned, squares = vectors.T @ (targets - mean), vectors.square()
    best: tuple[float, float, Tensor] | None = None
    for strength in (STRENGTHS * num_features).tolist():
        shrinkage = values / (values + strength)
        leverage = squares @ shrinkage + 1 / len(targets)  # 1 / N is the leverage of the intercept
        residual = targets - mean - vectors @ (shrinkage[:, None] * turned)
        error = residual / (1 - leverage).clamp_min(1e-9)[:, None]
        for rows in members if len(members) > 1 else []:
            hat = (vectors[rows] * shrinkage) @ vectors[rows].T + 1 / len(targets)
            error[rows] = torch.linalg.solve(torch.eye(len(rows)).to(hat) - hat, residual[rows])
        loss = error.square().mean().item()
        if best is None or loss < best[0]:
            best = loss, strength, targets - error
    assert best is not None
    _, strength, held_out = best
    return Fit(vectors @ (turned / (values + strength)[:, None]), strength, held_out)


def solve(products: Tensor, strength: float, targets: Tensor) -> Tensor:
    """(products + strength I)^-1 targets. products (M, M), positive semidefinite, are restored at the end."""
    diagonal = products.diagonal().clone()  # a copy of all products would be the largest tensor in memory
    products.diagonal().add_(strength)
    factor = torch.linalg.cholesky(products)
    products.diagonal().copy_(diagonal)
    return torch.cholesky_solve(targets, factor)


def centred(products: Tensor) -> Tensor:
    """Return the products (N, N) of the vectors minus their mean."""
    means = products.mean(dim=0)
    return products - means - means[:, None] + means.mean()


class Primal:
    """Sums over sequences, added in parts: products of features (P, P), and of features with targets (P, C)."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        self.products = torch.zeros(num_features, num_features, dtype=torch.float64)
        self.with_targets = torch.zeros(num_features, num_outputs, dtype=torch.float64)
        self.features = torch.zeros(num_features, dtype=torch.float64)
        self.targets = torch.zeros(num_outputs, dtype=torch.float64)
        self.num_sequences = 0

    def add(self, features: Tensor, targets: Tensor) -> None:
        """features (n, P), targets (n, C)."""
        self.products += (features.T @ features).cpu()
        self.with_targets += (features.T @ targets.to(features.dtype)).cpu()
        self.features += features.sum(dim=0).cpu()
        self.targets += targets.sum(dim=0).cpu()
        self.num_sequences += len(features)

    def fits(self, strengths: Iterable[float]) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Yield each strength with its weights (P, C) and intercepts (C,)."""
        mean, target = self.features / self.num_sequences, self.targets / self.num_sequences
        products = torch.addr(self.products, mean, mean, alpha=-self.num_sequences)
        with_targets = torch.addr(self.with_targets, mean, target, alpha=-self.num_sequences)
        for strength in strengths:
            weights = solve(products, strength, with_targets)
            yield strength, weights, target - mean @ weights

    def best(
        self, features: Tensor, targets: Tensor, on_progress: Callable[[int, int, str], None]
    ) -> tuple[float, Tensor, Tensor, Tensor]:
        """The strength with the least error on other sequences (M, P), its weights, intercepts and outputs there."""
        trials: list[tuple[float, float, Tensor, Tensor, Tensor]] = []
        for strength, weights, intercepts in self.fits((FEW_STRENGTHS * len(self.products)).tolist()):
            on_progress(len(trials) + 1, len(FEW_STRENGTHS), "strengths of the ridge")
            outputs = features.double() @ weights + intercepts
            trials.append(((outputs - targets).square().mean().item(), strength, weights, intercepts, outputs))
        _, strength, weights, intercepts, outputs = min(trials, key=lambda trial: trial[0])
        return strength, weights, intercepts, outputs
