"""The cache of `auto` choices on this machine, so that the same training always uses the same choice.

It is in the user's cache folder: neither `make clean` nor a second clone changes a choice. A key contains the hardware
(tandem/training/auto.py), so machines that share a home folder do not share choices. Without the file, the next
training of each shape measures again.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.files import locked, user_cache_dir, write_json


@dataclass(frozen=True)
class Choice:
    """One setting for trainings of one shape on one machine."""

    setting: str  # threads or precision
    value: Any
    gains: list[list[Any]]  # (value, speed relative to the first value) for each value that was tried
    about: str  # the training and the machine, for a person who reads the file
    measured_at: str

    def is_possible(self) -> bool:
        """Whether a measurement can have produced this choice: the file may be damaged."""
        tried = [value for value, _ in self.gains]
        kinds = {"threads": int, "precision": str}
        return bool(self.sentence()) and isinstance(self.value, kinds.get(self.setting, ())) and self.value in tried

    def sentence(self) -> str:
        (first, _), *others = self.gains
        return ", ".join(f"{value}: {gain:.2f} times as fast as {first}" for value, gain in others)


def file() -> Path:
    return user_cache_dir() / "choices.json"


def cached_choices() -> dict[str, Choice]:
    """Key -> choice. A missing or damaged file gives no choices, so they are measured again."""
    try:
        entries = json.loads(file().read_text(encoding="utf-8"))
        found = {key: Choice(**entry) for key, entry in entries.items()}
        return found if all(choice.is_possible() for choice in found.values()) else {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def store(key: str, choice: Choice) -> Choice:
    """Store and return the choice. If another training has stored one for `key` meanwhile, return that one.

    Raises OSError if the folder cannot be written.
    """
    with locked(file().with_suffix(".lock")):
        known = cached_choices()
        if key not in known:
            known[key] = choice
            write_json(file(), {key: asdict(choice) for key, choice in known.items()})
    return known[key]
