"""Reads runs of schema 1: one manifest.json (training.json before the evaluation) instead of three records."""

from typing import Any

from tandem import files
from tandem.runs import schemas
from tandem.runs.schemas import ScoreRecord, TimingRecord, TrainRecord

NAMES = ("manifest.json", "training.json")
# Old name -> new name of a setting in `realized`.
RENAMED = {"accumulation": "grad_accum_steps", "residency": "data_location", "why_not_graph": "graph_blocker"}
PLACEMENT = ("data_location", "out_of_memory", "graph_blocker", "workers_from_epoch")
OF_TRAIN = ("workload", "requested", "device", "seed", "preset", "block", "epochs")
OF_TIMING = ("token", "machine", "measured_at", "tree", "environment", "hardware", "kernels", "conditions", "timing")
SCORED = ("scores.csv", "confusion.csv", "predictions.csv")
TRAINED = ("best.safetensors", "last.safetensors", "model.json", "history.csv")


def convert(content: bytes, source: str) -> tuple[TrainRecord, TimingRecord, ScoreRecord | None]:
    """Raises ValueError if `content` is not a manifest of schema 1. `source`: its origin, for the message."""
    try:
        old = files.parse_json(content, source, "a training leaves another one")
        schema = old["schema"]
    except ValueError:
        raise ValueError(f"{source} is no manifest of a Tandem run (no JSON with a `schema`)") from None
    if schema != 1:
        raise schemas.unknown_schema(source, schema)
    settings, digests, recorded = realized(old["realized"]), old["digests"], old.get("files", {})
    train: Any = {
        "schema": schemas.SCHEMA,
        **{name: old[name] for name in OF_TRAIN},
        "realized": {name: value for name, value in settings.items() if name not in PLACEMENT},
        "digests": {name: digests[name] for name in ("data", "code", "weights")},
        "files": {name: recorded[name] for name in TRAINED if name in recorded},
    }
    timing: Any = {
        "schema": schemas.SCHEMA,
        **{name: old[name] for name in OF_TIMING if name in old},
        "placement": {name: settings[name] for name in PLACEMENT if name in settings},
        "files": {name: recorded[name] for name in ("timings.csv",) if name in recorded},
    }
    if "result" not in old:
        return train, timing, None
    score: Any = {
        "schema": schemas.SCHEMA,
        **old["result"],
        "train_sha256": schemas.digest(train),
        "files": {name: recorded[name] for name in SCORED if name in recorded}
        | {"predictions.csv": digests["predictions"]},
    }
    return train, timing, score


def realized(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings under their new names. A training could finish on another device (`finished_on`)."""
    renamed = {RENAMED.get(name, name): value for name, value in settings.items()}
    renamed.pop("finished_on", None)
    return renamed
