"""Rates are known work over measured seconds, clocks are read at the right moments, and unknown readings have a reason.

Where a clock decides, it is a virtual one that the measured work itself moves on: the expected numbers are exact, on
any machine.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stages import hardware
from tandem import files
from tandem.devices import cuda, nvml
from tandem.devices.names import kind_of
from tandem.devices.nvml import Gpu, throttle_reasons
from tandem.machine import sampler
from tandem.machine.measure import Measurement, measure, sampled
from tandem.machine.sampler import Readings, SampledWindow, sampling
from tandem.runs.quantities import RUN_METRICS, summarize_gpu
from tests.projects import ROOT, python, read_record, run_path, stage, unpublished, wait_for

CPU = kind_of("cpu")()


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_region_has_its_seconds_its_cpu_time_and_reasons_for_the_rest(monkeypatch: pytest.MonkeyPatch):
    clock, cpu = Clock(), Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "process_time", cpu)
    with measure(CPU) as measured:
        clock.seconds += 4.0
        cpu.seconds += 3.0
    assert measured.seconds == 4.0 and measured.cpu_share == 0.75
    missing = {name for name, value in vars(measured).items() if value is None}
    assert measured.missing_reasons.keys() == missing
    assert {"peak_allocated_mib", "process_mib", "gpu_busy_share"} <= missing
    assert all("no GPU" in measured.missing_reasons[name] for name in missing - {"energy_joules"})


# ---------------------------------------------------------------------------------------------------------------------
# The sampler, with a source that says what it is told


class Scripted:
    """Returns the same reading until a test changes it."""

    def __init__(self, found: Readings) -> None:
        self.found, self.num_reads = found, 0

    def read(self) -> Readings:
        self.num_reads += 1
        return self.found

    def wait_for(self, num_more: int) -> None:
        """Until the thread has read so many more times, and the last of it is counted."""
        enough = self.num_reads + num_more + 1
        wait_for(lambda: self.num_reads >= enough, what="the sampler's readings")


def reading(process_mib: float = 100.0, **quantities: float | str) -> Readings:
    usual = {"other_processes": 0.0, "device_mib": 900.0, "gpu_busy_share": 0.5, "power_watts": 200.0, "sm_mhz": 1410.0}
    usual["throttled_share"] = 0.0
    return {"process_mib": process_mib, **usual, **quantities}


def sampler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sampler"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readings in a test's time, and a driver that averages over less of it."""
    monkeypatch.setattr(sampler, "SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr(sampler, "DRIVER_SECONDS", 0.1)


def test_a_window_has_the_largest_memory_and_the_mean_of_averages(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    window = SampledWindow(reading(gpu_busy_share=0.9))  # the average of what came before it
    for seconds, busy, watts, mib in ((0.5, 0.9, 900.0, 300.0), (1.0, 0.2, 100.0, 120.0)):
        clock.seconds = seconds
        window.add(reading(mib, gpu_busy_share=busy, power_watts=watts))
    clock.seconds = 1.5
    window.add(reading(110.0, gpu_busy_share=0.4, power_watts=200.0))
    assert window.totals() == {
        "sampled_seconds": 1.5,
        "process_mib": 300.0,
        "other_processes": 0.0,
        "device_mib": 900.0,
        "gpu_busy_share": pytest.approx(0.3),
        "power_watts": 150.0,
        "sm_mhz": 1410.0,
        "throttled_share": 0.0,
    }


def test_a_region_that_is_too_short_or_without_a_reading_has_the_reason_for_each_quantity(quick: None):
    reasons = {name: "NVML: GPU is lost" for name in reading()}
    source = Scripted(reading())
    with sampling(source) as whole:
        with sampling(source) as short:
            assert len(sampler_threads()) == 1, "the thread of the training reads for its parts"
        with sampling(source) as good:
            time.sleep(0.11)
            source.wait_for(1)
        with sampling(source) as bad:
            source.found = reasons
            source.wait_for(2)
    assert "averages over up to 0.1 s" in short.summary()["gpu_busy_share"] and short.summary()["process_mib"] == 100.0
    assert good.summary() == reading()
    assert bad.summary() == whole.summary() == reasons


def test_the_thread_ends_with_a_part_that_is_interrupted(quick: None):
    source = Scripted(reading())
    with pytest.raises(KeyboardInterrupt), sampling(source), sampling(source):
        source.wait_for(2)
        raise KeyboardInterrupt
    assert sampler_threads() == [] and not sampler.running
    with sampling(source) as second:
        source.wait_for(1)
    assert second.summary()["process_mib"] == 100.0


def test_a_resumed_training_has_the_numbers_of_all_its_parts():
    first = {"sampled_seconds": 30.0, **reading(100.0, gpu_busy_share=0.2)}
    second = {"sampled_seconds": 10.0, **reading(80.0, gpu_busy_share=0.6)}
    assert summarize_gpu([first, second, {}]) == (  # and finished on the CPU
        {"sampled_seconds": 40.0, **reading(100.0, gpu_busy_share=pytest.approx(0.3))},
        {},
    )
    summary, reasons = summarize_gpu([first, {**second, "power_watts": "NVML: Not Supported"}])
    assert summary["power_watts"] is None and reasons == {"power_watts": "NVML: Not Supported"}
    assert summarize_gpu([{}]) == (dict.fromkeys(first), {}), "nothing, and nothing that looks like a 0"


def train_sampled() -> None:
    """Train `tiny` as on a GPU with scripted readings and a processor without energy counters."""
    from stages import train
    from tandem.stage import recorder
    from tandem.tracking import run_dir

    sampler.SAMPLE_SECONDS, sampler.DRIVER_SECONDS = 0.002, 0.0
    run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0  # so that the directory stays
    source = Scripted(reading(other_processes=1.0))
    recorder.sampled = lambda device: sampling(source)
    train.main("tiny", "cpu", "0")


def test_a_training_records_what_its_sampler_read_and_why_there_is_no_energy(ready: Path):
    python(ready, "from tests.machine import test_measure; test_measure.train_sampled()")
    [folder] = unpublished(ready)
    record = read_record(ready, "timing.json")
    timings = record["timing"]
    reason = CPU.no_energy
    assert timings["epoch_joules"] is timings["train_joules"] is None
    assert {timings["missing_reasons"][name] for name in ("epoch_joules", "train_joules")} == {reason}
    assert record["summary_lines"]["energy"] == f"energy is not measured: {reason}"
    expected = reading(other_processes=1.0)
    assert {name: timings[name] for name in expected} == expected and timings["sampled_seconds"] > 0
    recorded = {metric: timings[name] for name, metric in RUN_METRICS.items()}
    metrics = json.loads((folder / "train.end.json").read_text())["metrics"]
    assert metrics == {name: value for name, value in recorded.items() if value is not None}
    assert not timings["missing_reasons"].keys() & expected.keys()
    tags = json.loads((folder / "run.json").read_text())["tags"]
    assert tags["not_comparable"] == "other processes on its GPU (1 during the training)"


def test_a_new_quantity_is_a_line_and_the_place_that_measures_it(ready: Path):
    """Then its files, MLflow and the table that compares runs have it."""
    line = 'Quantity("faults", "faults", "max", "ram/faults", "page faults"),'
    for path, before, addition in (
        ("runs/quantities.py", "QUANTITIES = (", f"    {line}"),
        ("machine/measure.py", "    seconds: float = 0.0", "    faults: float | None = None"),
        ("machine/measure.py", "    result.peak_rss_mib = peak_rss_mib()", "    result.faults = 7.5"),
    ):
        text = (ready / "tandem" / path).read_text()
        assert text.count(f"{before}\n") == 1
        (ready / "tandem" / path).write_text(text.replace(before, f"{before}\n{addition}"))
    stage(ready, "train", "tiny", "cpu", "0", publishes=False)
    assert read_record(ready, "timing.json")["timing"]["faults"] == 7.5
    assert {row["faults"] for row in files.read_numbers(ready / run_path("timings.csv"))} == {7.5}
    [folder] = unpublished(ready)
    assert json.loads((folder / "train.end.json").read_text())["metrics"]["ram/faults_max"] == 7.5
    code = "from pathlib import Path; from tandem.comparing import table; from tandem.runs import run\n"
    code += "own = [run.open_folder(Path('results/runs/tiny/cpu'))]\n"
    code += "print(*table.rows_of([own, own]), sep='\\n')"
    assert "page faults (7.5 faults vs 7.5 faults)" in python(ready, code).stdout.splitlines()


# ---------------------------------------------------------------------------------------------------------------------
# NVML


def test_a_gpu_that_nvml_does_not_know_has_no_reading():
    gpu = Gpu("GPU-00000000-0000-0000-0000-000000000000")
    reason = gpu.ask("process_mib")
    assert reason.startswith("NVML: ")
    assert gpu.read() == dict.fromkeys(reading(), reason)


def test_every_quantity_has_the_unit_of_its_name():
    class Nvml:
        answers: dict[str, Any] = {
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=pid, usedGpuMemory=3 * 2**20) for pid in (os.getpid(), -1)
            ],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 * 2**20),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25, memory=99),
            "nvmlDeviceGetPowerUsage": 70_500,
            "nvmlDeviceGetClockInfo": 1_410,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
            "nvmlDeviceGetTotalEnergyConsumption": 1_234_500,
        }

        def __getattr__(self, name: str) -> Callable[[object], Any]:
            return lambda handle, *clock: self.answers[name]

    gpu = Gpu("")
    gpu.unavailable, gpu.nvml, gpu.handle = "", Nvml(), object()
    expected = {"process_mib": 3.0, "other_processes": 1.0, "device_mib": 5.0}
    clocks = {"sm_mhz": 1410.0, "throttled_share": 1.0}
    assert gpu.read() == {**expected, **clocks, "gpu_busy_share": 0.25, "power_watts": 70.5}
    assert gpu.ask("energy_joules") == 1234.5
    Nvml.answers["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]
    assert str(gpu.read()["process_mib"]).startswith("the driver does not report memory per process")
    Nvml.answers["nvmlDeviceGetUtilizationRates"] = None  # whatever else may happen, a reading raises nothing
    assert str(gpu.read()["gpu_busy_share"]).startswith("NVML: ")


def test_a_drivers_own_trouble_is_not_blamed_on_hidden_gpus(monkeypatch: pytest.MonkeyPatch):
    """cuInit 803: the driver and its library do not match. 100: there is no GPU that it may show."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for code, why in ((803, "the driver shows no GPU (cuInit 803)"), (100, "CUDA_VISIBLE_DEVICES='0' hides every GPU")):
        driver = SimpleNamespace(cuInit=lambda flags, code=code: code)
        monkeypatch.setattr(ctypes, "CDLL", lambda name, driver=driver: driver)
        assert cuda.detect_gpu("13.2") == (None, why)
    older = SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDeviceGetCount=lambda count: setattr(count._obj, "value", 1),
        cuDriverGetVersion=lambda version: setattr(version._obj, "value", 12020),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: older)
    why = "the driver supports CUDA 12.2 and torch is built for CUDA 13.2; update the driver, or install a torch that "
    why += "was built for CUDA 12"
    assert cuda.detect_gpu("13.2") == (None, why)


def test_a_gpu_that_torch_cannot_use_is_said_and_a_missing_driver_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(hardware, "validated", lambda machine: {"devices": ["auto"], "workloads": {}})
    for obstacle, expected in (("the driver supports CUDA 12.2 and", True), (cuda.NO_DRIVER, False)):
        identity = {"kind": "cpu", "name": "Xeon", "why_not_cuda": obstacle}
        monkeypatch.setattr(hardware, "hardware_identity", lambda requested, identity=identity: identity)
        hardware.dependencies()
        assert (f"warning: auto is the CPU, because {obstacle}" in capsys.readouterr().out) == expected


@pytest.mark.case(19)
def test_a_part_of_a_gpu_is_read_itself_and_not_the_whole(monkeypatch: pytest.MonkeyPatch):
    """Under MIG, only the second version of the driver's call has the instance's UUID."""
    whole, part = bytes(range(16)), bytes(range(16, 32))

    def write(uuid: bytes) -> Callable[[Any, object], None]:
        return lambda target, device: ctypes.memmove(target._obj, uuid, 16) and None

    driver = SimpleNamespace(
        cuDeviceGet=lambda device, index: None, cuDeviceGetUuid=write(whole), cuDeviceGetUuid_v2=write(part)
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    handles = {
        "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f": "whole",
        "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f": "part",
    }
    monkeypatch.setattr(nvml, "start", lambda: SimpleNamespace(nvmlDeviceGetHandleByUUID=handles.__getitem__))
    assert Gpu(cuda.uuid_of(0)).handle == "part"


def test_a_gpu_is_used_only_if_torch_has_kernels_for_it():
    """As torch decides it: kernels serve later minor versions, and code to compile (PTX) everything later."""
    wheel = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    expected = {(7, 0): False, (7, 5): True, (8, 6): True, (8, 9): True, (9, 0): True, (10, 3): True, (12, 1): True}
    assert {capability: cuda.has_kernels(capability, wheel) for capability in expected} == expected
    assert not cuda.has_kernels((13, 0), wheel) and cuda.has_kernels((13, 0), [*wheel, "compute_120"])
    assert not cuda.has_kernels((8, 0), ["sm_86"]) and cuda.has_kernels((9, 0), ["sm_90a"])


def test_words_that_a_site_hook_prints_are_no_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda, "ASK_TORCH", "print('loading my_site_hook', 'v_2'); print('sm_75 sm_90a compute_120')")
    assert cuda.torch_architectures() == ["sm_75", "sm_90a", "compute_120"]
    monkeypatch.setattr(cuda, "ASK_TORCH", "raise SystemExit('not asked again')")
    assert cuda.torch_architectures() == ["sm_75", "sm_90a", "compute_120"]


@pytest.mark.gpu
def test_a_gpu_that_torch_has_no_kernels_for_is_not_chosen():
    """With a simulated card; a real one keeps its capability, and the second line then holds for it."""
    code = """
from tandem.devices.cuda import has_kernels, torch_architectures
from tandem.devices.hardware import detect_hardware
found = detect_hardware("auto")
assert found["kind"] == "cuda" or "has no kernels for Fake GPU 7.0" in found["why_not_cuda"], found
assert found["kind"] == "cpu" or has_kernels(tuple(map(int, found["capability"].split("."))), torch_architectures())
print(found["kind"])
"""
    assert python(ROOT, code, FAKE_CUDA_CAPABILITY="7.0").stdout.split()[-1] in ("cpu", "cuda")


def test_only_heat_and_power_are_throttling():
    """A setting is none, nor is the voltage of a card at its highest clock (Reliability)."""
    import pynvml

    lowered = ("HwPowerBrakeSlowdown", "HwSlowdown", "HwThermalSlowdown", "SwPowerCap", "SwThermalSlowdown")
    for names in (lowered, ()):
        bits = sum(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names) | 0x400 | 0x200 | 0x1
        bits |= pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting
        nvml = SimpleNamespace(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle, bits=bits: bits)
        assert throttle_reasons(nvml, None) == [*names]


@pytest.mark.gpu
def test_a_turn_queues_only_the_work_that_fits_into_it():
    """Calls return before the GPU has done their work: by the host's clock, a turn would queue hundreds of them."""
    code = """
import torch
from tandem.devices.names import kind_of
from tandem.machine.measure import seconds_of
calls, device = [], kind_of("cuda")()
matrix = torch.ones(64, 64, device="cuda")
seconds = seconds_of(lambda: calls.append(matrix + matrix), device, 0.02)
assert len(calls) == 4 or seconds * (len(calls) - 2) < 0.04, (seconds, len(calls))
"""
    python(ROOT, code, FAKE_CUDA_OP_US="3000")  # where the card is a simulated one; others ignore it


@pytest.mark.gpu
def test_a_region_on_a_gpu_has_every_reading_or_its_reason():
    device = kind_of("cuda")()
    device.synchronize()  # makes the context, which may take longer than the driver averages over
    with measure(device) as usage:
        tensor = torch.ones(2**26, device=device.torch_device)
    assert tensor.nbytes / 2**20 <= usage.peak_allocated_mib <= usage.peak_reserved_mib
    assert usage.process_mib is None or usage.process_mib > usage.peak_reserved_mib  # CUDA takes memory of its own
    missing = {name for name, value in vars(usage).items() if value is None and name != "threads"}  # a training sets it
    assert usage.missing_reasons.keys() == missing
    assert "averages over" in usage.missing_reasons["gpu_busy_share"]


@pytest.mark.gpu
@pytest.mark.gpu_time
def test_a_busy_gpu_is_seen_to_be_busy_in_the_whole_training_and_in_its_long_epochs():
    device = kind_of("cuda")()
    matrix = torch.randn(4096, 4096, device=device.torch_device)

    def work(seconds: float) -> Measurement:
        with measure(device) as measurement:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                matrix @ matrix
                device.synchronize()
        assert len(sampler_threads()) == 1
        return measurement

    with sampled(device) as readings:
        short, long = [work(0.05) for _ in range(10)], work(2.0)
    assert sampler_threads() == []
    for values in (readings.totals(), {**vars(long), **long.missing_reasons}):
        for name in ("gpu_busy_share", "power_watts"):
            assert isinstance(values[name], str) or values[name] > 0, name
        if isinstance(values["gpu_busy_share"], float):
            assert values["gpu_busy_share"] > 0.5
    if long.energy_joules is not None and long.power_watts is not None:
        assert long.energy_joules / long.seconds == pytest.approx(long.power_watts, rel=0.5)
    for epoch in short:
        assert epoch.device_mib > 0 and epoch.gpu_busy_share is None and epoch.energy_joules is None


READ_LIMITS = """
import json, time
from tandem.devices import hardware
from tandem.machine import conditions
before, end = conditions.read(), time.process_time() + 0.1
while time.process_time() < end:
    pass
after = conditions.read()
between = {"before": before, "after": after, "between": conditions.between(before, after)}
print(json.dumps([hardware.usable_cores(), hardware.memory_limit_bytes(), hardware.free_memory_bytes(),
                  conditions.busy(between)]))
"""


@pytest.fixture
def limited_group() -> Iterator[list[Path]]:
    """The processes files of a control group that is below one with a tenth of a core and 1 GiB."""
    root, name = Path("/sys/fs/cgroup"), f"tandem-test-{os.getpid()}"
    limits = {"cpu.max": "10000 100000", "memory.max": str(2**30)}
    groups = [root / name]
    if (root / "cpu").is_dir():  # version 1
        limits = {"cpu.cfs_quota_us": "10000", "memory.limit_in_bytes": str(2**30)}
        groups = [root / "cpu" / name, root / "memory" / name]
    try:
        for group in groups:
            group.mkdir()
            if len(groups) == 1:
                (root / "cgroup.subtree_control").write_text("+cpu +memory")
            for file, limit in limits.items():
                if (group / file).exists():
                    (group / file).write_text(limit)
            (group / "inner").mkdir()
    except OSError:
        for group in groups:
            if group.exists():
                group.rmdir()
        pytest.skip("this user, or this container, may not make control groups")
    yield [group / "inner/cgroup.procs" for group in groups]
    for group in groups:
        (group / "inner").rmdir()
        group.rmdir()


def test_limits_of_every_control_group_above_the_process_hold_and_throttled_periods_are_told(limited_group):
    enter = "".join(f"echo $$ > {file}; " for file in limited_group)
    command = ["bash", "-c", f'{enter}exec "$@"', "-", sys.executable, "-c", READ_LIMITS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    cores, limit, free, busy = json.loads(done.stdout)
    assert (cores, limit) == (0.1, 2**30) and 0 < free < 2**30
    assert re.search(r"its quota of the cores stopped it in \d+% of the periods", busy)


def test_the_peak_memory_of_a_process_is_not_that_of_the_one_that_started_it():
    """As of a notebook that runs a DVC stage: Linux hands `ru_maxrss` on to what a process starts."""
    code = "from tandem.machine.measure import peak_rss_mib; print(peak_rss_mib())"
    memory = b"x" * 2**29
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2 * float(done.stdout) < len(memory) / 2**20
