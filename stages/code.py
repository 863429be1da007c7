"""The code as a dependency, as precisely as it is used: which model and which task a workload names.

Out: `results/code/<workload>.json` with the sha256 of the workload's own model and task files. dvc.yaml cannot say "the model this
workload names" (its templates do not nest), and depending on every model would retrain every workload when one model changes.
Runs on every `dvc repro`.
"""

from stages.params import load_params
from stages.runtime.store import ROOT, code_file, sha256_file, write_json


def main() -> None:
    for name, block in load_params().blocks.items():
        files = [f"stages/models/{block.train.model.name}.py", f"stages/tasks/{block.task}.py"]
        write_json(code_file(name), {file: sha256_file(ROOT / file) for file in files})
