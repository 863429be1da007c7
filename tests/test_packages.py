"""The imports form no cycle, and the tables that are written into documents are up to date."""

from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import packages, tables


def test_the_imports_form_no_cycle():
    graph = packages.imports(packages.packages())
    assert graph["stages"] > {"runs", "training"} and len(graph) > 20
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path", tables.TABLES, ids=lambda path: path.stem)
def test_the_tables_of_a_document_are_up_to_date(path: Path):
    assert path.read_text(encoding="utf-8") == tables.text(path), "run `python -m tests.tables`"
