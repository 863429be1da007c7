"""Forecast and detect workloads from a table, as far as files, pictures and MLflow; and presets."""

import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages import compare
from tandem.predicting.predictor import Predictor
from tandem.tasks import open_task
from tandem.tasks.baselines import nearest_neighbours
from tandem.tasks.forecast import linear_forecast
from tests.projects import (
    EVALUATED,
    MODEL,
    TINY,
    commit,
    dvc,
    make_project,
    read_record,
    recorded_runs,
    run_path,
    stages_at_once,
    tandem,
    wait_until_published,
)

COMMON = TINY[TINY.index("  preload:") :]
for usual, own in {
    "{coupled_features: 2, mix: 0.1, shift: 0.0, warp: 0.1}": "{coupled_features: 1, mix: 0.0, shift: 0.0, warp: 0.0}",
    "epochs: 3": "epochs: 2",
    "batch_size: 16": "batch_size: 32",
    "grad_accum_steps: 1": "grad_accum_steps: 2",
    "one-cycle": "cosine",
    "label_smoothing: 0.1": "label_smoothing: 0.0",
    "weights: last": "weights: best",
}.items():
    COMMON = COMMON.replace(usual, own)
HYBRID = "{name: hybrid, hidden_size: 8, dropout: 0.0}"
CONV_GRU = "{name: conv_gru, hidden_size: 8, num_layers: 1, num_convolutions: 1, kernel_size: 3, dropout: 0.0}"
OF_SPIKES = COMMON.replace(MODEL, CONV_GRU).replace("probe: false", "probe: true")
OF_SPIKES = OF_SPIKES.replace("epochs: 2", "epochs: 15").replace("batch_size: 32", "batch_size: 8")
PARAMS = f"""
workloads: [waves, spikes]
devices: [cpu]
seeds: [0]
preset: none
presets: {{small: {{all: {{train.batch_size: 16}}, waves: {{preprocess.input_steps: 6}}}}}}
waves:
  task: forecast
  preprocess:
    source: series
    table: waves.csv
    columns: {{time: time, target: level, features: [other]}}
    interval: month
    season: 12
    transform: difference
    missing: skip
    input_steps: 12
    horizon: 3
    stride: 1
    split: {{train: 0.6, val: 0.2, test: 0.2}}
{COMMON.replace(MODEL, HYBRID)}
spikes:
  task: detect
  preprocess:
    source: sequences
    table: spikes.csv
    columns: {{sequence: id, step: frame, features: [x], label: event}}
    split: {{train: 0.6, val: 0.2, test: 0.2}}
    seed: 0
    velocity: false
    missing: interpolate
    groups: none
{OF_SPIKES}
"""


def waves() -> pd.DataFrame:
    """Months with a yearly season; two are missing."""
    months, noise = np.arange(400), np.random.default_rng(0).normal(size=400)
    level = 50 + 10 * np.sin(2 * np.pi * months / 12) + 0.5 * noise
    times = pd.period_range("1980-01", periods=400, freq="M").astype(str)
    table = pd.DataFrame({"time": times, "level": level, "other": np.cos(months / 4)})
    return table.drop(index=[100, 101])


def spikes() -> pd.DataFrame:
    """Noise with an up or down spike per sequence, of unequal lengths; some values are missing."""
    draw = np.random.default_rng(0)
    parts = []
    for number in range(60):
        length = 20 + number % 5
        x, event = 0.1 * draw.normal(size=length), np.full(length, "", dtype=object)
        frame = int(draw.integers(3, length - 3))
        x[frame], event[frame] = (3.0, "up") if number % 2 else (-3.0, "down")
        x[(frame + 5) % length] = np.nan
        parts.append(pd.DataFrame({"id": f"s{number:02}", "frame": np.arange(length) * 10, "x": x, "event": event}))
    return pd.concat(parts)


# As `dvc repro` runs them, without thirteen times the imports.
ITEMS = {"preprocess": "", "baseline": "", "preload": "cpu", "train": "cpu 0", "evaluate": "cpu", "speed": ""}
EVERY_STAGE = [f"{name} {workload} {item}" for workload in ("waves", "spikes") for name, item in ITEMS.items()]


@pytest.fixture(scope="module")
def kinds(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a forecast and a detect workload, after all of their stages."""
    folder = make_project(tmp_path_factory.mktemp("kinds") / "project", PARAMS)
    shutil.copy(empty_history, folder / "mlruns")
    for name, table in (("waves", waves()), ("spikes", spikes())):
        (folder / "workloads" / name / "data").mkdir(parents=True)
        table.to_csv(folder / f"workloads/{name}/data/{name}.csv", index=False)
    commit(folder)
    stages_at_once(folder, "hardware", *EVERY_STAGE, "compare", XDG_CACHE_HOME=str(folder.parent))
    wait_until_published(folder)
    return folder


def test_every_kind_leaves_the_same_files(kinds: Path):
    for workload, score in (("waves", "skill"), ("spikes", "event_f1")):
        record = read_record(kinds, "score.json", workload)
        assert record["score_name"] == score and score in record["metrics"]
        for name in ("scores.csv", "predictions.csv", "confusion.csv"):
            assert len(pd.read_csv(kinds / run_path(name, workload))), name
        assert (kinds / run_path("result.png", workload)).read_bytes().startswith(b"\x89PNG")
        summary = json.loads((kinds / f"data/prepared/{workload}/summary.json").read_text())
        assert set(summary["num_per_split"]) == {"train", "val", "test"}
    assert read_record(kinds, "score.json", "spikes")["metrics"]["event_f1"] > 0.8
    assert json.loads((kinds / "data/prepared/waves/summary.json").read_text())["num_missing"] == 2


def test_a_forecast_stands_beside_its_baselines(kinds: Path):
    metrics = read_record(kinds, "score.json", "waves")["metrics"]
    assert metrics["linear_skill"] > 0.8  # a sine is an autoregression
    assert metrics["skill"] > 0.8 and metrics["seasonal_naive_skill"] > 0.8
    assert metrics["skill"] == pytest.approx(1 - metrics["mae"] / metrics["persistence_mae"])
    prepared = kinds / "data/prepared/waves"
    task = open_task("forecast", json.loads((prepared / "summary.json").read_text()))
    actual, anchors = np.load(prepared / "test/targets.npy"), np.load(prepared / "test/anchors.npy")
    forecast = linear_forecast(*known(prepared, "train", "val"), np.load(prepared / "test/values.npy"))
    errors = task.levels(forecast, anchors) - task.levels(actual, anchors)
    assert metrics["linear_mae"] == pytest.approx(np.abs(errors).mean())  # hybrid is fitted to both splits too
    [recorded] = recorded_runs(kinds, "waves")
    best = max(("persistence", "linear", "seasonal_naive"), key=lambda name: metrics[f"{name}_skill"])
    assert recorded["tags"]["baseline"].endswith(f" {metrics[f'{best}_skill']:.4f}")
    rows = pd.read_csv(kinds / run_path("predictions.csv", "waves"))
    for column, name in (("predicted", "mae"), ("last", "persistence_mae"), ("seasonal_naive", "seasonal_naive_mae")):
        assert (rows[column] - rows["actual"]).abs().mean() == pytest.approx(metrics[name])


def test_the_report_and_mlflow_say_what_bounds_a_training(kinds: Path):
    message = read_record(kinds, "timing.json", "spikes")["summary_lines"]["bound"]
    assert message in (kinds / "results/compare/compare.md").read_text()
    [recorded] = recorded_runs(kinds, "spikes")
    bound, advice = recorded["tags"]["bound"], recorded["tags"]["advice"]
    assert message.startswith(f"{bound}-bound: ") and message.endswith(advice)


def test_logged_models_predict_from_raw_tables(kinds: Path, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{kinds}/mlruns/mlflow.db")

    def predicted(workload: str, table: pd.DataFrame | None = None) -> pd.DataFrame:
        """For the model's own example if there is no table."""
        run_id = read_record(kinds, "timing.json", workload)["mlflow"]["run_id"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own
            model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
        return model.predict(model.input_example if table is None else table)

    expected = pd.read_csv(kinds / run_path("predictions.csv", "spikes")).dropna(subset="predicted")
    predictions = predicted("spikes", pd.read_csv(kinds / "workloads/spikes/data/spikes.csv").drop(columns="event"))
    predictions = predictions[predictions["sequence"].isin(expected["sequence"])]
    frames = expected["predicted"].astype(int) * 10
    assert sorted(zip(predictions["sequence"], predictions["predicted"], predictions["step"], strict=True)) == sorted(
        zip(expected["sequence"], expected["event"], frames, strict=True)
    )
    series = pd.read_csv(kinds / "workloads/waves/data/waves.csv")
    rows = pd.read_csv(kinds / run_path("predictions.csv", "waves"))
    last = pd.Timestamp(rows.iloc[-1]["time"]).tz_localize(None)
    predictions = predicted("waves", series[pd.to_datetime(series["time"]) <= last])
    assert np.allclose(predictions["predicted"], rows.tail(3)["predicted"], rtol=1e-5), (predictions, rows.tail(3))
    assert list(predictions["step_ahead"]) == [1, 2, 3]
    target = read_record(kinds, "train.json", "waves")["block"]["preprocess"]["columns"]["target"]
    later = series.assign(**{target: series[target].where(pd.to_datetime(series["time"]) <= last)})
    assert predicted("waves", later).equals(predictions), "rows with other columns alone, such as a weather forecast"
    later.to_csv(tmp_path / "later.csv", index=False)
    output = tandem(kinds, "predict", "waves", str(tmp_path / "later.csv")).stdout
    assert f"steps have no {target!r}; the forecast begins with the first of them" in output
    assert list(predicted("waves")["time"]) == ["2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z", "2025-04-01T00:00:00Z"]
    assert list(predicted("spikes").columns) == ["sequence", "step", "predicted", "confidence"]


def test_events_stand_at_their_steps_however_these_are_written(kinds: Path):
    """As text, 100 comes before 20, and 0.5 s after a second, `00.5Z`, before it, `00Z`."""
    predictor, table = Predictor(kinds / "results/runs/spikes/cpu/train/result/0", "best"), spikes()
    expected = predictor.predict(table)
    times = pd.to_datetime(table["frame"] * 50, unit="ms")
    texts = [time.isoformat() + "Z" for time in times]
    for written in (table["frame"].astype(str), " " + table["frame"].astype(float).astype(str), times, texts):
        predicted = predictor.predict(table.assign(frame=written).sample(frac=1, random_state=0))
        numbers = dict(zip(written, table["frame"], strict=True))
        assert predicted.assign(step=predicted["step"].map(numbers)).equals(expected), predicted
    table["id"] = table["id"].str[1:].astype(float)
    assert predictor.predict(table)["step"].equals(expected["step"])
    repeated = pd.concat([table, table])
    assert predictor.predict(repeated)["step"].equals(expected["step"])


def test_a_forecast_counts_its_inputs_that_are_not_in_the_table(kinds: Path):
    predictor, series = Predictor(kinds / "results/runs/waves/cpu/train/result/0", "last"), waves()
    predictor.learned["missing"] = "interpolate"
    predictor.predict(series)
    assert not predictor.remarks
    predictor.predict(series.drop(index=[395, 396]).assign(other=series["other"].drop(index=398)))
    assert predictor.remarks == [
        "3 of the last 13 steps of one month are missing or incomplete in the table; each repeats the values before it"
    ]
    sparse = pd.concat([series[:300:3], series[300:].drop(index=395)])  # its last rows count
    assert len(predictor.predict(sparse)) == 3 and predictor.remarks[0].startswith("1 of the last 13 steps")
    with pytest.raises(ValueError, match="for each step of one month; .* are mostly 3 such steps apart"):
        predictor.predict(series[::3])


@pytest.mark.long
def test_a_preset_is_one_word_and_is_not_hidden(kinds: Path):
    before = (kinds / "params.yaml").read_bytes()
    sets = ["-S", "preset=small", "-S", "workloads=[waves]"]
    output = dvc(kinds, "exp", "run", "--temp", "-n", "small", *sets, "evaluate@waves-cpu").stdout
    assert "train@waves-cpu" in output
    assert (kinds / "params.yaml").read_bytes() == before
    wait_until_published(kinds)
    names = ("preset", "train.batch_size", "preprocess.input_steps")
    settings = sorted(tuple(run["params"][name] for name in names) for run in recorded_runs(kinds, "waves"))
    assert settings == [("none", "32", "12"), ("small", "16", "6")]


def known(prepared: Path, *splits: str) -> list[np.ndarray]:
    """The values and the targets of the splits."""
    return [
        np.concatenate([np.load(prepared / split / f"{name}.npy") for split in splits])
        for name in ("values", "targets")
    ]


def test_a_fitted_model_is_called_one_and_has_no_epochs_steps_or_learning_rate(ready: Path):
    """Of what does not exist there is a reason instead of a number, in the records, the terminal, MLflow and report."""
    params = TINY.replace(MODEL, "{name: model_selection, num_kernels: 84, num_groups: 2, num_trees: 50}")
    for old, new in {
        "{coupled_features: 2, mix: 0.1, shift: 0.0, warp: 0.1}": "{coupled_features: 1, mix: 0, shift: 0, warp: 0}",
        "epochs: 3": "epochs: 1", "warmup_epochs: 1": "warmup_epochs: 0", "label_smoothing: 0.1": "label_smoothing: 0",
    }.items():  # fmt: skip
        params = params.replace(old, new)
    (ready / "params.yaml").write_text(params)
    path = ready / "workloads/tiny/data/table.csv"
    table = pd.read_csv(path)
    table.loc[table["sequence"] % 5 == 0, "label"] = "class 0"
    table.to_csv(path, index=False)
    printed = stages_at_once(ready, *EVALUATED, "compare").stdout
    train, timing, score = (read_record(ready, f"{name}.json") for name in ("train", "timing", "score"))
    subject = f"the fitted model (model_selection: {train['selection']['selected']})"
    assert subject in printed and "36 sequences to fit it to" in printed and " s to fit, " in printed
    for words in ("1 epoch", "epoch 1", "train loss", "the network"):
        assert words not in printed
    assert subject in score["sentence"] and "the network" not in score["sentence"]

    prepared = ready / "data/prepared/tiny"
    targets, of_test = np.load(prepared / "test/targets.npy"), np.load(prepared / "test/values.npy")
    of_train, of_both = (
        (labels[nearest_neighbours(values, of_test)] == targets).mean()
        for values, labels in (known(prepared, "train"), known(prepared, "train", "val"))
    )
    assert of_train != score["metrics"]["nearest_neighbour_accuracy"] == of_both  # it is fitted to both splits too

    assert "step" not in train["realized"] and "learning_rate" not in train["epochs"][0]
    assert "learning_rate" not in (ready / run_path("history.csv")).read_text()
    reasons = timing["timing"]["missing_reasons"]
    assert reasons["learning_rate"] == "a fit in closed form takes no steps"
    assert timing["kernels"] == "torch's kernels" and "were on cpu in the fit" in timing["summary_lines"]["device"]

    wait_until_published(ready)
    (run,) = recorded_runs(ready, "tiny")
    assert "train/learning_rate" not in run["metrics"] and "step" not in run["params"]
    report = (ready / "results/report.html").read_text(encoding="utf-8")
    assert "fitted model_selection" in report and "one fit, no epochs" in report and "the network" not in report


def test_two_devices_of_one_kind_have_names_of_their_own_in_the_plots():
    """One name for both would draw two lines as one."""
    devices = (("auto", "cpu"), ("2xcpu", "cpu"), ("auto", "cuda"))
    sides: Any = [SimpleNamespace(first=SimpleNamespace(requested=name, kind=kind)) for name, kind in devices]
    assert compare.device_names(sides) == ["auto", "2xcpu", "cuda"]
    assert compare.device_names(sides[::2]) == ["cpu", "cuda"]
