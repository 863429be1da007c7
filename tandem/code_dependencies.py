"""The code dependencies of a stage: the files that it imports, directly or indirectly, each with a fingerprint.

Input: a stage's name and the modules of its workload's components. Output: {file: sha256}. `hardware` writes it to
results/hardware/code/ for every stage and workload. dvc.yaml depends on these files, and a checkpoint's name depends on
the same fingerprints, so the imports are the only declaration of code dependencies.

A fingerprint covers what the code does: comments, docstrings, layout and the messages of exceptions do not affect it.
Code of a workload may read files beside it, so these belong to each of its modules.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from tandem.files import ROOT, STATE, digest, sha256_file, write_json

# Packages that affect results or timings. Edits of the others change no result: files (atomic writes), params (DVC
# depends on the values), runs and tracking (files that exist are not written again), diagnosis (sentences about speed),
# flows, and importing.
COMPUTING = ("data", "tasks", "models", "fitted", "training", "machine", "devices")
# Stages whose results include figures, sentences and values of several runs.
SHOWING = {"evaluate": ("report",), "compare": ("report", "comparing", "runs"), "speed": ("comparing",)}
# Packages and modules that import others by name. Only the modules that the workload names are dependencies.
REGISTRIES = {
    "tandem.models": "model",
    "tandem.tasks": "task",
    "tandem.data": "source",
    "tandem.training.own_metrics": "metric",
}
KINDS_OF_DEVICE = "tandem.devices.names"  # this module imports all of them by name
# Modules of other packages that are a part of a stage.
PARTS_OF_STAGE = {"train": ("tandem.stage.start", "tandem.stage.other_worker")}
# Components that a stage imports by name, in addition to what its modules import.
NAMED_BY_STAGE = {"baseline": ("baseline",), "train": ("loop", "trainer"), "speed": ("trainer",)}
# Components of the workload that a stage does not use, although it imports their package.
UNUSED_BY_STAGE: Mapping[str, Sequence[str]] = {"baseline": ("model",)}
# Directories with code, and those whose code others import.
PLACES = ("stages", "tandem", "workloads")
ROOTS = ("tandem", "workloads")
# Files beside a workload's code, also in its subfolders except `data`, that it may read: no code, document, hidden file
# or copy of an editor.
BESIDE = r"[^.#].*(?<!\.py)(?<!\.md)(?<!~)"
# Cache of {sha256 of a file: its fingerprint and imports}: parsing everything takes a third of a second.
CACHE = STATE / "fingerprints.json"


def fingerprint_code(stage: str, modules_of: Mapping[str, Sequence[str]], code: Code | None = None) -> dict[str, str]:
    """{file relative to the project: fingerprint} of all code that `stages/<stage>.py` imports, sorted by name.

    `modules_of`: the workload's modules for each of REGISTRIES, from the function of this name in
    tandem/params/own_components.py. `code`: a Code to share between several calls.
    """
    code = code or Code()
    fingerprints: dict[str, str] = {}
    modules_of = {**modules_of, **dict.fromkeys(UNUSED_BY_STAGE.get(stage, ()), ())}
    components = (modules_of.get(kind, ()) for kind in NAMED_BY_STAGE.get(stage, ()))
    starts = [f"stages.{stage}", *PARTS_OF_STAGE.get(stage, ()), *chain.from_iterable(components)]
    assert code.files.keys() >= {*starts}, f"{sorted({*starts} - code.files.keys())} would be left out silently"
    for module in imported_modules(starts, modules_of, code, COMPUTING + SHOWING.get(stage, ())):
        fingerprints |= code.describe(module)[0]
    return dict(sorted(fingerprints.items()))


def imported_modules(
    starts: Sequence[str], modules_of: Mapping[str, Sequence[str]], code: Code, packages: tuple[str, ...] | None = None
) -> set[str]:
    """`starts` and the modules of this project that they import, directly or indirectly.

    `packages`: those of tandem/ to follow; None: all. Modules of workloads/ are always followed.
    """
    waiting, modules = list(starts), set()
    while waiting:
        module = waiting.pop()
        if module in modules or module not in code.files:
            continue
        modules.add(module)
        for package, name in code.describe(module)[1]:
            imported = f"{package}.{name}" if f"{package}.{name}" in code.files else package
            if imported in REGISTRIES and not module.startswith(f"{imported}."):
                waiting += modules_of[REGISTRIES[imported]]
            if imported == KINDS_OF_DEVICE:
                waiting += [kind for kind in code.files if kind.startswith("tandem.devices.")]
            if imported.startswith("workloads."):
                waiting.append(imported)
            else:
                parts = with_parents(imported)
                waiting += [part for part in parts if packages is None or part.split(".")[1] in packages]
    code.save()
    return modules


def with_parents(module: str) -> list[str]:
    """`tandem.models.kernels.gru` -> itself and its parent packages (their __init__.py runs too), without `tandem`."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(2, len(parts) + 1)]


class Code:
    """The modules of stages/, tandem/ and workloads/: their files, fingerprints and imports.

    CACHE stores fingerprints and imports between runs, by package, sha256 of the file, and sha256 of this module.
    """

    def __init__(self) -> None:
        # module -> its file and those that it reads, e.g. report.py and report.html.j2
        self.files: dict[str, list[str]] = {}
        for folder, _, names in chain.from_iterable(os.walk(ROOT / name) for name in PLACES):
            package = os.path.relpath(folder, ROOT).replace(os.sep, ".")
            for name in sorted(names):
                stem, _, ending = name.partition(".")
                if ending in ("py", "html.j2"):
                    module = package if name == "__init__.py" else f"{package}.{stem}"
                    self.files.setdefault(module, []).insert(0 if ending == "py" else 1, f"{folder}/{name}")
            top, *below = os.path.relpath(folder, ROOT).split(os.sep)
            is_read = top == "workloads" and below and not any(re.match(r"\.|__pycache__$", part) for part in below)
            if is_read and below[1:2] != ["data"]:
                beside = [f"{folder}/{name}" for name in sorted(names) if re.fullmatch(BESIDE, name)]
                for module, paths in self.files.items():
                    paths += beside if module.rpartition(".")[0] == f"workloads.{below[0]}" else []
        self.described: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {}
        self.own_sha256 = sha256_file(Path(__file__))
        self.cache: dict[str, Any] = {}
        self.is_changed = False
        try:
            stored = json.loads(CACHE.read_text(encoding="utf-8"))
            is_usable = stored["by"] == self.own_sha256 and stored["sha256"] == digest(stored["files"])
            self.cache = stored["files"] if is_usable else {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # `save` writes a new cache

    def describe(self, module: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """Returns ({file: fingerprint}, (package, name) of every import) of a module and the files that it reads."""
        if module not in self.described:
            source, *beside = self.files[module]
            package = module.rpartition(".")[0]
            key = f"{package} {sha256_file(Path(source))}"  # the package, because imports may be relative
            if key not in self.cache:
                tree = ast.parse(Path(source).read_bytes())
                self.cache[key] = [fingerprint(tree), sorted(set(imports_of(tree, package)))]
                self.is_changed = True
            source_digest, imports = self.cache[key]
            digests = {source: source_digest} | {path: sha256_file(Path(path)) for path in beside}
            self.described[module] = {os.path.relpath(file, ROOT): sha256 for file, sha256 in digests.items()}, imports
        return self.described[module]

    def save(self) -> None:
        if self.is_changed:
            self.is_changed = False
            with suppress(OSError):  # without the cache, the next run only takes longer
                content = {"by": self.own_sha256, "files": self.cache, "sha256": digest(self.cache)}
                write_json(CACHE, content, is_durable=False)


def imports_of(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import from this project, also in functions, but not under `TYPE_CHECKING`.

    `package` is that of the module, for relative imports.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            module = child.module or ""
            if child.level:
                outer = package.split(".")[: len(package.split(".")) + 1 - child.level]
                module = ".".join([*outer, module]).rstrip(".")
            if module.split(".")[0] in ROOTS:
                yield from ((module, alias.name) for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names if alias.name.split(".")[0] in ROOTS)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from (pair for part in child.orelse for pair in imports_of(part, package))
        else:
            yield from imports_of(child, package)


def check_imports(path: Path) -> None:
    """Raises ValueError if a file of a workload imports something that is not there. It executes no code.

    Imports in functions, and in `try` or `if`, are left out: they may be optional.
    """
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.parse(path.read_bytes(), str(path)).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else names
            names = [f"{package}.{name}" if node.level else name for name in names] if node.level < 2 else []
        for name in names:
            first, place = name.split(".")[0], ROOT.joinpath(*name.split("."))
            is_there = place.is_dir() or place.with_suffix(".py").is_file() if first in ROOTS else find_spec(first)
            if not is_there:
                from tandem.parts import missing_import  # it imports pydantic

                raise missing_import(path, name if first in ROOTS else first)


def fingerprint(tree: ast.AST) -> str:
    """sha256 of the syntax tree. It is equal in all Python versions that parse the code to the same tree."""
    return hashlib.sha256(json.dumps(canonical(tree), separators=(",", ":")).encode()).hexdigest()


def canonical(node: Any) -> Any:
    """Convert a syntax tree to lists, without positions, docstrings, arguments of `raise X(...)` or empty fields."""
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
