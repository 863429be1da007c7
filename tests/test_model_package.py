"""The code in a model of MLflow: it predicts without this project, and two versions of it in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.model_package import with_own_imports
from tests.projects import commit, copy_of, read_record, stages_at_once, tandem, wait_until_published
from tests.tasks.test_tasks import CLOSENESS
from tests.test_parts import HELPER, NET, OWN

STAGES = ("hardware", "train tiny cpu 0", "evaluate tiny cpu")
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


def test_two_versions_of_the_code_predict_in_one_process_without_this_project(prepared: Path, tmp_path: Path):
    """A network of the workload's own with a built-in task, then with a task of the workload's own as well."""
    pytest.importorskip("mlflow")
    project = copy_of(prepared, tmp_path / "project", OWN)
    uris, expected = [], []
    for name, content in (("net", NET), ("helper", HELPER), ("task", CLOSENESS)):
        (project / f"workloads/tiny/{name}.py").write_text(content)
    own_task = OWN.replace("task: classify", "task: task.py:Task").replace(
        "label_smoothing: 0.1", "label_smoothing: 0.0"
    )
    for number, params in enumerate((OWN, own_task)):
        (project / "params.yaml").write_text(params)
        commit(project)
        stages_at_once(project, *STAGES)
        wait_until_published(project)
        uris.append(f"runs:/{read_record(project, 'timing.json')['mlflow']['run_id']}/model")
        expected.append(predicted_here(project, tmp_path / f"expected{number}.csv"))
    assert expected[0] != expected[1]
    packages = predict_bare(tmp_path / "empty", project, *uris)
    assert len(packages) == 2
    assert [(tmp_path / f"empty/{number}.csv").read_text() for number in range(2)] == expected


def test_a_built_in_network_predicts_without_this_project_and_without_a_pickle(trained: Path, tmp_path: Path):
    pytest.importorskip("mlflow")
    [package] = predict_bare(tmp_path / "empty", trained, "models:/tandem-tiny@best")
    assert (tmp_path / "empty/0.csv").read_text() == predicted_here(trained, tmp_path / "expected.csv")
    [folder] = (trained / "mlruns/artifacts/tiny/models").glob("*/artifacts")
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pth", ".pt")]
    names = {path.stem for path in (folder / "code" / package).rglob("*.py")}
    assert "gru" in names and not names & {"transformer", "trainer", "checkpoint", "rally_simulation", "loading"}
    model = json.loads((folder / "MLmodel").read_text())
    assert model["flavors"]["python_function"]["loader_module"] == package
    pinned = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in pinned} == {"mlflow", "torch", "numpy", "pandas", "safetensors"}


def test_an_import_that_cannot_be_changed_gets_one_sentence():
    with pytest.raises(ValueError, match="write `from tandem.parts import Whole` on one line"):
        with_own_imports(b"from \\\n    tandem.parts import Whole\n", "p")
