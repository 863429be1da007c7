"""Gives a run in MLflow, and the run above several seeds, what its pages show first (stages/records/headline.py)."""

import hashlib
import statistics
from collections.abc import Sequence
from typing import Any

from stages.records import headline

PARENT_TAG = "mlflow.parentRunId"  # the one that MLflow's pages read
NOTE_TAG = "mlflow.note.content"
OWN_NOTE_TAG = "tandem.note"  # a digest of the description that was written here: a user's own one stays
# What the run above several seeds sums up: the scores, and these.
SUMMED_UP = (
    "time/epoch_seconds_median",
    "throughput/samples_per_second_median",
    "vram/peak_allocated_mib_max",
    "vram/peak_process_mib_max",
)


def describe(client: Any, run: Any, ms: int, seeds: Sequence[Any] = ()) -> None:
    """Write the figures, their texts and the description of `run`; `seeds`: the runs below it, where there are some."""
    from mlflow.entities import Metric, RunTag

    runs = list(seeds) or [run]
    all_metrics = [each.data.metrics for each in runs]
    about, present = runs[-1].data, run.data
    numbers = [each.data.params["seed"] for each in runs if "seed" in each.data.params]
    tags = headline.texts(all_metrics)
    note = headline.note(all_metrics, numbers, about.params, about.tags)
    before = present.tags.get(NOTE_TAG)
    if before is None or digest(before) == present.tags.get(OWN_NOTE_TAG):
        tags |= {NOTE_TAG: note, OWN_NOTE_TAG: digest(note)}
    found = headline.figures(all_metrics).items()
    metrics = [Metric(name, value, ms, 0) for name, value in found if present.metrics.get(name) != value]
    client.log_batch(run.info.run_id, metrics, tags=[RunTag(name, value) for name, value in tags.items()])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sum_up(client: Any, experiment_id: str, parent_id: str, ms: int) -> None:
    """Give the run above several seeds means and ranges over them, of each the run that is newest."""
    from mlflow.entities import Metric

    children = client.search_runs([experiment_id], f"tags.`{PARENT_TAG}` = '{parent_id}'")
    by_seed = {run.data.params.get("seed"): run for run in reversed(children)}  # the newest come first
    scored = [run for run in by_seed.values() if any(name.startswith("test/") for name in run.data.metrics)]
    all_metrics = [run.data.metrics for run in scored]
    found = {"num_seeds": float(len(scored))}
    for name in dict.fromkeys(name for metrics in all_metrics for name in metrics):
        values = [metrics[name] for metrics in all_metrics if name in metrics]
        if len(values) == len(scored) and (name.startswith("test/") or name in SUMMED_UP):
            for how, reduce in (("mean", statistics.fmean), ("lowest", min), ("highest", max)):
                found[f"{name}_{how}"] = reduce(values)
    client.log_batch(parent_id, metrics=[Metric(name, value, ms, 0) for name, value in found.items()])
    client.set_tag(parent_id, "seeds", ",".join(sorted(filter(None, by_seed), key=int)))
    if scored:
        in_order = sorted(scored, key=lambda run: int(run.data.params.get("seed", 0)))
        describe(client, client.get_run(parent_id), ms, in_order)
    client.set_terminated(parent_id, "FINISHED", ms)
