"""Checkpoints: the state of a training after an epoch, from which a killed one goes on, bit for bit.

A checkpoint lies in `.tandem/checkpoints/<workload>/`, outside every DVC out (DVC deletes outs before a stage runs).
Its name is a digest of what it belongs to: parameters, data, code and hardware; a training never loads a checkpoint
of another. The file is replaced atomically. It holds the sha256 of the rest, which finds a flipped bit, then tensors
and plain values. `weights_only` loads these, so a file from elsewhere cannot run code.
"""

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages import files
from stages.files import STATE, relative, replacing

DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one training. `belongs_to`: the values or digests of parameters, data, code and hardware."""

    path: Path
    belongs_to: dict[str, Any]

    @classmethod
    def of(cls, workload: str, device: str, belongs_to: dict[str, Any]) -> "Checkpoint":
        digest = hashlib.sha256(json.dumps(belongs_to, sort_keys=True).encode()).hexdigest()[:16]
        return cls(STATE / "checkpoints" / workload / f"{device}-{digest}.pt", belongs_to)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the old checkpoint by `state`. Raises OSError that names the bytes needed where this fails."""
        buffer = io.BytesIO()
        torch.save({"belongs_to": json.dumps(self.belongs_to, sort_keys=True), "state": state}, buffer)
        payload = buffer.getbuffer()
        try:
            with replacing(self.path) as temporary, temporary.open("wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
        except OSError as error:
            raise OSError(
                f"the checkpoint {relative(self.path)} could not be written ({error.strerror}); "
                f"it needs {len(payload) / 2**20:.1f} MiB; the one before it is untouched: make room and run again"
            ) from error

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, str]:
        """The saved state on `device` or None, and a sentence on what was found (empty for nothing)."""
        if not self.path.exists():
            return None, self.others()
        content = read(self.path, device)
        if content is None:
            return None, f"{relative(self.path)} is damaged (its sha256 does not match): starting from the first epoch"
        return content["state"], f"going on from {relative(self.path)}"

    def others(self) -> str:
        """Why the newest checkpoint of this workload and device does not fit; empty where there is none."""
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
        """Keep other processes from running this training. Raises ValueError that names the one which does."""
        with files.locked(self.path.with_suffix(".lock"), wait=False) as holder:
            if holder is not None:
                running = f"this very training is already running (process {holder or 'unknown'})"
                raise ValueError(f"{running}; wait for it, or end it first")
            yield


def read(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What `save` wrote to `path`, or None where the file is damaged."""
    content = path.read_bytes()
    if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
        return None
    return torch.load(io.BytesIO(content[DIGEST_BYTES:]), map_location=device, weights_only=True)
