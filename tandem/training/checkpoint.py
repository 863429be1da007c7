"""Checkpoints: the state of a training after an epoch. A killed training resumes from it with identical bits.

The first checkpoint is written before the first epoch. It contains the key of the MLflow run and the settings of
`evaluate`, which a resumed training keeps. A checkpoint is a dict: `trainer` is what `Trainer.state` returns (None in
the first one), `record` the fields of the `Record` of the epochs so far (tandem/runs/record.py).

The checkpoint folder `.tandem/checkpoints/<workload>/` is outside every DVC output, because DVC deletes outputs before
a stage runs. A training has at most the files below. The digest covers the inputs of the training except the seed:
parameters, data, code and hardware (tandem/runs/inputs.py), and for a replicate the stage. `<device>` is as in
`devices` of params.yaml; for several workers with `scaling: strong`, which may resume with another number of workers,
it is their kind.

    <device>-<digest>-<seed>.pt             the newest checkpoint
    <device>-<digest>-<seed>.previous.pt    the checkpoint before it
    <device>-<digest>-<seed>.ended          exists when the training has ended; contains the md5 of its measured output,
                                            or says that its checkpoints are kept
    <device>-<digest>-<seed>.lock           names the process that trains; it stays

When dvc.lock contains that md5, DVC has stored the result and the files are removed, by the next training (`prune`) or
by `evaluate`. The md5 is that of the output train/measured, whose times differ in every training; train/result may be
equal in two trainings.

A replicate's checkpoints are kept: a later `replicate` with more seeds writes the results of the earlier seeds from
them.

A checkpoint is written to a temporary file, synced, read back and checked before it replaces another. Its first 32
bytes are the sha256 of the rest. The rest contains tensors and plain values and is loaded with `weights_only`, so a
file from elsewhere cannot run code.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tandem import files
from tandem.devices.hardware import hardware_identity
from tandem.devices.memory import is_out_of_memory
from tandem.files import ROOT, STATE, relative
from tandem.params.parsing import differing_names, flatten

if TYPE_CHECKING:
    from tandem.training.context import RunContext

DIGEST_BYTES = hashlib.sha256().digest_size
NUM_KEPT = 8  # trainings per workload and device whose checkpoints are kept, each with all its seeds


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoints of one training. `belongs_to`: the values or digests of its inputs."""

    path: Path
    belongs_to: dict[str, Any]

    @classmethod
    def of(cls, workload: str, device: str, belongs_to: dict[str, Any]) -> "Checkpoint":
        shared = {name: value for name, value in belongs_to.items() if name != "seed"}
        digest = hashlib.sha256(as_text(shared).encode()).hexdigest()[:16]
        return cls(folder_of(workload) / f"{device}-{digest}-{belongs_to['seed']}.pt", belongs_to)

    @classmethod
    def of_training(cls, context: "RunContext", inputs: dict[str, Any]) -> "Checkpoint":
        """The checkpoint of the training with these inputs.

        With `scaling: strong`, the number of workers does not change the batch. A replicate is not measured, so `train`
        must not resume from its checkpoint.
        """
        if context.is_replicate:
            inputs = {**inputs, "stage": context.stage}
        if context.num_workers == 1 or context.block.train.scaling != "strong":
            return cls.of(context.workload, context.requested, inputs)
        return cls.of(context.workload, context.kind, {**inputs, "hardware": hardware_identity(context.kind)})

    @property
    def previous(self) -> Path:
        return self.path.with_suffix(".previous.pt")

    @property
    def ended_file(self) -> Path:
        return self.path.with_suffix(".ended")

    def save(self, state: dict[str, Any]) -> None:
        """Save `state` as the newest checkpoint. The newest checkpoint so far becomes the previous one.

        Raises OSError that names the path, the bytes needed and the bytes free. The existing checkpoints can then still
        be used.
        """
        buffer = io.BytesIO()
        torch.save({"belongs_to": as_text(self.belongs_to), "state": state}, buffer)
        not_lost = "the previous checkpoint is unchanged; "
        with (
            buffer.getbuffer() as payload,  # released here: after an error, Python frees buffer and view in any order
            files.replacing(self.path, num_bytes=DIGEST_BYTES + len(payload), not_lost=not_lost) as temporary,
        ):
            digest = hashlib.sha256(payload).digest()
            with temporary.open("wb") as file:
                file.write(digest)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
                # Read back from the disk, not from the page cache.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            written = temporary.read_bytes()
            if written[:DIGEST_BYTES] != digest or hashlib.sha256(written[DIGEST_BYTES:]).digest() != digest:
                raise OSError(
                    f"the checkpoint {relative(self.path)} differs from what was written; the previous one is "
                    "unchanged: check the disk (dmesg, smartctl) and run the same command again"
                )
            if self.path.exists():
                os.replace(self.path, self.previous)

    def load(self) -> tuple[dict[str, Any] | None, str]:
        """Load the newest usable checkpoint. Returns (its state on the CPU, or None; a message for the user).

        Unusable checkpoints are removed, so that they never replace a good one. Without a file, the message is empty.
        """
        reasons: list[str] = []
        for path in (self.path, self.previous):
            if not path.exists():
                continue
            content, reason = read(path)
            if content and content["belongs_to"] == as_text(self.belongs_to):
                return content["state"], f"{''.join(reasons)}resuming from {relative(path)}"
            path.unlink()
            reasons.append(f"{relative(path)} {reason or 'belongs to another training'} and was removed; ")
        return None, f"{''.join(reasons)}starting from the first epoch" if reasons else self.why_not_resumed()

    def why_not_resumed(self) -> str:
        """Return why the newest other training of this workload, device and seed is not resumed. Empty if it has ended,
        has no epoch, or differs in other parameters than the number of epochs: then nobody expects it.
        """
        device, seed = self.path.name.partition("-")[0], self.path.stem.rpartition("-")[2]
        # The lock of a training stays, and its time is the training's start.
        locks = {*self.path.parent.glob(f"{device}-*-{seed}.lock")} - {self.path.with_suffix(".lock")}
        if not locks:
            return ""
        last = Checkpoint(max(locks, key=lambda lock: lock.stat().st_mtime_ns).with_suffix(".pt"), {})
        if last.ended_file.exists() or not last.path.exists():
            return ""
        content, reason = read(last.path)
        if content:
            if content["state"].get("trainer") is None:
                return ""
            differing = differing_names(flatten(json.loads(content["belongs_to"])), flatten(self.belongs_to))
            kinds = {"epochs" if name == "parameters.epochs" else name.partition(".")[0] for name in differing}
            if not kinds <= {"epochs", "data", "code", "hardware"}:
                return ""
            reason = f"was made with other {' and '.join(sorted(kinds))}"
        return f"not resuming from {relative(last.path)}: it {reason}"

    def siblings(self) -> list[Path]:
        """Return the newest checkpoints of the other trainings of this workload and device, oldest first. Trainings
        that differ only in their seed are left out.
        """
        by_time = []
        for path in self.path.parent.glob(f"{self.path.name.partition('-')[0]}-*.pt"):
            with suppress(FileNotFoundError):  # a training that has just ended removes its files
                if path.name.count(".") == 1 and without_seed(path) != without_seed(self.path):  # not `.previous.pt`
                    by_time.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(by_time)]

    def mark_ended(self, measured: Path | None) -> None:
        """Mark the training as ended. `measured` is the output with its times, which DVC may not have stored yet; None
        keeps the checkpoints.
        """
        files.write_text(self.ended_file, files.dvc_md5(measured) if measured else "kept")

    def remove(self) -> None:
        """Remove the files of this training, `ended_file` last: if this is killed, `prune` finds it and repeats it."""
        for path in (self.previous, self.path, self.ended_file):
            path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Remove checkpoints that are no longer needed: those whose result DVC has, and all but the newest NUM_KEPT."""
        remove_stored(self.path.parent)
        siblings = self.siblings()
        newest = list(dict.fromkeys(map(without_seed, reversed(siblings))))[: NUM_KEPT - 1]
        for path in siblings:
            if without_seed(path) not in newest:
                Checkpoint(path, {}).remove()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this training against other processes. Raises ValueError that names the process that holds the lock."""
        with files.locked(self.path.with_suffix(".lock"), wait=False) as holder:
            if holder is not None:
                running = f"this training is already running (process {holder or 'unknown'})"
                raise ValueError(f"{running}; wait for it, or stop it first")
            files.remove_leftovers(self.path)
            yield


def folder_of(workload: str) -> Path:
    return STATE / "checkpoints" / workload


def remove_stored(folder: Path) -> None:
    """Remove the checkpoints of ended trainings whose result dvc.lock records."""
    lock = ROOT / "dvc.lock"
    stored = lock.read_text(encoding="utf-8") if lock.exists() else ""
    for ended in folder.glob("*.ended"):
        with suppress(FileNotFoundError):  # another stage has just removed it
            md5 = ended.read_text(encoding="ascii", errors="replace")
            if len(md5) == 32 and md5 in stored:
                Checkpoint(ended.with_suffix(".pt"), {}).remove()


def without_seed(path: Path) -> str:
    """Return the name of a checkpoint without its seed: equal for trainings that differ only in the seed."""
    return path.name.partition(".")[0].rpartition("-")[0]


def as_text(belongs_to: dict[str, Any]) -> str:
    return json.dumps(belongs_to, sort_keys=True)


def read(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Return what `save` wrote to `path`, or None and the reason why the file is unusable."""
    raw = path.read_bytes()
    if hashlib.sha256(raw[DIGEST_BYTES:]).digest() != raw[:DIGEST_BYTES]:
        return None, "is damaged (its sha256 does not match)"
    try:
        content = torch.load(io.BytesIO(raw[DIGEST_BYTES:]), map_location="cpu", weights_only=True)
        json.loads(content["belongs_to"]), content["state"]
    except Exception as error:  # a pickle that would run code, or any other file: torch raises many types
        if is_out_of_memory(error):
            raise
        return None, f"is no checkpoint of Tandem ({type(error).__name__})"
    return content, ""
