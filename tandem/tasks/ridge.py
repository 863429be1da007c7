"""Ridge regression in closed form, with the strength chosen by leave-one-out or on a validation split.

Hoerl and Kennard 1970, Technometrics 12, 55-67. The leave-one-out error from a single fit, and the strength that
minimizes it: Golub, Heath and Wahba 1979, Technometrics 21, 215-223, after Allen's PRESS.

`Dual` uses the products of sequences with each other (N, N) and suits fewer sequences than features. `Primal` uses the
products of features with each other (P, P), summed over the sequences, and suits more sequences than features. Both use
float64 on the CPU, where equal products give equal bits.

Shapes: N sequences, P features, C outputs. Features are standardized, so `strength` means the same for any data.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Strengths as multiples of the number of features, which is about the product of a sequence with itself.
STRENGTHS = 10.0 ** torch.arange(-4, 2.25, 0.5, dtype=torch.float64)
FEW_STRENGTHS = STRENGTHS[::2]
MAX_EIGEN = 4096  # with more sequences, a decomposition takes minutes, but a factorization per strength only seconds


@dataclass(frozen=True)
class Fit:
    coefficients: Tensor  # (N, C) of sequences, or (P, C) of features
    strength: float
    held_out: Tensor  # (M, C) outputs for sequences that were not used in the fit
    is_left_out: bool  # True: by leave-one-out; False: of the validation sequences


class Dual:
    """products (N, N), targets (N, C). A fit may use some of the sequences."""

    def __init__(self, products: Tensor, targets: Tensor, num_features: int) -> None:
        self.products, self.targets, self.num_features = products, targets.double(), num_features

    def fit(self, num: int) -> Fit:
        """Fit the first `num` sequences. If they are too many for leave-one-out, the others choose the strength."""
        if num <= MAX_EIGEN:
            return leave_one_out(centred(self.products[:num, :num]), self.targets[:num], self.num_features)
        between = self.products[num:, :num]
        between = between - between.mean(dim=1, keepdim=True) - self.products[:num, :num].mean(dim=0)
        between += self.products[:num, :num].mean()
        products, targets = centred(self.products[:num, :num]), self.targets[:num]
        return best_on(products, targets - targets.mean(dim=0), between, self.targets, num, self.num_features)

    def refit(self, strength: float) -> Tensor:
        """Return the (N, C) coefficients of a fit on all sequences."""
        if len(self.products) <= MAX_EIGEN:
            return leave_one_out(centred(self.products), self.targets, self.num_features).coefficients
        return solve(centred(self.products), strength, self.targets - self.targets.mean(dim=0))


def leave_one_out(products: Tensor, targets: Tensor, num_features: int) -> Fit:
    """products (N, N), centred. Return the fit with the least squared leave-one-out error."""
    values, vectors = torch.linalg.eigh(products)
    values, mean = values.clamp_min(0), targets.mean(dim=0)
    turned, squares = vectors.T @ (targets - mean), vectors.square()
    best: tuple[float, float, Tensor] | None = None
    for strength in (STRENGTHS * num_features).tolist():
        kept = values / (values + strength)
        leverage = squares @ kept + 1 / len(targets)  # 1 / N is the leverage of the intercept
        residual = targets - mean - vectors @ (kept[:, None] * turned)
        error = residual / (1 - leverage).clamp_min(1e-9)[:, None]
        loss = error.square().mean().item()
        if best is None or loss < best[0]:
            best = loss, strength, targets - error
    assert best is not None
    _, strength, held_out = best
    return Fit(vectors @ (turned / (values + strength)[:, None]), strength, held_out, True)


def best_on(
    products: Tensor, targets: Tensor, between: Tensor, all_targets: Tensor, num: int, num_features: int
) -> Fit:
    """The fit that errs least on the sequences after the first `num`. `between` (M, N): their products with those."""
    mean, best = all_targets[:num].mean(dim=0), None
    for strength in (FEW_STRENGTHS * num_features).tolist():
        coefficients = solve(products, strength, targets)
        held_out = between @ coefficients + mean
        loss = (held_out - all_targets[num:]).square().mean().item()
        if best is None or loss < best[0]:
            best = loss, Fit(coefficients, strength, held_out, False)
    assert best is not None
    return best[1]


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
        self.num = 0

    def add(self, features: Tensor, targets: Tensor) -> None:
        """features (n, P), targets (n, C)."""
        self.products += (features.T @ features).cpu()
        self.with_targets += (features.T @ targets.to(features.dtype)).cpu()
        self.features += features.sum(dim=0).cpu()
        self.targets += targets.sum(dim=0).cpu()
        self.num += len(features)

    def fits(self, strengths: Iterable[float]) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Yield each strength with its weights (P, C) and intercepts (C,)."""
        mean, target = self.features / self.num, self.targets / self.num
        products = torch.addr(self.products, mean, mean, alpha=-self.num)
        with_targets = torch.addr(self.with_targets, mean, target, alpha=-self.num)
        for strength in strengths:
            weights = solve(products, strength, with_targets)
            yield strength, weights, target - mean @ weights

    def best(self, features: Tensor, targets: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
        """The strength that errs least on other sequences (M, P), its weights, intercepts and outputs for them."""
        found = []
        for strength, weights, intercepts in self.fits((FEW_STRENGTHS * len(self.products)).tolist()):
            outputs = features.double() @ weights + intercepts
            found.append(((outputs - targets).square().mean().item(), strength, weights, intercepts, outputs))
        _, strength, weights, intercepts, outputs = min(found, key=lambda each: each[0])
        return strength, weights, intercepts, outputs
