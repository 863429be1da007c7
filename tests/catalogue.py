"""The faults that Tandem must survive, and the table of `make faults`.

A test names its faults with `@pytest.mark.case(24)` and reports what the user read with the fixture `saw`.
tests/conftest.py calls this from pytest's hooks.
"""

import platform
import time
from collections import Counter, defaultdict
from pathlib import Path
from textwrap import shorten

import pytest

CASES = {
    1: "the raw table is missing",
    2: "the raw table is empty, or nothing of it is left",
    3: "NaN, or text in a column of numbers",
    4: "sequences of unequal length, or too short",
    5: "a class with fewer samples than splits",
    6: "duplicates on both sides of a split",
    7: "a prepared file is truncated or altered",
    8: "a label that only validation or test has",
    9: "an unknown or misspelt key",
    10: "a value of the wrong type",
    11: "two values that cannot go together",
    12: "params, data, code or results moved under a running stage",
    13: "a name that leaves the project",
    14: "cuda asked for, none there",
    15: "a driver too old for this torch, a torch without CUDA beside a GPU",
    16: "CUDA_VISIBLE_DEVICES hides or reorders",
    17: "NVML is missing or does not know",
    18: "another process computes on the GPU",
    19: "a GPU in parts (MIG)",
    20: "the GPU's memory runs out in a step",
    21: "the data does not fit beside the training",
    22: "the host's memory runs out",
    23: "the loss is not a number",
    24: "kill -9 of the trainer",
    25: "kill -9 of dvc",
    26: "Ctrl+C, once and twice",
    27: "cancel in Prefect",
    28: "killed while a checkpoint is written",
    29: "a checkpoint of other params, data, code or device",
    30: "the machine restarts in the middle of a run",
    31: "the disk is full at a checkpoint",
    32: "the disk is full when DVC stores the result",
    33: "a folder that cannot be written",
    34: "the tracking server is down at the start",
    35: "the tracking server is lost in the middle",
    36: "a tracking server that never answers",
    37: "a store that is locked, damaged, older or newer",
    38: "Prefect's API is down at the start",
    39: "Prefect's API is lost in the middle",
    40: "a stage below a flow is killed",
    41: "packages that do not work together",
    42: "one training started twice",
    43: "a fresh store opened by many",
    44: "a lock of DVC whose process lives, or is broken",
    45: "two schedules at once",
    46: "a damaged object in DVC's cache",
    47: "a merge conflict in dvc.lock",
    48: "DVC's remote is out of reach",
    49: "a result restored from the run-cache",
    50: "driver or torch changed between two runs compared",
    51: "a checkpoint that would run code",
    52: "a server that others could reach",
    53: "passwords in addresses",
}
WORDS = {"passed": "nothing", "failed": "**failed**"}


class Catalogue:
    """Collects (what the user read, what was lost) of every test of a case."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self.start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_skip, is_error = report.when == "setup" and report.skipped, report.when != "call" and report.failed
        properties = dict(report.user_properties)
        if "cases" not in properties or not (report.when == "call" or is_skip or is_error):
            return
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            outcome = f"not run: {reason.removeprefix('Skipped: ')}"
        else:
            outcome = WORDS["failed" if report.failed else "passed"]
        sentence = next((value for name, value in report.user_properties if name == "saw"), "")
        for case in properties["cases"]:
            self.rows[case].append((sentence, outcome))

    def table(self) -> str:
        ran = {case for case, rows in self.rows.items() if any(not row[1].startswith("not run") for row in rows)}
        failed = {case for case, rows in self.rows.items() if any(row[1] == WORDS["failed"] for row in rows)}
        lines = [
            f"{len(ran)} of {len(CASES)} cases were run, {len(failed)} failed; {time.strftime('%Y-%m-%d')}, "
            f"{platform.system()}, Python {platform.python_version()}, {time.monotonic() - self.start:.0f} s.",
            "",
            "| | fault | tests | what a user reads, for example | lost |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| {case} | {title} | {summary(self.rows[case])} |" for case, title in CASES.items()]
        return "\n".join(lines)


def summary(rows: list[tuple[str, str]]) -> str:
    """The cells of a fault: the number of its tests, a sentence that one of them saw, and what was lost."""
    outcomes = Counter(outcome for _, outcome in rows) or {"not run: no test of it was chosen": 0}
    lost = ", ".join(outcome if len(outcomes) == 1 else f"{num} times {outcome}" for outcome, num in outcomes.items())
    sentences = [sentence for sentence, _ in rows if sentence and not sentence.startswith("nothing")]
    # The first one that is no count of sentences, which begins with a number.
    example = min(sentences, key=lambda sentence: sentence[0].isdigit(), default="nothing")
    return f"{len(rows)} | {cell(shorten(example, 90))} | {cell(lost)}"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def record_cases(item: pytest.Item) -> None:
    """Add the cases of a test to its report."""
    cases = [case for mark in item.iter_markers("case") for case in mark.args]
    if not cases:
        return
    if unknown := set(cases) - set(CASES):
        raise pytest.UsageError(f"{item.nodeid} names the cases {sorted(unknown)}; tests/catalogue.py has 1 to 53")
    item.user_properties.append(("cases", sorted(set(cases))))


def write(path: Path, table: str) -> None:
    """Replace the table in the document `path`, between the two marks. Creates the document if there is none."""
    text = path.read_text(encoding="utf-8") if path.exists() else "<!-- table -->\n<!-- end of table -->\n"
    path.write_text(replaced(text, "table", table), encoding="utf-8")


def replaced(text: str, name: str, table: str) -> str:
    """The text with another table between the marks of `name`. Raises ValueError if the marks are not there."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    start, end = text.index(first), text.index(last)
    return f"{text[:start]}{first}\n\n{table}\n\n{text[end:]}"
