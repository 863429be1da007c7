"""The cost of checkpoints: their share of the training time.

    python -m benchmarks.checkpoints                    # every workload, with the epochs of params.yaml
    python -m benchmarks.checkpoints --workloads sign

Each workload trains in a copy of the project, by the code of its stage, with checkpoints at the same times: after the
first epoch, every ten seconds, and after the last. A checkpoint is synced, read back and checked. The training time is
that of the epochs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.folklore import device_of
from benchmarks.markdown import header, row
from benchmarks.sandbox import call, make_ready
from tandem.files import STATE, read_json
from tandem.params.loading import load_params

SAVES = "saves.json"  # of the training, in the copy
# The stage `train`, without MLflow. It writes the bytes and the seconds of each checkpoint.
TRAIN = f"""
import json, sys, time
from pathlib import Path
from stages import train
from tandem.runs import run_dir

run_dir.start_publisher, run_dir.WAIT_SECONDS = lambda: None, 0.0
saves, save = [], train.Training.save

def timed(training):
    start = time.perf_counter()
    save(training)
    saves.append((training.checkpoint.path.stat().st_size, time.perf_counter() - start))

train.Training.save = timed
train.main(*sys.argv[1:])
Path("{SAVES}").write_text(json.dumps(saves))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = load_params().workloads
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    device_of(parser, options.device)
    columns = ("epochs", "training (s)", "checkpoints", "size (MiB)", "one takes (ms)", "share of the training")
    print(header("workload", *columns), flush=True)
    STATE.mkdir(exist_ok=True)
    for workload in options.workloads:
        with tempfile.TemporaryDirectory(dir=STATE) as folder:  # on the disk of the real checkpoints
            print(row(workload, *measure(workload, options.device, Path(folder) / "project")), flush=True)


def measure(workload: str, device: str, project: Path) -> list[str]:
    make_ready(project, workload, device)
    call([sys.executable, "-c", TRAIN, workload, device, "0"], project)
    timing = read_json(project / f"results/runs/{workload}/{device}/train/measured/0/timing.json")["timing"]
    saves = json.loads((project / SAVES).read_text())
    training, saving = timing["train_seconds"], sum(seconds for _, seconds in saves)
    return [
        f"{load_params().blocks[workload].train.epochs}",
        f"{training:.1f}",
        f"{len(saves)}",
        f"{saves[-1][0] / 2**20:.2f}",
        f"{1000 * saving / len(saves):.0f}",
        f"{saving / training:.2%}",
    ]


if __name__ == "__main__":
    main()
