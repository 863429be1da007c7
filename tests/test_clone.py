"""A clone of the project, whatever git is told on the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.projects import ROOT, commit, git


def test_a_clone_has_the_same_bytes_where_git_converts_line_ends(tmp_path: Path):
    """`core.autocrlf=true` is the default of Git for Windows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("this project is not in a git repository")
    names = [name for name in map(os.fsdecode, listed.stdout.split(b"\0")) if name and (ROOT / name).is_file()]
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    for name in names:
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, origin / name)
    written_by_excel = "workloads/own/data/table.csv"
    (origin / written_by_excel).parent.mkdir(parents=True)
    (origin / written_by_excel).write_bytes(b"x,label\r\n1,a\r\n")
    git(origin, "init", "-q")
    commit(origin)
    git(tmp_path, "clone", "-q", "-c", "core.autocrlf=true", "origin", "clone")
    for name in (*names, written_by_excel):
        assert (origin / name).read_bytes() == (clone / name).read_bytes(), name
