"""The hand-written kernels against torch's own, whose parameters they use: same numbers, same gradients, same bits
every time.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import setuptools  # noqa: F401  (torch.compile imports it, and it must come before Python's own distutils)
import torch
from torch import Tensor, nn

from tandem.devices.names import kind_of
from tandem.models import Shape, kernels, seq2seq
from tandem.models.kernels import attention, decoder, dropout, gru
from tandem.models.layers import run_recurrent
from tandem.models.recurrent import Reversal, reversed_rows
from tandem.training import auto
from tandem.training.batches import Split
from tandem.training.execution import Execution
from tests.trainers import SETTINGS, TRANSFORMER, finish, identity, tensors, trainer_on

SIZES = pytest.mark.parametrize(
    ("num_directions", "num_layers", "num_sequences", "num_steps"),
    [(1, 1, 5, 7), (2, 1, 5, 7), (1, 2, 5, 7), (2, 2, 5, 7), (2, 3, 1, 7), (2, 1, 5, 1), (1, 2, 1, 1), (2, 1, 4, 2)],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small take longer on two threads, many times longer where another process holds a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(
    num_directions: int, num_layers: int, num_sequences: int, num_steps: int, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[nn.GRU]]:
    """Inputs with 3 features, stacks of hidden size 4 with weights large enough to saturate some gates."""
    torch.manual_seed(0)
    stacks = [nn.GRU(3, 4, num_layers, batch_first=True, dtype=dtype) for _ in range(num_directions)]
    for stack in stacks:
        for parameter in stack.parameters():
            nn.init.normal_(parameter)
    inputs = [torch.randn(num_sequences, num_steps, 3, dtype=dtype) for _ in stacks]
    return [2 * tensor.requires_grad_() for tensor in inputs], stacks


def native(inputs: list[Tensor], stacks: list[nn.GRU]) -> list[Tensor]:
    return [stack(values)[0] for values, stack in zip(inputs, stacks, strict=True)]


def gradients(outputs: list[Tensor], inputs: list[Tensor], stacks: list[nn.GRU]) -> list[Tensor]:
    """Of a sum that weighs every value differently, by the inputs and all parameters."""
    total = sum((y * torch.arange(y.numel(), dtype=y.dtype).sin().view_as(y)).sum() for y in outputs)
    variables = [*inputs, *(parameter for stack in stacks for parameter in stack.parameters())]
    return list(torch.autograd.grad(total, variables))


@pytest.fixture(params=[gru.CHUNK_VALUES, 250], ids=["one chunk", "short chunks"])
def chunk_values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 250, chunks of one to three of the seven steps, where there is more than one sequence."""
    monkeypatch.setattr(gru, "CHUNK_VALUES", request.param)


@SIZES
@pytest.mark.usefixtures("chunk_values")
def test_outputs_and_gradients_are_those_of_nn_gru(num_directions, num_layers, num_sequences, num_steps):
    inputs, stacks = made(num_directions, num_layers, num_sequences, num_steps)
    expected, outputs = native(inputs, stacks), gru.gru(inputs, stacks)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(
        gradients(outputs, inputs, stacks), gradients(expected, inputs, stacks), rtol=1e-10, atol=1e-13
    )


@pytest.mark.usefixtures("chunk_values")
def test_without_gradients_the_bits_are_the_same():
    inputs, stacks = made(2, 2, 5, 7)
    expected = [output.detach() for output in gru.gru(inputs, stacks)]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            outputs = gru.gru(inputs, stacks)
        assert not any(output.requires_grad for output in outputs)
        assert all(torch.equal(output, reference) for output, reference in zip(outputs, expected, strict=True))


def test_dropout_between_layers_is_that_of_nn_gru():
    inputs, stacks = made(2, 2, 5, 7)
    for stack in stacks:
        stack.dropout = 0.5
    torch.manual_seed(1)
    expected = native(inputs, stacks)
    torch.manual_seed(1)
    torch.testing.assert_close(gru.gru(inputs, stacks), expected, rtol=1e-10, atol=1e-14)
    for stack in stacks:
        stack.eval()
    torch.testing.assert_close(gru.gru(inputs, stacks), native(inputs, stacks), rtol=1e-10, atol=1e-14)


def attend(qkv: Tensor, mask: Tensor) -> Tensor:
    """What `attention.Attention` stands for."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
    return mixed.transpose(1, 2).flatten(2)


def queries_keys_values(num_sequences: int, num_steps: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return 3 * torch.randn(num_sequences, num_steps, 3, 2, 4, dtype=dtype)


def ragged(num_sequences: int, num_steps: int) -> Tensor:
    """Sequences of 1, 2, 3, ... real steps."""
    return torch.arange(num_steps) <= torch.arange(num_sequences).unsqueeze(1)


@pytest.mark.parametrize("padded", [False, True])
def test_attention_and_its_gradients_are_those_of_torch(padded):
    qkv = queries_keys_values(4, 5).requires_grad_()
    mask = ragged(4, 5) if padded else torch.ones(4, 5, dtype=torch.bool)
    weights = torch.randn(4, 5, 8, dtype=torch.float64)
    expected, actual = attend(qkv, mask), attention.Attention.apply(qkv, mask)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    gradient = [torch.autograd.grad((outputs * weights).sum(), qkv)[0] for outputs in (actual, expected)]
    torch.testing.assert_close(*gradient, rtol=1e-12, atol=1e-14)


def test_attention_under_autocast_is_computed_in_fp32():
    """The true numbers, rounded once, to bf16's 8 bits. How exact torch's own kernel is depends on the processor."""
    exact = queries_keys_values(4, 5).to(torch.bfloat16)
    mask = ragged(4, 5)
    expected = attend(exact.double(), mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = attention.Attention.apply(exact, mask)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=1.01 * 2**-8, atol=1e-5)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("count", [400_000, 399_999])
def test_dropout_drops_that_share_independently_and_scales_the_rest(p, count):
    torch.manual_seed(0)
    inputs = torch.full((count,), 3.0)
    outputs = dropout.dropout(inputs, p)
    mask = outputs != 0
    assert torch.equal(mask, outputs == outputs.max()) and outputs.max().item() == pytest.approx(3 / (1 - p), rel=1e-3)
    spread = (p * (1 - p) / count) ** 0.5
    assert abs(mask.double().mean().item() - (1 - p)) < 5 * spread + 2**-16
    for lag in (1, 2, 3, 4):  # four values come from one draw
        joint = (mask[lag:] & mask[:-lag]).double().mean().item()
        assert joint == pytest.approx((1 - p) ** 2, abs=5 * spread)


def test_dropout_has_the_gradient_of_what_it_did_and_repeats_with_the_seed():
    inputs = torch.ones(7, 5, requires_grad=True)
    torch.manual_seed(3)
    outputs = dropout.dropout(inputs, 0.4)
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    assert torch.equal(gradient, outputs.detach())  # of ones
    torch.manual_seed(3)
    assert torch.equal(dropout.dropout(inputs, 0.4), outputs)
    assert not torch.equal(dropout.dropout(inputs, 0.4), outputs)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_decoder_and_its_gradients_are_those_of_nn_lstm_step_by_step(num_layers, share, monkeypatch):
    """`share` of the inputs are a teacher's."""
    torch.manual_seed(0)
    network = forecaster(num_layers)
    values, mask = torch.randn(5, 6, 3, dtype=torch.float64), torch.ones(5, 6, dtype=torch.bool)
    teacher_targets = torch.randn(5, 4, dtype=torch.float64)
    teacher_targets[torch.rand(5, 4) >= share] = torch.nan
    weights = torch.randn(5, 4, dtype=torch.float64)
    actual = network(values, mask, teacher_targets)
    gradient = torch.autograd.grad((actual * weights).sum(), list(network.parameters()))
    monkeypatch.setattr(decoder, "is_supported", lambda lstm, inputs: False)
    expected = network(values, mask, teacher_targets)
    expected_gradient = torch.autograd.grad((expected * weights).sum(), list(network.parameters()))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-14)
    if share == 0.0:
        monkeypatch.undo()
        assert torch.equal(network(values, mask), actual)  # without a teacher


def forecaster(num_layers: int, dropout_p: float = 0.0) -> seq2seq.Network:
    shape = Shape(num_features=3, num_outputs=4, max_steps=6, per_step=False)
    network = seq2seq.Network(shape, hidden_size=4, num_layers=num_layers, dropout=dropout_p).double()
    for parameter in network.decoder.parameters():
        nn.init.normal_(parameter)  # large enough to saturate some gates
    return network


def test_the_decoder_passes_gradcheck_with_dropout_within_and_before_the_head():
    torch.manual_seed(0)
    L, S, B, H = 2, 3, 2, 4
    network = forecaster(L)
    teacher_targets = torch.tensor([[torch.nan, 1.0], [0.5, torch.nan], [torch.nan, torch.nan]], dtype=torch.float64)
    factors = [dropout.factor(shape, 0.5).double() for shape in ((S, B, H), (S, L - 1, B, H))]
    inputs = [torch.randn(B), torch.randn(L, B, H), torch.randn(L, B, H), network.head.weight, network.head.bias]
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]
    weights = [weight for layer in network.decoder.all_weights for weight in layer]

    def run(decoder_input: Tensor, hidden: Tensor, cell: Tensor, *rest: Tensor) -> Tensor:
        return decoder.Decoder.apply(decoder_input, hidden, cell, teacher_targets, *factors, *rest)

    assert torch.autograd.gradcheck(run, (*inputs, *weights))


def test_a_reversal_turns_the_real_steps_around_and_passes_gradcheck():
    values = torch.randn(5, 9, 3, dtype=torch.float64, requires_grad=True)
    rows = reversed_rows(torch.arange(9) < torch.tensor([[9], [1], [4], [8], [5]]))
    turned = Reversal.apply(values, rows)
    assert torch.equal(turned[2, :4], values[2, :4].flip(0)) and torch.equal(turned[2, 4:], values[2, 4:])
    assert torch.autograd.gradcheck(lambda values: Reversal.apply(values, rows), values)


# What a training records of its kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "num_steps", "expected"),
    [
        ({}, 9, "Tandem's GRU, Tandem's dropout"),
        ({"precision": "bf16"}, 9, "Tandem's GRU, Tandem's dropout"),
        ({"kernels": "torch"}, 9, "torch's GRU, torch's dropout"),
        ({"model": TRANSFORMER}, 9, "Tandem's attention"),
        ({"model": TRANSFORMER}, attention.MAX_STEPS + 1, "torch's attention"),
        pytest.param({"model": TRANSFORMER, "step": "compile"}, 9, "torch's attention", marks=pytest.mark.long),
        ({"model": TRANSFORMER, "kernels": "torch"}, 9, "torch's attention"),
    ],
    ids=str,
)
def test_a_training_notes_the_kernels_that_its_steps_took(changes: dict[str, Any], num_steps: int, expected: str):
    split = Split(tensors(num_steps=num_steps), kind_of("cpu")())
    trainer = trainer_on(split, replace(SETTINGS, **{"epochs": 2, **changes}))
    finish(trainer)
    assert kernels.described(trainer.step.kernels_used) == expected


def test_what_auto_tries_is_not_what_the_training_took(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """As on a GPU, where a recurrent layer computes in TF32 if the training is in bf16."""
    is_supported = gru.is_supported
    monkeypatch.setattr(gru, "is_supported", lambda x: not torch.is_autocast_enabled("cpu") and is_supported(x))
    monkeypatch.setattr(auto, "user_cache_dir", lambda: tmp_path)
    monkeypatch.setattr(auto, "waited_seconds", lambda: None)  # it does not wait for the cores of other tests
    split = Split(tensors(), kind_of("cpu")())
    trainer = trainer_on(split, replace(SETTINGS, precision="auto", epochs=2))
    hardware = {**identity("cpu"), "cpu": {"cores": 1}}
    auto.resolve(trainer, hardware)
    trainer.executor.use(replace(trainer.execution, precision="fp32"))
    finish(trainer)
    assert "torch's GRU" in trainer.step.kernels_used_in["bf16"]
    assert kernels.described(trainer.step.kernels_used) == "Tandem's GRU, Tandem's dropout"


def test_without_kernels_the_losses_are_the_same_up_to_rounding_and_other_dropout():
    split = Split(tensors(), kind_of("cpu")())
    settings = replace(SETTINGS, epochs=2, model=replace(SETTINGS.model, dropout=0.0))  # type: ignore[type-var]
    ours, torchs = (finish(trainer_on(split, replace(settings, kernels=name))) for name in ("auto", "torch"))
    assert torchs[1] == pytest.approx(ours[1], rel=1e-4)
    assert not all(torch.equal(weight, torchs[0][name]) for name, weight in ours[0].items())


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "expected"), [(SETTINGS.model, "cuDNN's GRU"), (TRANSFORMER, "torch's attention")])
def test_on_a_gpu_the_notes_are_not_those_of_a_cpu(model: Any, expected: str):
    from tests.trainers import full_tensors

    split = Split({name: tensor.cuda() for name, tensor in full_tensors(9).items()}, kind_of("cuda")())
    trainer = trainer_on(split, replace(SETTINGS, model=model, step="auto", epochs=2, batch_size=8))
    finish(trainer)
    notes = kernels.described(trainer.step.kernels_used)
    assert expected in notes and "Tandem's" not in notes


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_bf16_cudnn_computes_a_recurrent_layer_whatever_the_layer_before_it_returns(dtype: torch.dtype):
    notes: set[str] = set()
    layer, inputs = torch.nn.GRU(4, 8, batch_first=True).cuda(), torch.randn(2, 5, 4, device="cuda", dtype=dtype)
    with torch.autocast("cuda", torch.bfloat16), kernels.noted_in(notes):
        outputs, _ = run_recurrent(layer, inputs)
    assert len(notes) == 1 and "cuDNN's GRU in" in kernels.described(notes)
    assert outputs.dtype == torch.float32


@pytest.mark.gpu
def test_an_lstm_that_is_a_python_loop_is_not_noted_as_cudnns():
    notes: set[str] = set()
    layer, inputs = seq2seq.ManualLSTM(4, 8, batch_first=True).cuda(), torch.randn(2, 5, 4, device="cuda")
    with Execution(kind_of("cuda")(), "bf16").active(), kernels.noted_in(notes):  # TF32 for cuDNN alone
        run_recurrent(layer, inputs)
        with torch.autocast("cuda", torch.bfloat16):
            run_recurrent(layer, inputs)
    assert kernels.described(notes) == "torch's LSTM, torch's LSTM in fp32"
