"""The packages, their purposes and their imports: `python -m tests.packages` writes docs/packages.md.

The purpose is the first sentence of the package's docstring, and the arrows are the imports in the source, so neither
can differ from the code. Modules directly in tandem/ count as packages.
"""

import ast
import sys
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from tandem.files import ROOT

FILE = ROOT / "docs" / "packages.md"
TEXT = """\
# Packages

Written by `python -m tests.packages` from the docstrings and the imports. A package imports only packages in lower
layers (`make lint` checks the order that [pyproject.toml](../pyproject.toml) gives). Arrows that follow from others are
left out.

```mermaid
flowchart TD
{arrows}
```

| layer | package | purpose |
|---|---|---|
{rows}
"""


def packages() -> dict[str, list[Path]]:
    """Name -> files: `stages`, `flows`, every package in tandem/, and every module directly in tandem/."""
    found = {name: sorted((ROOT / name).glob("*.py")) for name in ("flows", "stages")}
    for path in sorted((ROOT / "tandem").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            found[path.name] = [path / "__init__.py", *sorted(path.rglob("[a-z]*.py"))]
        elif path.suffix == ".py" and path.stem != "__init__":
            found[path.stem] = [path]
    return found


def imports(known: Mapping[str, list[Path]]) -> dict[str, set[str]]:
    """Package -> the packages that it imports, also in functions, but not for type checkers only."""
    found: dict[str, set[str]] = {}
    for name, files in known.items():
        pairs = [pair for path in files for pair in imported(ast.parse(path.read_bytes()))]
        own = {package_of(module, what, known) for module, what in pairs}
        found[name] = {other for other in own if other and other != name}
    return found


def imported(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) of each import from this project. Modules that are looked up by name are not included."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            found += [(node.module or "", alias.name) for alias in node.names]
        found += imported(node)
    return found


def package_of(module: str, name: str, known: Mapping[str, list[Path]]) -> str | None:
    top, *rest = [*module.split("."), name]
    if top in ("flows", "stages"):
        return top
    return rest[0] if top == "tandem" and rest[0] in known else None


def layers(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Package -> the length of its longest chain of imports. Raises graphlib.CycleError if imports form a cycle."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        found[name] = 1 + max((found[other] for other in graph[name]), default=0)
    return found


def reduced(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    below: dict[str, set[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        below[name] = set().union(*({other} | below[other] for other in graph[name]))
    return [
        (name, other)
        for name, own in graph.items()
        for other in sorted(own)
        if not any(other in below[third] for third in own - {other})
    ]


def purpose(files: list[Path]) -> str:
    docstring = ast.get_docstring(ast.parse(files[0].read_bytes())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


def text() -> str:
    known = packages()
    graph = imports(known)
    depth = layers(graph)
    names = sorted(known, key=lambda name: (-depth[name], name))
    rows = "\n".join(f"| {depth[name]} | `{name}` | {purpose(known[name])} |" for name in names)
    arrows = "\n".join(f"    {name} --> {other}" for name, other in sorted(reduced(graph)))
    return TEXT.format(arrows=arrows, rows=rows)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}", file=sys.stderr)
