"""One recorded run: a training, and its evaluation if there is one.

`open_folder` opens a run from its files: results/runs/<workload>/<device>/<seed>/, a copy of it from another machine,
or a copy of its artifacts in MLflow. tandem/runs/recorded.py finds runs by name and opens them from MLflow. All code
that compares, shows, verifies or reports runs uses `Run`. This module imports neither torch nor mlflow.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tandem import files
from tandem.params.task_facts import recorded_facts
from tandem.runs import schemas
from tandem.runs.schemas import ScoreRecord, TimingRecord, TrainRecord

# The output folders of train and evaluate in results/runs/<workload>/<device>/<seed>/.
TRAIN_RESULT, TRAIN_MEASURED = "train/result", "train/measured"
RESULT, MEASURED = "evaluate/result", "evaluate/measured"
# Where a run's files are: in these folders, all in one folder, or as in MLflow, where tables are in `evaluation`.
PLACES = (TRAIN_RESULT, TRAIN_MEASURED, RESULT, MEASURED, "", "evaluation")
# Takes a file name; returns the content and the source (for messages). Raises FileNotFoundError.
Read = Callable[[str], tuple[bytes, str]]


@dataclass(frozen=True)
class Run:
    name: str  # as shown in messages and tables
    train: TrainRecord
    timing: TimingRecord
    score: ScoreRecord | None  # None: not evaluated
    read: Read = field(repr=False, compare=False)
    run_id: str | None = None  # MLflow's; None if the run was read from files

    @property
    def workload(self) -> str:
        return self.train["workload"]

    @property
    def device(self) -> str:
        return self.train["device"]

    @property
    def seed(self) -> int:
        return self.train["seed"]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Everything needed to compare the run with a run from any machine, or to reproduce it. It has the keys of the
        records, with all settings in `realized`, all digests in `digests`, and the score in `result`.
        """
        own = ("schema", "files", "placement", "mlflow", "probe", "not_probed", "summary_lines")
        records = {**self.train, **self.timing}
        found: dict[str, Any] = {name: value for name, value in records.items() if name not in own}
        found["realized"] = {**self.train["realized"], **self.timing["placement"]}
        if self.score:
            found["digests"] = {**self.train["digests"], "predictions": self.score["files"]["predictions.csv"]}
            found["result"] = {
                name: self.score[name]
                for name in ("score_name", "metrics", "weights", "own_metrics")
                if name in self.score
            }
            found["result"]["paired"] = self.task_facts["paired"]
        return found

    @cached_property
    def task_facts(self) -> dict[str, Any]:
        """What comparing and drawing need to know of the task. Its file need not be here."""
        return recorded_facts(self.train["block"]["task"], self.score)

    @cached_property
    def predictions(self) -> list[dict[str, str]]:
        """The rows of predictions.csv; empty if the run is not evaluated. Raises ValueError if they are altered."""
        return self.table("predictions") if self.score else []

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows of `name`.csv as text; `epochs` returns numbers."""
        return files.parse_rows(*self.open(f"{name}.csv"))

    def epochs(self, name: str) -> list[dict[str, float | None]]:
        """The rows of `name`.csv: history or timings."""
        return files.parse_numbers(*self.open(f"{name}.csv"))

    def open(self, name: str) -> tuple[bytes, str]:
        """Return the content of a file and its source. Raises ValueError if it is missing or not the recorded one: DVC
        does not check the files that it restores.
        """
        try:
            content, source = self.read(name)
        except FileNotFoundError:
            raise ValueError(f"{name} of {self.name} is missing; {fix_of(self.name, name)}") from None
        if name in self.digests and hashlib.sha256(content).hexdigest() != self.digests[name]:
            raise files.altered(source, fix_of(self.name, name))
        return content, source

    def require_intact(self) -> None:
        """Raises ValueError if a file is missing or not the recorded one."""
        for name in self.digests:
            self.open(name)

    @cached_property
    def digests(self) -> dict[str, str]:
        """File name -> recorded sha256."""
        return {**self.train["files"], **self.timing["files"], **(self.score["files"] if self.score else {})}


def open_folder(path: Path) -> Run:
    """Open the run at `path`: a folder, or one of its records. Raises ValueError if there is none or it is damaged."""
    path = path.resolve()
    folder = path if path.is_dir() else path.parent
    for place in PLACES[:4]:
        if folder.match(f"*/{place}"):
            folder = folder.parents[1]

    def read(name: str) -> tuple[bytes, str]:
        if found := next((file for place in PLACES if (file := folder / place / name).is_file()), None):
            return found.read_bytes(), files.relative(found)
        raise FileNotFoundError(name)

    return open_run(files.relative(folder), read)


def is_run(folder: Path) -> bool:
    return any((folder / place / "train.json").exists() for place in PLACES)


def open_run(name: str, read: Read, run_id: str | None = None) -> Run:
    """Open the run whose files `read` returns. Raises ValueError if it has no records or they are damaged."""
    records: list[Any] = []
    for file, kind in (("train.json", TrainRecord), ("timing.json", TimingRecord), ("score.json", ScoreRecord)):
        try:
            records.append(schemas.read(*read(file), kind, fix_of(name, file)))
        except FileNotFoundError:
            records.append(None)
    train, timing, score = records
    if train is None or timing is None:
        missing = "timing.json" if train else "train.json"
        raise ValueError(f"{name} holds no {missing}; a training leaves one in its folder")
    # The score of an earlier training does not count: `evaluate` has not run since.
    is_current = score is not None and score["train_sha256"] == files.digest(train)
    return Run(name, train, timing, score if is_current else None, read, run_id)


def fix_of(name: str, file: str) -> str:
    """Return how to make a file of a run again. `name`: the run's folder in results/runs/, or another name."""
    parts = Path(name).parts
    if parts[:2] != ("results", "runs") or len(parts) != 5:
        return "name another run, or train and evaluate this one again"
    stage = "evaluate" if file in ("score.json", "scores.csv", "confusion.csv", "predictions.csv") else "train"
    return files.make_again(f"{stage}@{'-'.join(parts[2:])}")
