"""The names of devices in params.yaml: `auto`, `cpu`, `cuda`, and several workers on one kind: `2xcpu`, `4xcuda`."""

import os
import re
from typing import Any

from tandem.messages import nearest, shown

SINGLE = ("auto", "cpu", "cuda")
SEVERAL = ("cpu", "cuda")  # the kinds that several workers can train on
MAX_WORKERS = 4096


def split_device(name: Any, where: str = "device") -> tuple[int, str]:
    """`2xcpu` -> (2, "cpu"), `auto` -> (1, "auto"). Raises ValueError, beginning with `where`, for other names."""
    if name in SINGLE:
        return 1, name
    found = re.fullmatch(r"(\d{1,9})x([a-z]+)", name) if isinstance(name, str) else None
    if not found:
        several = ", or several workers that train one model: 2xcpu, 2xcuda, ..."
        raise ValueError(f"{where} is {shown(name)}{nearest(name, SINGLE)}{several}")
    count, kind = int(found[1]), found[2]
    if kind not in SEVERAL:
        chosen = "; only one worker can be left to choose" if kind == "auto" else ""
        raise ValueError(f"{where} is {name!r}{chosen}; accepted for several workers: {count}xcpu, {count}xcuda")
    if found[1] != str(count) or not 2 <= count <= MAX_WORKERS:
        raise ValueError(f"{where} is {name!r}; write {kind} for one worker, or 2x{kind} to {MAX_WORKERS}x{kind}")
    return count, kind


def started_by_launcher() -> bool:
    """Whether torch's launcher started this process as one of several workers."""
    return "TORCHELASTIC_RUN_ID" in os.environ
