"""Trained models in MLflow: as logged models of their run, and as versions of the workload's registered model.

`mlflow.pyfunc.load_model("models:/tandem-sign@best")` loads the best comparable version: the one with the highest
validation score among all versions validated on the same data and split as the newest. For every score, larger is
better (tandem/tasks/__init__.py). The test split is not used for the choice, so the test score of the best version
stays unbiased. A DVC experiment with other parameters makes no version. Every function can be called again after a
kill.
"""

import json
from pathlib import Path
from typing import Any

from tandem.files import digest

ALIAS = "best"
SCORE_TAG, DATA_TAG = "val_score", "split.sha256"  # tags of a version
DESCRIPTION_TAG = "mlflow.note.content"  # of a logged model: its page shows this text
VERSIONS_TAG = "mlflow.modelVersions"  # of a logged model: its page reads its versions from this tag


def name_of(workload: str) -> str:
    return f"tandem-{workload}"


def how_to_load(uri: str) -> str:
    """Return as Markdown how to load a model and to predict with it."""
    return (
        f'```python\nmodel = mlflow.pyfunc.load_model("{uri}")\n'
        "model.predict(model.input_example)  # or a table with the same columns\n```\n\n"
        "Set MLFLOW_TRACKING_URI to the address of this server before."
    )


def dataset_link(run: Any) -> dict[str, str]:
    """Return the fields by which a metric of MLflow's run names the run's dataset; empty if the run has none."""
    datasets = [dataset_input.dataset for dataset_input in run.inputs.dataset_inputs]
    return {"dataset_name": datasets[0].name, "dataset_digest": datasets[0].digest} if datasets else {}


def log_model(client: Any, experiment_id: str, run: Any, folder: Path) -> str:
    """Make the model in `folder` the logged model of MLflow's run, which `models:/<id>` loads. Returns its id.

    If the run was evaluated before, perhaps with other weights or code, the model's files are replaced.
    """
    from mlflow.entities import LoggedModelOutput

    run_id, outputs = run.info.run_id, run.outputs
    begun = client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'")  # without deleted ones
    of_run = {output.model_id for output in (outputs.model_outputs if outputs else ())}
    if logged := [str(model.model_id) for model in begun if model.model_id in of_run]:
        client.log_model_artifacts(logged[0], str(folder))
        return logged[0]
    # Continue a logged model that was left incomplete when a publisher was killed or the server hung.
    for extra in begun[1:]:
        client.delete_logged_model(extra.model_id)
    params = {name: value for name, value in run.data.params.items() if name.startswith("train.model.")}
    tags = {DESCRIPTION_TAG: how_to_load(f"runs:/{run_id}/model")}
    model = begun[0] if begun else client.create_logged_model(experiment_id, "model", run_id, tags, params)
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def register(client: Any, workload: str, run_id: str, model_id: str, model_info: dict[str, Any]) -> None:
    """Make the run's model a version of the workload's registered model, and set the alias on the best comparable
    version.

    `model_info`: `val_score`, and `data`, the digests of the data after its split.
    """
    name, data = name_of(workload), digest(model_info["data"])
    create_registered_model(client, name, workload)
    tags = {SCORE_TAG: repr(model_info["val_score"]), DATA_TAG: data}
    model = client.get_logged_model(model_id)
    # After its logged model was deleted, a run has a new one, and another version.
    versions = client.search_model_versions(f"name='{name}'")
    model_versions = [version for version in versions if version.source == model.artifact_location]
    if model_versions:  # the run was evaluated before
        version = model_versions[0]
        for tag, value in tags.items():
            client.set_model_version_tag(name, version.version, tag, value)
    else:
        # Not `models:/<id>`: MLflow looks that up in the globally configured store, not in the client's.
        source = model.artifact_location
        version = client.create_model_version(name, source, run_id, tags, await_creation_for=0, model_id=model_id)
    if not version.description:
        client.update_model_version(name, version.version, how_to_load(f"models:/{name}/{version.version}"))
    if VERSIONS_TAG not in model.tags:
        client.set_logged_model_tags(
            model_id, {VERSIONS_TAG: json.dumps([{"name": name, "version": str(version.version)}])}
        )
    versions = sorted(client.search_model_versions(f"name='{name}'"), key=lambda version: int(version.version))
    newest = {version.run_id: version for version in versions}
    comparable = [version for version in newest.values() if version.tags.get(DATA_TAG) == data]
    # With equal scores the first version wins, so the alias does not move.
    best = max(comparable, key=lambda version: (float(version.tags[SCORE_TAG]), -int(version.version)))
    client.set_registered_model_alias(name, ALIAS, best.version)


def create_registered_model(client: Any, name: str, workload: str) -> None:
    from mlflow.exceptions import MlflowException

    description = (
        f"Trained on `{workload}`; each evaluated run of the workspace's parameters is a version. "
        f"`models:/{name}@{ALIAS}` is the version with the highest validation score among those with the same data and "
        "split as the newest.\n\n" + how_to_load(f"models:/{name}@{ALIAS}")
    )
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
