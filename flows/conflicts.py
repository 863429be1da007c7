"""Files that git left in conflict, and the way out. Standard library only: the doctor needs no package."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ_BY_DVC = ("dvc.lock", "hw/dvc.lock", "dvc.yaml", "hw/dvc.yaml", "params.yaml")


def conflicts(root: Path = ROOT) -> list[tuple[str, str]]:
    """(what is wrong, the commands that mend it) of every file that DVC reads and that has merge conflict markers."""
    found = []
    for name in READ_BY_DVC:
        text = (root / name).read_text(encoding="utf-8", errors="replace") if (root / name).exists() else ""
        if marks := re.findall(r"^(?:<{7}|>{7})(?: .*)?$", text, re.MULTILINE):
            fix = f"edit {name}, then: git add {name}"
            if name.endswith(".lock"):  # a record only: DVC's run cache restores what was trained from the same inputs
                fix = f"rm {name} && dvc repro && git add {name}"
            found.append((f"{name} has merge conflict markers ({marks[0]})", fix))
    return found


def explained(error: str) -> str:
    """DVC's `error`; where a conflict is its cause, that, with the steps out of it."""
    found = "; ".join(f"{what}, so DVC cannot read it; run: {fix}" for what, fix in conflicts())
    return found if "YAML" in error and found else error
