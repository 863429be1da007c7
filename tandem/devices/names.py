"""The kinds of device, and their names in params.yaml: `auto`, `cpu`, `cuda`, or several workers: `2xcpu`, `4xcuda`.

A kind is a module of this package with a class `Kind`, and nothing else registers it.
"""

import os
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.terminal.messages import abridged, nearest

if TYPE_CHECKING:
    from tandem.devices.device import Device

KINDS = tuple(sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if "\nclass Kind(" in path.read_text(encoding="utf-8")
))  # fmt: skip
SINGLE = ("auto", *KINDS)
MAX_WORKERS = 4096


@cache
def kind_of(name: str) -> type["Device"]:
    """The class of a kind. It imports no torch; an object of it does."""
    device_class: type[Device] = import_module(f"tandem.devices.{name}").Kind
    return device_class


def is_accelerator(name: str) -> bool:
    """Whether devices of this kind are accelerators (device.py); one that only another machine knows is not."""
    return name in KINDS and kind_of(name).is_accelerator


def split_device(name: Any, where: str = "device") -> tuple[int, str]:
    """`2xcpu` -> (2, "cpu"), `auto` -> (1, "auto"). Raises ValueError, beginning with `where`, for other names."""
    if name in SINGLE:
        return 1, name
    match = re.fullmatch(r"([1-9]\d{0,8})x([a-z]+)", name) if isinstance(name, str) else None
    if not match or match[2] not in KINDS or not 2 <= int(match[1]) <= MAX_WORKERS:
        several = " or ".join(f"2x{kind} to {MAX_WORKERS}x{kind}" for kind in KINDS)
        raise ValueError(
            f"{where} is {abridged(name)}{nearest(name, SINGLE)}, or several workers that train one model: {several}"
        )
    return int(match[1]), match[2]


def started_by_launcher() -> bool:
    """Whether torch's launcher started this process as one of several workers."""
    return "TORCHELASTIC_RUN_ID" in os.environ
