"""Forecasts of AutoETS, AutoARIMA and seasonal naive (statsforecast). benchmarks/series.py runs it in another Python.

Reads JSON from standard input: levels (G,), the points `last` (N,) from which to forecast, horizon, season. Writes a
JSON dictionary from the peer to its forecasts (N, H). Up to 500 points and a season of 24 steps, each forecast gets a
model of its own, fitted to all points up to there. Otherwise one model is fitted to the last 1,500 points before the
first forecast, and later forecasts apply it to all points that are known then. AutoETS and AutoARIMA get no season of
more than 100 steps. Without these limits, a series takes hours.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
from statsforecast.models import AutoARIMA, AutoETS, SeasonalNaive

MAX_REFITTED, MAX_REFITTED_SEASON = 500, 24  # points, steps
MAX_FITTED, MAX_SEASON = 1500, 100


def main() -> None:
    warnings.simplefilter("ignore")  # AutoARIMA warns of each candidate that does not converge
    task = json.load(sys.stdin)
    levels, season = np.array(task["levels"]), task["season"]
    fitted_season = season if season <= MAX_SEASON else 1
    is_long = len(levels) > MAX_REFITTED or fitted_season > MAX_REFITTED_SEASON
    peers = {
        "AutoETS": AutoETS(season_length=fitted_season),
        "AutoARIMA": AutoARIMA(season_length=fitted_season, approximation=is_long),
        "seasonal naive": SeasonalNaive(season_length=season),
    }
    found = {name: forecasts(peer, levels, task["last"], task["horizon"], is_long) for name, peer in peers.items()}
    json.dump(found, sys.stdout)


def forecasts(peer: Any, levels: np.ndarray, last: list[int], horizon: int, is_long: bool) -> list[list[float]]:
    if not is_long or isinstance(peer, SeasonalNaive):
        return [peer.forecast(levels[: point + 1], horizon)["mean"].tolist() for point in last]
    peer.fit(levels[: last[0] + 1][-MAX_FITTED:])
    return [peer.forward(levels[: point + 1], horizon)["mean"].tolist() for point in last]


if __name__ == "__main__":
    main()
