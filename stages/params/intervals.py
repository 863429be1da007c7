"""The interval between two points of a series, as params.yaml writes it: `15min`, or a calendar's `month`.

Accepted are a whole number with `s`, `min`, `h` or `d`, which always last the same, and the calendar's own steps with
or without a number (`month`, `6month`), also under pandas' names for them (`MS`, `QE`, `W-SUN`, `B`). Imports nothing
heavy, because params are read by what always runs.
"""

import re
from dataclasses import dataclass
from functools import cached_property

FIXED = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # in seconds
MONTHS = {"month": 1, "quarter": 3, "year": 12}
DAYS = {"day": 1, "week": 7}
CALENDAR = ("day", "business-day", "week", "month", "quarter", "year")
# pandas' aliases of date offsets and periods, without the anchor that may follow (`W-SUN`, `QE-DEC`).
PANDAS = {
    **{name: "month" for name in ("M", "MS", "ME", "BMS", "BME")},
    **{name: "quarter" for name in ("Q", "QS", "QE", "BQS", "BQE")},
    **{name: "year" for name in ("Y", "YS", "YE", "A", "AS", "BYS", "BYE")},
    **{"W": "week", "D": "day", "B": "business-day"},
}
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
        """Whether it is counted in dates as they are written, not in seconds."""
        return self.unit in CALENDAR

    @property
    def months(self) -> int:
        """0: it is no whole number of months."""
        return self.count * MONTHS.get(self.unit, 0)

    @property
    def seconds(self) -> int:
        """0: its length varies; of days, on the clock that shows no change to summer time."""
        return self.count * (FIXED.get(self.unit) or FIXED["d"] * DAYS.get(self.unit, 0))

    @cached_property
    def words(self) -> str:
        """`15min`, `one month`, `6 months`."""
        if not self.is_calendar:
            return f"{self.count}{self.unit}"
        name = self.unit.replace("-", " ")
        return f"one {name}" if self.count == 1 else f"{self.count} {name}s"


def parse_interval(text: str) -> Interval:
    """Raises ValueError, in one sentence that begins with the key's name."""
    found = re.fullmatch(r"([1-9]\d{0,8})?([A-Za-z]+(?:-day)?)(-[A-Z]{3})?", text)
    if found:
        number, name, anchor = found.groups()
        unit = PANDAS.get(name, "" if anchor else name)
        interval = Interval(int(number or 1), unit)
        is_known = unit in CALENDAR or (unit in FIXED and number)
        is_one_day = unit != "business-day" or interval.count == 1
        if is_known and is_one_day and interval.seconds < MAX_SECONDS and interval.months < 12_000:
            return interval
    raise ValueError(f"interval is {text!r}; accepted: {ACCEPTED}")
