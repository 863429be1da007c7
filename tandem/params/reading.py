"""Reads a YAML file as DVC does. It does not import the schema, which takes longer than a stage with nothing to do."""

import re
from pathlib import Path
from typing import Any

from tandem.files import ROOT
from tandem.terminal.messages import one_line

PARAMS = ROOT / "params.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read YAML 1.2, as DVC does: 1e-3 is a number there; PyYAML would read it as text."""
    from ruamel.yaml import YAML

    try:
        loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        advice = f"restore it (git checkout {path.name})"
        raise FileNotFoundError(f"{path.name} is missing in {path.parent}; {advice}") from None
    except OSError:
        raise
    except Exception as error:  # ruamel's errors for invalid YAML share no base class
        raise ValueError(yaml_mistake(path.name, error)) from None
    if not isinstance(loaded, dict):
        advice = "it must be a mapping of workloads, devices and one block per workload"
        raise ValueError(f"{path.name} holds {type(loaded).__name__}; {advice}")
    return loaded


def yaml_mistake(name: str, error: Exception) -> str:
    """Where and why a file is not valid YAML, in one sentence; the parser's own message quotes lines."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    why = getattr(error, "problem", None) or str(error)
    why = re.sub(r" with value .*", "", one_line(why))  # a duplicate key, quoted with its whole value
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{name}{place}: not valid YAML: {why}; correct it there or in the line before"
