"""Ridge regression in closed form, with the strength chosen by leave-one-out.

Hoerl and Kennard 1970, Technometrics 12, 55-67. The leave-one-out error from a single fit, and the strength that
minimizes it: Golub, Heath and Wahba 1979, Technometrics 21, 215-223, after Allen's PRESS. If a group is left out, the
residuals r of its sequences become (I - H)^-1 r, where H is the group's block of the hat matrix.

It uses the products of sequences with each other (N, N), in float64 on the CPU, where equal products give equal bits.

Shapes: N sequences, P features, C outputs. Features are standardized, so `strength` means the same for any data.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Strengths as multiples of the number of features, which is about the product of a sequence with itself.
STRENGTHS = 10.0 ** torch.arange(-4, 2.25, 0.5, dtype=torch.float64)


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


def centred(products: Tensor) -> Tensor:
    """Return the products (N, N) of the vectors minus their mean."""
    means = products.mean(dim=0)
    return products - means - means[:, None] + means.mean()
