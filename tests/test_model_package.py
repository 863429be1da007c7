"""The code in a model of MLflow: it predicts without this project, and two versions of it in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.predicting.model_package import example_of, with_own_imports
from tests.projects import commit, copy_of, read_record, stages_at_once, tandem, wait_until_published
from tests.tasks.test_tasks import CLOSENESS
from tests.test_parts import HELPER, NET, OWN

# In an empty folder, with nothing of the caller's environment: predict with each model, and with its example.
# Arguments: the store, the table, URIs of models.
BARE = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("tandem", "workloads", "stages", "flows", "ruamel", "prefect", "dvc", "pynvml"):
            raise ModuleNotFoundError(f"{name} is not here", name=name)

sys.meta_path.insert(0, Absent())
import mlflow, pandas as pd

mlflow.set_tracking_uri(sys.argv[1])
table = pd.read_csv(sys.argv[2], dtype={"sequence": str})
models = [mlflow.pyfunc.load_model(uri) for uri in sys.argv[3:]]
for number, model in enumerate(models):
    model.predict(table).to_csv(f"{number}.csv", index=False)
    assert len(model.predict(model.input_example)) == 1
print(*sorted({name.split(".")[0] for name in sys.modules if name.startswith("tandem_")}))
"""


def predict_bare(folder: Path, project: Path, *uris: str) -> list[str]:
    """Predict in a process that cannot import this project. Returns the packages of models that it has loaded."""
    folder.mkdir()
    store, table = f"sqlite:///{project}/mlruns/mlflow.db", project / "workloads/tiny/data/table.csv"
    done = subprocess.run(
        [sys.executable, "-I", "-c", BARE, store, table, *uris],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def predicted_here(project: Path, out: Path) -> str:
    table = project / "workloads/tiny/data/table.csv"
    tandem(project, "predict", "tiny", str(table), "-o", str(out))
    return out.read_text()


@pytest.mark.long
def test_two_versions_of_the_code_predict_in_one_process_without_this_project(trained: Path, tmp_path: Path):
    """A built-in network, then a network and a task of the workload's own."""
    pytest.importorskip("mlflow")
    project = copy_of(trained, tmp_path / "project")
    uris, expected = [uri_of(project)], [predicted_here(project, tmp_path / "expected0.csv")]
    reads = "\nfrom pathlib import Path\n\nSCALE = float(Path(__file__).with_name('scale.txt').read_text())\n"
    for name, content in (("net", NET), ("helper", HELPER + reads), ("task", CLOSENESS)):
        (project / f"workloads/tiny/{name}.py").write_text(content)
    (project / "workloads/tiny/scale.txt").write_text("1.5")
    params = OWN.replace("task: classify", "task: task.py:Task")
    (project / "params.yaml").write_text(params.replace("label_smoothing: 0.1", "label_smoothing: 0.0"))
    commit(project)
    stages_at_once(project, "hardware", "train tiny cpu 0", "evaluate tiny cpu")
    wait_until_published(project)
    uris.append(uri_of(project))
    expected.append(predicted_here(project, tmp_path / "expected1.csv"))
    assert expected[0] != expected[1]
    packages = predict_bare(tmp_path / "empty", project, *uris)
    assert len(packages) == 2
    assert [(tmp_path / f"empty/{number}.csv").read_text() for number in range(2)] == expected


def uri_of(project: Path) -> str:
    return f"runs:/{read_record(project, 'timing.json')['mlflow']['run_id']}/model"


def test_a_model_has_the_code_that_it_needs_and_no_pickle(trained: Path):
    [folder] = (trained / "mlruns/artifacts/tiny/models").glob("*/artifacts")
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pth", ".pt")]
    package = json.loads((folder / "MLmodel").read_text())["flavors"]["python_function"]["loader_module"]
    names = {path.stem for path in (folder / "code" / package).rglob("*.py")}
    assert "gru" in names and not names & {"transformer", "trainer", "checkpoint", "rally_simulation", "loading"}
    pinned = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in pinned} == {"mlflow", "torch", "numpy", "pandas", "safetensors"}


def test_the_example_of_one_recording_has_no_column_for_its_name():
    """`columns.sequence: none` is one recording; MLflow would refuse its table, which has no such column."""
    columns = {"sequence": "none", "step": "t", "features": ["x"], "label": "label"}
    learned = {"features": ["x"], "mean": [1.5], "columns": columns, "window": {"length": 2}}
    example = example_of({"preprocessing": learned, "shape": {"max_steps": 2}})
    assert example == {"columns": ["t", "x"], "data": [[0, 1.5], [1, 1.5]]}


def test_the_example_for_arrays_has_no_column_for_a_velocity():
    """The model computes it. `input_steps` is a parameter of the source's function, and the data no series."""
    learned = {"features": ["x0", "dx0"], "mean": [1.5, 0.0], "columns": None, "velocity": True, "input_steps": 9}
    example = example_of({"preprocessing": learned, "shape": {"max_steps": 1}})
    assert example == {"columns": ["sequence", "step", "x0"], "data": [["example", 0, 1.5]]}


def test_an_import_that_cannot_be_changed_gets_one_sentence():
    with pytest.raises(ValueError, match="write `from tandem.parts import Whole` on one line"):
        with_own_imports(b"from \\\n    tandem.parts import Whole\n", "p")
