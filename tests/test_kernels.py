"""The hand-written GRU against `nn.GRU`, whose parameters it uses: same numbers, same gradients, same bits every time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stages.models import kernels

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
    return [2 * x.requires_grad_() for x in inputs], stacks


def native(inputs: list[Tensor], stacks: list[nn.GRU]) -> list[Tensor]:
    return [stack(x)[0] for x, stack in zip(inputs, stacks, strict=True)]


def gradients(outputs: list[Tensor], inputs: list[Tensor], stacks: list[nn.GRU], **options: bool) -> list[Tensor]:
    """Of a sum that weighs every value differently, by the inputs and all parameters."""
    total = sum((y * torch.arange(y.numel(), dtype=y.dtype).sin().view_as(y)).sum() for y in outputs)
    of = [*inputs, *(parameter for stack in stacks for parameter in stack.parameters())]
    return list(torch.autograd.grad(total, of, **options))


@pytest.fixture(params=[kernels.SPAN_VALUES, 250], ids=["one span", "short spans"])
def span_values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 250, spans of one to three of the seven steps, where there is more than one sequence."""
    monkeypatch.setattr(kernels, "SPAN_VALUES", request.param)


@SIZES
@pytest.mark.usefixtures("span_values")
def test_outputs_and_gradients_are_those_of_nn_gru(num_directions, num_layers, num_sequences, num_steps):
    inputs, stacks = made(num_directions, num_layers, num_sequences, num_steps)
    expected, outputs = native(inputs, stacks), kernels.gru(inputs, stacks)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(
        gradients(outputs, inputs, stacks), gradients(expected, inputs, stacks), rtol=1e-10, atol=1e-13
    )


def test_float32_is_as_exact_as_nn_gru():
    """Both against float64, over enough steps for errors to add up."""
    inputs, stacks = made(2, 2, 20, 60)
    exact = native(inputs, stacks)
    exact_gradients = gradients(exact, inputs, stacks)
    stacks = [stack.float() for stack in stacks]
    inputs = [x.detach().float().requires_grad_() for x in inputs]
    worst = {}
    for run in (native, kernels.gru):
        outputs = run(inputs, stacks)
        computed = [*outputs, *gradients(outputs, inputs, stacks)]
        expected = [*exact, *exact_gradients]
        with torch.no_grad():
            errors = [(a - b).norm() / b.norm() for a, b in zip(computed, expected, strict=True)]
        worst[run] = max(errors)
    assert worst[kernels.gru] < max(2 * worst[native], 1e-6)


@pytest.mark.usefixtures("span_values")
def test_gradients_are_those_of_finite_differences():
    inputs, stacks = made(2, 2, 2, 7)
    names = [name for name, _ in stacks[0].named_parameters()]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        parameters = iter(tensors[2:])
        copies = [nn.GRU(3, 4, 2, batch_first=True, dtype=torch.float64) for _ in stacks]
        for copy in copies:
            for name in names:
                delattr(copy, name)
                setattr(copy, name, next(parameters))
        return tuple(kernels.gru(tensors[:2], copies))

    parameters = [parameter for stack in stacks for parameter in stack.parameters()]
    assert torch.autograd.gradcheck(run, [*(x.detach().requires_grad_() for x in inputs), *parameters], fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_two_runs_give_the_same_bits(dtype: torch.dtype):
    inputs, stacks = made(2, 2, 9, 30, dtype)
    first, second = kernels.gru(inputs, stacks), kernels.gru(inputs, stacks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(gradients(first, inputs, stacks), gradients(second, inputs, stacks), rtol=0, atol=0)


@pytest.mark.usefixtures("span_values")
def test_without_gradients_the_bits_are_the_same():
    inputs, stacks = made(2, 2, 5, 7)
    expected = [y.detach() for y in kernels.gru(inputs, stacks)]
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            outputs = kernels.gru(inputs, stacks)
        assert not any(y.requires_grad for y in outputs)
        assert all(torch.equal(y, e) for y, e in zip(outputs, expected, strict=True))


def test_inputs_without_gradient_leave_those_of_the_parameters_alone():
    inputs, stacks = made(2, 1, 5, 7)
    expected = gradients(kernels.gru(inputs, stacks), inputs, stacks)[2:]
    found = gradients(kernels.gru([x.detach() for x in inputs], stacks), [], stacks)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_direction_that_nothing_depends_on_has_gradient_zero():
    inputs, stacks = made(2, 1, 5, 7)
    expected = gradients(native(inputs, stacks)[:1], inputs[:1], stacks[:1])
    outputs = kernels.gru(inputs, stacks)
    torch.testing.assert_close(
        gradients(outputs[:1], inputs[:1], stacks[:1], retain_graph=True), expected, rtol=1e-10, atol=1e-13
    )
    assert not any(g.any() for g in gradients(outputs[:1], inputs[1:], stacks[1:]))


def test_differentiating_again_gives_the_same_and_twice_is_refused():
    inputs, stacks = made(2, 2, 5, 7)
    outputs = kernels.gru(inputs, stacks)
    once = gradients(outputs, inputs, stacks, retain_graph=True)
    again = gradients(outputs, inputs, stacks, retain_graph=True)
    torch.testing.assert_close(once, again, rtol=0, atol=0)
    (slope,) = torch.autograd.grad(outputs[0].square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_dropout_between_layers_is_that_of_nn_gru():
    inputs, stacks = made(2, 2, 5, 7)
    for stack in stacks:
        stack.dropout = 0.5
    torch.manual_seed(1)
    expected = native(inputs, stacks)
    torch.manual_seed(1)
    torch.testing.assert_close(kernels.gru(inputs, stacks), expected, rtol=1e-10, atol=1e-14)
    for stack in stacks:
        stack.eval()
    torch.testing.assert_close(kernels.gru(inputs, stacks), native(inputs, stacks), rtol=1e-10, atol=1e-14)


def test_weights_saved_from_nn_gru_are_used_as_they_are():
    inputs, stacks = made(1, 2, 5, 7)
    other = nn.GRU(3, 4, 2, batch_first=True, dtype=torch.float64)
    other.load_state_dict(stacks[0].state_dict())
    assert torch.equal(kernels.gru(inputs, [other])[0], kernels.gru(inputs, stacks)[0])


def test_it_takes_what_it_computes_as_nn_gru_does():
    assert kernels.takes(torch.zeros(1)) and kernels.takes(torch.zeros(1, dtype=torch.float64))
    assert not kernels.takes(torch.zeros(1, dtype=torch.bfloat16))
    assert not kernels.takes(torch.zeros(1, device="meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not kernels.takes(torch.zeros(1))


def test_its_products_are_counted():
    """As those of `nn.GRU`, but for the product with the state before step 0, which is zero, and for the weights' gradient from it."""
    inputs, stacks = made(2, 1, 5, 7)
    counts = []
    for run in (native, kernels.gru):
        with FlopCounterMode(display=False) as counter:
            gradients(run(inputs, stacks), inputs, stacks)
        counts.append(counter.get_total_flops())
    of_one_step = 2 * 5 * 12 * 4  # 2 B (3 H) H
    assert counts[0] - counts[1] == 2 * 2 * of_one_step
