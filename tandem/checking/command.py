"""Test a workload's network before it is trained, in seconds, on every device of this machine.

It prepares the workload's raw data in memory, takes some of the training sequences, trains for some steps, writes
nothing, and needs no `dvc repro` before.

    tandem check pen
    tandem check pen --devices cpu --json

fail: the network is not trained or evaluated correctly. warn: what is unusual. skip: the check does
not apply.

Exit status: 0 no check fails, 1 one fails, 2 nothing could be checked.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tandem.checking import Finding, outputs, trainings
from tandem.checking.subject import Subject, open_subject
from tandem.devices.graphs import with_line
from tandem.devices.hardware import detect_hardware
from tandem.devices.memory import is_out_of_memory
from tandem.devices.names import KINDS
from tandem.params.loading import load_workload
from tandem.terminal.command import DONE, FAILED, NO_ANSWER, CommandError, Result
from tandem.terminal.messages import one_line
from tandem.training.executor import Executor, translate_oom

MAX_CHARACTERS = 300  # of an error's message


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Subject], Finding]
    needs: tuple[str, ...] = ()  # the checks that must pass; otherwise this one would find the same fault again
    takes_steps: bool = False  # whether it does not apply to a network that is fitted in closed form


CHECKS = (
    Check("build", outputs.build),
    Check("output", outputs.output, ("build",)),
    Check("randomness", outputs.randomness, ("output",)),
    Check("padding", outputs.padding, ("randomness",)),
    Check("batch independence", outputs.batch_independence, ("randomness",)),
    Check("CPU and GPU", outputs.devices, ("randomness",)),
    Check("repeatability", trainings.repeatability, ("output",)),
    Check("resume", trainings.resume, ("repeatability",), takes_steps=True),
    Check("threads", trainings.threads, ("repeatability", "resume"), takes_steps=True),
    Check("batch statistics", trainings.batch_statistics, ("batch independence", "repeatability"), takes_steps=True),
    Check("gradients", trainings.gradients, ("repeatability",), takes_steps=True),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workload", help="a block of params.yaml")
    parser.add_argument("--devices", nargs="+", choices=KINDS, help="default: all available")


def main(options: Namespace) -> Result:
    name, findings = options.workload, []
    try:
        for finding in check_workload(name, options.devices):
            findings.append(finding)
            print(f"{finding.status}  {finding.device:<4}  {finding.check}: {finding.evidence}", flush=True)
        model = load_workload(name).train.model.name
    except (ValueError, OSError) as error:
        raise CommandError(str(error), NO_ANSWER) from None
    if loop := load_workload(name).train.loop:
        not_run = f"{loop} was not run: the checks use Tandem's own training steps"
        findings.append(Finding("skip", not_run, "training loop"))
        print(f"skip  {'':<4}  training loop: {not_run}", flush=True)
    document = {"workload": name, "network": model, "findings": [asdict(finding) for finding in findings]}
    is_wrong = any(finding.status == "fail" for finding in findings)
    return Result(f"{model}: {summary(findings)}", document, FAILED if is_wrong else DONE)


def check_workload(workload: str, devices: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield the findings on each of `devices` (None: all available)."""
    for device in devices or dict.fromkeys(("cpu", detect_hardware("auto")["kind"])):
        with translate_oom(Executor()):
            yield from run_checks(open_subject(workload, detect_hardware(device)))


def run_checks(subject: Subject) -> Iterator[Finding]:
    """Yield the finding of every check, in order. A check whose precondition failed is skipped."""
    failed: set[str] = set()
    for check in CHECKS:
        failed_check = next((name for name in check.needs if name in failed), None)
        if failed_check:
            finding = Finding("skip", f"not run, because the check {failed_check!r} failed")
        elif check.takes_steps and subject.takes_no_steps:
            finding = Finding("skip", f"{subject.model.name} is fitted in closed form and takes no steps")
        else:
            finding = run_check(check, subject)
        if failed_check or finding.status == "fail":
            failed.add(check.name)
        yield replace(finding, check=check.name, device=subject.device.name())


def run_check(check: Check, subject: Subject) -> Finding:
    try:
        return check.run(subject)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return Finding("fail", with_line(error, f"{type(error).__name__}: {one_line(error)[:MAX_CHARACTERS]}"))


def summary(findings: list[Finding]) -> str:
    """The number of findings of each status, such as `1 fail, 12 pass, 1 skipped`."""
    words = {"fail": "fail", "warn": "warn", "pass": "pass", "skip": "skipped"}
    counts = {word: sum(finding.status == status for finding in findings) for status, word in words.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)
