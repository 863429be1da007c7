"""Formats the values of a recorded run as text for people."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_ITEMS = 30  # of a list or group in one cell


def readable(value: Any) -> str:
    """Format a setting. Empty for None. A long list or group is cut, with the number of items left out."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case Mapping():
            items = [f"{name}: {readable(each)}" for name, each in value.items()]
        case list() | tuple():
            items = [readable(each) for each in value]
        case _:
            return str(value)
    more = f", and {len(items) - MAX_ITEMS:,} more" if len(items) > MAX_ITEMS else ""
    return ", ".join(items[:MAX_ITEMS]) + more


def number(value: Any) -> str:
    """Format a measured value: whole numbers with every digit, others with four significant digits. Empty for None."""
    if not isinstance(value, float):
        return readable(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:#.4g}"


def as_number(value: Any) -> float | None:
    """Return `value` if it is a number or, as in a CSV, the text of one; else None."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else None
    try:
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        return None


def seconds(value: float) -> str:
    return f"{value:,.3f}" if value < 100 else f"{value:,.1f}"


def score_text(value: float) -> str:
    """Format a score with four decimals: scores are at most 1 and come from a few hundred or thousand cases."""
    return f"{value:.4f}"


def spread(values: Sequence[float], middle: float, show: Callable[[float], str], one: str) -> str:
    """Return e.g. `0.9789 (0.9722 to 0.9889, 5 seeds)`. `one`: the singular noun for a value."""
    if len(values) == 1:
        return f"{show(middle)} (one {one})"
    many = f"{one}es" if one.endswith("s") else f"{one}s"
    return f"{show(middle)} ({show(min(values))} to {show(max(values))}, {len(values)} {many})"


WORDS = {"mae": "MAE", "rmse": "RMSE", "f1": "F1", "r2": "R2", "num": "number of", "sha256": "SHA-256"}


def words(name: Any) -> str:
    """Return a name in the code as words: `num_duplicates_across_splits` -> `number of duplicates across splits`."""
    return " ".join(WORDS.get(part, part) for part in str(name).split("_"))
