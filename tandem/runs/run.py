"""One recorded run: a training, and its evaluation if there is one.

`open_folder` opens a run from its files: results/runs/<workload>/<device>/ with the files of every seed, a copy of it
from another machine, or a copy of a run's artifacts in MLflow. tandem/tracking/find_runs.py finds runs by name, also in
MLflow. Published runs and reruns (published.py and verdicts.py in tandem/comparing) are a `Run` too; their records have
what is known. All code that compares, shows, verifies or reports runs uses `Run`. This module imports
neither torch nor mlflow.

    train/result/<seed>/         the first seed: train.json, model.json, history.csv, weights
    train/measured/<seed>/       timing.json, timings.csv, mlflow.json
    replicate/result/<seed>/     each of the other seeds, if there are any
    replicate/measured/<seed>/
    evaluate/result/<seed>/      every seed: score.json, predictions.csv, scores.csv, confusion.csv
    evaluate/measured/<seed>/    in_mlflow.json
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tandem import files
from tandem.params.parsing import value_at
from tandem.params.task_attributes import recorded_attributes
from tandem.runs import schemas
from tandem.runs.schemas import ScoreRecord, TimingRecord, TrainRecord
from tandem.terminal.command import WrongArgument

TRAININGS = ("train", "replicate")  # the stages whose outputs are trainings
# The folders of a seed's files, and those of a run's artifacts, as in MLflow.
BY_SEED = tuple(f"{stage}/{folder}" for stage in (*TRAININGS, "evaluate") for folder in ("result", "measured"))
FLAT = ("", "evaluation")
# Takes a file name; returns the content and the source (for messages). Raises FileNotFoundError.
ReadFile = Callable[[str], tuple[bytes, str]]


@dataclass(frozen=True)
class Run:
    name: str  # as shown in messages and tables
    train: TrainRecord
    timing: TimingRecord
    score: ScoreRecord | None  # None: not evaluated
    read: ReadFile = field(repr=False, compare=False)
    run_id: str | None = None  # MLflow's; None if the run was read from files

    @property
    def workload(self) -> str:
        return self.train["workload"]

    @property
    def requested(self) -> str:
        """The device in params.yaml."""
        return self.train["requested"]

    @property
    def kind(self) -> str:
        """`cpu`, `cuda`: the kind of device that it ran on."""
        return self.train["device"]

    @property
    def seed(self) -> int:
        return self.train["seed"]

    @property
    def is_fitted(self) -> bool:
        """Whether the model was fitted without steps."""
        return "step" not in self.train["realized"]

    @property
    def model_name(self) -> str:
        return str(self.train["block"]["train"]["model"]["name"])

    @property
    def subject(self) -> str:
        """What was trained, in a sentence: `the network`, `the fitted model (rocket)`, or with the selected candidate
        `the fitted model (model_selection: forest)`.
        """
        if not self.is_fitted:
            return "the network"
        selected = self.train.get("selection", {}).get("selected")
        names = filter(None, (self.model_name, selected))
        return f"the fitted model ({': '.join(names)})"

    @property
    def test_score(self) -> float:
        """The task's score on the test split, of an evaluated run."""
        assert self.score
        return self.score["metrics"][self.score["score_name"]]

    @property
    def times(self) -> dict[str, Any]:
        """What was measured of the training (quantities.py), and `missing_reasons`."""
        return self.timing["timing"]

    @property
    def hardware_name(self) -> str:
        return str(self.timing["hardware"]["name"])

    @property
    def one_device(self) -> str:
        """The name of its device; of one of them, if there were several workers (tandem/devices/hardware.py)."""
        return self.hardware_name.rpartition(" workers on ")[2]

    @property
    def is_timed(self) -> bool:
        """Whether the training ran alone and was measured; a replicate was not."""
        return self.times.get("epoch_seconds") is not None

    @property
    def threads(self) -> int | None:
        """The number of threads with which the steps ran, on average; None if no record says so."""
        observed = self.times.get("threads")
        return self.train["realized"].get("threads") if observed is None else round(observed)

    @property
    def tracking(self) -> dict[str, str]:
        """The ids of the MLflow run that has its evaluation, for links. If `evaluate` has other settings than the
        training recorded, that is not the run of the training.
        """
        try:
            ids: dict[str, str] = files.parse_json(*self.read(files.IN_MLFLOW))
            return ids
        except FileNotFoundError:  # not evaluated
            return self.timing.get("mlflow", {})

    @cached_property
    def block(self) -> dict[str, Any]:
        """The workload's block of params.yaml in force. Its `evaluate` may be newer than the training."""
        evaluated = {"evaluate": self.score["evaluate"]} if self.score and "evaluate" in self.score else {}
        return {**self.train["block"], **evaluated}

    @property
    def realized(self) -> dict[str, Any]:
        """The settings in force, where the data was, and the fallbacks."""
        return {**self.train["realized"], **self.timing["placement"]}

    @property
    def has_groups(self) -> bool:
        """Whether the test sequences have groups, from a column of the table or from a source of the workload's own."""
        return "test/groups.npy" in self.train["digests"]["data"]["prepared"]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The three records as one, in which dotted paths name values: all that makes a run comparable and repeatable.
        It has all settings in `realized`, all digests in `digests`, and the score in `result`.
        """
        manifest: dict[str, Any] = {**self.train, **self.timing, "block": self.block, "realized": self.realized}
        manifest["threads"] = self.threads
        if self.score:
            manifest["digests"] = {**self.train["digests"], "predictions": self.digests.get("predictions.csv")}
            manifest["result"] = self.score
        return manifest

    def value(self, path: str) -> Any:
        """The value in the manifest with this dotted path; None if the records lack it."""
        return value_at(self.manifest, path)

    @cached_property
    def task_attributes(self) -> dict[str, Any]:
        """What comparing and drawing need to know of the task. Its file need not be here."""
        return recorded_attributes(self.train["block"]["task"], self.score)

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


def open_folder(path: Path, seed: int | None = None) -> Run:
    """Open the run at `path`: the folder of a run, of a device (the first seed, or `seed`) or of one of its seeds, or a
    file in it. Raises ValueError if there is none or it is damaged.
    """
    path = path.resolve()
    folder = path if path.is_dir() else path.parent
    if folder.name.isdigit() and any(folder.parent.match(f"*/{place}") for place in BY_SEED):
        folder, seed = folder.parents[2], int(folder.name)
    name, places = files.relative(folder), list(FLAT)
    if stages := seeds_in(folder):
        seed = next(iter(stages)) if seed is None else seed
        name += f"/{stages.get(seed, TRAININGS[0])}/result/{seed}"
        places = [f"{place}/{seed}" for place in BY_SEED]

    def read(file: str) -> tuple[bytes, str]:
        if entry := next(filter(Path.is_file, (folder / place / file for place in places)), None):
            return entry.read_bytes(), files.relative(entry)
        raise FileNotFoundError(file)

    return open_run(name, read)


def seeds_in(folder: Path) -> dict[int, str]:
    """The seeds that were trained, each with the stage that did it, the first of params.yaml first. `folder`: that of a
    device in results/runs/, or a copy. Empty for any other folder.
    """
    stages = dict[int, str]()
    for stage in TRAININGS:
        trained = (int(path.parent.name) for path in folder.glob(f"{stage}/result/[0-9]*/train.json"))
        stages |= dict.fromkeys(sorted(trained), stage)
    return stages


def open_run(name: str, read: ReadFile, run_id: str | None = None) -> Run:
    """Open the run whose files `read` returns. Raises ValueError if it has no records or they are damaged."""
    records: list[Any] = []
    for file, kind in (("train.json", TrainRecord), ("timing.json", TimingRecord), ("score.json", ScoreRecord)):
        try:
            records.append(schemas.read(*read(file), kind, fix_of(name, file)))
        except FileNotFoundError:
            records.append(None)
    train, timing, score = records
    if train is None or timing is None:
        missing, kind_of_error = ("timing.json", ValueError) if train else ("train.json", WrongArgument)
        reason = f"{name} has no {missing}, which every finished training writes"
        raise kind_of_error(f"{reason}; {fix_of(name, missing)}")
    # The score of an earlier training does not count: `evaluate` has not run since.
    is_current = score is not None and score["train_sha256"] == files.digest(train)
    return Run(name, train, timing, score if is_current else None, read, run_id)


def fix_of(name: str, file: str) -> str:
    """Return how to make a file of a run again. `name`: that of the run; its folder, if it is in results/runs/."""
    parts = Path(name).parts
    if parts[:2] != ("results", "runs") or len(parts) != 7:
        return "name another run, or train and evaluate this one again"
    _, _, workload, device, stage, _, _ = parts
    if file in ("score.json", "scores.csv", "confusion.csv", "predictions.csv"):
        stage = "evaluate"
    return files.make_again(f"{stage}@{workload}-{device}")
