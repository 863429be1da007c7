"""Rerun a recorded training, and report whether the result is the same.

RUN is one of

    sign@cpu, sign@cpu-0    the run in results/ of a workload on a device, with a seed; if there is none, the latest in
                            MLflow
    brown-swan              an experiment that `tandem show` lists, if it trained one workload on one device
    3f1c...                 an MLflow run id
    results/runs/sign/auto  the folder of a run (the first seed if it has several), including one from another machine
    published               the results in results/ against those published with the project; trains nothing

The training runs in a temporary git worktree of the run's commit and patch, with that code and the run's realized
settings. It needs the commit in this repository, the same requirements.txt, and the raw table from git, workloads/ or
DVC. The project's results, dvc.lock, checkpoints and history do not change, except that the run in MLflow gets the tag
`verified`. Times are not verified: they are measured again and shown next to the recorded ones.

    tandem verify sign@cpu
    tandem verify published

Exit status and verdict:

    0  bit-equal                 every loss, weight, draw and prediction is the recorded one, to the bit
    0  within rounding           on other hardware or in another environment: differs no more than rounding explains
    0  statistically compatible  the losses differ by more, but the test scores by less than between seeds
    1  different: <first cause>  data, environment, initial weights, draws, epoch N, tensor or predictions
    2  not verifiable: <why>     the run, its code, its environment or its data is not available
    3  inconclusive              the test split is too small to decide
"""

import signal
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any

from flows.recorded_project import NotVerifiable, RecordedProject, checkout
from tandem import files
from tandem.comparing import published, verdicts
from tandem.comparing.published import FILE, SCHEMA
from tandem.comparing.verdicts import Verdict
from tandem.params.loading import load_params
from tandem.runs import provenance
from tandem.runs.run import Run, open_folder, seeds_in
from tandem.terminal.command import NO_ANSWER, CommandError, Result, aligned, count, sentence_of
from tandem.tracking import find_runs

QUICK_EPOCHS = 3


@dataclass(frozen=True)
class Verified:
    """The result of `verify`."""

    run: str
    verdict: Verdict
    notes: tuple[str, ...]  # the recorded run, the source of the data, the times

    @property
    def sentence(self) -> str:
        return f"{self.run}: {self.verdict}"

    @property
    def text(self) -> str:
        return "\n  ".join([self.sentence, *filter(None, (self.verdict.sentence, *self.notes))])


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run to repeat")
    parser.add_argument("--quick", action="store_true", help=f"only the first {QUICK_EPOCHS} epochs, no predictions")
    parser.add_argument("--threads", type=count, metavar="N", help="default: as recorded, or auto")
    parser.add_argument("--device", help="cpu, cuda or auto; default: the recorded one")
    parser.add_argument("--write", action="store_true", help="with `published`: publish the results in results/")


def main(options: Namespace) -> Result:
    # Signals raise, so that the worktree is removed; Ctrl+C too if a shell makes background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        if options.run == "published":
            return write_published() if options.write else check_published()
        verified = verify(options.run, options.quick, options.threads, options.device)
    except (OSError, ValueError) as error:  # ValueError: no such run
        raise CommandError(sentence_of(error), NO_ANSWER) from error
    document = {"run": verified.run, **verified.verdict.document, "notes": verified.notes}
    return Result(verified.text, document, verified.verdict.status)


def verify(run: str, quick: bool, threads: int | None = None, device: str | None = None) -> Verified:
    """Rerun a training. If MLflow has the run, the verdict becomes its tag `verified`.

    Raises ValueError if `run` names no recorded run.
    """
    original, start = find_runs.find(run), time.monotonic()
    in_mlflow = f", MLflow run {original.run_id[:8]}" if original.run_id else ""
    notes = [f"the run of {original.timing['measured_at'][:16]}, {len(original.train['epochs'])} epochs{in_mlflow}"]
    try:
        verdict = judge(original, quick, threads, device, notes)
    except NotVerifiable as error:
        verdict = error.verdict
    if original.run_id is not None:
        part = f" (first {QUICK_EPOCHS} epochs, no predictions)" if quick else ""
        find_runs.tag(original, {"verified": f"{verdict}{part}", "verified.at": files.now()})
    return Verified(original.name, verdict, (*notes, f"took {time.monotonic() - start:.0f} s"))


def judge(original: Run, quick: bool, threads: int | None, device: str | None, notes: list[str]) -> Verdict:
    refuse_other_environment(original)
    with checkout(original, threads, device) as project:
        notes.append(f"data: {project.prepare()}")
        if data := project.other_data():
            return Verdict("different", "data", "; ".join(data))
        num_epochs = min(QUICK_EPOCHS, len(original.train["epochs"])) if quick else None
        (new_run,) = project.rerun([original.seed], num_epochs, evaluate=not quick)
        notes.append(times_text(original, new_run))
        environment = verdicts.environment_of(original, new_run)
        verdict = verdicts.judge_bitwise(original, new_run, environment)
        return verdict or judge_rounding(original, project, new_run, environment, num_epochs)


def judge_rounding(
    original: Run,
    project: RecordedProject,
    new_run: Run,
    environment: verdicts.EnvironmentInfo,
    num_epochs: int | None,
) -> Verdict:
    """The verdict if the bits may differ: from trainings with perturbed weights, then from other seeds' scores."""
    seed, is_whole, num_alike = original.seed, num_epochs is None, 0
    num_seeds = verdicts.NUM_SEEDS_OF_MARGIN if is_whole else verdicts.NUM_SEEDS
    seeds = [(seed + number) % 2**63 for number in range(1, num_seeds + 1)]
    other_runs: list[Run] = []
    if verdicts.may_round(original, new_run):
        perturbed_runs = project.rerun([seed], num_epochs, perturbations=range(1, verdicts.NUM_PERTURBED + 1))
        other_runs = project.rerun(seeds[: verdicts.NUM_SEEDS], num_epochs, evaluate=is_whole)
        envelope = verdicts.measure_envelope(new_run, perturbed_runs, other_runs)
        result = verdicts.within(original, new_run, environment, envelope)
        if isinstance(result, Verdict):
            return result
        num_alike = result
    if is_whole:
        other_runs += project.rerun(seeds[len(other_runs) :], num_epochs, evaluate=True)
    return verdicts.judge_final_scores(original, new_run, other_runs, environment, num_alike)


def refuse_other_environment(run: Run) -> None:
    needed, here = (info["requirements_sha256"] for info in (run.timing["environment"], provenance.environment()))
    if needed != here:
        raise NotVerifiable(
            "another environment",
            f"requirements.txt, with requirements.own.txt if there is one, has sha256 {str(here)[:12]} here, but "
            f"{str(needed)[:12]} in the run; clone the project, check out {run.timing['tree']['commit']}, run "
            "`make setup` and verify the run in that clone, by its folder or its MLflow run id",
        )


def times_text(original: Run, new_run: Run) -> str:
    """The recorded and the new time of an epoch, after the warm-up."""
    old_seconds, new_seconds = (run.times["epoch_seconds"] for run in (original, new_run))
    text = "not measured after warm-up" if new_seconds is None else f"{new_seconds:.3g} s"
    if old_seconds is None:
        return f"epoch time (not verified): {text} here, not measured by the recorded run"
    origin = f"on {original.timing['machine']}, {original.timing['measured_at'][:16].replace('T', ' ')}"
    return f"epoch time (not verified): {text} here, {old_seconds:.3g} s recorded {origin}"


# `tandem verify published` takes seconds. With --write, it trains each workload a few more times, to measure the effect
# of rounding.


def check_published() -> Result:
    """The verdicts on the results here; the exit status is that of the worst: 1, 2, 3, 0."""
    by_workload = {workload: verdict_of(workload, entries) for workload, entries in published.read().items()}
    lines = aligned(
        [
            (workload, f"{verdict}{f' ({verdict.sentence})' if verdict.sentence else ''}")
            for workload, verdict in by_workload.items()
        ]
    )
    document = {workload: verdict.document for workload, verdict in by_workload.items()}
    statuses = {verdict.status for verdict in by_workload.values()}
    return Result("\n".join(lines), document, next(status for status in (1, 2, 3, 0) if status in statuses))


def verdict_of(workload: str, entries: list[dict[str, Any]]) -> Verdict:
    """The verdict against the published run on the most similar hardware."""
    runs = own_runs(workload)
    reference = published.nearest(entries, runs[0]) if runs else published.open_entry(entries[0])
    seed = reference.run.seed
    run = next((run for run in runs if run.seed == seed), None)
    if run is None:
        return Verdict("not verifiable", "no results here", f"`dvc repro` trains and evaluates it with seed {seed}")
    return published.judge(reference, run)


def own_runs(workload: str) -> list[Run]:
    """The workspace's evaluated runs on params.yaml's devices."""
    params = load_params()
    folders = [files.runs_dir(workload, device) for device in params.devices]
    return [run for folder in folders for seed in seeds_in(folder) if (run := open_folder(folder, seed)).score]


def write_published() -> Result:
    """Publish results/ for this kind of hardware, next to the published results of other hardware."""
    entries = published.read() if FILE.exists() else {}
    for workload in load_params().workloads:
        runs = own_runs(workload)
        if not runs:
            raise ValueError(f"results/ has no evaluated run of {workload}; run `dvc repro` first")
        entry = published.entry_of(runs, rerun_perturbed(runs[0]))
        old_entries = [
            old_entry
            for old_entry in entries.get(workload, [])
            if verdicts.environment_of(published.open_entry(old_entry).run, runs[0]).hardware
        ]
        entries[workload] = [*old_entries, entry]
        files.write_json(FILE, {"schema": SCHEMA, "workloads": {name: entries[name] for name in sorted(entries)}})
        print(f"{workload}: published in {files.relative(FILE)}", flush=True)
    return Result("", {"published": list(load_params().workloads), "file": files.relative(FILE)})


def rerun_perturbed(run: Run) -> list[Run]:
    """Train the run again several times, each with its initial weights perturbed by one unit in the last place."""
    with checkout(run) as project:
        project.prepare()
        return project.rerun([run.seed], None, perturbations=range(1, verdicts.NUM_PERTURBED + 1))
