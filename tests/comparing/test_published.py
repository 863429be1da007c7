"""The published results: what `dvc repro` leaves against what is committed with the project."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.projects import TINY, copy_of, dvc, stage, tandem


def verify(project: Path, *words: str, status: int = 0) -> str:
    done = tandem(project, "verify", "published", *words, check=False)
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def project(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own results are published."""
    folder = copy_of(trained, tmp_path_factory.mktemp("published") / "project")
    (folder / "docs").mkdir()
    verify(folder, "--write")
    return folder


def test_the_same_machine_gets_what_it_published(project: Path) -> None:
    assert "tiny  bit-equal (losses, weights and draws of all 3 epochs, and the predictions)" in verify(project)


@pytest.mark.long
def test_what_was_not_trained_or_is_asked_for_otherwise_says_so(project: Path, tmp_path: Path) -> None:
    other = copy_of(project, tmp_path / "other", TINY.replace("epochs: 3", "epochs: 2"))
    (other / "docs").mkdir(exist_ok=True)
    dvc(other, "repro", "evaluate@tiny-cpu")
    output = verify(other, status=2)
    assert "not verifiable: other parameters (the published values of train.epochs differ)" in output
    shutil.rmtree(other / "results/runs/tiny/cpu/evaluate")
    assert "not verifiable: no results here (`dvc repro` trains and evaluates it with seed 0)" in verify(
        other, status=2
    )


def test_the_report_shows_the_published_runs_of_the_same_work_beside_ones_own(project: Path, tmp_path: Path) -> None:
    other = copy_of(project, tmp_path / "other")
    stage(other, "compare")
    text = (other / "results/report.html").read_text(encoding="utf-8")
    assert "the same as CPU" in text and re.search("Published run: <abbr [^>]*>bit-equal</abbr>", text)
    assert "tiny repeats the published result bit for bit" in text
    content = json.loads((other / "docs/published.json").read_text())
    (entry,) = content["workloads"]["tiny"]
    elsewhere = json.loads(json.dumps(entry))
    elsewhere["hardware"]["cpu"]["name"] = elsewhere["hardware"]["name"] = "Another Processor"
    content["workloads"]["tiny"].append(elsewhere)
    (other / "docs/published.json").write_text(json.dumps(content))
    stage(other, "compare")
    assert "published run of Another Processor" in (other / "results/compare/compare.md").read_text()


def test_a_result_of_another_machine_does_not_hide_a_difference_from_that_of_ones_own(
    project: Path, tmp_path: Path
) -> None:
    other = copy_of(project, tmp_path / "other")
    content = json.loads((other / "docs/published.json").read_text())
    (entry,) = content["workloads"]["tiny"]
    elsewhere = {**entry, "hardware": {**entry["hardware"], "name": "Another", "cpu": {"name": "Another"}}}
    changed = json.loads(json.dumps(entry))
    changed["digests"]["weights"]["initial"] = "0" * 64
    for entries in ([changed, elsewhere], [elsewhere, changed]):
        content["workloads"]["tiny"] = entries
        (other / "docs/published.json").write_text(json.dumps(content))
        output = verify(other)
        assert "tiny  bit-equal (" in output
        assert "; but different from the published run of this processor: initial weights, sha256" in output
