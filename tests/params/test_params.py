"""params.yaml: what is accepted, and the one sentence that each mistake gets."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tandem.files import ROOT
from tandem.params.loading import (
    block_in_force,
    changed,
    choose_preset,
    load_params,
    overrides_of,
    parse_params,
    parse_workload,
)
from tandem.params.parsing import literal
from tandem.params.reading import read_yaml
from tandem.params.schema import Evaluate, Params, Preload, SequenceTable, Series, Train
from tests.projects import MODEL, TINY
from tests.refusals import sentence


def parsed(text: str) -> Params:
    return parse_params(YAML(typ="safe").load(text))


# Of the project, and not of its user, who may have added others.
WORKLOADS = ("sign", "pen", "price", "rally")
SEQ2SEQ = "{name: seq2seq, hidden_size: 8, num_layers: 1, dropout: 0.1}"
EVEN_KERNEL = "{name: conv_gru, hidden_size: 8, num_layers: 1, num_convolutions: 1, kernel_size: 4, dropout: 0.1}"


# A change to TINY, and words of the sentence about it, for each fault of tests/catalogue.py.
MISTAKES: dict[int, list[tuple[str, str, list[str]]]] = {
    9: [
        ("epochs: 3", "epohcs: 3", ["tiny.train.epohcs", "did you mean 'epochs'"]),
        ("    warmup_epochs: 1\n", "", ["tiny.train lacks warmup_epochs; add `warmup_epochs: 1` to tiny.train"]),
        ("  evaluate: {weights: last}\n", "", ["tiny lacks evaluate; add `evaluate: {weights: last}` to tiny"]),
        ("grad_accum_steps: 1", "grad_accum: 1", ["grad_accum is not a known key; did you mean 'grad_accum_steps'?"]),
        ("presets: {}", "presets: {big: {all: {train.accumulation: 2}}}", ["tiny has no 'train.accumulation'"]),
        ("    epochs: 3", "    seed: 0\n    epochs: 3", ["tiny.train.seed is not a known key"]),
    ],
    10: [
        ("epochs: 3", "epochs: '3'", ["tiny.train.epochs is '3'", "must be a whole number"]),
        ("epochs: 3", "epochs: 0", ["tiny.train.epochs", "at least 1"]),
        ("learning_rate: 1e-2", "learning_rate: -1", ["tiny.train.learning_rate is -1", "above 0"]),
        ("learning_rate: 1e-2", "learning_rate: .nan", ["tiny.train.learning_rate is nan", "must be a finite number"]),
        ("features: [x, y]", "features: []", ["tiny.preprocess.columns.features is []", "at least one column"]),
        ("seeds: [0]", f"seeds: [{2**63}]", ["seeds[0]", f"at most {2**63 - 1}"]),
        ("seeds: [0]", "seeds: [3, 3]", ["seeds names an entry twice: 3, 3"]),
        ("devices: [cpu]", "devices: [gpu]", ["devices[0] is 'gpu'; did you mean 'cuda'? accepted: auto, cpu, cuda"]),
        ("[cpu]", "[2xauto]", ["'2xauto'; did you mean 'auto'? accepted", "2xcpu to 4096xcpu or 2xcuda"]),
        ("[cpu]", "[1xcpu]", ["'1xcpu'; did you mean 'cpu'? accepted", "2xcpu to 4096xcpu"]),
        ("[cpu]", "[cpux2]", ["'cpux2'; did you mean 'cpu'? accepted: auto, cpu, cuda, or several workers"]),
        ("workloads: [tiny]", "workloads: [tini]", ["'tini'", "did you mean 'tiny'"]),
        ("threads: 1", "threads: two", ["tiny.train.threads is 'two'", "at least 1 and at most 512, or auto"]),
        ("none\npresets: {}", "smal\npresets: {small: {}}", ["preset is 'smal'", "did you mean 'small'? accepted"]),
        ("presets: {}", "presets: {auto: {}}", ["presets.auto", "taken"]),
        ("presets: {}", "presets: {big: {tini: {train.epochs: 9}}}", ["presets.big", "'tini'", "did you mean 'tiny'"]),
        (MODEL, EVEN_KERNEL, ["kernel_size is 4", "odd"]),
    ],
    11: [
        ("features: [x, y]", "features: [x, label]", ["features names 'label', which is the label", "take it out"]),
        ("groups: none", "groups: x", ["preprocess.groups is 'x', which is among the features"]),
        ("train: 0.6", "train: 0.7", ["adds up to 1.1", "0.7 + 0.2 + 0.2"]),
        ("warmup_epochs: 1", "warmup_epochs: 3", ["warmup_epochs is 3", "epochs is 3"]),
        ("task: classify", "task: forecast", ["'forecast'", "'sequences'", "sources for forecast: series"]),
        ("grad_accum_steps: 1", "grad_accum_steps: 17", ["grad_accum_steps is 17", "batch_size is 16"]),
        (MODEL, SEQ2SEQ, ["'classify'", "models for classify: conv_gru, gru", "tasks for seq2seq: forecast"]),
        (MODEL, "{name: rocket, num_kernels: 84, num_groups: 2}", ["tiny.train.epochs is", "it must be 1 for rocket"]),
    ],
    13: [
        ("table: table.csv", "table: ../pen/table.csv.gz", ["table is '../pen/table.csv.gz'", "give its name alone"]),
        ("workloads: [tiny]", "workloads: ['../x']", ["'../x'", "not a usable name"]),
    ],
}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [pytest.param(*row, marks=pytest.mark.case(case)) for case, rows in MISTAKES.items() for row in rows],
)
def test_a_mistake_gets_one_sentence(old: str, new: str, words: list[str], saw: Callable[[str], None]):
    """a mistake in params.yaml"""
    assert old in TINY
    saw(message := sentence(lambda: parsed(TINY.replace(old, new)), *words, start="params.yaml: "))
    assert message.count("params.yaml: ") == 1


def keys_of(block: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in block.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in keys_of(value))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_value_is_converted_from_another_type(workload: str):
    block = read_yaml(ROOT / "params.yaml")[workload]
    for *parents, last in keys_of(block):
        value = block
        for key in (*parents, last):
            value = value[key]
        wrong_values: list[Any] = [0, "true"]
        if last == "threads":
            wrong_values = [True, "1", 1.0]
        elif type(value) in (int, float):
            wrong_values = [True, str(value)]
        elif isinstance(value, str):
            wrong_values = [b"x", 1]
        for wrong_value in wrong_values:
            changed = copy.deepcopy(block)
            section = changed
            for key in parents:
                section = section[key]
            section[last] = wrong_value
            with pytest.raises(ValueError):
                parse_workload(workload, changed)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("warmup_epochs: 1", "warmup_epohcs: 1", "    warmup_epohcs", "tiny.train.warmup_epohcs is not a known key"),
        ("    batch_size: 16\n", "", "  train:", "tiny.train lacks batch_size"),
        ("seeds: [0]", "seeds:\n- 0\n- x", "- x", "seeds[1] is 'x'"),
        ("presets: {}", "presets:\n  big: {all: {train.epochs: 0}}", "  big:", "presets.big: tiny.train.epochs is 0"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, place: str, words: str):
    path = tmp_path / "params.yaml"
    path.write_text(text := TINY.replace(old, new))
    line = text[: text.index(f"\n{place}") + 1].count("\n") + 1
    with pytest.raises(ValueError, match=re.escape(f"params.yaml, line {line}: {words}")):
        load_params(path)


def keys_that_a_suggestion_adds(workload: str, block: dict[str, Any]) -> set[str]:
    """The keys whose absence is answered with a line. With this line the block must be valid."""
    suggested = set()
    for *parents, key in keys_of(block):
        changed = copy.deepcopy(block)
        section = changed
        for parent in parents:
            section = section[parent]
        del section[key]
        try:
            parse_workload(workload, changed)
        except ValueError as error:
            place = ".".join([workload, *parents])
            if line := re.fullmatch(rf".* lacks {key}; add `(.*)` to {place}", str(error)):
                section |= YAML(typ="safe").load(line[1])
                parse_workload(workload, changed)
                suggested.add(key)
    return suggested


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_block_with_the_suggested_line_for_a_missing_key_is_valid(workload: str):
    suggested = keys_that_a_suggestion_adds(workload, read_yaml(ROOT / "params.yaml")[workload])
    assert {"preload", "data_location", "warmup_epochs", "evaluate"} <= suggested


@pytest.mark.parametrize(
    "model",
    ["{name: rocket, num_kernels: 84, num_groups: 2}", "{name: model_selection}"],
    ids=["rocket", "model_selection"],
)
def test_the_suggested_line_is_valid_for_a_network_that_is_fitted_in_closed_form(model: str):
    block = YAML(typ="safe").load(TINY.replace(MODEL, model))["tiny"]
    block["train"] |= {"epochs": 1, "warmup_epochs": 0, "label_smoothing": 0}
    block["train"]["augment"] |= {"mix": 0, "shift": 0, "warp": 0}
    assert "warmup_epochs" in keys_that_a_suggestion_adds("tiny", block)


def test_a_key_that_is_left_out_has_its_default_in_the_record_and_for_a_preset(tmp_path: Path):
    """What a training records, compares and depends on does not tell whether the key was written."""
    left_out = ["seed: 0", "missing: refuse", "groups: none", "grad_accum_steps: 1", "precision: fp32",
                "weight_decay: 0.01", "schedule: one-cycle", "max_grad_norm: 1.0", "deterministic: true"]  # fmt: skip
    short = TINY
    for line in left_out:
        assert f"    {line}\n" in short
        short = short.replace(f"    {line}\n", "")
    assert literal(parsed(short).blocks["tiny"]) == literal(parsed(TINY).blocks["tiny"])
    augment = "    augment: {coupled_features: 2, mix: 0.1, shift: 0.0, warp: 0.1}\n"
    path, preset = tmp_path / "params.yaml", "{big: {all: {train.schedule: cosine, train.augment.shift: 0.2}}}"
    path.write_text(short.replace(augment, "").replace("presets: {}", f"presets: {preset}"))
    block = block_in_force(read_yaml(path), "tiny", "big")
    train = parse_workload("tiny", block).train
    assert (train.schedule, train.augment.shift, train.augment.mix) == ("cosine", 0.2, 0.0)
    path.write_text(short.replace("presets: {}", "presets: {big: {all: {train.schedul: cosine}}}"))
    with pytest.raises(ValueError, match="presets.big: tiny has no 'train.schedul'"):
        load_params(path)


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2"])
def test_invalid_yaml_is_named_with_its_line(tmp_path: Path, text: str):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^params.yaml, line \d+, column \d+: not valid YAML: [^\n]*; correct it"):
        read_yaml(path)


def test_a_setting_that_contradicts_the_task_is_refused():
    raw = read_yaml(ROOT / "params.yaml")
    for workload, override, words in (
        ("rally", {"train.augment.warp": 0.1}, "augment.warp is 0.1; it must be 0 for detect"),
        ("price", {"train.augment.shift": 0.1}, "augment.shift is 0.1; it must be 0 for forecast"),
        ("pen", {"preprocess.missing": "mask"}, "coupled_features is 2; it must be 1 because preprocess adds"),
        ("pen", {"preprocess.columns.features": ["x", "y", "z"]}, "coupled_features is 2; it must divide 3"),
        ("price", {"train.label_smoothing": 0.1}, "label_smoothing is 0.1; it must be 0 for forecast"),
        ("price", {"preprocess.interval": "-5min"}, "interval is '-5min'; accepted: a whole number from 1 on"),
        ("price", {"preprocess.columns.features": ["Close"]}, "'Close', which is the target"),
        ("price", {"preprocess.split": {"train": 7, "val": 1, "test": 2}}, "shares of its time"),
        ("rally", {"preprocess.missed": 0.95}, "preprocess.missed is 0.95; it must be a number of at least 0"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_workload(workload, changed(workload, raw[workload], override))


def test_a_workloads_own_preset_wins_over_all():
    params = parsed(
        TINY.replace(
            "presets: {}", "presets: {big: {all: {train.epochs: 9, train.max_grad_norm: 4}, tiny: {train.epochs: 5}}}"
        )
    )
    assert overrides_of(params.presets, "big", "tiny") == {"train.epochs": 5, "train.max_grad_norm": 4}
    assert overrides_of(params.presets, "none", "tiny") == {}
    assert params.blocks["tiny"].train.epochs == 3  # as written; what is in force, load_workload says


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"kind": "cpu"}, "cpu"),
        ({"kind": "cuda", "memory_mib": 6144}, "small-gpu"),
        ({"kind": "cuda", "memory_mib": 7940}, "gpu"),
        ({"kind": "cuda", "memory_mib": 16384}, "gpu"),
        ({"kind": "cuda", "memory_mib": 24564}, "large-gpu"),
    ],
)
def test_auto_picks_the_preset_by_memory(identity, expected):
    presets = load_params().presets
    assert choose_preset("auto", presets, identity) == expected
    assert choose_preset("auto", {}, identity) == "none"
    assert choose_preset("gpu", presets, identity) == "gpu"


def test_the_page_of_keys_has_every_key_with_its_default():
    sections = {"preprocess: many sequences": SequenceTable, "preprocess: one long series": Series}
    sections |= {"preload": Preload, "train": Train, "evaluate": Evaluate}
    page = (ROOT / "docs/params.md").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert parts.keys() == sections.keys()
    for title, section in sections.items():
        rows = [line.split("|")[1:3] for line in parts[title].splitlines() if re.match(r"\| (?!key)\w", line)]
        stated = {name: default.strip() for names, default in rows for name in names.strip().split(", ")}
        values = {key.name: "" if key.default in (MISSING, None) else literal(key.default) for key in fields(section)}
        written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        assert stated == (written | {"augment": "all 0"} if section is Train else written)
