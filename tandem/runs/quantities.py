"""The measured quantities of a training, a line for each, and the rows, totals and MLflow metrics made of them.

A new one is a line in QUANTITIES and the place that measures it: a field of `Measurement` (tandem/machine/measure.py),
or an entry of `Epoch.scalars` (tandem/training/trainer.py). A result, which repeats bit by bit, is an entry of
`history_row` and one of `epoch_metrics`. history.csv, timings.csv, timing.json and MLflow get each number from here, so
they agree. It is not part of a training's fingerprint, so another label or unit trains nothing again. It does not
import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tandem.training.trainer import Epoch


class Quantity(NamedTuple):
    name: str  # in timing.json, and in timings.csv if each epoch has it and MLflow has a name for it
    unit: str  # shown after a value; the label of samples_per_second has it
    # How the run's value is computed from those of the epochs: `median` of the epochs after warm-up; `max`, `mean` or
    # `sum` of all. `only epochs`: the run has no value, such as validation_seconds. `only the run`: epochs have none,
    # such as train_seconds, and `summarize` below or record.py computes it.
    reduce: str
    metric: str = ""  # MLflow's name; that of the run ends in `reduce` if epochs have one too
    label: str = ""  # in the table that compares runs
    is_compared: bool = False  # in compare.json and docs/published.json too
    is_sampled: bool = False  # the run's value comes from the GPU's samples, also those between epochs
    chart: str = ""  # title of its curve over the epochs in the report; empty: none


REDUCE: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "max": max, "mean": fmean, "sum": sum}
QUANTITIES = (
    Quantity("epoch_seconds", "s", "median", "time/epoch_seconds", "seconds per epoch", is_compared=True,
             chart="seconds per epoch"),
    Quantity("samples_per_second", "", "median", "throughput/samples_per_second", "samples/s",
             is_compared=True),
    Quantity("validation_seconds", "s", "only epochs", "time/validation_seconds"),
    Quantity("train_seconds", "s", "only the run", "time/train_seconds", "training seconds", is_compared=True),
    Quantity("energy_joules", "J", "only epochs", "energy/epoch_joules"),
    Quantity("epoch_joules", "J", "only the run", "energy/epoch_joules_median", "joules per epoch", is_compared=True),
    Quantity("train_joules", "J", "only the run", "energy/train_joules", is_compared=True),
    Quantity("peak_allocated_mib", "MiB", "max", "vram/peak_allocated_mib", "VRAM peak, tensors", is_compared=True,
             chart="peak of VRAM, MiB"),
    Quantity("peak_reserved_mib", "MiB", "max", "vram/peak_reserved_mib"),
    Quantity("process_mib", "MiB", "max", "vram/peak_process_mib", "VRAM peak, process", is_sampled=True),
    Quantity("device_mib", "MiB", "max", "vram/peak_device_mib", is_sampled=True),
    Quantity("other_processes", "processes", "max", is_sampled=True),
    Quantity("sampled_seconds", "s", "sum", is_sampled=True),
    Quantity("gpu_busy_share", "", "mean", "gpu/busy_share", is_sampled=True,
             chart="share of the time in which the GPU was busy"),
    Quantity("power_watts", "W", "mean", "gpu/power_watts", is_sampled=True),
    Quantity("sm_mhz", "MHz", "mean", "gpu/sm_mhz", is_sampled=True),
    Quantity("throttled_share", "", "mean", "gpu/throttled_share", is_sampled=True),
    Quantity("peak_rss_mib", "MiB", "max", "ram/peak_mib", "RAM peak, process", is_compared=True,
             chart="peak of RAM, MiB"),
    Quantity("cpu_share", "cores", "mean", "cpu/busy_cores", chart="CPU cores in use"),
    Quantity("gradient_norm", "", "only epochs", "train/gradient_norm",
             chart="norm of the gradients, mean over the steps"),
    Quantity("max_gradient_norm", "", "only epochs", "train/max_gradient_norm"),
    Quantity("threads", "threads", "mean", "cpu/threads"),
    Quantity("waiting_threads", "threads", "median", "cpu/waiting_threads"),
)  # fmt: skip
# Name -> MLflow's metric of an epoch, and of the run.
EPOCH_METRICS = {entry.name: entry.metric for entry in QUANTITIES if entry.metric and entry.reduce != "only the run"}
RUN_METRICS = {
    entry.name: entry.metric if entry.reduce == "only the run" else f"{entry.metric}_{entry.reduce}"
    for entry in QUANTITIES
    if entry.metric and entry.reduce != "only epochs"
}
# Name -> how compare.json reduces the values of several seeds to one.
SEED_REDUCTIONS = {
    entry.name: REDUCE["max" if entry.reduce == "max" else "median"] for entry in QUANTITIES if entry.is_compared
}
# Key in results/timings.json, which git keeps and `tandem show` lists -> name.
TRACKED = {
    "epoch_seconds": "epoch_seconds",
    "samples_per_second": "samples_per_second",
    "vram_peak_mib": "peak_allocated_mib",
}


def history_row(epoch: Epoch, score: str) -> dict[str, Any]:
    """A row of history.csv. A fitted model has no learning rate."""
    return {
        "epoch": epoch.number,
        **({} if epoch.learning_rate is None else {"learning_rate": epoch.learning_rate}),
        "train_loss": epoch.train_loss,
        "val_loss": epoch.val_loss,
        f"val_{score}": epoch.val_score,
    }


def score_column(row: Mapping[str, Any]) -> str:
    """The name of the score in a row of `history_row`."""
    return next(name for name in row if name.startswith("val_") and name != "val_loss")


def timing_row(epoch: Epoch, num_sequences: int, warmup_epochs: int, is_timed: bool = True) -> dict[str, Any]:
    """A row of timings.csv. Without `is_timed`, it has the time of day and `Epoch.scalars`, and no measurement."""
    assert epoch.scalars.keys() <= EPOCH_METRICS.keys(), "a scalar without a line in QUANTITIES would be lost"
    values: dict[str, Any] = dict(epoch.scalars)
    if is_timed:
        values = {
            **vars(epoch.training),
            "epoch_seconds": epoch.training.seconds,
            "samples_per_second": num_sequences / epoch.training.seconds,
            "validation_seconds": epoch.validation.seconds,
            **{name: peak_of(epoch, name) for name in ("peak_allocated_mib", "peak_reserved_mib")},
            **epoch.scalars,
        }
    return {
        "epoch": epoch.number,
        "ended_ms": int(time.time() * 1000),  # since 1970; MLflow's timestamp of the epoch
        "is_warmup": int(epoch.number <= warmup_epochs),
        **{name: values.get(name) for name in EPOCH_METRICS},
    }


def peak_of(epoch: Epoch, name: str) -> float | None:
    """Return the larger value of training and validation."""
    peaks = [getattr(part, name) for part in (epoch.training, epoch.validation)]
    return max((peak for peak in peaks if peak is not None), default=None)


def epoch_metrics(history: dict[str, Any], timing: dict[str, Any]) -> dict[str, float | None]:
    """Return the MLflow metrics of an epoch from its rows in history.csv and timings.csv."""
    score = score_column(history)
    return {
        "train/loss": history["train_loss"],
        "train/learning_rate": history.get("learning_rate"),
        "val/loss": history["val_loss"],
        score.replace("val_", "val/", 1): history[score],
        **{metric: timing.get(name) for name, metric in EPOCH_METRICS.items()},  # an earlier version has fewer
    }


def summarize(timings: list[dict[str, Any]], first_epoch: int) -> dict[str, Any]:
    """Summarize the epochs' measurements: medians after warm-up, peaks and means over all epochs.

    Epochs before `first_epoch` were trained by another number of workers and count only in `train_seconds`. A value
    that was not measured is None.
    """
    rows = [row for row in timings if row["epoch"] >= first_epoch]
    measured = [row for row in rows if not row["is_warmup"] and row["epoch_seconds"] is not None]
    seconds = [row["epoch_seconds"] + row["validation_seconds"] for row in timings if row["epoch_seconds"] is not None]
    of_epochs = {entry.name: entry.reduce for entry in QUANTITIES if entry.reduce in REDUCE and not entry.is_sampled}
    return {
        **{name: reduced(name, way, measured if way == "median" else rows) for name, way in of_epochs.items()},
        "num_epochs_measured": len(measured),
        "num_epochs_warmup": sum(row["is_warmup"] for row in rows),
        "train_seconds": sum(seconds) if len(seconds) == len(timings) else None,
    }


def reduced(name: str, way: str, rows: Iterable[Mapping[str, Any]]) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]  # a checkpoint of earlier code may lack a name
    return REDUCE[way](values) if values else None


def summarize_gpu(parts: Iterable[dict[str, Any]]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Summarize the sampler's GPU readings over the whole training, validation included. Returns the values and the
    reasons for missing ones.

    A value that is missing in one part of a resumed training is missing in the summary. On the CPU all values are None.
    """
    ways = {entry.name: entry.reduce for entry in QUANTITIES if entry.is_sampled}
    totals, missing_reasons = dict.fromkeys(ways, None), {}
    parts = [part for part in parts if part]
    for name, way in ways.items() if parts else ():
        values = [part[name] for part in parts]
        if reasons := [value for value in values if isinstance(value, str)]:
            missing_reasons[name] = reasons[0]
        elif way == "mean":
            totals[name] = fmean(values, [part["sampled_seconds"] for part in parts])
        else:
            totals[name] = REDUCE[way](values)
    return totals, missing_reasons
