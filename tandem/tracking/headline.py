"""What MLflow shows first of a run: its headline figures, which are tags with short texts. The parent run of several
seeds gets the figures of all of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tandem.runs.quantities import RUN_METRICS, SEED_REDUCTIONS

PARENT_TAG = "mlflow.parentRunId"  # MLflow's UI reads this tag
BASELINE_TAG = "baseline"  # the strongest baseline and its score; run_info.py sets it
NO_VRAM_TAG = "vram.absent"  # why a run has no metrics of VRAM, such as on a CPU
# Tag -> quantity (quantities.py), besides the score, whose tag comes first.
ON_GPU = {"s/epoch": "epoch_seconds", "samples/s": "samples_per_second", "peak memory": "peak_allocated_mib"}
ON_CPU = ON_GPU | {"peak memory": "peak_rss_mib"}
UNITS = {"peak_allocated_mib": " MiB VRAM", "peak_rss_mib": " MiB RAM"}


def score_metric(metrics: Mapping[str, float]) -> str:
    """Return the metric of the task's score on the test split, named like the validation metric besides the loss.

    The parent run of several seeds has no other metric on the test split.
    """
    validated = (name.replace("val/", "test/", 1) for name in metrics if name.startswith("val/") and name != "val/loss")
    return next(chain(validated, (name for name in metrics if name.startswith("test/"))), "")


def write_figures(client: Any, run_id: str, ms: int, runs: Sequence[Any]) -> None:
    """Write the figures of `runs`, which may differ in their seed, as texts to the run `run_id`.

    A text has the range over several runs: 0.9789 (0.9722 to 0.9889). A score that a run lacks is left out; times and
    memory are those of the runs that were measured. The parent run also gets the metrics.
    """
    from mlflow.entities import Metric, RunTag

    logged_metrics, metrics, tags = client.get_run(run_id).data.metrics, [], []
    on_gpu = any(RUN_METRICS["peak_allocated_mib"] in run.data.metrics for run in runs)
    is_parent = run_id not in {run.info.run_id for run in runs}
    score = next((score_metric(run.data.metrics) for run in runs), "")
    for title, quantity in {"score": "", **(ON_GPU if on_gpu else ON_CPU)}.items():
        name, reduce = (RUN_METRICS[quantity], SEED_REDUCTIONS[quantity]) if quantity else (score, statistics.fmean)
        values = [run.data.metrics[name] for run in runs if name in run.data.metrics]
        if not values or (not quantity and len(values) < len(runs)):
            continue
        value = reduce(values)
        if is_parent and logged_metrics.get(name) != value:
            metrics.append(Metric(name, value, ms, 0))
        text = text_of(title, value)
        if len(values) > 1:
            text += f" ({text_of(title, min(values))} to {text_of(title, max(values))})"
        tags.append(RunTag(title, text + UNITS.get(quantity, "")))
    tags += [RunTag(BASELINE_TAG, run.data.tags[BASELINE_TAG]) for run in runs[-1:] if BASELINE_TAG in run.data.tags]
    client.log_batch(run_id, metrics, tags=tags)


def text_of(title: str, value: float) -> str:
    if title == "score":
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def write_run_figures(client: Any, experiment_id: str, run_id: str, parent_id: str, ms: int) -> None:
    """Write the figures of one run, and if it has a parent run, those over its seeds. Call this after new metrics."""
    write_figures(client, run_id, ms, [client.get_run(run_id)])
    if parent_id:
        write_parent_figures(client, experiment_id, parent_id, ms)


def write_parent_figures(client: Any, experiment_id: str, parent_id: str, ms: int) -> None:
    """Write the figures over the evaluated seeds to the parent run, and which seeds these are."""
    runs = newest_of_seeds(client, experiment_id, parent_id)
    scored = [run for run in runs if any(name.startswith("test/") for name in run.data.metrics)]
    seeds = {run.data.params.get("seed") for run in scored or runs}
    client.set_tag(parent_id, "seeds", ",".join(sorted(filter(None, seeds), key=int)))
    write_figures(client, parent_id, ms, scored)


def newest_of_seeds(client: Any, experiment_id: str, parent_id: str) -> list[Any]:
    """Return the newest run of each seed below a parent run."""
    children = client.search_runs([experiment_id], f"tags.`{PARENT_TAG}` = '{parent_id}'")
    by_seed = {run.data.params.get("seed"): run for run in reversed(children)}  # the newest come first
    return list(by_seed.values())
