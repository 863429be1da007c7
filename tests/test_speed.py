"""Pairs of processes that take turns, the interval over them, and the benchmark that tries whether it is one."""

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from benchmarks import aa
from stages import speed
from stages.comparing.statistics import paired_speed_up, ratio_of_turns
from tests.projects import ROOT, environment, run, wait_for
from tests.trainers import new_trainer

if TYPE_CHECKING:
    from stages.training.trainer import Trainer

REFUSED = "refused: the speed of tiny on two was not measured: "
SHORT = "Length(turn_seconds=0.01, num_turns=4, warmup_seconds=0.1)"


# The statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logs", "middle", "half"),
    [
        # t of 2, 4 degrees of freedom at 0.975: 4.302653, 2.776445 (Fisher and Yates, table III)
        ([0.1, 0.2, 0.3], 0.2, 4.302653 * 0.1 / math.sqrt(3)),
        ([0.0, 0.1, 0.2, 0.3, 0.4], 0.2, 2.776445 * math.sqrt(0.025) / math.sqrt(5)),
        ([math.log(2)] * 3, math.log(2), 0.0),
    ],
)
def test_the_interval_is_students_t_on_the_logarithms(logs: list[float], middle: float, half: float):
    found = paired_speed_up([math.exp(log) for log in logs])
    assert found.num_pairs == len(logs) and not found.missing_reason
    assert found.ratio == pytest.approx(math.exp(middle))
    assert found.low == pytest.approx(math.exp(middle - half), rel=1e-6)
    assert found.high == pytest.approx(math.exp(middle + half), rel=1e-6)


@pytest.mark.parametrize("ratios", [[1.5], [1.5, 6.0]])
def test_fewer_than_three_pairs_have_a_ratio_and_the_way_to_an_interval(ratios: list[float]):
    found = paired_speed_up(ratios)
    assert found.ratio == pytest.approx(math.exp(np.log(ratios).mean()))
    assert found.low is None and found.high is None and not found.is_clear
    assert "dvc exp run -S 'seeds=[0,1,2,3,4]'" in found.missing_reason
    assert found.missing_reason == found.reversed().missing_reason


def test_no_pair_is_refused():
    with pytest.raises(ValueError, match="no pair"):
        paired_speed_up([])


def test_a_speed_up_the_other_way_round_is_that_of_the_other_side():
    ratios = [1.2, 1.3, 1.1, 1.4]
    found, other = paired_speed_up(ratios).reversed(), paired_speed_up([1 / ratio for ratio in ratios])
    for name in ("ratio", "low", "high", "num_pairs"):
        assert getattr(found, name) == pytest.approx(getattr(other, name))


def test_one_side_is_faster_only_where_the_interval_leaves_out_1():
    assert paired_speed_up([1.3, 1.4, 1.35]).is_clear and paired_speed_up([0.7, 0.8, 0.75]).is_clear
    assert not paired_speed_up([0.9, 1.4, 1.1]).is_clear


def test_what_slows_both_sides_of_a_turn_and_what_disturbs_single_turns_is_gone_from_a_pairs_figure():
    base = [2.0 * slow for slow in (1.0, 1.1, 1.5, 3.0, 2.0, 1.2, 1.0)]
    other = [1.0 * slow for slow in (1.0, 1.1, 1.5, 3.0, 2.0, 1.2, 1.0)]
    assert ratio_of_turns(base, other) == pytest.approx(2.0)
    base[1], other[4] = 100.0, 100.0
    assert ratio_of_turns(base, other) == pytest.approx(2.0)


def test_intervals_over_pairs_cover_the_truth_and_those_over_the_epochs_of_a_process_do_not():
    """What a process has of its own, and a drift that both sides share, as they were measured on real machines."""
    draw, truth, num_trials, covered = np.random.default_rng(0), 1.3, 1000, Counter()
    for _ in range(num_trials):
        first, second = processes(draw, 5)
        ratios = [ratio_of_turns(truth * one, two) for one, two in zip(first, second, strict=True)]
        found = paired_speed_up(ratios)
        covered["pairs"] += found.low <= truth <= found.high
        low, high = over_epochs(draw, truth * first[0], second[1])  # two processes, one after the other
        covered["epochs"] += low <= truth <= high
    # 950 of 1000 are expected, give or take four standard errors.
    assert 922 <= covered["pairs"] <= 978
    assert covered["epochs"] < 700


def processes(draw: np.random.Generator, num_pairs: int, num_turns: int = 15) -> np.ndarray:
    """(2, num_pairs, num_turns): seconds of turns of processes that are as fast, but for what each has of its own."""
    steps = draw.normal(scale=0.02, size=(1, num_pairs, num_turns)).cumsum(axis=2)
    drift = draw.normal(scale=0.1, size=(1, num_pairs, 1)) + steps
    own = draw.normal(scale=0.02, size=(2, num_pairs, 1))
    return np.exp(drift + own + draw.normal(scale=0.03, size=(2, num_pairs, num_turns)))


def over_epochs(draw: np.random.Generator, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The percentile bootstrap of the ratio of medians, which takes epochs for independent."""
    resampled = (np.median(draw.choice(each, (200, len(each))), axis=1) for each in (first, second))
    low, high = np.quantile(np.divide(*resampled), (0.025, 0.975))
    return low, high


# Real processes ------------------------------------------------------------------------------------------------------


def python(project: Path, code: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    code = f"from stages.speed import *\nfrom tests import test_speed\n{code}"
    return run(project, sys.executable, "-c", code, check=check, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize("seeds", [[4, 5], pytest.param([4, 5, 6], marks=pytest.mark.long)], ids=len)
def test_pairs_of_real_trainings(ready: Path, seeds: list[int]):
    """The CPU against itself with another batch size. Every process is there while its partner is."""
    sides = (
        "[TimedSide('one', 'cpu'), "
        "TimedSide('two', 'cpu', {'batch_size': 8, 'threads': 'auto'}, test_speed.tells_who_is_there)]"
    )
    code = f"import json; json.dump(compare('tiny', {sides}, {seeds}, {SHORT}), open('found.json', 'w'))"
    printed = python(ready, code).stdout
    found = json.loads((ready / "found.json").read_text())
    assert found["sides"] == ["one", "two"]
    assert [pair["seed"] for pair in found["pairs"]] == seeds
    for number, pair in enumerate(found["pairs"], 1):
        assert {name: len(turns) for name, turns in pair["turns"].items()} == {"one": 4, "two": 4}
        assert min(min(turns) for turns in pair["turns"].values()) > 0
        assert pair["ratio"] == pytest.approx(ratio_of_turns(pair["turns"]["one"], pair["turns"]["two"]))
        assert f"tiny, pair {number} of {len(seeds)}: an epoch's steps take one " in printed
        assert pair["about"]["one"]["threads"] == 1
        assert pair["about"]["two"]["threads"] == found["about"]["two"]["threads"], "auto takes one number for all"
    speed_up = found["speed_up"]
    assert speed_up["num_pairs"] == len(seeds)
    if len(seeds) == 3:
        assert speed_up["low"] <= speed_up["ratio"] <= speed_up["high"] and "3 processes a side" in found["sentence"]
    else:
        assert speed_up["low"] is None and "no interval: 2 pairs were measured and it takes 3" in found["sentence"]
    there = [line for line in printed.splitlines() if line.startswith("trainings here")]
    assert there == ["trainings here: 2"] * len(seeds)


def tells_who_is_there(trainer: "Trainer") -> None:
    print("trainings here:", len(workers_of(os.getppid())), flush=True)


def workers_of(stage: int) -> list[psutil.Process]:
    """Its processes that train, ended ones that it has not waited for included."""
    return [each for each in psutil.Process(stage).children() if "resource_tracker" not in str(command_of(each))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended, perhaps just now
        return []


def test_the_sentence_names_the_faster_side_first_and_both_sides_work():
    one, two = speed.TimedSide("cpu", "cpu"), speed.TimedSide("cuda", "cuda")
    about = {"threads": 2, "precision": "fp32", "step": "eager", "out_of_memory": []}
    abouts = {name: {**about, "device_name": f"a {name}"} for name in ("cpu", "cuda")}
    pairs = [speed.Pair(seed, ratio, {}, {}, abouts, 0.0) for seed, ratio in enumerate((4.0, 4.0, 4.0))]

    def said(*ratios: float, out_of_memory: tuple[str, ...] = ()) -> str:
        return speed.sentence(paired_speed_up(ratios), (one, two), pairs, out_of_memory)

    who = "cuda: a cuda, 2 threads, fp32, eager; cpu: a cpu, 2 threads, fp32, eager"
    assert said(4.0, 4.0, 4.0) == (
        f"cuda is 4.00 times as fast as cpu (95% interval 4.00 to 4.00, 3 processes a side in turns); {who}"
    )
    assert said(0.5, 0.5, 0.5).startswith("cpu is 2.00 times as fast as cuda (95% interval 2.00 to 2.00")
    assert said(0.5, 4.0, 1.0).startswith("no difference in speed can be told: cuda is 1.26 times as fast as cpu, 95%")
    assert said(4.0) == (
        "cuda is 4.00 times as fast as cpu (no interval: 1 pair was measured and it takes 3; "
        f"`dvc exp run -S 'seeds=[0,1,2,3,4]'` measures 5); {who}"
    )
    assert said(4.0, 4.0, 4.0, out_of_memory=("cuda",)) == "no speed-up is stated, because memory ran out on cuda"


def test_no_speed_up_is_stated_where_others_were_on_the_gpu(monkeypatch: pytest.MonkeyPatch):
    about = {name: {"other_processes": int(name == "cuda")} for name in ("cpu", "cuda")}
    pair = speed.Pair(0, 4.0, {"cpu": 4.0, "cuda": 1.0}, {}, about, 0.0)
    monkeypatch.setattr(speed, "measure_pairs", lambda *_: iter([pair]))
    found = speed.compare("tiny", (speed.TimedSide("cpu", "cpu"), speed.TimedSide("cuda", "cuda")), [0])
    assert "speed_up" not in found and "other processes were on the GPU of cuda" in found["sentence"]


def test_a_worker_that_fails_ends_the_stage_with_its_reason_and_the_other_worker(ready: Path):
    """One that is killed, one whose device is not there, one whose memory runs out."""
    cases = {
        "TimedSide('one', 'cpu'), TimedSide('two', 'cpu', adapt=test_speed.dies)": (
            f"{REFUSED}its process was ended by SIGKILL"
        ),
        "TimedSide('one', 'cpu', adapt=test_speed.waits_until_alone), TimedSide('two', 'cuda')": (
            f"{REFUSED}results/hardware/cuda.json is not there"
        ),
        "TimedSide('one', 'cpu'), TimedSide('two', 'cpu', adapt=test_speed.has_no_memory)": (
            "tiny: no speed-up is stated, because memory ran out on two: out of memory (planted)"
        ),
    }
    code = f"""
for sides in {", ".join(f"[{sides}]" for sides in cases)}:
    try:
        print(compare('tiny', sides, [0], {SHORT})['sentence'])
    except ValueError as error:
        print('refused:', error)
    print('left:', test_speed.workers_of(os.getpid()))
"""
    *ends, _ = python(ready, code).stdout.split("left: []\n")
    for printed, outcome in zip(ends, cases.values(), strict=True):
        assert outcome in printed


def waits_until_alone(trainer: "Trainer") -> None:
    """Until the other worker has failed: it is asked when nobody is there to hear it."""
    wait_for(lambda: len([each for each in workers_of(os.getppid()) if is_running(each)]) == 1)


def dies(trainer: "Trainer") -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def has_no_memory(trainer: "Trainer") -> None:
    from stages.training.memory import OutOfMemory

    raise OutOfMemory("planted", [], ["something"])


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
    wait_for(lambda: not any(map(is_running, workers)), 60.0, "the end of the workers")


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_one_kind_of_device_is_nothing_to_pair_and_needs_no_torch(ready: Path):
    code = "import sys; from stages import speed; speed.main('tiny'); assert not {'torch', 'scipy'} & set(sys.modules)"
    printed = run(ready, sys.executable, "-c", code).stdout
    assert printed == "tiny: one kind of device (cpu), nothing to pair.\n"
    assert json.loads((ready / "results/speed/tiny.json").read_text())["sentence"] == printed.strip()


def test_there_is_a_side_for_each_kind_of_device_and_the_cpu_has_its_best_number_of_threads(ready: Path):
    known = json.loads((ready / "results/hardware/cpu.json").read_text())
    for device, kind in {"cpu": "cpu", "auto": "cuda", "cuda": "cuda"}.items():
        (ready / f"results/hardware/{device}.json").write_text(json.dumps({**known, "kind": kind}))
    code = "print([(each.name, each.device, each.changes) for each in sides_of(['auto', 'cuda', 'cpu'])])"
    assert python(ready, code).stdout == "[('cpu', 'cpu', {'threads': 'auto'}), ('cuda', 'auto', {})]\n"


# What the benchmark plants --------------------------------------------------------------------------------------------


def test_a_tenth_more_is_eleven_steps_for_every_ten_that_are_told(tmp_path: Path):
    trainer = new_trainer("cpu", "device", tmp_path)
    aa.a_tenth_more(trainer)
    taken: Counter[str] = Counter()
    trainer.optimizer.register_step_post_hook(lambda *_: taken.update(["steps"]))
    num_taken = sum(len(list(trainer.training_steps())) for _ in range(11))
    assert trainer.steps_per_epoch == 4 and (taken["steps"], num_taken) == (44, 40)


def test_no_kernels_computes_the_same_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    from stages.models.kernels import attention, decoder, gru

    for module in (attention, decoder, gru):
        monkeypatch.setattr(module, "is_supported", module.is_supported)  # put back afterwards
    trainer = new_trainer("cpu", "device", tmp_path)
    batch, calls = trainer.one_batch(16), []
    monkeypatch.setattr(gru, "gru", lambda *inputs, gru=gru.gru: (calls.append("kernel"), gru(*inputs))[1])
    trainer.model.eval()
    expected = trainer.model(*batch.inputs())
    assert calls
    calls.clear()
    aa.no_kernels(trainer)
    torch.testing.assert_close(trainer.model(*batch.inputs()), expected)
    assert not calls


def test_trials_are_spread_over_workloads_and_kinds_and_end_with_their_number():
    options = aa.parse(["--trials", "4", "--workloads", "sign", "price"])
    done: list[dict] = []
    while cell := aa.next_cell(done, options):
        done.append(dict(zip(("workload", "kind"), cell, strict=True)))
        assert len(done) <= 8
    counts = Counter((trial["workload"], trial["kind"]) for trial in done)
    assert set(counts.values()) == {1, 2} and all((kind == "same") == (n == 2) for (_, kind), n in counts.items())
    assert len({tuple(trial.values()) for trial in done[:6]}) == 6, "none waits until another is done"


def test_the_table_counts_false_alarms_and_what_was_found():
    trials = [trial("same", 1.0), trial("same", 1.2), trial("a tenth more", 1.1), trial("a tenth more", 0.9)]
    text = aa.table(trials)
    assert "| same | sign | 2 | 1 | " in text
    assert "| a tenth more | sign | 2 | 1 | " in text, "a difference on the wrong side is not found"
    assert "False alarms: 1 of 2 (50.0%)" in text


def trial(kind: str, ratio: float) -> dict:
    """Five pairs that scatter by 1% around a ratio."""
    pairs = [{"turns": {"a": [1.0] * 3, "b": [ratio * each] * 3}} for each in (0.99, 0.995, 1.0, 1.005, 1.01)]
    return {"kind": kind, "workload": "sign", "load": 1.0, "pairs": pairs}


@pytest.mark.parametrize(("num_trials", "too_many"), [(20, 4), (40, 5), (100, 10)])
def test_the_limit_is_the_least_count_that_chance_seldom_reaches(num_trials: int, too_many: int):
    """Of the binomial distribution, written out."""
    chances = [math.comb(num_trials, n) * 0.05**n * 0.95 ** (num_trials - n) for n in range(num_trials + 1)]
    assert sum(chances[too_many:]) <= 0.05 < sum(chances[too_many - 1 :])
    assert aa.limit(num_trials) == too_many
