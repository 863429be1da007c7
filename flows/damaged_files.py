"""Find damaged DVC files and the commands that fix them, for `make doctor` and for the error of a failed run.

DVC writes dvc.lock and rwlock in place, so a kill can truncate them, and git writes conflict markers into dvc.lock.
DVC's messages name the file, but no command. DVC restores a damaged cache object without checking it
(treeverse/dvc#5978); the stage that reads the file compares its sha256 and fails (`verified` in tandem/files.py).
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from tandem import files

LOCK_FILES = ("dvc.lock", "stages/dvc.lock")
INDEX_ERRORS = ("file is not a database", "database disk image is malformed")  # SQLite's; DVC adds no file name
CACHE_SECONDS = 10.0  # the time limit of the check, which covers only part of a large cache

Damage = tuple[str, str]  # (problem, command that fixes it)


def with_damaged_file(error: str) -> str:
    """DVC's `error`, with the damaged file and the command that fixes it if a damaged file is the cause."""
    if any(words in error for words in INDEX_ERRORS):
        return f"DVC's index of this project is damaged ({error}); run: rm .dvc/tmp/btime && dvc repro"
    if "Permission denied" in error and f"{cache_folder()}/" in error:
        return f"this user may not write to DVC's cache ({error}); `tandem doctor` has the command that shares it"
    if error.endswith("is not a git repository"):
        return f"{error}, as after a download; run: git init (or clone the project instead)"
    # DVC's own words differ with the place where a kill cut dvc.lock.
    return "; ".join(f"{problem}, so DVC cannot read it; run: {fix}" for problem, fix in unreadable_files()) or error


def cache_folder() -> Path:
    """DVC's cache, which .dvc/config may put outside the project."""
    from dvc.config import Config

    return Path(Config(str(files.REAL_ROOT / ".dvc"))["cache"].get("dir") or files.REAL_ROOT / ".dvc/cache")


def unreadable_files() -> list[Damage]:
    """The files that make every `dvc repro` fail."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import loads_yaml
    from ruamel.yaml import YAMLError
    from voluptuous import Invalid

    problems = []
    for name in LOCK_FILES:
        path = files.ROOT / name
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            COMPILED_LOCKFILE_SCHEMA(loads_yaml(text))
        except (YAMLError, Invalid):
            cause = "has merge conflict markers" if "<<<<<<<" in text else "is truncated"
            # DVC restores what its cache holds.
            problems.append((f"{name} {cause}", f"rm {name} && dvc repro && git add {name}"))
    rwlock = files.REAL_ROOT / ".dvc/tmp/rwlock"
    try:
        json.loads(rwlock.read_bytes() if rwlock.exists() else b"{}")
    except ValueError:
        problems.append((".dvc/tmp/rwlock (DVC's list of running processes) is truncated", "rm .dvc/tmp/rwlock"))
    return problems


def damaged_objects() -> Iterator[Damage]:
    """Cache objects of current outputs whose md5 does not match their name."""
    from dvc.repo import Repo
    from dvc_data.hashfile.hash import file_md5
    from dvc_data.hashfile.tree import Tree

    deadline = time.monotonic() + CACHE_SECONDS
    with Repo(str(files.REAL_ROOT)) as repo:
        for out in repo.index.outs:
            objects = [(out.hash_info.value, out.def_path)] if out.use_cache and out.hash_info else []
            for md5, name in objects:
                cached = Path(repo.cache.local.oid_to_path(md5))
                if not cached.exists() or time.monotonic() > deadline:
                    continue
                if file_md5(str(cached), repo.cache.local.fs) != md5.removesuffix(".dir"):
                    problem = f"{files.relative(cached)}, from which DVC restores {name}, is damaged"
                    yield problem, f"rm -rf {files.relative(cached)} {name} && dvc repro"
                elif md5.endswith(".dir"):
                    tree = Tree.load(repo.cache.local, out.hash_info)
                    objects += [(entry.value, f"{name}/{'/'.join(key)}") for key, _, entry in tree]
