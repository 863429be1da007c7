"""Sources in a workload's directory: what they may return, what the splits hold, and what a mistake says."""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from tandem.data import Arrays
from tandem.data.arrays import PreparedSequences
from tandem.data.own_source import prepare
from tandem.data.splits import SPLITS
from tandem.files import ROOT
from tandem.params.loading import parse_params, parse_workload
from tandem.params.parsing import literal
from tandem.params.reading import read_yaml
from tests.projects import (
    EVALUATED,
    MODEL,
    RUN,
    TINY,
    commit,
    dvc,
    every_stage,
    make_project,
    manifest_of,
    read_record,
    reproduce,
    run_path,
    stage,
    stages_at_once,
    tandem,
)
from tests.refusals import sentence

PREPROCESS = TINY[TINY.index("  preprocess:") : TINY.index("  preload:")]
TABLE = """\
from pathlib import Path

import pandas as pd

from .helper import renamed


def read(folder: Path, file: str = "table.csv", num_rows: int = 0) -> pd.DataFrame:
    return renamed(pd.read_csv(folder / file))
"""
HELPER = '''\
def renamed(table):
    """The columns x and y are called u and v."""
    return table.rename(columns={"x": "u", "y": "v"})
'''
KEYS = """  preprocess:
    source: "source.py:read"
    columns: {sequence: sequence, step: step, features: [u, v], label: label}
    split: {train: 0.6, val: 0.2, test: 0.2}
    velocity: true
"""
OWN = TINY.replace(PREPROCESS, KEYS)


def with_source(folder: Path, params: str = OWN, source: str = TABLE) -> Path:
    project = make_project(folder, params)
    (project / "workloads/tiny/source.py").write_text(source)
    (project / "workloads/tiny/helper.py").write_text(HELPER)
    commit(project)
    return project


@pytest.mark.long
def test_its_files_are_code_of_preprocess_alone_and_it_is_recorded_and_verified(tmp_path: Path):
    """From DVC to MLflow's records and `tandem verify`."""
    project = with_source(tmp_path / "project")
    reproduce(project)
    source, helper = (project / f"workloads/tiny/{name}.py" for name in ("source", "helper"))
    for name in ("README.md", "other.py"):
        (project / "workloads/tiny" / name).write_text("'''Nothing of it is used.'''\n")
    source.write_text(TABLE + "\n# A remark.\n")
    commit(project)
    assert tandem(project, "status").stdout == "up to date\n"
    codes = {
        name: json.loads((project / f"results/hardware/code/tiny/{name}.json").read_text())
        for name in ("preprocess", "preload", "train", "evaluate", "speed")
    }
    assert {"workloads/tiny/source.py", "workloads/tiny/helper.py", "tandem/data/sequences.py"} <= set(
        codes.pop("preprocess")
    )
    assert not any("workloads/tiny/source.py" in code for code in codes.values())
    block = manifest_of(project)["block"]["preprocess"]
    assert block["source"] == "source.py:read" and block["file"] == "table.csv"  # its default is recorded too
    verified = tandem(project, "verify", RUN, "--quick")
    assert "bit-equal" in verified.stdout, verified.stdout
    predicted = tandem(project, "predict", "tiny", "table.csv", check=False)
    assert "there is no table" in predicted.stdout
    table = pd.read_csv(project / "workloads/tiny/data/table.csv").rename(columns={"x": "u", "y": "v"})
    table.to_csv(project / "new.csv", index=False)
    predicted = tandem(project, "predict", "tiny", "new.csv")
    assert predicted.stdout.startswith("sequence,predicted,confidence")
    helper.write_text(HELPER.replace('"v"}', '"v"}).reset_index(drop=True'))
    outdated = tandem(project, "status", check=False).stdout
    assert "preprocess@tiny" in outdated
    dvc(project, "repro")  # other code, the same data: nothing else runs
    assert tandem(project, "status").stdout == "up to date\n"


FORECAST = TINY.replace("task: classify", "task: forecast").replace(
    PREPROCESS,
    """  preprocess:
    source: "source.py:read"
    scale: 2.0
    columns: {time: day, target: level, features: []}
    interval: day
    transform: difference
    input_steps: 8
    horizon: 2
    split: {train: 0.6, val: 0.2, test: 0.2}
""",
)
FORECAST = FORECAST.replace(MODEL, "{name: hybrid, hidden_size: 0, dropout: 0.0}").replace("mix: 0.1", "mix: 0.0")
FORECAST = FORECAST.replace("warp: 0.1", "warp: 0.0").replace("label_smoothing: 0.1", "label_smoothing: 0.0")
FORECAST = FORECAST.replace("coupled_features: 2", "coupled_features: 1")
FORECAST = FORECAST.replace(
    "{weights: last}", '{weights: last, metrics: ["metrics.py:own_mae", "metrics.py:last_forecast"]}'
)
SERIES = """\
import numpy as np
import pandas as pd


def read(folder, scale: float, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    days = pd.date_range("2020-01-01", periods=200, freq="D")
    return pd.DataFrame({"day": days, "level": scale * np.cumsum(draw.normal(size=200))})
"""


LEVELS = """\
import numpy as np
import pandas as pd


def own_mae(predictions, targets, mask):
    assert mask.shape[1] == 8 and predictions.shape == targets.shape == (len(mask), 2)
    return np.abs(predictions - targets).mean()


own_mae.higher_is_better = False


def last_forecast(predictions, targets, mask, predict, source):
    levels = source()["level"].to_numpy()
    values = np.stack([levels[end - 9 : end] for end in range(len(levels) - 20, len(levels) - 1)])[:, :, None]
    return np.abs(predict(values, None)[-1] - predictions[-1]).max()
"""


def test_a_series_for_forecast_is_trained_scored_in_its_targets_unit_and_predicted(tmp_path: Path):
    project = with_source(tmp_path / "project", FORECAST, SERIES)
    (project / "workloads/tiny/metrics.py").write_text(LEVELS)
    commit(project)
    stages_at_once(project, *EVALUATED, publishes=False)
    score = read_record(project, "score.json")
    metrics = score["metrics"]
    assert score["score_name"] == "skill" and metrics["own_mae"] == pytest.approx(metrics["mae"], rel=1e-6)
    assert metrics["own_mae_low"] < metrics["own_mae"] < metrics["own_mae_high"]
    assert metrics["last_forecast"] == pytest.approx(0.0, abs=1e-4)
    rows = pd.read_csv(project / run_path("predictions.csv"))
    table = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=200, freq="D")})
    table["level"] = 2.0 * np.cumsum(np.random.default_rng(3).normal(size=200))
    last = table[table["day"] <= pd.Timestamp(rows.iloc[-1]["time"]).tz_localize(None)]
    last.to_csv(project / "new.csv", index=False)
    tandem(project, "predict", "tiny", "new.csv", "-o", "out.csv")
    assert np.allclose(pd.read_csv(project / "out.csv")["predicted"], rows.tail(2)["predicted"], rtol=1e-5)
    table["day"] = pd.date_range("2020-01-01", periods=200, freq="12h")
    table.to_csv(project / "new.csv", index=False)
    output = tandem(project, "predict", "tiny", "new.csv", "-o", "out.csv").stdout
    assert "100 of 200 rows are not used, because only the last row in each" in output


ARRAYS = (
    "from tandem.data import Arrays\n\nimport numpy as np\n\n\ndef read(folder, seed: int):\n    draw = np.random\n"
)
NUMBERS = "np.random.default_rng(seed).normal(size=(40, 6, 2))"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"return Arrays({NUMBERS}, np.arange(40) % 2)", []),
        ("return 3", ["source.py:read returns int; accepted: a pandas DataFrame, or tandem.data.Arrays"]),
        ("return {}['x']", ["source.py, line 8: KeyError: 'x'"]),
        ("raise ValueError('no file')", ["source.py, line 8: no file"]),
        ("import not_there", ["source.py imports 'not_there', which is not installed"]),
        (f"return Arrays({NUMBERS}[0], np.arange(40))", ["values of shape (6, 2); accepted: (N, T, F)"]),
        (f"return Arrays({NUMBERS}, np.arange(39))", ["labels of shape (39,); accepted: (N = 40)"]),
        (f"return Arrays({NUMBERS}, np.arange(40) / 3)", ["labels of type float64; accepted: text or whole numbers"]),
        (f"return Arrays({NUMBERS}, np.arange(40), classes=['a'])", ["returns the label 1; accepted: 0 to 0"]),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, lengths=np.full(40, 7))", ["the length 7; accepted: 2 to 6"]),
        (f"return Arrays({NUMBERS} / 0, np.arange(40) % 2)", ["sequence '0', step 0: column 'x", "found inf"]),
        (f"return Arrays({NUMBERS} * np.nan, np.arange(40) % 2)", ["`missing: interpolate`", "found nan"]),
        (
            f"return Arrays({NUMBERS}, np.arange(40) % 2, features='a')",
            ["source.py:read returns 'a' as features; accepted"],
        ),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, features=['a'])", ["1 different names in `features` for 2"]),
        (
            f"return Arrays({NUMBERS}, np.arange(40) % 2, classes=2)",
            ["returns 2 as classes; accepted: a list of names"],
        ),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, features=None, classes=None)", []),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, splits=['tset'] * 40)", ["val or test, found tset"]),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, ids=['a'] * 40)", ["returns an id twice"]),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, ids=['a', None] * 20)", ["no id for sequence 1 (from 0)"]),
        *(
            (f"return Arrays({NUMBERS}, {fields})", words)
            for missing in ("None", "np.nan")
            for fields, words in (
                (f"['a', {missing}] * 20", ["sequence '1', step 0: column 'Arrays.labels' is empty"]),
                (f"np.array(['a', {missing}] * 20, dtype=object)", ["column 'Arrays.labels' is empty"]),
                (f"np.arange(40) % 2, groups=['a', {missing}] * 20", ["column 'Arrays.groups' is empty"]),
                (f"np.arange(40) % 2, splits=['test', {missing}] * 20", ["sequence '1'", "found (empty)"]),
            )
        ),
        (f"return Arrays({NUMBERS}, np.arange(40) % 2, groups=[1, np.nan] * 20)", ["'Arrays.groups' is empty"]),
        (f"return Arrays({NUMBERS}, np.zeros(40, dtype=int), splits=['train'] * 40)", ["no test rows"]),
        (
            "return Arrays(draw.normal(size=(40, 6, 2)), np.arange(40) % 2)",
            ["returns other data when it is called again"],
        ),
        (
            "import pandas\n    return pandas.DataFrame({'a': [1]})",
            ["returns a DataFrame, and preprocess has no `columns`"],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_it_returns_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: list[str]):
    params = own_params(tmp_path, monkeypatch, ARRAYS + f"    {body}\n")
    if not words:
        prepared = prepare(params, tmp_path, "class")
        assert prepared.summary["num_per_split"] == {"train": 24, "val": 8, "test": 8}
        assert prepared.summary["classes"] == [0, 1] and prepared.summary["features"] == ["x0", "x1"]
        return
    message = sentence(lambda: prepare(params, tmp_path, "class"), *words)
    assert "source.py" in message or "split" in message


def own_params(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, **changes):
    """The `preprocess` of a block whose source is this text, in a package that can be imported."""
    package = f"own_{abs(hash(folder))}"
    package_dir = folder / package
    package_dir.mkdir()
    (package_dir / "source.py").write_text(source)
    monkeypatch.setattr("tandem.parts.workload_dir", lambda workload: package_dir)
    block = YAML(typ="safe").load(TINY)["tiny"]
    block["train"]["augment"]["coupled_features"] = 1  # for any number of features
    block["preprocess"] = {"source": "source.py:read", "split": {"train": 0.6, "val": 0.2, "test": 0.2}, **changes}
    params = parse_workload("tiny", block).preprocess
    monkeypatch.syspath_prepend(str(folder))
    object.__setattr__(params.component, "module", f"{package}.source")
    return params


def test_arrays_and_a_dataframe_of_the_same_sequences_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Unequal lengths, missing values, velocities, groups and a large common offset."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 7, 30)
    values = draw.normal(size=(30, 6, 2)) * 10 + [0, 1e9]
    values[draw.random(values.shape) < 0.05] = np.nan
    values[:, 0] = np.nan_to_num(values[:, 0], nan=1e9)
    labels, groups = np.array(["b", "a", "c"])[np.arange(30) % 3], np.arange(30) % 10
    ids = [f"s{number:02}" for number in range(30)]
    arrays = Arrays(values, labels, lengths, ("x", "y"), ids=np.array(ids), groups=groups)
    rows = [
        {"clip": ids[n], "step": t, "x": values[n, t, 0], "y": values[n, t, 1], "label": labels[n], "who": groups[n]}
        for n in range(30)
        for t in range(lengths[n])
    ]
    columns = {"sequence": "clip", "step": "step", "features": ["x", "y"], "label": "label"}
    options = {"velocity": True, "missing": "interpolate", "seed": 3}
    first = prepared_from(tmp_path, monkeypatch, arrays, **options)
    second = prepared_from(tmp_path, monkeypatch, pd.DataFrame(rows), groups="who", columns=columns, **options)
    assert_same_arrays(first, second)
    assert first.summary == second.summary and "offsets" in first.summary and first.summary["num_filled"]


def prepared_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, data: object, target: str = "class", **changes: object
) -> PreparedSequences:
    """What preprocess makes of `data`, which a source of the workload's own returns."""
    place = Path(tempfile.mkdtemp(dir=folder))
    params = own_params(place, monkeypatch, "FOUND = []\n\n\ndef read(folder):\n    return FOUND[0]\n", **changes)
    sys.modules[params.component.load().__module__].FOUND.append(data)
    return prepare(params, place, target)


def assert_same_arrays(first: PreparedSequences, second: PreparedSequences) -> None:
    for split in SPLITS:
        arrays, other = first.arrays(split), second.arrays(split)
        assert arrays.keys() == other.keys() and all(np.array_equal(arrays[name], other[name]) for name in arrays)


def test_a_dataframe_is_read_like_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other spellings of splits, labels and missing numbers give the same arrays, and a remark each."""
    draw = np.random.default_rng(0)
    clean = pd.DataFrame({"clip": np.repeat([f"{clip:02}" for clip in range(30)], 4), "step": np.tile(range(4), 30)})
    clean["x"] = draw.normal(size=120).round(3)
    clean.loc[[5, 9], "x"] = np.nan
    clean["label"] = np.repeat(np.array(["a", "b", "c"])[np.arange(30) % 3], 4)
    clean["split"] = np.repeat(np.array(["train", "val", "test"])[np.arange(30) // 3 % 3], 4)
    words = {"train": "Train", "val": "validation", "test": "TEST"}
    written = clean.assign(Split=clean["split"].map(words), label=clean["label"] + " ", clip=" " + clean["clip"])
    written["x"] = clean["x"].astype(str)
    written.loc[5, "x"], written.loc[9, "x"] = "n/a", "gone"
    columns = {"sequence": "clip", "step": "step", "features": ["x"], "label": "label"}
    options = {"columns": columns, "missing": "interpolate"}
    first = prepared_from(tmp_path, monkeypatch, clean, **options)
    second = prepared_from(tmp_path, monkeypatch, written.drop(columns="split"), na=["gone"], **options)
    assert_same_arrays(first, second)
    remarks = "; ".join(second.summary.pop("remarks"))
    assert "white space is stripped from 120 cells of column 'label'" in remarks
    assert "column 'Split' decides the split ('TEST', 'Train', 'validation')" in remarks
    assert "cells that count as missing: gone (1), n/a (1)" in remarks and remarks in second.message
    assert first.summary["num_per_split"] == second.summary["num_per_split"] and not first.sequences.remarks
    with pytest.raises(ValueError, match="has `na`, and .* returns Arrays"):
        prepared_from(tmp_path, monkeypatch, Arrays([[[0.0]]], [0]), na=["gone"])


@pytest.mark.parametrize("empty", ["None", "np.nan", "''"])
def test_a_step_without_an_event_may_have_an_empty_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str):
    body = f"    return Arrays({NUMBERS}, np.array([{empty}, 'up', {empty}] * 80, dtype=object).reshape(40, 6))\n"
    prepared = prepare(own_params(tmp_path, monkeypatch, ARRAYS + body), tmp_path, "class per step")
    assert prepared.summary["num_per_class"]["train"] == {"none": 96, "up": 48}


def test_events_as_text_and_as_class_numbers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw, classes = np.random.default_rng(0), ["none", "down", "up"]
    values, labels = draw.normal(size=(20, 8, 1)), draw.integers(0, 3, (20, 8))
    texts, numbers = Arrays(values, np.array(["", *classes[1:]])[labels]), Arrays(values, labels, classes=classes)
    first, second = (prepared_from(tmp_path, monkeypatch, data, "class per step") for data in (texts, numbers))
    assert first.summary == second.summary and first.summary["classes"] == classes
    assert_same_arrays(first, second)


def test_a_preset_for_another_source_is_left_out_and_a_wrong_one_is_not(monkeypatch: pytest.MonkeyPatch):
    raw = read_yaml(ROOT / "params.yaml")
    workload = next(name for name in raw["workloads"] if ":" in raw[name]["preprocess"]["source"])
    raw["presets"]["extra"] = {workload: {"preprocess.input_steps": 4}}
    assert parse_params(raw)
    raw["presets"]["extra"] = {"sign": {"preprocess.input_steps": 4}}
    with pytest.raises(ValueError, match="sign has no 'preprocess.input_steps'"):
        parse_params(raw)


def test_its_block_is_written_and_read_again():
    """`verify` writes the recorded block as params.yaml."""
    raw = read_yaml(ROOT / "params.yaml")
    workload = next(name for name in raw["workloads"] if ":" in raw[name]["preprocess"]["source"])
    written = literal(parse_params(raw).blocks[workload])
    assert literal(parse_workload(workload, json.loads(json.dumps(written)))) == written


def test_the_examples_of_the_documentation(tmp_path: Path):
    """docs/components.md: the source and the metrics of `pulses`, and the source of a folder of files."""
    text = (ROOT / "docs/components.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    text = "".join(section for section in sections if section.startswith(("Your own source", "Your own metric")))
    source, table, metrics = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    keys, table_keys, evaluate = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    raw = TINY.replace("tiny", "pulses").replace(PREPROCESS, keys).replace("coupled_features: 2", "coupled_features: 1")
    raw = raw.replace("  evaluate: {weights: last}\n", evaluate)
    clips = TINY[TINY.index("tiny:") :].replace("tiny:", "clips:").replace(PREPROCESS, table_keys)
    project = make_project(tmp_path / "project", raw + clips)
    shutil.rmtree(project / "workloads/tiny")
    for name in ("pulses", "clips"):
        (project / f"workloads/{name}/data").mkdir(parents=True)
        (project / f"workloads/{name}/data/placeholder.txt").touch()
    (project / "workloads/pulses/source.py").write_text(source)
    (project / "workloads/pulses/metrics.py").write_text(metrics)
    (project / "workloads/clips/source.py").write_text(table)
    for number in range(30):
        x = np.sin(np.arange(8) * (1 + number % 2))
        name = project / f"workloads/clips/data/{'ab'[number % 2]}-{number}.csv"
        pd.DataFrame({"time": np.arange(8), "x": x, "y": x + number}).to_csv(name, index=False)
    commit(project)
    every_stage(project, "pulses")
    stage(project, "preprocess", "clips")
    assert json.loads((project / "data/prepared/clips/summary.json").read_text())["classes"] == ["a", "b"]
    metrics = read_record(project, "score.json", "pulses")["metrics"]
    assert metrics["error_rate"] == pytest.approx(1 - metrics["accuracy"])
    assert {"balanced_accuracy", "accuracy_at_noise_0.5", "accuracy_at_noise_1"} < set(metrics)
