"""Runs with literal manifests and predictions, for tests of comparisons."""

import copy
import csv
import hashlib
import io
from collections.abc import Callable
from typing import Any

from tandem.comparing import comparison
from tandem.comparing.comparison import Judgement, Side
from tandem.runs.run import Run
from tandem.runs.schemas import TrainRecord

EPYC = "AMD EPYC 9654 96-Core Processor (family 25 model 17)"


def make_manifest(device: str, **changes: Any) -> dict[str, Any]:
    """`changes`: {"realized.step": "graph"}, by dotted path."""
    is_gpu = device == "cuda"
    cpu = {"name": EPYC, "cores": 16.0, "memory_mib": 64000}
    manifest = {
        "workload": "sign",
        "device": device,
        "requested": device,
        "threads": 1 if is_gpu else 16,
        "seed": 0,
        "tree": {"commit": "a" * 40, "patch": "", "patch_sha256": None},
        "block": {"task": "classify", "train": {"batch_size": 56, "threads": "auto", "model": {"name": "gru"}}},
        "realized": {
            "precision": "fp32",
            "grad_accum_steps": 1,
            "step": "graph" if is_gpu else "eager",
            "data_location": "device",
            "out_of_memory": [],
        },
        "digests": {
            "data": {
                "table": "1" * 64,
                "packed": {"train": "2" * 64, "val": "3" * 64, "test": "4" * 64},
                "prepared": {"train/ids.npy": "5" * 64, "train/values.npy": "9" * 64},
            },
            "weights": {},
            "code": {"tandem/training/step.py": "6" * 64, "tandem/models/gru.py": "7" * 64},
        },
        "environment": {
            "requirements_sha256": "8" * 64,
            "versions": {"python": "3.11.9", "torch": "2.11.0+cu128", **({"driver": "570.1"} if is_gpu else {})},
        },
        "hardware": {"kind": device, "name": "NVIDIA H100" if is_gpu else EPYC, "cpu": cpu, "torch": "2.11.0"},
        "machine": "server",
        "kernels": "cuDNN" if is_gpu else "Tandem's kernels",
        "conditions": {
            "before": {"cpu_seconds": {"all": 1000.0}},
            "after": {"cpu_seconds": {"all": 1100.0}},
            "between": {},
        },
        "epochs": [],
        "timing": {"epoch_seconds": 1.0 if is_gpu else 8.0, "missing_reasons": {}},
        "summary_lines": {},
        "result": {"score_name": "accuracy", "metrics": {"accuracy": 0.9}},
    }
    return changed(manifest, **changes)


def changed(manifest: dict[str, Any], **changes: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = manifest
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return manifest


CPU, GPU = make_manifest("cpu"), make_manifest("cuda")


def run_of(manifest: dict[str, Any], predictions: list[dict[str, Any]] | None = None) -> Run:
    """A run with this manifest. It is evaluated if there are predictions."""
    placed = ("data_location", "out_of_memory")
    train: Any = {name: manifest[name] for name in TrainRecord.__annotations__ if name in manifest} | {"files": {}}
    timing: Any = {name: value for name, value in manifest.items() if name not in (*train, "result")} | {"files": {}}
    train["realized"] = {name: value for name, value in manifest["realized"].items() if name not in placed}
    timing["placement"] = {name: manifest["realized"][name] for name in placed}
    timing["timing"] = {"threads": manifest["threads"], **timing["timing"]}
    if predictions is None:
        return Run("a run", train, timing, None, no_file)
    table = io.StringIO()
    writer = csv.DictWriter(table, predictions[0])
    writer.writeheader()
    writer.writerows(predictions)
    content = table.getvalue().encode()
    digest = hashlib.sha256(content).hexdigest()
    score: Any = {**manifest["result"], "files": {"predictions.csv": digest}}
    return Run("a run", train, timing, score, lambda name: (content, name) if name in score["files"] else no_file(name))


def no_file(name: str) -> tuple[bytes, str]:
    raise FileNotFoundError(name)


def classified(right: str, as_csv: bool = False) -> list[dict[str, Any]]:
    """`right`: a letter per sequence, `1` where it is."""
    rows = [
        {"sequence": number, "actual": "a", "predicted": "a" if letter == "1" else "b", "confidence": 0.9}
        for number, letter in enumerate(right)
    ]
    return [{name: str(value) for name, value in row.items()} for row in rows] if as_csv else rows


def judge(runs: dict[str, list[Run]], speed: dict[str, Any] | None = None) -> Judgement:
    return comparison.judge(*(Side(name, tuple(of_side)) for name, of_side in runs.items()), speed)


SPEED = {
    "workload": "sign",
    "sides": ["cpu", "cuda"],
    "about": {"cpu": {"kind": "cpu", "threads": 8}, "cuda": {"kind": "cuda", "threads": 1}},
    "speed_up": {"ratio": 8.1, "low": 7.6, "high": 8.6, "num_pairs": 5},
    "out_of_memory": {},
}


def sides(*rights: str, second: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, list[Run]]:
    """A side per device; `rights` are the seeds' of both, the second's with its first sequence wrong."""
    of_cpu = [run_of(changed(CPU, seed=seed), classified(right)) for seed, right in enumerate(rights)]
    of_gpu = [run_of(second(changed(GPU, seed=seed)), classified(f"0{right[1:]}")) for seed, right in enumerate(rights)]
    return {"cpu": of_cpu, "cuda": of_gpu}
