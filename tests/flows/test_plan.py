"""What a choice in Prefect's form becomes: a plan of DVC commands, or a sentence that names the mistake."""

import re
from typing import Any

import pytest

from flows.plan import make_plan


@pytest.mark.parametrize(
    ("choices", "overrides", "expected"),
    [
        ({"workloads": ["sgin"]}, {}, "did you mean 'sign'?"),
        ({"devices": ["tpu"]}, {}, "accepted: auto, cpu, cuda"),
        ({"devices": ["cpu"]}, {"devices": ["cpu"]}, "remove one of them"),
        ({"preset": "cpu"}, {"sign.train.epochs": 5}, "is given in overrides, but preset cpu sets it"),
        ({"devices": ["cuda"]}, {}, "device 'cuda' is not available: "),
    ],
)
def test_a_wrong_parameter_is_named(
    monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any], overrides: dict[str, Any], expected: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=re.escape(expected)):
        make_plan(choices, overrides, False, "calm-fox")


EXPERIMENT = ["exp", "run", "--temp", "--name", "calm-fox", "--set-param"]


FORM = {"workloads": ["rally", "sign", "pen", "price"], "devices": ["auto"], "seeds": [0], "preset": "none"}


@pytest.mark.parametrize(
    ("choices", "overrides", "force", "commands"),
    [
        ({}, {}, False, [["repro"]]),
        (FORM, {}, False, [["repro"]]),  # a form sends what it was filled in with
        ({"preset": "small-gpu"}, {}, False, [[*EXPERIMENT, 'preset="small-gpu"']]),
        ({"workloads": ["sign"]}, {}, True,
         [["repro", "--force", "evaluate@sign-auto"], ["repro", "--single-item", "compare"]]),
        ({"devices": ["cpu"]}, {"sign.train.schedule": "cosine"}, False,
         [[*EXPERIMENT, 'sign.train.schedule="cosine"', "--set-param", 'devices=["cpu"]']]),
    ],
)  # fmt: skip
def test_a_choice_becomes_targets_and_a_new_value_an_experiment(
    choices: dict[str, Any], overrides: dict[str, Any], force: bool, commands: list[list[str]]
) -> None:
    plan = make_plan(choices, overrides, force, "calm-fox")
    assert plan.commands == commands and plan.experiment == ("calm-fox" if commands[0][0] == "exp" else None)
