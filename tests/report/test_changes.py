"""What changed since the last commit."""

import json
from pathlib import Path

import pytest

from tandem import files
from tandem.report import changes
from tests.projects import commit, git, run

BEFORE = {"tiny": {"cpu": {"accuracy": 0.9833}}, "other": {"cpu": {"accuracy": 0.5}}}
AFTER = {"tiny": {"cpu": {"accuracy": 0.1733}}, "other": {"cpu": {"accuracy": 0.5}}, "new": {"cpu": {"mae": 1.0}}}


def write(folder: Path, scores: dict, epochs: int) -> None:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results/scores.json").write_text(json.dumps(scores))
    rows = {"tiny": {"cpu": {"parameters": [{"train.epochs": epochs, "train.learning_rate": 1e-3}]}}}
    (folder / "results/timings.json").write_text(json.dumps(rows))
    (folder / "params.yaml").write_text("tiny: {}\nother: {}\n")


def test_a_score_is_shown_beside_the_committed_one_with_the_parameters_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    write(tmp_path, BEFORE, 100)
    assert changes.changes(["tiny"]) == [], "no commit to compare with"
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    write(tmp_path, AFTER, 3)
    revision = run(tmp_path, "git", "rev-parse", "--short", "HEAD").stdout.strip()
    assert changes.changes(["tiny", "other", "new"]) == [
        f"tiny@cpu: accuracy 0.1733, at commit {revision} accuracy 0.9833 (train.epochs: 100 before, 3 now)",
        f"new: new since commit {revision}",
        f"same scores as at commit {revision}: other@cpu",
    ]
    assert changes.changes(["other"]) == [f"same scores as at commit {revision}: other@cpu"]
