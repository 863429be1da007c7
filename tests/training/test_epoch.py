"""An epoch on the device gives the bits of the plain loop, for every task and model, and its table the rates of torch.

Here its steps run uncaptured. What a capture adds to that needs a GPU: tests/gpu/test_gpu.py.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tandem.devices.graphs import CaptureFailed
from tandem.devices.names import kind_of
from tandem.models.seq2seq import ManualLSTM
from tandem.params import schema
from tandem.params.schema import Augment
from tandem.training.batches import Split
from tandem.training.execution import EAGERLY, choose_step, without_graph
from tandem.training.optimizer import learning_rates
from tandem.training.trainer import Trainer
from tests.models.test_models import CONFIGS
from tests.networks import TeacherForcing
from tests.trainers import SETTINGS, assert_same_bits, tensors, trainer_on

CPU = kind_of("cpu")()
NUM_SEQUENCES, NUM_STEPS = 50, 11
MODELS = {name: replace(CONFIGS[name], dropout=0.2) for name in ("gru", "transformer", "conv_gru")}
MODELS["seq2seq"] = replace(CONFIGS["seq2seq"], teacher_forcing=TeacherForcing(start=0.7, end=0.2, decay="linear"))
COMBINATIONS = [(task, model) for task, names in schema.MODELS.items() for model in names if model in MODELS]
ONE_PER_TASK = (("classify", "gru"), ("regress", "transformer"), ("detect", "conv_gru"), ("forecast", "seq2seq"))


def trainer_of(task_name: str, model_name: str, **changed: Any) -> Trainer:
    split = Split(tensors(NUM_SEQUENCES, NUM_STEPS, task_name), CPU)
    settings = replace(SETTINGS, model=MODELS[model_name], augment=Augment(2, 0.1, 0.1, 0.1), **changed)
    return trainer_on(split, settings, task_name)


class Uncaptured:
    """Does the work that a graph would replay. `fails_at`: the call whose capture fails."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.num_left, self.captured = fails_at, {"a graph": None}

    def run(self, key: Hashable, warm_up: Callable[[], object], work: Callable[[], object], num_warmups: int) -> None:
        if self.num_left is not None:
            self.num_left -= 1
            if self.num_left < 0:
                raise CaptureFailed("planted")
        work()


def uncaptured(trainer: Trainer, fails_at: int | None = None) -> Trainer:
    """The training as a GPU would do it, without its graphs."""
    for group in trainer.optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    trainer.executor.execution = replace(trainer.execution, step="graph", why_no_graph="")
    trainer.executor.graphs = Uncaptured(fails_at)  # type: ignore[assignment]
    return trainer


def trained(trainer: Trainer) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The weights; and of each epoch the loss, the rate, and the norms of the gradients."""
    torch.manual_seed(7)  # dropout
    epochs = [trainer.train_epoch() for _ in range(2)]
    assert epochs[-1].learning_rate == float(trainer.optimizer.param_groups[0]["lr"]), "that of the last step"
    assert all(0 < epoch.scalars["gradient_norm"] <= epoch.scalars["max_gradient_norm"] for epoch in epochs)
    return trainer.model.state_dict(), [(epoch.train_loss, epoch.learning_rate, epoch.scalars) for epoch in epochs]


def assert_equal_bits(one: Trainer, other: Trainer) -> None:
    assert_same_bits(trained(one), trained(other))


@pytest.mark.parametrize(
    ("task_name", "model_name", "changed"),
    [
        *((*names, {}) for names in COMBINATIONS),
        *((*names, {"grad_accum_steps": 3}) for names in ONE_PER_TASK),
        ("classify", "gru", {"batch_size": 64}),  # the ragged batch alone
    ],
)
def test_an_epoch_on_the_device_gives_the_bits_of_the_plain_loop(task_name: str, model_name: str, changed: Any):
    plain = trainer_of(task_name, model_name, **changed)
    assert plain.step.graphs is None
    assert_equal_bits(plain, uncaptured(trainer_of(task_name, model_name, **changed)))


@pytest.mark.parametrize("fails_at", [0, 2, 3, 5])
def test_where_a_capture_fails_the_plain_loop_takes_the_steps_that_are_left(fails_at: int):
    trainer = uncaptured(trainer_of("classify", "gru"), fails_at)
    assert_equal_bits(trainer_of("classify", "gru"), trainer)
    assert trainer.execution.step == "eager" and trainer.execution.why_no_graph == "the capture failed: planted"


def test_a_resumed_training_says_that_its_graph_was_let_go(monkeypatch: pytest.MonkeyPatch):
    """Also one that has nothing left to train."""
    monkeypatch.setattr(type(CPU), "graphs", lambda device: Uncaptured(), raising=False)
    for let_go in (False, True):
        begun, resumed = (uncaptured(trainer_of("classify", "gru")) for _ in range(2))
        begun.train_epoch()
        if let_go:
            begun.executor.fall_back(*without_graph(begun.execution))
        resumed.restore(begun.state())
        expected = ("eager", "memory ran out") if let_go else ("graph", "")
        assert (resumed.execution.step, resumed.execution.why_no_graph) == expected
        resumed.train_epoch()
        assert (resumed.execution.step, resumed.execution.why_no_graph) == expected


@pytest.mark.parametrize("has_captured", [True, False])
def test_where_memory_runs_out_beside_a_graph_it_is_said_why_steps_are_taken_eagerly(
    has_captured: bool, monkeypatch: pytest.MonkeyPatch
):
    """Planted: there is no memory to make a batch of."""

    class NoRoom(Uncaptured):
        def run(self, *_: Any) -> None:
            self.captured = {"a graph": None} if has_captured else {}
            raise torch.OutOfMemoryError("CUDA out of memory. Planted")

    monkeypatch.setattr(type(CPU), "graphs", lambda device: NoRoom(), raising=False)
    trainer = uncaptured(trainer_of("classify", "gru"))
    trainer.executor.graphs = NoRoom()
    assert_equal_bits(trainer_of("classify", "gru"), trainer)
    let_go, reason = "the CUDA graph of the step is freed, and the next steps are eager", "CUDA out of memory. Planted"
    assert trainer.executor.fallbacks == [let_go if has_captured else EAGERLY]
    assert trainer.execution.step == "eager"
    assert trainer.execution.why_no_graph == ("memory ran out" if has_captured else f"the capture failed: {reason}")


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 30, 1000])
@pytest.mark.parametrize("schedule", ["cosine", "one-cycle"])
def test_the_table_holds_the_rates_of_torchs_schedulers(schedule: str, num_steps: int):
    settings = replace(SETTINGS, schedule=schedule, learning_rate=6e-3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    if schedule == "cosine":
        theirs: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    else:
        # One more, because torch's is stepped after the last step too.
        theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, num_steps + 1, cycle_momentum=False)
    expected = []
    for _ in range(num_steps):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    rates = learning_rates(settings, num_steps)
    assert rates.dtype == torch.float32 and rates.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_auto_is_a_graph_wherever_nothing_forbids_it():
    model, gpu = torch.nn.Linear(2, 2), kind_of("cuda")()
    assert choose_step("auto", gpu, model) == ("graph", "")
    assert choose_step("auto", CPU, model) == ("eager", "")
    assert choose_step("graph", CPU, model) == ("eager", "CUDA graphs need a CUDA device")
    assert choose_step("auto", gpu, model) == ("graph", "")
    recurrent = torch.nn.GRU(2, 2, num_layers=2, dropout=0.1)
    assert choose_step("graph", gpu, recurrent)[0] == "eager"
    by_hand = ManualLSTM(2, 2, num_layers=2, dropout=0.1, batch_first=True)  # draws as torch does
    assert choose_step("graph", gpu, by_hand) == ("graph", "")
    model.checkpoint_activations = True
    assert "recomputing activations" in choose_step("auto", gpu, model)[1]
