"""One package knows the kinds of device: it is read without torch, nothing else compares kinds, and another kind is one
file.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.devices.names import kind_of
from tandem.files import ROOT
from tandem.machine.measure import Clock, measure, seconds_of
from tests.projects import EVALUATED, TINY, make_project, python, read_record, run, run_path, stages_at_once

# A kernel and a network ask what a tensor lies on, because libraries differ; the last one measures CUDA itself.
MAY_KNOW = ("tandem/models/kernels/", "tandem/models/layers.py", "tandem/fitted/rocket.py", "benchmarks/latencies.py")
WORDS = {"cpu", "cuda"}

OTHER = '''"""A processor with another name, whose driver measures its power."""

from typing import Any

from tandem.devices import cpu
from tandem.devices.nvml import ASKED, NOT_SAMPLED


class Meter:
    def read(self) -> dict[str, Any]:
        unknown = dict.fromkeys((name for name in ASKED if name not in NOT_SAMPLED), "not read")
        return {**unknown, "process_mib": 5.0}

    def ask(self, name: str) -> float | str:
        return "no counter"

    def conditions(self) -> dict[str, Any]:
        return {"temperature_celsius": 40}


class Kind(cpu.Kind):
    driver = Meter()
    unmeasured = "the other processor has no such memory"
    why_no_graph = "the other processor captures nothing"

    @classmethod
    def detect(cls) -> tuple[dict[str, Any] | None, str]:
        return {"name": "Other processor"}, ""

    def precisions(self) -> tuple[str, ...]:
        return ("fp32",)
'''


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has trained on a CPU and on another kind of device, which is one file more."""
    params = TINY.replace("devices: [cpu]", "devices: [cpu, other]").replace("step: eager", "step: auto")
    project = make_project(tmp_path_factory.mktemp("devices") / "project", params)
    (project / "tandem/devices/other.py").write_text(OTHER)
    before = [stage for stage in EVALUATED if "cpu" not in stage]
    of_device = [stage for stage in EVALUATED if "cpu" in stage]
    of_other = [stage.replace("cpu", "other") for stage in of_device]
    stages_at_once(project, *before, *of_device, *of_other, publishes=False)
    length = "speed.Length(turn_seconds=0.01, num_turns=4, warmup_seconds=0.1)"
    python(project, f"from stages import speed; speed.compare.__defaults__ = ({length},); speed.main('tiny')")
    stages_at_once(project, "compare", publishes=False)
    return project


def test_another_kind_of_device_is_one_short_file_and_trains_as_the_cpu(two: Path):
    assert len(OTHER.splitlines()) <= 60
    for name in ("last.safetensors", "best.safetensors", "history.csv", "predictions.csv"):
        of_cpu, of_other = (two / run_path(name, device=device) for device in ("cpu", "other"))
        assert of_cpu.read_bytes() == of_other.read_bytes(), name


def test_another_kind_of_device_is_measured_as_it_says(two: Path):
    timing = read_record(two, "timing.json", device="other")
    assert timing["hardware"]["kind"] == "other" and timing["hardware"]["name"] == "Other processor"
    assert timing["timing"]["epoch_seconds"] > 0 and timing["timing"]["process_mib"] == 5.0
    reasons = timing["timing"]["missing_reasons"]
    assert reasons["power_watts"] == "not read" and reasons["train_joules"] == "no counter"
    assert reasons["peak_allocated_mib"] == "the other processor has no such memory"
    assert timing["conditions"]["after"]["gpu"] == {"temperature_celsius": 40}
    assert "the other processor captures nothing" in json.dumps(timing)


def test_another_kind_of_device_is_compared_with_the_cpu(two: Path):
    speed = json.loads((two / "results/speed/tiny.json").read_text())
    assert speed["sides"] == ["cpu", "other"] and len(speed["pairs"]) == 1
    report = (two / "results/report.html").read_text()
    assert "Other processor" in report and "other" in speed["sentence"]


def test_names_and_identities_are_read_without_torch():
    code = "import sys, tandem.devices, tandem.devices.cuda; from tandem.devices.hardware import detect_hardware\n"
    code += "found = detect_hardware('auto'); print(found['kind'], 'torch' in sys.modules)"
    assert run(ROOT, sys.executable, "-c", code).stdout.split()[-1] == "False"


@pytest.mark.parametrize("folder", ["tandem", "stages", "flows", "benchmarks"])
def test_only_the_devices_compare_kinds_of_device(folder: str):
    places = []
    for path in (ROOT / folder).rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(("tandem/devices/", *MAY_KNOW)):
            places += [f"{name}:{node.lineno}" for node in ast.walk(ast.parse(path.read_bytes())) if knows_kinds(node)]
    assert not places


def knows_kinds(node: ast.AST) -> bool:
    """`device == "cuda"`, `kind in ("cpu", ...)`, `tensor.is_cuda`, `torch.cuda`."""
    if isinstance(node, ast.Compare):
        sides = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
        return any(isinstance(part, ast.Constant) and part.value in WORDS for part in sides)
    is_name = isinstance(node, ast.Attribute)
    return is_name and (node.attr == "is_cuda" or (node.attr == "cuda" and ast.unparse(node.value) == "torch"))


def test_every_timed_region_waits_for_the_device_before_both_readings(monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []
    device: Any = kind_of("cpu")()
    monkeypatch.setattr(device, "synchronize", lambda: events.append("synchronized"))
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: (events.append("read"), float(next(clock)))[1])
    with Clock(device):
        events.append("work")
    assert events == ["synchronized", "read", "work", "synchronized", "read"]
    for timed in (lambda: measure(device).__enter__(), lambda: seconds_of(lambda: None, device, 0.0)):
        events.clear()
        timed()
        assert events[:2] == ["synchronized", "read"]


def test_a_driver_whose_version_is_unknown_has_none_to_compare():
    """NVML is missing in some containers."""
    cuda = kind_of("cuda")
    assert "driver" not in cuda.versions({"driver": None})
    assert cuda.versions({"driver": "580.1"})["driver"] == "580.1"
