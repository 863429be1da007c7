"""The measured quantities of a training, a line for each. Its records, MLflow's metrics and tables of runs use them.

A new one is a line in QUANTITIES and the place that measures it: a field of `Measurement` (tandem/machine/measure.py),
or an entry of `Epoch.scalars` (tandem/training/trainer.py).
No training depends on this module, so another label or unit trains nothing again. It does not import torch.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple


class Quantity(NamedTuple):
    name: str  # in timing.json, and in timings.csv if each epoch has it
    unit: str  # shown after a value; the label of samples_per_second has it
    # How the run's value follows from the epochs'. `median`: of those after warm-up. `max`, `mean`, `sum`: of all.
    # `elsewhere`: history.py computes it, and epochs have none. `none`: only epochs have one.
    of_run: str
    metric: str = ""  # MLflow's name; that of the run ends in `of_run` if epochs have one too
    kept: str = ""  # `compared`: in compare.json too; `published`: also in docs/published.json
    label: str = ""  # in the table that compares runs
    is_sampled: bool = False  # the run's value comes from the GPU's samples, also those between epochs


REDUCE: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "max": max, "mean": fmean, "sum": sum}
QUANTITIES = (
    Quantity("epoch_seconds", "s", "median", "time/epoch_seconds", "published", "epoch seconds"),
    Quantity("samples_per_second", "", "median", "throughput/samples_per_second", "published", "samples per second"),
    Quantity("validation_seconds", "s", "none", "time/validation_seconds"),
    Quantity("train_seconds", "s", "elsewhere", "time/train_seconds", "published", "training seconds"),
    Quantity("energy_joules", "J", "none", "energy/epoch_joules"),
    Quantity("epoch_joules", "J", "elsewhere", "energy/epoch_joules_median", "published", "joules per epoch"),
    Quantity("train_joules", "J", "elsewhere", "energy/train_joules", "published"),
    Quantity("peak_allocated_mib", "MiB", "max", "vram/peak_allocated_mib", "published", "VRAM peak, tensors"),
    Quantity("peak_reserved_mib", "MiB", "max", "vram/peak_reserved_mib", "compared"),
    Quantity("process_mib", "MiB", "max", "vram/peak_process_mib", "compared", "VRAM peak, process", is_sampled=True),
    Quantity("device_mib", "MiB", "max", "vram/peak_device_mib", is_sampled=True),
    Quantity("other_processes", "processes", "max", is_sampled=True),
    Quantity("sampled_seconds", "s", "sum", is_sampled=True),
    Quantity("gpu_busy_share", "", "mean", "gpu/busy_share", is_sampled=True),
    Quantity("power_watts", "W", "mean", "gpu/power_watts", is_sampled=True),
    Quantity("sm_mhz", "MHz", "mean", "gpu/sm_mhz", is_sampled=True),
    Quantity("throttled_share", "", "mean", "gpu/throttled_share", is_sampled=True),
    Quantity("peak_rss_mib", "MiB", "max", "ram/peak_mib", "published", "RAM peak, process"),
    Quantity("cpu_share", "cores", "mean", "cpu/busy_cores"),
    Quantity("gradient_norm", "", "none", "train/gradient_norm"),
    Quantity("max_gradient_norm", "", "none", "train/max_gradient_norm"),
    Quantity("threads", "threads", "mean", "cpu/threads"),
    Quantity("waiting_threads", "threads", "median", "cpu/waiting_threads"),
)
# Name -> MLflow's metric of an epoch, and of the run.
EPOCH_METRICS = {each.name: each.metric for each in QUANTITIES if each.metric and each.of_run != "elsewhere"}
RUN_METRICS = {
    each.name: each.metric if each.of_run == "elsewhere" else f"{each.metric}_{each.of_run}"
    for each in QUANTITIES
    if each.metric and each.of_run != "none"
}
# Name -> how compare.json reduces the values of several seeds to one. It has the times of each seed too.
COMPARED = {each.name: REDUCE["max" if each.of_run == "max" else "median"] for each in QUANTITIES if each.kept}
TIMES = [name for name in COMPARED if RUN_METRICS[name].startswith(("time/", "throughput/"))]
# Key in results/timings.json, which git keeps and `tandem show` lists -> name.
TRACKED = {
    "epoch_seconds": "epoch_seconds",
    "samples_per_second": "samples_per_second",
    "vram_peak_mib": "peak_allocated_mib",
}
