"""Compare recorded runs from any machines.

A RUN is one of

    sign@cpu, sign@cuda     the run in results/ of a workload on a device, with all its seeds; if there is none, the
                            latest finished one in MLflow
    sign@cpu-0              only this seed
    brown-swan              an experiment that `tandem show` lists, if it trained one workload on one device
    1a2b3c4d                the id of an MLflow run or its first digits; the id of a parent run means all its seeds
    results/runs/sign/auto  the folder of a run or of all its seeds, including one copied from another machine

MLflow is the project's own store, or the server that MLFLOW_TRACKING_URI names. If two machines train with one server,
either of them can compare both. This command trains and measures nothing. It prints:

    a table               the runs and their measurements; `*` marks differences
    the speed             the speed-up if both sides did the same work, with what differs; otherwise the reason
    the score             the difference of the scores, tested on the predictions for the test split
    notes                 different versions, different load, throttled clocks

The first run of each workload is the baseline for the others.

    tandem compare sign@cpu sign@cuda

Exit status: 0 compared, whatever the result; 1 a run is unavailable.
"""

import itertools
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from tandem.comparing.comparison import Comparison, Side
from tandem.comparing.comparison import compare as compare_sides
from tandem.report.layout import details
from tandem.runs.run import Run
from tandem.terminal.command import Result, WrongArgument
from tandem.tracking import find_runs


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two or more")


def main(options: Namespace) -> Result:
    comparisons = compare(options.runs)
    return Result("\n\n".join(map(details, comparisons)), {"comparisons": [document(result) for result in comparisons]})


def compare(names: list[str]) -> list[Comparison]:
    """Compare the runs that `names` name.

    Raises ValueError if a run is unavailable or no two runs can be compared.
    """
    for name in names:
        find_runs.check_name(name)
    by_name = {name: find_runs.find_seeds(name) for name in names}
    for (name, runs), (other_name, other_runs) in itertools.combinations(by_name.items(), 2):
        if shared := {run.run_id for run in runs if run.run_id} & {run.run_id for run in other_runs}:
            raise WrongArgument(f"{name} and {other_name} are the same run ({shared.pop()}); name two different ones")
    by_workload: dict[str, dict[str, list[Run]]] = {}
    for name, runs in by_name.items():
        by_workload.setdefault(runs[0].workload, {})[name] = runs
        for run in runs:
            if run.score:
                run.open("predictions.csv")  # altered predictions are an error
    if any(len(sides) < 2 for sides in by_workload.values()):
        counts = ", ".join(f"{len(sides)} of {workload}" for workload, sides in by_workload.items())
        raise WrongArgument(f"a comparison needs two or more runs of each workload; received {counts}")
    return [
        compare_sides(
            workload,
            [Side(name, tuple(runs)) for name, runs in zip(side_names(sides), sides.values(), strict=True)],
        )
        for workload, sides in by_workload.items()
    ]


def side_names(runs_of_sides: dict[str, list[Run]]) -> list[str]:
    """Names that distinguish the sides: the device, the device and machine, or what the user wrote."""
    first_runs = [runs[0] for runs in runs_of_sides.values()]
    devices, machines = [run.kind for run in first_runs], [run.timing["machine"] for run in first_runs]
    for names in (devices, [f"{device} of {machine}" for device, machine in zip(devices, machines, strict=True)]):
        if len(set(names)) == len(names):
            return names
    return list(runs_of_sides)


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison for --json: the table's values by side, and each judgement with its numbers."""
    names = [side.name for side in comparison.sides]
    judgements = [
        {
            "first": judged.first.name,
            "second": judged.second.name,
            "speed_up": judged.speed_up and asdict(judged.speed_up),
            "difference": judged.difference and {**asdict(judged.difference), "verdict": judged.difference.verdict},
            "sentences": [judged.speed, judged.scores, *judged.notes],
        }
        for judged in comparison.judgements
    ]
    values = {row.name: dict(zip(names, row.cells, strict=True)) for row in comparison.rows}
    return {"workload": comparison.workload, "values": values, "judgements": judgements}
