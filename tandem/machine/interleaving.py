"""Measure alternatives in interleaved rounds, so that a drift of the machine's speed affects all of them equally."""

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
    """Returns the values of each measurement, one per round. Every second round runs in reverse order.

    There are at least `rounds` rounds, and more until `seconds` have passed. After `longest_seconds` no further round
    starts, but there is always one.
    """
    values: dict[Name, list[Value]] = {name: [] for name in measurements}
    order, start, number, spent = list(measurements), time.perf_counter(), 0, 0.0
    while number == 0 or (spent <= longest_seconds and (number < rounds or spent < seconds)):
        for name in order:
            values[name].append(measurements[name]())
        order.reverse()
        number, spent = number + 1, time.perf_counter() - start
    return values
