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
from tandem.runs.history import Record, summarize_energy
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


def test_a_region_that_is_too_long_or_too_short_for_the_counter_has_no_energy(powercap: Path, clock: list[float]):
    add_zone(powercap, "intel-rapl:0", "package-0", 0)
    counter = CpuCounter(powercap)
    whole = Meter(counter)
    clock[0] += 200.0  # 65.5 kJ last for 131 s at 500 W
    for found in (whole.joules(), whole.joules()):
        assert found == "the energy counter may have wrapped around more than once between two readings (200 s)"
    later = Meter(counter)
    clock[0] += 0.01
    assert later.joules() == "the energy counter needs regions of 0.02 s or more, but this one took 0.01 s"
    clock[0] += 0.99
    assert later.joules() == 0.0


def test_counters_that_are_not_there_or_cannot_be_read_have_a_reason(powercap: Path):
    assert Meter(CpuCounter(powercap)).joules() == f"no RAPL counters in {powercap} (most virtual machines have none)"
    counter = add_zone(powercap, "intel-rapl:0", "package-0", 0)
    meter, user = Meter(CpuCounter(powercap)), os.geteuid()
    try:
        counter.chmod(0o400 if user == 0 else 0o000)
        if user == 0:
            os.seteuid(65534)  # nobody
        assert meter.joules() == f"{counter} is readable by root only"
    finally:
        os.seteuid(user)
    counter.unlink()
    assert str(meter.joules()).startswith("RAPL: "), "a counter that disappears ends no training"


def record_of(joules: list[float | None], parts: list[float | str]) -> Record:
    rows = [{"epoch": n, "is_warmup": int(n == 1), "energy_joules": each} for n, each in enumerate(joules, 1)]
    return Record("key", timings=rows, energy=dict(enumerate(parts)), missing_reasons={"energy_joules": "too short"})


def test_a_training_has_the_energy_of_all_its_parts_or_none():
    found = summarize_energy(record_of([9.0, 2.0, 3.0, 7.0], [10.0, 15.0]))
    assert found == ({"epoch_joules": 3.0, "train_joules": 25.0}, {})
    found, reasons = summarize_energy(record_of([9.0, 2.0, None], [10.0, "NVML: GPU is lost"]))
    assert found == {"epoch_joules": None, "train_joules": None}
    assert reasons == {"epoch_joules": "too short", "train_joules": "NVML: GPU is lost"}


def train_with_counters(powercap: str) -> None:
    """Train `tiny` with the counters in this folder."""
    from stages import train
    from tandem.machine import energy
    from tandem.runs import run_dir

    run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0
    energy.POWERCAP = Path(powercap)
    energy.CpuCounter.min_seconds = 0.0
    train.main("tiny", "cpu", "0")


def test_a_training_records_its_energy(ready: Path, powercap: Path):
    """One without counters: test_measure.py."""
    add_zone(powercap, "intel-rapl:0", "package-0", 0)
    python(ready, f"from tests.machine import test_energy; test_energy.train_with_counters({str(powercap)!r})")
    record = read_record(ready, "timing.json")
    timing, column = record["timing"], pd.read_csv(ready / run_path("timings.csv"))["energy_joules"]
    assert timing["epoch_joules"] == timing["train_joules"] == 0.0 and set(column) == {0.0}
    assert timing["energy_method"].startswith("RAPL") and "RAPL" in record["summary_lines"]["energy"]


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
