"""Inputs that nobody has thought of: whatever params.yaml or a raw table holds, it runs or gets one sentence.

hypothesis makes the inputs. What it draws is the same in every run; HYPOTHESIS_SEED=7 draws others.
"""

import copy
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, Phase, example, given, reject, seed, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tandem.data import source_module
from tandem.data.splits import SPLITS
from tandem.files import ROOT
from tandem.params.loading import parse_params
from tandem.params.reading import read_yaml
from tandem.params.schema import Params, Split
from tandem.terminal.messages import one_line
from tests.data import test_sequences, test_series
from tests.projects import TINY

SEED = int(os.environ.get("HYPOTHESIS_SEED", 0))
# A slow or busy machine is no failure; nothing is kept between two runs.
COMMON = {
    "deadline": None,
    "database": None,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
}
MANY = int(os.environ.get("HYPOTHESIS_EXAMPLES", 20))

WORDS = st.sampled_from(["", " ", "tiny", "epochs", "../x", "x;y", "${x}", "line\nbreak", "\x00", "1e-3", "auto"])
TEXT = WORDS | st.text(max_size=12)
NUMBERS = st.integers() | st.sampled_from([0, 1, -1, 2**63, 10**400, -(10**400)]) | st.floats()
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | st.dates() | st.binary(max_size=4)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def one_sentence(error: BaseException) -> str:
    """The message, as tandem/stage/errors.py prints it."""
    message = one_line(error)
    assert message and "Traceback" not in message and len(message) < 2000, message
    return message


def parsed_or_refused(parse: Callable[[], object], start: str, sentences: list[str]) -> None:
    """Params come out, or one sentence that begins with `start`, which is added to `sentences`."""
    try:
        parsed = parse()
    except ValueError as error:
        sentences.append(one_sentence(error))
        assert sentences[-1].startswith(start)
    else:
        assert isinstance(parsed, Params)


def typical(sentences: list[str]) -> str:
    """For the table of cases."""
    num, shortest = len(set(sentences)), min(sentences, key=len, default="")
    return f"{num} sentences, such as: {shortest}" if sentences else "nothing: all of it was accepted"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside `value`, at every depth."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield (*path, key)
        yield from places(part, (*path, key))


def section_of(raw: dict[str, Any], path: tuple[Any, ...]) -> Any:
    section: Any = raw
    for key in path[:-1]:
        section = section[key]
    return section


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


@pytest.mark.case(9, 10, 11, 13)
def test_any_value_in_params_is_accepted_or_gets_one_sentence(saw: Callable[[str], None]):
    """any value, key or name in params.yaml replaced, removed, renamed or added, by hypothesis"""
    sentences: list[str] = []

    @seed(SEED)
    @settings(max_examples=MANY, **COMMON)
    @given(changed_params())
    def check(raw: dict[str, Any]) -> None:
        parsed_or_refused(lambda: parse_params(raw), "params.yaml: ", sentences)

    check()
    saw(typical(sentences))


# What a line of YAML can be besides what a person writes there.
BOMB = b"\n".join(
    [b"", b"x0: &x0 [1, 2]", *(b"x%d: &x%d [%s]" % (n, n, b", ".join([b"*x%d" % (n - 1)] * 9)) for n in range(1, 30))]
)
ODD_YAML = [
    b"&a [*a]", b"*a", b"!!python/object/apply:os.system [touch x]", b"!!set {a}", b"[" * 3000, b"{a: " * 3000,
    b"9" * 5000, b"0x" + b"f" * 9000, b"2001-99-99", b"\xff\xfe", b"? [a]\n: b", b"\n---\n", b"%YAML 9.9\n---\n",
    b"0o9", b"!!timestamp x", b"!!float x", b"!!int ''", b"!!binary ~", b"!!omap [a]", b"<<: 1", b"${x}", b"\t",
    b"1_000", b"0b2",
]  # fmt: skip
AFTER_COLON = [index + 2 for index in range(len(TINY)) if TINY.startswith(": ", index)]


@pytest.mark.case(9, 10)
def test_any_bytes_in_params_are_accepted_or_get_one_sentence(tmp_path: Path, saw: Callable[[str], None]):
    """any bytes in params.yaml: cut, other encodings, YAML's aliases, tags and nesting, by hypothesis"""
    sentences: list[str] = []

    @seed(SEED)
    @settings(max_examples=MANY, **COMMON)
    @given(
        place=st.sampled_from(AFTER_COLON) | st.integers(0, len(TINY)),
        cut=st.integers(0, 12),
        put=st.sampled_from(ODD_YAML) | st.binary(max_size=12),
    )
    @example(place=0, cut=len("\nworkloads: [tiny]"), put=BOMB + b"\nworkloads: *x29")
    @example(place=0, cut=0, put=BOMB)
    def check(place: int, cut: int, put: bytes) -> None:
        content = TINY.encode()
        path = tmp_path / "params.yaml"
        path.write_bytes(content[:place] + put + content[place + cut :])
        parsed_or_refused(lambda: parse_params(read_yaml(path), path), "params.yaml", sentences)

    check()
    saw(typical(sentences))


# Raw tables. -------------------------------------------------------------------------------------------------------

SEQUENCES = replace(test_sequences.PARAMS, split=Split(0.6, 0.2, 0.2))
SERIES = replace(test_series.PARAMS, columns=test_series.TWO, interval="1h", input_steps=3, split=Split(0.6, 0.2, 0.2))
CELLS = st.sampled_from(
    [
        "", " ", "nan", "-inf", "1e400", "1e39", "0", "-0.0", "1_0", "٣", "x", '"', ",", "\n", "none", "val",
        "9223372036854775808", "2021-02-30", "20210927", "true", "\x00", "2021-09-27 14:45:00+01:00", "9999-12-31",
        "1,5", "a" * 5000, "\ufffd",
    ]
) | st.text(max_size=6) | st.floats().map(str) | st.integers().map(str)  # fmt: skip
TYPES = st.sampled_from(
    [
        pa.string(), pa.uint64(), pa.float16(), pa.bool_(), pa.date32(), pa.timestamp("ns", "Asia/Tokyo"),
        pa.duration("s"), pa.decimal128(38, 5), pa.list_(pa.int8()), pa.struct({"a": pa.int8()}), pa.binary(),
        pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.null(),
    ]
)  # fmt: skip


def table_of(kind: str) -> dict[str, list[Any]]:
    """The columns of a table that is well: 20 sequences of 3 to 4 steps, or 60 hours."""
    if kind == "series":
        times = [f"2021-09-{1 + hour // 24:02} {hour % 24:02}:00Z" for hour in range(60)]
        return {"time": times, "x": [hour % 7 + 1 for hour in range(60)], "y": [hour % 5 + 1 for hour in range(60)]}
    rows = [(sequence, step) for sequence in range(20) for step in range(3 + sequence % 2)]
    labels = {"events": lambda _, step: "hit" if step == 1 else "none", "classes": lambda number, _: f"c{number % 2}"}
    return {
        "sequence": [sequence for sequence, _ in rows],
        "step": [step for _, step in rows],
        "x": [sequence + step * 0.5 for sequence, step in rows],
        "y": [step - sequence for sequence, step in rows],
        "label": [labels[kind](*row) for row in rows],
    }


@st.composite
def tables(draw: Any) -> tuple[str, str, bytes]:
    """(kind, ending, bytes) of a table with other cells, rows, and types of columns, or with some other bytes."""
    kind, ending = draw(st.sampled_from(["classes", "events", "series"])), draw(st.sampled_from([".csv", ".parquet"]))
    columns = table_of(kind)
    for _ in range(draw(st.integers(1, 3))):
        name, row = draw(st.sampled_from([*columns])), draw(st.integers(0, len(columns["x"]) - 1))
        change = draw(st.sampled_from(["cell", "cell", "column", "missing", "type", "cut"]))
        if change == "missing":
            columns[name] = [*columns[name]]
            columns[name][row] = None
        elif change in ("cell", "column"):
            columns[name] = [*map(str, columns[name])] if ending == ".parquet" else [*columns[name]]
            columns[name][row : row + 1 if change == "cell" else None] = [draw(CELLS)] * (1 if change == "cell" else 99)
        elif change == "type":
            kind_of_cell, cells = draw(TYPES), columns[name]
            with suppress(pa.ArrowException, TypeError, OverflowError, ValueError):
                cells = [[cell] for cell in cells] if pa.types.is_list(kind_of_cell) else cells
                columns[name] = pa.array(cells).cast(kind_of_cell)
        else:
            columns = {name: cells[: row + 1] for name, cells in columns.items()}
        num_rows = min(map(len, columns.values()))
        columns = {name: cells[:num_rows] for name, cells in columns.items()}
    file = io.BytesIO()
    if ending == ".csv":
        lines = [",".join(map(str, row)) for row in ([*columns], *zip(*columns.values(), strict=True))]
        if draw(st.booleans()):  # a row twice, shorter, or with other cells
            row = draw(st.integers(0, len(lines) - 1))
            shorter, other = st.just(lines[row].rpartition(",")[0]), st.lists(CELLS, max_size=7).map(",".join)
            lines.insert(row, draw(st.just(lines[row]) | shorter | other))
        text = draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines)
        file.write(text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])), "replace"))
    else:
        try:
            pa.parquet.write_table(pa.table(columns), file)
        except pa.ArrowException:  # no such table can be
            reject()
    content = file.getvalue()
    if draw(st.booleans()):
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=8)) + content[place + draw(st.integers(0, 9)) :]
    return kind, ending, content


@pytest.mark.case(2, 3, 4, 5)
def test_any_table_gives_finite_arrays_or_one_sentence(tmp_path: Path, saw: Callable[[str], None]):
    """any cells, rows, types and bytes in a CSV or Parquet table, by hypothesis"""
    sentences: list[str] = []

    @seed(SEED)
    @settings(max_examples=2 * MANY, **COMMON)
    @given(
        tables(),
        st.booleans(),
        st.sampled_from(["refuse", "interpolate"]),
        st.sampled_from(["log-return", "difference"]),
    )
    def check(table: tuple[str, str, bytes], is_compressed: bool, missing: Any, transform: Any) -> None:
        kind, ending, content = table
        is_compressed &= ending == ".csv"
        path = tmp_path / f"table{ending}{'.gz' * is_compressed}"
        path.write_bytes(gzip.compress(content) if is_compressed else content)
        params: Any = SERIES if kind == "series" else SEQUENCES
        changed: dict[str, Any] = {"transform": transform} if kind == "series" else {}
        sentences.extend(refusal(tmp_path, replace(params, table=path.name, missing=missing, **changed), kind))

    check()
    saw(typical(sentences))


def refusal(folder: Path, params: Any, kind: str) -> list[str]:
    """The sentence that refuses the table, if one does; else its arrays are finite."""
    try:
        target = "class per step" if kind == "events" else "class"
        prepared = source_module(params.source).prepare(params, folder, target)
        summary = prepared.summary
        arrays = {name: prepared.arrays(name) for name in SPLITS}
        prepared.message.encode()
        json.dumps(summary, allow_nan=False)
    except (ValueError, OSError) as error:
        return [one_sentence(error)]
    assert sum(len(part["ids"]) for part in arrays.values()) == summary["num_sequences"]
    for part in arrays.values():
        assert len(part["values"]) == len(part["targets"]) == len(part["lengths"]) == len(part["ids"])
        assert np.isfinite(part["values"]).all() and np.isfinite(part["targets"]).all()
    return []
