"""Numbers as people write them: signs of decimals and of thousands, currencies, units, percent."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from tandem.importing import new_workload, text_format, text_tables
from tandem.terminal.command import CommandError
from tests import refusals
from tests.own_tables import LABELS, chosen, clips, parsed, planned, refusal, saved, series, text_table

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


def numbers_of(path: Path, *options: str) -> dict[str, list[float]]:
    """The numeric columns as the table that preprocess reads has them."""
    arguments = {key: value for key, value in vars(parsed("mine", str(path), *options)).items() if value is not None}
    table = text_tables.with_notation(text_format.find_format(path, arguments), arguments)
    if not table.is_ready:
        pa.csv.write_csv(text_tables.rewritten(table), path := path.with_name("again.csv"))
    frame = pd.read_csv(path, na_values=["-"])
    return {name: frame[name].tolist() for name in frame if frame[name].dtype.kind in "if"}


def question(path: Path, *options: str) -> str:
    return refusals.question(lambda: numbers_of(path, *options))


@SIGNS
@pytest.mark.parametrize("delimiter", [";", ","])  # of all delimiters, only a comma bears on the rule
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
    columns = {"part": ["0,5", "0,25"], "whole": ["1,014,145", "983,982"]}
    path = text_table(tmp_path / "a.csv", ";", **columns)
    assert numbers_of(path) == {"part": [0.5, 0.25], "whole": [1014145, 983982]}
    path = text_table(tmp_path / "b.csv", ";", **columns, x=OPEN)
    assert "column 'x' holds '1,014'" in question(path)
    assert numbers_of(path, "--decimal", ",") == {"part": [0.5, 0.25], "whole": [1014145, 983982], "x": [1.014, 1.02]}
    path = text_table(tmp_path / "c.csv", ";", part=["0,5", "0,25"], near=["983", "1,014"])
    assert "column 'near' holds '1,014'" in question(path)
    path = text_table(tmp_path / "d.csv", ";", n=["1", "2"], x=["0,5", "1,014,145"])
    with pytest.raises(ValueError, match="column 'x' holds '0,5' and '1,014,145'"):
        numbers_of(path)


def test_an_option_answers_the_question(tmp_path: Path):
    path = text_table(tmp_path / "t.csv", ";", n=["1", "2"], x=OPEN)
    message = question(path)
    assert "--thousands , reads it as 1014, --decimal , as 1.014" in message and "\n" not in message
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
    ("column", "cell"),
    [
        (lambda rows: [f"{row % 17 / 10}%" for row in rows], "'0.0%'"),
        (lambda rows: [f"{row % 17 + 1}.{row % 900 + 100},{row % 89 + 10}" for row in rows], "'1.100,10'"),
        (lambda rows: [f"{row % 17 + 1},{row % 900 + 100}.5" for row in rows], "'1,100.5'"),
        (lambda rows: [f"{row % 17},5 kg" for row in rows], "'0,5 kg'"),
    ],
)
def test_a_feature_in_an_unusual_notation_is_shown_with_its_conversion(tmp_path: Path, column: Any, cell: str):
    """In Parquet, and for units, where the cells stay text."""
    table = clips(LABELS).assign(load=column(range(len(clips(LABELS)))))
    table["used [MiB]"] = table["frame"].map(lambda frame: "11234 MiB" if frame % 2 else "3 MiB")  # by its name too
    features = next(note for key, _, note in planned(saved(table, tmp_path / "t.parquet")).choices if key == "features")
    assert "used [MiB] (numbers with a unit like '3 MiB'; write" in features
    assert cell in features and ("read from text: table.to_csv('new.csv'" in features) == ("kg" not in cell)
    if "kg" in cell:
        [code] = re.findall(r"without it: table\['load'\] = (table.*?removesuffix\(' kg'\))", features)
        table["load"] = eval(code)  # noqa: S307
    table.to_csv(tmp_path / "new.csv", index=False)
    assert "load" in chosen(planned(tmp_path / "new.csv"))["features"]


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
    numbers = numbers_of(path).get("x")
    assert (numbers is None) == (expected is None)
    if expected:
        np.testing.assert_allclose(numbers, expected)


@pytest.mark.parametrize("lowest", [1013.2, 1500.1])
def test_numbers_of_four_digits_are_no_months(tmp_path: Path, lowest: float):
    values = [f"{lowest + row % 9 / 10:.1f}" for row in range(120)]
    values[50] = "n.a."
    rows = [f"p{row // 20},{row % 20},{value},{'ab'[row // 20 % 2]}" for row, value in enumerate(values)]
    path = tmp_path / "weather.csv"
    path.write_text("\n".join(["trial,frame,pressure,label", *rows]))
    assert "column 'pressure' must hold finite numbers, found n.a." in refusal(path)
