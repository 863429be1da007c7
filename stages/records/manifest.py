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
    environment         requirements_sha256, versions
    hardware            the device's identity (stages/machine/identity.py); kernels: who wrote what computes
    conditions          before, after (stages/machine/conditions.py), between: shares of the machine's time
    epochs              per epoch: the exact losses and score, weights_sha256, order_sha256, draws_sha256
    timing              epoch_seconds (one figure a process), samples_per_second, num_epochs_measured, peaks of memory
    result              score_name, metrics, weights: what evaluate adds
"""

from pathlib import Path
from typing import Any

from stages.files import parse_json, relative

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


def with_result(
    manifest: dict[str, Any], score_name: str, metrics: dict[str, float], weights: str, predictions: str
) -> dict[str, Any]:
    """`manifest` with what evaluate found. `predictions`: the sha256 of predictions.csv."""
    return {
        **manifest,
        "digests": {**manifest["digests"], "predictions": predictions},
        "result": {"score_name": score_name, "metrics": metrics, "weights": weights},
    }
