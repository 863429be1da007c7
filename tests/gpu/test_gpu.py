"""A training on a GPU keeps its promises, however its step runs: captured as a CUDA graph or eagerly, from data on the
GPU or streamed, in one go or resumed, with as much memory as it wants or less.

Everything is trained with dropout. The draws come from torch's generator on the GPU, which a capture registers, a
replay moves on, and a capture that fails must leave as it was: without dropout none of that shows.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stages.speed import Length, TimedSide, TimedTraining
from tandem.devices import cuda
from tandem.devices.graphs import NUM_WARMUPS, Graphs
from tandem.devices.memory import is_out_of_memory
from tandem.devices.names import kind_of
from tandem.params.schema import Train
from tandem.tasks import classify
from tandem.training import auto
from tandem.training.batches import Split, load_split, sequential_indices
from tandem.training.checkpoint import Checkpoint
from tandem.training.saved_network import PREDICTION_BATCH
from tandem.training.trainer import Trainer
from tandem.training.trials import alternative, one_batch, repeated_step, without_trace
from tests import trainers
from tests.limits import allocated_in_gpu, leave_in_gpu
from tests.networks import GRU, TCN
from tests.trainers import SETTINGS, Outcome, assert_same_bits, finish, identity, new_trainer, tensors

pytestmark = pytest.mark.gpu

# One layer: cuDNN does not expose the random state of dropout between an RNN's layers: such a step is not captured.
GRU_WITH_DROPOUT = GRU(name="gru", hidden_size=8, num_layers=1, bidirectional=True, dropout=0.3)
TRANSFORMER = replace(trainers.TRANSFORMER, hidden_size=16, num_heads=2, feedforward_size=32, dropout=0.3)
# Activations of a GiB, and weights of 2 MiB: what is left of the card is shared with cuBLAS' workspaces, 32 MiB each.
LARGE = replace(TRANSFORMER, hidden_size=32, feedforward_size=4096, dropout=0.0)
EAGER, CAPTURED = (replace(SETTINGS, model=GRU_WITH_DROPOUT, step=step) for step in ("eager", "graph"))
LAYERS = SETTINGS  # two of them, with dropout between them
OWN_NETWORK = TCN(name="net.py:TCN", channels=8, num_blocks=2, dropout=0.3)
OWN = replace(CAPTURED, model=OWN_NETWORK)
HALF = replace(CAPTURED, precision="fp16")
STEPS = pytest.mark.parametrize(
    "settings", [EAGER, CAPTURED, LAYERS, OWN, HALF], ids=["eager", "graph", "layers", "own", "fp16"]
)
EAGER_STEPS = pytest.mark.parametrize(  # of streamed data
    "settings", [EAGER, LAYERS, *(replace(settings, step="eager") for settings in (OWN, HALF))],
    ids=["eager", "layers", "own", "fp16"],
)  # fmt: skip
MIB = 2**20


def trained(settings: Train, folder: Path, data_location: str = "device") -> Outcome:
    trainer = new_trainer("cuda", data_location, folder, settings)
    result = finish(trainer)
    assert trainer.execution.why_no_graph == ""
    return result


def assert_close(one: Outcome, other: Outcome) -> None:
    """Other dropout would show in the first digit of the losses."""
    assert one[1] == pytest.approx(other[1], rel=1e-4)
    for name, weight in one[0].items():
        torch.testing.assert_close(weight, other[0][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
@pytest.mark.parametrize("model", [GRU_WITH_DROPOUT, TRANSFORMER, OWN_NETWORK], ids=["gru", "transformer", "own"])
def test_captured_equals_eager_with_the_same_dropout(model: Any, grad_accum_steps: int, tmp_path: Path):
    eager, captured = (replace(base, model=model, grad_accum_steps=grad_accum_steps) for base in (EAGER, CAPTURED))
    trainer = new_trainer("cuda", "device", tmp_path, captured)
    assert_close(finish(trainer), trained(eager, tmp_path))
    assert trainer.step.graphs.captured.keys() == {("step", True), ("step", False)}  # the ragged batch too


def test_captured_steps_in_fp16_skip_what_overflows_as_eager_ones_do(tmp_path: Path):
    """A replay decides on the device whether its gradients overflow; the loss scale changes there too."""
    outcomes = []
    for settings in (replace(EAGER, precision="fp16"), HALF):
        trainer = new_trainer("cuda", "device", tmp_path, replace(settings, max_grad_norm=0.5))
        epochs = [trainer.train_epoch().train_loss for _ in range(2)]
        trainer.step.scaler.update(new_scale=2.0**40)  # the next steps overflow, until the scale has been halved often
        scale, steps_before = trainer.step.scaler.get_scale(), step_of(trainer)
        epochs += [trainer.train_epoch().train_loss for _ in range(2)]
        assert trainer.step.scaler.get_scale() < scale and step_of(trainer) < steps_before + 2 * trainer.steps_per_epoch
        outcomes.append((epochs, trainer.step.scaler.get_scale(), step_of(trainer)))
    assert trainer.step.graphs.captured
    assert outcomes[0][0] == pytest.approx(outcomes[1][0], rel=1e-2) and outcomes[0][1:] == outcomes[1][1:]


def test_a_step_that_is_repeated_beside_a_graph_in_fp16_keeps_the_scale_that_the_graph_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the smaller last batch lacks memory once, while the graph of the full ones is captured."""
    settings = replace(HALF, batch_size=8, max_grad_norm=0.5)
    untouched = new_trainer("cuda", "device", tmp_path, settings)
    expected = finish(untouched)
    loss, failures = classify.Task.loss, list[bool]()

    def lacks_memory_once(*arguments: Any) -> Tensor:
        if len(arguments[1]) < settings.batch_size and torch.is_grad_enabled() and not failures:
            failures.append(bool(trainer.step.graphs and trainer.step.graphs.captured))
            raise torch.OutOfMemoryError("planted")
        return loss(*arguments)

    monkeypatch.setattr(classify.Task, "loss", lacks_memory_once)
    trainer = new_trainer("cuda", "device", tmp_path, settings)
    result = finish(trainer)
    assert failures == [True] and len(trainer.executor.fallbacks) == 1 and trainer.execution.step == "graph"
    assert_same_bits(result, expected)
    assert trainer.step.scaler.state_dict() == untouched.step.scaler.state_dict()


def step_of(trainer: Trainer) -> int:
    """The number of steps that changed the weights."""
    return int(next(iter(trainer.optimizer.state.values()))["step"])


def test_a_capture_that_fails_leaves_an_eager_training_with_the_same_dropout_and_keeps_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Up to about torch 2.11 its generator believed in the capture for ever, and the next dropout raised. The exception
    holds the frames of the capture, and those its tensors: whoever keeps it keeps them.
    """
    expected = trained(EAGER, tmp_path)
    loss, large = classify.Task.loss, 64 * MIB

    def refuses_capture(*arguments: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            tensor = torch.empty(large, dtype=torch.uint8, device="cuda")  # noqa: F841  (lives in this frame)
            torch.cuda.synchronize()  # not permitted in a capture: CUDA ends it with an error
        return loss(*arguments)

    monkeypatch.setattr(classify.Task, "loss", refuses_capture)
    trainer = new_trainer("cuda", "device", tmp_path, CAPTURED)
    result = finish(trainer)
    assert "capture" in trainer.execution.why_no_graph
    assert_close(result, expected)
    assert torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5).sum().item() > 0
    assert allocated_in_gpu() < large


def lack_memory() -> None:
    raise torch.OutOfMemoryError("planted")


@pytest.mark.parametrize("fail", [torch.cuda.synchronize, lack_memory], ids=["refused", "out of memory"])
def test_a_capture_that_fails_while_a_network_keeps_its_tensors_leaves_an_eager_training(
    fail: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As with `self.attention = ...` in its forward pass. The memory of the capture may be released only once, or torch
    can never again free cached memory.
    """
    loss, kept_tensors = classify.Task.loss, list[Tensor]()

    def keeps(*arguments: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            kept_tensors.append(arguments[1].detach())
            fail()
        return loss(*arguments)

    monkeypatch.setattr(classify.Task, "loss", keeps)
    trainer = new_trainer("cuda", "device", tmp_path, CAPTURED)
    finish(trainer)
    torch.cuda.empty_cache()
    assert kept_tensors and trainer.execution.step == "eager" and trainer.execution.why_no_graph


class Changing(nn.Module):
    """A network whose next step is another one: it draws on the CPU, or keeps a mean in a new tensor."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws, self.layer, self.head = draws, nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        states = self.layer(values.mean(1))
        if self.training and self.draws and torch.rand(()) < 0.5:
            return self.head(states.relu())
        if self.training and not self.draws:
            self.mean = 0.9 * self.mean + 0.1 * states.detach().mean(0)
        return self.head(states - self.mean)


@pytest.mark.parametrize(("draws", "reason"), [(True, "draws random numbers on the CPU"), (False, "the buffer mean")])
def test_a_step_that_a_replay_would_not_repeat_is_not_captured(draws: bool, reason: str, tmp_path: Path):
    """A replay runs no Python: every step would take the same branch, or read a tensor that is no longer there."""
    results = []
    for settings in (EAGER, CAPTURED):
        torch.manual_seed(0)
        split = new_trainer("cuda", "device", tmp_path, settings).train_split
        trainer = trainers.trainer_on(split, settings, model=Changing(draws))
        results.append(finish(trainer))
    assert reason in trainer.execution.why_no_graph
    assert_same_bits(*results)


def test_an_alternative_whose_capture_fails_leaves_the_graphs_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The memory of a failed capture is given back. It must not be memory that another graph reads and writes."""
    trainer = new_trainer("cuda", "device", tmp_path, CAPTURED)
    batch, loss = one_batch(trainer, CAPTURED.batch_size), classify.Task.loss
    with without_trace(trainer):
        current, other = alternative(trainer), alternative(trainer)
        step, fails = repeated_step(current.step, batch), repeated_step(other.step, batch)
        for _ in range(NUM_WARMUPS + 1):
            step()

        def lacks_memory(*arguments: Any) -> Tensor:
            if torch.cuda.is_current_stream_capturing():
                torch.zeros(2**50, dtype=torch.uint8, device="cuda")
            return loss(*arguments)

        with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
            patched.setattr(classify.Task, "loss", lacks_memory)
            for _ in range(NUM_WARMUPS + 1):
                fails()
        assert current.step.graphs.pool in [segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()]
        step()
        torch.cuda.synchronize()
    trainer.train_epoch()
    assert trainer.execution.step == "graph"


def test_a_capture_that_fails_under_an_allocator_without_a_snapshot_leaves_an_eager_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As torch says it where PYTORCH_ALLOC_CONF names cudaMallocAsync."""

    def refuse(*arguments: object) -> object:
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful")

    loss = classify.Task.loss
    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    monkeypatch.setattr(classify.Task, "loss", lambda *arguments: loss(*arguments) + 0 * loss(*arguments).item())
    trainer = new_trainer("cuda", "device", tmp_path, CAPTURED)
    finish(trainer)
    assert "capture" in trainer.execution.why_no_graph


def test_freed_memory_of_the_host_is_given_back_too():
    """Pinned memory, which torch caches like that of the GPU."""
    device = kind_of("cuda")(0)
    device.free_cache()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    buffer = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    buffer.to(device.torch_device, non_blocking=True)
    del buffer
    device.synchronize()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= before + 64 * MIB
    device.free_cache()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= before


def test_at_most_three_streamed_pieces_are_on_the_gpu_however_far_the_host_is_ahead():
    """A replay returns at once, so the host asks for the next piece long before the GPU has worked with this one."""
    device, piece, num_pieces = kind_of("cuda")(0), 16 * MIB, 12
    matrix, work = torch.randn(512, 512, device=device.torch_device), torch.cuda.CUDAGraph()
    result = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=result)
    with torch.cuda.graph(work):
        for _ in range(150):  # a millisecond and more, in which a piece is copied several times
            torch.mm(matrix, matrix, out=result)
    buffers = [torch.zeros(piece, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    gathered = device.copied_ahead(torch.arange(num_pieces).split(1), lambda rows, number: [buffers[number]])
    device.synchronize()
    device.free_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for _ in gathered:
        work.replay()
    device.synchronize()
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= 3 * piece


def test_a_library_that_finds_a_full_card_has_no_memory():
    """cuDNN makes its handle in the first backward pass, and says that it is not initialized."""
    error = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    assert is_out_of_memory(error) and not is_out_of_memory(RuntimeError("CUDNN_STATUS_BAD_PARAM"))
    kind_of("cuda")(0).reset_peaks()  # an epoch begins: what a trial lacked before says nothing of it
    assert not is_out_of_memory(error)


def test_under_wsl_a_training_takes_no_more_than_the_cards_free_memory(monkeypatch: pytest.MonkeyPatch):
    """Its driver would take the machine's memory instead of failing, and no fallback would start."""
    device = kind_of("cuda")(0)
    monkeypatch.setattr(cuda.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    try:
        device.free_cache()
        free, total = device.memory_bytes()
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # of an earlier seed, in torch's cache
        device.require_usable({"name": device.name(), "driver": None})
        assert torch.cuda.get_per_process_memory_fraction(device.torch_device) == pytest.approx(free / total, abs=0.01)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.torch_device)


def test_streaming_pins_no_more_of_the_host_than_its_sequences_need(tmp_path: Path):
    """Batches of a validation may be larger than the split."""
    device = kind_of("cuda")(0)
    save_file(tensors(num_sequences=4, num_steps=9000), tmp_path / "split.safetensors")
    split = load_split(tmp_path / "split.safetensors", device)
    device.free_cache()
    torch.cuda.reset_peak_host_memory_stats()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    assert [len(batch) for batch in split.batches(sequential_indices(split), PREDICTION_BATCH)] == [4]
    # Two buffers for each tensor, whose sizes torch rounds up to a power of 2.
    assert torch.cuda.host_memory_stats()["allocated_bytes.peak"] < before + 4 * split.num_bytes_in_file + MIB


def test_the_score_takes_nothing_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither memory that may run out nor an operator that has no deterministic kernel there."""
    scored, score = [], classify.Task.score
    monkeypatch.setattr(classify.Task, "score", lambda task, *args: (scored.extend(args), score(task, *args))[1])
    new_trainer("cuda", "device", tmp_path, EAGER).train_epoch()
    assert {tensor.device.type for tensor in scored} == {"cpu"}


@EAGER_STEPS
def test_streamed_data_give_the_bits_of_resident_ones(settings: Train, tmp_path: Path):
    assert_same_bits(trained(settings, tmp_path, "host"), trained(settings, tmp_path, "device"))


@STEPS
@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_a_resumed_training_gives_the_bits_of_an_uninterrupted_one(settings: Train, schedule: str, tmp_path: Path):
    """So do two trainings: the resumed one makes each step again."""
    settings = replace(settings, schedule=schedule)
    weights, losses = trained(settings, tmp_path)
    begun = new_trainer("cuda", "device", tmp_path, settings)
    begun.train_epoch(), begun.train_epoch()
    checkpoint = Checkpoint(tmp_path / "checkpoint.pt", {})
    checkpoint.save(begun.state())
    resumed = new_trainer("cuda", "device", tmp_path, settings)
    torch.rand(7, device="cuda")  # whatever happened in between
    resumed.restore(checkpoint.load()[0])
    assert_same_bits(finish(resumed), (weights, losses[2:]))


@pytest.fixture
def whole_gpu() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture(scope="module", params=[EAGER, CAPTURED], ids=["eager", "graph"])
def with_room(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Train, Path, float, list[float]]:
    """A training that has room: settings, folder, the MiB it takes, losses. Without dropout, because a batch in parts
    draws other numbers.
    """
    settings = replace(request.param, model=LARGE, batch_size=2048, epochs=2, warmup_epochs=1, learning_rate=1e-4)
    folder = tmp_path_factory.mktemp("with_room")
    save_file(tensors(4096), folder / "split.safetensors")
    trainer = new_trainer("cuda", "device", folder, settings)
    before = torch.cuda.memory_allocated() / MIB
    epochs = [trainer.train_epoch() for _ in range(settings.epochs)]
    room = max(epoch.training.peak_allocated_mib for epoch in epochs) - before
    return settings, folder, room, [epoch.train_loss for epoch in epochs]


@pytest.mark.parametrize("share", [0.6, 0.15])
@pytest.mark.case(20)
def test_a_training_on_a_card_too_small_for_it_says_what_it_does_and_comes_to_nearly_the_same(
    share: float, with_room: tuple[Train, Path, float, list[float]], whole_gpu: None, saw: Callable[[str], None]
):
    """a GPU with 60% or 15% of the memory that a training takes"""
    settings, folder, room, losses = with_room
    trainer = new_trainer("cuda", "device", folder, settings)
    leave_in_gpu(share * room)
    _, actual = finish(trainer)
    assert trainer.executor.fallbacks, f"{share:.0%} of {room:,.0f} MiB was enough"
    assert share > 0.5 or trainer.execution.grad_accum_steps > 1
    saw("; ".join(trainer.executor.fallbacks))
    assert actual == pytest.approx(losses, rel=1e-3)


def test_a_graph_that_leaves_no_room_for_validation_is_let_go_before_anything_else(
    with_room: tuple[Train, Path, float, list[float]], whole_gpu: None
):
    """Its activations have memory of their own. An eager training would fit, so nothing is streamed or divided."""
    settings, folder, room, losses = with_room
    trainer = new_trainer("cuda", "device", folder, replace(settings, epochs=4))
    leave_in_gpu(1.05 * room)
    trainer.train_epoch(), trainer.train_epoch()
    if settings.step == "graph":
        assert (
            trainer.executor.fallbacks[-1] == "the CUDA graph of the step is freed, and the next steps are eager"
            and len(trainer.executor.fallbacks) <= 2
        )
        assert trainer.execution.why_no_graph == "memory ran out"
    execution = trainer.execution
    assert (execution.grad_accum_steps, execution.num_eval_parts, execution.data_location) == (1, 1, "device")


@EAGER_STEPS
def test_streaming_takes_no_more_memory_from_epoch_to_epoch(settings: Train, tmp_path: Path):
    """A stream of its own for each epoch would have memory of its own too, which no other can use."""
    trainer, reserved = new_trainer("cuda", "host", tmp_path, replace(settings, epochs=8)), []
    for _ in range(8):
        trainer.train_epoch()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[2], [size / MIB for size in reserved]


@pytest.mark.parametrize("gather_seconds", [0.1, 0.3])  # two steps in a turn, and one
def test_a_pair_waits_for_streamed_data_as_an_epoch_does(
    gather_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """While the other side has its turn, the next batch is copied."""
    gather = Split.tensors_at

    def slow(split: Split, rows: Tensor, buffers: dict[str, Tensor]) -> list[Tensor]:
        time.sleep(gather_seconds)
        return gather(split, rows, buffers)

    save_file(tensors(16 * 48), tmp_path / "split.safetensors")
    training = TimedTraining("", TimedSide("cuda", "cuda"), 0, Length())
    training.trainer = new_trainer("cuda", "host", tmp_path, EAGER)
    monkeypatch.setattr(Split, "tensors_at", slow)
    training.num_steps = training.warm_up()
    seconds = []
    for _ in range(5):
        time.sleep(2 * gather_seconds)  # the other side's turn
        seconds.append(training.turn())
    assert median(seconds) == pytest.approx(48 * gather_seconds, rel=0.2)


def test_a_precision_is_chosen_by_captured_steps_not_by_their_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first steps on a GPU load libraries and are captured: timed, they would decide, and the choice is kept."""
    trainer = new_trainer("cuda", "device", tmp_path, replace(CAPTURED, precision="auto"))
    captured, counts, capture, seconds_of = [], [], Graphs.capture, auto.seconds_of

    def watched(*arguments: Any) -> float:
        counts.append(len(captured))
        return seconds_of(*arguments)

    monkeypatch.setattr(Graphs, "capture", lambda *arguments: (captured.append(1), capture(*arguments))[1])
    monkeypatch.setattr(auto, "seconds_of", watched)
    monkeypatch.setattr(auto, "precisions", lambda device: ["fp32", "bf16"])  # an older card tries only one
    monkeypatch.setattr(auto, "cached_choices", dict)
    monkeypatch.setattr(auto, "store_choice", lambda key, choice: choice)
    precision, _ = auto.choose_precision(trainer, identity("cuda"))
    assert set(counts) == {2} and precision in ("fp32", "bf16")


def test_a_trial_of_a_precision_that_lacks_memory_leaves_the_training_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the graph of the second precision does not fit beside that of the first."""
    trainer = new_trainer("cuda", "device", tmp_path, replace(CAPTURED, precision="auto"))
    captured, capture = [], Graphs.capture

    def second_is_too_large(graphs: Graphs, work: Any) -> Any:
        if captured:
            raise torch.OutOfMemoryError("planted")
        captured.append(graphs)
        return capture(graphs, work)

    with monkeypatch.context() as patched:
        patched.setattr(Graphs, "capture", second_is_too_large)
        patched.setattr(auto, "cached_choices", dict)
        patched.setattr(auto, "precisions", lambda device: ["fp32", "bf16"])
        precision, sentence = auto.choose_precision(trainer, identity("cuda"))
    assert precision == "fp32" and "memory ran out while others were tried" in sentence
    trainer.executor.use(replace(trainer.execution, precision=precision))
    finish(trainer)
    assert trainer.execution.step == "graph" and not trainer.executor.fallbacks and not trainer.execution.why_no_graph
