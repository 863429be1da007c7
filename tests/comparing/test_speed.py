"""Pairs of alternating processes, the interval over them, and the benchmark that tries whether it is one."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from stages import speed
from tandem.comparing.speed_up import paired_speed_up, ratio_of_turns
from tests.projects import ROOT, copy_of, environment, is_gone, python, run, wait_for

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer

SHORT = "Length(turn_seconds=0.01, num_turns=4, warmup_seconds=0.1)"


def test_several_workers_are_no_side(monkeypatch: pytest.MonkeyPatch):
    """One process once took their turns, under their name."""
    kinds = {"cpu": {"kind": "cpu"}, "2xcpu": {"kind": "cpu", "workers": 2}, "2xcuda": {"kind": "cuda", "workers": 2}}
    monkeypatch.setattr(speed, "read_json", kinds.get)
    monkeypatch.setattr(speed, "hardware_file", lambda device: device)
    assert [side.device for side in speed.sides_of(["2xcpu", "cpu", "2xcuda"])] == ["cpu"]
    assert speed.sides_of(["2xcpu", "2xcuda"]) == []


# The statistics ------------------------------------------------------------------------------------------------------


def test_the_interval_is_students_t_on_the_logarithms():
    """t of 4 degrees of freedom at 0.975: 2.776445 (Fisher and Yates, table III)."""
    speed_up = paired_speed_up([math.exp(log) for log in (0.0, 0.1, 0.2, 0.3, 0.4)])
    half = 2.776445 * math.sqrt(0.025) / math.sqrt(5)
    assert speed_up.num_pairs == 5 and speed_up.ratio == pytest.approx(math.exp(0.2))
    assert speed_up.low == pytest.approx(math.exp(0.2 - half), rel=1e-6)
    assert speed_up.high == pytest.approx(math.exp(0.2 + half), rel=1e-6)


def test_what_slows_both_sides_of_a_turn_and_what_disturbs_single_turns_is_gone_from_a_pairs_figure():
    base = [2.0 * slow for slow in (1.0, 1.1, 1.5, 3.0, 2.0, 1.2, 1.0)]
    other = [1.0 * slow for slow in (1.0, 1.1, 1.5, 3.0, 2.0, 1.2, 1.0)]
    assert ratio_of_turns(base, other) == pytest.approx(2.0)
    base[1], other[4] = 100.0, 100.0
    assert ratio_of_turns(base, other) == pytest.approx(2.0)


# Real processes ------------------------------------------------------------------------------------------------------


PAIR = "[TimedSide('one', 'cpu'), TimedSide('two', 'cpu', {'batch_size': 8}, test_speed.tells_who_is_there)]"
WITH_A_KILL = "[TimedSide('one', 'cpu'), TimedSide('two', 'cpu', adapt=test_speed.dies)]"


@pytest.fixture(scope="module")
def compared(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What a process found, and printed, that compared two sides, and then two of which one is killed."""
    project = copy_of(prepared, tmp_path_factory.mktemp("speed") / "project")
    code = f"""
import json, multiprocessing, os
from stages import speed
from stages.speed import Length, TimedSide, compare
from tests.comparing import test_speed
speed.get_context = lambda _: multiprocessing.get_context("fork")  # which have torch already
json.dump(compare('tiny', {PAIR}, [4], {SHORT}), open('found.json', 'w'))
try:
    compare('tiny', {WITH_A_KILL}, [0], {SHORT})
except ValueError as error:
    print(error)
print('left:', test_speed.workers_of(os.getpid()))
"""
    printed = python(project, code, PYTHONPATH=str(ROOT)).stdout
    return json.loads((project / "found.json").read_text()), printed


def test_a_pair_of_real_trainings_runs_at_the_same_time(compared: tuple[dict[str, Any], str]):
    """The CPU against itself with another batch size. Each process is there while its partner is."""
    result, printed = compared
    [pair] = result["pairs"]
    assert result["sides"] == ["one", "two"] and pair["seed"] == 4
    assert {name: len(turns) for name, turns in pair["turns"].items()} == {"one": 4, "two": 4}
    assert min(min(turns) for turns in pair["turns"].values()) > 0
    assert pair["ratio"] == pytest.approx(ratio_of_turns(pair["turns"]["one"], pair["turns"]["two"]))
    assert pair["about"]["one"]["threads"] == 1
    assert "; no interval; 1 pair of alternating processes; an interval needs at least 3, " in result["sentence"]
    assert printed.count("trainings here: 2\n") == 1


def tells_who_is_there(trainer: "Trainer") -> None:
    print("trainings here:", len(workers_of(psutil.Process().ppid())), flush=True)


def workers_of(stage: int) -> list[psutil.Process]:
    """Its processes that train, ended ones that it has not waited for included."""
    return [child for child in psutil.Process(stage).children() if "resource_tracker" not in str(command_of(child))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended, perhaps just now
        return []


def test_the_sentence_names_the_faster_side_first_or_why_there_is_no_ratio(monkeypatch: pytest.MonkeyPatch):
    sides = speed.TimedSide("cpu", "cpu"), speed.TimedSide("cuda", "cuda")

    def said(*ratios: float, others: int = 0, **out_of_memory: list[str]) -> str:
        common = {"device_name": "a device", "threads": 2, "precision": "fp32", "step": "eager"}
        facts = {
            side.name: {**common, "out_of_memory": out_of_memory.get(side.name), "other_processes": others}
            for side in sides
        }
        pairs = [speed.Pair(0, ratio, {}, {}, facts, 0.0) for ratio in ratios]
        monkeypatch.setattr(speed, "measure_pairs", lambda *_: iter(pairs))
        return str(speed.compare("tiny", sides, [0])["sentence"]).removeprefix("tiny: ")

    assert said(4.0, 4.0, 4.0).startswith("cuda 4.00 times as fast as cpu (95% interval 4.00 to 4.00); 3 pairs")
    assert said(0.5, 0.5, 0.5).startswith("cpu 2.00 times as fast as cuda (95% interval 2.00 to 2.00); 3 pairs")
    assert said(0.5, 4.0, 1.0).startswith("No difference in speed detected")
    assert "; cpu: a device, 2 threads, fp32, eager; cuda: a device" in said(4.0)
    assert said(4.0, cuda=["2 parts"]) == "no speed-up is reported, because memory ran out on cuda."
    assert "other processes used the GPU of cpu and cuda" in said(4.0, others=1)


def test_a_worker_that_is_killed_ends_the_stage_with_its_reason_and_the_other_worker(
    compared: tuple[dict[str, Any], str],
):
    printed = compared[1]
    assert "the speed of tiny on two was not measured: its process was killed" in printed and "left: []" in printed


def dies(trainer: "Trainer") -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long  # that a stage leaves no worker: the test above
def test_no_worker_outlives_a_stage_that_is_killed(ready: Path):
    code = f"""
from stages.speed import *
sides = [TimedSide('one', 'cpu'), TimedSide('two', 'cpu')]
for pair in measure_pairs('tiny', sides, range(1000), {SHORT}):
    print(pair.seed, flush=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ready, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "0\n"
        workers = wait_for(lambda: psutil.Process(process.pid).children(), what="the second pair")
        process.kill()
    wait_for(lambda: all(map(is_gone, workers)), 60.0, "the end of the workers")


def test_one_kind_of_device_is_nothing_to_pair_and_needs_no_torch(ready: Path):
    code = "import sys; from stages import speed; speed.main('tiny'); assert not {'torch', 'numpy'} & set(sys.modules)"
    printed = run(ready, sys.executable, "-c", code).stdout
    sentence = "tiny: only one kind of device (cpu), so no speed-up is measured."
    assert printed == ""
    assert json.loads((ready / "results/speed/tiny.json").read_text())["sentence"] == sentence
