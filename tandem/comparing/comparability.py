"""Decides whether the times of two recorded runs may be compared, and lists the differences between their records.

A different torch release refuses the comparison; a different driver, cuDNN or Python does not. A torch release changes
kernels of the CPU and of the GPU alike, so a ratio across two releases compares releases as much as devices, and one
`make setup` from the same lock removes the difference. The driver belongs to the machine and cuDNN to torch's build for
it, so two machines cannot always have the same ones. Two builds of a release (2.11.0+cpu, 2.11.0+cu128) count as the
same release.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.devices.names import is_accelerator
from tandem.machine.conditions import others_on_gpu, taken_by_others
from tandem.params.parsing import differing_names, recorded_parameters, value_at
from tandem.runs.run import Run

NOT_RECORDED = "not recorded"
# The differences that are allowed, in the order of the sentence: name -> path in the manifest.
NAMED = {
    "device": "device",
    "hardware": "hardware.name",
    "machine": "machine",
    "environment variables": "hardware.variables",
    "workers": "realized.workers",
    "threads": "threads",
    "kernels": "kernels",
    "step execution": "realized.step",
    "data location": "realized.data_location",
    "seed": "seed",
}
ABSENT = {"workers": "1", "environment variables": "none"}  # what it means that a run lacks the value
MIN_THROTTLED_SHARE = 0.01
MAX_LISTED = 4  # parameters or files that are listed; the others are only counted
MAX_LETTERS, DIGEST_LETTERS = 48, 8
# Parameters that do not define the work. For most of them the run has the result of the choice (`realized`). The
# seed decides which numbers are drawn, not how much is computed.
CHOICES = ("threads", "precision", "step", "kernels", "grad_accum_steps", "probe", "seed")
# Differences between the seeds of one side: those that refuse the comparison, and those that are only noted because
# `auto` chose them.
OF_A_SIDE, OF_AUTO = ("device", "hardware"), ("threads", "kernels", "step execution")
# Settings of the machine, which only people change (a clock follows the load): name -> path in a reading.
SETTINGS = {"cpu governor": "cpu_governor", "power limit watts": "gpu.power_limit_watts"}


@dataclass(frozen=True)
class Row:
    """A recorded value of two or more sides."""

    name: str
    cells: tuple[str, ...]  # the value as shown, one for each side

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1

    def __str__(self) -> str:
        return f"{self.name} ({' vs '.join(self.cells)})"


@dataclass(frozen=True)
class Comparability:
    """The comparability of two runs. A speed-up may be reported only if `refusals` is empty."""

    # The work differs, memory ran out (the fallbacks slow down the steps after it), or a GPU was shared.
    refusals: tuple[str, ...]
    named_differences: tuple[Row, ...]  # the comparison's subject, and differences that are reported with the ratio
    notes: tuple[str, ...]  # possible influences on the times: versions, and the machine's state during training


def compare_sides(sides: Mapping[str, Sequence[Run]]) -> Comparability:
    """Compare two sides. Each has one run per seed, and the runs of a side must agree among themselves."""
    (_, (first, *_)), (_, (second, *_)) = sides.items()
    refusals = [f"different {row}" for row in work_differences(first, second)]
    notes = [f"different {row}" for row in environment_differences(first, second)]
    for name, (first_run, *others) in sides.items():
        for other in others:
            rows = list(named_differences(first_run, other))
            of_device = (row for row in rows if row.name in OF_A_SIDE)
            refusals += [
                f"the runs of {name} differ in {row}" for row in (*work_differences(first_run, other), *of_device)
            ]
            if other.is_timed:
                notes += [f"the runs of {name} differ in {row}" for row in rows if row.name in OF_AUTO]
        for run in (candidate for candidate in (first_run, *others) if candidate.is_timed):
            if actions := run.realized["out_of_memory"]:
                refusals.append(f"memory ran out while training on {run.kind} ({short('; '.join(actions))})")
            if shared := others_on_gpu(run.timing["conditions"]):
                refusals.append(f"{name}: {shared}")
            notes += conditions_of(run, name)
    notes += settings_differences({name: runs[0] for name, runs in sides.items()})
    return Comparability(
        tuple(dict.fromkeys(refusals)), tuple(named_differences(first, second)), tuple(dict.fromkeys(notes))
    )


def work_differences(first: Run, second: Run) -> Iterator[Row]:
    yield from value_difference(first, second, "workload", "workload")
    yield from data_differences(first, second)
    yield from group_differences([train_parameters(run) for run in (first, second)], "{}", "parameters")
    for name in ("precision", "grad_accum_steps"):
        yield from value_difference(first, second, name, f"realized.{name}")
    yield from value_difference(first, second, "global batch size", "realized.batch_size", absent="as in params.yaml")
    yield from group_differences([run.train["digests"]["code"] for run in (first, second)], "code: {}", "files")
    releases = [run.value("environment.versions.torch").partition("+")[0] for run in (first, second)]
    if releases[0] != releases[1]:
        yield Row("torch", tuple(releases))


def named_differences(first: Run, second: Run) -> Iterator[Row]:
    for name, path in NAMED.items():
        yield from value_difference(first, second, name, path, ABSENT.get(name, NOT_RECORDED))


def environment_differences(first: Run, second: Run) -> Iterator[Row]:
    yield from value_difference(first, second, "commit", "tree.commit")
    yield from value_difference(first, second, "patch of uncommitted changes", "tree.patch_sha256", absent="none")
    yield from value_difference(first, second, "locked packages", "environment.requirements_sha256")
    versions = [run.timing["environment"]["versions"] for run in (first, second)]
    # A CPU has no driver and no cuDNN, so only versions that both recorded are compared. torch is among the refusals.
    for name in sorted((versions[0].keys() & versions[1].keys()) - {"torch"}):
        label = {"cudnn": "cuDNN", "python": "Python"}.get(name, name)
        yield from value_difference(first, second, label, f"environment.versions.{name}")


def data_differences(first: Run, second: Run) -> Iterator[Row]:
    """Yield only the first cause of different data: the raw table, the sequences of the splits, or the preparation."""
    # Data from a source of the workload's own has no table, and may have no files of sequence ids.
    rows = list(value_difference(first, second, "data: raw table", "digests.data.table"))
    divisions = [division(run) for run in (first, second)]
    if not rows and divisions[0] != divisions[1]:
        rows = [Row("data: sequences of the splits", tuple(map(short, divisions)))]
    packed = [run.train["digests"]["data"]["packed"] for run in (first, second)]
    yield from rows or group_differences(packed, "data: packed {} split", "splits")


def division(run: Run) -> list[str] | None:
    """Return the digests of the sequence ids in each split; None if the data has no such files."""
    prepared = run.train["digests"]["data"]["prepared"]
    return [prepared[name][:DIGEST_LETTERS] for name in sorted(prepared) if name.endswith("/ids.npy")] or None


def parameters_of(run: Run) -> dict[str, Any]:
    return recorded_parameters(run.block)


def train_parameters(run: Run) -> dict[str, Any]:
    parameters = parameters_of(run).items()
    return {name.removeprefix("train."): value for name, value in parameters if name.startswith("train.")}


def group_differences(groups: Sequence[Mapping[str, Any]], form: str, plural: str) -> Iterator[Row]:
    """Yield the values in which two groups differ. `form`: a value's name; `plural`: the name of several values."""
    names = [name for name in differing_names(*groups) if name not in CHOICES]
    for name in names[:MAX_LISTED]:
        yield Row(form.format(name), tuple(short(group.get(name, "absent")) for group in groups))
    if len(names) > MAX_LISTED:
        yield Row(form.format(f"{len(names) - MAX_LISTED} more {plural}"), ("one value", "another"))


# The machine's state in `conditions` (tandem/machine/conditions.py): before, after, between.


def settings_differences(sides: Mapping[str, Run]) -> Iterator[str]:
    """Yield settings that differ between two sides with the same hardware."""
    first, second = sides.values()
    if first.value("hardware.name") != second.value("hardware.name"):
        return
    for name, path in SETTINGS.items():
        values = [run.value(f"conditions.before.{path}") for run in (first, second)]
        if None not in values and values[0] != values[1]:
            parts = (f"{short(value)} for {side}" for side, value in zip(sides, values, strict=True))
            yield f"{name} differs: {', '.join(parts)}"


def conditions_of(run: Run, label: str) -> Iterator[str]:
    """Yield the problems of one side's machine."""
    before, after = (run.timing["conditions"][when] for when in ("before", "after"))
    for phrase in taken_by_others(run.timing["conditions"]):
        yield f"{label}: {phrase} during the training"
    throttled = [value_at(reading, "gpu.throttled_by") for reading in (before, after)]
    reasons = dict.fromkeys(short(reason) for reason in throttled if reason)
    if (share := run.times.get("throttled_share") or 0.0) >= MIN_THROTTLED_SHARE:  # of the samples between both
        reasons[f"during {share:.0%} of the training"] = None
    if reasons:
        yield f"{label}: the clocks were throttled ({', '.join(reasons)})"
    for name, path in SETTINGS.items():
        start, end = (value_at(reading, path) for reading in (before, after))
        if None not in (start, end) and start != end:
            yield f"{label}: {name} changed during the training ({short(start)} before, {short(end)} after)"


# Sides in words.


def hardware_and_settings(run: Run, threads: int | None) -> str:
    """Return e.g. `cuda: NVIDIA H100, 1 thread, cuDNN's GRU` or `cpu: AMD EPYC 9654, 16 threads, Tandem's GRU`.

    `threads`: the timed number of threads, if it differs from the training's.
    """
    threads, name = threads or run.threads, short_hardware(run.hardware_name)
    return f"{run.kind}: {name}, {threads} thread{'s' * (threads != 1)}, {run.timing['kernels']}"


def short_hardware(name: str) -> str:
    """Return a processor's name without redundant parts: `AMD EPYC 9654`.

    Family and model stay if a virtual machine hides the processor's name.
    """
    bare = re.sub(r"\s*\(family \d+ model \d+\)", "", name)
    bare = re.sub(r"\((R|TM)\)|\s+\d+-Core Processor|\s+CPU(?= @)", "", bare)
    is_hidden = not re.search(r"\d{3,}", bare.partition("@")[0])
    family = re.search(r"\(family \d+ model \d+\)", name)
    return f"{bare} {family.group()}" if is_hidden and family else bare


def best_threads(run: Run) -> str:
    """Return why a CPU's number of threads may not be its best one; empty if it is, and for other devices."""
    threads, cores = run.block["train"]["threads"], run.timing["hardware"]["cpu"]["cores"]
    if is_accelerator(run.kind) or threads == "auto" or cores == 1:
        return ""
    return (
        f"the CPU used {threads} of {cores:g} cores, because params.yaml sets threads: {threads}; `threads: auto` "
        "uses the fastest number"
    )


def value_difference(first: Run, second: Run, name: str, path: str, absent: str = NOT_RECORDED) -> Iterator[Row]:
    """Yield the values if they differ."""
    pair = [run.value(path) for run in (first, second)]
    if pair[0] != pair[1]:
        yield Row(name, tuple(absent if value is None else short(value) for value in pair))


def short(value: Any) -> str:
    if value is None:
        return NOT_RECORDED
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if re.fullmatch(r"[0-9a-f]{16,}", text):
        return text[:DIGEST_LETTERS]
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 3] + "..."
