"""Forecasts of a peer of statsforecast. benchmarks/series.py runs it in another Python: `python series_peers.py PEER`.

Reads JSON from standard input: levels (G,), the points `last` (N,) from which to forecast, horizon, season. Writes
JSON: the forecasts (N, H) and the number of fits. Up to 500 points and a season of 24 steps, each forecast gets a model
of its own, fitted to all points up to there, until the fits have taken MAX_SECONDS. Otherwise one model is fitted to
the last 1,500 points before the first forecast. Later forecasts apply the last fitted model to all points that are
known then. AutoETS and AutoARIMA get no season of more than 100 steps. Without these limits, a series takes hours, and
AutoARIMA took 11 GB of memory; the process gets at most MAX_BYTES.
"""

import json
import resource
import sys
import time
import warnings
from typing import Any

import numpy as np
from statsforecast.models import AutoARIMA, AutoETS, SeasonalNaive

MAX_REFITTED, MAX_REFITTED_SEASON = 500, 24  # points, steps
MAX_FITTED, MAX_SEASON = 1500, 100
MAX_SECONDS, MAX_BYTES = 100, 6 * 2**30


def main(name: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
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
    is_refitted = not is_long or name == "seasonal naive"
    json.dump(forecasts(peers[name], levels, task["last"], task["horizon"], is_refitted), sys.stdout)


def forecasts(
    peer: Any, levels: np.ndarray, last: list[int], horizon: int, is_refitted: bool
) -> tuple[list[list[float]], int]:
    start, found, num_fits = time.perf_counter(), list[list[float]](), 0
    for point in last:
        known = levels[: point + 1]
        if not found or (is_refitted and time.perf_counter() - start < MAX_SECONDS):
            forecast = peer.fit(known if is_refitted else known[-MAX_FITTED:]).predict(horizon)
            num_fits += 1
        else:
            forecast = peer.forward(known, horizon)
        found.append(forecast["mean"].tolist())
    return found, num_fits


if __name__ == "__main__":
    main(sys.argv[1])
