"""The manifest of a run: everything needed to compare it with a run from any machine, or to reproduce it.

`train` writes its part to training.json in results/runs/<workload>/<device>/<seed>/. `evaluate` adds the test result
and writes manifest.json there, which is also an artifact of the MLflow run. It is a small text file. This module
imports neither torch nor mlflow.

    schema              SCHEMA
    workload, requested (device in params.yaml), device (cpu or cuda), seed, machine, measured_at, token
    tree                commit; patch from the commit to the files of the run (stages/records/provenance.py)
    block               the workload's block of params.yaml in force, with the preset applied; preset: its name
    realized            threads, precision, accumulation, step, why_not_graph, residency, out_of_memory;
                        for several workers: workers; if their number changed, workers_from_epoch (epoch -> number)
    digests             data: table, prepared (file -> sha256), packed (split -> sha256); code (file -> fingerprint);
                        weights: initial, best, last; predictions
    files               file name -> sha256, for every other output of train and evaluate
    environment         requirements_sha256, versions
    hardware            the device's identity (stages/machine/identity.py); kernels: whose kernels run
    conditions          before, after (stages/machine/conditions.py), between: shares of the machine's time
    epochs              per epoch: the exact losses and score, weights_sha256, order_sha256, draws_sha256
    timing              epoch_seconds (one value per process), samples_per_second, num_epochs_measured, peak memory
    result              score_name, metrics, weights (added by evaluate)
"""

import json
from pathlib import Path
from typing import Any

from stages.files import parse_json, relative, sha256_file, verified

SCHEMA = 1
NAME = "manifest.json"
OF_TRAINING = "training.json"  # without the test result


def parse(text: bytes | str, source: str) -> dict[str, Any]:
    """Raises ValueError if `text` is not a manifest that this version reads. `source`: its origin, for the message."""
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
    """Return the sha256 of each of the files `names`."""
    return {name: sha256_file(folder / name) for name in names}


def require_intact(folder: Path, stage: str) -> None:
    """Raises ValueError if a file of an evaluated run is not the recorded one: DVC does not check the files that it
    restores.

    `stage`: the stage of dvc.yaml that makes the files. The manifest's own content is checked against the other files.
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
    """Return `manifest` with the result of evaluate. `files`: the sha256 of its outputs."""
    return {
        **manifest,
        "digests": {**manifest["digests"], "predictions": files["predictions.csv"]},
        "files": manifest["files"] | files,
        "result": {"score_name": score_name, "metrics": metrics, "weights": weights},
    }
