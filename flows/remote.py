"""Git and DVC transfers around a team worker's run: `python -m flows.remote pull`, or `run`.

    pull   fetch the clone's branch from its origin, then the data and results that DVC's default remote has
    run    pull, then become the flow run for which Prefect's worker started this process (prefect.yaml)

Both lock the repository, so a pull never overlaps a training. When a run ends, flows/pipeline.py calls `push`.
Prefect's own pull steps would import Prefect twice, once for the steps and once for the run; this module imports it
only after the pull. Exit status: 0, or 1 with one sentence, which is also the state of the flow run.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from uuid import UUID

from flows import doctor, processes
from tandem import files
from tandem.passwords import without_password
from tandem.stage import watch

RUNS = files.STATE / "runs"
MADE_BY_RUNS = ("dvc.lock", "stages/dvc.lock", "results")  # the results that git tracks; DVC's cache has them too
SECONDS_FOR_GIT = 600.0  # without a limit, a network that drops packets would block the run for ever
SECONDS_FOR_HISTORY = 120.0  # time to publish what a run recorded; the publisher continues after it


def pull() -> None:
    """Raises RuntimeError with one sentence. Local edits of code stay; an edit that conflicts is an error."""
    if changed := git_names("ls-files", "--modified", "-z", "--", *MADE_BY_RUNS):
        git("checkout", "--quiet", "--", *changed)
    if git("remote"):
        print("git fetch", flush=True)
        git("fetch", "--quiet")
        # Files that a run has made here and somebody has committed meanwhile.
        made = git_names("ls-files", "--others", "--exclude-standard", "-z", "--", *MADE_BY_RUNS)
        committed = git_names("ls-tree", "-r", "--name-only", "-z", "@{upstream}", "--", *MADE_BY_RUNS)
        for name in made & committed:
            (files.ROOT / name).unlink()
        git("merge", "--quiet", "--ff-only", "@{upstream}")
    for finding in doctor.packages():
        if finding.status != "ok":  # the new commit may lock other packages or versions
            raise RuntimeError(f"{finding.what}; run on this machine: {finding.fix}, then start its worker again")
    if has_remote():
        print("dvc pull --run-cache", flush=True)
        # This machine makes what the remote lacks; results of another kind of hardware do not apply here.
        run_dvc("pull", "--run-cache", "--allow-missing")


def push() -> None:
    """Send what the run made, including DVC's run-cache, and wait until MLflow has its history.

    Raises RuntimeError with one sentence.
    """
    if has_remote():
        print("dvc push --run-cache", flush=True)
        run_dvc("push", "--run-cache")
    deadline = time.monotonic() + SECONDS_FOR_HISTORY
    while waiting := list(RUNS.glob("*/")):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"MLflow does not have everything yet: {len(waiting)} runs are in {files.relative(RUNS)}; "
                "publish them with `tandem sync` on this machine"
            )
        time.sleep(0.2)


def has_remote() -> bool:
    from dvc.config import Config

    if Config(str(files.HOME / ".dvc"))["core"].get("remote"):
        return True
    print("no DVC remote: results stay on this machine (`dvc remote add --default NAME URL` gives it one)", flush=True)
    return False


def run_dvc(*arguments: str) -> None:
    call(sys.executable, "-m", "dvc", *arguments)


def git(*arguments: str) -> str:
    return call("git", *arguments, seconds=SECONDS_FOR_GIT)


def git_names(*arguments: str) -> set[str]:
    """The names that git prints with `-z`; without it, git quotes names that are not plain ASCII."""
    return set(filter(None, git(*arguments).split("\0")))


def call(*command: str, seconds: float | None = None) -> str:
    """The output of a command. Raises RuntimeError with its last line if it fails or takes longer than `seconds`."""
    name = " ".join(command[:6]).removeprefix(f"{sys.executable} -m ")
    asks_nobody = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # git never asks for a password
    with subprocess.Popen(
        command, cwd=files.ROOT, env=asks_nobody, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise RuntimeError(f"{name}: no end within {seconds:g} s; is its origin reached from here?") from None
        except BaseException:  # a cancel arrives as Prefect's TerminationSignal, which is no Exception
            process.terminate()  # on SIGTERM, git removes its locks
            raise
    if process.returncode != 0:
        said = processes.ANSI.sub("", errors or output).strip().splitlines() or [processes.ending(process.returncode)]
        reason = next((line for line in said if line.lower().startswith(("error: ", "fatal: "))), said[-1])
        raise RuntimeError(f"{name}: {without_password(reason)}")
    return output.strip()


def report(reason: str) -> int:
    """Set the reason as the flow run's state. Returns the exit status: 1 if Prefect could not be told."""
    from httpx import HTTPError
    from prefect.exceptions import PrefectException
    from prefect.states import Crashed

    from flows.display import prefect_client

    try:
        with prefect_client(timeout=10.0) as client:
            run = UUID(os.environ["PREFECT__FLOW_RUN_ID"])
            client.set_flow_run_state(run, Crashed(message=reason), force=True)
        return 0
    except (KeyError, ValueError, HTTPError, PrefectException) as error:
        print(f"error: Prefect was not told ({type(error).__name__}: {without_password(str(error))})", file=sys.stderr)
        return 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.remote", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("pull", "run"))
    is_run = parser.parse_args(arguments).action == "run"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if is_run:
        watch(os.getppid())  # this process ends when the worker ends
    try:
        with files.locked(files.STATE / "pipeline.lock"):
            pull()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return report(str(error)) if is_run else 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    if is_run:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "prefect.engine"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
