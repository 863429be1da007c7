"""The number of threads changes no bit of a training, so it follows the machine's load.

No test asserts a duration: where time matters, it is planted, as the seconds of a step with each number of threads.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.devices.names import kind_of
from tandem.models.kernels import ordered
from tandem.params.schema import Augment
from tandem.training import auto
from tandem.training.batches import Split
from tandem.training.threads import ThreadTuner
from tandem.training.trainer import Trainer
from tests.models.test_models import COMBINATIONS, CONFIGS
from tests.projects import ROOT, python
from tests.trainers import SETTINGS, assert_same_bits, finish, tensors, trainer_on

# Wide enough for products and sums that torch divides among threads.
WIDE: dict[str, dict[str, Any]] = {
    "gru": {"hidden_size": 96, "dropout": 0.2},
    "transformer": {"hidden_size": 64, "num_heads": 4, "feedforward_size": 128, "dropout": 0.1},
    "conv_gru": {"hidden_size": 48, "kernel_size": 5, "dropout": 0.1},
    "seq2seq": {"hidden_size": 32, "dropout": 0.2},
    "hybrid": {"hidden_size": 64, "dropout": 0.1},
}
FITTED = ("rocket", "model_selection")
# Each network and each task; their other combinations take long.
ONCE = (
    ("classify", "gru"), ("regress", "transformer"), ("detect", "conv_gru"), ("forecast", "seq2seq"),
    ("forecast", "hybrid"),
)  # fmt: skip
NUMBERS = (1, 2, 3, 4, 8)


@pytest.fixture(autouse=True)
def number_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def with_numbers(compute: Callable[[], list[Tensor]]) -> dict[int, list[Tensor]]:
    results = {}
    for number in NUMBERS:
        torch.set_num_threads(number)
        results[number] = compute()
        assert torch.get_num_threads() == number  # also where one thread computed some of it
    return results


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def trained(task: str, model: str, num: int, steps: int, precision: str = "fp32") -> Trainer:
    augment = Augment(coupled_features=1, mix=0.0, shift=0.0, warp=0.0) if task == "forecast" else SETTINGS.augment
    settings = replace(
        SETTINGS, model=replace(CONFIGS[model], **WIDE.get(model, {})), epochs=1 if model in FITTED else 2,
        warmup_epochs=0, batch_size=64, precision=precision, augment=augment,
    )  # fmt: skip
    return trainer_on(Split(tensors(num, steps, task), kind_of("cpu")()), settings, task)


class Alternating(ThreadTuner):
    """Takes another number after every step."""

    def add(self, size: int, seconds: float) -> None:
        self.number = self.numbers[(self.numbers.index(self.number) + 1) % len(self.numbers)]


@pytest.mark.parametrize(
    ("precision", "num", "steps"),
    [
        ("fp32", 90, 20),
        ("bf16", 70, 8),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("fp32", 90, 45), ("fp32", 140, 8), ("bf16", 90, 45))
        ),
    ],
)
@pytest.mark.parametrize(
    ("task", "model"),
    [pair for pair in COMBINATIONS if pair in ONCE]
    + [
        pytest.param(*pair, marks=pytest.mark.long)
        for pair in COMBINATIONS
        if pair not in ONCE and pair[1] not in FITTED
    ],
)
def test_a_training_has_the_bits_of_one_thread_with_any_numbers(task, model, precision, num, steps):
    expected = finish(trained(task, model, num, steps, precision))
    trainer = trained(task, model, num, steps, precision)
    assert list(auto.seconds_with_same_bits(trainer, NUMBERS)) == list(NUMBERS)
    assert trainer.state()["threads"] is None, "a resumed training may use another number"
    trainer.thread_tuner = Alternating(NUMBERS)
    assert_same_bits(finish(trainer), expected)


@pytest.mark.long
@pytest.mark.parametrize("instructions", ["AVX512_CORE", "AVX2"])
def test_a_processor_without_instructions_for_bf16_gives_the_bits_of_one_thread(instructions: str):
    """Without a trial of each product, one of 24 trainings had other bits here, and 7 where torch's GRU took part. A
    process of its own: oneDNN asks once what it may use.
    """
    python(
        ROOT, "from tests.training.test_threads import train_in_bf16; train_in_bf16()", ONEDNN_MAX_CPU_ISA=instructions
    )


def train_in_bf16() -> None:
    for task, model in COMBINATIONS:
        if model not in FITTED:
            test_a_training_has_the_bits_of_one_thread_with_any_numbers(task, model, "bf16", 90, 45)


def test_products_in_bf16_are_tried_with_values_that_show_how_a_sum_is_rounded():
    """Two orders of a sum give other results, though each is rounded to three digits."""
    left, right, bias = torch.randn(16, 65).bfloat16(), torch.randn(65, 4).bfloat16(), torch.randn(4).bfloat16()
    ordered.show_rounding(left, right, bias)
    results = [(left.float() @ right.float()).bfloat16(), (left.float().flip(1) @ right.float().flip(0)).bfloat16()]
    assert not torch.equal(*results) and max(result.abs().max() for result in results) < 1e-4
    assert not bias.any()


@pytest.mark.parametrize(("name", "kernels"), [("net.py:Own", "auto"), ("gru", "torch")])
def test_a_training_in_bf16_whose_operations_are_torchs_keeps_its_number(name: str, kernels: str, monkeypatch):
    """Rounding to bf16 hides from a trial of three steps what changes a training."""
    trainer = trained("classify", "gru", 60, 8, "bf16")
    model = SimpleNamespace(**vars(trainer.settings.model) | {"name": name})
    trainer.settings = replace(trainer.settings, model=model, kernels=kernels, threads=2)
    assert auto.choose_threads(trainer, {})[0].kept_number == 2
    monkeypatch.setattr(auto, "choose_kept_threads", lambda *_: (2, "threads 2"))
    monkeypatch.setattr(auto, "usable_cores", lambda: 2)
    trainer.settings = replace(trainer.settings, threads="auto")
    threads, sentence = auto.choose_threads(trainer, {})
    assert threads.numbers == [2] and threads.kept_number == 2
    assert sentence == "threads 2; it is kept, because in bf16 another number may change the last bits"


@pytest.mark.parametrize("model", FITTED)
def test_a_fit_has_the_bits_of_one_thread(model: str):
    one, other = (trained("classify", model, 60, 30) for _ in range(2))
    one.thread_tuner, other.thread_tuner = ThreadTuner([1]), ThreadTuner([3])
    assert_same_bits(finish(one), finish(other))


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    outputs = layer(x)
    outputs = outputs if isinstance(outputs, Tensor) else outputs[0]  # an LSTM's state is part of it
    weights = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    return [outputs, *torch.autograd.grad(outputs, [x, *layer.parameters()], weights)]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(64, 10), (1024, 64)),
        (lambda: nn.Linear(96, 40), (10, 96)),
        (lambda: nn.Linear(96, 5), (64, 96, 96)),
        (lambda: nn.Linear(1500, 40), (56, 1500)),
        (lambda: nn.Linear(384, 15, bias=False), (56, 384)),
        (lambda: nn.Linear(192, 1), (128, 192)),
        (lambda: nn.LayerNorm(64), (512, 8, 64)),
        (lambda: nn.LayerNorm([8, 64]), (512, 8, 64)),
        (lambda: nn.Conv1d(16, 48, 5, padding="same"), (64, 16, 96)),
        (lambda: nn.Conv1d(48, 48, 3, stride=2, padding=1, dilation=2, groups=4, bias=False), (64, 48, 96)),
        (lambda: nn.LSTM(3, 32, batch_first=True), (64, 45, 3)),
        (lambda: nn.LSTM(3, 32, 2, bias=False, bidirectional=True), (45, 64, 3)),
    ],
)
def test_a_layer_computes_what_torchs_does_with_the_same_bits_on_any_threads(make, shape):
    torch.manual_seed(0)
    layer, inputs = make(), torch.randn(shape)
    torch.set_num_threads(1)
    expected = gradients(layer, inputs)
    ordered.use_in(layer)
    assert type(layer).__module__ == ordered.__name__
    results = with_numbers(lambda: gradients(layer, inputs))
    torch.testing.assert_close(results[1], expected, rtol=1e-4, atol=1e-4)
    assert [number for number in NUMBERS if not are_equal(results[number], results[1])] == []


@pytest.mark.parametrize("is_forward_safe", [False, True])
def test_an_lstm_that_more_threads_would_change_has_the_bits_of_one_thread(is_forward_safe: bool, monkeypatch):
    """On any processor: that they would is planted."""
    monkeypatch.setattr(ordered, "keeps_bits", lambda *arguments: is_forward_safe and not arguments[3])

    def compute() -> list[Tensor]:
        torch.manual_seed(0)
        results = gradients(layer, inputs)
        with torch.no_grad():
            return [*results, *layer(inputs, (hidden, hidden))[1]]

    layer, inputs, hidden = nn.LSTM(3, 8, 2, batch_first=True, dropout=0.5), torch.randn(4, 9, 3), torch.randn(2, 4, 8)
    torch.set_num_threads(1)
    expected = compute()
    ordered.use_in(layer)
    assert [number for number, results in with_numbers(compute).items() if not are_equal(results, expected)] == []
    with pytest.raises(RuntimeError, match="Expected 3, got 5"):
        layer(torch.randn(4, 9, 5))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only planted steps move."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    threads = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.__setitem__(0, number))
    return now


def seconds_until(threads: ThreadTuner, clock: list[float], num_steps: int, step: Callable[[int], float]) -> float:
    """The planted seconds of some steps."""
    start = clock[0]

    def steps() -> Iterator[int]:
        for _ in range(num_steps):
            clock[0] += step(threads.number)
            yield 10

    assert sum(threads.timed(steps())) == 10 * num_steps
    return clock[0] - start


@pytest.mark.parametrize("step_seconds", [0.001, 0.03, 1.0])
@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({1: 1.0, 2: 1.5}, 2),
        ({1: 1.0, 2: 0.25}, 1),  # beside a busy process
        ({1: 1.0, 2: 1.02}, 1),  # too little for a core that others could use
        ({1: 1.0, 2: 1.8, 4: 3.0, 8: 1.0}, 4),
        ({1: 1.0, 2: 0.98, 4: 1.6, 8: 1.9, 16: 1.2}, 8),  # two threads of one core
    ],
)
def test_steps_take_the_fastest_number(step_seconds: float, speeds: dict[int, float], best: int, clock: list[float]):
    for start in (min(speeds), max(speeds)):
        threads = ThreadTuner(list(speeds), start)
        num_steps = round(120 / step_seconds)
        spent = seconds_until(threads, clock, num_steps, lambda number: step_seconds / speeds[number])
        assert threads.best == best
        assert spent < 1.1 * num_steps * step_seconds / speeds[best]


def test_the_number_follows_processes_that_come_and_go(clock: list[float]):
    threads = ThreadTuner([1, 2])
    idle, busy = {1: 0.03, 2: 0.02}, {1: 0.036, 2: 0.15}
    for seconds in (idle, busy, idle, busy, idle):
        least = min(seconds.values())
        # The wait until an idle core is noticed is LONGEST_WAIT, after a long time beside others.
        assert seconds_until(threads, clock, 6000, seconds.__getitem__) < 1.15 * 6000 * least
        assert threads.best == min(seconds, key=seconds.__getitem__)


def test_speeds_that_vary_beside_other_processes_cost_little(clock: list[float]):
    draw, threads = torch.Generator().manual_seed(0), ThreadTuner([1, 2])

    def seconds(number: int) -> float:
        return {1: 0.04, 2: 0.12}[number] * torch.randn(1, generator=draw).mul(0.5).exp().item()

    ideal = 0.04 * math.exp(0.5**2 / 2)  # the mean of a lognormal factor
    assert seconds_until(threads, clock, 6000, seconds) < 1.1 * 6000 * ideal


def test_an_epoch_says_how_many_threads_it_used(clock: list[float]):
    threads = Alternating([1, 2])
    seconds_until(threads, clock, 100, lambda number: 0.03 if number == 1 else 0.01)
    assert threads.mean_of_epoch() == 1.0  # `Alternating` counts nothing
    threads = ThreadTuner([1, 2])
    seconds_until(threads, clock, 300, lambda number: 0.03 if number == 1 else 0.02)
    assert 1.5 < threads.mean_of_epoch() < 2.0 and threads.mean_of_epoch() == 2.0
