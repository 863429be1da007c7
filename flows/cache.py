"""DVC's cache: which of its objects are damaged. DVC itself restores these as good (treeverse/dvc#5978).

Reads dvc.lock with regular expressions, and needs the standard library only: the doctor runs where nothing is
installed.
"""

import configparser
import hashlib
import json
import os
import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from stages.files import HOME, ROOT, relative

ENTRY = re.compile(r"- path: (?P<path>.+)\n +hash: md5\n +md5: (?P<md5>[0-9a-f]{32}(?:\.dir)?)\n")


def configuration() -> configparser.ConfigParser:
    """DVC's, of the user and of this project."""
    config = configparser.ConfigParser(interpolation=None)
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dvc" / "config"
    with suppress(configparser.Error):  # DVC says where; the message would hold the line, and the line maybe a password
        config.read([user, HOME / ".dvc/config", HOME / ".dvc/config.local"])
    return config


def cache_dir() -> Path:
    config = configuration()
    return HOME / ".dvc" / os.path.expanduser(config.get("cache", "dir", fallback="cache"))


def damaged(stages: Collection[str] | None = None, seconds: float = 10.0) -> list[tuple[str, str]]:
    """(what is damaged, the commands that mend it) of the objects that dvc.lock names, for these stages or for all.

    Reads for so many seconds at most, so that a large cache is read in part.
    """
    cache, end = cache_dir() / "files" / "md5", time.monotonic() + seconds
    found = []
    for md5, paths in recorded(stages, cache).items():
        file = cache / md5[:2] / md5[2:]
        if time.monotonic() > end:
            break
        if file.is_file() and digest(file) != md5.removesuffix(".dir"):
            names = " ".join([relative(file), *sorted(paths)])
            what = f"{relative(file)} in DVC's cache is damaged: it is what {', '.join(sorted(paths))} is restored from"
            found.append((what, f"rm -rf {names} && dvc repro"))
    return found


def recorded(stages: Collection[str] | None, cache: Path) -> dict[str, set[str]]:
    """md5 -> the paths that dvc.lock names with it, files in folders included."""
    lock = ROOT / "dvc.lock"
    text = lock.read_text(encoding="utf-8", errors="replace") if lock.exists() else ""
    found: dict[str, set[str]] = {}
    for block in re.split(r"^  (?=\S)", text, flags=re.MULTILINE):
        if stages is not None and block.partition(":\n")[0].strip("'\"") not in stages:
            continue
        for entry in ENTRY.finditer(block.partition("    outs:\n")[2]):
            found.setdefault(entry["md5"], set()).add(entry["path"].strip("'\""))
    for md5 in [md5 for md5 in found if md5.endswith(".dir")]:
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged listing is found as one
            for part in json.loads((cache / md5[:2] / md5[2:]).read_bytes()):
                found.setdefault(part["md5"], set()).update(f"{path}/{part['relpath']}" for path in found[md5])
    return found


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
