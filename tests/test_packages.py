"""The imports form no cycle, and in the documents, tables that are written are up to date and links lead somewhere."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tandem.files import ROOT
from tests import packages, tables
from tests.test_commands import DOCUMENTS


def test_the_imports_form_no_cycle():
    graph = packages.imports(packages.packages())
    assert graph["stages"] > {"runs", "training"} and len(graph) > 20
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("path", tables.TABLES, ids=lambda path: path.stem)
def test_the_tables_of_a_document_are_up_to_date(path: Path):
    assert path.read_text(encoding="utf-8") == tables.text(path), "run `python -m tests.tables`"


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(path: Path):
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8"))
    for name, heading in links:
        target = path.parent / name if name else path
        assert target.exists() and (not heading or heading in headings(target)), (name, heading)
