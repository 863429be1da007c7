"""Run one stage: `python -m tandem.stage STAGE [WORKLOAD] [DEVICE]`, the cmd of every entry of dvc.yaml. The modules
beside it are parts of the stage `train` (its start, its epochs, its other workers), and errors.py.

The arguments are the stage's name and its item of the matrix; those of `train` end with one seed or more. Exit status:
0, 1 (failed) or 130 (Ctrl+C); one of several workers also uses 75 and 76 (tandem/training/workers.py). A failure's
reason is on stderr and in `.tandem/last_error.json` (tandem/stage/errors.py), because DVC turns every failure into exit
255. The stage ends with its dvc (tandem/stop_signals.py).

`hardware` runs on every `dvc repro`, so this module imports as little as possible.
"""

import gc
import os
import sys
from importlib import import_module

from tandem.stop_signals import REPLICATE_PID, end_with, stop_when_dvc_ends

# The item of each stage in dvc.yaml's matrix.
STAGES = {
    "hardware": (),
    "preprocess": ("workload",),
    "baseline": ("workload",),
    "preload": ("workload", "device"),
    "train": ("workload", "device"),
    "replicate": ("workload", "device"),
    "evaluate": ("workload", "device"),
    "speed": ("workload",),
    "compare": (),
}


def main(argv: list[str]) -> int:
    try:
        stage, item = parse(argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # A training on several workers (2xcpu): this process starts torch's launcher, or is one of the launcher's workers.
    is_parallel = stage == "train" and item[1][:1].isdigit()
    is_worker = is_parallel and import_module("tandem.devices.names").started_by_launcher()
    if is_worker:
        end_with(os.getppid())  # the launcher, which ends with dvc
    elif REPLICATE_PID in os.environ:
        end_with(int(os.environ[REPLICATE_PID]))
    elif "DVC_STAGE" in os.environ:
        stop_when_dvc_ends()
    words = item[: len(STAGES[stage])]
    name = f"{stage}@{'-'.join(words)}" if words else stage  # as in dvc.yaml's matrix: `train@sign-auto`
    try:
        if is_parallel and not is_worker:
            return import_module("tandem.training.launcher").launch(*item)
        if is_worker and os.environ["RANK"] != "0":
            sys.stdout = open(os.devnull, "w")  # the first worker prints the same
            import_module("tandem.stage.other_worker").train(*item)
            return 0
        run(stage, item)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        from tandem.stage.errors import fail

        return fail(name, "interrupted", 130)
    except Exception as error:
        from tandem.stage.errors import fail_with

        return fail_with(name, error)
    finally:
        gc.unfreeze()  # otherwise triton reports leaks if this process goes on, as in a test


def parse(argv: list[str]) -> tuple[str, list[str]]:
    """(stage, item). Raises ValueError naming what is accepted."""
    stage, item = (argv[0], argv[1:]) if argv else ("", [])
    if stage not in STAGES:
        from tandem.terminal.messages import nearest

        raise ValueError(f"unknown stage {stage!r}{nearest(stage, STAGES)}")
    seeds = item[len(STAGES[stage]) :]
    if len(item) < len(STAGES[stage]) or bool(seeds) != (stage == "train") or not all(map(str.isdigit, seeds)):
        usage = " ".join([stage, *(word.upper() for word in STAGES[stage]), *(["SEED"] if stage == "train" else [])])
        raise ValueError(f"stage {stage!r} is called as `python -m tandem.stage {usage}`; received {item}")
    return stage, item


def run(stage: str, item: list[str]) -> None:
    """Run a stage in this process."""
    from tandem.files import RECORDED_STAGES

    if stage in RECORDED_STAGES:
        if sys.stdout.isatty():
            print(f"{stage} {' '.join(item)}: loading torch", flush=True)  # takes seconds
        from tandem.tracking.run_dir import start_publisher

        start_publisher()  # it imports mlflow while this process imports torch
    # The imports live as long as the stage; garbage collection of them would take 0.4 s.
    gc.disable()
    try:
        module = import_module(f"stages.{stage}")
    finally:
        gc.freeze()
        gc.enable()
    module.main(*item)
