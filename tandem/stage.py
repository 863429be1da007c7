"""Run one stage: `python -m tandem.stage STAGE [WORKLOAD] [DEVICE] [SEED]`, the cmd of every entry of dvc.yaml.

The arguments are the stage's name and its item of the matrix. Exit status: 0, 1 (failed) or 130 (Ctrl+C); one of
several workers also uses 75 and 76 (tandem/training/workers.py). A failure's reason is on stderr and in
`.tandem/last_error.json`, because DVC turns every failure into exit 255. When dvc ends, the stage gets
SIGTERM: a training then finishes its epoch and saves, other stages end at once.

This module does not import Prefect: flows/pipeline.py shows the stages there. `hardware` runs on every `dvc repro`, so
this module imports as little as possible.
"""

import atexit
import gc
import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # like typing's, without the import
if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

# The arguments of each stage; also the parameters of its Prefect flow run.
STAGES = {
    "hardware": (),
    "preprocess": ("workload",),
    "preload": ("workload", "device"),
    "speed": ("workload",),
    "train": ("workload", "device", "seed"),
    "evaluate": ("workload", "device", "seed"),
    "compare": (),
}
# Stages that are recorded in MLflow.
RECORDED = ("train", "evaluate")
# `dvc exp run --temp` works in a copy of the project; DVC_ROOT is the project itself.
ROOT = os.environ.get("DVC_ROOT") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAST_ERROR = os.path.join(ROOT, ".tandem", "last_error.json")


def main(argv: list[str]) -> int:
    try:
        stage, item = parse(argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    place = place_among_workers(stage, item)
    if place in ("first", "other"):
        die_with(os.getppid())  # the launcher, which dies with dvc
    elif "DVC_STAGE" in os.environ:
        die_with_dvc()
    return run(stage, item, full_name(stage, item), place)


def place_among_workers(stage: str, item: list[str]) -> str:
    """For a training on several workers (2xcpu): `launcher`, or `first` or `other` in a process of torch's launcher."""
    if stage != "train" or not item[1][:1].isdigit():
        return "alone"
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return "launcher"
    return "first" if os.environ["RANK"] == "0" else "other"


def parse(argv: list[str]) -> tuple[str, list[str]]:
    """(stage, item). Raises ValueError naming what is accepted."""
    stage, item = (argv[0], argv[1:]) if argv else ("", [])
    if stage not in STAGES:
        from difflib import get_close_matches

        close = get_close_matches(stage, STAGES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown stage {stage!r}; the stages are {', '.join(STAGES)}{hint}")
    if len(item) != len(STAGES[stage]):
        wanted = " ".join([stage, *(word.upper() for word in STAGES[stage])])
        raise ValueError(f"stage {stage!r} is called as `python -m tandem.stage {wanted}`; received {item}")
    return stage, item


def full_name(stage: str, item: list[str]) -> str:
    """The stage's name in dvc.yaml's matrix: `train@sign-auto-0`."""
    return f"{stage}@{'-'.join(item)}" if item else stage


def run(stage: str, item: list[str], name: str, place: str) -> int:
    try:
        if place == "launcher":
            return import_module("tandem.training.launcher").launch(*item)
        if place == "other":
            sys.stdout = open(os.devnull, "w")  # the first worker prints the same
            import_module("stages.train").run_other_worker(*item)
            return 0
        if stage in RECORDED:
            if sys.stdout.isatty() and place == "alone":
                print(f"{name}: loading torch", flush=True)  # takes seconds
            from tandem.runs.run_dir import start_publisher

            start_publisher()  # it imports mlflow while this process imports torch
        imported(stage).main(*item)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        return fail(name, "interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter fails again at exit
        return fail(name, "the reader of its output went away; log to a file and follow that file")
    except ModuleNotFoundError as error:
        if own := own_file(error):
            from tandem.parts import missing_import

            return fail(name, str(missing_import(own, error.name or "")))
        if (error.name or "").split(".")[0] in ("stages", "tandem", "flows"):
            return fail_with_traceback(name, error)
        return fail(name, f"the package {error.name!r} is not installed here; `make repro` installs what Tandem needs")
    except OSError as error:
        from tandem.command import describe

        return fail(name, describe(error))
    except ValueError as error:
        return fail(name, str(error))
    except Exception as error:
        from tandem.files import ROOT as CODE
        from tandem.parts import own_line

        if line := own_line(error, CODE / "workloads"):
            return fail(name, f"{line}: {type(error).__name__}: {error}{keep_traceback(error)}")
        return fail_with_traceback(name, error)  # a mistake in Tandem's code
    finally:
        gc.unfreeze()  # for a caller that continues: otherwise triton's modules report leaks when Python exits


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a file. Returns the end of a sentence that names it; empty if it cannot be written."""
    import traceback

    path = os.path.join(ROOT, ".tandem", "last_traceback.txt")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return ""
    return f"; {os.path.relpath(path, ROOT)} has the traceback"


def own_file(error: Exception) -> "Path | None":
    """The file in workloads/ whose line raised `error`, if it was one."""
    from pathlib import Path

    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    path = Path(last.tb_frame.f_code.co_filename) if last else Path()
    return path if path.is_relative_to(Path(__file__).resolve().parents[1] / "workloads") else None


def imported(stage: str) -> "ModuleType":
    """Import the stage's module. Its imports live as long as the stage; garbage collection of them would take 0.4 s."""
    gc.disable()
    try:
        return import_module(f"stages.{stage}")
    finally:
        gc.freeze()
        gc.enable()


def fail(name: str, message: str, status: int = 1) -> int:
    from tandem.params.parsing import one_line

    message = one_line(message)
    print(f"error: {message}", file=sys.stderr, flush=True)
    record_error(name, message)
    return status


def fail_with_traceback(name: str, error: Exception) -> int:
    import traceback

    traceback.print_exc()
    record_error(name, f"{type(error).__name__}: {error}")
    return 1


def record_error(name: str, message: str) -> None:
    """Write the reason where flows/reproduce.py reads it. Never raises, because the stage has already failed."""
    import json

    # `run` distinguishes errors of this `make repro` or flow from older ones.
    entry = {"stage": name, "message": message, "run": os.environ.get("TANDEM_RUN")}
    try:
        os.makedirs(os.path.dirname(LAST_ERROR), exist_ok=True)
        temporary = f"{LAST_ERROR}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(temporary, LAST_ERROR)
    except OSError:
        pass


def die_with_dvc() -> None:
    """Send this stage SIGTERM when dvc is killed, also by `kill -9`."""
    parent = dvc = os.getppid()
    try:
        while is_shell_of_stage(dvc):  # if /bin/sh is dash, it stays as the parent: it forks instead of exec
            dvc = parent_of(dvc)
        # If dvc was killed before this line, the parent is the process that adopts orphans, in another process group.
        orphaned = os.getpgid(dvc) != os.getpgrp()
    except OSError:
        orphaned = True
    if orphaned:
        sys.exit("error: the dvc that started this stage is gone")
    die_with(parent)
    if dvc != parent:
        watch(dvc)


def is_shell_of_stage(pid: int) -> bool:
    """Whether the command line of `pid` contains this stage's command; False without /proc."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"-m tandem.stage " in file.read()  # as in `sh -c "python -m tandem.stage train sign auto"`
    except FileNotFoundError:
        return False


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def die_with(parent: int) -> None:
    """Make the kernel send SIGTERM when `parent`, which started this process, ends. Does nothing outside Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig, sigterm = 1, 15  # <linux/prctl.h>, <signal.h>
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigterm)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), sigterm)


def watch(pid: int) -> None:
    """Send SIGTERM to this process when `pid`, which is not its parent, ends."""
    import select
    import signal
    import threading

    descriptor = os.pidfd_open(pid)

    def wait() -> None:
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def exit_at_once(ending: list[int]) -> None:
    """End the process with the status in `ending`. If `ending` is empty, return, so that Python shows its error.

    Python's normal exit takes 0.5 s to tear down torch's modules. Nothing that must run is skipped: this is the first
    function registered with `atexit`, so it runs last.
    """
    if ending:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending[0])


if __name__ == "__main__":
    ending: list[int] = []
    atexit.register(exit_at_once, ending)
    ending.append(main(sys.argv[1:]))
    sys.exit(ending[0])
