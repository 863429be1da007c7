"""What MLflow shows first of a run: its headline figures, and a description made of them.

The figures are tags with short texts. The parent run of several seeds gets the figures of all of them.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tandem.runs.quantities import RUN_METRICS, SEED_REDUCTIONS
from tandem.terminal.messages import more_seeds_of

PARENT_TAG = "mlflow.parentRunId"  # MLflow's UI reads this tag
DESCRIPTION_TAG = "mlflow.note.content"  # MLflow's UI shows this text as the run's description
BASELINE_TAG = "baseline"  # the strongest baseline and its score; run_info.py sets it
NO_VRAM_TAG = "vram.absent"  # why a run has no metrics of VRAM, such as on a CPU
FITTED_TAG = "fitted"  # the name of a model that is fitted without steps
# In a description, what a user writes below this line stays.
RULE = "\n\n---\n"
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
    """Write the figures of `runs`, which may differ in their seed, as texts and the description to the run `run_id`.

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
    write_description(client, run_id)


def how_to_load(uri: str) -> str:
    """Return as Markdown how to load a model and to predict with it."""
    return (
        f'```python\nmodel = mlflow.pyfunc.load_model("{uri}")\n'
        "model.predict(model.input_example)  # or a table with the same columns\n```\n\n"
        "Set MLFLOW_TRACKING_URI to the address of this server before."
    )


def text_of(title: str, value: float) -> str:
    if title == "score":
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def write_description(client: Any, run_id: str) -> None:
    """Write the description of a run from its tags. Call this after a figure or a verdict has changed."""
    data = client.get_run(run_id).data
    tags, score = data.tags, score_metric(data.metrics).removeprefix("test/")
    lines, remarks = ["**Not evaluated yet**"], []
    if "score" in tags:
        baseline = f"; best baseline: {tags[BASELINE_TAG]}" if BASELINE_TAG in tags else ""
        seeds = f", mean of the seeds {tags['seeds'].replace(',', ', ')}" if "," in tags.get("seeds", "") else ""
        model = f" of the fitted model ({tags[FITTED_TAG]})" if FITTED_TAG in tags else ""
        lines = [f"**{score} {tags['score']}**{model} on the test split{seeds}{baseline}"]
        if "seeds" not in tags:
            remarks.append(how_to_load(f"runs:/{run_id}/model"))
        if "seeds" not in tags and PARENT_TAG not in tags:
            remarks.append(f"one seed; {more_seeds_of(tags['workload'])} of the score")
    words = {"s/epoch": "s to fit" if FITTED_TAG in tags else "s/epoch", "samples/s": "samples/s"}
    figures = [f"{tags[title]} {word}" for title, word in words.items() if title in tags]
    figures += [f"peak memory {tags['peak memory']}"] if "peak memory" in tags else []
    device = f"**{tags.get('device', '?')}** ({tags.get('device.name', '?')})"
    lines.append(": ".join(filter(None, (device, ", ".join(figures)))))
    remarks += [f"no VRAM value: {tags[NO_VRAM_TAG]}"] if NO_VRAM_TAG in tags else []
    lines += [f"{name}: {tags[name]}" for name in ("busy", "verified", "compared", "not_comparable") if name in tags]
    former = tags.get(DESCRIPTION_TAG, "")
    notes = former.partition(RULE)[2] if RULE in former else former
    client.set_tag(run_id, DESCRIPTION_TAG, "\n\n".join(["  \n".join(lines), *remarks]) + RULE + notes)


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
    name = client.get_run(parent_id).info.run_name
    if (new_name := re.sub(r"\d+ seeds$", f"{len(seeds)} seeds", name)) != name:
        client.update_run(parent_id, name=new_name)
    write_figures(client, parent_id, ms, scored)


def newest_of_seeds(client: Any, experiment_id: str, parent_id: str) -> list[Any]:
    """Return the newest run of each seed below a parent run."""
    children = client.search_runs([experiment_id], f"tags.`{PARENT_TAG}` = '{parent_id}'")
    by_seed = {run.data.params.get("seed"): run for run in reversed(children)}  # the newest come first
    return list(by_seed.values())
