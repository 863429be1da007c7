"""Inputs that nobody has thought of: whatever params.yaml or a raw table holds, it runs or gets one sentence.

hypothesis makes the inputs. What it draws is the same in every run; HYPOTHESIS_SEED=7 draws others.
"""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from stages.files import ROOT
from stages.params.loading import parse_params, read_yaml
from stages.params.schema import Params
from tests.conftest import TINY

SEED = int(os.environ.get("HYPOTHESIS_SEED", 0))
# A slow or busy machine is no failure; nothing is kept between two runs.
COMMON = {
    "deadline": None,
    "database": None,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
}
MANY = int(os.environ.get("HYPOTHESIS_EXAMPLES", 300))

WORDS = st.sampled_from(
    ["", " ", "tiny", "train", "epochs", "../x", "a b", "x;y", "${x}", "line\nbreak", "ä", "\x00", "1e-3", "auto", "none", "all"]
)
TEXT = WORDS | st.text(max_size=12)
NUMBERS = st.integers() | st.sampled_from([0, 1, -1, 2**63, 10**400, -(10**400)]) | st.floats()
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | st.dates() | st.binary(max_size=4)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3), max_leaves=6)


def one_sentence(error: BaseException) -> str:
    """The message, where it is one that a person can read: a line, not too long, no Python in it."""
    message = str(error)
    assert message and "\n" not in message and message.isprintable(), repr(message)
    assert len(message) < 2000, f"{len(message)} characters"
    return message


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside `value`, at every depth."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield (*path, key)
        yield from places(part, (*path, key))


def section_of(raw: dict[str, Any], path: tuple[Any, ...]) -> Any:
    found: Any = raw
    for key in path[:-1]:
        found = found[key]
    return found


TINY_RAW = YAML(typ="safe").load(TINY)
REAL_RAW = read_yaml(ROOT / "params.yaml")


@st.composite
def changed_params(draw: Any) -> dict[str, Any]:
    """params.yaml with one to three values replaced, removed, renamed or added."""
    raw = copy.deepcopy(draw(st.sampled_from([TINY_RAW, REAL_RAW])))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(raw))))
        section, key = section_of(raw, path), path[-1]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "add"]))
        if kind == "replace":
            section[key] = draw(VALUES)
        elif kind == "remove":
            del section[key]
        elif isinstance(section, dict):
            value = section.pop(key) if kind == "rename" else draw(VALUES)
            section[draw(TEXT | st.integers())] = value
    return raw


@seed(SEED)
@settings(max_examples=MANY, **COMMON)
@given(changed_params())
def test_any_value_in_params_is_accepted_or_gets_one_sentence(raw: dict[str, Any]):
    try:
        parsed = parse_params(raw)
    except ValueError as error:
        assert one_sentence(error).startswith("params.yaml: ")
    else:
        assert isinstance(parsed, Params)


@pytest.fixture(scope="module")
def params_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("params") / "params.yaml"


# What a line of YAML can be besides what a person writes there.
BOMB = b"\n".join(
    [b"", b"x0: &x0 [1, 2]", *(b"x%d: &x%d [%s]" % (n, n, b", ".join([b"*x%d" % (n - 1)] * 9)) for n in range(1, 30))]
)
ODD_YAML = [
    b"&a [*a]", b"*a", b"!!python/object/apply:os.system [touch x]", b"!!set {a}", b"[" * 3000, b"{a: " * 3000,
    b"9" * 5000, b"0x" + b"f" * 9000, b"2001-99-99", b"\xff\xfe", b"? [a]\n: b", b"\n---\n", b"%YAML 9.9\n---\n", b"0o9",
    b"!!timestamp x", b"!!float x", b"!!int ''", b"!!binary ~", b"!!omap [a]", b"<<: 1", b"${x}", b"\t", b"1_000", b"0b2",
]  # fmt: skip
AFTER_COLON = [index + 2 for index in range(len(TINY)) if TINY.startswith(": ", index)]


@seed(SEED)
@settings(max_examples=MANY, **COMMON)
@given(
    place=st.sampled_from(AFTER_COLON) | st.integers(0, len(TINY)),
    cut=st.integers(0, 12),
    put=st.sampled_from(ODD_YAML) | st.binary(max_size=12),
)
@example(place=0, cut=len("\nworkloads: [tiny]"), put=BOMB + b"\nworkloads: *x29")
@example(place=0, cut=0, put=BOMB)
def test_any_bytes_in_params_are_accepted_or_get_one_sentence(params_file: Path, place: int, cut: int, put: bytes):
    content = TINY.encode()
    params_file.write_bytes(content[:place] + put + content[place + cut :])
    try:
        parsed = parse_params(read_yaml(params_file))
    except ValueError as error:
        assert one_sentence(error).startswith("params.yaml")
    else:
        assert isinstance(parsed, Params)
