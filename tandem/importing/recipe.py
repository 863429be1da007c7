"""The settings of a new workload, by heuristics from its task and the size of its data.

docs/own-data.md lists them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tandem.params import schema
from tandem.params.parsing import literal

CLOSED_FORM = ("rocket", "model_selection")  # of tandem/fitted
FITTED = "fitted"  # `--model fitted`: model_selection, with which the stage `baseline` compares a network
# With few steps to convolve and many training sequences, a transformer is better (docs/recipes.md).
FEW_STEPS, MANY_SEQUENCES = 16, 2000
ENOUGH_FOR_NETWORK = 500  # windows of a series
SPLIT = {"train": 0.7, "val": 0.15, "test": 0.15}


def model_for(task: str, summary: dict[str, Any]) -> tuple[str, str]:
    """The default model for a task and the size of its data, and the reason."""
    num_train, num_steps = summary["num_per_split"]["train"], summary["max_steps"]
    attributes = schema.built_in_attributes(task)
    if attributes.target in ("class", "number") and num_train >= MANY_SEQUENCES and num_steps <= FEW_STEPS:
        why = f"{num_train:,} training sequences of {num_steps} steps: few steps to convolve, enough to learn from"
        return "transformer", why
    return attributes.usual_model, f"the default for {task}"


def has_velocity(features: Sequence[str], model: str = "") -> bool:
    """Speeds help if there are few features, and double the width if there are many. The table may already contain
    them, as `dx`.

    rocket and model_selection take differences themselves.
    """
    return model not in CLOSED_FORM and len(features) <= 8 and not {f"d{feature}" for feature in features} & {*features}


def train_settings(task: str, model: str, summary: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    """The settings that depend on the size of the data (heuristics, listed in docs/own-data.md)."""
    attributes, num_train = schema.built_in_attributes(task), summary["num_per_split"]["train"]
    takes_no_steps = model in CLOSED_FORM
    is_short = model == "hybrid" and num_train < ENOUGH_FOR_NETWORK
    batch_size = 128 if takes_no_steps else max(8, min(128, 2 ** int(np.log2(max(num_train, 8) / 8))))
    if epochs is None:  # 2,000 updates or 20 million time steps, whichever is less
        num_updates, num_steps = 2000 * batch_size // num_train, 20_000_000 // (num_train * summary["max_steps"])
        usual_epochs = max(10, min(100, num_updates, *(() if model == "hybrid" else (num_steps,))))
        epochs = 1 if takes_no_steps else 10 if is_short else usual_epochs  # the schema refuses another
    rates = {"gru": 4e-3, "conv_gru": 4e-3, "hybrid": 1e-4 if is_short else 5e-4}
    settings = {
        "model": {"name": model, **model_settings(model, attributes.target, summary)},
        "epochs": epochs,
        "warmup_epochs": 0 if takes_no_steps else int(epochs > 1),
        "batch_size": batch_size,
        "learning_rate": rates.get(model, 1e-3),
    }
    return settings | ({"probe": False} if takes_no_steps else {"label_smoothing": attributes.usual_label_smoothing})


def model_settings(model: str, target: str, summary: dict[str, Any]) -> dict[str, Any]:
    """A value for each key of a network: by the size of the data, or its default."""
    num_train = summary["num_per_split"]["train"]
    is_wide = num_train >= 1000 or len(summary.get("classes", ())) > 50
    width = 32 if target == "window" else 128 if num_train >= 10_000 else 96 if is_wide else 64
    values: dict[str, Any] = {
        "hidden_size": width,
        "num_layers": 1,
        "bidirectional": True,
        "num_heads": 4,
        "feedforward_size": 2 * width,
        "num_convolutions": 2,
        "kernel_size": 5,
        "dropout": 0.2 if target == "window" else 0.1 if num_train >= 1000 else 0.3,
    }
    if model == "transformer":
        values |= {"num_layers": 2, "dropout": 0.1}
    if model == "hybrid":  # with few windows, a network learns nothing beyond a linear forecast (docs/recipes.md)
        values |= {"hidden_size": 0, "dropout": 0.0} if num_train < ENOUGH_FOR_NETWORK else {"hidden_size": 64}
    if model in CLOSED_FORM:
        # HYDRA counts which shape fits best, which distinguishes classes. For a numeric label, MiniRocket alone is
        # better (docs/recipes.md).
        values |= {"num_groups": 0} if target == "number" else {}
    keys = schema.BUILT_IN[model].parameters
    return {key: values[key] if key in values else literal(default) for key, _, default in keys}


def training_sentence(train: schema.Train, num: int) -> str:
    """How the model is trained on `num` sequences, in one line."""
    if train.model.name in CLOSED_FORM:
        groups = f" and {train.model.num_groups} groups" if train.model.num_groups else ""
        trees = f"; {train.model.num_trees} trees" if train.model.name == "model_selection" else ""
        return f"fitted in closed form, {train.model.num_kernels:,} kernels{groups}{trees}"
    batches = f"{-(-num // train.batch_size):,} batches of {train.batch_size}"
    if train.model.name == "hybrid" and not train.model.hidden_size:
        return f"{train.epochs} epochs of {batches}, starting from a fitted linear forecast"
    return f"{train.epochs} epochs of {batches}, width {train.model.hidden_size}"
