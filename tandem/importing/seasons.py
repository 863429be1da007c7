"""Finds the season of a series, and its strength, from the training time.

G grid points. Candidates are the calendar's seasons (24 hours of a day, 12 months of a year) and the lag of the highest
autocorrelation. The strength is the share of the detrended variance that the same step of the *other* seasons
explains: F_S of Wang, Smith and Hyndman (2006, Data Mining and Knowledge Discovery 13, 335-364), but the mean that
predicts a season excludes that season, so noise alone gives no strength.

Lines and correlations are computed here with numpy: importing scipy.signal takes longer than the whole command.
"""

from dataclasses import dataclass

import numpy as np

from tandem.params.intervals import Interval

CYCLES = {"minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "year": round(365.25 * 86400)}  # seconds
BUSINESS_DAYS = {"week": 5, "year": 261}
MAX_STEPS = 400  # longer windows are slow to train on
MOST_TRIED = 1440  # a day of minutes; a season above MAX_STEPS is only named
MIN_STRENGTH = 0.1  # for the calendar's candidates
MIN_CORRELATED_STRENGTH = 0.3  # for a candidate that only the data suggests
ROUNDING = 1e-9  # of the largest level: a smaller deviation is a rounding error
LONGER_GAINS = 0.05  # how much more a longer season must explain than a shorter one


@dataclass(frozen=True)
class Season:
    steps: int
    words: str
    strength: float  # at most 1


def find_season(levels: np.ndarray, interval: Interval) -> tuple[Season | None, list[Season]]:
    """The season of `levels` (G,) without gaps, and the calendar's candidates, the shortest first."""
    of_calendar = [
        Season(
            steps,
            f"{'an' if name == 'hour' else 'a'} {name}{', too long for a window' * (steps > MAX_STEPS)}",
            strength_of(levels, steps),
        )
        for name, steps in sorted(calendar_seasons(interval).items(), key=lambda pair: pair[1])
        if 2 * steps <= len(levels)
    ]
    best: Season | None = None
    for season in of_calendar:
        if season.steps <= MAX_STEPS and season.strength >= (best.strength + LONGER_GAINS if best else MIN_STRENGTH):
            best = season
    if best is None and (lag := correlated_lag(levels)):
        steps = max((lag, lag - 1, lag + 1), key=lambda steps: strength_of(levels, steps))  # the changes are noisy
        candidate = Season(steps, "where it correlates most with itself", strength_of(levels, steps))
        best = candidate if candidate.strength >= MIN_CORRELATED_STRENGTH else None
    return best, of_calendar


def calendar_seasons(interval: Interval) -> dict[str, int]:
    """Name -> number of steps of `interval`."""
    if interval.months:
        return {"year": 12 // interval.months} if interval.months in (1, 2, 3, 4, 6) else {}
    if interval.unit == "business-day":
        return {name: steps for name, steps in BUSINESS_DAYS.items() if steps <= MAX_STEPS}
    whole = {name: seconds for name, seconds in CYCLES.items() if seconds % interval.seconds == 0}
    if interval.seconds >= 86400:
        whole["year"] = CYCLES["year"]
    steps = {name: round(seconds / interval.seconds) for name, seconds in whole.items()}
    return {name: number for name, number in steps.items() if 2 <= number <= MOST_TRIED}


def strength_of(levels: np.ndarray, steps: int) -> float:
    detrended = without_trend(levels, steps)
    detrended -= detrended.mean()  # of a curve, such as a growth: the same in every step, so no season
    phase = np.arange(len(detrended)) % steps
    counts = np.bincount(phase, minlength=steps)
    if (counts < 2).any():
        return 0.0
    sums = np.bincount(phase, detrended, minlength=steps)
    of_others = (sums[phase] - detrended) / (counts[phase] - 1)
    total = np.square(detrended).sum()
    is_rounding = total <= len(detrended) * (ROUNDING * np.abs(levels).max()) ** 2  # of a straight line
    return 0.0 if is_rounding else float(1 - np.square(detrended - of_others).sum() / total)


def without_trend(levels: np.ndarray, steps: int) -> np.ndarray:
    """Subtract the moving average over a season, or a straight line if that would leave fewer than two seasons."""
    if len(levels) >= 3 * steps + 1:
        weights = np.full(steps + 1 - steps % 2, 1 / steps)
        if steps % 2 == 0:
            weights[[0, -1]] /= 2
        half = len(weights) // 2
        sums = np.convolve(levels, weights, mode="valid")
        return levels[half : len(levels) - half] - sums
    place = np.arange(len(levels)) - (len(levels) - 1) / 2
    centred = levels - levels.mean()
    line: np.ndarray = centred - place * (place @ centred) / max(1.0, float(place @ place))
    return line


def correlated_lag(levels: np.ndarray) -> int:
    """The lag of the highest autocorrelation after its first minimum, up to a sixth of the series; 0 if there is none.

    Uses the changes from step to step, because the levels of a random walk correlate at any lag. The threshold is four
    standard errors of noise, because it is the highest of hundreds of lags.
    """
    num_changes = len(levels) - 1
    max_lag = min(num_changes // 6, MAX_STEPS)
    if max_lag < 4:
        return 0
    changes = np.diff(levels)
    changes = changes - changes.mean()
    if not changes.any():
        return 0
    size = 2 ** int(np.ceil(np.log2(2 * num_changes)))
    spectrum = np.fft.rfft(changes, size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[: max_lag + 2]
    correlation /= correlation[0]
    inner = correlation[1:-1]
    is_peak = (inner > correlation[:-2]) & (inner > correlation[2:]) & (inner > 4 / np.sqrt(num_changes))
    peaks = np.flatnonzero(is_peak)[1:] + 1 if is_peak[:1].any() else np.flatnonzero(is_peak) + 1
    return int(peaks[correlation[peaks].argmax()]) if len(peaks) else 0
