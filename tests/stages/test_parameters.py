"""Parameters in force: what a stage depends on, and what is said of a training with other ones."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.projects import (
    MODEL,
    TINY,
    commit,
    copy_of,
    dvc,
    git,
    read_record,
    run_path,
    stages_at_once,
    without_publisher,
)

# `size` and `nfiles` are the keys that DVC leaves out of its run-cache key (treeverse/dvc#10296).
NET = """\
from torch import Tensor, nn

from tandem.models import Shape


class Net(nn.Module):
    def __init__(self, shape: Shape, size: int = 4) -> None:
        super().__init__()
        self.gru = nn.GRU(shape.num_features, size, batch_first=True)
        self.head = nn.Linear(size, shape.num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.gru(values)[0][:, -1])
"""
SIZED = TINY.replace(MODEL, "{name: 'net.py:Net', size: 4}")
# A second workload, `other`, with the same table.
BOTH = TINY.replace("[tiny]", "[tiny, other]") + TINY[TINY.index("tiny:") :].replace("tiny:", "other:", 1)
COMPUTED = ("preprocess", "baseline", "preload", "train", "replicate", "evaluate", "speed")


def edit(project: Path, name: str, old: str, new: str) -> None:
    path = project / name
    assert old in (text := path.read_text())
    path.write_text(text.replace(old, new, 1))


def stale(project: Path) -> set[str]:
    """The stages that DVC would run."""
    dvc(project, "repro", "-q", "-s", "stages/dvc.yaml:hardware")
    return {name.partition("@")[0] for name in json.loads(dvc(project, "status", "--json").stdout)} & {*COMPUTED}


def test_a_parameter_that_dvc_leaves_out_of_its_key_is_trained_again(ready: Path):
    project = without_publisher(ready)
    (project / "workloads/tiny/net.py").write_text(NET)
    (project / "params.yaml").write_text(SIZED)

    def width() -> tuple[int, ...]:
        dvc(project, "repro", "train@tiny-cpu")
        with safe_open(project / run_path("last.safetensors"), "pt") as weights:
            return tuple(weights.get_tensor("head.weight").shape)

    assert width() == (3, 4)
    edit(project, "params.yaml", "size: 4", "size: 6")
    assert width() == (3, 6)


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [
        ("[x, y]", "[y, x]", COMPUTED),  # the order of a list
        ("seed: 0", "seed: -0", ()),  # YAML's -0 is the whole number 0
        ("weight_decay: 0.01", "weight_decay: 1e-2", ()),
        ("max_grad_norm: 1.0", "max_grad_norm: 1", ()),
        ("    deterministic: true\n", "    deterministic: true\n    scaling: strong\n", ()),  # its default
        ("{weights: last}", "{weights: best}", ("evaluate",)),
        ("{data_location: auto}", "{data_location: host}", ("preload", "train", "replicate", "evaluate", "speed")),
    ],
)
def test_each_stage_depends_on_its_values_in_one_form(trained: Path, tmp_path: Path, old: str, new: str, runs: tuple):
    project = copy_of(trained, tmp_path / "project")
    before = contents(project)
    edit(project, "params.yaml", old, new)
    stages_at_once(project, "hardware")
    assert {name for name, content in contents(project).items() if before[name] != content} <= {*runs}
    assert (contents(project) == before) == (not runs)


def contents(project: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (project / "results/hardware/params/tiny").glob("*.json")}


def test_a_changed_default_makes_the_stages_stale_that_use_it(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    assert not stale(project)
    edit(project, "tandem/params/schema.py", '"weak-sqrt"] = "strong"', '"weak-sqrt"] = "weak-sqrt"')
    assert stale(project) == {"train", "replicate", "speed"}


def test_a_training_with_other_parameters_is_neither_evaluated_nor_compared(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project", BOTH)
    (project / "workloads/other/data").mkdir(parents=True)
    (project / "workloads/other/data/table.csv").write_bytes((project / "workloads/tiny/data/table.csv").read_bytes())
    commands = (
        "hardware",
        "preprocess other",
        "baseline other",
        "preload other cpu",
        "train other cpu 0",
        "evaluate other cpu",
        "compare",
    )
    stages_at_once(project, *commands, publishes=False)
    git(project, "add", "-f", "results/scores.json", "results/timings.json")
    commit(project)

    def scores() -> set[str]:
        return set(json.loads((project / "results/scores.json").read_text()))

    assert scores() == {"tiny", "other"}
    edit(project, "params.yaml", "epochs: 3", "epochs: 4")  # of `tiny`, which is not trained again
    output = stages_at_once(project, "hardware", "compare").stdout
    assert scores() == {"other"} == set(json.loads((project / "results/timings.json").read_text()))
    sentence = "it has other parameters (train.epochs 3, not 4); `tandem repro tiny` runs it with the current ones"
    (outdated,) = json.loads((project / "results/compare/compare.json").read_text())["outdated"]
    assert outdated["workload"] == "tiny" and outdated["reason"] == sentence
    for text in (
        output,
        *((project / name).read_text() for name in ("results/report.html", "results/compare/compare.md")),
    ):
        assert "tiny" in text and sentence in text.replace("&#39;", "'"), text
    assert read_record(project, "train.json")["block"]["train"]["epochs"] == 3
    refused = stages_at_once(project, "evaluate tiny cpu", check=False, publishes=False)
    assert refused.returncode == 1
    assert (
        "trained with other parameters (train.epochs 3, not 4); run `dvc repro --force train@tiny-cpu`"
        in refused.stdout
    )


def test_a_variable_that_selects_torchs_instructions_is_hardware(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    devices = project / "results/hardware/devices/cpu.json"
    before = json.loads(devices.read_text())
    stages_at_once(project, "hardware", ATEN_CPU_CAPABILITY="default")
    assert json.loads(devices.read_text()) == {**before, "variables": {"ATEN_CPU_CAPABILITY": "default"}}
