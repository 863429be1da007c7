"""Checks that the inputs of a training do not change. `train` checks after every epoch, `preprocess` at its end.
`other_parameters` checks a training that is there already, for `evaluate` and `compare`; `other_code` for `predict`.

If a file changes while a stage runs, DVC records the new content as the input of the result (treeverse/dvc#11058), so
such a stage must fail. Reading the time and size of about fifty files takes less than a millisecond; contents are
compared only if one of these changed.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem import files
from tandem.code_dependencies import fingerprint, fingerprint_code
from tandem.files import relative
from tandem.params.loading import SECTIONS, load_params, load_workload
from tandem.params.own_components import modules_of
from tandem.params.parsing import differing_names, literal, recorded_parameters
from tandem.params.schema import OwnSource, TableSource
from tandem.runs.run import Run

Stamp = tuple[int, int, int] | None
# `dvc exp run` rewrites params.yaml several times before it finds that another DVC runs; with --queue and --temp, it
# puts the file back. Its slowest part, the graph of stages, takes seconds on a busy machine.
UNDO_SECONDS = 10.0


def read_inputs(workload: str, device: str, seed: int) -> dict[str, Any]:
    """Return everything that determines the result: a checkpoint belongs to it, and it must not change meanwhile."""
    load_params.cache_clear()
    block = load_workload(workload)
    return {
        "seed": seed,
        "parameters": literal(block.train),
        "data": files.read_json(files.packed_dir(workload, device) / "plan.json")["sha256"],
        "code": fingerprint_code("train", modules_of(workload, block)),
        "hardware": files.read_json(files.hardware_file(device)),
    }


class Inputs:
    """The inputs of one training at its start. `values`: as `read_inputs` returns them."""

    def __init__(self, workload: str, device: str, seed: int, table_sha256: str | None) -> None:
        self.training_key = workload, device, seed
        self.values = read_inputs(*self.training_key)
        self.digests = {
            files.packed_dir(workload, device) / f"{split}.safetensors": sha256
            for split, sha256 in self.values["data"].items()
        }
        block = load_workload(workload)
        if table_sha256 and block.preprocess.table:
            table = files.raw_dir(workload) / block.preprocess.table
            require_prepared(table, table_sha256, workload)
            self.digests[table] = table_sha256
        self.watched = [
            files.ROOT / "params.yaml",
            files.packed_dir(workload, device) / "plan.json",
            files.prepared_dir(workload) / "summary.json",
            files.hardware_file(device),
            files.params_file("train", workload),
            files.code_file("train", workload),
            *(files.ROOT / name for name in self.values["code"]),
            *self.digests,
        ]
        self.stamps = self.stamp()

    def stamp(self) -> dict[Path, Stamp]:
        return {path: stamp_of(path) for path in self.watched}

    def lasting_changes(self) -> list[str]:
        """Return what `changed` returns, after waiting UNDO_SECONDS for the changes to be undone.

        A change of the packed data is returned at once.
        """
        deadline, is_told = time.monotonic() + UNDO_SECONDS, False
        while (changed := self.changed()) and time.monotonic() < deadline:
            if self.has_other_data():
                break
            if not is_told:
                print(f"waiting {UNDO_SECONDS:.0f} s for a change to be undone: {' and '.join(changed)}", flush=True)
                is_told = True
            time.sleep(0.2)
        return changed

    def has_other_data(self) -> bool:
        """Whether a file of the packed data was written: the last epoch may have read it."""
        packed = files.packed_dir(*self.training_key[:2])
        return any(stamp != self.stamps[path] for path, stamp in self.stamp().items() if path.parent == packed)

    def changed(self) -> list[str]:
        """Return descriptions of the changed inputs, e.g. "parameters (params.yaml)"; empty if nothing changed."""
        stamps = self.stamp()
        moved = [path for path in self.watched if stamps[path] != self.stamps[path]]
        if not moved:
            return []
        removed = [f"{relative(path)} (removed)" for path in moved if stamps[path] is None]
        if removed:
            return removed
        try:
            current_values = read_inputs(*self.training_key)
        except (ValueError, OSError) as error:  # during an edit, params.yaml may be invalid
            return [f"{', '.join(map(relative, moved))} ({error})"]
        if changed := [name for name, value in self.values.items() if current_values[name] != value]:
            return [f"{' and '.join(changed)} ({', '.join(map(relative, moved))})"]
        if any(path in self.digests and files.sha256_file(path) != self.digests[path] for path in moved):
            return list(map(relative, moved))
        self.stamps = stamps  # rewritten with the same content
        return []


def require_prepared(table: Path, sha256: str, workload: str) -> None:
    """Raises ValueError if `table` was edited after preprocess read it.

    DVC hashes the table only after the stage, so dvc.lock may contain the digest of the edited one.
    """
    then, now = stamp_of(files.prepared_dir(workload) / "summary.json"), stamp_of(table)
    if then and now and now > then and files.sha256_file(table) != sha256:
        raise ValueError(
            f"{relative(table)} changed after {relative(files.prepared_dir(workload))} was made from it; "
            f"run `dvc repro --force preprocess@{workload}`"
        )


def other_parameters(run: Run) -> str:
    """Return the parameters of a training, or of its evaluation, that differ from those in force, such as
    `train.epochs 3, not 5`; empty if there are none. A file that DVC restored may be of other parameters.
    """
    block = literal(load_workload(run.workload))
    recorded = {name: run.train["block"][name] for name in SECTIONS["train"]}
    if run.score:
        recorded["evaluate"] = run.score["evaluate"]
    before, after = recorded_parameters(recorded), recorded_parameters({name: block[name] for name in recorded})
    names = differing_names(before, after)
    return "; ".join(f"{name} {before.get(name, 'absent')}, not {after.get(name, 'absent')}" for name in names)


def other_code(run: Run) -> list[str]:
    """Return the files of the workload's own code that have changed since a training or are no longer there."""

    def is_recorded(path: Path, sha256: str) -> bool:
        try:
            is_code = path.suffix == ".py"
            return sha256 == (fingerprint(ast.parse(path.read_bytes())) if is_code else files.sha256_file(path))
        except (OSError, ValueError, SyntaxError):
            return False

    recorded = run.train["digests"]["code"]
    own = {name: sha256 for name, sha256 in recorded.items() if name.startswith("workloads/")}
    return [name for name, sha256 in own.items() if not is_recorded(files.ROOT / name, sha256)]


@contextmanager
def unchanged(workload: str) -> Iterator[None]:
    """Raises ValueError if the raw data of `workload` or its preprocess parameters change while the body runs.

    A table that was rewritten with the same bytes also counts as changed: it may have been read half-written.
    """
    params = load_workload(workload).preprocess
    stamps = {path: stamp_of(path) for path in raw_files(workload, params)}
    yield
    load_params.cache_clear()
    changed = [relative(path) for path, stamp in stamps.items() if stamp_of(path) != stamp]
    if load_workload(workload).preprocess != params:
        changed.append("parameters (params.yaml)")
    if changed:
        raise ValueError(
            f"{' and '.join(changed)} of {workload} changed while preprocess was running, so its output would match "
            "neither version; run the same command again"
        )


def raw_files(workload: str, params: TableSource | OwnSource) -> list[Path]:
    """The raw table; for a source of the workload's own, every file in its folder `data`, and the source's file."""
    folder = files.raw_dir(workload)
    if params.table:
        return [folder / params.table]
    assert params.component
    return [*(path for path in sorted(folder.rglob("*")) if path.is_file()), params.component.path]


def stamp_of(path: Path) -> Stamp:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
