"""Formats the values of a recorded run as text for people."""

from collections.abc import Mapping
from typing import Any


def number(value: Any) -> str:
    """Format a measured value, or its text as in a CSV: integers with every digit, others with four significant digits.

    Other text is not changed. Empty for None.
    """
    try:
        if str(value).lstrip("-").isdigit():
            return f"{int(value):,}"
        amount = float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value)
    return f"{amount:,.0f}" if 1000 <= abs(amount) < 1e9 else f"{amount:#.4g}"


def score_text(value: float) -> str:
    """Format a score with four decimals: scores are at most 1 and come from a few hundred or thousand cases."""
    return f"{value:.4f}"


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


WORDS = {"mae": "MAE", "rmse": "RMSE", "f1": "F1", "r2": "R2", "num": "number of"}


def words(name: Any) -> str:
    """Return a name in the code as words: `num_true` -> `number of true`."""
    return " ".join(WORDS.get(part, part) for part in str(name).split("_"))


def format_score(score: Mapping[str, float]) -> str:
    """The entry of a workload and device in results/scores.json as text: `accuracy 0.9756 (0.9722 to 0.9833)`."""
    ((name, value),) = ((name, value) for name, value in score.items() if name not in ("lowest", "highest"))
    spread = f" ({score_text(score['lowest'])} to {score_text(score['highest'])})" if "lowest" in score else ""
    return f"{name} {score_text(value)}{spread}"
