"""CPU kernels, written in ordinary torch operations. They need no compiler.

Each computes the result of a torch operation, from the same parameters, in less time. A module's `is_supported` says
whether its kernel applies. `train.kernels: torch` turns all of them off.

The code that takes a kernel, or torch's operation instead, notes its choice. A training records the notes of its steps,
because the choice depends on the precision, the number of steps and the compiler, not only on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OWN, TORCH, CUDNN = "Tandem's", "torch's", "cuDNN's"
NO_CHOICE = "torch's kernels"  # of a network that has none of these operations, and of a fitted model

_are_allowed = True
_notes: set[str] = set()


def allow(are_allowed: bool) -> None:
    """Allow or forbid Tandem's kernels in this process."""
    global _are_allowed
    _are_allowed = are_allowed


def are_allowed() -> bool:
    return _are_allowed


def choose(operation: str, is_supported: bool) -> bool:
    """Whether to use Tandem's kernel for `operation`. Notes it, if it is used."""
    if is_supported and _are_allowed:
        note(OWN, operation)
        return True
    return False


def note(whose: str, operation: str) -> None:
    _notes.add(f"{whose} {operation}")


@contextmanager
def noted_in(notes: set[str]) -> Iterator[None]:
    """In the body, choices are noted in `notes`."""
    global _notes
    before, _notes = _notes, notes
    try:
        yield
    finally:
        _notes = before


def described(notes: Iterable[str]) -> str:
    """Return the notes as text: `Tandem's GRU, Tandem's dropout`."""
    return ", ".join(sorted(notes)) or NO_CHOICE
