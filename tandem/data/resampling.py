"""Sequences of different rates -> rows at equal distances.

R rows of the table, sorted by sequence and step; N sequences; G rows at the new rate.
"""

from dataclasses import dataclass

import numpy as np

from tandem.data.arrays import interpolate

FINER = 1.5  # times as many rows as at the new rate: the mean of the rows around each time, else a straight line


@dataclass(frozen=True)
class Resampling:
    lengths: np.ndarray  # (N,) int32: at the new rate
    times: np.ndarray  # (G,) since the first row of the sequence
    before: np.ndarray  # (G,) the last row that is not later
    weight: np.ndarray  # (G,) of the row after that one, from 0 to 1
    position: np.ndarray  # (R,) the place of each row among the new rows of its sequence, with a fraction
    starts: np.ndarray  # (N,) the first row of each sequence
    sizes: np.ndarray  # (N,) its number of rows

    def apply(self, cells: np.ndarray) -> tuple[np.ndarray, int]:
        """cells (R,) -> (G,), from the values alone: of more than one for each new row the mean, else a straight line.
        NaN where a sequence has no value. Also the number of empty cells of the other sequences.
        """
        cells, is_known = cells.astype(np.float64), ~np.isnan(cells)
        filled, num_filled = (cells, 0) if is_known.all() else self.filled(cells)
        after = filled[np.minimum(self.before + 1, len(cells) - 1)]
        between = filled[self.before] * (1 - self.weight) + after * self.weight
        line = np.where(self.weight == 0, filled[self.before], between)
        spans = self.position[self.starts + self.sizes - 1]
        is_finer = (np.add.reduceat(is_known, self.starts, dtype=np.int64) - 1) / spans > FINER
        if not is_finer.any():
            return line, num_filled
        sums, weights = np.zeros((2, len(line)))
        position = np.minimum(self.position, np.repeat(self.lengths - 1, self.sizes)) + self.first_new_rows()
        place = np.floor(position).astype(np.int64)
        for rows, share in ((place, 1 - position + place), (place + 1, position - place)):
            is_used = is_known & (rows < len(line))  # a row that is nearer to a time counts more
            weights += np.bincount(rows[is_used], share[is_used], minlength=len(line))
            sums += np.bincount(rows[is_used], share[is_used] * cells[is_used], minlength=len(line))
        is_mean = np.repeat(is_finer, self.lengths) & (weights > 0)
        return np.where(is_mean, sums / np.where(weights > 0, weights, 1), line), num_filled

    def filled(self, cells: np.ndarray) -> tuple[np.ndarray, int]:
        """cells (R,) with straight lines between the values of each sequence, and the number of filled ones."""
        is_real = np.arange(self.sizes.max()) < self.sizes[:, None]
        padded, times = np.zeros((2, *is_real.shape))
        padded[is_real], times[is_real] = cells, self.position
        num_filled, _ = interpolate(padded, is_real, times)
        return padded[is_real], num_filled

    def has_value_near(self, is_known: np.ndarray) -> np.ndarray:
        """(R,) -> (G,) whether the nearest row has a value, or any within half a distance of the new rows."""
        nearest = np.where(self.weight < 0.5, self.before, self.before + 1)
        place = np.floor(self.position + 0.5).astype(np.int64)
        is_used = is_known & (place < np.repeat(self.lengths, self.sizes))
        place += self.first_new_rows()
        return is_known[nearest] | (np.bincount(place[is_used], minlength=len(nearest)) > 0)

    def first_new_rows(self) -> np.ndarray:
        """(R,) the first new row of each row's sequence."""
        return np.repeat(np.cumsum(self.lengths, dtype=np.int64) - self.lengths, self.sizes)


def resampling(times: np.ndarray, lengths: np.ndarray, distance: float) -> Resampling:
    """`times` (R,): since the first row of each sequence, which has at least two. `distance`: of the new rows."""
    ends = np.cumsum(lengths)
    spans = times[ends - 1]
    num_new = (np.floor(spans / distance + 1e-6) + 1).astype(np.int64)
    firsts = np.cumsum(num_new) - num_new
    new_times = distance * (np.arange(num_new.sum()) - np.repeat(firsts, num_new))
    # One axis on which each sequence is after the one before it, so that one search finds the rows of all.
    shift = np.cumsum(spans + 2 * distance) - spans
    axis, new_axis = times + np.repeat(shift, lengths), new_times + np.repeat(shift, num_new)
    before = np.searchsorted(axis, new_axis + 1e-6 * distance, side="right") - 1
    last = np.repeat(ends - 1, num_new)
    step = np.where(before < last, axis[np.minimum(before + 1, len(axis) - 1)] - axis[before], 1.0)
    weight = np.where(before < last, (new_axis - axis[before]) / step, 0.0)
    weight[np.abs(weight) < 1e-4] = 0.0
    return Resampling(num_new.astype(np.int32), new_times, before, weight, times / distance, ends - lengths, lengths)
