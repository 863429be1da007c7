"""Components in a workload's directory: each mistake in params.yaml or in a signature gets one sentence with its line,
when params.yaml is read, which executes no code of the workload.

That `dvc repro` reads it before it removes an output: tests/test_parts.py.
"""

import re
from pathlib import Path

import pytest

from flows.plan import form_schema
from stages import hardware
from stages.hardware import check_network
from tandem.code_dependencies import check_imports
from tandem.files import ROOT
from tandem.params.loading import applicable, changed, load_params, parse_workload
from tandem.params.reading import read_yaml
from tandem.params.schema import Params
from tandem.parts import COMPONENT_KINDS
from tests.projects import MODEL, TINY
from tests.refusals import sentence

# Each file ends the process that imports it.
ENDS = "raise SystemExit('imported')\n\n\n"
FILES = {
    "net.py": """\
from torch import nn

from .helper import pooled


class Mean(nn.Module):
    def __init__(self, shape, channels: int, num_layers: int = 1, dropout: float = 0.1) -> None:
        super().__init__()

    @staticmethod
    def check(channels: int, num_layers: int) -> None:
        if channels < num_layers:
            raise ValueError(f"channels is {channels} and num_layers is {num_layers}")


VALUE = 3
""",
    "helper.py": "def pooled(states, mask):\n    return states.mean(dim=1)\n",
    "source.py": """\
import numpy as np


def read(folder, file: str = "a.csv", num_rows: int = 0):
    return np


class Read:
    pass
""",
    "task.py": """\
from tandem import tasks


class Task(tasks.Task):
    score_name = "closeness"

    def loss(self, outputs, targets, mask, label_smoothing):
        return outputs.mean()

    def score(self, predictions, targets, mask):
        return 1.0
""",
    "metrics.py": """\
def error_rate(predictions, targets, mask):
    return 0.5


def few(predictions, targets):
    return 0


def new_data(predictions, targets, mask, source):
    return 0
""",
    "others.py": "def error_rate(predictions, targets, mask):\n    return 0\n",
    "loop.py": """\
def train(run, model, train, val):
    pass


def takes_others(model, data, epochs=3):
    pass
""",
}
TABLE = TINY[TINY.index("    source: sequences") : TINY.index("    split: ")]
SOURCE = "    source: source.py:read\n    columns: {sequence: sequence, step: step, features: [u, v], label: label}\n"
LOOP = "    loop: loop.py:train\n"
OWN_MODEL = '{name: "net.py:Mean", channels: 8}'
PARAMS = TINY
for usual, own in {
    "task: classify": "task: task.py:Task",
    TABLE: SOURCE,
    "    missing: refuse\n    groups: none\n": "",
    MODEL: OWN_MODEL,
    "    epochs: 3\n": LOOP + "    epochs: 3\n",
    "label_smoothing: 0.1": "label_smoothing: 0.0",
    "{weights: last}": '{weights: last, metrics: ["metrics.py:error_rate"]}',
}.items():
    PARAMS = PARAMS.replace(usual, own)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a workload with a component of each kind, in a project of its own."""
    for module in ("files", "parts", "code_dependencies"):
        monkeypatch.setattr(f"tandem.{module}.ROOT", tmp_path)
    monkeypatch.setattr("tandem.params.loading.PARAMS", tmp_path / "params.yaml")
    (tmp_path / "tandem").symlink_to(ROOT / "tandem")
    (tmp_path / "params.yaml").write_text(PARAMS)
    folder = tmp_path / "workloads/tiny"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text + ENDS)
    return folder


def read(folder: Path) -> Params:
    """What the stage `hardware` does with params.yaml."""
    params = load_params(folder.parents[1] / "params.yaml")
    for name, block in params.blocks.items():
        check_network(name, block.train.model)
    return params


def change(folder: Path, *changes: tuple[str, str]) -> None:
    """Replace text that one of the files, or params.yaml, has once."""
    for old, new in changes:
        [path] = [path for path in (folder.parents[1] / "params.yaml", *folder.iterdir()) if old in path.read_text()]
        path.write_text(path.read_text().replace(old, new))


MISTAKES = [
    # The name of a file, a class or a function, of every kind.
    ('"net.py:Mean"', '"nets.py:Mean"', "there is no workloads/tiny/nets.py; did you mean 'net.py'?"),
    ('"net.py:Mean"', '"../net.py:Mean"', "must name a Python file in workloads/tiny/"),
    ('"net.py:Mean"', '"net.py:Maen"', "has no class or function 'Maen'; did you mean 'Mean'?"),
    ('"net.py:Mean"', "mean", "name is 'mean'; accepted: conv_gru, gru, hybrid"),
    ("task.py:Task", "clasify", "did you mean 'classify'? accepted: classify, detect, forecast, regress, or FILE"),
    ("loop.py:train", "train", "train.loop is 'train'; accepted: FILE.py:NAME in workloads/tiny/"),
    ("source.py:read", "source.py:Read", "workloads/tiny/source.py, line 8: Read is a class, not a function"),
    # The keys that a signature declares.
    (", channels: 8", "", "tiny.train.model lacks channels"),
    ("channels: 8", "chanels: 8", "chanels is not a known key; did you mean 'channels'?"),
    ("channels: 8", "channels: '8'", "channels is '8'; it must be a whole number"),
    ("channels: 8", "channels: 1, num_layers: 2", "tiny.train.model: channels is 1 and num_layers is 2"),
    # A signature that is no schema.
    ("channels: int, num_layers: int =", "channels, num_layers: int =", "line 7: Mean: channels has no annotation"),
    ("(self, shape, channels", "(self, channels", "write `shape`, which Tandem passes, first"),
    ("channels: int, num_layers", "channels: list, num_layers", "has the annotation 'list'; accepted: int"),
    ("dropout: float = 0.1)", "**rest: float)", "has `*args` or `**kwargs`; write out its parameters"),
    ("dropout: float = 0.1)", "dropout: float = VALUE)", "dropout has the default 'VALUE'; it must be a number"),
    ("def __init__", "def build", "needs an __init__"),
    ("class Mean(nn.Module):", "class Mean(nn.Module)", "workloads/tiny/net.py, line 6: expected ':'"),
    ("num_rows: int = 0", "split: int = 0", "has the parameter 'split', which is a key of preprocess"),
    ("num_rows: int = 0", "window: int = 0", "has the parameter 'window', which is a key of preprocess"),
    ("num_rows: int = 0", "offsets: int = 0", "has the parameter 'offsets', which is a key of preprocess"),
    (":train", ":takes_others", "has the parameters (model, data, epochs=3); accepted: def takes_others(run"),
    # A metric.
    (":error_rate", ":few", "(predictions, targets); accepted: def few(predictions, targets, mask), then predict and"),
    ('["', '["others.py:error_rate", "', "two metrics are called 'error_rate'; rename one"),
    # A task.
    ("class Task(tasks.Task):", "class Task:", "Task must be a class derived from tandem.tasks"),
    ("def loss", "def los", "Task has the method 'los'; did you mean 'loss'? rename it"),
    ("def score", "def measure", "Task has no method score"),
    ('"closeness"', "__name__", "Task lacks score_name; set it to a literal"),
    ('"closeness"', '"closeness"\n    paired = "correctt"', "paired is 'correctt'; did you mean 'correct'?"),
    ("label_smoothing: 0.0", "label_smoothing: 0.1", "label_smoothing is 0.1; it must be 0 for task.py:Task"),
    # What a loop leaves to its own code.
    ("grad_accum_steps: 1", "grad_accum_steps: 2", "train.grad_accum_steps is 2; it must be 1 with a loop"),
]


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES)
def test_a_mistake_gets_one_sentence_with_its_line(folder: Path, old: str, new: str, words: str):
    change(folder, (old, new))
    assert re.match(r"params\.yaml, line \d+: ", sentence(lambda: read(folder), words))


SEQ2SEQ = "{name: seq2seq, hidden_size: 8, num_layers: 1, dropout: 0.1}"
OF_A_TABLE = (
    (SOURCE, TABLE),
    ("velocity: true\n", "velocity: true\n    missing: refuse\n    groups: none\n"),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("[cpu]", "[2xcpu]")], "device '2xcpu' has several workers, and tiny.train.loop is 'loop.py:train'"),
        ([*OF_A_TABLE, (":error_rate", ":new_data")], "this workload has a table and no source of its own"),
        ([*OF_A_TABLE, ('"closeness"', '"closeness"\n    sources = ("series",)')], "sources for task.py:Task: series"),
        ([(OWN_MODEL, SEQ2SEQ)], "models for task.py:Task: conv_gru, gru, model_selection, rocket, transformer"),
    ],
)
def test_two_components_that_do_not_go_together_are_named(folder: Path, changes: list[tuple[str, str]], words: str):
    change(folder, *changes)
    sentence(lambda: read(folder), words, start="params.yaml")


def test_a_preset_leaves_out_what_a_loop_does_itself(folder: Path):
    preset = {"train.grad_accum_steps": 2, "train.precision": "bf16", "train.step": "graph"}
    block = read_yaml(folder.parents[1] / "params.yaml")["tiny"]
    train = parse_workload("tiny", changed("tiny", block, applicable(block, preset))).train
    assert (train.grad_accum_steps, train.precision, train.step) == (1, "bf16", "eager")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import not_there", "imports 'not_there', which is not installed; add it to requirements.own.txt"),
        ("from .helpr import pooled", "imports workloads.tiny.helpr, but there is no workloads/tiny/helpr.py"),
        ("from helper import pooled", "imports 'helper', which is not installed; write `from .helper import ...`"),
    ],
)
def test_an_import_of_what_is_not_there_gets_one_sentence(folder: Path, line: str, words: str):
    (folder / "net.py").write_text(f"{line}\n{FILES['net.py']}")
    sentence(lambda: check_imports(folder / "net.py"), f"workloads/tiny/net.py {words}")


def test_an_import_in_a_try_block_may_be_of_what_is_not_there(folder: Path):
    (folder / "net.py").write_text("try:\n    import not_there\nexcept ImportError:\n    pass\n" + FILES["net.py"])
    check_imports(folder / "net.py")


def test_a_block_may_name_a_component_of_each_kind_whose_keys_the_form_offers(folder: Path):
    block = read(folder).blocks["tiny"]
    assert (block.task, block.train.model.name, block.train.loop) == ("task.py:Task", "net.py:Mean", "loop.py:train")
    assert block.train.model.parameters == {"channels": 8, "num_layers": 1, "dropout": 0.1}
    assert (block.preprocess.source, block.preprocess.file) == ("source.py:read", "a.csv")
    assert block.evaluate.metrics == ("metrics.py:error_rate",)
    form = form_schema(read_yaml(folder.parents[1] / "params.yaml"))["properties"]["overrides"]["then"]["properties"]
    assert "tiny.preprocess.velocity" in form


def test_a_change_of_any_built_in_component_makes_params_yaml_validated_again():
    packages = {package for kind in COMPONENT_KINDS.values() for package in kind.packages}
    assert {f"tandem/{package}/*.py" for package in packages} <= {*hardware.INPUTS}
