"""Values as a person reads them: any value of a recorded run in, text out."""

from collections.abc import Mapping
from typing import Any

MAX_ITEMS = 30  # of a list or a group in one cell


def readable(value: Any) -> str:
    """A setting. Empty for None; a long list or group is cut, and says how much is left out."""
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
    """A measured value: whole numbers with every digit, others with four significant ones. Empty for None."""
    if not isinstance(value, float):
        return readable(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:#.4g}"


def as_number(value: Any) -> float | None:
    """`value` if it is a number or, as in a CSV, the text of one; else None."""
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


def words(name: Any) -> str:
    return str(name).replace("_", " ")
