"""Models, the tasks' scores and augmentation, as properties."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tandem import models
from tandem.devices.names import kind_of
from tandem.models import Shape
from tandem.params.schema import MODELS, Augment
from tandem.tasks import classify, detect, open_task
from tandem.tasks.statistics import interval_of_skill
from tandem.training.batches import Batch
from tandem.training.execution import Execution
from tandem.training.executor import Executor
from tandem.training.random_draws import augmented, draw_augmentation, teacher_share
from tandem.training.step import Step
from tandem.training.trials import repeated_step
from tests.networks import GRU, ConvGRU, Hybrid, ModelSelection, Rocket, Seq2Seq, TeacherForcing
from tests.projects import ROOT, python
from tests.trainers import SUMMARIES, TRANSFORMER, tensors

FORCING = TeacherForcing(start=1.0, end=0.0, decay="linear")
CONFIGS = {
    "gru": GRU(name="gru", hidden_size=16, num_layers=2, bidirectional=True, dropout=0.0),
    "transformer": replace(TRANSFORMER, hidden_size=16, num_heads=2, feedforward_size=32),
    "conv_gru": ConvGRU(name="conv_gru", hidden_size=16, num_layers=1, num_convolutions=2, kernel_size=3, dropout=0.0),
    "seq2seq": Seq2Seq(
        name="seq2seq", hidden_size=16, num_layers=2, dropout=0.0, cell="native", teacher_forcing=FORCING
    ),
    "rocket": Rocket(name="rocket", num_kernels=84, num_groups=2),
    "model_selection": ModelSelection(name="model_selection", num_kernels=84, num_groups=2, num_trees=50),
    "hybrid": Hybrid(name="hybrid", hidden_size=16, dropout=0.0),
}
COMBINATIONS = [(task, model) for task, names in MODELS.items() for model in names]
combined = pytest.mark.parametrize(("task_name", "model_name"), COMBINATIONS, ids=lambda name: name)
NUM_STEPS = 12


def made(task_name: str, model_name: str, max_steps: int = NUM_STEPS, **changes: Any) -> tuple:
    torch.manual_seed(0)
    task = open_task(task_name, SUMMARIES[task_name])
    config = replace(CONFIGS[model_name], **changes)
    return task, models.build(config, Shape(4, task.num_outputs, max_steps, task.per_step))


def batch(task_name: str, num_sequences: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """values, mask, targets of random sequences."""
    data = tensors(num_sequences, NUM_STEPS, task_name)
    return data["values"], data["mask"], data["targets"]


def test_hybrids_network_overfits_ten_samples():
    """Every other network: tests/checking/test_check.py, with what stands in the padding."""
    values, mask, targets = batch("forecast")
    task, model = made("forecast", "hybrid")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    score = -math.inf
    for _ in range(20):
        for _ in range(10):
            optimizer.zero_grad()
            task.loss(model(values, mask), targets, mask, 0.0).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if (score := task.score(task.predict(model(values, mask), mask), targets, mask)) > 0.8:
            break
    assert score > 0.8


# The decoder ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_hand_written_cell_computes_what_the_library_does(num_layers: int):
    values, mask, targets = batch("forecast")
    results = []
    for cell in ("native", "manual"):
        torch.manual_seed(0)
        config = Seq2Seq(
            name="seq2seq", hidden_size=16, num_layers=num_layers, dropout=0.0, cell=cell, teacher_forcing=FORCING
        )
        model = models.build(config, Shape(4, 3, NUM_STEPS, per_step=False))
        outputs = model(values, mask, targets)
        (outputs - targets).square().mean().backward()
        results.append([outputs, *(parameter.grad for parameter in model.parameters())])
    for native, manual in zip(*results, strict=True):
        torch.testing.assert_close(manual, native)


def test_the_teacher_decides_what_the_decoder_is_fed_with():
    values, mask, targets = batch("forecast")
    _, model = made("forecast", "seq2seq")
    model.eval()
    nothing, everything = torch.full_like(targets, torch.nan), targets
    free, forced = model(values, mask, nothing), model(values, mask, everything)
    assert torch.equal(free, model(values, mask))
    assert torch.equal(free[:, 0], forced[:, 0])  # the first step is fed with the last known value
    assert not torch.isclose(free[:, 1:], forced[:, 1:]).any()
    partial = nothing.clone()
    partial[3, 0] = targets[3, 0]
    mixed = model(values, mask, partial)
    assert torch.equal(mixed[3, 1], forced[3, 1]) and torch.equal(mixed[[0, 1, 2, 4]], free[[0, 1, 2, 4]])


def test_teacher_forcing_decays_from_start_to_end():
    assert [teacher_share(FORCING, epoch, 5) for epoch in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    exponential = [teacher_share(TeacherForcing(0.8, 0.1, "exponential"), epoch, 4) for epoch in range(4)]
    assert exponential == pytest.approx([0.8, 0.4, 0.2, 0.1])
    from_zero = [teacher_share(TeacherForcing(0.0, 1.0, "exponential"), epoch, 3) for epoch in range(3)]
    assert from_zero == pytest.approx([0.01, 0.1, 1.0])
    assert teacher_share(FORCING, 0, 1) == 1.0


# Scores --------------------------------------------------------------------------------------------------------------


def test_events_are_matched_one_to_one_within_two_frames():
    def pairs(actual: list[tuple[int, int]], found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return detect.match_events(np.array(actual).reshape(-1, 2), np.array(found).reshape(-1, 2), num_steps=20)

    assert pairs([(0, 5)], [(0, 7)]) == [(0, 0)]
    assert pairs([(0, 5)], [(0, 8)]) == []
    assert pairs([(0, 5)], [(0, 4), (0, 6)]) == [(0, 0)]  # the second is one too many
    assert pairs([(0, 5), (0, 8)], [(0, 7), (0, 9)]) == [(0, 0), (1, 1)]  # nearest first would leave one over
    assert pairs([(0, 19)], [(1, 0)]) == []  # the next sequence
    assert pairs([], [(0, 1)]) == [] and pairs([(0, 1)], []) == []


def test_event_scores_of_literal_sequences():
    task = open_task("detect", SUMMARIES["detect"])
    actual = np.array([[0, 1, 0, 0, 0, 2, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0, 2]])
    predicted = np.array([[0, 0, 0, 1, 0, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 2, 2]])
    hit, bounce = task.per_class(task.counts(predicted, actual))
    assert (hit["precision"], hit["recall"], hit["f1"], hit["num_true"]) == (0.5, 0.5, 0.5, 2)
    assert (bounce["precision"], bounce["recall"], bounce["f1"]) == (2 / 3, 1.0, 0.8)
    mask = torch.ones(2, 10, dtype=torch.bool)
    score = task.score(torch.from_numpy(predicted), torch.from_numpy(actual), mask)
    assert score == pytest.approx((0.5 + 0.8) / 2)
    mask[1, 5:] = False  # the last ones lie in the padding now: a hit at 3 is left, and nothing found
    counts = task.counts(*detect.to_numpy(torch.from_numpy(predicted), torch.from_numpy(actual), mask))
    assert task.per_class(counts)[1]["f1"] == 1.0
    rows = task.list_events(predicted, actual, np.zeros((2, 10, 3)), np.array(["p", "q"]))
    assert [(row["sequence"], row["event"], row["actual"], row["predicted"]) for row in rows] == [
        ("p", "hit", 1, 3), ("p", "bounce", 5, 5), ("q", "hit", 3, ""), ("q", "hit", "", 6),
        ("q", "bounce", 9, 8), ("q", "bounce", "", 9),
    ]  # fmt: skip
    assert task.confusion_pairs(predicted, actual).count(("none", "hit")) == 1


def test_an_event_that_is_found_is_not_confused_with_a_false_one_beside_it():
    task = open_task("detect", SUMMARIES["detect"])
    actual, predicted = np.array([[0, 1, 0, 0, 0, 0, 0, 2]]), np.array([[2, 1, 0, 0, 0, 0, 1, 0]])
    pairs = [("bounce", "hit"), ("hit", "hit"), ("none", "bounce")]
    assert sorted(task.confusion_pairs(predicted, actual)) == pairs


def test_an_event_in_the_first_frame_is_counted_as_found():
    task = open_task("detect", SUMMARIES["detect"] | {"max_steps": 6})
    arrays = {
        "targets": np.array([[1, 0, 0, 0, 2, 0]]), "lengths": np.array([6]), "ids": np.array(["p"]),
        "values": np.random.default_rng(0).normal(size=(1, 6, 1)).astype(np.float32),
    }  # fmt: skip
    outputs = 9.0 * torch.eye(3)[torch.tensor([[1, 0, 0, 0, 0, 0]])]
    sentence = task.evaluate(outputs, lambda split, name: arrays[name]).sentence
    assert "1 events found within 2 frames, 1 missed, 0 false alarms" in sentence

    arrays["targets"] = np.array([[1, 0, 0, 0, 0, 0]])  # an absent class is neither scored nor the hardest
    result = task.evaluate(outputs, lambda split, name: arrays[name])
    assert {result.metrics[f"event_{name}"] for name in ("f1", "precision", "recall")} == {1.0}
    assert result.sentence.endswith("hardest class: hit (F1 1.000); the test split has no bounce")


def test_an_event_is_the_peak_of_its_probability_among_the_real_frames():
    logits = torch.full((3, 9, 3), -5.0)
    logits[:, :, 0] = 0.0
    logits[0, 3:6, 1] = torch.tensor([2.0, 3.0, 1.0])  # one hit, seen over three frames
    logits[0, 8, 2] = -1.0  # less likely than nothing
    logits[1, 4, 1] = 2.0  # a hit in the last real frame
    logits[1, 5:, 1] = 3.0  # the padding, where an output means nothing
    logits[2, 3, 2], logits[2, 8, 2] = 2.0, 3.0
    mask = torch.arange(9)[None, :] < torch.tensor([9, 5, 9])[:, None]
    assert open_task("detect", SUMMARIES["detect"]).predict(logits, mask).tolist() == [
        [0, 0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 2, 0, 0, 0, 0, 2],
    ]  # fmt: skip


def test_skill_comes_with_an_interval_that_holds_it():
    draw = np.random.default_rng(0)
    actual = draw.normal(size=(400, 1)).cumsum(axis=0)
    better, base = actual + 0.5 * draw.normal(size=(400, 1)), actual + draw.normal(size=(400, 1))
    low, high = interval_of_skill(better, base, actual)
    assert 0 < low < 1 - np.abs(better - actual).mean() / np.abs(base - actual).mean() < high < 1
    assert interval_of_skill(base, base, actual) == (0, 0)
    still = np.full((100, 1), 10.0)
    still[7] = 11.0  # in the other windows nothing changes, so persistence makes no error
    reason = "the simple forecast makes an error in 1 of 10 blocks of 10 test windows; an interval needs 6"
    assert interval_of_skill(still + 1, np.full((100, 1), 10.0), still) == reason
    too_few = "5 blocks of 5 test windows are too few for an interval, which needs 6"
    assert interval_of_skill(better[:25], base[:25], actual[:25]) == too_few


@pytest.mark.parametrize(("horizon", "num"), [(1, 30), (4, 30), (4, 100)])
def test_few_windows_make_few_claims_of_skill(horizon: int, num: int):
    """Two forecasts with errors of equal size, made of the steps that neighbouring windows share."""
    draw, claims, trials = np.random.default_rng(0), 0, 400

    def errors() -> np.ndarray:
        walk = draw.normal(size=num + horizon).cumsum()
        return np.lib.stride_tricks.sliding_window_view(walk[1:], horizon)[:num] - walk[:num, None]

    for _ in range(trials):
        low, high = interval_of_skill(errors(), errors(), np.zeros((num, horizon)))
        claims += not low <= 0 <= high
    assert claims / trials < 0.12


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 5, (200,), generator=generator)
    predictions = torch.where(
        torch.rand(200, generator=generator) < 0.6, targets, torch.randint(0, 4, (200,), generator=generator)
    )
    confusion = classify.confusion_matrix(predictions, targets, 6)  # class 5 occurs nowhere
    assert confusion[:5, :5].tolist() == confusion_matrix(targets, predictions).tolist()
    scores = classify.scores(confusion)
    assert scores["accuracy"] == pytest.approx(accuracy_score(targets, predictions))
    assert scores["macro_f1"] == pytest.approx(f1_score(targets, predictions, average="macro"))
    precision, recall, f1, count = precision_recall_fscore_support(
        targets, predictions, labels=range(5), zero_division=0
    )
    for index, row in enumerate(classify.per_class(confusion)[:5]):
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (precision[index], recall[index], f1[index])
        )
        assert row["num_true"] == count[index]


def test_augmentation_is_off_at_zero_and_leaves_padding_alone():
    values, mask, _ = batch("classify")
    off = Augment(coupled_features=2, mix=0.0, shift=0.0, warp=0.0)
    strong = Augment(coupled_features=2, mix=0.3, shift=0.3, warp=0.3)
    draws = draw_augmentation(torch.Generator().manual_seed(0), len(values), strong)
    assert torch.equal(augmented(values, mask, draws, off), values)
    changed = augmented(values, mask, draws, strong)
    assert not changed[~mask].any()
    assert (changed != values)[mask].float().mean() > 0.9
    assert changed.isfinite().all()


def test_augmentation_mixes_positions_and_velocities_alike():
    """A linear map of the positions maps their differences with the same matrix."""
    values = torch.randn(5, 8, 2, generator=torch.Generator().manual_seed(0))
    features = torch.cat([values[:, 1:], values[:, 1:] - values[:, :-1]], dim=2)
    mask = torch.ones(5, 7, dtype=torch.bool)
    config = Augment(coupled_features=2, mix=0.5, shift=0.0, warp=0.0)
    mixed = augmented(features, mask, draw_augmentation(torch.Generator().manual_seed(0), 5, config), config)
    torch.testing.assert_close(mixed[:, 1:, :2] - mixed[:, :-1, :2], mixed[:, 1:, 2:])


def test_augmentation_changes_all_groups_alike_and_only_velocities_by_the_speed():
    """Two points (x, y) without velocities: both are shifted, and a warp leaves what is constant in time constant."""
    draw = torch.Generator().manual_seed(0)
    values, mask = torch.randn(5, 8, 4, generator=draw), torch.ones(5, 8, dtype=torch.bool)
    values[..., 2:] = values[:, :1, 2:]
    off = Augment(coupled_features=2)
    draws = draw_augmentation(draw, 5, off)
    shifted = augmented(values, mask, draws, replace(off, shift=0.5)) - values
    torch.testing.assert_close(shifted[..., :2], shifted[..., 2:])
    assert (shifted.abs() > 0).all()
    warped = augmented(values, mask, draws, replace(off, warp=0.5))
    torch.testing.assert_close(warped[..., 2:], values[..., 2:])
    assert not torch.equal(warped[..., :2], values[..., :2])
    as_velocities = augmented(values, mask, draws, replace(off, warp=0.5, shift=0.5), num_velocities=2)
    assert (as_velocities[..., 2:] - values[..., 2:]).abs().max() > 0.1
    torch.testing.assert_close(as_velocities[..., :2], warped[..., :2] + shifted[..., :2])


def test_a_group_that_does_not_divide_the_features_is_refused():
    """Of three features with velocities, two of each would mix z with the velocity of x."""
    values, mask, _ = batch("classify")
    config = Augment(coupled_features=3, mix=0.1, shift=0.0, warp=0.0)
    draws = draw_augmentation(torch.Generator(), len(values), config)
    with pytest.raises(ValueError, match="coupled_features is 3; it must divide 4, the number of"):
        augmented(values, mask, draws, config)
    values, config = torch.cat([values, values[..., :2]], dim=2), replace(config, coupled_features=2)
    draws = draw_augmentation(torch.Generator(), len(values), config)
    with pytest.raises(ValueError, match="coupled_features is 2; it must divide 3, the number"):
        augmented(values, mask, draws, config, num_velocities=3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("task_name", "model_name"), [("classify", "gru"), ("detect", "conv_gru"), ("forecast", "seq2seq")]
)
def test_recurrent_layers_under_bf16_are_not_fp16_on_a_gpu(task_name: str, model_name: str):
    """torch's autocast would hand them fp16, whose small gradients nothing scales."""
    values, mask, _ = (tensor.cuda() for tensor in batch(task_name))
    model = made(task_name, model_name)[1].cuda()
    dtypes = []
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.register_forward_hook(lambda module, inputs, outputs: dtypes.append(outputs[0].dtype))
    with torch.autocast("cuda", torch.bfloat16):
        model(values, mask)
    assert set(dtypes) == {torch.float32}


@pytest.mark.parametrize("processor", [pytest.param("SSE41", marks=pytest.mark.long), "DEFAULT"])
def test_a_network_trains_in_bf16_on_any_processor(processor: str):
    """oneDNN has an LSTM in bf16 from AVX-512 on alone. A process of its own: oneDNN asks once what it may use."""
    code = "from tests.models.test_models import train_in_bf16; train_in_bf16()"
    python(ROOT, code, ONEDNN_MAX_CPU_ISA=processor)


def train_in_bf16() -> None:
    values, mask, targets = batch("forecast")
    task, model = made("forecast", "seq2seq")
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(values, mask)
    task.loss(outputs.float(), targets, mask, 0.0).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.gpu
@combined
def test_a_gpu_gives_what_the_cpu_gives(task_name: str, model_name: str):
    """Outputs and gradients, from the hand-written kernels here and the library's there."""
    values, mask, targets = batch(task_name)
    gradients = {}
    for device in ("cpu", "cuda"):
        task, model = made(task_name, model_name)
        model = model.to(device)
        task.loss(model(values.to(device), mask.to(device)), targets.to(device), mask.to(device), 0.0).backward()
        parameters = model.named_parameters()  # those of a candidate that is not selected have no gradient
        gradients[device] = {name: parameter.grad.cpu() for name, parameter in parameters if parameter.grad is not None}
    for name, gradient in gradients["cpu"].items():
        torch.testing.assert_close(gradients["cuda"][name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@combined
def test_a_step_of_every_combination_can_be_captured(task_name: str, model_name: str, dropout: float):
    """And trains as the eager one does, batch after batch: `made` sets the generator, so that both drop the same."""
    if model_name == "model_selection":
        pytest.skip("it reads from the device which candidate is selected, and takes no steps")
    # cuDNN does not expose the random state of dropout between layers: such a step is not captured.
    changes = {"dropout": dropout, "num_layers": 1} if dropout else {}
    changes = {name: value for name, value in changes.items() if hasattr(CONFIGS[model_name], name)}
    if dropout and "dropout" not in changes:
        pytest.skip(f"{model_name} has no dropout")
    device = kind_of("cuda")()
    values, mask, targets = (tensor.to(device.torch_device) for tensor in batch(task_name))
    rows = torch.arange(len(values), device=device.torch_device)
    teacher_targets = targets if model_name == "seq2seq" else None
    losses: dict[str, list[float]] = {}
    for execution_mode in ("eager", "graph"):
        task, model = made(task_name, model_name, **changes)
        model = model.to(device.torch_device)
        rate = torch.tensor(1e-3, device=device.torch_device)
        step = Step(
            model,
            lambda outputs, batch, task=task: task.loss(outputs, batch.targets, batch.mask, 0.0),
            torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=True),
            Executor(Execution(device, step=execution_mode), model),
            max_grad_norm=1.0,
        )
        same_batch = Batch(values, mask, targets, rows, teacher_targets)
        take = repeated_step(step, same_batch)
        losses[execution_mode] = []
        for _ in range(10):
            with torch.no_grad():
                outputs = model(*same_batch.inputs()).float()
                losses[execution_mode].append(step.loss(outputs, same_batch).item())
            take()
        assert step.execution.step == execution_mode and (step.graphs is None or len(step.graphs.captured) == 1)
    assert losses["graph"] == pytest.approx(losses["eager"], rel=1e-3)
    assert dropout or losses["graph"][-1] < losses["graph"][0]
