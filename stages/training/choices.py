"""What `auto` took on this machine, kept in the user's cache folder: the same training goes on taking the same.

Neither `make clean` nor a second clone changes a choice, and machines that share a home folder do not mix theirs: a key
holds the hardware (stages/training/auto.py). `python -m stages.tools.choices` lists what is kept, and forgets it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stages.files import locked, user_cache_dir, write_json


@dataclass(frozen=True)
class Choice:
    """One setting for trainings of one shape on one machine."""

    setting: str  # threads or precision
    value: Any
    gains: list[list[Any]]  # each value that was tried, and how many times as fast it is as the first
    about: str  # which training, on which machine, for whoever reads the list
    measured_at: str

    def is_possible(self) -> bool:
        """Whether it can have been measured: the file may be damaged."""
        tried = [value for value, _ in self.gains]
        kinds = {"threads": int, "precision": str}
        return bool(self.sentence()) and isinstance(self.value, kinds.get(self.setting, ())) and self.value in tried

    def sentence(self) -> str:
        (first, _), *others = self.gains
        return ", ".join(f"{value}: {gain:.2f} times as fast as {first}" for value, gain in others)


def file() -> Path:
    return user_cache_dir() / "choices.json"


def cached_choices() -> dict[str, Choice]:
    """Key -> choice. A file that is missing, or that somebody has damaged, holds none: a choice is measured again."""
    try:
        entries = json.loads(file().read_text(encoding="utf-8"))
        found = {key: Choice(**entry) for key, entry in entries.items()}
        return found if all(choice.is_possible() for choice in found.values()) else {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def store(key: str, choice: Choice) -> Choice:
    """Returns what is kept now: where two trainings measured at once, the first one's choice holds for both.

    Raises OSError where the folder cannot be written.
    """
    with locked(file().with_suffix(".lock")):
        known = cached_choices()
        if key not in known:
            known[key] = choice
            write(known)
    return known[key]


def clear() -> int:
    """Forget all choices; returns how many there were."""
    with locked(file().with_suffix(".lock")):
        num_known = len(cached_choices())
        write({})
    return num_known


def write(choices: dict[str, Choice]) -> None:
    write_json(file(), {key: asdict(choice) for key, choice in choices.items()})
