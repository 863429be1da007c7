"""What the files of a folder hold: steps, clocks, lines above the header, tables that belong together."""

import gzip
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import own_tables, refusals
from tests.own_tables import clips, labelled_folder, planned, reasons, refusal, saved, series
from tests.shapes import LABELS, expect, recordings, write_files


@pytest.mark.parametrize(
    ("step", "order"),
    [
        ("frame", lambda table, number: table.sample(frac=1, random_state=1) if number % 3 == 0 else table),
        ("time", lambda table, number: table.sample(frac=1, random_state=1) if number % 3 == 0 else table),
        ("time", lambda table, number: pd.concat([table[:2], table[3:], table[2:3]])),
        ("time", lambda table, number: table[::-1]),
    ],
)
def test_files_with_rows_out_of_order_are_in_the_order_of_their_step(tmp_path: Path, step: str, order):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*/*.csv"))):
        table = pd.read_csv(path)
        table[step] = np.arange(len(table)) * (1 if step == "frame" else 0.05)
        order(table, number).to_csv(path, index=False)
    assert expect(folder, ordered=False).workload.preprocess.columns.step == step


def test_of_two_clocks_in_files_one_is_the_step_and_the_other_no_feature(tmp_path: Path):
    """As in Accelerometer.csv of the app Sensor Logger."""
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*/*.csv"))):
        table = pd.read_csv(path)
        elapsed = np.arange(len(table)) * 0.02 + np.random.default_rng(number).uniform(0, 0.001, len(table))
        table.insert(0, "time", 1709287247000000000 + number * 10**12 + (elapsed * 1e9).astype(int))
        table.assign(seconds_elapsed=elapsed).to_csv(path, index=False)
    for options in ((), ("--step", "time"), ("--step", "seconds_elapsed")):
        assert planned(folder, *options).workload.preprocess.columns.features == ("x", "y")


def test_a_reading_in_files_that_is_called_like_a_step_is_a_feature(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(folder.glob("*/*.csv")):
        table = pd.read_csv(path)
        table.assign(t=np.random.default_rng(number).normal(size=len(table))).to_csv(path, index=False)
    columns = expect(folder, ordered=False).workload.preprocess.columns
    assert columns.step == "step" and columns.features == ("x", "y", "t")


def test_a_counter_or_a_clock_in_files_is_no_feature_whatever_its_name(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*/*.csv"))):
        table = pd.read_csv(path)
        rows = np.arange(len(table))
        table["clock"], table["n"], table["Sample Index"] = 20.0 + number + rows / 20, rows + 1, rows % 4
        table["of_two"], table["ms"] = 7 * (number // 2) + 7 * rows, number % 5 + 20 * rows  # begins within a step
        table["way"] = rows + np.random.default_rng(number).random(len(table))  # rises too, but not evenly
        table.to_csv(path, index=False)
    plan = planned(folder)
    assert plan.workload.preprocess.columns.features == ("x", "y", "Sample Index", "way")
    for name in ("clock", "n", "of_two", "ms"):
        assert f"{name} (counts the rows, or is their time)" in reasons(plan)["features"]


def test_names_of_columns_may_have_spaces_that_an_option_lacks(tmp_path: Path):
    """As OpenBCI writes them."""
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}_{number:02}.csv")
    for path in folder.glob("*.csv"):
        table = pd.read_csv(path).rename(columns={"x": " x", "y": " y  1"})
        table.assign(**{" row": range(len(table)), " Formatted": " 2024-03-01"}).to_csv(path, index=False)
    assert "give --pattern '{label}_*' for their names" in refusal(folder)
    plan = planned(folder, "--pattern", "{label}_*", "--step", "row", "--features", "y 1,x")
    assert plan.workload.preprocess.columns.step == " row"
    assert plan.workload.preprocess.columns.features == (" y  1", " x")


def test_files_with_events_are_for_detect(tmp_path: Path):
    for number, values in enumerate(recordings(shortest=7)):
        table = pd.DataFrame(values, columns=["x", "y"]).assign(t=range(len(values)), event="none")
        table.loc[3, "event"] = "hit"
        (tmp_path / "data").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "data" / f"{number}.csv", index=False)
    plan = planned(tmp_path / "data")
    assert plan.workload.task == "detect" and plan.workload.preprocess.columns.step == "t"


@pytest.mark.parametrize("text", ["f0,f1\n1,2,3\n", "f0\n1\n2\n", "f0,f1\n", "f0,f1\nx,2\n1,2\n", "\0"])
def test_an_error_in_a_folder_names_the_file_with_its_folder(tmp_path: Path, text: str):
    folder = labelled_folder(tmp_path / "d")
    (folder / "b/4.csv").write_text(text)
    message = refusal(folder)
    assert f"{folder / 'b/4.csv'} " in message or f"{folder} as one long table, row 102 (sequence b/4)" in message


@pytest.mark.parametrize("is_dir", [False, True])
def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path, is_dir: bool):
    folder, secret = labelled_folder(tmp_path / "d"), tmp_path / "outside"
    secret.mkdir()
    (secret / "secret.csv").write_text("classified\nabc\n")
    link = folder / ("e" if is_dir else "b/4.csv")
    link.unlink(missing_ok=True)
    link.symlink_to(secret if is_dir else secret / "secret.csv")
    message = refusal(folder)
    assert f"{link} is a link" in message and "not followed" in message and "classified" not in message
    link.unlink()
    link.symlink_to(folder / "a/0.csv")  # within the folder
    assert is_dir or planned(folder).summary["num_sequences"] == 24


def test_remarks_above_rows_without_a_header_are_left_out_in_a_folder(tmp_path: Path):
    """As OpenSignals writes them, with a tab at the end of each line."""
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}/{number:02}.csv", header=False)
    plain = planned(folder)
    for path in folder.glob("*/*.csv"):
        path.write_text('# Text File Format\n# {"rate": 1000, "of": "a, b"}\n' + path.read_text())
    assert planned(folder).summary["sha256"] == plain.summary["sha256"]


def test_each_file_of_a_folder_has_its_own_lines_above_the_header(tmp_path: Path):
    """The first row once was left out where they were fewer than in the first file, and columns in another order were
    read as those of the first file.
    """
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*/*.csv"))):
        table = pd.read_csv(path)[["y", "x"] if number % 3 else ["x", "y"]]
        path.write_text("# Text File Format\n" * (2 - number % 2) + table.to_csv(index=False))
    expect(folder, ordered=False)
    path.write_text("# Text File Format\n" + table.rename(columns={"y": "z"}).to_csv(index=False))
    assert f"{path} has other columns than {folder / LABELS[0] / 'r_00.csv'} (y, z); make them" in refusal(folder)


def test_some_files_of_a_folder_may_be_compressed(tmp_path: Path):
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for path in sorted(folder.glob("*/*.csv"))[::2]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    expect(folder, ordered=False)


def test_the_code_of_a_refusal_makes_a_column_for_each_quantity_of_each_file(tmp_path: Path):
    """As the patients of PhysioNet 2012: times of day that may have one quantity."""
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    draw = np.random.default_rng(0)
    for path in folder.glob("*/*.csv"):
        table = pd.read_csv(path)
        table["Time"] = pd.date_range("2024-01-01", periods=len(table), freq="7min").strftime("%H:%M")
        table = table.melt("Time", var_name="Parameter", value_name="Value").sort_values("Time", kind="stable")
        table[draw.random(len(table)) < 0.8].to_csv(path, index=False)
    code, _, rest = refusal(folder).partition("write a column for each: ")[2].partition(" (table: ")
    assert rest == "each file, as pandas reads it)"
    for path in folder.glob("*/*.csv"):
        exec(code, namespace := {"table": pd.read_csv(path)})  # noqa: S102
        namespace["table"].to_csv(path, index=False)
    plan = planned(folder)
    assert plan.workload.preprocess.columns.features == ("x", "y") and plan.summary["num_sequences"] == 18


def test_a_folder_of_sensors_or_channels_is_refused(tmp_path: Path):
    """As the app Sensor Logger and UCI HAR write them."""
    for number, values in enumerate(recordings()):
        (folder := tmp_path / f"app/{LABELS[number]}-{number}").mkdir(parents=True)
        for sensor in ("Accelerometer", "Gyroscope"):
            pd.DataFrame(values).rename_axis("time").to_csv(folder / f"{sensor}.csv")
    assert "a file for each sensor, such as Accelerometer.csv; write one file for each" in refusal(tmp_path / "app")
    for split, num in (("test", 20), ("train", 30)):
        (folder := tmp_path / f"har/{split}/Inertial Signals").mkdir(parents=True)
        np.savetxt(folder.parent / f"y_{split}.txt", np.arange(num) % 3, fmt="%d")
        for channel in "xy":
            np.savetxt(folder / f"acc_{channel}_{split}.txt", np.ones((num, 30)))
    message = refusal(tmp_path / "har")
    assert "if each is a channel or a label with a line for each sequence" in message and "--axes NCT" in message


@pytest.mark.parametrize("sep", ["\t", ","])
def test_files_of_one_line_are_refused(tmp_path: Path, sep: str):
    """They once ended with a traceback. As PPG-BP, with a tab at the end of each line."""
    for number, values in enumerate(recordings()):
        (path := tmp_path / "d" / LABELS[number] / f"{number:02}.txt").parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sep.join(map(str, values[:, 0])) + sep.strip(",;"))
    assert "have one line each; if it is a sequence, write a line for each step" in refusal(tmp_path / "d")


def test_a_readme_beside_the_files_is_left_out(tmp_path: Path):
    """It once was the first file, and all others had other columns."""
    folder = write_files(tmp_path / "d", lambda number: f"x/{LABELS[number]}/r_{number:02}.txt", header=False)
    (alone := tmp_path / "alone").mkdir()
    clips(own_tables.LABELS).to_csv(alone / "data.csv", index=False)
    for path in (folder / "README.txt", alone / "README_dataset.txt", alone / "description.txt", alone / "notes.md"):
        path.write_text("Of 7 people,\nand of 3 devices.\n")
    expect(folder, ordered=False)
    assert planned(alone).summary["num_sequences"] == len(own_tables.LABELS)


@pytest.mark.parametrize("odd", ["a/0.csv", "c/23.csv"])
def test_the_file_that_differs_from_most_is_named(tmp_path: Path, odd: str):
    folder = labelled_folder(tmp_path / "d")
    (folder / odd).write_text("f0,f1,f2\n1,2,3\n2,3,4\n")
    assert f"{folder / odd} has other columns than " in refusal(folder)
    assert "(f2); make them alike" in refusal(folder)


def test_a_word_in_some_rows_of_files_is_an_event(tmp_path: Path):
    """As the blinks in Mind Monitor's files."""
    folder = write_files(tmp_path / "d", lambda number: f"{number:02}.csv")
    for path in folder.glob("*.csv"):
        table = pd.read_csv(path)
        table.assign(Elements=np.where(np.arange(len(table)) == 2, "blink", "")).to_csv(path, index=False)
    assert planned(folder).workload.task == "detect"


def test_files_of_different_widths_without_a_header_may_be_channels(tmp_path: Path):
    """As UCI's hydraulic systems. The advice once was to correct the table."""
    draw = np.random.default_rng(0)
    for name, shape in {"PS1": (30, 60), "TS1": (30, 6), "TS2": (30, 6), "profile": (30, 6)}.items():
        np.savetxt(tmp_path / f"{name}.txt", draw.normal(size=shape), fmt="%.3f", delimiter="\t")
    message = refusal(tmp_path)
    assert f"{tmp_path / 'PS1.txt'} has 60 cells in a line, and {tmp_path / 'TS1.txt'} 6; make them alike" in message
    assert "a line for each sequence, resample the channels to equal lengths" in message and "subject=..." in message
    for number in range(12):  # the third is in no sample
        np.savetxt(tmp_path / f"c_{number:02}.dat", draw.normal(size=(30, 1 if number == 3 else 6)), fmt="%.3f")
    message = refusal(tmp_path, "--pattern", "{label}_*")
    assert f"{tmp_path / 'c_03.dat'} has 1 cell in a line" in message and "if each is a channel or a label" in message


def test_a_table_with_a_row_for_each_column_of_another_is_refused_with_the_code_that_joins_them(tmp_path: Path):
    """As the wells of a plate and their conditions."""
    wells = [f"{row}{place}" for row in "ABC" for place in range(1, 7)]
    draw, folder = np.random.default_rng(0), tmp_path / "d"
    curves = pd.DataFrame(draw.normal(size=(20, len(wells))).round(3), columns=wells)
    folder.mkdir()
    saved(curves.rename_axis("s").reset_index(), folder / "curves.csv")
    saved(pd.DataFrame({"well": wells, "strain": ["a", "b", "c"] * 6}), folder / "map.csv")
    code, _, options = refusal(folder).partition("join them: ")[2].partition("; then give new.csv ")
    exec(code.replace("new.csv", str(tmp_path / "new.csv")))  # noqa: S102
    plan = planned(tmp_path / "new.csv", *options.split())
    assert (plan.summary["num_sequences"], plan.summary["max_steps"]) == (18, 20)
    assert plan.summary["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_events_beside_the_steps_is_refused_with_the_code_that_joins_them(tmp_path: Path, ending: str):
    """The events were a sequence. One without a step, as of a night without sleep, belongs to no row."""
    (folder := tmp_path / "d").mkdir()
    table = clips(LABELS).drop(columns="label")
    saved(table, folder / f"series.{ending}")
    events = table[table["frame"] == 3][["clip", "frame"]].assign(event=LABELS)
    saved(pd.concat([events, events[:2].assign(frame=np.nan)]), folder / "events.csv")
    exec(refusal(folder).partition("join them: ")[2].partition("; then")[0].replace("new.csv", f"{tmp_path}/new.csv"))  # noqa: S102
    plan = planned(tmp_path / "new.csv")
    assert plan.workload.task == "detect" and plan.summary["classes"] == ["none", *sorted({*LABELS})]


def test_a_list_of_columns_and_a_sensor_with_other_times_are_not_joined(tmp_path: Path):
    (folder := tmp_path / "d").mkdir()
    table = pd.DataFrame({"time": np.arange(50), "x": np.arange(50) % 7})
    saved(table, folder / "a.csv")
    columns = pd.DataFrame({"column": ["time", "x"], "meaning": ["seconds", "metres"]})
    for other in (columns, table.rename(columns={"x": "y"}).assign(time=table["time"] + 0.5)):
        saved(other, folder / "b.csv")
        assert "has other columns than" in refusal(folder)


def test_a_first_line_that_counts_the_rows_is_left_out(tmp_path: Path):
    """As of SVC2004's signatures, of which each line was one cell."""
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}/r_{number:02}.txt", header=False)
    for path in folder.rglob("*.txt"):
        rows = path.read_text().replace(",", " ")
        path.write_text(f"{rows.count(chr(10))}\n{rows}")
    expect(folder, ordered=False)


def test_words_instead_of_numbers_are_named(tmp_path: Path):
    for name in ("Arabic", "English", "Dutch"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name[:3]}{letter}\n" for letter in "abcdef"))
    refusals.sentence(lambda: planned(tmp_path), "holds words and no numbers, and Tandem learns from numbers")


@pytest.mark.parametrize(("num_files", "has_spaces"), [(3, False), (12, True), (15, False), (15, True)])
def test_files_that_are_parts_of_one_series_are_written_below_each_other(
    tmp_path: Path, num_files: int, has_spaces: bool, monkeypatch: pytest.MonkeyPatch
):
    """As a month of prices in each file: nothing led to a forecast."""
    monkeypatch.chdir(tmp_path)
    for month, rows in series().groupby(np.arange(300) // (300 // num_files)):
        (tmp_path / "d").mkdir(exist_ok=True)
        rows.to_csv(f"d/BTC {month + 1}.csv" if has_spaces else f"d/BTC-{month + 1}.csv", index=False)
    said = refusal(Path("d"))
    command = re.search("if they are parts of one series, write them below each other: (awk .*? > new.csv)", said)
    subprocess.run(["sh", "-c", command[1]], check=True)
    plan, plain = map(planned, (tmp_path / "new.csv", saved(series(), tmp_path / "plain.csv")))
    assert plan.summary["sha256"] == plain.summary["sha256"]
