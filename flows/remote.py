"""What a worker of a team's pool fetches before a run and sends after it: `python -m flows.remote pull`, and `push`.

    pull   the branch that the clone is on, as its origin has it; then what DVC's default remote has of data and results
    push   what the last runs made, DVC's run-cache included; and waits until MLflow has their history

Both have the repository alone, so that a pull never meets a training. prefect.yaml runs `pull` before each run of a
pool, and flows/pipeline.py calls `push` at its end. Exit status: 0, or 1 with one sentence.
"""

import argparse
import subprocess
import sys
import time

from flows import cache, doctor, dvc
from stages import files
from stages.urls import without_password

JOURNALS = files.STATE / "journals"
MADE_BY_RUNS = ("dvc.lock", "hw/dvc.lock", "results")  # what git keeps of results; DVC's cache has it too
SECONDS_FOR_HISTORY = 120.0  # to send what a run recorded; its uploader goes on after that


def pull() -> None:
    """Raises RuntimeError with one sentence. An edit of the clone's code stays; one in the pull's way is an error."""
    print("git pull", flush=True)
    made = call("git", "ls-files", "--modified", "--", *MADE_BY_RUNS).split("\n")
    if changed := [name for name in made if name]:
        call("git", "checkout", "--quiet", "--", *changed)
    if call("git", "remote"):
        call("git", "pull", "--quiet", "--ff-only")
    for finding in doctor.packages():
        if finding.status == "problem":  # the new commit may lock other ones
            raise RuntimeError(f"{finding.what}; run on this machine: {finding.fix}, then start its worker again")
    if has_remote():
        print("dvc pull --run-cache", flush=True)
        # What the remote lacks is made here: results of another kind of machine are not this one's in any case.
        run_dvc("pull", "--run-cache", "--allow-missing")


def push() -> None:
    """Raises RuntimeError with one sentence."""
    if has_remote():
        print("dvc push --run-cache", flush=True)
        run_dvc("push", "--run-cache")
    deadline = time.monotonic() + SECONDS_FOR_HISTORY
    while waiting := list(JOURNALS.glob("*/")):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"MLflow does not have everything yet: {len(waiting)} journals are in {files.relative(JOURNALS)}; "
                "send them with `python -m stages.records.uploader sync` on this machine"
            )
        time.sleep(0.2)


def has_remote() -> bool:
    config = cache.configuration()
    if config.get("core", "remote", fallback=""):
        return True
    print("no DVC remote: results stay on this machine (`dvc remote add --default NAME URL` gives it one)", flush=True)
    return False


def run_dvc(*arguments: str) -> None:
    call(sys.executable, "-m", "dvc", *arguments)


def call(*command: str) -> str:
    """The output of a command. Raises RuntimeError with its last line where it fails."""
    done = subprocess.run(command, cwd=files.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        name = " ".join(command).removeprefix(f"{sys.executable} -m ")
        said = dvc.ANSI.sub("", done.stderr or done.stdout).strip().splitlines() or [dvc.ending(done.returncode)]
        reason = next((line for line in said if line.lower().startswith(("error: ", "fatal: "))), said[-1])
        raise RuntimeError(f"{name}: {without_password(reason)}")
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    actions = {"pull": pull, "push": push}
    parser = argparse.ArgumentParser(prog="python -m flows.remote", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=actions)
    options = parser.parse_args(arguments)
    try:
        with files.locked(files.STATE / "pipeline.lock"):
            actions[options.action]()
        return 0
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
