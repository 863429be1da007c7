"""The sweep measures every size, stops where the memory does, and says what may be said."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tandem import cli
from tandem.diagnosis.sweep import SweepPoint, measure_size, verdicts
from tests.projects import tandem
from tests.trainers import SETTINGS, new_trainer


def test_a_sweep_of_a_workload(ready: Path, capsys: pytest.CaptureFixture[str]):
    words = ("tiny", "--largest", "64", "--seconds", "0.02", "--devices", "cpu")
    message = tandem(ready, "sweep", *words).stdout
    with (ready / "results/sweep/tiny.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["batch_size"]) for row in rows] == [1, 2, 4, 8, 16, 32, 64]  # more than the 36 there are
    memory = [float(row["peak_mib"]) for row in rows]
    assert memory == sorted(memory) and all(float(row["samples_per_second"]) > 0 for row in rows)
    assert "of the best" in message and "cpu: every size up to 64 fits" in message
    assert cli.main(["sweep", "sing"]) == 2
    assert re.fullmatch("error: .*did you mean 'sign'.*\n", capsys.readouterr().err)


def points(device: str, rates: list[float]) -> list[SweepPoint]:
    return [SweepPoint(device, 2**index, rate, 1.0) for index, rate in enumerate(rates)]


def test_the_crossover_is_the_first_size_at_which_the_gpu_wins():
    cpu, gpu = points("cpu", [100, 190, 300, 310]), points("cuda", [10, 100, 400, 1550])
    assert verdicts(cpu + gpu)[-1] == "the GPU is faster from batch 4 on (1.3 times there, 5.0 times at 8)"
    assert verdicts(cpu + points("cuda", [1, 2]))[-1] == "the CPU is faster at every batch size measured on both"
    assert len(verdicts(cpu)) == 1


@pytest.mark.gpu
def test_a_size_is_measured_captured_and_without_the_memory_of_other_sizes(tmp_path: Path):
    settings = replace(SETTINGS, model=replace(SETTINGS.model, dropout=0.0), step="graph")
    trainer = new_trainer("cuda", "device", tmp_path, settings)
    trainer.step.may_fall_back = False
    for size in (16, 32):
        assert measure_size(trainer, size, 0.01)
        assert len(trainer.step.graphs.captured) == 1


@pytest.mark.gpu
def test_a_sweep_on_the_gpu_measures_its_memory(ready: Path):
    words = ("tiny", "--largest", "256", "--seconds", "0.05")
    message = tandem(ready, "sweep", *words).stdout
    assert "cuda, batch 256: " in message and "cuda: every size up to 256 fits" in message
