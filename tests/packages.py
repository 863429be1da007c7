"""The packages, their purposes, lines and imports, read from the source. tests/tables.py writes the table."""

import ast
from collections.abc import Mapping
from pathlib import Path

from benchmarks.markdown import header, row
from tandem.files import ROOT

SINGLE = "one module each: commands, paths and files, components, fingerprints of code"


def packages() -> dict[str, list[Path]]:
    """Name -> files: `stages`, `flows`, every package in tandem/, and every module directly in tandem/."""
    by_name = {name: sorted((ROOT / name).glob("*.py")) for name in ("flows", "stages")}
    for path in sorted((ROOT / "tandem").iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            by_name[path.name] = [path / "__init__.py", *sorted(path.rglob("[a-z]*.py"))]
        elif path.suffix == ".py" and path.stem != "__init__":
            by_name[path.stem] = [path]
    return by_name


def imports(known: Mapping[str, list[Path]]) -> dict[str, set[str]]:
    """Package -> the packages that it imports, also in functions, but not for type checkers only."""
    graph: dict[str, set[str]] = {}
    for name, files in known.items():
        pairs = [pair for path in files for pair in imported(ast.parse(path.read_bytes()))]
        targets = {package_of(module, member, known) for module, member in pairs}
        graph[name] = {target for target in targets if target and target != name}
    return graph


def imported(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) of each import from this project. Modules that are looked up by name are not included."""
    pairs = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            pairs += [(node.module or "", alias.name) for alias in node.names]
        pairs += imported(node)
    return pairs


def package_of(module: str, name: str, known: Mapping[str, list[Path]]) -> str | None:
    top, *rest = [*module.split("."), name]
    if top in ("flows", "stages"):
        return top
    return rest[0] if top == "tandem" and rest[0] in known else None


def purpose(files: list[Path]) -> str:
    docstring = ast.get_docstring(ast.parse(files[0].read_bytes())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "\\|")


def num_lines(files: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


def table() -> str:
    """One row for each package. Lines are rounded to hundreds, so that few edits change the table."""
    by_name = packages()
    single = [path for files in by_name.values() if len(files) == 1 for path in files]
    rows = [(f"`{name}`", purpose(files), files) for name, files in by_name.items() if len(files) > 1]
    rows += [("`tandem/*.py`", SINGLE, single), ("all", "", [path for files in by_name.values() for path in files])]
    cells = [row(name, text, f"{round(num_lines(files), -2):,}") for name, text, files in rows]
    return "\n".join([header("package", "purpose", "lines"), *cells])
