"""The records of a run and of the model that it is compared with, and functions that write and read them.

    train.json        what was trained and what came out. The bytes are equal whenever the training is reproduced
    timing.json       what was measured, and where, when and on what
    score.json        the result on the test split. The bytes are equal whenever the evaluation is reproduced
    baseline.json     the fitted model that the network is compared with; its outputs are beside it

Each record has a version (`schema`) and the sha256 of its own content, because DVC does not check the files that it
restores from its cache. `train` writes train.json and timing.json, `evaluate` writes score.json. All of them are
small text files.
"""

import json
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from tandem import files

T = TypeVar("T")
SCHEMA: Literal[2] = 2
STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(STRICT)
class Realized(TypedDict):
    """The settings in force, after `auto` and after out-of-memory fallbacks."""

    threads: NotRequired[int]  # only if another number would change the result
    precision: str
    step: NotRequired[str]  # eager, graph or compile; absent for a fitted model: it takes no steps
    grad_accum_steps: int
    workers: NotRequired[int]  # if there are several
    batch_size: NotRequired[int]  # of all workers, if `scaling` changed it
    learning_rate: NotRequired[float]


@with_config(STRICT)
class DataDigests(TypedDict):
    table: str | None  # None: simulated data
    prepared: dict[str, str]  # file -> sha256
    packed: dict[str, str]  # split -> sha256


@with_config(STRICT)
class Digests(TypedDict):
    data: DataDigests
    code: dict[str, str]  # file -> fingerprint (tandem/code_dependencies.py)
    weights: dict[str, str]  # initial, best, last


@with_config(STRICT)
class TrainRecord(TypedDict):
    schema: Literal[2]
    workload: str
    requested: str  # the device in params.yaml
    device: str  # cpu or cuda
    seed: int
    preset: str
    block: dict[str, Any]  # the workload's block of params.yaml in force, with the preset applied
    realized: Realized
    selection: NotRequired[dict[str, Any]]  # what a model selected (its method `selection`): selected, held_out
    digests: Digests
    epochs: list[dict[str, float | int | str]]  # exact losses and score, sha256 of weights, order and random draws
    files: dict[str, str]  # file -> sha256


@with_config(STRICT)
class Placement(TypedDict):
    """Where the data was, which fallbacks were taken, and why. train.json contains what changes the results."""

    data_location: str
    out_of_memory: list[str]  # the fallbacks
    workers_from_epoch: NotRequired[dict[str, int]]  # first epoch -> number of workers, if the number changed


@with_config(STRICT)
class TimingRecord(TypedDict):
    schema: Literal[2]
    run_key: str  # names the MLflow run, also after the training resumed
    mlflow: NotRequired[dict[str, str]]  # experiment, run_id, experiment_id
    machine: str
    measured_at: str
    tree: dict[str, Any]  # commit and patch (tandem/runs/provenance.py)
    environment: dict[str, Any]  # requirements_sha256, versions
    hardware: dict[str, Any]  # tandem/devices/hardware.py
    kernels: str  # that the steps chose: `Tandem's GRU`
    conditions: dict[str, Any]  # before, after (tandem/machine/conditions.py), between
    placement: Placement
    timing: dict[str, Any]  # epoch_seconds, samples_per_second, peaks of memory, epoch_joules ...; missing_reasons
    probe: dict[str, Any]  # how the time of a step is spent
    not_probed: dict[str, str]
    summary_lines: dict[str, str]  # sentences for people
    files: dict[str, str]


@with_config(STRICT)
class ScoreRecord(TypedDict):
    schema: Literal[2]
    score_name: str
    metrics: dict[str, float]
    own_metrics: NotRequired[dict[str, bool]]  # those of the workload's own -> whether higher is better
    evaluate: dict[str, Any]  # the section of the workload's block in force
    task: dict[str, Any]  # what comparing and drawing need: RECORDED of tandem/params/task_attributes.py
    sentence: str
    train_sha256: str  # of the train.json whose weights were evaluated
    files: dict[str, str]


@with_config(STRICT)
class BaselineRecord(TypedDict):
    """The fitted model that the network is compared with, or the reason why there is none (stages/baseline.py)."""

    schema: Literal[2]
    reason: str  # empty if there is one
    about: NotRequired[str]  # what was fitted to how many sequences
    selected: NotRequired[str]  # the candidate of tandem/fitted/model_selection.py
    held_out: NotRequired[dict[str, float]]  # the candidates' scores on sequences that they did not learn from
    files: dict[str, str]


def write(path: Path, kind: type[T], record: T) -> None:
    """Write a record with its sha256. Raises ValidationError for a record that is not of its kind."""
    TypeAdapter(kind).validate_python(record)
    files.write_json(path, {**dict(record), "sha256": files.digest(record)})  # type: ignore[call-overload]


def read(content: bytes, source: str, kind: type[T], fix: str = files.MAKES_ANEW) -> T:
    """Parse a record. Raises ValueError with `source` and `fix` if it is damaged, altered or of another version."""
    record = json.loads(json.dumps(files.parse_json(content, source, fix)))
    if (schema := record.get("schema")) != SCHEMA:
        raise ValueError(
            f"{source} has schema {schema!r}, but this Tandem reads {SCHEMA}; use the version of Tandem that wrote it"
        )
    sha256 = record.pop("sha256", None)
    if sha256 != files.digest(record):
        raise files.altered(source, fix)
    try:
        return TypeAdapter(kind).validate_python(record)
    except ValidationError as error:
        problem = error.errors()[0]
        raise files.damaged(source, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}", fix) from None
