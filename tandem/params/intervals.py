"""The interval between two points of a series in params.yaml: `15min`, or `month` on the calendar.

Accepted are a whole number with `s`, `min`, `h` or `d`, which have a fixed length, and calendar steps with or without a
number (`month`, `6month`). Imports nothing heavy, because stages that always run read the params.
"""

import re
from dataclasses import dataclass
from functools import cached_property

FIXED = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # in seconds
MONTHS = {"month": 1, "quarter": 3, "year": 12}
DAYS = {"day": 1, "week": 7}
CALENDAR = ("day", "business-day", "week", "month", "quarter", "year")
MAX_SECONDS = 2**62 // 10**9
ACCEPTED = (
    f"a whole number from 1 on and one of {', '.join(FIXED)}, e.g. 15min, or the calendar's {', '.join(CALENDAR[:-1])} "
    f"or {CALENDAR[-1]}"
)


@dataclass(frozen=True)
class Interval:
    count: int
    unit: str  # one of FIXED or CALENDAR

    @property
    def is_calendar(self) -> bool:
        """Whether the interval counts calendar dates, not seconds."""
        return self.unit in CALENDAR

    @property
    def months(self) -> int:
        """The number of months; 0 if it is not a whole number."""
        return self.count * MONTHS.get(self.unit, 0)

    @property
    def seconds(self) -> int:
        """The length in seconds; 0 if it varies. For days, it is the length without daylight-saving changes."""
        return self.count * (FIXED.get(self.unit) or FIXED["d"] * DAYS.get(self.unit, 0))

    @cached_property
    def words(self) -> str:
        """The interval as text: `15min`, `one month`, `6 months`."""
        if not self.is_calendar:
            return f"{self.count}{self.unit}"
        name = self.unit.replace("-", " ")
        return f"one {name}" if self.count == 1 else f"{self.count} {name}s"


def parse_interval(text: str) -> Interval:
    """Parse an interval. Raises ValueError with one sentence that begins with the key's name."""
    match = re.fullmatch(r"([1-9]\d{0,8})?([a-z]+(?:-day)?)", text)
    if match:
        number, unit = match.groups()
        interval = Interval(int(number or 1), unit)
        is_known = unit in CALENDAR or (unit in FIXED and number)
        is_one_day = unit != "business-day" or interval.count == 1
        if is_known and is_one_day and interval.seconds < MAX_SECONDS and interval.months < 12_000:
            return interval
    raise ValueError(f"interval is {text!r}; accepted: {ACCEPTED}")
