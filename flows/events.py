"""What becomes of the stages when DVC runs: `StageEvent`.

flows/dvc_run.py makes an event when a stage starts and when it ends. A flow runs it as a process and reads the events
in its output (`event_in`); `tandem repro` gets them by a function.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

MARK = "tandem-event: "  # begins the line of an event
Outcome = Literal["running", "ran", "restored", "unchanged", "failed"]


@dataclass(frozen=True)
class StageEvent:
    """What has become of a stage: it has started or ended, or DVC does not run it."""

    stage: str  # empty if DVC failed before a stage or between two
    outcome: Outcome
    seconds: float = 0.0  # since DVC began to examine the stage
    message: str = ""  # the reason of the failure
    ended_by: str = ""  # the signal that ended it, such as SIGKILL

    @property
    def is_interrupted(self) -> bool:
        return self.ended_by == "SIGINT"

    @property
    def reason(self) -> str:
        return f"{self.stage}: {self.message}" if self.stage else self.message

    @property
    def line(self) -> str:
        return MARK + json.dumps(asdict(self))


def event_in(line: str) -> StageEvent | None:
    return StageEvent(**json.loads(line.removeprefix(MARK))) if line.startswith(MARK) else None


def counts(outcomes: Iterable[Outcome]) -> str:
    """The number of stages with each outcome: `7 ran, 2 restored, 4 unchanged`."""
    num_of: Counter[str] = Counter(outcomes)
    return ", ".join(f"{num_of[name]} {name}" for name in ("ran", "restored", "unchanged") if num_of[name])
