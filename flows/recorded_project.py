"""The project as it was when a run was recorded, in a temporary git worktree, to train the run again there.

The worktree has the run's commit and patch, its raw table and its params.yaml with the realized settings. Everything in
it runs with the recorded code and this environment. `tandem verify` (flows/verify.py) compares what comes out.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows import processes
from tandem.comparing import verdicts
from tandem.comparing.verdicts import Verdict
from tandem.files import ROOT, raw_dir, read_json, sha256_file, write_json
from tandem.runs.run import Run

# The caller's environment variables that describe the project and must not reach the copy.
FOREIGN = ("DVC_", "TANDEM_", "GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
NUM_LAST_LINES = 20  # of a step that failed without a one-sentence reason


class NotVerifiable(ValueError):
    """Ends a verification before its training. `cause`: in a few words."""

    def __init__(self, cause: str, sentence: str) -> None:
        self.verdict = Verdict("not verifiable", cause, sentence)
        super().__init__(f"{self.verdict}: {sentence}")


@contextmanager
def checkout(run: Run, threads: int | None = None, device: str | None = None) -> Iterator[RecordedProject]:
    """Yield the project of a run. `threads` and `device` replace the recorded ones. It is removed at the end.

    Raises NotVerifiable if the commit or the patch is unavailable.
    """
    tree = run.timing["tree"]
    commit, patch = tree["commit"], tree["patch"]
    if commit is None:
        raise NotVerifiable("no commit was recorded", tree["missing_reason"])
    if patch is None:
        raise NotVerifiable("uncommitted changes without a patch", tree["missing_reason"])
    step = "`git fetch` gets it if the machine of the run has pushed it"
    git("cat-file", "-e", f"{commit}^{{commit}}", failure=f"commit {commit[:12]} is not in this repository", why=step)
    folder = Path(tempfile.mkdtemp(prefix="tandem-verify-"))
    worktree = folder / "project"
    try:
        print(f"commit {commit[:12]}{' with its patch' if patch else ''}, in a temporary worktree", flush=True)
        git("worktree", "add", "--detach", str(worktree), commit, failure="git cannot create a worktree")
        if patch:
            options = ("--binary", "--index", "--whitespace=nowarn")
            git("apply", *options, cwd=worktree, content=patch.encode(), failure="the patch does not apply")
        prefix = git("rev-parse", "--show-prefix").decode().strip()  # of a project in a subfolder
        yield RecordedProject(worktree / prefix, run, threads, device or run.requested)
    finally:
        git("worktree", "remove", "--force", str(worktree))
        shutil.rmtree(folder, ignore_errors=True)
        git("worktree", "prune")


def git(*arguments: str, cwd: Path = ROOT, content: bytes | None = None, failure: str = "", why: str = "") -> bytes:
    """Return git's output. If git fails and `failure` is given, raises it, with `why` or git's own message."""
    # Skip the user's hooks: DVC's hook runs `dvc checkout` after each checkout.
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    process = subprocess.run(command, cwd=cwd, env=own_environment(), input=content, capture_output=True, check=False)
    if process.returncode and failure:
        raise NotVerifiable(failure, why or " ".join(process.stderr.decode(errors="replace").split()))
    return process.stdout


def own_environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    if path := env.pop("PYTHONPATH", ""):  # the command `tandem` adds this project, whose code must not run there
        env["PYTHONPATH"] = os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry).resolve() != ROOT)
    return env


@dataclass(frozen=True)
class RecordedProject:
    folder: Path
    recorded: Run
    threads: int | None  # replaces the recorded number
    device: str

    def prepare(self) -> str:
        """Place the raw data and params.yaml, and run the stages before `train`. Returns the source of the data.

        Raises NotVerifiable if the data or the code is not the recorded one.
        """
        source = self.place_table() if self.recorded.train["digests"]["data"]["table"] else self.place_files()
        block, realized = copy.deepcopy(self.recorded.block), self.recorded.realized
        block["train"] |= {name: realized[name] for name in ("threads", "precision", "step") if name in realized}
        if self.threads:
            block["train"]["threads"] = self.threads
        workload = self.recorded.workload
        params = {"workloads": [workload], "devices": [self.device], "seeds": [self.recorded.seed]}
        write_json(self.folder / "params.yaml", {**params, "preset": "none", "presets": {}, workload: block})
        for stage in (["hardware"], ["preprocess", workload], ["preload", workload, self.device]):
            print(*stage, flush=True)
            self.run("tandem.stage", *stage)
        code = read_json(self.folder / f"results/hardware/code/{workload}/train.json")
        recorded = self.recorded.train["digests"]["code"]
        if changed := [name for name, sha256 in recorded.items() if code.get(name) != sha256]:
            reason = f"{', '.join(changed)} differ"
            raise NotVerifiable("the code differs from the commit with its patch", reason)
        return source

    def place_table(self) -> str:
        """Copy the raw table from the workspace or DVC, unless the commit has it. Returns its source."""
        sha256 = self.recorded.train["digests"]["data"]["table"]
        assert sha256
        workload, table = self.recorded.workload, self.recorded.block["preprocess"]["table"]
        relative, present = Path("workloads", workload, "data", table), raw_dir(workload) / table
        target = self.folder / relative
        if target.is_file() and sha256_file(target) == sha256:
            return f"{relative} of the commit"
        target.parent.mkdir(parents=True, exist_ok=True)
        if present.is_file() and sha256_file(present) == sha256:
            shutil.copyfile(present, target)
            return f"{relative} of the working tree, because the commit does not contain it"
        if self.pull(relative, target) and sha256_file(target) == sha256:
            return f"{relative} from DVC"
        reason = f"no {relative} with sha256 {sha256[:12]} is in the commit, the working tree or DVC"
        note = f" (here it has {sha256_file(present)[:12]})" if present.is_file() else ""
        raise NotVerifiable("its data is missing", f"{reason}{note}; restore the recorded table")

    def pull(self, relative: Path, target: Path) -> bool:
        """Let DVC fetch the commit's table from the project's cache or a remote. Returns whether it could."""
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException

        try:
            DVCFileSystem(str(ROOT), rev=self.recorded.timing["tree"]["commit"]).get_file(str(relative), str(target))
        except (OSError, DvcException):
            return False
        return True

    def place_files(self) -> str:
        """Copy the files for the run's own source that the commit does not hold. `other_data` checks their result."""
        folder, copied = raw_dir(self.recorded.workload), []
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = self.folder / path.relative_to(ROOT)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                copied.append(path.name)
        note = f", with {', '.join(copied)} of the working tree, which the commit does not contain" if copied else ""
        return f"from the source of the commit{note}"

    def other_data(self) -> list[str]:
        """The outputs of preprocess and preload that differ from the run's training data."""
        workload, digests, differences = self.recorded.workload, self.recorded.train["digests"]["data"], []
        for name, recorded, file in (
            ("prepared", digests["prepared"], f"data/prepared/{workload}/summary.json"),
            ("packed", digests["packed"], f"data/packed/{workload}/{self.device}/plan.json"),
        ):
            here = read_json(self.folder / file)["sha256"]
            if changed := [part for part in sorted({*recorded, *here}) if recorded.get(part) != here.get(part)]:
                differences.append(f"{', '.join(changed)} ({name}) differ, although the table is the same")
        return differences

    def rerun(
        self, seeds: Sequence[int], num_epochs: int | None, perturbations: Sequence[int] = (), evaluate: bool = False
    ) -> list[Run]:
        """These trainings, repeated. `perturbations`: seeds for the perturbed initial weights."""
        if not seeds:
            return []
        out = self.folder.parent / "reruns.json"
        epochs = f"{num_epochs or self.recorded.block['train']['epochs']} epochs"
        moved = f", {len(perturbations)} times with weights perturbed by one unit in the last place"
        print(f"training: seed {', '.join(map(str, seeds))}, {epochs}{moved if perturbations else ''}", flush=True)
        self.run(
            "tandem.comparing.retrain",
            *(self.recorded.workload, self.device, *map(str, seeds), f"--out={out}"),
            *([f"--epochs={num_epochs}"] if num_epochs else []),
            *(["--perturb", *map(str, perturbations)] if perturbations else []),
            *(["--evaluate"] if evaluate else []),
        )
        return [verdicts.open_rerun(entry, self.recorded) for entry in json.loads(out.read_text(encoding="utf-8"))]

    def run(self, module: str, *words: str) -> None:
        """Run `python -m <module> <words>` and wait. Raises NotVerifiable if it fails."""
        last_lines: list[str] = []

        def on_line(line: str) -> None:
            last_lines[:] = [*last_lines, line][-NUM_LAST_LINES:]
            if line.startswith("epoch "):
                show_on_terminal(line)

        status = processes.run([module, *words], on_line, environment=own_environment(), folder=self.folder)
        show_on_terminal("")
        if status:
            reason = next((line for line in reversed(last_lines) if line.startswith("error: ")), " | ".join(last_lines))
            raise NotVerifiable(f"{module.rpartition('.')[2]} failed", reason.removeprefix("error: "))


def show_on_terminal(line: str) -> None:
    """Show a line in place of the previous one; an empty line clears it."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line[:100]}", end="", flush=True)
