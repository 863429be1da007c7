"""The cost of checkpoints: their share of the training time.

    python -m benchmarks.checkpoints                    # every workload, with the epochs of params.yaml
    python -m benchmarks.checkpoints --workloads sign

Each workload trains as in its stage, with checkpoints at the same times: after the first epoch, every ten seconds, and
after the last. A checkpoint is synced, read back and checked, on the disk of `.tandem`. Prepared data is required: run
`dvc repro preprocess` first.
"""

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.markdown import header, row
from stages.train import EpochRecorder
from tandem.files import STATE
from tandem.params.loading import load_params
from tandem.runs.history import Record
from tandem.training.checkpoint import Checkpoint
from tandem.training.context import open_prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = load_params().workloads
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    columns = (
        "workload",
        "epochs",
        "training (s)",
        "checkpoints",
        "of (MiB)",
        "one takes (ms)",
        "share of the training",
    )
    print(header(*columns))
    STATE.mkdir(exist_ok=True)
    for workload in options.workloads:
        with tempfile.TemporaryDirectory(dir=STATE) as folder:
            print(row(workload, *measure(workload, options.device, Path(folder))), flush=True)


def measure(workload: str, device: str, folder: Path) -> list[str]:
    trainer, seconds = open_prepared(workload, device), []
    checkpoint, record = Checkpoint(folder / "one.pt", {}), Record("none")
    # The parts of the run context, the inputs, the run directory and the interruption that the recorder uses.
    context: Any = SimpleNamespace(workload=workload, train_params=trainer.params, task=trainer.task)
    inputs: Any = SimpleNamespace(changed=lambda: [])
    run_dir: Any = SimpleNamespace(save_epochs=lambda record: None)
    interruption: Any = SimpleNamespace(stop_requested=False)
    saver = EpochRecorder(context, trainer, record, inputs, checkpoint, run_dir, interruption)
    save = saver.save

    def timed() -> None:
        start = time.perf_counter()
        save()
        seconds.append(time.perf_counter() - start)

    saver.save = timed  # type: ignore[method-assign]
    start = time.perf_counter()
    trainer.train_epochs(saver.add)
    saver.save_last()
    training = time.perf_counter() - start - sum(seconds)
    mib, each = checkpoint.path.stat().st_size / 2**20, 1000 * sum(seconds) / len(seconds)
    share = sum(seconds) / training
    return [
        f"{trainer.params.epochs}",
        f"{training:.1f}",
        f"{len(seconds)}",
        f"{mib:.2f}",
        f"{each:.0f}",
        f"{share:.2%}",
    ]


if __name__ == "__main__":
    main()
