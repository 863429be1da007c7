"""Measuring alternatives in interleaved rounds, so that a machine whose speed drifts treats all of them alike."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


def interleave(
    measurements: Mapping[Name, Callable[[], Value]],
    rounds: int,
    seconds: float = 0.0,
    longest_seconds: float = float("inf"),
) -> dict[Name, list[Value]]:
    """The value of each measurement, round by round, in the opposite order every other round.

    At least `rounds` rounds, and more until `seconds` have passed; fewer, but at least one, where `longest_seconds`
    have passed.
    """
    found: dict[Name, list[Value]] = {name: [] for name in measurements}
    order, start, number, spent = list(measurements), time.perf_counter(), 0, 0.0
    while number == 0 or (spent <= longest_seconds and (number < rounds or spent < seconds)):
        for name in order:
            found[name].append(measurements[name]())
        order.reverse()
        number, spent = number + 1, time.perf_counter() - start
    return found
