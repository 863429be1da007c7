"""Plain YAML values -> dataclasses, and back to dotted names.

Every key is required and every unknown one is refused with the nearest known name, so that a misspelling never
trains the wrong thing silently.
"""

import copy
import difflib
import re
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal

# What the types cannot say: the smallest value each number may have, and the largest where there is one.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "epochs": (1, float("inf")),
    "warmup_epochs": (0, float("inf")),
    "batch_size": (1, float("inf")),
    "accumulation": (1, float("inf")),
    "input_steps": (2, float("inf")),
    "horizon": (1, float("inf")),
    "stride": (1, float("inf")),
    "num_steps": (16, float("inf")),
    "noise": (0, float("inf")),
    "missed": (0, 0.9),
    "occlusion": (0, 1),
    "num_convolutions": (0, float("inf")),
    "kernel_size": (1, float("inf")),
    "start": (0, 1),
    "end": (0, 1),
    "hidden_size": (1, float("inf")),
    "feedforward_size": (1, float("inf")),
    "num_layers": (1, float("inf")),
    "num_heads": (1, float("inf")),
    "threads": (1, float("inf")),
    "group": (1, float("inf")),
    "mix": (0, float("inf")),
    "shift": (0, float("inf")),
    "warp": (0, float("inf")),
    "dropout": (0, 0.999),
    "weight_decay": (0, float("inf")),
    "clip_norm": (0, float("inf")),
    "label_smoothing": (0, 0.999),
    "train": (0, float("inf")),
    "val": (0, float("inf")),
    "test": (0, float("inf")),
}


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """`; did you mean 'x'? Accepted: x, y` with the guess left out where nothing comes near."""
    known = sorted(known)
    guess = difflib.get_close_matches(str(name), known, n=1)
    return (f"; did you mean '{guess[0]}'?" if guess else ";") + f" accepted: {', '.join(known)}"


def parse(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a dataclass, a union of them told apart by their first field, Literal, tuple, or a plain type.

    Raises ValueError.
    """
    origin = typing.get_origin(kind)
    if isinstance(kind, types.UnionType):
        key = fields(typing.get_args(kind)[0])[0].name
        options = {typing.get_args(typing.get_type_hints(option)[key])[0]: option for option in typing.get_args(kind)}
        if not isinstance(value, dict) or key not in value:
            raise ValueError(
                f"params.yaml: {where} must be a mapping with a `{key}`{nearest('', options)}; received {value!r}"
            )
        if value[key] not in options:
            raise ValueError(f"params.yaml: {where}.{key} is {value[key]!r}{nearest(value[key], options)}")
        return parse(options[value[key]], value, where)
    if is_dataclass(kind):
        return parse_dataclass(kind, value, where)
    if origin is Literal:
        if value not in typing.get_args(kind) or isinstance(value, bool):
            raise ValueError(f"params.yaml: {where} is {value!r}{nearest(value, map(str, typing.get_args(kind)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not (value or where.endswith(".preprocess.columns.features")):
            raise ValueError(f"params.yaml: {where} is {value!r}; it must be a list with at least one entry")
        entries = tuple(parse(typing.get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if len(set(entries)) < len(entries):
            raise ValueError(f"params.yaml: {where} names an entry twice: {', '.join(map(str, entries))}")
        return entries
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        hint = "; write it without quotes" if isinstance(value, str) else ""
        raise ValueError(
            f"params.yaml: {where} is {value!r} ({type(value).__name__}); it must be {kind.__name__}{hint}"
        )
    low, high = LIMITS.get(where.rpartition(".")[2], (float("-inf"), float("inf")))
    if kind in (int, float) and not low <= value <= high:
        raise ValueError(
            f"params.yaml: {where} is {value!r}; it must be at least {low}"
            + ("" if high == float("inf") else f" and at most {high}")
        )
    return value


def parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(
            f"params.yaml: {where} is {value!r}; it must be a mapping of {', '.join(f.name for f in fields(kind))}"
        )
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise ValueError(f"params.yaml: {where}.{key} is not a known key{nearest(key, hints)}")
    missing = [name for name in hints if name not in value]
    if missing:
        raise ValueError(
            f"params.yaml: {where} lacks {', '.join(missing)}; add it (data/raw/README.md shows a whole block)"
        )
    return kind(**{name: parse(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


def check_name(name: Any, where: str) -> None:
    """Names become folders: nothing that leaves the project, nothing DVC or a URL would misread."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"params.yaml: {where} {name!r} is not a usable name; use letters, digits, _ and - only")


def replaced(nested: Any, overrides: dict[str, Any], complain: Callable[[str], str]) -> Any:
    """A copy of the nested dict with the dotted `overrides` put in. Raises ValueError with `complain(name)` for a name it lacks."""
    if not overrides or not isinstance(nested, dict):
        return nested
    changed = copy.deepcopy(nested)
    for dotted, value in overrides.items():
        *folders, last = str(dotted).split(".")
        place: Any = changed
        for folder in folders:
            place = place.get(folder) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise ValueError(complain(dotted))
        place[last] = value
    return changed


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dataclasses as dotted keys, as MLflow and `dvc exp run -S` write them."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {key: leaf for name, part in pairs for key, leaf in flatten(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: ",".join(map(str, value)) if isinstance(value, tuple) else value}
