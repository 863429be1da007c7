"""A CPU's energy is the increase of its packages' counters, and energy that cannot be measured has a reason."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from tandem.machine.energy import CpuCounter, GpuCounter, Meter
from tandem.machine.measure import gpu_uuid, measure
from tandem.runs.history import Record, energy_sentence, summarize_energy
from tests.projects import python, read_record, run_path

RANGE = 65_532_610_987  # microjoules: that of AMD's packages


def add_zone(powercap: Path, zone: str, name: str, microjoules: int) -> Path:
    folder = powercap / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return folder / "energy_uj"


@pytest.fixture
def powercap() -> Iterator[Path]:
    """An empty folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="powercap-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that time.monotonic returns, which stand still until a test changes them."""
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def test_the_energy_is_the_sum_of_the_packages_even_if_a_counter_wraps_around(powercap: Path, clock: list[float]):
    first = add_zone(powercap, "intel-rapl:0", "package-0", 1_000_000)
    second = add_zone(powercap, "intel-rapl:1", "package-1", RANGE - 3_000_000)
    parts = [
        add_zone(powercap, "intel-rapl:0:0", "core", 0),
        add_zone(powercap, "intel-rapl:2", "psys", 0),
        add_zone(powercap, "intel-rapl-mmio:0", "package-0", 0),
    ]
    counter = CpuCounter(powercap)
    whole = Meter(counter)
    for _ in range(3):
        epoch = Meter(counter)
        clock[0] += 10.0
        first.write_text(f"{int(first.read_text()) + 5_500_000}\n")
        second.write_text(f"{(int(second.read_text()) + 2_000_000) % RANGE}\n")
        for part in parts:
            part.write_text(f"{int(part.read_text()) + 900_000_000}\n")
        assert epoch.joules() == pytest.approx(7.5)
    assert int(second.read_text()) < 10_000_000, "this one has wrapped around"
    assert whole.joules() == pytest.approx(22.5)


def test_a_region_in_which_a_counter_may_wrap_around_twice_has_no_energy(powercap: Path, clock: list[float]):
    add_zone(powercap, "intel-rapl:0", "package-0", 0)
    counter = CpuCounter(powercap)
    whole = Meter(counter)
    clock[0] += 200.0  # 65.5 kJ last for 131 s at 500 W
    for found in (whole.joules(), whole.joules()):
        assert found == "the energy counter may have wrapped around more than once between two readings (200 s)"
    later = Meter(counter)
    clock[0] += 1.0
    assert later.joules() == 0.0


def test_a_region_shorter_than_the_counters_steps_has_no_energy(powercap: Path, clock: list[float]):
    add_zone(powercap, "intel-rapl:0", "package-0", 0)
    meter = Meter(CpuCounter(powercap))
    clock[0] += 0.01
    assert meter.joules() == "the energy counter needs regions of 0.02 s or more, and this one took 0.01 s"


def test_counters_of_root_alone_are_absent_with_that_reason(powercap: Path):
    counter = add_zone(powercap, "intel-rapl:0", "package-0", 0)
    counter.chmod(0o400)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # nobody
        else:
            counter.chmod(0o000)
        assert Meter(CpuCounter(powercap)).joules() == f"{counter} is readable by root only"
    finally:
        os.seteuid(user)


def test_a_machine_without_counters_has_no_energy_and_a_reason(tmp_path: Path):
    for powercap in (tmp_path, tmp_path / "missing"):
        reason = Meter(CpuCounter(powercap)).joules()
        assert reason == f"no RAPL counters in {powercap} (most virtual machines have none)"


def test_a_counter_that_disappears_ends_no_training(powercap: Path):
    counter = add_zone(powercap, "intel-rapl:0", "package-0", 0)
    meter = Meter(CpuCounter(powercap))
    counter.unlink()
    assert str(meter.joules()).startswith("RAPL: ")


def record_of(joules: list[float | None], parts: list[float | str]) -> Record:
    rows = [{"epoch": n, "is_warmup": int(n == 1), "energy_joules": each} for n, each in enumerate(joules, 1)]
    return Record("key", timings=rows, energy=dict(enumerate(parts)), missing_reasons={"energy_joules": "too short"})


def test_a_training_has_the_energy_of_all_its_parts_and_the_median_of_its_epochs():
    found = summarize_energy(record_of([9.0, 2.0, 3.0, 7.0], [10.0, 15.0]))
    assert found == ({"epoch_joules": 3.0, "train_joules": 25.0}, {})
    assert energy_sentence(*found, "RAPL") == (
        "25 J for the training, 3 J per epoch according to RAPL; this includes the energy of other processes"
    )


def test_energy_that_is_unknown_for_a_part_is_unknown_for_the_whole():
    found, reasons = summarize_energy(record_of([9.0, 2.0, None], [10.0, "NVML: GPU is lost"]))
    assert found == {"epoch_joules": None, "train_joules": None}
    assert reasons == {"epoch_joules": "too short", "train_joules": "NVML: GPU is lost"}
    assert energy_sentence(found, reasons, "NVML") == "energy is not measured: NVML: GPU is lost"


def train_with_counters(powercap: str) -> None:
    """Train `tiny` with the counters in this folder."""
    from stages import train
    from tandem.machine import energy
    from tandem.runs import run_dir

    run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0
    energy.POWERCAP = Path(powercap)
    energy.CpuCounter.min_seconds = 0.0
    train.main("tiny", "cpu", "0")


def test_a_training_records_the_energy_or_why_there_is_none(ready: Path, powercap: Path, tmp_path: Path):
    add_zone(powercap, "intel-rapl:0", "package-0", 0)
    for folder in (powercap, tmp_path):
        code = f"from tests.machine import test_energy; test_energy.train_with_counters({str(folder)!r})"
        python(ready, code)
        record = read_record(ready, "timing.json")
        timing, column = record["timing"], pd.read_csv(ready / run_path("timings.csv"))["energy_joules"]
        if folder == powercap:
            assert timing["epoch_joules"] == timing["train_joules"] == 0.0 and set(column) == {0.0}
            assert timing["energy_method"].startswith("RAPL") and "RAPL" in record["summary_lines"]["energy"]
        else:
            reason = f"no RAPL counters in {folder} (most virtual machines have none)"
            assert timing["epoch_joules"] is timing["train_joules"] is None and "energy_method" not in timing
            assert column.isna().all()
            assert {timing["missing_reasons"][name] for name in ("epoch_joules", "train_joules")} == {reason}
            assert record["summary_lines"]["energy"] == f"energy is not measured: {reason}"


@pytest.mark.gpu
def test_the_energy_of_a_gpu_increases_or_has_a_reason():
    device = torch.device("cuda", 0)
    meter = Meter(GpuCounter(gpu_uuid(device)))
    with measure(device) as long:
        time.sleep(1.1)
    with measure(device) as short:
        pass
    assert "regions of 1 s or more" in short.missing_reasons["energy_joules"] or "NVML" in str(meter.joules())
    if isinstance(joules := meter.joules(), float):
        assert 0 < long.energy_joules <= joules
