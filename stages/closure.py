"""The code that a stage's result depends on: the files it imports, from room to room, each with a fingerprint.

In: a stage's name and what its workload names (model, task, source). Out: {file: sha256}. `hardware` writes it for every stage and
workload into results/code/, dvc.yaml depends on these files, and a checkpoint belongs to one of them: what a result depends on is
declared once, by the imports.

A fingerprint is taken of what the code does: comments, docstrings, layout and the words of an exception do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.files import ROOT, STATE, write_json

if TYPE_CHECKING:
    from stages.params.schema import Workload

# The rooms whose code decides what comes out or how long it takes. Left out, because an edit of it changes no result: files (atomic
# writes), params (the values themselves are dependencies), records (what is kept and sent), diagnosis (what is said about speed),
# flows, and tools.
COMPUTING = ("data", "tasks", "models", "training", "machine")
# Stages whose results are pictures and sentences too.
SHOWING = {"evaluate": ("figures",), "compare": ("figures", "comparing")}
# A package that imports its modules by name stands for the one that the workload names, and for none of its siblings.
REGISTRIES = {"stages.models": "model", "stages.tasks": "task", "stages.data": "source"}
CACHE = (
    STATE / "fingerprints.json"
)  # sha256 of a file -> its fingerprint and imports: parsing everything takes a third of a second


def closure(stage: str, named: Mapping[str, str], known: Known | None = None) -> dict[str, str]:
    """{file relative to the project: fingerprint} of all that `stages/<stage>.py` runs through, in order of the names.

    `named`: the workload's module in each of REGISTRIES, such as {"model": "gru", "task": "classify", "source": "sequences"}.
    """
    rooms = COMPUTING + SHOWING.get(stage, ())
    known = known or Known()
    found: dict[str, str] = {}
    waiting = [f"stages.{stage}"]
    while waiting:
        path = path_of(waiting.pop())
        name = path.relative_to(ROOT).as_posix() if path else ""
        if path is None or name in found:
            continue
        found[name], imports = known.about(path)
        for template in sorted(path.parent.glob(f"{path.stem}.*")):
            if template != path:  # report.html.j2 beside report.py
                found[template.relative_to(ROOT).as_posix()] = hashlib.sha256(template.read_bytes()).hexdigest()
        for module, imported in imports:
            if path_of(f"{module}.{imported}"):
                module = f"{module}.{imported}"
            elif module in REGISTRIES:
                waiting.append(f"{module}.{named[REGISTRIES[module]]}")
            waiting += [part for part in with_parents(module) if part.split(".")[1] in rooms]
    known.save()
    return dict(sorted(found.items()))


def named_by(block: Workload) -> dict[str, str]:
    """What a workload's block names in REGISTRIES."""
    return {"model": block.train.model.name, "task": block.task, "source": block.preprocess.source}


def with_parents(module: str) -> list[str]:
    """`stages.models.kernels.gru` -> itself and the packages whose __init__.py runs before it, `stages` left out."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(2, len(parts) + 1)]


def path_of(module: str) -> Path | None:
    """The file of a module or package of this project; None for a name that is neither (a function, a class)."""
    path = ROOT.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


class Known:
    """Fingerprint and imports of files, kept from run to run by the sha256 of the file and of this module."""

    def __init__(self) -> None:
        self.own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        self.entries: dict[str, Any] = {}
        self.is_changed = False
        try:
            kept = json.loads(CACHE.read_text(encoding="utf-8"))
            self.entries = kept["entries"] if kept["by"] == self.own else {}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it is made anew

    def about(self, path: Path) -> tuple[str, list[tuple[str, str]]]:
        content = path.read_bytes()
        key = hashlib.sha256(content).hexdigest()
        if key not in self.entries:
            tree = ast.parse(content)
            self.entries[key] = [fingerprint(tree), sorted(imports_of(tree))]
            self.is_changed = True
        digest, imports = self.entries[key]
        return digest, imports

    def save(self) -> None:
        if not self.is_changed:
            return
        try:
            write_json(CACHE, {"by": self.own, "entries": self.entries})
        except OSError:
            pass  # a full disk costs only time


def imports_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of all that the code imports of this project, in functions too; what only a type checker imports does not run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            if child.module and child.module.split(".")[0] == "stages":
                yield from ((child.module, alias.name) for alias in child.names)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from (pair for part in child.orelse for pair in imports_of(part))
        else:
            yield from imports_of(child)


def fingerprint(tree: ast.AST) -> str:
    """sha256 of the syntax tree, the same in every version of Python that parses it to the same tree."""
    return hashlib.sha256(json.dumps(canonical(tree), separators=(",", ":")).encode()).hexdigest()


def canonical(node: Any) -> Any:
    """A syntax tree as lists: no positions, no docstrings, nothing of `raise X(...)` but X, no fields that are empty."""
    if isinstance(node, list):
        return [canonical(part) for part in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            fields["body"] = node.body[1:]
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        fields["exc"] = node.exc.func
    filled = {name: value for name, value in fields.items() if value not in (None, [])}
    return [type(node).__name__, *([name, canonical(value)] for name, value in filled.items() if name != "ctx")]
