"""A new workload's block goes into params.yaml, and nothing else changes: neither there nor in the project."""

import shlex
import subprocess
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from tandem import cli, files
from tandem.importing import new_workload, params_block
from tandem.params.loading import parse_params
from tests.own_tables import clips, planned, saved, series
from tests.projects import ROOT, TINY

COMMITTED = (ROOT / "params.yaml").read_bytes().decode()


def test_any_column_name_is_read_back_from_params_yaml():
    names = ["a: b", "1e3", "null", "True", "- x", "#", "a, b", 'say "x"', "it's", "\\", "ü", "0x1f", "a:b", "15min"]
    of_one = [{"features": [name]} for name in (*names, "b?", "? c")]
    for value in [{"target": names[0], "features": names * 10}, *of_one]:
        assert params_block.from_yaml(params_block.to_yaml({"columns": value})) == {"columns": value}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("committed", ()),
        ("clips", ()),
        ("clips", ("--model", "transformer")),
        ("wide", ("--model", "gru")),
        ("colon", ()),
        ("series", ()),
    ],
)
def test_an_experiment_changes_one_line_of_params_yaml(tmp_path: Path, kind: str, options: tuple[str, ...]):
    """`dvc exp run -S` writes the file with DVC's writer, which keeps the layout that it made itself."""
    text, key = COMMITTED, "sign.train.batch_size"
    if kind != "committed":
        table = series() if kind == "series" else clips(["a", "b"] * 6, num_features=40 if kind == "wide" else 2)
        if kind == "colon":
            table = table.rename(columns={"f0": "hand:x"})
        text, key = with_workload(text, planned(saved(table, tmp_path / "t.csv"), *options)), "mine.train.batch_size"
    path = tmp_path / "params.yaml"
    path.write_text(text)
    apply_overrides(path, [f"{key}=7"])
    changed = [line for line in unified_diff(text.splitlines(), path.read_text().splitlines(), n=0)][3:]
    assert len(changed) == 2 and changed[1].startswith("+    batch_size: 7"), changed
    assert params_block.from_yaml(path.read_text())["workloads"] == params_block.from_yaml(text)["workloads"]


def with_workload(text: str, plan: new_workload.WorkloadPlan) -> str:
    return params_block.with_workload(text, plan.name, plan.block)


# params.yaml in other layouts: Windows line endings, a list in lines, presets in the middle, no last line end.
LAYOUTS = {
    "committed": COMMITTED,
    "presets first": TINY,
    "windows": COMMITTED.replace("\n", "\r\n"),
    "list in lines": TINY.replace(
        "workloads: [tiny]", "workloads: # which\n  # all of them\n  - tiny # the small one\n"
    ),
    "list over lines": TINY.replace("[tiny]", "[\n  tiny, # the small one\n]"),
    "list at the end": TINY.replace("workloads: [tiny]\n", "") + "workloads:\n- tiny",
    "presets last": TINY.replace("presets: {}\n", "") + "\n# what they are for\n# and more\npresets: {} # none",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inserting_the_block_changes_nothing_else(tmp_path: Path, layout: str):
    before = LAYOUTS[layout]
    block = planned(saved(clips(["a", "b"] * 6), tmp_path / "t.csv")).block
    after = params_block.with_workload(before, "mine", block)
    newline = "\r\n" if "\r\n" in before else "\n"
    inserted = block.replace("\n", newline)
    entry = next(entry for entry in (", mine", f"{newline}  - mine", f"{newline}- mine") if entry in after)
    assert after.count(inserted) == after.count(entry) == 1
    remainder = after.replace(inserted, "").replace(entry, "")
    assert remainder.replace(newline, "") == before.replace(newline, "")  # only empty lines were added

    raw = params_block.from_yaml(after)
    assert raw["workloads"] == [*params_block.from_yaml(before)["workloads"], "mine"]
    parse_params(raw)
    if layout == "presets last":
        assert after.index("\nmine:") < after.index("# what they are for") < after.index("presets:")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As much of a project as the command writes into."""
    folder = tmp_path / "project"
    (folder / "workloads/tiny/data").mkdir(parents=True)
    (folder / "workloads/tiny/data/table.csv").write_text("anything")
    (folder / "params.yaml").write_text(TINY)
    monkeypatch.setattr(files, "ROOT", folder)
    return folder


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny", "has a block 'tiny' already"),
        ("taken", "workloads/taken is there already"),
        ("../x", "not a usable name"),
        ("geste_é", "use the letters a to z or A to Z"),
        ("_gesture", "begin with a letter or a digit"),
        ("1e3", "means something else"),
    ],
)
def test_nothing_is_overwritten(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
):
    (project / "workloads/taken").mkdir()
    table, before = saved(clips(["a", "b"] * 6), tmp_path / "t.csv"), everything(project)
    assert cli.main(["new", name, str(table)]) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    assert everything(project) == before


def test_a_workload_whose_block_is_gone_is_made_again_by_the_command_in_the_message(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    new = ["new", "gesture", str(saved(clips(["a", "b"] * 6), tmp_path / "t.csv"))]
    assert cli.main(new) == 0
    contents = everything(project)
    (project / "params.yaml").write_text(TINY)
    assert cli.main(new) == 2
    monkeypatch.chdir(project)
    subprocess.run(shlex.split(capsys.readouterr().err.split("`")[1]), check=True)
    assert cli.main(new) == 0
    assert contents.items() <= everything(project).items()


@pytest.mark.parametrize("failing", ["copyfile", "replacing"])
def test_a_failure_midway_leaves_everything_as_it_was(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: str
):
    table, before = saved(clips(["a", "b"] * 6), tmp_path / "t.csv"), everything(project)

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    with monkeypatch.context() as patched:
        patched.setattr(new_workload.shutil if failing == "copyfile" else new_workload, failing, fail)
        assert cli.main(["new", "mine", str(table)]) == 1
    # A slow machine shows lines of progress before it.
    assert capsys.readouterr().err.endswith(
        "error: no space left on the disk of somewhere; free some and run the same command again; nothing is changed\n"
    )
    assert everything(project) == before
    assert cli.main(["new", "mine", str(table)]) == 0
    assert set(everything(project)) - set(before) == {
        f"workloads/mine{path}" for path in ("", "/data", "/data/t.csv", "/README.md")
    }


def test_params_that_no_preset_fits_are_refused_before_anything_is_written(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    params = TINY.replace("presets: {}", "presets: {odd: {all: {train.model.hidden_size: 9}}}")
    (project / "params.yaml").write_text(params)
    table, before = saved(clips(["a", "b"] * 6), tmp_path / "t.csv"), everything(project)
    assert cli.main(["new", "mine", str(table), "--model", "transformer"]) == 1
    assert "presets.odd: mine.train.model" in capsys.readouterr().err
    assert everything(project) == before
