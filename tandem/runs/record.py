"""The record of a training, its energy, and the sentences about it. This module opens no file and imports no torch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from tandem.devices.names import is_accelerator
from tandem.runs.quantities import score_column

NOT_TIMED = "trained together with other seeds, so not measured"  # the stage `replicate`

# The validation loss has risen: by this factor since its lowest value, in the first part of the epochs.
RISEN, LATEST_BEST = 1.1, 0.75


@dataclass
class Record:
    """The results of the epochs so far. Every checkpoint contains them."""

    run_key: str  # names the MLflow run; stays the same when the training resumes
    history: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    probe: dict[str, float] = field(default_factory=dict)  # how the time of a step is spent
    not_probed: dict[str, str] = field(default_factory=dict)  # probe values that are missing -> the reason
    bound: dict[str, str] = field(default_factory=dict)  # the bottleneck and the advice, as MLflow tags
    summary_lines: dict[str, str] = field(default_factory=dict)  # sentences for the report and MLflow
    # Measurements that are missing in the last epoch -> the reason.
    missing_reasons: dict[str, str] = field(default_factory=dict)
    # An entry for each process that trained: its first epoch -> what the GPU's sampler read.
    sampled: dict[int, dict[str, Any]] = field(default_factory=dict)
    # The same: its first epoch -> its joules, or the reason why they are unknown.
    energy: dict[int, float | str] = field(default_factory=dict)
    evaluate: dict[str, Any] = field(default_factory=dict)  # the section of params.yaml at the start
    # What train.json and timing.json say about the start: commit, conditions, weights.
    at_start: dict[str, Any] = field(default_factory=dict)
    digests: list[dict[str, str]] = field(default_factory=list)  # of each epoch's weights, order and random draws
    # First epoch -> the number of workers from there on; empty for one worker. A resumed training may have another one.
    workers: dict[int, int] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)  # that the steps chose (tandem/models/kernels)
    # What timing.json says about the end: the time and the conditions. Empty until all epochs are trained.
    at_end: dict[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are trained. The results may have to be written again."""
        return bool(self.at_end)

    @property
    def first_epoch_of_workers(self) -> int:
        """The first epoch with the number of workers that the training has now."""
        return max(self.workers, default=1)

    @property
    def num_workers(self) -> int:
        return self.workers.get(self.first_epoch_of_workers, 1)

    def set_num_workers(self, number: int) -> str:
        """Record the number of workers of the coming epochs. Returns a sentence if it has changed."""
        num_before, num_epochs = self.num_workers, len(self.history)
        if number == num_before:
            return ""
        self.workers[num_epochs + 1] = number
        if not num_epochs:
            return ""
        past_epochs = "epoch 1" if num_epochs == 1 else f"epochs 1 to {num_epochs}"
        counts = [f"{count} worker{'s' * (count > 1)}" for count in (num_before, number)]
        return f"{past_epochs} used {counts[0]}, the next ones use {counts[1]}: the results are equal within rounding"

    @property
    def workers_from_epoch(self) -> dict[str, int]:
        """First epoch -> number of workers from there on; empty if the number never changed."""
        since = {1: 1} | self.workers
        return {str(epoch): since[epoch] for epoch in sorted(since)} if len(since) > 1 else {}


def summarize_energy(record: Record) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the median of the epochs after warm-up and the energy of the whole training, between epochs included.

    Both are in joules. One that is unknown for an epoch or a part is None, and the second dictionary has its reason.
    """
    rows = [row for row in record.timings if row["epoch"] >= record.first_epoch_of_workers and not row["is_warmup"]]
    epochs = [row["energy_joules"] for row in rows]
    joules: dict[str, float | None] = {"epoch_joules": None, "train_joules": None}
    missing_reasons: dict[str, str] = {}
    if None in epochs:
        # The last epoch may have its energy where another one lacks it.
        missing_reasons["epoch_joules"] = record.missing_reasons.get("energy_joules", "some epochs lack their energy")
    else:
        joules["epoch_joules"] = statistics.median(epochs)
    parts = list(record.energy.values())
    if reasons := [value for value in parts if isinstance(value, str)]:
        missing_reasons["train_joules"] = reasons[0]
    else:
        joules["train_joules"] = sum(value for value in parts if not isinstance(value, str))
    return joules, missing_reasons


def energy_sentence(joules: dict[str, float | None], missing_reasons: dict[str, str], method: str) -> str:
    """Return a sentence on the energy of the training and of an epoch, or on why it is unknown."""
    texts = {"train_joules": "{:,.4g} J for the training", "epoch_joules": "{:,.4g} J per epoch"}
    if phrases := [text.format(joules[name]) for name, text in texts.items() if joules[name] is not None]:
        return f"{', '.join(phrases)} according to {method}; this includes the energy of other processes"
    return f"energy is not measured: {missing_reasons['train_joules']}"


def device_sentence(kind: str, period: str, result: dict[str, Any], num_workers: int) -> str:
    """Return a sentence on which device the training ran and how the device was used. `period`: `all 12 epochs`."""
    measured = {
        "{:,.0f} kernels per step on the GPU": result["num_kernels"],
        "the process used {:.2f} CPU cores": result["cpu_share"],
        "the GPU was busy {:.0%} of the time": result["gpu_busy_share"],
        "the GPU drew {:,.0f} W": result["power_watts"],
        "peak VRAM of this process {:,.0f} MiB": result["process_mib"],
        "of its tensors {:,.0f} MiB": result["peak_allocated_mib"],
    }
    phrases = [text.format(value) for text, value in measured.items() if value is not None]
    source = ["measured on the first worker's GPU"] if num_workers > 1 and is_accelerator(kind) and phrases else []
    placement = f"parameters, batches and outputs were on {kind} in {period}"
    return ", ".join([placement, *source, *phrases])


def overfitting_sentence(history: list[dict[str, Any]]) -> str:
    """Return that the validation got worse while the training loss fell; empty if it did not."""
    lowest, last = min(history, key=lambda row: float(row["val_loss"])), history[-1]
    then, now = ({name: float(value) for name, value in row.items()} for row in (lowest, last))
    score = score_column(now)
    is_early = then["epoch"] <= LATEST_BEST * len(history) and now["train_loss"] < then["train_loss"]
    if not (is_early and now["val_loss"] > RISEN * then["val_loss"] and now[score] < then[score]):
        return ""
    return (
        f"the validation loss is lowest after epoch {then['epoch']:.0f} of {len(history)} ({then['val_loss']:.4g}) and "
        f"then rises to {now['val_loss']:.4g}, while the training loss falls: the network memorizes; evaluate.weights "
        "says which of the two is scored"
    )


def memory_tags(fallbacks: list[str]) -> dict[str, str]:
    """Return MLflow's tag for the out-of-memory fallbacks; empty if memory did not run out."""
    return {"out_of_memory": "; ".join(fallbacks)} if fallbacks else {}
