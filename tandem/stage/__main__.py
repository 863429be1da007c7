"""Calls `main` of tandem/stage/__init__.py, and ends the process without Python's slow exit."""

import atexit
import os
import sys

from tandem.stage import main


def exit_at_once(ending: list[int]) -> None:
    """End the process with the status in `ending`. If `ending` is empty, return, so that Python shows its error.

    Python's normal exit takes 0.5 s to tear down torch's modules. Nothing that must run is skipped: this is the first
    function registered with `atexit`, so it runs last.
    """
    if ending:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending[0])


ending: list[int] = []
atexit.register(exit_at_once, ending)
ending.append(main(sys.argv[1:]))
sys.exit(ending[0])
