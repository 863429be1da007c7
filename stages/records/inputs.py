"""What a training rests on, and whether it is still that: asked after every epoch. Of `preprocess`, asked at its end.

A file that changes while a stage runs is recorded by DVC as what the result was made from (treeverse/dvc#11058), so
such a stage must fail. Asking for the time and the size of some fifty files takes less than a millisecond; only
where one of these moved are the contents compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages import files
from stages.closure import closure, named_by
from stages.files import relative
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten
from stages.params.schema import Rally

Stamp = tuple[int, int, int] | None


def read_inputs(workload: str, device: str, seed: int) -> dict[str, Any]:
    """All that decides the result: what a checkpoint belongs to, and what must not change while training."""
    load_params.cache_clear()
    block = load_workload(workload)
    return {
        "seed": seed,
        "parameters": flatten(block.train),
        "data": files.read_json(files.packed_dir(workload, device) / "plan.json")["sha256"],
        "code": closure("train", named_by(block)),
        "hardware": files.read_json(files.hardware_file(device)),
    }


class Inputs:
    """The inputs of one training as they were at its start: `values` as `read_inputs` returns them."""

    def __init__(self, workload: str, device: str, seed: int, table_sha256: str | None) -> None:
        self.names = workload, device, seed
        self.values = read_inputs(*self.names)
        self.digests = {
            files.packed_dir(workload, device) / f"{split}.safetensors": sha256
            for split, sha256 in self.values["data"].items()
        }
        block = load_workload(workload)
        if table_sha256 and not isinstance(block.preprocess, Rally):
            table = files.raw_dir(workload) / block.preprocess.table
            require_prepared(table, table_sha256, workload)
            self.digests[table] = table_sha256
        self.watched = [
            files.ROOT / "params.yaml",
            files.packed_dir(workload, device) / "plan.json",
            files.prepared_dir(workload) / "summary.json",
            files.hardware_file(device),
            files.preset_file(workload),
            files.code_file("train", workload),
            *(files.ROOT / name for name in self.values["code"]),
            *self.digests,
        ]
        self.stamps = self.stamp()

    def stamp(self) -> dict[Path, Stamp]:
        return {path: stamp_of(path) for path in self.watched}

    def changed(self) -> list[str]:
        """What is not as it was, in words: "parameters (params.yaml)". Empty where all is."""
        stamps = self.stamp()
        moved = [path for path in self.watched if stamps[path] != self.stamps[path]]
        if not moved:
            return []
        found = [f"{relative(path)} (removed)" for path in moved if stamps[path] is None]
        if found:
            return found
        try:
            now = read_inputs(*self.names)
        except (ValueError, OSError) as error:  # in the middle of an edit, params.yaml may be none
            return [f"{', '.join(map(relative, moved))} ({error})"]
        for name, value in self.values.items():
            if now[name] != value:
                found.append(f"{name} ({', '.join(self.where(name, now[name]))})")
        for path in moved:
            if path in self.digests and files.sha256_file(path) != self.digests[path]:
                found.append(relative(path))
        if not found:
            self.stamps = stamps  # written again as it was
        return found

    def where(self, name: str, now: Any) -> list[str]:
        """The files in which the input `name` is now another."""
        workload, device, _ = self.names
        if name == "code":
            then = self.values["code"]
            return sorted(path for path in then.keys() | now.keys() if then.get(path) != now.get(path))
        paths = {"data": files.packed_dir(workload, device) / "plan.json", "hardware": files.hardware_file(device)}
        return [relative(paths.get(name, files.ROOT / "params.yaml"))]


def require_prepared(table: Path, sha256: str, workload: str) -> None:
    """Raises ValueError where `table` was edited after preprocess ended: DVC looks at it a moment later."""
    then, now = stamp_of(files.prepared_dir(workload) / "summary.json"), stamp_of(table)
    if then and now and now > then and files.sha256_file(table) != sha256:
        raise ValueError(
            f"{relative(table)} is not what {relative(files.prepared_dir(workload))} was made from; "
            f"make that again with `dvc repro --force preprocess@{workload}`"
        )


@contextmanager
def unchanged(workload: str) -> Iterator[None]:
    """Raises ValueError where the raw table of `workload`, or what is to be done with it, changes before the end.

    One that was written anew with the same bytes counts too: it may have been read half-written.
    """
    params = load_workload(workload).preprocess
    table = None if isinstance(params, Rally) else files.raw_dir(workload) / params.table
    before = stamp_of(table) if table else None
    yield
    load_params.cache_clear()
    changed = [relative(table)] if table and stamp_of(table) != before else []
    if load_workload(workload).preprocess != params:
        changed.append("parameters (params.yaml)")
    if changed:
        raise ValueError(
            f"{' and '.join(changed)} of {workload} changed while preprocess worked on it, so what it made would "
            "belong to neither; run the same command again"
        )


def stamp_of(path: Path) -> Stamp:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
