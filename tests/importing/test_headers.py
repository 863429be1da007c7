"""Lines before the data: units, headers of several lines, and tables whose first line is no header."""

import csv
import re
import subprocess
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tandem.importing import new_workload
from tests.own_tables import LABELS, clips, planned, reasons, refusal, saved, series
from tests.shapes import written

UNITS = {
    "in each column": "id,s,m/s2,g,class",
    "only of numbers": ",s,m/s2,m/s2,",
    "not of all numbers": ",,[m/s^2],[m/s^2],",
    "with a dash for none": "-,s,m/s2,m/s2,-",
}


def with_lines(path: Path, table: pd.DataFrame, place: int, *lines: str) -> Path:
    """A table with more lines at a place, 0 for the first."""
    text = table.to_csv(index=False).splitlines()
    path.write_text("\n".join([*text[:place], *lines, *text[place:], ""]))
    return path


@pytest.mark.parametrize("units", UNITS)
def test_a_line_of_units_is_left_out_and_named(tmp_path: Path, units: str):
    table = clips(LABELS)
    plan = planned(path := with_lines(tmp_path / "t.csv", table, 1, UNITS[units]))
    assert plan.summary["sha256"] == planned(saved(table, tmp_path / "plain.csv")).summary["sha256"]
    cells = " ".join(filter(None, UNITS[units].split(",")))
    note = ("header", f"1 line left out: {cells}", "text, or no time, where the columns have numbers")
    assert note in plan.source.notes
    table = table.astype({"f0": object})
    table.loc[9, "f0"] = "left"
    assert f"{path}, line 12: " in refusal(with_lines(path, table, 1, UNITS[units]))


def test_a_line_of_units_above_a_series_and_below_lines_about_it(tmp_path: Path):
    """Also with semicolons and with a blank line."""
    plain = planned(saved(series(), tmp_path / "plain.csv"))
    path = with_lines(tmp_path / "t.csv", series(), 1, "UTC,MW")
    assert planned(path).summary["sha256"] == plain.summary["sha256"]
    path.write_text("# station 7\n# by A, B\n\n" + path.read_text())
    plan = planned(path)
    assert plan.summary["sha256"] == plain.summary["sha256"]
    (tmp_path / "u.csv").write_text("\n\n" + series().to_csv(index=False))
    assert planned(tmp_path / "u.csv").summary["sha256"] == plain.summary["sha256"]
    tabs = with_lines(tmp_path / "u.csv", series(), 0).read_text().replace(",", "\t")
    (tmp_path / "u.csv").write_text("Instrument: A B\nDate: today, at 9\nSerial: 1\n\n" + tabs)
    assert planned(tmp_path / "u.csv").summary["sha256"] == plain.summary["sha256"]
    assert ("header", "2 lines left out: # station 7, # by A, B", "before the header") in plan.source.notes
    path.write_text(path.read_text().replace(",", ";"))
    assert planned(path).summary["sha256"] == plain.summary["sha256"]


@pytest.mark.parametrize("line", ["c000,0,left,0.5,a", "c000,0,NA,?,a", "c000,0,,,a", "c000,left,0.1,0.2,a"])
def test_a_first_row_of_data_is_no_line_of_units(tmp_path: Path, line: str):
    path = with_lines(tmp_path / "t.csv", clips(LABELS).drop(index=0), 1, line)
    try:
        assert sum(planned(path).summary["num_filled"] for _ in range(1)) == 2
    except ValueError as error:
        assert "left" in line and "line 2: " in str(error) and "found left" in str(error)


@pytest.mark.parametrize("line", [",6000,6000,", ",mV,6000,"])
def test_a_line_of_counts_does_not_hide_the_clock(tmp_path: Path, line: str):
    """As AcqKnowledge writes it: the empty cell made a feature of the clock, in minutes of six digits."""
    draw = np.random.default_rng(0).normal(size=300).cumsum().round(4)
    rows = [f"{number / 6000:.6g},{value},{value / 2:.3g}," for number, value in enumerate(draw)]
    (path := tmp_path / "t.csv").write_text("\n".join(["10 msec/sample", "min,CH1,CH2,", line, *rows, ""]))
    [count] = re.findall(r"for a forecast (table\['time'\] = .*?\)),", message := refusal(path))
    [read] = re.findall(r"import pandas; (table = .*?); after it", message)
    exec(f"import pandas; {read}; {count}", namespace := {})  # noqa: S102
    plan = planned(saved(namespace["table"], tmp_path / "new.csv"), "--target", "CH2")
    assert plan.workload.preprocess.columns.features == ("CH1",) and plan.summary["num_rows"] == 300
    assert "min (counts the rows, or is their time)" in reasons(plan)["features"]


def quotes(*header: str) -> str:
    """Rows of days and four numbers below a header."""
    days = pd.date_range("2022-01-03", periods=200, freq="B").strftime("%Y-%m-%d")
    numbers = 100 + np.random.default_rng(0).normal(size=(200, 4)).cumsum(axis=0)
    rows = [",".join([day, *(f"{number:.4f}" for number in row)]) for day, row in zip(days, numbers, strict=True)]
    return "\n".join([*header, *rows, ""])


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (["Price,Close,High,Low,Open", "Ticker,A,A,A,A", "Date,,,,"], "Date Close High Low Open"),
        (["Price,Close,High,Close,High", "Ticker,A,A,B,B", "Date,,,,"], "Date,Close A,High A,Close B,High B"),
        ([",f,f,g,g", ",mean,std,mean,std", "day,,,,"], "day,f mean,f std,g mean,g std"),
        (["day,left,,right,", ",x,y,x,y"], "day,left x,left y,right x,right y"),
        (["TOA5,CR1,CR1,12,x,y,z", "TIMESTAMP,RECORD,Air,RH,P", "TS,RN,C,%,kPa", ",,Avg,Smp,Smp"],
         "TIMESTAMP RECORD Air RH P"),
        (["TOA5,CR1,CR1,12,Table", "TIMESTAMP,RECORD,Air,RH,P", "TS,RN,C,%,kPa", ",,Avg,Smp,Smp"],
         "TIMESTAMP RECORD Air RH P"),
    ],
)  # fmt: skip
def test_a_header_of_several_lines_is_read(tmp_path: Path, header: list[str], names: str):
    """As pandas writes columns of two levels, as yfinance does, and as loggers write TOA5."""
    (path := tmp_path / "t.csv").write_text(quotes(*header))
    columns = names.split("," if "," in names else None)
    plain = tmp_path / "plain.csv"
    plain.write_text(quotes(",".join(columns)))
    target = ("--target", columns[-1])
    plan, expected = planned(path, *target), planned(plain, *target)
    assert plan.workload == replace_table(expected, plan) and plan.summary["sha256"] == expected.summary["sha256"]
    assert plan.workload.preprocess.columns.time == columns[0]


def replace_table(plan: new_workload.WorkloadPlan, other: new_workload.WorkloadPlan) -> Any:
    """The workload of `plan` with the name of the other one's table."""
    preprocess = replace(plan.workload.preprocess, table=other.workload.preprocess.table)
    return replace(plan.workload, preprocess=preprocess)


def mended(said: str, folder: Path, form: str) -> None:
    """Run the line that a message has, found by the regular expression `form`."""
    [line] = re.findall(form, said)
    subprocess.run(["bash", "-c", line], cwd=folder, check=True)


def test_the_line_that_a_refusal_has_makes_the_table(tmp_path: Path):
    """Without a header, below lines about the data; with a semicolon at the end of each line."""
    table = clips(LABELS)
    expected = planned(saved(table, tmp_path / "t.csv")).summary["sha256"]
    (path := tmp_path / "no header.csv").write_text("# of a station\n#\n" + table.to_csv(index=False, header=False))
    mended(refusal(path).replace("A,B,C,D,E", "clip,frame,f0,f1,label"), tmp_path, r"\(echo .* new\.csv")
    assert planned(tmp_path / "new.csv").summary["sha256"] == expected
    path.write_text(table.to_csv(index=False).replace("\n", ";\n"))
    mended(refusal(path), tmp_path, r"sed .* new\.csv")
    assert planned(tmp_path / "new.csv").summary["sha256"] == expected
    written(tmp_path / "d/1.csv", path.read_text())
    mended(refusal(tmp_path / "d"), tmp_path, r"cp .* \+")
    assert (tmp_path / "new/1.csv").read_text() == table.to_csv(index=False)


@pytest.mark.parametrize(
    ("sep", "is_first"),
    [(" ", True), ("\t", False), (",", True), (";", False)],  # row names of R; no name of the last column
)
@pytest.mark.parametrize(
    ("has_words", "above"),
    [(True, ""), (True, "com.health.heart_rate{sep}6260012\n\n"), (False, "#Home Inc.\n#Name{sep}Main Floor\n")],
)
def test_a_header_with_a_cell_too_few_is_refused(tmp_path: Path, sep: str, is_first: bool, has_words: bool, above: str):
    """The first row is not taken for the header, also if most of its cells are words, and below other lines."""
    if above and sep == " ":
        return  # a title has spaces itself
    table = clips(LABELS).assign(**dict.fromkeys(("place", "side", "day"), "as before") if has_words else {})
    table.index += 1
    expected = planned(saved(table, tmp_path / "t.csv")).summary["sha256"]
    named = table.reset_index(names="row") if is_first else table.assign(last=[f"word {n}" for n in range(len(table))])
    header, *lines = named.to_csv(sep=sep, index=False, quoting=csv.QUOTE_NONNUMERIC).splitlines(keepends=True)
    short = header.removeprefix(f'"row"{sep}') if is_first else header.replace(f'{sep}"last"', "")
    path = tmp_path / "it is r.txt"
    path.write_text("".join([above.format(sep=sep), short, *lines]))
    num = len(named.columns)
    assert f"with {num - 1} cells, and the rows below have {num}; make them alike" in refusal(path)
    path.write_text("".join([above.format(sep=sep), header, *lines]))
    plan = planned(path)
    assert plan.workload.preprocess.columns.features == ("f0", "f1") and plan.summary["sha256"] == expected


TITLES = {
    "a title": "Station: Berlin",
    "titles with spaces": "Station: Berlin Tempelhof\nElevation: 48 m",
    "signs of MATLAB": "%Sample Rate = 250 Hz\n% Board = X",
    "a sentence": "Generated by Logger v2\n",
    "of the same width": "Channels,2,,,\nSamples,200,200,,\n***End_of_Header***,,,,",
}


@pytest.mark.parametrize(("title", "sep"), [*zip(TITLES, cycle(",;\t"), strict=False)])
def test_lines_about_the_data_above_the_header_are_left_out(tmp_path: Path, title: str, sep: str):
    """As loggers, OpenBCI and LabVIEW write them."""
    table = clips(LABELS)
    (path := tmp_path / "t.csv").write_text(TITLES[title].replace(",", sep) + "\n" + table.to_csv(index=False, sep=sep))
    assert planned(path).summary["sha256"] == planned(saved(table, tmp_path / "plain.csv")).summary["sha256"]


@pytest.mark.parametrize("title", ["Oven 3;;;", "Oven 3;;;\nExported:;05.03.2024 07:12;;", "Oven 3;;;\n;;;"])
def test_lines_above_the_header_may_be_padded_to_its_width(tmp_path: Path, title: str):
    """As a spreadsheet writes them."""
    hours = pd.date_range("2024-01-13", periods=100, freq="h").strftime("%d.%m.%Y %H:%M")
    rows = [f"{hour};{number % 7},5;{number % 3};ok" for number, hour in enumerate(hours)]
    (path := tmp_path / "t.csv").write_text("\n".join([title, "Zeit;Grad;Druck;Notiz", *rows]))
    assert planned(path, "--target", "Grad").workload.preprocess.columns.features == ("Druck",)


def test_columns_without_names_have_one_in_the_code(tmp_path: Path):
    """As the second coordinates of a player, whose name stands above the first ones."""
    (path := tmp_path / "t.csv").write_text("\n".join(["# a line", "n,P1,,P2,", *["1,0.5,0.25,0.125,1"] * 60]))
    message = refusal(path)
    [read] = re.findall(r"before it: import pandas; (table = .*?); after it", message)
    exec(f"import pandas; {read}", namespace := {})  # noqa: S102
    assert [*namespace["table"].columns] == ["n", "P1", "column 3", "P2", "column 5"]


def test_numbers_beside_nothing_above_dates_are_a_header(tmp_path: Path):
    """As the numbers of the sensors of METR-LA."""
    table = series(other=1.5).rename(columns={"time": "", "value": "773869", "other": "717447"})
    plan = planned(saved(table, tmp_path / "t.csv"), "--target", "773869")
    assert plan.summary["num_rows"] == len(table)


def test_names_of_several_index_columns_are_read(tmp_path: Path):
    """As pandas writes a MultiIndex on both axes."""
    table, path = clips(LABELS), tmp_path / "t.csv"
    expected = planned(saved(table, tmp_path / "plain.csv")).summary["sha256"]
    table = table.set_index(["clip", "frame"])
    table.columns = pd.MultiIndex.from_tuples([("acc", "x"), ("acc", "y"), ("label", "")])
    for table.columns.names in ([None, None], ["sensor", "axis"]):
        table.to_csv(path)
        plan = planned(path)
        assert plan.summary["sha256"] == expected
        assert plan.workload.preprocess.columns.features == ("acc x", "acc y")


def test_a_header_below_other_lines_with_a_cell_too_many_is_refused(tmp_path: Path):
    """As LabVIEW writes it: two blocks about the data, a blank line, and a column of remarks that is never filled."""
    above = ["LabVIEW Measurement,", "Date,2019/05/07", "***End_of_Header***,", ",", "Samples,9,9,", "X0,0.0,0.0,"]
    first, *rows = clips(LABELS).to_csv(index=False).splitlines()
    path = tmp_path / "t.lvm"
    path.write_text("\n".join([*above, f"{first},Comment", *rows, ""]).replace(",", "\t"))
    assert "has its header in line 7, with 6 cells, and the rows below have 5; make them alike" in refusal(path)


@pytest.mark.parametrize("delimiter", [" ", "\t", ";"])
def test_the_header_of_numpys_savetxt_is_one(tmp_path: Path, delimiter: str):
    table = clips([0, 1, 2] * 8).assign(clip=lambda clips: clips["clip"].str[1:].astype(int))
    header = delimiter.join(table.columns)
    form = ["%d", "%d", "%.3f", "%.3f", "%d"]
    np.savetxt(tmp_path / "t.txt", table, fmt=form, delimiter=delimiter, header=f"of a device\n{header}")
    plan, plain = planned(tmp_path / "t.txt"), planned(saved(table, tmp_path / "plain.csv"))
    assert plan.workload.preprocess.columns == plain.workload.preprocess.columns
    assert plan.summary["sha256"] == plain.summary["sha256"]


@pytest.mark.parametrize("sep", [",", "\t", ";"])
@pytest.mark.parametrize("above", ["", "# logger 7\n"])
def test_a_first_column_called_number_sign_is_no_remark(tmp_path: Path, sep: str, above: str):
    """As HOBO loggers number their rows. With empty cells in it, the first row of data once was the header."""
    table = series().assign(a="", b="", c="", d="", e="")
    table.insert(0, "#", range(1, 301))
    (path := tmp_path / "t.csv").write_text(above + table.to_csv(index=False, sep=sep))
    plain = planned(saved(table.rename(columns={"#": "n"}), tmp_path / "plain.csv"), "--target", "value")
    plan = planned(path, "--target", "value")
    assert plan.workload.preprocess.columns == plain.workload.preprocess.columns
    assert plan.summary["num_rows"] == plain.summary["num_rows"] == 300
