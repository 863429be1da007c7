"""The published results: what `dvc repro` leaves against what is committed with the project."""

import json
import shutil
from pathlib import Path

import pytest

from tandem import files
from tandem.comparing import published
from tandem.files import ROOT
from tandem.report import layout
from tandem.runs import schemas
from tandem.runs.schemas import TimingRecord
from tests import tables
from tests.projects import TINY, copy_of, dvc, run_path, stage, tandem


def verify(project: Path, *words: str, status: int = 0) -> str:
    result = tandem(project, "verify", "published", *words, check=False)
    assert result.returncode == status, result.stdout
    return result.stdout


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
    assert "the same as CPU" in text and "Published run: bit-equal" in text
    assert "Compared with the published results: bit-equal (tiny)." in text
    assert "None threads" not in text  # they are not published
    content = json.loads((other / "docs/published.json").read_text())
    (entry,) = content["workloads"]["tiny"]
    other_entry = json.loads(json.dumps(entry))
    other_entry["hardware"]["cpu"]["name"] = other_entry["hardware"]["name"] = "Another Processor"
    content["workloads"]["tiny"].append(other_entry)
    (other / "docs/published.json").write_text(json.dumps(content))
    stage(other, "compare")
    assert "published run of Another Processor" in (other / "results/compare/compare.md").read_text()


def test_a_result_of_another_machine_does_not_hide_a_difference_from_that_of_ones_own(
    project: Path, tmp_path: Path
) -> None:
    other = copy_of(project, tmp_path / "other")
    content = json.loads((other / "docs/published.json").read_text())
    (entry,) = content["workloads"]["tiny"]
    other_entry = {**entry, "hardware": {**entry["hardware"], "name": "Another", "cpu": {"name": "Another"}}}
    changed = json.loads(json.dumps(entry))
    changed["digests"]["weights"]["initial"] = "0" * 64
    for entries in ([changed, other_entry], [other_entry, changed]):
        content["workloads"]["tiny"] = entries
        (other / "docs/published.json").write_text(json.dumps(content))
        output = verify(other)
        assert "tiny  bit-equal (" in output
        assert "; but different from the published run of this processor: initial weights, sha256" in output


def test_every_place_shows_the_same_published_numbers() -> None:
    """README's table, the report's rows and the tables that git tracks all repeat docs/published.json."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tracked = {name: (ROOT / f"results/{name}.csv").read_bytes() for name in ("seconds", "losses")}
    tables_of = {name: files.parse_rows(content, name) for name, content in tracked.items()}
    for workload, entries in published.read().items():
        (entry,) = (candidate for candidate in entries if candidate["hardware"]["name"] == tables.MACHINE)
        cells = layout.cells(published.open_entry(entry).side)
        line = next(line for line in readme.splitlines() if line.startswith(f"| `{workload}`"))
        assert line.endswith(f"| {cells['epoch'].text} | {cells['rate'].text} |")
        rows = {name: [row for row in table if (row["workload"], row["run"]) == (workload, "published")]
                for name, table in tables_of.items()}  # fmt: skip
        seconds = {row["seed"]: float(row["epoch_seconds"]) for row in rows["seconds"]}
        losses = [(float(row["train_loss"]), float(row["val_loss"])) for row in rows["losses"]]
        of_entries = [{seed: timing["epoch_seconds"] for seed, timing in entry.get("timings", {}).items()
                       if timing["epoch_seconds"] is not None} for entry in entries]  # fmt: skip
        assert seconds in of_entries
        assert losses in [[(epoch["train_loss"], epoch["val_loss"]) for epoch in entry["epochs"]] for entry in entries]


def test_what_git_tracks_of_times_names_the_machine_and_whether_it_was_busy(trained: Path, tmp_path: Path) -> None:
    """`dvc metrics diff` shows these times: they are those of one run, and not the published ones."""
    other = copy_of(trained, tmp_path / "other")
    path = other / run_path("timing.json")
    timing = schemas.read(path.read_bytes(), path.name, TimingRecord)
    for waiting in (0.0, 0.5):
        timing["conditions"]["between"] |= {"waiting_threads": waiting, "others_share": 0.0, "steal_share": 0.0}
        path.chmod(0o644)
        schemas.write(path, TimingRecord, timing)
        stage(other, "compare")
        tracked = json.loads((other / "results/timings.json").read_text())["tiny"]["cpu"]
        assert tracked["hardware"] == timing["hardware"]["name"]
        assert tracked.get("busy", "") == ("on average 0.5 of its threads waited for a core" if waiting else "")
