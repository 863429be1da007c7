"""A few kills of benchmarks/soak.py."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.projects import ROOT, needs, run


@pytest.mark.long
@pytest.mark.case(24, 25, 28)
def test_random_kills_change_no_file(tmp_path: Path, saw: Callable[[str], None]):
    """kill -9 of four random processes of a training of `sign`, at random moments; `dvc repro` again"""
    needs("dvc", "mlflow", "prefect")
    words = ["--kills", "4", "--servers", "0", "--workloads", "sign", "--folder", str(tmp_path / "soak")]
    done = run(ROOT, sys.executable, "-m", "benchmarks.soak", *words, "--file", str(tmp_path / "soak.jsonl"))
    saw(next(line for line in done.stdout.splitlines() if "kills in" in line))
    assert "4 kills in" in done.stdout and " 0 with an error" in done.stdout
