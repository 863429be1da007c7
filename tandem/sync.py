"""`tandem sync`: publish in MLflow the runs that a server did not take, and recordings of killed processes.

Their directories are in .tandem/runs/. Exit status: 0 if all are published, 1 if some are kept; the reason is printed.
"""

import argparse
from collections.abc import Sequence

from tandem.files import relative
from tandem.runs.publish import sync
from tandem.runs.run_dir import RUNS
from tandem.runs.store import shown, tracking_uri


def main(arguments: Sequence[str]) -> int:
    what, _, how = (__doc__ or "").partition("\n\n")
    argparse.ArgumentParser("tandem sync", description=what, epilog=how).parse_args(arguments)
    problems = sync()
    for problem in dict.fromkeys(problems):
        print(problem)
    kept = f"{len(problems)} runs are kept in {relative(RUNS)}" if problems else "up to date"
    print(f"MLflow at {shown(tracking_uri())}: {kept}")
    return 1 if problems else 0
