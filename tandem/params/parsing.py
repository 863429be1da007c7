"""Converts plain YAML values to the types of schema.py, or reports the first mistake in one sentence. Converts
dataclasses to dotted names.
"""

import copy
import json
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tandem.parts import MAX_WHOLE
from tandem.terminal.messages import abridged, nearest, one_line

# Records lack keys that are newer than they are, and those made before they contained every key lack the keys at their
# default. Such a record means the value that the key had when it was introduced.
INTRODUCED = {
    "preprocess.columns": "none",  # of a workload's own source
    "preprocess.split": "none",
    "preprocess.na": "none",
    "preprocess.groups": "none",
    "preprocess.window": "none",
    "preprocess.season": "none",
    "preprocess.categories": "none",
    "preprocess.rare_classes": "none",
    "preprocess.rate": "none",
    "train.scaling": "strong",
    "train.loop": "none",
    "train.kernels": "auto",
    "evaluate.metrics": "none",
}


class InvalidParams(ValueError):
    """A mistake in params. `keys`: the mapping keys and list indices that lead to the value."""

    def __init__(self, message: str, keys: Sequence[Any] = ()) -> None:
        super().__init__(one_line(message))
        self.keys = keys


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Prefix the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise InvalidParams(f"{prefix}: {error}", getattr(error, "keys", ())) from None


def parse(kind: Any, value: Any, where: str = "") -> Any:
    """Convert `value` to `kind`: a type of schema.py, or any other that pydantic knows.

    Raises InvalidParams about the first mistake. Its message begins with the dotted name of the value, which begins
    with `where`.
    """
    try:
        return adapter_of(kind).validate_python(value)
    except ValidationError as error:
        raise explained(error.errors(include_url=False), json_schema_of(kind), where) from None


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def json_schema_of(kind: Any) -> dict[str, Any]:
    return adapter_of(kind).json_schema()


def explained(mistakes: list[Any], schema: dict[str, Any], where: str) -> InvalidParams:
    """Return the first of pydantic's mistakes in one sentence. A misspelled key comes before a missing key."""
    order = ("unexpected_keyword_argument", "invalid_key", "missing")
    first = min(mistakes, key=lambda mistake: (*order, mistake["type"]).index(mistake["type"]))
    kind, loc, value = first["type"], first["loc"], first["input"]
    value = list(value) if isinstance(value, tuple) else value
    is_key = kind == "invalid_key" or loc[-1:] == ("[key]",)
    keys, node, section = locate(schema, loc[:-1] if loc[-1:] == ("[key]",) else loc)
    name, parent = dotted(where, keys), dotted(where, keys[:-1]) or "the file"
    if is_key:
        why = first["ctx"]["error"] if kind == "value_error" else "a key must be text"
        return InvalidParams(f"{parent} has the key {abridged(value)}; {why}", keys)
    if kind == "unexpected_keyword_argument":
        return InvalidParams(f"{name} is not a known key{nearest(keys[-1], section['properties'])}", keys)
    if kind == "missing":
        missing = [error["loc"][-1] for error in mistakes if error["type"] == kind and error["loc"][:-1] == loc[:-1]]
        return InvalidParams(format_missing(parent, missing, section["properties"], value), keys[:-1])
    if kind == "value_error":  # from a validator in schema.py; its message begins with a key of its section
        separator = "." if name and "properties" in node else " "
        return InvalidParams(f"{name}{separator}{first['ctx']['error']}", keys)
    if union := node.get("discriminator"):
        key, accepted = union["propertyName"], union["mapping"]
        if isinstance(value, dict) and key in value:
            return InvalidParams(f"{name}.{key} is {abridged(value[key])}{nearest(value[key], accepted)}", [*keys, key])
        must = f"must be a mapping with a `{key}`{nearest('', accepted)}"
        return InvalidParams(f"{name} {must}; received {abridged(value)}", keys)
    if "enum" in node:
        return InvalidParams(f"{name} is {abridged(value)}{nearest(value, node['enum'])}", keys)
    return InvalidParams(f"{name} is {abridged(value)}; it must be {accepted_values(node, value)}", keys)


def locate(schema: dict[str, Any], loc: Sequence[Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """The keys in pydantic's `loc`, the JSON schema of that value, and that of the mapping that contains it."""

    def resolved(node: Any) -> dict[str, Any]:
        if not isinstance(node, dict):  # additionalProperties may be true or false
            return {}
        members = [member for member in node.get("anyOf", ()) if member.get("type") != "null"]
        if len(members) == 1:  # an optional section
            return resolved(members[0])
        return schema["$defs"][node["$ref"].split("/")[-1]] if "$ref" in node else node

    keys: list[Any] = []
    node = section = schema = resolved(schema) | schema
    for part in loc:
        if "discriminator" in node:
            node = resolved({"$ref": node["discriminator"]["mapping"][part]})
        elif node.get("type") == "array":
            keys.append(part)
            node = resolved(node["items"])
        elif node.get("type") == "object":
            keys.append(part)
            section, node = node, resolved(node.get("properties", {}).get(part, node.get("additionalProperties")))
        # otherwise it is pydantic's name for a member of a union such as `int | float`
    return keys, node, section


def dotted(where: str, keys: Sequence[Any]) -> str:
    return (where + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)).removeprefix(".")


def format_missing(section: str, missing: list[str], properties: dict[str, Any], values: Any) -> str:
    """The sentence about the missing keys of a section with these values, and the lines that add them."""
    usual = {key: properties[key]["examples"][0] for key in missing if "examples" in properties[key]}
    if "warmup_epochs" in usual and values.get("epochs", 1) == 1:  # as of a network that is fitted in closed form
        usual["warmup_epochs"] = 0
    lines = [f"`{key}: {json.dumps(value)}`".replace('"', "") for key, value in usual.items()]
    advice = [f"add {', '.join(lines)} to {section}"] if lines else []
    if len(lines) < len(missing):
        advice.append("workloads/README.md shows a whole block")
    return f"{section} lacks {', '.join(missing)}; {'; '.join(advice)}"


def accepted_values(node: dict[str, Any], value: Any) -> str:
    """Return a description of the values that a JSON schema accepts in the place of `value`."""
    if "anyOf" in node:
        members = [member for member in node["anyOf"] if member.get("type") != "null"]
        return ", or ".join(accepted_values(member, value) for member in members)
    if "const" in node:
        return str(node["const"])
    kind = node.get("type")
    if kind in ("integer", "number"):
        is_finite = not isinstance(value, int | float) or abs(value) <= sys.float_info.max
        noun = "a whole number" if kind == "integer" else "a number" if is_finite else "a finite number"
        above, least, high = node.get("exclusiveMinimum"), node.get("minimum", -MAX_WHOLE), node.get("maximum")
        low = f" above {above}" if above is not None else f" of at least {least}" if least > -MAX_WHOLE else ""
        is_told = high is not None and (high != MAX_WHOLE or isinstance(value, int) and value > high)
        return f"{noun}{low}" + (f" and at most {high}" if is_told else "")
    if kind == "array":
        return "a list with at least one entry" if node.get("minItems") else "a list"
    if kind == "object":
        return f"a mapping of {', '.join(node['properties'])}" if "properties" in node else "a mapping"
    return "true or false" if kind == "boolean" else "text"


def check_name(name: str) -> str:
    """Return `name`, which becomes a folder. Refuses names that leave the project or that DVC would misread."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            f"{name!r} is not a usable name; use the letters a to z or A to Z, digits, _ and -, and begin with a "
            "letter or a digit"
        )
    return name


def value_at(nested: Any, name: str) -> Any:
    """The value with a dotted name; None if there is none."""
    for key in name.split("."):
        nested = nested.get(key) if isinstance(nested, dict) else None
    return nested


def replaced(nested: Any, overrides: dict[str, Any], optional: Container[str], complain: Callable[[str], str]) -> Any:
    """A copy of `nested` with the dotted `overrides`. Raises ValueError(complain(name)) for a name that is neither in
    `nested` nor `optional`.
    """
    if not overrides or not isinstance(nested, dict):
        return nested
    changed = copy.deepcopy(nested)
    for name, value in overrides.items():
        *parents, last = str(name).split(".")
        section: Any = changed
        for parent in parents:
            if isinstance(section, dict) and name in optional:
                section.setdefault(parent, {})
            section = section.get(parent) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not (last in section or name in optional):
            raise ValueError(complain(name))
        section[last] = value
    return changed


def literal(value: Any) -> Any:
    """A dataclass in the format of params.yaml, with every key: a record must not change with a default."""
    if is_dataclass(value):
        return {field.name: literal(getattr(value, field.name)) for field in fields(value)}
    return [literal(part) for part in value] if isinstance(value, tuple) else value


def flatten(value: Any) -> dict[str, Any]:
    """Return a dataclass as dotted keys, as MLflow and tables show it. None and an empty list are `none`."""

    def leaves(part: Any, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(part, dict):
            for key, inner in part.items():
                yield from leaves(inner, f"{name}.{key}")
        elif isinstance(part, list):
            yield name[1:], ",".join(map(str, part)) or "none"
        else:
            yield name[1:], "none" if part is None else part

    return dict(leaves(literal(value), ""))


def recorded_parameters(block: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded block as dotted keys, with the values of INTRODUCED for keys that it lacks."""
    return INTRODUCED | flatten(block)


def differing_names(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
