"""Tables as people write them: what stands in a cell, a header or a file name is read as it is meant, or one sentence
says why not.
"""

import csv
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tandem.command import CommandError
from tandem.data import source_module
from tandem.data.rows import to_sequences
from tandem.data.tables import from_frame, read_table
from tandem.importing import new_workload, shapes, text_tables
from tandem.importing.columns import TableColumns
from tests import refusals
from tests.own_tables import (
    LABELS,
    chosen,
    clips,
    parsed,
    people,
    planned,
    reasons,
    refusal,
    remarks,
    saved,
    series,
    table_with,
    with_cells,
)
from tests.projects import at_once, make_project, run, tandem

ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])


# Numbers --------------------------------------------------------------------------------------------------------------

WORDS = ("NA", "-", "?", "NULL", "n/a", "", "NA")


@ENDINGS
def test_words_for_a_missing_number_are_counted_and_filled(tmp_path: Path, ending: str):
    path = saved(with_cells("f0", *WORDS), tmp_path / f"t.{ending}")
    plan = planned(path)
    assert plan.summary["num_filled"] == 7 and plan.workload.preprocess.missing == "interpolate"
    assert "cells that count as missing: - (1), ? (1), NA (2), NULL (1), n/a (1)" in remarks(plan)
    empty = planned(saved(with_cells("f0", *[""] * 7), tmp_path / f"e.{ending}"))
    assert (plan.summary["mean"], plan.summary["sha256"]) == (empty.summary["mean"], empty.summary["sha256"])
    assert "found NA" in refusal(path, "--missing", "refuse")
    assert "found left" in refusal(saved(with_cells("f0", *WORDS, "left"), tmp_path / f"t.{ending}"))


@ENDINGS
def test_na_adds_spellings_of_missing_numbers(tmp_path: Path, ending: str):
    table = with_cells("f0", "broken", "NA").assign(f1=with_cells("f1", -999, "-999.0")["f1"].astype(float))
    path = saved(table, tmp_path / f"t.{ending}")
    assert "found broken" in refusal(path)
    plan = planned(path, "--na=-999,broken")
    assert plan.summary["num_filled"] == 4 and plan.workload.preprocess.na == ("-999", "broken")
    assert "cells that count as missing: -999 (2), NA (1), broken (1)" in remarks(plan)


def with_hands(num_points: int = 21) -> pd.DataFrame:
    """Two hands: in a third of the clips the left one is never seen, in others the right one for ten frames."""
    table = clips(LABELS, lengths=(20, 30), num_features=6 * num_points)
    number, points = pd.factorize(table["clip"])[0], [f"f{index}" for index in range(6 * num_points)]
    table.loc[number % 3 == 0, points[: 3 * num_points]] = np.nan
    table.loc[(number % 3 == 1) & table["frame"].between(5, 14), points[3 * num_points :]] = np.nan
    return table.rename(columns={name: f"kp{place}" for place, name in enumerate(points)})


@ENDINGS
def test_keypoints_of_a_hand_that_is_never_seen_are_masked(tmp_path: Path, ending: str):
    path = saved(with_hands(), tmp_path / f"t.{ending}")
    plan = planned(path)
    assert plan.summary["features"][-2:] == ["kp0 seen", "kp63 seen"] and len(plan.summary["features"]) == 128
    [(_, missing, why)] = [choice for choice in plan.choices if choice[0] == "missing"]
    assert missing == "mask" and "8 of 24 sequences never have some of the features, so 2 columns say" in why
    assert planned(path, "--missing", "interpolate").summary["features"] == plan.summary["features"][:-2]
    table = with_hands()
    arrays = np.full((24, 30, 126), np.nan)
    for number, (_, clip) in enumerate(table.groupby("clip")):
        arrays[number, : len(clip)] = clip.filter(like="kp")
    np.savez(tmp_path / "t.npz", X=arrays, y=LABELS)
    assert planned(tmp_path / "t.npz", "--axes", "NTC").summary["num_filled"] == plan.summary["num_filled"]
    one = table.assign(kp0=table["kp0"].where(table["frame"] != 7))[["clip", "frame", "kp0", "kp99", "label"]]
    choice = next(each for each in planned(saved(one, path)).choices if each[0] == "missing")
    assert choice[1] == "interpolate" and "(--missing mask adds columns that say what was seen)" in choice[2]


def test_words_for_a_missing_number_in_a_series_and_a_wide_table(tmp_path: Path):
    table = series().astype({"value": object})
    table.loc[[5, 9], "value"] = ["n/a", "gone"]
    plan = planned(saved(table, tmp_path / "t.csv"), "--na", "gone")
    assert plan.summary["num_missing"] == 2 and "gone (1), n/a (1)" in remarks(plan)
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(24, 8)), columns=[f"x_{step}" for step in range(8)])
    wide = wide.astype(object).assign(label=LABELS)
    wide.loc[3, "x_2"], wide.loc[4, ["x_6", "x_7"]] = "NULL", "gone"
    plan = planned(saved(wide, tmp_path / "t.csv"), "--na", "gone")
    assert (plan.summary["num_filled"], plan.summary["min_steps"]) == (1, 6)


@pytest.mark.parametrize("word", ["--", "#DIV/0!", "no data", "bad"])
@pytest.mark.parametrize("kind", ["clips", "series", "semicolons", "wide"])
def test_an_error_about_a_cell_names_the_option_that_reads_it_as_missing(tmp_path: Path, word: str, kind: str):
    """--na=-- was as good as none: argparse drops it."""
    path, options = tmp_path / "t.csv", ()
    if kind == "wide":
        wide = pd.DataFrame(np.random.default_rng(0).normal(size=(24, 8)).round(3)).add_prefix("x_").astype(object)
        wide.loc[5, "x_3"] = word
        wide.assign(label=LABELS).to_csv(path, index=False)
        options = ("--layout", "wide")
    elif kind == "series":
        table = series().astype({"value": object})
        table.loc[[5, 9], "value"] = word
        saved(table, path)
    else:
        with_cells("f0", word, word).to_csv(path, index=False, sep=";" if kind == "semicolons" else ",")
    said = refusal(path, *options)
    option = shlex.split(re.search(r"--na=('.*?'|\S+)", said)[0])[0]
    assert option == f"--na={word}" and "means that there is none" in said
    plan = planned(path, option, *options)
    assert plan.summary.get("num_filled", plan.summary.get("num_missing")) in (1, 2)


def test_a_table_is_read_for_predictions_as_it_was_for_the_training(tmp_path: Path):
    """By preprocess, and by the reader of `tandem predict`, which passes a DataFrame on."""
    table = with_cells("f0", *WORDS, "gone").assign(on=lambda table: table.frame % 2 == 0)
    plan = planned(path := saved(table, tmp_path / "t.csv"), "--na", "gone")
    params = plan.workload.preprocess
    assert "on" in params.columns.features
    features = [*params.columns.features, "label"]
    frame = read_table(path, ["clip"], params.columns.features, ["frame", "label"], params.na)
    again = from_frame(pa.table(frame.columns).to_pandas(), ["clip", "frame", *features], "the table", params.na)
    found = to_sequences(again, params.columns, params.velocity, True)
    expected = source_module("sequences").prepare(params, tmp_path, "class")
    wanted = expected.sequences.values * expected.std + expected.mean
    is_real = ~found.padding_mask
    np.testing.assert_allclose(found.values[is_real], wanted[is_real], atol=1e-5)
    assert found.num_filled == expected.sequences.num_filled == 8


@ENDINGS
def test_false_and_true_are_0_and_1(tmp_path: Path, ending: str):
    table = clips(LABELS)
    flags, numbers = table.assign(on=table["f0"] > 0), table.assign(on=(table["f0"] > 0).astype(int))
    plans = [planned(saved(each, tmp_path / f"{n}.{ending}")) for n, each in enumerate((flags, numbers))]
    assert plans[0].workload.preprocess.columns.features == ("f0", "f1", "on")
    assert plans[0].summary["sha256"] == plans[1].summary["sha256"]
    label = planned(saved(table_with(label=lambda number: number % 2 == 0), tmp_path / f"t.{ending}"))
    assert len(label.summary["classes"]) == 2 and label.workload.task == "classify"


@pytest.mark.parametrize(
    ("column", "cell", "mend"),
    [
        (lambda n: [f"{each % 17 / 10}%" for each in n], "'0.0%'", ".str.removesuffix('%').astype(float)"),
        (
            lambda n: [f"{each + 1}.{each % 900 + 100},{each % 89 + 10}" for each in n],
            "'1.100,10'",
            ".str.replace('.', '').str.replace(',', '.').astype(float)",
        ),
        (
            lambda n: [f"{each + 1},{each % 900 + 100}.5" for each in n],
            "'1,100.5'",
            ".str.replace(',', '').astype(float)",
        ),
    ],
)
def test_a_feature_in_an_unusual_notation_is_shown_with_its_conversion(
    tmp_path: Path, column: Any, cell: str, mend: str
):
    table = clips(LABELS)
    table = table.assign(load=column(range(len(table))))
    features = next(why for key, _, why in planned(saved(table, tmp_path / "t.parquet")).choices if key == "features")
    assert cell in features and f"table['load'] = table['load']{mend}" in features
    table["load"] = eval(f"table['load']{mend}")  # noqa: S307
    assert "load" in chosen(planned(saved(table, tmp_path / "t.csv")))["features"]


SIGNS = pytest.mark.parametrize("sign", [",", "."])
QUESTION = None
RULE = {  # with a comma; each is tried with a point too
    "another number of digits than three": (["1,25", "1,014"], [1.25, 1.014]),
    "begins with 0": (["0,512", "1,014"], [0.512, 1.014]),
    "begins with 0, negative": (["-0,512", "-1,014"], [-0.512, -1.014]),
    "nothing before the sign": ([",512", "1,014"], [0.512, 1.014]),
    "more than three digits before": (["1234,567", "1,014"], [1234.567, 1.014]),
    "an exponent": (["1,234e+02", "1,014"], [123.4, 1.014]),
    "two signs": (["1,014,145", "1,014"], [1014145, 1014]),
    "two signs, negative": (["-1,014,145", "983"], [-1014145, 983]),
    "both signs": (["1,164.32", "1,014"], [1164.32, 1014]),
    "both signs, three digits": (["1,164.320", "1,014"], [1164.32, 1014]),
    "others are nearer to thousands": (["983", "1,014", "", "NA"], [983, 1014, np.nan, np.nan]),
    "others are nearer to thousands, negative": (["-983", "1,014"], [-983, 1014]),
    "others are nearer to decimals": (["3", "1,014"], QUESTION),
    "others are zero": (["0", "1,014"], QUESTION),
    "others are words": (["NA", "-", "1,014"], QUESTION),
    "spaces": (["1 014,5", "983"], [1014.5, 983]),
    "spaces, three digits": (["1 014,145", "983"], [1014.145, 983]),
    "narrow spaces": (["1\u202f014\u202f145", "1\u00a0014"], [1014145, 1014]),
    "apostrophes": (["1'014", "1\u2019014.5"], [1014, 1014.5]),
    "no sign": (["983", "1014"], [983, 1014]),
}


def text_table(path: Path, delimiter: str, **columns: list[str]) -> Path:
    """The cells as they are, in quotes where they have to."""
    pd.DataFrame(columns).to_csv(path, index=False, sep=delimiter)
    return path


def numbers_of(path: Path, *options: str) -> dict[str, list[float]]:
    """The numeric columns as the table that preprocess reads has them."""
    given = {key: value for key, value in vars(parsed("mine", str(path), *options)).items() if value is not None}
    table = text_tables.sniff(path, given)
    if not table.is_ready:
        text_tables.rewrite(table, path := path.with_name("again.csv.gz"))
    frame = pd.read_csv(path, na_values=["-"])
    return {name: frame[name].tolist() for name in frame if frame[name].dtype.kind in "if"}


def question(path: Path, *options: str) -> str:
    return refusals.question(lambda: numbers_of(path, *options))


@SIGNS
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
@pytest.mark.parametrize("clause", RULE)
def test_a_sign_between_digits_is_read_as_the_column_shows(tmp_path: Path, clause: str, delimiter: str, sign: str):
    cells, expected = RULE[clause]
    if sign == ".":
        cells = [cell.translate({ord(","): ".", ord("."): ","}) for cell in cells]
        if expected is QUESTION and (delimiter == "," or clause == "others are words"):  # a point, as %.3f writes it
            expected = pd.to_numeric(pd.Series(cells), errors="coerce").tolist()
        if "nearer to thousands" in clause and delimiter == ",":
            expected = [number if abs(number) < 1000 else number / 1000 for number in expected]
    path = text_table(tmp_path / "t.csv", delimiter, n=list(range(len(cells))), x=cells)
    if expected is QUESTION:
        assert f"{path}: column 'x' holds '1{sign}014'" in question(path)
        return
    np.testing.assert_allclose(numbers_of(path)["x"], expected)


OPEN = ["1,014", "1,020"]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        (["0,5", "7"], [1.014, 1.02]),
        (["0,5%", "7,1%"], [1.014, 1.02]),
        (["1,014,145", "7"], [1014, 1020]),
        (["983", "1,043"], [1014, 1020]),
        (["0.5", "7"], [1014, 1020]),  # the point is decimal, so the comma is not
        (["1.014.145", "7"], [1.014, 1.02]),
        (["1 014", "7"], [1.014, 1.02]),
        (["1", "7"], QUESTION),
        (["1,020%", "1,043%"], QUESTION),
        (["0,5, or so", "0,7"], QUESTION),  # words decide nothing
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_one_certain_column_decides_for_the_table(tmp_path: Path, beside: list[str], expected: Any, is_first: bool):
    columns = {"beside": beside, "x": OPEN} if is_first else {"x": OPEN, "beside": beside}
    path = text_table(tmp_path / "t.csv", ";", **columns)
    if expected is QUESTION:
        assert re.search("column '(x|beside)' holds '1,0(14|20%)'", question(path))
    else:
        assert numbers_of(path)["x"] == expected


def test_a_table_that_contradicts_itself_is_a_question_or_refused(tmp_path: Path):
    """Columns that are certain keep their own reading; what they would decide for others stays open."""
    both = {"part": ["0,5", "0,25"], "whole": ["1,014,145", "983,982"]}
    path = text_table(tmp_path / "a.csv", ";", **both)
    assert numbers_of(path) == {"part": [0.5, 0.25], "whole": [1014145, 983982]}
    path = text_table(tmp_path / "b.csv", ";", **both, x=OPEN)
    assert "column 'x' holds '1,014'" in question(path)
    assert numbers_of(path, "--decimal", ",") == {"part": [0.5, 0.25], "whole": [1014145, 983982], "x": [1.014, 1.02]}
    path = text_table(tmp_path / "c.csv", ";", part=["0,5", "0,25"], near=["983", "1,014"])
    assert "column 'near' holds '1,014'" in question(path)
    path = text_table(tmp_path / "d.csv", ";", n=["1", "2"], x=["0,5", "1,014,145"])
    with pytest.raises(ValueError, match="column 'x' holds '0,5' and '1,014,145'"):
        numbers_of(path)


def test_an_option_answers_the_question(tmp_path: Path):
    path = text_table(tmp_path / "t.csv", ";", n=["1", "2"], x=OPEN)
    asked = question(path)
    assert "--thousands , reads it as 1014, --decimal , as 1.014" in asked and "\n" not in asked
    readings = {"decimal ,": 1.014, "thousands ,": 1014, "decimal .": 1014, "thousands .": 1.014}
    for option, expected in readings.items():
        assert numbers_of(path, *f"--{option}".split())["x"][0] == expected
    with pytest.raises(ValueError, match="a sign has one meaning"):
        numbers_of(path, "--decimal", ",", "--thousands", ",")
    near = text_table(tmp_path / "near.csv", ";", n=["1", "2"], x=["983", "1,014"])
    assert numbers_of(near, "--decimal", ",")["x"] == [983, 1.014]


@pytest.mark.parametrize(("delimiter", "scale"), [(";", 1), ("\t", 1), (",", 1), (";", 1000)])
def test_thousands_are_not_decimals(tmp_path: Path, delimiter: str, scale: int):
    """A series around a thousand, or a million, and clips in which they begin after the first rows."""
    level = 1000 + series()["value"].round()
    cells = [f"{int(value):,}" for value in level * scale]
    path = text_table(tmp_path / "series.csv", delimiter, time=list(series()["time"]), visitors=cells)
    assert numbers_of(path)["visitors"] == (level * scale).tolist()
    plan = planned(path)
    note = next(line for line in new_workload.summary_lines(plan) if line.startswith("  numbers "))
    assert "commas between thousands: column 'visitors' holds '1,0" in note and str(plan.source.sources[0]) == str(path)
    table = clips(LABELS).assign(f0=np.arange(len(clips(LABELS))) + 900)
    cells = [f"{value:,}" for value in table["f0"]]
    written = text_table(tmp_path / "clips.csv", delimiter, **{**table.astype(str).to_dict("list"), "f0": cells})
    plain = saved(table, tmp_path / "plain.csv")
    assert planned(written).summary["mean"] == planned(plain).summary["mean"]


@pytest.mark.parametrize("lowest", [-3, 2, 25, 900])  # from 1 on, no cell begins with 0
def test_columns_with_three_digits_after_the_point_are_read_as_before(tmp_path: Path, lowest: int):
    draw = np.random.default_rng(0)
    table = clips(LABELS)
    table = table[["clip", "frame", "label"]].assign(f0=(lowest + 5 * draw.random(len(table))).round(3))
    expected = planned(saved(table, tmp_path / "t.parquet")).summary
    for delimiter in ",;\t":
        path = tmp_path / "t.csv"
        table.to_csv(path, index=False, sep=delimiter, float_format="%.3f")
        assert planned(path).summary["sha256"] == expected["sha256"]


def test_the_files_of_a_folder_or_pair_decide_together(tmp_path: Path):
    """The only file with a sign is not among those that are sampled."""
    for number in range(40):
        cells = [f"{900 + number}", "985", "986", f"{1000 + number:,}" if number == 1 else "1050"]
        (folder := tmp_path / "d" / LABELS[number // 10]).mkdir(parents=True, exist_ok=True)
        text_table(folder / f"{number:02}.csv", ";", t=list("0123"), f0=cells)
    assert planned(tmp_path / "d").summary["mean"][0] > 900
    for part, level in (("TRAIN", 1001), ("TEST", 901)):  # the first alone would be a question
        columns = {f"x_{step}": [f"{level + row + step**2:,}" for row in range(24)] for step in range(6)}
        text_table(tmp_path / f"t_{part}.csv", ";", **columns, label=LABELS)
    plan = planned(tmp_path / "t_TRAIN.csv")
    assert plan.summary["num_per_split"]["test"] == 24 and 1000 < plan.summary["mean"][0] < 1060
    with pytest.raises(CommandError):
        planned(tmp_path / "t_TRAIN.csv", "--alone")
    columns["x_3"] = ["1,020", "x", *columns["x_3"][2:]]
    columns["x_3"] = ["1,020", "x", *columns["x_3"][2:]]
    wide = text_table(tmp_path / "wide.csv", ";", **columns, label=LABELS)
    assert "column 'x_3' must hold numbers, found x" in refusal(wide, "--layout", "wide")


def test_an_error_names_the_line_of_the_users_file(tmp_path: Path):
    rows = [f"c{clip};{frame};{clip + frame},5;{LABELS[clip]}" for clip in range(24) for frame in range(4)]
    rows[9] = "c2;1;left;c"
    text = "\n".join(["clip;frame;x;label", "", *rows[:5], "", "", *rows[5:]])
    (path := tmp_path / "t.csv").write_text(text)
    assert f"{path}, line {text.splitlines().index(rows[9]) + 1}: " in refusal(path)
    rows[9], rows[10] = "c2;2;3,5;c", "c2;2;3,4;c"
    text = "\n".join(["clip;frame;x;label", "", *rows])
    path.write_text(text)
    assert "lines 12 and 13" in refusal(path)


@pytest.mark.parametrize(
    ("cells", "readings"),
    [
        (["983", "1,014", "1,020"], [[983, 1014, 1020]]),
        (["1,014", "1,020"], [[1014, 1020], [1.014, 1.02]]),
        (["1.014,5", "3"], [[1014.5, 3]]),
        (["983", "1.014.145"], [[983, 1014145]]),
        (["1'014", "1\u2019014,5"], [[1014, 1014.5]]),
        (["1 014", "1\u202f014"], [[1014, 1014]]),
        (["0,82%", "1,5%"], [[0.82, 1.5]]),
        (["1,014%", "1,020%"], [[1014, 1020], [1.014, 1.02]]),
    ],
)
def test_the_advice_for_numbers_reads_them_as_the_rule_does(cells: list[str], readings: list[list[float]]):
    """In Parquet, and for units, where the cells stay text. In any order of the cells."""
    for order in (cells, cells[::-1]):
        table = pd.DataFrame({"x": order * 9})
        said = TableColumns(table, "t").advice("x")
        code = re.findall(r"table\['x'\] = (table.*?\.astype\(float\))", said)
        found = [eval(each, {"table": table}).tolist() for each in code]  # noqa: S307
        assert [sorted(each[: len(cells)]) for each in found] == [sorted(each) for each in readings]
        assert any(repr(cell) in said for cell in cells)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y %H:%M", "%d.%m.%Y", "%Y/%m/%d"])
def test_the_advice_for_dates_converts_them(tmp_path: Path, form: str):
    days = pd.date_range("2024-01-01", periods=300, freq="D")
    table = pd.DataFrame({"time": days.strftime(form), "value": np.arange(300) ** 0.5})
    said = refusal(saved(table, tmp_path / "t.parquet"))
    assert ("table['time'] = pandas.to_datetime(table['time'])" in said) == form.startswith("%Y")
    assert ("(table['time'], dayfirst=True), without dayfirst if" in said) != form.startswith("%Y")
    assert (pd.to_datetime(table["time"], dayfirst=form.startswith("%d")) == days).all()


def prices(form: str, freq: str = "B", num: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Prices as a web page shows them, the newest first; and what they mean."""
    draw, days = np.random.default_rng(0), pd.date_range("2022-01-03", periods=num, freq=freq)
    true = pd.DataFrame({"Date": days, "Price": (15000 * np.exp(0.01 * draw.normal(size=num).cumsum())).round(2)})
    true["Vol."] = draw.integers(20, 300, num) * 10.0 ** draw.integers(4, 6, num)
    true["Change %"] = draw.normal(size=num).round(2)
    shown = pd.DataFrame({"Date": days.strftime(form), "Price": [f"{each:,.2f}" for each in true["Price"]]})
    shown["Vol."] = [f"{each / 1e3:.2f}K" if each < 1e6 else f"{each / 1e6:.2f}M" for each in true["Vol."]]
    shown["Change %"] = [f"{each:.2f}%" for each in true["Change %"]]
    return shown[::-1], true


DATES = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%m-%d-%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d-%b-%Y",
    "%m/%d/%Y 09:30",
)


@pytest.mark.parametrize("form", [*DATES, "%d.%m.%Y 14:05:06", "%m/%d/%Y 02:05 PM"])
def test_prices_as_a_web_page_shows_them_are_read(tmp_path: Path, form: str):
    shown, true = prices(form)
    shown.loc[7, "Vol."] = "-"
    plan = planned(saved(shown, tmp_path / "t.csv"), "--missing", "interpolate")
    columns = plan.workload.preprocess.columns
    assert (columns.target, columns.features) == ("Price", ("Vol.", "Change %"))
    assert plan.workload.preprocess.interval == "business-day" and plan.summary["num_grid_points"] == 300
    notes = {what: value for what, value, _ in plan.source.notes}
    assert notes["numbers"] == "commas between thousands and K as 1e3 and M as 1e6 and without %"
    assert "Date: " in notes["dates"]
    plan.source.write(tmp_path / "again.csv.gz")
    again = pd.read_csv(tmp_path / "again.csv.gz", na_values="-")[::-1].reset_index(drop=True)
    assert np.isnan(again.loc[7, "Vol."])
    again.loc[7, "Vol."] = true.loc[7, "Vol."]
    assert (pd.to_datetime(again["Date"]).dt.normalize() == true["Date"]).all()
    np.testing.assert_allclose(again.drop(columns="Date"), true.drop(columns="Date"), rtol=1e-12)


def test_whether_day_or_month_comes_first_is_asked_for_if_no_cell_shows_it(tmp_path: Path):
    """No day is above 12 in the firsts of months. Each answer reads them so, also for a prediction."""
    path = saved(prices("%d/%m/%Y", "MS", 59)[0], tmp_path / "t.csv")
    assert "dates like '01/12/2026'; of a text table, --dayfirst yes or --dayfirst no says what comes" in refusal(path)
    assert planned(path, "--dayfirst", "yes").workload.preprocess.interval == "month"
    options = {"needed": {"Price"}, "times": {"Date"}}  # as of tandem predict
    asked = refusals.question(lambda: shapes.open_path(path, options))
    assert "'01/12/2026'; --dayfirst yes reads it as 2026-12-01, --dayfirst no as 2026-01-12" in asked
    assert shapes.open_path(path, {**options, "dayfirst": "no"}).notes[-2][1] == "Date: 01/12/2026 is 2026-01-12"
    assert "Date" not in shapes.open_path(path, {"needed": {"Price"}}).notes[-2][1]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["$1,164.50", "-$3.25", "$983.00"], [1164.5, -3.25, 983]),
        (["1.164,50 \u20ac", "3,25 \u20ac", "-983,00 \u20ac"], [1164.5, 3.25, -983]),
        (["\u00a3 12", "\u00a313", "14"], [12, 13, 14]),
        (["1.5k", "2 M", "0.25B"], [1.5e3, 2e6, 0.25e9]),
        (["12 %", "+1.5%", "-0.25%"], [12, 1.5, -0.25]),
        (["5 kg", "6 kg", "7 kg"], None),  # another unit
        (["292.75 K", "293.1 K", "291.5 K"], None),  # kelvin
        (["1.6%", "0.016", "1.7%"], None),  # two units, of which nobody knows which is meant
        (["$1.79", "\u20ac1.61", "$1.85"], None),
        (["5K", "6M", "7 minutes"], None),
    ],
)
def test_marks_around_numbers_are_read(tmp_path: Path, cells: list[str], expected: list[float] | None):
    path = text_table(tmp_path / "t.csv", ";", n=["0", "1", "2"], x=cells)
    found = numbers_of(path).get("x")
    assert (found is None) == (expected is None)
    if expected:
        np.testing.assert_allclose(found, expected)


# Lines before the data ------------------------------------------------------------------------------------------------

UNITS = {
    "in each column": "id,s,m/s2,g,class",
    "only of numbers": ",s,m/s2,m/s2,",
    "not of all numbers": ",,[m/s^2],[m/s^2],",
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
    shown = " ".join(filter(None, UNITS[units].split(",")))
    note = ("header", f"1 line left out: {shown}", "text where the columns have numbers")
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


def quotes(*header: str) -> str:
    """Rows of days and four numbers below a header."""
    days = pd.date_range("2022-01-03", periods=200, freq="B").strftime("%Y-%m-%d")
    numbers = 100 + np.random.default_rng(0).normal(size=(200, 4)).cumsum(axis=0)
    rows = [",".join([day, *(f"{each:.4f}" for each in row)]) for day, row in zip(days, numbers, strict=True)]
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
    plan, expected = planned(path), planned(plain)
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
    """Without a header; with a semicolon at the end of each line; with a file for each channel."""
    table = clips(LABELS)
    expected = planned(saved(table, tmp_path / "t.csv")).summary["sha256"]
    table.to_csv(path := tmp_path / "no header.csv", index=False, header=False)
    mended(refusal(path).replace("A,B,C,D,E", "clip,frame,f0,f1,label"), tmp_path, r"\(echo .* new\.csv")
    assert planned(tmp_path / "new.csv").summary["sha256"] == expected
    path.write_text(table.to_csv(index=False).replace("\n", ";\n"))
    mended(refusal(path), tmp_path, r"sed .* new\.csv")
    assert planned(tmp_path / "new.csv").summary["sha256"] == expected

    draw = np.random.default_rng(0)
    arrays = {}
    for split, num in (("test", 20), ("train", 40)):
        (at := tmp_path / "har" / split / "Inertial Signals").mkdir(parents=True)
        arrays[f"X_{split}"] = draw.normal(size=(num, 2, 30)).round(3)
        arrays |= {f"y_{split}": np.arange(num) % 3, f"subject_{split}": np.arange(num) // 5 + len(arrays)}
        for place, channel in enumerate(("acc_x", "acc_y")):
            np.savetxt(at / f"{channel}_{split}.txt", arrays[f"X_{split}"][:, place], fmt="%.3f")
        for key in ("y", "subject"):
            np.savetxt(at.parent / f"{key}_{split}.txt", arrays[f"{key}_{split}"], fmt="%d")
    np.savez(tmp_path / "har.npz", **arrays)
    mended(refusal(tmp_path / "har"), tmp_path, r"python -c .*(?= writes them)")
    found, expected = (planned(tmp_path / name, "--axes", "NCT") for name in ("new.npz", "har.npz"))
    assert found.summary["sha256"] == expected.summary["sha256"] and found.workload.preprocess.groups == "subject"


# Steps, times and series ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [None, "idle", "none"])
def test_a_repeated_step_is_named_with_its_lines(tmp_path: Path, background: str | None):
    """With a label for each sequence, or events; no advice would replace labels."""
    table = clips(LABELS).rename(columns={"label": "kind"})
    if background:
        table["kind"] = np.where(table["frame"] == 2, "hit", background)
    table.loc[6, "frame"] = table.loc[5, "frame"]
    for options in ([], ["--sequence", "clip", "--step", "frame"]):
        said = refusal(saved(table, tmp_path / "t.csv"), *options)
        assert f"'frame' repeats in clip {table['clip'][6]}, lines 7 and 8;" in said and "replace(" not in said


@ENDINGS
def test_equal_repeated_rows_are_left_out_and_named(tmp_path: Path, ending: str):
    """As a logger that was copied twice; also with an empty cell, and in recordings."""
    for table in (clips(LABELS), with_cells("f0", ""), people(6, ["sit", "walk", "run"]).drop(columns="time")):
        plan = planned(saved(table, tmp_path / f"t.{ending}"))
        twice = pd.concat([table, table.iloc[[5, 6, 40]]])
        again = planned(saved(twice, tmp_path / f"t.{ending}"))
        assert (again.workload, again.summary["sha256"]) == (plan.workload, plan.summary["sha256"])
        places = f"lines 7 and {len(table) + 2}" if ending == "csv" else f"rows 6 and {len(table) + 1}"
        assert f"3 rows that repeat others are left out: {places} are equal" in remarks(again)
    twice = pd.concat([table := clips(LABELS), table.iloc[[5]].assign(f1=0)])
    assert f"'frame' repeats in clip {table['clip'][5]}" in refusal(saved(twice, tmp_path / f"t.{ending}"))


def log_of_records(unit: str, num: int = 30) -> pd.DataFrame:
    """A log of gestures, one after another, in which no time repeats."""
    table = clips(["push", "swipe", "twist"] * (num // 3), lengths=(20, 40))
    record = pd.factorize(table["clip"])[0]
    milliseconds = 1_700_000_000_000 + 20 * np.arange(len(table)) + 5000 * record
    times: Any = milliseconds * {"ms": 1, "us": 1000, "ns": 1_000_000}.get(unit, 1)
    if unit == "iso":
        times = pd.to_datetime(milliseconds, unit="ms").strftime("%Y-%m-%d %H:%M:%S.%f")
    elif unit == "s":
        times = milliseconds / 1000
    return pd.DataFrame(
        {"record": record, "timestamp_ms": times, "x": table["f0"], "y": table["f1"], "gesture": table["label"]}
    )


@pytest.mark.parametrize("unit", ["ms", "us", "ns", "s", "iso"])
def test_a_log_of_records_is_sequences_whatever_its_columns_are_called(tmp_path: Path, unit: str):
    expected = {
        "task": "classify",
        "sequence": "record",
        "step": "timestamp_ms",
        "label": "gesture",
        "features": "x, y",
    }
    table = log_of_records(unit)
    plan = planned(saved(table, tmp_path / "t.csv"))
    assert expected.items() <= chosen(plan).items() and plan.summary["num_sequences"] == 30
    shuffled = planned(saved(table.sample(frac=1, random_state=0), tmp_path / "t.csv"))
    assert shuffled.summary["sha256"] == plan.summary["sha256"]
    named = table.rename(columns={"record": "n", "timestamp_ms": "clock", "gesture": "what"})
    found = chosen(planned(saved(named, tmp_path / "t.csv")))
    assert (found["task"], found["sequence"], found["label"]) == ("classify", "n", "what")


def test_words_that_come_again_make_no_sequences_of_a_series(tmp_path: Path):
    """A day of the week has one word of a second column too, and so have a month and a stretch of days."""
    times = pd.date_range("2024-01-01", periods=400, freq="D")
    table = pd.DataFrame({"when": times.strftime("%Y-%m-%d"), "value": np.random.default_rng(0).normal(size=400)})
    table["name"], table["month"] = times.day_name(), times.month_name()
    table["kind"] = np.where(times.day_of_week < 5, "work", "rest")
    table["season"] = np.where(times.month < 7, "spring", "autumn")
    assert planned(saved(table, tmp_path / "t.csv")).workload.task == "forecast"


def test_a_class_with_too_few_sequences_is_left_out_or_in_train(tmp_path: Path):
    labels = [*LABELS, "rare", "odd", "odd"]
    path = saved(clips(labels), tmp_path / "t.csv")
    plan = planned(path)
    assert plan.summary["classes"] == ["a", "b", "c"] and plan.summary["num_sequences"] == 24
    assert "3 sequences left out, of classes with fewer than 3: odd, rare" in remarks(plan)
    assert "left out: 3 sequences of 2 classes with too few, odd (2), rare (1)" in reasons(plan)["rare_classes"]
    without = planned(saved(clips(LABELS), tmp_path / "t.csv"))
    assert without.summary["sha256"] == plan.summary["sha256"]
    assert without.workload.preprocess.rare_classes is None

    plan = planned(saved(clips(labels), path), "--keep-rare")
    assert plan.summary["classes"] == ["a", "b", "c", "odd", "rare"]
    per_class = plan.summary["num_per_class"]
    assert per_class["train"] | {"odd": 2, "rare": 1} == per_class["train"]
    assert sum(per_class[split][name] for split in ("val", "test") for name in ("odd", "rare")) == 0
    assert "no score covers the classes with fewer than 3 sequences, which are in train: odd, rare" in remarks(plan)
    assert "'A' has 1 sequences" in refusal(saved(clips([*LABELS, "A"]), path))  # a slip of a
    grouped = clips(labels).assign(person=lambda table: pd.factorize(table["clip"])[0] // 3)
    assert planned(saved(grouped, path)).workload.preprocess.rare_classes is None  # groups place it
    assert "class 'a' has 1 sequences" in refusal(saved(clips([*"abcdefgh"]), path))


@pytest.mark.parametrize(("num", "high"), [(60, 60), (120, 60), (300, 60), (60, 12)])
def test_many_whole_numbers_are_numbers_to_predict_or_the_option_is_named(tmp_path: Path, num: int, high: int):
    """An age that several sequences share; but 60 signs of five clips each are classes."""
    ages = np.random.default_rng(0).integers(0, high, num).tolist()
    table = clips(ages)
    plan = planned(saved(table.rename(columns={"label": "age"}), tmp_path / "t.csv"))
    assert plan.workload.task == "regress" and plan.workload.preprocess.columns.label == "age"
    path = saved(table, tmp_path / "t.csv")  # a column called label is one
    try:
        assert "--task regress predicts the number" in reasons(planned(path))["rare_classes"]
    except ValueError as error:
        assert "or predict the number with task regress (--task regress)" in str(error)
    assert planned(path, "--task", "regress").workload.task == "regress"
    classes = planned(saved(clips([*range(60)] * 5).rename(columns={"label": "sign"}), path))
    assert classes.workload.task == "classify" and len(classes.summary["classes"]) == 60


def test_a_column_of_a_few_words_is_named_with_its_option_and_becomes_features(tmp_path: Path):
    table = clips(LABELS)
    table["mode"] = np.random.default_rng(0).choice(["low", "mid", "high"], len(table))
    table = table.assign(note=[f"n{row}" for row in range(len(table))], sex=np.where(table["clip"] < "c012", "f", "m"))
    path = saved(table, tmp_path / "t.csv")
    why = reasons(planned(path))["features"]
    assert "mode (text; --categories mode adds a feature for each word), note (text), sex (text)" in why
    plan = planned(path, "--categories", "mode")
    assert plan.workload.preprocess.categories == ("mode=high", "mode=low", "mode=mid")
    assert plan.summary["features"] == ["f0", "f1", "mode=high", "mode=low", "mode=mid", *plan.summary["features"][5:]]
    assert "has 154 values; accepted: 50" in refusal(path, "--categories", "note")
    assert "has no column 'mood'; did you mean 'mode'" in refusal(path, "--categories", "mood")


def test_an_id_that_two_sequences_have_is_named_as_a_repeated_step(tmp_path: Path):
    table = clips(LABELS)
    table["label"] = np.where(pd.factorize(table["clip"])[0] < 12, "a", "b")
    table["clip"] = pd.factorize(table["clip"])[0] % 12
    first, second = table.index[(table["clip"] == 0) & (table["frame"] == 0)]
    for options in ([], ["--sequence", "clip", "--step", "frame"]):
        said = refusal(saved(table, tmp_path / "t.csv"), *options)
        assert f"'frame' repeats in clip 0, lines {first + 2} and {second + 2} (" in said
        assert "replace(" not in said and "cumcount" not in said


def test_a_label_in_a_series_is_no_feature(tmp_path: Path):
    plan = planned(path := saved(series(label=[int(hour == 99) for hour in range(300)]), tmp_path / "t.csv"))
    assert plan.workload.preprocess.columns.features == ()
    features = next(why for key, _, why in plan.choices if key == "features")
    assert "label (a label, by its name); --features includes them" in features
    assert planned(path, "--features", "label").workload.preprocess.columns.features == ("label",)


def test_few_gaps_do_not_cost_the_training_windows(tmp_path: Path):
    """A row with the time of the row before it, and with it a gap, which many windows touch."""
    table = series()
    table.loc[100, "time"] = table.loc[99, "time"]
    path = saved(table, tmp_path / "t.csv")
    windows = ["--input-steps", "48", "--horizon", "22"]
    plan = planned(path, *windows)
    total = sum(plan.summary[name]["train"] for name in ("num_per_split", "num_windows_skipped_per_split"))
    assert plan.workload.preprocess.missing == "interpolate"
    why = next(why for key, _, why in plan.choices if key == "missing")
    assert "1 of 300 points" in why and "1 rows have the time of a later one" in why
    skipping = planned(path, *windows, "--missing", "skip")
    params = skipping.workload.preprocess
    found = source_module("series").prepare(params, tmp_path, "window")
    skipped = found.summary["num_windows_skipped_per_split"]
    lost = skipped["train"]
    assert skipped == {"train": lost, "val": 0, "test": 0} and lost > total / 4
    assert found.summary["num_per_split"]["train"] == total - lost
    assert f"they touch one: {lost} (train {lost}, val 0, test 0)" in found.message
    assert (
        f"\nwarning: train loses {lost} of {total} windows to missing points; `missing: interpolate` keeps"
        in found.message
    )


# Files and folders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [400, 2 << 20])  # several blocks, and one
def test_old_line_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int):
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", block_bytes)
    text = clips(LABELS).to_csv(index=False)
    (tmp_path / "t.csv").write_bytes(text.replace("\n", "\r").encode())
    (tmp_path / "u.csv").write_text(text)
    found, expected = planned(tmp_path / "t.csv"), planned(tmp_path / "u.csv")
    assert found.summary["sha256"] == expected.summary["sha256"]
    (tmp_path / "t.csv").write_bytes(text.replace("\n", "\r").replace("c002,3,", "c002,3,x", 1).encode())
    line = text.splitlines().index(next(each for each in text.splitlines() if each.startswith("c002,3,"))) + 1
    assert f"line {line}: column 'f0'" in refusal(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda table, path: table.to_feather(path), "a Feather (Arrow) file; save it as Parquet"),
        (lambda table, path: table.to_html(path), "HTML or XML; save the table as CSV, e.g. pandas.read_html(path)"),
        (lambda table, path: table.to_json(path), "JSON; save the table as CSV, e.g. pandas.read_json(path)"),
        (lambda table, path: table.to_json(path, orient="records"), "JSON; save the table as CSV"),
        (lambda table, path: table.to_json(path, orient="records", lines=True), "JSON; save the table as CSV"),
        (lambda table, path: table.to_xml(path, parser="etree"), "HTML or XML"),
    ],
    ids="feather html json records lines xml".split(),
)
def test_a_table_in_another_format_is_named_by_it(tmp_path: Path, write: Any, words: str):
    write(clips(LABELS), tmp_path / "t.txt")
    assert f"{tmp_path / 't.txt'} is {words}" in refusal(tmp_path / "t.txt")


def recordings(folder: Path) -> Path:
    for number, label in enumerate(LABELS):
        (folder / label).mkdir(parents=True, exist_ok=True)
        clips([label], seed=number)[["f0", "f1"]].to_csv(folder / label / f"{number}.csv", index=False)
    return folder


@pytest.mark.parametrize("text", ["f0,f1\n1,2,3\n", "f0\n1\n2\n", "f0,f1\n", "f0,f1\nx,2\n1,2\n", "\0"])
def test_an_error_in_a_folder_names_the_file_with_its_folder(tmp_path: Path, text: str):
    folder = recordings(tmp_path / "d")
    (folder / "b/4.csv").write_text(text)
    said = refusal(folder)
    assert f"{folder / 'b/4.csv'} " in said or f"{folder} as one long table, row 102 (sequence b/4)" in said


@pytest.mark.parametrize("is_dir", [False, True])
def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path, is_dir: bool):
    folder, secret = recordings(tmp_path / "d"), tmp_path / "outside"
    secret.mkdir()
    (secret / "secret.csv").write_text("classified\nabc\n")
    link = folder / ("e" if is_dir else "b/4.csv")
    link.unlink(missing_ok=True)
    link.symlink_to(secret if is_dir else secret / "secret.csv")
    said = refusal(folder)
    assert f"{link} is a link" in said and "not followed" in said and "classified" not in said
    link.unlink()
    link.symlink_to(folder / "a/0.csv")  # within the folder
    assert is_dir or planned(folder).summary["num_sequences"] == 24


# The command ----------------------------------------------------------------------------------------------------------


def test_an_unknown_model_gets_one_sentence(tmp_path: Path):
    path = saved(clips(LABELS), tmp_path / "t.csv")
    assert refusal(path, "--model", "grru").startswith("--model is 'grru'; did you mean 'gru'? accepted: ")


def test_several_commands_at_once_lose_no_block(tmp_path: Path):
    project = make_project(tmp_path / "project")
    saved(clips(LABELS), project / "t.csv")
    names = ["first", "second", "third", "first"]
    done = at_once(lambda name: tandem(project, "new", name, "t.csv", "--epochs", "1", check=False), names)
    assert sorted(each.returncode for each in done) == [0, 0, 0, 2], done
    assert "first" in next(each.stdout for each in done if each.returncode)
    params = (project / "params.yaml").read_text()
    assert all(f"\n{name}:\n" in params and (project / f"workloads/{name}/data/t.csv").is_file() for name in names)


def test_ctrl_c_while_packages_are_imported_is_one_sentence(tmp_path: Path):
    project = make_project(tmp_path / "project")
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    command = (sys.executable, "-m", "tandem.cli", "new", "x", "t.csv")
    done = run(project, *command, check=False, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (130, "error: interrupted\n")


def test_a_number_that_may_mean_missing_is_named(tmp_path: Path):
    """-999 in some cells once was a measurement, without a word."""
    table = clips(LABELS)
    rows = table.index[::9]
    for column, marker in (("f0", "-999"), ("f1", "9999")):
        marked = table.assign(**{column: table[column].where(~table.index.isin(rows), float(marker))})
        plan = planned(saved(marked, tmp_path / "t.csv"))
        said = f"{marker} in {column!r} ({len(rows)} cells) may mean missing: --na={marker} then says so"
        assert said in "".join(new_workload.summary_lines(plan))
        plan = planned(tmp_path / "t.csv", f"--na={marker}", "--missing", "interpolate")
        assert "may mean missing" not in "".join(new_workload.summary_lines(plan))
    plan = planned(saved(table.assign(f0=np.arange(len(table)) % 100), tmp_path / "t.csv"))
    assert "may mean missing" not in "".join(new_workload.summary_lines(plan)), "99 is one of its numbers"


@pytest.mark.parametrize("form, of_day", [("%d/%m/%Y", "%H.%M.%S"), ("%Y-%m-%d", "%H.%M.%S"), ("%m/%d/%Y", "%H.%M.%S")])
def test_a_date_and_a_time_of_day_are_joined_by_the_line_of_the_error(tmp_path: Path, form: str, of_day: str):
    hours = pd.Series(pd.date_range("2024-01-14", periods=300, freq="h"))
    table = series().drop(columns="time").assign(Date=hours.dt.strftime(form), Time=hours.dt.strftime(of_day))
    said = refusal(text_table(tmp_path / "t.csv", ";", **table))
    code = re.search(r"table\['time'\] = (.*?)\), with dayfirst=True if", said)[1]
    table["time"] = eval(f"{code}, dayfirst={form.startswith('%d')})", {"pandas": pd, "table": table})  # noqa: S307
    assert (table["time"] == hours).all()
    assert planned(saved(table.drop(columns=["Date", "Time"]), tmp_path / "t.csv")).workload.task == "forecast"


@pytest.mark.parametrize("form", ["%d.%m.%y", "%m/%d/%y", "%d-%m-%y %H:%M"])
def test_years_of_two_digits_are_said_to_be_unread(tmp_path: Path, form: str):
    days = pd.Series(pd.date_range("2024-01-14", periods=300))
    path = text_table(tmp_path / "t.csv", ";", date=days.dt.strftime(form), value=range(300))
    for options in ((), ("--dayfirst", "yes")):
        said = refusal(path, *options)
        assert "a year of two digits, is not read; write them as 2024-03-01" in said and "--dayfirst" not in said


@pytest.mark.parametrize("sep", [" ", "\t", ",", ";"])
def test_row_names_of_r_get_a_name_by_the_line_of_the_error(tmp_path: Path, sep: str):
    table = clips(LABELS)
    table.index += 1
    lines = table.to_csv(sep=sep, quoting=csv.QUOTE_NONNUMERIC).splitlines(keepends=True)
    path = tmp_path / "it is r.txt"
    path.write_text("".join([lines[0].removeprefix(f'""{sep}'), *lines[1:]]))
    said = refusal(path)
    [command] = re.findall(r"sed .*? > new.csv", said)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)  # noqa: S602
    plan = planned(tmp_path / "new.csv")
    assert plan.workload.preprocess.columns.features == ("f0", "f1") and plan.summary["num_sequences"] == len(LABELS)
