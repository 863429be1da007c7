"""Tables in Markdown, summaries of repeated measurements, and the machine that measured: for every benchmark."""

import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version

from tandem.devices.hardware import detect_hardware, driver_text
from tandem.devices.names import is_accelerator


def header(*columns: str) -> str:
    return f"{row(*columns)}\n|{'---|' * len(columns)}"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def quartiles(values: Sequence[float], form: str) -> str:
    """Median [quartiles]."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


def mean_and_range(values: Sequence[float], form: str = ".4f") -> str:
    return f"{statistics.fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def machine_sentence(device: str = "cpu", packages: Sequence[str] = ("torch",)) -> str:
    """Hardware, the versions of the installed `packages`, the time, and the load just before."""
    identity = detect_hardware(device)
    gpu = f"{identity['name']}, {driver_text(identity)}; " if is_accelerator(identity["kind"]) else ""
    versions = [f"{name} {version(name)}" for name in packages if importlib.util.find_spec(name)]
    return (
        f"{gpu}{identity['cpu']['name']}, {identity['cpu']['cores']:g} cores; {platform.system()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}; "
        f"{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f}"
    )
