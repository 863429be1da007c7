"""What a result depends on is declared once, by the imports: an edit makes stale what runs through it, and nothing
else.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.code_dependencies import Code, fingerprint_code
from tandem.params.loading import load_workload
from tandem.params.own_components import modules_of
from tests.networks import Rocket
from tests.projects import (
    ROOT,
    commit,
    copy_of,
    copy_workload_code,
    dvc,
    every_stage,
    make_project,
    python,
    run_path,
    stage,
)

WORKLOADS = ("sign", "pen", "price", "rally")
STAGES = ("preprocess", "baseline", "preload", "train", "evaluate", "speed")
THROUGH_THE_MODEL = ("train", "evaluate", "speed")
SCORED = ("sign", "pen", "rally")  # tasks that import scores.py
ON_DEVICES = {"compare", *(f"{stage}@{name}" for stage in STAGES[1:] for name in WORKLOADS)}
FITTED = {"baseline@sign", "baseline@pen"}
# Nothing that the core imports; `tandem predict` reads data as `tandem new` does.
REMOVABLE = ("fitted", "importing", "checking", "predicting/command.py")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This project's code and params, without its data, whose code dependencies are asked for."""
    folder = make_project(tmp_path_factory.mktemp("code_dependencies") / "project", (ROOT / "params.yaml").read_text())
    copy_workload_code(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.code_dependencies.ROOT", folder)
        patch.setattr("tandem.code_dependencies.CACHE", folder / ".tandem/fingerprints.json")
        yield folder


def codes() -> dict[str, dict[str, str]]:
    """Stage -> what `hardware` writes of its code, which dvc.yaml depends on."""
    code = Code()
    modules = {name: modules_of(name, load_workload(name)) for name in WORKLOADS}
    stages = {f"{stage}@{name}": fingerprint_code(stage, modules[name], code) for stage in STAGES for name in WORKLOADS}
    return {**stages, "compare": fingerprint_code("compare", {}, code)}


@pytest.fixture(scope="module")
def before(project: Path) -> dict[str, dict[str, str]]:
    return codes()


def append(text: str) -> str:
    return text + "\nX = 1\n"


def stages_of(*workloads: str) -> set[str]:
    """The stages that run a workload's model."""
    return {f"{stage}@{workload}" for stage in THROUGH_THE_MODEL for workload in workloads}


@pytest.mark.parametrize(
    ("file", "edit", "stale"),
    [
        (
            "tandem/tasks/scores.py",
            append,
            {*stages_of(*SCORED), *(f"baseline@{name}" for name in SCORED), "compare"},
        ),
        ("tandem/models/kernels/attention.py", append, stages_of("pen")),
        ("workloads/rally/source.py", append, {"preprocess@rally", "evaluate@rally"}),
        ("tandem/data/series.py", append, {"preprocess@price"}),
        ("tandem/training/step.py", append, {f"{stage}@{name}" for stage in ("train", "speed") for name in WORKLOADS}),
        ("tandem/stage/start.py", append, {f"train@{name}" for name in WORKLOADS}),
        ("tandem/training/auto.py", append, {f"{stage}@{name}" for stage in ("train", "speed") for name in WORKLOADS}),
        ("tandem/fitted/trainer.py", append, set()),
        ("tandem/fitted/quant.py", append, FITTED),
        ("tandem/report/outcomes.py", append, {*(f"evaluate@{name}" for name in WORKLOADS), "compare"}),
        ("tandem/report/report.html.j2", lambda text: text + "<!-- -->\n", {"compare"}),
        ("tandem/tracking/publisher.py", append, set()),
        ("tandem/runs/quantities.py", append, {"compare"}),
        ("flows/pipeline.py", append, set()),
        ("tandem/devices/cuda.py", append, ON_DEVICES),
        ("tandem/devices/cuda.py", lambda text: text.replace("update the driver, or use", "renew it, or use"), set()),
        ("tandem/training/inference.py", lambda text: text.replace('"""Passes', '# A remark.\n"""All passes'), set()),
    ],
)
def test_an_edit_makes_stale_what_runs_through_it(
    project: Path, before: dict[str, dict[str, str]], file: str, edit, stale: set[str]
):
    path = project / file
    original = path.read_text()
    path.write_text(edited := edit(original))
    assert edited != original
    try:
        after = codes()
    finally:
        path.write_text(original)
    assert {stage for stage in after if after[stage] != before[stage]} == stale


def test_files_beside_a_workloads_code_belong_to_it(project: Path, before: dict[str, dict[str, str]]):
    """A task once read its class weights from a file, and other weights trained nothing."""
    folder = project / "workloads/rally"
    names = (
        "weights.json",
        "README.md",
        "metrics.py~",
        ".weights.swp",
        "data/more.json",
        ".cache/x.json",
        "conf/a.json",
    )
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("[1, 2]")
    after = codes()
    assert {file for files in after.values() for file in files} - {
        file for files in before.values() for file in files
    } == {"workloads/rally/weights.json", "workloads/rally/conf/a.json"}
    assert {name for name, files in after.items() if files != before[name]} == {"preprocess@rally", "evaluate@rally"}
    (folder / "weights.json").write_text("[1, 3]")
    assert codes()["evaluate@rally"] != after["evaluate@rally"]
    for path in paths:
        path.unlink()


def test_dvc_runs_what_an_edit_made_stale(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    unused, used = project / "tandem/models/transformer.py", project / "tandem/models/gru.py"
    unused.write_text(unused.read_text() + "\nX = 1\n")
    used.write_text(used.read_text() + "\n# A remark.\n")
    commit(project)
    stage(project, "hardware")
    assert not changed(project), "a model that no workload names, and a remark"
    quantities = project / "tandem/runs/quantities.py"
    text = quantities.read_text()
    edited = text.replace('"epoch_seconds", "s"', '"epoch_seconds", "sec"').replace('"seconds per epoch"', '"time"')
    assert '"sec"' in edited and '"time"' in edited
    quantities.write_text(edited)
    stage(project, "hardware")
    assert changed(project) == {"compare"}, "a label and a unit"
    quantities.write_text(text)
    used.write_text(used.read_text() + "\nX = 1\n")
    stage(project, "hardware")
    assert changed(project) == {"train@tiny-cpu", "replicate@tiny-cpu", "evaluate@tiny-cpu", "speed@tiny"}


def changed(project: Path) -> set[str]:
    """The stages whose own dependencies changed, as `dvc status` has it; hardware always runs."""
    return set(json.loads(dvc(project, "status", "--json").stdout)) - {"stages/dvc.yaml:hardware"}


def test_packages_that_the_core_does_not_need_can_be_removed(tmp_path: Path):
    """A workload is prepared, trained and evaluated, and every committed one is still valid."""
    project = make_project(tmp_path / "project")
    for name in REMOVABLE:
        path = project / "tandem" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    every_stage(project)
    assert "fitted_accuracy" not in (project / run_path("score.json")).read_text()
    shutil.copy(ROOT / "params.yaml", project)
    copy_workload_code(project)
    python(project, "from tandem.params.loading import load_params; load_params()")


def test_a_fitted_network_makes_its_trainer_a_dependency(project: Path):
    """It is imported by name, and only for such a network."""
    block = load_workload("sign")
    fitted = replace(block, train=replace(block.train, model=Rocket(name="rocket")))
    names = {
        name: fingerprint_code("train", modules_of("sign", case)) for name, case in (("gru", block), ("rocket", fitted))
    }
    trainer, network = "tandem/fitted/trainer.py", "tandem/fitted/rocket.py"
    assert {trainer, network, "tandem/fitted/closed_form.py"} <= {*names["rocket"]}
    assert not {trainer, network} & {*names["gru"]}
    assert trainer not in fingerprint_code("evaluate", modules_of("sign", fitted))
