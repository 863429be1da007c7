"""Files that DVC refuses to read, so that no `dvc repro` runs any more, and the way out.

git leaves conflict markers in them. DVC writes dvc.lock and its list of running processes in place, so a kill at that
moment leaves a part. A lock file is a record only: DVC's run-cache restores what was stored from the same inputs,
without running it. Importing this needs the standard library only: the doctor runs where no package is installed.
"""

import json
import os
import re
from pathlib import Path

from stages.files import ROOT

LOCK_FILES = ("dvc.lock", "hw/dvc.lock")
DVC_TMP = ".dvc/tmp"
READ_BY_DVC = (*LOCK_FILES, "dvc.yaml", "hw/dvc.yaml", "params.yaml")
# SQLite on a file that is none any more. DVC's error does not say that its own index is meant, or where that is.
NO_DATABASE = ("file is not a database", "database disk image is malformed")
MARKS = re.compile(r"^(?:<{7}|>{7})(?: .*)?$", re.MULTILINE)


def conflicts(root: Path = ROOT) -> list[tuple[str, str]]:
    """(what is wrong, the commands that mend it) of every file that DVC reads and that has merge conflict markers."""
    found = []
    for name in READ_BY_DVC:
        if marks := MARKS.findall(text_of(root / name)):
            fix = f"edit {name}, then: git add {name}"
            if name in LOCK_FILES:
                fix = f"rm {name} && dvc repro && git add {name}"
            found.append((f"{name} has merge conflict markers ({marks[0]})", fix))
    return found


def explained(error: str) -> str:
    """DVC's `error`; where a conflict or a damaged index is its cause, that, with the steps out of it."""
    if any(words in error for words in NO_DATABASE):
        return (
            f"DVC's own index of this project is damaged ({error}); it holds digests that DVC can take again: "
            "run: rm .dvc/tmp/btime && dvc repro, which has DVC begin another one"
        )
    found = "; ".join(f"{what}, so DVC cannot read it; run: {fix}" for what, fix in conflicts())
    return found if "YAML" in error and found else error


def mend(root: Path = ROOT) -> list[str]:
    """Put right what a kill of DVC leaves cut off; returns a sentence on each file."""
    return [*move_cut_locks(root), *remove_damaged_rwlock(root)]


def move_cut_locks(root: Path) -> list[str]:
    """Move lock files that are cut off aside. One with marks of a merge conflict stays."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import loads_yaml
    from ruamel.yaml import YAMLError
    from voluptuous import Invalid

    found = []
    for name in LOCK_FILES:
        path = root / name
        text = text_of(path)
        if not path.exists() or MARKS.search(text):
            continue
        try:
            COMPILED_LOCKFILE_SCHEMA(loads_yaml(text))
        except (YAMLError, Invalid):
            os.replace(path, root / f"{name}.cut")
            found.append(
                f"{name} is cut off (a process was killed while DVC wrote it) and was moved to {name}.cut; "
                "DVC restores from its cache what it has stored"
            )
    return found


def remove_damaged_rwlock(root: Path) -> list[str]:
    """Remove DVC's list of the processes that read or write its files, where DVC cannot read it any more.

    A training knows by a lock of its own whether another process has it (stages/records/checkpoint.py), so what the
    list said of one that still lives is not missed.
    """
    from dvc.lock import LockError, make_lock
    from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK

    path = root / DVC_TMP / RWLOCK_FILE
    if is_readable(path):
        return []
    try:
        with make_lock(str(path.with_name(RWLOCK_LOCK)), tmp_dir=str(path.parent)):  # while it has this, DVC writes
            if is_readable(path):
                return []
            path.unlink(missing_ok=True)
    except LockError:  # DVC itself will say who has it
        return []
    return [
        f"{DVC_TMP}/{RWLOCK_FILE} is cut off (a process was killed while DVC wrote it) and was removed; "
        "it only lists running processes"
    ]


def is_readable(path: Path) -> bool:
    """Whether DVC can read this list of processes, or finds none and begins one."""
    from dvc.rwlock import SCHEMA
    from voluptuous import Invalid

    try:
        SCHEMA(json.loads(path.read_bytes()))
        return True
    except FileNotFoundError:
        return True
    except (ValueError, RecursionError, Invalid):
        return False


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
