"""The model of a training as a folder that MLflow loads anywhere, without this project and without a pickle.

    MLmodel               how MLflow loads it, the columns of the table that it predicts from, and an example
    model.safetensors     the weights
    model.json            the network, and how to preprocess a table for it
    code/tandem_<sha8>/   the modules that predicting imports, as one package
    requirements.txt      the packages that it needs; python_env.yaml and conda.yaml refer to it
    input_example.json, serving_input_example.json

The package is named after the digest of its modules, so one process can load models of different versions of the code.
In the copies of the modules, the imports of `tandem` and of `workloads` refer to the package.
"""

import ast
import hashlib
import json
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tandem import files
from tandem.code_dependencies import ROOTS, Code, imported_modules
from tandem.params.intervals import parse_interval
from tandem.params.own_components import modules_of
from tandem.params.schema import Workload
from tandem.predicting.predictor import Predictor, needed_columns
from tandem.runs import provenance

PREDICTOR = "tandem.predicting.predictor"
LOADER = f'''"""The code of a model that Tandem trained, for MLflow."""

from .{PREDICTOR} import _load_pyfunc as _load_pyfunc
'''
# mlflow also installs pyarrow and pydantic.
PACKAGES = ("mlflow", "torch", "numpy", "pandas", "safetensors")
ENVIRONMENTS = {
    "python_env.yaml": "python: {python}\nbuild_dependencies: [pip]\ndependencies: [-r requirements.txt]\n",
    "conda.yaml": "dependencies: [python={python}, pip, {{pip: [-r requirements.txt]}}]\nchannels: [conda-forge]\n",
}
MAX_EXAMPLE_ROWS = 100
TYPES = {"f": "double", "i": "long"}  # of NumPy's kinds in MLflow


def write_model(folder: Path, trained: Path, workload: str, params: Workload) -> None:
    """Write the model with the weights that are evaluated. `trained`: the folder with the training's result."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(trained / f"{params.evaluate.weights}.safetensors", folder / "model.safetensors")
    shutil.copyfile(trained / "model.json", folder / "model.json")
    shutil.rmtree(folder / "code", ignore_errors=True)  # from an evaluation that was killed
    package = write_package(folder / "code", needed_files(workload, params))
    files.write_text(folder / "requirements.txt", "".join(f"{line}\n" for line in requirements()))
    for name, text in ENVIRONMENTS.items():
        files.write_text(folder / name, text.format(python=platform.python_version()))
    example = example_of(files.read_json(trained / "model.json"))
    files.write_json(folder / "input_example.json", example)
    files.write_json(folder / "serving_input_example.json", {"dataframe_split": example})
    outputs = Predictor(folder, "model").predict(pd.DataFrame(example["data"], columns=example["columns"]))
    files.write_json(folder / "MLmodel", mlmodel_content(package, example["columns"], outputs))  # JSON is YAML


def mlmodel_content(package: str, columns: list[str], outputs: pd.DataFrame) -> dict[str, Any]:
    """Return the content of MLmodel. `outputs`: the predictions for the example. Without a row, such as of an event,
    their types are not known.

    The columns accept any type: for a column of floats, MLflow would refuse whole numbers. The predictor checks them.
    """
    types = {name: TYPES.get(values.dtype.kind, "string") if len(values) else "any" for name, values in outputs.items()}
    return {
        "flavors": {
            "python_function": {
                "code": "code",
                "loader_module": package,
                "python_version": platform.python_version(),
                "env": {"virtualenv": "python_env.yaml", "conda": "conda.yaml"},
            }
        },
        "signature": {
            "inputs": json.dumps([{"name": name, "type": "any", "required": True} for name in columns]),
            "outputs": json.dumps([{"name": name, "type": kind, "required": True} for name, kind in types.items()]),
            "params": None,
        },
        "saved_input_example_info": {
            "type": "dataframe",
            "pandas_orient": "split",
            "artifact_path": "input_example.json",
            "serving_input_path": "serving_input_example.json",
        },
    }


# Code.


def needed_files(workload: str, params: Workload) -> list[Path]:
    """The files that the predictor of a workload imports or reads, the network's and the task's among them."""
    code = Code()
    named = modules_of(workload, params) | {"source": ("tandem.data",)}  # predicting needs no source
    return sorted({Path(file) for module in imported_modules([PREDICTOR], named, code) for file in code.files[module]})


def write_package(folder: Path, sources: list[Path]) -> str:
    """Write the package to `folder`. Returns its name."""
    contents = {files.relative(path): path.read_bytes() for path in sources}
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    package = f"tandem_{hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:8]}"
    for path, content in contents.items():
        new_content = with_own_imports(content, package) if path.endswith(".py") else content
        files.write_bytes(folder / package / path, new_content, is_durable=False)
    files.write_text(folder / package / "__init__.py", LOADER)
    return package


def with_own_imports(source: bytes, package: str) -> bytes:
    """Make the imports of `tandem` and of `workloads` in a module refer to `package`.

    Raises ValueError if an import is written in a way that it cannot change.
    """
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    edits = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        assert node.end_lineno and node.end_col_offset  # ast.parse sets them
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if isinstance(node, ast.Import) and any(is_own(alias.name) for alias in node.names):
            edits.append((start, end, "; ".join(own_import(alias, package) for alias in node.names)))
        elif isinstance(node, ast.ImportFrom) and not node.level and is_own(node.module or ""):
            match = re.match(rb"from\s+(?=\w)", source[start:end])
            if not match:
                raise ValueError(f"write `{ast.unparse(node)}` on one line, so that a model in MLflow can contain it")
            edits.append((start + match.end(), start + match.end(), f"{package}."))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text.encode() + source[end:]
    return source


def is_own(module: str) -> bool:
    return module.split(".")[0] in ROOTS


def own_import(alias: ast.alias, package: str) -> str:
    """`import tandem.parts` also defines the name `tandem`."""
    if not is_own(alias.name):
        return ast.unparse(ast.Import([alias]))
    if alias.asname:
        return f"import {package}.{alias.name} as {alias.asname}"
    return f"import {package}.{alias.name}; from {package} import {alias.name.split('.')[0]}"


# Requirements.


def requirements() -> list[str]:
    """The packages of PACKAGES in the installed versions, without a local part such as +cpu, and the workloads' own."""
    lines = []
    for name in PACKAGES:
        try:
            lines.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:  # a machine that only trains does not need mlflow
            lines.append(name)
    return list(dict.fromkeys([*lines, *provenance.own_requirements()]))  # both may list torch


# An example of a table.


def example_of(model: dict[str, Any]) -> dict[str, Any]:
    """A table that the model predicts from, as DataFrame.to_dict("split") gives it: with the mean of each feature of a
    sequence, or with a series that grows steadily. `model`: the content of model.json.
    """
    learned = model["preprocessing"]
    texts, steps, features = needed_columns(learned)
    if not steps:  # a series
        data = [[time, *[100.0 + number] * len(features)] for number, time in enumerate(example_times(learned))]
    else:
        mean = dict(zip(learned["features"], learned["mean"], strict=True))
        values = [mean[name] + learned.get("offsets", {}).get(name, 0.0) for name in features]
        window = learned.get("window")
        num_steps = window["length"] if window else min(model["shape"]["max_steps"], MAX_EXAMPLE_ROWS)
        numbers = [step / rate for step in range(num_steps)] if (rate := learned.get("rate")) else range(num_steps)
        data = [[*["example"] * len(texts), step, *values] for step in numbers]
    return {"columns": [*texts, *steps, *features], "data": data}


def example_times(learned: dict[str, Any]) -> list[str]:
    from tandem.data.times import Steps, iso  # pyarrow takes 0.1 s

    steps = Steps(parse_interval(learned["interval"]), 0)
    first, _ = steps.points(np.array(["2024-01-01"], "datetime64[ns]").astype(np.int64))
    return list(iso(steps.times(first + np.arange(learned["input_steps"] + 1))).tolist())  # one more for the change
