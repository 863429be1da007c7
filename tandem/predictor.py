"""Load a trained model without pickle, from its weights and from model.json, which describes the network.

predictor = Predictor(Path("results/runs/sign/auto/0/train/result"), "last")
predictor = mlflow.pyfunc.load_model("runs:/<run id>/model")  # the same
predictor.predict(table)  # a raw table as in workloads/README.md, labels not needed
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from tandem.data import series
from tandem.data.arrays import Sequences, standardize
from tandem.data.packed import as_tensors
from tandem.data.sequences import NO_EVENT, to_sequences
from tandem.data.tables import from_frame, read_table, split_column
from tandem.params import parsing, schema
from tandem.params.intervals import parse_interval
from tandem.tasks import detect, regress
from tandem.tasks.forecast import Task
from tandem.training.inference import PREDICTION_BATCH
from tandem.training.workload import load_network


class Predictor:
    """Predicts from a raw table with the preprocessing that the model was trained with. Runs on the CPU."""

    def __init__(self, folder: Path, weights: str):
        self.network, self.about = load_network(folder, weights)
        self.learned = self.about["preprocessing"]

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the predictions for a raw table.

        classify: one row per sequence (sequence, predicted, confidence: the softmax of the predicted class).
        regress: one row per sequence (sequence, predicted, in the target's own unit).
        detect: one row per event (sequence, step, predicted, confidence).
        forecast: one row per step after the table's last time (time, step_ahead, predicted).

        Raises ValueError that names the row or sequence if the table is invalid.
        """
        return getattr(self, self.about["task"])(model_input)

    def read(self, path: Path) -> pd.DataFrame:
        """Read the columns that the model needs from CSV or Parquet, as preprocess does."""
        if self.about["task"] == "forecast":
            columns = self.learned["columns"]
            found = read_table(path, [columns["time"]], [columns["target"], *columns["features"]])
        else:
            names = self.columns()
            found = read_table(path, [names.sequence], names.features, [names.step])
        return pa.table(found.columns).to_pandas()

    def classify(self, table: pd.DataFrame) -> pd.DataFrame:
        sequences, outputs = self.outputs_for_sequences(table)
        confidence, index = outputs.softmax(dim=1).max(dim=1)
        classes = np.array(self.learned["classes"])
        return pd.DataFrame(
            {"sequence": sequences.ids, "predicted": classes[index.numpy()], "confidence": confidence.numpy()}
        )

    def regress(self, table: pd.DataFrame) -> pd.DataFrame:
        sequences, outputs = self.outputs_for_sequences(table)
        predicted = regress.Task(self.learned).in_units(outputs[:, 0].numpy())
        return pd.DataFrame({"sequence": sequences.ids, "predicted": predicted})

    def detect(self, table: pd.DataFrame) -> pd.DataFrame:
        sequences, outputs = self.outputs_for_sequences(table)
        predictions = detect.predict(outputs, torch.from_numpy(~sequences.padding_mask)).numpy()
        rows, steps = np.nonzero(predictions)
        numbers = predictions[rows, steps]
        columns = self.columns()
        # `steps` counts the rows of a sequence; users know the values of the table's own step column.
        groups = table.groupby(table[columns.sequence].astype(str).str.strip())[columns.step]
        by_sequence = {name: part.sort_values().to_numpy() for name, part in groups}
        return pd.DataFrame(
            {
                "sequence": sequences.ids[rows],
                "step": [by_sequence[sequences.ids[row]][step] for row, step in zip(rows, steps, strict=True)],
                "predicted": np.array(self.learned["classes"])[numbers],
                "confidence": outputs.softmax(dim=2).numpy()[rows, steps, numbers],
            }
        )

    def forecast(self, table: pd.DataFrame) -> pd.DataFrame:
        known = {f.name: self.learned[f.name] for f in fields(schema.Series) if f.name in self.learned}
        learned = parsing.parse(schema.Series, known, "model")
        columns, interval = learned.columns, parse_interval(learned.interval)
        wanted = [columns.time, columns.target, *columns.features]
        grid = series.to_grid(from_frame(table, wanted, "the table", learned.na), learned, interval)
        needed = learned.input_steps + 1  # one more for the first difference
        if len(grid.times) < needed or not grid.known[-needed:].all():
            raise ValueError(
                f"a forecast needs the last {needed} steps of {interval.words} without a gap; the table ends with "
                f"{int(grid.known[::-1].cumprod().sum())} such steps"
            )
        mean, std = np.array(self.learned["mean"]), np.array(self.learned["std"])
        steps = series.transform(grid.levels[-needed:], learned.transform)
        values = series.standardized(steps, mean, std, grid.times[-needed:])[1:][None]
        summary = {**self.learned, "num_outputs": self.about["shape"]["num_outputs"]}
        outputs = self.outputs(values, np.ones(values.shape[:2], dtype=bool)).numpy()
        predicted = Task(summary).levels(outputs, grid.levels[-1:, 0])[0]
        ahead = np.arange(1, len(predicted) + 1)
        last, _ = grid.steps.points(grid.times[-1:])
        times = series.iso(grid.steps.times(last + ahead))
        return pd.DataFrame({"time": times, "step_ahead": ahead, "predicted": predicted})

    def outputs_for_sequences(self, table: pd.DataFrame) -> tuple[Sequences, torch.Tensor]:
        """Return the table's sequences and the network's outputs for them."""
        columns = self.columns()
        unlabelled = table.drop(columns=split_column(table.columns) or []).assign(**{columns.label: NO_EVENT})
        wanted = [columns.sequence, columns.step, *columns.features, columns.label]
        allow_missing = self.learned.get("missing", "interpolate") == "interpolate"
        rows = from_frame(unlabelled, wanted, "the table", tuple(self.learned.get("na", ())))
        velocity = self.learned.get("velocity", False)
        offsets = self.learned.get("offsets", {})
        sequences = to_sequences(rows, columns, velocity, allow_missing, per_step=False, offsets=offsets)
        longest = self.about["shape"]["max_steps"]
        if sequences.values.shape[1] > longest:
            name = sequences.ids[sequences.lengths.argmax()]
            raise ValueError(
                f"sequence {name!r} has {sequences.lengths.max()} steps; the model was trained with up to {longest}"
            )
        standardize(sequences, self.learned["mean"], self.learned["std"])
        tensors = as_tensors(sequences.values, sequences.lengths, sequences.labels)
        return sequences, self.outputs(tensors["values"], tensors["mask"])

    def columns(self) -> schema.Columns:
        """Return the names of the table's columns. Simulated data has none, so defaults are used."""
        of_simulation = {"sequence": "sequence", "step": "step", "features": self.learned["features"], "label": "event"}
        given = self.learned.get("columns") or of_simulation
        return schema.Columns(**{**given, "features": tuple(given["features"])})

    def outputs(self, values: np.ndarray, mask: np.ndarray) -> torch.Tensor:
        with torch.inference_mode():
            batches = (torch.from_numpy(array).split(PREDICTION_BATCH) for array in (values, mask))
            return torch.cat([self.network(*batch) for batch in zip(*batches, strict=True)])


def _load_pyfunc(path: str) -> Predictor:
    """Return the predictor; MLflow calls this (mlflow.pyfunc, "Loader module")."""
    return Predictor(Path(path), "model")
