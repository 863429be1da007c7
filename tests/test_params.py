"""params.yaml: what is accepted, and the one sentence that each mistake gets."""

import pytest

from stages.params import Params, flatten, load_params, parse_params
from tests.conftest import TINY


def parsed(text: str) -> Params:
    from ruamel.yaml import YAML

    return parse_params(YAML(typ="safe").load(text))


def test_the_committed_file_is_valid():
    params = load_params()
    assert set(params.workloads) == {"sign", "pen"}


def test_scientific_notation_is_a_number():
    assert parsed(TINY).blocks["tiny"].train.learning_rate == 0.01


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("epochs: 3", "epohcs: 3", ["tiny.train.epohcs", "did you mean 'epochs'"]),
        ("epochs: 3", "epochs: '3'", ["tiny.train.epochs", "'3'", "must be int", "without quotes"]),
        ("epochs: 3", "epochs: true", ["tiny.train.epochs", "True", "must be int"]),
        ("epochs: 3", "epochs: 0", ["tiny.train.epochs", "at least 1"]),
        ("learning_rate: 1e-2", "learning_rate: 0", ["tiny.train.learning_rate", "above 0"]),
        ("batch_size: 16", "batch_size: -1", ["tiny.train.batch_size is -1", "at least 1"]),
        ("    clip_norm: 1.0\n", "", ["tiny.train lacks clip_norm"]),
        ("schedule: one-cycle", "schedule: cosin", ["'cosin'", "did you mean 'cosine'"]),
        ("name: gru", "name: gruu", ["'gruu'", "did you mean 'gru'"]),
        ("train: 0.6", "train: 0.7", ["adds up to 1.1", "0.7 + 0.2 + 0.2"]),
        ("warmup_epochs: 1", "warmup_epochs: 3", ["warmup_epochs is 3", "epochs is 3"]),
        ("devices: [cpu]", "devices: [gpu]", ["devices[0]", "'gpu'", "accepted: auto, cpu, cuda"]),
        ("devices: [cpu]", "devices: []", ["devices", "at least one"]),
        ("workloads: [tiny]", "workloads: [tini]", ["'tini'", "did you mean 'tiny'"]),
        ("workloads: [tiny]", "workloads: ['../x']", ["'../x'", "not a usable name"]),
        ("task: classify", "task: clasify", ["tiny.task", "did you mean 'classify'"]),
        ("preload: {residency: auto}", "preload: auto", ["tiny.preload is 'auto'", "mapping of residency"]),
        (
            "{name: gru, hidden_size: 8, num_layers: 1, bidirectional: true, dropout: 0.1}",
            "{name: transformer, hidden_size: 9, num_layers: 1, num_heads: 2, feedforward_size: 8, dropout: 0.0}",
            ["hidden_size is 9", "num_heads is 2", "multiple"],
        ),
    ],
)
def test_a_mistake_gets_one_sentence(old: str, new: str, words: list[str]):
    assert old in TINY
    with pytest.raises(ValueError) as caught:
        parsed(TINY.replace(old, new))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_flatten_uses_dotted_names():
    flat = flatten(parsed(TINY).blocks["tiny"])
    assert flat["train.model.hidden_size"] == 8
    assert flat["preprocess.columns.features"] == "x,y"
