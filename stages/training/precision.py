"""`precision: auto`: the precision in which this device trains this model fastest, found by a few steps in each.

bf16 makes an LSTM faster on a processor with AVX512-BF16 or AMX, and a small GRU on the same processor slower: only
measuring tells. `.tandem/precision.json` keeps the choice, so that the same training on the same machine stays the
same. A lower precision must be MIN_GAIN times as fast, so that the choice does not depend on the noise of a
measurement.
"""

import copy
import hashlib
import json
from functools import partial
from typing import Any

from stages.files import ROOT, STATE, read_json, sha256_file, write_json
from stages.machine.regions import seconds_of
from stages.machine.turns import in_turns
from stages.params.parsing import flatten
from stages.params.schema import Train
from stages.training.trainer import Trainer

CANDIDATES = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16")}
MIN_GAIN = 1.15
BUDGET_SECONDS = 0.2  # for each
NUM_ROUNDS = 3  # in turns, because a machine's speed drifts
FILE = STATE / "precision.json"


def choose(trainer: Trainer, identity: dict[str, Any]) -> tuple[str, str]:
    """The precision for `trainer`, and a sentence on how it was chosen. Leaves the trainer as it was."""
    known = read_json(FILE) if FILE.exists() else {}
    key = key_of(
        trainer.params, [list(trainer.train_split.tensors[name].shape[1:]) for name in ("values", "targets")], identity
    )
    if key in known:
        return known[key][
            "precision"
        ], f"precision {known[key]['precision']}, as chosen before ({message(known[key]['gains'])})"
    gains = measure_gains(trainer)
    best = max(gains, key=lambda name: gains[name])
    precision = best if gains[best] >= MIN_GAIN else "fp32"
    write_json(FILE, {**known, key: {"precision": precision, "gains": gains}})
    return precision, f"precision {precision}, chosen by measuring ({message(gains)})"


def key_of(params: Train, shapes: list[list[int]], identity: dict[str, Any]) -> str:
    """A hash of what the choice depends on. The seed and the number of epochs do not belong to it."""
    about = {
        name: value
        for name, value in flatten(params).items()
        if name.startswith("model.") or name in ("batch_size", "accumulation", "threads")
    }
    code = {path.name: sha256_file(path) for path in sorted((ROOT / "stages" / "models").rglob("*.py"))}
    return hashlib.sha256(json.dumps([about, code, shapes, identity], sort_keys=True).encode()).hexdigest()[:16]


def measure_gains(trainer: Trainer) -> dict[str, float]:
    """Precision -> times as fast as fp32, by the fastest of NUM_ROUNDS rounds each."""
    before, now = copy.deepcopy(trainer.state()), trainer.step.precision
    names, batch = CANDIDATES[trainer.device.type], trainer.one_batch(trainer.params.batch_size)

    def step_seconds(name: str) -> float:
        trainer.set_precision(name)
        return seconds_of(trainer.step.repeated(batch), trainer.device, BUDGET_SECONDS / NUM_ROUNDS)

    trainer.model.train()
    seconds = in_turns({name: partial(step_seconds, name) for name in names}, NUM_ROUNDS)
    trainer.restore(before)
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.set_precision(now)
    return {name: min(seconds["fp32"]) / min(found) for name, found in seconds.items()}


def message(gains: dict[str, float]) -> str:
    return ", ".join(f"{name} {gain:.2f} times fp32" for name, gain in gains.items() if name != "fp32")
