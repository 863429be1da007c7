"""Energy is measured or has a reason. A CPU has none: tests/machine/test_measure.py."""

import time

import pytest

from tandem.devices.names import kind_of
from tandem.machine.measure import Meter, measure
from tandem.runs.record import Record, summarize_energy


def record_of(joules: list[float | None], parts: list[float | str]) -> Record:
    rows = [{"epoch": n, "is_warmup": int(n == 1), "energy_joules": energy} for n, energy in enumerate(joules, 1)]
    return Record("key", timings=rows, energy=dict(enumerate(parts)), missing_reasons={"energy_joules": "too short"})


def test_a_training_has_the_energy_of_all_its_parts_or_none():
    summary = summarize_energy(record_of([9.0, 2.0, 3.0, 7.0], [10.0, 15.0]))
    assert summary == ({"epoch_joules": 3.0, "train_joules": 25.0}, {})
    summary, reasons = summarize_energy(record_of([9.0, 2.0, None], [10.0, "NVML: GPU is lost"]))
    assert summary == {"epoch_joules": None, "train_joules": None}
    assert reasons == {"epoch_joules": "too short", "train_joules": "NVML: GPU is lost"}


@pytest.mark.gpu
def test_the_energy_of_a_gpu_increases_or_has_a_reason():
    device = kind_of("cuda")()
    meter = Meter(device)
    with measure(device) as long:
        time.sleep(1.1)
    with measure(device) as short:
        pass
    assert "regions of 1 s or more" in short.missing_reasons["energy_joules"] or "NVML" in str(meter.joules())
    if isinstance(joules := meter.joules(), float):
        assert 0 < long.energy_joules <= joules
