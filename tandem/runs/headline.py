"""What MLflow's table of runs shows: the headline figures of each run, and a saved view with their columns.

The figures are metrics that MLflow sorts first, and tags with their texts. The parent run of several seeds gets the
figures of all of them.
"""

import base64
import json
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

PARENT_TAG = "mlflow.parentRunId"  # MLflow's UI reads this tag


class Figure(NamedTuple):
    metric: str  # its name; "" is the task's score on the test split
    title: str  # of the tag with the text, with the unit
    reduce: Callable[[Sequence[float]], float]  # the values of several seeds to one, as in compare.json


# MLflow sorts metrics by name and groups charts by the part before the slash. The names are short because chart titles
# are narrow. docs/metrics.md defines each metric.
FIGURES = {
    "0/1_score": Figure("", "score", statistics.fmean),
    "0/2_epoch_seconds": Figure("time/epoch_seconds_median", "s/epoch", statistics.median),
    "0/3_samples_per_second": Figure("throughput/samples_per_second_median", "samples/s", statistics.median),
    "0/4_vram_peak_mib": Figure("vram/peak_allocated_mib_max", "VRAM MiB", max),
}


def score_of(metrics: Mapping[str, float]) -> str:
    """Return the metric of the task's score on the test split: that of the validation metric besides the loss."""
    found = (name for name in metrics if name.startswith("val/") and name != "val/loss")
    return next(found, "val/").replace("val/", "test/", 1)


def write_figures(client: Any, run_id: str, ms: int, runs: Sequence[Any]) -> None:
    """Write the figures of `runs`, which may differ in their seed, and their texts to the run `run_id`.

    A text has the range over several runs: 0.9789 (0.9722 to 0.9889). A figure that a run lacks is left out.
    """
    from mlflow.entities import Metric, RunTag

    present, metrics, tags = client.get_run(run_id).data.metrics, [], []
    for name, figure in FIGURES.items():
        found = [run.data.metrics.get(figure.metric or score_of(run.data.metrics)) for run in runs]
        values = [value for value in found if value is not None]
        if not values or len(values) < len(runs):
            continue
        value = figure.reduce(values)
        if present.get(name) != value:
            metrics.append(Metric(name, value, ms, 0))
        text = text_of(name, value)
        if len(values) > 1:
            text += f" ({text_of(name, min(values))} to {text_of(name, max(values))})"
        tags.append(RunTag(figure.title, text))
    client.log_batch(run_id, metrics, tags=tags)


def text_of(name: str, value: float) -> str:
    if name == "0/1_score":
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def write_parent_figures(client: Any, experiment_id: str, parent_id: str, ms: int) -> None:
    """Write the figures over the evaluated seeds to the parent run. For each seed, the newest run counts."""
    children = client.search_runs([experiment_id], f"tags.`{PARENT_TAG}` = '{parent_id}'")
    by_seed = {run.data.params.get("seed"): run for run in reversed(children)}  # the newest come first
    scored = [run for run in by_seed.values() if any(name.startswith("test/") for name in run.data.metrics)]
    write_figures(client, parent_id, ms, scored)
    client.set_tag(parent_id, "seeds", ",".join(sorted(filter(None, by_seed), key=int)))
    client.set_terminated(parent_id, "FINISHED", ms)


# The saved view (MLflow 3.15 and later).

VIEW_NAME = "Tandem: device, score, speed, memory, verdicts"
MADE_AT = 1_763_769_600_000  # ms; a view that a user has saved again has a later `updatedAt` and is not replaced
# Column, as MLflow writes it -> its width in pixels. The run's name always comes first.
COLUMNS = {
    "tags.`device`": 60,
    **{f"tags.`{each.title}`": width for each, width in zip(FIGURES.values(), (170, 140, 80, 80), strict=True)},
    "tags.`verified`": 110,
    "tags.`compared`": 260,
    "params.`seed`": 60,
    "tags.`host`": 110,
    "tags.`device.name`": 200,
    "attributes.`Duration`": 90,
}


def saved_view() -> str:
    """Return the view as the value of an experiment's tag `mlflow.sharedViewState.<key>` (store.VIEW_TAG).

    It is JSON with a name, two times and the state of the page. An address with `viewStateShareKey=<key>` opens it.
    """
    state = {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
        "columnOrder": list(COLUMNS),
        "columnWidths": COLUMNS,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": VIEW_NAME, "createdAt": MADE_AT, "updatedAt": MADE_AT, "state": f"deflate;{packed}"})
