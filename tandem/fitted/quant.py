"""QUANT: quantiles over dyadic intervals, and a forest of extremely randomized trees on them.

Dempster, Schmidt and Webb 2023, arXiv:2308.00928; the trees: Geurts, Ernst and Wehenkel 2006, Machine Learning 63,
3-42. Each feature, its smoothed differences, second differences and spectrum are divided into 1, 2, 4 ... 32 equal
intervals, and into the same shifted by half of one. Of an interval of n values, the features are 1 + (n - 1) // 4
quantiles; the mean is subtracted from every second one. The intervals are those of the longest sequence, and the
padding is zero. If the lengths differ, the features also are the length, and the same quantiles of the sequences
stretched to the longest one's length.

tandem/fitted/candidates.py grows the trees with scikit-learn. Here they are tensors: prediction needs only torch. It
runs on the CPU for every device, because a tree compares with thresholds, and other kernels round to another side.

Shapes: B sequences, T steps, F features of the data, P quantiles, C outputs, M nodes of all trees.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tandem.models import Shape

MAX_DEPTH = 6
VALUES_PER_QUANTILE = 4
CHUNK_VALUES = 2**20  # values of the sequences whose quantiles are computed at a time


class Forest(nn.Module):
    """`forward(values (B, T, F), mask (B, T))` -> (B, C): the mean of the trees' outputs, times `scale`.

    Before it is fitted, it is one tree of one leaf.
    """

    roots: Tensor  # of the trees
    feature: Tensor  # (M,) the feature that a node compares
    threshold: Tensor  # (M,) the right child is next if the feature is larger; inf in a leaf
    child: Tensor  # (M, 2) left and right; of a leaf, the leaf itself
    leaf: Tensor  # (M,) the class, or for regress the number
    scale: Tensor
    has_padding: Tensor  # whether the lengths of the training sequences differ

    def __init__(self, shape: Shape, num_trees: int) -> None:
        super().__init__()
        self.num_outputs, self.max_steps, self.num_trees = shape.num_outputs, shape.max_steps, num_trees
        self.seed = int(torch.randint(2**31, ()))
        for name, dtype, size in (("roots", torch.int32, (1,)), ("feature", torch.int32, (1,)),
                                  ("child", torch.int32, (1, 2)), ("leaf", torch.float32, (1,))):  # fmt: skip
            self.register_buffer(name, torch.zeros(size, dtype=dtype))
        self.register_buffer("threshold", torch.full((1,), torch.inf))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("has_padding", torch.zeros((), dtype=torch.bool))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load trees of any size."""
        for name, buffer in self.named_buffers():
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *others)

    @torch.no_grad()
    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return self.outputs(self.features(values, mask)).to(values.device)

    def features(self, values: Tensor, mask: Tensor) -> Tensor:
        """(B, P) fp32 on the CPU."""
        lengths = mask.sum(dim=1).cpu()
        x = values.float().masked_fill(~mask.unsqueeze(-1), 0.0).cpu().transpose(1, 2)
        x = F.pad(x, (0, self.max_steps - x.shape[2])).contiguous()  # otherwise sums would round in another order
        size = max(1, CHUNK_VALUES // x[0].numel())
        chunks = zip(x.split(size), lengths.split(size), strict=True)
        return torch.cat([torch.cat([*self.parts_of(*chunk)], dim=1) for chunk in chunks])

    def parts_of(self, x: Tensor, lengths: Tensor) -> Iterator[Tensor]:
        yield from quantiles(x)
        if self.has_padding:
            yield from quantiles(stretched(x, lengths))
            yield lengths[:, None].float()

    def outputs(self, features: Tensor) -> Tensor:
        """features (B, P) -> (B, C)."""
        feature, threshold, child, leaf, node = (
            tensor.cpu() for tensor in (self.feature, self.threshold, self.child, self.leaf, self.roots)
        )
        node = node.long().expand(len(features), -1)
        while True:
            is_right = features.gather(1, feature[node].long()) > threshold[node]
            following = child[node, is_right.long()].long()
            if torch.equal(following, node):
                break
            node = following
        leaves = leaf[node]
        if self.num_outputs == 1:
            mean = leaves.double().mean(dim=1, keepdim=True).float()
        else:
            votes = torch.zeros(len(leaves), self.num_outputs).scatter_add_(1, leaves.long(), torch.ones_like(leaves))
            mean = 2 * votes / leaves.shape[1] - 1
        return mean * self.scale.cpu()

    def set_trees(self, trees: list[Any], leaves: list[np.ndarray]) -> None:
        """Set the trees of scikit-learn (`tree_`) with the output of each of their nodes."""
        roots = np.cumsum([0, *(tree.node_count for tree in trees)])
        is_leaf = np.concatenate([tree.children_left < 0 for tree in trees])
        nodes = np.arange(roots[-1])
        left, right = (
            np.concatenate([getattr(tree, name) + root for tree, root in zip(trees, roots, strict=False)])
            for name in ("children_left", "children_right")
        )
        threshold = np.concatenate([tree.threshold for tree in trees])
        rounded = threshold.astype(np.float32)  # down: a float32 is above it if, and only if, it is above the float64
        rounded = np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        feature = np.where(is_leaf, 0, np.concatenate([tree.feature for tree in trees]))
        arrays = {
            "roots": roots[:-1].astype(np.int32),
            "feature": feature.astype(np.int32),
            "threshold": np.where(is_leaf, np.float32(np.inf), rounded),
            "child": np.where(is_leaf, nodes, (left, right)).T.astype(np.int32),
            "leaf": np.concatenate(leaves).astype(np.float32),
        }
        for name, array in arrays.items():
            setattr(self, name, torch.from_numpy(np.ascontiguousarray(array)).to(self.scale.device))


def quantiles(x: Tensor) -> Iterator[Tensor]:
    """x (B, F, T) -> one (B, F * Q) per interval of each representation."""
    num_steps = x.shape[2]
    representations = [x]
    if num_steps > 1:
        representations.append(F.avg_pool1d(F.pad(x.diff(), (2, 2), "replicate"), 5, 1))
    if num_steps > 2:
        representations.append(x.diff(n=2))
    if num_steps > 1:
        representations.append(torch.fft.rfft(x).abs())
    for representation in representations:
        spans = intervals(representation.shape[2])
        parts = dict.fromkeys(spans, torch.empty(0))
        for size in {stop - start for start, stop in spans}:  # intervals of one size in a single pass
            same_size = [(start, stop) for start, stop in parts if stop - start == size]
            features = interval_quantiles(representation.unfold(2, size, 1)[:, :, [start for start, _ in same_size]])
            parts.update(zip(same_size, features.permute(2, 0, 1, 3).flatten(2), strict=True))
        yield from (parts[span] for span in spans)


def interval_quantiles(values: Tensor) -> Tensor:
    """values (..., n) of intervals -> (..., Q)."""
    size = values.shape[-1]
    num_quantiles = 1 + (size - 1) // VALUES_PER_QUANTILE
    shares = torch.linspace(0, 1, num_quantiles) if num_quantiles > 1 else torch.tensor([0.5])
    ordered = torch.from_numpy(np.sort(values.numpy()))  # several times as fast as torch.quantile
    places = shares.double() * (size - 1)
    low = places.long()
    interpolated = torch.lerp(ordered[..., low], ordered[..., places.ceil().long()], (places - low).float())
    if num_quantiles > 1:
        interpolated[..., 1::2] -= values.mean(dim=-1, keepdim=True)
    return interpolated


def stretched(x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, F, T), lengths (B,) -> (B, F, T): the real steps, interpolated linearly."""
    places = torch.linspace(0, 1, x.shape[2]) * (lengths[:, None] - 1)  # (B, T)
    low = places.long()
    high = torch.minimum(low + 1, lengths[:, None] - 1)
    below, above = (x.gather(2, index[:, None].expand_as(x)) for index in (low, high))
    return torch.lerp(below, above, (places - low)[:, None])


def intervals(num_steps: int) -> list[tuple[int, int]]:
    """Start and end of the intervals of so many steps, as in the authors' code."""
    spans: list[tuple[int, int]] = []
    for depth in range(min(MAX_DEPTH, int(np.log2(num_steps)) + 1)):
        ends = torch.linspace(0, num_steps, 2**depth + 1).long()
        spans += zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        if depth and ends.diff().median() > 1:
            shift = int(np.ceil(num_steps / 2**depth / 2))
            spans += zip((ends[:-2] + shift).tolist(), (ends[1:-1] + shift).tolist(), strict=True)
    return spans
