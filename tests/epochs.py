"""The record of a training that never ran. Scripts that run in another project include this file as text."""

from tandem.runs.quantities import EPOCH_METRICS
from tandem.runs.record import Record


def epochs(number: int) -> Record:
    """A record of `number` epochs, as a training writes it."""
    history = [
        {"epoch": epoch, "learning_rate": 0.1, "train_loss": 1 / epoch, "val_loss": 2 / epoch, "val_accuracy": 0.5}
        for epoch in range(1, number + 1)
    ]
    measured: dict[str, float | None] = {"is_warmup": 0, **dict.fromkeys(EPOCH_METRICS)}
    measured |= {"epoch_seconds": 0.1, "samples_per_second": 9.0, "validation_seconds": 0.1}
    timings = [{"epoch": row["epoch"], "ended_ms": 10**12 + row["epoch"], **measured} for row in history]
    return Record("key", history, timings)
