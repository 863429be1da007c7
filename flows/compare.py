"""Compare recorded runs from any machines: `tandem compare RUN RUN...`

A RUN is one of

    sign@cpu, sign@cuda   the latest finished run of workload@device in MLflow, with the seeds trained with it
    sign@cpu-0            the latest run with this seed only
    1a2b...               the id of an MLflow run; the id of a parent run means all its seeds;
                          ids joined by commas are trainings of one side that differ only in their seed
    results/runs/sign/cpu/0   the folder of a run, including one copied from another machine

MLflow is the project's own store, or the server that MLFLOW_TRACKING_URI names. If two machines train with one server,
either of them can compare both. This command trains and measures nothing. It prints:

    a table               the runs and their measurements; `*` marks differences
    how fast              the speed-up if both sides did the same work, with what differs; otherwise the reason
    how good              the difference of the scores, tested on the predictions for the test split
    what to keep in mind  different versions, different load, throttled clocks

The first run of each workload is the baseline for the others. Each run in MLflow gets the tag `compared` with the first
sentence of the result. Exit status: 0 compared, 1 something is unavailable (one sentence).
"""

import argparse
import itertools
import sys
import textwrap

from tandem.comparing.comparison import Comparison, Judgement, Side
from tandem.comparing.comparison import compare as compare_sides
from tandem.report.comparison import details
from tandem.runs import recorded
from tandem.runs.run import Run

MAX_TAG = 250  # characters


def compare(words: list[str]) -> list[Comparison]:
    """Compare the runs that `words` name. Raises ValueError if a run is unavailable or no two runs can be compared."""
    found = [recorded.find_seeds(word) for word in words]
    for run in itertools.chain.from_iterable(found):
        if run.score:
            run.open("predictions.csv")  # altered predictions are an error
    for (word, runs), (other, others) in itertools.combinations(zip(words, found, strict=True), 2):
        if both := {run.run_id for run in runs if run.run_id} & {run.run_id for run in others}:
            raise ValueError(f"{word} and {other} are the same run ({both.pop()}); name two different ones")
    by_workload: dict[str, list[list[Run]]] = {}
    for runs in found:
        by_workload.setdefault(runs[0].workload, []).append(runs)
    if alone := [workload for workload, sides in by_workload.items() if len(sides) < 2]:
        counts = ", ".join(f"{len(sides)} of {workload}" for workload, sides in by_workload.items())
        raise ValueError(f"two runs of one workload can be compared, and of {alone[0]} there is one ({counts})")
    return [
        compare_sides(workload, [Side(name, tuple(runs)) for name, runs in zip(names_of(sides), sides, strict=True)])
        for workload, sides in by_workload.items()
    ]


def names_of(found: list[list[Run]]) -> list[str]:
    """Names that distinguish the sides: the device if that is enough, the device and machine, or the run."""
    first = [runs[0] for runs in found]
    machines = [f"{run.device} of {run.timing['machine']}" for run in first]
    for names in ([run.device for run in first], machines, [run.name for run in first]):
        if len(set(names)) == len(names):
            return names
    return [
        f"{run.name} ({run.run_id[:8] if run.run_id else f'files {number}'})" for number, run in enumerate(first, 1)
    ]


def tag(judged: Judgement) -> None:
    """Set the tag `compared` on the runs in MLflow."""
    for side, other in ((judged.second, judged.first), (judged.first, judged.second)):
        against = other.runs[0].run_id or other.runs[0].name
        speed = textwrap.shorten(judged.speed, MAX_TAG - len(against) - 10, placeholder="...")
        for run in side.runs:
            if run.run_id:
                recorded.tag(run, {"compared": f"{speed} (against {against})"})


def main(arguments: list[str]) -> int:
    what, _, how = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="tandem compare", description=what, epilog=how, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two or more")
    options = parser.parse_args(arguments)
    try:
        if len(options.runs) < 2:
            raise ValueError(f"two runs can be compared, not {options.runs[0]} alone; see --help")
        found = compare(options.runs)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(map(details, found)))
    for each in found:
        for judged in each.judgements:
            tag(judged)
    return 0
