"""The stages on a GPU, as `dvc repro` starts them: on the CPU and the GPU of one machine, killed, interrupted, beside
another process, with an NVML that tells little, and with GPUs that are hidden, chosen or gone.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tandem.files import sha256_file
from tandem.training.execution import EAGERLY, STREAMING
from tests.projects import (
    TINY,
    copy_of,
    held,
    make_project,
    manifest_of,
    read_record,
    run,
    stage,
    stages_at_once,
    start,
    start_training,
    unpublished,
)

pytestmark = pytest.mark.gpu

# Captured where it can be, as in params.yaml.
BOTH = TINY.replace("devices: [cpu]", "devices: [cpu, cuda]").replace("step: eager", "step: auto")
BOTH = BOTH.replace("epochs: 3", "epochs: 4")
PROBED = BOTH.replace("probe: false", "probe: true")
PREPARED = ("hardware", "preprocess tiny", "baseline tiny", "preload tiny cpu", "preload tiny cuda")
# Whether this process has a context on a GPU, which NVML would list it for: the driver knows, torch only of its own.
HAS_CONTEXT = """
import ctypes
def has_context():
    driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)
"""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is ready to train on both devices."""
    project = make_project(tmp_path_factory.mktemp("both") / "project", BOTH)
    stages_at_once(project, *PREPARED)
    return project


@pytest.fixture(scope="module")
def compared(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after all stages, its trainings probed first, which must not change a bit of them."""
    project = copy_of(ready, tmp_path_factory.mktemp("compared") / "project", PROBED)
    stages = [words for device in ("cpu", "cuda") for words in (f"train tiny {device} 0", f"evaluate tiny {device}")]
    for words in (*stages, "speed tiny", "compare"):
        stage(project, *words.split())
    return project


@pytest.fixture
def project(ready: Path, tmp_path: Path) -> Path:
    return copy_of(ready, tmp_path / "project", BOTH)


def weights(project: Path, device: str = "cuda") -> dict[str, str]:
    folder = project / "results/runs/tiny" / device / "train/result/0"
    return {name: sha256_file(folder / name) for name in ("last.safetensors", "best.safetensors", "history.csv")}


def test_the_stages_of_the_cpu_never_start_cuda(project: Path):
    """Also where GPUs are visible: a context takes hundreds of MiB, and makes a process one that uses the GPU."""
    code = f"""{HAS_CONTEXT}
import sys
from tandem.stage import main
for stage in ("preload tiny cpu", "train tiny cpu 0", "evaluate tiny cpu"):
    assert main(stage.split()) == 0 and not has_context(), stage
from stages.speed import Length, TimedSide, TimedTraining
training = TimedTraining("tiny", TimedSide("cpu", "cpu", {{"threads": "auto"}}), 0, Length(0.01, 2, 1.0, 0.1))
training.open({{}}), training.turn(), training.settings()
assert not has_context(), "speed"
import torch
assert not torch.cuda.is_initialized()
torch.zeros(1, device="cuda")
assert has_context(), "this test sees no context"
"""
    run(project, sys.executable, "-c", code)


def test_the_gpu_is_compared_with_the_cpu_of_its_machine(compared: Path):
    record = json.loads((compared / "results/speed/tiny.json").read_text())
    assert record["sides"] == ["cpu", "cuda"] and record["speed_up"]["num_pairs"] == 1, record
    assert [pair["about"]["cuda"]["other_processes"] for pair in record["pairs"]] == [0]
    text = (compared / "results/compare/compare.md").read_text()
    assert re.search("(cuda|cpu) [0-9.]+ times as fast as", text) and "other processes on its GPU" not in text
    for device in ("cpu", "cuda"):
        assert read_record(compared, "score.json", device=device)["metrics"]["accuracy"] > 0.5


def test_a_training_on_a_gpu_is_captured_and_its_record_says_where_it_computed(compared: Path):
    manifest = manifest_of(compared, device="cuda")
    assert manifest["realized"]["step"] == "graph"
    lines = read_record(compared, "timing.json", device="cuda")["summary_lines"]
    assert "on cuda in all 4 epochs" in lines["device"] and "step" not in lines
    assert manifest["kernels"] == "cuDNN's GRU, torch's dropout" and manifest["environment"]["versions"]["cudnn"]
    timings = manifest["timing"]
    assert timings["peak_allocated_mib"] > 0 and timings["peak_reserved_mib"] >= timings["peak_allocated_mib"]
    for name in ("process_mib", "device_mib", "gpu_busy_share", "power_watts", "epoch_joules", "train_joules"):
        assert timings[name] is None or timings[name] > 0, name
        assert (timings[name] is None) == (name in timings["missing_reasons"]), name


def test_a_run_on_a_gpu_is_made_again_to_the_bit_and_on_the_cpu_within_what_seeds_do(compared: Path):
    verify = (sys.executable, "-m", "tandem.cli", "verify", str(compared / "results/runs/tiny/cuda"))
    assert "bit-equal\n" in run(compared, *verify).stdout
    rerun = run(compared, *verify, "--device", "cpu", check=False)
    assert "Traceback" not in rerun.stdout
    # Dropout draws from a generator of the device's own, so that scores decide; a test split of 12 may be too small.
    assert any(f": {verdict}" in rerun.stdout for verdict in ("statistically compatible", "inconclusive")), rerun.stdout
    assert rerun.returncode in (0, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_is_ended_goes_on_to_the_same_bits(
    number: signal.Signals, project: Path, compared: Path, tmp_path: Path
):
    with start_training(project, "cuda", **held(tmp_path / "held", epoch=2)) as training:
        assert training.stdout
        next(line for line in training.stdout if line.startswith("epoch 2/"))
        training.send_signal(number)
        if number != signal.SIGKILL:  # another thread may get the signal, and the main one hears of it later
            next(line for line in training.stdout if line.startswith("stopping after this epoch"))
        (tmp_path / "held/go").touch()
        output = training.stdout.read()
    assert training.returncode != 0 and "Traceback" not in output, output
    assert "resuming from" in stage(project, "train", "tiny", "cuda", "0").stdout
    assert weights(project) == weights(compared)
    assert manifest_of(project, device="cuda")["realized"]["step"] == "graph"


def test_a_gpu_that_another_process_uses_is_named_and_no_comparison_takes_the_run(project: Path):
    code = "import sys, torch; torch.zeros(1, device='cuda'); print('there', flush=True); sys.stdin.read()"
    process = start(project, sys.executable, "-c", code)
    try:
        assert process.stdout and process.stdout.readline() == "there\n"
        output = stage(project, "train", "tiny", "cuda", "0").stdout
        conditions = manifest_of(project, device="cuda")["conditions"]
        if "other_processes" not in conditions["before"]["gpu"]:
            pytest.skip("NVML lists no process here (some containers)")
        assert "other processes on its GPU (1 before, 1 during the training, 1 after)" in output
        speed = stage(project, "speed", "tiny").stdout
        assert "other processes used the GPU of cuda at the end of the measurement" in speed
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_a_training_in_another_precision_says_so_and_how_its_steps_were_taken(precision: str, project: Path):
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("precision: fp32", f"precision: {precision}"))
    output = stages_at_once(project, "train tiny cuda 0", "evaluate tiny cuda").stdout
    manifest = manifest_of(project, device="cuda")
    losses = [row["train_loss"] for row in manifest["epochs"]]
    assert losses[-1] < losses[0]
    capability = manifest["hardware"]["capability"]
    expected = "fp32" if precision == "tf32" and int(capability.split(".")[0]) < 8 else precision
    assert manifest["realized"]["precision"] == expected
    assert manifest["realized"]["step"] == "graph"
    has_bf16 = int(capability.split(".")[0]) >= 8
    assert ("torch emulates it slowly" in output) == (precision == "bf16" and not has_bf16)
    if precision == "bf16":  # cuDNN's recurrent layers do not compute in it
        assert f"cuDNN's GRU in {'tf32' if has_bf16 else 'fp32'}" in manifest["kernels"]


def test_streamed_data_is_trained_on_with_eager_steps_and_the_reason_is_said(project: Path):
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("data_location: auto", "data_location: host"))
    output = stages_at_once(project, "preload tiny cuda", "train tiny cuda 0").stdout
    timing = read_record(project, "timing.json", device="cuda")
    assert timing["placement"]["data_location"] == "host"
    assert f"{EAGERLY}: {STREAMING}" == timing["summary_lines"]["step"] and timing["summary_lines"]["step"] in output


NVML = {
    # Containers and WSL: another numbering of processes, or none; no memory for each.
    "nvmlDeviceGetComputeRunningProcesses": ("lambda *_: []", "process_mib", "other_processes"),
    # A part of a card (MIG) has no utilization, and no power or energy of its own.
    "nvmlDeviceGetUtilizationRates": ("refuse", "gpu_busy_share"),
    "nvmlDeviceGetPowerUsage": ("refuse", "power_watts"),
    "nvmlDeviceGetTotalEnergyConsumption": ("refuse", "epoch_joules", "train_joules"),
}


@pytest.mark.parametrize("names", [list(NVML)[:1], list(NVML)[1:]], ids=["container", "mig"])
def test_what_nvml_does_not_tell_is_absent_with_its_reason(names: list[str], project: Path, tmp_path: Path):
    (tmp_path / "nvml").mkdir()
    lines = ["import pynvml", "def refuse(*_): raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)"]
    lines += [f"pynvml.{name} = {NVML[name][0]}" for name in names]
    (tmp_path / "nvml/sitecustomize.py").write_text("\n".join(lines))
    run(project, sys.executable, "-m", "tandem.stage", "train", "tiny", "cuda", "0", PYTHONPATH=str(tmp_path / "nvml"))
    timings = manifest_of(project, device="cuda")["timing"]
    reasons = timings["missing_reasons"]
    for name in names:
        for quantity in NVML[name][1:]:
            assert timings[quantity] is None, quantity
            assert "NVML" in reasons[quantity], reasons
    assert timings["peak_allocated_mib"] > 0 and timings["device_mib"] > 0


def uuids() -> list[str]:
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(torch.cuda.device_count())]


@pytest.mark.parametrize("by", ["index", "uuid"])
def test_the_gpu_that_cuda_visible_devices_names_is_the_one_that_is_used_and_read(by: str, project: Path):
    """The last one, which is another one than NVML's first where there are several."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("CUDA_VISIBLE_DEVICES is set already, so that an index means another GPU here")
    uuid = uuids()[-1]
    visible = uuid if by == "uuid" else str(len(uuids()) - 1)
    stages = ("hardware", "train tiny cuda 0")
    stages_at_once(project, *stages, CUDA_VISIBLE_DEVICES=visible)
    is_kept = bool(unpublished(project))
    assert manifest_of(project, device="cuda")["device"] == "cuda"
    assert "count" not in manifest_of(project, device="cuda")["hardware"]
    text = "".join(path.read_text(errors="replace") for path in (project / ".tandem").rglob("*") if path.is_file())
    assert uuid in text or not is_kept  # MLflow has the tag if the run was published already


@pytest.mark.parametrize("words", ["hardware", "preload tiny cuda", "train tiny cuda 0", "evaluate tiny cuda"])
def test_a_gpu_that_is_gone_since_hardware_is_named_in_one_sentence(words: str, compared: Path, tmp_path: Path):
    project = copy_of(compared, tmp_path / "project", PROBED)
    failed = stage(project, *words.split(), check=False, CUDA_VISIBLE_DEVICES="")
    assert failed.returncode == 1 and "Traceback" not in failed.stdout
    errors = [line for line in failed.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "CUDA_VISIBLE_DEVICES='' hides every GPU" in errors[0], failed.stdout


def test_the_weights_of_a_gpu_are_evaluated_on_a_machine_without_one(compared: Path):
    code = (
        "from pathlib import Path; from tandem.training.saved_network import load_network\n"
        "network, about = load_network(Path('results/runs/tiny/cuda/train/result/0'), 'last')\n"
        "assert {weight.device.type for weight in network.parameters()} == {'cpu'}"
    )
    run(compared, sys.executable, "-c", code, CUDA_VISIBLE_DEVICES="")
