"""The manifest of a run: what it takes to compare it with another run, wherever that was made, or to make it again.

`train` writes what it knows to training.json in results/runs/<workload>/<device>/<seed>/; `evaluate` adds the test's
result, and that is manifest.json there, and an artifact of MLflow's run. It is text, and small. Imports neither torch
nor mlflow.

    schema              SCHEMA
    workload, requested (device as params.yaml asks), device (cpu or cuda), seed, machine, made_at
    tree                commit; patch from it to the files of the run (stages/records/provenance.py)
    block               the workload's block of params.yaml as it took effect, preset included; preset: its name
    realized            threads, precision, accumulation, step, why_not_graph, residency, out_of_memory;
                        of several workers: workers; where their number changed, workers_from_epoch (epoch -> number)
    digests             data: table, prepared (file -> sha256), packed (split -> sha256); code (file -> fingerprint);
                        weights: initial, best, last; predictions
    files               the sha256 of every other output of train and evaluate, by name
    environment         requirements_sha256, versions
    hardware            the device's identity (stages/machine/identity.py); kernels: who wrote what computes
    conditions          before, after (stages/machine/conditions.py), between: shares of the machine's time
    epochs              per epoch: the exact losses and score, weights_sha256, order_sha256, draws_sha256
    timing              epoch_seconds (one figure a process), samples_per_second, num_epochs_measured, peaks of memory
    result              score_name, metrics, weights: what evaluate adds
"""

import json
from pathlib import Path
from typing import Any

from stages.files import parse_json, relative, sha256_file, verified

SCHEMA = 1
NAME = "manifest.json"
OF_TRAINING = "training.json"  # without the test's result


def parse(text: bytes | str, source: str) -> dict[str, Any]:
    """Raises ValueError where `text` is no manifest that this version reads; `source` says where it comes from."""
    try:
        found = parse_json(text, source, "a training leaves another one")
        schema = found["schema"]
    except ValueError:
        raise ValueError(f"{source} is no manifest of a Tandem run (no JSON with a `schema`)") from None
    if schema != SCHEMA:
        age = "a newer" if isinstance(schema, int) and schema > SCHEMA else "an older"
        advice = "update Tandem" if age == "a newer" else "use the version of Tandem that made it"
        raise ValueError(
            f"{source} has manifest schema {schema!r}, made by {age} Tandem; this one reads {SCHEMA}; {advice}"
        )
    return found


def read(path: Path) -> dict[str, Any]:
    return parse(path.read_bytes(), relative(path))


def digests(folder: Path, *names: str) -> dict[str, str]:
    """The sha256 of the files `names`."""
    return {name: sha256_file(folder / name) for name in names}


def require_intact(folder: Path, stage: str) -> None:
    """Raises ValueError if a file of an evaluated run is not the recorded one: DVC restores damaged files unchecked.

    `stage`: of dvc.yaml, which makes them again. What the manifest itself holds is checked against other files.
    """
    whole = read(folder / NAME)
    for name, sha256 in whole["files"].items():
        verified(folder / name, sha256, stage)
    trained = {name: value for name, value in read(folder / OF_TRAINING).items() if name not in ("digests", "files")}
    metrics = parse_json((folder / "metrics.json").read_bytes(), "metrics.json", "evaluate leaves another one")
    known = {**whole, **trained, "result": {**whole["result"], "metrics": metrics}}
    if json.dumps(known) != json.dumps(whole):
        verified(folder / NAME, "another one", stage)


def with_result(
    manifest: dict[str, Any], score_name: str, metrics: dict[str, float], weights: str, files: dict[str, str]
) -> dict[str, Any]:
    """`manifest` with what evaluate found. `files`: the sha256 of its outputs."""
    return {
        **manifest,
        "digests": {**manifest["digests"], "predictions": files["predictions.csv"]},
        "files": manifest["files"] | files,
        "result": {"score_name": score_name, "metrics": metrics, "weights": weights},
    }
