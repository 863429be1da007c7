"""A folder with a file per sequence: where its label, its group and its split come from."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import own_tables
from tests.own_tables import clips, labelled_folder, planned, reasons, refusal
from tests.shapes import LABELS, PEOPLE, expect, numbered_recording, prepared, question, write_files


def write_recordings(folder: Path, name: Callable[[int, int], str], column: str) -> Path:
    """Four folders with three files, whose rows have a label that changes."""
    for person in range(4):
        for number in range(3):
            table = numbered_recording().rename(columns={"class": column})
            table["channel1"] += np.random.default_rng(3 * person + number).normal(size=len(table)).round(3)
            table.insert(0, "time", range(len(table)))
            (path := folder / name(person, number)).parent.mkdir(parents=True, exist_ok=True)
            table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False, sep="\t")
    return folder


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("0{}/{}_raw.txt", "class"),
        ("made/P{}/{}.txt", "label"),
        ("s{}/run{}.parquet", "Activity"),
    ],
)
def test_a_label_that_changes_within_files_comes_before_numbered_folders(tmp_path: Path, name: str, column: str):
    """The number of a person once was the class, and the label of each row was left out."""
    plan = planned(write_recordings(tmp_path / "d", name.format, column))
    params = plan.workload.preprocess
    assert (params.columns.label, params.groups) == (column, "folder1")
    assert sum(plan.summary["num_groups"].values()) == 4 and len(plan.summary["classes"]) == 3


def test_a_label_within_files_and_one_of_folders_is_a_question(tmp_path: Path):
    words = ["ann", "bob", "cid", "dan"]
    folder = write_recordings(tmp_path / "d", lambda person, number: f"{words[person]}/{number}.txt", "class")
    assert "give --label class if it is the label, or --label label if the folders' names, such as 'ann'" in question(
        folder
    )
    assert planned(folder, "--label", "class").workload.preprocess.groups == "folder1"
    assert planned(folder, "--label", "label").summary["classes"] == words
    for path in folder.glob("*/*.txt"):  # a label that is the same in each file leaves the folder's
        table = pd.read_csv(path, sep="\t")
        table.assign(**{"class": 1 + "012".index(path.stem)}).to_csv(path, index=False, sep="\t")
    assert planned(folder).summary["classes"] == words


@pytest.mark.parametrize("options", [(), ("--label", "label")])
def test_a_label_within_files_comes_before_the_words_of_their_names(tmp_path: Path, options: tuple[str, ...]):
    """As swimmers' strokes; the question about folders and names once came again after each of its answers."""
    words = ["back", "crawl", "fly"]
    folder = write_recordings(tmp_path / "d", lambda person, number: f"{person}/{words[number]}_15.txt", "label")
    plan = planned(folder, *options)
    assert (plan.workload.preprocess.columns.label, plan.workload.preprocess.groups) == ("label", "folder1")
    assert len(plan.summary["classes"]) == 3 and sum(plan.summary["num_groups"].values()) == 4
    assert "give --label label and another word in --pattern" in refusal(folder, "--pattern", "{person}/{label}_*")
    plan = planned(folder, "--pattern", "{person}/{stroke}_*", "--label", "label")
    assert (plan.workload.preprocess.columns.label, plan.workload.preprocess.groups) == ("label", "person")


def test_a_column_that_says_the_same_as_the_folders_is_the_label(tmp_path: Path):
    """As in MobiAct, where --label label, as was advised, led to the same advice."""
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}/r_{number:02}.csv")
    for path in folder.glob("*/*.csv"):
        pd.read_csv(path).assign(label=path.parent.name).to_csv(path, index=False)
    for options in ((), ("--label", "label"), ("--pattern", "{label}/*")):
        plan = expect(folder, *options, ordered=False)
        assert (plan.workload.preprocess.columns.label, plan.workload.preprocess.groups) == ("label", "none")
    pd.read_csv(path).assign(label="push" if path.parent.name != "push" else "swipe").to_csv(path, index=False)
    assert "give --label label, or rename it" in refusal(folder)
    parts = planned(folder, "--label", "label", "--groups", "none").summary["num_per_class"].values()
    assert sorted(sum(part[word] for part in parts) for word in {*LABELS}) == [5, 6, 7]


def test_folders_with_a_recording_each_are_no_labels_and_the_refusal_says_what_leads_on(tmp_path: Path):
    """As in UAH-DriveSet, whose folders' names have the labels; and to tell people of one recording each apart."""
    folder = write_files(
        tmp_path / "d", lambda number: f"D{number % 6}/km-{number}-D{number % 6}-{LABELS[number]}/r_{number:02}.csv"
    )
    pattern = re.search(r"--pattern '([^']*)' for their names", refusal(folder))[1]
    assert pattern == "*/km-{part2}-{person}-{label}/*"
    plan = expect(folder, "--pattern", pattern, ordered=False)
    assert plan.workload.preprocess.groups == "person"

    draw = np.random.default_rng(0)
    for form in ("one/{}.csv", "two/{}/r.csv"):
        for person in range(4):
            (path := tmp_path / form.format(person)).parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(person + draw.normal(size=(300, 2)), columns=["x", "y"]).to_csv(path, index=False)
        folder = tmp_path / form[:3]
        message = refusal(folder)
        assert (
            "three files or more in each (cut a single long one into three or more, and" in message
            and "task" not in message
        )
        for path in [*folder.rglob("*.csv")]:
            name, table = path.relative_to(folder).parts[0].removesuffix(".csv"), pd.read_csv(path)
            (cut := tmp_path / f"cut {form[:3]}" / name).mkdir(parents=True)
            for part in range(3):
                table[part * 100 : part * 100 + 100].to_csv(cut / f"{part}.csv", index=False)
        summary = planned(cut.parent, "--window", "20").summary
        assert len(summary["classes"]) == 4 and summary["num_sequences"] > 60


def test_numbered_folders_with_a_file_each_are_no_classes_beside_a_column_of_events(tmp_path: Path):
    """As the clips of the games of TrackNet, whose rows have the names of frames."""
    folder = write_files(tmp_path / "d", lambda number: f"game{number // 6}/clip{number % 6}/rows.csv")
    for path in folder.rglob("*.csv"):
        table = pd.read_csv(path)
        table.assign(frame=table.index.map("{:04}.jpg".format), status=table.index % 5 // 4).to_csv(path, index=False)
    assert "give --label status, if that column has the labels" in (said := refusal(folder))
    assert "--label folder1 if it is who or what was recorded, or give --label folder2 if it is" in said
    assert "table['status'] = table['status'].astype(str).replace(" in refusal(folder, "--label", "status")


@pytest.mark.parametrize("word", ["subject0", "P", "user-", "sub_"])
def test_folders_of_people_are_groups_and_no_label(tmp_path: Path, word: str):
    """`tandem new` once made the person the class, though the files' names have the labels."""
    folder = write_files(tmp_path / "d", lambda number: f"{word}{number % 6}/{LABELS[number]}_{number:02}.csv")
    message = refusal(folder)
    assert "--pattern '{label}_*' for their names" in message and "--label folder1 if it is who" in message
    plan = expect(folder, "--pattern", "{label}_*", ordered=False)
    assert plan.workload.preprocess.groups == "folder1"
    assert len(planned(folder, "--label", "folder1").summary["classes"]) == 6


@pytest.mark.parametrize("ending", ["csv", "txt", "csv.gz", "parquet", "npy"])
def test_a_folder_of_files_labelled_by_their_folders(tmp_path: Path, ending: str):
    folder = write_files(tmp_path / "data", lambda number: f"{LABELS[number]}/r_{number:02}.{ending}")
    (folder / "notes.pdf").write_text("anything")
    expect(folder, ordered=False)


def test_a_folder_of_files_without_a_header_labelled_by_a_pattern(tmp_path: Path):
    def name(number: int) -> str:
        return f"{LABELS[number]}-{PEOPLE[number // 3]}_{number:02}.csv"

    folder = write_files(tmp_path / "data", name, header=False)
    plan = expect(folder, "--pattern", "{label}-{person}_*", ordered=False)
    assert plan.workload.preprocess.columns.features == ("1", "2") and plan.workload.preprocess.groups == "person"


def test_a_folder_of_files_labelled_by_a_table(tmp_path: Path):
    folder = write_files(tmp_path / "data", lambda number: f"r_{number:02}.csv")
    files = [f"r_{number:02}.csv" for number in range(len(LABELS))]
    table = pd.DataFrame({"file": files, "gesture": LABELS, "person": np.repeat(PEOPLE, 3)})
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "which.csv", index=False)
    plan = expect(folder, "--labels", str(tmp_path / "which.csv"), ordered=False)
    assert plan.workload.preprocess.columns.label == "gesture" and plan.workload.preprocess.groups == "person"
    table.assign(days=[3, *[""] * 17], note="").to_csv(folder / "labels.csv", index=False)
    reason = reasons(expect(folder, ordered=False))["features"]
    assert "note (empty)" in reason and "days (constant" in reason  # not text
    table[2:].to_csv(folder / "labels.csv", index=False)
    with pytest.raises(ValueError, match=r"labels.csv has a row for 16 of 18 files \(by 'file'\), none for r_00"):
        planned(folder)


def test_names_of_files_do_not_say_that_a_comma_separates_thousands(tmp_path: Path):
    """`1.csv` is no number with a unit: all targets of such a table were 1000 times too large."""
    folder = write_files(tmp_path / "data", lambda number: f"{number}.csv")
    lines = [f"{number}.csv;{number},{201 + number}" for number in range(1, len(LABELS))]
    (tmp_path / "which.csv").write_text("\n".join(["file;mm", "0.csv;1,201", *lines]))
    message = question(folder, "--labels", str(tmp_path / "which.csv"), "--label", "mm")
    assert "column 'mm' holds '1,201', in which the comma may separate thousands or be decimal" in message
    (tmp_path / "which.csv").write_text("\n".join(["file;mm", "0.csv;1,20", *lines]))
    plan, data = prepared(folder, "--labels", str(tmp_path / "which.csv"), "--label", "mm", "--task", "regress")
    assert ("labels", "numbers: decimal commas", "column 'mm' holds '1,20'") in plan.source.notes
    assert data.sequences.labels.max() < 20


@pytest.mark.parametrize(
    ("form", "num_groups"),
    [
        ("{split}/{label}", None),
        ("s{person:02}/{label}", 6),
        ("{label}/s{person:02}", 6),
        ("{split}/s{person:02}/{label}", 6),
    ],
)
def test_folders_are_labels_people_who_are_in_one_split_and_the_split(
    tmp_path: Path, form: str, num_groups: int | None
):
    def name(number: int) -> str:
        split = "train" if number < 12 else "test"
        return f"{form.format(split=split, label=LABELS[number], person=number // 3)}/r_{number:02}.csv"

    plan = expect(write_files(tmp_path / "data", name), ordered=False)
    if "split" in form:
        assert plan.summary["num_per_split"]["test"] == 6
    if num_groups:
        assert plan.workload.preprocess.groups.startswith("folder")
        assert sum(plan.summary["num_groups"].values()) == num_groups
        assert plan.summary["num_groups"]["test"] == 2 or "split" not in form


def test_numbers_with_a_unit_in_the_files_names_leave_the_folder_the_label(tmp_path: Path):
    folder = labelled_folder(tmp_path / "d")
    for path in folder.rglob("*.csv"):
        number = int(path.stem)
        path.rename(path.with_name(f"rec_{5 + 5 * (number // 3 % 2)}kg_{number}.csv"))
    columns = planned(folder).workload.preprocess.columns
    assert columns.label == "label" and planned(folder).summary["classes"] == sorted({*own_tables.LABELS})


@pytest.mark.parametrize("header", ["name,rhythm\n", ""])
def test_a_table_that_names_the_files_has_their_labels_whatever_it_is_called(tmp_path: Path, header: str):
    """As PhysioNet's REFERENCE.csv, which has no header."""
    folder = write_files(tmp_path / "d", lambda number: f"A_{number:05}.csv")
    rows = "".join(f"A_{number:05},{LABELS[number]}\n" for number in range(len(LABELS)))
    (folder / "REFERENCE.csv").write_text(header + rows)
    expect(folder, ordered=False)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("{label}_{number:02}", "'{label}_*'"),
        ("{label}.x_{number:02}", "'{label}.*'"),
        ("{label}@6_{number:02}_run{person}", "'{label}_*'"),
        ("{label} ({number:02})", "'{label} *'"),
        ("a/{label}-x_{number:02}", "'{label}-*'"),
        ("{label}{number:02}", "'{label}{number}*'"),
        ("{number:02}-{label}", "'{part1}-{label}'"),
        ("one_{label}_{number:02}", "'one_{label}_*'"),
        ("{speed}km-{label}-{number:02}", "'{part1}-{label}-*' or '{label}km-{part2}-*'"),
        ("{word}_{speed}kmh_{number:02}", "'{part1}_{label}kmh_*' or '{label}_*'"),
        ("P{person}_{label}_{number:02}", "'{person}_{label}_*'"),
    ],
)
def test_the_advised_pattern_fits_the_names(tmp_path: Path, form: str, pattern: str):
    """`{label}_*` once was the advice for all names."""

    def name(number: int) -> str:
        word, speed = ("anna", "ben")[number // 3 % 2], (4.0, 5.5, 10.0)[number % 3]
        return f"{form.format(label=LABELS[number], number=number, person=number % 4, word=word, speed=speed)}.csv"

    folder = write_files(tmp_path / "d", name)
    assert f"or give --pattern {pattern} for their names" in refusal(folder)
    pattern, *_ = pattern.split(" or ")
    plan = planned(folder, "--pattern", pattern.strip("'"), "--task", "classify")
    assert len(plan.summary["classes"]) == 3 and plan.workload.preprocess.groups == (
        "person" if "P" in form else "none"
    )


def test_columns_of_files_that_may_be_labels_are_named(tmp_path: Path):
    folder = write_recordings(tmp_path / "d", "s_{}_{}.psv".format, "anomaly")
    message = refusal(folder)
    assert "or give --label anomaly, if that column has the labels" in message
    assert planned(folder, "--label", "anomaly").workload.preprocess.columns.label == "anomaly"


@pytest.mark.parametrize("header", [True, False])
def test_a_file_for_each_class_with_a_row_for_each_sequence_is_refused_with_the_code(tmp_path: Path, header: bool):
    """As EMG-4 of Kaggle, whose rows were to be the steps of four sequences."""
    (folder := tmp_path / "d").mkdir()
    for number in range(3):
        table = pd.DataFrame(np.random.default_rng(number).normal(size=(9, 20)).round(3)).add_prefix("x")
        table.assign(label=number).to_csv(folder / f"{number}.csv", index=False, header=header)
    code = refusal(folder).partition("write all rows below each other: ")[2].replace("new.csv", f"{tmp_path}/new.csv")
    subprocess.run(["sh", "-c", code], check=True)
    summary = planned(tmp_path / "new.csv").summary
    assert (summary["num_sequences"], len(summary["classes"]), summary["max_steps"]) == (27, 3, 20)


def test_columns_that_are_constant_in_each_file_are_no_labels_beside_those_in_the_names(tmp_path: Path):
    """As the battery and the start of GPSLogger's files, of which one was to be the label."""
    folder = write_files(tmp_path / "d", lambda number: f"{LABELS[number]}_{number:02}.csv")
    for number, path in enumerate(sorted(folder.glob("*.csv"))):
        start = 1712138400000 + 18 * 10**6 * number
        pd.read_csv(path).assign(battery=90 - number // 2, start=start, provider="gps").to_csv(path, index=False)
    message = refusal(folder)
    assert "nothing says which label" in message and "--pattern '{label}_*'" in message and "--label " not in message
    assert len(planned(folder, "--pattern", "{label}_*").summary["classes"]) == 3


@pytest.mark.parametrize("other", ["sit", "sit_up"])
def test_folders_whose_files_are_called_alike_are_a_question(tmp_path: Path, other: str):
    """alice/walk_1.csv, bob/walk_1.csv: the people once were the labels."""
    for number, person in enumerate(("alice", "bob", "cem", "dora", "eve", "fay")):
        for word in ("walk", other):
            for take in (1, 2):
                path = tmp_path / f"d/{person}/{word}_{take}.csv"
                path.parent.mkdir(parents=True, exist_ok=True)
                clip = clips([None], seed=100 * number + 10 * take + len(word))
                clip[["frame", "f0", "f1"]].to_csv(path, index=False)
    message = question(tmp_path / "d")
    assert "alike (sit, walk), " in message and " --pattern '{label}/*' or --pattern '{person}/{l" in message
    plan = planned(tmp_path / "d", "--pattern", message.rpartition("--pattern ")[2].strip("'"))
    assert plan.summary["classes"] == [other, "walk"] and plan.workload.preprocess.groups == "person"
    assert len(planned(tmp_path / "d", "--pattern", "{label}/*").summary["classes"]) == 6


@pytest.mark.parametrize(
    "form",
    [
        "{label}/S{person}_EDA",
        "{label}/S{person}",
        "{label}_{day}/sub_{person}",
        "{label}/{label}_0{day}-{name}",
        "{label}/{long}_0{day}_{name}",
    ],
)
def test_a_part_of_the_names_that_files_of_several_labels_share_is_offered_as_the_groups(tmp_path: Path, form: str):
    """As the persons of WESAD, whose stress was in train and whose baseline in test."""

    def names(number: int) -> dict[str, str | int]:
        label, person = LABELS[number], number // 3 + 2
        long = label.replace(LABELS[0], "jumping_jack")
        return {"label": label, "long": long, "person": person, "day": number // 3 % 2, "name": "abcdefgh"[person]}

    folder = write_files(
        tmp_path / "d",
        lambda number: f"{form.format(**names(number))}.csv",
    )
    notes = {key: why for key, _, why in planned(folder).source.notes}
    [pattern] = re.findall(r"--pattern (\S+) makes groups of it", notes["names"])
    assert sum(planned(folder, "--pattern", pattern.strip("'")).summary["num_groups"].values()) == 6
    folder = write_files(tmp_path / "e", lambda number: f"{LABELS[number]}/rec{number // 3}.csv")
    assert "names" not in {key for key, _, _ in planned(folder).source.notes}


def test_folders_of_people_that_are_the_only_label_are_a_question(tmp_path: Path):
    """As the users of mice, which were the label and the groups at once: the words in the files are no label."""
    folder = write_files(tmp_path / "d", lambda number: f"user{number // 3}/s_{number}.csv")
    for path in folder.rglob("*.csv"):
        table = pd.read_csv(path)
        table.assign(button=np.array(["left", "none", "right"])[np.arange(len(table)) % 3]).to_csv(path, index=False)
    assert "give --label folder1 if it is the label, or --groups folder1 and name the label" in question(folder)
    assert len(planned(folder, "--label", "folder1").summary["classes"]) == 6


def test_a_label_of_rows_without_a_header_is_asked_about(tmp_path: Path):
    """As of UCI's RFID sensors: folders with numbers were the classes, and the activity in the rows a feature."""
    draw = np.random.default_rng(0)
    for number in range(8):
        rows = pd.DataFrame(draw.normal(size=(200, 3)).round(3)).assign(activity=np.repeat(draw.permutation(4) + 1, 50))
        path = tmp_path / f"d/S{number // 4}_Dataset/{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.to_csv(path, index=False, header=False)
    assert "give --label 4 if it is the label, or --label label if the folders" in question(tmp_path / "d")
    assert planned(tmp_path / "d", "--label", "label").summary["classes"] == ["S0_Dataset", "S1_Dataset"]
    plan = planned(tmp_path / "d", "--label", "4", "--window", "20")
    assert plan.summary["classes"] == [1, 2, 3, 4] and len(plan.workload.preprocess.columns.features) == 3


def test_a_column_of_few_numbers_in_stretches_may_be_the_label(tmp_path: Path):
    """As concentrations of a gas, 0.0, 2.22 and so on."""
    draw = np.random.default_rng(0)
    for number in range(3):
        rows = pd.DataFrame(draw.normal(size=(400, 2)).round(3), columns=["R1", "R2"])
        rows.assign(CO=np.repeat(draw.permutation(4) * 2.22, 100)).to_csv(tmp_path / f"2016{number}.csv", index=False)
    assert ", or give --label CO, if that column has the labels" in refusal(tmp_path)
    assert len(planned(tmp_path, "--label", "CO", "--window", "20").summary["classes"]) == 4


def test_people_in_the_names_of_recordings_with_labels_in_each_row_are_named(tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in range(8):
        for name, labels in {"Walking_Running": "wrwr", "Standing_Sitting": "stst"}.items():
            rows = own_tables.recording([*labels], seed=number).drop(columns="row", errors="ignore")
            rows.to_csv(folder / f"{name}_T{number + 1}.csv", index=False)
    notes = {key: (value, why) for key, value, why in planned(folder).source.notes}
    assert notes["names"][0] == "T1" and "--pattern '*_*_{person}' makes groups" in notes["names"][1]


def test_names_of_numbers_in_each_folder_are_no_question(tmp_path: Path):
    """As 0.Stand/1001_A_1.csv: "called alike ()" named no word."""
    folder = write_files(
        tmp_path / "mine", lambda number: f"{number % 3}.{LABELS[number]}/{1001 + number // 3}_A_1.csv"
    )
    plan = planned(folder)
    assert plan.summary["classes"] == ["0.push", "1.swipe", "2.twist"] and "share a part" not in reasons(plan)["groups"]


def test_offered_patterns_fit_files_in_folders_of_folders(tmp_path: Path):
    """As of RealWorld: proband1/data/acc_walking_csv/acc_walking_chest.csv."""
    folder = write_files(
        tmp_path / "mine",
        lambda number: f"p{number // 6}/data/acc_{LABELS[number]}/acc_{LABELS[number]}_{number % 6 // 3}st.csv",
    )
    patterns = re.findall(r"--pattern '(\S+)'", question(folder))
    assert planned(folder, "--pattern", patterns[0]).workload.task == "classify"
    assert "does not fit" not in refusal(folder, "--pattern", patterns[1])  # the folders are no people here
