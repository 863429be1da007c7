"""Files that Tandem wrote and something damaged: what reads them gives a value or one sentence, never a traceback."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.projects import ROOT, copy_of, python


@pytest.mark.parametrize("seconds", ["0", pytest.param("120", marks=pytest.mark.long)])
@pytest.mark.case(7, 28, 51)
def test_every_file_that_is_read_back(trained: Path, tmp_path: Path, saw: Callable[[str], None], seconds: str):
    """each of the files that Tandem reads back cut, emptied, with a flipped bit, another type, another encoding"""
    project = copy_of(trained, tmp_path / "project")
    (project / "docs").mkdir()
    shutil.copy(ROOT / "docs/published.json", project / "docs")
    seed = os.environ.get("HYPOTHESIS_SEED", "0")
    words = [str(ROOT / "tests/fuzz.py"), seed, seconds]
    code = f"import runpy, sys; sys.argv = {words}; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = python(project, code, check=False, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout
    number, *sentences = done.stdout.strip().splitlines()
    saw(f"{number}; {next(line.strip() for line in sentences if 'plan.json' in line)}")
