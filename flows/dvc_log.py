"""What DVC says it did with each stage, read from its log lines.

The wording is DVC 3.67's, in its stage/__init__.py, stage/run.py, stage/cache.py and repo/reproduce.py.
"""

import re
import signal
from typing import Literal, NamedTuple

Kind = Literal["running", "skipped", "restored", "failed"]

_PATTERNS: dict[Kind, re.Pattern[str]] = {
    "running": re.compile(r"^Running stage '(?P<stage>[^']+)':"),
    "skipped": re.compile(r"^(?:Stage )?'(?P<stage>[^']+)' didn't change, skipping"),
    "restored": re.compile(r"^Stage '(?P<stage>[^']+)' is cached - skipping run, checking out outputs"),
    "failed": re.compile(r"failed to reproduce(?: stages:)? (?P<stage>'[^']+'(?:(?:, | and )'[^']+')*)"),
}


class Event(NamedTuple):
    kind: Kind
    stages: list[str]  # one, except for `failed` under --keep-going


def parse(line: str) -> Event | None:
    """The event a line of DVC's log stands for, None for every other line."""
    for kind, pattern in _PATTERNS.items():
        if match := pattern.search(line):
            found = match["stage"]
            return Event(kind, re.findall(r"'([^']+)'", found) if kind == "failed" else [found])
    return None


def killer(error: str) -> str | None:
    """`killed by SIGKILL`, where that is how the stage in DVC's error ended and nobody was left to say so."""
    match = re.search(r"exited with (-\d+|1[2-9]\d)\b", error)
    if match is None:
        return None
    status = int(match[1])
    number = -status if status < 0 else status - 128  # a shell that does not exec its command reports 128 + signal
    return f"killed by {signal.Signals(number).name}" if number in set(signal.Signals) else None


def outcomes(events: list[Event]) -> dict[str, Kind]:
    """Stage -> how it ended, in DVC's order; `running` that did not fail has run."""
    return {stage: event.kind for event in events for stage in event.stages}
