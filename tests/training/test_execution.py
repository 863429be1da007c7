"""How steps are executed is one value; less memory, a resume and a measurement make others of it by rules that are
tables here.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.devices.names import kind_of
from tandem.models import kernels
from tandem.training.execution import RECOMPUTING, STREAMING, Execution, Switches, cheaper, merged, open_device
from tandem.training.trainer import Trainer
from tests.trainers import SETTINGS, identity, new_trainer, trainer_on

CPU, GPU = kind_of("cpu")(), kind_of("cuda")()
NOW = Execution(CPU)
FREED_GRAPH = "the CUDA graph of the step is freed, and the next steps are eager"
STREAMED = "the data (3.0 MiB) is read from its file batch by batch instead of held in memory"
RECOMPUTED = "activations are recomputed instead of stored"


def changed(before: Execution, after: Execution) -> dict[str, Any]:
    pairs = ((field.name, getattr(before, field.name), getattr(after, field.name)) for field in fields(Execution))
    return {name: new for name, old, new in pairs if new != old}


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("data", []),
        ("evaluation", ["a batch of 5 is evaluated in 2 parts", "a batch of 5 is evaluated in 4 parts"]),
        ("step", ["a batch of 5 is trained on in 2 parts", "a batch of 5 is trained on in 4 parts"]),
    ],
)
def test_less_memory_is_needed_step_by_step_until_nothing_is_left(work: str, expected: list[str]):
    """The captured graph goes first, then the data; both cost no bit."""
    if expected:
        expected = [*expected, expected[-1].replace("4", "5")]
    execution, sentences = Execution(GPU, step="graph", data_location="device"), []
    while fallback := cheaper(execution, work, 5, has_graph=not sentences, data_bytes=3 * 2**20, can_recompute=True):
        assert len(sentences) < 9 and fallback[0] != execution
        execution, sentence = fallback
        sentences.append(sentence)
    assert sentences == [FREED_GRAPH, STREAMED, *expected, *[RECOMPUTED] * (work == "step")]
    assert (execution.step, execution.why_no_graph, execution.gave_up_graph) == ("eager", "memory ran out", True)


def test_what_is_not_there_is_not_given_up():
    """No graph is captured, no data is in a file, and the network cannot recompute."""
    execution = Execution(GPU, step="graph", data_location="device", grad_accum_steps=5)
    nothing = {"has_graph": False, "data_bytes": 0, "can_recompute": False}
    assert all(cheaper(execution, work, 5, **nothing) is None for work in ("data", "step"))
    assert cheaper(replace(execution, data_location="host"), "step", 5, **nothing) is None
    streaming, _ = cheaper(execution, "data", 5, **{**nothing, "data_bytes": 1}) or (None, "")
    assert changed(execution, streaming) == {"data_location": "host", "step": "eager", "why_no_graph": STREAMING}
    recomputing, _ = cheaper(execution, "step", 5, **{**nothing, "can_recompute": True}) or (None, "")
    assert changed(execution, recomputing) == {"recomputes": True, "step": "eager", "why_no_graph": RECOMPUTING}


# (what the checkpoint has, what the new process asks for, what of that changes)
RESUMES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    ({"precision": "bf16"}, {}, {"precision": "bf16"}),  # `auto` chose it
    ({"precision": "tf32"}, {}, {}),  # a CPU has none
    ({"grad_accum_steps": 4}, {"grad_accum_steps": 2}, {"grad_accum_steps": 4}),
    ({"grad_accum_steps": 2}, {"grad_accum_steps": 4}, {}),
    ({"data_location": "host"}, {"data_location": "device"}, {"data_location": "host"}),
    ({"data_location": "device"}, {"data_location": "host"}, {}),
    ({"recomputes": True}, {}, {"recomputes": True}),
    ({"recomputes": True}, {"step": "compile"}, {"recomputes": True}),
    (
        {"recomputes": True, "step": "eager", "why_no_graph": RECOMPUTING},
        {"step": "graph"},
        {"recomputes": True, "step": "eager", "why_no_graph": RECOMPUTING},
    ),
    ({"num_eval_parts": 8}, {"num_eval_parts": 2}, {"num_eval_parts": 8}),
    ({"step": "graph"}, {"step": "eager", "why_no_graph": "no GPU"}, {}),
    ({"step": "eager", "why_no_graph": "no GPU"}, {"step": "graph"}, {}),
    (
        {"step": "eager", "why_no_graph": "memory ran out", "gave_up_graph": True},
        {"step": "graph"},
        {"step": "eager", "why_no_graph": "memory ran out", "gave_up_graph": True},
    ),
    ({"why_no_graph": "memory ran out", "gave_up_graph": True}, {"why_no_graph": "no GPU"}, {}),
    ({"kernels": "torch", "deterministic": False}, {}, {}),
    ({"device": kind_of("cuda")(1)}, {}, {}),
]


@pytest.mark.parametrize(("stored", "asked", "expected"), RESUMES, ids=str)
def test_a_resume_keeps_what_memory_has_run_out_with_and_takes_the_rest_anew(
    stored: dict[str, Any], asked: dict[str, Any], expected: dict[str, Any]
):
    requested = replace(NOW, **asked)
    resumed = merged(replace(NOW, **stored), requested)
    assert changed(requested, resumed) == expected
    assert merged(resumed, requested) == resumed == merged(resumed, resumed)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_compiled_step_is_deterministic_where_the_training_is(deterministic: bool, tmp_path: Path):
    import torch._inductor.config as inductor

    with inductor.patch(deterministic=not deterministic):
        new_trainer("cpu", "device", tmp_path, replace(SETTINGS, step="compile", deterministic=deterministic))
        assert inductor.deterministic == deterministic


def test_switches_are_those_of_the_execution_in_its_body_alone():
    open_device(identity("cpu"), threads=1, deterministic=True)
    before = Switches.now()
    with Execution(CPU, kernels="torch", deterministic=False).active():
        assert not kernels.are_allowed() and torch.get_deterministic_debug_mode() == 0
        with pytest.raises(ZeroDivisionError), Execution(CPU).active():
            assert kernels.are_allowed() and torch.get_deterministic_debug_mode() == 2
            1 / 0  # noqa: B018
        assert not kernels.are_allowed()
    assert Switches.now() == before


def test_a_network_that_sets_torchs_newer_switches_of_precision_is_told_which_setting_decides():
    of_matmul = torch.backends.cuda.matmul
    before = of_matmul.fp32_precision
    try:
        of_matmul.fp32_precision = "tf32"
        with pytest.raises(ValueError, match="sets one of torch's `fp32_precision` switches; remove that line"):
            with Execution(CPU).active():
                pass
    finally:
        of_matmul.fp32_precision = before
    with Execution(CPU).active():
        pass


def epoch_of(trainer: Trainer) -> float:
    torch.manual_seed(trainer.epochs_done)  # dropout
    return trainer.train_epoch().train_loss


def test_trainings_that_alternate_in_a_process_have_the_bits_that_each_has_alone(tmp_path: Path):
    """A training changes nothing of the process, neither when it is made nor for longer than an epoch."""
    variants = [replace(SETTINGS, kernels=name, epochs=2) for name in ("auto", "torch")]
    alone = [new_trainer("cpu", "host", tmp_path, settings) for settings in variants]
    expected = [[epoch_of(trainer) for _ in range(2)] for trainer in alone]
    with Execution(CPU, kernels="torch", deterministic=False).active():  # another surrounding
        before = Switches.now()
        trainers = [trainer_on(trainer.train_split, trainer.settings) for trainer in alone]
        losses = [[epoch_of(trainer) for trainer in trainers] for _ in range(2)]
        assert Switches.now() == before
    assert [list(of_one) for of_one in zip(*losses, strict=True)] == expected and expected[0] != expected[1]
