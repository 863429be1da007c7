"""Components in a workload's directory: what params.yaml accepts, and what depends on their files."""

import re
import shutil
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from tandem.files import ROOT
from tests.projects import (
    MODEL,
    RUN,
    TINY,
    commit,
    copy_of,
    make_project,
    run,
    run_path,
    stages_at_once,
    tandem,
    without_publisher,
)

NET = '''\
"""A network of a workload's own."""

from torch import Tensor, nn

from tandem.models import Shape

from .helper import pooled


class Mean(nn.Module):
    def __init__(self, shape: Shape, channels: int, num_layers: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(shape.num_features, channels), nn.GELU(), nn.Dropout(dropout)))
        self.head = nn.Linear(channels, shape.num_outputs)

    @staticmethod
    def check(channels: int, num_layers: int) -> None:
        if channels < num_layers:
            raise ValueError(f"channels is {channels} and num_layers is {num_layers}; channels must not be less")

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return self.head(pooled(self.layers(values), mask))


'''
HELPER = '''\
def pooled(states, mask):
    """(B, T, D), (B, T) -> (B, D)"""
    return (states * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
'''
OWN = TINY.replace(MODEL, '{name: "net.py:Mean", channels: 8}')


def test_the_walk_through_of_the_documentation(trained: Path, tmp_path: Path):
    """docs/extending.md: its network and its line in params.yaml, checked, trained, compared and verified."""
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    code, line = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "yaml"))
    assert code == (ROOT / "docs/examples/tcn/net.py").read_text(encoding="utf-8")
    project = without_publisher(copy_of(trained, tmp_path / "project"))
    (project / "params.yaml").write_text(TINY.replace(f"model: {MODEL}", line.strip()))
    shutil.copy(project / "params.yaml", tmp_path / "experiment.yaml")
    apply_overrides(tmp_path / "experiment.yaml", ["tiny.train.epochs=1"])  # as `dvc exp run -S` does
    assert "name: net.py:TCN" in (tmp_path / "experiment.yaml").read_text()
    assert YAML(typ="safe").load(tmp_path / "experiment.yaml")["tiny"]["train"]["model"]["name"] == "net.py:TCN"
    (project / "workloads/tiny/net.py").write_text(code)
    checked = tandem(project, "check", "tiny", "--devices", "cpu")
    assert "warn" not in checked.stdout, checked.stdout
    tandem(project, "repro")
    assert "tiny classify, net.py:TCN" in (project / "results/compare/compare.md").read_text()
    compared = tandem(project, "compare", str(trained / RUN), RUN)
    assert "McNemar" in compared.stdout, compared.stdout
    table, net = "workloads/tiny/data/table.csv", project / "workloads/tiny/net.py"
    net.write_text(code + "\n# a comment\n")
    assert "warning" not in tandem(project, "predict", "tiny", table).stdout
    net.write_text(code.replace("F.gelu", "F.relu"))
    predicted = tandem(project, "predict", "tiny", table).stdout
    assert "trained with other code: workloads/tiny/net.py changed since" in predicted, predicted
    net.write_text(code)
    commit(project)
    verified = tandem(project, "verify", "tiny@cpu")
    assert "bit-equal" in verified.stdout, verified.stdout


NOT_THERE = "workloads/tiny/net.py imports 'not_there', which is not installed; add it to requirements.own.txt"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("(self, values: Tensor, mask: Tensor)", "(self, values: Tensor)", "must take (values, mask)"),
        ("import Shape\n", "import Shap\n", "workloads/tiny/net.py, line 5: ImportError: cannot import name 'Shap'"),
        ("        return self.head", "        import not_there\n\n        return not_there.head", NOT_THERE),
        (
            "        return self.head",
            "        self.num = getattr(self, 'num', 0) + self.training\n        return self.num * self.head",
            "net.py:Mean keeps state besides its parameters and buffers: built again with these, an output differs by ",
        ),
        (
            "        return self.head",
            "        mask.clone().put_(mask.new_tensor([1], dtype=int), mask[0, :1])\n        return self.head",
            "net.py, line 22: put_ has no kernel on this device that gives the same bits again; use another operation, "
            "or set train.deterministic to false",
        ),
        (
            "        return self.head",
            "        raise RuntimeError('CUDA error: device-side assert triggered')\n        return self.head",
            "torch noticed it only at workloads/tiny/net.py, line 22; train with devices: [cpu], which names",
        ),
    ],
)
def test_a_mistake_in_the_code_of_a_network_gets_one_sentence(ready: Path, old: str, new: str, sentence: str):
    assert old in NET
    (ready / "params.yaml").write_text(OWN)
    (ready / "workloads/tiny/net.py").write_text(NET.replace(old, new))
    (ready / "workloads/tiny/helper.py").write_text(HELPER)
    done = stages_at_once(ready, "hardware", "train tiny cpu 0", check=False, publishes=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout and sentence in done.stdout, done.stdout


def test_a_mistake_in_a_component_costs_no_output(trained: Path, tmp_path: Path):
    """Of all that params.yaml or a signature may have: tests/params/test_own_components.py."""
    project = copy_of(trained, tmp_path / "project", OWN)
    folder = project / "workloads/tiny"
    for net, helper, sentence in (
        (NET.replace("channels: int,", "channels,"), HELPER, "Mean: channels has no annotation; write one: "),
        (NET, f"import not_there\n{HELPER}", "workloads/tiny/helper.py imports 'not_there', which is not installed"),
    ):
        (folder / "net.py").write_text(net)
        (folder / "helper.py").write_text(helper)
        done = tandem(project, "repro", check=False)
        assert done.returncode == 1 and sentence in done.stdout and "Traceback" not in done.stdout, done.stdout
        assert all((project / run_path(name)).exists() for name in ("last.safetensors", "score.json"))


@pytest.mark.long
def test_an_experiment_in_a_copy_names_the_files_that_git_does_not_track(tmp_path: Path):
    project = make_project(tmp_path / "project", OWN)
    experiment = ("dvc", "exp", "run", "--temp", "-n", "own", "evaluate@tiny-cpu")
    for name, content in (("net", NET), ("helper", HELPER)):
        (project / f"workloads/tiny/{name}.py").write_text(content)
    for name in ("net", "helper"):
        file = f"workloads/tiny/{name}.py"
        done = run(project, *experiment, check=False)
        assert done.returncode != 0 and "Traceback" not in done.stdout
        assert f"git does not track {file}, so the experiment lacks it; run `git add {file}`" in done.stdout
        run(project, "git", "add", file)
    assert "train@tiny-cpu" in run(project, *experiment).stdout
