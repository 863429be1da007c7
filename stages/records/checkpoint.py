"""Checkpoints: the state of a training after an epoch, from which a killed one goes on, bit for bit.

A training has at most these files in `.tandem/checkpoints/<workload>/`, outside every DVC out (DVC deletes outs before
a stage runs). The digest is of what the training belongs to: parameters, data, code and hardware.

    <device>-<digest>.pt             the newest checkpoint
    <device>-<digest>.previous.pt    the one before it
    <device>-<digest>.token          names its MLflow run, until the first checkpoint does
    <device>-<digest>.result         the training has ended: the md5 of its timings.csv, as DVC records it
    <device>-<digest>.lock           names the process that trains

A checkpoint is written aside, synced, read back and checked before it replaces another. Its first 32 bytes are the
sha256 of the rest: tensors and plain values, which `weights_only` loads, so a file from elsewhere cannot run code.
"""

import hashlib
import io
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages import files
from stages.files import ROOT, STATE, relative

DIGEST_BYTES = hashlib.sha256().digest_size
NUM_KEPT = 8  # trainings of a workload on a device whose checkpoints are kept


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoints of one training. `belongs_to`: the values or digests of parameters, data, code and hardware."""

    path: Path
    belongs_to: dict[str, Any]

    @classmethod
    def of(cls, workload: str, device: str, belongs_to: dict[str, Any]) -> "Checkpoint":
        digest = hashlib.sha256(as_text(belongs_to).encode()).hexdigest()[:16]
        return cls(folder_of(workload) / f"{device}-{digest}.pt", belongs_to)

    @property
    def previous(self) -> Path:
        return self.path.with_suffix(".previous.pt")

    @property
    def result(self) -> Path:
        return self.path.with_suffix(".result")

    @property
    def token_file(self) -> Path:
        return self.path.with_suffix(".token")

    def token(self) -> str:
        """Names the MLflow run of a training without a checkpoint: the same one each time until there is one."""
        with suppress(FileNotFoundError):
            kept = self.token_file.read_text(encoding="ascii", errors="replace")
            if re.fullmatch("[0-9a-f]{32}", kept):
                return kept
        token = uuid.uuid4().hex
        files.write_text(self.token_file, token)
        return token

    def save(self, state: dict[str, Any]) -> None:
        """Make `state` the newest checkpoint, and the newest so far the one before it.

        Raises OSError that names the path, the bytes needed and the bytes free; the checkpoints are then what they
        were.
        """
        buffer = io.BytesIO()
        torch.save({"belongs_to": as_text(self.belongs_to), "state": state}, buffer)
        kept = "the checkpoint before it is untouched; "
        with (
            buffer.getbuffer() as payload,  # ended in time: Python frees the two that an error keeps in any order
            files.replacing(self.path, num_bytes=DIGEST_BYTES + len(payload), kept=kept) as temporary,
        ):
            digest = hashlib.sha256(payload).digest()
            with temporary.open("wb") as file:
                file.write(digest)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):  # read back what the disk has, not what memory has
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            written = temporary.read_bytes()
            if written[:DIGEST_BYTES] != digest or hashlib.sha256(written[DIGEST_BYTES:]).digest() != digest:
                raise OSError(
                    f"the checkpoint {relative(self.path)} reads back with other bytes than were written; "
                    "the one before it is untouched: look at the disk (dmesg, smartctl) and run the same command again"
                )
            if self.path.exists():
                os.replace(self.path, self.previous)
        self.token_file.unlink(missing_ok=True)  # `state` has it, and what starts anew without it is another run

    def load(self, device: torch.device) -> tuple[dict[str, Any] | None, str]:
        """The newest state that can be used, on `device`, or None; and a sentence on what was found, empty for nothing.

        What cannot be used is removed, so that it never replaces a good one.
        """
        reasons: list[str] = []
        for path in (self.path, self.previous):
            if not path.exists():
                continue
            content, reason = read(path, device)
            if content and content["belongs_to"] == as_text(self.belongs_to):
                return content["state"], f"{''.join(reasons)}going on from {relative(path)}"
            path.unlink()
            reasons.append(f"{relative(path)} {reason or 'belongs to another training'} and was removed; ")
        return None, f"{''.join(reasons)}starting from the first epoch" if reasons else self.others()

    def others(self) -> str:
        """Why the newest checkpoint of this workload and device does not fit; empty where there is none."""
        found = self.siblings()
        if not found:
            return ""
        content, reason = read(found[-1], torch.device("cpu"))
        if content:
            theirs = json.loads(content["belongs_to"])
            differing = [name for name in self.belongs_to if theirs.get(name) != self.belongs_to[name]]
            reason = f"was made with other {' and '.join(differing)}"
        return f"not going on from {relative(found[-1])}: it {reason}"

    def siblings(self) -> list[Path]:
        """The newest checkpoints of the other trainings of this workload and device, the oldest first."""
        found = self.newest_last("pt")
        return [path for path in found if path != self.path and not path.name.endswith(".previous.pt")]

    def newest_last(self, ending: str) -> list[Path]:
        """The files of all trainings of this workload and device with that ending."""
        found = []
        for path in self.path.parent.glob(f"{self.path.name.partition('-')[0]}-*.{ending}"):
            with suppress(FileNotFoundError):  # its training has just ended
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def ended(self, timings: Path) -> None:
        """Note that the training has ended with the result that holds `timings`. DVC may not have it yet."""
        files.write_text(self.result, hashlib.md5(timings.read_bytes(), usedforsecurity=False).hexdigest())

    def remove(self) -> None:
        """The note of the result last: a process that is killed in between leaves what tells the next one to go on."""
        for path in (self.previous, self.path, self.token_file, self.result):
            path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Remove what is needed no more: of trainings whose result DVC has, and of all but the newest few."""
        remove_stored(self.path.parent)
        for path in self.siblings()[: -NUM_KEPT + 1]:
            Checkpoint(path, {}).remove()
        for path in self.newest_last("token")[:-NUM_KEPT]:
            path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running this training. Raises ValueError that names the one which does."""
        with files.locked(self.path.with_suffix(".lock"), wait=False) as holder:
            if holder is not None:
                running = f"this very training is already running (process {holder or 'unknown'})"
                raise ValueError(f"{running}; wait for it, or end it first")
            files.remove_leftovers(self.path)
            yield


def folder_of(workload: str) -> Path:
    return STATE / "checkpoints" / workload


def remove_stored(folder: Path) -> None:
    """Remove the checkpoints of the trainings that have ended and whose result dvc.lock records."""
    lock = ROOT / "dvc.lock"
    stored = lock.read_text(encoding="utf-8") if lock.exists() else ""
    for result in folder.glob("*.result"):
        with suppress(FileNotFoundError):  # another stage has just removed it
            md5 = result.read_text(encoding="ascii", errors="replace")
            if len(md5) == 32 and md5 in stored:
                Checkpoint(result.with_suffix(".pt"), {}).remove()


def as_text(belongs_to: dict[str, Any]) -> str:
    return json.dumps(belongs_to, sort_keys=True)


def read(path: Path, device: torch.device) -> tuple[dict[str, Any] | None, str]:
    """What `save` wrote to `path`; or None and what is wrong with the file."""
    raw = path.read_bytes()
    if hashlib.sha256(raw[DIGEST_BYTES:]).digest() != raw[:DIGEST_BYTES]:
        return None, "is damaged (its sha256 does not match)"
    try:
        content = torch.load(io.BytesIO(raw[DIGEST_BYTES:]), map_location=device, weights_only=True)
        json.loads(content["belongs_to"]), content["state"]
    except Exception as error:  # a pickle that would run code, or any other file: torch raises what it likes
        return None, f"is no checkpoint of Tandem ({type(error).__name__})"
    return content, ""
