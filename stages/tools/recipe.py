"""The settings of a new workload, by rules of thumb from its task and the size of its data.

docs/own-data.md has them as a table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.params import schema
from stages.params.parsing import usual_values

USUAL_MODEL = {"classify": "gru", "detect": "conv_gru", "forecast": "seq2seq"}
SPLIT = {"train": 0.7, "val": 0.15, "test": 0.15}


def has_velocity(features: Sequence[str]) -> bool:
    """Speeds add much to few features, and double the width of many. The table may have them already, as `dx`."""
    return len(features) <= 8 and not {f"d{feature}" for feature in features} & {*features}


def train_settings(task: str, model: str, summary: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    """What depends on the data, by rules of thumb from its size alone; docs/own-data.md has them as a table."""
    num, is_forecast = summary["num_per_split"]["train"], task == "forecast"
    batch_size = max(8, min(128, 2 ** int(np.log2(max(num, 8) / 8))))
    if epochs is None:  # 2,000 updates or 20 million time steps, whichever is less
        epochs = max(10, min(100, 2000 * batch_size // num, 20_000_000 // (num * summary["max_steps"])))
    is_large = num >= 1000 or len(summary.get("classes", ())) > 50
    width = 32 if is_forecast else 128 if num >= 10_000 else 96 if is_large else 64
    dropout = 0.2 if is_forecast else 0.1 if num >= 1000 else 0.3
    transformer = {"num_layers": 2, "num_heads": 4, "feedforward_size": 2 * width, "dropout": 0.1}
    of_model: dict[str, dict[str, Any]] = {
        "gru": {"bidirectional": True, "dropout": dropout},
        "transformer": {**transformer, **usual_values(schema.Transformer)},
        "conv_gru": {"num_convolutions": 2, "kernel_size": 5, "dropout": dropout},
        "seq2seq": {"dropout": dropout, **usual_values(schema.Seq2Seq)},
    }
    return {
        "model": {"name": model, "hidden_size": width, "num_layers": 1, **of_model[model]},
        "epochs": epochs,
        "warmup_epochs": int(epochs > 1),
        "batch_size": batch_size,
        "learning_rate": 4e-3 if model in ("gru", "conv_gru") else 1e-3,
        **({"label_smoothing": 0.1} if task == "classify" else {}),
    }
