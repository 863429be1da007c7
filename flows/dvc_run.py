"""Run DVC and report each stage: `python -m flows.dvc_run COMMAND...`, which flows/pipeline.py starts.

Each argument is one command of DVC in quotes, such as "repro --force" or "exp run --temp --set-param seeds=[1]". The
output is that of DVC and the stages, and a line for each event (flows/events.py). The exit status is DVC's.
`tandem repro` (flows/repro.py) calls `run` itself.

DVC decides which stages run, in which order, and whether they are forced. A caller of DVC may replace the function that
reproduces one stage (`repro_fn`); the events come from that function.
"""

import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from dvc.cli import DvcParserError, parse_args
from dvc.commands.experiments.run import CmdExperimentsRun
from dvc.commands.repro import CmdRepro
from dvc.lock import LockError
from dvc.logger import set_loggers_level
from dvc.repo import Repo
from dvc.repo.experiments.executor.local import TempDirExecutor
from dvc.repo.experiments.queue.tempdir import TempDirQueue
from dvc.repo.experiments.refs import WORKSPACE_STASH
from dvc.repo.reproduce import _reproduce_stage
from dvc.stage import Stage
from dvc.stage.cache import RunCacheNotFoundError, StageCache, _get_stage_hash
from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound
from dvc.ui import ui

from flows.damaged_files import with_damaged_file
from flows.events import Outcome, StageEvent
from flows.other_runs import blockers_in, busy_sentence, described
from tandem.files import LAST_ERROR
from tandem.tracking.run_dir import DVC_PID, start_publisher

logger = logging.getLogger("dvc")
DVC_FAILED, DVC_INTERRUPTED, DVC_REFUSED_ARGUMENTS = 255, 252, 254  # DVC's exit statuses


def main(commands: list[str]) -> int:
    def print_event(event: StageEvent) -> None:
        print(f"\n{event.line}", flush=True)  # the stage may have left its last line open

    for command in commands:
        if status := run(shlex.split(command), print_event, waits=True):
            return status
    return 0


def run(
    arguments: list[str], on_event: Callable[[StageEvent], object], log_level: str = "INFO", waits: bool = False
) -> int:
    """Run `dvc <arguments>` (`repro` or `exp run --temp`) and return its exit status.

    `waits`: if a plain `dvc repro` runs here, wait for its end and start again.
    """
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # `python`
    os.environ["DVC_NO_ANALYTICS"] = "true"
    os.environ[DVC_PID] = str(os.getpid())  # the publisher (tandem/tracking/publisher.py) ends with this process
    os.environ["TANDEM_RUN"] = os.urandom(6).hex()  # distinguishes errors of this run's stages from older ones
    for name in ("DVC_ROOT", "DVC_STAGE"):  # set if a stage calls this
        os.environ.pop(name, None)
    try:
        options = parse_args(arguments)
    except DvcParserError:  # the parser has printed the reason
        return DVC_REFUSED_ARGUMENTS
    options.wait_for_lock = True  # else a `dvc status` that takes more than three seconds would end this run
    if not options.quiet and log_level == "INFO":
        ui.enable()
    with set_loggers_level("CRITICAL" if options.quiet else "DEBUG" if options.verbose else log_level):
        try:
            return execute(options, on_event, waits)
        except KeyboardInterrupt:
            logger.error("interrupted by the user")
            on_event(StageEvent("", "failed", message="interrupted by the user"))
            return DVC_INTERRUPTED
        except Exception as error:
            message = with_cause(error)
            if busy := busy_sentence(message):
                logger.error(busy)
            else:
                logger.exception("")  # prints the error and its causes, as DVC's own command does
            on_event(StageEvent("", "failed", message=busy or with_damaged_file(message)))
            is_unknown_name = isinstance(error, StageNotFound | StageFileDoesNotExistError)
            return DVC_REFUSED_ARGUMENTS if is_unknown_name else DVC_FAILED


def execute(options: Any, on_event: Callable[[StageEvent], object], waits: bool) -> int:
    """Run the command of the parsed `options`, again if it `waits` and another process uses what DVC needs."""
    while True:
        try:
            command = Experiment(options) if issubclass(options.func, CmdExperimentsRun) else Reproduction(options)
            command.on_event = on_event
            return int(command.do_run())
        except Exception as error:
            blockers = blockers_in(with_cause(error)) if waits else []
            if not blockers:
                raise
        wait_for_end_of(blockers)


def with_cause(error: Exception) -> str:
    return f"{error}: {error.__cause__}" if error.__cause__ else str(error)


def wait_for_end_of(pids: list[int]) -> None:
    for pid in pids:
        print(f"{described(pid)} uses this project; waiting for its end", flush=True)
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(1.0)


def reproduce_stage(
    on_event: Callable[[StageEvent], object], dvc_reproduce: Callable[..., Stage | None], stage: Stage, **options: Any
) -> Stage | None:
    """DVC's `repro_fn`: reproduce a stage with `dvc_reproduce` and report its events. Returns what that returns."""
    name = stage.addressing.rpartition(":")[2]  # the last part of stages/dvc.yaml:hardware
    run_cache = stage.repo.stage_cache = RunCache(stage.repo, lambda: on_event(StageEvent(name, "running")))
    if options.get("force"):  # DVC then skips the run-cache
        run_cache.on_run()
    began = time.monotonic()
    try:
        reproduced = dvc_reproduce(stage, **options)
    except LockError:  # the stage has not begun
        raise
    except Exception as error:
        ended_by = signal_in(str(error))
        reason = last_error(name) or (f"killed by {ended_by}" if ended_by else with_damaged_file(str(error)))
        if ended_by == "SIGKILL":
            reason += " (by `kill -9`, or by the kernel because memory ran out)"
        on_event(StageEvent(name, "failed", time.monotonic() - began, reason, ended_by))
        raise
    outcome: Outcome = "unchanged" if reproduced is None else "restored" if run_cache.has_restored else "ran"
    on_event(StageEvent(name, outcome, time.monotonic() - began))
    if outcome == "restored" and name.startswith("evaluate@"):
        start_publisher()  # MLflow may have the scores of other code
    return reproduced


class RunCache(StageCache):
    """DVC's run-cache, as one stage sees it. DVC asks it right before it runs the stage's command."""

    def __init__(self, repo: Repo, on_run: Callable[[], object]) -> None:
        super().__init__(repo)
        self.on_run = on_run
        self.has_restored = False

    def _load(self, stage: Stage) -> Any:
        """Find the entry of a stage. DVC takes a temporary file that a kill left for an entry, and fails if there is
        only an empty directory.
        """
        entries = Path(self._get_cache_dir(_get_stage_hash(stage)))
        for leftover in entries.glob("*.tmp"):
            leftover.unlink(missing_ok=True)
        return super()._load(stage) if any(entries.glob("*")) else None

    def restore(self, stage: Stage, **options: Any) -> None:
        try:
            super().restore(stage, **options)
            self.has_restored = True
        except RunCacheNotFoundError:
            self.on_run()
            raise


class Reproduction(CmdRepro):
    """`dvc repro`"""

    on_event: Callable[[StageEvent], object]

    @property
    def _repro_kwargs(self) -> dict[str, Any]:
        return super()._repro_kwargs | {"repro_fn": partial(reproduce_stage, self.on_event, _reproduce_stage)}


class Experiment(CmdExperimentsRun):
    """`dvc exp run --temp`. DVC sets `repro_fn` itself there, to a function of its queue's executor."""

    on_event: Callable[[StageEvent], object]

    def run(self) -> int:
        class ReportingExecutor(TempDirExecutor):
            _repro_and_track = staticmethod(partial(reproduce_stage, self.on_event, TempDirExecutor._repro_and_track))

            @classmethod
            def _repro_dvc(cls, *arguments: Any, **options: Any) -> Any:
                return super()._repro_dvc(*arguments, **options | {"log_errors": False})  # the caller prints the error

        class ReportingQueue(TempDirQueue):
            @classmethod
            def init_executor(cls, exp: Any, queue_entry: Any, executor_cls: Any = None, **options: Any) -> Any:
                return super().init_executor(exp, queue_entry, ReportingExecutor, **options)

        name = self.args.name
        message = f"made the experiment {name}; `dvc exp apply {name}` puts its results into the workspace"
        self.repo.experiments.tempdir_queue = ReportingQueue(self.repo, WORKSPACE_STASH)
        self.repo.experiments._log_reproduced = lambda *_, **__: ui.write(message)  # DVC writes `dvc exp apply <exp>`
        status: int = super().run()
        return status


def signal_in(message: str) -> str:
    """The signal that ended a stage, such as `SIGKILL`, from the exit status in DVC's StageCmdFailedError; else empty.

    130 is `SIGINT`: a stage returns it after Ctrl+C.
    """
    match = re.search(r"exited with (-\d+|1[2-9]\d)$", message)
    status = int(match[1]) if match else 0
    number = -status if status < 0 else status - 128  # if the shell does not exec its command, it reports 128 + signal
    return signal.Signals(number).name if number in set(signal.Signals) else ""


def last_error(stage: str) -> str:
    """The reason that the stage wrote to `.tandem/last_error.json`. DVC itself knows only the exit status."""
    try:
        entry = json.loads(LAST_ERROR.read_text(encoding="utf-8"))
        return str(entry["message"]) if (entry["stage"], entry["run"]) == (stage, os.environ.get("TANDEM_RUN")) else ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
