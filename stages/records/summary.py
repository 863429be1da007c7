"""Writes the headline figures (stages/records/headline.py) to a run in MLflow and to the parent run of
several seeds.
"""

import hashlib
import statistics
from collections.abc import Sequence
from typing import Any

from stages.records import headline

PARENT_TAG = "mlflow.parentRunId"  # MLflow's UI reads this tag
NOTE_TAG = "mlflow.note.content"
OWN_NOTE_TAG = "tandem.note"  # the digest of the description written here; a user's own description is not replaced
# The metrics that the parent run summarizes, besides the scores.
SUMMED_UP = (
    "time/epoch_seconds_median",
    "throughput/samples_per_second_median",
    "vram/peak_allocated_mib_max",
    "vram/peak_process_mib_max",
)


def describe(client: Any, run: Any, ms: int, seeds: Sequence[Any] = ()) -> None:
    """Write the figures, their texts and the description of `run`. `seeds`: its child runs, if any."""
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
    """Write means and ranges over the seeds to the parent run. For each seed, the newest run counts."""
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
