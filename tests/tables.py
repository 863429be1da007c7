"""The tables that repeat committed records or the source: `python -m tests.tables` writes README.md and docs/.

A table lies between two marks of its name, `<!-- name -->` and `<!-- end of name -->`. The text around the marks is
written by hand.
"""

import ast
import json
import statistics
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import aa, soak
from benchmarks.markdown import header, mean_and_range, row
from tandem.files import PUBLISHED, ROOT
from tandem.terminal.messages import seconds
from tests import packages
from tests.catalogue import replaced

DOCS = ROOT / "docs"
MACHINE = "AMD EPYC (family 26 model 2)"  # of README's figures
# Workload of README's figures -> its label, its task and model, and the name of its score.
WORKLOADS = {
    "sign": ("`sign`, 15 signs", "classify, GRU", "accuracy"),
    "pen": ("`pen`, 10 digits", "classify, Transformer", "accuracy"),
    "price": ("`price`, BTC-USD, next hour", "forecast, seq2seq LSTM", "skill"),
    "rally": ("`rally`, simulated tennis", "detect, conv + GRU", "event F1"),
}


def figures() -> str:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["workloads"]
    lines = [header("workload", "task, model", "test score", "seconds per epoch", "samples/s")]
    for workload, (label, task, score) in WORKLOADS.items():
        [entry] = [entry for entry in published[workload] if entry["hardware"]["name"] == MACHINE]
        epoch_seconds, rate = (
            statistics.median(timing[name] for timing in entry["timings"].values() if timing[name] is not None)
            for name in ("epoch_seconds", "samples_per_second")
        )
        scores = mean_and_range(list(entry["scores"].values()), ".3f")
        lines.append(row(label, task, f"{score} {scores}", seconds(epoch_seconds), f"{rate:,.0f}"))
    return "\n".join(lines)


def loop() -> str:
    """The source of an epoch and of a step, without docstrings."""
    functions = {"trainer.py": "train_epoch", "step.py": "take_step"}
    sources = [without_docstring(ROOT / "tandem/training" / module, function) for module, function in functions.items()]
    return "```python\n" + "\n\n\n".join(sources) + "\n```"


def without_docstring(path: Path, function: str) -> str:
    source = path.read_text(encoding="utf-8")
    [node] = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == function]
    assert isinstance(node, ast.FunctionDef)
    lines = source.splitlines()
    head, body = lines[node.lineno - 1 : node.body[0].lineno - 1], lines[node.body[1].lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(head + body))


TABLES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    ROOT / "README.md": {"figures": figures},
    DOCS / "architecture.md": {"loop": loop, "packages": packages.table},
    DOCS / "measurements.md": {"aa": lambda: aa.table(aa.read(DOCS / "aa.jsonl"))},
    DOCS / "reliability.md": {"soak": lambda: soak.table(soak.read(DOCS / "soak.jsonl"))},
}


def text(path: Path) -> str:
    page = path.read_text(encoding="utf-8")
    for name, table in TABLES[path].items():
        page = replaced(page, name, table())
    return page


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(text(path), encoding="utf-8")
