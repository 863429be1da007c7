"""The journal: what a training or an evaluation tells MLflow, as lines in `.tandem/journals/<name>/journal.jsonl`.

Writing it needs neither mlflow (its import takes 1.6 s) nor a server, so a store that is slow or gone costs a
training nothing. `start` also starts the process that sends the journal meanwhile (stages/records/uploader.py). It is
never ended from here: where it is slow, it goes on after the training and removes the journal when everything has
arrived.

What lies in `.tandem/journals`:
    <name>/journal.jsonl    one JSON object a line: run, hold, metrics, saved, tags, model, end
    <name>/artifacts/       copies of the files to send, in MLflow's folders
    <name>/writer           the process that writes the journal; it holds a lock on this file
    <name>/watched          while it trains: the GPU's UUID, empty on a CPU
    <name>/live.jsonl       what the uploader reads of the machine meanwhile
    <name>/uploader.log     what the uploader and MLflow print
    <name>.json             the uploader's answer: `run_id`, `experiment_id`; where it failed `error`, `fix`
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stages.files import HOME, ROOT, STATE, relative
from stages.records.headline import rounded
from stages.records.store import keep_to_this_project, shown, tracking_uri

JOURNALS = STATE / "journals"
WAIT_SECONDS = 30.0  # for MLflow's ids, at the end of a training
SYNC = "python -m stages.records.uploader sync"
# What an entry of each kind has, besides the time at which it was written.
ENTRIES: dict[str, set[str]] = {
    "run": {"token", "experiment", "name", "params", "tags", "dataset"},
    "hold": set(),
    "metrics": {"step", "metrics"},
    "saved": set(),
    "tags": {"tags"},
    "model": {"val_score", "data"},
    "end": {"status"},
}


@dataclass
class Journal:
    """One journal in `folder`, and the process that sends it. `start` makes both."""

    folder: Path
    uploader: "subprocess.Popen[bytes]"
    writer: IO[str]  # its lock ends with this process, however that ends
    is_open: bool = False  # whether there is a run to record

    def write(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, "ms": int(time.time() * 1000), **content})
        path = self.folder / "journal.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:  # a full disk's has no name
            error.filename = relative(path)
            raise

    def run(
        self,
        token: str,
        experiment: str,
        name: str,
        params: dict[str, Any],
        tags: dict[str, str],
        dataset: dict[str, Any],
        parent: dict[str, str] | None = None,
    ) -> None:
        """Open the MLflow run that `token` names: a new one, or the one that an interrupted training opened.

        `parent` ({"token", "name"}) is the run above those that differ in their seed alone, where there are several.
        """
        self.is_open = True
        about = {"params": params, "tags": tags, "dataset": dataset, "parent": parent}
        self.write("run", token=token, experiment=experiment, name=name, **about)

    def metrics(self, metrics: dict[str, float | None], step: int | None = None) -> None:
        """Absent values (None) are left out: MLflow would store NaN as 0. The others are rounded."""
        known = {name: rounded(value) for name, value in metrics.items() if value is not None}
        self.write("metrics", step=step, metrics=known)

    def hold(self) -> None:
        """From here on the metrics of epochs wait until `saved` is called: a killed training trains them again."""
        self.write("hold")

    def saved(self) -> None:
        """A checkpoint holds all epochs so far."""
        self.write("saved")

    def tags(self, tags: dict[str, str]) -> None:
        """Add tags that are known only after `run`."""
        self.write("tags", tags=tags)

    def model(self, val_score: float, data: dict[str, str]) -> None:
        """Have the model among the artifacts registered; the best of those with equal digests (`data`) is named so."""
        self.write("model", val_score=val_score, data=data)

    @contextmanager
    def watched(self, gpu_uuid: str | None) -> Iterator[None]:
        """While the body runs, the uploader's process reads what the machine does (stages/records/live.py)."""
        with suppress(OSError):  # a full disk costs the curves, and nothing else
            (self.folder / "watched").write_text(gpu_uuid or "", encoding="utf-8")
        try:
            yield
        finally:
            (self.folder / "watched").unlink(missing_ok=True)

    def artifact(self, path: Path, folder: str = "", name: str = "") -> None:
        """Copy `path` for MLflow: the original belongs to DVC and may change before it is sent."""
        target = self.folder / "artifacts" / folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / (name or path.name))

    def text(self, text: str, name: str) -> None:
        target = self.folder / "artifacts" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def end(self, status: str | None) -> dict[str, Any]:
        """Write how the run ended, and return MLflow's ids of it: an empty dictionary where they are not known yet.

        `status` None leaves the status as it is: an evaluation adds to a training that has ended. Waits at most
        WAIT_SECONDS for the uploader's answer. Prints one sentence where the record has not arrived: why, where it is
        kept, and what to do.
        """
        self.write("end", status=status)
        if not self.is_open:  # the training failed before it began
            return {}
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            has_ended, is_late = self.uploader.poll() is not None, time.monotonic() > deadline
            answer = read_answer(self.folder)  # read last: the uploader answers, then ends
            if ("run_id" in answer and "error" not in answer) or has_ended or is_late:
                break
            time.sleep(0.02)
        if problem := self.problem(answer, has_ended):
            print(f"tracking: {problem}", file=sys.stderr)
        answer_file(self.folder).unlink(missing_ok=True)
        return {name: answer[name] for name in ("run_id", "experiment_id") if name in answer}

    def problem(self, answer: dict[str, str], has_ended: bool) -> str:
        """Why the record is not in MLflow yet, and what to do; empty where it is, or is being sent to an open run."""
        if "error" in answer:
            mend = f"; run: {answer['fix']}; then: {SYNC}" if answer["fix"] else f", send it with `{SYNC}`"
            return f"{answer['error']}; the record is kept in {relative(self.folder)}{mend}"
        if "run_id" in answer or not self.folder.exists():
            return ""
        if has_ended:
            log = relative(self.folder / "uploader.log")
            status = self.uploader.returncode
            return f"the uploader ended with exit status {status}, see {log}; send the record with `{SYNC}`"
        return (
            f"MLflow at {shown(tracking_uri())} is still starting; the record is being sent in the background. "
            f"If {relative(self.folder)} stays, send it with `{SYNC}`"
        )


def start() -> Journal:
    """A new journal, written by this process, and its uploader."""
    folder = JOURNALS / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    folder.mkdir(parents=True)
    # Not the process's number alone: after a restart of the machine another process may have it.
    writer = (folder / "writer").open("w")
    fcntl.flock(writer, fcntl.LOCK_EX)
    writer.write(str(os.getpid()))
    writer.flush()
    (folder / "journal.jsonl").touch()
    if moved := keep_to_this_project(timeout_seconds=0.1):  # a training waits for no store: the uploader does
        print(f"tracking: {moved}", flush=True)
    return Journal(folder, started_uploader(folder), writer)


def started_uploader(folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "uploader.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stages.records.uploader", "follow", str(folder)],
            cwd=ROOT,
            env={**os.environ, "DVC_ROOT": str(HOME)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl+C is for the trainer; the uploader still has to send how the run ended
        )


def answer_file(folder: Path) -> Path:
    """Where the uploader answers. Beside the journal's folder, because it removes that when everything has arrived."""
    return folder.with_suffix(".json")


def read_answer(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads(answer_file(folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):  # damaged: the journal itself says more
        return {}


class Damaged(ValueError):
    """A journal with a line that nothing wrote; `fix` is the command that gives up what that line held."""

    fix: str


def parse(line: bytes, folder: Path) -> dict[str, Any]:
    """The entry that a line of the journal in `folder` holds. Raises Damaged."""
    try:
        entry = json.loads(line)
        if {"kind", "ms"} | ENTRIES[entry["kind"]] <= entry.keys():
            return dict(entry)
        why = "an entry that is not whole"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    path = folder / "journal.jsonl"
    number = path.read_bytes().split(b"\n").index(line) + 1
    damaged = Damaged(f"{relative(path)} is damaged in line {number} ({why})")
    # The first line says which run it is: without it there is nothing to send.
    damaged.fix = f"sed -i {number}d {relative(path)}" if number > 1 else f"rm -r {relative(folder)}"
    raise damaged


def is_complete(folder: Path) -> bool:
    """Whether the journal in `folder` is complete; one that is gone has arrived."""
    try:
        return b'{"kind": "end"' in (folder / "journal.jsonl").read_bytes()
    except FileNotFoundError:
        return True


def has_writer(folder: Path) -> bool:
    """Whether the process that writes the journal in `folder` lives."""
    try:
        with (folder / "writer").open() as writer:
            fcntl.flock(writer, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def is_written(folder: Path) -> bool:
    """Whether a living process still writes the journal in `folder`."""
    return has_writer(folder) and not is_complete(folder)
