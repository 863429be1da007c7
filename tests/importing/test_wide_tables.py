"""One row per sequence: numbered columns; and numbered channels, which are no steps."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.importing import new_workload, wide
from tandem.terminal.command import CommandError
from tests.own_tables import planned, reasons, refusal, rewritten, saved
from tests.shapes import (
    LABELS,
    PEOPLE,
    expect,
    numbered_recording,
    padded,
    prepared,
    question,
    recordings,
    wide_table,
)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_with_one_row_per_sequence_is_read(tmp_path: Path, ending: str):
    path = tmp_path / f"wide.{ending}"
    wide = wide_table()
    sep = "\t" if ending == "tsv" else ","
    wide.to_parquet(path) if ending == "parquet" else wide.to_csv(path, index=False, sep=sep)
    assert expect(path).workload.preprocess.columns.features == ("x", "y")


def test_columns_named_as_lags_are_in_the_order_of_time(tmp_path: Path):
    """x-11, x-10, ..., x-0: the oldest first. In the other order, x-0, x-1, ..., the sign separates."""
    wide = wide_table()
    last = padded().shape[1] - 1
    lags = {f"{name}_{step}": f"{name}-{last - step}" for name in "xy" for step in range(last + 1)}
    path = tmp_path / "lags.csv"
    wide.rename(columns=lags).to_csv(path, index=False)
    expect(path)
    wide.rename(columns={name: name.replace("_", "-") for name in lags}).to_csv(path, index=False)
    expect(path)


@pytest.mark.parametrize(
    "names, features",
    [
        (lambda step: f"x{step / 10:.1f}", ("x",)),
        (lambda step: f"{step / 10:.1f}", ("value",)),
        (lambda step: f"{1990 + 5 * step}", ("value",)),
        (lambda step: f"s{1 + step // 6}.{step % 6}", ("s1", "s2")),
    ],
)
def test_columns_are_numbered_with_decimals_and_years(
    tmp_path: Path, names: Callable[[int], str], features: tuple[str, ...]
):
    """x0.0, x0.1, ..., x1.1 once was x0 with 10 steps, and a header of numbers that are not 1 apart was a row."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(len(LABELS), 12)), columns=[names(step) for step in range(12)])
    table.assign(label=LABELS).to_csv(tmp_path / "t.csv", index=False)
    plan, data = prepared(tmp_path / "t.csv")
    assert plan.workload.preprocess.columns.features == features
    assert data.sequences.values.shape[:2] == (len(LABELS), 12 // len(features))


@pytest.mark.parametrize(
    "names, features",
    [
        ("{day:%Y-%m-%d}", ("value",)),
        ("NDVI_{day:%Y-%m-%d}", ("NDVI",)),
        ("{day:%d.%m.%Y}", ("value",)),
        ("{day.month}/{day.day}/{day:%y}", ("value",)),
        ("{month}", ("value",)),
        ("sales_{month:%Y_%m}", ("sales",)),
        ("{quarter}", ("value",)),
        ("{time:%H:%M}", ("value",)),
        ("lag{lag}", ("lag",)),
        ("t{step}_s{band}", ("s0", "s1")),
        ("{day:%d-%m-%Y}_x", ("x",)),
        ("{day:%Y%m%d}_NDVI", ("NDVI",)),
        ("{day:%Y-%m-%d}_B{band}", ("B0", "B1")),
        ("step_{step:02}_f{band}", ("f0", "f1")),
    ],
)
def test_columns_with_dates_or_with_the_number_first_are_steps_in_their_order(
    tmp_path: Path, names: str, features: tuple[str, ...]
):
    """Of 24 dates once were 4 steps, those of March, and the others were excluded."""
    array, days = (
        np.random.default_rng(0).normal(size=(len(LABELS), 24)).round(3),
        pd.date_range("2022-03-01", freq="10D", periods=24),
    )
    months, quarters = (pd.period_range("2012-07", freq=unit, periods=24) for unit in "MQ")
    times = pd.date_range("2022-03-01", freq="15min", periods=24)
    columns = [
        names.format(
            day=days[step],
            month=months[step],
            quarter=quarters[step],
            time=times[step],
            step=step,
            lag=24 - step,
            band=band,
        )
        for step in range(24 // len(features))
        for band in range(len(features))
    ]
    table = pd.DataFrame(array, columns=columns).assign(crop=LABELS)
    if not re.search(r"%d.%m|%y|quarter", names):  # these keep their order
        table = table[np.random.default_rng(1).permutation(table.columns)]
    table.to_csv(tmp_path / "t.csv", index=False)
    plan, data = prepared(tmp_path / "t.csv", "--layout", "wide", "--features", ",".join(features))
    assert plan.workload.preprocess.columns.label == "crop"
    values = data.sequences.values[:, :, : len(features)] * data.std[: len(features)] + data.mean[: len(features)]
    np.testing.assert_allclose(values.reshape(array.shape), array, atol=1e-5)


def test_numbers_before_a_word_that_is_no_step_are_no_steps():
    names = [f"mfcc{number}_mean" for number in range(20)]
    assert not wide.numbered(names) and not wide.numbered([f"{number}Hz" for number in range(20)])
    wavelengths = [f"{number}nm" for number in range(1100, 1500, 8)]  # a spectrum has many
    assert wide.numbered(["oil", *wavelengths]) == {"": wavelengths}


def test_a_gap_in_numbered_columns_is_said(tmp_path: Path):
    table = wide_table().drop(columns=["x_4", "y_4"])
    table.to_csv(tmp_path / "t.csv", index=False)
    assert "x_3 is followed by x_5, read as the next step" in "".join(
        new_workload.summary_lines(planned(tmp_path / "t.csv"))
    )
    wide_table().to_csv(tmp_path / "t.csv", index=False)
    assert "followed" not in "".join(new_workload.summary_lines(planned(tmp_path / "t.csv")))


def test_a_table_without_a_header_is_read(tmp_path: Path):
    array = np.nan_to_num(padded(1))[:, :, 0]
    for place, name in ((0, "first.txt"), (array.shape[1], "last.csv")):
        table = pd.DataFrame(array)
        table.insert(place, "label", [" abc".index(label[0]) if label[0] in "abc" else len(label) for label in LABELS])
        sep = "," if name.endswith("csv") else " "
        table.to_csv(tmp_path / name, index=False, header=False, sep=sep)
        plan, data = prepared(tmp_path / name)
        assert data.sequences.classes == (4, 5) and data.sequences.values.shape[1] == array.shape[1]
        chosen_plan, chosen_data = prepared(tmp_path / name, "--label", str(place + 1))
        assert chosen_plan.workload == plan.workload and (chosen_data.sequences.labels == data.sequences.labels).all()


@pytest.mark.parametrize("num", [2, 3])
def test_points_whose_coordinates_alternate_without_a_header_are_features(tmp_path: Path, num: int):
    """As x1, y1, x2, y2, ... of UCI's Libras, which were 90 steps of one feature. A period is none."""
    draw, path = np.random.default_rng(0), tmp_path / "t.csv"
    points = draw.normal(size=(60, 30, num)).cumsum(axis=1).round(3)
    pd.DataFrame(points.reshape(60, -1)).assign(label=np.arange(60) % 3).to_csv(path, index=False, header=False)
    plan, data = prepared(path)
    assert plan.workload.preprocess.columns.features == tuple(f"c{place}" for place in range(num))
    np.testing.assert_allclose(data.sequences.values[:, :, :num] * data.std[:num] + data.mean[:num], points, atol=1e-4)
    waves = np.sin(2 * np.pi * np.arange(30) / num + draw.uniform(0, 6, (60, 1))) + draw.normal(0, 0.1, (60, 30))
    pd.DataFrame(waves.round(3)).assign(label=np.arange(60) % 3).to_csv(path, index=False, header=False)
    assert planned(path).workload.preprocess.columns.features == ("value",)


@pytest.mark.parametrize(
    ("first", "last", "label"),
    [
        (lambda draw: draw.integers(-30, 30, 1200), lambda draw: np.arange(1200) % 4, 31),  # EMG
        (lambda draw: draw.normal(size=1200).round(2), lambda draw: np.arange(1200) % 4, 31),
        (lambda draw: draw.integers(-30, 30, 1200), lambda draw: np.arange(1200) // 1100, 31),  # one label at first
        (lambda draw: np.arange(1200) % 4, lambda draw: draw.integers(-30, 30, 1200), 1),
        (lambda draw: draw.permutation(1200) % 40, lambda draw: draw.normal(size=1200).round(2), 1),
        (lambda draw: np.arange(1200) % 4, lambda draw: draw.integers(0, 9, 1200), None),
    ],
)
def test_of_first_and_last_column_the_one_of_few_whole_numbers_is_the_label(
    tmp_path: Path, first: Any, last: Any, label: int | None
):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.integers(-30, 30, (1200, 29)))
    table.insert(0, "first", first(draw))
    table.assign(last=last(draw)).to_csv(path := tmp_path / "t.csv", index=False, header=False)
    if label is None:
        with pytest.raises(CommandError, match="no header, and its first and last .*; give --label 1 or --label 31$"):
            planned(path)
    else:
        assert f"column {label} of 31" in reasons(planned(path))["label"]


def test_a_constant_first_column_is_no_label(tmp_path: Path):
    table = wide_table()
    table["label"] = pd.factorize(table["label"])[0]
    table.insert(0, "empty", 0)
    (table := table[[*table.columns.drop("label"), "label"]]).to_csv(tmp_path / "t.csv", index=False, header=False)
    assert f"column {len(table.columns)} of" in reasons(planned(tmp_path / "t.csv"))["label"]


def test_train_and_test_in_two_files_are_the_split(tmp_path: Path):
    wide = wide_table()
    for name, part in (("TRAIN", wide[:12]), ("TEST", wide[12:])):  # both count from 0: no sequence is another one's
        part.assign(id=range(len(part))).to_csv(tmp_path / f"Hand_{name}.csv", index=False)
    plan = expect(tmp_path / "Hand_TRAIN.csv")
    assert plan.summary["num_per_split"]["test"] == 6 and "{train: 10, val: 2, test: 6}" in plan.block
    assert planned(tmp_path / "Hand_TRAIN.csv", "--alone").summary["num_sequences"] == 12
    with pytest.raises(ValueError, match="'step' repeats in sequence 0, rows 1 and "):
        planned(tmp_path / "Hand_TRAIN.csv", "--sequence", "id")
    for name, part in (("TRAIN", wide[:12]), ("TEST", wide[12:])):
        people = [PEOPLE[number // 3] for number in part.index]
        part.assign(subject=people).to_csv(tmp_path / f"Hand_{name}.csv", index=False)
    plan = expect(tmp_path / "Hand_TRAIN.csv")
    other = wide[12:].rename(columns={"label": "kind"})
    other.to_csv(tmp_path / "Hand_TEST.csv", index=False)
    assert "Hand_TEST.csv has no column 'label', which " in refusal(tmp_path / "Hand_TRAIN.csv")
    assert plan.workload.preprocess.groups == "subject" and plan.summary["num_groups"]["test"] == 2


def test_columns_beside_the_steps_stay_with_their_sequence(tmp_path: Path):
    wide = wide_table()
    wide.insert(0, "id", [f"r{number:02}" for number in range(len(wide))])
    wide.insert(1, "person", [PEOPLE[number // 3] for number in range(len(wide))])
    wide.insert(2, "age", [20.5 + number // 3 for number in range(len(wide))])
    wide.insert(3, "x", 7.0)  # called as a feature is
    wide.to_csv(tmp_path / "wide.csv", index=False)
    plan = expect(tmp_path / "wide.csv")
    assert plan.workload.preprocess.groups == "person" and sum(plan.summary["num_groups"].values()) == 6
    assert plan.workload.preprocess.columns.features == ("x_", "y")
    ungrouped = expect(tmp_path / "wide.csv", "--groups", "none", "--sequence", "id")
    assert ungrouped.workload.preprocess.groups == "none"


def test_people_in_a_part_of_the_ids_whom_the_label_follows_are_named(tmp_path: Path):
    """As X21.V1.791, chunk 21 of patient 791: chunks of one patient were in train and test without a word."""
    ids = [f"X{number}.{number // 2 % 9}" for number in range(18)]
    table = wide_table().assign(chunk=ids, label=np.array(["a", "b", "c"])[np.arange(18) // 2 % 3])
    table.to_csv(tmp_path / "t.csv", index=False)
    why = reasons(planned(tmp_path / "t.csv"))["groups"]
    assert "share a part of 'chunk', as '0' of 'X0.0', and 'label' follows it" in why
    wide_table().assign(chunk=ids).to_csv(tmp_path / "t.csv", index=False)
    assert "follows" not in reasons(planned(tmp_path / "t.csv"))["groups"]


RISING: dict[str, tuple[str, Callable[[int], Any]]] = {
    "frames": ("frame", lambda num: range(num)),
    "times": ("Timestamp", lambda num: pd.date_range("2024-03-01", periods=num, freq="20ms")),
    "a name that is no English word": ("Zeit", lambda num: np.arange(num) / 64),
    "milliseconds": ("ms", lambda num: np.arange(num) * 4),
}


@pytest.mark.parametrize(
    ("kind", "stretch", "ending"),
    [*((kind, 40, "csv") for kind in RISING), ("frames", 400, "csv"), ("times", 40, "parquet")],
)
def test_numbered_channels_of_a_recording_are_no_steps(tmp_path: Path, kind: str, stretch: int, ending: str):
    """Neighbouring rows of it once were sequences, in train and test. 400: the first rows show two classes."""
    table, (name, times), path = numbered_recording(stretch=stretch), RISING[kind], tmp_path / f"t.{ending}"
    table.insert(0, name, times(len(table)))
    table.to_parquet(path) if ending == "parquet" else table.to_csv(path, index=False)
    columns = planned(path).workload.preprocess.columns
    assert (columns.sequence, columns.step, columns.label) == ("none", name, "class")
    assert columns.features == ("channel1", "channel2", "channel3", "channel4")


BOTH = "--layout long reads it as a step, --layout wide as a sequence"


@pytest.mark.parametrize("stretch", [40, 1100])  # 1100: the first rows show one class
def test_numbered_channels_without_a_time_or_without_stretches_are_asked_about(tmp_path: Path, stretch: int):
    table, path = numbered_recording(stretch=stretch, names="emg_"), tmp_path / "t.csv"
    people = np.arange(len(table)) // (len(table) // 6)
    draw = np.random.default_rng(0)
    mixed = table.assign(**{"class": draw.permutation(table["class"].to_numpy())})
    words = table.assign(**{"class": table["class"].map(["rest", "fist", "flex"].__getitem__)})
    variants = (table, words, table.assign(subject=people), mixed.assign(frame=range(len(table))))
    for variant in variants if stretch == 40 else variants[:1]:
        variant.to_csv(path, index=False)
        assert BOTH in question(path)
        assert stretch > 40 or planned(path, "--layout", "wide").summary["max_steps"] == 4
    words.assign(step=range(len(table))).to_csv(path, index=False)
    assert planned(path).workload.preprocess.columns.step == "step"
    words.rename(columns={"class": "pose"}).assign(no=range(len(table))).to_csv(path, index=False)
    assert BOTH in question(path)


def test_a_few_numbered_columns_that_vary_independently_are_asked_about(tmp_path: Path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 5))).add_prefix("x").assign(y=np.arange(60) % 2)
    path = saved(table, tmp_path / "t.csv")
    assert "x0, ..., x4 hardly correlate, so they may be other quantities" in question(path).replace("x0, x1,", "x0,")
    assert planned(path, "--layout", "wide").summary["max_steps"] == 5
    days = table.rename(columns={f"x{number}": f"day_{number}" for number in range(5)})
    assert planned(saved(days, path)).summary["max_steps"] == 5  # their names say it
    table = table.astype(object)
    table.loc[7, "x2"] = "gone"
    assert "x0, ..., x4 hardly correlate" in question(saved(table, path)).replace("x0, x1,", "x0,")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 28))).add_prefix("V").assign(Class=np.arange(60) % 2)
    assert planned(saved(table, path)).summary["max_steps"] == 28
    assert "V0, ..., V27 hardly correlate" in question(saved(table.assign(Amount=table["V0"]), path)).replace(
        "V0, V1,", "V0,"
    )


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("header", [True, False])
def test_a_row_per_sequence_needs_no_option_sorted_by_class_or_not(tmp_path: Path, is_sorted: bool, header: bool):
    classes = np.random.default_rng(0).permutation(np.repeat([1, 2, 3], [900, 300, 60]))
    values = pd.DataFrame(np.random.default_rng(1).normal(size=(len(classes), 6)).cumsum(axis=1)).add_prefix("x")
    values.insert(0, "class", np.sort(classes) if is_sorted else classes)
    if header:
        values.insert(0, "id", range(len(values)))
    values.to_csv(tmp_path / "t.csv", index=False, header=header)
    summary = planned(tmp_path / "t.csv").summary
    assert (summary["num_sequences"], summary["max_steps"], len(summary["classes"])) == (1260, 6, 3)


@pytest.mark.parametrize(
    "of_row, column",
    [
        (lambda row: [1714644000 + 60 * row, 20.1, 50.2, row % 2], 1),
        (lambda row: [1 + row // 50, 1 + row % 50, 0.0012, 100.0, 518.67], 2),  # a unit and its cycle
        (lambda row: [1 + row // 9, 1 + row % 9, 0.0012, 100.0, 518.67], 2),
        (lambda row: [f"2024-03-01 00:{row // 60:02}:{row % 60:02}", 20.1, 50.2, 1.5, row // 30 % 3], 1),
        (lambda row: [row // 40 % 3, f"{row / 64:.4f}", 20.1, 50.2], 2),
    ],
)
def test_rows_without_a_header_that_go_on_are_asked_about(tmp_path: Path, of_row: Callable[[int], Any], column: int):
    rows = [[*of_row(row)] for row in range(180)]
    for place in range(2, len(rows[0])):  # readings
        if isinstance(rows[0][place], float):
            noise = np.random.default_rng(place).normal(size=len(rows)).round(3)
            for row, value in zip(rows, noise, strict=True):
                row[place] += value
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False, header=False)
    message = question(tmp_path / "t.csv")
    assert f"column {column} increases from row to row" in message and "--layout wide" in message
    with pytest.raises(ValueError, match="write the columns' names there"):
        planned(tmp_path / "t.csv", "--layout", "long")


def test_rows_without_a_header_whose_label_stays_the_same_and_returns_are_asked_about(tmp_path: Path):
    """As 24 sensors of a robot, which were 24 steps of one feature."""
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(240, 24)).round(3))
    table["label"] = np.array(["left", "right", "ahead"])[np.arange(240) // 20 % 3]
    table.to_csv(tmp_path / "t.csv", index=False, header=False)
    assert "column 25 stays the same for many rows and returns" in question(tmp_path / "t.csv")
    assert planned(tmp_path / "t.csv", "--layout", "wide").summary["max_steps"] == 24


def lists_table() -> pd.DataFrame:
    values = recordings()
    columns = {name: [sequence[:, place] for sequence in values] for place, name in enumerate("xy")}
    return pd.DataFrame(columns).assign(label=LABELS)


def test_lists_in_the_cells_of_parquet_are_refused_with_the_code_that_writes_a_row_for_each_entry(tmp_path: Path):
    """As in Hugging Face data sets, also in several files."""
    table, path = lists_table().assign(boxes=[[[1, 2]]] * len(LABELS)), tmp_path / "set/part-0-of-2.parquet"
    path.parent.mkdir()
    table.to_parquet(path)
    table.to_parquet(path.with_name("part-1-of-2.parquet"))
    assert f"{path}: the cells of 'x' are lists" in refusal(path.parent)
    (tmp_path / "splits").mkdir()
    for name in ("train-0-of-2", "train-1-of-2", "test-0-of-1"):
        table.assign(rate=0.5).to_parquet(tmp_path / f"splits/{name}.parquet")
    assert "test-0-of-1.parquet: the cells of 'x' are lists" in refusal(tmp_path / "splits")
    path, flags = rewritten(refusal(path), tmp_path)
    assert expect(path, *flags).workload.preprocess.columns.features == ("x", "y")


def test_lists_in_the_cells_of_csv_are_refused(tmp_path: Path):
    table = lists_table()
    points = [json.dumps(np.stack([*row], axis=1).tolist()) for row in zip(table["x"], table["y"], strict=True)]
    path = saved(
        pd.DataFrame({"label": LABELS, "box": "[1, 2, 3, 4]", "odd": "[1,,2]", "LINE": points}), tmp_path / "t.csv"
    )
    assert "the cells of 'LINE' are lists; if each row is a sequence, write a row for each entry" in refusal(path)
    texts = table.assign(y=table["y"].map(lambda cell: json.dumps([*cell]))).drop(columns="x")
    assert "the cells of 'y' are lists" in refusal(saved(texts, path))


def test_steps_before_t_are_in_their_order_and_t_is_the_last():
    """x(t-3), ..., x(t) once were read backwards, without x(t)."""
    for form in ("{}(t{})", "{}_t{}", "{} t {}"):
        run = [form.format("x", lag).rstrip() for lag in ("-3", "-2", "-1", "")]
        assert wide.numbered([*run[::-1], "label"]) == {"x": run}
    run = ["t-3", "t-2", "t-1", "t"]
    assert wide.numbered(run) == {"": run}
    profile = [f"x_t-{number}" for number in range(5)]
    assert wide.numbered(profile) == {"x_t": profile}
    counted = [f"point-{number}" for number in range(5)]  # the t of a word is no time
    assert wide.numbered(counted) == {"point": counted}


@pytest.mark.parametrize("is_first", [True, False])
def test_without_a_header_the_columns_behind_the_label_are_no_steps(tmp_path: Path, is_first: bool):
    """As in KU-HAR, which is sorted by class: the number of the row told the label. Before the label: a number too."""
    values, path = np.random.default_rng(0).normal(size=(60, 30)).round(3), tmp_path / "t.csv"
    table = pd.DataFrame(values).assign(label=np.arange(60) // 15, length=30, person=np.arange(60) // 3, n=range(1, 61))
    if is_first:
        table = table[["n", *table.columns[:-3]]]
    table.to_csv(path, index=False, header=False)
    plan, data = prepared(path, "--layout", "wide", "--label", "32" if is_first else "31")
    assert data.sequences.values.shape == (60, 30, 2), "with velocities"
    np.testing.assert_allclose(data.sequences.values[:, :, 0] * data.std[0] + data.mean[0], values, atol=1e-5)
    assert plan.source.notes[-1][0] == "steps" and data.sequences.classes == (0, 1, 2, 3)
    assert ("excluded", "1" if is_first else "32, 33, 34") in [note[:2] for note in plan.source.notes]


@pytest.mark.parametrize("sep", [",", " ", "\t"])
def test_labels_in_a_file_beside_a_table_without_a_header_are_found(tmp_path: Path, sep: str):
    """As X.csv and y.csv: the last step was a number to learn. Without such a file, the column is asked for."""
    draw = np.random.default_rng(0)
    values, labels = draw.normal(size=(60, 30)).round(3), pd.Series(np.arange(60) % 3)
    pd.DataFrame(values).to_csv(path := tmp_path / "X.csv", index=False, header=False)
    assert "or --layout long if a row is a step; or add a column" in question(path)
    assert planned(path, "--label", "30").workload.task == "regress"
    if sep == " ":
        path = path.rename(tmp_path / "X.txt")
        path.write_text("".join("  " + line.replace(",", "   ") for line in path.read_text().splitlines(keepends=True)))
    elif sep == "\t":
        path.write_text(path.read_text().replace(",", sep))
    labels.to_csv(path.with_stem("y"), index=False, header=False)
    command = question(path).partition("; or add the labels: ")[2]
    subprocess.run(["sh", "-c", command], check=True, cwd=tmp_path)
    plan, data = prepared(tmp_path / "new.csv")
    assert plan.workload.task == "classify" and sorted(data.sequences.classes) == [0, 1, 2]
    assert data.sequences.values.shape[1] == 30


def test_rows_of_a_series_without_a_header_are_asked_about(tmp_path: Path):
    """Exchange rates of eight currencies, which were sequences of seven steps with a number each."""
    rates = np.random.default_rng(0).normal(size=(500, 8)).cumsum(axis=0) / 100 + 1
    pd.DataFrame(rates.round(6)).to_csv(tmp_path / "t.csv", index=False, header=False)
    assert "neighbouring rows are nearly equal" in question(tmp_path / "t.csv")
    (tmp_path / "t.csv").rename(path := tmp_path / "new.csv")  # of an earlier answer, which the shell would empty
    assert f"cat {path}) > newer.csv" in question(path)


@pytest.mark.parametrize("num_rows", [90, 97, 250])
def test_rows_of_a_plate_with_an_elapsed_time_are_steps(tmp_path: Path, num_rows: int):
    """The wells A1 ... A6 were six steps, and the thermostat's temperature the label of each time."""
    draw, quarters = np.random.default_rng(0), range(num_rows)
    table = pd.DataFrame({"Time": [f"{number // 4}:{number % 4 * 15:02}:00" for number in quarters]})
    table["T° 600"] = (37 + draw.normal(0, 0.05, num_rows)).round(1)
    table = table.assign(
        **{f"{row}{place}": draw.normal(size=num_rows).round(3) for row in "AB" for place in range(1, 7)}
    )
    said = refusal(saved(table, tmp_path / "t.csv"))
    assert "'Time' holds times" in said and "correct it" not in said
    path, _ = rewritten(said, tmp_path)
    said = question(path)
    assert "is one series with 13 columns" in said
    (tmp_path / "melted").mkdir()
    wells, flags = rewritten(said, tmp_path / "melted")
    labelled = pd.read_csv(wells).assign(label=lambda table: table["well"].str[0])
    assert planned(saved(labelled, wells), *flags).summary["num_sequences"] == 12
    plan = planned(path, "--target", "A1")
    assert (plan.summary["interval"], plan.summary["num_rows"]) == ("15min", num_rows)


def test_labels_that_numpy_writes_with_an_exponent_are_whole_numbers(tmp_path: Path):
    """As the heartbeats of MIT-BIH, whose class was 0.000000000000000000e+00."""
    draw = np.random.default_rng(0)
    values = np.c_[draw.normal(size=(30, 12)).cumsum(axis=1), np.arange(30) % 3]
    np.savetxt(path := tmp_path / "t.csv", values[draw.permutation(30)], delimiter=",")
    assert [*map(str, planned(path).summary["classes"])] == ["0", "1", "2"]


def test_hours_and_minutes_before_the_end_are_steps(tmp_path: Path):
    """As of BrisT1D's glucose: the hour was a part of the feature's name, and the minute the step."""
    draw, times = np.random.default_rng(0), [f"{minutes // 60}:{minutes % 60:02}" for minutes in range(115, -1, -5)]
    values = draw.normal(size=(60, 2, 24)).round(3)
    columns = {
        f"{name}-{time}": values[:, place, step]
        for place, name in enumerate(("bg", "cals"))
        for step, time in enumerate(times)
    }
    pd.DataFrame({**columns, "label": np.arange(60) % 3}).to_csv(path := tmp_path / "t.csv", index=False)
    plan, data = prepared(path)
    assert plan.workload.preprocess.columns.features == ("bg", "cals")
    raw = data.sequences.values[:, :, :2] * data.std[:2] + data.mean[:2]
    np.testing.assert_allclose(raw, values.swapaxes(1, 2), atol=1e-5)


def test_a_few_columns_on_other_scales_may_be_no_steps(tmp_path: Path):
    """As x1, ..., x5 of an elevator's sensors, of which one is the square of a speed."""
    draw = np.random.default_rng(0)
    base = draw.normal(size=300)
    table = pd.DataFrame({f"x{n}": (base + draw.normal(size=300) / 9) * 10**n for n in range(1, 6)}).round(3)
    table.assign(label=np.arange(300) % 3).to_csv(path := tmp_path / "t.csv", index=False)
    assert "vary on different scales, so they may be other quantities" in question(path)
    assert planned(path, "--layout", "wide").summary["max_steps"] == 5
    paths = pd.DataFrame({f"x{n}": base * n + draw.normal(size=300) / 9 * (n > 0) for n in range(6)})  # begin at 0
    paths.assign(label=np.arange(300) % 3).to_csv(path, index=False)
    assert planned(path).summary["max_steps"] == 6


def test_hours_of_one_digit_are_in_the_order_of_their_times():
    names = [f"2022-03-{day:02} {hour}:00" for day in (1, 2) for hour in (8, 9, 10, 11)]
    assert wide.numbered(names) == {"": names}


def test_a_series_of_many_columns_without_a_header_gets_names_that_mean_nothing(tmp_path: Path):
    """T, X and Y would be read as a time, a coordinate and a target."""
    pd.DataFrame(np.random.default_rng(0).normal(60, 5, (300, 40))).to_csv(path := tmp_path / "t.csv", header=False)
    pd.DataFrame(np.random.default_rng(0).normal(60, 5, (300, 40))).to_csv(path, header=False, index=False)
    assert "or --layout long if a row is a step" in question(path)
    for options in (("--task", "forecast"), ("--layout", "long")):
        names = re.findall(r"\(echo '(.*?)'", refusal(path, *options))[0].split(",")
        assert len({*names}) == 40 and not {"T", "X", "Y"} & {*names}
