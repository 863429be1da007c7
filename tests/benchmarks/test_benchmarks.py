"""The contenders of the speed comparison do the same work."""

import importlib.util
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import contenders, costs, throughput, workers
from benchmarks.contenders import (
    Case,
    Contender,
    Over,
    StepTimer,
    floor,
    lightning,
    loss_of,
    open_trainer,
    plain,
    plain_tuned,
    random_training,
    tandem,
)  # fmt: skip
from benchmarks.networks import Usual
from benchmarks.throughput import SIZES, measure_rounds, tf32_line
from tandem.devices.device import Device
from tandem.devices.graphs import NUM_WARMUPS
from tandem.training import opening
from tandem.training.execution import CPU
from tandem.training.opening import make_trial
from tandem.training.threads import ThreadTuner
from tandem.training.trials import one_batch
from tandem.training.workers import ALONE

CASES = [case for case in SIZES["guides"]() if case.name != "sign, batch 32"]
NAMES = [case.workload for case in CASES]
REFERENCE = Contender(plain)
PEERS = {
    "plain tuned": Contender(plain_tuned),
    "tandem": Contender(tandem, is_tandem=True),
    "floor": Contender(floor, is_tandem=True),
    "lightning default": Contender(lightning),
    "lightning tuned": Contender(lightning, is_tuned=True),
}


@pytest.fixture(autouse=True)
def _numerics_are_put_back() -> Iterator[None]:
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(threads)


def one_batch_long(case: Case) -> Case:
    """Without dropout, clipped hard, and with a single batch, so that all see the same one, if in another order."""
    settings = replace(case.settings, model=replace(case.settings.model, dropout=0.0), max_grad_norm=0.01)
    return replace(case, settings=settings, data=replace(case.data, num_sequences=settings.batch_size))


def first_step(case: Case, contender: Contender) -> torch.Tensor:
    """The gradient that a contender's first step takes, as one vector."""
    trainer = open_trainer(case, contender, "cpu")
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]

    def tick() -> None:
        raise Over

    with pytest.raises(Over):
        contender.loop(trainer, tick, contender)
    after = list(trainer.model.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    return torch.cat([parameter.grad.flatten() for parameter in after])


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_usual_networks_equal_tandems(case: Case):
    case = one_batch_long(case)
    ours, usual = open_trainer(case, PEERS["tandem"], "cpu"), open_trainer(case, REFERENCE, "cpu")
    assert isinstance(usual.model, Usual) and not isinstance(ours.model, Usual)
    batch = one_batch(ours, case.settings.batch_size)
    losses = [loss_of(trainer, trainer.model, [batch.values, batch.mask, batch.targets]) for trainer in (ours, usual)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for parameter, other in zip(ours.model.parameters(), usual.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=0)
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_every_contender_takes_the_same_first_step(
    case: Case, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if name.startswith("lightning") and not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed")
    monkeypatch.chdir(tmp_path)  # where Lightning leaves its log
    case = one_batch_long(case)
    expected, actual = first_step(case, REFERENCE), first_step(case, PEERS[name])
    assert expected.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert (actual - expected).norm() < 1e-4 * expected.norm()


def test_tandem_takes_its_steps_with_the_threads_of_the_round():
    trainer, numbers = open_trainer(one_batch_long(CASES[0]), PEERS["tandem"], "cpu"), list[int]()
    trainer.model.register_forward_pre_hook(lambda *_: numbers.append(torch.get_num_threads()))

    def tick() -> None:
        torch.set_num_threads(2)
        if len(numbers) == 2:
            raise Over

    with pytest.raises(Over):
        tandem(trainer, tick, PEERS["tandem"])
    assert numbers[1] == 2


def test_auto_chooses_the_precision_with_the_steps_of_a_training(monkeypatch: pytest.MonkeyPatch):
    """On a GPU these are captured: another precision is faster, or not, than with eager ones."""
    steps = []
    monkeypatch.setattr(contenders, "open_trainer", lambda case, contender, device: steps.append(contender.step))
    monkeypatch.setattr(contenders, "choose_precision", lambda trainer, device: ("fp32", "planted"))
    contenders.contenders(CASES[0], "cpu")
    assert steps == [CASES[0].settings.step] == ["auto"]


def test_a_changed_training_has_what_auto_chose_for_the_one_that_it_is_compared_with():
    settings = replace(CASES[0].settings, precision="auto", threads="auto", step="eager")
    trainer = make_trial(*random_training(CASES[0].data), settings, CPU)
    trainer.executor.use(replace(trainer.execution, precision="bf16"))
    trainer.thread_tuner = ThreadTuner([1, 2], 2)
    larger = costs.changed(trainer, {"batch_size": 32})
    assert (larger.execution.precision, larger.thread_tuner.numbers, larger.thread_tuner.number) == ("bf16", [1, 2], 2)
    assert larger.settings.batch_size == 32 != trainer.settings.batch_size
    assert costs.changed(trainer, {"precision": "fp32"}).execution.precision == "fp32"


@pytest.mark.gpu
def test_the_worker_that_several_are_compared_with_takes_captured_steps(monkeypatch: pytest.MonkeyPatch):
    """A training on one GPU captures them."""
    case, trials = CASES[0], []
    monkeypatch.setattr(contenders, "read_training", lambda workload: random_training(case.data))
    monkeypatch.setattr(opening, "make_trial", lambda *about: trials.append(make_trial(*about)) or trials[-1])
    monkeypatch.setattr(torch.distributed, "new_group", lambda ranks: None)
    _, [entry] = workers.open_entries(Namespace(workload="sign", device="cuda", workers=[1], batches=[16]), ALONE)
    for _ in range(NUM_WARMUPS + 1):
        entry.step()
    assert len(trials[0].step.graphs.captured) == 1


@pytest.mark.long
def test_a_contender_that_cannot_run_is_absent_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    case = CASES[NAMES.index("price")]
    others = {"graph": replace(PEERS["tandem"], step="graph"), "another": REFERENCE}
    has_room = iter([True, False])  # asked after the start of each of the others
    monkeypatch.setattr(throughput, "has_room", lambda device: next(has_room))
    entered = {"plain": (case, REFERENCE), **{name: (case, contender) for name, contender in others.items()}}
    rounds = measure_rounds(entered, Namespace(rounds=2, seconds=0.05, device="cpu", thread_counts=[1]))
    assert len(rounds.rates["plain"]) == 2 and not rounds.rates["graph"] and not rounds.rates["another"]
    assert "CUDA graphs need a CUDA device" in rounds.missing_reasons["graph"]
    assert rounds.missing_reasons["another"] == "with its process, less than 1024 MiB of the GPU would be free"


def test_a_round_queues_no_more_steps_on_a_gpu_than_it_has_time_for(monkeypatch: pytest.MonkeyPatch):
    """A step takes the device a second, and the host no time."""
    now, sent, answers = [0.0], [], iter([(3.0, torch.get_num_threads())] * 2)

    class Gpu(Device):
        num_queued = 0

        def synchronize(self) -> None:
            now[0] += self.num_queued
            self.num_queued = 0

    def recv() -> tuple[float, int]:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(contenders, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    timer = StepTimer(SimpleNamespace(send=sent.append, recv=recv), Gpu())
    with pytest.raises(Over):
        for _ in range(1000):
            timer.device.num_queued += 1
            timer()
    assert sent == [(1, 1.0), (3, 3.0), (3, 3.0)]


def test_a_table_says_which_rows_have_tf32():
    names = ("fp32", "tf32", "bf16", "fp16")
    entered = {name: replace(REFERENCE, precision=name) for name in names}
    assert tf32_line(entered, names) == "- TF32 is allowed in `tf32` (all products), `bf16` (cuDNN alone)"
    assert tf32_line(entered, ("fp32", "fp16")) == tf32_line({}, names) == "- TF32 is allowed in no row"


def test_a_card_with_one_precision_has_no_choice_to_measure(monkeypatch: pytest.MonkeyPatch):
    """As a T4, which has no TF32 and emulates bf16."""
    monkeypatch.setattr(contenders.auto, "precisions", lambda device: ["fp32"])
    trainer = SimpleNamespace(device=CPU)
    expected = "fp32", "precision fp32, the only one that `precision: auto` tries here"
    assert contenders.choose_precision(trainer, "cpu") == expected
