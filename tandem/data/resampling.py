"""Sequences of different rates -> rows at equal distances.

R rows of the table, sorted by sequence and step; N sequences; G rows at the new rate.
"""

from dataclasses import dataclass

import numpy as np

FINER = 1.5  # times as many rows as at the new rate: the mean of the rows around each time, else a straight line


@dataclass(frozen=True)
class Resampling:
    lengths: np.ndarray  # (N,) int32: at the new rate
    times: np.ndarray  # (G,) since the first row of the sequence
    before: np.ndarray  # (G,) the last row that is not later
    weight: np.ndarray  # (G,) of the row after that one, from 0 to 1
    position: np.ndarray  # (R,) the place of each row among the new rows, with a fraction
    is_finer: np.ndarray  # (G,) whether the sequence has more rows than at the new rate

    def apply(self, cells: np.ndarray) -> np.ndarray:
        """cells (R,) -> (G,). NaN where a row is missing that the value depends on."""
        cells = cells.astype(np.float64)
        after = cells[np.minimum(self.before + 1, len(cells) - 1)]
        part = cells[self.before] * (1 - self.weight) + after * self.weight
        line = np.where(self.weight == 0, cells[self.before], np.where(self.weight == 1, after, part))
        if not self.is_finer.any():
            return line
        sums, weights = np.zeros((2, len(line)))
        is_known = ~np.isnan(cells)
        place = np.floor(self.position).astype(np.int64)
        for rows, share in ((place, 1 - self.position + place), (place + 1, self.position - place)):
            used = is_known & (rows < len(line))  # a row that is nearer to a time counts more
            weights += np.bincount(rows[used], share[used], minlength=len(line))
            sums += np.bincount(rows[used], share[used] * cells[used], minlength=len(line))
        return np.where(self.is_finer & (weights > 0), sums / np.where(weights > 0, weights, 1), line)


def resampling(times: np.ndarray, lengths: np.ndarray, distance: float) -> Resampling:
    """`times` (R,): since the first row of each sequence, which has at least two. `distance`: of the new rows."""
    ends = np.cumsum(lengths)
    spans = times[ends - 1]
    num = (np.floor(spans / distance + 1e-6) + 1).astype(np.int64)
    firsts = np.cumsum(num) - num
    new_times = distance * (np.arange(num.sum()) - np.repeat(firsts, num))
    # One axis on which each sequence is after the one before it, so that one search finds the rows of all.
    shift = np.cumsum(spans + 2 * distance) - spans
    axis, new_axis = times + np.repeat(shift, lengths), new_times + np.repeat(shift, num)
    before = np.searchsorted(axis, new_axis + 1e-6 * distance, side="right") - 1
    last = np.repeat(ends - 1, num)
    step = np.where(before < last, axis[np.minimum(before + 1, len(axis) - 1)] - axis[before], 1.0)
    weight = np.where(before < last, (new_axis - axis[before]) / step, 0.0)
    weight[np.abs(weight) < 1e-4] = 0.0
    position = np.repeat(firsts, lengths) + np.minimum(times / distance, np.repeat(num - 1, lengths))
    is_finer = (lengths - 1) / spans * distance > FINER
    return Resampling(num.astype(np.int32), new_times, before, weight, position, np.repeat(is_finer, num))
