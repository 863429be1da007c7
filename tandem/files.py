"""All paths of the project, functions that read and write its files safely, and the form of a time in them.

DVC's `exp run --temp` and `--queue` run in a copy of the project. Files that DVC tracks are in this copy (`ROOT`).
Files that must outlive it (checkpoints, MLflow's store, runs in progress) are in the real project (`REAL_ROOT`, from
the environment variable DVC_ROOT).
"""

import csv
import errno
import glob
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REAL_ROOT = Path(os.environ.get("DVC_ROOT") or ROOT).resolve()
STATE = REAL_ROOT / ".tandem"
LAST_ERROR = STATE / "last_error.json"  # of a stage: flows/dvc_run.py reads what tandem/stage/errors.py writes
HARDWARE = ROOT / "results" / "hardware"  # what the stage `hardware` writes
MLRUNS = REAL_ROOT / "mlruns"
IN_MLFLOW = "in_mlflow.json"  # the ids of an MLflow run, in its run directory and beside its evaluation
PUBLISHED = ROOT / "docs" / "published.json"  # tandem/comparing/published.py reads it

RECORDED_STAGES = ("train", "evaluate")  # MLflow records them; `replicate` starts processes of `train`

FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM)


def now() -> str:
    """The time as records contain it, such as 2026-11-22T10:05:00+0100."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def workload_dir(workload: str) -> Path:
    return ROOT / "workloads" / workload


def raw_dir(workload: str) -> Path:
    return workload_dir(workload) / "data"


def prepared_dir(workload: str) -> Path:
    return ROOT / "data" / "prepared" / workload


def packed_dir(workload: str, device: str) -> Path:
    return ROOT / "data" / "packed" / workload / device


def runs_dir(workload: str, device: str) -> Path:
    """The outputs of train, replicate and evaluate, each with the folders `result` and `measured`. These contain a
    folder per seed.
    """
    return ROOT / "results" / "runs" / workload / device


def seed_dir(workload: str, device: str, stage: str, folder: str, seed: int) -> Path:
    """The folder of a seed in an output of train, replicate or evaluate. `folder`: result or measured."""
    return runs_dir(workload, device) / stage / folder / str(seed)


def baseline_dir(workload: str) -> Path:
    """The fitted model that every network is compared with (stages/baseline.py)."""
    return ROOT / "results" / "baseline" / workload


def hardware_file(device: str) -> Path:
    return HARDWARE / "devices" / f"{device}.json"


def code_file(stage: str, workload: str = "") -> Path:
    """The stage's code dependencies for this workload (tandem/code_dependencies.py)."""
    return HARDWARE / "code" / workload / f"{stage}.json"


def params_file(stage: str, workload: str) -> Path:
    """The parameters in force for a stage, with the preset and all defaults."""
    return HARDWARE / "params" / workload / f"{stage}.json"


def compare_dir() -> Path:
    return ROOT / "results" / "compare"


def user_cache_dir() -> Path:
    """The cache of this machine and user, shared by all clones of the project (XDG base directories)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"


def results_dir() -> Path:
    return ROOT / "results"


def relative(path: Path) -> str:
    """`path` relative to the project's root, if it is inside."""
    return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)


def own_line(error: BaseException, folder: Path) -> str:
    """The last line of the code in `folder` that led to the error, as `workloads/pen/net.py, line 31`; or ""."""
    import traceback  # 4 ms, which every stage with nothing to do would take

    calls = [call for call in traceback.extract_tb(error.__traceback__) if Path(call.filename).is_relative_to(folder)]
    return f"{relative(Path(calls[-1].filename))}, line {calls[-1].lineno}" if calls else ""


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dvc_md5(folder: Path) -> str:
    """Return the md5 of a folder as in dvc.lock, which adds `.dir`: that of the JSON list of its files."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    entries = [
        {"md5": hashlib.md5(paths[name].read_bytes(), usedforsecurity=False).hexdigest(), "relpath": name}
        for name in sorted(paths)
    ]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def digest(value: Any) -> str:
    """sha256 of the JSON of `value`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def verified(path: Path, sha256: str, stage: str) -> Path:
    """Returns `path`. Raises ValueError if its bytes are not those that `stage` (a name in dvc.yaml) wrote."""
    if not path.exists():
        raise ValueError(f"{relative(path)} is missing; make it again with `dvc repro --force {stage}`")
    if sha256_file(path) != sha256:
        raise altered(relative(path), make_again(stage))
    return path


def altered(source: str, fix: str) -> ValueError:
    return ValueError(f"{source} is altered (its sha256 is not the recorded one); {fix}")


def make_again(stage: str) -> str:
    """Return how to make the outputs of `stage` again. DVC trusts read-only files in its cache and checks only writable
    ones (treeverse/dvc#5978).
    """
    command = f'chmod -R u+w "$(dvc cache dir)" && dvc repro --force {stage}'
    return f"make it again with `{command}`: DVC then also checks its cache"


def packed_file(workload: str, device: str, split: str, plan: dict[str, Any]) -> Path:
    """The packed file of a split, checked against its sha256 in `plan` (plan.json)."""
    path = packed_dir(workload, device) / f"{split}.safetensors"
    return verified(path, plan["sha256"][split], f"preload@{workload}-{device}")


@contextmanager
def replacing(path: Path, is_durable: bool = True, num_bytes: int | None = None, not_lost: str = "") -> Iterator[Path]:
    """Yield a temporary path beside `path`. On success it is synced and renamed over `path`; on failure `path` stays.

    After a full disk or a kill, `path` is either the old file or the new one, never half of one. A file that every run
    writes again does not need `is_durable`: it is not synced, and a power cut may lose it. The next process that writes
    `path` removes the temporary file of a killed one.

    If the disk is full or not writable, this raises an OSError that names `path`, the needed bytes (`num_bytes`), the
    free bytes, what is not lost (the text `not_lost`), and the next step.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        if num_bytes and shutil.disk_usage(path.parent).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield temporary
        if is_durable:
            flush_to_disk(temporary)
        os.replace(temporary, path)
        if is_durable:
            flush_to_disk(path.parent)
    except OSError as error:
        if error.errno in UNWRITABLE and error.filename in (None, str(temporary), str(path), str(path.parent)):
            raise unwritable(path, error, num_bytes, not_lost) from error
        raise
    finally:
        with suppress(OSError):  # fails if the disk became read-only; the next process removes the file
            temporary.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raises OSError, with the next step, if `folder` is not writable: better now than after hours."""
    with replacing(folder / ".writable", is_durable=False) as temporary:
        temporary.touch()
    (folder / ".writable").unlink()


def flush_to_disk(path: Path) -> None:
    """Write a file's content or a folder's entries to the disk; otherwise a power cut may lose a renamed file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of `path` that belong to killed processes."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        try:
            os.kill(int(leftover.name.split(".")[-2]), 0)
        except (ProcessLookupError, ValueError):
            leftover.unlink(missing_ok=True)
        except PermissionError:  # a live process of another user
            pass


def unwritable(path: Path, error: OSError, num_bytes: int | None = None, not_lost: str = "") -> OSError:
    """An error for a file that cannot be written: its path, the needed and free bytes, the next step."""
    reason, step = error.strerror or str(error), f"let this user write to {relative(path.parent)}"
    if error.errno in FULL:
        needed = "" if num_bytes is None else f"it needs {format_bytes(num_bytes)}, "
        with suppress(OSError):
            reason += f" ({needed}{format_bytes(shutil.disk_usage(path.parent).free)} are free)"
        step = "make room"
    return OSError(f"{relative(path)} could not be written: {reason}; {not_lost}{step} and run the same command again")


def format_bytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:,.1f} KiB"


def write_text(path: Path, text: str, is_durable: bool = True) -> None:
    write_bytes(path, text.encode(), is_durable)


def write_bytes(path: Path, content: bytes, is_durable: bool = True) -> None:
    with replacing(path, is_durable, len(content)) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any, is_durable: bool = True) -> None:
    """Write `value` in a canonical form, so that equal contents have equal hashes. Raises for NaN and infinity."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text, is_durable)


MAKES_ANEW = "`dvc repro` makes it anew"


def damaged(source: str, reason: str, fix: str = MAKES_ANEW) -> ValueError:
    return ValueError(f"{source} is damaged ({reason}); {fix}")


class JsonObject(dict[str, Any]):
    """An object of a JSON file. A missing key raises ValueError that names the file."""

    source: str
    fix: str

    def __missing__(self, key: str) -> Any:
        raise damaged(self.source, f"it has no {key!r}", self.fix)


def parse_json(content: bytes | str, source: str, fix: str = MAKES_ANEW) -> JsonObject:
    """Parse `content` as a JSON object. Raises ValueError that names `source` if it is not one."""

    def as_read(pairs: dict[str, Any]) -> JsonObject:
        record = JsonObject(pairs)
        record.source, record.fix = source, fix
        return record

    try:
        parsed = json.loads(content, object_hook=as_read)
    except (ValueError, RecursionError) as error:
        raise damaged(source, str(error), fix) from None
    if not isinstance(parsed, JsonObject):
        raise damaged(source, f"it holds {type(parsed).__name__} instead of an object", fix)
    return parsed


def read_json(path: Path, fix: str = MAKES_ANEW) -> Any:
    """Read an object that `write_json` wrote.

    Raises ValueError that names the file and the command that restores it, if it is damaged or lacks a key.
    """
    try:
        return parse_json(path.read_bytes(), relative(path), fix)
    except FileNotFoundError:
        raise FileNotFoundError(f"{relative(path)} is not there; run `dvc repro` to make it") from None


def parse_rows(content: bytes, source: str) -> list[dict[str, str]]:
    """Parse a CSV table that `write_table` wrote. Raises ValueError that names `source` if it is damaged."""
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(source, str(error)) from None
    # DictReader stores extra cells under the key None, and None for missing cells.
    if odd := next((number for number, row in enumerate(rows, 1) if None in row or None in row.values()), None):
        raise damaged(source, f"row {odd} has more or fewer cells than its header")
    return rows


def read_numbers(path: Path) -> list[dict[str, float | None]]:
    return parse_numbers(path.read_bytes(), relative(path))


def parse_numbers(content: bytes, source: str) -> list[dict[str, float | None]]:
    """Parse a CSV table of numbers; an empty cell is None."""
    rows = parse_rows(content, source)
    try:
        return [{name: float(cell) if cell else None for name, cell in row.items()} for row in rows]
    except ValueError as error:
        raise damaged(source, str(error)) from None


def write_table(path: Path, rows: list[dict[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write `rows` with equal keys as CSV. An absent value (None) is an empty cell; floats keep every digit.

    `columns` is the header if there are no rows.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[int | None]:
    """Hold a lock on the file `path` in the `with` block, and yield None.

    If another process has the lock, wait for it. Without `wait`, yield that process's id at once (0 if unknown). The
    kernel releases the lock (flock) when its process ends, however it ends. The file stays: if it were removed, a third
    process could lock a new file of the same name.
    """
    import fcntl  # not on Windows, where a model in MLflow may use this module

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            yield int(holder) if holder.isdigit() else 0
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield None
