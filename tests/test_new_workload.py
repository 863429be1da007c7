"""stages/tools/new_workload.py: from a table that nobody has seen to a tracked result, and what it must never do."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.files import sha256_file
from stages.params.loading import parse_block
from stages.params.schema import MODELS
from stages.tools import new_workload, params_block, recipe
from tests.own_tables import chosen, clips, planned, saved
from tests.projects import ROOT, recorded_runs, run, wait_until_published

DOCUMENT = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """What stands in the document's fenced blocks of `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_commands_of_the_document_make_a_tracked_result(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On the document's own table: text labels, unequal lengths, missing values, a column that never changes."""
    project = shutil.copytree(trained, tmp_path / "project", symlinks=True)
    [script], [commands] = blocks("python"), blocks("sh")
    monkeypatch.chdir(project)
    exec(script, {})
    assert len(commands.splitlines()) == 2
    message = [run(project, *shlex.split(command)).stdout for command in commands.splitlines()]
    wait_until_published(project)

    assert "interpolate: 66 of 4,422 cells are empty" in message[0]
    assert "Stage 'train@tiny-cpu-0' didn't change, skipping" in message[1]
    summary = json.loads((project / "data/prepared/gesture/summary.json").read_text())
    assert summary["classes"] == ["push", "swipe", "twist"]
    assert (summary["num_filled"], summary["min_steps"], summary["max_steps"]) == (66, 16, 32)
    assert "room" not in summary["features"]  # it never changes
    results = project / "results/runs/gesture/cpu/0"
    metrics = json.loads((results / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.8 and {"most_frequent_accuracy", "nearest_neighbour_macro_f1"} <= metrics.keys()
    assert "the most frequent class reaches" in message[1]
    assert len(pd.read_csv(results / "predictions.csv")) == summary["num_per_split"]["test"]
    assert "gesture" in (project / "results/report.html").read_text(encoding="utf-8")
    assert [run["status"] for run in recorded_runs(project, "gesture")] == ["FINISHED"]

    table = project / "data/raw/gesture/gesture.csv"
    assert table.read_bytes() == (project / "gesture.csv").read_bytes()
    assert sha256_file(table) in (project / "data/raw/gesture/README.md").read_text()


def test_the_outputs_in_the_document_are_what_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    [script] = blocks("python")
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    plan = planned(tmp_path / "gesture.csv", name="gesture")
    for line in new_workload.summary_lines(plan):
        assert line in DOCUMENT
    plan = planned(ROOT / "data/raw/price/table.csv.gz", "--features", "High,Low", name="btc")
    for line in new_workload.summary_lines(plan):
        assert line in DOCUMENT


def test_the_whole_block_in_the_readme_is_a_valid_one():
    text = (ROOT / "data/raw/README.md").read_text(encoding="utf-8")
    shown = re.search(r"^    mine:\n(    .*\n)+", text, re.MULTILINE)
    assert shown
    parse_block("mine", params_block.from_yaml(shown[0])["mine"], {})


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_events_are_for_detect(tmp_path: Path, ending: str):
    table = clips([None] * 20, lengths=(30, 40))
    table.loc[table.frame == 7, "label"] = "hit"
    table.loc[table.frame == 19, "label"] = "bounce"
    plan = planned(saved(table, tmp_path / f"t.{ending}"))
    assert (plan.workload.task, plan.workload.train.model.name) == ("detect", "conv_gru")
    assert plan.summary["classes"] == ["none", "bounce", "hit"]
    assert plan.workload.train.label_smoothing == 0


@pytest.mark.parametrize("background", [0, "background"])
def test_an_event_column_with_another_background_is_explained(tmp_path: Path, background: Any):
    table = clips([background] * 20, lengths=(30, 40))
    table.loc[table.frame == 7, "label"] = 1 if background == 0 else "hit"
    with pytest.raises(ValueError, match=re.escape(f"replace({background!r}, 'none')")) as caught:
        planned(saved(table, tmp_path / "t.csv"))
    assert "\n" not in str(caught.value)


def test_one_series_is_for_forecast(tmp_path: Path):
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
    assert ("missing", "skip", "2 of 600 points are missing or incomplete") in plan.choices

    plan = planned(
        saved(table, tmp_path / "t.csv"), "--target", "wind", "--interval", "2h", "--horizon", "3", "--input-steps", "9"
    )
    params = plan.workload.preprocess
    assert (params.columns.target, params.interval, params.horizon, params.input_steps) == ("wind", "2h", 3, 9)


def test_a_series_with_a_gap_in_every_window_is_filled(tmp_path: Path):
    """Prices of working days as a series of all days: every window of six days touches a weekend."""
    days = pd.bdate_range("2020-01-01", periods=500).strftime("%Y-%m-%d")
    prices = np.exp(np.random.default_rng(0).normal(scale=0.01, size=500).cumsum())
    plan = planned(saved(pd.DataFrame({"date": days, "close": prices}), tmp_path / "t.csv"), "--interval", "1d")
    assert (chosen(plan)["interval"], chosen(plan)["transform"], chosen(plan)["missing"]) == (
        "1d",
        "log-return",
        "interpolate",
    )


@pytest.mark.parametrize("num_features", [1, 300])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_one_feature_and_hundreds(tmp_path: Path, num_features: int, ending: str):
    plan = planned(saved(clips(["a", "b"] * 6, num_features=num_features), tmp_path / f"t.{ending}"))
    assert len(plan.workload.preprocess.columns.features) == num_features
    assert not plan.workload.preprocess.velocity  # rocket takes differences itself
    few = recipe.has_velocity(plan.workload.preprocess.columns.features, "gru")
    assert few == (num_features == 1)
    assert max(map(len, plan.block.splitlines())) <= 150


@pytest.mark.parametrize(
    "labels", [["yes", "no"] * 10, [number % 300 for number in range(900)]], ids=["two", "three hundred"]
)
def test_two_classes_and_hundreds(tmp_path: Path, labels: list[Any]):
    plan = planned(saved(clips(labels), tmp_path / "t.csv"))
    assert plan.workload.task == "classify"
    assert plan.summary["classes"] == sorted(set(labels))


def test_columns_are_found_without_telling_names_and_in_any_order_of_rows(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8).rename(columns={"clip": "u", "frame": "v", "label": "w"})
    expected = {"sequence": "u", "step": "v", "label": "w", "features": "f0, f1"}
    assert expected.items() <= chosen(planned(saved(table, tmp_path / "t.csv"))).items()
    shuffled = clips(["a", "b", "c"] * 8).sample(frac=1, random_state=0)
    expected = {"sequence": "clip", "step": "frame", "label": "label", "features": "f0, f1"}
    assert expected.items() <= chosen(planned(saved(shuffled, tmp_path / "t.csv"))).items()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_saved_index_is_no_feature_and_lists_and_flags_are_left_out(tmp_path: Path, ending: str):
    table = clips(["a", "b"] * 6).iloc[::-1].assign(flag=True, nothing=None, room=21.5)
    path = tmp_path / f"t.{ending}"
    table.assign(pair=[[1, 2]] * len(table)).to_parquet(path) if ending == "parquet" else table.to_csv(path)
    assert chosen(planned(path))["features"] == "f0, f1"
    with pytest.raises(ValueError, match="no column 'nothing'"):
        planned(path, "--label", "nothing")


def test_options_win_over_guesses(tmp_path: Path):
    table = clips(["a", "b"] * 9).assign(
        kind=lambda table: table.label.map({"a": 1, "b": 2}), clip2=lambda table: table["clip"]
    )
    words = (
        "--sequence clip2 --step frame --label kind --features f1 --model transformer --epochs 1 --missing interpolate"
    )
    plan = planned(saved(table, tmp_path / "t.csv"), *words.split())
    columns = plan.workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label, columns.features) == ("clip2", "frame", "kind", ("f1",))
    assert (plan.workload.train.model.name, plan.workload.train.epochs, plan.workload.train.warmup_epochs) == (
        "transformer",
        1,
        0,
    )
    assert plan.workload.preprocess.missing == "interpolate"


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda t: t.drop(columns="frame"), "", ["no column that orders the rows", "--step", "cumcount()"]),
        (lambda t: t.drop(columns=["f0", "f1"]), "", ["no numeric column besides", "in digits"]),
        (lambda t: t.drop(columns="label"), "", ["no column that could be their label", "--label"]),
        (lambda t: t.iloc[:0], "", ["0 rows"]),
        (lambda t: t.assign(label="a"), "", ["'label' holds one value only"]),
        (
            lambda t: t[t.label != "b"].assign(label=lambda t: t.label.where(t["clip"] != "c000", "z")),
            "",
            ["class 'z' has 1 sequences"],
        ),
        (lambda t: t.assign(f0=t.f0.astype(object).where(t.index != 4, "NA")), "", ["line 6", "'f0'", "found NA"]),
        (
            lambda t: t.assign(label=t.label.where(t.index != 2, "c")),
            "",
            ["line 4", "'label' changes within a sequence"],
        ),
        (lambda t: t, "--label lable", ["no column 'lable'", "did you mean 'label'"]),
        (lambda t: t, "--label label --target f0", ["--label, --target do not go together"]),
        (lambda t: t, "--model seq2seq", ["'seq2seq'", "do not go together"]),
        (lambda t: t, "--epochs 0", ["epochs is 0", "at least 1"]),
        (lambda t: t, "--missing skip", ["preprocess.missing is 'skip'", "accepted: interpolate, refuse"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence(tmp_path: Path, change: Any, options: str, words: list[str]):
    path = saved(change(clips(["a", "b", "c"] * 8)), tmp_path / "t.csv")
    with pytest.raises(ValueError) as caught:
        planned(path, *options.split())
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def people(num_people: int = 9) -> pd.DataFrame:
    """Clips of some people each, with columns that describe the clip and not its steps."""
    table = clips(["a", "b", "c"] * 12)
    number = pd.factorize(table["clip"])[0]
    return table.assign(
        person=number % num_people, age=20.5 + number % num_people, label2=number % 4, row=range(len(table))
    )


def test_ids_second_labels_and_constants_are_no_features(tmp_path: Path):
    """A column of people is proposed for the split, and options take any of them as a feature."""
    path = saved(people(), tmp_path / "t.csv")
    plan = planned(path)
    assert plan.workload.preprocess.columns.features == ("f0", "f1") and plan.workload.preprocess.groups == "person"
    assert sum(plan.summary["num_groups"].values()) == 9
    [why] = [why for key, _, why in plan.choices if key == "features"]
    for words in ("age (the same throughout every sequence)", "row (counts the rows)", "--features takes them"):
        assert words in why
    plan = planned(path, "--features", "f0,age", "--groups", "none")
    assert plan.workload.preprocess.columns.features == ("f0", "age") and plan.workload.preprocess.groups == "none"
    assert dict(chosen(planned(saved(people(2), path))))["groups"] == "none"  # two people cannot stand in three splits


def test_a_trial_that_every_person_has_is_said_to_be_no_sequence_alone(tmp_path: Path):
    table = clips(["a", "b"] * 12)
    number = pd.factorize(table["clip"])[0]
    table = table.assign(clip=number % 6, person=number // 6, frame=range(len(table)))
    why = {key: why for key, _, why in planned(saved(table, tmp_path / "t.csv")).choices}
    assert "in 24 places of the table (if another column tells sequences apart too" in why["sequence"]
    assert "'person' changes within a sequence; if it tells sequences apart too, make a column of both" in why["groups"]


def test_the_split_in_the_block_is_the_tables_own(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8)
    table["split"] = np.array(["train", "train", "val", "test"])[pd.factorize(table["clip"])[0] // 3 % 4]
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert "split: {train: 12, val: 6, test: 6} # the table's own column `split`, which decides" in plan.block


def test_small_changes_of_large_numbers_are_said(tmp_path: Path):
    table = clips(["a", "b", "c"] * 8)
    plan = planned(saved(table.assign(f0=table.f0 + 1.7e9), tmp_path / "t.csv"))
    assert any("is taken off f0: a 32-bit float would lose" in line for line in new_workload.summary_lines(plan))


def series(**columns: Any) -> pd.DataFrame:
    hours = pd.date_range("2024-01-01", periods=300, freq="h").strftime("%Y-%m-%d %H:%M:%SZ")
    value = np.random.default_rng(0).normal(size=300).cumsum()
    return pd.DataFrame({"time": hours, "value": value, **columns})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (clips(["a", "b", "c"] * 8).assign(f0=1.0, f1=2.0), ["no feature that changes", "f0 (never changes)"]),
        (clips(["a", "b", "a|b"] * 8), ["'a|b', which looks like 2 labels", "yes and no for each"]),
        (
            clips(["a", "b"] * 8).assign(f0=lambda t: t.f0.where(t.index != 3, 1e39)),
            ["line 5", "'f0'", "4e+18", "1e+39"],
        ),
        (series(value=[1.0] * 299 + [1e39]), ["line 301", "'value'", "4e+18", "1e+39"]),
        (
            clips(["a", "b"] * 8).assign(frame=lambda t: t.frame.map(lambda n: f"{n + 1:02}.03.2024")),
            ["'frame' holds dates like '01.03.2024'", "pandas.to_datetime(table['frame'], format='%d.%m.%Y')"],
        ),
        (
            clips(["a", "b"] * 8).assign(frame=lambda t: t.frame.astype(str) + "s"),
            ["'frame' holds numbers with a unit ('0s')", "table['frame'].str.removesuffix('s').astype(float)"],
        ),
        (
            series().assign(time=pd.date_range("2024-03-01", periods=300).strftime("%d.%m.%Y")),
            ["'time' holds dates like '01.03.2024'", "format='%d.%m.%Y'"],
        ),
        (
            pd.DataFrame({"gesture": ["a", "b"] * 9, "mean": np.random.default_rng(0).normal(size=18), "peak": 1.5}),
            ["looks like one row per sequence ('gesture'", "(x_0, x_1, ...)"],
        ),
        (
            clips(["a", "b"] * 8)
            .assign(label=lambda t: np.random.default_rng(0).permutation(len(t)).astype(str))
            .astype({"label": "object"})
            .assign(label=lambda t: "w" + t.label),
            ["'label' changes within a sequence and has", "name another column with --label"],
        ),
    ],
    ids="constant two-labels 1e39 1e39-series dates steps series-dates one-row no-label".split(),
)
def test_what_would_mislead_gets_advice_that_does_no_harm(tmp_path: Path, table: pd.DataFrame, words: list[str]):
    with pytest.raises(ValueError) as caught:
        planned(saved(table, tmp_path / "t.csv"))
    assert "\n" not in str(caught.value) and "replace(" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


CELLS = [
    st.integers(-3, 40), st.floats(-9, 9), st.floats(), st.sampled_from(["a", "b", "a|b", "", "NA", "none", "3s", "é"]),
    st.sampled_from([0, 1]), st.just(1.7e9), st.sampled_from(["2024-03-01", "01.03.2024"]), st.none(),
]  # fmt: skip
NAMES = [
    "clip",
    "frame",
    "x",
    "label",
    "person",
    "split",
    "time",
    "value",
    "x_1",
    "x_2",
    "x_3",
    "x_4",
    "0",
    " ",
    "ü,\"'",
]


def base(kind: str, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    if kind == "series":
        return series().assign(value=draw.normal(size=300).cumsum())
    if kind == "wide":
        wide = pd.DataFrame(draw.normal(size=(24, 6)).round(3), columns=[f"x_{step}" for step in range(6)])
        return wide.assign(label=["a", "b"] * 12)
    return clips(["a", "b", "c"] * 6, seed=seed) if kind == "clips" else pd.DataFrame(index=range(draw.integers(0, 30)))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
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
    except (ValueError, FileNotFoundError) as error:
        assert type(error) in (ValueError, FileNotFoundError) and "\n" not in str(error)
        assert re.search(r"\bt\.|class|label|sequence|series|split|change|T\.CSV", str(error)), (
            error
        )  # no word of a library
        return
    assert all(plan.summary["num_per_split"].values())
    parse_block("mine", params_block.from_yaml(plan.block)["mine"], {})


def test_a_column_of_infinity_is_no_step_and_no_warning(tmp_path: Path):
    table = clips(["a", "b", "c"] * 6, seed=0)
    table.insert(0, "far", np.inf)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert "step: far" not in planned(tmp_path / "t.csv").block


def test_a_number_that_is_too_large_is_named_with_its_file_and_sequence(tmp_path: Path):
    names, cells = ["label", *(f"x_{step}" for step in range(4))], [1.0, 2.0, 3.0, 4.0]
    rows = [["ab"[number % 2], *(number + cell for cell in cells)] for number in range(24)]
    rows[7][2] = -5e18
    pd.DataFrame(rows, columns=names).to_csv(tmp_path / "t.csv", index=False)
    found = r"^t\.csv, sequence 7: column 'x' must hold numbers from -4e\+18 to 4e\+18, found -5e\+18; correct"
    with pytest.raises(ValueError, match=found):
        planned(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"clip,frame,x,label\na,0,1,u\na,1,1,2,u\n", "line 3 has 5 cells and the header 4"),
        ("t.csv", b"clip,frame,x,x,label\na,0,1,2,u\n", "2 columns 'x'"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\xff\xfe\x00", "is empty"),
        ("t.csv", b"a,b\0c\n1,2,3\n", "holds zero bytes"),
        ("t.xlsx", b"\xd0\xcf\x11\xe0more", "an Excel file; save the sheet as CSV"),
        ("t.pkl", b"\x80\x04more", "a Python pickle, which is never opened"),
        ("t.csv.gz", b"clip,frame", "cannot be read"),
        ("t.parquet", b"clip,frame", "cannot be read"),
        ("t.xlsx", b"", "is empty"),
        ("t.csv", None, "is not there"),
    ],
)
def test_a_file_that_is_no_table_gets_one_sentence(tmp_path: Path, name: str, content: bytes | None, words: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        planned(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("num", [1, 7, 63, 1_000, 10_000_000])
def test_settings_are_valid_at_every_size(task: str, num: int):
    summary = {
        "num_per_split": {"train": num, "val": num // 4},
        "max_steps": 5_000,
        "classes": [str(number) for number in range(300)],
    }
    for model in MODELS[task]:
        settings = recipe.train_settings(task, model, summary, None)
        assert 8 <= settings["batch_size"] <= 128
        assert settings["epochs"] == 1 if model == "rocket" else 10 <= settings["epochs"] <= 100
        assert settings["model"]["name"] == model
