"""What is refused gets one sentence: the one runner of all tables of mistakes."""

from collections.abc import Callable

import pytest

from tandem.terminal.command import NO_ANSWER, CommandError


def sentence(refuse: Callable[[], object], *words: str, start: str = "") -> str:
    """The sentence that refuses a value or a file; it begins with `start` and has all of `words`."""
    with pytest.raises((ValueError, OSError)) as caught:
        refuse()
    is_own = type(caught.value) in (ValueError, FileNotFoundError) or type(caught.value).__module__.startswith(
        "tandem."
    )
    assert is_own, f"an error of a library: {caught.value!r}"
    return checked(str(caught.value), *words, start=start)


def question(ask: Callable[[], object], *words: str) -> str:
    """The sentence of a command that wants to know more."""
    with pytest.raises(CommandError) as caught:
        ask()
    assert caught.value.status == NO_ANSWER
    return checked(str(caught.value), *words)


def checked(said: str, *words: str, start: str = "") -> str:
    assert "\n" not in said and said.startswith(start), said
    assert not (missing := [word for word in words if word not in said]), (missing, said)
    return said
