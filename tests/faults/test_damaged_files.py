"""Files that Tandem wrote and something damaged: what reads them gives a value or one sentence, never a traceback."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.projects import ROOT, copy_of, run


@pytest.mark.parametrize("seconds", ["0", pytest.param("120", marks=pytest.mark.long)])
@pytest.mark.case(7, 28, 51)
def test_every_file_that_is_read_back(trained: Path, tmp_path: Path, saw: Callable[[str], None], seconds: str):
    """each of the files that Tandem reads back cut, emptied, with a flipped bit, another type, another encoding"""
    project = copy_of(trained, tmp_path / "project")
    (project / "docs").mkdir()
    shutil.copy(ROOT / "docs/published.json", project / "docs")
    seed = os.environ.get("HYPOTHESIS_SEED", "0")
    script = str(ROOT / "tests/fuzz.py")
    own = {"PYTHONPATH": str(project), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(project, sys.executable, script, seed, seconds, check=False, **own)
    assert done.returncode == 0, done.stdout
    number, *sentences = done.stdout.strip().splitlines()
    saw(f"{number}; {next(line.strip() for line in sentences if 'plan.json' in line)}")
