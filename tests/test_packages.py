"""docs/packages.md."""

from tests import packages


def test_the_page_of_packages_is_what_the_imports_say_and_they_form_no_cycle():
    assert packages.FILE.read_text(encoding="utf-8") == packages.text(), "run `python -m tests.packages`"
