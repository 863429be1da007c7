"""A project with `make ui` running in it, for the files that need Prefect's and MLflow's servers."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Project, make_project, running_ui


@pytest.fixture(scope="module")
def served(empty_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = make_project(tmp_path_factory.mktemp("project"))
    (root / "mlruns").mkdir()
    shutil.copy(empty_history, root / "mlruns")
    with running_ui(root) as project:
        yield project
