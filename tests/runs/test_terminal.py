"""The lines that a training prints if its terminal is a file."""

import re

import pytest

from flows.stage_lines import PROGRESS
from tandem.runs import terminal


def test_each_part_of_a_fit_has_its_own_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", -1.0)
    progress = terminal.Progress("pen", 1, 0)
    reports = [(128, 1000, "features"), (1000, 1000, "features"), (1, 50, "trees"), (26, 50, "trees"), (2, 50, "trees")]
    for report in reports:
        progress.show_fit(*report)
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(PROGRESS, line) for line in lines), "`tandem repro` shows these lines at once"
    first, last, one, some, again = lines
    assert (first, one, again) == ("128 of 1,000 features", "1 of 50 trees", "2 of 50 trees")  # no rate is known yet
    assert last.startswith("1,000 of 1,000 features, ") and last.endswith("/s, 0 s left")
    assert re.fullmatch(r"26 of 50 trees, \S+/s, \d+ s left", some)
