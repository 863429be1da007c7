"""The first sentences of the report, which answer what its reader asks: which device was used and why, whether a
speed-up was measured, and whether the results repeat.
"""

from collections.abc import Sequence

from tandem.comparing.comparability import short_hardware
from tandem.comparing.comparison import KINDS, Comparison
from tandem.comparing.verdicts import STATUS
from tandem.devices.names import is_accelerator
from tandem.terminal.messages import SEEDS_OPTION, joined

BOTH_DEVICES = f"`dvc exp run -S 'devices=[cpu,cuda]' {SEEDS_OPTION}`"


def answers(comparisons: Sequence[Comparison]) -> list[str]:
    return [devices(comparisons), speed(comparisons), repeated(comparisons)]


def devices(comparisons: Sequence[Comparison]) -> str:
    runs = [side.first for comparison in comparisons for side in comparison.sides]
    names = {run.kind: short_hardware(run.hardware_name) for run in runs}
    hardware = joined([f"the {KINDS.get(kind, kind)} ({name})" for kind, name in sorted(names.items())])
    why_not_cuda = runs[0].timing["hardware"].get("why_not_cuda") if not any(map(is_accelerator, names)) else ""
    reason = f", because PyTorch can use no GPU here: {why_not_cuda}" if why_not_cuda else ""
    return f"Trained on {hardware}{reason}."


def speed(comparisons: Sequence[Comparison]) -> str:
    """Whether one device was found to be faster than the other."""
    summaries = [
        f"{comparison.workload}: {judged.summaries[0]}"
        for comparison in comparisons
        for judged in comparison.judgements
    ]
    if summaries:
        return f"Speed of the devices: {'; '.join(summaries)}."
    (name, *_) = {side.name for comparison in comparisons for side in comparison.sides}
    where = "" if is_accelerator(name) else "on a machine with a GPU, "
    return (
        f"Whether a GPU is faster was not measured, because only the {KINDS.get(name, name)} was used; {where}"
        f"{BOTH_DEVICES} measures it."
    )


def repeated(comparisons: Sequence[Comparison]) -> str:
    """Which workloads repeat the published results."""
    no_seed, two_devices = "no run here has the published seed", "the devices are compared with each other instead"
    by_verdict: dict[str, list[str]] = {name: [] for name in (*STATUS, no_seed, two_devices)}
    by_reason: dict[str, list[str]] = {}
    for comparison in comparisons:
        if comparison.no_reference:
            by_reason.setdefault(comparison.no_reference, []).append(comparison.workload)
            continue
        verdict = comparison.reference.verdict if comparison.reference else None
        name = verdict.name if verdict else no_seed if comparison.reference else two_devices
        by_verdict[name].append(comparison.workload)
    texts = [f"{verdict} ({', '.join(workloads)})" for verdict, workloads in by_verdict.items() if workloads]
    sentences = [f"Compared with the published results: {'; '.join(texts)}."] if texts else []
    sentences += [
        f"{', '.join(names)}: not compared with the published results, because {reason}."
        for reason, names in by_reason.items()
    ]
    return " ".join(sentences)
