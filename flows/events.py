"""The lines in the output of flows/dvc_run.py that say what has become of a stage."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

MARK = "tandem-event: "  # begins such a line
Outcome = Literal["running", "ran", "restored", "unchanged", "failed"]


@dataclass(frozen=True)
class Event:
    """A stage has started or ended."""

    stage: str  # empty if DVC failed before a stage or between two
    outcome: Outcome
    seconds: float = 0.0  # since DVC began to examine the stage
    message: str = ""  # the reason of the failure
    killed_by: str = ""  # the signal that ended it, such as SIGKILL

    @property
    def reason(self) -> str:
        return f"{self.stage}: {self.message}" if self.stage else self.message

    @property
    def line(self) -> str:
        return MARK + json.dumps(asdict(self))


def event_in(line: str) -> Event | None:
    return Event(**json.loads(line.removeprefix(MARK))) if line.startswith(MARK) else None


def counts(outcomes: Iterable[Outcome]) -> str:
    """The number of stages with each outcome: `7 ran, 2 restored, 4 unchanged`."""
    found: Counter[str] = Counter(outcomes)
    return ", ".join(f"{found[name]} {name}" for name in ("ran", "restored", "unchanged") if found[name])
