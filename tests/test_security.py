"""What must not be executed or read: the form's values, files that hold code."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from flows.plan import make_plan
from tandem.data.packed import read_prepared_array
from tandem.files import ROOT, sha256_file
from tandem.params.reading import read_yaml
from tests.data.test_inputs import COMMON, MANY, SEED, typical
from tests.projects import TINY, dvc, error_of, make_project, needs, run

SECRET = "what nobody may see"
ATTACKS = [
    "../x", "x; touch pwned", "$(touch pwned)", "`touch pwned`", "x\ntouch pwned", "${oc.env:TANDEM_SECRET}",
    "\\${oc.env:TANDEM_SECRET}", "a,b", "{a: 1}", "[a]", "???", "'\"", "x' --queue '", "--queue", "größe",
    'a\\"b', "choice(a,b)", "${workloads}", "\x00", "",
]  # fmt: skip


def plan_for(overrides: dict[str, Any], name: str = "a run") -> list[list[str]]:
    return make_plan({}, overrides, False, name).commands


def given_to_dvc(commands: list[list[str]], folder: Path) -> dict[str, Any]:
    """params.yaml after DVC has read the `--set-param` of a plan."""
    from dvc.utils.hydra import apply_overrides

    [command] = commands
    sets = [value for word, value in zip(command, command[1:], strict=False) if word == "--set-param"]
    path = folder / "params.yaml"
    path.write_bytes((ROOT / "params.yaml").read_bytes())
    apply_overrides(path, sets)
    return read_yaml(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needs("dvc")
    os.environ["TANDEM_SECRET"] = SECRET
    yield tmp_path_factory.mktemp("params")
    del os.environ["TANDEM_SECRET"]


@pytest.mark.case(13, 53)
def test_dvc_receives_a_value_of_the_form_unchanged(folder: Path, saw: Callable[[str], None]):
    """any text as a value in the form's overrides, `$(...)` and `${oc.env:...}` among them, handed to DVC's parser"""
    sentences: list[str] = []

    @seed(SEED)
    @settings(max_examples=MANY, **COMMON)
    @given(
        st.sampled_from(ATTACKS) | st.text(max_size=20), st.sampled_from(["table", "columns.label", "columns.features"])
    )
    def check(text: str, key: str) -> None:
        value = [text] if key.endswith("features") else text
        try:
            commands = plan_for({f"sign.preprocess.{key}": value})
        except ValueError as error:
            sentences.append(str(error))
            assert SECRET not in str(error)
            return
        received: Any = given_to_dvc(commands, folder)["sign"]["preprocess"]
        for part in key.split("."):
            received = received[part]
        assert received == value

    check()
    saw(typical(sentences))


@pytest.mark.parametrize("attack", ["../x", "x; touch pwned", "${oc.env:TANDEM_SECRET}"])
def test_a_hostile_name_in_the_form_is_refused(attack: str):
    for choice in (
        {"workloads": [attack]},
        {"devices": [attack]},
        {"preset": attack},
        {"overrides": {attack: 1}},
        {"overrides": {f"sign.{attack}": 1}},
        {"overrides": {"presets": {"mine": {"all": {attack: 1}}}}},
    ):
        with pytest.raises(ValueError):
            make_plan(choice, choice.pop("overrides", {}), False, "a run")
    [command] = plan_for({"sign.train.epochs": 7}, name=attack)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", command[command.index("--name") + 1])


@pytest.mark.case(13)
def test_a_name_in_params_reaches_no_shell(tmp_path: Path, saw: Callable[[str], None]):
    """a workload called `x; touch pwned` in params.yaml, run with dvc repro; and with the stage's own command"""
    params = TINY.replace("workloads: [tiny]", "workloads: ['x; touch pwned']").replace(
        "\ntiny:", "\n'x; touch pwned':"
    )
    project = make_project(tmp_path / "project", params)
    done = dvc(project, "repro", check=False)
    assert done.returncode != 0 and "is not a usable name" in done.stdout and "Traceback" not in done.stdout
    (project / "params.yaml").write_text(TINY)
    refused = run(project, sys.executable, "-m", "tandem.stage", "preprocess", "../../x; touch pwned", check=False)
    assert refused.returncode == 1 and "is not in params.yaml" in refused.stdout
    assert not list(tmp_path.rglob("pwned"))
    saw(error_of(done.stdout))


@pytest.mark.long
@pytest.mark.case(13)
def test_an_experiment_with_a_hostile_value_executes_nothing(ready: Path, tmp_path: Path, saw: Callable[[str], None]):
    """`$(touch pwned); touch pwned` as the form's value of preprocess.table, in a real dvc exp run"""
    text = f"$(touch {tmp_path}/pwned); touch {tmp_path}/pwned; `touch {tmp_path}/pwned`"
    code = (
        "import sys; from flows.plan import make_plan;"
        "plan = make_plan({}, {'tiny.preprocess.table': sys.argv[1]}, False, 'x');"
        "print(*plan.commands[0], sep=chr(0))"
    )
    words = run(ready, sys.executable, "-c", code, text).stdout.strip().split("\0")
    done = dvc(ready, *words, check=False)
    assert done.returncode != 0 and "accepted endings" in done.stdout
    assert not list(tmp_path.rglob("pwned"))
    saw(error_of(done.stdout))


# Files that hold code. -----------------------------------------------------------------------------------------------


@pytest.mark.case(51)
def test_an_array_of_pickled_objects_is_damaged_and_runs_nothing(tmp_path: Path, saw: Callable[[str], None]):
    """an array of pickled objects with the right sha256; ruff's rules (pyproject.toml) search the code for pickle"""

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "pwned").touch, ())

    array = tmp_path / "test" / "targets.npy"
    array.parent.mkdir()
    np.save(array, np.array([Attack()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="targets.npy is damaged") as refused:
        read_prepared_array(tmp_path, "test", "targets", {"sha256": {"test/targets.npy": sha256_file(array)}})
    assert not (tmp_path / "pwned").exists()
    saw(f"error: {refused.value}")
