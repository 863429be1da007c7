"""What a choice in Prefect's form becomes: a plan of DVC commands, or a sentence that names the mistake."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from dvc.exceptions import InvalidArgumentError
from dvc.utils.hydra import apply_overrides

from flows.plan import make_plan
from tandem.params.loading import load_params
from tandem.params.reading import PARAMS


@pytest.mark.parametrize(
    ("choices", "overrides", "expected"),
    [
        ({"workloads": ["sgin"]}, {}, "did you mean 'sign'?"),
        ({"devices": ["tpu"]}, {}, "accepted: auto, cpu, cuda"),
        ({"devices": ["cpu"]}, {"devices": ["cpu"]}, "remove one of them"),
        ({"preset": "cpu"}, {"sign.train.epochs": 5}, "is given in overrides, but preset cpu sets it"),
    ],
)
def test_a_wrong_parameter_is_named(choices: dict[str, Any], overrides: dict[str, Any], expected: str) -> None:
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
         [["repro", "--force", "evaluate@sign-auto", "speed@sign"], ["repro", "--force", "--single-item", "compare"]]),
        ({"devices": ["cpu"]}, {"sign.train.schedule": "cosine"}, False,
         [[*EXPERIMENT, '++sign.train.schedule="cosine"', "--set-param", 'devices=["cpu"]']]),
    ],
)  # fmt: skip
def test_a_choice_becomes_targets_and_a_new_value_an_experiment(
    choices: dict[str, Any], overrides: dict[str, Any], force: bool, commands: list[list[str]]
) -> None:
    plan = make_plan(choices, overrides, force, "calm-fox")
    assert plan.commands == commands and plan.experiment == ("calm-fox" if commands[0][0] == "exp" else None)


def test_an_override_of_a_default_is_one_that_dvc_takes(tmp_path: Path) -> None:
    """params.yaml does not have the key; DVC refuses a new one without `++`."""
    plan = make_plan({}, {"sign.train.schedule": "cosine"}, False, "calm-fox")
    assert plan.overridden == {"sign.train.schedule": ("one-cycle", "cosine")}
    path = tmp_path / "params.yaml"
    shutil.copy(PARAMS, path)
    with pytest.raises(InvalidArgumentError):
        apply_overrides(path, ["sign.train.schedule=cosine"])
    apply_overrides(path, [plan.commands[0][-1]])
    assert load_params(path).blocks["sign"].train.schedule == "cosine"
