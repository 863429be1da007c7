"""What is written into documents: docs/packages.md, and the tables of committed records."""

from pathlib import Path

import pytest

from tests import packages, tables


def test_the_page_of_packages_is_what_the_imports_say_and_they_form_no_cycle():
    assert packages.FILE.read_text(encoding="utf-8") == packages.text(), "run `python -m tests.packages`"


@pytest.mark.parametrize("path", tables.TABLES, ids=lambda path: path.stem)
def test_the_tables_of_a_document_are_those_of_the_records(path: Path):
    assert path.read_text(encoding="utf-8") == tables.text(path), "run `python -m tests.tables`"
