"""The published results: what `dvc repro` leaves against what is committed with the project."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tandem import files
from tandem.comparing import published
from tandem.comparing.comparability import short_hardware
from tandem.comparing.verdicts import EnvironmentInfo
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
    assert "the same as CPU" in text and ", seed 0: bit-equal" in text
    assert "Compared with the published results: bit-equal (tiny)." in text
    assert "None threads" not in text  # they are not published


def test_the_score_of_another_seed_is_compatible_and_a_much_lower_one_is_different() -> None:
    """As of a GPU, which draws other dropout."""
    for entries in published.read().values():
        for reference in map(published.open_entry, entries):
            scores, name = reference.side.scores, reference.side.score_name
            width = max(scores) - min(scores)
            for score, expected in (*((score, "statistically compatible") for score in scores),
                                    (min(scores) - 3 * width, "different")):  # fmt: skip
                score_record = {"score_name": name, "metrics": {name: score}}
                own_run = replace(reference.run, score=score_record)
                assert published.judge_score(reference, own_run, EnvironmentInfo(), 0).name == expected


XEON = "Intel(R) Xeon(R) Processor (family 6 model {})"
MODELS = {"old": XEON.format(997), "new": XEON.format(998), "amd": "AMD EPYC (family 26 model 999)"}  # there are none
UNKNOWN = XEON.format(999)


def on_processor(entry: dict, name: str, weights: str = "") -> dict:
    """The entry as from another processor. `weights`: the sha256 of its initial weights, if they differ."""
    changed = json.loads(json.dumps(entry))
    changed["hardware"]["name"] = changed["hardware"]["cpu"]["name"] = name
    if weights:
        changed["digests"]["weights"]["initial"] = weights
    return changed


def test_a_run_is_compared_with_the_published_run_of_the_nearest_processor(project: Path, tmp_path: Path) -> None:
    """That of its own processor, whatever the others are; else of the same vendor and family, of which the newest."""
    other, path = copy_of(project, tmp_path / "other"), tmp_path / "other/docs/published.json"
    content = json.loads(path.read_text())
    (entry,) = content["workloads"]["tiny"]

    def verdict(*entries: dict, status: int) -> str:
        content["workloads"]["tiny"] = entries
        path.write_text(json.dumps(content))
        return verify(other, status=status)

    others = [on_processor(entry, name, "0" * 64) for name in MODELS.values()]
    for entries in ((entry, *others), (*others, entry)):
        found = verdict(*entries, status=0)
        assert "tiny  bit-equal (losses, weights and draws of all 3 epochs, and the predictions)" in found
    stage(other, "compare")
    own = short_hardware(entry["hardware"]["name"])
    assert f"tiny: Published run of {own}, seed 0: bit-equal" in (other / "results/compare/compare.md").read_text()

    changed = on_processor(entry, entry["hardware"]["name"], "0" * 64)
    others = [on_processor(entry, name) for name in MODELS.values()]
    for entries in ((changed, *others), (*others, changed)):
        assert "tiny  different: initial weights (sha256" in verdict(*entries, status=1)

    own_run = on_processor(entry, UNKNOWN)
    own_run["realized"]["threads"] = 2  # changes no bit
    for names in (["old", "new", "amd"], ["amd", "old", "new"], ["old", "amd", "new"]):
        entries = [on_processor(entry, MODELS[name]) for name in names]
        assert published.nearest(entries, published.open_entry(own_run).run).run.hardware_name == MODELS["new"]
    entries[-1]["block"]["train"]["epochs"] += 1  # other parameters: nothing to compare with
    assert published.nearest(entries, published.open_entry(own_run).run).run.hardware_name == MODELS["old"]


def test_a_run_that_is_bit_equal_to_the_published_one_of_its_processor_is_called_so() -> None:
    for entries in published.read().values():
        for entry in entries:
            run = published.open_entry(entry).run
            assert published.judge(published.nearest(entries, run), run).name == "bit-equal"


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
