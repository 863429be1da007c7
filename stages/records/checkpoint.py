"""Checkpoints: where a killed training goes on, bit for bit.

They lie outside every DVC out (DVC deletes outs before a stage runs), in `.tandem/checkpoints/<workload>/`, named by what they belong to:
parameters, data, code and hardware. A checkpoint of anything else is never loaded. Taken at epoch boundaries. One file, replaced
atomically: the sha256 of what follows (a flipped bit is found), then tensors and plain values only, loaded with `weights_only`, so that a
file from elsewhere can run no code.
"""

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.files import STATE, relative, replacing

DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one training. `belongs_to` maps params, data, code and hardware to what they are."""

    path: Path
    belongs_to: dict[str, Any]

    @classmethod
    def of(cls, workload: str, device: str, belongs_to: dict[str, Any]) -> "Checkpoint":
        digest = hashlib.sha256(json.dumps(belongs_to, sort_keys=True).encode()).hexdigest()[:16]
        return cls(STATE / "checkpoints" / workload / f"{device}-{digest}.pt", belongs_to)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the old checkpoint by `state`. Raises OSError that says how much room is needed where it cannot be written."""
        buffer = io.BytesIO()
        torch.save({"belongs_to": json.dumps(self.belongs_to, sort_keys=True), "state": state}, buffer)
        payload = buffer.getbuffer()
        try:
            with replacing(self.path) as temporary, temporary.open("wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
        except OSError as error:
            raise OSError(
                f"the checkpoint {relative(self.path)} could not be written ({error.strerror}); it needs {len(payload) / 2**20:.1f} MiB; "
                "the one before it is untouched: make room and run again"
            ) from error

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, str]:
        """The saved state on `device`, or None; and a sentence on what was found (empty where there was nothing)."""
        if not self.path.exists():
            return None, self.others()
        content = read(self.path, device)
        if content is None:
            return None, f"{relative(self.path)} is damaged (its sha256 does not match): starting from the first epoch"
        return content["state"], f"going on from {relative(self.path)}"

    def others(self) -> str:
        """What differs between this training and the newest other checkpoint of the same workload and device, if there is one."""
        device = self.path.name.partition("-")[0]
        found = sorted(self.path.parent.glob(f"{device}-*.pt"), key=lambda path: path.stat().st_mtime)
        content = read(found[-1], torch.device("cpu")) if found else None
        if content is None:
            return ""
        theirs = json.loads(content["belongs_to"])
        differing = [name for name in self.belongs_to if theirs.get(name) != self.belongs_to[name]]
        return f"not going on from {relative(found[-1])}: it was made with other {' and '.join(differing)}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this training for this process; raises ValueError that names the holder where another one has it.

        The lock is the kernel's (flock): it ends with its process, however that ends. The file stays: removing it would let a third
        process lock a new file of the same name.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise ValueError(
                    f"this very training is already running (process {holder}); wait for it, or end it first"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def read(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What `save` wrote to `path`, or None where the bytes are not those any more."""
    content = path.read_bytes()
    if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
        return None
    return torch.load(io.BytesIO(content[DIGEST_BYTES:]), map_location=device, weights_only=True)
