"""Rerun a recorded training, and report whether the result is the same.

RUN is one of

    sign@cpu, sign@cpu-0    the latest run of a workload on a device of params.yaml, with a seed
    3f1c...                 an MLflow run id
    results/runs/sign/cpu/0 the folder of a run, including one from another machine
    published               the results in results/ against those published with the project; trains nothing

The training runs in a temporary git worktree of the run's commit and patch, with that code and the run's realized
settings. It needs the commit in this repository, the same requirements.txt, and the raw table from git, workloads/ or
DVC. The project's results, dvc.lock, checkpoints and history do not change, except that the run in MLflow gets the tag
`verified`. Times are not verified: they are measured again and shown next to the recorded ones.

    tandem verify sign@cpu
    tandem verify published

Exit status and verdict:

    0  bit-equal                 every loss, weight, draw and prediction is the recorded one, to the bit
    0  within rounding           on other hardware, environment or threads: no further off than rounding leads
    0  statistically compatible  rounding leads further, and the test's scores differ by less than seeds do
    1  different: <first cause>  data, environment, initial weights, draws, epoch N, tensor or predictions
    2  not verifiable: <why>     the run, its code, its environment or its data is not available
    3  inconclusive              the test split is too small to tell
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flows import processes
from tandem.command import NO_ANSWER, CommandError, Result, describe
from tandem.comparing import rerun
from tandem.comparing.rerun import Verdict
from tandem.files import ROOT, raw_dir, read_json, sha256_file, write_json
from tandem.runs import provenance, recorded
from tandem.runs.run import Run

QUICK_EPOCHS = 3
STAGE, RETRAIN = "tandem.stage", "tandem.comparing.retrain"
# The same modules, and the folder of the raw tables, in commits before tandem/ and workloads/ existed.
OLD = {STAGE: "flows.stage", RETRAIN: "stages.tools.retrace"}
# The caller's environment variables that describe the project and must not reach the copy.
FOREIGN = ("DVC_", "TANDEM_", "GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
NUM_LAST_LINES = 20  # of a step that failed without a one-sentence reason


class Stopped(ValueError):
    """Ends a verification with `verdict` before its training."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(f"{verdict}: {verdict.sentence}")


def not_verifiable(why: str, sentence: str) -> Stopped:
    """`why` in a few words, and a sentence with the next step."""
    return Stopped(Verdict("not verifiable", why, sentence))


@dataclass(frozen=True)
class Verified:
    """The result of `verify`."""

    run: str
    verdict: Verdict
    notes: tuple[str, ...]  # what was compared, the source of the data, the times

    @property
    def sentence(self) -> str:
        return f"{self.run}: {self.verdict}"

    @property
    def text(self) -> str:
        return "\n  ".join([self.sentence, *filter(None, (self.verdict.sentence, *self.notes))])


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run to repeat")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_EPOCHS} epochs alone, no predictions")
    parser.add_argument("--threads", type=int, metavar="N", help="instead of the recorded number")
    parser.add_argument("--device", help="instead of the recorded one, as params.yaml's devices: cpu, cuda, auto")
    parser.add_argument("--write", action="store_true", help="with `published`: publish the results in results/")


def main(options: Namespace) -> Result:
    # Signals raise, so that the worktree is removed; Ctrl+C too if a shell makes background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        if options.run == "published":
            from flows import published

            return published.write() if options.write else published.check()
        found = verify(options.run, options.quick, options.threads, options.device)
    except OSError as error:
        raise CommandError(describe(error), NO_ANSWER) from error
    except ValueError as error:  # no such run
        raise CommandError(str(error), NO_ANSWER) from error
    about = {"verdict": found.verdict.name, "cause": found.verdict.cause, "sentence": found.verdict.sentence}
    return Result(found.text, {"run": found.run, **about, "notes": found.notes}, found.verdict.status)


def verify(run: str, quick: bool, threads: int | None = None, device: str | None = None) -> Verified:
    """Rerun a training. If MLflow has the run, the verdict becomes its tag `verified`.

    Raises ValueError if `run` names no recorded run.
    """
    found, start = recorded.find(run), time.monotonic()
    notes: list[str] = []
    try:
        verdict = judge(found, quick, threads, device, notes)
    except Stopped as error:
        verdict = error.verdict
    if found.run_id is not None:
        recorded.tag(found, {"verified": str(verdict), "verified.at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    return Verified(found.name, verdict, (*notes, f"took {time.monotonic() - start:.0f} s"))


def say(line: str) -> None:
    print(line, flush=True)


def judge(found: Run, quick: bool, threads: int | None, device: str | None, notes: list[str]) -> Verdict:
    manifest = found.manifest
    refuse_other_environment(manifest)
    with checkout(manifest["tree"]) as (project, folder):
        copy = Copy(project, folder, manifest, threads, device)
        notes.append(f"data: {copy.place_table()}")
        copy.prepare()
        if data := copy.other_data():
            return Verdict("different", "data", "; ".join(data))
        num_epochs = min(QUICK_EPOCHS, len(manifest["epochs"])) if quick else None
        (again,) = copy.rerun([manifest["seed"]], num_epochs, evaluate=not quick)
        notes += [compared(manifest, again), times(manifest, again)]
        facts = rerun.environment_of(manifest, again)
        verdict = rerun.judge_bitwise(manifest, again, facts)
        return verdict or judge_rounding(found, copy, again, facts, num_epochs)


def judge_rounding(
    found: Run,
    copy: Copy,
    again: dict[str, Any],
    facts: rerun.EnvironmentInfo,
    num_epochs: int | None,
) -> Verdict:
    """The verdict if the bits may differ: from trainings with perturbed weights, then from other seeds' scores."""
    manifest, seed = found.manifest, found.seed
    is_whole, horizon = num_epochs is None, 0
    num_seeds = rerun.NUM_SEEDS_OF_MARGIN if is_whole else rerun.NUM_SEEDS
    seeds = [(seed + number) % 2**63 for number in range(1, num_seeds + 1)]
    others: list[dict[str, Any]] = []
    if rerun.may_round(manifest, again):
        perturbed = copy.rerun([seed], num_epochs, perturbations=range(1, rerun.NUM_PERTURBED + 1))
        others = copy.rerun(seeds[: rerun.NUM_SEEDS], num_epochs, evaluate=is_whole)
        envelope = rerun.measure_envelope(again, perturbed, others)
        if verdict := rerun.within(manifest, again, facts, envelope):
            return verdict
        horizon = envelope.horizon
    if is_whole:
        others += copy.rerun(seeds[len(others) :], num_epochs, evaluate=True)
    predictions = recorded_predictions(found) if is_whole else None
    return rerun.judge_final_scores(manifest, predictions, again, others, facts, horizon)


def recorded_predictions(found: Run) -> list[dict[str, str]] | None:
    """The recorded predictions; None if they are not available."""
    try:
        return found.predictions or None
    except ValueError:
        return None


def refuse_other_environment(manifest: dict[str, Any]) -> None:
    wanted, here = manifest["environment"]["requirements_sha256"], provenance.environment()["requirements_sha256"]
    if wanted == here:
        return
    raise not_verifiable(
        "another environment",
        f"requirements.txt, with requirements.own.txt if there is one, has sha256 {str(here)[:12]} here, and the run "
        f"was made with {str(wanted)[:12]}; clone the project, check out {manifest['tree']['commit']} and `make setup` "
        "there, and verify the run there, by its folder or its MLflow run id",
    )


# Checking out the recorded code.


def git(*arguments: str, cwd: Path = ROOT, content: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    # Skip the user's hooks: DVC's hook runs `dvc checkout` after each checkout.
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    return subprocess.run(command, cwd=cwd, env=own_environment(), input=content, capture_output=True, check=False)


def own_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    if path := kept.pop("PYTHONPATH", ""):  # the command `tandem` adds this project, whose code must not run there
        kept["PYTHONPATH"] = os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry).resolve() != ROOT)
    return kept


@contextmanager
def checkout(tree: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """(the project with the run's code, its temporary parent folder). Both are removed at the end.

    Raises Stopped if the commit or the patch is unavailable.
    """
    commit, patch = tree["commit"], tree["patch"]
    if commit is None:
        raise not_verifiable("no commit was recorded", tree["missing_reason"])
    if patch is None:
        raise not_verifiable("edited tree without its patch", tree["missing_reason"])
    content = patch.encode()
    if patch and hashlib.sha256(content).hexdigest() != tree["patch_sha256"]:
        raise not_verifiable("the recorded patch is altered", "its sha256 is not the one beside it in the manifest")
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        why = f"commit {commit[:12]} is not in this repository"
        raise not_verifiable(why, "`git fetch` from where the run was made brings it, if it was pushed there")
    folder = Path(tempfile.mkdtemp(prefix="tandem-verify-"))
    copy = folder / "project"
    try:
        say(f"commit {commit[:12]}{' with its patch' if patch else ''}, in a temporary worktree")
        added = git("worktree", "add", "--detach", str(copy), commit)
        if added.returncode:
            raise not_verifiable("git makes no worktree", one_line(added.stderr))
        if patch:
            applied = git("apply", "--binary", "--index", "--whitespace=nowarn", cwd=copy, content=content)
            if applied.returncode:
                raise not_verifiable("the patch does not apply", one_line(applied.stderr))
        prefix = git("rev-parse", "--show-prefix").stdout.decode().strip()  # of a project in a subfolder
        yield copy / prefix, folder
    finally:
        git("worktree", "remove", "--force", str(copy))
        shutil.rmtree(folder, ignore_errors=True)
        git("worktree", "prune")


def one_line(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").split())


@dataclass(frozen=True)
class Copy:
    """The project in a worktree, in which one run is repeated."""

    project: Path
    folder: Path  # temporary; the reruns are written here
    manifest: dict[str, Any]
    threads: int | None = None  # replaces the recorded number
    device: str | None = None  # replaces the requested device

    @cached_property
    def item(self) -> tuple[str, str]:
        return self.manifest["workload"], self.device or self.manifest["requested"]

    @property
    def is_old(self) -> bool:
        return not (self.project / "tandem").is_dir()

    def place_table(self) -> str:
        """Copy the raw table into the worktree; return its source.

        Raises Stopped: "different" if the available table has another digest, "not verifiable" if there is none.
        """
        sha256 = self.manifest["digests"]["data"]["table"]
        if sha256 is None:
            return self.place_files()
        workload, table = self.manifest["workload"], self.manifest["block"]["preprocess"]["table"]
        relative, present = Path("workloads", workload, "data", table), raw_dir(workload) / table
        if self.is_old:
            relative = Path("data/raw", workload, table)
        target = self.project / relative
        if target.is_file() and sha256_file(target) == sha256:
            return f"{relative} of the commit"
        if present.is_file() and sha256_file(present) == sha256:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(present, target)
            return f"{relative} as it lies here, which the commit does not hold"
        if self.pull(relative, target) and sha256_file(target) == sha256:
            return f"{relative} by DVC"
        if present.is_file():
            found = f"{relative} has sha256 {sha256_file(present)[:12]} here, {sha256[:12]} recorded"
            raise Stopped(Verdict("different", "data", found))
        raise not_verifiable(
            "its data is gone",
            f"no {relative} with sha256 {sha256[:12]} is in the commit, here or with DVC; put the table of that time "
            "there",
        )

    def place_files(self) -> str:
        """Copy the files for the run's own source that the commit does not hold. `other_data` checks their result."""
        folder, workload = raw_dir(self.manifest["workload"]), self.manifest["workload"]
        copied = []
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            target = self.project / "workloads" / workload / "data" / path.relative_to(folder)
            if not target.exists() and not self.is_old:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                copied.append(path.name)
        more = f", with {', '.join(copied)} as they lie here, which the commit does not hold" if copied else ""
        return f"from the source of the commit{more}"

    def pull(self, relative: Path, target: Path) -> bool:
        """Let DVC fetch the commit's table from the project's cache or a remote. Returns whether it could."""
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException

        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            DVCFileSystem(str(ROOT), rev=self.manifest["tree"]["commit"]).get_file(str(relative), str(target))
        except (OSError, DvcException):
            return False
        return True

    def prepare(self) -> None:
        """Write params.yaml as the run saw it, with the realized settings, and run the stages before `train`."""
        block, realized = json.loads(json.dumps(self.manifest["block"])), self.manifest["realized"]
        block["train"] |= {name: realized[name] for name in ("threads", "precision", "step")}
        if self.threads:
            block["train"]["threads"] = self.threads
        workload, device = self.item
        params = {"workloads": [workload], "devices": [device], "seeds": [self.manifest["seed"]]}
        write_json(self.project / "params.yaml", {**params, "preset": "none", "presets": {}, workload: block})
        for stage in (["hardware"], ["preprocess", workload], ["preload", workload, device]):
            say(" ".join(stage))
            self.run(STAGE, *stage)
        code = read_json(self.project / f"results/hardware/code/{workload}/train.json")
        if changed := [name for name, sha256 in self.manifest["digests"]["code"].items() if code.get(name) != sha256]:
            raise not_verifiable("its code is not what the commit and the patch hold", f"{', '.join(changed)} differ")

    def other_data(self) -> list[str]:
        """The outputs of preprocess and preload that differ from the run's training data."""
        workload, device = self.item
        data = self.manifest["digests"]["data"]
        places = {
            "prepared": self.project / "data/prepared" / workload / "summary.json",
            "packed": self.project / "data/packed" / workload / device / "plan.json",
        }
        found = []
        for name, path in places.items():
            here = read_json(path)["sha256"]
            if others := [part for part in sorted({*data[name], *here}) if data[name].get(part) != here.get(part)]:
                found.append(f"{', '.join(others)} as {name} here are other bytes, made of the same table")
        return found

    def rerun(
        self, seeds: Sequence[int], num_epochs: int | None, perturbations: Sequence[int] = (), evaluate: bool = False
    ) -> list[dict[str, Any]]:
        """The manifests of these trainings. `perturbations`: seeds for the perturbed initial weights."""
        if not seeds:
            return []
        out = self.folder / "reruns.json"
        epochs = f"{num_epochs or self.manifest['block']['train']['epochs']} epochs"
        moved = f" with its weights moved by one unit in the last place, {len(perturbations)} times"
        say(f"training: seed {', '.join(map(str, seeds))}, {epochs}{moved if perturbations else ''}")
        self.run(
            RETRAIN,
            *self.item,
            *map(str, seeds),
            f"--out={out}",
            *([f"--epochs={num_epochs}"] if num_epochs else []),
            *(["--nudge", *map(str, perturbations)] if perturbations else []),
            *(["--evaluate"] if evaluate else []),
        )
        return [rerun.as_manifest(each) for each in json.loads(out.read_text(encoding="utf-8"))]

    def run(self, module: str, *words: str) -> None:
        """Run `python -m <module> <words>` in the worktree and wait. It ends when this process ends.

        Raises Stopped if it fails. On a terminal, one line shows the current epoch.
        """
        last: list[str] = []

        def on_line(line: str) -> None:
            if line:
                last[:] = [*last, line][-NUM_LAST_LINES:]
                show(line)

        module = OLD[module] if self.is_old else module
        status = processes.run([module, *words], on_line, environment=own_environment(), folder=self.project)
        show("")
        if status:
            reason = next((line for line in reversed(last) if line.startswith("error: ")), " | ".join(last))
            raise not_verifiable(f"{module.rpartition('.')[2]} fails", reason.removeprefix("error: "))


def show(line: str) -> None:
    """Show an epoch's line on a terminal, in place of the previous one; an empty line clears it."""
    if sys.stdout.isatty() and (not line or line.startswith("epoch ")):
        print(f"\r\x1b[K{line[:100]}", end="", flush=True)


def compared(manifest: dict[str, Any], again: dict[str, Any]) -> str:
    what = f"losses, weights, order and draws of {rerun.epochs_compared(manifest, again)}"
    return f"compared: {what}" + (", predictions" if again["predictions"] else ", no predictions")


def times(manifest: dict[str, Any], again: dict[str, Any]) -> str:
    """The recorded and the new time of an epoch, after the warm-up."""
    seconds = again["epoch_seconds"][manifest["block"]["train"]["warmup_epochs"] :]
    now = f"{statistics.median(seconds):.3g} s" if seconds else "not measured after warm-up"
    before = manifest["timing"]["epoch_seconds"]
    then = "not measured" if before is None else f"{before:.3g} s"
    where = f"on {manifest['machine']}, {manifest['measured_at'][:16].replace('T', ' ')}"
    return f"an epoch (not verified): {now} here now, {then} recorded {where}"
