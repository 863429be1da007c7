"""How a stage learns that it must stop: Ctrl+C (SIGINT), SIGTERM, and the end of the process that started it.

While a stage runs, DVC ignores SIGINT and waits for it; on SIGTERM DVC ends. A stage stops when its DVC has ended, even
by `kill -9`: `stop_when_dvc_ends` then sends it SIGTERM. Most stages end at once on SIGTERM. A training finishes its
epoch, saves a checkpoint and exits with 130 (`GracefulStop`; stages/train.py).
With several workers, the first worker uses `GracefulStop`, the others `StopSignals`, which only notes the signal. A
process that starts trainings uses `Forwarding` (tandem/training/launcher.py, stages/replicate.py).
"""

import os
import signal
import sys

TYPE_CHECKING = False  # like typing's, without the import: every stage imports this module
if TYPE_CHECKING:
    from types import FrameType
    from typing import Self


# Environment variable of the trainings that `replicate` starts: the process that `replicate` runs in.
REPLICATE_PID = "TANDEM_REPLICATE_PID"


class StopSignals:
    """A context in which SIGINT and SIGTERM set `stop_requested`. The training reads it after each epoch."""

    stop_requested = False

    def __enter__(self) -> "Self":
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: "FrameType | None") -> None:
        self.stop_requested = True


class GracefulStop(StopSignals):
    """The first signal sets `stop_requested`: the training ends after its epoch. The second one raises
    KeyboardInterrupt.
    """

    first_signal = 0

    def handle(self, number: int, frame: "FrameType | None") -> None:
        if self.stop_requested:
            if number == self.first_signal == signal.SIGTERM:
                return  # the same stop: DVC's process group gets SIGTERM, and `stop_when_dvc_ends` sends another
            raise KeyboardInterrupt
        self.first_signal = number
        self.stop_requested = True
        print("\nstopping after this epoch, with a checkpoint; Ctrl+C again stops at once", file=sys.stderr, flush=True)


class Forwarding(StopSignals):
    """A context that forwards the signals that stop a training to the processes that this one has started."""

    def handle(self, number: int, frame: "FrameType | None") -> None:
        from contextlib import suppress

        import psutil

        self.stop_requested = True
        children = psutil.Process().children()
        if not children:  # they have not started yet
            raise KeyboardInterrupt
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.send_signal(number)


def stop_when_dvc_ends() -> None:
    """Send this stage SIGTERM when the dvc that started it ends. Exits if dvc has ended already."""
    try:
        dvc = dvc_of_stage()
        # dvc and its stages share a process group. If dvc is gone, the parent is a process of another group.
        if os.getpgid(dvc) == os.getpgrp():
            return end_with(dvc)
    except OSError:
        pass
    sys.exit("error: the dvc process that started this stage has ended")


def dvc_of_stage() -> int:
    """Return the id of the process that started this stage. dash forks the command, so the parent may be the shell."""
    pid = os.getppid()
    while is_shell_of_stage(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid


def is_shell_of_stage(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"-m tandem.stage " in file.read()  # as in `sh -c "python -m tandem.stage train sign auto"`


def end_with(pid: int) -> None:
    """Send SIGTERM to this process when the process `pid` ends."""
    import select
    import threading

    descriptor = os.pidfd_open(pid)

    def wait() -> None:
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
