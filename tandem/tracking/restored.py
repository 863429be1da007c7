"""Publishes in MLflow the evaluations that DVC has restored, for example after an edit of a metric was undone.

No stage runs then, so there is no run directory (run_dir.py). The publisher and `tandem sync` compare the scores in
results/ with those that MLflow has.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem.files import IN_MLFLOW, results_dir
from tandem.runs.run import Run, open_folder
from tandem.tracking import headline, registry, run_dir
from tandem.tracking.connection import explain
from tandem.tracking.headline import PARENT_TAG


def evaluations() -> Iterator[tuple[Path, Run]]:
    """The folders of the scores in results/, and their runs, which have the ids of MLflow's run."""
    for path in sorted(results_dir().glob(f"runs/*/*/evaluate/measured/*/{IN_MLFLOW}")):
        with suppress(ValueError, OSError):  # damaged, or a stage writes it
            run = open_folder(path)
            if run.score and "run_id" in run.tracking:
                yield path.parents[2] / "result" / path.parent.name, run


def publish_other_scores(client: Any) -> Iterator[dict[str, str]]:
    """Publish the scores and files of each evaluation in results/ of which MLflow has other scores. Yields the errors.

    A store without the run, such as another one, gets nothing.
    """
    from mlflow.entities import Metric

    for folder, evaluation in evaluations():
        run_id, experiment_id = evaluation.tracking["run_id"], evaluation.tracking["experiment_id"]
        metrics = evaluation.score["metrics"] if evaluation.score else {}
        scores = {f"test/{name}": value for name, value in metrics.items()}
        try:
            for run in client.search_runs([experiment_id], f"attributes.run_id = '{run_id}'"):
                if scores.items() <= run.data.metrics.items():
                    continue
                evaluation.require_intact()
                models = client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'")
                links = {"model_id": models[0].model_id, **registry.dataset_link(run)} if models else {}
                ms = run_dir.now_ms()
                client.log_batch(run_id, [Metric(name, value, ms, 0, **links) for name, value in scores.items()])
                for path in folder.iterdir():
                    client.log_artifact(run_id, str(path), "" if path.name == "score.json" else "evaluation")
                headline.write_run_figures(client, experiment_id, run_id, run.data.tags.get(PARENT_TAG, ""), ms)
        except Exception as error:  # `tandem sync` or the next publisher tries again
            yield explain(error)
