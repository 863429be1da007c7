"""Plain YAML values -> the dataclasses of schema.py, and dataclasses -> dotted names.

Every key is required, and an unknown one is refused with the nearest known name: a misspelled key never has a silent
effect. A missing key is refused with the line to add.
"""

import copy
import difflib
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal

from stages.params.schema import Limits, MayBeAbsent, Usual

MAX_LETTERS = 1000  # of a message: what it quotes may be a whole file
MAX_WHOLE = 2**63 - 1
# Keys of older versions, and what replaces them.
MOVED = {
    "Train.seed": "; write `seeds: [0]` at the top of params.yaml, a training with each",
    "Augment.group": "; it is called coupled_features now",
}


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Put `prefix` in front of the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(one_line(f"{prefix}: {error}")) from None


def one_line(text: object) -> str:
    """`text` as one line that a terminal can show, and not a whole file of it."""
    line = " ".join(str(text).split())
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return line if len(line) <= MAX_LETTERS else f"{line[:MAX_LETTERS]} ..."


def shown(value: Any) -> str:
    """`value` as Python writes it, shortened: a few lines of YAML can stand for gigabytes (`*aliases`)."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 200
    return short.repr(value)


def nearest(name: Any, known: Iterable[str]) -> str:
    """`; did you mean 'x'? accepted: x, y`, without the question where no known name is similar."""
    known = sorted(known)
    similar = difflib.get_close_matches(name[:100] if isinstance(name, str) else shown(name), known, n=1)
    return (f"; did you mean '{similar[0]}'?" if similar else ";") + f" accepted: {', '.join(known)}"


def parse(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: plain type, Literal, tuple, dataclass, union of dataclasses with unlike first fields, or of a
    whole number and words.

    Raises ValueError that begins with `where`, the value's dotted name.
    """
    limits = Limits()
    if typing.get_origin(kind) is Annotated:
        kind, *notes = typing.get_args(kind)
        limits = next((note for note in notes if isinstance(note, Limits)), limits)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        members = tuple(member for member in typing.get_args(kind) if member is not types.NoneType)
        if len(members) == 1:  # of a key that may be left out
            return None if value is None else parse(Annotated[members[0], limits], value, where)
        if is_dataclass(members[0]):
            return parse_union(members, value, where)
        return parse_number_or_word(members, limits, value, where)
    if is_dataclass(kind):
        return parse_dataclass(kind, value, where)
    if typing.get_origin(kind) is Literal:
        accepted = typing.get_args(kind)
        if value not in accepted:
            raise ValueError(f"{where} is {shown(value)}{nearest(value, accepted)}")
        return value
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list) or not (value or where.endswith(".preprocess.columns.features")):
            raise ValueError(f"{where} is {shown(value)}; it must be a list with at least one entry")
        entries = tuple(parse(typing.get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if len(set(entries)) < len(entries):
            raise ValueError(f"{where} names an entry twice: {', '.join(map(str, entries))}")
        return entries
    if not isinstance(value, (int, float) if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        hint = "; write it without quotes" if isinstance(value, str) else ""
        raise ValueError(f"{where} is {shown(value)} ({type(value).__name__}); it must be {kind.__name__}{hint}")
    if kind in (int, float):
        check_number(value, limits, where)
    return value


def check_number(value: float, limits: Limits, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}; it must be a finite number")
    if abs(value) > MAX_WHOLE and isinstance(value, int):  # no float, tensor or database holds it
        raise ValueError(f"{where} is {shown(value)}; a whole number must be at most {MAX_WHOLE}")
    is_low = value <= limits.low if limits.above else value < limits.low
    if is_low or (limits.high is not None and value > limits.high):
        up_to = "" if limits.high is None else f" and at most {limits.high}"
        raise ValueError(
            f"{where} is {value}; it must be {'above' if limits.above else 'at least'} {limits.low}{up_to}"
        )


def parse_union(members: tuple[Any, ...], value: Any, where: str) -> Any:
    key = fields(members[0])[0].name
    options = {typing.get_args(hints_of(member)[key])[0]: member for member in members}
    if not isinstance(value, dict) or key not in value:
        raise ValueError(f"{where} must be a mapping with a `{key}`{nearest('', options)}; received {shown(value)}")
    if (name := value[key]) not in list(options):  # a list, because YAML may give what cannot be hashed
        raise ValueError(f"{where}.{key} is {shown(name)}{nearest(name, options)}")
    return parse(options[name], value, where)


def parse_number_or_word(members: tuple[Any, ...], limits: Limits, value: Any, where: str) -> Any:
    """`members`: int, and a Literal of the words that are accepted too."""
    words = typing.get_args(members[1])
    if value in words:
        return value
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < limits.low or (limits.high is not None and value > limits.high):
        up_to = "" if limits.high is None else f" and at most {limits.high}"
        raise ValueError(
            f"{where} is {shown(value)}; it must be a whole number of at least {limits.low}{up_to}, or {words[0]}"
        )
    return value


def parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = hints_of(kind)
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {shown(value)}; it must be a mapping of {', '.join(hints)}")
    for key in value:
        if key not in hints:
            hint = MOVED.get(f"{kind.__name__}.{key}") or nearest(key, hints)
            raise ValueError(f"{where}.{key} is not a known key{hint}")
    optional = optional_keys(kind)
    if missing := [key for key in hints if key not in value and key not in optional]:
        usual = usual_values(kind)
        lines = [f"`{key}: {json.dumps(usual[key])}`".replace('"', "") for key in missing if key in usual]
        advice = [f"add {', '.join(lines)} to {where}"] if lines else []
        if len(lines) < len(missing):
            advice.append("data/raw/README.md shows a whole block")
        raise ValueError(f"{where} lacks {', '.join(missing)}; {'; '.join(advice)}")
    return kind(**{key: parse(hint, value[key], f"{where}.{key}") for key, hint in hints.items() if key in value})


def optional_keys(kind: Any) -> set[str]:
    """The keys of a dataclass that params.yaml may leave out: their default holds then."""
    return {key for key, hint in hints_of(kind).items() if MayBeAbsent() in getattr(hint, "__metadata__", ())}


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The annotation of each key of a dataclass."""
    return typing.get_type_hints(kind, include_extras=True)


def usual_values(kind: Any) -> dict[str, Any]:
    """The usual value of each key of a dataclass that has one; of a section, if all of its keys have one."""
    found: dict[str, Any] = {}
    for key, hint in hints_of(kind).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Usual):
                found[key] = note.value
        if is_dataclass(hint) and len(section := usual_values(hint)) == len(fields(hint)):
            found[key] = section
    return found


def check_name(name: Any, where: str) -> None:
    """Names become folders: refuse what leaves the project, and what DVC or a URL would misread."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"{where} {name!r} is not a usable name; use letters, digits, _ and - only")


def replaced(nested: Any, overrides: dict[str, Any], complain: Callable[[str], str]) -> Any:
    """A copy of `nested` with the dotted `overrides` put in. Raises ValueError(complain(name)) for a name it lacks."""
    if not overrides or not isinstance(nested, dict):
        return nested
    changed = copy.deepcopy(nested)
    for dotted, value in overrides.items():
        *parents, last = str(dotted).split(".")
        section: Any = changed
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            raise ValueError(complain(dotted))
        section[last] = value
    return changed


def written_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that params.yaml would hold: an optional one only where it is not its default."""
    default = {name: getattr(type(value), name) for name in optional_keys(type(value))}
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: part for name, part in pairs if name not in default or part != default[name]}


def as_written(value: Any) -> Any:
    """A dataclass as params.yaml holds it: dictionaries, lists and values."""
    if is_dataclass(value):
        return {name: as_written(part) for name, part in written_fields(value).items()}
    return [as_written(part) for part in value] if isinstance(value, tuple) else value


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A dataclass as dotted keys, as MLflow and `dvc exp run -S` write them."""
    if is_dataclass(value):
        pairs = written_fields(value).items()
        return {key: leaf for name, part in pairs for key, leaf in flatten(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: ",".join(map(str, value)) if isinstance(value, tuple) else value}
