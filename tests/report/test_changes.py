"""What changed since the last commit."""

import json
import subprocess
from pathlib import Path

import pytest

from tandem import files
from tandem.report import changes

BEFORE = {"tiny": {"cpu": {"accuracy": 0.9833}}, "other": {"cpu": {"accuracy": 0.5}}}
AFTER = {"tiny": {"cpu": {"accuracy": 0.1733}}, "other": {"cpu": {"accuracy": 0.5}}, "new": {"cpu": {"mae": 1.0}}}
PARAMS = "tiny: {{train: {{epochs: {}, learning_rate: 1e-3}}}}\nother: {{}}\n"


def write(folder: Path, scores: dict, epochs: int) -> None:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results/scores.json").write_text(json.dumps(scores))
    (folder / "params.yaml").write_text(PARAMS.format(epochs))


def test_a_score_is_shown_beside_the_committed_one_with_the_parameters_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.setattr(changes, "PARAMS", tmp_path / "params.yaml")
    write(tmp_path, BEFORE, 100)
    assert changes.changes(["tiny"]) == [], "no commit to compare with"
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    write(tmp_path, AFTER, 3)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.strip()
    assert changes.changes(["tiny", "other", "new"]) == [
        f"tiny@cpu: accuracy 0.1733, at {commit} accuracy 0.9833 (train.epochs: 100 before, 3 now)",
        f"new: new since {commit}",
        f"the same scores as at {commit}: other@cpu",
    ]
    assert changes.changes(["other"]) == [f"the same scores as at {commit}: other@cpu"]
