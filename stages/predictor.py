"""The trained model, loaded again without pickle: its weights, and model.json, which says how to rebuild the network.

predictor = Predictor(Path("results/runs/sign/auto"), "last")       or  mlflow.pyfunc.load_model("runs:/<run id>/model")
predictor.predict(table)                                    a raw table as data/raw/README.md describes it, labels not needed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from stages import models, params

if TYPE_CHECKING:
    import pandas as pd

BATCH_SIZE = 1024


def load_network(folder: Path, weights: str) -> tuple[nn.Module, dict[str, Any]]:
    """The network with the weights `<weights>.safetensors` in `folder`, ready to evaluate on the CPU, and model.json."""
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    config = params.parse(params.Model, about["model"], "model")
    network = models.build(config, about["num_features"], about["num_outputs"], about["max_steps"])
    network.load_state_dict(load_file(folder / f"{weights}.safetensors"))
    return network.eval(), about


class Predictor:
    """From a raw table to predictions, with the preprocessing that the model was trained with. Runs on the CPU."""

    def __init__(self, folder: Path, weights: str):
        self.network, self.about = load_network(folder, weights)

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """One row per sequence: sequence, predicted, confidence (the softmax of the predicted class).

        Raises ValueError, naming the row or the sequence, where the table is not as it should be.
        """
        import pandas as pd

        from stages.params import Columns
        from stages.preload import as_tensors
        from stages.preprocess import from_frame, standardize, to_sequences

        learned = self.about["preprocessing"]
        columns = Columns(**{**learned["columns"], "features": tuple(learned["columns"]["features"])})
        unlabelled = model_input.drop(columns="split", errors="ignore").assign(**{columns.label: "unknown"})
        sequences = to_sequences(from_frame(unlabelled, columns, "the table"), columns, learned["velocity"])
        if sequences.values.shape[1] > self.about["max_steps"]:
            longest = sequences.ids[sequences.lengths.argmax()]
            raise ValueError(
                f"sequence {longest!r} has {sequences.lengths.max()} steps; the model was trained with up to {self.about['max_steps']}"
            )
        standardize(sequences, np.array(learned["mean"]), np.array(learned["std"]))
        tensors = as_tensors(sequences.values, sequences.lengths, sequences.labels)
        values, mask = torch.from_numpy(tensors["values"]), torch.from_numpy(tensors["mask"])
        with torch.inference_mode():
            parts = zip(values.split(BATCH_SIZE), mask.split(BATCH_SIZE), strict=True)
            confidence, index = torch.cat([self.network(*part) for part in parts]).softmax(dim=1).max(dim=1)
        classes = np.array(learned["classes"])
        return pd.DataFrame(
            {"sequence": sequences.ids, "predicted": classes[index.numpy()], "confidence": confidence.numpy()}
        )


def _load_pyfunc(path: str) -> Predictor:
    """What MLflow calls (mlflow.pyfunc, "Loader module")."""
    return Predictor(Path(path), "model")
