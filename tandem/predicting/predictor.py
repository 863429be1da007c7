"""Load a trained model without pickle, from its weights and from model.json, which describes the network.

predictor = Predictor(Path("results/runs/sign/auto/train/result/0"), "last")
predictor = mlflow.pyfunc.load_model("runs:/<run id>/model")  # the same
predictor.predict(table)  # a raw table as in workloads/README.md, labels not needed
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from tandem.data import series
from tandem.data.arrays import remarks_about_unseen, standardize
from tandem.data.rows import GOES_BACK, MASK, NO_EVENT, OTHER_RATE, UNKNOWN
from tandem.data.sequences import masked_of, read_sequences, without_velocities
from tandem.data.tables import from_frame, read_table, split_column
from tandem.data.windows import IN_NO_WINDOW, sort_rows
from tandem.params import parsing, schema
from tandem.params.intervals import parse_interval
from tandem.params.schema import NO_GROUPS
from tandem.tasks import NewInputs, open_task
from tandem.training.saved_network import PREDICTION_BATCH, load_network

UNUSED_SPLIT = {"train": 1, "val": 1, "test": 1}  # a source of the workload's own may have none
FAR = 10  # standard deviations: a table of degrees Fahrenheit instead of Celsius may be as far


class Predictor:
    """Predicts from a raw table with the preprocessing that the model was trained with. Runs on the CPU."""

    def __init__(self, folder: Path, weights: str):
        self.network, self.document = load_network(folder, weights)
        self.learned = self.document["preprocessing"]
        self.remarks: list[str] = []  # about the last table
        summary = {**self.learned, "num_outputs": self.document["shape"]["num_outputs"]}
        self.task = open_task(self.document["task"], summary, self.document.get("workload", ""))

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the predictions for a raw table, as the task tabulates them (`tabulate` in tandem/tasks).

        classify: one row per sequence (sequence, predicted, confidence: the softmax of the predicted class); of
        recordings one row per window (sequence: the recording, and the step at which the window begins).
        regress: one row per sequence (sequence, predicted, in the target's own unit).
        detect: one row per event (sequence, step, predicted, confidence).
        forecast: one row per step after the table's last time (time, step_ahead, predicted).

        Raises ValueError that names the row or sequence if the table is invalid.
        """
        self.remarks = []
        values, inputs = (self.last_window if self.is_series else self.sequences)(model_input)
        self.remarks += remarks_about_units(values[inputs.mask], self.learned["features"])
        with torch.inference_mode():
            batches = (tensor.split(PREDICTION_BATCH) for tensor in (values, inputs.mask))
            outputs = torch.cat([self.network(*batch).float() for batch in zip(*batches, strict=True)])
        return pd.DataFrame(self.task.tabulate(outputs, inputs))

    @property
    def is_series(self) -> bool:
        return self.task.target == "window"

    def read(self, path: Path) -> pd.DataFrame:
        """Read the columns that the model needs from CSV or Parquet, as preprocess does."""
        texts, inferred, numbers = needed_columns(self.learned)
        return pa.table(read_table(path, texts, numbers, inferred).columns).to_pandas()

    def section(self, kind: Any, **changes: Any) -> Any:
        """`preprocess` of the training as a section of this kind, whatever its source was; the table is at hand."""
        parameters = {field.name: self.learned[field.name] for field in fields(kind) if field.name in self.learned}
        return parsing.parse(kind, {**parameters, "table": "", **changes}, "model")

    def last_window(self, table: pd.DataFrame) -> tuple[Tensor, NewInputs]:
        """Return the values (1, T, F) of a series' last window."""
        learned = self.section(schema.Series, source="series")
        columns = [*chain(*needed_columns(self.learned))]
        interval = parse_interval(learned.interval)
        rows = from_frame(table, columns, "the table", learned.na)
        is_filled = learned.missing == "interpolate"
        grid = series.to_grid(rows, replace(learned, missing="skip") if is_filled else learned, interval)
        self.remarks += [remark for remark in grid.remarks if remark not in rows.report]
        if num_after := int((~grid.is_measured[::-1]).cumprod().sum()):  # filled, they would be known and constant
            grid = grid.until(len(grid.times) - num_after)
            target = self.learned["columns"]["target"]
            self.remarks.append(
                f"the last {num_after:,} steps have no {target!r}; the forecast begins with the first of them"
            )
        length = learned.input_steps + 1  # one more for the first difference
        in_table = np.flatnonzero(~np.isnan(grid.levels).all(axis=1))[-length:]
        if len(in_table) > 1 and (distance := int(np.bincount(np.diff(in_table)).argmax())) > 1:
            raise ValueError(
                f"a forecast needs a row for each step of {interval.words}; the table's last rows are mostly "
                f"{distance:,} such steps apart"
            )
        if is_filled:
            if num_filled := int((~grid.is_complete[-length:]).sum()):
                self.remarks.append(
                    f"{num_filled:,} of the last {length:,} steps of {interval.words} are missing or incomplete in the "
                    "table; each repeats the values before it"
                )
            grid = replace(grid, levels=series.forward_filled(grid.levels))
        if len(grid.times) < length or not grid.is_complete[-length:].all():
            raise ValueError(
                f"a forecast needs the last {length} steps of {interval.words} without a gap; the table ends with "
                f"{int(grid.is_complete[::-1].cumprod().sum())} such steps"
            )
        mean, std = np.array(self.learned["mean"]), np.array(self.learned["std"])
        steps = series.transform(grid.levels[-length:], learned.transform)
        values = torch.from_numpy(series.standardized(steps, mean, std, grid.times[-length:])[1:][None])
        last, _ = grid.steps.points(grid.times[-1:])
        times = series.iso(grid.steps.times(last + np.arange(1, learned.horizon + 1)))
        mask = torch.ones(values.shape[:2], dtype=torch.bool)
        return values, NewInputs(mask, times[:0], anchors=grid.levels[-1:, 0], times=times)

    def sequences(self, table: pd.DataFrame) -> tuple[Tensor, NewInputs]:
        """Return the values (N, T, F) of a table's sequences."""
        columns = sequence_columns(self.learned)
        unlabelled = table.drop(columns=split_column(table.columns) or []).assign(**{columns.label: NO_EVENT})
        step = unlabelled.get(columns.step)
        if step is not None and pd.to_numeric(step, errors="coerce").isna().all():  # times as text, as JSON has them
            with suppress(ValueError, TypeError):  # the error of what follows names the column
                unlabelled[columns.step] = pd.to_datetime(step, format="ISO8601", utc=True).dt.tz_localize(None)
        column_names = [*chain(*needed_columns(self.learned)), columns.label]
        learned = self.section(schema.SequenceTable, source="sequences", columns=asdict(columns), split=UNUSED_SPLIT)
        rows = from_frame(unlabelled, column_names, "the table", learned.na)
        sequences = read_sequences(rows, columns, learned, trained=self.learned)
        phrases = (GOES_BACK, UNKNOWN, IN_NO_WINDOW)
        self.remarks += [remark for remark in sequences.remarks if any(words in remark for words in phrases)]
        if learned.missing != MASK:
            self.remarks += remarks_about_unseen(sequences.is_unseen, sequences.features)
        usual, learned = sequences.usual_step, self.learned.get("usual_step", 1.0)
        if max(usual, learned) > OTHER_RATE * min(usual, learned):
            self.remarks.append(
                f"the rows are {usual:.3g} apart in {columns.step!r}, those of the training data {learned:.3g}; are "
                "they recorded at the same rate?"
            )
        longest = self.document["shape"]["max_steps"]
        if sequences.values.shape[1] > longest:
            name = str(sequences.ids[sequences.lengths.argmax()])
            raise ValueError(
                f"sequence {name!r} has {sequences.lengths.max()} steps; the model was trained with up to {longest}"
            )
        standardize(sequences.values, sequences.padding_mask, self.learned["mean"], self.learned["std"])
        values, mask = torch.from_numpy(sequences.values), torch.from_numpy(~sequences.padding_mask)
        if not self.task.per_step:
            return values, NewInputs(mask, sequences.ids)
        # A network counts the rows of a sequence; users know the values of the table's own step column.
        keys = [columns.sequence, columns.step]
        order = sort_rows(from_frame(unlabelled[keys], keys, rows.name, rows.na), columns).order
        steps = table[columns.step].to_numpy()[order]
        return values, NewInputs(mask, sequences.ids, np.split(steps, sequences.lengths.cumsum()[:-1]))


def remarks_about_units(values: Tensor, features: Sequence[str]) -> list[str]:
    """Name features that are far from those of train, as in another unit. values (R, F): standardized, of all rows."""
    return [
        f"{name} is {distance:,.0f} standard deviations from its mean in the training data (median of {len(values):,} "
        "values); is it in the same unit?"
        for name, distance in zip(features, values.abs().median(dim=0).values.tolist(), strict=False)
        if distance > FAR
    ]


def sequence_columns(learned: Mapping[str, Any]) -> schema.Columns:
    """The names of the columns of many sequences. Arrays of a source have none, so defaults are used."""
    features = without_velocities(learned["features"], learned.get("velocity", False))
    features = features[: len(features) - len(masked_of(features, learned.get("missing", "")))]
    of_arrays = {"sequence": "sequence", "step": "step", "features": features, "label": "label"}
    names = learned.get("columns") or of_arrays
    return schema.Columns(**{**names, "features": tuple(names["features"])})


def needed_columns(learned: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The columns of a table to predict from: text, those whose kind is inferred, and numbers."""
    if "time" in (columns := learned.get("columns") or {}):  # a series
        return [columns["time"]], [], [columns["target"], *columns["features"]]
    names = sequence_columns(learned)
    texts = [] if names.sequence == NO_GROUPS else [names.sequence]  # none: the table is one recording
    texts += [name for name in schema.columns_of(learned.get("categories", ())) if name not in texts]
    return texts, [names.step], [*names.features]


def _load_pyfunc(path: str) -> Predictor:
    """Return the predictor; MLflow calls this (mlflow.pyfunc, "Loader module")."""
    return Predictor(Path(path), "model")
