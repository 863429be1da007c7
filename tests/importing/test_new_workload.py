"""`tandem new`: from a table that nobody has seen to a tracked result, and what it must never do."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.files import sha256_file
from tandem.importing import params_block, recipe
from tandem.params.loading import parse_workload
from tandem.params.schema import MODELS
from tandem.terminal.command import CommandError
from tests.own_tables import LABELS, chosen, clips, parsed, planned, refusal, saved, series
from tests.projects import (
    ROOT,
    at_once,
    make_project,
    read_record,
    recorded_runs,
    run,
    run_path,
    tandem,
    wait_until_published,
)
from tests.refusals import sentence

DOCUMENT = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """What stands in the document's fenced blocks of `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_documented_commands_make_a_tracked_result(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the document's own table: text labels, unequal lengths, missing values, a column that never changes."""
    project = shutil.copytree(trained, tmp_path / "project", symlinks=True)
    [script], [commands] = blocks("python"), blocks("sh")
    monkeypatch.chdir(project)
    exec(script, {})  # noqa: S102
    message = run(project, *shlex.split(commands)).stdout
    wait_until_published(project)

    assert "train@gesture-cpu" in message and "tiny" not in message
    assert "gesture: the most frequent class reaches" in message
    summary = json.loads((project / "data/prepared/gesture/summary.json").read_text())
    assert summary["classes"] == ["push", "swipe", "twist"]
    assert (summary["num_filled"], summary["min_steps"], summary["max_steps"]) == (66, 16, 32)
    assert "room" not in summary["features"]  # it never changes
    metrics = read_record(project, "score.json", "gesture")["metrics"]
    assert metrics["accuracy"] > 0.8 and {"most_frequent_accuracy", "nearest_neighbour_macro_f1"} <= metrics.keys()
    assert len(pd.read_csv(project / run_path("predictions.csv", "gesture"))) == summary["num_per_split"]["test"]
    assert "gesture" in (project / "results/report.html").read_text(encoding="utf-8")
    assert [run["status"] for run in recorded_runs(project, "gesture")] == ["FINISHED"]

    table = project / "workloads/gesture/data/gesture.csv"
    assert table.read_bytes() == (project / "gesture.csv").read_bytes()
    assert sha256_file(table) in (project / "workloads/gesture/README.md").read_text()


def test_the_block_in_the_readme_is_valid():
    text = (ROOT / "workloads/README.md").read_text(encoding="utf-8")
    match = re.search(r"^    mine:\n(    .*\n)+", text, re.MULTILINE)
    assert match
    parse_workload("mine", params_block.from_yaml(match[0])["mine"])


def test_a_table_of_events_becomes_detect(tmp_path: Path):
    table = clips([None] * 20, lengths=(30, 40))
    table.loc[table.frame == 7, "label"] = "hit"
    table.loc[table.frame == 19, "label"] = "bounce"
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert (plan.workload.task, plan.workload.train.model.name) == ("detect", "conv_gru")
    assert plan.summary["classes"] == ["none", "bounce", "hit"]
    assert plan.workload.train.label_smoothing == 0


def test_events_of_several_rows_are_refused_with_the_code_that_keeps_their_first(tmp_path: Path):
    """Of events of one class in neighbouring rows, one can be found: a perfect network would score 0.35."""
    table = clips([None] * 20, lengths=(30, 40))
    table.loc[table.frame.between(7, 11), "label"] = "hit"
    table.loc[table.frame.between(19, 20), "label"] = "bounce"
    path = saved(table, tmp_path / "t.csv")
    text = refusal(path)
    assert (
        "an event is one row; keep the first of each: table['label'] = " in text and "or give --task detect if" in text
    )
    exec(re.search(r"(table\['label'\] = .*?);", text)[1], {"table": table})  # noqa: S102
    assert table[table.label.notna()].groupby("label").frame.unique().to_dict() == {"bounce": 19, "hit": 7}
    assert planned(saved(table, path)).workload.task == "detect"
    path = saved(table.assign(label=table.label.ffill(limit=1)), tmp_path / "u.csv")
    assert planned(path, "--task", "detect").workload.task == "detect"


@pytest.mark.parametrize("background", [0, "background"])
def test_an_event_column_with_another_background_is_explained(tmp_path: Path, background: Any):
    table = clips([background] * 20, lengths=(30, 40))
    table.loc[table.frame == 7, "label"] = 1 if background == 0 else "hit"
    codes = {0: r"astype(str).replace('(?i)^0(\\.0)?$', 'none', regex=True)"}
    code = codes.get(background, f"replace({background!r}, 'none')")
    with pytest.raises(ValueError, match=re.escape(code)) as caught:
        planned(saved(table, tmp_path / "t.csv"))
    assert "\n" not in str(caught.value)


def test_a_table_of_times_becomes_forecast(tmp_path: Path):
    draw = np.random.default_rng(0)
    hours = pd.date_range("2024-01-01", periods=600, freq="h").strftime("%Y-%m-%d %H:%M:%SZ")
    table = pd.DataFrame({"when": hours, "wind": draw.normal(size=600), "value": draw.normal(size=600).cumsum()})
    table = table.drop(index=[100, 300])
    plan = planned(saved(table, tmp_path / "t.csv"))
    params = plan.workload.preprocess
    assert (plan.workload.task, plan.workload.train.model.name) == ("forecast", "hybrid")
    assert (params.columns.time, params.columns.target, params.columns.features) == ("when", "value", ("wind",))
    assert (params.interval, params.transform, params.missing) == ("1h", "difference", "skip")
    assert plan.summary["num_missing"] == 2

    plan = planned(
        saved(table, tmp_path / "t.csv"), "--target", "wind", "--interval", "2h", "--horizon", "3", "--input-steps", "9"
    )
    params = plan.workload.preprocess
    assert (params.columns.target, params.interval, params.horizon, params.input_steps) == ("wind", "2h", 3, 9)


def test_hundreds_of_features_and_classes_are_accepted(tmp_path: Path):
    labels = [number % 100 for number in range(300)]
    plan = planned(saved(clips(labels, num_features=100), tmp_path / "t.parquet"))
    assert plan.workload.task == "classify" and plan.summary["classes"] == sorted(set(labels))
    assert len(plan.workload.preprocess.columns.features) == 100
    assert max(map(len, plan.block.splitlines())) <= 150


def test_columns_are_found_by_their_content(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8).rename(columns={"clip": "u", "frame": "v", "label": "w"})
    expected = {"sequence": "u", "step": "v", "label": "w", "features": "f0, f1"}
    assert expected.items() <= chosen(planned(saved(table, tmp_path / "t.csv"))).items()
    shuffled = clips(["a", "b", "c"] * 8).sample(frac=1, random_state=0)
    expected = {"sequence": "clip", "step": "frame", "label": "label", "features": "f0, f1"}
    assert expected.items() <= chosen(planned(saved(shuffled, tmp_path / "t.csv"))).items()


def test_an_index_lists_and_flags_are_no_features(tmp_path: Path):
    table = clips(["a", "b"] * 6).iloc[::-1].assign(flag=True, nothing=None, room=21.5)
    table.to_csv(tmp_path / "t.csv")
    table.assign(pair=[[1, 2]] * len(table)).to_parquet(tmp_path / "t.parquet")
    for words in (("t.csv",), ("t.parquet", "--layout", "long")):
        assert chosen(planned(tmp_path / words[0], *words[1:]))["features"] == "f0, f1"


def test_options_override_what_is_inferred(tmp_path: Path):
    table = clips(["a", "b"] * 9).assign(
        kind=lambda table: table.label.map({"a": 1, "b": 2}), clip2=lambda table: table["clip"]
    )
    words = (
        "--sequence clip2 --step frame --label kind --features f1 --model transformer --epochs 1 --missing interpolate"
    )
    plan = planned(saved(table, tmp_path / "t.csv"), *words.split())
    columns = plan.workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label, columns.features) == ("clip2", "frame", "kind", ("f1",))
    train = plan.workload.train
    assert (train.model.name, train.epochs, train.warmup_epochs) == ("transformer", 1, 0)
    assert plan.workload.preprocess.missing == "interpolate"


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda rows: rows.drop(columns="frame"), "", ["no column that orders the rows", "--step", "cumcount()"]),
        (lambda rows: rows.drop(columns=["f0", "f1"]), "", ["no numeric column besides", "in digits"]),
        (lambda rows: rows.drop(columns="label"), "", ["no column that could be their label", "--label"]),
        (lambda rows: rows.assign(label="a"), "--label label", ["'label' holds one value only"]),
        (lambda rows: rows, "--label lable", ["no column 'lable'", "did you mean 'label'"]),
        (lambda rows: rows, "--label label --target f0", ["--label, --target do not go together"]),
        (lambda rows: rows, "--model seq2seq", ["'seq2seq'", "do not go together"]),
        (lambda rows: rows, "--epochs 0", ["epochs is 0", "at least 1"]),
        (lambda rows: rows, "--missing skip", ["preprocess.missing is 'skip'", "accepted: interpolate, mask, refuse"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence(tmp_path: Path, change: Any, options: str, words: list[str]):
    path = saved(change(clips(["a", "b", "c"] * 8)), tmp_path / "t.csv")
    sentence(lambda: planned(path, *options.split()), *words)


def people(num_people: int = 9) -> pd.DataFrame:
    """Clips of some people each, with columns that describe the clip and not its steps."""
    table = clips(["a", "b", "c"] * 12)
    number = pd.factorize(table["clip"])[0]
    return table.assign(
        person=number % num_people, age=20.5 + number % num_people, label2=number % 4, row=range(len(table))
    )


def test_ids_second_labels_and_constants_are_no_features(tmp_path: Path):
    path = saved(people(), tmp_path / "t.csv")
    plan = planned(path)
    assert plan.workload.preprocess.columns.features == ("f0", "f1") and plan.workload.preprocess.groups == "person"
    assert sum(plan.summary["num_groups"].values()) == 9
    plan = planned(path, "--features", "f0,age", "--groups", "none")
    assert plan.workload.preprocess.columns.features == ("f0", "age") and plan.workload.preprocess.groups == "none"
    assert dict(chosen(planned(saved(people(2), path))))["groups"] == "none"  # two people cannot stand in three splits


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (clips(["a", "b", "c"] * 8).assign(f0=1.0, f1=2.0), ["no feature that changes", "f0 (never changes)"]),
        (series(value=[1.0] * 299 + [1e39]), ["line 301", "'value'", "4e+18", "1e+39"]),
        (
            clips(["a", "b"] * 8).assign(frame=lambda rows: rows.frame.map(lambda day: f"{day + 1:02}/03/2024")),
            [
                "'frame' holds dates like '01/03/2024'",
                "--dayfirst yes",
                "pandas.to_datetime(table['frame'], dayfirst=True)",
            ],
        ),
        (
            pd.DataFrame({"gesture": ["a", "b"] * 9, "mean": np.random.default_rng(0).normal(size=18), "peak": 1.5}),
            ["looks like one row per sequence ('gesture'", "(x_0, x_1, ...)"],
        ),
    ],
    ids="constant 1e39 dates one-row".split(),
)
def test_an_unusable_column_gets_advice_that_fits_it(tmp_path: Path, table: pd.DataFrame, words: list[str]):
    assert "replace(" not in sentence(lambda: planned(saved(table, tmp_path / "t.csv")), *words)


CELLS = [
    st.integers(-3, 40), st.floats(-9, 9), st.floats(), st.sampled_from(["a", "b", "a|b", "", "NA", "none", "3s", "é"]),
    st.sampled_from([0, 1]), st.just(1.7e9), st.sampled_from(["2024-03-01", "01.03.2024"]), st.none(),
]  # fmt: skip
NAMES = ["clip", "frame", "x", "label", "person", "split", "time", "value", "x_1", "x_2", "x_3", "0", " ", "ü,\"'"]


def base(kind: str, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    if kind == "series":
        return series().assign(value=draw.normal(size=300).cumsum())
    if kind == "wide":
        wide = pd.DataFrame(draw.normal(size=(24, 6)).round(3), columns=[f"x_{step}" for step in range(6)])
        return wide.assign(label=["a", "b"] * 12)
    return clips(["a", "b", "c"] * 6, seed=seed) if kind == "clips" else pd.DataFrame(index=range(draw.integers(0, 30)))


def test_a_table_of_one_row_is_refused_without_a_warning_of_numpy(tmp_path: Path):
    table = pd.DataFrame({"label": ["a"], "clip": ["c"], "x": [1], "y": [2]})
    assert "(label, clip, x, y) has no column that tells sequences apart" in refusal(saved(table, tmp_path / "t.csv"))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_small_table_runs_or_gets_one_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """A table as it should be, or an empty one, with further columns of all kinds, and a cell or two of all kinds."""
    table = base(
        data.draw(st.sampled_from(["clips", "clips", "series", "wide", "empty"])), data.draw(st.integers(0, 99))
    )
    for name in data.draw(st.lists(st.sampled_from(NAMES), min_size=int(table.empty), max_size=3, unique=True)):
        cells = data.draw(st.lists(data.draw(st.sampled_from(CELLS)), min_size=1, max_size=12))
        table.insert(
            data.draw(st.integers(0, len(table.columns))),
            name,
            [cells[row % len(cells)] for row in range(len(table))],
            True,
        )
    table = table.loc[:, ~table.columns.duplicated(keep="last")].astype(object)
    for cell in data.draw(st.lists(st.one_of(CELLS), max_size=2)) if len(table) else ():
        table.iloc[data.draw(st.integers(0, len(table) - 1)), data.draw(st.integers(0, len(table.columns) - 1))] = cell
    path = tmp_path_factory.mktemp("any") / data.draw(st.sampled_from(["t.csv", "t.tsv", "T.CSV.gz"]))
    table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    try:
        plan = planned(path)
    except (ValueError, FileNotFoundError, CommandError) as error:
        assert type(error) in (ValueError, FileNotFoundError, CommandError) and "\n" not in str(error)
        assert re.search(r"\bt\.|class|label|sequence|series|split|change|T\.CSV", str(error)), (
            error
        )  # no word of a library
        return
    assert all(plan.summary["num_per_split"].values())
    parse_workload("mine", params_block.from_yaml(plan.block)["mine"])


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("num", [1, 63, 10_000_000])
def test_settings_are_valid_at_every_size(task: str, num: int):
    classes = [str(number) for number in range(300)]
    summary = {"num_per_split": {"train": num, "val": num // 4}, "max_steps": 5_000, "classes": classes}
    for model in MODELS[task]:
        settings = recipe.train_settings(task, model, summary, None)
        assert 8 <= settings["batch_size"] <= 128
        assert settings["epochs"] == 1 if model in recipe.CLOSED_FORM else 10 <= settings["epochs"] <= 100
        assert settings["model"]["name"] == model


def test_every_documented_command_is_valid():
    table = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    commands = [
        cell for row in re.findall(r"^\|.*`tandem new hand.*\|$", table, re.MULTILINE) for cell in row.split("|")[2:3]
    ]
    assert len(commands) >= 11
    for cell in commands:
        first, *options = re.findall(r"`([^`]*)`", cell)
        words = shlex.split(first)
        assert words[:2] == ["tandem", "new"]
        for option in ["", *options]:
            parsed(*words[2:], *shlex.split(option))


def test_an_unknown_model_gets_one_sentence(tmp_path: Path):
    path = saved(clips(LABELS), tmp_path / "t.csv")
    assert refusal(path, "--model", "grru").startswith("--model is 'grru'; did you mean 'gru'? accepted: ")


def test_several_commands_at_once_lose_no_block(tmp_path: Path):
    project = make_project(tmp_path / "project")
    saved(clips(LABELS), project / "t.csv")
    names = ["first", "second", "first"]
    results = at_once(lambda name: tandem(project, "new", name, "t.csv", "--epochs", "1", check=False), names)
    assert sorted(result.returncode for result in results) == [0, 0, 2], results
    assert "first" in next(result.stdout for result in results if result.returncode)
    params = (project / "params.yaml").read_text()
    assert all(f"\n{name}:\n" in params and (project / f"workloads/{name}/data/t.csv").is_file() for name in names)


def test_ctrl_c_while_packages_are_imported_is_one_sentence(tmp_path: Path):
    project = make_project(tmp_path / "project")
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    command = (sys.executable, "-m", "tandem.cli", "new", "x", "t.csv")
    result = run(project, *command, check=False, PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (130, "error: interrupted\n")
